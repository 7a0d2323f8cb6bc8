"""Whatever pods there are, the decisions lead to the goal in a few passes, and harm nothing on the way."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from kubernetes.client import ApiClient, Configuration

import milvus_operator as mo

Obj = dict[str, Any]
numbers = itertools.count(1)
repeatable = settings(max_examples=400, derandomize=True, deadline=None, database=None)


def milvus(replicas: int = 3, **spec: Any) -> Obj:
    metadata = {"name": "mv", "namespace": "ns", "uid": "uid-of-mv", "generation": 1, "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {"image": "milvus:2", "replicas": replicas} | spec}


OLD = milvus(image="milvus:1")
EARLIER = "uid-of-an-earlier-mv"
OTHERS = {
    "stranger": None,
    "of a Deployment": {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "mv", "uid": "x", "controller": True},
    "of an earlier mv": mo.owner_reference(milvus()) | {"uid": EARLIER},
}


@st.composite
def a_pod(draw: st.DrawFn) -> Obj:
    """A pod of any kind: ours, an orphan, somebody else's; of any template, in any state, with fields missing."""
    ordinal, ours = draw(st.integers(0, 6)), milvus()
    whose = draw(st.sampled_from(["ours", "ours", "ours", "orphan", *OTHERS]))
    template = draw(st.sampled_from([mo.template_hash(ours), mo.template_hash(OLD), None]))
    state = draw(st.sampled_from(["Ready", "Ready", "Running", "Pending", "Failed", "Succeeded", "no status"]))
    labels = mo.pod_labels(ours, ordinal)
    if whose == "ours" and draw(st.booleans()):
        del labels[draw(st.sampled_from(sorted(labels)))]
    name = draw(st.sampled_from([f"mv-{ordinal}"] * 9 + [f"mv-0{ordinal}", "mv-x", "mv", f"other-{ordinal}"]))
    metadata: Obj = {"name": name, "namespace": "ns", "uid": f"pod-{next(numbers)}", "resourceVersion": "1"}
    if whose in ("ours", "orphan") or draw(st.booleans()):
        metadata["labels"] = labels
    if owner := mo.owner_reference(ours) if whose == "ours" else OTHERS.get(whose):
        metadata["ownerReferences"] = [owner]
    if template or draw(st.booleans()):
        metadata["annotations"] = {mo.TEMPLATE_HASH: template} if template else None
    if draw(st.integers(0, 5)) == 0:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    pod: Obj = {"metadata": metadata}
    if state != "no status":
        phase = "Running" if state == "Ready" else state
        pod["status"] = {"phase": phase, "conditions": [{"type": "Ready", "status": str(state == "Ready")}]}
    return pod


some_faults = st.lists(st.sampled_from([None, None, "lost", 403, 404, 409, 422, 429, 500]), max_size=8)
some_pods = st.lists(a_pod(), max_size=9, unique_by=mo.name_of)


class World:
    """A small cluster: it answers writes as an API server does, and between the passes the kubelets have their turn."""

    def __init__(
        self, wanted: Obj, pods: list[Obj], broken: bool = False, faults: Sequence[int | str | None] = ()
    ) -> None:
        self.milvus, self.pods, self.broken = wanted, {mo.name_of(pod): pod for pod in pods}, broken
        self.memory = mo.Memory()
        self.faults = list(faults)  # of the next writes: the code of an error, `lost` for an answer that is, or none

    def make_pass(self) -> list[str]:
        """One pass of the real plan; returns what it wrote."""
        self.memory.recall(self.milvus, time.monotonic())
        plan, written = mo.Plan(self.milvus, list(self.pods.values()), self.memory), []
        while action := plan.next():
            try:
                plan.succeeded(action, self.answer(action))
                written.append(f"{action.verb} {mo.name_of(action.pod)}")
            except mo.ApiError as error:
                written.append(f"{action.verb} {mo.name_of(action.pod)}: {error.code}")
                plan.failed(action, error)
        plan.outcome()
        return written

    def answer(self, action: mo.Action) -> Obj | None:
        """What the API server answers, if it does."""
        fault = self.faults.pop() if self.faults else None
        if action.verb == "look":
            return self.pods.get(mo.name_of(action.pod))
        if isinstance(fault, int):
            raise mo.ApiError(
                fault, "injected", {"reason": "AlreadyExists"} if fault == 409 and action.verb == "create" else {}
            )
        self.check(action)
        done = self.carry_out(action)
        if fault == "lost":
            raise mo.ApiError(0, "connection reset")
        return done

    def check(self, action: mo.Action) -> None:
        """No decision is about a pod that isn't ours."""
        name, ordinal = mo.name_of(action.pod), mo.ordinal_of(self.milvus, action.pod)
        now = self.pods.get(name)
        if action.verb == "create":
            assert ordinal is not None
            assert ordinal < mo.replicas_of(self.milvus)
            assert now is None, "the name is taken"
        elif action.verb == "adopt":
            assert now
            assert mo.controller_of(now) is None
            assert mo.selector_of(self.milvus).items() <= mo.labels_of(now).items()
        else:
            assert now
            assert mo.owner_uid(now) == mo.uid_of(self.milvus)
            assert not mo.is_ending(now)

    def carry_out(self, action: mo.Action) -> Obj | None:
        name, ordinal = mo.name_of(action.pod), mo.ordinal_of(self.milvus, action.pod)
        if action.verb == "vet":
            return None
        if action.verb == "create":
            made = mo.new_pod(self.milvus, ordinal or 0)
            made["metadata"] |= {"uid": f"pod-{next(numbers)}", "resourceVersion": "1"}
            self.pods[name] = made
            return made
        pod = self.pods[name]
        metadata = pod["metadata"]
        if action.verb == "adopt":
            metadata = metadata | {"ownerReferences": [mo.owner_reference(self.milvus)]}
        elif action.verb == "label":
            metadata = metadata | {"labels": mo.labels_of(pod) | mo.pod_labels(self.milvus, ordinal or 0)}
        else:
            assert action.verb == "delete"
            metadata = metadata | {"deletionTimestamp": "2026-01-01T00:00:00Z"}
        self.pods[name] = pod | {"metadata": metadata}
        return self.pods[name]

    def kubelets(self) -> None:
        """Pods that are ending and those of an earlier Milvus go, the others become Ready unless their template
        is broken; any back-off is over."""
        self.memory.replaced.forget()
        self.memory.refused.forget()
        self.pods = {
            name: pod for name, pod in self.pods.items() if not (mo.is_ending(pod) or mo.owner_uid(pod) == EARLIER)
        }
        for name, pod in self.pods.items():
            fresh = mo.template_hash_of(pod) == mo.template_hash(self.milvus)
            if mo.is_active(pod) and not (fresh and self.broken):
                ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
                self.pods[name] = pod | {"status": ready}

    def mine(self) -> dict[int, Obj]:
        return {
            ordinal: pod for ordinal, pod in mo.members(self.milvus, self.pods.values()).items() if mo.is_active(pod)
        }

    def ready(self) -> int:
        """How many wanted pods are Ready."""
        wanted = mo.replicas_of(self.milvus)
        return sum(ordinal < wanted and mo.is_ready(pod) for ordinal, pod in self.mine().items())


@repeatable
@given(some_pods, st.integers(0, 6), some_faults)
def test_the_goal_is_reached_and_kept(pods: list[Obj], replicas: int, faults: list[int | str | None]) -> None:
    world = World(milvus(replicas), pods, faults=faults)
    strangers = [pod for pod in pods if is_others(world, pod) and not mo.is_leaving(world.milvus, pod)]
    most = max(replicas, len(world.mine()) + sum(mo.is_orphan(world.milvus, pod) for pod in pods))
    for _ in range(2 * len(pods) + 4 + len(faults)):
        ready = world.ready()
        written = world.make_pass()
        assert faults or len(world.mine()) <= most, "more pods than are wanted"  # a delete may be refused
        assert world.ready() >= ready - 1, "two Ready pods went at once"
        if not written and not any(map(mo.is_ending, world.pods.values())):
            break
        world.kubelets()
    taken = {name for name, pod in world.pods.items() if is_others(world, pod)}
    goal = {ordinal for ordinal in range(replicas) if f"mv-{ordinal}" not in taken}
    assert world.mine().keys() == goal
    assert all(mo.template_hash_of(pod) == mo.template_hash(world.milvus) for pod in world.mine().values())
    assert world.ready() == len(goal)
    assert world.make_pass() == [], "at the goal nothing is written"
    for pod in strangers:
        assert world.pods[mo.name_of(pod)]["metadata"] is pod["metadata"], "a stranger was touched"


def is_others(world: World, pod: Obj) -> bool:
    return mo.owner_uid(pod) != mo.uid_of(world.milvus) and not mo.is_orphan(world.milvus, pod)


@repeatable
@given(some_pods, st.integers(0, 6), some_faults)
def test_a_broken_template_costs_one_ready_pod_at_most(
    pods: list[Obj], replicas: int, faults: list[int | str | None]
) -> None:
    world = World(milvus(replicas), pods, broken=True, faults=faults)
    world.make_pass()  # which may delete what is surplus, and adopt
    world.kubelets()
    ready = world.ready()
    for _ in range(2 * len(pods) + 4):
        world.make_pass()
        world.kubelets()
    assert world.ready() >= ready - 1


@repeatable
@given(some_pods, st.integers(0, 6), st.randoms(use_true_random=False))
def test_the_order_of_the_pods_does_not_matter(pods: list[Obj], replicas: int, random: Any) -> None:
    wanted, shuffled = milvus(replicas), list(pods)
    random.shuffle(shuffled)
    held = mo.strangers(wanted, pods).keys()
    one, other = (mo.decide(wanted, some, held=held) for some in (pods, shuffled))
    assert sorted(map(str, one)) == sorted(map(str, other))
    assert [a for a in one if a.verb == "delete"] == [a for a in other if a.verb == "delete"]
    assert mo.status_of(wanted, pods, None, "now") == mo.status_of(wanted, shuffled, None, "now")


@repeatable
@given(some_pods, st.integers(0, 6))
def test_a_status_that_was_written_is_not_written_again(pods: list[Obj], replicas: int) -> None:
    wanted = milvus(replicas)
    status = mo.status_of(wanted, pods, None, "2026-01-01T00:00:00Z")
    assert mo.status_of(wanted | {"status": status}, pods, None, "2026-01-02T00:00:00Z") == status


def test_a_milvus_is_given_the_pods_of_its_own_namespace() -> None:
    """Names, and even the UIDs in owner references, may be the same in several namespaces."""
    operator = mo.Operator(mo.Cluster(ApiClient(Configuration(host="http://127.0.0.1:9"))), [None], 5, 1)

    @repeatable
    @given(st.lists(st.tuples(a_pod(), st.sampled_from(["ns", "other", "third"])), max_size=12))
    def check(pods: list[tuple[Obj, str]]) -> None:
        found = [pod | {"metadata": pod["metadata"] | {"namespace": place}} for pod, place in pods]
        plans = list(operator.plans(mo.Scope(None), found, [milvus()]))
        assert [mo.uid_of(plan.milvus) for plan in plans] == ["uid-of-mv"]
        given_pods = list(plans[0].pods.values())
        assert all(mo.namespace_of(pod) == "ns" for pod in given_pods)
        ours = [pod for pod in found if mo.namespace_of(pod) == "ns" and mo.owner_uid(pod) == "uid-of-mv"]
        assert {mo.name_of(pod) for pod in ours} <= {mo.name_of(pod) for pod in given_pods}

    check()
    operator.close()
