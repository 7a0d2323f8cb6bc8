"""Everything in a cluster that can break does, and nothing is lost."""

import random
import re
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from local.controlplane import ControlPlane
from tests.lib.chaos import Recorder, Users
from tests.lib.judge import OTHERS_IMAGE, Judge, Obj
from tests.lib.kit import Command, Kube, kubeconfig, new_namespace, new_wire
from tests.lib.wire import Handler, Wire
from tools.soak import soak


@pytest.mark.timeout(900)  # seconds; a quiet machine needs a third of that
@pytest.mark.parametrize("least", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_nothing_is_lost_and_nobody_is_harmed_whatever_fails_on_the_wire(
    kube: Kube, wire: Wire, tmp_path: Path, least: int
) -> None:
    soak(kube, wire, tmp_path, seconds=1, share=0.3, least=least)


@pytest.mark.slow
def test_nothing_grows_in_a_short_soak(kube: Kube, wire: Wire, tmp_path: Path) -> None:
    run = soak(kube, wire, tmp_path, seconds=20)
    assert not run.growth(), run


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.timeout(1200)  # seconds; a quiet machine needs a tenth of that
def test_kills_of_the_operator_and_the_control_plane_amid_writes_do_no_harm(tmp_path: Path) -> None:
    """The API server keeps no cache, so that the recorder misses no change."""
    with ExitStack() as stack:
        plane = stack.enter_context(ControlPlane("--watch-cache=false"))
        kube = stack.enter_context(new_namespace(plane))
        wire = stack.enter_context(closing(new_wire(plane)))
        log = stack.enter_context((tmp_path / "log").open("w"))
        users, judge, recorder = Users(kube, seed=4), Judge(), Recorder(kube)
        dice = random.Random(3)
        config = kubeconfig(tmp_path / "config", plane, server=wire.url)
        options = ("-n", kube.ns, "--interval=0.3", "--timeout=5")
        running = list[Command]()

        def start() -> None:
            running.append(Command(*options, env={"KUBECONFIG": config}, stderr=log))

        def kill(handler: Handler, verb: str, path: str) -> bool:
            """Kill the operator before or after one of its writes is carried out."""
            if verb == "GET" or not running or dice.random() > 0.1:
                return False
            if dice.random() > 0.5:
                handler.forward()
            running.pop().kill()
            handler.reset()
            return True

        wire.judge, wire.fault = judge, kill
        try:
            for _ in range(30):
                start()
                while running:
                    users.change()
                    time.sleep(0.1)
                    if dice.random() < 0.01:
                        plane.kill(dice.choice(["etcd", "kube-apiserver"]))
            wire.fault = None
            start()
            users.settle_down()
        finally:
            for process in running:
                process.kill()
        users.check_harm(judge, recorder)
    assert not re.search("Traceback|unexpected", (tmp_path / "log").read_text())


# What is stored, gone, or deleted by the operator, or a request of it, and what is wrong with that.
STORIES = {
    "x, x-0, x-0 deleted, x-0 ending": "",
    "x, x-0, x-0 ending": "nobody had asked",
    "x-0, x-0 gone": "",  # with its owner
    "x ending, x-0, x-0 gone": "",
    "x new, x-0, x-0 gone": "",
    "still-0, still-0 deleted": "no user touched it",
    "x-2 of-web, x-2 of-web gone": "a pod of another owner",
    "x-2 of-web, x-2 of-web orphan": "a pod of another owner",
    "data-x-0 claim, data-x-0 claim gone": "a claim was deleted",
    "rolled, rolled-0, rolled-1, rolled-2, rolled-2 deleted, rolled-2 new, rolled-1 deleted": "",
    "rolled, rolled-0, rolled-1, rolled-2 down, rolled-2 down deleted": "",
    "rolled, rolled-0, rolled-1, rolled-2 down, rolled-1 deleted": "while ['rolled-2']",
    "DELETE pods/x-0 {}": "without a UID",
    "DELETE persistentvolumeclaims/data-x-0 {}": "no operator makes",
    'PATCH pods/x-0 {"metadata": {"ownerReferences": []}}': "no patch may",
    "PATCH milvuses/x/status {}": "without a version",
}


def stored(name: str, *words: str) -> Obj:
    """A Milvus, or a pod if its name has an ordinal, that is as these words say."""
    owner = name.rpartition("-")[0]
    metadata: Obj = {"name": name, "uid": "new" if "new" in words else f"of-{name}"}
    kind = "PersistentVolumeClaim" if "claim" in words else "Pod" if owner else "Milvus"
    if "ending" in words:
        metadata["deletionTimestamp"] = "now"
    if "orphan" not in words:
        metadata["ownerReferences"] = [{"controller": True, "name": owner, "uid": f"of-{owner}"}]
    ready = {"type": "Ready", "status": "False" if "down" in words else "True"}
    status = {"phase": "Running", "conditions": [ready]}
    spec = {"containers": [{"image": OTHERS_IMAGE if "of-web" in words else "milvus:1"}]}
    return {"kind": kind, "metadata": metadata, "status": status, "spec": spec}


@pytest.mark.parametrize("story", STORIES)
def test_the_judge_reports_harm_and_nothing_else(story: str) -> None:
    judge, changes = Judge(), []
    for number, step in enumerate(story.split(", ")):
        name, *words = step.split(maxsplit=2)
        if name in ("DELETE", "PATCH"):
            judge.asks(name, f"/api/v1/namespaces/ns/{words[0]}", words[1].encode())
            continue
        obj = stored(name, *words)
        if "deleted" in words:
            judge.deleted.add(obj["metadata"]["uid"])
        is_gone = words[-1:] in (["gone"], ["deleted"])
        changes.append((number, "DELETED" if is_gone else "MODIFIED", obj))
    harm = judge.harm(changes)
    assert STORIES[story] in "".join(harm)
    assert bool(harm) == bool(STORIES[story])
