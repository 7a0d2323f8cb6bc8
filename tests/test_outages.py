"""Troubles of the operator itself: one line when each begins, one when it ends, and never a stop."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import milvus_operator as mo
from tests.lib.front import Obj, answer
from tests.lib.world import World, at_rest, metric, milvus

RIGHT = 'User "x" cannot list resource "pods" in API group "" in the namespace "y"'
ANONYMOUS = 'User "system:anonymous" cannot list resource "pods" in API group ""'


def passes_that(result: str) -> float:
    return metric("passes_total", result=result)


@pytest.mark.parametrize(
    ("resource", "code", "message", "line"),
    [
        ("pods", 0, "", "requests to http://memory fail: "),
        ("milvuses", 0, "", "requests to http://memory fail: "),
        ("pods", 401, "", "http://memory rejects the credentials: log in again"),
        ("pods", 403, f"pods is forbidden: {ANONYMOUS}", "http://memory rejects the credentials: "),
        (
            "pods",
            403,
            f"pods is forbidden: {RIGHT}",
            "not allowed to list pods in namespace test: add this permission",
        ),
        ("pods", 403, "no", "cannot list pods in namespace test: HTTP 403: no"),
        ("pods", 404, "not found", "cannot list pods in namespace test: HTTP 404: not found"),
        (
            "milvuses",
            404,
            "not found",
            "http://memory does not serve milvuses.zilliz.com: install the CRD with `kubectl",
        ),
        ("pods", 500, "oops", "cannot list pods in namespace test: HTTP 500: oops"),
    ],
)
def test_a_list_that_fails_is_one_line_that_says_what_to_do(
    resource: str, code: int, message: str, line: str
) -> None:
    world = at_rest(milvus("x"))
    good, bad = passes_that("success"), passes_that("failure")
    if code:
        world.server.refuse("list", resource, code, message)
    else:
        world.server.fault("list", resource, "unreachable")
    world.change("x", replicas=3)
    world.passes(5)
    (told,) = world.troubles
    assert told.startswith(line)
    assert (passes_that("success"), passes_that("failure")) == (good, bad + 5)
    assert metric("seconds_since_good_pass") == 30
    world.server.rules.clear()
    world.passes()
    assert f"resolved: {told.partition(': ')[0]}" in world.log
    assert passes_that("success") == good + 1
    assert metric("seconds_since_good_pass") == 5
    assert len(world.pods()) == 3


def test_a_trouble_whose_words_vary_is_logged_once() -> None:
    world = World(milvus("x"))
    for number in range(5):
        error = ["unreachable", "timeout", "reset"][number % 3]
        rule = world.server.fault("list", "pods", error)
        world.passes()
        world.server.rules.remove(rule)
    assert len(world.troubles) == 1
    world.passes()
    assert len([line for line in world.log if line.startswith("resolved: ")]) == 1


def test_an_answer_that_is_lost_does_no_harm() -> None:
    world = World(milvus("x", replicas=2))
    world.server.fault("create", "pods", "reset", name="x-0", times=1, after=True)
    world.settle()
    world.change("x", replicas=1)
    world.server.fault("delete", "pods", "reset", times=1, after=True)
    world.settle()
    world.server.fault("patch", "milvuses/status", "reset", times=1, after=True)
    world.change("x", replicas=2)
    world.settle()
    assert world.pods() == ["x-0", "x-1"]
    assert world.condition("x", "Ready")["status"] == "True"


def test_the_other_namespaces_are_served_while_one_cannot_be_listed() -> None:
    world = World(milvus("x", "bad"), milvus("y", "good"), namespaces=["bad", "good"])
    world.server.refuse("list", "pods", 403, f"pods is forbidden: {RIGHT}", namespace="bad")
    assert not world.operator.is_ready()
    world.passes(2)
    assert world.pods() == ["y-0"]
    assert not world.operator.is_ready(), "not every namespace has been listed"
    assert world.operator.is_alive()
    world.server.rules.clear()
    world.passes()
    assert world.operator.is_ready()
    assert sorted(world.pods()) == ["x-0", "y-0"]


def test_the_loop_is_alive_while_answers_come_and_not_when_it_stands_still() -> None:
    world = World(*[milvus(f"m{number}", replicas=0) for number in range(200)])
    alive = list[bool]()
    world.server.when("list", "milvuses", lambda _: alive.append(world.operator.is_alive()))
    world.server.delay("list", "milvuses", 40)
    world.operator.run_pass()
    assert alive == [True] * 5
    world.clock.advance(49)
    assert world.operator.is_alive()
    world.clock.advance(2)
    assert not world.operator.is_alive()


# --- The connection ---
class Connections:
    """Where the credentials come from; counts who asked for which context."""

    def __init__(self, world: World) -> None:
        self.world, self.asked = world, list[str | None]()
        self.expires, self.complaint = 4e9, ""

    def __call__(self, context: str | None) -> mo.Connection:
        self.asked.append(context)
        api = self.world.server.client(f"user{len(self.asked)}")
        namespace = "test"
        return mo.Connection(api, namespace, context or "dev", {}, self.expires, self.complaint)


def connected(world: World) -> Connections:
    """Let the operator find its credentials anew."""
    connections = Connections(world)
    cluster = mo.Cluster(connections, None, 10, False, world.clock.now)
    world.operator = mo.Operator(cluster, ["test"], world.interval, world.workers)
    return connections


def test_the_context_is_chosen_once_at_the_start() -> None:
    world = World(milvus("x"))
    connections = connected(world)
    world.server.refuse("*", "*", 401, "expired", times=3)
    world.passes(5)
    assert len(connections.asked) >= 2
    assert connections.asked == [None] + ["dev"] * (len(connections.asked) - 1)


def test_rejected_credentials_are_renewed_by_the_next_pass() -> None:
    world = World(milvus("x"))
    connections = connected(world)
    world.passes()
    no = answer(401, {"kind": "Status", "message": "no"})
    world.server.when("*", "*", lambda one: no if one.user == "user1" else None)
    world.passes(2)
    assert connections.asked == [None, "dev"]
    assert world.server.journal[-1].user == "user2"
    world.passes(5)
    assert connections.asked == [None, "dev"], "and not again"
    assert [line for line in world.log if line.startswith("resolved: ")] != []


def test_what_an_exec_plugin_fails_with_is_told_once_the_old_token_is_rejected() -> None:
    world = World(milvus("x"))
    connections = connected(world)
    connections.expires = 0
    world.operator.cluster.use(connections(None))
    connections.complaint = "the plugin needs a login"
    world.passes(3)
    assert world.pods() == ["x-0"]
    assert world.troubles == [], "the token at hand is still good"
    rule = world.server.refuse("*", "*", 401, "expired")
    world.passes(3)
    assert world.server.journal[-1].user == "user2", "the old credentials are kept"
    assert world.troubles == ["http://memory rejects the credentials: the plugin needs a login"]
    world.server.rules.remove(rule)
    connections.complaint = ""
    connections.expires = 4e9
    world.passes(2)
    assert "resolved: http://memory rejects the credentials" in world.log


def test_a_plugin_that_waits_stops_no_pass_while_the_token_is_good() -> None:
    world = World(milvus("x"))
    connections = connected(world)
    connections.expires = 0
    world.operator.cluster.use(connections(None))
    with world.slow_tasks() as hung:
        real = world.operator.cluster.connect

        def wait(context: str | None) -> mo.Connection:
            hung.hang()
            return real(context)

        world.operator.cluster.connect = wait
        connections.expires = 4e9
        world.passes(3)
        assert world.pods() == ["x-0"]
        assert hung.count == 1, "it is asked once"
    world.passes(2)
    assert connections.asked == [None, None, "dev"]
    assert world.troubles == []


# --- Nothing ends the loop ---
def no_threads(*arguments: Any) -> None:
    raise RuntimeError("can't start new thread")


def test_the_loop_goes_on_when_there_are_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(milvus("x", replicas=2))
    world.server.refuse("list", "pods", 403, f"pods is forbidden: {RIGHT}")
    world.passes()
    world.forget()
    good, bad = passes_that("success"), passes_that("failure")
    with monkeypatch.context() as patch:
        patch.setattr(ThreadPoolExecutor, "submit", no_threads)
        world.run(20)
    (line,) = world.troubles
    assert not any(line.startswith("resolved: ") for line in world.log)
    assert line.startswith("a pass failed: unexpected RuntimeError in ")
    assert passes_that("success") == good
    assert passes_that("failure") > bad
    world.server.rules.clear()
    world.run(20)
    assert "resolved: a pass failed" in world.log
    assert "resolved: not allowed to list pods in namespace test" in world.log
    assert len(world.pods()) == 2


def test_an_unforeseen_error_about_one_milvus_delays_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(milvus("x"), milvus("y"))
    real = mo.new_pod

    def new_pod(milvus: Obj, spec: mo.Spec, ordinal: int) -> Obj:
        if mo.name_of(milvus) == "x":
            raise ZeroDivisionError("hunter2")
        return real(milvus, spec, ordinal)

    monkeypatch.setattr(mo, "new_pod", new_pod)
    world.passes(10)
    assert world.pods() == ["y-0"]
    (line,) = [line for line in world.troubles if "milvus test/x" not in line]
    assert line.startswith("unexpected ZeroDivisionError in test_outages.py, line ")
    assert line.endswith(": please report this bug")
    assert "hunter2" not in "".join(world.log)
    assert world.reason() == "APIError"


# --- The end ---
def test_after_finish_no_write_begins_and_what_is_in_progress_ends() -> None:
    world = World(milvus("x", replicas=5), milvus("y"), workers=1)
    world.server.when("create", "pods", stop(world), name="x-1")
    world.run(20)
    assert world.names("create", "pods") == ["x-0", "x-1"]
    assert world.pods() == ["x-0", "x-1"]
    assert [one.verb for one in world.server.journal[-2:]] == ["create", "create"]


def stop(world: World) -> Any:
    return lambda _: setattr(world.operator, "stopping", True)


def test_after_finish_no_listing_begins() -> None:
    world = World(milvus("x"))
    world.operator.finish()
    world.run(20)
    assert world.server.journal == []


def test_finish_waits_four_seconds_for_what_hangs() -> None:
    world = World(milvus("x"), milvus("y"))
    with world.hanging("create", "pods", name="x-0"):
        world.passes()
        before = world.clock.now()
        thread = threading.Thread(target=world.operator.finish)
        thread.start()
        thread.join()
        assert world.clock.now() == before + 4
        world.run(20)
        assert world.names("create", "pods").count("x-0") == 1
