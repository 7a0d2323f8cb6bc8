"""How the lists are read: in pages, and never in part."""

import io
import json
import re
import tempfile
import tracemalloc
from collections.abc import Callable
from typing import NamedTuple

import pytest
from urllib3 import HTTPResponse

import milvus_operator as mo
from tests.lib.front import Obj, Request, http_response
from tests.lib.world import World, at_rest, milvus


def rewrite_lists(world: World, write: Callable[[bytes], bytes]) -> None:
    """From now on, the server's lists of Milvus are written in another way."""

    def do(request: Request) -> HTTPResponse:
        body = world.server.served(request).data
        return http_response(200, write(body))

    world.server.when("list", "milvuses", do)


def test_what_is_ours_is_listed_by_our_label_before_the_milvus_and_all_of_them() -> None:
    several = [milvus(f"m{number}", replicas=0) for number in range(2 * mo.PAGE + 1)]
    world = at_rest(*several)
    world.passes()
    lists = [f"{one.resource}?{one.query.get('labelSelector')}" for one in world.server.journal]
    assert lists == [
        "pods?zilliz.com/milvus",
        "persistentvolumeclaims?zilliz.com/milvus",
        *["services?zilliz.com/milvus"] * 3,
        *["milvuses?None"] * 3,
    ]
    assert len(world.server.journal) == 8


class Memory(NamedTuple):
    """In MiB."""

    kept: float
    peak: float


def memory_of_lists(world: World, resource: str, items: list[bytes], text: bytes) -> Memory:
    """What two passes take if a list has these items, with this text for "MARK"; the response is in
    a file, not in memory."""

    def respond(request: Request) -> HTTPResponse:
        start = int(request.query.get("continue", 0))
        end = start + int(request.query["limit"])
        more = b'"continue": "%d"' % end if items[end:] else b""
        page = b'{"metadata": {%b}, "items": [%b]}' % (more, b",".join(items[start:end]))
        with tempfile.NamedTemporaryFile() as file:
            for part in re.split(b'("MARK")', page):
                is_mark = part == b'"MARK"'
                file.write(text if is_mark else part)
            file.flush()
            body = io.FileIO(file.name)
        return HTTPResponse(body, status=200, preload_content=False)

    world.server.when("list", resource, respond)
    tracemalloc.start()
    world.passes(2)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return Memory(kept / (1 << 20), peak / (1 << 20))


def test_large_pods_are_listed_in_small_pages_within_300_mib() -> None:
    """A process without any pods has less than 100 MiB; etcd takes objects of up to 1.5 MiB."""
    small = b'{"metadata": {"namespace": "a", "name": "a", "annotations": {"a": ""}}}'
    large = small.replace(b'""', b'"MARK"')
    pods = [small] * 30 + [large] * 60 + [small] * 40
    text = f'"{"x" * 1_300_000}😀"'.encode()
    world = World()
    assert memory_of_lists(world, "pods", pods, text).peak < 200
    assert world.warnings == []
    lists = world.requests("list", "pods")
    limits = [int(request.query["limit"]) for request in lists]
    assert min(limits) <= 3
    assert limits[-1] > 4, "the last pods are small"
    assert len(limits) < 200, "a page grows slowly after a heavy one"


def test_where_all_pods_are_heavy_only_the_first_page_is_asked_for_twice() -> None:
    """As with sidecars and long managed fields."""
    pod = b'{"metadata": {"namespace": "a", "name": "a", "annotations": {"a": "MARK"}}}'
    world = World()
    memory_of_lists(world, "pods", [pod] * 600, b'"%b"' % (b"x" * 20_000))
    lists = world.requests("list", "pods")
    limits = [int(request.query["limit"]) for request in lists]
    assert limits == 2 * [mo.PAGE, 62, *[124] * 5]


def test_specs_of_more_than_128_kib_are_invalid_and_take_bounded_memory() -> None:
    """Empty lists take thirty times as much memory as their JSON."""
    overlay = {"spec": "MARK"}
    wide = [milvus(f"wide-{number}", pod=overlay) for number in range(12)]
    world = World(*wide)
    for name, words in {
        "fits": "#" * 130_000,
        "long": "#" * 132_000,
        "bytes": "é" * 70_000,
    }.items():
        world.add(milvus(name, milvusSpec=f"# {words}"))
    milvuses = world.server.all_of("milvuses")
    items = [json.dumps(item).encode() for item in milvuses]
    text = b"[%b[]]" % (b"[]," * 430_000)
    assert memory_of_lists(world, "milvuses", items, text).peak < 200
    assert world.pods() == ["fits-0"]
    for name in ("wide-0", "wide-11", "long", "bytes"):
        assert world.reason(name) == "Invalid"
    assert world.reason("fits") == "Reconciled"


def test_a_status_of_more_than_128_kib_is_not_kept_but_written_anew() -> None:
    """Under an older CRD, anybody may write one who may write a spec."""
    world = World(*(milvus(f"m{number}", replicas=0) for number in range(12)))
    items = [
        json.dumps(one | {"status": {"a": "MARK"}}).encode()
        for one in world.server.all_of("milvuses")
    ]
    memory = memory_of_lists(world, "milvuses", items, b"[%b[]]" % (b"[]," * 430_000))
    assert memory.kept < 20
    assert memory.peak < 200
    assert world.reason("m11") == "Reconciled"


def test_a_spec_takes_no_more_memory_for_one_character_that_is_not_ascii() -> None:
    """Python keeps each character of such a text in four bytes."""
    world = World()
    many = [milvus(f"m{number}", replicas=0, milvusSpec="MARK") for number in range(100)]
    for one in many:
        world.add(one)
    items = [json.dumps(one).encode() for one in world.server.all_of("milvuses")]
    text = f'"# {"x" * 120_000}😀"'.encode()
    assert 10 < memory_of_lists(world, "milvuses", items, text).kept < 20
    assert world.warnings == []


def test_an_odd_claim_harms_no_other_milvus() -> None:
    """No API server would accept one that requests nothing."""
    world = at_rest(milvus("x"), milvus("y", storage={"size": "1Gi"}))
    world.server.ask("patch", "persistentvolumeclaims", "data-y-0", {"spec": {"resources": None}})
    world.remove("pods", "x-0")
    world.passes(2)
    assert world.pods() == ["x-0", "y-0"]


def test_of_labels_and_annotations_only_what_is_read_is_kept() -> None:
    """A thousand pods with 200 KB of each."""
    world = World(milvus("x", replicas=0))
    items = [
        b'{"metadata": {"namespace": "test", "name": "y-%d", "uid": "%d", "resourceVersion": "1", '
        b'"labels": {"zilliz.com/milvus": "y", "a": "MARK"}, "annotations": {"b": "MARK"}, '
        b'"ownerReferences": [{"uid": "c", "name": "MARK"}]}}' % (number, number)
        for number in range(1000)
    ]
    assert memory_of_lists(world, "pods", items, b'"%b"' % (b"x" * 100_000)).kept < 10


def test_of_many_specs_that_fit_none_is_kept_parsed() -> None:
    """Of 150 such specs, the parsed ones would take more memory than the pod may have."""
    world = World(*[milvus(f"wide-{number}", replicas=0, pod="MARK") for number in range(25)])
    items = [json.dumps(item).encode() for item in world.server.all_of("milvuses")]
    text = b'{"spec": {"tolerations": [%b[]]}}' % (b"[]," * 20_000)
    assert memory_of_lists(world, "milvuses", items, text).kept < 15
    assert world.reason("wide-0") == "Reconciled"


@pytest.mark.platform
@pytest.mark.parametrize("levels", [100, 400, 5000])
def test_a_spec_that_is_nested_too_deeply_harms_no_other(levels: int) -> None:
    other = milvus("y", milvusSpec='# "' + "{[" * 60)
    world = World(milvus("deep", pod="DEEP"), other)
    deep = b'{"a":[' * levels + b"{}" + b"]}" * levels
    rewrite_lists(world, lambda body: body.replace(b'"DEEP"', deep))
    world.passes(3)
    assert "y-0" in world.pods()
    assert world.reason("y") == "Reconciled"
    (line,) = world.warnings or ["milvus test/deep: "]
    left_out = "one of the milvuses in namespace test is nested too deeply"
    assert line.startswith(("milvus test/deep: ", left_out))


@pytest.mark.parametrize("cut", [2, 40, 150, 1000])
def test_a_list_whose_last_page_ends_early_is_not_used(cut: int) -> None:
    several = [milvus(f"m{number:02}", replicas=0) for number in range(82)]
    world = at_rest(*several)
    world.change("m00", replicas=1)

    def write(body: bytes) -> bytes:
        return body if b"continue" in body else body[:-cut]

    rewrite_lists(world, write)
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


def test_of_what_others_write_into_an_object_little_is_kept() -> None:
    long = "x" * 100_000
    owner = {"apiVersion": "v1", "kind": long, "name": long, "uid": long, "controller": True}
    written: Obj = {"ownerReferences": [owner], "labels": {long: long}}
    written["finalizers"] = ["x" * 317] * 99  # an API server accepts no longer ones
    written["annotations"] = {mo.TEMPLATE_HASH: long, long: long}
    kept = mo.slim({"metadata": {"name": "x"} | written})
    assert len(json.dumps(kept)) < 4000
