"""Writes that are refused or fail: they back off, are reported, and delay nothing else."""

from typing import Any

import pytest

import milvus_operator as mo
from tests.lib.front import Obj, Request
from tests.lib.server import merge
from tests.lib.world import World, at_rest, metric, milvus, pod

REFUSED = [10, 20, 40, 80, 160, 300, 300]
STALE = [1, 1, 1, 8, 16, 30, 30]  # at once, until it is a failure
FAILED = [1, 2, 4, 8, 16, 30, 30]
NO_RIGHT = 'pods is forbidden: User "x" cannot create resource "pods" in API group ""'
NO_EVENTS = 'events.events.k8s.io is forbidden: User "x" cannot create resource "events"'


# --- How long it waits ---
@pytest.mark.parametrize(
    ("code", "reason", "waits", "why"),
    [
        (400, "", REFUSED, "Invalid"),
        (403, "", REFUSED, "Forbidden"),
        (422, "", REFUSED, "Invalid"),
        (0, "", FAILED, "APIError"),
        (409, "", FAILED, "APIError"),
        (429, "", FAILED, "APIError"),
        (503, "", FAILED, "APIError"),
        (404, "NotFound", STALE, "APIError"),
        (409, "Conflict", STALE, "APIError"),
        (403, "NameConflict", REFUSED, "Forbidden"),  # our own words, from a webhook
        (422, "Pending", REFUSED, "Invalid"),
    ],
)
def test_what_fails_waits_ever_longer(code: int, reason: str, waits: list[float], why: str) -> None:
    """A webhook can answer with any code and reason."""
    world = World(milvus("x"), interval=waits[0])
    if code:
        world.server.refuse("create", "pods", code, "not now", reason)
    else:
        world.server.fault("create", "pods", "reset")
    bad = metric("passes_total", result="failure")
    world.passes(92)
    assert metric("passes_total", result="failure") == bad
    assert world.times("create", "pods") == waits
    assert world.reason() == why
    assert not code or world.message().endswith("not now")
    assert (world.condition("x", "Stalled") != {}) == (why in ("Invalid", "Forbidden"))
    assert len(world.troubles) == 1
    world.server.rules.clear()
    world.clock.advance(300)
    world.settle()
    assert world.reason() == "Reconciled"
    assert world.condition("x", "Stalled") == {}


def test_a_late_refusal_of_an_earlier_spec_is_not_told_of_the_corrected_one() -> None:
    world = World(milvus("x", image="bad"))
    with world.hanging("create", "pods"):
        world.server.refuse("create", "pods", 422, "the old spec is bad", times=1)
        world.passes()
        world.change("x", image="good")
    world.passes(2)
    assert world.images() == ["good"], "it does not wait"
    assert not any("the old spec is bad" in event for event in world.events())
    assert world.reason() == "Reconciled"


def test_a_back_off_ends_on_time_however_long_the_pass_takes() -> None:
    """That of x-0 ends while x-1 is tried, and nothing else wakes the Milvus soon."""
    world = World(milvus("x", replicas=2), interval=9, workers=1)
    world.server.refuse("create", "pods", 422, "never", name="x-0")
    slow = world.server.delay("create", "pods", 0, name="x-1")
    world.server.refuse("create", "pods", 500, "not now", "InternalError", name="x-1")
    world.passes()
    slow.do = lambda _: world.clock.advance(5)
    world.operator.run_pass()
    world.clock.advance(1)
    world.operator.run_pass()
    assert world.names("create", "pods") == ["x-0", "x-1", "x-1", "x-0"]


# --- It delays nothing else ---
def test_a_pod_that_is_gone_is_created_at_once_though_its_delete_was_refused() -> None:
    world = at_rest(milvus("x", replicas=2))
    world.server.refuse("delete", "pods", 403, "no", name="x-1")
    world.server.fail("x-1")
    world.passes(20)
    world.server.rules.clear()
    world.remove("pods", "x-1")
    world.passes()
    assert world.pods() == ["x-0", "x-1"]
    world.passes()
    assert world.reason() == "Reconciled"


def test_an_evicted_pod_is_replaced_though_many_others_are_refused() -> None:
    world = at_rest(milvus("x", replicas=60, storage={"size": "1Gi"}))
    for number in range(50):
        world.remove("pods", f"x-{number}")
        world.remove("persistentvolumeclaims", f"data-x-{number}")
    world.server.quota = {"persistentvolumeclaims": 10}
    world.server.fail("x-55")
    before = world.uid("x-55")
    world.run(10)
    assert world.uid("x-55") != before


# --- Quotas, permissions and other causes that all pods of a Milvus share ---
def test_a_quota_of_two_for_a_thousand_pods_costs_few_requests() -> None:
    world = World(milvus("x", replicas=1000))
    world.server.quota = {"pods": 2}
    world.passes(2)
    assert len(world.pods()) == 2
    assert world.reason() == world.reason(kind="Stalled") == "QuotaExceeded"
    world.server.quota = {}
    rule = world.server.refuse("create", "pods", 403, 'pods "x-2" is forbidden: exceeded quota: b')
    world.passes(20)
    assert rule.hits <= 20, "one try in a pass"
    world.server.rules.clear()
    world.change("x", replicas=6)
    world.settle()
    assert len(world.pods()) == 6


def test_passes_fail_and_one_line_says_so_while_a_permission_is_missing() -> None:
    world = World(*[milvus(name, replicas=8) for name in "abcde"])
    rule = world.server.refuse("create", "pods", 403, NO_RIGHT, "Forbidden")
    good, bad = metric("passes_total", result="success"), metric("passes_total", result="failure")
    world.passes(2)
    said = "not allowed to create pods in namespace test"
    told = [line for line in world.troubles if "milvus test/" not in line]
    assert told == [f"{said}: {NO_RIGHT} (see the role in deploy.yaml)"]
    assert metric("passes_total", result="success") == good
    assert metric("passes_total", result="failure") == bad + 2
    assert rule.hits <= 2 * 5, "one try for each Milvus in a pass"
    assert (world.message("a"), world.reason("a", "Stalled")) == (NO_RIGHT, "Forbidden")
    world.server.rules.clear()
    world.clock.advance(10)
    world.passes(2)
    assert f"resolved: {said}" in world.log
    assert len(world.pods()) == 40
    assert metric("passes_total", result="success") == good + 2


def test_a_permission_that_deletes_lack_delays_no_create() -> None:
    world = at_rest(milvus("x", replicas=3))
    world.server.refuse("delete", "pods", 403, NO_RIGHT.replace("create", "delete"), "Forbidden")
    world.remove("pods", "x-0")
    world.change("x", replicas=2)
    world.passes(2)
    assert world.pods() == ["x-0", "x-1", "x-2"]
    world.server.rules.clear()
    world.clock.advance(300)
    world.passes(2)
    assert world.reason() == "Reconciled"
    assert "resolved: not allowed to delete pods in namespace test" in world.log


@pytest.mark.parametrize("code", [403, 500])
def test_events_that_fail_are_no_failure_of_a_milvus(code: int) -> None:
    """The last ten are kept. Like any write, none begins once the operator stops."""
    said = "not allowed to create events in namespace test" if code == 403 else ""
    world = World(milvus("x", replicas=15))
    rule = world.server.refuse("create", "events", code, NO_EVENTS)
    world.settle()
    for number in range(20):
        world.patch("pods", "x-0", annotations={"number": str(number)})
        world.passes()
    assert rule.hits < 10, "they back off"
    assert [line.partition(": ")[0] for line in world.troubles] == [said] * bool(said)
    assert world.condition("x", "Ready")["status"] == "True"
    assert world.operator.run_once()
    for replicas in reversed(range(15)):
        world.change("x", replicas=replicas)
        world.passes(2)
    world.server.rules.clear()
    stop = lambda _: setattr(world.operator.cluster, "stopping", True)  # noqa: E731
    world.server.when("create", "events", stop)
    world.passes(60)
    assert len(world.events()) == 1
    world.operator.cluster.stopping = False
    world.server.rules.clear()
    world.passes(60)
    assert len(world.events()) == 10
    assert (f"resolved: {said}" in world.log) == bool(said)


def test_events_that_a_namespace_does_not_allow_are_its_own_outage_while_it_has_a_milvus() -> None:
    world = World(milvus("y", "b"), namespaces=["a", "b"], workers=1)
    world.server.refuse("create", "events", 403, NO_EVENTS, "Forbidden", namespace="b")
    world.passes(2)
    for number in range(3):
        world.add(milvus(f"x{number}", "a"))
        world.passes(60)
    assert len(world.events()) == 3
    assert not [line for line in world.log if "resolved" in line]
    assert len([line for line in world.troubles if "create events" in line]) == 1
    world.server.ask("delete", "milvuses", "y", namespace="b")
    world.passes()
    assert "resolved: not allowed to create events in namespace b" in world.log


# --- Admission ---
def test_a_webhook_that_denies_a_milvus_with_code_401_does_not_reject_the_credentials() -> None:
    world = World(milvus("x"), milvus("y"))
    denial = 'admission webhook "a.b" denied the request: no'
    world.server.refuse("create", "pods", 401, denial, name="x-0")
    good, bad = metric("passes_total", result="success"), metric("passes_total", result="failure")
    world.passes(4)
    assert world.pods() == ["y-0"]
    assert metric("passes_total", result="success") == good + 4
    assert metric("passes_total", result="failure") == bad
    assert world.troubles == [f"milvus test/x: {denial}"]


@pytest.mark.parametrize(
    "part",
    [
        {"ownerReferences": None},
        {"labels": {mo.MANAGED_BY_LABEL: "somebody"}},
        {"annotations": None},
        {"labels": None, "ownerReferences": None},
        {"labels": None, "annotations": None},
    ],
)
def test_a_pod_that_admission_changes_is_told_and_backs_off(part: Obj) -> None:
    def admit(request: Request) -> Any:
        request.body = merge(request.body, {"metadata": part})

    world = World(milvus("x"), interval=5)
    for verb in ("create", "patch"):
        world.server.when(verb, "pods", admit)
    world.passes(2)
    assert world.reason() == "Invalid"
    assert "a webhook or policy removes" in world.message()
    assert not world.operator.run_once()
    world.passes(120)
    asked = [one for one in world.writes() if one.plural == "pods"]
    assert len(asked) <= 16, "in ten minutes"
    assert [one for one in asked if one.verb == "delete"] == []
    assert world.reason() == world.reason(kind="Stalled") == "Invalid"


# --- Statuses ---
def test_a_status_that_one_webhook_refuses_is_a_failure_of_that_milvus_alone() -> None:
    world = at_rest(milvus("a"), milvus("b"))
    only = {"name": "a", "times": 2}
    world.server.refuse("patch", "milvuses/status", 409, "modified", "Conflict", **only)
    rule = world.server.refuse("patch", "milvuses/status", 403, "denied by a webhook", name="a")
    good = metric("passes_total", result="success")
    for name in "ab":
        world.change(name, replicas=2)
    for number in range(30):
        world.server.set_pod("a-0", ready=number % 2 == 1)
        world.live()
    assert world.status("b")["readyReplicas"] == 2
    assert len(world.pods()) == 4, "creates go on"
    told = "milvus test/a: the status update failed: denied by a webhook"
    assert world.troubles == [told]
    waits = world.times("patch", "milvuses/status")[-3:]
    assert waits == [10, 20, 40], "it backs off, though the pods change"
    assert metric("passes_total", result="success") == good + 30
    assert (metric("milvuses", state="failed"), metric("milvuses", state="ready")) == (1, 1)
    world.server.rules.remove(rule)
    world.passes()
    assert world.status("a")["observedGeneration"] == 1, "it waits for its back-off"
    world.change("a", replicas=1)
    world.settle()
    assert world.status("a")["observedGeneration"] == 3
    assert metric("milvuses", state="failed") == 0


# --- What goes away meanwhile is no failure ---
def test_a_milvus_that_changes_or_goes_while_its_status_is_written_is_no_failure() -> None:
    world = at_rest(milvus("x"))
    touch = lambda one: world.patch("milvuses", "x", labels={"at": str(one.time)})  # noqa: E731
    world.server.when("patch", "milvuses/status", touch)
    world.server.set_pod("x-0", ready=False)
    world.passes(2)
    world.server.when("patch", "milvuses/status", lambda _: world.remove("milvuses", "x"))
    world.passes(2)
    assert world.troubles == []


def test_a_pod_that_is_gone_meanwhile_is_no_failure() -> None:
    world = at_rest(milvus("x", replicas=2))
    gone = lambda one: world.remove("pods", one.name)  # noqa: E731
    world.server.when("delete", "pods", gone, times=1)
    world.change("x", replicas=1)
    world.settle()
    assert world.pods() == ["x-0"]
    world.add(pod("x-1"))
    world.server.when("get", "pods", gone, times=1)  # when the owner of the name is looked up
    world.change("x", replicas=2)
    world.settle()
    assert world.troubles == []
    assert world.condition("x", "Ready")["status"] == "True"


def test_a_milvus_that_is_being_deleted_gets_nothing_new_and_is_no_failure_any_more() -> None:
    world = at_rest(milvus("x", replicas=2))
    world.patch("milvuses", "x", finalizers=["test/hold"])
    world.remove("pods", "x-0")
    world.server.refuse("create", "pods", 403, NO_RIGHT, "Forbidden")
    world.passes()
    assert metric("milvuses", state="failed") == 1
    good, before = metric("passes_total", result="success"), world.writes()
    world.remove("milvuses", "x")
    world.passes(3)
    assert (world.pods(), world.writes()) == (["x-1"], before)
    assert metric("milvuses", state="failed") == 0
    assert metric("passes_total", result="success") == good + 3
    assert "resolved: not allowed to create pods in namespace test" in world.log
