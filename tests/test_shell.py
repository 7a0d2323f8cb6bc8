"""The shell: how lists are read, and what is kept of them."""

from __future__ import annotations

import gc
import json
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Kube, client, eventually, new_operator, rest, settle
from wire import Handler, Wire

import milvus_operator as mo

Obj = dict[str, Any]
ITEMS = [{"metadata": {"name": "a"}, "spec": {"items": [{"key": "b"}]}}, {"metadata": {"name": "[]"}}]
META = {"resourceVersion": "7", "continue": "x"}


def written(page: Any, **style: Any) -> bytes:
    return json.dumps(page, **style).encode()


@pytest.mark.parametrize(
    "body",
    [
        written({"kind": "PodList", "metadata": META, "items": ITEMS}, separators=(",", ":")),
        written({"apiVersion": "v1", "items": ITEMS, "kind": "PodList", "metadata": META}, separators=(",", ":")),
        written({"kind": "PodList", "metadata": META, "items": ITEMS}),
        written({"items": ITEMS, "kind": "PodList", "metadata": META}, indent=2),
        b'{"items":' + written(ITEMS, indent=1) + b',"kind":"PodList","metadata":' + written(META) + b"}",
        b'{"items" :' + written(ITEMS, separators=(",", ":")) + b',"kind":"PodList","metadata":' + written(META) + b"}",
    ],
    ids=["as of pods", "as of custom resources", "spaced", "indented", "indented within", "spelled otherwise"],
)
def test_a_list_is_read_however_it_is_written(body: bytes) -> None:
    page, items = mo.split(body)
    assert (page["kind"], page["metadata"]) == ("PodList", META)
    assert list(mo.items_of(items, dict)) == ITEMS


@pytest.mark.parametrize("items", ["[]", "null"])
def test_an_empty_list(items: str) -> None:
    page, found = mo.split(b'{"kind":"PodList","metadata":{},"items":' + items.encode() + b"}")
    assert page["kind"] == "PodList"
    assert list(mo.items_of(found, dict)) == []


@pytest.mark.parametrize("cut", range(1, 150, 7))
def test_a_list_that_ends_early_is_no_list(cut: int) -> None:
    body = written({"kind": "PodList", "metadata": META, "items": ITEMS}, separators=(",", ":"))[:-cut]
    with pytest.raises(mo.ApiError, match="not JSON"):
        mo.split(body)


@pytest.mark.parametrize("body", [b"", b"[]", b"1", b'"items"', b"<html>", b"null"])
def test_what_is_no_object_is_no_list(body: bytes) -> None:
    try:
        page, _ = mo.split(body)
    except mo.ApiError:
        return
    assert "kind" not in page


@pytest.mark.parametrize("levels", [100, 190, 400, 600, 900, 980, 3000, 50_000])
def test_an_item_that_is_nested_too_deeply_hides_no_other(levels: int) -> None:
    deep = '{"a":' * levels + "1" + "}" * levels
    item = '{"metadata":{"name":"%s","uid":"u","resourceVersion":"1"},"spec":{"pod":%s}}'
    items = ",".join([item % ("a", "1"), item % ("b", deep), item % ("c", "1")]).encode()
    found = list(mo.items_of(memoryview(items), mo.slim_milvus))
    assert [mo.name_of(one) for one in found] == ["a", "b", "c"]
    assert mo.deeper_than(mo.MAX_POD_DEPTH, found[1]["spec"]["pod"]) == (levels > mo.MAX_POD_DEPTH)


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
        assert mo.status_of(small, kept, None, "now") == mo.status_of(milvus, whole, None, "now")
    assert len(json.dumps(mo.slim_pod(kube.all_pods()["y-0"]))) < len(json.dumps(kube.all_pods()["y-0"])) / 4


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Gives the names of the objects that were parsed since the last call."""
    names: list[str] = []
    real = mo.items_of

    def items_of(items: memoryview, slim: Callable[[Obj], Obj]) -> Any:
        for item in real(items, slim):
            names.append(mo.name_of(item))
            yield item

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
    operator.run_pass(once=True)
    assert parsed() == []
    kube.delete_pod("x-3")
    kube.gone("x-3")
    operator.run_pass(once=True)
    assert "x-0" not in parsed()
    kube.ready(*(f"x-{i}" for i in range(6)))
    settle(operator)
    assert sum(len(pages) for pages in operator.cluster.pages.values()) == 3 + 1, "those of earlier lists are not kept"


def test_a_milvus_at_rest_is_looked_at_again_when_anything_about_it_changes(kube: Kube, operator: mo.Operator) -> None:
    kube.create(replicas=2)
    kube.create("y")
    rest(operator, kube, "x-0", "x-1", "y-0")
    looked: list[str] = []
    real = operator.go_on

    def go_on(plan: mo.Plan) -> None:
        looked.append(mo.name_of(plan.milvus))
        real(plan)

    operator.go_on = go_on  # type: ignore[method-assign]  # to see what is looked at
    operator.run_pass(once=True)
    assert looked == []
    merge = "application/merge-patch+json"
    kube.milvuses.status.patch(name="x", namespace=kube.ns, body={"status": {"readyReplicas": 7}}, content_type=merge)
    settle(operator)
    assert kube.status()["readyReplicas"] == 2
    assert {*looked} == {"x"}
    kube.patch_pod("x-1", labels={mo.POD_INDEX_LABEL: None})
    settle(operator)
    assert mo.labels_of(kube.all_pods()["x-1"])[mo.POD_INDEX_LABEL] == "1"
    assert {*looked} == {"x"}


def test_a_failed_pod_that_must_wait_is_not_forgotten(kube: Kube, operator: mo.Operator) -> None:
    kube.create()
    rest(operator, kube, "x-0")
    memory = operator.scopes[0].memories[kube.get()["metadata"]["uid"]]
    memory.replaced.wait_longer(time.monotonic())
    kube.set_pod_status("x-0", phase="Failed")
    before = kube.uids()
    settle(operator)
    assert kube.uids() == before
    memory.replaced.forget()
    settle(operator)
    assert kube.uids() != before


def test_writes_under_way_at_the_end_of_a_pass_are_waited_for(kube: Kube, wire: Wire) -> None:
    """Else their Milvus would sit out the next pass: what that lists of it may be old."""
    operator = new_operator(kube, server=wire.url)
    kube.create(replicas=1)
    milvus, memory = (
        operator.cluster.list_all(operator.cluster.milvuses, kube.ns, operator.turn, mo.slim_milvus)[0],
        mo.Memory(),
    )
    operator.work([mo.Plan(milvus, [], memory)], time.monotonic() + 0.001)
    assert (memory.writing, kube.names()) == (0, ["x-0"])


def one_pass(operator: mo.Operator, kube: Kube, seconds: float) -> None:
    found, wanted = operator.cluster.snapshot(kube.ns, operator.turn)
    operator.work(list(operator.plans(operator.scopes[0], found, wanted)), time.monotonic() + seconds)


def test_nothing_is_begun_when_the_time_is_up(kube: Kube, operator: mo.Operator) -> None:
    kube.create()
    one_pass(operator, kube, seconds=0)
    assert kube.names() == []


def answer_late(wire: Wire, answer: Callable[[Handler], None]) -> None:
    """Answer the creation of a-0 in the middle of the pass that creates the pods of b."""
    go, answered = threading.Event(), threading.Event()

    def fault(handler: Handler, verb: str, path: str) -> bool:
        if verb != "POST" or "/pods" not in path:
            return False
        if b'"name": "a-0"' in handler.seen:
            go.wait(20)
            answer(handler)
            answered.set()
            return True
        if b'"name": "b-0"' in handler.seen:
            go.set()
        elif b'"name": "b-' in handler.seen:
            answered.wait(20)
        return False

    wire.fault = fault


def test_what_was_to_follow_a_write_that_outlives_its_pass_is_left_to_fresh_lists(kube: Kube, wire: Wire) -> None:
    """And the next pass does not take the write for one of its own."""

    def forward(handler: Handler) -> None:
        answer = handler.forward()
        handler.answer(answer.status, answer.data)

    answer_late(wire, forward)
    operator = new_operator(kube, server=wire.url)
    kube.create("a", replicas=3)
    one_pass(operator, kube, seconds=0.05)
    kube.change("a", replicas=1)
    kube.create("b", replicas=20)
    operator.run_pass(once=True)
    assert kube.names() == sorted(["a-0", *(f"b-{i}" for i in range(20))])
    assert kube.status("b")["replicas"] == 20, "that pass has waited for all of its own"


def test_a_failure_in_the_middle_of_the_next_pass_is_told_by_the_one_after(kube: Kube, wire: Wire) -> None:
    answer_late(wire, lambda handler: handler.answer(500, b'{"kind":"Status","message":"the webhook is slow"}'))
    operator = new_operator(kube, server=wire.url)
    kube.create("a")
    one_pass(operator, kube, seconds=0.05)
    kube.create("b", replicas=20)
    operator.run_pass(once=True)
    wire.fault = None
    operator.run_pass(once=True)
    assert kube.condition("Reconciled", "a")["message"] == "the webhook is slow"


def test_a_failure_whose_status_has_to_wait_is_told_by_the_next_pass(kube: Kube, operator: mo.Operator) -> None:
    plan = mo.Plan(kube.create(), [], mo.Memory())
    plan.failure, plan.closed = mo.Words("APIError", "not now"), True
    operator.closing.append(plan)
    operator.end([plan])
    assert plan.memory.late == mo.Words("APIError", "not now")


def test_the_milvus_that_waits_longest_goes_first(kube: Kube, operator: mo.Operator) -> None:
    kube.create("a")
    operator.run_pass(once=True)
    kube.change("a", replicas=2)
    kube.create("b")
    looked: list[str] = []
    real = operator.go_on

    def go_on(plan: mo.Plan) -> None:
        looked.append(mo.name_of(plan.milvus))
        real(plan)

    operator.go_on = go_on  # type: ignore[method-assign]  # to see what is looked at
    operator.run_pass(once=True)
    assert looked[0] == "b"


def test_a_failure_at_the_end_of_a_pass_is_told_by_the_next(kube: Kube, wire: Wire) -> None:
    """As of a webhook that takes as long as the interval: each of its failures comes when the pass is over."""
    wire.spoil("POST", "/pods", 500, b'{"kind":"Status","message":"the webhook is slow"}', after=0.1)
    operator = new_operator(kube, server=wire.url)
    kube.create()
    for _ in range(4):  # it is tried and told in turn, although nothing changes
        one_pass(operator, kube, seconds=0.05)
        operator.drain(1)
    assert kube.condition("Reconciled")["message"] == "the webhook is slow"
    wire.fault = None
    for _ in range(2):
        one_pass(operator, kube, seconds=5)
    assert kube.names() == ["x-0"]


def test_an_invalid_milvus_at_rest_fails_every_once(kube: Kube, operator: mo.Operator) -> None:
    kube.create(milvusSpec="proxy.port: 1")
    assert not operator.run_once()
    assert not operator.run_once()


def test_a_list_that_fails_is_asked_for_again_after_longer_and_longer_waits(kube: Kube, wire: Wire) -> None:
    """And no pass is a good one before it is read."""
    operator = new_operator(kube, server=wire.url)
    scope, waits, good = operator.scopes[0], [], operator.good
    wire.spoil("GET", "/pods", 500, b'{"kind": "Status", "message": "not now"}')
    for _ in range(7):
        assert not operator.run_pass()
        waits.append(scope.failures.delay)
    assert waits == [1, 2, 4, 8, 16, 30, 30]
    wire.fault = None
    mo.Operator.run_pass(operator)  # the next pass of one that is patient
    assert wire.requests == [], "it is not due"
    assert operator.good == good
    assert operator.run_pass()
    assert (scope.failures.delay, operator.good > good) == (0, True)
    assert scope.due <= time.monotonic() + operator.interval


def test_a_list_that_fails_half_way_again_and_again_keeps_nothing(
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
    kept = sum(len(pages) for pages in operator.cluster.pages.values())
    for replicas in range(2, 7):
        kube.change("a", replicas=replicas)
        assert not operator.run_pass(once=True)
    assert sum(len(pages) for pages in operator.cluster.pages.values()) <= kept + 1
    assert kube.names() == ["a-0", "b-0"], "half a list is no list"


def test_the_password_of_a_server_is_not_told(kube: Kube) -> None:
    api = client(kube.plane, server="https://somebody:hunter2@example.com:6443")
    assert mo.Cluster(api).server == "https://example.com:6443"


@pytest.mark.parametrize("levels", [600, 950])
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


def test_what_is_told_and_what_is_in_trouble_does_not_add_up(kube: Kube, operator: mo.Operator) -> None:
    milvus, memory = kube.create(), mo.Memory()
    for number in range(30):
        event = mo.new_event(milvus, "Created", str(number), False, "")
        operator.event_written(event, memory, "create events", 1, f"x-{number}", None)
    assert [note for _, note in memory.events] == [str(number) for number in range(10, 30)]
    for about in ("long ago", "lately"):
        operator.trouble(about, f"not {about}")
    operator.troubles["long ago"] = operator.troubles["long ago"]._replace(seen=time.monotonic() - 601)
    operator.report(time.monotonic())
    assert [*operator.troubles] == ["lately"]


def test_what_was_in_trouble_is_tried_by_one_for_all(operator: mo.Operator) -> None:
    operator.trouble("it", "not it", rest=1000)
    assert not operator.may_try("it")
    operator.trouble("it", "not it")
    assert operator.may_try("it")
    assert not operator.may_try("it"), "the next one waits for what the first finds out"
    operator.fine("it")
    assert operator.may_try("it")
    assert operator.may_try("it")


def test_the_loop_collects_what_a_pass_leaves_behind(operator: mo.Operator) -> None:
    left: list[weakref.ref[Any]] = []
    operator.interval = 0.01

    class Circle:
        def __init__(self) -> None:
            self.itself = self

    def run_pass(once: bool = False) -> bool:
        assert not [ref for ref in left if ref()]
        left.append(weakref.ref(Circle()))
        if len(left) == 3:
            raise mo.Stopped
        return mo.Operator.run_pass(operator, once)

    operator.run_pass = run_pass  # type: ignore[method-assign]  # to leave something behind
    gc.disable()
    try:
        with pytest.raises(mo.Stopped):
            operator.run()
    finally:
        gc.enable()


def test_nothing_that_a_pass_made_outlives_the_next_collection(kube: Kube, operator: mo.Operator) -> None:
    """The command collects between passes, and not otherwise: objects must not add up."""
    kube.create(replicas=3)
    sizes = []
    gc.disable()
    try:
        for _ in range(8):
            if kube.pod("x-0"):
                kube.delete_pod("x-0")
            for _ in range(10):
                operator.run_pass(once=True)
            gc.collect()
            sizes.append(len(gc.get_objects()))
    finally:
        gc.enable()
    assert sizes[-1] - sizes[3] < 200, sizes
