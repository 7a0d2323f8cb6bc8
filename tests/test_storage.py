"""A claim for each pod, made before it, and kept."""

from __future__ import annotations

import pytest

from tests.lib.front import Obj, Request
from tests.lib.world import World, at_rest, metric, milvus

CLAIMS = "persistentvolumeclaims"
STORED: Obj = {"storage": {"size": "1Gi", "storageClassName": "fast"}}


def claims(world: World) -> dict[str, str]:
    return {obj["metadata"]["name"]: obj["metadata"]["uid"] for obj in world.server.all_of(CLAIMS)}


def test_a_claim_for_each_pod_is_made_before_it() -> None:
    world = World(milvus("x", replicas=2, **STORED), workers=1)
    world.settle()
    made = [one.name for one in world.writes() if one.verb == "create" and one.name[-2] == "-"]
    assert made == ["data-x-0", "x-0", "data-x-1", "x-1"]
    claim = world.server.ask("get", CLAIMS, "data-x-0")
    assert claim["metadata"]["labels"] == {"zilliz.com/milvus": "x"}
    assert "ownerReferences" not in claim["metadata"]
    assert claim["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "fast",
    }
    volumes = [pod["spec"]["volumes"][0] for pod in world.server.all_of("pods")]
    assert [one["persistentVolumeClaim"]["claimName"] for one in volumes] == [*claims(world)]
    assert "created claim test/data-x-0" in world.log


def test_claims_are_kept_when_the_pod_the_replica_or_the_milvus_goes() -> None:
    world = at_rest(milvus("x", replicas=2, **STORED))
    before = claims(world)
    world.server.fail("x-0")
    world.settle()
    world.change("x", replicas=1)
    world.settle()
    world.remove("milvuses", "x")
    world.server.collect()
    world.settle()
    assert world.pods() == []
    world.add(milvus("x", replicas=2, **STORED))
    world.settle()
    assert world.pods() == ["x-0", "x-1"]
    assert claims(world) == before
    assert [one for one in world.writes() if one.plural == CLAIMS] == []


def test_a_pass_that_creates_only_a_claim_says_so() -> None:
    world = World(milvus("x", **STORED))
    world.server.refuse("create", "pods", 500, "not now")
    world.passes()
    (line,) = [line for line in world.log if line.startswith("pass over")]
    assert ": 1 claim(s) created" in line


def test_no_claim_no_pod() -> None:
    world = World(milvus("x", replicas=3, **STORED))
    world.server.quota = {CLAIMS: 1}
    world.passes(2)
    assert world.pods() == ["x-0"]
    assert world.reason() == "QuotaExceeded"
    assert len(world.requests("create", CLAIMS)) == 3, "they back off"


def test_a_pod_with_an_existing_claim_is_created_though_the_quota_of_claims_is_used_up() -> None:
    """The API server checks the quota before it checks whether the claim exists."""
    world = World(milvus("x", **STORED))
    world.server.quota = {CLAIMS: 1}
    world.settle()
    world.remove("pods", "x-0")
    world.settle()
    assert world.pods() == ["x-0"]
    assert world.troubles == []


def test_a_claim_is_asked_for_once_in_each_pass() -> None:
    world = World(milvus("x", replicas=30, **STORED))
    world.server.quota = {"pods": 0}
    world.passes()
    assert len(world.requests("get", CLAIMS)) == len({*world.names("get", CLAIMS)})


def test_a_claim_that_another_copy_makes_meanwhile_is_not_taken_for_a_pod() -> None:
    world = World(milvus("x", **STORED))
    claim: Obj = {"metadata": {"name": "data-x-0"}, "spec": {}}

    def create(request: Request) -> None:
        world.server.ask("create", CLAIMS, "data-x-0", claim)

    world.server.when("create", CLAIMS, create, times=1)
    world.passes()
    assert world.requests("get", "pods") == []
    assert world.condition("x", "Reconciled").get("reason") != "NameConflict"
    world.passes(2)
    assert world.pods() == ["x-0"]


def test_a_claim_that_is_being_deleted_is_waited_for() -> None:
    world = at_rest(milvus("x", **STORED))
    before = claims(world)
    world.remove(CLAIMS, "data-x-0")
    world.remove("pods", "x-0")
    world.passes(10)
    assert world.pods() == []
    assert world.troubles == []
    assert world.condition("x", "Reconciled")["status"] == "True"
    assert world.reason(kind="Ready") == "ClaimTerminating"
    assert "claim data-x-0 is being deleted" in world.condition("x", "Ready")["message"]
    assert metric("milvuses", state="failed") == 0
    world.server.finish_deletions()
    world.passes(6)
    assert world.pods() == ["x-0"]
    assert claims(world).keys() == before.keys()
    assert claims(world) != before


@pytest.mark.parametrize("what", ["not found", "is being deleted"])
def test_a_pod_that_waits_for_a_claim_that_is_gone_is_replaced_claim_first(what: str) -> None:
    world = World(milvus("x", replicas=11, **STORED))
    world.passes(2)
    for name in world.pods():
        if name != "x-10":
            world.server.set_pod(name, ready=True)
    before = claims(world)
    world.remove(CLAIMS, "data-x-10")
    world.server.finish_deletions()
    words = f'0/3 nodes are available: persistentvolumeclaim "data-x-10" {what}.'
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    pending: Obj = {"phase": "Pending", "conditions": [unscheduled | {"message": words}]}
    world.server.set_pod("x-10", **pending)
    world.forget()
    world.settle()
    assert world.names("delete", "pods") == ["x-10"]
    assert (
        "deleted pod test/x-10 in order to replace it: claim data-x-10 is gone or being deleted"
        in world.log
    )
    assert world.names("create", CLAIMS) == ["data-x-10"]
    assert claims(world).keys() == before.keys()
    assert world.condition("x", "Ready")["status"] == "True"
