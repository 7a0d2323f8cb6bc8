"""What passes do for the pods of a Milvus, when they come, and how many Milvus share them."""

import itertools

import pytest

from tests.lib.front import Request
from tests.lib.world import Later, World, at_rest, milvus


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
    assert keep_failing(world, 300) == [10, 20, 40, 60, 60, 60]
    assert world.reason() == "Reconciled"
    for quiet, wait in ((595, 60), (605, 10)):
        last = world.requests("delete", "pods")[-1]
        world.settle()
        world.clock.advance(last.time + quiet - world.clock.now())
        assert keep_failing(world, wait + 5) == [wait]


def test_whoever_deletes_each_new_pod_at_once_finds_ever_fewer() -> None:
    """Such as a descheduler, or a taint that no pod tolerates."""
    world = World(milvus(replicas=3))

    def remove_all(_: Request) -> None:
        for name in world.pods():
            world.remove("pods", name)

    world.server.when("list", "milvuses", remove_all)
    world.run(60)
    assert world.names("create", "pods") == ["x-0", "x-1", "x-2"] * 9


def test_a_quiet_cluster_is_only_listed_until_anything_about_a_milvus_changes() -> None:
    several = [milvus(replicas=2), milvus("y")]
    bad = milvus("bad")
    world = at_rest(*several, bad)
    world.change("bad", milvusSpec="proxy.port: 1")  # and its pod stays
    world.settle()
    world.forget()
    assert not world.operator.unfinished()
    world.passes()
    resources = [request.resource for request in world.server.journal]
    assert resources == ["pods", "persistentvolumeclaims", "services", "milvuses"]
    world.server.set_pod("x-1", ready=False)
    world.passes()
    assert world.status("x")["readyReplicas"] == 1
    assert world.names("patch", "milvuses/status") == ["x"]


def test_how_many_there_are_is_said_once() -> None:
    """Even if none is there, because the namespace is mistyped."""
    for namespaces, count in ((["tset"], 0), (["test"], 2)):
        world = World(milvus(), milvus("y"), namespaces=namespaces)
        world.passes(3)
        told = [line for line in world.log if line.startswith("ready: ")]
        assert told == [f"ready: {count} Milvus resource(s) listed"]


# --- When the next pass comes, and how long one acts ---
def test_the_next_pass_comes_after_an_eighth_of_the_time_since_the_last_change() -> None:
    """The lists change until 0.2 s; no pass comes sooner than a tenth of a second after another."""
    world = World(milvus(), interval=10)
    times = world.run(15)
    assert times[:9] == [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
    waits = [after - before for before, after in itertools.pairwise(times)]
    for began, wait in zip(times, waits, strict=False):
        assert wait == pytest.approx(max(0.1, (began - 0.2) / 8), abs=0.002)
    world.run(100)
    assert world.run(25) == [0, 10, 20], "at most the interval"


def test_slow_lists_are_rarer() -> None:
    """After five times what they take."""
    world = World(milvus())
    world.server.delay("list", "pods", 0.5)
    assert world.run(10) == [0.5, 3, 5.5, 8], "when it was listed"


@pytest.mark.parametrize(("interval", "takes"), [(3600, 0), (0.5, 2)])
def test_a_pass_acts_for_some_seconds_after_its_lists_and_what_is_left_follows(
    interval: float, takes: float
) -> None:
    world = World(milvus(replicas=20), interval=interval)
    server = world.server
    server.delay("list", "pods", takes)
    server.delay("create", "pods", 1)
    world.operator.run_pass()
    assert (len(world.pods()), world.names("patch", "milvuses/status")) == (8, [])
    world.run(60)
    assert len(world.pods()) == 20


def test_what_a_long_pass_has_done_is_an_event_too() -> None:
    world = World(milvus(replicas=20))
    world.server.delay("create", "pods", 1)
    world.operator.run_pass()
    assert len(world.events()) == 1


def test_no_pass_waits_for_events_and_of_those_that_wait_only_so_many_are_kept() -> None:
    later = Later()
    world = World(*(milvus(f"x{number}") for number in range(1200)), sender=later)
    world.passes(2)
    assert len(world.pods()) == 1200
    assert world.events() == []
    assert len(later.tasks) == 1000
    world.operator.api.deadline = 0  # of a pass that is long over
    for task, event in later.tasks:
        task(event)
    assert len(world.events()) == 1000
    for future in later.futures:
        future.set_result(None)
    world.remove("pods", "x7-0")
    world.passes(2)
    assert len(later.tasks) > 1000, "there is room again"


def test_what_the_end_of_a_pass_cuts_off_goes_first_in_the_next() -> None:
    """Also if what is before it changes all the time."""
    several = [milvus(name, replicas=1) for name in "abc"]
    world = at_rest(*several)
    world.server.delay("create", "pods", 6)
    for name in "abc":
        world.change(name, replicas=2)
    world.operator.run_pass()
    assert world.names("create", "pods") == ["a-1", "b-1"]
    world.change("a", replicas=3)
    world.change("b", replicas=3)
    world.operator.run_pass()
    assert world.names("create", "pods")[2] == "c-1"


def test_a_burst_that_was_cut_off_goes_on_before_others_begin() -> None:
    world = at_rest(milvus("a"))
    world.add(milvus("z", replicas=40))
    world.server.delay("create", "pods", 1)
    world.operator.run_pass()
    world.change("a", replicas=20)
    for start in (8, 16):  # it keeps its place in the line
        world.forget()
        world.operator.run_pass()
        created = [f"z-{number}" for number in range(start, start + 8)]
        assert world.names("create", "pods") == created


def test_no_two_visits_in_a_row_leave_the_status_as_it_was() -> None:
    """Here something deletes each new pod, so that each visit has something to do."""
    world = at_rest(milvus())
    world.server.when("create", "pods", lambda one: world.remove("pods", one.name), after=True)
    world.remove("pods", "x-0")
    world.passes(2)
    assert world.reason(kind="Ready") == "Creating"
    assert world.status("x")["replicas"] == 0


def test_nothing_is_done_about_a_namespace_whose_lists_fail_though_it_has_been_listed_before() -> (
    None
):
    """What is left of the last visit would be done by lists that are out of date."""
    world = World(milvus())
    world.server.reject("create", "pods", 500, "not now", times=1)
    world.passes()
    rule = world.server.fault("list", "milvuses", "timeout")
    world.remove("milvuses", "x")
    world.forget()
    world.passes(10)
    assert world.writes() == []
    rule.times = 0
    world.passes(3)
    assert world.pods() == []


# --- What hangs or is slow ---
@pytest.mark.parametrize(
    ("verb", "resource"), [("create", "pods"), ("patch", "milvuses/status"), ("create", "events")]
)
def test_a_write_that_hangs_delays_others_by_ten_seconds_and_ever_more_rarely(
    verb: str, resource: str
) -> None:
    world = World(milvus("bad", replicas=9), milvus("good"))
    only = {} if verb == "create" and resource == "events" else {"name": "bad"}
    names = {f"bad-{number}" for number in range(9)} if resource == "pods" else {"bad"}
    for name in names:
        world.hang(verb, resource, **only | ({"name": name} if only else {}))
    start = world.clock.now()
    world.passes(2)
    assert "good-0" in world.pods()
    assert world.clock.now() <= start + 2 * (10 + 5) + 5
    world.run(600)
    hung = [one for one in world.requests(verb, resource) if one.name in names or not only]
    assert len(hung) <= 18


def test_a_lost_database_and_a_change_go_before_what_was_never_served() -> None:
    """While the pods of others are created for the first time, and take long."""
    world = at_rest(milvus("lost", replicas=2), milvus("changed"))
    for number in range(60):
        world.add(milvus(f"a{number:02}", replicas=3))
    world.server.delay("create", "pods", 0.5)
    world.run(20)
    world.remove("pods", "lost-0")
    world.change("changed", image="milvus:2")
    world.forget()
    world.run(15)
    first = [one.name for one in world.writes() if one.resource == "pods"]
    assert {"lost-0", "changed-0"} <= {*first[:22]}, "in the next pass, before all that is new"
    assert world.names("create", "pods").index("lost-0") < 22


def test_a_milvus_that_is_changed_all_the_time_keeps_its_place_in_the_line() -> None:
    others = [f"a{number:02}" for number in range(30)]
    world = at_rest(*map(milvus, others), milvus("z"))
    world.server.delay("create", "pods", 1)
    for turn in range(2):
        for name in others[10 * turn : 10 * turn + 10]:
            world.change(name, replicas=2)
        world.change("z", replicas=2, updateStrategy={"minReadySeconds": turn})
        world.operator.run_pass()
    assert "z-1" in world.pods()


def test_in_a_burst_pods_go_before_statuses_for_half_a_minute_and_changes_before_both() -> None:
    world = World(*(milvus(f"x{number:02}") for number in range(60)))
    world.server.delay("create", "pods", 1)
    start = world.clock.now()
    world.operator.run_pass()
    world.change("x00", replicas=2)
    world.run(60)
    assert world.names("create", "pods")[8] == "x00-1"
    times = [one.time - start for one in world.requests("patch", "milvuses/status")]
    assert sum(time < 30 for time in times) < 8, "of what the end of a pass cut off"
    assert sum(time < 45 for time in times) > 10


def test_an_evicted_database_comes_back_in_the_next_pass_amid_a_burst() -> None:
    world = at_rest(milvus("lost", replicas=2))
    for number in range(60):
        world.add(milvus(f"a{number:02}"))
    world.server.delay("create", "pods", 1)
    world.server.fail("lost-0")
    start = world.clock.now()
    for _ in range(3):
        world.operator.run_pass()
        world.server.finish_deletions()
    assert "lost-0" in world.pods()
    (again,) = [one for one in world.requests("create", "pods")[2:] if one.name == "lost-0"]
    assert again.time - start <= 9


def test_behind_some_that_take_ten_seconds_to_fail_a_new_one_is_served_next() -> None:
    """As behind a webhook that fails after its timeout. With 16 workers, they may be forty."""
    several = [milvus(f"bad{number}") for number in range(3)]
    world = World(*several)
    for milvus_ in several:
        name = f"{milvus_['metadata']['name']}-0"
        world.server.delay("create", "pods", 10, name=name)
        world.server.reject("create", "pods", 500, "not now", "InternalError", name=name)
    world.operator.run_pass()
    assert len(world.requests("create", "pods")) == 1, "nothing begins after the end of a pass"
    world.run(600)
    world.add(milvus("good"))
    world.forget()
    world.run(30)
    assert "good-0" in world.pods()
    waited = world.requests("create", "pods")
    assert [one.name for one in waited].index("good-0") <= 1, "what has failed comes last"


def test_what_has_failed_queues_half_a_minute_behind_what_is_new() -> None:
    world = World(milvus("bad"))
    world.server.reject("create", "pods", 500, "not now", "InternalError", name="bad-0")
    for _ in range(2):
        world.operator.run_pass()
    world.clock.advance(20)
    world.add(milvus("new"))
    world.forget()
    world.operator.run_pass()
    assert world.names("create", "pods") == ["new-0", "bad-0"]
    world.clock.advance(60)
    world.add(milvus("later"))
    world.forget()
    world.operator.run_pass()
    assert world.names("create", "pods") == ["bad-0", "later-0"]


def test_a_dry_run_that_always_takes_longer_than_a_pass_acts_stops_no_roll() -> None:
    """As with a slow admission webhook. What was decided is looked at once more after it."""
    world = at_rest(milvus(replicas=2))
    world.change("x", image="milvus:2")
    world.server.delay("create", "pods", 9)
    world.live(20)
    assert world.images() == ["milvus:2"] * 2
    assert len(world.names("delete", "pods")) == 2
    assert world.warnings == []


def test_a_stop_amid_writes_is_no_problem() -> None:
    several = [milvus(f"x{number}", replicas=2) for number in range(9)]
    world = World(*several)

    def stop(_: Request) -> None:
        world.operator.api.stopping.set()

    world.server.when("create", "pods", stop, times=1)
    world.passes()
    assert world.warnings == []
    assert world.names("create", "pods") == ["x0-0"]


@pytest.mark.parametrize("ready", [True, False])
def test_a_surplus_pod_stays_if_its_milvus_has_changed_since_it_was_listed(ready: bool) -> None:
    """The lists may be as old as several slow namespaces take; and one that loads has data."""
    world = at_rest(milvus(replicas=2))
    world.server.set_pod("x-1", ready=ready)
    world.change("x", replicas=1)
    wanted = lambda _: world.change("x", replicas=2)  # noqa: E731
    world.server.when("list", "milvuses", wanted, after=True)
    world.passes(3)
    assert world.names("delete", "pods") == []
    assert len(world.pods()) == 2


def test_a_surplus_pod_stays_if_its_milvus_was_made_anew_and_may_adopt_it() -> None:
    world = at_rest(milvus(replicas=2))
    world.change("x", replicas=1)

    def make_anew(_: Request) -> None:
        world.remove("milvuses", "x")
        world.add(milvus(replicas=3))
        world.change("x", replicas=2)

    world.server.when("list", "milvuses", make_anew, after=True, times=1)
    world.operator.run_pass()
    assert world.status("x")["observedGeneration"] == -1, "as of the other one, generation 2"
    assert world.names("delete", "pods") == []


def test_a_surplus_pod_stays_if_its_milvus_has_changed_since_another_was_deleted() -> None:
    world = at_rest(milvus(replicas=4))
    world.change("x", replicas=1)
    wanted = lambda _: world.change("x", replicas=4)  # noqa: E731
    world.server.when("delete", "pods", wanted, after=True, times=1)
    world.passes(3)
    assert world.names("delete", "pods") == ["x-1"]
    assert len(world.requests("get", "milvuses")) == 2, "once it has changed, that is known"


@pytest.mark.parametrize("ready", [True, False])
def test_a_pod_stays_if_its_milvus_is_changed_back_while_the_dry_run_is_asked(ready: bool) -> None:
    world = at_rest(milvus())
    world.server.set_pod("x-0", ready=ready)
    world.change("x", image="milvus:2")
    back = lambda _: world.change("x", image="milvus:1")  # noqa: E731
    world.server.when("create", "pods", back, after=True, times=1)
    world.live(5)
    assert world.names("delete", "pods") == []
