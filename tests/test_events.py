"""The events of a Milvus tell its story, once."""

from __future__ import annotations

import milvus_operator as mo
from tests.lib.world import World, at_rest, milvus, pod


def test_events_tell_the_story() -> None:
    world = at_rest(milvus("x", replicas=2))
    for _ in range(2):
        world.remove("pods", "x-0")
        world.settle()
    world.change("x", replicas=1)
    world.settle()
    world.change("x", image="milvus:2")
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
        "NameConflict: pod x-1 already exists and has no controller, so the operator does not touch it: delete it "
        "(the operator retries within 5 minutes), or create the Milvus under another name"
    )
    assert world.events() == [
        "Created: created pods x-0, x-1",
        "Created: created pod x-0",
        "Created: created pod x-0",
        "Deleted: deleted pod x-1: spec.replicas is 1",
        "Deleted: deleted pod x-0 in order to replace it: outdated template",
        "Created: created pod x-0",
        "Deleted: deleted pod x-0 in order to replace it: Failed (Evicted)",
        "Created: created pod x-0",
        conflict,
        "Created: created pods x-1, x-2",
        "Reconciled: NameConflict no longer applies",
    ]
    assert "milvus test/x: NameConflict no longer applies" in world.log
    types = {event["type"] for event in world.server.all_of("events") if "Name" in event["reason"]}
    assert types == {"Warning"}


def test_an_event_is_about_its_milvus() -> None:
    world = at_rest(milvus("x"))
    (event,) = world.server.all_of("events")
    (x,) = world.server.all_of("milvuses")
    assert event["regarding"] == {
        "apiVersion": "zilliz.com/v1",
        "kind": "Milvus",
        "name": "x",
        "namespace": "test",
        "uid": x["metadata"]["uid"],
    }
    assert (event["type"], event["action"]) == ("Normal", "Reconcile")
    assert event["reportingController"] == f"zilliz.com/{mo.MANAGER}"


def test_a_restarted_operator_does_not_repeat_what_the_condition_says() -> None:
    text = "this is milvus spec"
    world = World(milvus("x", milvusSpec=text), milvus("bad", milvusSpec="proxy.port: 1"))
    for _ in range(3):
        world.passes(3)
        world.operator = world.new_operator()
    reasons = [event.partition(":")[0] for event in world.events()]
    assert sorted(reasons) == ["Created", "Invalid", "SpecIsText"]
    for said in ("x: SpecIsText", "bad: Invalid"):
        assert sum(f"milvus test/{said}" in line for line in world.log) == 1
    assert not any(text in line for line in (*world.log, *world.events()))


def test_nothing_is_said_of_a_milvus_that_is_gone() -> None:
    world = World(milvus("x"))
    world.passes()
    gone = lambda _: world.remove("milvuses", "x")  # noqa: E731
    world.server.when("patch", "milvuses/status", gone, times=1)
    world.passes(3)
    assert world.troubles == []
