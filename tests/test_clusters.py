"""Clusters with an older CRD, without a CRD, or with Pod Security."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from typing import Any

import pytest
import yaml

import milvus_operator as mo
from tests.lib.kit import (
    ORIGINAL_MILVUS,
    TOP,
    Kube,
    Obj,
    StillClock,
    eventually,
    make_pass,
    new_operator,
    original_crd,
    plain,
    rest,
    settle,
)


def test_a_refusal_by_pod_security_is_forbidden_with_its_own_message(
    kube: Kube, operator: mo.Operator
) -> None:
    kube.kubectl("label", "ns", kube.ns, "pod-security.kubernetes.io/enforce=restricted")
    kube.create()
    make_pass(operator)
    reconciled = kube.condition("Reconciled")
    assert (reconciled["status"], reconciled["reason"]) == ("False", "Forbidden")
    assert "violates PodSecurity" in reconciled["message"]


@pytest.mark.parametrize(
    "asked",
    [
        {"volumes": [{"name": "data", "hostPath": {"path": "/"}}]},
        {
            "containers": [
                {
                    "name": "milvus",
                    "securityContext": {"privileged": True, "allowPrivilegeEscalation": True},
                }
            ]
        },
        {"hostNetwork": True},
    ],
)
def test_pod_security_limits_what_spec_pod_can_ask_for(
    kube: Kube, operator: mo.Operator, asked: Obj
) -> None:
    kube.kubectl("label", "ns", kube.ns, "pod-security.kubernetes.io/enforce=baseline")
    kube.create()
    rest(operator, kube, "x-0")
    before = kube.uids()
    kube.change(pod={"spec": asked})
    settle(operator)
    assert kube.uids() == before
    assert kube.condition("Reconciled")["reason"] == "Forbidden"
    assert 'violates PodSecurity "baseline' in kube.condition("Reconciled")["message"]


def test_the_original_crd_is_served_and_status_begins_when_it_is_upgraded(
    kube: Kube, other_crd: Any, caplog: Any
) -> None:
    clock = StillClock()
    other_crd(original_crd())
    kube.kubectl("apply", "-f", "-", stdin=ORIGINAL_MILVUS)
    kube.create("no-image", image=None)
    kube.create("negative", replicas=-1)
    kube.create("huge", replicas=2**31)
    for name in ("dotted.name", "l" * 253):
        kube.create(name)
    operator = new_operator(kube, clock=clock)
    make_pass(operator)
    kube.ready("milvus-crd-test-0")
    make_pass(operator)

    def has_no_status() -> bool:
        clock.skip(30)
        make_pass(operator)
        return "has no status" in caplog.text

    eventually(has_no_status)  # just after the change, the API server may still answer as before
    text = caplog.text
    assert f"milvus {kube.ns}/no-image: Invalid: spec.image must be" in text
    assert f"milvus {kube.ns}/negative: Invalid: spec.replicas must be" in text
    assert f"milvus {kube.ns}/huge: Invalid: spec.replicas must be" in text
    assert f"milvus {kube.ns}/dotted.name: Invalid: the name must be" in text
    assert f"milvus {kube.ns}/{'l' * 253}: Invalid: the name must be" in text
    assert (
        text.count("the CRD milvuses.zilliz.com has no status: `kubectl apply -f crd.yaml` adds it")
        == 1
    )
    assert "status" not in kube.get("milvus-crd-test")
    other_crd(yaml.safe_load((TOP / "crd.yaml").read_text()))
    before = kube.uids()

    def has_status() -> bool:
        make_pass(operator)
        reasons = [
            kube.condition("Reconciled", name).get("reason")
            for name in ("milvus-crd-test", "negative")
        ]
        return reasons == ["SpecIsText", "Invalid"]

    eventually(has_status)  # without waiting for a rest to end
    assert kube.condition("Ready", "milvus-crd-test")["status"] == "True"
    assert caplog.text.count("dotted.name: Invalid") == 1
    assert kube.uids() == before


@pytest.mark.platform
def test_a_spec_nested_thousands_of_levels_deep_harms_nobody(kube: Kube, other_crd: Any) -> None:
    other_crd(original_crd(**{"type": "object", "x-kubernetes-preserve-unknown-fields": True}))
    for depth in (900, 4000, 9900):
        metadata = f'{{"name": "deep-{depth}"}}'
        body = f'{{"apiVersion": "zilliz.com/v1", "kind": "Milvus", "metadata": {metadata}, "spec": {{"image": "a", "x": '
        body += '{"a":' * depth + "1" + "}" * depth + "}}"
        kube.kubectl("create", "--raw", kube.milvuses_path, "-f", "-", stdin=body)
    kube.create("y")
    done = subprocess.run(  # thread stacks are as small as with musl; Python 3.13 recurses until the stack is full
        [sys.executable, str(TOP / "milvus_operator.py"), "--once", "-n", kube.ns],
        env=os.environ | {"KUBECONFIG": str(kube.plane.kubeconfig())}, capture_output=True, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, 1 << 20)),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert kube.names() == ["deep-4000-0", "deep-900-0", "deep-9900-0", "y-0"]


@pytest.mark.parametrize("spec", ["text", 7, [], {"image": 3.1}, {"image": ["a"]}, {"image": "a", "replicas": "many"},
                                  {"image": "a", "replicas": 1.5}, {"image": "a", "milvusSpec": {"a": 1}}])  # fmt: skip
def test_a_spec_of_any_shape_harms_nobody(
    kube: Kube, other_crd: Any, operator: mo.Operator, spec: Any
) -> None:
    other_crd(original_crd(**{"x-kubernetes-preserve-unknown-fields": True}))
    body = {
        "apiVersion": "zilliz.com/v1",
        "kind": "Milvus",
        "metadata": {"name": "a"},
        "spec": spec,
    }
    kube.milvuses.create(body=body, namespace=kube.ns, serializer=plain)
    kube.create("b")
    assert not make_pass(operator)
    assert kube.names() == ["b-0"]


def test_a_missing_crd_is_reported_once_and_waited_for(kube: Kube, caplog: Any) -> None:
    operator = new_operator(kube)
    kube.kubectl("delete", "-f", str(TOP / "crd.yaml"))
    try:
        eventually(lambda: not make_pass(operator))
        for _ in range(3):
            assert not make_pass(operator)
    finally:
        kube.kubectl("apply", "-f", str(TOP / "crd.yaml"))
    message = "does not serve milvuses.zilliz.com: install the CRD with `kubectl apply -f crd.yaml`"
    assert caplog.text.count(message) == 1
    eventually(lambda: make_pass(operator))
    assert f"resolved: {operator.cluster.server} {message}" in caplog.text
    kube.create()
    make_pass(operator)
    assert kube.names() == ["x-0"]
