"""The shell: how lists are read, and what is kept of them."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Kube, eventually, new_operator, rest, settle
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


def test_a_failure_at_the_end_of_a_pass_is_told_by_the_next(kube: Kube, wire: Wire) -> None:
    """As of a webhook that takes as long as the interval: each of its failures comes when the pass is over."""
    wire.spoil("POST", "/pods", 500, b'{"kind":"Status","message":"the webhook is slow"}', after=0.1)
    operator = new_operator(kube, server=wire.url)
    kube.create()

    def one_pass() -> None:
        found, wanted = operator.cluster.snapshot(kube.ns, operator.turn)
        operator.work(list(operator.plans(operator.scopes[0], found, wanted)), time.monotonic() + 0.05)
        operator.drain(1)

    one_pass()
    one_pass()
    assert kube.condition("Reconciled")["message"] == "the webhook is slow"


def test_an_invalid_milvus_at_rest_fails_every_once(kube: Kube, operator: mo.Operator) -> None:
    kube.create(milvusSpec="proxy.port: 1")
    assert not operator.run_once()
    assert not operator.run_once()


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
