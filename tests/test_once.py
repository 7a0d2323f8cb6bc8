"""`--once` and `--dry-run`: everything that can be done now, or only what would be done."""

import threading
import time
from unittest.mock import Mock

import pytest

import milvus_operator as mo
from tests.lib.front import ERRORS, Obj, Request
from tests.lib.world import World, at_rest, milvus

STORED: Obj = {"storage": {"size": "1Gi"}}


@pytest.mark.parametrize(("times", "created"), [(2, 30), (99, 29)])
def test_once_retries_conflicts_but_not_forever(times: int, created: int) -> None:
    """As about a quota, which many creates change at the same time."""
    world = World(milvus("x", replicas=30))
    world.server.refuse("create", "pods", 409, "modified", "Conflict", times=30)
    world.server.refuse("create", "pods", 409, "modified", "Conflict", name="x-1", times=times)
    assert world.operator.run_once() == (created == 30)
    assert len(world.pods()) == world.status("x")["replicas"] == created
    assert world.names("create", "pods").count("x-1") <= 4
    assert created == 30 or world.message() == "modified"


def test_once_replaces_adopts_and_deletes_but_neither_waits_nor_finishes_a_roll() -> None:
    world = at_rest(milvus("x", replicas=3), milvus("y", replicas=2))
    world.server.fail("x-0")
    world.patch("pods", "x-1", ownerReferences=None)
    world.change("x", replicas=2)
    world.change("y", image="milvus:2")
    before, start = world.uids(), world.clock.now()
    assert world.operator.run_once()
    assert sorted(world.names("delete", "pods")) == ["x-0", "x-2", "y-1"]
    assert world.clock.now() == start
    assert world.uid("x-1") == before["x-1"]
    assert world.uid("x-0") != before["x-0"]
    assert world.status("x")["pods"] == ["x-0", "x-1"]
    assert world.condition("y", "Ready")["status"] == "False"


@pytest.mark.parametrize(
    ("verb", "resource", "code"),
    [
        ("create", "pods", 403),
        ("delete", "pods", 422),
        ("patch", "milvuses/status", 500),
        ("create", "persistentvolumeclaims", 500),
        ("list", "persistentvolumeclaims", 500),
        ("list", "pods", 500),
    ],
)
def test_once_fails_when_a_milvus_or_a_list_does(verb: str, resource: str, code: int) -> None:
    world = at_rest(milvus("x", replicas=2, **STORED), milvus("y", replicas=1))
    for name, replicas in (("x", 3), ("y", 0)):
        world.change(name, replicas=replicas)
    world.server.refuse(verb, resource, code, "not now")
    for _ in range(2):
        assert not world.operator.run_once()
        assert not world.new_operator().run_once()
    world.server.rules.clear()
    assert world.new_operator().run_once()
    assert [name for name in world.pods() if "x" in name] == ["x-0", "x-1", "x-2"]


def test_once_fails_if_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.passes()
    world.add(milvus("x"))
    failing = Mock(side_effect=RuntimeError("can't start new thread"))
    monkeypatch.setattr(threading.Thread, "start", failing)
    assert not world.operator.run_once()


@pytest.mark.parametrize(("dry_run", "seconds"), [(False, 0), (False, 10), (True, 0)])
def test_once_goes_on_beside_what_fails_and_then_fails(dry_run: bool, seconds: float) -> None:
    """It retries none, though each try may take as long as the first back-off."""
    world = World(milvus("x", replicas=12), dry_run=dry_run)
    world.server.delay("create", "pods", seconds)
    code, reason, told = (500, "InternalError", "APIError") if seconds else (422, "", "Invalid")
    for number in range(10):
        world.server.refuse("create", "pods", code, "no", reason, name=f"x-{number}")
    assert not world.operator.run_once()
    assert dry_run or world.reason() == told
    assert world.names("create", "pods") == [f"x-{number}" for number in range(12)]
    assert world.pods() == ([] if dry_run else ["x-10", "x-11"])
    assert (world.status("x") == {"observedGeneration": -1}) == dry_run


def test_once_makes_as_many_passes_as_it_takes() -> None:
    world = World(milvus("x", replicas=12), interval=1, workers=1)
    world.server.quota = {"pods": 11}
    world.server.delay("create", "pods", 1)
    assert not world.operator.run_once()
    assert len(world.requests("list", "pods")) >= 3
    assert len(world.pods()) == 11
    assert world.reason() == "QuotaExceeded"


def test_once_fails_if_a_create_times_out_only_in_a_later_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mo, "MIN_ACTING", 0.2)
    world = World(milvus("x"), interval=0.3)
    started = time.monotonic()
    world.operator.clock = world.operator.cluster.clock = lambda: time.monotonic() - started

    def hang(request: Request) -> None:
        time.sleep(1.5)
        raise ERRORS["timeout"]()

    world.server.when("create", "pods", hang)
    assert not world.operator.run_once()
    assert world.reason() == "APIError"


def test_in_a_burst_that_takes_several_passes_pods_come_before_statuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those first whose visit was cut off while a request was in progress."""
    monkeypatch.setattr(mo, "MIN_ACTING", 0.22)
    world = World(*(milvus(name, replicas=4) for name in "abc"), workers=1)
    world.operator.clock = world.operator.cluster.clock = time.monotonic
    world.server.when("create", "pods", lambda request: time.sleep(0.05))
    assert world.operator.run_once()
    assert len(world.requests("list", "pods")) > 3
    plurals = [request.plural for request in world.writes()]
    assert plurals.index("milvuses") == 12
    assert "pods" not in plurals[12:]


# --- Dry runs ---
def test_a_dry_run_writes_nothing_and_says_once_what_would_be_done_however_long_it_takes() -> None:
    world = at_rest(milvus("x", replicas=3), milvus("z"), workers=1)
    world.add(milvus("y", replicas=50, **STORED))
    world.change("x", replicas=2, image="milvus:2")
    world.server.fail("z-0")
    world.server.delay("delete", "pods", 100)
    before = dict(world.server.objects)
    world.operator = world.new_operator(dry_run=True)
    world.forget()
    assert world.operator.run_once()
    world.passes(10)
    assert world.server.objects == before
    assert world.writes()
    assert all(request.dry_run for request in world.writes())
    for line in (
        f"milvus test/y: created claims {', '.join(f'data-y-{n}' for n in range(50))} (dry run)",
        f"milvus test/y: created pods {', '.join(f'y-{n}' for n in range(50))} (dry run)",
        "milvus test/x: deleted pod x-2: spec.replicas is 2 (dry run)",
        "milvus test/z: deleted pod z-0: Evicted (dry run)",
    ):
        assert world.log.count(line) == 1
    world.change("y", replicas=51)
    world.passes(5)
    assert any("y-50 (dry run)" in line for line in world.log)


def test_once_fails_if_the_configuration_cannot_be_loaded() -> None:
    world = World(milvus("x"))
    world.operator.cluster.hook = Mock(side_effect=OSError("no token"))
    assert not world.operator.run_once()
    assert world.troubles == ["the configuration cannot be loaded: no token"]
