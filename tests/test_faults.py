"""Everything breaks that can break in a cluster, and nothing is lost."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

import milvus_operator as mo
from local.controlplane import ControlPlane
from tests.chaos import FAULTS, STRANGER, Faults, Judge, Recorder, Users, gone
from tests.kit import Command, Kube, Obj, eventually, make_pass, new_namespace, new_operator
from tests.soak import soak
from tests.wire import Wire

OURS: Obj = {
    "metadata": {"name": "m", "namespace": "ns", "uid": "uid-of-m", "generation": 1},
    "spec": {"image": "milvus:1", "replicas": 3},
}


def step(kind: str, number: int, ready: bool = True, **metadata: Any) -> tuple[str, Obj]:
    """Something that happens to a pod of ours."""
    pod = mo.new_pod(OURS, number)
    pod["metadata"] |= {"uid": f"pod-{number}"} | metadata
    return kind, pod | {"status": {"conditions": [{"type": "Ready", "status": str(ready)}]}}


def others(kind: str, **metadata: Any) -> tuple[str, Obj]:
    return kind, {"metadata": {"name": "m-9", "uid": "s"} | metadata, "spec": {"containers": [{"image": STRANGER}]}}


@pytest.mark.parametrize(
    ("harm", "history"),
    [
        ("never asked for lately", [step("ADDED", 3)]),
        ("no such template lately", [step("ADDED", 0, annotations={mo.TEMPLATE_HASH: "old"})]),
        ("a healthy wanted pod was deleted", [step("ADDED", 0), step("DELETED", 0)]),
        ("a healthy wanted pod was deleted", [step("ADDED", 0, False), step("MODIFIED", 0, False, deletionTimestamp="now")]),
        ("a stranger was deleted", [others("ADDED"), others("DELETED")]),
        ("a stranger's labels changed", [others("ADDED"), others("MODIFIED", labels={"a": "b"})]),
        ("a stranger's ownerReferences changed", [others("ADDED"), others("MODIFIED", ownerReferences=[])]),
    ],
)  # fmt: skip
def test_the_judge_sees_harm(harm: str, history: list[tuple[str, Obj]]) -> None:
    judge = Judge(deletes={"pod-0", "pod-1", "pod-2"})
    judge.milvus(100, "ADDED", OURS)
    for kind, pod in history[:-1]:
        judge.pod(101, kind, pod)
    with pytest.raises(AssertionError, match=harm):
        judge.pod(130, *history[-1])


def test_the_judge_sees_two_ready_pods_go_at_once_and_takes_what_was_asked_lately() -> None:
    judge = Judge(deletes={"pod-0", "pod-1", "pod-2"})
    judge.milvus(100, "ADDED", OURS)
    for number in range(3):
        judge.pod(101, *step("ADDED", number))
    judge.milvus(130, "MODIFIED", OURS | {"spec": OURS["spec"] | {"image": "milvus:2"}})
    judge.pod(131, *step("DELETED", 2))
    with pytest.raises(AssertionError, match="were not Ready again"):
        judge.pod(132, *step("DELETED", 1))
    judge.milvus(133, "MODIFIED", OURS | {"spec": OURS["spec"] | {"replicas": 0}})
    judge.milvus(134, "MODIFIED", OURS)
    judge.pod(153, *step("DELETED", 0))
    assert judge.seen["surplus"] == 1


def test_a_thousand_faults_on_the_wire(
    kube: Kube, wire: Wire, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mo, "PAGE", 5)
    faults, recorder, users = Faults(seed=1, share=0.3), Recorder(kube), Users(kube, seed=2)
    wire.fault, outages = faults, 0
    operators = [new_operator(kube, wire.url, timeout=1) for _ in range(3)]
    stopping = threading.Event()

    def run(operator: mo.Operator) -> None:
        while not stopping.is_set():
            make_pass(operator)

    threads = [threading.Thread(target=run, args=[operator]) for operator in operators]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 240
    while faults.done.total() < 1000:
        assert time.monotonic() < end, "too few requests: does the loop stand still?"
        users.change()
        time.sleep(0.2)
        if users.changes % 20 == 0:
            wire.outage(0.3)
            outages += 1
    assert all(thread.is_alive() for thread in threads)
    faults.share = 0
    stopping.set()
    for thread in threads:
        thread.join()
    assert faults.done.keys() == FAULTS.keys(), "some kind of fault never came"
    operator = operators[0]
    users.settle_down()
    time.sleep(4)  # for the writes that hang
    for _ in range(3):
        gone(kube)
        make_pass(operator, once=True)
    for name, (_, wanted, mine) in users.pods().items():
        assert mine.keys() <= wanted, name
        assert len(wanted - mine.keys()) <= 1, (
            f"more than the step of a roll that is under way: {name}, {wanted}, {mine}"
        )
    eventually(lambda: make_pass(operator) is not None and users.are_served(), 120, ignoring=(AssertionError,))
    happened = recorder.judge(users.deleted)
    print(f"{faults.done.total()} faults, {outages} outages, {users.changes} changes: {dict(happened)}")
    assert happened["created"] > 100
    assert happened["rolled"] > 10
    assert happened["deleted"] > 50
    ours = [record for record in caplog.records if record.name == "milvus_operator"]
    assert not [record.getMessage() for record in ours if record.exc_info or "unexpected" in record.getMessage()]


@pytest.mark.cluster
def test_a_hundred_kills_of_the_operator_and_ten_of_the_control_plane(tmp_path: Path) -> None:
    """Three copies as processes of their own; the API server keeps no cache, so that no change escapes the recorder."""
    with (
        ControlPlane("--watch-cache=false") as plane,
        new_namespace(plane) as kube,
        (tmp_path / "log").open("w") as log,
    ):
        dice, recorder, users, stopping = random.Random(3), Recorder(kube), Users(kube, seed=4), threading.Event()

        def start() -> Command:
            return Command("-n", kube.ns, "--interval=0.3", "--timeout=5", env={"KUBECONFIG": config}, stderr=log)

        def live() -> None:
            while not stopping.wait(0.15):
                users.change()

        config = str(plane.kubeconfig())
        copies, others = [start() for _ in range(3)], threading.Thread(target=live)
        others.start()
        try:
            for number in range(100):
                time.sleep(dice.uniform(0.2, 0.9))  # a copy lives three times that, and starts for a second of it
                copies[number % 3].kill()
                copies[number % 3] = start()
            for number in range(10):
                plane.kill(["etcd", "kube-apiserver"][number % 2])
                time.sleep(dice.uniform(1, 4))
            stopping.set()
            others.join()
            eventually(users.settle_down, 30, ignoring=(ApiException, OSError, HTTPError))
            eventually(users.are_served, 120, ignoring=(AssertionError,))
        finally:
            stopping.set()
            for copy in copies:
                copy.kill()
        happened = recorder.judge(users.deleted)
        print(f"100 kills of an operator, 10 of the control plane, {users.changes} changes: {dict(happened)}")
        assert happened["created"] > 100
        assert happened["deleted"] > 50
    said = (tmp_path / "log").read_text()
    assert "Traceback" not in said
    assert "unexpected" not in said


def test_a_short_soak_keeps_memory_threads_files_and_connections_flat(kube: Kube, wire: Wire, tmp_path: Path) -> None:
    run = soak(kube, wire, tmp_path, seconds=20, share=0.03)
    print(run.story)
    assert max(run.growth().values()) < 1.1, run
