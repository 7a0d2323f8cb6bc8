"""Writes that are rejected or fail: they back off, are reported, and delay nothing else."""

import gc
import tracemalloc
from typing import Any
from unittest.mock import Mock

import pytest
from kubernetes.client import ApiException
from urllib3 import HTTPResponse

import milvus_operator as mo
from tests.lib.front import Obj, Rejected, Request, http_response
from tests.lib.world import World, at_rest, metric, milvus, pod

WAITS = [1, 2, 4, 8, 16, 32, 60, 60, 60]
EXCEEDED = 'pods "x" is forbidden: exceeded quota: a'


@pytest.mark.parametrize(
    ("code", "reason", "why"),
    [
        (403, "NameConflict", "Forbidden"),  # a webhook may say words of ours
        (422, "Waiting", "Invalid"),
        (503, "", "APIError"),
        (500, "InternalError", "APIError"),
    ],
)
def test_what_fails_waits_ever_longer(code: int, reason: str, why: str) -> None:
    world = World(milvus(), interval=1)
    world.server.reject("create", "pods", code, "not now", reason)
    world.passes(300)
    assert world.times("create", "pods") == WAITS
    assert world.reason() == why
    assert (world.reason(kind="Stalled") == why) == (why != "APIError")
    assert world.warnings == ["milvus test/x: not now"]


def test_a_namespace_that_ends_for_however_long_is_no_failure() -> None:
    """A finalizer may hold it for hours."""
    words = 'pods "x-1" is forbidden: unable to create new content in namespace test'
    status = Rejected(403, "Forbidden", words).status
    status["details"] = {"causes": [{"reason": "NamespaceTerminating"}]}
    world = at_rest(milvus(replicas=2))
    world.server.when("create", "pods", lambda _: http_response(403, status))
    world.patch("pods", "x-0", finalizers=["a/hold"])
    for name in ("x-0", "x-1"):
        world.remove("pods", name)
    world.server.finish_deletions()
    world.run(300)
    ready = world.condition("x", "Ready")["message"]
    assert ready.endswith("x-0: it waits for its finalizers: a/hold")
    assert world.reason() == "NamespaceTerminating"
    assert world.condition("x", "Reconciled")["status"] == "True"
    assert world.message() == words
    assert world.warnings == []
    assert world.reason(kind="Stalled") == ""
    assert len(world.times("create", "pods")) < 14, "ever more rarely"


def test_a_write_that_times_out_is_told_once_with_what_may_be_the_cause() -> None:
    """The client library quotes the seconds with many digits, which differ each time."""
    world = World(milvus())
    world.hang("create", "pods")
    world.run(300)
    assert len(world.requests("create", "pods")) > 5
    advice = "perhaps an admission webhook is slow, or a load balancer has dropped the connection"
    assert world.warnings == [f"milvus test/x: Read timed out after 10 s: {advice}"]
    assert len(world.requests("patch", "milvuses/status")) <= 2


def test_many_pods_that_exceed_a_quota_keep_nothing_else_from_being_done() -> None:
    """One of them is always due; what comes after them must not wait until none is."""
    world = World(milvus(replicas=40))

    def exceed(request: Request) -> HTTPResponse | None:
        if len(world.pods()) < 20:
            return None
        status = Rejected(
            403, "Forbidden", f'pods "{request.name}" is forbidden: exceeded quota: a'
        )
        return http_response(403, status.status)

    world.server.when("create", "pods", exceed)
    world.run(30)
    assert world.names("create", "services") == ["x"]
    assert world.reason() == "QuotaExceeded"


@pytest.mark.parametrize("reason", ["Conflict", "NotFound"])
def test_a_create_that_is_out_of_date_for_ever_backs_off_and_is_quoted(reason: str) -> None:
    """As an admission webhook may say. The other pods go on, and what lasts is told."""
    world = World(milvus(replicas=3))
    rule = world.server.reject("create", "pods", 409, "the quota was modified", reason, name="x-1")
    world.run(300)
    assert world.pods() == ["x-0", "x-2"]
    assert 8 <= rule.hits <= 11, "after 1, 2, 4 … seconds, then once a minute"
    world.server.run_pods()
    world.passes(2)
    assert world.condition("x", "Ready")["message"].endswith("; x-1: the quota was modified")
    assert world.reason() == "Waiting"
    assert world.message() == "the quota was modified"
    assert len(world.warnings) == 1
    rule.times = 0
    world.clock.advance(60)
    world.settle()
    assert world.pods() == ["x-0", "x-1", "x-2"]
    assert world.reason() == "Reconciled"


@pytest.mark.parametrize(("verb", "resource"), [("create", "services"), ("delete", "pods")])
def test_a_conflict_that_lasts_is_told_whatever_it_is_about(verb: str, resource: str) -> None:
    world = World(milvus()) if verb == "create" else at_rest(milvus())
    world.server.reject(verb, resource, 409, "a webhook says no", "Conflict")
    world.change("x", replicas=0)
    world.run(25)
    assert world.reason() == "Reconciled"
    world.run(40)
    assert world.reason() == "Waiting"
    assert world.message() == "a webhook says no"


def test_after_a_write_without_an_answer_all_of_its_milvus_waits_and_no_other() -> None:
    """Otherwise its pods would hang one after another. A status that is written ends no wait."""
    world = World(milvus(replicas=9), milvus("y", replicas=2))
    rules = [world.hang("create", "pods", name=f"x-{number}") for number in range(9)]
    world.run(120)
    assert world.pods() == ["y-0", "y-1"]
    tries = sum(rule.hits for rule in rules)
    assert tries == 6, "each hangs for ten seconds, then 1, 2, 4, 8 and 16 are waited"
    assert world.reason() == "APIError"
    for rule in rules:
        rule.times = 0
    world.run(300)
    assert len(world.pods()) == 11


def test_what_always_hangs_holds_up_nothing_else_of_its_milvus() -> None:
    world = World(milvus(replicas=4))
    world.hang("create", "pods", name="x-1")
    world.run(300)
    assert world.pods() == ["x-0", "x-2", "x-3"]
    assert len(world.server.all_of("services")) == 1
    assert world.requests("get", "pods") == [], "that would hang, too"
    assert "timed out after 10 s" in world.message()
    world.server.run_pods()
    world.server.fail("x-3")
    world.run(100)
    assert "restarted" not in world.message()
    assert world.server.objects["pods", "test", "x-3"]["status"]["phase"] == "Pending"


def test_what_is_always_throttled_holds_up_nothing_else_of_its_milvus() -> None:
    world = World(milvus(replicas=4))
    world.server.reject("create", "pods", 429, "too many", "TooManyRequests", name="x-0")
    world.run(30)
    assert world.pods() == ["x-1", "x-2", "x-3"]


def test_of_two_that_hung_the_one_that_recovers_is_not_held_up_by_the_other() -> None:
    world = World(milvus(replicas=2))
    rules = [world.hang("create", "pods", name=f"x-{ordinal}") for ordinal in range(2)]
    world.run(60)
    assert world.pods() == []
    rules[1].times = 0
    world.run(180)
    assert world.pods() == ["x-1"]


def test_a_status_that_always_hangs_keeps_no_pod_down() -> None:
    world = at_rest(milvus())
    world.hang("patch", "milvuses/status")
    world.server.set_pod("x-0", ready=False)
    world.run(200)
    world.remove("pods", "x-0")
    world.run(12)
    assert world.pods() == ["x-0"]


def test_the_wait_after_a_write_without_an_answer_ends_with_the_next_answer() -> None:
    world = World(milvus())
    world.server.fault("create", "pods", "reset", times=6)
    world.run(200)
    assert world.times("create", "pods")[-1] >= 32
    world.forget()
    world.remove("pods", "x-0")
    world.server.fault("create", "pods", "reset", times=1)
    world.run(20)
    assert world.times("create", "pods")[0] < 6, "it starts anew"


def test_a_name_that_is_taken_by_nothing_is_not_asked_for_in_each_pass() -> None:
    world = World(milvus())
    rule = world.server.reject("create", "pods", 409, "already exists", "AlreadyExists")
    world.run(120)
    assert rule.hits < 12
    assert world.condition("x", "Ready")["message"].endswith("x-0: already exists")


@pytest.mark.parametrize("change", [{"replicas": 0}, {"image": "milvus:2"}])
def test_a_delete_that_is_answered_by_a_conflict_for_ever_backs_off(change: Obj) -> None:
    world = at_rest(milvus())
    rule = world.server.reject("delete", "pods", 409, "a webhook says no", "Conflict")
    world.change("x", **change)
    world.run(120)
    assert rule.hits < 12
    rule.times = 0
    world.clock.advance(60)
    world.settle()
    assert world.images() == (["milvus:2"] if "image" in change else [])


def test_a_dry_run_asks_once_about_what_is_answered_by_a_conflict() -> None:
    world = World(milvus())
    rule = world.server.reject("create", "pods", 409, "modified", "Conflict")
    world.operator = world.new_operator(dry_run=True)
    world.passes(20)
    assert rule.hits == 1


def test_a_refusal_is_an_answer_and_ends_the_wait_after_none() -> None:
    world = at_rest(milvus(replicas=2))
    outage = world.server.fault("create", "pods", "reset")
    world.remove("pods", "x-0")
    world.run(150)
    outage.times = 0
    world.server.reject("create", "pods", 403, "no", name="x-0")
    world.run(70)
    world.remove("pods", "x-1")
    world.server.fault("create", "pods", "reset", times=1, name="x-1")
    world.run(15)
    assert world.pods() == ["x-1"], "after a second, not after a minute"


def test_a_refusal_after_paced_successes_waits_one_second() -> None:
    world = at_rest(milvus())
    for _ in range(3):
        world.server.fail("x-0")
        world.settle()
        world.clock.advance(60)
    world.server.fail("x-0")
    world.server.reject("delete", "pods", 403, "no", times=1)
    world.forget()
    world.run(10)
    assert 1 <= world.times("delete", "pods")[0] <= 2


def test_a_server_that_asks_to_come_later_has_not_failed() -> None:
    world = World(milvus(replicas=3))
    rule = world.server.reject("create", "pods", 429, "too many requests", "TooManyRequests")
    world.run(25)
    assert world.reason() == "Reconciled"
    assert world.warnings == []
    assert world.condition("x", "Ready")["message"].endswith("too many requests")
    world.run(20)
    assert world.reason() == "Waiting", "it has lasted"
    assert len(world.warnings) == 1
    rule.times = 0
    world.run(60)
    assert len(world.pods()) == 3
    assert world.reason() == "Reconciled"


def test_a_webhook_that_fails_is_asked_once_in_a_pass() -> None:
    """It would fail for the other pods, too, perhaps after its timeout."""
    world = World(milvus(replicas=50))
    rule = world.server.reject("create", "pods", 500, "a webhook fails", "InternalError")
    world.passes(4)
    assert rule.hits == 4


def test_a_server_that_asks_to_come_later_is_left_alone_by_that_milvus() -> None:
    world = World(milvus(replicas=50))
    rule = world.server.reject("create", "pods", 429, "too many requests", "TooManyRequests")
    world.run(8)
    assert 3 <= rule.hits <= 5, "after 1, 2, 4 seconds, for all fifty pods"
    world.run(92)
    assert rule.hits <= 7, "like anything that fails"


def test_a_back_off_ends_on_time_however_long_the_pass_takes() -> None:
    """That of x-0 ends while x-1 is tried, and nothing else wakes the Milvus soon."""
    world = World(milvus(replicas=2), interval=9)
    server = world.server
    server.reject("create", "pods", 422, "never", name="x-0")
    server.delay("create", "pods", 5, name="x-1", times=1)
    server.reject("create", "pods", 422, "not now", name="x-1")
    world.passes()
    assert world.names("create", "pods") == ["x-0", "x-1"]
    world.operator.run_pass()
    assert world.names("create", "pods") == ["x-0", "x-1"] * 2


def test_a_back_off_that_ends_during_a_visit_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(milvus(replicas=2), interval=1)
    rule = world.server.reject("create", "pods", 422, "never", name="x-0")
    while rule.hits < 5:  # after 0, 1, 2, 4 and 8 seconds
        world.passes()
    tries = rule.hits
    world.clock.advance(14)
    world.patch("milvuses", "x", labels={"a": "b"})  # so that it is visited

    def slowly(_: str = "") -> str:
        world.clock.advance(2)
        return "now"

    with monkeypatch.context() as patch:
        patch.setattr(mo, "timestamp", slowly)
        world.operator.run_pass()
    assert rule.hits == tries, "it still backed off when the visit began"
    world.passes(5)
    assert rule.hits > tries


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
    assert world.reason() == "QuotaExceeded"


@pytest.mark.parametrize("reason", ["Forbidden", "QuotaExceeded", "Invalid", "NameConflict"])
def test_what_is_refused_is_stalled_after_half_a_minute_and_stays_so(reason: str) -> None:
    """What arrives a moment later in the same apply, such as the namespace's service account, is no
    failure. A restart of the operator, or another try, does not take it back."""
    world = World(milvus(), interval=1)
    words = {"QuotaExceeded": EXCEEDED}.get(reason, "no")
    rule = None
    if reason == "NameConflict":
        world.add(pod("x-0"))
    else:
        rule = world.server.reject("create", "pods", 422 if reason == "Invalid" else 403, words)
    world.run(25)
    assert world.reason() == reason
    assert world.reason(kind="Stalled") == ""
    world.run(20)
    assert world.reason(kind="Stalled") == reason
    world.operator = world.new_operator()
    for _ in range(70):
        world.passes()
        assert world.reason(kind="Stalled") == reason
    if rule:
        rule.times = 0
    else:
        world.remove("pods", "x-0")
    world.run(65)
    assert world.reason(kind="Stalled") == ""
    assert world.pods() == ["x-0"]


def test_once_does_not_wait_to_say_that_a_refusal_is_stalled() -> None:
    world = World(milvus())
    world.server.reject("create", "pods", 403, "no")
    assert not world.operator.run_once()
    assert world.reason(kind="Stalled") == "Forbidden"


def test_a_stale_status_is_written_in_the_next_pass_whatever_failed_before() -> None:
    world = at_rest(milvus())
    server = world.server
    server.reject("patch", "milvuses/status", 500, "not now", times=5)
    world.change("x", replicas=2)
    world.run(20)
    server.reject("patch", "milvuses/status", 409, "modified", "Conflict", times=1)
    world.run(40)
    assert world.status("x")["observedGeneration"] == 2
    before, after = world.times("patch", "milvuses/status")[4:6]
    assert before >= 16
    assert after <= 5


def test_an_unexpected_exception_backs_off_and_harms_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(milvus("x", replicas=2), milvus("y"))
    create = world.operator.api.create
    tries = 0

    def fail(resource: Any, obj: mo.Obj, **options: Any) -> None:
        nonlocal tries
        if obj["metadata"].get("name") == "x-1":
            tries += 1
            raise KeyError("hunter2")
        create(resource, obj, **options)

    monkeypatch.setattr(world.operator.api, "create", fail)
    world.run(100)
    assert world.pods() == ["x-0", "y-0"]
    assert tries == 4, "when x-0 is there, a second later, and after a minute"
    assert "milvus test/x: created pod x-0" in world.log
    lines = [line for line in world.warnings if "unexpected KeyError, please report" in line]
    assert len(lines) == 1
    assert not any("hunter2" in line for line in world.log)
    assert metric("milvuses", state="failed") == 1


def test_an_unexpected_exception_amid_a_roll_backs_off_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = at_rest(milvus(replicas=2))
    check = Mock(side_effect=KeyError)
    monkeypatch.setattr(world.operator.api, "check", check)
    world.change("x", image="milvus:2")
    world.run(100)
    assert check.call_count == 2


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
    for number in range(60):
        server.set_pod("x-0", ready=number % 2 == 1)
        world.live()
    assert world.pods() == ["x-0", "x-1"]
    waits = world.times("patch", "milvuses/status")
    assert len(waits) <= 12
    assert waits[-1] == 60
    told = "milvus test/x: the status update failed: denied by a webhook"
    assert world.warnings == [told]
    assert metric("milvuses", state="failed") == 1
    rule.times = 0
    world.clock.advance(300)
    world.settle()
    assert world.status("x")["observedGeneration"] == 2
    assert metric("milvuses", state="failed") == 0


@pytest.mark.parametrize(("code", "reason"), [(409, "Conflict"), (429, ""), (404, "NotFound")])
def test_a_status_that_can_never_be_written_is_told_once_even_if_that_should_pass(
    code: int, reason: str
) -> None:
    """For ever, it would say what is no longer so."""
    world = at_rest(milvus())
    rule = world.server.reject("patch", "milvuses/status", code, "a webhook says no", reason)
    world.server.set_pod("x-0", ready=False)
    world.run(25)
    assert world.warnings == []
    world.run(300)
    assert world.warnings == ["milvus test/x: the status update failed: a webhook says no"]
    assert metric("milvuses", state="failed") == 1
    assert rule.hits <= (80 if reason == "Conflict" else 12), "with a conflict, once in a pass"
    rule.times = 0
    world.run(60)
    assert world.reason(kind="Ready") == "NotReady"
    assert metric("milvuses", state="failed") == 0


def test_under_a_crd_without_a_status_pods_are_made_and_the_log_says_once_what_is_wrong() -> None:
    world = World(milvus("x"), milvus("bad", milvusSpec="proxy.port: 1"))
    world.server.reject("patch", "milvuses/status", 404, "not found", "NotFound")
    world.passes(100)
    assert world.pods() == ["x-0"]
    invalid, *others = world.warnings
    assert invalid.startswith("milvus test/bad: spec.milvusSpec, line 1: leave out proxy.port and")
    told = "the status update failed: not found"
    assert sorted(others) == [f"milvus test/{name}: {told}" for name in ("bad", "x")]
    assert len(world.requests("patch", "milvuses/status")) < 30
    world.remove("milvuses", "bad")
    assert world.new_operator().run_once(), "all that can be done"


@pytest.mark.parametrize("status", ["text", ["text"], 7, {"conditions": "text"}])
def test_an_odd_status_under_an_older_crd_harms_no_other(status: Any) -> None:
    world = World(milvus("y"))
    world.server.put("milvuses", world.add(milvus("x")) | {"status": status})
    world.passes(3)
    assert "y-0" in world.pods()
    assert world.reason("y", "Ready") == "Pending"
    assert not any("a pass failed" in line for line in world.log)


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


@pytest.mark.parametrize(
    "body", ['{"message": "no upstream", "details": "x"}', "[1]", "<html>", ""]
)
def test_a_gateways_error_has_any_body_and_is_no_answer(body: str) -> None:
    error = ApiException(status=503, reason="no upstream")
    error.body = body
    found = mo.rejection(error)
    assert found.failure is mo.Failure.LOST
    assert found.why == mo.Why("APIError", "no upstream")


def test_of_a_thousand_heavy_pods_none_is_made_before_it_is_sent() -> None:
    """Together, they would take hundreds of megabytes, and seconds."""
    settings = "".join(f"a.b{number}: 1\n" for number in range(300))
    world = World(milvus(replicas=1000, milvusSpec=settings))
    world.server.reject("create", "pods", 403, EXCEEDED)
    tracemalloc.start()
    world.passes(2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert world.reason() == "QuotaExceeded"
    assert peak < 20 << 20
