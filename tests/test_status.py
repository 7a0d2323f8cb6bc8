"""The status of a Milvus: what it says, and when it is written."""

from __future__ import annotations

import pytest

import milvus_operator as mo
from tests.lib.front import Obj
from tests.lib.world import World, at_rest, milvus


def test_the_whole_status_of_a_milvus_that_runs() -> None:
    world = at_rest(milvus("x", replicas=11))
    status = world.status("x")
    conditions = {one["type"]: (one["status"], one["reason"]) for one in status.pop("conditions")}
    assert conditions == {"Ready": ("True", "Ready"), "Reconciled": ("True", "Reconciled")}
    labels = sorted(mo.selector_of(milvus("x")).items())
    assert status == {
        "observedGeneration": 1,
        "replicas": 11,
        "readyReplicas": 11,
        "updatedReplicas": 11,
        "pods": [f"x-{number}" for number in range(11)],
        "selector": ",".join(f"{key}={value}" for key, value in labels),
    }


def test_one_status_is_written_for_what_is_done_at_once() -> None:
    world = World(milvus("x", replicas=5))
    world.passes(3)
    assert len(world.requests("patch", "milvuses/status")) == 1


def test_the_time_of_a_condition_changes_only_with_its_status() -> None:
    world = at_rest(milvus("x"))
    world.server.ask(
        "patch",
        "milvuses/status",
        "x",
        {"status": {"conditions": [since(one) for one in world.status("x")["conditions"]]}},
    )
    world.change("x", replicas=0)
    world.settle()
    assert world.condition("x", "Ready")["message"].startswith("0 of 0 pods")
    assert world.condition("x", "Ready")["lastTransitionTime"] == "2020-01-01T00:00:00Z"
    world.change("x", replicas=1)
    world.passes(2)
    assert world.condition("x", "Ready")["lastTransitionTime"] > "2020-01-01T00:00:00Z"
    assert world.condition("x", "Reconciled")["lastTransitionTime"] == "2020-01-01T00:00:00Z"


def since(condition: Obj) -> Obj:
    return condition | {"lastTransitionTime": "2020-01-01T00:00:00Z"}


def test_conditions_of_other_writers_are_kept() -> None:
    world = at_rest(milvus("x"))
    theirs = {"type": "BackedUp", "status": "True", "reason": "Done", "message": "at noon"}
    both = {"status": {"conditions": [*world.status("x")["conditions"], theirs]}}
    world.server.ask("patch", "milvuses/status", "x", both)
    world.change("x", replicas=2)
    world.settle()
    assert world.condition("x", "BackedUp") == theirs
    assert world.status("x")["replicas"] == 2


WORDS = {"reason": "ItsReason", "message": "its own words"}


@pytest.mark.parametrize(
    "status",
    [
        {"containerStatuses": [{"state": {"waiting": WORDS}}]},
        {"conditions": [{"type": "PodScheduled", "status": "False"} | WORDS]},
        {"phase": "Pending", "conditions": [{"type": "Ready", "status": "False"} | WORDS]},
    ],
    ids=["its container waits", "not scheduled", "not ready"],
)
def test_a_pod_that_is_not_ready_is_told_in_its_own_words(status: Obj) -> None:
    world = at_rest(milvus("x", replicas=3))
    world.remove("pods", "x-0")
    world.server.set_pod("x-1", **status)
    world.passes(2)
    ready = world.condition("x", "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "ItsReason")
    text = "1 of 3 pods are ready and up to date; x-1: its own words"
    assert ready["message"] == text, "not x-0, which is only being created"
    assert world.condition("x", "Reconciled")["status"] == "True"


def test_an_invalid_spec_changes_no_pod_and_says_what_is_wrong() -> None:
    world = at_rest(milvus("x", replicas=2))
    before = world.uids()
    world.change("x", image="milvus:2", milvusSpec="secret:hunter2")
    world.forget()
    world.settle()
    assert world.uids() == before
    for kind in ("Ready", "Reconciled", "Stalled"):
        assert world.condition("x", kind)["reason"] == "Invalid"
    assert world.status("x")["readyReplicas"] == 2
    assert "hunter2" not in f"{world.status('x')} {world.events()} {world.log}"
    world.change("x", milvusSpec=None)
    world.settle()
    assert world.images() == ["milvus:2"] * 2
    assert world.condition("x", "Stalled") == {}


def test_a_new_milvus_does_not_get_the_status_of_an_earlier_one() -> None:
    world = World(milvus("x", replicas=0))

    def replace(_: object) -> None:
        world.remove("milvuses", "x")
        world.add(milvus("x", replicas=0, image="new"))

    world.server.when("patch", "milvuses/status", replace, times=1)
    world.passes()
    assert world.status("x") == {"observedGeneration": -1}
    assert world.troubles == []
    world.passes()
    assert world.condition("x", "Ready")["status"] == "True"
