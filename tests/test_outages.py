"""Troubles of the operator itself: one line when each begins, one when it ends, and never a stop."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest

import milvus_operator as mo
from tests.lib.front import Obj
from tests.lib.world import World, at_rest, metric, milvus

RIGHT = 'User "x" cannot list resource "pods" in API group "" in the namespace "y"'


@pytest.mark.parametrize(
    ("resource", "code", "message", "line"),
    [
        ("pods", 0, "", "requests to http://memory fail: "),
        ("pods", 401, "", "http://memory rejects the credentials: log in again"),
        ("pods", 403, f"pods is forbidden: {RIGHT}", "not allowed to list pods in namespace test:"),
        ("milvuses", 404, "no", "cannot list milvuses in namespace test: no (install the CRD with"),
        ("milvuses", 500, "no", "cannot list milvuses in namespace test: no"),
    ],
)
def test_a_failed_list_is_one_clear_line(resource: str, code: int, message: str, line: str) -> None:
    world = at_rest(milvus("x"))
    good, bad = metric("passes_total", result="success"), metric("passes_total", result="failure")
    if code:
        world.server.refuse("list", resource, code, message)
    else:  # in other words each time
        world.server.fault("list", resource, "unreachable", times=2)
        world.server.fault("list", resource, "timeout")
    world.change("x", replicas=3)
    world.passes(5)
    (told,) = world.troubles
    assert told.startswith(line)
    assert metric("passes_total", result="success") == good
    assert metric("passes_total", result="failure") == bad + 5
    world.server.rules.clear()
    world.passes()
    assert f"resolved: {told.partition(': ')[0]}" in world.log
    assert metric("passes_total", result="success") == good + 1
    assert len(world.pods()) == 3


@pytest.mark.parametrize(("verb", "resource"), [("create", "events"), ("patch", "milvuses/status")])
def test_a_changed_spec_does_not_end_a_missing_permission(verb: str, resource: str) -> None:
    world = World(milvus("x"))
    right = f'User "u" cannot {verb} resource "{resource}" in API group'
    world.server.refuse(verb, resource, 403, f"it is forbidden: {right}")
    world.passes(3)
    good = metric("passes_total", result="success")
    for replicas in (2, 3):
        world.change("x", replicas=replicas)
        world.live(3)
    assert not any("resolved" in line for line in world.log)
    assert len(world.troubles) == 1
    assert metric("passes_total", result="success") == good


def test_while_nothing_can_be_listed_it_waits_longer_and_longer() -> None:
    world = World(interval=5)
    rule = world.server.refuse("list", "*", 500, "not now")
    world.run(200)
    waits = world.times("list", "pods")
    for wait, most in zip(waits, [1, 2, 4, 8, 16, *[30] * 20], strict=False):
        assert most / 2 <= round(wait, 3) <= most
    assert len({*waits[5:]}) > 1, "with jitter"
    world.server.rules.remove(rule)
    world.run(20)
    assert world.run(10) == [0, 5], "then for its interval again"


def test_the_other_namespaces_are_served_as_ever_while_one_cannot_be_listed() -> None:
    several = [milvus("x", "bad"), milvus("y", "good"), milvus("z", "other")]
    world = World(*several, namespaces=["bad", "good"], interval=5)
    world.server.refuse("list", "pods", 403, f"pods is forbidden: {RIGHT}", namespace="bad")
    world.run(200)
    assert world.run(20) == [0, 5, 10, 15]
    assert world.pods() == ["y-0"]
    assert not world.operator.is_ready, "not every namespace has been listed"
    assert world.operator.is_alive()
    assert not world.operator.run_once()
    world.server.rules.clear()
    world.passes()
    assert world.operator.is_ready
    assert sorted(world.pods()) == ["x-0", "y-0"]


# --- Nothing ends the loop ---
def test_the_loop_goes_on_when_there_are_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(milvus("x", replicas=2))
    world.passes()
    world.remove("pods", "x-0")
    world.forget()
    good, bad = metric("passes_total", result="success"), metric("passes_total", result="failure")
    with monkeypatch.context() as patch:
        failing = Mock(side_effect=RuntimeError("can't start new thread"))
        patch.setattr(ThreadPoolExecutor, "submit", failing)
        world.run(20)
        assert not world.operator.run_once()
    (line,) = world.troubles
    assert line.startswith("a pass failed: unexpected RuntimeError, please report this bug: ")
    assert metric("passes_total", result="success") == good
    assert metric("passes_total", result="failure") > bad
    world.run(20)
    assert "resolved: a pass failed" in world.log
    assert len(world.pods()) == 2


@pytest.mark.parametrize(
    ("function", "reason"), [("new_pod", "Invalid"), ("decide", "Invalid"), ("status_of", "")]
)
def test_a_bug_delays_no_other(function: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(milvus("x"), milvus("y"))
    real = getattr(mo, function)

    def failing(milvus: Obj, *arguments: Any) -> Any:
        if mo.name_of(milvus) == "x":
            raise ZeroDivisionError("hunter2")
        return real(milvus, *arguments)

    monkeypatch.setattr(mo, function, failing)
    world.passes(10)
    assert "y-0" in world.pods()
    (line,) = world.troubles
    assert "test/x: " in line
    assert "unexpected ZeroDivisionError, please report this bug: failing:" in line
    assert "hunter2" not in "".join(world.log)
    assert world.reason() == reason
    assert metric("milvuses", state="failed") == 1
