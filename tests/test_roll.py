"""A changed template replaces pods, one Ready pod at a time."""

from __future__ import annotations

import pytest

import milvus_operator as mo
from tests.lib.front import Obj
from tests.lib.world import World, at_rest, milvus, pod


def deleted(world: World) -> list[str]:
    return world.names("delete", "pods")


def test_one_ready_pod_at_a_time_is_replaced_from_the_highest_ordinal() -> None:
    world = at_rest(milvus("x", replicas=3))
    world.change("x", image="milvus:2")
    world.passes(5)
    assert deleted(world) == ["x-2"], "the next when the last is Ready"
    assert "deleted pod test/x-2 in order to replace it: outdated template" in world.log
    world.server.finish_deletions()
    world.passes(5)
    assert deleted(world) == ["x-2"], "not when it is only there"
    assert world.condition("x", "Ready")["reason"] in ("Pending", "Updating")
    world.settle()
    assert deleted(world) == ["x-2", "x-1", "x-0"]
    assert world.images() == ["milvus:2"] * 3
    assert world.status("x")["updatedReplicas"] == 3


@pytest.mark.parametrize(
    "change", [{"milvusSpec": "proxy.maxNameLength: 99"}, {"pod": {"spec": {"priority": 1}}}]
)
def test_a_change_of_the_other_user_fields_rolls_too(change: Obj) -> None:
    world = at_rest(milvus("x", replicas=2))
    world.change("x", **change)
    world.settle()
    assert deleted(world) == ["x-1", "x-0"]


def test_neither_the_replicas_nor_a_new_version_of_the_operator_restart_a_pod(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = at_rest(milvus("x", replicas=2))
    before = world.uids()
    monkeypatch.setitem(mo.DEFAULTS, "COMMON_GRACEFULSTOPTIMEOUT", "9")
    world.operator = world.new_operator()
    world.change("x", replicas=3)
    world.settle()
    assert world.uids().items() >= before.items()


def test_pods_that_are_not_ready_go_first_and_all_at_once() -> None:
    world = at_rest(milvus("x", replicas=5))
    for name in ("x-1", "x-3"):
        world.server.set_pod(name, ready=False)
    world.change("x", image="milvus:2")
    world.passes()
    assert deleted(world) == ["x-3", "x-1"]
    world.settle()
    assert deleted(world) == ["x-3", "x-1", "x-4", "x-2", "x-0"]


def test_a_broken_image_costs_one_pod_and_is_rolled_back() -> None:
    world = at_rest(milvus("x", replicas=3))
    before = world.uids()
    world.change("x", image="broken")
    world.passes()
    world.server.finish_deletions()
    world.passes(20)
    assert deleted(world) == ["x-2"]
    world.change("x", image="milvus:1")
    world.settle()
    assert deleted(world) == ["x-2", "x-2"]
    assert world.images() == ["milvus:1"] * 3
    assert (world.uid("x-0"), world.uid("x-1")) == (before["x-0"], before["x-1"])


@pytest.mark.parametrize("listed", [True, False])
def test_an_ordinal_that_a_stranger_holds_does_not_block_a_roll(listed: bool) -> None:
    world = World(milvus("x", replicas=3))
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "c"}
    labels = mo.selector_of(milvus("x")) if listed else {}
    world.add(pod("x-1", owner, labels=labels))
    world.settle()
    stranger = world.uid("x-1")
    world.change("x", image="milvus:2")
    world.settle()
    assert world.images() == ["milvus:2", "other", "milvus:2"]
    assert world.uid("x-1") == stranger


def test_a_template_that_the_server_refuses_costs_no_pod() -> None:
    world = at_rest(milvus("x", replicas=3))
    before = world.uids()
    rule = world.server.refuse("create", "pods", 422, "spec.nonsense: unknown field")
    world.change("x", pod={"spec": {"nonsense": 1}})
    world.passes(10)
    assert world.uids() == before
    assert deleted(world) == []
    assert world.condition("x", "Stalled")["reason"] == "Invalid"
    assert rule.hits == 3, "at 0, 10 and 30 s"
    assert all(request.dry_run for request in world.requests("create", "pods"))
    world.server.rules.clear()
    world.change("x", pod={"spec": {"sense": 1}})
    world.settle()
    assert deleted(world) == ["x-2", "x-1", "x-0"]


def test_a_template_that_is_refused_later_is_asked_about_again() -> None:
    world = at_rest(milvus("x", replicas=2))
    world.change("x", image="milvus:2")
    world.passes()
    world.server.finish_deletions()
    world.server.refuse("create", "pods", 422, "no longer")
    world.passes()
    world.server.set_pod("x-0", ready=False)
    world.passes(20)
    assert world.pods() == ["x-0"]
    assert deleted(world) == ["x-1"]


def test_the_server_is_asked_about_a_template_once() -> None:
    world = at_rest(milvus("x", replicas=3))
    world.change("x", image="milvus:2")
    world.settle()
    assert len([one for one in world.requests("create", "pods") if one.dry_run]) == 1


def test_a_used_up_quota_does_not_stop_a_roll() -> None:
    """The old pod makes room for the new one."""
    world = at_rest(milvus("x", replicas=2))
    world.server.quota = {"pods": 2}
    world.change("x", image="milvus:2")
    world.settle()
    assert world.images() == ["milvus:2"] * 2


def test_refused_deletes_back_off_and_the_roll_goes_on_with_the_others() -> None:
    world = at_rest(milvus("x", replicas=3))
    rules = [world.server.refuse("delete", "pods", 403, "no", name=f"x-{i}") for i in (1, 2)]
    world.change("x", image="milvus:2")
    for _ in range(60):
        world.passes()
        world.server.finish_deletions()
        world.server.run_pods()
    assert world.images() == ["milvus:2", "milvus:1", "milvus:1"]
    assert all(2 <= rule.hits <= 5 for rule in rules)
    assert world.condition("x", "Reconciled")["reason"] == "Forbidden"


@pytest.mark.parametrize("code", [0, 504])
def test_while_a_delete_may_still_come_true_no_other_ready_pod_is_taken(code: int) -> None:
    world = at_rest(milvus("x", replicas=3))
    world.change("x", image="milvus:2")
    if code:
        world.server.refuse("delete", "pods", code, "the webhook still thinks", times=2)
    else:
        world.server.fault("delete", "pods", "timeout", times=2)
    world.passes(3)
    assert {*deleted(world)} == {"x-2"}
    world.settle()
    assert world.images() == ["milvus:2"] * 3


def test_no_ready_pod_is_replaced_while_others_are_deleted() -> None:
    world = at_rest(milvus("x", replicas=4))
    world.change("x", replicas=3, image="milvus:2")
    world.passes()
    assert deleted(world) == ["x-3"]


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


def test_pods_in_an_etcd_of_their_own_are_rolled_and_scaled() -> None:
    for behind in ("pods", ""):
        world = at_rest(milvus("x", replicas=3), pods_apart=True)
        world.server.versions["" if behind else "pods"] += 10_000
        world.change("x", image="milvus:2")
        world.settle()
        assert world.images() == ["milvus:2"] * 3
        world.change("x", replicas=1)
        world.settle()
        assert world.pods() == ["x-0"]
        assert world.condition("x", "Ready")["status"] == "True"


def test_a_create_that_was_refused_does_not_let_the_roll_go_on_before_the_pod_is_ready() -> None:
    """As with a quota that was used up, while another replica of the operator creates the pod."""
    world = at_rest(milvus("x", replicas=3))
    other = world.new_operator()
    world.change("x", image="milvus:2")
    world.passes()
    world.server.finish_deletions()
    world.server.quota = {"pods": 2}
    world.passes()
    world.server.quota = {}
    other.run_pass()
    world.passes(3)
    assert world.images() == ["milvus:1", "milvus:1", "milvus:2"]
