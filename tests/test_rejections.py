"""Writes that are rejected or fail: they back off, are reported, and delay nothing else."""

import gc

import pytest

from tests.lib.front import Request
from tests.lib.server import merge
from tests.lib.world import World, at_rest, metric, milvus, pod

REJECTED = [10, 20, 40, 80, 160, 300]
FAILED = [1, 2, 4, 8, 16, 30]
STALE = [1, 1, 1, 8, 16, 30]  # immediately, until it is a failure
EXCEEDED = 'pods "x" is forbidden: exceeded quota: a'


@pytest.mark.parametrize(
    ("code", "reason", "waits", "why"),
    [
        (403, "NameConflict", REJECTED, "Forbidden"),  # a webhook may say words of ours
        (422, "Pending", REJECTED, "Invalid"),
        (503, "", FAILED, "APIError"),
        (404, "NotFound", STALE, "APIError"),
        (409, "Conflict", STALE, "APIError"),
    ],
)
def test_what_fails_waits_ever_longer(code: int, reason: str, waits: list[int], why: str) -> None:
    world = World(milvus(), interval=waits[0])
    world.server.reject("create", "pods", code, "not now", reason)
    world.passes(92)
    assert world.times("create", "pods")[:6] == waits
    assert world.reason() == why
    assert (world.reason(kind="Stalled") == why) == (waits == REJECTED)
    assert world.warnings == ["milvus test/x: not now"]


def test_a_back_off_ends_on_time_however_long_the_pass_takes() -> None:
    """That of x-0 ends while x-1 is tried, and nothing else wakes the Milvus soon."""
    world = World(milvus(replicas=2), interval=9, workers=1)
    server = world.server
    slow = server.delay("create", "pods", 5, name="x-1", times=0)
    server.reject("create", "pods", 422, "never", name="x-0")
    server.reject("create", "pods", 500, "not now", "InternalError", name="x-1")
    world.passes()
    slow.times = 1
    world.operator.run_pass()
    world.clock.advance(1)
    world.operator.run_pass()
    tried = world.names("create", "pods")
    assert tried == ["x-0", "x-1", "x-1", "x-0"]


def test_a_quota_is_met_once_in_a_pass_and_delays_nothing_else() -> None:
    """It would reject all other pods, too."""
    world = at_rest(milvus(replicas=5))
    server = world.server
    rule = server.reject("create", "pods", 403, EXCEEDED)
    world.change("x", replicas=1000)
    for name in ("x-0", "x-1", "x-2"):
        world.remove("pods", name)
    server.fail("x-4")
    world.passes()
    assert world.names("delete", "pods") == ["x-4"]
    world.passes(3)
    assert rule.hits == 4
    assert world.reason(kind="Stalled") == "QuotaExceeded"


@pytest.mark.parametrize("part", ["ownerReferences", "labels", "annotations"])
def test_a_pod_that_admission_changes_is_told_and_backs_off(part: str) -> None:
    """It is not deleted and created in a circle."""

    def admit(request: Request) -> None:
        removed = {"metadata": {part: None}}
        request.body = merge(request.body, removed)

    world = World(milvus())
    world.server.when("*", "pods", admit)
    world.passes(2)
    assert "admission removes" in world.message()
    assert not world.operator.run_once()
    world.passes(120)
    tries = [one for one in world.writes() if one.plural == "pods"]
    assert len(tries) <= 16
    assert world.names("delete", "pods") == []
    assert world.reason(kind="Stalled") == "Invalid"


def test_a_pod_that_admission_changes_except_in_dry_runs_is_replaced_ever_more_rarely() -> None:
    def admit(request: Request) -> None:
        if not request.dry_run:
            request.body = merge(request.body, {"metadata": {"annotations": None}})

    world = World(milvus())
    world.server.when("create", "pods", admit)
    world.live(100)
    assert len(world.names("delete", "pods")) < 10


def test_what_is_rejected_takes_no_memory_until_it_is_tried_again() -> None:
    world = World(milvus(replicas=20, image="rejected"))
    world.server.reject("create", "pods", 403, "no")
    world.passes(2)
    world.forget()
    gc.collect()
    dicts = [one for one in gc.get_objects() if isinstance(one, dict)]
    assert not [one for one in dicts if one.get("image") == "rejected" and "env" in one]


def test_a_rejection_that_is_over_does_not_hide_who_has_the_name() -> None:
    world = World(milvus())
    world.server.reject("create", "pods", 400, "not at night", times=1)
    world.passes()
    world.add(pod("x-0"))
    world.passes(15)
    assert world.reason() == "NameConflict"


def test_a_status_that_cannot_be_written_backs_off_and_is_a_problem_of_that_milvus() -> None:
    world = at_rest(milvus())
    server = world.server
    server.reject("patch", "milvuses/status", 409, "modified", "Conflict", times=2)
    rule = server.reject("patch", "milvuses/status", 403, "denied by a webhook")
    world.change("x", replicas=2)
    for number in range(30):
        server.set_pod("x-0", ready=number % 2 == 1)
        world.live()
    assert world.pods() == ["x-0", "x-1"]
    waits = world.times("patch", "milvuses/status")
    assert waits[-3:] == [10, 20, 40]
    told = "milvus test/x: the status update failed: denied by a webhook"
    assert world.warnings == [told]
    assert metric("milvuses", state="failed") == 1
    rule.times = 0
    world.clock.advance(80)
    world.settle()
    assert world.status("x")["observedGeneration"] == 2
    assert metric("milvuses", state="failed") == 0


def test_what_changes_or_goes_while_it_is_written_to_is_no_failure() -> None:
    world = at_rest(milvus(replicas=2))

    def touch(request: Request) -> None:
        at = str(request.time)
        world.patch("milvuses", "x", labels={"at": at})

    def remove(request: Request) -> None:
        world.remove(request.plural, request.name)

    server = world.server
    server.when("patch", "milvuses/status", touch, times=2)
    server.when("delete", "pods", remove, times=1)
    server.when("get", "pods", remove, times=1)  # when its owner is looked up
    world.add(pod("x-2"))
    world.change("x", replicas=3, image="milvus:2")
    world.settle()
    assert world.reason(kind="Ready") == "Ready"
    server.when("patch", "milvuses/status", remove)
    server.set_pod("x-0", ready=False)
    world.passes(2)
    assert world.warnings == []
