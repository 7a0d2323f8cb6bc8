"""A changed template replaces pods, one Ready pod at a time."""

import contextlib

import pytest
from urllib3 import HTTPResponse

import milvus_operator as mo
from tests.lib.front import Refused, Request, answer
from tests.lib.judge import STRANGER
from tests.lib.world import World, at_rest, milvus, pod


def after_one_step(replicas: int) -> World:
    """The highest pod of x is Ready with the new template, the others still have the old one."""
    world = at_rest(milvus("x", replicas=replicas))
    world.change("x", image="milvus:2")
    world.live(2)
    world.forget()
    return world


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
    assert "deleted pod test/x-2 in order to replace it: outdated template" in world.log
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
    assert len(asked) == 1, "whether the server would accept the template"
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
    world = World(milvus("x", replicas=3), pod("x-2-check"))
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "c", "controller": True}
    labels = mo.selector_of(milvus("x")) if listed else {}
    world.add(pod("x-1", ownerReferences=[owner], labels=labels))
    world.settle()
    stranger = world.uid("x-1")
    world.change("x", image="milvus:2")
    world.settle()
    assert world.images() == ["milvus:2", STRANGER, "milvus:2", STRANGER]
    world.change("x", replicas=1)
    world.settle()
    assert world.pods() == ["x-0", "x-1", "x-2-check"]
    assert world.uid("x-1") == stranger


@pytest.mark.parametrize(("code", "why"), [(422, "Invalid"), (403, "Forbidden")])
def test_a_template_that_is_refused_costs_no_pod_and_is_told_once(code: int, why: str) -> None:
    """The server quotes the name of the pod that it was asked about."""
    world = at_rest(milvus("x", replicas=3))
    before = world.uids()

    def refuse(request: Request) -> HTTPResponse:
        return answer(code, Refused(code, why, f"{request.name} is bad").status)

    rule = world.server.when("create", "pods", refuse)
    world.change("x", pod={"spec": {"nonsense": 1}})
    world.passes(10)
    assert world.uids() == before
    assert deleted(world) == []
    assert world.reason(kind="Stalled") == why
    assert rule.hits == 3, "at 0, 10 and 30 s"
    assert world.troubles == [f"milvus test/x: {why}: x-2-check is bad"]
    assert all(request.dry_run for request in world.requests("create", "pods"))
    world.server.rules.clear()
    world.change("x", pod={"spec": {"sense": 1}})
    world.settle()
    assert deleted(world) == ["x-2", "x-1", "x-0"]


@pytest.mark.parametrize(("code", "why"), [(403, ""), (422, ""), (500, "InternalError")])
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
def test_a_roll_goes_on_beside_refused_deletes(code: int, reason: str, why: str, most: int) -> None:
    """An API server makes code 400 of a webhook's denial without a code, and 500 of one that fails."""
    world = at_rest(milvus("x", replicas=3))
    names = ["x-2", "x-1"]
    rules = [world.server.refuse("delete", "pods", code, "no", reason, name=name) for name in names]
    world.change("x", image="milvus:2")
    assert not world.new_operator().run_once()
    assert deleted(world) == ["x-2", "x-1", "x-0"]
    world.live(60)
    assert world.images() == ["milvus:2", "milvus:1", "milvus:1"]
    assert all(2 <= rule.hits <= most for rule in rules)
    assert world.reason() == why


@pytest.mark.parametrize("answer", ["lost", "late", "504"])
def test_while_a_delete_may_still_take_effect_no_other_ready_pod_is_taken(answer: str) -> None:
    """The lists still show the pod as Ready, and the spec may have changed since."""
    world = at_rest(milvus("x", replicas=4))
    world.server.refuse("delete", "pods", 422, "no", name="x-3", times=1)
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
        world.passes(3)
        world.server.set_pod("x-2", ready=False)  # its probe fails
        world.passes()
        world.server.set_pod("x-2", ready=True)
        world.passes(3)
        assert {*deleted(world)[1:]} == {"x-2"}
    world.server.rules.clear()
    world.settle()
    assert world.images() == ["milvus:3"] * 4


def test_a_rollback_takes_no_ready_pod_while_a_delete_may_still_take_effect() -> None:
    """The pod of that delete is up to date again. A request lives for a minute at most."""
    world = after_one_step(3)
    world.server.fault("delete", "pods", "timeout", name="x-1")
    world.passes()
    world.change("x", image="milvus:1")
    world.passes(10)
    assert deleted(world) == ["x-1"]
    world.settle()
    assert world.images() == ["milvus:1"] * 3


def test_a_rollback_does_not_wait_because_a_check_got_no_answer() -> None:
    world = after_one_step(2)
    world.operator = world.new_operator()  # it does not know that the template was accepted
    world.server.fault("create", "pods", "timeout")
    world.passes()
    world.server.rules.clear()
    world.change("x", image="milvus:1")
    world.passes(2)
    assert deleted(world) == ["x-1"]


@pytest.mark.parametrize(
    ("verb", "code", "reason"),
    [
        ("delete", 403, ""),
        ("delete", 500, "InternalError"),
        ("delete", 504, ""),
        ("delete", 429, ""),
        ("delete", 404, "NotFound"),
        ("patch", 403, ""),  # of an orphan that is to be adopted
    ],
)
def test_what_keeps_failing_delays_a_roll_half_a_minute(verb: str, code: int, reason: str) -> None:
    world = at_rest(milvus("x", replicas=3))
    if verb == "delete":
        world.server.set_pod("x-1", ready=False)
    else:
        world.patch("pods", "x-1", ownerReferences=None)
    world.server.refuse(verb, "pods", code, "no", reason, name="x-1")
    world.change("x", image="milvus:2")
    world.run(25)
    assert {*deleted(world)} == ({"x-1"} if verb == "delete" else set())
    world.run(15)
    assert {*deleted(world)} - {"x-1"} == {"x-2"}
    world.live(20)
    assert world.images() == ["milvus:2", "milvus:1", "milvus:2"]


@pytest.mark.parametrize("is_ready", [True, False])
def test_a_pod_that_lost_a_label_is_waited_for_like_any_other(is_ready: bool) -> None:
    world = at_rest(milvus("x", replicas=3))
    world.server.set_pod("x-2", is_ready)
    world.patch("pods", "x-2", labels={mo.INSTANCE_LABEL: None})
    world.change("x", image="milvus:2")
    world.passes()
    world.server.finish_deletions()
    world.passes()
    world.patch("pods", "x-2", labels={mo.INSTANCE_LABEL: None})
    world.passes(3)
    assert deleted(world) == ["x-2"]
    world.server.run_pods()
    world.passes()
    assert deleted(world) == ["x-2", "x-1"]


def test_an_updated_pod_that_has_ended_is_waited_for_although_its_delete_is_refused() -> None:
    world = after_one_step(3)
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


@pytest.mark.parametrize(("broken", "seconds"), [(2, 30), (5, 10)])
def test_deletes_of_broken_pods_that_fail_slowly_stop_no_roll(broken: int, seconds: float) -> None:
    world = at_rest(milvus("x", replicas=broken + 1))
    for ordinal in range(broken):
        name = f"x-{ordinal}"
        world.server.set_pod(name, ready=False)
        world.server.delay("delete", "pods", seconds, name=name)
        world.server.refuse("delete", "pods", 500, "a webhook failed", "InternalError", name=name)
    world.change("x", image="milvus:2")
    world.run(450)
    assert f"x-{broken}" in deleted(world)


def test_a_roll_waits_for_a_pod_that_a_create_without_a_response_has_made() -> None:
    world = at_rest(milvus("x", replicas=2))
    world.remove("pods", "x-1")
    world.server.refuse("create", "pods", 504, "late", name="x-1")
    world.change("x", image="milvus:2")
    world.run(40)
    world.server.rules.clear()
    world.server.fault("create", "pods", "timeout", name="x-1", after=True, times=1)
    world.run(60)
    assert world.pods() == ["x-0", "x-1"]
    assert deleted(world) == []


def test_a_roll_waits_for_an_ending_pod_though_its_delete_was_rejected_before() -> None:
    world = at_rest(milvus("x", replicas=3))
    world.server.set_pod("x-1", ready=False)
    world.server.refuse("delete", "pods", 403, "no", name="x-1")
    world.change("x", image="milvus:2")
    world.run(40)
    world.server.finish_deletions()
    world.passes()
    world.server.rules.clear()
    world.remove("pods", "x-1", grace=None)
    world.server.run_pods()
    world.passes(2)
    assert world.images() == ["milvus:1", "milvus:1", "milvus:2"]
    assert "x-0" not in deleted(world)
