"""What the loop does, pass by pass, with the real operator against a server in memory."""

from __future__ import annotations

import pytest

from tests.lib.front import Obj
from tests.lib.turns import Turns
from tests.lib.world import World, milvus


def test_missing_pods_are_created_and_the_status_says_when_they_are_ready() -> None:
    world = World(milvus("x", replicas=3))
    world.passes(2)
    assert world.pods() == ["x-0", "x-1", "x-2"]
    assert world.condition("x", "Ready")["reason"] == "Pending"
    world.server.run_pods()
    world.passes()
    assert world.condition("x", "Ready")["status"] == "True"
    assert "created pod test/x-0" in world.log
    assert world.events() == ["Created: created pods x-0, x-1, x-2"]


def test_a_failed_pod_is_replaced_at_once_and_no_other() -> None:
    world = World(milvus("x", replicas=2))
    world.settle()
    before = world.uid("x-0"), world.uid("x-1")
    world.server.fail("x-1")
    world.passes(2)
    assert world.uid("x-0") == before[0]
    assert world.uid("x-1") != before[1]
    assert [request.name for request in world.requests("delete", "pods")] == ["x-1"]


def test_a_roll_takes_one_ready_pod_at_a_time_from_the_highest() -> None:
    world = World(milvus("x", replicas=3))
    world.settle()
    world.change("x", image="milvus:2")
    world.passes(5)
    assert [request.name for request in world.requests("delete", "pods")] == ["x-2"]
    world.settle()
    deleted = [request.name for request in world.requests("delete", "pods")]
    assert deleted == ["x-2", "x-1", "x-0"]
    assert world.images() == ["milvus:2"] * 3


def test_what_a_quota_refuses_is_tried_again_when_its_back_off_is_over() -> None:
    world = World(milvus("x", replicas=2), interval=1)
    world.server.quota = {"pods": 1}
    world.passes(10)
    tries = [request.time for request in world.requests("create", "pods") if request.code == 403]
    assert tries == [1000]
    assert world.condition("x", "Reconciled")["reason"] == "QuotaExceeded"
    world.server.quota = {}
    world.passes()
    assert world.pods() == ["x-0", "x-1"]
    world.passes()
    assert world.condition("x", "Reconciled")["status"] == "True"


def test_a_stranger_with_our_name_is_left_alone_and_the_others_go_on() -> None:
    stranger: Obj = {"kind": "Pod", "metadata": {"name": "x-1"}, "spec": {"containers": []}}
    world = World(milvus("x", replicas=3))
    before = world.add(stranger)
    world.settle()
    assert world.pods() == ["x-0", "x-1", "x-2"]
    assert world.server.ask("get", "pods", "x-1")["metadata"]["uid"] == before["metadata"]["uid"]
    assert world.condition("x", "Reconciled")["reason"] == "NameConflict"
    assert world.requests("delete", "pods") == []


def test_scaling_down_deletes_the_highest_with_their_uids_as_preconditions() -> None:
    world = World(milvus("x", replicas=3))
    world.settle()
    uids = {world.uid("x-1"), world.uid("x-2")}
    world.change("x", replicas=1)
    world.settle()
    assert world.pods() == ["x-0"]
    deletes = world.requests("delete", "pods")
    assert {request.body["preconditions"]["uid"] for request in deletes} == uids


def test_a_status_is_written_only_when_it_has_changed() -> None:
    world = World(milvus("x"))
    world.settle()
    before = len(world.requests("patch", "milvuses/status"))
    world.passes(20)
    assert len(world.requests("patch", "milvuses/status")) == before
    world.server.fail("x-0")
    world.passes(2)
    assert len(world.requests("patch", "milvuses/status")) > before


def test_an_answer_that_is_lost_does_no_harm() -> None:
    world = World(milvus("x", replicas=2))
    world.server.fault("create", "pods", "reset", name="x-0", times=1, after=True)
    world.settle()
    assert world.pods() == ["x-0", "x-1"]
    assert world.condition("x", "Ready")["status"] == "True"


def test_once_creates_every_missing_pod_in_one_run() -> None:
    world = World(*[milvus(f"m{number}", replicas=5) for number in range(10)])
    assert world.operator.run_once()
    assert len(world.pods()) == 50


def test_a_dry_run_sends_only_dry_runs() -> None:
    world = World(milvus("x", replicas=2), dry_run=True)
    world.passes(2)
    assert world.pods() == []
    assert world.writes()
    assert all(request.dry_run for request in world.writes())


def run_of_two_copies(seed: int) -> World:
    """Two copies serve a Milvus while its spec, its pods and their nodes change."""
    world = World(milvus("x", replicas=3), workers=1)
    other = world.new_operator(user="other")
    turns = Turns(world.server, seed)

    def change() -> None:
        pods = world.pods()
        happened = turns.random.randrange(30)
        if happened == 0:
            world.change("x", replicas=turns.random.randrange(5))
        elif happened == 1:
            world.change("x", image=f"milvus:{turns.random.randrange(3)}")
        elif happened == 2 and pods:
            world.server.fail(turns.random.choice(pods))
        elif happened < 6:
            world.server.finish_deletions()
            world.server.run_pods()

    for _ in range(8):
        turns.run({"operator": world.operator.run_pass, "other": other.run_pass}, change)
        world.clock.advance(world.interval)
    world.change("x", replicas=3, image="milvus:1")
    world.clock.advance(600)
    world.settle()
    return world


@pytest.mark.parametrize("seed", range(5))
def test_two_copies_by_mistake_come_to_the_same_end(seed: int) -> None:
    world = run_of_two_copies(seed)
    assert world.images() == ["milvus:1"] * 3
    assert world.condition("x", "Ready")["status"] == "True"


def test_a_seed_gives_the_same_run_again() -> None:
    first, second = run_of_two_copies(1), run_of_two_copies(1)
    asked = [(one.user, one.verb, one.resource, one.name, one.code) for one in first.server.journal]
    assert asked == [
        (one.user, one.verb, one.resource, one.name, one.code) for one in second.server.journal
    ]
