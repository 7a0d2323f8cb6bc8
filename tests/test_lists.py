"""How the lists are read: in pages, in any notation, and never in part."""

import json
import tracemalloc
from collections.abc import Callable
from unittest.mock import Mock

import pytest
from urllib3 import HTTPResponse

import milvus_operator as mo
from tests.lib.front import Obj, Request, answer
from tests.lib.world import World, at_rest, milvus, pod


def relist(world: World, resource: str, write: Callable[[Obj], bytes]) -> None:
    """From now on, the server writes its lists in another way."""

    def do(request: Request) -> HTTPResponse:
        return answer(200, write(json.loads(world.server.served(request).data)))

    world.server.when("list", resource, do)


def limits(world: World, resource: str) -> list[int]:
    return [int(request.query["limit"]) for request in world.requests("list", resource)]


def test_pods_are_listed_by_our_label_before_the_milvus_whose_first_page_is_small() -> None:
    world = World(*[milvus(f"m{number}", replicas=0) for number in range(250)])
    world.passes()
    first = world.server.journal[0]
    label = "app.kubernetes.io/managed-by=milvus-polling-operator"
    assert (first.resource, first.query) == ("pods", {"labelSelector": label, "limit": "10"})
    assert limits(world, "milvuses") == [10, 20, 40, 80, 80, 80]
    assert len(world.requests("patch", "milvuses/status")) == 250


def test_a_hundred_and_fifty_large_pods_are_listed_in_small_pages_within_300_mib() -> None:
    """A process without any pods has less than 100 MiB; etcd takes objects of up to 1.5 MiB. A page
    should weigh four MiB at most."""
    annotations = {f"key-{number}": "x" * 1000 for number in range(1300)}
    labels = {mo.MANAGED_BY_LABEL: mo.MANAGER}
    world = World()
    for number in range(150):
        world.add(pod(f"x-{number}", labels=labels, annotations=annotations))
    tracemalloc.start()
    world.passes(2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "pass over 0 Milvus resource(s) and 150 pod(s)" in world.log[0]
    assert peak < 200 << 20
    assert {*limits(world, "pods")} <= {2, 3, 4, 5, 10}, "10 is the first"


@pytest.mark.parametrize(
    "write",
    [
        lambda page: json.dumps(page, indent=2).encode(),
        lambda page: json.dumps(page, separators=(" ,  ", " : ")).encode(),
        lambda page: json.dumps({"items": page.pop("items"), **page}).encode(),
    ],
    ids=["indented", "far apart", "items first"],
)
def test_a_list_is_read_in_any_notation(write: Callable[[Obj], bytes]) -> None:
    world = at_rest(milvus("x", replicas=12))
    relist(world, "*", write)
    world.operator = world.new_operator()
    world.passes()
    assert world.log == ["pass over 1 Milvus resource(s) and 12 pod(s): nothing written, 0.00 s"]


def test_a_list_that_ends_early_is_an_error() -> None:
    world = at_rest(milvus("x", replicas=2))
    cut = 1
    relist(world, "milvuses", lambda page: json.dumps(page).encode()[:-cut])
    for cut in (*range(2, 200, 9), 1000):
        world.operator = world.new_operator()
        world.forget()
        assert not world.operator.run_once(), cut
        (line,) = world.troubles
        assert line.startswith("requests to http://memory fail: "), cut
        assert world.writes() == []


@pytest.mark.parametrize("body", [b'{"items": [{}]}', b'{"items": [7]}', b"[]", b"7", b"<html>"])
def test_an_odd_list_does_not_stop_the_loop(body: bytes) -> None:
    world = at_rest(milvus("x"))
    rule = world.server.when("list", "pods", lambda _: answer(200, body))
    world.passes(2)
    assert len(world.troubles) == 1, "once, and in one line"
    assert world.writes() == []
    world.server.rules.remove(rule)
    world.passes()
    assert world.log[-2].startswith("resolved: ")


def test_a_list_of_which_a_later_page_is_too_old_is_not_used() -> None:
    world = at_rest(*[milvus(f"m{number:02}", replicas=0) for number in range(12)])
    world.change("m00", replicas=1)

    def expire(request: Request) -> HTTPResponse | None:
        is_later = "continue" in request.query
        return answer(410, {"kind": "Status", "reason": "Expired"}) if is_later else None

    rule = world.server.when("list", "milvuses", expire)
    world.passes(3)
    assert world.pods() == []
    (line,) = world.troubles
    assert "cannot list milvuses" in line
    world.server.rules.remove(rule)
    world.passes()
    assert world.pods() == ["m00-0"]


def test_only_pages_that_changed_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = at_rest(milvus("x", replicas=30))
    slim_pod = Mock(wraps=mo.slim_pod)
    monkeypatch.setattr(mo, "slim_pod", slim_pod)
    world.passes(3)
    assert not slim_pod.called
    world.remove("pods", "x-29")
    world.passes()
    parsed = {mo.name_of(call.args[0]) for call in slim_pod.call_args_list}
    assert "x-28" in parsed
    assert "x-0" not in parsed
    world.settle()
    assert len(world.pods()) == 30
