"""The status of a Milvus says how it is, and its events tell its story, once."""

import random
from datetime import UTC, datetime

import pytest

import milvus_operator as mo
from tests.lib.front import Request, http_response
from tests.lib.world import Later, World, at_rest, metric, milvus, pod


def test_events_tell_the_story() -> None:
    world = at_rest(milvus("x", replicas=2))
    created = "Created: created pods x-0, x-1; created service x"
    assert world.events() == [created], "one for all"
    world.remove("pods", "x-0")
    world.settle()
    for change in ({"replicas": 1}, {"image": "milvus:2"}):
        world.change("x", **change)
        world.settle()
    world.server.fail("x-0")
    world.settle()
    world.add(pod("x-1"))
    world.change("x", replicas=3)
    world.settle()
    world.remove("pods", "x-1")
    world.clock.advance(60)
    world.settle()
    conflict = "pod x-1 already exists and has no controller, so the operator does not touch it"
    advice = f"if it is an orphan of this Milvus, give it the label {mo.selector_of(milvus())}"
    assert [event.partition("; if nobody")[0] for event in world.events()] == [
        created,
        "Created: created pod x-0",
        "Deleted: deleted pod x-1: spec.replicas is 1",
        "Deleted: deleted pod x-0: its template has changed",
        "Created: created pod x-0",
        "Deleted: deleted pod x-0: Evicted",
        "Created: created pod x-0",
        "Created: created pod x-2",
        f"NameConflict: {conflict}: {advice}",
        "Created: created pod x-1",
        "Reconciled: the operator can do what the spec asks; the condition Ready says how the pods are",
    ]
    warnings = [one for one in world.server.all_of("events") if one["type"] == "Warning"]
    assert [one["reason"] for one in warnings] == ["NameConflict"]


def test_a_pod_whose_reason_is_ready_does_not_make_its_milvus_so() -> None:
    """Whoever may write its status may write any word there."""
    world = at_rest(milvus())
    not_ready = {"type": "Ready", "status": "False", "reason": "Ready"}
    world.server.set_pod("x-0", conditions=[not_ready])
    world.passes(2)
    assert world.condition("x", "Ready")["status"] == "False"


def test_no_pod_is_of_a_template_that_is_invalid() -> None:
    """Or a script would take the update for done: with the image, somebody has broken the rest."""
    world = at_rest(milvus(replicas=2))
    world.change("x", image="milvus:2", milvusSpec="proxy.port: 1")
    world.passes(2)
    status = world.status("x")
    assert (status["replicas"], status["updatedReplicas"]) == (2, 0)


def test_what_others_write_into_a_status_stays_and_is_not_written_again_and_again() -> None:
    world = at_rest(milvus())
    status = {"status": {"lastBackup": "today"}}
    world.server.ask("patch", "milvuses/status", "x", status)
    world.passes(5)
    assert world.writes() == []
    assert world.status("x")["lastBackup"] == "today"


def test_a_restarted_operator_tells_and_writes_nothing_again() -> None:
    text = "this is milvus spec"
    world = World(milvus("x", milvusSpec=text), milvus("bad", milvusSpec="proxy.port: 1"))
    for _ in range(2):
        world.passes(3)
        world.operator = world.new_operator()
    before = world.writes()
    assert not world.operator.run_once()
    assert world.writes() == before
    reasons = [event.partition(":")[0] for event in world.events()]
    assert sorted(reasons) == ["Created", "Invalid", "SpecIsText"]
    statuses = sorted(world.names("patch", "milvuses/status"))
    assert statuses == ["bad", "x"], "one each, and only when the pods are made"
    assert sum("spec.milvusSpec" in line for line in world.log) == 3, "why --once has failed"
    assert not any(text in line for line in (*world.log, *world.events()))


def test_one_status_is_written_for_several_pods_even_if_its_response_is_lost() -> None:
    world = World(milvus("x", replicas=5))
    world.server.fault("patch", "milvuses/status", "reset", times=1, after=True)
    world.passes(4)
    assert world.names("patch", "milvuses/status") == ["x"]
    assert metric("milvuses", state="failed") == 0


def test_an_invalid_spec_changes_no_pod() -> None:
    world = at_rest(milvus("x", replicas=2))
    before = world.uids()
    world.change("x", image="milvus:2", milvusSpec="proxy.port: 1")
    world.settle()
    assert world.uids() == before
    assert world.reason(kind="Stalled") == "Invalid"
    assert world.status("x")["readyReplicas"] == 2
    assert not world.new_operator().run_once()
    world.change("x", milvusSpec=None)
    world.settle()
    assert world.images() == ["milvus:2"] * 2
    assert world.reason(kind="Stalled") == ""


def test_a_new_milvus_gets_neither_the_status_nor_the_problem_of_an_earlier_one() -> None:
    world = World(milvus("x", replicas=0, milvusSpec="proxy.port: 1"))

    def replace(_: Request) -> None:
        world.remove("milvuses", "x")
        world.add(milvus("x", replicas=0))

    world.server.when("patch", "milvuses/status", replace, times=1)
    world.passes()
    assert world.status("x") == {"observedGeneration": -1}
    world.forget()
    world.passes(2)
    assert world.warnings == []
    assert world.reason(kind="Ready") == "Ready"


# --- It keeps pace ---
def test_a_status_is_written_however_long_there_is_something_to_do() -> None:
    """A thousand pods that take a quarter of a second each are more than the time of a pass."""
    world = World(milvus(replicas=1000))
    world.server.delay("create", "pods", 0.25)
    world.run(25)
    assert world.status("x")["replicas"] >= 20
    world = World(milvus(replicas=50))
    for _ in range(20):
        world.passes()
        for name in world.pods():
            world.remove("pods", name)
    statuses = world.requests("patch", "milvuses/status")
    assert statuses, "even if something deletes all pods after each pass"


PAGE = b"<html>You have been redirected</html>"
# What something that is no API server may respond to a write with 200.
RESPONSES = [PAGE, b"", b"{}", b"[]", b'"ok"', b'{"kind": "List", "items": []}']


@pytest.mark.parametrize("response", [*RESPONSES, b'{"kind": "Milvus", "status": null}'])
def test_a_status_that_only_a_proxy_has_seen_is_written_again(response: bytes) -> None:
    world = World(milvus())
    fake = world.server.when(
        "patch", "milvuses/status", lambda _: http_response(200, response), times=2
    )
    world.run(60)
    assert fake.hits == 2
    assert world.status("x")["replicas"] == 1
    assert not any("unexpected" in line for line in world.log)


def test_a_status_that_was_written_is_looked_at_once_more() -> None:
    """Whatever responded, perhaps even with an object of that kind."""
    world = at_rest(milvus())
    old = world.server.objects["milvuses", "test", "x"]
    fake = world.server.when("patch", "milvuses/status", lambda _: http_response(200, old), times=3)
    world.server.set_pod("x-0", ready=False)
    world.run(20)
    assert fake.hits == 3
    assert world.reason(kind="Ready") == "NotReady"


@pytest.mark.parametrize("response", RESPONSES)
@pytest.mark.parametrize("verb", ["create", "delete", "patch"])
def test_a_write_that_only_a_proxy_has_seen_is_not_taken_for_done(
    verb: str, response: bytes
) -> None:
    world = World(milvus("x", replicas=2))
    if verb != "create":
        world.settle()
    world.server.when(verb, "pods", lambda _: http_response(200, response), times=1)
    if verb == "delete":
        world.change("x", replicas=1)
    if verb == "patch":
        world.patch("pods", "x-0", ownerReferences=None)
    world.run(30)
    assert not any("created pods x-0, x-1" in event for event in world.events()) or verb != "create"
    world.run(90)
    world.settle()
    assert world.pods() == (["x-0"] if verb == "delete" else ["x-0", "x-1"])
    assert all(mo.controller_of(pod) for pod in world.server.all_of("pods"))
    assert "the response did not come from a Kubernetes API server" in "".join(world.warnings)


def test_a_status_keeps_pace_with_a_spec_that_changes_in_each_pass() -> None:
    world = at_rest(milvus(replicas=3))
    for number in range(20):
        world.change("x", replicas=3 + number % 2)
        world.live()
    assert world.status("x")["observedGeneration"] > 10


def test_a_status_that_the_server_does_not_keep_backs_off_and_is_logged_once() -> None:
    """As under a CRD that does not know a field of it."""
    world = World(milvus())

    def drop(request: Request) -> None:
        del request.body["status"]["updatedReplicas"]

    world.server.when("patch", "milvuses/status", drop)
    world.run(120)
    assert len(world.requests("patch", "milvuses/status")) < 12
    (line,) = world.warnings
    assert "the status update failed: the API server has not kept it" in line
    assert not world.new_operator().run_once()


def test_a_status_that_could_not_be_written_is_no_failure_any_more_though_it_changes_again() -> (
    None
):
    world = at_rest(milvus(replicas=9))
    world.server.reject("patch", "milvuses/status", 500, "not now", times=2)
    for number in range(9):
        world.server.set_pod(f"x-{number}", ready=False)
        world.passes()
    assert world.status("x")["readyReplicas"] == 0
    assert metric("milvuses", state="failed") == 0


def test_two_who_write_the_same_status_do_not_fight_for_ever() -> None:
    world = at_rest(milvus())

    def overwrite(_: Request) -> None:
        world.server.ask("patch", "milvuses/status", "x", {"status": {"replicas": 7}})

    world.server.when("patch", "milvuses/status", overwrite, after=True)
    world.server.set_pod("x-0", ready=False)
    world.run(300)
    assert len(world.requests("patch", "milvuses/status")) < 25
    (line,) = world.warnings
    assert "perhaps something else writes it, too" in line


def test_a_condition_that_somebody_else_writes_makes_no_status_late() -> None:
    world = at_rest(milvus(replicas=9))

    def add_theirs(request: Request) -> None:
        ours = [one for one in world.status("x")["conditions"] if one["type"] != "Theirs"]
        theirs = {"type": "Theirs", "status": "True", "message": str(request.time)}
        status = {"status": {"conditions": [*ours, theirs]}}
        world.server.ask("patch", "milvuses/status", "x", status)

    world.server.when("patch", "milvuses/status", add_theirs, after=True)
    for number in range(9):
        world.server.set_pod(f"x-{number}", ready=False)
        world.passes()
        assert world.status("x")["readyReplicas"] == 8 - number
    assert world.warnings == []
    assert world.condition("x", "Theirs")


def test_a_milvus_that_is_often_touched_while_its_status_is_written_is_no_failure() -> None:
    world = at_rest(milvus())
    dice = random.Random(7)

    def touch(request: Request) -> None:
        if dice.random() < 0.7:
            world.patch("milvuses", "x", labels={"at": str(request.time)})

    world.server.when("patch", "milvuses/status", touch)
    for number in range(20):
        world.server.set_pod("x-0", ready=bool(number % 2))
        world.run(15)
        assert world.status("x")["readyReplicas"] == number % 2
    assert world.warnings == []


def test_an_event_has_the_time_at_which_it_happened() -> None:
    later = Later()
    world = World(milvus(), sender=later)
    world.passes(2)
    before = datetime.now(UTC)
    for task, event in later.tasks:
        task(event)
    (event,) = world.server.all_of("events")
    assert datetime.fromisoformat(event["eventTime"]) < before
