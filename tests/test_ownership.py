"""Ownership is a UID, and pods that are not ours are never touched."""

from __future__ import annotations

import json

import pytest

import milvus_operator as mo
from tests.lib.kit import Kube, Obj, StillClock, eventually, make_pass, new_operator, settle
from tests.lib.wire import Wire


def test_a_stranger_with_our_name_is_left_alone_and_the_others_go_on(
    kube: Kube, operator: mo.Operator
) -> None:
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


def test_a_conflict_is_checked_again_only_after_its_back_off(kube: Kube, wire: Wire) -> None:
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


def test_a_conflict_that_another_copy_saw_resolved_is_forgotten(
    kube: Kube, operator: mo.Operator
) -> None:
    kube.create_pod("x-0")
    kube.create()
    assert not make_pass(operator)
    kube.delete_pod("x-0")
    kube.gone("x-0")
    make_pass(new_operator(kube))
    kube.ready("x-0")
    assert make_pass(operator)
    assert kube.condition("Reconciled")["status"] == "True"


def test_a_stranger_that_carries_our_labels_is_left_alone(
    kube: Kube, operator: mo.Operator
) -> None:
    owner = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "c",
        "uid": "3a5b",
        "controller": True,
    }
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
    assert kube.uids() == before, "pods without an owner are not ours until there is a Milvus again"
    milvus = kube.create(replicas=2)
    settle(operator)
    kube.ready("x-0", "x-1")
    assert kube.uids().items() <= before.items()
    assert {mo.owner_uid(pod) for pod in kube.all_pods().values()} == {milvus["metadata"]["uid"]}


def test_an_orphan_with_an_old_template_is_adopted_and_rolled(
    kube: Kube, operator: mo.Operator
) -> None:
    kube.create()
    settle(operator)
    kube.ready("x-0")
    before = kube.uids()
    kube.patch_pod("x-0", ownerReferences=None, annotations={mo.TEMPLATE_HASH: None})
    settle(operator)
    eventually(lambda: make_pass(operator) and kube.uids().get("x-0") not in (None, before["x-0"]))


def test_a_pod_that_lost_its_labels_gets_them_back_when_its_name_is_needed(
    kube: Kube, operator: mo.Operator
) -> None:
    kube.create()
    settle(operator)
    before = kube.uids()
    kube.patch_pod(
        "x-0",
        labels={
            "app.kubernetes.io/managed-by": None,
            "app.kubernetes.io/instance": "y",
            "own": "1",
        },
    )
    settle(operator)
    assert kube.uids() == before
    labels = kube.all_pods()["x-0"]["metadata"]["labels"]
    assert labels == mo.pod_labels(kube.get(), 0) | {"own": "1"}
    assert kube.condition("Reconciled")["status"] == "True"


def test_an_ending_pod_that_the_lists_do_not_show_is_waited_for(
    kube: Kube, operator: mo.Operator
) -> None:
    """It has our name but not our labels, so only another create shows that it is gone."""
    kube.create_pod("x-0")
    kube.hold("x-0")
    kube.delete_pod("x-0")
    kube.create()
    before = kube.uids()
    for _ in range(3):
        assert make_pass(operator), "that is not a conflict"
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
    assert kube.condition("Reconciled")["status"] == "True", "that is not a conflict"
    kube.release("x-0")
    kube.gone("x-0")
    settle(operator)
    kube.ready("x-0")


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
        assert (
            json.loads(request.body)["preconditions"]["uid"]
            == uids[request.path.rpartition("/")[2]]
        )


def test_a_pod_that_has_become_ready_since_it_was_listed_is_not_deleted(
    kube: Kube, operator: mo.Operator
) -> None:
    milvus = kube.create()
    make_pass(operator)
    listed = kube.all_pods()["x-0"] | {"status": {}}
    kube.ready("x-0")
    before = kube.uids()
    with pytest.raises(mo.ApiError) as error:
        operator.cluster.delete(
            milvus, listed | {"metadata": listed["metadata"] | {"resourceVersion": "1"}}
        )
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


def test_the_orphan_of_a_milvus_that_is_ending_is_not_adopted(
    kube: Kube, operator: mo.Operator
) -> None:
    """The garbage collector would delete it together with the Milvus."""
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


def test_vetting_a_pod_does_not_create_it(kube: Kube, operator: mo.Operator) -> None:
    """Not even if the pod is gone by then."""
    milvus = kube.create()
    operator.cluster.vet(milvus, mo.name_only(milvus, 0))
    assert kube.names() == []


def test_the_orphan_of_a_milvus_that_is_gone_is_not_adopted(
    kube: Kube, operator: mo.Operator
) -> None:
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


def test_a_pod_with_our_name_and_owner_in_another_namespace_is_ignored(kube: Kube) -> None:
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


def test_a_pod_that_was_replaced_since_it_was_listed_is_not_deleted(
    kube: Kube, operator: mo.Operator
) -> None:
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
