"""The status of a Milvus says how it is, and its events tell its story, once."""

import milvus_operator as mo
from tests.lib.front import Request
from tests.lib.world import World, at_rest, metric, milvus, pod


def test_events_tell_the_story() -> None:
    world = at_rest(milvus("x", replicas=2))
    assert world.events() == ["Created: created pods x-0, x-1", "Created: created service x"]
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
        "Created: created pods x-0, x-1",
        "Created: created service x",
        "Created: created pod x-0",
        "Deleted: deleted pod x-1: spec.replicas is 1",
        "Deleted: deleted pod x-0: the template is outdated",
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
    assert sorted(reasons) == ["Created", "Created", "Invalid", "SpecIsText"]
    statuses = sorted(world.names("patch", "milvuses/status"))
    assert statuses == ["bad", "x"], "one each, and only when the pods are made"
    assert sum("spec.milvusSpec" in line for line in world.log) == 2
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
