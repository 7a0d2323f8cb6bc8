"""The status of a Milvus says how it is, and its events tell its story, once."""

import milvus_operator as mo
from tests.lib.world import World, at_rest, metric, milvus, pod


def test_events_tell_the_story() -> None:
    world = at_rest(milvus("x", replicas=2))
    for _ in range(2):
        world.remove("pods", "x-0")
        world.settle()
    for change in ({"replicas": 1}, {"image": "milvus:2"}):
        world.change("x", **change)
        world.settle()
    world.server.fail("x-0")
    world.settle()
    world.add(pod("x-1"))
    world.change("x", replicas=2)
    world.settle()
    world.remove("pods", "x-1")
    world.change("x", replicas=3)
    world.settle()
    conflict = (
        "NameConflict: pod x-1 already exists and has no controller, so the operator does not touch it: "
        "delete it if nobody needs it, or create the Milvus under another name; a pod of this Milvus "
        f"should have the labels {mo.selector_text(milvus('x'))}"
    )
    assert world.events() == [
        "Created: created pods x-0, x-1",
        "Created: created pod x-0",
        "Created: created pod x-0",
        "Deleted: deleted pod x-1: spec.replicas is 1",
        "Deleted: deleted pod x-0: the template is outdated",
        "Created: created pod x-0",
        "Deleted: deleted pod x-0: Evicted",
        "Created: created pod x-0",
        conflict,
        "Created: created pods x-1, x-2",
        "Reconciled: the pods match the spec or are being brought in line with it",
    ]
    types = {event["type"] for event in world.server.all_of("events") if "Name" in event["reason"]}
    assert types == {"Warning"}


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
    for name in ("x", "bad"):
        assert sum(f"milvus test/{name}: spec.milvusSpec" in line for line in world.log) == 1
    assert not any(text in line for line in (*world.log, *world.events()))


def test_of_two_copies_one_writes_the_events() -> None:
    world = at_rest(milvus("x"))
    copies = [world.operator, world.new_operator(user="copy")]
    for text in (None, "proxy.port: 1", None):
        world.change("x", milvusSpec=text)
        for world.operator in (*copies, *copies):
            world.passes()
    told = [event.partition(":")[0] for event in world.events()]
    assert told == ["Created", "Invalid", "Reconciled"]


def test_a_problem_of_a_spec_that_has_been_corrected_meanwhile_is_not_told() -> None:
    world = World(milvus("x", milvusSpec="proxy.port: 1"))
    correct = lambda _: world.change("x", milvusSpec=None)  # noqa: E731
    world.server.when("patch", "milvuses/status", correct, times=1)
    world.settle()
    assert world.troubles == []
    assert world.condition("x", "Ready")["status"] == "True"


def test_one_status_is_written_for_what_is_done_at_once_even_if_its_answer_is_lost() -> None:
    world = World(milvus("x", replicas=5))
    world.server.fault("patch", "milvuses/status", "reset", times=1, after=True)
    world.passes(4)
    assert len(world.requests("patch", "milvuses/status")) == 1
    assert metric("milvuses", state="failed") == 0


def test_an_invalid_spec_changes_no_pod() -> None:
    world = at_rest(milvus("x", replicas=2))
    before = world.uids()
    world.change("x", image="milvus:2", milvusSpec="proxy.port: 1")
    world.settle()
    assert world.uids() == before
    assert (world.reason(kind="Stalled"), world.status("x")["readyReplicas"]) == ("Invalid", 2)
    assert not world.operator.run_once()
    world.change("x", milvusSpec=None)
    world.settle()
    assert (world.images(), world.condition("x", "Stalled")) == (["milvus:2"] * 2, {})


def test_a_new_milvus_does_not_get_the_status_of_an_earlier_one() -> None:
    world = World(milvus("x", replicas=0))

    def replace(_: object) -> None:
        world.remove("milvuses", "x")
        world.add(milvus("x", replicas=0, image="new"))

    world.server.when("patch", "milvuses/status", replace, times=1)
    world.passes()
    assert world.status("x") == {"observedGeneration": -1}
    world.passes()
    assert world.condition("x", "Ready")["status"] == "True"
