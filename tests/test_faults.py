"""Everything breaks that can break in a cluster, and nothing is lost."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest
from chaos import FAULTS, Faults, Recorder, Users, deletes_without_uid, gone
from conftest import Command, Kube, eventually, new_namespace, new_operator
from controlplane import ControlPlane
from kubernetes.client.exceptions import ApiException
from soak import soak
from urllib3.exceptions import HTTPError
from wire import Wire

import milvus_operator as mo


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
            operator.run_pass()

    threads = [threading.Thread(target=run, args=[operator]) for operator in operators]
    for thread in threads:
        thread.start()
    while faults.done.total() < 1000:
        users.change()
        time.sleep(0.2)
        if users.changes % 20 == 0:
            wire.outage(0.3)
            outages += 1
    faults.share = 0
    stopping.set()
    for thread in threads:
        thread.join()
    assert faults.done.keys() == FAULTS.keys(), "some kind of fault never came"
    operator = operators[0]
    users.settle_down()
    for _ in range(3):
        gone(kube)
        operator.drain(5)
        operator.run_pass(once=True)
    for name, (wanted, mine) in users.pods().items():
        assert mine <= wanted, name
        assert len(wanted - mine) <= 1, f"more than the step of a roll that is under way: {name}, {wanted}, {mine}"
    eventually(lambda: operator.run_pass() is not None and users.are_served(), 60, ignoring=(AssertionError,))
    happened = recorder.judge(users.deleted)
    print(f"{faults.done.total()} faults, {outages} outages, {users.changes} changes: {dict(happened)}")
    assert happened["created"] > 100
    assert happened["rolled"] > 10
    asked, bare = deletes_without_uid(kube.plane, kube.ns)
    assert asked > 50
    assert not bare
    assert "unexpected" not in caplog.text
    assert "Traceback" not in caplog.text


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
                time.sleep(dice.uniform(0, 0.8))
                copies[number % 3].kill()
                copies[number % 3] = start()
            for number in range(10):
                plane.kill(["etcd", "kube-apiserver"][number % 2])
                time.sleep(dice.uniform(1, 4))
            stopping.set()
            others.join()
            eventually(users.settle_down, 30, ignoring=(ApiException, OSError, HTTPError))
            eventually(users.are_served, 60, ignoring=(AssertionError,))
        finally:
            stopping.set()
            for copy in copies:
                copy.kill()
        happened = recorder.judge(users.deleted)
        print(f"100 kills of an operator, 10 of the control plane, {users.changes} changes: {dict(happened)}")
        assert happened["created"] > 100
        asked, bare = deletes_without_uid(plane, kube.ns)
        assert asked > 50
        assert not bare
    said = (tmp_path / "log").read_text()
    assert "Traceback" not in said
    assert "unexpected" not in said


def test_a_short_soak_keeps_memory_threads_files_and_connections_flat(kube: Kube, wire: Wire, tmp_path: Path) -> None:
    run = soak(kube, wire, tmp_path, seconds=30, share=0.03)
    print(run.story)
    assert max(run.growth().values()) < 1.25, run
