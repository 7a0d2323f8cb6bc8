"""A claim for each pod."""

from __future__ import annotations

import json

import pytest

import milvus_operator as mo
from tests.lib.kit import Clock, Kube, eventually, make_pass, new_operator, settle
from tests.lib.wire import Wire

STORED = {"size": "1Gi", "storageClassName": "none"}


def claim_uid(kube: Kube, name: str) -> str:
    return kube.kubectl("get", "pvc", name, "-o", "jsonpath={.metadata.uid}", "--ignore-not-found")


def test_a_claim_for_each_pod_is_made_before_it_and_kept(
    kube: Kube, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    def claims() -> dict[str, str]:
        text = kube.kubectl(
            "get",
            "pvc",
            "-o",
            'jsonpath={range .items[*]}{.metadata.name} {.metadata.uid}{"\\n"}{end}',
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
    eventually(
        lambda: (
            kube.kubectl(
                "get", "quota", "q", "-o", "jsonpath={.status.hard.persistentvolumeclaims}"
            )
            == "1"
        )
    )
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
        said = kube.kubectl(
            "patch", "mi", name, "--type=merge", "-p", f'{{"spec":{patch}}}', check=False
        )
        assert "storage can't be changed, added or removed" in said
    kube.change("a", replicas=2)


def test_a_claim_that_exists_and_cannot_be_read_is_an_error_that_backs_off(
    kube: Kube, wire: Wire
) -> None:
    kube.create(storage=STORED)
    operator = new_operator(kube, server=wire.url)
    settle(operator)
    kube.delete_pod("x-0")
    kube.gone("x-0")
    wire.spoil("GET", "/persistentvolumeclaims/", 500, b'{"kind": "Status", "message": "not now"}')
    assert not make_pass(operator)
    assert kube.condition("Reconciled")["message"] == "not now"
    wire.requests.clear()
    make_pass(operator)
    assert not [request for request in wire.requests if "persistentvolumeclaims" in request.path]
    assert kube.names() == []


def test_a_claim_that_is_being_deleted_is_waited_for(
    kube: Kube, operator: mo.Operator, clock: Clock
) -> None:
    """A pod that used it would stay Pending forever."""
    kube.create(storage=STORED)
    make_pass(operator)
    before = claim_uid(kube, "data-x-0")
    kube.kubectl(
        "patch",
        "pvc",
        "data-x-0",
        "--type=merge",
        "-p",
        '{"metadata":{"finalizers":["test/hold"]}}',
    )
    kube.kubectl("delete", "pvc", "data-x-0", "--wait=false")
    kube.delete_pod("x-0")
    kube.gone("x-0")
    for _ in range(3):
        assert make_pass(operator), "that is not a failure"
        clock.skip(30)
    assert kube.names() == []
    assert kube.condition("Reconciled")["status"] == "True"
    assert kube.condition("Ready")["reason"] == "ClaimTerminating"
    assert "claim data-x-0 is being deleted" in kube.condition("Ready")["message"]
    kube.kubectl(
        "patch", "pvc", "data-x-0", "--type=merge", "-p", '{"metadata":{"finalizers":null}}'
    )
    eventually(lambda: not claim_uid(kube, "data-x-0"))
    assert make_pass(operator)
    assert kube.names() == ["x-0"]
    assert claim_uid(kube, "data-x-0") not in ("", before)


def test_a_pod_with_an_existing_claim_is_created_even_if_the_quota_of_claims_is_used_up(
    kube: Kube, operator: mo.Operator
) -> None:
    """The API server checks the quota before it checks whether the claim exists."""
    kube.kubectl("create", "quota", "q", "--hard=persistentvolumeclaims=1")
    eventually(
        lambda: (
            kube.kubectl(
                "get", "quota", "q", "-o", "jsonpath={.status.hard.persistentvolumeclaims}"
            )
            == "1"
        )
    )
    kube.create(storage=STORED)
    assert make_pass(operator)
    kube.delete_pod("x-0")
    kube.gone("x-0")
    assert make_pass(operator)
    assert kube.names() == ["x-0"]


def test_a_claim_that_was_deleted_under_a_pending_pod_is_made_again(
    kube: Kube, operator: mo.Operator, clock: Clock
) -> None:
    kube.create(replicas=11, storage=STORED)
    make_pass(operator)
    before = claim_uid(kube, "data-x-1"), claim_uid(kube, "data-x-10")
    kube.kubectl("delete", "pvc", "data-x-10")

    def again() -> bool:
        clock.skip(30)
        return make_pass(operator) and claim_uid(kube, "data-x-10") not in ("", before[1])

    eventually(again, 40)  # as soon as the scheduler has noticed
    assert claim_uid(kube, "data-x-1") == before[0]
