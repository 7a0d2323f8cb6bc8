"""A changed template replaces pods, one Ready pod at a time."""

import contextlib

import pytest
from urllib3 import HTTPResponse

import milvus_operator as mo
from tests.lib.front import Refused, Request, answer
from tests.lib.judge import STRANGER
from tests.lib.world import World, at_rest, milvus, pod


def deleted(world: World) -> list[str]:
    return world.names("delete", "pods")


@pytest.mark.parametrize("ahead", ["pods", "milvuses"])
def test_one_ready_pod_at_a_time_is_replaced_from_the_highest_ordinal(ahead: str) -> None:
    """Also if pods are in an etcd of their own, with other versions."""
    world = at_rest(milvus("x", replicas=3))
    world.server.versions[ahead] += 10_000
    world.server.quota = {"pods": 3}  # the old pod makes room for the new one
    world.change("x", image="milvus:2")
    world.passes(5)
    assert deleted(world) == ["x-2"], "the next when the last is Ready"
    assert "milvus test/x: deleted pod x-2: the template is outdated" in world.log
    world.server.finish_deletions()
    world.passes(5)
    assert deleted(world) == ["x-2"], "not when it is only there"
    assert world.reason(kind="Ready") in ("Pending", "Updating")
    world.settle()
    assert deleted(world) == ["x-2", "x-1", "x-0"]
    assert world.images() == ["milvus:2"] * 3
    assert all([*one.body["preconditions"]] == ["uid"] for one in world.requests("delete", "pods"))
    assert world.status("x")["updatedReplicas"] == 3
    asked = [one for one in world.requests("create", "pods") if one.dry_run]
    assert len(asked) == 3, "whether the server would accept the template"
    world.change("x", replicas=1)
    world.settle()
    assert (world.pods(), world.reason(kind="Ready")) == (["x-0"], "Ready")


def test_a_broken_image_costs_one_pod_and_is_rolled_back_and_broken_pods_go_first() -> None:
    world = at_rest(milvus("x", replicas=4))
    before = world.uids()
    world.change("x", image="broken")
    world.passes()
    world.server.finish_deletions()
    world.passes(20)
    assert deleted(world) == ["x-3"]
    world.server.set_pod("x-1", ready=False)
    world.change("x", image="milvus:1")
    world.settle()
    assert deleted(world) == ["x-3", "x-3"]
    assert world.images() == ["milvus:1"] * 4
    assert {name for name, uid in world.uids().items() if before[name] != uid} == {"x-3"}
    for name in ("x-1", "x-2"):
        world.server.set_pod(name, ready=False)
    world.forget()
    world.change("x", image="milvus:2")
    world.passes()
    assert deleted(world) == ["x-2", "x-1"], "at the same time"


@pytest.mark.parametrize("listed", [True, False])
def test_names_that_strangers_hold_do_not_block_a_roll(listed: bool) -> None:
    """One of them is the name of the dry run."""
    world = World(milvus("x", replicas=3), pod("x-0-check"))
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "c", "controller": True}
    labels = mo.selector_of(milvus("x")) if listed else {}
    world.add(pod("x-1", ownerReferences=[owner], labels=labels))
    world.settle()
    stranger = world.uid("x-1")
    world.change("x", image="milvus:2")
    world.settle()
    assert world.images() == ["milvus:2", STRANGER, STRANGER, "milvus:2"]
    world.change("x", replicas=1)
    world.settle()
    assert world.pods() == ["x-0", "x-0-check", "x-1"]
    assert world.uid("x-1") == stranger


@pytest.mark.parametrize(("code", "why"), [(422, "Invalid"), (403, "Forbidden")])
def test_a_template_that_is_refused_costs_no_pod_and_is_told_once(code: int, why: str) -> None:
    """The server quotes the name of the pod that it was asked about."""
    world = at_rest(milvus("x", replicas=3))

    def refuse(request: Request) -> HTTPResponse:
        return answer(code, Refused(code, why, f"{request.name} is bad").status)

    rule = world.server.when("create", "pods", refuse)
    world.change("x", pod={"spec": {"nonsense": 1}})
    world.passes(10)
    assert deleted(world) == []
    assert world.reason(kind="Stalled") == why
    assert rule.hits == 9, "before the deletion of each, with back-off"
    assert world.troubles == ["milvus test/x: x-0-check is bad"]
    assert all(request.dry_run for request in world.requests("create", "pods"))
    world.server.rules.clear()
    world.change("x", pod={"spec": {"sense": 1}})
    world.settle()
    assert deleted(world) == ["x-2", "x-1", "x-0"]


@pytest.mark.parametrize(("code", "why"), [(403, ""), (500, "InternalError")])
def test_a_template_that_is_refused_later_is_asked_about_again(code: int, why: str) -> None:
    world = at_rest(milvus("x", replicas=2))
    world.change("x", image="milvus:2")
    world.passes()
    world.server.finish_deletions()
    world.server.refuse("create", "pods", code, "no longer", why)
    world.passes()
    world.server.set_pod("x-0", ready=False)
    world.passes(20)
    assert world.pods() == ["x-0"]
    assert deleted(world) == ["x-1"]


@pytest.mark.parametrize(
    ("code", "reason", "why", "most"),
    [
        (403, "", "Forbidden", 6),
        (400, "", "Invalid", 6),
        (500, "InternalError", "APIError", 14),  # it backs off for a shorter time
    ],
)
def test_a_roll_passes_a_pod_whose_delete_is_refused(
    code: int, reason: str, why: str, most: int
) -> None:
    """An API server makes code 400 of a webhook's denial without a code, and 500 of one that fails."""
    world = at_rest(milvus("x", replicas=4))
    names = ["x-3", "x-2"]
    rules = [world.server.refuse("delete", "pods", code, "no", reason, name=name) for name in names]
    world.change("x", image="milvus:2")
    world.run(30)
    assert {*deleted(world)} == {"x-3", "x-2", "x-1"}, "it waits for the new x-1"
    world.live(60)
    assert world.images() == ["milvus:2", "milvus:2", "milvus:1", "milvus:1"]
    assert all(2 <= rule.hits <= most for rule in rules)
    assert world.reason() == why


@pytest.mark.parametrize("answer", ["lost", "late", "504"])
def test_while_a_delete_may_still_take_effect_no_other_ready_pod_is_taken(answer: str) -> None:
    """The lists still show the pod as Ready, and the spec may have changed since."""
    world = at_rest(milvus("x", replicas=3))
    world.change("x", image="milvus:2")
    with contextlib.ExitStack() as stack:
        if answer == "late":
            stack.enter_context(world.hanging("delete", "pods", name="x-2"))
        elif answer == "lost":
            world.server.fault("delete", "pods", "timeout", name="x-2")
        else:
            world.server.refuse("delete", "pods", 504, "the webhook still thinks", name="x-2")
        world.passes(3)
        rule = world.server.refuse("create", "pods", 422, "the check is refused")
        world.change("x", image="milvus:3")
        world.passes(3)
        world.server.rules.remove(rule)
        world.clock.advance(10)
        world.passes(9)
        assert {*deleted(world)} == {"x-2"}
    world.server.rules.clear()
    world.live(20)
    assert world.images() == ["milvus:3"] * 3


@pytest.mark.parametrize(
    ("code", "reason", "seconds"),
    [(403, "", 0), (404, "NotFound", 0), (504, "", 0), (500, "InternalError", 30)],
)
def test_broken_pods_whose_deletes_fail_do_not_block_a_roll(
    code: int, reason: str, seconds: float
) -> None:
    world = at_rest(milvus("x", replicas=3))
    for name in ("x-0", "x-1"):
        world.server.set_pod(name, ready=False)
        world.server.delay("delete", "pods", seconds, name=name)
        world.server.refuse("delete", "pods", code, "no", reason, name=name)
    world.change("x", image="milvus:2")
    world.run(40 + 4 * seconds)
    assert world.names("delete", "pods").count("x-2") == 1
    world.live(20)
    assert world.images() == ["milvus:1", "milvus:1", "milvus:2"]


def test_an_updated_pod_that_has_ended_is_waited_for_although_its_delete_is_refused() -> None:
    world = at_rest(milvus("x", replicas=3))
    world.change("x", image="milvus:2")
    world.live(2)
    world.forget()
    world.server.fail("x-2")
    world.server.refuse("delete", "pods", 403, "no", name="x-2")
    world.passes(20)
    assert {*deleted(world)} == {"x-2"}


@pytest.mark.parametrize("verb", ["patch", "delete"])
def test_a_roll_goes_on_after_an_adoption_or_a_delete_whose_answer_is_lost(verb: str) -> None:
    world = at_rest(milvus("x", replicas=3))
    world.patch("pods", "x-0", ownerReferences=None)
    world.server.fault(verb, "pods", "timeout", after=True, times=1)
    world.change("x", image="milvus:2")
    world.live(8)
    assert deleted(world) == ["x-2", "x-1", "x-0"]


def test_a_pod_that_became_ready_since_it_was_listed_is_not_replaced_with_another() -> None:
    """It was not Ready in the lists, so it was to go beside a Ready one."""
    world = at_rest(milvus("x", replicas=2))
    world.server.set_pod("x-0", ready=False)
    before = world.uids()
    world.change("x", image="milvus:2")
    world.server.when("delete", "pods", lambda _: world.server.set_pod("x-0", True), times=1)
    world.passes()
    assert world.uids() == before
    assert world.troubles == []
    world.settle()
    assert deleted(world) == ["x-0", "x-1", "x-0"]
