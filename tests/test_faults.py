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


def judged_wire(plane: ControlPlane, judge: Judge, alone: bool) -> Wire:
    wire = new_wire(plane)
    wire.copy, wire.keep = Copy(judge, alone), False
    return wire


def is_enough(faults: Faults, judge: Judge, share: float) -> bool:
    """Whether so many faults have happened, of each kind, and so much has been judged."""
    kinds = all(faults.done[kind] and faults.done_to_writes[kind] >= 3 * share for kind in FAULTS
                if kind not in ("410", "not a list"))  # fmt: skip
    created, deleted = judge.seen["POST pods"], judge.seen["DELETE pods"]
    return kinds and faults.done.total() >= 1000 * share and min(created, deleted) > 200 * share


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("copies", "share"),
    [
        (1, 0.2),
        pytest.param(1, 1, marks=pytest.mark.slow),
        pytest.param(3, 1, marks=pytest.mark.slow),
    ],
    ids=["two hundred faults, one copy", "a thousand, one copy", "a thousand, three copies"],
)
def test_nothing_is_lost_and_nobody_is_harmed_whatever_fails_on_the_wires(
    kube: Kube, caplog: pytest.LogCaptureFixture, copies: int, share: float
) -> None:
    users, judge = Users(kube, seed=2), Judge()
    recorder, faults, outages = Recorder(kube), Faults(seed=1, reads=0.15, writes=0.4), 0
    wires = [judged_wire(kube.plane, judge, copies == 1) for _ in range(copies)]
    operators = [new_operator(kube, wire.url, timeout=2) for wire in wires]
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
        while not is_enough(faults, judge, share):
            assert time.monotonic() < end, f"is the loop stuck? {faults.done}, {judge.seen}"
            users.change()
            time.sleep(0.1)
            if users.changes % 20 == 0:
                wires[outages % copies].outage(0.3)
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
    harm = judge.sentence(recorder.history(), users.deleted)
    print(f"{faults.done.total()} faults, {outages} outages, {users.changes} changes: {judge.seen}")
    assert not harm, "\n".join(harm)
    ours = [record for record in caplog.records if record.name == "milvus_operator"]
    unexpected = [record for record in ours if "unexpected" in record.getMessage()]
    assert not [record.getMessage() for record in ours if record.exc_info or record in unexpected]


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.timeout(1200)
def test_kills_of_the_operator_and_of_the_control_plane_in_the_middle_of_writes_do_no_harm(
    tmp_path: Path,
) -> None:
    """The API server keeps no cache, so that the recorder misses no change."""
    with (
        ControlPlane("--watch-cache=false") as plane,
        new_namespace(plane) as kube,
        (tmp_path / "log").open("w") as log,
    ):
        users, judge = Users(kube, seed=4), Judge()
        recorder, todo = Recorder(kube), ["before", "after"] * 25 + ["etcd", "kube-apiserver"] * 4
        kills = Kills(plane, 3, *todo)

        def start() -> None:
            wire = judged_wire(plane, judge, alone=True)
            config = kubeconfig(tmp_path / wire.url.rpartition(":")[2], plane, server=wire.url)
            wire.fault, arguments = kills, ("-n", kube.ns, "--interval=0.3", "--timeout=5")
            kills.processes[wire] = Command(*arguments, env={"KUBECONFIG": config}, stderr=log)

        end = time.monotonic() + 900  # a quiet machine needs a tenth of that
        try:
            while kills.todo:
                assert time.monotonic() < end, f"is it stuck? {kills.todo}, {judge.seen}"
                if not kills.processes:
                    start()
                users.change()
                time.sleep(0.1)
            kills.server.join()
            if not kills.processes:
                start()
            eventually(users.settle_down, 30, ignoring=(ApiException, OSError, HTTPError))
            eventually(users.are_served, 120, ignoring=(AssertionError,))
        finally:
            kills.todo = []
            for wire, process in [*kills.processes.items()]:
                process.kill()
                wire.close()
        harm = judge.sentence(recorder.history(), users.deleted)
        print(f"{len(todo)} kills, {users.changes} changes: {judge.seen}")
        assert not harm, "\n".join(harm)
    said = (tmp_path / "log").read_text()
    assert "Traceback" not in said
    assert "unexpected" not in said


@pytest.mark.slow
def test_a_short_soak_keeps_memory_threads_files_and_connections_flat(
    kube: Kube, wire: Wire, tmp_path: Path
) -> None:
    run = soak(kube, wire, tmp_path, seconds=20, share=0.03)
    print(run.happened)
    assert not run.growth(), run
