"""Everything in a cluster that can break does, and nothing is lost."""

import os
import random
import re
import subprocess
import time
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import pytest

import milvus_operator as mo
from local.controlplane import ControlPlane
from tests.lib.chaos import Faults, Users
from tests.lib.judge import Judge
from tests.lib.kit import (
    Command,
    Kube,
    eventually,
    for_one_namespace,
    kubeconfig,
    new_namespace,
    new_wire,
)
from tests.lib.objects import pods
from tests.lib.wire import Handler, Wire

MINUTES = float(os.environ.get("MINUTES") or 0.3)  # of the soak


class Figures(NamedTuple):
    """What could grow in a process, from /proc."""

    minute: float
    memory: float  # MiB
    threads: float
    files: float  # that are open
    connections: float


COMES_AND_GOES = Figures(0, 3, 4, 4, 4)


def measure(pid: int, minute: float) -> Figures:
    status = Path(f"/proc/{pid}/status").read_text()
    memory, threads = re.findall(r"(?:VmRSS|Threads):\s+(\d+)", status)
    files = subprocess.getoutput(f"ls -l /proc/{pid}/fd")  # some are closed meanwhile
    counts = (files.count(" -> "), files.count(" -> socket:"))
    return Figures(minute, int(memory) / 1024, int(threads), *counts)


def mean_of(samples: list[Figures]) -> Figures:
    return Figures(*map(mean, zip(*samples, strict=True)))


def live(
    kube: Kube,
    wire: Wire,
    folder: Path,
    seconds: float,
    share: float,
    least: int = 0,
    copies: int = 1,
) -> list[Figures]:
    """Let users change their minds for so long, and break a share of the requests of these copies
    of the operator, at least so many. Then every Milvus must get what its spec asks for. Returns a
    sample for each second. Raises AssertionError if harm was done."""
    faults = Faults(share)
    users = Users(kube)
    wire.judge = Judge(kube.all_pods)
    samples = list[Figures]()
    log = folder / "operator.log"
    config = kubeconfig(folder / "kubeconfig", kube.plane, server=wire.url)
    options = ("-n", kube.ns, "--interval=0.5", "--timeout=2")
    with log.open("w") as stderr:
        operators = [
            Command(*options, env={"KUBECONFIG": config}, stderr=stderr) for _ in range(copies)
        ]
    try:
        kube.create("warm", replicas=60)  # so that each worker has its connection from the start
        eventually(lambda: kube.get("warm")["status"].get("readyReplicas") == 60, 60)
        wire.fault = faults
        started = time.monotonic()
        while (now := time.monotonic() - started) < seconds or faults.done.total() < least:
            if now >= len(samples):
                samples.append(measure(operators[0].process.pid, now / 60))
            users.change()
            time.sleep(0.3)
        faults.share = 0
        users.settle_down()
    finally:
        for operator in operators:
            operator.kill()
    print(f"{faults.done.total()} faults injected")
    if copies > 1:  # after a delete that failed for one copy, another may take a second Ready pod
        both = [one for one in wire.judge.harm if "were not Ready" in one]
        wire.judge.harm = [one for one in wire.judge.harm if one not in both]
        print(f"{len(both)} times, two Ready pods of a Milvus were down")
    users.check_harm(wire.judge)
    said = log.read_text()
    assert "Traceback" not in said
    assert "unexpected" not in said
    return samples


@pytest.mark.timeout(900)  # seconds; a quiet machine needs a third of that
@pytest.mark.parametrize("least", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_nothing_is_lost_and_nobody_is_harmed_whatever_fails_on_the_wire(
    kube: Kube, wire: Wire, tmp_path: Path, least: int
) -> None:
    live(kube, wire, tmp_path, seconds=1, share=0.3, least=least)


@pytest.mark.slow
@pytest.mark.timeout(900)  # seconds
def test_three_copies_by_mistake_harm_nobody_and_come_to_the_same_end(
    kube: Kube, wire: Wire, tmp_path: Path
) -> None:
    live(kube, wire, tmp_path, seconds=60, share=0.1, copies=3)


@pytest.mark.slow
@pytest.mark.timeout(600 + 60 * MINUTES)  # seconds
def test_nothing_grows_in_a_soak(kube: Kube, wire: Wire, tmp_path: Path) -> None:
    """`make soak` runs it for an hour, and shows what it prints."""
    samples = live(kube, wire, tmp_path, seconds=60 * MINUTES, share=0.03)
    third = len(samples) // 3
    for sample in samples[:: max(1, len(samples) // 12)]:
        print("minute {:.0f}: {:.1f} MiB, {} threads, {} files, {} sockets".format(*sample))
    before, after = mean_of(samples[third : 2 * third]), mean_of(samples[2 * third :])
    print(f"mean of the second third: {before}\nmean of the last third:   {after}")
    for name, was, now, more in zip(Figures._fields, before, after, COMES_AND_GOES, strict=True):
        assert name == "minute" or now <= 1.1 * was + more, name


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.timeout(1200)  # seconds; a quiet machine needs a tenth of that
def test_kills_of_the_operator_and_the_control_plane_amid_writes_do_no_harm(tmp_path: Path) -> None:
    with ExitStack() as stack:
        plane = stack.enter_context(ControlPlane())
        kube = stack.enter_context(new_namespace(plane))
        wire = stack.enter_context(closing(new_wire(plane)))
        log = stack.enter_context((tmp_path / "log").open("w"))
        users, judge = Users(kube), Judge(kube.all_pods)
        dice = random.Random(3)
        config = kubeconfig(tmp_path / "config", plane, server=wire.url)
        options = ("-n", kube.ns, "--interval=0.3", "--timeout=5")
        running = list[Command]()

        def start() -> None:
            running.append(Command(*options, env={"KUBECONFIG": config}, stderr=log))

        def kill(handler: Handler, verb: str, path: str) -> bool:
            """Kill the operator before or after one of its writes is carried out."""
            victims = [*running]  # by the time of the kill, the next one may run
            if verb == "GET" or not victims or dice.random() > 0.1:
                return False
            if dice.random() > 0.5:
                handler.forward()
            for victim in victims:
                victim.kill()
            running[:] = [one for one in running if one not in victims]
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
        users.check_harm(judge)
    assert not re.search("Traceback|unexpected", (tmp_path / "log").read_text())


# What the operator asks for, and what is wrong with that.
WITH_UID = '{"preconditions": {"uid": "uid-of-%s"}}'
REQUESTS = {
    f"DELETE pods/rolled-2 {WITH_UID % 'rolled-2'}": "",  # which is not Ready
    f"DELETE pods/rolled-1 {WITH_UID % 'rolled-1'}": "while ['rolled-2']",
    f"DELETE pods/rolled-1 {WITH_UID % 'another'}": "",  # the API server rejects it
    f"DELETE pods/m-2 {WITH_UID % 'm-2'}": "a pod of another owner",
    f"DELETE pods/still-0 {WITH_UID % 'still-0'}": "no user touched it",
    "DELETE pods/x-0 {}": "without a UID",
    "DELETE persistentvolumeclaims/data-x-0 {}": "no operator makes",
    'PATCH pods/x-0 {"metadata": {"ownerReferences": []}}': "no patch may",
    "PATCH milvuses/x/status {}": "without a version",
    'POST pods {"metadata": {"name": "x-0"}}': "without an owner",
}


@pytest.mark.parametrize("request_", REQUESTS)
def test_the_judge_reports_harm_and_nothing_else(request_: str) -> None:
    there = pods("rolled-0, rolled-1, rolled-2 starting, m-2 orphan unlabelled")
    judge = Judge(lambda: {mo.name_of(pod): pod for pod in there})
    verb, path, body = request_.split(maxsplit=2)
    judge.hear(verb, f"/api/v1/namespaces/ns/{path}", body.encode())
    assert REQUESTS[request_] in "".join(judge.harm)
    assert bool(judge.harm) == bool(REQUESTS[request_])


FEW_SEATS = """
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {name: few}
spec:
  type: Limited
  limited:
    nominalConcurrencyShares: 1
    lendablePercent: 0
    borrowingLimitPercent: 0
    limitResponse: {type: Queue, queuing: {queues: 1, handSize: 1, queueLengthLimit: 3}}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: few}
spec:
  matchingPrecedence: 10
  priorityLevelConfiguration: {name: few}
  rules:
    - subjects: [{kind: Group, group: {name: "system:serviceaccounts"}}]
      resourceRules: [{verbs: ["*"], apiGroups: ["*"], resources: ["*"], namespaces: ["*"], clusterScope: true}]
"""


@pytest.mark.cluster
def test_a_burst_that_the_server_throttles_ends_and_nothing_has_failed_that_had_to_wait(
    tmp_path: Path,
) -> None:
    """By priority and fairness: with one seat and a short queue, it says 429 to many requests."""
    with ExitStack() as stack:
        fair = ("--enable-priority-and-fairness=true", "--max-requests-inflight=40")
        plane = stack.enter_context(ControlPlane(*fair))
        kube = stack.enter_context(new_namespace(plane))
        manifest = for_one_namespace(plane, kube.ns)
        kube.kubectl("apply", "-f", "-", stdin=manifest + FEW_SEATS.replace("\n", "\n---\n", 1))
        token = kube.kubectl("create", "token", mo.MANAGER).strip()
        config = kubeconfig(tmp_path / "config", plane, token=token)
        for number in range(40):
            kube.create(f"m{number}", replicas=3)
        log = stack.enter_context((tmp_path / "log").open("w"))
        process = Command("-n", kube.ns, "-v", env={"KUBECONFIG": config}, stderr=log)
        stack.callback(process.kill)
        wait = ("wait", "milvus", "--all", "--for=condition=Ready", "--timeout=120s")
        eventually(lambda: len([name for name in kube.names() if name[1].isdigit()]) == 120, 60)
        kube.kubectl(*wait)
        counts = kube.request("GET", "/metrics", {}, "").data.decode()
        rejected = re.findall(r'^apiserver_flowcontrol_rejected.*="few".* (\d+)$', counts, re.M)
        assert sum(map(int, rejected)) > 10, "it was throttled"
        said = (tmp_path / "log").read_text()
        assert not re.search("WARNING|ERROR", said)
