"""Measures the operator next to bare requests, ReplicaSets and kopf, in one run on one machine.

    make bench                             # everything, in about an hour
    make bench ARGS='quiet roll'           # only the rows whose names begin with one of these words
    make bench ARGS='--against old.py'     # also next to another version of milvus_operator.py
    make bench MANY=20                     # tiny, once: only to see that it works

Beside what is measured run only etcd, kube-apiserver and, for `roll`, kwok in place of a kubelet.
What is compared runs in turns, each in the opposite order of the one before (A B, B A, A B …): seven
turns if one takes less than a minute, else three. The table is printed and, if all rows were
measured, written to docs/reports/benchmark.md.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import yaml

import milvus_operator as mo
from benchmarks import bare
from benchmarks.bare import MILVUSES, PODS, Namespace, Obj, milvus
from local.controlplane import MODULES, ControlPlane, commands

MANY = int(os.environ.get("MANY", "1000"))  # Milvus resources, of three pods each
TURNS, SLOW_TURNS = (7, 3) if MANY >= 1000 else (1, 1)
SECONDS = 10 if MANY >= 1000 else 5
INTERVAL = 5  # seconds, the operator's own default
STATUS = yaml.safe_load(Path("benchmarks/status.yaml").read_text())
TABLE = yaml.safe_load(Path("benchmarks/rows.yaml").read_text())
OURS = "milvus_operator.py"
# What Python runs; {} is the namespace.
OPERATOR = (OURS, "-v", "-n{}")
OFTEN = (*OPERATOR, "--interval=1")
CREATE = ("-m", "benchmarks.bare", "{}", "create_pods")
DELETE = ("-m", "benchmarks.bare", "{}", "delete_pods")
KOPF = ("-m", "kopf", "run", "-q", "-n{}", "benchmarks/peer_kopf.py")
LIST = ("-m", "benchmarks.bare", "{}", "list_all")
WATCH = ("-m", "benchmarks.bare", "{}", "watch_all")
REPLICA_SETS = ("-m", "benchmarks.bare", "{}", "run_replica_sets")
STATEFUL_SETS = ("-m", "benchmarks.bare", "{}", "run_stateful_sets")

Command = tuple[str, ...]
Commands = dict[str, Command]
Figures = dict[str, float]  # what was measured in one turn, by name
Measure = Callable[["Bench", Command], Figures]
Change = Callable[[Namespace, str], None]  # of the Milvus with this name


class Bench:
    cluster: Namespace  # of the control plane for the present rows

    def __init__(self, old: str) -> None:
        self.old = old  # another version of milvus_operator.py, or empty
        self.found = defaultdict[str, list[float]](list)  # in turn, by names such as `now.cpu`
        self.rows = list[str]()
        self.prices = list[str]()

    def new_namespace(self, size: int, **spec: Any) -> Namespace:
        """A namespace with that many Milvus resources and no pods."""
        space = Namespace(self.cluster.kubeconfig, f"bench-{time.monotonic_ns()}")
        space.send("POST", "api/v1/namespaces", {"metadata": {"name": space.name}})
        account = {"metadata": {"name": "default"}}
        space.send("POST", "api/v1/namespaces/{}/serviceaccounts", account)
        space.create(MILVUSES, [milvus(f"mv{number}", **spec) for number in range(size)])
        return space

    def measure(self, rows: str, one: Measure, commands: Commands, **words: Any) -> None:
        """Measure the commands, and the other version, in turns; add these rows of the table."""
        self.found.clear()
        if self.old:
            ours = {name: command for name, command in commands.items() if OURS in command}
            old = {f"old {name}": (self.old, *command[1:]) for name, command in ours.items()}
            commands = commands | old
        started = time.monotonic()
        turns, turn = TURNS, 0
        while turn < turns:
            for name, command in in_turn(commands, turn):
                self.record(name, one(self, command))
            turn += 1
            if time.monotonic() - started > 60 * turn:
                turns = SLOW_TURNS
        for row in TABLE[rows]:
            self.add({"size": MANY} | words, **row)

    def record(self, name: str, figures: Figures) -> None:
        for figure, value in figures.items():
            self.found[f"{name}.{figure}"].append(value)

    def add(self, words: Obj, what: str, against: str, ours: str, theirs: str, most: float) -> None:
        """Add a row: the ratios of the turns, and the figures of the turn with the median ratio.
        Add another row for the other version."""
        pairs = sorted(zip(self.found[ours], self.found[theirs], strict=True), key=ratio_of)
        least, most_seen = ratio_of(pairs[0]), ratio_of(pairs[-1])
        middle = pairs[len(pairs) // 2]
        unit = "MiB" if ours.endswith("memory") else "s"
        figures = " : ".join(f"{figure:#.3g}".rstrip(".") + f" {unit}" for figure in middle)
        verdict = "not decided"
        if most_seen <= most:
            verdict = "reached"
        elif least > most:
            verdict = "MISSED"
        ratios = f"{ratio_of(middle):.2f} ({least:.2f} to {most_seen:.2f}, {len(pairs)} turns)"
        cells = f"{against} | {figures} | {ratios} | ≤ {most:g} | {verdict}"
        row = f"| {what.format(**words)} | {cells} |"
        print(f"  {row}", flush=True)
        self.rows.append(row)
        old = f"old {ours}"
        if old in self.found and old != theirs:
            self.add(words, what, self.old, ours, old, 1.05)

    def price(self, name: str) -> str:
        """The median of the requests; that of the CPU, its least and its most."""
        requests, share = self.found[f"{name}.requests"], self.found[f"{name}.share"]
        spread = f"{median(share):.1f} % ({min(share):.1f} to {max(share):.1f})"
        return f"{median(requests):.1f} /s, {spread}"


def in_turn(commands: Commands, turn: int) -> list[tuple[str, Command]]:
    """In this order, and in each second turn in the opposite one."""
    ordered = list(commands.items())
    return ordered if turn % 2 == 0 else ordered[::-1]


def ratio_of(pair: tuple[float, float]) -> float:
    ours, theirs = pair
    return ours / theirs


def cpu_seconds(pid: int) -> float:
    stat = Path(f"/proc/{pid}/stat").read_text().split()
    return (int(stat[13]) + int(stat[14])) / os.sysconf("SC_CLK_TCK")


class Program:
    """A process that works in a namespace."""

    def __init__(self, space: Namespace, command: Command) -> None:
        words = [word.replace("{}", space.name) for word in command]
        env = os.environ | {"KUBECONFIG": str(space.kubeconfig)}
        log = space.kubeconfig.with_name(f"bench-{time.monotonic_ns()}.log")
        self.space = space
        self.started = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, *words],
            stdout=log.open("w"),
            stderr=subprocess.STDOUT,
            env=env,
        )
        self.log = log.open()

    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def used(self) -> Figures:
        """CPU seconds, and the peak memory in MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        peak = re.search(r"VmHWM:\s+(\d+)", status)
        memory = int(peak[1]) / 1024 if peak else 0  # it has ended
        return {"cpu": cpu_seconds(self.process.pid), "memory": memory}

    def check(self) -> None:
        if self.process.poll():
            raise RuntimeError(
                f"{self.process.args!r} failed: {Path(self.log.name).read_text()[-600:]}"
            )

    def says(self, text: str = bare.AT_REST) -> None:
        """Wait for the next line with this text."""
        line = ""
        while not line or text not in line:
            line = self.log.readline()
            if not line:
                self.check()
                time.sleep(0.005)

    def watch(self, goal: int) -> Figures:
        """Wait until there are so many pods. Returns the seconds since the start and the change."""
        first = count = self.space.count_pods()
        unchanged = 0.0
        while abs(count - first) < abs(goal - first):
            self.check()
            time.sleep(0.05)
            count = self.space.count_pods()
            if count == first:
                unchanged = self.seconds()
        return {"whole": self.seconds(), "pods": self.seconds() - unchanged}

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def running(bench: Bench, command: Command, size: int, **spec: Any) -> Iterator[Program]:
    """A program in a new namespace with that many Milvus resources."""
    space = bench.new_namespace(size, **spec)
    program = Program(space, command)
    try:
        yield program
    finally:
        program.kill()
    options = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
    for path in (MILVUSES, bare.REPLICA_SETS, bare.STATEFUL_SETS, PODS):
        space.send("DELETE", path, options)


# ---------- The rows ----------


def burst(bench: Bench, command: Command) -> Figures:
    with running(bench, command, MANY) as program:
        return program.watch(3 * MANY) | program.used()


def bring_up(bench: Bench) -> None:
    commands = {"bare": CREATE, "now": OPERATOR, "kopf": KOPF, "replica sets": REPLICA_SETS}
    bench.measure("bring_up", burst, commands)


def scaling(bench: Bench, command: Command) -> Figures:
    """From three pods of each Milvus to one."""
    with running(bench, CREATE, MANY) as creates:
        creates.watch(3 * MANY)
        paths = [f"{MILVUSES}/mv{number}" for number in range(MANY)]
        creates.space.each("PATCH", paths, {"spec": {"replicas": 1}})
        program = Program(creates.space, command)
        figures = program.watch(MANY)
        program.kill()
        return figures


def scale_down(bench: Bench) -> None:
    bench.measure("scale_down", scaling, {"now": OPERATOR, "bare": DELETE})


def beside(bench: Bench) -> None:
    """A bring-up beside one more Milvus, in a namespace of its own, that gets no pods."""
    operators: Commands = {
        "alone": OPERATOR,
        "rejected": (*OPERATOR, "-nrejected"),
        "hangs": (*OPERATOR, "-nhangs"),
        "fails": (*OPERATOR, "-nfails"),
    }
    with socket.create_server(("127.0.0.1", 0), backlog=500) as silent:
        port = str(silent.getsockname()[1])
        text = Path("benchmarks/beside.yaml").read_text().replace("PORT", port)
        kubectl = [str(commands()["kubectl"]), f"--kubeconfig={bench.cluster.kubeconfig}"]
        subprocess.run(
            [*kubectl, "apply", "-f-"],
            input=text,
            text=True,
            check=True,
        )
        time.sleep(2)  # until the API server uses the webhooks
        bench.measure("beside", burst, operators)
        subprocess.run([*kubectl, "delete", "validatingwebhookconfiguration/bench"], check=True)


def wait_for_ready(space: Namespace, image: str) -> None:
    """Wait until five pods with this image are Ready."""
    ready = list[Obj]()
    while len(ready) < 5:
        time.sleep(0.02)
        pods = space.items(f"{PODS}?")
        ready = [pod for pod in pods if mo.is_ready(pod) and image in str(pod["spec"])]


def rolling_update(bench: Bench, command: Command, start: int) -> Figures:
    """From the change until the last new pod is Ready; each takes so many seconds to start."""
    image = "milvusdb/milvus:v2.6.5"
    of_five = {"replicas": 5, "pod": {"spec": {"nodeName": "node"}}}
    of_five["updateStrategy"] = {"minReadySeconds": 0}  # as the StatefulSet has it
    with running(bench, command, 1, **of_five) as program:
        wait_for_ready(program.space, bare.IMAGE)
        time.sleep(10)  # until nothing has changed for two intervals
        path, change = f"{MILVUSES}/mv0", {"spec": {"image": image}}
        if command == STATEFUL_SETS:
            (one,) = program.space.items(f"{MILVUSES}?")
            one["spec"]["image"] = image
            path = f"{bare.STATEFUL_SETS}/mv0"
            change = {"spec": {"template": bare.workload(one)["spec"]["template"]}}
        changed = program.seconds()
        program.space.send("PATCH", path, change)
        wait_for_ready(program.space, image)
        return {"roll": program.seconds() - changed, "pods": 5 * (1 + start)}


def roll(bench: Bench) -> None:
    bench.cluster.create("api/v1/nodes", [{"metadata": {"name": "node"}}])
    for start in (1, 8):
        with kubelet(bench, start):
            commands = {"now": OPERATOR, "stateful set": STATEFUL_SETS}
            bench.measure("roll", partial(rolling_update, start=start), commands, start=start)


@contextmanager
def kubelet(bench: Bench, start: int) -> Iterator[None]:
    """kwok, where a pod takes so many seconds to start, and one to end."""
    delay = "  delay: {durationMilliseconds: 1000}\n  next:\n"
    text = (MODULES / "stages.yaml").read_text().replace("  next:\n", delay)
    stages = bench.cluster.kubeconfig.with_name("stages.yaml")
    stages.write_text(text.replace("1000", f"{start}000", 1))  # the first stage makes it Ready
    kwok = subprocess.Popen(
        [
            commands()["kwok"],
            f"--kubeconfig={bench.cluster.kubeconfig}",
            f"--config={stages}",
            "--manage-all-nodes",
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        kwok.kill()
        kwok.wait()


def change_one(space: Namespace, number: int) -> float:
    """Seconds from scaling one Milvus to a fourth pod until that pod exists."""
    changed = time.perf_counter()
    space.send("PATCH", f"{MILVUSES}/mv{number}", {"spec": {"replicas": 4}})
    while space.send("GET", f"{PODS}/mv{number}-3")["kind"] != "Pod":
        time.sleep(0.01)
    return time.perf_counter() - changed


def lose_one(space: Namespace, number: int) -> float:
    """Seconds from deleting a pod until it exists again."""
    pod = f"{PODS}/mv{number}-1"
    space.send("DELETE", pod, {"gracePeriodSeconds": 0})
    lost = time.perf_counter()
    while space.send("GET", pod)["kind"] != "Pod":
        time.sleep(0.01)
    return time.perf_counter() - lost


def changes(bench: Bench, command: Command) -> Figures:
    """Of one Milvus among many at rest, and while pods are created for as many others."""
    with running(bench, command, MANY) as program:
        space = program.space
        program.says()
        rest = list[float]()
        for number in range(3):
            time.sleep(4 + 0.37 * number)
            rest.append(change_one(space, number))
        others = [milvus(f"other{number}") for number in range(MANY)]
        space.create(MILVUSES, others)
        busy, lost = [], []
        for number in range(3, 6):
            while space.count_pods() < MANY * (number + 3) / 2:
                time.sleep(0.02)
            busy.append(space.threads.submit(change_one, space, number))
            lost.append(space.threads.submit(lose_one, space, number + 3))
        figures = {"rest": max(rest), "busy": slowest(busy), "lost": slowest(lost)}
    return figures | {"interval": 2, "eight": 8}


def slowest(measured: list[Future[float]]) -> float:
    return max(one.result() for one in measured)


def change(bench: Bench) -> None:
    bench.measure("change", changes, {"now": (*OPERATOR, "--interval=2")})


def at_rest(bench: Bench, size: int, **spec: Any) -> Namespace:
    """A namespace with that many Milvus resources of three Ready pods each."""
    space = bench.new_namespace(size, **spec)
    program = Program(space, OPERATOR)
    program.says()
    names = [mo.name_of(pod) for pod in space.items(f"{PODS}?")]
    paths = [f"{PODS}/{name}/status" for name in names]
    space.each("PATCH", paths, {"status": STATUS})
    program.log.read()  # of passes before
    program.says()
    program.kill()
    return space


def within(space: Namespace, command: Command) -> Command:
    return tuple(word.replace("{}", space.name) for word in command)


def passes(bench: Bench, command: Command) -> Figures:
    """CPU seconds of a pass in which nothing is to do, and the peak memory of the process."""
    program = Program(bench.cluster, command)
    program.says()
    program.says()
    before = program.used()["cpu"]
    for _ in range(4):
        program.says()
    figures = program.used()
    program.kill()
    return figures | {"cpu": max(0.001, figures["cpu"] - before) / 4}


def quiet(bench: Bench) -> None:
    for size in (MANY, 3 * MANY):
        space = at_rest(bench, size)
        commands = {
            "now": within(space, OFTEN),
            "bare": within(space, LIST),
        }
        bench.measure("quiet", passes, commands, size=size)


def server_used(bench: Bench) -> tuple[float, float]:
    """The CPU seconds of etcd and kube-apiserver, and the requests that were answered."""
    folder = bench.cluster.kubeconfig.parent
    pids = [(folder / f"{name}.pid").read_text() for name in ("etcd", "kube-apiserver")]
    cpu = sum(cpu_seconds(int(pid)) for pid in pids)
    counts = re.findall(r"^apiserver_request_total{.* (\S+)$", bench.cluster.metrics(), re.M)
    return cpu, sum(map(float, counts))


def price_of(bench: Bench, command: Command, space: Namespace, change: Change | None) -> Figures:
    """What it costs the API server, while nothing is to do or such changes are made: requests in a
    second, and CPU in per cent of a core; over whole passes, because most of it is the lists."""
    program = Program(bench.cluster, command)
    program.says()
    program.says()
    stop = threading.Event()
    changing = space.threads.submit(keep_changing, space, change, stop) if change else None
    seconds = 2 * SECONDS if change else SECONDS
    end_of_pass = "pass finished" if change else bare.AT_REST
    time.sleep(seconds / 2)
    program.log.read()  # of passes before
    program.says(end_of_pass)
    if not change:
        wait_until_at_rest(program)
    started = time.monotonic()
    cpu, requests = server_used(bench)
    passes = 0
    while time.monotonic() < started + seconds:
        program.says(end_of_pass)
        passes += 1
    cpu_then, requests_then = server_used(bench)
    elapsed = time.monotonic() - started
    stop.set()
    if changing:
        changing.result()
    program.kill()
    return {
        "requests": (requests_then - requests) / elapsed,
        "share": 100 * (cpu_then - cpu) / elapsed,
        "every": elapsed / passes,
    }


def wait_until_at_rest(program: Program) -> None:
    """Wait for a pass that comes an interval after the one before: at first, they come sooner."""
    pause = 0.0
    while pause < 0.9 * INTERVAL:
        before = time.monotonic()
        program.says()
        pause = time.monotonic() - before


def keep_changing(space: Namespace, change: Change, stop: threading.Event) -> None:
    """Change another Milvus every ten seconds; and let new pods be Ready, as a kubelet would."""
    started = time.monotonic()
    changed = list[str]()
    while not stop.wait(1):
        if time.monotonic() >= started + 10 * len(changed):
            changed.append(f"mv{len(changed)}")
            change(space, changed[-1])
        for name in changed[-5:]:
            for pod in space.items(f"{PODS}?labelSelector={mo.MILVUS_LABEL}={name}&"):
                if not mo.is_ready(pod):
                    space.send("PATCH", f"{PODS}/{mo.name_of(pod)}/status", {"status": STATUS})


def lose_a_pod(space: Namespace, name: str) -> None:
    space.send("DELETE", f"{PODS}/{name}-1", {"gracePeriodSeconds": 0})


def begin_a_roll(space: Namespace, name: str) -> None:
    spec = {"image": f"milvusdb/milvus:v{time.monotonic_ns()}"}
    space.send("PATCH", f"{MILVUSES}/{name}", {"spec": spec})


def price(bench: Bench) -> None:
    """As in deploy.yaml, but for one namespace; at last among other pods, which are in it, too."""
    storage = {"storage": {"size": "1Gi"}}
    for size, spec in (MANY // 10, {"replicas": 1}), (MANY, {}), (3 * MANY, storage):
        space = at_rest(bench, size, **spec)
        with_storage = " with storage" if "storage" in spec else ""
        what = f"{size:,} × {spec.get('replicas', 3)}{with_storage}"
        add_price(bench, space, what)
        if size == MANY:
            add_price(bench, space, f"{what}, a rolling update begins every 10 s", begin_a_roll)
    add_price(bench, space, f"{what}, a pod is lost every 10 s", lose_a_pod)
    some = next(space.items(f"{PODS}?"))
    foreign = {"metadata": {"generateName": "foreign-"}, "spec": some["spec"]}
    space.create(PODS, [foreign] * 10 * MANY)
    add_price(bench, space, f"the same, among {10 * MANY:,} foreign pods")


def add_price(bench: Bench, space: Namespace, what: str, change: Change | None = None) -> None:
    """Add a row of prices; with changes, that of the operator alone: nobody else responds to them."""
    bench.found.clear()
    commands: Commands = {"now": OPERATOR}
    if not change:
        commands["watch"] = WATCH
    for turn in range(SLOW_TURNS):
        for name, command in in_turn(commands, turn):
            bench.record(name, price_of(bench, within(space, command), space, change))
    cells = [bench.price(name) if name in commands else "" for name in ("watch", "now")]
    row = f"| {what} | {' | '.join(cells)} | {median(bench.found['now.every']):.1f} s |"
    print(f"  {row}", flush=True)
    bench.prices.append(row)


# ---------- The report ----------

ROWS = (bring_up, scale_down, beside, roll, change, quiet, price)


def report(bench: Bench, kubernetes: str, minutes: float) -> str:
    rows = "\n".join(bench.rows)
    prices = "\n".join(bench.prices)
    commit = subprocess.getoutput("git describe --always --dirty")
    return f"""# Results of `make bench`

milvus-polling-operator {mo.__version__}, commit {commit}; {time.strftime("%Y-%m-%d")};
{os.cpu_count()} cores, Linux {os.uname().release.split("-")[0]}, Python {sys.version.split()[0]},
kubernetes {version("kubernetes")}, kopf {version("kopf")}; etcd and kube-apiserver {kubernetes} on the same machine,
started anew for each kind of row. {minutes:.0f} minutes. What is compared ran in turns (A B, B A …).
The ratio is the median of the turns, with the least and the most, and the figures are those of that turn. A target is
reached if the ratios of all turns are within it, MISSED if none is, and else not decided. etcd does not wait for the
disk, and kube-apiserver limits no requests: on a real cluster, all of this takes longer. Quiet pods
have statuses such as a kubelet writes.

| what | measured against | figures | ratio | to reach | |
|---|---|---|---|---|---|
{rows}

What polling costs the API server: requests, and the CPU time of etcd and kube-apiserver together, in per cent of a core, over
whole passes, for {SECONDS} seconds or more, or {2 * SECONDS} while something changes; median, least and most of {SLOW_TURNS}, in turns. The watch is
an idle one of the same four kinds. What changes makes up to five requests a second itself, in place of a kubelet. Where passes are more than {INTERVAL} s
apart, a pass takes longer than that, because pages of the lists that have shifted are parsed anew. The rows of changes ran with an
interval of 2 s, those of quiet passes with 1 s.

| Milvus resources | a watch | the operator | a pass every |
|---|---|---|---|
{prices}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the operator, on Linux.")
    parser.add_argument("rows", nargs="*", help="how the names of some rows begin")
    parser.add_argument("--against", default="", metavar="FILE", help="another version of it")
    options = parser.parse_args()
    chosen = tuple(options.rows) or ""
    started = time.monotonic()
    bench = Bench(options.against)
    kubernetes = ""
    for row in ROWS:
        if row.__name__.startswith(chosen):
            print(f"{row.__name__} …")
            # A new one: what thousands of objects have left in the old one would be measured, too.
            with ControlPlane("--delete-collection-workers=16", nodes=False) as plane:
                bench.cluster = Namespace(plane.kubeconfig(), "default")
                kubernetes = bench.cluster.send("GET", "version")["gitVersion"]
                row(bench)
    text = report(bench, kubernetes, (time.monotonic() - started) / 60)
    print(f"\n{text}")
    if not chosen and MANY == 1000:
        Path("docs/reports/benchmark.md").write_text(text)


if __name__ == "__main__":
    main()
