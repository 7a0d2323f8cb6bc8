"""The loop, against the real API server: each rule about pods, status and conditions."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from typing import Any

import pytest
import yaml

import milvus_operator as mo
from tests.kit import (
    ORIGINAL_MILVUS,
    TOP,
    Clock,
    Kube,
    StillClock,
    eventually,
    make_pass,
    new_operator,
    original_crd,
    plain,
    rest,
    settle,
)
from tests.wire import Wire

Obj = dict[str, Any]


# What is there -------------------------------------------------------------------------


def test_the_milvus_of_the_original_example_is_served_unchanged(kube: Kube, operator: mo.Operator) -> None:
    kube.kubectl("apply", "-f", "-", stdin=ORIGINAL_MILVUS)
    make_pass(operator)
    kube.ready("milvus-crd-test-0")
    pod = kube.all_pods()["milvus-crd-test-0"]
    assert pod["spec"]["containers"][0]["image"] == "milvusdb/milvus"
    assert pod["spec"]["containers"][0]["name"] == "milvus"
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("milvus-crd-test-0", "milvus-crd-test")
    assert pod["metadata"]["annotations"]["zilliz.com/milvus-spec"] == "this is milvus spec"
    assert pod["metadata"]["labels"] == {
        "app.kubernetes.io/name": "milvus",
        "app.kubernetes.io/instance": "milvus-crd-test",
        "app.kubernetes.io/managed-by": "milvus-operator",
        "apps.kubernetes.io/pod-index": "0",
    }
    assert pod["metadata"]["ownerReferences"] == [mo.owner_reference(kube.get("milvus-crd-test"))]
    sample = next(yaml.safe_load_all((TOP / "sample.yaml").read_text()))
    assert sample == yaml.safe_load(ORIGINAL_MILVUS)


def test_a_deleted_pod_comes_back(kube: Kube, operator: mo.Operator) -> None:
    kube.create(replicas=2)
    settle(operator)
    before = kube.uids()
    kube.delete_pod("x-0")
    kube.gone("x-0")
    settle(operator)
    kube.ready("x-0", "x-1")
    assert kube.uids()["x-1"] == before["x-1"]
    assert kube.uids()["x-0"] != before["x-0"]


def test_scaling_up_and_down_takes_the_highest(kube: Kube, operator: mo.Operator) -> None:
    kube.create()
    settle(operator)
    before = kube.uids()
    kube.kubectl("scale", "milvus/x", "--replicas=5")
    settle(operator)
    kube.ready("x-0", "x-1", "x-2", "x-3", "x-4")
    kube.kubectl("scale", "mi/x", "--replicas=2")
    settle(operator)
    kube.ready("x-0", "x-1")
    assert kube.uids()["x-0"] == before["x-0"]
    kube.kubectl("scale", "mi/x", "--replicas=0")
    settle(operator)
    eventually(lambda: not kube.names())
    assert kube.condition("Ready")["status"] == "True"


def test_a_thousand_replicas_in_one_pass(kube: Kube, operator: mo.Operator) -> None:
    kube.create(replicas=1000)
    assert make_pass(operator, once=True)
    assert len(kube.names()) == 1000
    assert kube.status()["replicas"] == 1000


def test_an_ending_pod_is_waited_for_and_not_counted(kube: Kube, operator: mo.Operator) -> None:
    kube.create()
    rest(operator, kube, "x-0")
    before = kube.uids()
    kube.hold("x-0")
    kube.delete_pod("x-0")
    settle(operator)
    assert kube.uids() == before
    assert (kube.status()["replicas"], kube.condition("Ready")["reason"]) == (0, "Terminating")
    kube.release("x-0")
    kube.gone("x-0")
    settle(operator)
    kube.ready("x-0")


def test_a_failed_pod_is_replaced_at_once_then_after_a_back_off(kube: Kube) -> None:
    clock = StillClock()
    operator = new_operator(kube, clock=clock)
    kube.create(image="milvus:dies")
    make_pass(operator)
    seen = [kube.uids()["x-0"]]

    def replaced() -> bool:
        eventually(lambda: mo.is_finished(kube.all_pods()["x-0"]))
        settle(operator)
        return kube.uids()["x-0"] not in seen

    assert replaced(), "deleted and created in one pass"
    for wait in (10, 20, 40):
        seen.append(kube.uids()["x-0"])
        clock.skip(wait - 2)
        assert not replaced()
        assert kube.condition("Ready")["reason"] == "Evicted"
        clock.skip(2)
        assert replaced(), f"after {wait} s"
    seen.append(kube.uids()["x-0"])
    clock.skip(700)
    assert replaced(), "after ten quiet minutes"
    seen.append(kube.uids()["x-0"])
    clock.skip(10)
    assert replaced(), "the back-off begins anew"


def test_only_pods_that_have_failed_by_themselves_count_for_the_back_off(
    kube: Kube, operator: mo.Operator, clock: Clock
) -> None:
    """Neither surplus ones nor those of a roll."""
    kube.create(replicas=2)
    rest(operator, kube, "x-0", "x-1")
    kube.set_pod_status("x-1", phase="Failed")
    kube.change(replicas=1)
    settle(operator)
    kube.change(image="milvus:2")
    eventually(lambda: make_pass(operator) and kube.images() == ["milvus:2"])
    before = kube.uids()
    kube.set_pod_status("x-0", phase="Failed")
    settle(operator)
    assert kube.uids() != before, "at once"


def test_a_succeeded_pod_is_replaced(kube: Kube, operator: mo.Operator) -> None:
    kube.create()
    settle(operator)
    before = kube.uids()
    kube.set_pod_status("x-0", phase="Succeeded")
    settle(operator)
    kube.ready("x-0")
    assert kube.uids() != before


# Rolls ---------------------------------------------------------------------------------


def test_a_changed_image_rolls_one_pod_at_a_time_from_the_highest(kube: Kube, wire: Wire) -> None:
    kube.create(replicas=3)
    operator = new_operator(kube, server=wire.url)
    rest(operator, kube, "x-0", "x-1", "x-2")
    ready = []

    def note(handler: Any, verb: str, path: str) -> bool:
        if verb == "DELETE":
            ready.append(sum(map(mo.is_ready, kube.all_pods().values())))
        return False

    wire.requests.clear()
    wire.fault = note
    kube.change(image="milvus:2")
    eventually(lambda: make_pass(operator) and kube.images() == ["milvus:2"] * 3)
    deleted = [request.path.rpartition("/")[2] for request in wire.requests if request.verb == "DELETE"]
    assert deleted == ["x-2", "x-1", "x-0"]
    assert ready == [3, 3, 3], "each goes only while all are Ready"
    eventually(lambda: make_pass(operator) and kube.condition("Ready")["status"] == "True")
    assert kube.status()["updatedReplicas"] == 3


def test_a_broken_image_costs_one_pod_and_is_rolled_back(kube: Kube, operator: mo.Operator) -> None:
    kube.create(replicas=3)
    settle(operator)
    kube.ready("x-0", "x-1", "x-2")
    before = kube.uids()
    kube.change(image="milvus:broken")
    settle(operator)
    eventually(lambda: make_pass(operator) and kube.images().count("milvus:broken") == 1)
    eventually(lambda: make_pass(operator) and kube.condition("Ready")["reason"] == "ImagePullBackOff")
    assert kube.images() == ["milvus:1", "milvus:1", "milvus:broken"]
    kube.change(image="milvus:1")
    settle(operator)
    kube.ready("x-0", "x-1", "x-2")
    assert kube.images() == ["milvus:1"] * 3
    assert {name: uid for name, uid in kube.uids().items() if name != "x-2"} == {
        name: uid for name, uid in before.items() if name != "x-2"
    }


def test_a_changed_milvus_spec_rolls_and_replicas_do_not(kube: Kube, operator: mo.Operator) -> None:
    kube.create()
    settle(operator)
    kube.ready("x-0")
    before = kube.uids()
    kube.change(replicas=2)
    settle(operator)
    kube.ready("x-0", "x-1")
    assert kube.uids()["x-0"] == before["x-0"]
    kube.change(milvusSpec="other", replicas=1)
    settle(operator)
    eventually(lambda: make_pass(operator) and kube.uids().get("x-0") not in (None, before["x-0"]))


# Ownership -----------------------------------------------------------------------------


def test_a_stranger_with_our_name_is_left_alone_and_the_others_go_on(kube: Kube, operator: mo.Operator) -> None:
    kube.create_pod("x-1")
    before = kube.uids()
    kube.create(replicas=3)
    kube.create("y")
    assert not make_pass(operator)
    assert kube.names() == ["x-0", "x-1", "x-2", "y-0"]
    assert kube.uids()["x-1"] == before["x-1"]
    reconciled = kube.condition("Reconciled")
    assert (reconciled["status"], reconciled["reason"]) == ("False", "NameConflict")
    assert "pod x-1 belongs to somebody else and is left alone" in reconciled["message"]
    kube.delete_pod("x-2")
    kube.gone("x-2")
    make_pass(operator)
    assert "x-2" in kube.names(), "other ordinals go on while the conflict lasts"
    kube.delete_pod("x-1")
    kube.gone("x-1")
    kube.change(replicas=4)
    settle(operator)
    kube.ready("x-0", "x-1", "x-2", "x-3", "y-0")
    eventually(lambda: make_pass(operator) and kube.condition("Reconciled")["status"] == "True")


def test_a_conflict_is_looked_at_again_only_after_its_back_off(kube: Kube, wire: Wire) -> None:
    clock = StillClock()
    kube.create_pod("x-0")
    kube.create()
    operator = new_operator(kube, server=wire.url, clock=clock)
    make_pass(operator)
    assert wire.verbs().count(f"POST /api/v1/namespaces/{kube.ns}/pods") == 1
    for wait in (10, 20):
        wire.requests.clear()
        clock.skip(wait - 2)
        make_pass(operator)
        assert {request.verb for request in wire.requests} == {"GET"}
        clock.skip(2)
        make_pass(operator)
        assert wire.verbs().count(f"POST /api/v1/namespaces/{kube.ns}/pods") == 1


def test_a_conflict_that_another_copy_has_seen_the_end_of_is_none(kube: Kube, operator: mo.Operator) -> None:
    kube.create_pod("x-0")
    kube.create()
    assert not make_pass(operator)
    kube.delete_pod("x-0")
    kube.gone("x-0")
    make_pass(new_operator(kube))
    kube.ready("x-0")
    assert make_pass(operator)
    assert kube.condition("Reconciled")["status"] == "True"


def test_a_stranger_that_carries_our_labels_is_left_alone(kube: Kube, operator: mo.Operator) -> None:
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "3a5b", "controller": True}
    kube.kubectl("create", "configmap", "c")
    owner["uid"] = kube.kubectl("get", "configmap", "c", "-o", "jsonpath={.metadata.uid}")
    milvus = kube.create()
    kube.create_pod("x-0", labels=mo.pod_labels(milvus, 0), ownerReferences=[owner])
    before = kube.uids()
    make_pass(operator)
    assert kube.uids() == before
    assert "pod x-0 belongs to ConfigMap c" in kube.condition("Reconciled")["message"]


def test_orphans_are_adopted_and_then_treated_as_any_pod(kube: Kube, operator: mo.Operator) -> None:
    kube.create(replicas=3)
    settle(operator)
    kube.ready("x-0", "x-1", "x-2")
    before = kube.uids()
    kube.kubectl("delete", "mi", "x", "--cascade=orphan")
    eventually(lambda: all(not mo.controller_of(pod) for pod in kube.all_pods().values()))
    make_pass(operator)
    assert kube.uids() == before, "nobody's pods are not ours before there is a Milvus again"
    milvus = kube.create(replicas=2)
    settle(operator)
    kube.ready("x-0", "x-1")
    assert kube.uids().items() <= before.items()
    assert {mo.owner_uid(pod) for pod in kube.all_pods().values()} == {milvus["metadata"]["uid"]}


def test_an_orphan_with_an_old_template_is_adopted_and_rolled(kube: Kube, operator: mo.Operator) -> None:
    kube.create()
    settle(operator)
    kube.ready("x-0")
    before = kube.uids()
    kube.patch_pod("x-0", ownerReferences=None, annotations={mo.TEMPLATE_HASH: None})
    settle(operator)
    eventually(lambda: make_pass(operator) and kube.uids().get("x-0") not in (None, before["x-0"]))


def test_a_pod_that_lost_its_labels_gets_them_back_when_its_name_is_needed(kube: Kube, operator: mo.Operator) -> None:
    kube.create()
    settle(operator)
    before = kube.uids()
    kube.patch_pod("x-0", labels={"app.kubernetes.io/managed-by": None, "app.kubernetes.io/instance": "y", "own": "1"})
    settle(operator)
    assert kube.uids() == before
    labels = kube.all_pods()["x-0"]["metadata"]["labels"]
    assert labels == mo.pod_labels(kube.get(), 0) | {"own": "1"}
    assert kube.condition("Reconciled")["status"] == "True"


def test_a_stranger_that_the_lists_do_not_show_blocks_no_roll(kube: Kube, operator: mo.Operator) -> None:
    """Without our labels it is seen only when its name is tried, which its back-off allows once in a while."""
    kube.create_pod("x-1")
    kube.create(replicas=3)
    make_pass(operator)
    eventually(lambda: mo.is_ready(kube.all_pods()["x-0"]) and mo.is_ready(kube.all_pods()["x-2"]))
    before = kube.uids()
    kube.change(image="milvus:2")
    eventually(lambda: make_pass(operator) is not None and kube.images() == ["milvus:2", "stranger:1", "milvus:2"])
    assert kube.uids()["x-1"] == before["x-1"]


def test_an_ending_pod_that_the_lists_do_not_show_is_waited_for(kube: Kube, operator: mo.Operator) -> None:
    """It has our name and not our labels: that it is gone shows only when its name is tried again."""
    kube.create_pod("x-0")
    kube.hold("x-0")
    kube.delete_pod("x-0")
    kube.create()
    before = kube.uids()
    for _ in range(3):
        assert make_pass(operator), "that is no conflict"
    assert kube.uids() == before
    kube.release("x-0")
    kube.gone("x-0")
    make_pass(operator)
    kube.ready("x-0")


def test_pods_of_an_earlier_milvus_are_waited_for(kube: Kube, operator: mo.Operator) -> None:
    kube.create()
    settle(operator)
    kube.hold("x-0")
    before = kube.uids()
    kube.delete()
    kube.create()
    eventually(lambda: mo.is_ending(kube.all_pods()["x-0"]) or make_pass(operator) is None)
    make_pass(operator)
    assert kube.uids() == before
    assert kube.condition("Reconciled")["status"] == "True", "that is no conflict"
    kube.release("x-0")
    kube.gone("x-0")
    settle(operator)
    kube.ready("x-0")


def test_a_deleted_milvus_gets_nothing_new_and_its_pods_go(kube: Kube, operator: mo.Operator) -> None:
    kube.create(replicas=2)
    settle(operator)
    kube.hold("x-1")
    kube.delete(propagationPolicy="Foreground")
    kube.gone("x-0")
    make_pass(operator)
    assert kube.names() == ["x-1"], "its Milvus is ending: x-0 is not created again"
    kube.release("x-1")
    eventually(lambda: not kube.names())
    settle(operator)
    assert kube.names() == []


def test_every_delete_carries_the_uid(kube: Kube, wire: Wire) -> None:
    kube.create(replicas=3)
    operator = new_operator(kube, server=wire.url)
    settle(operator)
    uids = kube.uids()
    kube.change(replicas=1, image="milvus:2")
    eventually(lambda: make_pass(operator) and kube.images() == ["milvus:2"])
    deletes = [request for request in wire.requests if request.verb == "DELETE"]
    assert len(deletes) == 3
    for request in deletes:
        assert json.loads(request.body)["preconditions"]["uid"] == uids[request.path.rpartition("/")[2]]


def test_a_pod_that_has_become_ready_since_it_was_listed_is_not_deleted(kube: Kube, operator: mo.Operator) -> None:
    milvus = kube.create()
    make_pass(operator)
    listed = kube.all_pods()["x-0"] | {"status": {}}
    kube.ready("x-0")
    before = kube.uids()
    with pytest.raises(mo.ApiError) as error:
        operator.cluster.delete(milvus, listed | {"metadata": listed["metadata"] | {"resourceVersion": "1"}})
    assert error.value.code == 409
    assert kube.uids() == before


def test_a_deleted_pod_with_finalizers_is_not_gone(kube: Kube, operator: mo.Operator) -> None:
    milvus = kube.create()
    make_pass(operator)
    eventually(lambda: mo.is_ready(kube.all_pods()["x-0"]))
    kube.set_pod_status("x-0", phase="Failed")
    kube.hold("x-0")
    left = operator.cluster.delete(milvus, mo.slim_pod(kube.all_pods()["x-0"]))
    assert left
    assert mo.is_ending(left)
    kube.release("x-0")
    kube.gone("x-0")
    with pytest.raises(mo.ApiError, match="not found"):
        operator.cluster.delete(milvus, left)


def test_the_orphan_of_a_milvus_that_is_ending_is_not_adopted(kube: Kube, operator: mo.Operator) -> None:
    """It would be collected as its pod."""
    listed = kube.create()
    kube.create_pod("x-0", labels=mo.pod_labels(listed, 0))
    merge = "application/merge-patch+json"
    body: Obj = {"metadata": {"finalizers": ["test/hold"]}}
    kube.milvuses.patch(name="x", namespace=kube.ns, body=body, content_type=merge)
    kube.delete()
    with pytest.raises(mo.ApiError, match="the Milvus has changed"):
        operator.cluster.adopt(listed, kube.all_pods()["x-0"])
    assert not mo.controller_of(kube.all_pods()["x-0"])
    body["metadata"]["finalizers"] = None
    kube.milvuses.patch(name="x", namespace=kube.ns, body=body, content_type=merge)


def test_to_vet_a_pod_creates_none(kube: Kube, operator: mo.Operator) -> None:
    """Also when the one that it is about has gone meanwhile."""
    milvus = kube.create()
    operator.cluster.vet(milvus, mo.name_only(milvus, 0))
    assert kube.names() == []


def test_the_orphan_of_a_milvus_that_is_gone_is_not_adopted(kube: Kube, operator: mo.Operator) -> None:
    gone = kube.create()
    kube.delete()
    eventually(lambda: kube.kubectl("get", "mi", "-o", "jsonpath={.items}") == "[]")
    kube.create_pod("x-0", labels=mo.pod_labels(gone, 0))
    for again in (False, True):
        if again:
            kube.create()
        with pytest.raises(mo.ApiError) as error:
            operator.cluster.adopt(gone, kube.all_pods()["x-0"])
        assert error.value.code in (404, 409)
    assert not mo.controller_of(kube.all_pods()["x-0"])


def test_once_looks_again_where_something_changed_meanwhile(
    kube: Kube, operator: mo.Operator, monkeypatch: Any
) -> None:
    milvus = kube.create(replicas=3)
    present = {mo.TEMPLATE_HASH: mo.template_hash(milvus)}
    kube.create_pod("x-0", labels=mo.pod_labels(milvus, 0), annotations=present)
    snapshot = operator.cluster.snapshot

    def then_change(*arguments: Any) -> Any:
        listed = snapshot(*arguments)
        if "touched" not in kube.all_pods()["x-0"]["metadata"]["annotations"]:
            kube.patch_pod("x-0", annotations={"touched": "1"})
        return listed

    monkeypatch.setattr(operator.cluster, "snapshot", then_change)
    assert operator.run_once()
    assert kube.names() == ["x-0", "x-1", "x-2"]
    assert {mo.owner_uid(pod) for pod in kube.all_pods().values()} == {mo.uid_of(milvus)}
    assert kube.condition("Reconciled")["status"] == "True"


def test_a_pod_of_our_name_and_owner_in_another_namespace_is_no_business_of_ours(kube: Kube) -> None:
    milvus = kube.create()
    other = Kube(kube.plane, "default")
    pod = mo.new_pod(milvus, 0)
    del pod["metadata"]["ownerReferences"][0]["blockOwnerDeletion"]
    pod["metadata"] |= {"namespace": "default", "finalizers": ["test/hold"]}
    other.pods.create(body=pod, namespace="default")
    try:
        everywhere = new_operator(kube, namespaces=[None])
        make_pass(everywhere)
        assert kube.names() == ["x-0"]
    finally:
        other.release("x-0")
        other.kubectl("delete", "pod", "x-0", "--ignore-not-found")


def test_one_refused_write_does_not_starve_the_others(kube: Kube, operator: mo.Operator) -> None:
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": kube.ns},
        "spec": {
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": kube.ns}},
                "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            },
            "validations": [{"expression": "object.metadata.name != 'x-0'", "message": "not that one"}],
        },
    }  # fmt: skip
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": kube.ns},
        "spec": {"policyName": kube.ns, "validationActions": ["Deny"]},
    }  # fmt: skip
    for body in (policy, binding):
        kube.kubectl("create", "-f", "-", stdin=json.dumps(body))
    eventually(lambda: "not that one" in kube.kubectl("run", "x-0", "--image=a", "--dry-run=server", check=False))
    kube.create(replicas=3)
    make_pass(operator)
    assert "not that one" in kube.condition("Reconciled")["message"]
    make_pass(operator)
    assert kube.names() == ["x-1", "x-2"], "one pass later, and not after a back-off"
    assert "not that one" in kube.condition("Reconciled")["message"]
    kube.kubectl("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", kube.ns)


@pytest.mark.parametrize("code", [429, 500, 503])
def test_what_may_pass_is_said_and_tried_again_soon(kube: Kube, wire: Wire, code: int) -> None:
    """After 1 s, 2 s, 4 s up to 30 s, and one pod is tried in each pass."""
    asked = 0

    def fault(handler: Any, verb: str, path: str) -> bool:
        nonlocal asked
        hit = verb == "POST" and "/pods" in path
        if hit:
            asked += 1
            handler.answer(code, b'{"kind": "Status", "message": "not now"}')
        return hit

    wire.fault = fault
    kube.create()
    clock = StillClock()
    operator = new_operator(kube, server=wire.url, clock=clock)
    for wait in (1, 2, 4, 8, 16, 30, 30):
        before = asked
        assert not make_pass(operator)
        assert asked == before + 1
        assert kube.condition("Reconciled")["message"] == "not now"
        clock.skip(wait * 0.7)
        assert not make_pass(operator)
        assert asked == before + 1
        clock.skip(wait * 0.3)
    wire.fault = None
    assert make_pass(operator)
    assert kube.names() == ["x-0"]
    assert kube.condition("Reconciled")["status"] == "True"


def test_a_create_that_gets_no_answer_is_no_server_out_of_reach(kube: Kube, wire: Wire, caplog: Any) -> None:
    """A webhook may be slow for one Milvus alone, which is told so."""
    wire.spoil("POST", "/pods", 500, b"{}", after=2)
    kube.create()
    assert not make_pass(new_operator(kube, server=wire.url, timeout=1), once=True)
    assert kube.condition("Reconciled")["message"] == "no answer within 1 s"
    assert "cannot reach" not in caplog.text


def test_a_create_that_is_answered_with_404_is_said(kube: Kube, wire: Wire) -> None:
    """What is not found is not the pod."""
    wire.spoil("POST", "/pods", 404, b'{"kind": "Status", "message": "no such runtime class"}')
    kube.create()
    assert not make_pass(new_operator(kube, server=wire.url))
    assert kube.condition("Reconciled")["message"] == "no such runtime class"


@pytest.mark.parametrize("by_another_copy", [True, False])
def test_what_has_been_done_is_refused_no_more(
    kube: Kube, operator: mo.Operator, clock: Clock, wire: Wire, by_another_copy: bool
) -> None:
    kube.kubectl("create", "quota", "q", "--hard=pods=0")
    eventually(lambda: kube.kubectl("get", "quota", "q", "-o", "jsonpath={.status.hard.pods}") == "0")
    kube.create()
    assert not make_pass(operator)
    kube.kubectl("delete", "quota", "q")
    if by_another_copy:
        make_pass(new_operator(kube))
        kube.ready("x-0")
    else:
        clock.skip(10)
    assert make_pass(operator)
    assert kube.condition("Reconciled")["status"] == "True"


def test_a_refusal_that_another_copy_has_seen_the_end_of_is_not_written_again(kube: Kube, wire: Wire) -> None:
    """Else the two would write the status to and fro in every pass."""
    kube.kubectl("create", "quota", "q", "--hard=pods=0")
    eventually(lambda: kube.kubectl("get", "quota", "q", "-o", "jsonpath={.status.hard.pods}") == "0")
    kube.create()
    one, other = new_operator(kube, server=wire.url), new_operator(kube, server=wire.url)
    assert not make_pass(one)
    kube.kubectl("delete", "quota", "q")
    assert make_pass(other)
    kube.ready("x-0")
    for copy in (other, one, other):
        make_pass(copy)
    wire.requests.clear()
    for copy in (one, other, one, other):
        assert make_pass(copy)
    assert {request.verb for request in wire.requests} == {"GET"}


def test_rolling_back_under_a_quota(kube: Kube, operator: mo.Operator) -> None:
    kube.kubectl("create", "quota", "q", "--hard=pods=2")
    eventually(lambda: kube.kubectl("get", "quota", "q", "-o", "jsonpath={.status.hard.pods}") == "2")
    kube.create(replicas=3, image="milvus:broken")
    make_pass(operator)
    kube.change(image="milvus:2")
    eventually(lambda: make_pass(operator) is not None and kube.images() == ["milvus:2"] * 2)


def test_a_pod_that_was_replaced_since_it_was_listed_is_not_deleted(kube: Kube, operator: mo.Operator) -> None:
    milvus = kube.create()
    settle(operator)
    listed = kube.all_pods()["x-0"]
    kube.delete_pod("x-0")
    kube.gone("x-0")
    settle(operator)
    before = kube.uids()
    with pytest.raises(mo.ApiError) as error:
        operator.cluster.delete(milvus, listed)
    assert error.value.code == 409
    assert kube.uids() == before


# Status --------------------------------------------------------------------------------


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


def test_one_status_is_written_in_a_pass(kube: Kube, wire: Wire) -> None:
    kube.create(replicas=5)
    operator = new_operator(kube, server=wire.url)
    make_pass(operator, once=True)
    assert wire.verbs().count(f"PATCH {kube.milvuses_path}/x/status") == 1


def test_last_transition_time_changes_only_with_the_status(kube: Kube, operator: mo.Operator) -> None:
    kube.create()
    rest(operator, kube, "x-0")
    before = kube.condition("Ready")["lastTransitionTime"]
    time.sleep(1.1)
    kube.change(replicas=0)
    settle(operator)
    assert kube.condition("Ready")["lastTransitionTime"] == before
    kube.change(replicas=1, image="milvus:broken")
    eventually(lambda: make_pass(operator) and kube.condition("Ready")["reason"] == "ImagePullBackOff")
    assert kube.condition("Ready")["lastTransitionTime"] > before


def test_nothing_is_written_when_nothing_changed(kube: Kube, wire: Wire) -> None:
    for name in ("x", "y"):
        kube.create(name, replicas=2)
    operator = new_operator(kube, server=wire.url)
    rest(operator, kube, "x-0", "x-1", "y-0", "y-1")
    wire.requests.clear()
    make_pass(operator)
    assert wire.verbs() == [
        f"GET /api/v1/namespaces/{kube.ns}/pods",
        f"GET /apis/zilliz.com/v1/namespaces/{kube.ns}/milvuses",
    ]


def test_the_status_of_a_milvus_that_is_gone_is_no_failure(kube: Kube, wire: Wire, caplog: Any) -> None:
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


def test_the_status_of_an_earlier_milvus_is_not_that_of_a_new_one(kube: Kube, operator: mo.Operator) -> None:
    gone = kube.create()
    kube.delete()
    eventually(lambda: kube.kubectl("get", "mi", "-o", "name") == "")
    kube.create()
    with pytest.raises(mo.ApiError, match="has been modified"):
        operator.cluster.patch_status(gone, {"replicas": 1})
    assert kube.status() == {"observedGeneration": -1}


def test_an_unschedulable_pod_says_so(kube: Kube, operator: mo.Operator) -> None:
    kube.kubectl("cordon", "-l", "type=kwok")
    try:
        kube.create()
        eventually(lambda: make_pass(operator) and kube.condition("Ready")["reason"] == "Unschedulable")
        assert "3 node(s) were unschedulable" in kube.condition("Ready")["message"]
        assert kube.condition("Reconciled")["status"] == "True"
    finally:
        kube.kubectl("uncordon", "-l", "type=kwok")


# What is refused -----------------------------------------------------------------------


def test_a_quota_of_two_of_twenty(kube: Kube, wire: Wire) -> None:
    kube.kubectl("create", "quota", "q", "--hard=pods=2")
    eventually(lambda: kube.kubectl("get", "quota", "q", "-o", "jsonpath={.status.hard.pods}") == "2")
    kube.create(replicas=20)
    operator = new_operator(kube, server=wire.url)
    assert not make_pass(operator, once=True)
    there = kube.names()
    assert len(there) == 2
    reconciled = kube.condition("Reconciled")
    assert (reconciled["status"], reconciled["reason"]) == ("False", "QuotaExceeded")
    assert "exceeded quota: q" in reconciled["message"]
    posts = [request for request in wire.requests if request.verb == "POST" and request.path.endswith("/pods")]
    assert len(posts) <= 7, "batches of 1, 2, 4: two pods, and as many refusals as were under way"
    kube.delete_pod("x-0")
    kube.gone("x-0")
    eventually(lambda: make_pass(operator) is not None and kube.names() == there)
    kube.kubectl("delete", "quota", "q")
    settle(operator)
    assert kube.names() == there, "what was refused waits for its back-off"
    kube.change(replicas=6)
    settle(operator)
    assert len(kube.names()) == 6, "a changed spec is tried at once"
    assert kube.condition("Reconciled")["status"] == "True"


def test_many_pods_under_a_quota_that_allows_them(kube: Kube, operator: mo.Operator) -> None:
    kube.kubectl("create", "quota", "q", "--hard=pods=100")
    eventually(lambda: kube.kubectl("get", "quota", "q", "-o", "jsonpath={.status.hard.pods}") == "100")
    kube.create(replicas=60)
    assert make_pass(operator, once=True)
    assert len(kube.names()) == 60


def test_pod_security_that_refuses_is_forbidden_with_its_own_message(kube: Kube, operator: mo.Operator) -> None:
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
        {"containers": [{"name": "milvus", "securityContext": {"privileged": True, "allowPrivilegeEscalation": True}}]},
        {"hostNetwork": True},
    ],
)
def test_pod_security_limits_what_spec_pod_can_ask_for(kube: Kube, operator: mo.Operator, asked: Obj) -> None:
    kube.kubectl("label", "ns", kube.ns, "pod-security.kubernetes.io/enforce=baseline")
    kube.create()
    rest(operator, kube, "x-0")
    before = kube.uids()
    kube.change(pod={"spec": asked})
    settle(operator)
    assert kube.uids() == before
    assert kube.condition("Reconciled")["reason"] == "Forbidden"
    assert 'violates PodSecurity "baseline' in kube.condition("Reconciled")["message"]


# Configuration, storage, overlay -------------------------------------------------------


def test_settings_reach_the_pod_and_text_is_kept_as_an_annotation(kube: Kube, operator: mo.Operator) -> None:
    kube.create("a", milvusSpec="proxy: {maxNameLength: 300}\ncommon.storageType: minio")
    kube.create("b", milvusSpec="this is milvus spec")
    settle(operator)
    kube.ready("a-0", "b-0")
    pods = kube.all_pods()
    environment = {v["name"]: v.get("value") for v in pods["a-0"]["spec"]["containers"][0]["env"]}
    assert (environment["proxy.maxNameLength"], environment["common.storageType"]) == ("300", "minio")
    assert "COMMON_STORAGETYPE" not in environment
    assert "zilliz.com/milvus-spec" not in pods["a-0"]["metadata"]["annotations"]
    assert pods["b-0"]["metadata"]["annotations"]["zilliz.com/milvus-spec"] == "this is milvus spec"
    assert kube.condition("Reconciled", "a")["reason"] == "Reconciled"
    assert (kube.condition("Reconciled", "b")["reason"], kube.condition("Reconciled", "b")["status"]) == (
        "SpecIsText",
        "True",
    )


def test_a_claim_for_each_pod_is_made_before_it_and_kept(
    kube: Kube, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    def claims() -> dict[str, str]:
        text = kube.kubectl(
            "get", "pvc", "-o", 'jsonpath={range .items[*]}{.metadata.name} {.metadata.uid}{"\\n"}{end}'
        )
        return dict(line.split() for line in text.splitlines())

    kube.create(replicas=2, storage={"size": "1Gi", "storageClassName": "nope"})
    operator = new_operator(kube, server=wire.url)
    settle(operator)
    posts = [request.path.rpartition("/")[2] for request in wire.requests if request.verb == "POST"]
    posts = [kind for kind in posts if kind != "events"]
    assert sorted(posts) == ["persistentvolumeclaims"] * 2 + ["pods"] * 2
    assert posts[0] == "persistentvolumeclaims"
    assert posts[-1] == "pods"
    before = claims()
    assert sorted(before) == ["data-x-0", "data-x-1"]
    eventually(lambda: make_pass(operator) and kube.condition("Ready")["reason"] == "Unschedulable")
    kube.change(replicas=1)
    settle(operator)
    kube.delete_pod("x-0")
    kube.gone("x-0")
    settle(operator)
    assert claims() == before
    said = [line for line in caplog.messages if "claim" in line]
    assert sorted(said) == [f"created claim {kube.ns}/data-x-{i}: missing" for i in range(2)]
    kube.delete()
    eventually(lambda: not kube.names())
    kube.create(replicas=2, storage={"size": "1Gi", "storageClassName": "nope"})
    settle(operator)
    assert claims() == before
    kube.delete()
    kube.kubectl("delete", "pvc", "-l", "app.kubernetes.io/instance=x", "--timeout=30s")
    assert claims() == {}


def test_data_on_a_bound_volume(kube: Kube, operator: mo.Operator) -> None:
    volume = {
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": kube.ns},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": kube.ns,
                 "hostPath": {"path": "/tmp"}},
    }  # fmt: skip
    kube.kubectl("create", "-f", "-", stdin=json.dumps(volume))
    kube.create(storage={"size": "1Gi", "storageClassName": kube.ns})
    settle(operator)
    kube.ready("x-0")


def test_no_claim_no_pod(kube: Kube, operator: mo.Operator) -> None:
    kube.kubectl("create", "quota", "q", "--hard=persistentvolumeclaims=1")
    eventually(lambda: kube.kubectl("get", "quota", "q", "-o", "jsonpath={.status.hard.persistentvolumeclaims}") == "1")
    kube.create(replicas=3, storage={"size": "1Gi"})
    make_pass(operator)
    assert len(kube.names()) == 1
    assert kube.condition("Reconciled")["reason"] == "QuotaExceeded"


def test_storage_cannot_be_changed_added_or_removed(kube: Kube) -> None:
    kube.create("a", storage={"size": "1Gi"})
    kube.create("b")
    for name, patch in (
        ("a", '{"storage":{"size":"2Gi"}}'),
        ("a", '{"storage":null}'),
        ("b", '{"storage":{"size":"1Gi"}}'),
    ):
        said = kube.kubectl("patch", "mi", name, "--type=merge", "-p", f'{{"spec":{patch}}}', check=False)
        assert "storage can't be changed, added or removed" in said
    kube.change("a", replicas=2)


def test_an_overlay_that_makes_the_pod_invalid_costs_no_pod(kube: Kube, operator: mo.Operator) -> None:
    kube.create(replicas=2)
    kube.create("y")
    rest(operator, kube, "x-0", "x-1", "y-0")
    before = kube.uids()
    kube.change(pod={"spec": {"containers": [{"name": "milvus", "ports": [{"containerPort": 99999}]}]}})
    kube.change("y", replicas=2)
    settle(operator)
    assert kube.uids().items() >= before.items()
    assert "y-1" in kube.names()
    reconciled = kube.condition("Reconciled")
    assert (reconciled["status"], reconciled["reason"]) == ("False", "Invalid")
    assert "must be between 1 and 65535" in reconciled["message"]
    kube.change(
        pod={"metadata": {"labels": {"team": "a"}}, "spec": {"containers": [{"name": "milvus", "ports": None}]}}
    )
    eventually(lambda: make_pass(operator) and kube.condition("Ready")["status"] == "True")
    assert {pod["metadata"]["labels"].get("team") for name, pod in kube.all_pods().items() if name < "y"} == {"a"}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"milvusSpec": "proxy.port: 1"}, "line 1: proxy.port cannot be changed"),
        ({"milvusSpec": "a=b: c"}, "a valid environment variable name must consist"),
        ({"storage": {"size": "0"}}, "must be greater than zero"),
        ({"pod": {"spec": {"containers": "text"}}}, "cannot be handled as a Pod"),
        ({"pod": {"spec": {"serviceAccountName": "nobody"}}}, 'serviceaccount "nobody" not found'),
        (
            {"pod": {"spec": {"volumes": [{"name": "data", "emptyDir": {"sizeLimit": "lots"}}]}}},
            "quantities must match",
        ),
    ],
)
def test_a_pod_that_is_refused_says_so_and_harms_nobody(
    kube: Kube, operator: mo.Operator, spec: Obj, message: str
) -> None:
    kube.create("bad", **spec)
    kube.create("good")
    make_pass(operator)
    assert "good-0" in kube.names()
    assert message in kube.condition("Reconciled", "bad")["message"]
    assert kube.condition("Reconciled", "bad")["status"] == "False"


def test_a_pod_nested_thousands_of_levels_deep_is_invalid_and_harms_nobody(kube: Kube, operator: mo.Operator) -> None:
    for depth in (90, 900, 4000, 8000):
        body = f'{{"apiVersion": "zilliz.com/v1", "kind": "Milvus", "metadata": {{"name": "deep-{depth}"}}, "spec": {{"image": "a", "pod": {{"spec": '
        body += '{"a":' * depth + "1" + "}" * depth + "}}}"
        kube.kubectl("create", "--raw", kube.milvuses_path, "-f", "-", stdin=body)
    kube.create("y")
    make_pass(operator)
    assert kube.names() == ["y-0"]
    for depth in (900, 4000, 8000):
        said = json.loads(kube.kubectl("get", "mi", f"deep-{depth}", "-o", "jsonpath={.status.conditions}"))
        assert said[1]["message"] == "spec.pod is nested more than 100 levels deep"


def test_a_misspelt_field_is_refused_and_costs_no_pod(kube: Kube, operator: mo.Operator) -> None:
    misspelt = {"spec": {"nodeSelektor": {"disk": "ssd"}}}
    kube.create("new", pod=misspelt)
    kube.create()
    make_pass(operator)
    eventually(lambda: mo.is_ready(kube.all_pods()["x-0"]))
    before = kube.uids()
    kube.change(pod=misspelt)
    make_pass(operator)
    assert kube.uids() == before
    assert kube.names() == ["x-0"]
    for name in ("new", "x"):
        assert 'unknown field "spec.nodeSelektor"' in kube.condition("Reconciled", name)["message"]


def test_the_crd_refuses_what_cannot_be_served(kube: Kube) -> None:
    def refused(spec: str, name: str = "x") -> str:
        body = f"apiVersion: zilliz.com/v1\nkind: Milvus\nmetadata: {{name: {name}}}\nspec: {spec}\n"
        return kube.kubectl("create", "-f", "-", stdin=body, check=False)

    assert "spec.image: Required value" in refused("{}")
    assert "spec.image in body should be at least 1 chars long" in refused('{image: ""}')
    assert 'spec.image: Invalid value: "number"' in refused("{image: 3.1}")
    assert "spec.replicas in body should be greater than or equal to 0" in refused("{image: a, replicas: -1}")
    assert "spec.replicas in body should be less than or equal to 1000" in refused("{image: a, replicas: 1001}")
    assert "spec.storage.size in body should match" in refused("{image: a, storage: {size: lots}}")
    assert "spec.storage.size: Required value" in refused("{image: a, storage: {}}")
    assert "spec.pod.metadata.labels.a in body must be of type string" in refused(
        "{image: a, pod: {metadata: {labels: {a: 1}}}}"
    )
    assert "spec.milvusSpec: Too long" in refused("{image: a, milvusSpec: " + "a" * 65537 + "}")
    for name in ("a.b", "a" * 53, "a" * 253):
        assert "the name of a Milvus must be a DNS label of at most 52 characters" in refused("{image: a}", name)
    assert "created" in refused("{image: a}", "a" * 52)


def test_a_name_of_52_characters_with_a_thousand_replicas_is_a_host_name(kube: Kube, operator: mo.Operator) -> None:
    name = "a" * 52
    kube.create(name)
    make_pass(operator)
    pod = mo.new_pod(kube.get(name), 999)
    kube.pods.create(body=pod, namespace=kube.ns)
    assert f"{name}-999" in kube.names()


# Many at once --------------------------------------------------------------------------


def test_only_the_namespaces_that_are_asked_for_are_served(kube: Kube) -> None:
    kube.create()
    other = new_operator(kube, namespaces=["default"])
    make_pass(other)
    assert kube.names() == []
    make_pass(new_operator(kube, namespaces=["default", kube.ns]))
    assert kube.names() == ["x-0"]
    kube.create("y")
    make_pass(new_operator(kube, namespaces=[None]))
    assert kube.names() == ["x-0", "y-0"]


def test_three_copies_at_once_do_no_harm(kube: Kube) -> None:
    import threading

    for name in "abcdef":
        kube.create(name, replicas=4)
    copies = [new_operator(kube) for _ in range(3)]
    threads = [threading.Thread(target=settle, args=(copy,)) for copy in copies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kube.names() == sorted(f"{name}-{i}" for name in "abcdef" for i in range(4))
    for name in "abcdef":
        assert kube.condition("Reconciled", name)["status"] == "True"


def test_lists_are_read_page_by_page(kube: Kube, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mo, "PAGE", 2)
    for name in "abcde":
        kube.create(name)
    operator = new_operator(kube, server=wire.url)
    make_pass(operator)
    assert len(kube.names()) == 5
    wire.requests.clear()
    make_pass(operator)
    pages = [request for request in wire.requests if request.verb == "GET"]
    assert [request.path.rpartition("/")[2] for request in pages] == ["pods"] * 3 + ["milvuses"] * 3
    assert all(request.query["limit"] == ["2"] for request in pages)
    assert pages[0].query["labelSelector"] == ["app.kubernetes.io/managed-by=milvus-operator"]


def test_a_dry_run_writes_nothing(kube: Kube, caplog: Any) -> None:
    kube.create(replicas=2)
    settle(new_operator(kube))
    kube.ready("x-0", "x-1")
    settle(new_operator(kube))
    kube.create("y")
    kube.change(replicas=1, image="milvus:2")
    pods, before = kube.all_pods(), (kube.get("x"), kube.get("y"))
    make_pass(new_operator(kube, dry_run=True), once=True)
    assert kube.all_pods() == pods
    assert (kube.get("x"), kube.get("y")) == before
    said = [record.getMessage() for record in caplog.records if "dry run" in record.getMessage()]
    assert f"created pod {kube.ns}/y-0 (dry run): missing" in said
    assert f"deleted pod {kube.ns}/x-1 (dry run): surplus: 1 wanted" in said


# Other clusters. Last, because the garbage collector follows a new CRD only after a while.


def test_the_original_crd_is_served_and_status_begins_when_it_is_upgraded(
    kube: Kube, other_crd: Any, caplog: Any, clock: Clock
) -> None:
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

    eventually(has_no_status)  # just after the change the API server may answer otherwise
    text = caplog.text
    assert f"milvus {kube.ns}/no-image: Invalid: spec.image must be" in text
    assert f"milvus {kube.ns}/negative: Invalid: spec.replicas must be" in text
    assert f"milvus {kube.ns}/huge: Invalid: spec.replicas must be" in text
    assert f"milvus {kube.ns}/dotted.name: Invalid: the name must be" in text
    assert f"milvus {kube.ns}/{'l' * 253}: Invalid: the name must be" in text
    assert text.count("the CRD milvuses.zilliz.com has no status: `kubectl apply -f crd.yaml` adds it") == 1
    assert "status" not in kube.get("milvus-crd-test")
    other_crd(yaml.safe_load((TOP / "crd.yaml").read_text()))
    before = kube.uids()
    make_pass(operator)
    clock.skip(30)
    make_pass(operator)
    make_pass(operator)
    assert kube.condition("Ready", "milvus-crd-test")["status"] == "True"
    assert caplog.text.count("dotted.name: Invalid") == 1
    assert kube.condition("Reconciled", "negative")["reason"] == "Invalid"
    assert kube.uids() == before


@pytest.mark.platform
def test_a_spec_nested_thousands_of_levels_deep_harms_nobody(kube: Kube, other_crd: Any) -> None:
    other_crd(original_crd(**{"type": "object", "x-kubernetes-preserve-unknown-fields": True}))
    for depth in (900, 4000, 9900):
        metadata = f'{{"name": "deep-{depth}"}}'
        body = (
            f'{{"apiVersion": "zilliz.com/v1", "kind": "Milvus", "metadata": {metadata}, "spec": {{"image": "a", "x": '
        )
        body += '{"a":' * depth + "1" + "}" * depth + "}}"
        kube.kubectl("create", "--raw", kube.milvuses_path, "-f", "-", stdin=body)
    kube.create("y")
    done = subprocess.run(  # the stack of each thread is that of an image with musl; Python 3.13 recurses until it is full
        [sys.executable, str(TOP / "milvus_operator.py"), "--once", "-n", kube.ns],
        env=os.environ | {"KUBECONFIG": str(kube.plane.kubeconfig())}, capture_output=True, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, 1 << 20)),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert kube.names() == ["deep-4000-0", "deep-900-0", "deep-9900-0", "y-0"]


@pytest.mark.parametrize("spec", ["text", 7, [], {"image": 3.1}, {"image": ["a"]}, {"image": "a", "replicas": "many"},
                                  {"image": "a", "replicas": 1.5}, {"image": "a", "milvusSpec": {"a": 1}}])  # fmt: skip
def test_a_spec_of_any_shape_harms_nobody(kube: Kube, other_crd: Any, operator: mo.Operator, spec: Any) -> None:
    other_crd(original_crd(**{"x-kubernetes-preserve-unknown-fields": True}))
    body = {"apiVersion": "zilliz.com/v1", "kind": "Milvus", "metadata": {"name": "a"}, "spec": spec}
    kube.milvuses.create(body=body, namespace=kube.ns, serializer=plain)
    kube.create("b")
    assert not make_pass(operator)
    assert kube.names() == ["b-0"]


def test_a_missing_crd_is_said_once_and_waited_for(kube: Kube, caplog: Any) -> None:
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
