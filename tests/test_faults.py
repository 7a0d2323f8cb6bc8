"""Everything in a cluster that can break does, and nothing is lost."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

import milvus_operator as mo
from local.controlplane import ControlPlane
from tests.lib.chaos import FAULTS, Faults, Kills, Recorder, Users
from tests.lib.judge import Copy, Judge
from tests.lib.kit import (
    Command,
    Kube,
    eventually,
    kubeconfig,
    make_pass,
    new_namespace,
    new_operator,
    new_wire,
)
from tests.lib.soak import soak
from tests.lib.wire import Wire


@pytest.mark.timeout(900)
def test_a_thousand_faults_on_the_wires_of_three_copies(
    kube: Kube, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mo, "PAGE", 5)
    users, judge = Users(kube, seed=2), Judge()
    recorder, faults, outages = Recorder(kube), Faults(seed=1, reads=0.15, writes=0.4), 0
    wires = [judged_wire(kube.plane, judge, patience=1) for _ in range(3)]
    # No pass ends before its writes do; the next test has writes that outlive their pass.
    operators = [new_operator(kube, wire.url, timeout=2, interval=1000) for wire in wires]
    stopping = threading.Event()

    def run(operator: mo.Operator) -> None:
        while not stopping.is_set():
            make_pass(operator)

    threads = [threading.Thread(target=run, args=[operator]) for operator in operators]
    for wire, thread in zip(wires, threads, strict=True):
        wire.fault = faults
        thread.start()
    end = time.monotonic() + 600  # a quiet machine needs a tenth of that
    try:
        while not (enough_faults(faults) and enough_judged(judge)):
            assert not judge.harm, "\n".join(judge.harm)
            assert time.monotonic() < end, (
                f"is the loop stuck? {faults.done_to_writes}, {judge.seen}"
            )
            users.change()
            time.sleep(0.1)
            if users.changes % 20 == 0:
                wires[outages % 3].outage(0.3)
                outages += 1
        assert all(thread.is_alive() for thread in threads)
    finally:
        faults.stop()
        stopping.set()
        for thread in threads:
            thread.join()
    users.settle_down()
    eventually(
        lambda: make_pass(operators[0]) is not None and users.are_served(),
        120,
        ignoring=(AssertionError,),
    )
    for wire in wires:
        wire.close()
    print(f"{faults.done.total()} faults, {faults.done_to_writes.total()} of them to writes, {outages} outages, "
          f"{users.changes} changes: {dict(judge.seen)}, {dict(recorder.judge(users.deleted))}")  # fmt: skip
    assert not judge.harm, "\n".join(judge.harm)
    ours = [record for record in caplog.records if record.name == "milvus_operator"]
    assert not [
        record.getMessage()
        for record in ours
        if record.exc_info or "unexpected" in record.getMessage()
    ]


@pytest.mark.cluster
@pytest.mark.timeout(1200)
def test_a_hundred_kills_of_the_operator_and_ten_of_the_control_plane_in_the_middle_of_writes(
    tmp_path: Path,
) -> None:
    """Three copies in separate processes; the API server keeps no cache, so that the recorder misses no change."""
    with (
        ControlPlane("--watch-cache=false") as plane,
        new_namespace(plane) as kube,
        (tmp_path / "log").open("w") as log,
    ):
        users, judge = Users(kube, seed=4), Judge()
        recorder, todo = Recorder(kube), ["before", "after"] * 50 + ["etcd", "kube-apiserver"] * 5
        kills = Kills(plane, 3, *todo)

        def start() -> None:
            wire = judged_wire(plane, judge, patience=2.5)
            config = kubeconfig(tmp_path / wire.url.rpartition(":")[2], plane, server=wire.url)
            wire.fault, arguments = kills, ("-n", kube.ns, "--interval=0.3", "--timeout=5")
            kills.processes[wire] = Command(*arguments, env={"KUBECONFIG": config}, stderr=log)

        end = time.monotonic() + 900  # a quiet machine needs a tenth of that
        try:
            while kills.todo or not enough_judged(judge):
                assert time.monotonic() < end, f"are the copies stuck? {kills.todo}, {judge.seen}"
                assert not judge.harm, "\n".join(judge.harm)
                if len(kills.processes) < 3:
                    start()
                users.change()
                time.sleep(0.1)
            kills.server.join()
            while len(kills.processes) < 3:
                start()
            eventually(users.settle_down, 30, ignoring=(ApiException, OSError, HTTPError))
            eventually(users.are_served, 120, ignoring=(AssertionError,))
        finally:
            kills.todo = []
            for wire, process in [*kills.processes.items()]:
                process.kill()
                wire.close()
        print(
            f"{len(todo)} kills, {users.changes} changes: {dict(judge.seen)}, {dict(recorder.judge(users.deleted))}"
        )
        assert not judge.harm, "\n".join(judge.harm)
    said = (tmp_path / "log").read_text()
    assert "Traceback" not in said
    assert "unexpected" not in said


def judged_wire(plane: ControlPlane, judge: Judge, patience: float) -> Wire:
    wire = new_wire(plane)
    wire.copy, wire.patience, wire.keep = Copy(judge), patience, False
    return wire


def enough_faults(faults: Faults) -> bool:
    often = all(
        faults.done_to_writes[kind] >= 3 for kind in FAULTS if kind not in ("410", "not a list")
    )
    return often and faults.done.keys() == FAULTS.keys() and faults.done.total() >= 1000


def enough_judged(judge: Judge) -> bool:
    return judge.seen["pods created"] > 200 and judge.seen["deletes of Ready pods"] >= 40


def test_a_short_soak_keeps_memory_threads_files_and_connections_flat(
    kube: Kube, wire: Wire, tmp_path: Path
) -> None:
    run = soak(kube, wire, tmp_path, seconds=20, share=0.03)
    print(run.happened)
    assert max(run.growth().values()) < 1.1, run
