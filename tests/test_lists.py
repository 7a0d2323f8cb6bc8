"""How the lists are read: in pages, and never in part."""

import io
import json
import re
import tempfile
import tracemalloc
from collections.abc import Callable

import pytest
from urllib3 import HTTPResponse

from tests.lib.front import Obj, Request, http_response
from tests.lib.world import World, at_rest, milvus


def relist(world: World, resource: str, write: Callable[[Obj], bytes]) -> None:
    """From now on, the server writes its lists in another way."""

    def do(request: Request) -> HTTPResponse:
        return http_response(200, write(json.loads(world.server.served(request).data)))

    world.server.when("list", resource, do)


def test_pods_and_claims_are_listed_by_our_labels_before_the_milvus_and_all_of_them() -> None:
    world = World(*[milvus(f"m{number}", replicas=0) for number in range(250)])
    world.passes()
    lists = [f"{one.resource}?{one.query.get('labelSelector')}" for one in world.server.journal[:6]]
    assert lists == [
        "pods?app.kubernetes.io/managed-by=milvus-polling-operator",
        "persistentvolumeclaims?zilliz.com/milvus",
        *["milvuses?None"] * 4,
    ]
    assert {one.query["limit"] for one in world.requests("list", "milvuses")} == {"80"}
    assert len(world.requests("patch", "milvuses/status")) == 250


def memory_of_lists(world: World, resource: str, items: list[bytes], text: bytes) -> float:
    """The MiB that two passes take if a list has these items, with this text for "MARK"; the
    response is in a file, not in memory."""

    def respond(request: Request) -> HTTPResponse:
        start = int(request.query.get("continue", 0))
        end = start + int(request.query["limit"])
        more = b'"continue": "%d"' % end if items[end:] else b""
        page = b'{"metadata": {%b}, "items": [%b]}' % (more, b",".join(items[start:end]))
        with tempfile.NamedTemporaryFile() as file:
            for part in re.split(b'("MARK")', page):
                file.write(text if part == b'"MARK"' else part)
            file.flush()
            body = io.FileIO(file.name)
        return HTTPResponse(body, status=200, preload_content=False)

    world.server.when("list", resource, respond)
    tracemalloc.start()
    world.passes(2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / (1 << 20)


def test_large_pods_are_listed_in_small_pages_within_300_mib() -> None:
    """A process without any pods has less than 100 MiB; etcd takes objects of up to 1.5 MiB."""
    pod = '{"metadata": {"uid": "u", "resourceVersion": "1", "namespace": "a", "name": "a-%d"%s}}'
    large = ', "annotations": {"a": "MARK"}'
    pods = [(pod % (number, large if 30 <= number < 90 else "")).encode() for number in range(130)]
    text = b'"%b"' % (b"x" * (1300 << 10) + "😀".encode())
    world = World()
    assert memory_of_lists(world, "pods", pods, text) < 200
    assert world.warnings == []
    asked = [request.query for request in world.requests("list", "pods")]
    assert "1" in {query["limit"] for query in asked}
    assert int(asked[-1]["limit"]) > 4, "the last pods are small"


def test_specs_of_more_than_128_kib_are_invalid_and_take_bounded_memory() -> None:
    """Empty lists take thirty times as much memory as their JSON."""
    wide = [milvus(f"wide-{number}", pod={"spec": {"a": "MARK"}}) for number in range(12)]
    world = World(milvus("fits", milvusSpec="#" * (127 << 10)), *wide)
    world.add(milvus("long", milvusSpec="#" * (128 << 10)))
    items = [json.dumps(item).encode() for item in world.server.all_of("milvuses")]
    text = b"[%b]" % b",".join([b"[]"] * 430_000)
    assert memory_of_lists(world, "milvuses", items, text) < 200
    assert world.pods() == ["fits-0"]
    assert {world.reason(name) for name in ("wide-0", "wide-11", "long")} == {"Invalid"}
    assert world.reason("fits") == "Reconciled"


@pytest.mark.platform
@pytest.mark.parametrize("levels", [100, 400, 5000])
def test_a_spec_that_is_nested_too_deeply_harms_no_other(levels: int) -> None:
    other = milvus("y", pod={"metadata": {"annotations": {"a": ']}"{'}}})
    world = World(milvus("deep", pod={"spec": {"a": "DEEP"}}), other)
    deep = b'{"a":[' * levels + b"{}" + b"]}" * levels
    relist(world, "milvuses", lambda page: json.dumps(page).encode().replace(b'"DEEP"', deep))
    world.passes(3)
    assert "y-0" in world.pods()
    assert world.reason("y") == "Reconciled"
    assert all(line.startswith("milvus test/deep: ") for line in world.warnings)


@pytest.mark.parametrize("cut", [2, 40, 150, 1000])
def test_a_list_whose_last_page_ends_early_is_not_used(cut: int) -> None:
    world = at_rest(*[milvus(f"m{number:02}", replicas=0) for number in range(82)])
    world.change("m00", replicas=1)

    def write(page: Obj) -> bytes:
        body = json.dumps(page).encode()
        return body if "continue" in page["metadata"] else body[:-cut]

    relist(world, "milvuses", write)
    world.operator = world.new_operator()
    assert not world.operator.run_once()
    (line,) = world.warnings
    assert line.startswith("requests to http://memory fail: ")
    assert world.writes() == []


@pytest.mark.parametrize("body", [b'{"items": [{}]}', b'{"items": [7]}', b"[]", b"<html>"])
def test_an_odd_list_does_not_stop_the_loop(body: bytes) -> None:
    world = at_rest(milvus("x"))
    rule = world.server.when("list", "pods", lambda _: http_response(200, body))
    world.passes(2)
    assert len(world.warnings) == 1, "once, and in one line"
    assert world.writes() == []
    world.server.rules.remove(rule)
    world.passes()
    assert world.log[-2].startswith("resolved: ")
