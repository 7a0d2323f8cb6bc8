"""Everything in a cluster that can break does, and nothing is lost."""

import json
import threading
import time
from pathlib import Path

import pytest

from local.controlplane import ControlPlane
from tests.lib.chaos import FAULTS, Faults, Kills, Recorder, Users
from tests.lib.judge import STRANGER, Judge, Obj
from tests.lib.kit import Command, Kube, kubeconfig, new_namespace, new_operator, new_wire
from tests.lib.wire import Wire
from tools.soak import soak


def is_enough(faults: Faults, judge: Judge, share: float) -> bool:
    """Whether so many faults have happened, of each kind, and so much has been judged."""
    for kind in {*FAULTS} - {"410", "not a list"}:  # which only a list can meet
        if faults.done_to_writes[kind] < 3 * share:
            return False
    judged = min(judge.seen["POST pods"], judge.seen["DELETE pods"])
    return faults.done.total() >= 1000 * share and judged > 200 * share


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


# --- The judge reports planted harm, and accepts everything that is right ---
HARMFUL_REQUESTS = {
    "DELETE pods/x-0 {}": "without a UID",
    "DELETE persistentvolumeclaims/data-x-0 {}": "no operator makes",
    "PATCH pods/x-0/status {}": "no operator makes",
    'PATCH pods/x-0 {"metadata": {"ownerReferences": []}}': "no patch may",
    "PATCH persistentvolumeclaims/data-x-0 {}": "no patch may",
    "PATCH milvuses/x/status {}": "without a version",
}
# What is stored, or deleted by the operator, or gone, one after another, and what is wrong with it.
STORIES = {
    "x-0, x-0 gone": "",  # with its owner
    "x, x-0, x-0 deleted, x-0 ending": "",
    "x, x-0, x-0 gone": "nobody had asked",
    "x, x-0, x-0 ending": "nobody had asked",
    "x, x-0 by-a-user, x-0 by-a-user gone": "",
    "x ending, x-0, x-0 gone": "",
    "x new, x-0, x-0 gone": "",
    "still, still": "no user touched it",
    "still-0, still-0 deleted": "no user touched it",
    "x-2 stranger, x-2 stranger gone": "a stranger was deleted",
    "x-2 stranger, x-2 stranger orphan": "ownerReferences changed",
    "data-x-0 claim, data-x-0 claim gone": "a claim was deleted",
    "rolled, rolled-0, rolled-1, rolled-2, rolled-2 deleted, rolled-2 new, rolled-1 deleted": "",
    "rolled, rolled-0, rolled-1, rolled-2 down, rolled-2 down deleted": "",
    "rolled, rolled-0, rolled-1, rolled-2 down, rolled-1 deleted": "while ['rolled-2']",
}


def stored(name: str, *words: str) -> Obj:
    """A Milvus, or a pod if its name has an ordinal, that is as these words say."""
    owner, _, ordinal = name.rpartition("-")
    uid = next((word for word in words if word in ("new", "by-a-user")), f"of-{name}")
    metadata: Obj = {"name": name, "uid": uid}
    if "ending" in words:
        metadata["deletionTimestamp"] = "now"
    if "claim" in words:
        return {"kind": "PersistentVolumeClaim", "metadata": metadata}
    if not ordinal.isdigit():
        return {"kind": "Milvus", "metadata": metadata}
    if "orphan" not in words:
        reference = {"controller": True, "name": owner, "uid": f"of-{owner}"}
        metadata["ownerReferences"] = [reference]
    image = STRANGER if "stranger" in words else "milvus:1"
    ready = {"type": "Ready", "status": "False" if "down" in words else "True"}
    return {
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [{"image": image}]},
        "status": {"phase": "Running", "conditions": [ready]},
    }


def test_the_judge_reports_harmful_requests() -> None:
    for line, words in HARMFUL_REQUESTS.items():
        verb, path, body = line.split(maxsplit=2)
        judge = Judge()
        judge.asks(verb, f"/api/v1/namespaces/ns/{path}", body.encode())
        assert words in "".join(judge.harm([])), line


@pytest.mark.parametrize("story", STORIES)
def test_the_judge_reports_harm_and_nothing_else(story: str) -> None:
    judge = Judge()
    changes = []
    for number, step in enumerate(story.split(", ")):
        name, *words = step.split()
        obj = stored(name, *words)
        if "deleted" in words:
            body = json.dumps({"preconditions": {"uid": obj["metadata"]["uid"]}})
            judge.asks("DELETE", f"/api/v1/namespaces/ns/pods/{name}", body.encode())
        is_gone = {"gone", "deleted"} & {*words}
        changes.append((number, "DELETED" if is_gone else "MODIFIED", obj))
    harm = judge.harm(changes, ["by-a-user"])
    assert STORIES[story] in "".join(harm)
    assert bool(harm) == bool(STORIES[story])
