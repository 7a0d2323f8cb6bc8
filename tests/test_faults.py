"""Everything in a cluster that can break does, and nothing is lost."""

import json
import threading
import time
from pathlib import Path
from typing import Any, Self

import pytest

from local.controlplane import ControlPlane
from tests.lib.chaos import FAULTS, Faults, Kills, Recorder, Users
from tests.lib.judge import ROLLED, STRANGER, Judge, Obj
from tests.lib.kit import Command, Kube, kubeconfig, new_namespace, new_operator, new_wire
from tests.lib.wire import Wire
from tools.soak import soak


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


# --- The judge reports planted harm, and accepts everything that is right ---
def milvus(name: str, **metadata: Any) -> Obj:
    return {"kind": "Milvus", "metadata": {"name": name, "uid": f"of-{name}"} | metadata}


def pod(name: str, ready: bool = True, image: str = "milvus:1", **metadata: Any) -> Obj:
    owner = name.rpartition("-")[0]
    owners = [{"controller": True, "name": owner, "uid": f"of-{owner}"}]
    return {
        "kind": "Pod",
        "metadata": {"name": name, "uid": f"uid-of-{name}", "ownerReferences": owners} | metadata,
        "spec": {"containers": [{"image": image}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]},
    }


class Story:
    """What is stored, one revision after another, and what the operator asks for meanwhile."""

    def __init__(self, *objects: Obj) -> None:
        self.judge, self.changes = Judge(), list[tuple[int, str, Obj]]()
        self.store(*objects)

    def store(self, *objects: Obj, what: str = "MODIFIED") -> Self:
        self.changes += [(len(self.changes) + i, what, obj) for i, obj in enumerate(objects)]
        return self

    def lose(self, *objects: Obj) -> Self:
        return self.store(*objects, what="DELETED")

    def asks(self, request: str, **body: Any) -> Self:
        verb, path = request.split()
        self.judge.asks(verb, f"/api/v1/namespaces/ns/{path}", json.dumps(body).encode())
        return self

    def deletes(self, *pods: Obj) -> Self:
        for pod in pods:
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            self.asks(f"DELETE pods/{name}", preconditions={"uid": uid}).lose(pod)
        return self


X, STILL, ROLL = milvus("x"), milvus("still"), milvus("rolled")
POD, ENDING, BY_USER = pod("x-0"), pod("x-0", deletionTimestamp="now"), pod("x-0", uid="by-a-user")
ONE, OTHER, THIRD = map(pod, sorted(ROLLED))
DOWN, ALSO_DOWN = pod("rolled-2", ready=False), pod("rolled-1", ready=False)
NEW = pod("rolled-2", uid="new")
GUEST, CLAIM = pod("x-2", image=STRANGER), X | {"kind": "PersistentVolumeClaim"}
OWNER = {"uid": "x", "resourceVersion": "1", "ownerReferences": []}
HARM = [
    ("without a UID", Story().asks("DELETE pods/x-0", preconditions={})),
    ("no operator makes", Story().asks("DELETE persistentvolumeclaims/data-x-0")),
    ("no operator makes", Story().asks("PATCH pods/x-0/status", status={})),
    ("no patch may", Story().asks("PATCH pods/x-0", metadata=OWNER | {"labels": {}})),
    ("no patch may", Story().asks("PATCH pods/x-0", metadata={"ownerReferences": []})),
    ("no patch may", Story().asks("PATCH pods/x-0", metadata=OWNER, spec={})),
    ("without a version", Story().asks("PATCH milvuses/x/status", status={})),
    ("a claim was deleted", Story(CLAIM).lose(CLAIM)),
    ("a stranger was deleted", Story(GUEST).lose(GUEST)),
    ("ownerReferences changed", Story(GUEST, pod("x-2", image=STRANGER, ownerReferences=[]))),
    ("no user touched it", Story(STILL, pod("still-0")).deletes(pod("still-0"))),
    ("no user touched it", Story(STILL, STILL)),
    ("nobody had asked", Story(X, POD).lose(POD)),
    ("nobody had asked", Story(X, POD).store(ENDING)),
    ("while ['rolled-2']", Story(ROLL, ONE, OTHER, THIRD).deletes(THIRD, OTHER)),
    ("while ['rolled-2']", Story(ROLL, ONE, OTHER, DOWN).deletes(OTHER)),
]
RIGHT = {
    "a roll": Story(ROLL, ONE, OTHER, THIRD).deletes(THIRD).store(NEW).deletes(OTHER),
    "what is not Ready goes first": Story(ROLL, ONE, ALSO_DOWN, DOWN).deletes(DOWN, ALSO_DOWN),
    "an adoption": Story(X).asks("PATCH pods/x-1", metadata=OWNER),
    "a delete that takes its time": Story(X, POD)
    .asks("DELETE pods/x-0", preconditions={"uid": "uid-of-x-0"})
    .store(ENDING)
    .lose(ENDING),
    "a dry run": Story().asks("POST services?dryRun=All"),
    "the garbage collector, when the owner is gone": Story(X, POD).lose(X, POD),
    "... when it is ending": Story(milvus("x", deletionTimestamp="now"), POD).lose(POD),
    "a delete by a user": Story(X, BY_USER).lose(BY_USER),
    "a new Milvus of that name": Story(milvus("x", uid="new"), POD).lose(POD),
}


@pytest.mark.parametrize(("words", "story"), HARM)
def test_the_judge_reports_harm(words: str, story: Story) -> None:
    assert words in "".join(story.judge.harm(story.changes))


@pytest.mark.parametrize("name", RIGHT)
def test_the_judge_accepts_what_is_right(name: str) -> None:
    assert RIGHT[name].judge.harm(RIGHT[name].changes, ["by-a-user"]) == []
