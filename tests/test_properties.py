"""Whatever pods there are, the decisions reach the goal in a few passes and do no harm on the way, even if two copies
of the operator make them without knowing of each other."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import milvus_operator as mo
from local.controlplane import ControlPlane
from tests.lib.kit import (
    Clock,
    Kube,
    eventually,
    make_pass,
    new_namespace,
    new_operator,
    new_wire,
    rest,
    settle,
)
from tests.lib.wire import Handler, Wire

Obj = dict[str, Any]
NOW = "2026-01-01T00:00:00Z"
numbers = itertools.count(1)
repeatable = settings(max_examples=400, derandomize=True, deadline=None, database=None)


def milvus(replicas: int = 3, **spec: Any) -> Obj:
    metadata = {
        "name": "mv",
        "namespace": "ns",
        "uid": "uid-of-mv",
        "generation": 1,
        "resourceVersion": "1",
    }
    return {"metadata": metadata, "spec": {"image": "milvus:2", "replicas": replicas} | spec}


OLD = milvus(image="milvus:1")
EARLIER = "uid-of-an-earlier-mv"
OTHERS = {
    "stranger": None,
    "of a Deployment": {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "mv",
        "uid": "x",
        "controller": True,
    },
    "of an earlier mv": mo.owner_reference(milvus()) | {"uid": EARLIER},
}


@st.composite
def a_pod(draw: st.DrawFn) -> Obj:
    """A pod of any kind: ours, an orphan, somebody else's; of any template, in any state, with fields missing."""
    ordinal, ours = draw(st.integers(0, 6)), milvus()
    whose = draw(st.sampled_from(["ours", "ours", "ours", "orphan", *OTHERS]))
    template = draw(st.sampled_from([mo.template_hash(ours), mo.template_hash(OLD), None]))
    state = draw(
        st.sampled_from(
            ["Ready", "Ready", "Running", "Pending", "Failed", "Succeeded", "no status"]
        )
    )
    labels = mo.pod_labels(ours, ordinal)
    if whose == "ours" and draw(st.booleans()):
        del labels[draw(st.sampled_from(sorted(labels)))]
    name = draw(
        st.sampled_from(
            [f"mv-{ordinal}"] * 9 + [f"mv-0{ordinal}", "mv-x", "mv", f"other-{ordinal}"]
        )
    )
    metadata: Obj = {
        "name": name,
        "namespace": "ns",
        "uid": f"pod-{next(numbers)}",
        "resourceVersion": "1",
    }
    if whose in ("ours", "orphan") or draw(st.booleans()):
        metadata["labels"] = labels
    if owner := mo.owner_reference(ours) if whose == "ours" else OTHERS.get(whose):
        metadata["ownerReferences"] = [owner]
    if template or draw(st.booleans()):
        metadata["annotations"] = {mo.TEMPLATE_HASH: template} if template else None
    if draw(st.integers(0, 5)) == 0:
        metadata["deletionTimestamp"] = NOW
    pod: Obj = {"metadata": metadata}
    if state != "no status":
        phase = "Running" if state == "Ready" else state
        pod["status"] = {
            "phase": phase,
            "conditions": [{"type": "Ready", "status": str(state == "Ready")}],
        }
    return pod


some_faults = st.lists(
    st.sampled_from([None, None, "lost", 403, 404, 409, 422, 429, 500]), max_size=8
)
some_pods = st.lists(a_pod(), max_size=9, unique_by=mo.name_of)
some_words = st.builds(
    mo.Words,
    st.sampled_from(["NameConflict", "QuotaExceeded", "Invalid", "Forbidden", "APIError"]),
    st.text(),
)
some_problems = st.dictionaries(
    st.sampled_from(["create", "vet", "delete", *(f"mv-{i}" for i in range(4))]), some_words
)


def is_active(pod: Obj) -> bool:
    return not mo.is_ending(pod) and not mo.is_finished(pod)


def is_leaving(pod: Obj) -> bool:
    return mo.is_ending(pod) or mo.owner_uid(pod) == EARLIER


def is_others(pod: Obj) -> bool:
    return mo.owner_uid(pod) != "uid-of-mv" and not mo.is_orphan(milvus(), pod)


def ready(pod: Obj) -> Obj:
    return pod | {
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    }


# One operator --------------------------------------------------------------------------


class World:
    """A small cluster and its operator, which decides as the loop does. The cluster answers writes as an API server
    does, and the kubelets act between the passes."""

    def __init__(
        self,
        wanted: Obj,
        pods: list[Obj],
        broken: bool = False,
        faults: Sequence[int | str | None] = (),
    ) -> None:
        self.milvus, self.pods, self.broken = wanted, {mo.name_of(pod): pod for pod in pods}, broken
        self.faults = list(
            faults
        )  # for each of the next writes: an error code, `lost` for a lost answer, or none
        # What the operator knows from one pass to the next:
        self.vetted = self.announced = ""
        self.replaced = False  # whether finished pods were replaced a moment ago
        self.hidden: set[str] = set()  # the names of strangers that no list shows
        self.failed: set[str] = (
            set()
        )  # the names and verbs that failed in this pass and rest in the next one
        self.resting: set[str] = set()

    def listed(self) -> dict[str, Obj]:
        """The pods that the operator considers: those with our label, and our owner or our instance."""
        ours = {
            name: pod for name, pod in self.pods.items() if mo.MANAGED_BY_LABEL in mo.labels_of(pod)
        }
        return {
            name: pod
            for name, pod in ours.items()
            if mo.owner_uid(pod) == "uid-of-mv" or mo.labels_of(pod).get(mo.INSTANCE_LABEL) == "mv"
        }

    def make_pass(self) -> list[str]:
        """Decide, do it, and decide again based on the answers, until something fails. Returns what was tried."""
        self.view, self.changed, self.newer = self.listed(), set[str](), True
        tried: list[str] = []
        for _ in range(mo.Operator.ROUNDS):
            for action in self.decide():
                tried.append(f"{action.verb} {mo.name_of(action.pod)}")
                self.carry_out(action)
                if self.failed:
                    return tried
        assert self.changed or self.decide() == [], "all that can be done now is done in one pass"
        return tried

    def decide(self) -> list[mo.Action]:
        limits = mo.Limits(
            replace=not self.replaced,
            vetted=self.vetted == mo.template_hash(self.milvus),
            held=mo.strangers(self.milvus, self.view.values()).keys()
            | self.hidden - self.view.keys(),
            skip=self.resting | self.changed,
            disruptable=mo.disruptable(self.view.values(), self.announced, self.newer),
        )
        decided = mo.decide(self.milvus, self.view.values(), limits)
        return [action for action in decided if action.verb not in self.resting]

    def carry_out(self, action: mo.Action) -> None:
        """Send the write, and record the answer."""
        name, disrupts = mo.name_of(action.pod), action.disrupts
        if disrupts:
            self.announced, self.newer = mo.uid_of(action.pod), False
        try:
            pod = self.answer(action)
        except mo.ApiError as error:
            if action.verb == "create" and error.is_taken:
                pod = self.pods.get(name)
                self.hidden |= mo.strangers(self.milvus, [pod] if pod else []).keys()
            elif error.is_conflict or (
                error.code == 404 and action.verb in ("delete", "adopt", "label")
            ):
                self.changed.add(name)
                return
            else:
                self.failed.add("vet" if action.verb == "vet" else name)
                self.announced = "" if disrupts and error.code else self.announced
                return
        self.view.pop(name, None)
        if pod:
            self.view[name] = pod
        if action.verb == "vet":
            self.vetted = mo.template_hash(self.milvus)
        wanted = (mo.ordinal_of(self.milvus, action.pod) or 0) < mo.replicas_of(self.milvus)
        self.replaced |= action.verb == "delete" and mo.is_finished(action.pod) and wanted

    def answer(self, action: mo.Action) -> Obj | None:
        """The API server's answer, if there is one: the pod as it is now."""
        fault, name = self.faults.pop() if self.faults else None, mo.name_of(action.pod)
        if action.verb == "create" and (fault == 409 or name in self.pods):
            raise mo.ApiError(409, "it exists", "AlreadyExists")
        if action.verb in ("delete", "adopt", "label") and self.pods[name] is not action.pod:
            raise mo.ApiError(409, "it has changed")
        if isinstance(fault, int):
            raise mo.ApiError(fault, "injected")
        self.check(action)
        if action.verb != "vet":
            self.pods[name] = self.written(action)
        if fault == "lost":
            raise mo.ApiError(0, "connection reset")
        return self.pods[name]

    def check(self, action: mo.Action) -> None:
        """No action touches a pod that is not ours, or deletes a second Ready pod."""
        name, ordinal = mo.name_of(action.pod), mo.ordinal_of(self.milvus, action.pod)
        now, wanted = self.pods.get(name), range(mo.replicas_of(self.milvus))
        if action.verb == "create":
            assert ordinal in wanted
        elif action.verb == "adopt":
            assert now
            assert mo.controller_of(now) == {}
            assert mo.selector_of(self.milvus).items() <= mo.labels_of(now).items()
        else:
            assert now
            assert mo.owner_uid(now) == mo.uid_of(self.milvus)
            assert not mo.is_ending(now)
        if action.disrupts and ordinal in wanted:
            others = {
                i
                for i in wanted
                if i != ordinal and f"mv-{i}" not in mo.strangers(milvus(7), self.pods.values())
            }
            assert all(mo.is_ready(self.pods[f"mv-{i}"]) for i in others), (
                "another pod is not Ready"
            )

    def written(self, action: mo.Action) -> Obj:
        """The pod after the write."""
        ordinal = mo.ordinal_of(self.milvus, action.pod) or 0
        if action.verb == "create":
            made = mo.new_pod(self.milvus, ordinal)
            made["metadata"] |= {"uid": f"pod-{next(numbers)}", "resourceVersion": "1"}
            return made
        pod = self.pods[mo.name_of(action.pod)]
        changes: dict[str, Obj] = {
            "adopt": {"ownerReferences": [mo.owner_reference(self.milvus)]},
            "label": {"labels": mo.labels_of(pod) | mo.pod_labels(self.milvus, ordinal)},
            "delete": {"deletionTimestamp": NOW},
        }
        return pod | {"metadata": pod["metadata"] | changes[action.verb]}

    def kubelets(self) -> None:
        """Pods that are ending or belong to an earlier Milvus are gone, the others become Ready unless their template
        is broken, and back-offs are over."""
        self.replaced, self.resting, self.failed = False, self.failed, set()
        self.pods = {name: pod for name, pod in self.pods.items() if not is_leaving(pod)}
        for name, pod in self.pods.items():
            fresh = mo.template_hash_of(pod) == mo.template_hash(self.milvus)
            if is_active(pod) and not (fresh and self.broken):
                self.pods[name] = ready(pod)

    def is_moving(self) -> bool:
        """Whether something will still change without a new decision."""
        return (
            self.replaced
            or bool(self.resting | self.failed)
            or any(map(mo.is_ending, self.pods.values()))
        )

    def mine(self, pods: dict[str, Obj]) -> dict[int, Obj]:
        return {
            i: pod for i, pod in mo.members(self.milvus, pods.values()).items() if is_active(pod)
        }

    def ready(self) -> int:
        """How many wanted pods are Ready."""
        wanted = mo.replicas_of(self.milvus)
        return sum(
            ordinal < wanted and mo.is_ready(pod) for ordinal, pod in self.mine(self.pods).items()
        )


@repeatable
@given(some_pods, st.integers(0, 6), some_faults)
def test_the_goal_is_reached_and_kept(
    pods: list[Obj], replicas: int, faults: list[int | str | None]
) -> None:
    world = World(milvus(replicas), pods, faults=faults)
    strangers = [pod for pod in pods if is_others(pod) and not is_leaving(pod)]
    most = max(
        replicas, len(world.mine(world.pods)) + sum(mo.is_orphan(world.milvus, pod) for pod in pods)
    )
    for _ in range(2 * len(pods) + 4 + 2 * len(faults)):
        before = world.ready()
        tried = world.make_pass()
        assert faults or len(world.mine(world.pods)) <= most, (
            "more pods than are wanted"
        )  # a delete may be refused
        assert world.ready() >= before - 1, "two Ready pods were deleted at once"
        if not tried and not world.is_moving():
            break
        world.kubelets()
    taken = {name for name, pod in world.pods.items() if is_others(pod)}
    goal = {ordinal for ordinal in range(replicas) if f"mv-{ordinal}" not in taken}
    mine = world.mine(world.listed())
    assert mine.keys() == goal
    assert all(mo.template_hash_of(pod) == mo.template_hash(world.milvus) for pod in mine.values())
    assert world.ready() == len(goal)
    assert world.make_pass() == [], "at the goal nothing is written"
    for pod in strangers:
        assert world.pods[mo.name_of(pod)]["metadata"] is pod["metadata"], "a stranger was touched"


@repeatable
@given(some_pods, st.integers(0, 6), some_faults)
def test_a_broken_template_costs_one_ready_pod_at_most(
    pods: list[Obj], replicas: int, faults: list[int | str | None]
) -> None:
    world = World(milvus(replicas), pods, broken=True, faults=faults)
    world.make_pass()  # which may delete surplus pods and adopt orphans
    world.kubelets()
    before = world.ready()
    for _ in range(2 * len(pods) + 4 + 2 * len(faults)):
        if not world.make_pass() and not world.is_moving():
            break
        world.kubelets()
        assert world.ready() >= before - 1


@repeatable
@given(some_pods, st.integers(0, 6), some_problems, st.randoms(use_true_random=False))
def test_the_order_of_the_pods_does_not_matter(
    pods: list[Obj], replicas: int, problems: dict[str, mo.Words], dice: Any
) -> None:
    wanted, shuffled, names = milvus(replicas), list(pods), list(problems)
    dice.shuffle(shuffled)
    dice.shuffle(names)
    held = mo.strangers(wanted, pods).keys()
    one, other = (mo.decide(wanted, some, mo.Limits(held=held)) for some in (pods, shuffled))
    assert sorted(map(str, one)) == sorted(map(str, other))
    assert [a for a in one if a.verb == "delete"] == [a for a in other if a.verb == "delete"]
    reordered = {name: problems[name] for name in names}
    assert mo.status_of(wanted, pods, problems, NOW) == mo.status_of(
        wanted, shuffled, reordered, NOW
    )


@repeatable
@given(
    some_pods,
    st.integers(0, 6),
    st.sets(st.sampled_from([f"mv-{i}" for i in range(7)])),
    st.booleans(),
)
def test_no_action_is_decided_for_a_pod_that_must_be_left_alone(
    pods: list[Obj], replicas: int, skip: set[str], vetted: bool
) -> None:
    wanted = milvus(replicas)
    held = mo.strangers(wanted, pods)
    for action in mo.decide(wanted, pods, mo.Limits(held=held, skip=skip, vetted=vetted)):
        assert mo.name_of(action.pod) not in skip | held.keys()


@repeatable
@given(some_pods, st.integers(0, 6))
def test_no_pod_is_written_to_twice_at_once(pods: list[Obj], replicas: int) -> None:
    """The writes of one decision may run at the same time."""
    wanted = milvus(replicas)
    decided = mo.decide(wanted, pods, mo.Limits(held=mo.strangers(wanted, pods)))
    names = [mo.name_of(action.pod) for action in decided]
    assert len(set(names)) == len(names)


@repeatable
@given(some_pods, st.integers(0, 6), some_problems, some_problems)
def test_a_status_that_was_written_is_not_written_again(
    pods: list[Obj], replicas: int, before: dict[str, mo.Words], problems: dict[str, mo.Words]
) -> None:
    wanted = milvus(replicas)
    earlier = mo.status_of(wanted, pods, before, "2025-01-01T00:00:00Z")
    status = mo.status_of(wanted | {"status": earlier}, pods, problems, NOW)
    assert (
        mo.status_of(wanted | {"status": status}, pods, problems, "2026-01-02T00:00:00Z") == status
    )


# Two copies ----------------------------------------------------------------------------


class Conflict(Exception):
    """The object to be written has changed."""


class Copies:
    """Two copies of the operator, their API server, the kubelets, and a user who changes the spec. A copy is stopped
    before each of its requests, so what it knows may be arbitrarily old when it continues."""

    def __init__(self) -> None:
        self.revision, self.pods = 1, dict[str, Obj]()
        self.milvus = milvus(3) | {"status": {}}
        self.down: set[int] = (
            set()
        )  # ordinals whose Ready pod a copy has deleted, until they are Ready again
        self.copies = [self.copy(), self.copy()]

    # Who acts.

    def goes_on(self, which: int, until: str, requests: int = 15) -> None:
        """Let a copy continue until it is about to make this request, or has made this many."""
        for _ in range(requests):
            if next(self.copies[which]) == until:
                break

    def dies(self, which: int) -> None:
        self.copies[which] = self.copy()

    def change_the_spec(self, **change: Any) -> None:
        self.milvus = self.stored(self.milvus | {"spec": self.milvus["spec"] | change})

    def kubelets(self) -> None:
        for name, pod in list(self.pods.items()):
            if mo.is_ending(pod):
                del self.pods[name]
            elif not mo.is_ready(pod):
                self.pods[name] = self.stored(ready(pod))
                self.down.discard(int(name[-1]))

    def move(self, what: str, which: int) -> None:
        """Make one thing happen."""
        if what == "the image changes":
            self.change_the_spec(
                image="milvus:1" if self.milvus["spec"]["image"] == "milvus:2" else "milvus:2"
            )
        elif what == "the replicas change":
            self.change_the_spec(replicas=1 if self.milvus["spec"]["replicas"] == 3 else 3)
        elif what == "kubelets":
            self.kubelets()
        elif what == "dies":
            self.dies(which)
        else:
            self.goes_on(which, until=what)

    def copy(self) -> Iterator[str]:
        """One pass after the other, as in the loop; yields each request before it is made."""
        while True:
            yield "list pods"
            pods, revision = dict(self.pods), self.revision
            yield "list Milvus"
            wanted, changed = self.milvus, set[str]()
            announced, newer = (
                wanted["status"].get("disruptedPod", ""),
                revision >= int(mo.version_of(wanted)),
            )
            for _ in range(mo.Operator.ROUNDS):
                may = mo.disruptable(pods.values(), announced, newer)
                todo = mo.decide(wanted, pods.values(), mo.Limits(skip=changed, disruptable=may))
                if not todo:
                    break
                for action in todo:
                    name = mo.name_of(action.pod)
                    try:
                        if action.disrupts:
                            newer = False
                            yield "announce"
                            wanted = self.announce(wanted, action.pod)
                        yield action.verb
                        pods[name] = getattr(self, action.verb)(wanted, action.pod)
                    except Conflict:
                        changed.add(name)

    # What the API server does.

    def stored(self, obj: Obj) -> Obj:
        self.revision += 1
        return obj | {"metadata": obj["metadata"] | {"resourceVersion": str(self.revision)}}

    def announce(self, wanted: Obj, pod: Obj) -> Obj:
        if mo.version_of(wanted) != mo.version_of(self.milvus):
            raise Conflict
        self.milvus = self.stored(self.milvus | {"status": {"disruptedPod": mo.uid_of(pod)}})
        return self.milvus

    def create(self, wanted: Obj, pod: Obj) -> Obj:
        name = mo.name_of(pod)
        if name in self.pods:
            raise Conflict
        made = mo.new_pod(wanted, mo.ordinal_of(wanted, pod) or 0)
        made["metadata"]["uid"] = f"pod-{next(numbers)}"
        self.pods[name] = self.stored(made)
        return self.pods[name]

    def delete(self, wanted: Obj, pod: Obj) -> Obj:
        """`wanted` is the Milvus as it was when the pod was announced."""
        now, ordinal = self.pods.get(mo.name_of(pod)), mo.ordinal_of(wanted, pod) or 0
        if not now or mo.uid_of(now) != mo.uid_of(pod):
            raise Conflict
        if not mo.is_ready(pod) and mo.version_of(now) != mo.version_of(pod):
            raise Conflict
        if mo.is_ready(now):
            others = {i for i in self.down if i != ordinal and i < mo.replicas_of(wanted)}
            assert ordinal >= mo.replicas_of(wanted) or not others, (
                f"mv-{ordinal} is deleted while {others} are down"
            )
            self.down.add(ordinal)
        if not mo.is_ending(now):
            self.pods[mo.name_of(pod)] = self.stored(
                now | {"metadata": now["metadata"] | {"deletionTimestamp": NOW}}
            )
        return self.pods[mo.name_of(pod)]

    def comes_to_rest(self) -> bool:
        """Whether the goal is reached within a minute and a few passes. After a minute, an announcement no longer
        counts, because the copy that made it may have died."""
        self.milvus = self.stored(self.milvus | {"status": {}})
        self.copies = [self.copy(), self.copy()]
        for _ in range(10):
            for which in (0, 1):
                self.goes_on(which, until="list pods")
                self.goes_on(which, until="list pods")
            self.kubelets()
        fresh = [name for name, pod in self.pods.items()
                 if mo.is_ready(pod) and mo.template_hash_of(pod) == mo.template_hash(self.milvus)]  # fmt: skip
        return (
            sorted(fresh)
            == sorted(self.pods)
            == [f"mv-{i}" for i in range(mo.replicas_of(self.milvus))]
        )


MOVES = (
    ["kubelets"] * 3
    + ["list Milvus"] * 2
    + ["announce", "delete", "the image changes", "the replicas change"]
)


@settings(repeatable, phases=[Phase.generate])
@given(st.integers(0, 2**64))
def test_two_copies_never_take_down_two_ready_pods(seed: int) -> None:
    """With lists of any age, while the spec changes back and forth, and although either copy may die at any moment.

    A seed draws the moves: this finds three faults planted in `disruptable`, and a RuleBasedStateMachine with as many
    steps found none of them.
    """
    both, dice = Copies(), random.Random(seed)
    for what in dice.choices([*MOVES * 5, "dies"], k=120):
        both.move(what, dice.randrange(2))
    assert both.comes_to_rest()


def test_a_copy_with_an_old_list_does_not_finish_what_another_one_announced() -> None:
    """The copy that announced it had deleted another pod before, which the old list still shows as Ready."""
    both = Copies()
    for ordinal, template in enumerate((OLD, OLD, milvus())):
        made = both.create(template, mo.name_only(milvus(), ordinal))
        both.pods[mo.name_of(made)] = both.stored(ready(made))
    last = mo.uid_of(both.pods["mv-1"])
    both.goes_on(0, until="list Milvus")
    both.change_the_spec(replicas=1)
    while both.milvus["status"].get("disruptedPod") != last:
        both.goes_on(1, until="delete")  # the surplus mv-2, then mv-1
    both.dies(1)
    both.change_the_spec(replicas=3)
    both.goes_on(0, until="list pods")
    assert mo.is_ending(both.pods["mv-2"])
    assert mo.is_ready(both.pods["mv-1"])


def test_a_copy_that_could_not_delete_a_pod_waits_while_another_copy_does(
    kube: Kube, plane: ControlPlane, wire: Wire, clock: Clock
) -> None:
    kube.create(replicas=3)
    slow, asked, go = new_wire(plane), threading.Event(), threading.Event()
    first, second = (new_operator(kube, server=one.url, clock=clock) for one in (wire, slow))
    rest(first, kube, "x-0", "x-1", "x-2")
    settle(second)
    before = kube.uids()
    kube.change(image="milvus:2")
    wire.spoil("DELETE", "/pods/x-2", 429, b'{"kind": "Status", "code": 429, "message": "not now"}')
    make_pass(first)
    wire.fault = None
    assert kube.uids() == before
    assert kube.status()["disruptedPod"].split()[0] == before["x-2"]

    def hold(handler: Handler, verb: str, path: str) -> bool:
        if verb == "DELETE":
            asked.set()
            go.wait(20)
        return False

    slow.fault = hold
    passing = threading.Thread(target=make_pass, args=[second])
    passing.start()
    try:
        assert asked.wait(20), "the second copy finishes what the first one announced"
        make_pass(first)
    finally:
        go.set()
        passing.join()
        slow.close()
    after = kube.uids()
    assert [name for name in before if after.get(name) != before[name]] == ["x-2"], (
        "one Ready pod at a time"
    )


# Namespaces ----------------------------------------------------------------------------


def test_a_milvus_is_given_the_pods_of_its_own_namespace(
    kube: Kube, plane: ControlPlane, wire: Wire
) -> None:
    """Names, and even the UIDs in owner references, may be the same in several namespaces."""
    with new_namespace(plane) as other:
        here, there = kube.create(replicas=2), other.create(replicas=1)
        for name, owners in (("x-1", None), ("x-5", [mo.owner_reference(here)])):
            labels = mo.pod_labels(here, int(name[-1]))
            other.create_pod(name, labels=labels, ownerReferences=owners, finalizers=["test/hold"])
        everywhere = new_operator(kube, server=wire.url, namespaces=[None])
        make_pass(everywhere)
        assert kube.names() == ["x-0", "x-1"]
        assert {mo.owner_uid(pod) for pod in kube.all_pods().values()} == {mo.uid_of(here)}
        assert other.names() == ["x-0", "x-1", "x-5"]
        assert mo.owner_uid(other.all_pods()["x-0"]) == mo.uid_of(there)
        assert mo.owner_uid(other.all_pods()["x-1"]) == mo.uid_of(there), (
            "the orphan is in the other namespace"
        )
        before = other.uids()["x-0"]
        kube.change(replicas=0)
        eventually(lambda: make_pass(everywhere) or kube.names() == [])
        assert other.uids()["x-0"] == before
        deleted = {
            request.path.partition("/namespaces/")[2]
            for request in wire.requests
            if request.verb == "DELETE"
        }
        assert deleted == {f"{kube.ns}/pods/x-0", f"{kube.ns}/pods/x-1", f"{other.ns}/pods/x-1"}
        for name in ("x-1", "x-5"):
            other.release(name)
