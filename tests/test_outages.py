"""Outages: one line when each begins, one when it ends, and never a stop."""

import signal
import sys
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import click
import pytest
from kubernetes.client import Configuration
from kubernetes.config import ConfigException

import milvus_operator as mo
from local.controlplane import free_ports
from tests.lib.kit import eventually, output_of
from tests.lib.wire import Api
from tests.lib.world import World, at_rest, metric, milvus

NO_LIST = 'pods is forbidden: User "x" cannot list resource "pods" in API group ""'
NO_CREATE = 'pods is forbidden: User "x" cannot create resource "pods" in API group ""'


def counted() -> list[float]:
    """How many passes have succeeded, and how many have failed."""
    good = metric("passes_total", result="success")
    bad = metric("passes_total", result="failure")
    return [good, bad]


@pytest.mark.parametrize(
    ("resource", "code", "message", "line"),
    [
        ("pods", 0, "", "requests to http://memory fail: "),
        ("pods", 401, "", "http://memory rejects the credentials: log in again"),
        ("pods", 403, NO_LIST, f"cannot list pods in namespace test: {NO_LIST} (see the role"),
        ("milvuses", 404, "no", "cannot list milvuses in namespace test: no (install the CRD with"),
        ("pods", 429, "too many", "requests to http://memory fail: too many"),
        ("pods", 404, "no", "cannot list pods in namespace test: no"),
    ],
)
def test_a_failed_list_is_one_clear_line(resource: str, code: int, message: str, line: str) -> None:
    world = at_rest(milvus())
    good, bad = counted()
    if code:
        world.server.reject("list", resource, code, message)
    else:  # in other words each time
        world.server.fault("list", resource, "unreachable", times=2)
        world.server.fault("list", resource, "timeout")
    world.change("x", replicas=3)
    world.passes(5)
    (told,) = world.warnings
    assert told.startswith(line)
    assert ("install the CRD" in told) == ("install the CRD" in line)
    assert counted() == [good, bad + 5]
    world.server.rules.clear()
    world.passes()
    assert f"resolved: {told.partition(': ')[0]}" in world.log
    assert len(world.pods()) == 3


def test_while_nothing_can_be_listed_it_waits_longer_and_longer() -> None:
    world = World(interval=5)
    rule = world.server.reject("list", "*", 500, "not now")
    world.run(200)
    waits = world.times("list", "pods")
    longest = [1, 2, 4, 8, 16, 30, 30]
    for wait, most in zip(waits, longest, strict=False):
        assert most / 2 <= round(wait, 3) <= most
    assert max(waits[5:]) < 30, "with jitter"
    world.server.rules.remove(rule)
    world.run(60)
    assert world.run(10) == [0, 5], "then for its interval again"


def test_an_outage_that_lasts_is_logged_every_ten_minutes() -> None:
    world = at_rest(milvus())
    world.server.reject("list", "pods", 403, NO_LIST)
    world.run(1790)
    assert len(world.warnings) == 3
    assert len({*world.warnings}) == 1
    world.server.rules.clear()
    world.run(10)
    world.server.reject("list", "pods", 403, NO_LIST)
    world.run(10)
    assert len(world.warnings) == 4, "it is another one"


def test_the_other_namespaces_are_managed_as_ever_while_one_cannot_be_listed() -> None:
    good = milvus("y", "good")
    world = World(milvus("x", "bad"), good, namespaces=["bad", "good"])
    world.server.reject("list", "pods", 403, NO_LIST, namespace="bad")
    world.run(200)
    assert world.run(20) == [0, 5, 10, 15]
    assert world.pods() == ["y-0"]
    assert not world.operator.is_ready, "not every namespace has been listed"
    assert not world.operator.run_once()
    world.server.rules.clear()
    world.passes()
    assert world.operator.is_ready
    assert {*world.pods()} == {"x-0", "y-0"}


def test_a_missing_permission_to_write_is_told_of_each_milvus_until_none_needs_it() -> None:
    several = [milvus(name, replicas=8) for name in "abcde"]
    world = World(*several, interval=1)
    rule = world.server.reject("create", "pods", 403, NO_CREATE)
    world.passes()
    assert rule.hits == 5, "one try for each Milvus"
    world.passes(3)
    assert sorted(world.warnings) == [f"milvus test/{name}: {NO_CREATE}" for name in "abcde"]
    assert {world.reason(name) for name in "abcde"} == {"Forbidden"}
    assert metric("milvuses", state="failed") == 5
    for name in "abcde":
        world.patch("milvuses", name, finalizers=["test/hold"])
        world.remove("milvuses", name)
    world.forget()
    world.passes(2)
    assert world.writes() == [], "for a Milvus that is being deleted"
    assert metric("milvuses", state="failed") == 0


def test_without_threads_it_does_not_start_and_a_bug_of_the_loop_is_not_called_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = threading.Thread.start
    before = threading.active_count()

    def fail_at_the_third(thread: threading.Thread) -> None:
        if threading.active_count() - before >= 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail_at_the_third)
        with pytest.raises(click.ClickException, match="cannot start a thread: can't start"):
            mo.start_pool(4)
    eventually(lambda: threading.active_count() <= before + 2, 5)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("no thread")))
        patch.setattr(signal, "signal", Mock())
        with pytest.raises(click.ClickException, match="cannot start a thread: no thread"):
            mo.run_until_signal(lambda: True, threading.Event(), 0)
        with pytest.raises(click.ClickException, match="cannot start a thread: no thread"):
            mo.start_health_server(World().operator, free_ports(1)[0])
    world = World(milvus())
    good, _ = counted()
    with monkeypatch.context() as patch:
        patch.setattr(mo, "by_ordinal", Mock(side_effect=RuntimeError("hunter2")))
        world.passes(3)
        assert not world.operator.run_once()
    (line,) = world.warnings
    assert line.startswith("a pass failed: unexpected RuntimeError, please report this bug: ")
    assert "hunter2" not in line
    assert counted()[0] == good
    world.operator = world.new_operator()
    world.run(20)
    assert len(world.pods()) == 1


@pytest.mark.parametrize("function", ["decide", "status_of"])
def test_a_bug_delays_no_other(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(milvus(), milvus("y"))
    real = getattr(mo, function)

    def failing(seen: mo.Observed, *arguments: Any) -> Any:
        if mo.name_of(seen.milvus) == "x":
            raise ZeroDivisionError("hunter2")
        return real(seen, *arguments)

    monkeypatch.setattr(mo, function, failing)
    world.passes(10)
    assert "y-0" in world.pods()
    (line,) = world.warnings
    assert "test/x: " in line
    assert "unexpected ZeroDivisionError, please report this bug: failing:" in line
    assert "hunter2" not in line
    assert metric("milvuses", state="failed") == 1


def test_events_that_are_not_allowed_are_no_problem_of_a_milvus_and_are_tried_once() -> None:
    world = World(milvus())
    words = 'events is forbidden: User "x" cannot create resource "events"'
    rule = world.server.reject("create", "events", 403, words)
    world.passes(5)
    assert world.warnings == []
    assert rule.hits == 1, "of the pod and of the Service together"
    assert f"an event of milvus x was not sent: {words}" in world.log
    assert world.reason(kind="Reconciled") == "Reconciled"


@pytest.mark.parametrize("error", [OSError(2, "no such file"), ConfigException("no token")])
def test_a_token_that_cannot_be_renewed_ends_a_pass_in_one_line(error: Exception) -> None:
    configuration = Configuration(host="http://memory")
    configuration.refresh_api_key_hook = Mock(side_effect=error)  # type: ignore[assignment]
    with pytest.raises(mo.Unusable, match="no "):
        mo.Client(configuration)


def test_when_a_token_cannot_be_renewed_the_configuration_is_loaded_anew() -> None:
    """Its owner may have logged in again, in another way."""
    world = World(milvus())
    api = world.operator.api
    api.renew = Mock(side_effect=mo.Unusable("the plugin fails"))
    world.passes()
    assert world.warnings == ["the configuration cannot be loaded: the plugin fails"]
    loaded = world.server.client()
    api.reload = Mock(return_value=loaded)
    api.renew = Mock()
    world.passes()
    assert api.client is loaded
    assert world.pods() == ["x-0"]


def test_one_namespace_that_rejects_the_token_is_enough_to_load_the_configuration_anew() -> None:
    world = World(namespaces=["test", "other"])
    api = world.operator.api
    api.reload = Mock(return_value=world.server.client())
    world.server.reject("list", "*", 401, "no", times=1)
    world.server.reject("list", "*", 403, "no")
    world.passes(2)
    assert api.reload.call_count == 1


def test_it_can_be_imported_on_macos() -> None:
    as_there = "del socket.TCP_KEEPIDLE; socket.TCP_KEEPALIVE = 16"
    output_of(sys.executable, "-c", f"import socket; {as_there}; import milvus_operator")


def test_idle_connections_are_kept_alive(api: Api) -> None:
    """Load balancers drop those that are silent for some minutes, and tell nobody."""
    operator = api.operator(api.kubeconfig())
    operator.run_pass()
    port = f"{api.server_port:04X}"
    timers = list[str]()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, _, remote, state, _, timer, *_ = line.split()
        if remote.endswith(f":{port}") and state == "01":  # established
            timers.append(timer)
    assert timers
    for timer in timers:
        kind, jiffies = timer.split(":")
        assert kind == "02", "the timer of keep-alive"
        assert int(jiffies, 16) <= 30 * 100
