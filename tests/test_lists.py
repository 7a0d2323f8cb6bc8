"""How the lists are read: in pages, in any notation, and never in part."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from kubernetes.client import ApiClient, Configuration
from urllib3 import HTTPResponse

import milvus_operator as mo
from tests.lib.front import Obj, Request, answer
from tests.lib.world import World, milvus, pod


def many(count: int) -> list[Obj]:
    return [milvus(f"m{number:03}", replicas=0) for number in range(count)]


def relist(world: World, resource: str, write: Callable[[Obj], bytes]) -> None:
    """From now on, the server writes its lists in another way."""

    def do(request: Request) -> HTTPResponse:
        return answer(200, write(json.loads(world.server.served(request).data)))

    world.server.when("list", resource, do)


def limits(world: World, resource: str) -> list[int]:
    return [int(request.query["limit"]) for request in world.requests("list", resource)]


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the pods that are parsed."""
    names: list[str] = []
    real = mo.slim_pod

    def slim_pod(pod: Obj) -> Obj:
        names.append(mo.name_of(pod))
        return real(pod)

    monkeypatch.setattr(mo, "slim_pod", slim_pod)
    return names


def test_pods_are_listed_by_our_label_and_before_the_milvus() -> None:
    world = World(milvus("x"))
    world.passes()
    first, second = world.server.journal[:2]
    assert (first.resource, second.resource) == ("pods", "milvuses")
    label = "app.kubernetes.io/managed-by=milvus-polling-operator"
    assert first.query == {"labelSelector": label, "limit": "10"}
    assert second.query == {"limit": "10"}


def test_the_first_page_is_small_and_the_others_grow() -> None:
    world = World(*many(400))
    world.passes()
    assert limits(world, "milvuses") == [10, 20, 40, 80, 80, 80, 80, 80]
    assert len(world.requests("patch", "milvuses/status")) == 400


def test_large_objects_are_listed_in_small_pages() -> None:
    """A page should weigh four MiB at most, whatever is in the pods."""
    world = World()
    heavy = {"annotations": {"much": "x" * (1 << 20)}, "labels": {mo.MANAGED_BY_LABEL: mo.MANAGER}}
    for number in range(20):
        world.add(pod(f"p-{number}", **heavy))
    world.passes()
    first, *others = limits(world, "pods")
    assert first == 10
    assert 2 <= min(others) <= max(others) <= 5


@pytest.mark.parametrize(
    "write",
    [
        lambda page: json.dumps(page, indent=2).encode(),
        lambda page: json.dumps(page, separators=(" ,  ", " : ")).encode(),
        lambda page: json.dumps({"items": page.pop("items"), **page}).encode(),
        lambda page: json.dumps({**page, "items": page.pop("items")}).encode(),
    ],
    ids=["indented", "far apart", "items first", "items last"],
)
def test_a_list_is_read_in_any_notation(write: Callable[[Obj], bytes]) -> None:
    world = World(milvus("x", replicas=12))
    world.settle()
    relist(world, "*", write)
    world.operator = world.new_operator()
    world.forget()
    world.passes()
    assert world.log == ["pass over 1 Milvus resource(s) and 12 pod(s): nothing written, 0.00 s"]


@pytest.mark.parametrize("resource", ["pods", "milvuses"])
def test_a_list_that_ends_early_is_an_error(resource: str) -> None:
    world = World(milvus("x", replicas=2))
    world.settle()
    cut = 1
    relist(world, resource, lambda page: json.dumps(page).encode()[:-cut])
    for cut in (*range(2, 200, 9), 1000):
        world.operator = world.new_operator()
        world.forget()
        assert not world.operator.run_once(), cut
        (line,) = world.troubles
        assert line.startswith("requests to http://memory fail: "), cut
        assert world.writes() == []


def test_a_list_of_which_a_later_page_is_too_old_is_not_used() -> None:
    world = World(*many(12))
    world.settle()
    world.change("m000", replicas=1)

    def expire(request: Request) -> HTTPResponse | None:
        is_later = "continue" in request.query
        return answer(410, {"kind": "Status", "reason": "Expired"}) if is_later else None

    rule = world.server.when("list", "milvuses", expire)
    world.passes(3)
    assert world.pods() == []
    assert [line for line in world.troubles if "cannot list milvuses" in line] == world.troubles
    world.server.rules.remove(rule)
    world.passes()
    assert world.pods() == ["m000-0"]


def test_only_pages_that_changed_are_parsed(parsed: list[str]) -> None:
    world = World(milvus("x", replicas=30))
    world.settle()
    parsed.clear()
    world.passes(3)
    assert parsed == []
    world.remove("pods", "x-29")
    world.passes()
    assert "x-0" not in parsed
    world.settle()
    assert len(world.pods()) == 30


def test_while_nothing_can_be_listed_it_waits_longer_and_longer() -> None:
    world = World(interval=5)
    rule = world.server.refuse("list", "pods", 500, "not now")
    world.run(200)
    waits = world.times("list", "pods")
    for wait, most in zip(waits, [1, 2, 4, 8, 16, *[30] * 20], strict=False):
        assert most / 2 <= round(wait, 3) <= most
    assert len({*waits[5:]}) > 1, "with jitter"
    world.server.rules.remove(rule)
    world.run(20)
    assert world.run(10) == [0, 5], "then for its interval again"


def test_the_loop_waits_no_longer_when_only_some_lists_fail() -> None:
    world = World(milvus("x", "good"), namespaces=["bad", "good"], interval=5)
    world.server.refuse("list", "pods", 500, "not now", namespace="bad")
    world.run(200)
    assert world.run(20) == [0, 5, 10, 15]
    assert world.pods() == ["x-0"]


def test_the_password_of_a_server_is_not_shown() -> None:
    api = ApiClient(Configuration(host="https://somebody:hunter2@example.com:6443"))
    cluster = mo.Cluster(lambda _: mo.Connection(api, "default", None, {}))
    assert cluster.server == "https://example.com:6443"


@pytest.mark.parametrize("body", [b'{"items": [{}]}', b'{"items": [7]}', b"[]", b"7", b"<html>"])
def test_odd_lists_do_not_stop_the_loop(body: bytes) -> None:
    world = World(milvus("x"))
    world.settle()
    world.forget()
    rule = world.server.when("list", "pods", lambda _: answer(200, body))
    world.passes(2)
    assert len(world.troubles) == 1, "once, and in one line"
    assert world.writes() == []
    world.server.rules.remove(rule)
    world.passes()
    assert world.log[-2].startswith("resolved: ")
