"""How the lists are read: in pages, in any notation, and never in part."""

import json
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from urllib3 import HTTPResponse

from tests.lib.front import Obj, Request, answer
from tests.lib.world import World, at_rest, milvus


def relist(world: World, resource: str, write: Callable[[Obj], bytes]) -> None:
    """From now on, the server writes its lists in another way."""

    def do(request: Request) -> HTTPResponse:
        return answer(200, write(json.loads(world.server.served(request).data)))

    world.server.when("list", resource, do)


def limits(world: World, resource: str) -> list[int]:
    return [int(request.query["limit"]) for request in world.requests("list", resource)]


def test_pods_and_claims_are_listed_by_our_labels_before_the_milvus_and_all_of_them() -> None:
    world = World(*[milvus(f"m{number}", replicas=0) for number in range(250)])
    world.passes()
    lists = [(one.resource, one.query.get("labelSelector")) for one in world.server.journal[:3]]
    ours = "app.kubernetes.io/managed-by=milvus-polling-operator"
    claims = ("persistentvolumeclaims", "zilliz.com/milvus")
    assert lists[:2] == [("pods", ours), claims]
    assert lists[2][0] == "milvuses"
    assert limits(world, "milvuses") == [80] * 4
    assert len(world.requests("patch", "milvuses/status")) == 250


class Lazy:
    """A body that is never in memory as a whole."""

    closed = False

    def __init__(self, parts: Iterable[bytes]) -> None:
        self.parts = iter(parts)

    def read(self, most: int | None = None) -> bytes:
        body = bytearray()
        while (not most or len(body) < most) and (part := next(self.parts, b"")):
            body += part
        return bytes(body[:most])

    def close(self) -> None:
        pass


def memory_of_lists(world: World, resource: str, items: Sequence[tuple[bytes, ...]]) -> float:
    """The MiB that two passes take if the server has these items, as JSON in parts."""

    def answer(request: Request) -> HTTPResponse:
        start = int(request.query.get("continue", 0))
        end = start + int(request.query["limit"])
        more = b'"continue": "%d"' % end if items[end:] else b""
        page = [part for item in items[start:end] for part in (b",", *item)][1:]
        body: Any = Lazy([b'{"metadata": {%b}, "items": [' % more, *page, b"]}"])
        return HTTPResponse(body, status=200, preload_content=False)

    rule = world.server.when("list", resource, answer)
    tracemalloc.start()
    world.passes(2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    world.server.rules.remove(rule)
    return peak / (1 << 20)


@pytest.mark.parametrize(("small", "large"), [(0, 40), (70, 60)])
def test_large_pods_are_listed_in_small_pages_within_300_mib(small: int, large: int) -> None:
    """A process without any pods has less than 100 MiB; etcd takes objects of up to 1.5 MiB."""
    text = b'", "annotations": {"a": "%b"}}}' % (b"x" * (1300 << 10) + "😀".encode())
    pods = [
        (b'{"metadata": {"uid": "u", "resourceVersion": "1", "namespace": "test", "name": "a-%d' % i,
         text if i >= small else b'"}}')
        for i in range(small + large)
    ]  # fmt: skip
    world = World()
    assert memory_of_lists(world, "pods", pods) < 200
    assert world.troubles == []
    assert world.requests("list", "pods")[-1].query["continue"] >= str(small + large - 4)
    assert min(limits(world, "pods")) == 1


def test_specs_of_more_than_128_kib_are_invalid_and_take_bounded_memory() -> None:
    """Empty lists take thirty times as much memory as their JSON."""
    large = [milvus(f"wide-{number}", pod={"spec": {"a": "MARK"}}) for number in range(12)]
    world = World(milvus("fits", milvusSpec="#" * (127 << 10)), *large)
    world.add(milvus("long", milvusSpec="#" * (128 << 10)))
    items = [json.dumps(item).encode() for item in world.server.all_of("milvuses")]
    wide = b"[%b]" % b",".join([b"[]"] * 430_000)
    parts = [tuple(item.replace(b'"MARK"', b"\n%b\n" % wide).split(b"\n")) for item in items]
    assert memory_of_lists(world, "milvuses", parts) < 200
    assert world.pods() == ["fits-0"]
    assert {world.reason(name) for name in ("wide-0", "wide-11", "long")} == {"Invalid"}
    assert world.reason("fits") == "Reconciled"


@pytest.mark.parametrize("levels", [100, 400, 5000])
def test_a_spec_that_is_nested_too_deeply_harms_no_other(levels: int) -> None:
    world = World(milvus("deep", pod={"spec": {"a": "DEEP"}}), milvus("y"))
    deep = b'{"a":' * levels + b"{}" + b"}" * levels
    relist(world, "milvuses", lambda page: json.dumps(page).encode().replace(b'"DEEP"', deep))
    world.passes(3)
    assert "y-0" in world.pods()
    assert world.reason("y") == "Reconciled"
    assert [line for line in world.troubles if not line.startswith("milvus test/deep: ")] == []


@pytest.mark.parametrize(
    "write",
    [
        lambda page: json.dumps(page, indent=2),
        lambda page: json.dumps(page, separators=(" ,  ", " : ")),
        lambda page: json.dumps({"items": page.pop("items"), **page}),
    ],
    ids=["indented", "far apart", "items first"],
)
def test_a_list_is_read_in_any_notation(write: Callable[[Obj], str]) -> None:
    world = at_rest(milvus("x", replicas=90))
    relist(world, "*", lambda page: write(page).encode())
    world.operator = world.new_operator()
    world.passes()
    assert (world.writes(), world.troubles) == ([], [])


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
    world = at_rest(*[milvus(f"m{number:02}", replicas=0) for number in range(82)])
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
