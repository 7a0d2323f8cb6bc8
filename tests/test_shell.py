"""The shell and the loop at work: how lists are read, what a pass leaves to the next one, and what waits."""

from __future__ import annotations

import gc
import json
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import milvus_operator as mo
from tests.kit import Clock, Kube, StillClock, client, eventually, make_pass, new_operator, rest, settle
from tests.wire import Handler, Wire

Obj = dict[str, Any]


# Lists -------------------------------------------------------------------------------------


def relisted(write: Callable[[Obj], bytes]) -> Callable[[Handler, str, str], bool]:
    """A fault that gives the lists of the API server in another writing."""

    def fault(handler: Handler, verb: str, path: str) -> bool:
        if verb == "GET" and "limit=" in path:
            handler.answer(200, write(json.loads(handler.forward().data)))
            return True
        return False

    return fault


@pytest.mark.parametrize(
    "write",
    [
        lambda page: json.dumps(page).encode(),
        lambda page: json.dumps(page, indent=2).encode(),
        lambda page: json.dumps(page, separators=(" ,  ", " : ")).encode(),
        lambda page: json.dumps({"items": page.pop("items"), **page}, separators=(",", ":")).encode(),
        lambda page: json.dumps({**page, "items": page.pop("items")}, separators=(",", ":")).encode(),
        lambda page: json.dumps(page | {"items": page["items"] or None}).encode(),
    ],
    ids=["spaced", "indented", "far apart", "items first", "items last", "null for none"],
)
def test_a_list_is_read_however_it_is_written(kube: Kube, wire: Wire, write: Callable[[Obj], bytes]) -> None:
    wire.fault = relisted(write)
    kube.create(replicas=2)
    operator = new_operator(kube, server=wire.url)
    rest(operator, kube, "x-0", "x-1")
    wire.requests.clear()
    assert make_pass(operator)
    assert {request.verb for request in wire.requests} == {"GET"}


@pytest.mark.parametrize("resource", ["pods", "milvuses"])
def test_a_list_that_ends_early_is_no_list(
    kube: Kube, wire: Wire, resource: str, caplog: pytest.LogCaptureFixture
) -> None:
    kube.create(replicas=2)
    rest(new_operator(kube), kube, "x-0", "x-1")
    before, cut = kube.uids(), 1

    def fault(handler: Handler, verb: str, path: str) -> bool:
        hit = verb == "GET" and resource in path
        if hit:
            handler.answer(200, handler.forward().data[:-cut])
        return hit

    wire.fault = fault
    for cut in (*range(2, 200, 9), 1000):
        operator = new_operator(kube, server=wire.url)
        assert not make_pass(operator, once=True), cut
        assert caplog.text.count("ERROR") == caplog.text.count(f"cannot reach {wire.url}: ") == 1, cut
        caplog.clear()
    assert kube.uids() == before
    assert {request.verb for request in wire.requests} == {"GET"}


def test_what_the_decisions_read_of_a_pod_is_kept(kube: Kube, operator: mo.Operator) -> None:
    """The same decisions and the same status from whole pods and from what is kept of them."""
    kube.create(replicas=3, image="milvus:broken")
    kube.create("y")
    settle(operator)
    eventually(lambda: mo.is_ready(kube.all_pods()["y-0"]))
    kube.set_pod_status("x-1", phase="Failed", reason="Evicted", message="node pressure")
    whole = list(kube.all_pods().values())
    for milvus in (kube.get("x"), kube.get("y")):
        kept = [mo.slim_pod(pod) for pod in whole]
        small = mo.slim_milvus(milvus)
        told = [(action.verb, mo.name_of(action.pod), action.reason) for action in mo.decide(milvus, whole)]
        assert [(action.verb, mo.name_of(action.pod), action.reason) for action in mo.decide(small, kept)] == told
        assert mo.status_of(small, kept, {}, "now") == mo.status_of(milvus, whole, {}, "now")
    assert len(json.dumps(mo.slim_pod(kube.all_pods()["y-0"]))) < len(json.dumps(kube.all_pods()["y-0"])) / 4


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Gives the names of the objects that were parsed since the last call."""
    names: list[str] = []
    real = mo.items_of

    def items_of(items: bytes, slim: Callable[[Obj], Obj]) -> list[Obj]:
        found = real(items, slim)
        names.extend(map(mo.name_of, found))
        return found

    def since() -> list[str]:
        told, names[:] = sorted(names), []
        return told

    monkeypatch.setattr(mo, "items_of", items_of)
    return since


def test_only_pages_that_changed_are_parsed(
    kube: Kube, operator: mo.Operator, parsed: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mo, "PAGE", 2)
    kube.create(replicas=6)
    rest(operator, kube, *(f"x-{i}" for i in range(6)))
    parsed()
    make_pass(operator, once=True)
    assert parsed() == []
    kube.delete_pod("x-3")
    kube.gone("x-3")
    make_pass(operator, once=True)
    assert "x-0" not in parsed()
    kube.ready(*(f"x-{i}" for i in range(6)))


def test_a_list_that_fails_half_way_again_and_again_is_no_list(
    kube: Kube, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mo, "PAGE", 1)
    operator = new_operator(kube, server=wire.url)
    kube.create("a")
    kube.create("b")
    settle(operator)

    def fault(handler: Handler, verb: str, path: str) -> bool:
        expired = verb == "GET" and "milvuses" in path and "continue=" in path
        if expired:
            handler.answer(410, b'{"kind":"Status","reason":"Expired"}')
        return expired

    wire.fault = fault
    for replicas in range(2, 7):
        kube.change("a", replicas=replicas)
        assert not make_pass(operator, once=True)
    assert kube.names() == ["a-0", "b-0"]


def waits(operator: mo.Operator, clock: Clock, monkeypatch: pytest.MonkeyPatch, passes: int) -> list[float]:
    """The seconds that the loop rests after each of its first passes."""
    seconds: list[float] = []

    def sleep(wait: float) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # that is the wire's
        seconds.append(wait)
        clock.skip(wait)
        if len(seconds) == passes:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", sleep)
        with pytest.raises(KeyboardInterrupt):
            operator.run()
    return seconds


@pytest.mark.parametrize(("takes", "starts"), [(0, [0, 5, 10]), (2, [0, 5, 10]), (7, [0, 7, 14])])
def test_a_pass_begins_when_it_is_due_or_the_last_one_is_over(
    kube: Kube, monkeypatch: pytest.MonkeyPatch, takes: float, starts: list[float]
) -> None:
    clock, began = StillClock(), list[float]()
    operator = new_operator(kube, clock=clock, interval=5)
    real = operator.run_pass

    def run_pass() -> mo.Pass:
        began.append(clock.ahead)
        if len(began) == 3:
            raise KeyboardInterrupt
        this = real()
        clock.skip(takes)
        return this

    monkeypatch.setattr(operator, "run_pass", run_pass)
    monkeypatch.setattr(time, "sleep", clock.skip)
    with pytest.raises(KeyboardInterrupt):
        operator.run()
    assert began == starts


def test_while_nothing_can_be_listed_it_waits_longer_and_longer(
    kube: Kube, wire: Wire, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = new_operator(kube, server=wire.url, clock=clock)
    wire.spoil("GET", "/pods", 500, b'{"kind": "Status", "message": "not now"}')
    for wait, most in zip(waits(operator, clock, monkeypatch, 8), (1, 2, 4, 8, 16, 30, 30, 30), strict=True):
        assert most / 2 - 0.5 < wait <= most
    wire.fault = None
    assert 4 < waits(operator, clock, monkeypatch, 1)[0] <= 5, "then its interval"


def test_namespaces_share_each_pass_also_after_a_list_of_one_has_failed(
    kube: Kube, wire: Wire, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what a pass leaves behind is collected once for all of them."""
    collected: list[int] = []
    monkeypatch.setattr(gc, "collect", lambda: collected.append(1))
    names: list[str | None] = [kube.ns, "default", "kube-system"]
    operator = new_operator(kube, server=wire.url, clock=clock, namespaces=names)
    wire.spoil("GET", f"/{kube.ns}/pods", 500, b'{"kind": "Status", "message": "not now"}')
    assert all(wait <= 5 for wait in waits(operator, clock, monkeypatch, 3)), "the others are served meanwhile"
    wire.fault = None
    waits(operator, clock, monkeypatch, 1)
    wire.requests.clear()
    collected.clear()
    assert all(4 < wait <= 5 for wait in waits(operator, clock, monkeypatch, 4))
    listed = [request.path.split("/")[4] for request in wire.requests if request.path.endswith("/pods")]
    assert sorted(listed) == sorted(4 * [str(name) for name in names])
    assert len(collected) == 4


def test_the_password_of_a_server_is_not_told(kube: Kube) -> None:
    api = client(kube.plane, server="https://somebody:hunter2@example.com:6443")
    assert mo.Cluster(lambda: mo.Connection(api, "default")).server == "https://example.com:6443"


@pytest.mark.parametrize("levels", [600, 950])
@pytest.mark.platform
def test_a_milvus_nested_deeply_is_invalid_and_harms_nobody(kube: Kube, operator: mo.Operator, levels: int) -> None:
    """Deep enough for what is done with the parsed object, not for the parser."""
    deep = '{"spec":' * levels + "{}" + "}" * levels
    spec = f'{{"image":"i","pod":{deep}}}'
    body = f'{{"apiVersion":"zilliz.com/v1","kind":"Milvus","metadata":{{"name":"deep"}},"spec":{spec}}}'
    kube.kubectl("create", "--raw", kube.milvuses_path, "-f", "-", stdin=body)
    kube.create()
    settle(operator)
    assert kube.names() == ["x-0"]
    said = kube.kubectl("get", "mi", "deep", "-o", "jsonpath={.status.conditions[1].message}")
    assert said == "spec.pod is nested more than 100 levels deep"


# What is at rest, and what waits --------------------------------------------------------------


def test_a_milvus_at_rest_is_looked_at_again_when_anything_about_it_changes(kube: Kube, wire: Wire) -> None:
    kube.create(replicas=2)
    kube.create("y")
    operator = new_operator(kube, server=wire.url)
    rest(operator, kube, "x-0", "x-1", "y-0")
    wire.requests.clear()
    merge = "application/merge-patch+json"
    kube.milvuses.status.patch(name="x", namespace=kube.ns, body={"status": {"readyReplicas": 7}}, content_type=merge)
    settle(operator)
    assert kube.status()["readyReplicas"] == 2
    kube.patch_pod("x-1", labels={mo.POD_INDEX_LABEL: None})
    settle(operator)
    assert mo.labels_of(kube.all_pods()["x-1"])[mo.POD_INDEX_LABEL] == "1"
    assert [verb for verb in wire.verbs() if "/y" in verb] == []


def test_an_invalid_milvus_at_rest_fails_every_once(kube: Kube, operator: mo.Operator) -> None:
    kube.create(milvusSpec="proxy.port: 1")
    assert not operator.run_once()
    assert not operator.run_once()


def slow(wire: Wire, seconds: float, part: bytes = b"") -> None:
    """From now on the creation of a pod takes that long."""

    def fault(handler: Handler, verb: str, path: str) -> bool:
        if verb == "POST" and "/pods" in path and part in handler.seen:
            time.sleep(seconds)
        return False

    wire.fault = fault


def test_writes_under_way_at_the_end_of_a_pass_are_waited_for(kube: Kube, wire: Wire) -> None:
    slow(wire, 0.15)
    kube.create()
    make_pass(new_operator(kube, server=wire.url, interval=0.01))
    assert kube.names() == ["x-0"]


def test_a_pass_ends_when_the_next_one_is_due_which_goes_on(kube: Kube, wire: Wire) -> None:
    slow(wire, 0.3)
    kube.create(replicas=60)
    operator = new_operator(kube, server=wire.url, interval=0.5)
    started = time.monotonic()
    make_pass(operator)
    assert time.monotonic() - started < 3
    assert 1 <= len(kube.names()) < 60
    eventually(lambda: make_pass(operator) and len(kube.names()) == 60)


def test_those_that_wait_longest_go_first(kube: Kube, wire: Wire) -> None:
    operator = new_operator(kube, server=wire.url, workers=1)
    kube.create("a")
    make_pass(operator, once=True)
    kube.change("a", replicas=2)
    kube.create("b")
    wire.requests.clear()
    make_pass(operator, once=True)
    bodies = [request.body for request in wire.requests if request.verb == "POST" and request.path.endswith("/pods")]
    assert [json.loads(body)["metadata"]["name"] for body in bodies] == ["b-0", "a-1"]


def test_a_write_that_hangs_is_not_repeated_and_holds_up_nothing_else(kube: Kube, wire: Wire) -> None:
    """Neither another ordinal of the same Milvus for longer than a pass, nor another Milvus, nor a status."""
    go_on, asked = threading.Event(), list[str]()

    def fault(handler: Handler, verb: str, path: str) -> bool:
        if verb == "POST" and "/pods" in path:
            asked.append(json.loads(handler.seen)["metadata"]["name"])
            if asked[-1] == "bad-0":
                go_on.wait(30)
        return False

    wire.fault = fault
    kube.create("bad", replicas=3)
    operator = new_operator(kube, server=wire.url, timeout=60, interval=0.3)
    for _ in range(3):
        make_pass(operator)
    assert kube.names() == ["bad-1", "bad-2"]
    kube.create("good")
    make_pass(operator)
    assert kube.names() == ["bad-1", "bad-2", "good-0"]
    assert kube.status("bad")["replicas"] == 2
    assert asked.count("bad-0") == 1
    go_on.set()
    eventually(lambda: make_pass(operator) and "bad-0" in kube.names())


def test_a_failure_that_comes_after_its_pass_is_told_by_the_next(kube: Kube, wire: Wire, clock: Clock) -> None:
    """As of a webhook that takes longer than the interval."""
    answered = threading.Event()

    def fault(handler: Handler, verb: str, path: str) -> bool:
        hit = verb == "POST" and "/pods" in path
        if hit:
            time.sleep(0.8)
            handler.answer(500, b'{"kind":"Status","message":"the webhook is slow"}')
            answered.set()
        return hit

    wire.fault = fault
    operator = new_operator(kube, server=wire.url, interval=0.1, clock=clock)
    kube.create()
    make_pass(operator)
    assert answered.wait(10)
    eventually(lambda: not make_pass(operator) and kube.condition("Reconciled").get("status") == "False")
    assert kube.condition("Reconciled")["message"] == "the webhook is slow"
    wire.fault = None
    clock.skip(30)
    eventually(lambda: make_pass(operator) and kube.names() == ["x-0"])


# Memory ----------------------------------------------------------------------------------------


def test_the_loop_collects_what_a_pass_leaves_behind(operator: mo.Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[weakref.ref[Any]] = []
    operator.interval = 0.01
    real = operator.run_pass

    class Circle:
        def __init__(self) -> None:
            self.itself = self

    def run_pass(once: bool = False) -> mo.Pass:
        assert not [ref for ref in left if ref()]
        left.append(weakref.ref(Circle()))
        if len(left) == 3:
            raise KeyboardInterrupt
        return real(once)

    monkeypatch.setattr(operator, "run_pass", run_pass)
    gc.disable()
    try:
        with pytest.raises(KeyboardInterrupt):
            operator.run()
    finally:
        gc.enable()


def test_nothing_that_a_pass_made_outlives_the_next_collection(kube: Kube, operator: mo.Operator) -> None:
    """The command collects between passes, and not otherwise: objects must not add up."""
    kube.create(replicas=3)
    sizes, threads = [], []
    gc.disable()
    try:
        for _ in range(8):
            if kube.pod("x-0"):
                kube.delete_pod("x-0")
            for _ in range(10):
                make_pass(operator, once=True)
            gc.collect()
            sizes.append(len(gc.get_objects()))
            threads.append(threading.active_count())
    finally:
        gc.enable()
    assert sizes[-1] - sizes[3] < 300, sizes
    assert threads[-1] <= threads[0] + 2, threads
