"""What one write, one pod or one Milvus must not do to the others: starve, stop or delay them."""

from __future__ import annotations

import pytest

from tests.lib.world import World, at_rest, metric, milvus

NO_EVENTS = (
    'events.events.k8s.io is forbidden: User "x" cannot create resource "events" in API group '
    '"events.k8s.io" in the namespace "b"'
)


def test_a_lost_pod_does_not_wait_forever_behind_the_statuses_of_others() -> None:
    names = [f"m{number:02}" for number in range(12)]
    world = at_rest(*map(milvus, names), workers=1)
    world.server.delay("patch", "milvuses/status", 1)  # five in a pass
    world.remove("pods", "m11-0")
    for number in range(6):
        for name in names[:11]:
            world.server.set_pod(f"{name}-0", ready=number % 2 == 1)
        world.operator.run_pass()
    assert "m11-0" in world.pods()


def test_what_was_at_rest_comes_before_the_many_that_are_new() -> None:
    world = at_rest(milvus("old"), workers=1)
    world.server.delay("create", "pods", 1)
    for number in range(30):
        world.add(milvus(f"new{number:02}"))
    world.operator.run_pass()
    world.remove("pods", "old-0")
    world.forget()
    world.operator.run_pass()
    assert world.names("create", "pods")[0] == "old-0"


def test_a_status_is_written_while_slow_creates_fill_every_pass() -> None:
    world = World(milvus("x", replicas=200), workers=4)
    world.server.delay("create", "pods", 0.3)
    for _ in range(4):
        world.operator.run_pass()
    assert 0 < world.status("x")["replicas"] < 200


def test_a_delete_that_is_rejected_as_invalid_does_not_stop_the_roll_of_the_others() -> None:
    """An API server makes code 400 of a denial without a code."""
    world = at_rest(milvus("x", replicas=3))
    denial = 'admission webhook "guard" denied the request'
    world.server.refuse("delete", "pods", 400, denial, name="x-2")
    world.change("x", image="milvus:2")
    for _ in range(60):
        world.passes()
        world.server.finish_deletions()
        world.server.run_pods()
    assert world.images() == ["milvus:2", "milvus:2", "milvus:1"]


def test_an_evicted_pod_is_replaced_though_many_others_are_refused() -> None:
    world = at_rest(milvus("x", replicas=60, storage={"size": "1Gi"}))
    for number in range(50):
        world.remove("pods", f"x-{number}")
        world.remove("persistentvolumeclaims", f"data-x-{number}")
    world.server.quota = {"persistentvolumeclaims": 10}
    world.server.fail("x-55")
    before = world.uid("x-55")
    start = world.clock.now()
    times = world.run(5)
    assert world.clock.now() - start < 6
    assert len(times) > 5, "the next pass goes on soon"
    assert world.uid("x-55") != before


def test_events_that_hang_again_take_no_worker_from_other_milvus() -> None:
    world = at_rest(*[milvus(f"m{number}") for number in range(8)], workers=4)
    rule = world.server.refuse("create", "events", 500, "no")
    for number in range(8):
        world.change(f"m{number}", replicas=2)
    world.passes(4)
    world.server.rules.remove(rule)
    with world.hanging("create", "events"):
        world.clock.advance(400)
        world.passes(2)
        world.add(milvus("good"))
        world.passes(2)
        assert "good-0" in world.pods()


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_what_hangs_again_leaves_a_worker_to_the_others(workers: int) -> None:
    world = World(*[milvus(f"bad{number}") for number in range(4)], workers=workers)
    rule = world.server.refuse("create", "pods", 500, "no")
    world.passes()
    world.server.rules.remove(rule)
    with world.hanging("create", "pods"):
        world.passes(2)
        world.server.rules[-1].times = 0
        world.add(milvus("good"))
        world.passes(3)
        assert "good-0" in world.pods()


def test_events_that_one_namespace_does_not_allow_are_its_own_outage() -> None:
    world = World(milvus("y", "b"), namespaces=["a", "b"], workers=1)
    world.server.refuse("create", "events", 403, NO_EVENTS, "Forbidden", namespace="b")
    world.passes(2)
    for number in range(3):
        world.add(milvus(f"x{number}", "a"))
        world.passes(60)
    assert len(world.events()) == 3
    assert not [line for line in world.log if "resolved" in line]
    assert len([line for line in world.troubles if "create events" in line]) == 1


def test_an_outage_of_events_ends_with_the_milvus_that_had_them() -> None:
    world = World(milvus("x"))
    world.server.refuse("create", "events", 403, NO_EVENTS, "Forbidden")
    world.passes(3)
    world.remove("milvuses", "x")
    world.passes()
    bad = metric("passes_total", result="failure")
    world.passes(3)
    assert metric("passes_total", result="failure") == bad


def test_a_pass_does_not_act_on_lists_as_old_as_a_long_interval() -> None:
    names = [f"m{number:02}" for number in range(30)]
    world = at_rest(*[milvus(name, replicas=2) for name in names], workers=1, interval=3600)
    for name in names:
        world.change(name, replicas=1)
    world.server.delay("delete", "pods", 4)
    world.operator.run_pass()
    assert len(world.names("delete", "pods")) <= 3
    world.change("m29", replicas=2)
    world.operator.run_once()
    assert "m29-1" in world.pods()
