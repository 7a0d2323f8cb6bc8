"""The status of a Milvus."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

import milvus_operator as mo
from tests.lib.kit import Kube, eventually, make_pass, new_operator, rest, settle
from tests.lib.wire import Wire


def test_status_conditions_and_columns(kube: Kube, operator: mo.Operator) -> None:
    kube.create(replicas=2)
    rest(operator, kube, "x-0", "x-1")
    kube.kubectl("wait", "--for=condition=Ready", "mi/x", "--timeout=5s")
    table = [line.split() for line in kube.kubectl("get", "mi").splitlines()]
    assert table[0] == ["NAME", "DESIRED", "READY", "STATUS", "IMAGE", "AGE"]
    assert table[1][:5] == ["x", "2", "2", "Ready", "milvus:1"]
    status = kube.status()
    assert status["observedGeneration"] == kube.get()["metadata"]["generation"]
    assert status["pods"] == ["x-0", "x-1"]
    selected = kube.kubectl("get", "pods", "-l", status["selector"], "-o", "name").split()
    assert selected == ["pod/x-0", "pod/x-1"]
    scale = json.loads(kube.kubectl("get", "mi", "x", "--subresource=scale", "-o", "json"))
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (2, 2)
    assert scale["status"]["selector"] == status["selector"]


def test_a_pass_writes_one_status(kube: Kube, wire: Wire) -> None:
    kube.create(replicas=5)
    operator = new_operator(kube, server=wire.url)
    make_pass(operator, once=True)
    assert wire.verbs().count(f"PATCH {kube.milvuses_path}/x/status") == 1


def test_last_transition_time_changes_only_with_the_status(
    kube: Kube, operator: mo.Operator
) -> None:
    kube.create()
    rest(operator, kube, "x-0")
    before = kube.condition("Ready")["lastTransitionTime"]
    time.sleep(1.1)
    kube.change(replicas=0)
    settle(operator)
    assert kube.condition("Ready")["lastTransitionTime"] == before
    kube.change(replicas=1, image="milvus:broken")
    eventually(
        lambda: make_pass(operator) and kube.condition("Ready")["reason"] == "ImagePullBackOff"
    )
    assert kube.condition("Ready")["lastTransitionTime"] > before


def test_the_missing_status_of_a_deleted_milvus_is_not_a_failure(
    kube: Kube, wire: Wire, caplog: Any
) -> None:
    kube.create(replicas=0)

    def fault(handler: Any, verb: str, path: str) -> bool:
        if verb == "PATCH" and "/status" in path:
            kube.delete()
            eventually(lambda: kube.kubectl("get", "mi", "-o", "name") == "")
        return False

    wire.fault = fault
    assert make_pass(new_operator(kube, server=wire.url), once=True)
    assert [request.code for request in wire.requests if request.verb == "PATCH"] == [404]
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


def test_a_new_milvus_does_not_get_the_status_of_an_earlier_one(
    kube: Kube, operator: mo.Operator
) -> None:
    gone = kube.create()
    kube.delete()
    eventually(lambda: kube.kubectl("get", "mi", "-o", "name") == "")
    kube.create()
    with pytest.raises(mo.ApiError, match="has been modified"):
        operator.cluster.patch_status(gone, {"replicas": 1})
    assert kube.status() == {"observedGeneration": -1}


def test_an_unschedulable_pod_is_reported(kube: Kube, operator: mo.Operator) -> None:
    kube.kubectl("cordon", "-l", "type=kwok")
    try:
        kube.create()
        eventually(
            lambda: make_pass(operator) and kube.condition("Ready")["reason"] == "Unschedulable"
        )
        assert "3 node(s) were unschedulable" in kube.condition("Ready")["message"]
        assert kube.condition("Reconciled")["status"] == "True"
    finally:
        kube.kubectl("uncordon", "-l", "type=kwok")
