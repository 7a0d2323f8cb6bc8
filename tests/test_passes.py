"""What passes do for the pods of a Milvus, when they come, and how many Milvus share them."""

import gc

import pytest

from tests.lib.world import World, at_rest, milvus


def test_pods_are_created_scaled_and_waited_for_as_the_status_says() -> None:
    world = World(milvus("x", replicas=1, milvusSpec="this is milvus spec"))
    world.passes(2)
    assert (world.reason(), world.reason(kind="Ready")) == ("SpecIsText", "Pending")
    assert world.message() == "spec.milvusSpec is not a YAML mapping, so it sets nothing"
    assert world.condition("x", "Reconciled")["status"] == "True"
    assert world.condition("x", "Stalled") == {}
    first = world.uid("x-0")
    for replicas in (4, 2):
        world.change("x", replicas=replicas)
        world.settle()
        assert world.pods() == [f"x-{number}" for number in range(replicas)]
        assert world.condition("x", "Ready")["status"] == "True"
    assert world.names("delete", "pods") == ["x-3", "x-2"]
    assert world.uid("x-0") == first
    world.remove("pods", "x-0", grace=None)
    world.passes(3)
    assert (world.uid("x-0"), world.status("x")["replicas"]) == (first, 1)
    assert world.reason(kind="Ready") == "Terminating"
    world.settle()
    assert (world.pods(), world.uid("x-0") == first) == (["x-0", "x-1"], False)
    world.change("x", replicas=0)
    world.settle()
    assert (world.pods(), world.condition("x", "Ready")["status"]) == ([], "True")


def keep_failing(world: World, seconds: int) -> list[float]:
    """Let x-0 fail for so long whenever it is there; returns the seconds between its deletes."""
    world.forget()
    for _ in range(0, seconds, 5):
        if "x-0" in world.pods():
            world.server.fail("x-0")
        world.passes()
    return world.times("delete", "pods")


def test_a_pod_that_ends_is_replaced_at_once_and_then_after_longer_and_longer() -> None:
    """Ten minutes without a replacement end the back-off."""
    world = at_rest(milvus("x", replicas=2))
    other = world.uid("x-1")
    assert keep_failing(world, 1000) == [10, 20, 40, 80, 160, 300, 300]
    assert world.reason(kind="Ready") == "Evicted"
    assert "deleted pod test/x-0 in order to replace it: Failed (Evicted)" in world.log
    for quiet, wait in ((595, 300), (605, 10)):
        last = world.requests("delete", "pods")[-1].time
        world.settle()
        world.clock.advance(last + quiet - world.clock.now())
        assert keep_failing(world, wait + 5) == [wait]
    assert world.uid("x-1") == other


def test_pods_that_end_together_count_once_however_slow_the_deletes() -> None:
    world = at_rest(milvus("x", replicas=2))
    for name in world.pods():
        world.server.fail(name)
    world.server.when("delete", "pods", lambda _: world.clock.advance(12), times=2)
    world.passes(2)
    world.server.finish_deletions()
    world.passes()
    world.server.fail("x-0")
    world.passes()
    assert world.names("delete", "pods") == ["x-0", "x-1", "x-0"]


def test_of_pods_that_end_together_none_waits_because_another_was_quicker() -> None:
    world = at_rest(milvus("x", replicas=12))
    before = world.uids()
    for name in before:
        world.server.fail(name)
    for ordinal in range(1, 9):  # so many that the pass ends
        world.server.refuse("delete", "pods", 403, "no", name=f"x-{ordinal}")
    again = lambda _: world.server.fail("x-9")  # noqa: E731
    world.server.when("delete", "pods", again, name="x-9", times=1)
    world.passes(2)
    after = world.uids()
    gone = [name for name in before if after.get(name) != before[name]]
    assert gone == ["x-0", "x-10", "x-11", "x-9"]


def test_a_quiet_cluster_is_only_listed_until_anything_about_a_milvus_changes() -> None:
    bad = milvus("bad", milvusSpec="proxy.port: 1")
    world = at_rest(milvus("x", replicas=2), milvus("y"), bad)
    for operator in (world.operator, world.new_operator()):
        world.operator = operator
        world.forget()
        world.passes(2)
        lists = [("list", "pods"), ("list", "milvuses")]
        assert [(one.verb, one.resource) for one in world.server.journal] == 2 * lists
    world.server.ask("patch", "milvuses/status", "x", {"status": {"readyReplicas": 7}})
    world.passes()
    assert world.status("x")["readyReplicas"] == 2
    world.server.set_pod("x-1", ready=False)
    world.passes()
    assert world.status("x")["readyReplicas"] == 1
    assert {one.name for one in world.writes()} == {"x"}


# --- When the next pass comes ---
def test_the_next_pass_comes_after_half_the_time_since_the_last_change() -> None:
    """The lists change until 1 s; no pass comes sooner than half a second after another."""
    world = World(milvus("x"), interval=10)
    soon = [0, 0.5, 1, 1.5, 2, 2.5, 3.25, 4.375, 6.062, 8.594, 12.391]
    assert world.run(15) == soon
    world.run(60)
    assert world.run(25) == [0, 10, 20], "at most the interval"
    world.change("x", replicas=2)
    assert world.run(2.5) == [0, 0.5, 1, 1.5, 2]


def test_what_a_pass_leaves_is_soon_continued_though_nothing_has_changed() -> None:
    """A pass ends after eight failures of a Milvus."""
    world = World(milvus("x", replicas=12), interval=1000)
    world.server.refuse("create", "pods", 422, "no")
    world.run(3000)
    world.forget()
    assert world.run(1000) == [0, 0.5]
    assert world.names("create", "pods") == [f"x-{number}" for number in range(12)]
    assert world.times("create", "pods") == [0] * 7 + [0.5] + [0] * 3


@pytest.mark.parametrize(("takes", "starts"), [(0.5, [0, 2.5, 5, 7.5]), (7, [0, 7])])
def test_slow_lists_are_rarer_and_leave_time_for_writes(takes: float, starts: list[float]) -> None:
    """After five times what they take, but at most the interval or when the last pass is over."""
    world = World(milvus("x"), interval=5)
    world.server.delay("list", "pods", takes)
    assert world.run(10) == starts
    assert world.pods() == ["x-0"]


# --- How many Milvus, and many pods, share the passes ---
def test_a_pass_ends_when_the_next_one_is_due_and_what_it_leaves_comes_first_then() -> None:
    world = World(milvus("a", replicas=4), milvus("b", replicas=4), interval=0.5, workers=1)
    world.server.delay("create", "pods", 0.3)
    assert world.operator.run_pass().left == 2
    assert world.names("create", "pods") == ["a-0", "a-1"], "at 0 s and at 0.3 s"
    assert any(", 2 Milvus resource(s) left for the next pass, " in line for line in world.log)
    world.clock.advance(0.5)
    world.passes(3)
    assert world.names("create", "pods") == ["a-0", "a-1", "a-2", "a-3", "b-0", "b-1", "b-2", "b-3"]


def test_no_status_is_written_after_the_end_of_a_pass() -> None:
    world = World(*[milvus(name, replicas=0) for name in "abc"], interval=1, workers=1)
    world.server.delay("patch", "milvuses/status", 2)
    for done in ("a", "ab", "abc"):
        world.operator.run_pass()
        assert world.names("patch", "milvuses/status") == [*done]


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


def test_a_thousand_replicas_of_one_milvus_take_one_pass() -> None:
    world = World(milvus("x", replicas=1000), workers=16)
    world.passes()
    assert len(world.pods()) == 1000
    assert "pass over 1 Milvus resource(s) and 0 pod(s): 1000 created, 0.00 s" in world.log
    world.passes(2)
    assert world.status("x")["replicas"] == 1000
    (created,) = world.events()
    assert created.endswith(" and 990 more")


def test_a_milvus_whose_every_pass_changes_a_pod_gets_a_status_once_an_interval() -> None:
    world = World(milvus("x"), interval=5)
    for number in range(40):
        world.operator.run_pass()
        world.clock.advance(0.5)
        world.remove("pods", "x-0")
        world.change("x", replicas=1 + number % 2)
    assert 3 <= len(world.requests("patch", "milvuses/status")) <= 4
    assert world.condition("x", "Ready")["status"] == "False"


# --- What hangs ---
@pytest.mark.parametrize(
    ("verb", "resource"), [("create", "pods"), ("patch", "milvuses/status"), ("create", "events")]
)
def test_a_write_that_hangs_is_not_repeated_and_delays_no_other(verb: str, resource: str) -> None:
    world = World(milvus("x", replicas=3), milvus("y"))
    with world.hanging(verb, resource, times=1):
        world.passes(2)
        world.add(milvus("late"))
        world.passes(4)
        assert "late-0" in world.pods()
        assert world.status("late")["replicas"] == 1
        name = world.requests(verb, resource)[0].name
        assert world.names(verb, resource).count(name) == 1
    world.settle()
    assert len(world.pods()) == 5


def test_the_next_pass_comes_soon_after_a_change_while_an_earlier_write_hangs() -> None:
    world = World(milvus("x"), milvus("y"))
    with world.hanging("create", "pods", name="x-0"):
        world.passes()
        world.change("y", replicas=2)
        assert world.run(2) == [0, 0.5, 1, 1.5]


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("resource", ["pods", "events"])
def test_creates_that_failed_and_hang_leave_workers_to_others(resource: str, workers: int) -> None:
    world = World(*[milvus(f"bad{number}") for number in range(6)], workers=workers)
    rule = world.server.refuse("create", resource, 500, "not now")
    world.passes(3)
    world.server.rules.remove(rule)
    with world.hanging("create", resource) as hung:
        world.passes(2)
        assert hung.count == 1
        world.server.rules[-1].times = 0
        world.add(milvus("good"))
        world.passes()
        assert "good-0" in world.pods()


def test_what_no_worker_has_begun_is_decided_anew_by_the_next_pass() -> None:
    world = World(milvus("a"), milvus("b"), workers=1)
    with world.hanging("create", "pods", name="a-0"):
        world.passes(2)
        world.change("b", replicas=0)
        world.passes()
    world.settle()
    assert world.names("create", "pods") == ["a-0"]
    assert world.status("b")["observedGeneration"] == 2


def test_garbage_is_collected_once_after_each_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    world = at_rest(milvus("x"))
    collected = list[float]()
    monkeypatch.setattr(gc, "collect", lambda: collected.append(world.clock.now()))
    world.run(20)
    assert len(collected) == len({*collected}) == 4


def test_what_no_worker_could_begin_does_not_wait_for_a_long_interval() -> None:
    world = World(milvus("x"), milvus("y"), interval=600, workers=1)
    world.server.refuse("create", "pods", 422, "no")
    world.passes(4)
    world.server.rules.clear()
    with world.hanging("create", "pods"):
        assert len(world.run(30)) > 1


@pytest.mark.parametrize(("replicas", "seconds"), [(5, 10), (2, 30), (12, 3)])
def test_a_status_is_written_among_creates_that_fail_slowly(replicas: int, seconds: float) -> None:
    world = World(milvus("x", replicas=replicas))
    world.server.delay("create", "pods", seconds)
    world.server.refuse("create", "pods", 500, "a webhook failed", "InternalError")
    world.run(150)
    assert world.reason() == "APIError"


def test_milvus_whose_creates_fail_slowly_take_turns_with_the_others() -> None:
    world = at_rest(milvus("good"), namespaces=(None,))
    for number in range(8):
        world.add(milvus(f"bad-{number}", "bad", replicas=6))
    world.server.delay("create", "pods", 10, namespace="bad")
    world.server.refuse("create", "pods", 500, "no", "InternalError", namespace="bad")
    world.run(400)
    assert world.names("delete", "pods") == []
    world.server.fail("good-0")
    world.run(60)
    assert world.names("delete", "pods") == ["good-0"]
