"""What a pass does when writes fail, lists are old and wishes change: each rule by single passes over the wire."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import REGISTRY

import milvus_operator as mo
from tests.kit import Clock, Kube, eventually, make_pass, new_operator, new_wire, rest
from tests.wire import Handler, Wire

Obj = dict[str, Any]
STORED = {"size": "1Gi", "storageClassName": "none"}


def refusing(verb: str, part: str, code: int, message: str = "not now", reason: str = "") -> Any:
    """A fault that answers so whatever has that verb and this part in its path; it counts itself."""

    def fault(handler: Handler, asked: str, path: str) -> bool:
        hit = asked == verb and part in path
        if hit:
            fault.asked += 1  # type: ignore[attr-defined]
            body = {"kind": "Status", "code": code, "message": message, "reason": reason}
            handler.answer(code, json.dumps(body).encode())
        return hit

    fault.asked = 0  # type: ignore[attr-defined]
    return fault


# Claims ----------------------------------------------------------------------------------------


def claim_uid(kube: Kube, name: str) -> str:
    return kube.kubectl("get", "pvc", name, "-o", "jsonpath={.metadata.uid}", "--ignore-not-found")


def test_a_claim_that_is_being_deleted_is_waited_for(kube: Kube, operator: mo.Operator, clock: Clock) -> None:
    """A pod made on it would stay Pending for ever."""
    kube.create(storage=STORED)
    make_pass(operator)
    before = claim_uid(kube, "data-x-0")
    kube.kubectl("patch", "pvc", "data-x-0", "--type=merge", "-p", '{"metadata":{"finalizers":["test/hold"]}}')
    kube.kubectl("delete", "pvc", "data-x-0", "--wait=false")
    kube.delete_pod("x-0")
    kube.gone("x-0")
    for _ in range(3):
        assert make_pass(operator), "that is no failure"
        clock.skip(30)
    assert kube.names() == []
    assert kube.condition("Reconciled")["status"] == "True"
    assert kube.condition("Ready")["reason"] == "ClaimTerminating"
    assert "claim data-x-0 is being deleted" in kube.condition("Ready")["message"]
    kube.kubectl("patch", "pvc", "data-x-0", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    eventually(lambda: not claim_uid(kube, "data-x-0"))
    assert make_pass(operator)
    assert kube.names() == ["x-0"]
    assert claim_uid(kube, "data-x-0") not in ("", before)


def test_a_used_up_quota_of_claims_keeps_no_pod_from_its_claim(kube: Kube, operator: mo.Operator) -> None:
    """The API server asks the quota before it looks whether the claim is there."""
    kube.kubectl("create", "quota", "q", "--hard=persistentvolumeclaims=1")
    eventually(lambda: kube.kubectl("get", "quota", "q", "-o", "jsonpath={.status.hard.persistentvolumeclaims}") == "1")
    kube.create(storage=STORED)
    assert make_pass(operator)
    kube.delete_pod("x-0")
    kube.gone("x-0")
    assert make_pass(operator)
    assert kube.names() == ["x-0"]


def test_a_claim_that_was_deleted_under_a_pending_pod_is_made_again(
    kube: Kube, operator: mo.Operator, clock: Clock
) -> None:
    kube.create(replicas=11, storage=STORED)
    make_pass(operator)
    before = claim_uid(kube, "data-x-1"), claim_uid(kube, "data-x-10")
    kube.kubectl("delete", "pvc", "data-x-10")

    def again() -> bool:
        clock.skip(30)
        return make_pass(operator) and claim_uid(kube, "data-x-10") not in ("", before[1])

    eventually(again, 40)  # as soon as the scheduler has noticed
    assert claim_uid(kube, "data-x-1") == before[0]


# Writes that fail ------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 403, 422, 429, 500])
def test_a_delete_that_keeps_failing_delays_no_other_pod(kube: Kube, wire: Wire, clock: Clock, code: int) -> None:
    kube.create(replicas=4)
    operator = new_operator(kube, server=wire.url, clock=clock, timeout=1)
    rest(operator, kube, *(f"x-{i}" for i in range(4)))
    kube.delete_pod("x-0")
    kube.gone("x-0")
    fault = refusing("DELETE", "/pods/x-3", code)
    wire.fault = fault if code else lambda handler, verb, path: bool(fault_hang(handler, verb, path))
    kube.change(replicas=2)
    for _ in range(2):
        make_pass(operator)
    assert "x-0" in kube.names()
    kube.delete_pod("x-1")
    kube.gone("x-1")
    clock.skip(400)
    make_pass(operator)
    assert "x-1" in kube.names(), "also when it is tried again"
    if code:
        assert "x-2" not in kube.names(), "and other pods are deleted meanwhile"
    assert "x-3" in kube.names()


def fault_hang(handler: Handler, verb: str, path: str) -> bool:
    hit = verb == "DELETE" and "/pods/x-3" in path
    if hit:
        time.sleep(2)
        handler.reset()
    return hit


def test_a_conflict_about_a_quota_is_tried_again_at_once(kube: Kube, wire: Wire) -> None:
    message = 'Operation cannot be fulfilled on resourcequotas "q": the object has been modified'
    refused = refusing("POST", f"/{kube.ns}/pods", 409, message, "Conflict")

    def fault(handler: Handler, verb: str, path: str) -> bool:
        return refused.asked < 3 and bool(refused(handler, verb, path))

    wire.fault = fault
    kube.create(replicas=3)
    assert new_operator(kube, server=wire.url).run_once()
    assert kube.names() == ["x-0", "x-1", "x-2"]
    assert kube.condition("Reconciled")["status"] == "True"


def test_a_status_that_could_not_be_written_fails_once(kube: Kube, wire: Wire) -> None:
    wire.fault = refusing("PATCH", "/status", 500)
    kube.create()
    assert not new_operator(kube, server=wire.url).run_once()
    assert kube.names() == ["x-0"]


def test_passes_fail_as_long_as_a_right_is_missing_also_while_what_needs_it_rests(
    kube: Kube, wire: Wire, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    def count(result: str) -> float:
        return REGISTRY.get_sample_value("milvus_operator_passes_total", {"result": result}) or 0

    right = 'pods is forbidden: User "x" cannot create resource "pods" in API group "" in the namespace "y"'
    fault = refusing("POST", f"/{kube.ns}/pods", 403, right, "Forbidden")
    wire.fault = fault
    kube.create()
    operator = new_operator(kube, server=wire.url, clock=clock)
    good, bad = count("success"), count("failure")
    for _ in range(3):
        make_pass(operator)
    assert (count("success"), count("failure")) == (good, bad + 3)
    assert fault.asked == 1
    said = f"not allowed to create pods in namespace {kube.ns}: grant this right to the operator"
    assert caplog.text.count(said) == 1
    wire.fault = None
    clock.skip(30)
    make_pass(operator)
    assert count("success") == good + 1
    assert f"resolved: {said}" in caplog.text


def test_a_trouble_whose_words_vary_is_said_once(kube: Kube, wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
    lengths = iter(range(100, 200))

    def fault(handler: Handler, verb: str, path: str) -> bool:
        body = handler.forward().data
        handler.answer(200, body[: len(body) // 2], length=len(body) + next(lengths))
        handler.reset()
        return True

    operator = new_operator(kube, server=wire.url)
    wire.fault = fault
    for _ in range(5):
        assert not make_pass(operator)
    assert caplog.text.count("cannot reach") == 1
    wire.fault = None
    assert make_pass(operator)
    assert caplog.text.count("resolved: cannot reach") == 1


def test_a_right_that_is_missing_for_many_is_said_once(
    kube: Kube, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    right = 'pods is forbidden: User "x" cannot create resource "pods" in API group "" in the namespace "y"'
    wire.fault = refusing("POST", f"/{kube.ns}/pods", 403, right, "Forbidden")
    for name in "abcde":
        kube.create(name, replicas=3)
    operator = new_operator(kube, server=wire.url)
    for _ in range(3):
        make_pass(operator)
    assert [record.levelname for record in caplog.records if record.levelno > 20] == ["ERROR"]
    assert "cannot create resource" in kube.condition("Reconciled", "a")["message"], "the server's own words"
    assert (kube.condition("Stalled", "a")["status"], kube.condition("Stalled", "a")["reason"]) == ("True", "Forbidden")


# Ready pods ------------------------------------------------------------------------------------


def test_what_rests_is_tried_when_its_time_has_come_however_long_the_pass_takes(
    kube: Kube, operator: mo.Operator, clock: Clock
) -> None:
    """Its rest ends between the decision about the pods and the status."""
    kube.kubectl("create", "quota", "q", "--hard=pods=1")
    eventually(lambda: kube.kubectl("get", "quota", "q", "-o", "jsonpath={.status.hard.pods}") == "1")
    kube.create(replicas=2)
    make_pass(operator)
    make_pass(operator)
    real = operator.write_status
    clock.skip(9)

    def late(this: mo.Pass, job: mo.Job) -> None:
        clock.skip(5)
        real(this, job)

    operator.write_status = late  # type: ignore[method-assign]
    make_pass(operator)
    operator.write_status = real  # type: ignore[method-assign]
    kube.kubectl("delete", "quota", "q")
    make_pass(operator)
    assert kube.names() == ["x-0", "x-1"]


@pytest.mark.parametrize("change", [{"replicas": 1}, {"image": "milvus:2"}])
def test_a_delete_that_is_refused_fails_once_and_is_said(kube: Kube, wire: Wire, change: Obj) -> None:
    kube.create(replicas=2)
    operator = new_operator(kube, server=wire.url)
    rest(operator, kube, "x-0", "x-1")
    wire.fault = refusing("DELETE", "/pods/x-1", 500)
    kube.change(**change)
    assert not operator.run_once()
    assert kube.condition("Reconciled")["message"] == "not now"


def test_refused_deletes_of_a_roll_have_their_back_off_and_the_rest_is_rolled(
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


def test_a_create_whose_connection_is_reset_delays_no_other(kube: Kube, wire: Wire) -> None:
    def fault(handler: Handler, verb: str, path: str) -> bool:
        hit = verb == "POST" and b'"name": "x-0"' in handler.seen
        if hit:
            handler.reset()
        return hit

    wire.fault = fault
    kube.create(replicas=3)
    operator = new_operator(kube, server=wire.url)
    make_pass(operator)
    make_pass(operator)
    assert kube.names() == ["x-1", "x-2"]


def test_what_was_refused_for_a_pod_does_not_delay_something_else_about_it(kube: Kube, wire: Wire) -> None:
    """Its delete was refused, and then somebody else deleted it: it is created at once."""
    kube.create(replicas=2)
    operator = new_operator(kube, server=wire.url)
    rest(operator, kube, "x-0", "x-1")
    wire.fault = refusing("DELETE", "/pods/x-1", 403)
    kube.change(replicas=1)
    make_pass(operator)
    kube.delete_pod("x-1")
    kube.gone("x-1")
    kube.change(replicas=2)
    make_pass(operator)
    assert kube.names() == ["x-0", "x-1"]


def paused(operator: mo.Operator, monkeypatch: pytest.MonkeyPatch, change: Callable[[], Any]) -> None:
    """Something happens after the operator's next lists, and before it acts upon them."""
    real = operator.cluster.snapshot

    def snapshot(namespace: str | None) -> Any:
        lists = real(namespace)
        change()
        return lists

    with monkeypatch.context() as patch:
        patch.setattr(operator.cluster, "snapshot", snapshot)
        make_pass(operator)


@pytest.mark.parametrize("first", [{"replicas": 1}, {"image": "milvus:2"}, {"replicas": 0}])
def test_no_ready_pod_goes_for_a_wish_that_has_changed_since_it_was_listed(
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
    """Scaled from 6 to 1 and back within a pass: each Ready pod is deleted upon the spec of that moment."""
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
    assert len(deleted) == 2, "the one that was under way is the last"


def test_two_copies_on_different_lists_do_not_take_two_ready_pods(
    kube: Kube, operator: mo.Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One acts in the moment after the other has listed: as two of them do that run at once."""
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
    gone = {name for name, uid in before.items() if kube.uids().get(name) != uid or mo.is_ending(kube.all_pods()[name])}
    assert gone == {"x-2"}


def announce(kube: Kube, uid: str) -> None:
    """As another copy of the operator, which then dies."""
    body = {"status": {"disruptedPod": f"{uid} then"}}
    kube.milvuses.status.patch(name="x", namespace=kube.ns, body=body, content_type="application/merge-patch+json")


def test_an_announced_pod_that_still_stands_keeps_the_others(kube: Kube, operator: mo.Operator, clock: Clock) -> None:
    """Its delete may be on the way. After a minute whoever announced it has died."""
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
    """Also not in a later round of that pass, when those are on their way out."""
    kube.create(replicas=4)
    operator = new_operator(kube, server=wire.url)
    rest(operator, kube, "x-0", "x-1", "x-2", "x-3")
    wire.requests.clear()
    kube.change(replicas=3, image="milvus:2")
    make_pass(operator, once=True)
    assert [request.path.rpartition("/")[2] for request in wire.requests if request.verb == "DELETE"] == ["x-3"]


class Deletes:
    """A fault that lets deletes through one at a time, and judges each by what is there at that moment."""

    def __init__(self, kube: Kube) -> None:
        self.kube, self.lock = kube, threading.Lock()
        self.down: dict[str, str] = {}  # the UID of each Ready pod that went, by name, until it is Ready again
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
            self.down = {name: uid for name, uid in self.down.items() if ready.get(name, uid) == uid}
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
    """From now on its lists are up to 1.5 s old, and that of the pods is as old as that of the Milvus or older."""
    real, kept = operator.cluster.snapshot, list[tuple[float, Any]]()

    def snapshot(namespace: str | None) -> Any:
        kept.append((time.monotonic(), real(namespace)))
        while len(kept) > 1 and time.monotonic() - kept[1][0] > dice.uniform(0, 1.5):
            kept.pop(0)
        pods, _, revision = kept[0][1]
        return pods, dice.choice(kept)[1][1], revision

    operator.cluster.snapshot = snapshot  # type: ignore[method-assign]


def test_of_three_copies_one_of_them_with_old_lists_no_two_ready_pods_go_at_once(kube: Kube) -> None:
    """While the spec flips; some deletes come late."""
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
        wish: Obj = (
            {"image": f"milvus:{dice.randrange(2)}"} if dice.random() < 0.5 else {"replicas": dice.randint(2, 4)}
        )
        kube.change(**wish)
        time.sleep(dice.uniform(0.3, 3))
    stopping.set()
    for thread in threads:
        thread.join()
    for wire in wires:
        wire.close()
    print(f"{len(deletes.taken)} Ready pods were taken")
    assert len(deletes.taken) >= 10
    assert deletes.harm == []
