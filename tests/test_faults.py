"""Everything in a cluster that can break does, and nothing is lost."""

import threading
import time
from pathlib import Path

import pytest

from local.controlplane import ControlPlane
from tests.lib.chaos import FAULTS, Faults, Kills, Recorder, Users
from tests.lib.judge import Judge
from tests.lib.kit import Command, Kube, kubeconfig, new_namespace, new_operator, new_wire
from tests.lib.soak import soak
from tests.lib.wire import Wire


def is_enough(faults: Faults, judge: Judge, share: float) -> bool:
    """Whether so many faults have happened, of each kind, and so much has been judged."""
    kinds = all(faults.done[kind] and faults.done_to_writes[kind] >= 3 * share for kind in FAULTS
                if kind not in ("410", "not a list"))  # fmt: skip
    created, deleted = judge.seen["POST pods"], judge.seen["DELETE pods"]
    return kinds and faults.done.total() >= 1000 * share and min(created, deleted) > 200 * share


@pytest.mark.timeout(900)  # seconds; a quiet machine needs a tenth of that
@pytest.mark.parametrize("share", [0.2, pytest.param(1, marks=pytest.mark.slow)])
def test_nothing_is_lost_and_nobody_is_harmed_whatever_fails_on_the_wire(
    kube: Kube, wire: Wire, caplog: pytest.LogCaptureFixture, share: float
) -> None:
    """A thousand faults, or a share of them. Passes follow each other without a pause."""
    users, judge, recorder = Users(kube, seed=2), Judge(), Recorder(kube)
    faults = Faults(seed=1, reads=0.15, writes=0.4)
    operator, stopping = new_operator(kube, server=wire.url, timeout=2), threading.Event()

    def run() -> None:
        while not stopping.is_set():
            operator.run_pass()

    wire.judge, wire.fault = judge, faults
    thread = threading.Thread(target=run)
    thread.start()
    try:
        while not is_enough(faults, judge, share):
            assert thread.is_alive()
            users.change()
            time.sleep(0.1)
            if users.changes % 20 == 0:
                wire.outage(0.3)
        faults.reads = faults.writes = 0
        users.settle_down()
    finally:
        stopping.set()
        thread.join()
    users.check_harm(judge, recorder)
    ours = [record for record in caplog.records if record.name == "milvus_operator"]
    assert not [one for one in ours if one.exc_info or "unexpected" in one.getMessage()]


@pytest.mark.slow
def test_nothing_grows_in_a_short_soak(kube: Kube, wire: Wire, tmp_path: Path) -> None:
    run = soak(kube, wire, tmp_path, seconds=20)
    assert not run.growth(), run


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.timeout(1200)  # seconds; a quiet machine needs a tenth of that
def test_kills_of_the_operator_and_the_control_plane_amid_writes_do_no_harm(tmp_path: Path) -> None:
    """The API server keeps no cache, so that the recorder misses no change."""
    with (
        ControlPlane("--watch-cache=false") as plane,
        new_namespace(plane) as kube,
        (tmp_path / "log").open("w") as log,
    ):
        users, judge, recorder = Users(kube, seed=4), Judge(), Recorder(kube)
        todo = ["before", "after"] * 25 + ["etcd", "kube-apiserver"] * 4
        kills = Kills(plane, 3, *todo)

        def start() -> None:
            wire = new_wire(plane)
            config = kubeconfig(tmp_path / wire.url.rpartition(":")[2], plane, server=wire.url)
            wire.judge, wire.fault = judge, kills
            arguments = ("-n", kube.ns, "--interval=0.3", "--timeout=5")
            kills.processes[wire] = Command(*arguments, env={"KUBECONFIG": config}, stderr=log)

        try:
            while kills.todo:
                if not kills.processes:
                    start()
                users.change()
                time.sleep(0.1)
            kills.server.join()
            if not kills.processes:
                start()
            users.settle_down()
        finally:
            kills.todo = []
            for wire, process in [*kills.processes.items()]:
                process.kill()
                wire.close()
        users.check_harm(judge, recorder)
    said = (tmp_path / "log").read_text()
    assert "Traceback" not in said
    assert "unexpected" not in said
