"""A claim for each pod, made before it, kept, and grown."""

import milvus_operator as mo
from tests.lib.front import Obj, Request
from tests.lib.world import World, at_rest, milvus

CLAIMS = "persistentvolumeclaims"
STORED: Obj = {"storage": {"size": "1Gi"}}


def claims(world: World) -> dict[str, str]:
    """The UIDs of the claims, by name."""
    found = world.server.all_of(CLAIMS)
    return {mo.name_of(claim): mo.uid_of(claim) for claim in found}


def unschedule(world: World, *names: str) -> None:
    condition = {"type": "PodScheduled", "status": "False"}
    for name in names:
        world.server.set_pod(name, phase="Pending", conditions=[condition])


def written(world: World) -> str:
    """The writes to pods and claims, such as `create x-0, delete x-1`."""
    writes = [one for one in world.writes() if one.plural in ("pods", CLAIMS)]
    return ", ".join(f"{one.verb} {one.name}" for one in writes)


def test_a_claim_is_made_before_its_pod_and_kept_when_pod_replica_or_milvus_goes() -> None:
    stored = milvus(replicas=2, **STORED)
    world = World(stored, workers=1)
    world.settle()
    assert written(world) == "create data-x-0, create x-0, create data-x-1, create x-1"
    assert "milvus test/x: created claims data-x-0, data-x-1" in world.log
    before = claims(world)
    world.server.fail("x-0")
    world.settle()
    world.change("x", replicas=1)
    world.settle()
    world.remove("milvuses", "x")
    world.remove("pods", "x-0")
    world.settle()
    world.forget()
    world.add(stored)
    world.settle()
    assert written(world) == "create x-0, create x-1"
    assert claims(world) == before


def test_without_a_claim_there_is_no_pod_and_with_one_there_is_whatever_a_quota_rejects() -> None:
    """The API server checks the quota before it checks whether the claim exists."""
    world = World(milvus(replicas=2, **STORED))
    words = 'persistentvolumeclaims "data-x-1" is forbidden: exceeded quota: a'
    world.server.reject("create", CLAIMS, 403, words, name="data-x-1")
    world.server.reject("create", "pods", 500, "not now", times=1)
    world.passes(5)
    assert world.pods() == ["x-0"]
    assert world.reason() == "QuotaExceeded"
    world.server.reject("create", CLAIMS, 403, words, name="data-x-0")
    for labels in ({}, {mo.CLAIM_LABEL: None}):  # a claim without it is not listed
        world.patch(CLAIMS, "data-x-0", labels=labels)
        world.remove("pods", "x-0")
        world.passes()
        assert world.pods() == ["x-0"]


def test_an_unscheduled_pod_whose_claim_is_gone_is_replaced_claim_first() -> None:
    """A claim without our label is there, such as one that was restored from a backup."""
    world = at_rest(milvus(replicas=3, **STORED))
    unlabelled = {mo.CLAIM_LABEL: None}
    world.patch(CLAIMS, "data-x-0", labels=unlabelled)
    for name in ("data-x-1", "data-x-2"):
        world.remove(CLAIMS, name)
    unschedule(world, "x-0", "x-1")
    world.forget()
    world.live(8)
    assert world.names("delete", "pods") == ["x-1"]
    assert [*claims(world)] == ["data-x-0", "data-x-1"]
    assert world.warnings == []


# --- Growth ---
def set_phase(world: World, name: str, phase: str) -> None:
    status = {"status": {"phase": phase}}
    world.server.ask("patch", f"{CLAIMS}/status", name, status)


def sizes(world: World) -> str:
    """What the claims ask for."""
    specs = [claim["spec"] for claim in world.server.all_of(CLAIMS)]
    return ", ".join(spec["resources"]["requests"]["storage"] for spec in specs)


def bound(replicas: int) -> World:
    """Pods that run, with claims that are Bound and ask for 1Gi."""
    world = at_rest(milvus(replicas=replicas, **STORED))
    for name in claims(world):
        set_phase(world, name, "Bound")
    return world


def grow(world: World) -> None:
    world.change("x", storage={"size": "20Gi"})


def test_claims_that_change_grow_in_a_later_pass_and_those_without_our_label_never() -> None:
    world = bound(3)
    set_phase(world, "data-x-0", "Pending")
    unlabelled = {mo.CLAIM_LABEL: None}
    world.patch(CLAIMS, "data-x-1", labels=unlabelled)

    def touch(request: Request) -> None:
        world.patch(CLAIMS, request.name, labels={"a": "b"})

    world.server.when("patch", CLAIMS, touch, times=1)
    grow(world)
    world.passes(5)
    assert world.names("patch", CLAIMS) == ["data-x-2", "data-x-2"]
    set_phase(world, "data-x-0", "Bound")
    world.passes(5)
    assert sizes(world) == "20Gi, 1Gi, 20Gi"
    assert world.warnings == []


def test_a_class_that_does_not_allow_it_is_told_backs_off_and_stops_nothing_else() -> None:
    words = 'persistentvolumeclaims "data-x-0" is forbidden: the storageclass must support resize'
    world = bound(3)
    rule = world.server.reject("patch", CLAIMS, 403, words, name="data-x-0")
    grow(world)
    world.change("x", image="milvus:2")
    world.live(60)
    assert sizes(world) == "1Gi, 20Gi, 20Gi"
    note = "grew claims data-x-1, data-x-2: spec.storage.size is 20Gi"
    assert f"Grew: {note}" in world.events()
    assert world.images() == ["milvus:2"] * 3
    assert world.reason(kind="Stalled") == "Forbidden"
    assert world.warnings == [f"milvus test/x: {words}"]
    assert rule.hits == 5, "after 0, 10, 30, 70 and 150 seconds"
    rule.times = 0
    world.change("x", replicas=4)
    world.settle()
    assert sizes(world) == "20Gi, 20Gi, 20Gi, 20Gi"
    assert world.reason() == "Reconciled"
