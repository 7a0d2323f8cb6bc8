"""What passes do: they create, replace and scale pods, for many Milvus resources at once."""

from __future__ import annotations

import gc
import json
import threading
import time
import weakref
from typing import Any

import pytest
import yaml

import milvus_operator as mo
from tests.lib.kit import (
    ORIGINAL_MILVUS,
    TOP,
    Clock,
    Kube,
    StillClock,
    eventually,
    make_pass,
    new_operator,
    rest,
    settle,
)
from tests.lib.wire import Handler, Wire


def slow(wire: Wire, seconds: float, part: bytes = b"") -> None:
    """From now on, creating a pod takes this long."""

    def fault(handler: Handler, verb: str, path: str) -> bool:
        if verb == "POST" and "/pods" in path and part in handler.seen:
            time.sleep(seconds)
        return False

    wire.fault = fault


def test_the_milvus_of_the_original_example_is_served_unchanged(
    kube: Kube, operator: mo.Operator
) -> None:
    kube.kubectl("apply", "-f", "-", stdin=ORIGINAL_MILVUS)
    make_pass(operator)
    kube.ready("milvus-crd-test-0")
    pod = kube.all_pods()["milvus-crd-test-0"]
    assert pod["spec"]["containers"][0]["image"] == "milvusdb/milvus"
    assert pod["spec"]["containers"][0]["name"] == "milvus"
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == (
        "milvus-crd-test-0",
        "milvus-crd-test",
    )
    assert pod["metadata"]["annotations"]["zilliz.com/milvus-spec"] == "this is milvus spec"
    assert pod["metadata"]["labels"] == {
        "app.kubernetes.io/name": "milvus",
        "app.kubernetes.io/instance": "milvus-crd-test",
        "app.kubernetes.io/managed-by": "milvus-operator",
        "apps.kubernetes.io/pod-index": "0",
    }
    assert pod["metadata"]["ownerReferences"] == [mo.owner_reference(kube.get("milvus-crd-test"))]
    sample = next(yaml.safe_load_all((TOP / "sample.yaml").read_text()))
    assert sample == yaml.safe_load(ORIGINAL_MILVUS)


def test_a_deleted_pod_is_replaced(kube: Kube, operator: mo.Operator) -> None:
    kube.create(replicas=2)
    settle(operator)
    before = kube.uids()
    kube.delete_pod("x-0")
    kube.gone("x-0")
    settle(operator)
    kube.ready("x-0", "x-1")
    assert kube.uids()["x-1"] == before["x-1"]
    assert kube.uids()["x-0"] != before["x-0"]


def test_scaling_adds_and_deletes_the_highest_ordinals(kube: Kube, operator: mo.Operator) -> None:
    kube.create()
    settle(operator)
    before = kube.uids()
    kube.kubectl("scale", "milvus/x", "--replicas=5")
    settle(operator)
    kube.ready("x-0", "x-1", "x-2", "x-3", "x-4")
    kube.kubectl("scale", "mi/x", "--replicas=2")
    settle(operator)
    kube.ready("x-0", "x-1")
    assert kube.uids()["x-0"] == before["x-0"]
    kube.kubectl("scale", "mi/x", "--replicas=0")
    settle(operator)
    eventually(lambda: not kube.names())
    assert kube.condition("Ready")["status"] == "True"


def test_a_thousand_replicas_in_one_pass(kube: Kube, operator: mo.Operator) -> None:
    kube.create(replicas=1000)
    assert make_pass(operator, once=True)
    assert len(kube.names()) == 1000
    assert kube.status()["replicas"] == 1000


def test_an_ending_pod_is_waited_for_and_not_counted(kube: Kube, operator: mo.Operator) -> None:
    kube.create()
    rest(operator, kube, "x-0")
    before = kube.uids()
    kube.hold("x-0")
    kube.delete_pod("x-0")
    settle(operator)
    assert kube.uids() == before
    assert (kube.status()["replicas"], kube.condition("Ready")["reason"]) == (0, "Terminating")
    kube.release("x-0")
    kube.gone("x-0")
    settle(operator)
    kube.ready("x-0")


def test_a_failed_pod_is_replaced_at_once_then_after_a_back_off(kube: Kube) -> None:
    clock = StillClock()
    operator = new_operator(kube, clock=clock)
    kube.create(image="milvus:dies")
    make_pass(operator)
    seen = [kube.uids()["x-0"]]

    def replaced() -> bool:
        eventually(lambda: mo.is_finished(kube.all_pods()["x-0"]))
        settle(operator)
        return kube.uids()["x-0"] not in seen

    assert replaced(), "deleted and created in one pass"
    for wait in (10, 20, 40):
        seen.append(kube.uids()["x-0"])
        clock.skip(wait - 2)
        assert not replaced()
        assert kube.condition("Ready")["reason"] == "Evicted"
        clock.skip(2)
        assert replaced(), f"after {wait} s"
    seen.append(kube.uids()["x-0"])
    clock.skip(700)
    assert replaced(), "after ten quiet minutes"
    seen.append(kube.uids()["x-0"])
    clock.skip(10)
    assert replaced(), "the back-off starts from the beginning"


def test_only_pods_that_failed_on_their_own_count_for_the_back_off(
    kube: Kube, operator: mo.Operator, clock: Clock
) -> None:
    """Surplus pods do not, nor do those of a roll."""
    kube.create(replicas=2)
    rest(operator, kube, "x-0", "x-1")
    kube.set_pod_status("x-1", phase="Failed")
    kube.change(replicas=1)
    settle(operator)
    kube.change(image="milvus:2")
    eventually(lambda: make_pass(operator) and kube.images() == ["milvus:2"])
    before = kube.uids()
    kube.set_pod_status("x-0", phase="Failed")
    settle(operator)
    assert kube.uids() != before, "at once"


def test_a_succeeded_pod_is_replaced(kube: Kube, operator: mo.Operator) -> None:
    kube.create()
    settle(operator)
    before = kube.uids()
    kube.set_pod_status("x-0", phase="Succeeded")
    settle(operator)
    kube.ready("x-0")
    assert kube.uids() != before


def test_a_deleted_milvus_gets_no_new_pods_and_its_pods_are_deleted(
    kube: Kube, operator: mo.Operator
) -> None:
    kube.create(replicas=2)
    settle(operator)
    kube.hold("x-1")
    kube.delete(propagationPolicy="Foreground")
    kube.gone("x-0")
    make_pass(operator)
    assert kube.names() == ["x-1"], "its Milvus is ending: x-0 is not created again"
    kube.release("x-1")
    eventually(lambda: not kube.names())
    settle(operator)
    assert kube.names() == []


def test_once_serves_a_milvus_again_if_it_changed_meanwhile(
    kube: Kube, operator: mo.Operator, monkeypatch: Any
) -> None:
    milvus = kube.create(replicas=3)
    present = {mo.TEMPLATE_HASH: mo.template_hash(milvus)}
    kube.create_pod("x-0", labels=mo.pod_labels(milvus, 0), annotations=present)
    snapshot = operator.cluster.snapshot

    def then_change(*arguments: Any) -> Any:
        listed = snapshot(*arguments)
        if "touched" not in kube.all_pods()["x-0"]["metadata"]["annotations"]:
            kube.patch_pod("x-0", annotations={"touched": "1"})
        return listed

    monkeypatch.setattr(operator.cluster, "snapshot", then_change)
    assert operator.run_once()
    assert kube.names() == ["x-0", "x-1", "x-2"]
    assert {mo.owner_uid(pod) for pod in kube.all_pods().values()} == {mo.uid_of(milvus)}
    assert kube.condition("Reconciled")["status"] == "True"


def test_nothing_is_written_when_nothing_changed(kube: Kube, wire: Wire) -> None:
    for name in ("x", "y"):
        kube.create(name, replicas=2)
    operator = new_operator(kube, server=wire.url)
    rest(operator, kube, "x-0", "x-1", "y-0", "y-1")
    wire.requests.clear()
    make_pass(operator)
    assert wire.verbs() == [
        f"GET /api/v1/namespaces/{kube.ns}/pods",
        f"GET /apis/zilliz.com/v1/namespaces/{kube.ns}/milvuses",
    ]


def test_only_the_given_namespaces_are_served(kube: Kube) -> None:
    kube.create()
    other = new_operator(kube, namespaces=["default"])
    make_pass(other)
    assert kube.names() == []
    make_pass(new_operator(kube, namespaces=["default", kube.ns]))
    assert kube.names() == ["x-0"]
    kube.create("y")
    make_pass(new_operator(kube, namespaces=[None]))
    assert kube.names() == ["x-0", "y-0"]


def test_three_copies_at_once_do_no_harm(kube: Kube) -> None:
    import threading

    for name in "abcdef":
        kube.create(name, replicas=4)
    copies = [new_operator(kube) for _ in range(3)]
    threads = [threading.Thread(target=settle, args=(copy,)) for copy in copies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kube.names() == sorted(f"{name}-{i}" for name in "abcdef" for i in range(4))
    for name in "abcdef":
        assert kube.condition("Reconciled", name)["status"] == "True"


def test_a_dry_run_writes_nothing(kube: Kube, caplog: Any) -> None:
    kube.create(replicas=2)
    settle(new_operator(kube))
    kube.ready("x-0", "x-1")
    settle(new_operator(kube))
    kube.create("y")
    kube.change(replicas=1, image="milvus:2")
    pods, before = kube.all_pods(), (kube.get("x"), kube.get("y"))
    make_pass(new_operator(kube, dry_run=True), once=True)
    assert kube.all_pods() == pods
    assert (kube.get("x"), kube.get("y")) == before
    said = [record.getMessage() for record in caplog.records if "dry run" in record.getMessage()]
    assert f"created pod {kube.ns}/y-0 (dry run): missing" in said
    assert f"deleted pod {kube.ns}/x-1 (dry run): surplus: 1 wanted" in said


def test_a_back_off_ends_on_time_however_long_the_pass_takes(
    kube: Kube, operator: mo.Operator, clock: Clock
) -> None:
    """It ends between the decision about the pods and the status."""
    kube.kubectl("create", "quota", "q", "--hard=pods=1")
    eventually(
        lambda: kube.kubectl("get", "quota", "q", "-o", "jsonpath={.status.hard.pods}") == "1"
    )
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


@pytest.mark.parametrize(("takes", "starts"), [(0, [0, 5, 10]), (2, [0, 5, 10]), (7, [0, 7, 14])])
def test_a_pass_begins_when_it_is_due_or_when_the_last_one_ends(
    kube: Kube, monkeypatch: pytest.MonkeyPatch, takes: float, starts: list[float]
) -> None:
    clock, began = StillClock(), list[float]()
    operator = new_operator(kube, clock=clock, interval=5)
    real = operator.run_pass

    def run_pass() -> mo.Pass:
        began.append(clock.ahead)
        if len(began) == 3:
            raise KeyboardInterrupt
        this = real()
        clock.skip(takes)
        return this

    monkeypatch.setattr(operator, "run_pass", run_pass)
    monkeypatch.setattr(time, "sleep", clock.skip)
    with pytest.raises(KeyboardInterrupt):
        operator.run()
    assert began == starts


def test_a_milvus_at_rest_is_served_again_when_anything_about_it_changes(
    kube: Kube, wire: Wire
) -> None:
    kube.create(replicas=2)
    kube.create("y")
    operator = new_operator(kube, server=wire.url)
    rest(operator, kube, "x-0", "x-1", "y-0")
    wire.requests.clear()
    merge = "application/merge-patch+json"
    kube.milvuses.status.patch(
        name="x", namespace=kube.ns, body={"status": {"readyReplicas": 7}}, content_type=merge
    )
    settle(operator)
    assert kube.status()["readyReplicas"] == 2
    kube.patch_pod("x-1", labels={mo.POD_INDEX_LABEL: None})
    settle(operator)
    assert mo.labels_of(kube.all_pods()["x-1"])[mo.POD_INDEX_LABEL] == "1"
    assert [verb for verb in wire.verbs() if "/y" in verb] == []


def test_an_invalid_milvus_at_rest_fails_every_once(kube: Kube, operator: mo.Operator) -> None:
    kube.create(milvusSpec="proxy.port: 1")
    assert not operator.run_once()
    assert not operator.run_once()


def test_a_pass_waits_at_its_end_for_writes_in_progress(kube: Kube, wire: Wire) -> None:
    slow(wire, 0.15)
    kube.create()
    make_pass(new_operator(kube, server=wire.url, interval=0.01))
    assert kube.names() == ["x-0"]


def test_a_pass_ends_when_the_next_one_is_due_and_that_one_continues(
    kube: Kube, wire: Wire
) -> None:
    slow(wire, 0.3)
    kube.create(replicas=60)
    operator = new_operator(kube, server=wire.url, interval=0.5)
    make_pass(operator)
    assert 1 <= len(kube.names()) < 60
    eventually(lambda: make_pass(operator) and len(kube.names()) == 60, 120)


def test_the_milvus_that_has_waited_longest_goes_first(kube: Kube, wire: Wire) -> None:
    operator = new_operator(kube, server=wire.url, workers=1)
    kube.create("a")
    make_pass(operator, once=True)
    kube.change("a", replicas=2)
    kube.create("b")
    wire.requests.clear()
    make_pass(operator, once=True)
    bodies = [
        request.body
        for request in wire.requests
        if request.verb == "POST" and request.path.endswith("/pods")
    ]
    assert [json.loads(body)["metadata"]["name"] for body in bodies] == ["b-0", "a-1"]


def test_a_write_that_hangs_is_not_repeated_and_delays_no_other_write(
    kube: Kube, wire: Wire
) -> None:
    """It delays other ordinals of its Milvus by one pass at most, and no other Milvus or status."""
    go_on, asked = threading.Event(), list[str]()

    def fault(handler: Handler, verb: str, path: str) -> bool:
        if verb == "POST" and "/pods" in path:
            asked.append(json.loads(handler.seen)["metadata"]["name"])
            if asked[-1] == "bad-0":
                go_on.wait(30)
        return False

    wire.fault = fault
    kube.create("bad", replicas=3)
    operator = new_operator(kube, server=wire.url, timeout=60, interval=0.3)
    eventually(lambda: make_pass(operator) is not None and kube.names() == ["bad-1", "bad-2"])
    kube.create("good")
    eventually(
        lambda: make_pass(operator) is not None and kube.names() == ["bad-1", "bad-2", "good-0"]
    )
    eventually(lambda: make_pass(operator) is not None and kube.status("bad")["replicas"] == 2)
    assert asked.count("bad-0") == 1
    go_on.set()
    eventually(lambda: make_pass(operator) and "bad-0" in kube.names())


def test_a_failure_after_the_end_of_its_pass_is_reported_by_the_next(
    kube: Kube, wire: Wire, clock: Clock
) -> None:
    """For example, that of a webhook that takes longer than the interval."""
    answered = threading.Event()

    def fault(handler: Handler, verb: str, path: str) -> bool:
        hit = verb == "POST" and "/pods" in path
        if hit:
            time.sleep(0.8)
            handler.answer(500, b'{"kind":"Status","message":"the webhook is slow"}')
            answered.set()
        return hit

    wire.fault = fault
    operator = new_operator(kube, server=wire.url, interval=0.1, clock=clock)
    kube.create()
    make_pass(operator)
    assert answered.wait(10)
    eventually(
        lambda: not make_pass(operator) and kube.condition("Reconciled").get("status") == "False"
    )
    assert kube.condition("Reconciled")["message"] == "the webhook is slow"
    wire.fault = None
    clock.skip(30)
    eventually(lambda: make_pass(operator) and kube.names() == ["x-0"])


def test_the_loop_collects_garbage_after_each_pass(
    operator: mo.Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[weakref.ref[Any]] = []
    operator.interval = 0.01
    real = operator.run_pass

    class Circle:
        def __init__(self) -> None:
            self.itself = self

    def run_pass(once: bool = False) -> mo.Pass:
        assert not [ref for ref in left if ref()]
        left.append(weakref.ref(Circle()))
        if len(left) == 3:
            raise KeyboardInterrupt
        return real(once)

    monkeypatch.setattr(operator, "run_pass", run_pass)
    gc.disable()
    try:
        with pytest.raises(KeyboardInterrupt):
            operator.run()
    finally:
        gc.enable()


def test_no_object_of_a_pass_outlives_the_next_collection(
    kube: Kube, operator: mo.Operator
) -> None:
    """The command collects garbage only between passes, so objects must not add up."""
    kube.create(replicas=3)
    sizes, threads = [], []
    gc.disable()
    try:
        for _ in range(8):
            if kube.pod("x-0"):
                kube.delete_pod("x-0")
            for _ in range(10):
                make_pass(operator, once=True)
            gc.collect()
            sizes.append(len(gc.get_objects()))
            threads.append(threading.active_count())
    finally:
        gc.enable()
    assert sizes[-1] - sizes[3] < 300, sizes
    assert threads[-1] <= threads[0] + 2, threads
