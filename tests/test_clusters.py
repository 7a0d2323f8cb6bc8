"""What a cluster stores whose CRD is older, or checks little, harms nobody."""

import functools
import json
import os
import re
import resource
import sys
from typing import Any

import pytest
import yaml

import milvus_operator as mo
from tests.lib.kit import ORIGINAL_MILVUS, Clock, Kube, eventually, make_pass, output_of, settle

# The version of the original example's CRD: without a status subresource.
ORIGINAL_VERSION = yaml.safe_load("""
name: v1
served: true
storage: true
schema:
  openAPIV3Schema:
    type: object
    properties:
      spec:
        type: object
        properties:
          milvusSpec: {type: string}
          image: {type: string}
          replicas: {type: integer}
""")


def test_under_the_original_crd_pods_are_made_and_a_newer_crd_brings_statuses(
    kube: Kube, operator: mo.Operator, clock: Clock, other_version: Any
) -> None:
    """It checks nothing, and has no status subresource."""
    other_version(ORIGINAL_VERSION)
    kube.kubectl("apply", "-f", "-", stdin=ORIGINAL_MILVUS)
    bad = (
        ("negative", {"replicas": -1}),
        ("huge", {"replicas": 2**31}),
        ("no-image", {"image": None}),
    )
    for name, spec in (("dotted.name", {}), ("l" * 253, {}), *bad):
        kube.create(name, **spec)
    settle(operator)
    kube.ready("milvus-crd-test-0")
    before = kube.uids()
    other_version()

    def told(name: str) -> Any:
        clock.ahead += 30  # just after the change, the API server may still answer as before
        make_pass(operator)
        return kube.condition("Reconciled", name).get("reason")

    assert eventually(lambda: told("milvus-crd-test")) == "SpecIsText"
    assert [eventually(functools.partial(told, name)) for name, _ in bad] == 3 * ["Invalid"]
    assert kube.uids() == before


def create_raw(kube: Kube, name: str, spec: str) -> None:
    """Create a Milvus from a spec in JSON, if the API server accepts it."""
    head = f'"apiVersion": "{mo.API_VERSION}", "kind": "Milvus", "metadata": {{"name": "{name}"}}'
    kube.request("POST", kube.milvuses_path, body=f'{{{head}, "spec": {spec}}}'.encode())


@pytest.mark.platform
def test_a_spec_nested_thousands_of_levels_deep_harms_nobody(kube: Kube) -> None:
    """Thread stacks are as small as with musl; Python 3.13 recurses until the stack is full."""
    depths = (900, 4000, 9900)
    for depth in depths:
        deep = '{"a":' * depth + "1" + "}" * depth
        create_raw(kube, f"deep-{depth}", f'{{"image": "a", "pod": {{"spec": {deep}}}}}')
    kube.create("y")
    said = output_of(
        *(sys.executable, "milvus_operator.py", "--once", "-n", kube.ns), code=1,
        env=os.environ | {"KUBECONFIG": str(kube.plane.kubeconfig())},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, 1 << 20)),
    )  # fmt: skip
    assert all(said.count(f"/deep-{depth}: ") == 1 for depth in depths), said
    assert kube.names() == ["y-0"], said


POD_SPECS: list[Any] = [
    {"containers": "milvus"}, {"containers": {"name": "milvus"}}, {"containers": [1, None, []]},
    {"containers": [{}, {"name": None}, {"name": {}}]}, {"securityContext": []},
    {"containers": [{"name": "milvus", "env": {"A": "b"}}]}, {"contianers": []},
    {"containers": [{"name": "milvus", "env": [{}, {"name": 1}, {"name": None}]}]},
    {"containers": [{"name": "milvus", "ports": [{}]}, {"name": "milvus", "ports": [{}]}]},
    {"containers": [{"name": "milvus", "resources": {"requests": {"cpu": "9" * 500}}}]},
    {"containers": [{"name": "a", "image": "a"}, {"name": "a", "image": "b"}]},
    {"volumes": [{"name": "data", "emptyDir": {"sizeLimit": "lots"}}]}, {"nodeName": "nowhere"},
    {"serviceAccountName": "nobody"}, {"restartPolicy": "Never"}, {"hostNetwork": "yes"},
]  # fmt: skip
WORDS = [  # which must not pass for the server's, nor control a terminal
    "system:anonymous", "cannot set blockOwnerDeletion", "\x1b[2J\x1b]0;owned\x07\x9b31m",
    'x: User "system:anonymous" cannot create resource "pods" in API group ""',
]  # fmt: skip
FIELDS: list[Any] = [
    {"replicas": 2**63 - 1}, {"replicas": 10**30}, {"replicas": 1.5}, {"replicas": True},
    {"milvusSpec": {"a": 1}}, {"milvusSpec": "proxy.port: 1"}, {"milvusSpec": "a" * 99_999},
    {"storage": {}}, {"storage": "10Gi"}, {"storage": {"size": "0"}}, {"storage": {"size": []}},
    {"storage": {"size": "1Gi", "storageClassName": {}}}, {"pod": "text"}, {"pod": [1, 2]},
    {"pod": {"metadata": {"labels": {"no label!": "x"}, "finalizers": ["never/ends"]}}},
    *({"pod": {"spec": spec}} for spec in POD_SPECS),
    *({"pod": {"spec": {"dnsPolicy": words}}} for words in WORDS),
    *({"pod": {"spec": {"priorityClassName": words}}} for words in WORDS),
]  # fmt: skip
SPECS: list[Any] = [
    [], None, 7, "text", {"image": "  "}, {"image": "i" * 1_000_000}, {"image": ["milvus"]},
    *({"image": "a"} | fields for fields in FIELDS),
]  # fmt: skip


def test_bad_specs_get_a_clear_message_and_harm_nobody(
    kube: Kube, operator: mo.Operator, other_version: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """With a status subresource and no schema, the API server stores almost anything."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    other_version(ORIGINAL_VERSION | {"schema": schema, "subresources": {"status": {}}})
    for number, spec in enumerate(SPECS):
        create_raw(kube, f"bad-{number}", json.dumps(spec))
    for name in ("a-good", "z-good"):
        kube.create(name, replicas=2)
    settle(operator)
    good = ("a-good-0", "a-good-1", "z-good-0", "z-good-1")
    eventually(lambda: all(mo.is_ready(kube.all_pods()[name]) for name in good))
    settle(operator)
    items = json.loads(kube.request("GET", kube.milvuses_path).data)["items"]
    assert len(items) > 30
    uids = {mo.uid_of(milvus): mo.name_of(milvus) for milvus in items}
    for milvus in items:
        reconciled = mo.condition_of(milvus, "Reconciled")
        assert reconciled["message"], milvus
        assert reconciled["reason"] in ("Reconciled", "SpecIsText", "Invalid", "Forbidden"), milvus
        assert "\n" not in reconciled["message"], milvus
    for name, pod in kube.all_pods().items():
        assert name.rpartition("-")[0] == uids[mo.owner_uid(pod) or ""]
        assert mo.labels_of(pod)[mo.MANAGED_BY_LABEL] == mo.MANAGER
    ours = [record for record in caplog.records if record.name == "milvus_operator"]
    for record in ours:
        assert record.levelname != "ERROR", "no Milvus is an outage"
        assert len(record.getMessage()) < 1500
        assert not re.search(r"[\x00-\x1f\x7f-\x9f]", mo.text_line(record))
