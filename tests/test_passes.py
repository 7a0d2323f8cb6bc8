"""What passes do for the pods of a Milvus, when they come, and how many Milvus share them."""

import time

import pytest

from tests.lib.front import Request
from tests.lib.world import World, at_rest, milvus


def keep_failing(world: World, seconds: int) -> list[float]:
    """Let x-0 fail for so long whenever it is there; returns the seconds between its deletes."""
    world.forget()
    for _ in range(0, seconds, 5):
        if "x-0" in world.pods():
            world.server.fail("x-0")
        world.passes()
    return world.times("delete", "pods")


def test_a_pod_that_ends_is_replaced_immediately_and_then_after_longer_and_longer() -> None:
    """Ten minutes without a replacement end the back-off."""
    world = at_rest(milvus())
    assert keep_failing(world, 1000) == [10, 20, 40, 80, 160, 300, 300]
    assert world.reason() == "Reconciled"
    for quiet, wait in ((595, 300), (605, 10)):
        last = world.requests("delete", "pods")[-1]
        world.settle()
        world.clock.advance(last.time + quiet - world.clock.now())
        assert keep_failing(world, wait + 5) == [wait]


def test_a_quiet_cluster_is_only_listed_until_anything_about_a_milvus_changes() -> None:
    several = [milvus(replicas=2), milvus("y")]
    bad = milvus("bad", milvusSpec="proxy.port: 1")
    world = at_rest(*several, bad)
    world.passes()
    resources = [request.resource for request in world.server.journal]
    assert resources == ["pods", "persistentvolumeclaims", "milvuses"]
    world.server.set_pod("x-1", ready=False)
    world.passes()
    assert world.status("x")["readyReplicas"] == 1
    assert world.names("patch", "milvuses/status") == ["x"]


# --- When the next pass comes, and how long one acts ---
def test_the_next_pass_comes_after_half_the_time_since_the_last_change() -> None:
    """The lists change until 1 s; no pass comes sooner than half a second after another."""
    world = World(milvus(), interval=10)
    soon = [0, 0.5, 1, 1.5, 2, 2.5, 3.25, 4.375, 6.062, 8.594, 12.391]
    assert world.run(15) == soon
    world.run(60)
    assert world.run(25) == [0, 10, 20], "at most the interval"


def test_slow_lists_are_rarer() -> None:
    """After five times what they take."""
    world = World(milvus())
    world.server.delay("list", "pods", 0.5)
    assert world.run(10) == [0, 2.5, 5, 7.5]


@pytest.mark.parametrize(("interval", "takes", "created"), [(3600, 0, 5), (0.5, 2, 10)])
def test_a_pass_acts_for_five_times_what_its_lists_took_and_at_least_five_seconds(
    interval: float, takes: float, created: int
) -> None:
    world = World(milvus(replicas=20), workers=1, interval=interval)
    server = world.server
    server.delay("list", "pods", takes)
    server.delay("create", "pods", 1)
    this = world.operator.run_pass()
    assert this.is_cut
    assert (len(world.pods()), world.names("patch", "milvuses/status")) == (created, [])
    world.run(60)
    assert len(world.pods()) == 20


def test_a_change_waits_for_one_pass_of_a_burst_only() -> None:
    world = at_rest(milvus("z"), workers=1)
    world.add(milvus("a", replicas=100))
    world.server.delay("create", "pods", 1)
    world.passes()
    world.server.fail("z-0")
    world.passes()
    assert "z-0" not in world.pods()
    world.passes()
    assert "z-0" in world.pods(), "though the burst goes on"
    assert len(world.pods()) < 100


# --- What hangs or is slow ---
@pytest.mark.parametrize(
    ("verb", "resource"), [("create", "pods"), ("patch", "milvuses/status"), ("create", "events")]
)
def test_a_write_that_hangs_is_not_repeated_and_delays_no_other(verb: str, resource: str) -> None:
    world = World(milvus(replicas=3))
    with world.hanging(verb, resource, times=1):
        world.passes(2)
        world.add(milvus("late"))
        world.passes(4)
        assert world.status("late")["replicas"] == 1
        names = world.names(verb, resource)
        assert names.count(names[0]) == 1
        world.change("late", replicas=2)
        assert world.run(2) == [0, 0.5, 1, 1.5], "soon after a change"
    world.settle()
    assert len(world.pods()) == 5


@pytest.mark.parametrize(("resource", "workers"), [("pods", 2), ("events", 16)])
def test_writes_that_failed_and_hang_leave_workers_to_others(resource: str, workers: int) -> None:
    """As behind a webhook that fails after its timeout."""
    several = [milvus(f"bad{number}") for number in range(40)]
    world = World(*several, workers=workers)
    rule = world.server.reject("create", resource, 500, "not now", "InternalError")
    world.passes(3)
    rule.times = 0
    with world.hanging("create", resource):
        hung = world.server.rules[-1]
        world.passes(2)
        assert hung.hits == max(1, workers // 4)
        hung.times = 0
        world.add(milvus("good"))
        world.operator.run_pass()
        assert "good-0" in world.pods()
        assert world.run(2) == [0, 0.5, 1, 1.5]


def test_what_failed_once_is_tried_again_soon_though_the_lists_are_slow() -> None:
    several = [milvus(f"x{number:02}") for number in range(30)]
    world = World(*several)
    world.server.delay("list", "pods", 6)
    rule = world.server.reject("create", "pods", 500, "not now", "InternalError")
    world.passes()
    rule.times = 0
    world.server.when("create", "pods", lambda _: time.sleep(0.01))
    world.passes()
    assert len(world.pods()) == 30


def test_a_stop_amid_writes_is_no_problem() -> None:
    several = [milvus(f"x{number}", replicas=2) for number in range(9)]
    world = World(*several)

    def stop(_: Request) -> None:
        world.operator.cluster.stopping = True

    world.server.when("create", "pods", stop)
    world.passes()
    assert world.warnings == []
    assert len(world.names("create", "pods")) < 9
