"""A changed template replaces pods, one Ready pod at a time."""

from datetime import UTC, datetime, timedelta

import pytest
import yaml
from urllib3 import HTTPResponse

import milvus_operator as mo
from tests.lib.front import Rejected, Request, http_response
from tests.lib.judge import image_of
from tests.lib.world import World, at_rest, milvus, pod

CRASHES = {"state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}}
# A container whose probes have not answered since its kubelet restarted.
RUNS = {"ready": False, "started": False, "state": {"running": {"startedAt": "2026-01-01T00:00Z"}}}


def deleted(world: World) -> list[str]:
    return world.names("delete", "pods")


def outdated(replicas: int) -> World:
    """A Milvus whose pods all run, and whose image has changed since."""
    world = at_rest(milvus(replicas=replicas))
    world.change("x", image="milvus:2")
    return world


@pytest.mark.parametrize("ahead", ["pods", "milvuses"])
def test_one_ready_pod_at_a_time_is_replaced_from_the_highest_ordinal(ahead: str) -> None:
    """Also if pods are in an etcd of their own, with other versions."""
    world = outdated(3)
    server = world.server
    server.versions[ahead] += 10_000
    words = 'pods "x" is forbidden: exceeded quota: a'
    rule = server.reject("create", "pods", 403, words, times=1)
    world.passes(1)
    assert rule.hits == 1
    assert deleted(world) == ["x-2"], "the old pod makes room for the new one"
    world.passes(5)
    assert deleted(world) == ["x-2"], "the next when the last is Ready"
    server.finish_deletions()
    world.passes(5)
    assert deleted(world) == ["x-2"], "not when it is only there"
    world.settle()
    assert deleted(world) == ["x-2", "x-1", "x-0"]
    assert world.images() == ["milvus:2"] * 3
    for request in world.requests("delete", "pods"):
        assert [*request.body["preconditions"]] == ["uid"]


def test_a_broken_image_costs_one_pod_and_is_rolled_back() -> None:
    world = outdated(4)
    world.passes()
    world.server.finish_deletions()
    world.passes(20)
    assert deleted(world) == ["x-3"]
    world.server.set_pod("x-1", ready=False)
    world.change("x", image="milvus:1")
    world.settle()
    assert deleted(world) == ["x-3", "x-3"]
    assert world.images() == ["milvus:1"] * 4


def test_a_roll_waits_for_a_name_that_a_stranger_holds() -> None:
    """Of the databases that the owner asked for, one is down already."""
    world = World(milvus(replicas=3), pod("x-1"))
    world.settle()
    world.change("x", image="milvus:2")
    world.settle()
    world.live(20)
    assert deleted(world) == []
    assert world.reason() == world.reason(kind="Ready") == "NameConflict"
    world.remove("pods", "x-1")
    world.clock.advance(60)
    world.settle()
    assert deleted(world) == ["x-2", "x-0"]
    assert world.images() == ["milvus:2"] * 3


def test_a_roll_waits_for_a_node_that_fell_silent_and_goes_on_when_it_is_back() -> None:
    world = outdated(3)
    silent = {"phase": "Running", "containerStatuses": [{"ready": True}]}
    world.server.set_pod("x-1", ready=False, **silent)
    world.live(30)
    assert deleted(world) == []
    world.server.set_pod("x-1", ready=True)
    world.settle()
    assert deleted(world) == ["x-2", "x-1", "x-0"]


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_pod_whose_sidecar_is_not_ready_serves_nobody_and_holds_up_no_correction(
    replicas: int,
) -> None:
    """A native sidecar is an init container that goes on; the node has not fallen silent."""
    world = outdated(replicas)
    for name in world.pods():
        containers = {
            "containerStatuses": [RUNS | {"ready": True}],
            "initContainerStatuses": [RUNS],
        }
        world.server.set_pod(name, ready=False, **containers)
    world.live(14)
    assert sorted(deleted(world)) == [f"x-{ordinal}" for ordinal in range(replicas)]


def test_the_dry_run_asks_under_the_name_of_the_pod_that_is_replaced() -> None:
    """An admission webhook may bind something to it, such as a static address."""
    world = outdated(2)
    world.server.reject("create", "pods", 403, "10.0.0.1 belongs to x-1", name="x-0")
    world.live(20)
    assert deleted(world) == ["x-1"]
    asked = [one.name for one in world.requests("create", "pods") if one.dry_run]
    assert asked[:2] == ["x-1", "x-0"]
    assert {*asked} == {"x-1", "x-0"}
    assert world.message() == "in a dry run: 10.0.0.1 belongs to x-1"


def test_a_template_that_is_rejected_costs_no_pod_and_is_told_once() -> None:
    """The server quotes the name of the pod that it was asked about; no other is asked about."""
    world = at_rest(milvus(replicas=3))

    def reject(request: Request) -> HTTPResponse:
        return http_response(422, Rejected(422, "Invalid", f"{request.name} is bad").status)

    rule = world.server.when("create", "pods", reject)
    world.change("x", image="bad")
    world.passes(10)
    assert deleted(world) == []
    assert rule.hits >= 4, "with back-off"
    assert world.warnings == ["milvus test/x: in a dry run: x-2 is bad"]
    assert all(request.dry_run for request in world.requests("create", "pods"))
    rule.times = 0
    world.change("x", image="good")
    world.settle()
    assert world.images() == ["good"] * 3


def test_a_roll_passes_a_pod_whose_delete_is_rejected() -> None:
    world = outdated(4)
    server = world.server
    server.reject("delete", "pods", 500, "a webhook fails", "InternalError", name="x-3")
    server.reject("delete", "pods", 403, 'webhook "a" denied the request: no', name="x-2")
    world.run(30)
    assert {*deleted(world)} == {"x-3", "x-2", "x-1"}, "it waits for the new x-1"
    world.live(60)
    assert world.images() == ["milvus:2", "milvus:2", "milvus:1", "milvus:1"]
    assert 2 <= deleted(world).count("x-3") <= 14
    for name in ("x-3", "x-2"):
        world.remove("pods", name)
    world.settle()
    assert world.reason() == "Reconciled", "what is no longer to do is forgotten"


def test_a_delete_that_was_lost_is_not_refused_by_what_is_said_of_the_next_try() -> None:
    """It may still take effect; but for a minute only, or the roll would hang."""
    world = outdated(3)
    server = world.server
    server.fault("delete", "pods", "timeout", name="x-2", times=1)
    server.reject("delete", "pods", 403, "denied", name="x-2")
    world.run(55)
    assert {*deleted(world)} == {"x-2"}
    assert len(deleted(world)) > 4, "it is tried again meanwhile"
    world.run(90)
    assert {*deleted(world)} == {"x-2", "x-1"}


def test_while_a_delete_may_still_take_effect_no_other_ready_pod_is_deleted() -> None:
    """The lists still show the pod as Ready, and the spec may have changed since."""
    world = outdated(3)
    server = world.server
    server.reject("delete", "pods", 504, "the webhook still thinks", name="x-2")
    world.passes(3)
    rule = server.reject("create", "pods", 422, "the check is rejected")
    world.change("x", image="milvus:3")
    world.passes(3)
    rule.times = 0
    world.clock.advance(10)
    world.passes(9)
    assert {*deleted(world)} == {"x-2"}
    server.rules.clear()
    world.live(20)
    assert world.images() == ["milvus:3"] * 3


def test_not_even_if_the_spec_is_changed_back_meanwhile() -> None:
    """Then the pod that the lost delete may yet reach is up to date."""
    world = outdated(3)
    world.server.fault("delete", "pods", "timeout", name="x-2", times=1)
    world.passes(1)
    world.patch("pods", "x-1", annotations={mo.TEMPLATE_HASH: "another"})
    world.change("x", image="milvus:1")
    world.run(50)
    assert deleted(world) == ["x-2"]
    world.run(10)
    assert deleted(world) == ["x-2", "x-1"]


def test_a_pod_that_became_ready_since_it_was_listed_is_not_replaced_with_another() -> None:
    """It was not Ready in the lists, so it was to go beside a Ready one."""
    world = outdated(2)
    world.server.set_pod("x-0", ready=False)
    before = world.uids()
    run = lambda _: world.server.set_pod("x-0", True)  # noqa: E731
    world.server.when("delete", "pods", run, times=1)
    world.passes()
    assert world.uids() == before
    assert world.warnings == []
    world.settle()
    assert deleted(world) == ["x-0", "x-1", "x-0"]


def test_a_refused_template_stays_told_while_the_roll_waits_for_another_pod() -> None:
    """Its back-off is over, but it is not its turn: it would neither be told nor back off any more."""
    world = outdated(3)
    world.live(2)
    assert world.images() == ["milvus:1", "milvus:1", "milvus:2"]
    world.server.reject("create", "pods", 422, "bad template")
    world.passes(3)
    assert world.reason() == "Invalid"
    world.server.set_pod("x-2", ready=False)
    world.passes(100)
    assert world.reason() == "Invalid"
    world.server.rules.clear()
    world.server.set_pod("x-2", ready=True)
    world.clock.advance(300)
    world.settle()
    assert world.images() == ["milvus:2"] * 3


# --- What the lists of a pass do not show yet ---
SLOW = ["persistentvolumeclaims", "services", "milvuses"]  # listed after the pods, in this order


@pytest.mark.parametrize("slow", SLOW)
@pytest.mark.parametrize("namespaces", [["test"], ["test", "other"]])
def test_a_pod_that_becomes_unready_while_other_lists_are_slow_saves_the_next_one(
    slow: str, namespaces: list[str]
) -> None:
    world = World(milvus(replicas=3), namespaces=namespaces)
    world.settle()
    world.change("x", image="milvus:2")
    world.forget()

    def crash(_: object) -> None:
        world.clock.advance(20)
        world.server.set_pod("x-0")

    world.server.when("list", slow, crash, namespace=namespaces[-1], times=1)
    world.operator.run_pass()
    assert deleted(world) == []
    assert world.warnings == [], "no failure"
    world.live(10)
    assert deleted(world) == ["x-0", "x-2", "x-1"], "the broken one first, then one at a time"


@pytest.mark.parametrize("what", ["end", "go"])
def test_a_pod_that_ends_while_other_lists_are_slow_saves_the_next_one(what: str) -> None:
    world = at_rest(milvus(replicas=3))
    world.change("x", image="milvus:2")

    def end(_: object) -> None:
        grace = 30 if what == "end" else 0
        world.server.ask("delete", "pods", "x-1", {"gracePeriodSeconds": grace})

    world.server.when("list", "services", end, times=1)
    world.operator.run_pass()
    assert deleted(world) == []


def test_if_the_fresh_list_fails_no_ready_pod_is_deleted() -> None:
    world = outdated(2)
    label = {"labelSelector": "zilliz.com/milvus=x"}

    def fail(request: Request) -> HTTPResponse | None:
        if label.items() <= request.query.items():
            return http_response(500, Rejected(500, "", "not now").status)
        return None

    broken = world.server.when("list", "pods", fail)
    world.run(60)
    assert deleted(world) == []
    assert world.reason() == "APIError"
    broken.times = 0
    world.clock.advance(60)
    world.settle()
    assert world.images() == ["milvus:2"] * 2


def test_a_delete_that_was_throttled_will_not_take_effect() -> None:
    """So the roll goes on to another pod soon, when that one is refused, and not after a minute."""
    world = outdated(3)
    world.server.reject("delete", "pods", 403, "no", "Forbidden", name="x-2")
    world.server.reject("delete", "pods", 429, "later", "TooManyRequests", name="x-2", times=1)
    world.server.rules.reverse()
    world.live(6)
    assert "x-1" in deleted(world)


# --- minReadySeconds ---
def ready_since(world: World, name: str, skew: float = 0) -> None:
    """The pod is Ready from now on, as a kubelet writes it whose clock is wrong by so much."""
    now = (
        datetime.fromtimestamp(1e9 + world.clock.now() + skew, UTC)
        .isoformat()
        .replace("+00:00", "Z")
    )
    condition = {"type": "Ready", "status": "True", "lastTransitionTime": now}
    world.server.set_pod(name, conditions=[condition])


def run_with_times(world: World, seconds: int, skew: float = 0) -> list[tuple[str, float]]:
    """Let a kubelet start each new pod within a second; returns when pods were deleted."""
    start = world.clock.now()
    world.forget()
    for _ in range(seconds):
        world.operator.run_pass()
        world.server.finish_deletions()
        for one in world.server.all_of("pods"):
            if one["status"]["phase"] == "Pending":
                ready_since(world, mo.name_of(one), skew)
        world.clock.advance(1)
    return [(one.name, one.time - start) for one in world.requests("delete", "pods")]


@pytest.mark.parametrize(
    ("seconds", "last"), [(200, "milvus:1"), (310, "milvus:2"), (-3600, "milvus:1")]
)
def test_after_a_restart_the_operator_does_not_wait_anew(seconds: int, last: str) -> None:
    """Nor for longer, if the clock of the kubelet is ahead."""
    world = at_rest(milvus(replicas=2, updateStrategy={"minReadySeconds": 300}))
    world.change("x", image="milvus:2")
    world.live(2)
    since = (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": since}
    world.server.set_pod("x-1", conditions=[ready])
    world.operator = world.new_operator()
    world.live(2)
    assert world.images() == [last, "milvus:2"]
    world.live(62)
    assert world.images() == ["milvus:2", "milvus:2"]


# What the spec says: when the pods go.
MIN_READY = {
    "{}": [("x-2", 0), ("x-1", 12), ("x-0", 24)],
    "{type: RollingUpdate, minReadySeconds: 30}": [("x-2", 0), ("x-1", 32), ("x-0", 64)],
    "{minReadySeconds: 0}": [("x-2", 0), ("x-1", 2), ("x-0", 4)],
}


@pytest.mark.parametrize("strategy", MIN_READY)
def test_a_roll_goes_on_when_a_new_pod_has_been_ready_for_a_while(strategy: str) -> None:
    world = at_rest(milvus(replicas=3, updateStrategy=yaml.safe_load(strategy)))
    world.change("x", image="milvus:2")
    assert run_with_times(world, 100) == MIN_READY[strategy]


def test_an_image_that_dies_after_it_was_ready_takes_one_database() -> None:
    world = at_rest(milvus(replicas=4))
    world.change("x", image="bad")
    for _ in range(100):
        world.operator.run_pass()
        world.server.finish_deletions()
        for one in world.server.all_of("pods"):
            if one["status"]["phase"] == "Pending":
                ready_since(world, mo.name_of(one))
                dies_at = world.clock.now() + 8
            elif image_of(one) == "bad" and world.clock.now() > dies_at:
                world.server.set_pod(mo.name_of(one), containerStatuses=[CRASHES])
        world.clock.advance(1)
    assert world.images() == ["milvus:1"] * 3 + ["bad"]
    assert world.reason(kind="Ready") == "CrashLoopBackOff"


# By how many seconds the clocks of the nodes are wrong.
SKEW = [-3 * 3600, -30, -12, 0, 12, 30, 3 * 3600]


@pytest.mark.parametrize("skew", SKEW)
def test_clocks_that_are_wrong_stop_no_roll_and_cost_no_second_database(skew: int) -> None:
    world = at_rest(milvus(replicas=3))
    world.change("x", image="milvus:2")
    times = run_with_times(world, 60, skew)
    assert [name for name, _ in times] == ["x-2", "x-1", "x-0"]
    (_, first), (_, second), (_, third) = times
    assert second - first >= 11
    assert third - second >= 11


@pytest.mark.parametrize("operator_restarts", [False, True])
@pytest.mark.parametrize("was_silent", [False, True])
def test_a_kubelet_that_restarts_amid_a_roll_costs_no_database(
    was_silent: bool, operator_restarts: bool
) -> None:
    world = outdated(5)
    world.live(2)
    if was_silent:  # for longer than the node controller waits
        for ordinal in range(4):
            ready = [{"ready": True, "state": RUNS["state"]}]
            world.server.set_pod(f"x-{ordinal}", containerStatuses=ready)
        world.live(20)
    for ordinal in range(4):
        world.server.set_pod(f"x-{ordinal}", containerStatuses=[RUNS])
    if operator_restarts:
        world.operator = world.new_operator()
    world.live(11)
    assert deleted(world) == ["x-4"]
    for ordinal in range(4):
        world.server.set_pod(f"x-{ordinal}", ready=True)
    world.settle()
    assert deleted(world) == ["x-4", "x-3", "x-2", "x-1", "x-0"]


def test_outdated_pods_that_run_and_do_not_become_ready_are_all_replaced() -> None:
    world = outdated(3)
    for name in world.pods():
        world.server.set_pod(name, containerStatuses=[RUNS])
    world.live(12)
    assert deleted(world) == []
    world.live(2)
    assert sorted(deleted(world)) == ["x-0", "x-1", "x-2"]


def test_a_pod_that_was_not_ready_between_two_passes_begins_anew() -> None:
    world = at_rest(milvus(replicas=2))
    world.change("x", image="milvus:2")
    assert len(run_with_times(world, 9)) == 1
    ready_since(world, "x-1")  # it was killed, and came back
    assert len(run_with_times(world, 8)) == 0
    assert len(run_with_times(world, 8)) == 1


def test_two_managers_that_fight_over_an_image_restart_a_database_once_in_ten_seconds() -> None:
    world = at_rest(milvus(updateStrategy={"minReadySeconds": 0}))
    for second in range(60):
        world.change("x", image=f"milvus:{second % 2 + 1}")
        world.operator.run_pass()
        world.server.finish_deletions()
        world.server.run_pods()
        world.clock.advance(1)
    assert 4 <= len(deleted(world)) <= 6


def test_a_pod_that_dies_is_restarted_once_in_ten_seconds_whatever_the_spec() -> None:
    world = at_rest(milvus())
    for second in range(60):
        world.change("x", updateStrategy={"minReadySeconds": second})
        world.operator.run_pass()
        world.server.finish_deletions()
        world.server.run_pods()
        if world.pods():
            world.server.fail("x-0")
        world.clock.advance(1)
    assert 4 <= len(deleted(world)) <= 6
