"""What is read from the API server's lists, and what happens when they fail."""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Callable

import pytest

import milvus_operator as mo
from tests.lib.kit import (
    Clock,
    Kube,
    Obj,
    StillClock,
    client,
    eventually,
    make_pass,
    new_operator,
    rest,
    settle,
)
from tests.lib.wire import Handler, Wire


def relisted(write: Callable[[Obj], bytes]) -> Callable[[Handler, str, str], bool]:
    """A fault that answers with the API server's lists in another notation."""

    def fault(handler: Handler, verb: str, path: str) -> bool:
        if verb == "GET" and "limit=" in path:
            handler.answer(200, write(json.loads(handler.forward().data)))
            return True
        return False

    return fault


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Returns the names of the objects that were parsed since the last call."""
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


def waits(
    operator: mo.Operator, clock: Clock, monkeypatch: pytest.MonkeyPatch, passes: int
) -> list[float]:
    """The seconds that the loop sleeps after each of its first passes."""
    seconds: list[float] = []

    def sleep(wait: float) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # the wire's own sleep
        seconds.append(wait)
        clock.skip(wait)
        if len(seconds) == passes:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", sleep)
        with pytest.raises(KeyboardInterrupt):
            operator.run()
    return seconds


def test_lists_are_read_page_by_page(
    kube: Kube, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mo, "PAGE", 2)
    for name in "abcde":
        kube.create(name)
    operator = new_operator(kube, server=wire.url)
    make_pass(operator)
    assert len(kube.names()) == 5
    wire.requests.clear()
    make_pass(operator)
    pages = [request for request in wire.requests if request.verb == "GET"]
    assert [request.path.rpartition("/")[2] for request in pages] == ["pods"] * 3 + ["milvuses"] * 3
    assert all(request.query["limit"] == ["2"] for request in pages)
    assert pages[0].query["labelSelector"] == ["app.kubernetes.io/managed-by=milvus-operator"]


@pytest.mark.parametrize(
    "write",
    [
        lambda page: json.dumps(page).encode(),
        lambda page: json.dumps(page, indent=2).encode(),
        lambda page: json.dumps(page, separators=(" ,  ", " : ")).encode(),
        lambda page: json.dumps(
            {"items": page.pop("items"), **page}, separators=(",", ":")
        ).encode(),
        lambda page: json.dumps(
            {**page, "items": page.pop("items")}, separators=(",", ":")
        ).encode(),
        lambda page: json.dumps(page | {"items": page["items"] or None}).encode(),
    ],
    ids=["spaced", "indented", "far apart", "items first", "items last", "null for none"],
)
def test_a_list_is_read_in_any_json_notation(
    kube: Kube, wire: Wire, write: Callable[[Obj], bytes]
) -> None:
    wire.fault = relisted(write)
    kube.create(replicas=2)
    operator = new_operator(kube, server=wire.url)
    rest(operator, kube, "x-0", "x-1")
    wire.requests.clear()
    assert make_pass(operator)
    assert {request.verb for request in wire.requests} == {"GET"}


@pytest.mark.parametrize("resource", ["pods", "milvuses"])
def test_a_list_that_ends_early_is_an_error(
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
        assert caplog.text.count("ERROR") == caplog.text.count(f"cannot reach {wire.url}: ") == 1, (
            cut
        )
        caplog.clear()
    assert kube.uids() == before
    assert {request.verb for request in wire.requests} == {"GET"}


def test_what_decisions_depend_on_is_kept_of_a_pod(kube: Kube, operator: mo.Operator) -> None:
    """Whole pods, and what is kept of them, lead to the same decisions and the same status."""
    kube.create(replicas=3, image="milvus:broken")
    kube.create("y")
    settle(operator)
    eventually(lambda: mo.is_ready(kube.all_pods()["y-0"]))
    kube.set_pod_status("x-1", phase="Failed", reason="Evicted", message="node pressure")
    whole = list(kube.all_pods().values())
    for milvus in (kube.get("x"), kube.get("y")):
        kept = [mo.slim_pod(pod) for pod in whole]
        small = mo.slim_milvus(milvus)
        told = [
            (action.verb, mo.name_of(action.pod), action.reason)
            for action in mo.decide(milvus, whole)
        ]
        assert [
            (action.verb, mo.name_of(action.pod), action.reason)
            for action in mo.decide(small, kept)
        ] == told
        assert mo.status_of(small, kept, {}, "now") == mo.status_of(milvus, whole, {}, "now")
    assert (
        len(json.dumps(mo.slim_pod(kube.all_pods()["y-0"])))
        < len(json.dumps(kube.all_pods()["y-0"])) / 4
    )


def test_only_pages_that_changed_are_parsed(
    kube: Kube,
    operator: mo.Operator,
    parsed: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
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


def test_a_list_that_keeps_failing_halfway_is_not_used(
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


def test_while_nothing_can_be_listed_it_waits_longer_and_longer(
    kube: Kube, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = StillClock()
    operator = new_operator(kube, server=wire.url, clock=clock)
    wire.spoil("GET", "/pods", 500, b'{"kind": "Status", "message": "not now"}')
    for wait, most in zip(
        waits(operator, clock, monkeypatch, 8), (1, 2, 4, 8, 16, 30, 30, 30), strict=True
    ):
        assert most / 2 - 1e-6 <= wait <= most + 1e-6
    wire.fault = None
    assert waits(operator, clock, monkeypatch, 1) == pytest.approx([5]), "then for its interval"


def test_namespaces_share_each_pass_even_after_a_list_of_one_has_failed(
    kube: Kube, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And garbage is collected once for all of them."""
    clock = StillClock()
    collected: list[int] = []
    monkeypatch.setattr(gc, "collect", lambda: collected.append(1))
    names: list[str | None] = [kube.ns, "default", "kube-system"]
    operator = new_operator(kube, server=wire.url, clock=clock, namespaces=names)
    wire.spoil("GET", f"/{kube.ns}/pods", 500, b'{"kind": "Status", "message": "not now"}')
    assert all(wait <= 5 for wait in waits(operator, clock, monkeypatch, 3)), (
        "meanwhile, the others are served"
    )
    wire.fault = None
    waits(operator, clock, monkeypatch, 1)
    wire.requests.clear()
    collected.clear()
    assert waits(operator, clock, monkeypatch, 4) == pytest.approx([5] * 4)
    listed = [
        request.path.split("/")[4] for request in wire.requests if request.path.endswith("/pods")
    ]
    assert sorted(listed) == sorted(4 * [str(name) for name in names])
    assert len(collected) == 4


def test_the_password_of_a_server_is_not_shown(kube: Kube) -> None:
    api = client(kube.plane, server="https://somebody:hunter2@example.com:6443")
    assert mo.Cluster(lambda: mo.Connection(api, "default")).server == "https://example.com:6443"


def test_answers_that_are_json_but_not_objects_do_not_stop_the_loop(
    kube: Kube, wire: Wire, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(handler: Handler, verb: str, path: str) -> bool:
        refused = verb == "POST" and b'"name": "a-0"' in handler.seen
        if refused:
            handler.answer(200, b'{"metadata": {}}')
        return refused

    wire.fault = fault

    def odd(handler: Handler, verb: str, path: str) -> bool:
        handler.answer(200, b'{"kind": "PodList", "items": [{}]}')
        return True

    operator = new_operator(kube, server=wire.url, clock=clock)
    kube.create("a")
    kube.create("b")
    make_pass(operator)
    assert kube.names() == ["b-0"]
    assert "Traceback" not in caplog.text
    wire.fault = odd
    assert not make_pass(operator)
    assert "Traceback" not in caplog.text
    wire.fault = None
    clock.skip(30)
    make_pass(operator)
    assert kube.names() == ["a-0", "b-0"]
