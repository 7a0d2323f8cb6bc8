"""A changed template replaces pods, and no two Ready pods of a Milvus are down at once."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import milvus_operator as mo
from tests.lib.kit import (
    Clock,
    Kube,
    Obj,
    eventually,
    make_pass,
    new_operator,
    new_wire,
    refusing,
    rest,
    settle,
)
from tests.lib.wire import Handler, Wire


def paused(
    operator: mo.Operator, monkeypatch: pytest.MonkeyPatch, change: Callable[[], Any]
) -> None:
    """Make a pass in which something changes after the operator has listed and before it acts."""
    real = operator.cluster.snapshot

    def snapshot(namespace: str | None) -> Any:
        lists = real(namespace)
        change()
        return lists

    with monkeypatch.context() as patch:
        patch.setattr(operator.cluster, "snapshot", snapshot)
        make_pass(operator)


def announce(kube: Kube, uid: str) -> None:
    """Announce a pod like another copy of the operator, which then dies."""
    body = {"status": {"disruptedPod": f"{uid} then"}}
    kube.milvuses.status.patch(
        name="x", namespace=kube.ns, body=body, content_type="application/merge-patch+json"
    )


class Deletes:
    """A fault that lets deletes through one at a time, and judges each by the pods at that moment."""

    def __init__(self, kube: Kube) -> None:
        self.kube, self.lock = kube, threading.Lock()
        self.down: dict[
            str, str
        ] = {}  # the UIDs of Ready pods that were deleted, by name, until they are Ready again
        self.taken: list[str] = []
        self.harm: list[str] = []

    def __call__(self, handler: Handler, verb: str, path: str) -> bool:
        if verb != "DELETE" or "/pods/" not in path:
            return False
        name, uid = path.rpartition("/")[2], json.loads(handler.seen)["preconditions"]["uid"]
        with self.lock:
            pods, replicas = self.kube.all_pods(), self.kube.get()["spec"]["replicas"]
            wanted = {f"x-{ordinal}" for ordinal in range(replicas)}
            ready = {name: pod["metadata"]["uid"] for name, pod in pods.items() if is_ready(pod)}
            self.down = {
                name: uid for name, uid in self.down.items() if ready.get(name, uid) == uid
            }
            answer = handler.forward()
            if ready.get(name) == uid and answer.status < 300:
                self.taken.append(name)
                if name in wanted and (others := (self.down.keys() & wanted) - {name}):
                    self.harm.append(f"{name} went while {others} were down")
                self.down[name] = uid
        handler.answer(answer.status, answer.data)
        return True


def is_ready(pod: Obj) -> bool:
    conditions = pod.get("status", {}).get("conditions") or []
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return ready and not pod["metadata"].get("deletionTimestamp")


def delay_lists(operator: mo.Operator, dice: random.Random) -> None:
    """From now on, its lists are up to 1.5 s old, and that of pods is as old as that of Milvus resources, or older."""
    real, kept = operator.cluster.snapshot, list[tuple[float, Any]]()

    def snapshot(namespace: str | None) -> Any:
        kept.append((time.monotonic(), real(namespace)))
        while len(kept) > 1 and time.monotonic() - kept[1][0] > dice.uniform(0, 1.5):
            kept.pop(0)
        pods, _, revision = kept[0][1]
        return pods, dice.choice(kept)[1][1], revision

    operator.cluster.snapshot = snapshot  # type: ignore[method-assign]


def test_a_changed_image_rolls_one_pod_at_a_time_from_the_highest_ordinal(
    kube: Kube, wire: Wire
) -> None:
    kube.create(replicas=3)
    operator = new_operator(kube, server=wire.url)
    rest(operator, kube, "x-0", "x-1", "x-2")
    ready = []

    def note(handler: Any, verb: str, path: str) -> bool:
        if verb == "DELETE":
            ready.append(sum(map(mo.is_ready, kube.all_pods().values())))
        return False

    wire.requests.clear()
    wire.fault = note
    kube.change(image="milvus:2")
    eventually(lambda: make_pass(operator) and kube.images() == ["milvus:2"] * 3)
    deleted = [
        request.path.rpartition("/")[2] for request in wire.requests if request.verb == "DELETE"
    ]
    assert deleted == ["x-2", "x-1", "x-0"]
    assert ready == [3, 3, 3], "each is deleted only while all are Ready"
    eventually(lambda: make_pass(operator) and kube.condition("Ready")["status"] == "True")
    assert kube.status()["updatedReplicas"] == 3


def test_a_broken_image_costs_one_pod_and_is_rolled_back(kube: Kube, operator: mo.Operator) -> None:
    kube.create(replicas=3)
    settle(operator)
    kube.ready("x-0", "x-1", "x-2")
    before = kube.uids()
    kube.change(image="milvus:broken")
    settle(operator)
    eventually(lambda: make_pass(operator) and kube.images().count("milvus:broken") == 1)
    eventually(
        lambda: make_pass(operator) and kube.condition("Ready")["reason"] == "ImagePullBackOff"
    )
    assert kube.images() == ["milvus:1", "milvus:1", "milvus:broken"]
    kube.change(image="milvus:1")
    settle(operator)
    kube.ready("x-0", "x-1", "x-2")
    assert kube.images() == ["milvus:1"] * 3
    assert {name: uid for name, uid in kube.uids().items() if name != "x-2"} == {
        name: uid for name, uid in before.items() if name != "x-2"
    }


def test_a_changed_milvus_spec_rolls_and_replicas_do_not(kube: Kube, operator: mo.Operator) -> None:
    kube.create()
    settle(operator)
    kube.ready("x-0")
    before = kube.uids()
    kube.change(replicas=2)
    settle(operator)
    kube.ready("x-0", "x-1")
    assert kube.uids()["x-0"] == before["x-0"]
    kube.change(milvusSpec="other", replicas=1)
    settle(operator)
    eventually(lambda: make_pass(operator) and kube.uids().get("x-0") not in (None, before["x-0"]))


def test_a_stranger_that_the_lists_do_not_show_does_not_block_a_roll(
    kube: Kube, operator: mo.Operator
) -> None:
    """Without our labels, it is noticed only when its name is tried, which its back-off allows now and then."""
    kube.create_pod("x-1")
    kube.create(replicas=3)
    make_pass(operator)
    eventually(lambda: mo.is_ready(kube.all_pods()["x-0"]) and mo.is_ready(kube.all_pods()["x-2"]))
    before = kube.uids()
    kube.change(image="milvus:2")
    eventually(
        lambda: (
            make_pass(operator) is not None
            and kube.images() == ["milvus:2", "stranger:1", "milvus:2"]
        )
    )
    assert kube.uids()["x-1"] == before["x-1"]


def test_rolling_back_under_a_quota(kube: Kube, operator: mo.Operator, clock: Clock) -> None:
    kube.kubectl("create", "quota", "q", "--hard=pods=2")
    eventually(
        lambda: kube.kubectl("get", "quota", "q", "-o", "jsonpath={.status.hard.pods}") == "2"
    )
    kube.create(replicas=3, image="milvus:broken")
    make_pass(operator)
    kube.change(image="milvus:2")

    def is_rolled_back() -> bool:
        clock.skip(5)
        make_pass(operator)
        return kube.images() == ["milvus:2"] * 2

    eventually(is_rolled_back)


def test_refused_deletes_of_a_roll_back_off_and_the_other_pods_are_rolled(
    kube: Kube, wire: Wire, clock: Clock
) -> None:
    kube.create(replicas=3)
    operator = new_operator(kube, server=wire.url, clock=clock)
    rest(operator, kube, "x-0", "x-1", "x-2")
    faults = [refusing("DELETE", f"/pods/x-{number}", 403) for number in (1, 2)]
    wire.fault = lambda handler, verb, path: any(fault(handler, verb, path) for fault in faults)
    kube.change(image="milvus:2")
    eventually(lambda: make_pass(operator) is not None and "milvus:2" in kube.images())
    kube.ready("x-0", "x-1", "x-2")
    for _ in range(20):
        make_pass(operator)
        clock.skip(5)
    assert kube.images() == ["milvus:2", "milvus:1", "milvus:1"]
    assert all(1 <= fault.asked <= 6 for fault in faults)


@pytest.mark.parametrize("first", [{"replicas": 1}, {"image": "milvus:2"}, {"replicas": 0}])
def test_no_ready_pod_is_deleted_for_a_spec_that_has_changed_since_it_was_listed(
    kube: Kube, operator: mo.Operator, monkeypatch: pytest.MonkeyPatch, first: Obj
) -> None:
    kube.create(replicas=3)
    rest(operator, kube, "x-0", "x-1", "x-2")
    before = kube.uids()
    kube.change(**first)
    paused(operator, monkeypatch, lambda: kube.change(replicas=3, image="milvus:1"))
    assert kube.uids() == before
    rest(operator, kube, "x-0", "x-1", "x-2")
    assert kube.uids() == before


def test_a_slow_scale_down_stops_when_it_is_no_longer_wanted(kube: Kube, wire: Wire) -> None:
    """Scaled from 6 to 1 and back within a pass: each Ready pod is deleted only if the current spec asks for it."""
    kube.create(replicas=6)
    operator = new_operator(kube, server=wire.url)
    rest(operator, kube, *(f"x-{i}" for i in range(6)))
    deleted: list[str] = []

    def fault(handler: Handler, verb: str, path: str) -> bool:
        if verb == "DELETE":
            deleted.append(path)
            if len(deleted) == 2:
                kube.change(replicas=6)
        return False

    wire.fault = fault
    kube.change(replicas=1)
    make_pass(operator, once=True)
    assert len(deleted) == 2, "the delete that was in progress is the last"


def test_two_copies_with_different_lists_do_not_delete_two_ready_pods(
    kube: Kube, operator: mo.Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One acts just after the other has listed, as may happen when two of them run at once."""
    other = new_operator(kube)
    kube.create(replicas=3)
    rest(operator, kube, "x-0", "x-1", "x-2")
    rest(other, kube, "x-0", "x-1", "x-2")
    before = kube.uids()

    def by_the_other() -> None:
        make_pass(other)
        kube.change(image="milvus:3", replicas=3)

    kube.change(image="milvus:2")
    paused(operator, monkeypatch, by_the_other)
    gone = {
        name
        for name, uid in before.items()
        if kube.uids().get(name) != uid or mo.is_ending(kube.all_pods()[name])
    }
    assert gone == {"x-2"}


def test_an_announced_pod_that_still_exists_protects_others(
    kube: Kube, operator: mo.Operator, clock: Clock
) -> None:
    """Its delete may be in progress. After a minute, the copy that announced it must have died."""
    kube.create(replicas=3)
    rest(operator, kube, "x-0", "x-1", "x-2")
    before = kube.uids()
    announce(kube, before["x-0"])
    kube.change(replicas=2)
    for _ in range(3):
        make_pass(operator)
    assert kube.uids() == before
    clock.skip(60)
    make_pass(operator)
    assert {name for name, uid in before.items() if kube.uids().get(name) == uid} == {"x-0", "x-1"}


@pytest.mark.parametrize("name", ["x-0", "x-2"])
def test_a_roll_goes_on_with_the_pod_that_another_copy_has_announced(
    kube: Kube, operator: mo.Operator, name: str
) -> None:
    kube.create(replicas=3)
    rest(operator, kube, "x-0", "x-1", "x-2")
    before = kube.uids()
    kube.change(image="milvus:2")
    announce(kube, before[name])
    make_pass(operator)
    make_pass(operator)
    assert {name for name, uid in before.items() if kube.uids().get(name) != uid} == {name}


def test_no_ready_pod_is_rolled_in_a_pass_that_deletes_others(kube: Kube, wire: Wire) -> None:
    """Not even in a later round of that pass, when the others are ending."""
    kube.create(replicas=4)
    operator = new_operator(kube, server=wire.url)
    rest(operator, kube, "x-0", "x-1", "x-2", "x-3")
    wire.requests.clear()
    kube.change(replicas=3, image="milvus:2")
    make_pass(operator, once=True)
    assert [
        request.path.rpartition("/")[2] for request in wire.requests if request.verb == "DELETE"
    ] == ["x-3"]


def test_three_copies_one_of_them_with_old_lists_never_delete_two_ready_pods_at_once(
    kube: Kube,
) -> None:
    """While the spec changes back and forth, and some deletes are late."""
    kube.create(replicas=4)
    dice, deletes, stopping = random.Random(5), Deletes(kube), threading.Event()
    wires = [new_wire(kube.plane) for _ in range(3)]
    for wire in wires:
        wire.fault = deletes
    copies = [new_operator(kube, server=wire.url) for wire in wires]
    delay_lists(copies[0], dice)

    def run(operator: mo.Operator) -> None:
        while not stopping.is_set():
            operator.run_pass()
            time.sleep(0.1)

    threads = [threading.Thread(target=run, args=[copy]) for copy in copies]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 120  # a quiet machine needs a third of that
    while len(deletes.taken) < 15 and time.monotonic() < end:
        update: Obj = (
            {"image": f"milvus:{dice.randrange(2)}"}
            if dice.random() < 0.5
            else {"replicas": dice.randint(2, 4)}
        )
        kube.change(**update)
        time.sleep(dice.uniform(0.3, 3))
    stopping.set()
    for thread in threads:
        thread.join()
    for wire in wires:
        wire.close()
    print(f"{len(deletes.taken)} Ready pods were taken")
    assert len(deletes.taken) >= 10
    assert deletes.harm == []
