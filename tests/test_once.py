"""`--once` and `--dry-run`: everything that can be done now, or only what would be done."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.lib.world import World, at_rest, milvus, pod

STORED = {"size": "1Gi"}
NOW = "2999-01-01T00:00:00Z"  # as a clock says that is ahead
LONG_AGO = "2026-01-01T00:00:00Z"


def test_once_retries_conflicts_but_not_forever() -> None:
    """As about a quota, which many creates change at the same time."""
    world = World(milvus(replicas=30))
    world.server.reject("create", "pods", 409, "modified", "Conflict", times=31)
    assert world.operator.run_once()
    assert len(world.pods()) == 30
    assert world.status("x")["replicas"] == 30
    world.remove("pods", "x-1")
    world.server.reject("create", "pods", 409, "modified", "Conflict")
    assert not world.new_operator().run_once()
    assert len(world.pods()) == 29


def test_once_retries_a_conflict_about_the_status() -> None:
    """Somebody has labelled the Milvus meanwhile."""
    world = World(milvus())
    world.server.reject("patch", "milvuses/status", 409, "modified", "Conflict", times=1)
    assert world.operator.run_once()
    assert world.status("x")["replicas"] == 1


def test_once_fails_and_says_why_if_the_status_is_throttled() -> None:
    world = World(milvus())
    world.server.reject("patch", "milvuses/status", 429, "later")
    assert not world.operator.run_once()
    assert world.warnings == ["milvus test/x: the status update failed: later"]


def test_once_that_fails_says_why_though_an_earlier_run_has_said_so() -> None:
    world = World(milvus(), pod("x-0"))
    assert not world.operator.run_once()
    said = world.warnings[-1]
    assert said.startswith("milvus test/x: pod x-0 already exists and has no controller")
    events = world.events()
    world.forget()
    assert not world.new_operator().run_once()
    assert world.warnings == [said]
    assert world.events() == events, "but no event for each run"


def test_once_replaces_adopts_and_deletes_but_neither_waits_nor_finishes_a_roll() -> None:
    y = milvus("y", replicas=2)
    world = at_rest(milvus(replicas=3), y)
    world.server.fail("x-0")
    world.patch("pods", "x-1", ownerReferences=None)
    world.change("x", replicas=2)
    world.change("y", image="milvus:2")
    start = world.clock.now()
    assert world.operator.run_once()
    deleted = world.names("delete", "pods")
    assert sorted(deleted) == ["x-0", "x-2", "y-1"]
    assert world.names("patch", "pods") == ["x-1"]
    assert world.clock.now() == start
    assert world.status("x")["pods"] == ["x-0", "x-1"]
    assert world.status("y")["pods"] == ["y-0"]


def test_runs_of_once_finish_a_roll_if_nobody_says_since_when_pods_are_ready() -> None:
    world = at_rest(milvus(replicas=2))
    world.change("x", image="milvus:2")
    for _ in range(4):
        assert world.new_operator().run_once()
        world.server.finish_deletions()
        world.server.run_pods()
    assert world.images() == ["milvus:2"] * 2


def test_runs_of_once_go_on_with_a_roll_by_the_time_of_the_kubelet() -> None:
    """Such as a CronJob's, each in a process of its own."""
    world = at_rest(milvus(replicas=3))
    world.change("x", image="milvus:2")
    for since, images in (
        (NOW, ["milvus:1", "milvus:1", "milvus:2"]),
        (LONG_AGO, ["milvus:2"] * 3),
    ):
        for _ in range(6):
            assert world.new_operator().run_once()
            world.server.finish_deletions()
            for name in world.pods():
                ready = {"type": "Ready", "status": "True", "lastTransitionTime": since}
                world.server.set_pod(name, conditions=[ready])
        assert world.images() == images


@pytest.mark.parametrize(
    ("verb", "resource", "code"),
    [
        ("delete", "pods", 422),
        ("patch", "milvuses/status", 500),
        ("list", "persistentvolumeclaims", 500),
    ],
)
def test_once_fails_when_a_milvus_or_a_list_does(verb: str, resource: str, code: int) -> None:
    stored = milvus(replicas=2, storage=STORED)
    world = at_rest(stored, milvus("y"))
    world.change("x", replicas=3)
    world.change("y", replicas=0)
    world.server.reject(verb, resource, code, "not now")
    for _ in range(2):
        assert not world.operator.run_once()
        assert not world.new_operator().run_once()
    assert ("x-2" in world.pods()) == (verb != "list")
    world.server.rules.clear()
    assert world.new_operator().run_once()
    assert "x-2" in world.pods()


def test_once_goes_on_beside_what_fails_and_then_fails() -> None:
    """It retries none, though each try may take as long as the first back-off."""
    world = World(milvus(replicas=9))
    server = world.server
    server.delay("create", "pods", 10)
    server.reject("create", "pods", 500, "no", "InternalError", name="x-0")
    for number in range(1, 8):
        server.reject("create", "pods", 504, "no response", name=f"x-{number}")
    assert not world.operator.run_once()
    assert world.names("create", "pods") == [f"x-{number}" for number in range(9)]
    assert world.pods() == ["x-8"]
    assert world.message() == "no"


def test_once_waits_for_its_events() -> None:
    world = World(milvus(), sender=ThreadPoolExecutor(1))
    world.server.when("create", "events", lambda _: time.sleep(0.2))
    assert world.operator.run_once()
    assert world.events() == ["Created: created pod x-0; created service x"]


def test_once_goes_on_after_a_write_without_an_answer() -> None:
    """What follows from the first pass is done in the second."""
    world = at_rest(milvus(replicas=2))
    world.remove("pods", "x-1")
    world.server.fail("x-0")
    world.server.reject("create", "pods", 504, "no response", name="x-1")
    assert not world.new_operator().run_once()
    assert world.pods() == ["x-0"], "it has been replaced"
    assert world.names("delete", "pods") == ["x-0"]


def test_once_creates_a_pod_once_though_something_deletes_each_new_one() -> None:
    world = World(milvus(replicas=2))
    world.server.when("create", "pods", lambda one: world.remove("pods", one.name), after=True)
    assert world.operator.run_once(), "it has done what it can"
    assert world.names("create", "pods") == ["x-0", "x-1"]
    assert world.reason(kind="Ready") == "Creating"


def test_a_dry_run_writes_nothing_and_says_once_what_would_be_done_however_long_it_takes() -> None:
    z = milvus("z", replicas=2)
    world = at_rest(milvus(replicas=3), z)
    server = world.server
    world.add(milvus("y", replicas=3, storage=STORED))
    world.change("x", replicas=1, image="milvus:2")
    server.fail("z-0")
    server.delay("delete", "pods", 100)
    server.reject("create", "pods", 422, "no", name="y-0")
    before = dict(server.objects)
    world.operator = world.new_operator(dry_run=True)
    world.forget()
    assert not world.operator.run_once()
    world.passes(10)
    assert server.objects == before
    assert all(request.dry_run for request in world.writes())
    for note in (
        "y: created claims data-y-1, data-y-2",
        "y: created pods y-1, y-2",
        "x: deleted pods x-1, x-2: spec.replicas is 1",
        "z: deleted pod z-0: Evicted",
    ):
        assert world.log.count(f"milvus test/{note} (dry run)") == 1
