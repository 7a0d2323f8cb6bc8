"""Measures the operator against a floor, bare requests and its peers, in one run on one machine.

    make bench                            # everything, about an hour on two cores
    make bench ARGS=quiet                 # only the rows whose function name begins with this
    make bench ARGS="--against old.py"    # also compared with another version of milvus_operator.py

It starts only etcd and kube-apiserver of the tests' control plane, without scheduler and
controllers, to leave the cores to what is measured; kwok plays the kubelets where pods must become
Ready and end. Things that are compared run in turns (A B A B). It prints the table and, if all rows
were measured, writes it to docs/reports/benchmark.md.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import math
import os
import platform
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import yaml

import milvus_operator as mo
from benchmarks.cluster import THREADS, Hands, milvus, milvuses_path, pods_path
from local.controlplane import MODULES, ControlPlane, Unavailable, commands
from tools import fingerprint

HERE = Path(__file__).resolve().parent
TOP = HERE.parent
OURS = TOP / "milvus_operator.py"
ROUNDS = 3
MANY = 1000  # Milvus resources, of three pods each; or the pods of one
SIZES = (100, 300, 1000, 3000)  # how many Milvus resources there are in quiet passes
SHARES = (0.05, 0.25, 0.45)  # of a burst that are created when something else is changed
TICKS = os.sysconf("SC_CLK_TCK")
IMPORTS = "import kubernetes, click, yaml"
ON_NODE = {"spec": {"nodeName": "node-0"}}  # for spec.pod: kwok plays its kubelet
median = statistics.median

Figures = dict[str, float]  # what was measured in one turn, by name
Turns = dict[str, list[float]]  # the same in each turn


@dataclass
class Row:
    what: str
    against: str
    figures: str
    ratio: float | None = None
    most: float = math.inf  # the ratio must be at most this
    least: float = 0  # or at least this

    @property
    def target(self) -> str:
        if self.most < math.inf:
            return f"≤ {self.most:g}"
        return f"≥ {self.least:g}" if self.least else "–"

    @property
    def verdict(self) -> str:
        if self.ratio is None or self.target == "–":
            return ""
        return "reached" if self.least <= self.ratio <= self.most else "MISSED"

    def __str__(self) -> str:
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        cells = (self.what, self.against, self.figures, ratio, self.target, self.verdict)
        return f"| {' | '.join(cells)} |"


def shown(value: float, unit: str) -> str:
    """With three digits that count."""
    digits = max(0, 2 - math.floor(math.log10(max(value, 0.001))))
    return f"{value:,.{digits}f}{unit}"


def named(operator: Path) -> str:
    return f"version `{hashlib.sha256(operator.read_bytes()).hexdigest()[:12]}`"


def in_turns(*measures: Callable[[], Figures], rounds: int | None = None) -> list[Turns]:
    """Measure A B A B. Returns what each of them has found."""
    found: list[Turns] = [{} for _ in measures]
    for _ in range(rounds or ROUNDS):
        for turns, measure in zip(found, measures, strict=True):
            for name, value in measure().items():
                turns.setdefault(name, []).append(value)
    return found


def send_bare(hands: tuple[str, str, str], method: str, *arguments: Any) -> None:
    getattr(Hands(*hands), method)(*arguments)


@dataclass
class Bench:
    """The control plane under measurement, and what was measured."""

    plane: ControlPlane
    hands: Hands
    others: list[Path]  # other versions of milvus_operator.py to compare with
    rows: list[Row] = field(default_factory=list)
    loaded: set[str] = field(default_factory=set)

    def add(self, what: str, against: str, figures: str, *ratio: float, **target: float) -> None:
        self.rows.append(Row(what, against, figures, *ratio, **target))
        print(f"  {self.rows[-1]}", flush=True)

    def compare(
        self,
        what: str,
        against: str,
        ours: list[float],
        theirs: list[float],
        unit: str = " s",
        **target: float,
    ) -> None:
        """Add a row with the medians, and the median of the ratios of the turns."""
        ratio = median(a / b for a, b in zip(ours, theirs, strict=True))
        figures = f"{shown(median(ours), unit)} : {shown(median(theirs), unit)}"
        self.add(what, against, figures, ratio, **target)

    def versions(self, measure: Callable[[Bench, Path], Figures]) -> list[Callable[[], Figures]]:
        """This measure of each version of the operator, ours first."""
        return [functools.partial(measure, self, path) for path in (OURS, *self.others)]

    def before(
        self, what: str, key: str, turns: list[Turns], unit: str = " s", most: float = 1.05
    ) -> None:
        """Add a row for each other version. The first of the turns are ours."""
        for path, other in zip(self.others, turns[1:], strict=True):
            self.compare(what, named(path), turns[0][key], other[key], unit, most=most)

    def quiet_namespace(self, size: int, operator: Path = OURS, foreign: int = 0) -> str:
        """A namespace with that many Milvus resources of three Ready pods each, at rest, which this
        version of the operator has created; made only once."""
        number = (OURS, *self.others).index(operator)
        name = f"quiet-{size}-{number}" + (f"-{foreign}" if foreign else "")
        if name not in self.loaded:
            self.loaded.add(name)
            started = time.monotonic()
            self.hands.namespace(name)
            self.hands.create_milvuses(name, size)
            pod = {"spec": {"containers": [{"name": "c", "image": "nginx"}]}}
            metadata = ({"name": f"web-{i}", "namespace": name} for i in range(foreign))
            self.hands.create_pods([pod | {"metadata": some} for some in metadata])
            run_once(self, name, operator)
            self.hands.make_ready(name)
            run_once(self, name, operator)
            print(f"  ({name} loaded in {time.monotonic() - started:.0f} s)", flush=True)
        return name

    @contextmanager
    def burst_namespace(self, size: int, **spec: Any) -> Iterator[str]:
        """A new namespace with that many Milvus resources and no pods, for the duration of the
        `with`."""
        name = f"burst-{time.monotonic_ns()}"
        self.hands.namespace(name)
        self.hands.create_milvuses(name, size, **spec)
        try:
            yield name
        finally:
            self.hands.clear(name)

    def pods_in(self, namespace: str) -> int:
        page = self.hands.send("GET", f"{pods_path(namespace)}?limit=1")
        return len(page["items"]) + int(page["metadata"].get("remainingItemCount", 0))

    def watch(self, namespace: str, total: int, *bare: Any) -> tuple[float, float]:
        """Wait until that many pods exist, or are left; returns pods per second since the first
        change, and the time.

        Polling costs the server something, so whatever is compared is watched in the same way.
        `bare` are the bare requests that make the change, if nothing else does; a separate process
        sends them.
        """
        if bare:
            hands = (self.hands.server, self.hands.authority, self.hands.token)
            get_context("spawn").Process(target=send_bare, args=(hands, *bare)).start()
        first = now = time.perf_counter()
        before = self.pods_in(namespace)
        up, changed = total > before, 0
        while True:
            count = self.pods_in(namespace)
            now = time.perf_counter()
            if not changed and count != before:
                first, changed = now, count
            if (count >= total) if up else (count <= total):
                return abs(total - changed) / max(now - first, 0.001), now
            time.sleep(0.05)

    def wait_for_status(self, namespace: str, name: str, **wanted: int) -> None:
        path = f"{milvuses_path(namespace)}/{name}"
        while not wanted.items() <= self.hands.send("GET", path).get("status", {}).items():
            time.sleep(0.2)

    @contextmanager
    def kubelets(self, seconds: float) -> Iterator[None]:
        """A simulated node whose pods take so long to end, and as long to start."""
        stages = list(yaml.safe_load_all((MODULES / "stages.yaml").read_text()))
        for stage in stages:
            if stage["metadata"]["name"] in ("pod-ready", "pod-delete"):
                stage["spec"]["delay"] = {"durationMilliseconds": round(1000 * seconds)}
        file = self.plane.folder / "bench-stages.yaml"
        file.write_text(yaml.safe_dump_all(stages))
        self.hands.send("POST", "/api/v1/nodes", {"metadata": {"name": "node-0"}})
        options = (f"--kubeconfig={self.plane.kubeconfig()}", f"--config={file}")
        kwok = Program(self, str(commands()["kwok"]), "--manage-all-nodes=true", *options)
        kwok.drain()
        try:
            yield
        finally:
            kwok.kill()


class Program:
    """A process whose CPU time and peak memory are read from /proc."""

    def __init__(self, bench: Bench, *command: str) -> None:
        env = {"KUBECONFIG": str(bench.plane.kubeconfig()), "PYTHONPATH": str(TOP)}
        self.started = time.perf_counter()
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | env,
        )
        self.pid, self.peak, self.log = self.process.pid, 0.0, ""
        self.is_once = "--once" in command
        threading.Thread(target=self.look_at_memory, daemon=True).start()

    @classmethod
    def operator(cls, bench: Bench, path: Path, *options: str) -> Program:
        return cls(bench, sys.executable, str(path), *options)

    def look_at_memory(self) -> None:
        """Poll the peak, because the kernel's figure for a process that has ended may be that of
        its parent."""
        while self.process.returncode is None:
            try:
                status = Path(f"/proc/{self.pid}/status").read_text()
            except OSError:
                return
            if found := re.search(r"VmHWM:\s+(\d+)", status):
                self.peak = max(self.peak, int(found[1]) / 1024)
            time.sleep(0.01)

    def cpu(self) -> float:
        """User and system seconds; also of a process that has ended but is not waited for."""
        return cpu_of(self.pid)

    def end(self) -> Figures:
        """Wait until it ends; returns CPU and wall-clock seconds, and the peak memory."""
        assert self.process.stdout
        self.log += self.process.stdout.read()
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        wall, cpu = time.perf_counter() - self.started, self.cpu()
        if self.process.wait() not in (0, -9):
            raise RuntimeError(f"{self.process.args!r} failed: {self.log[-600:]}")
        return {"cpu": cpu, "wall": wall, "memory": self.peak}

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Kill it, unless it ends on its own."""
        if self.is_once:
            self.process.wait()
        else:
            self.kill()

    def says(self, text: str) -> str:
        assert self.process.stdout
        for line in self.process.stdout:
            self.log += line
            if text in line:
                return line
        raise RuntimeError(f"it never said {text!r}: {self.log[-600:]}")

    def drain(self) -> None:
        """Keep reading its output, so that it never blocks on a full pipe."""
        threading.Thread(target=list, args=[self.process.stdout], daemon=True).start()


def cpu_of(pid: int | str) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def server_cpu(bench: Bench) -> float:
    """CPU seconds used by the control plane's processes so far."""
    pid = bench.plane.supervisor.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return sum(map(cpu_of, children.split()))


def run_once(bench: Bench, namespace: str, operator: Path = OURS) -> Figures:
    return Program.operator(bench, operator, "-n", namespace, "--once").end()


def imports(bench: Bench) -> Figures:
    return Program(bench, sys.executable, "-c", f"{IMPORTS}; import time; time.sleep(0.2)").end()


def floor(bench: Bench, namespace: str, passes: int, *options: str) -> Figures:
    """Of the floor: CPU of a pass, and CPU and wall-clock seconds of the whole process."""
    hands = bench.hands
    arguments = (hands.server, hands.authority, hands.token, namespace, str(passes), *options)
    program = Program(bench, sys.executable, str(HERE / "floor.py"), *arguments)
    figures = program.end()
    return figures | {"pass": median(map(float, program.log.split()[min(1, passes - 1) :]))}


# ---------- The rows: passes ----------


def quiet_passes(
    bench: Bench,
    operator: Path,
    namespace: str,
    passes: int,
    interval: float,
    change: Callable[[], Any] = lambda: None,
) -> Figures:
    """Of an operator at rest: CPU and wall-clock seconds of a pass, and peak memory. `change` is
    called before each pass."""
    options = (f"-n{namespace}", "-v", f"--interval={interval:g}")
    program = Program.operator(bench, operator, *options)
    for _ in range(2):
        program.says("pass over")
    cpu, walls = program.cpu(), []
    for _ in range(passes):
        change()
        walls.append(seconds_of(program.says("pass over")))
    cost = (program.cpu() - cpu) / passes
    program.kill()
    return {"cpu": cost, "wall": median(walls), "memory": program.peak}


def seconds_of(line: str) -> float:
    """What the log says about how long a pass took."""
    return float(re.findall(r"([\d.]+) s$", line)[0])


def pages(objects: int) -> list[int]:
    """The number of the first object on each page of a list."""
    return list(range(0, objects, mo.PAGE))


def quiet_pass(bench: Bench) -> None:
    for size in SIZES:
        big = size >= max(SIZES)
        namespace, interval = bench.quiet_namespace(size), max(1, size / 2000)

        def ours(bench: Bench, path: Path, size: int = size, interval: float = interval) -> Figures:
            namespace = bench.quiet_namespace(size, path)
            return quiet_passes(bench, path, namespace, 4, interval)

        versions = bench.versions(ours) if size >= MANY else bench.versions(ours)[:1]
        base, reads, bare, *turns = in_turns(
            functools.partial(imports, bench),
            functools.partial(floor, bench, namespace, 3),
            functools.partial(floor, bench, namespace, 3, "nogc"),
            *versions,
            rounds=2 if big else ROUNDS,
        )
        now, what = turns[0], f"a quiet pass, {size:,} × 3: CPU"
        lists = "the floor: GET and json.loads of the two lists"
        bench.compare(what, lists, now["cpu"], reads["pass"], most=0.75)
        if size < MANY:
            continue
        bench.compare(what, "the floor without garbage collection", now["cpu"], bare["pass"])
        memory = f"peak memory, {size:,} × 3 at rest"
        against = (now["memory"], base["memory"], " MiB")
        bench.compare(memory, f"`{IMPORTS}`", *against, most=3 if big else 1.6)
        bench.before(what, "cpu", turns)
        bench.before(memory, "memory", turns, " MiB")


def worst_pass(bench: Bench) -> None:
    """There is nothing to do, but every page of pods must be parsed, because one pod on it has
    changed."""
    namespace = bench.quiet_namespace(MANY)
    names = sorted(mo.name_of(pod) for pod in bench.hands.items(pods_path(namespace)))
    names = [names[number] for number in pages(len(names))]
    change = functools.partial(bench.hands.annotate_pods, namespace, names)
    now, reads, bare = in_turns(
        functools.partial(quiet_passes, bench, OURS, namespace, 4, 2, change),
        functools.partial(floor, bench, namespace, 3),
        functools.partial(floor, bench, namespace, 3, "nogc"),
    )
    what = f"the worst pass, {MANY:,} × 3, a pod on every page has changed: "
    bench.compare(f"{what}CPU", "the floor, as above", now["cpu"], reads["pass"])
    without = "the floor without garbage collection"
    bench.compare(f"{what}CPU", without, now["cpu"], bare["pass"])
    memory = shown(median(now["memory"]), " MiB")
    bench.add(f"{what}peak memory", "a quiet pass, above", memory)


def once(bench: Bench) -> None:
    for size in SIZES[-2:]:
        namespace = bench.quiet_namespace(size)
        now, reads = in_turns(
            functools.partial(run_once, bench, namespace),
            functools.partial(floor, bench, namespace, 1),
            rounds=2 if size == max(SIZES) else ROUNDS,
        )
        for key, name, most in (("cpu", "CPU", 0.85), ("wall", "wall", 0.9)):
            what = f"`--once`, {size:,} × 3, whole process: {name}"
            bench.compare(what, "the floor, whole process", now[key], reads[key], most=most)


def foreign_pods(bench: Bench) -> None:
    alone, foreign = bench.quiet_namespace(MANY), 10 * MANY
    crowded = bench.quiet_namespace(MANY, foreign=foreign)
    among, without = in_turns(
        functools.partial(quiet_passes, bench, OURS, crowded, 6, 1),
        functools.partial(quiet_passes, bench, OURS, alone, 6, 1),
    )
    what = f"a quiet pass among {foreign:,} foreign pods: "
    bench.compare(f"{what}CPU", "without them", among["cpu"], without["cpu"], most=1.05)
    bench.compare(f"{what}wall", "without them", among["wall"], without["wall"])


def start(bench: Bench) -> None:
    """The time from the start of the process to its first connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        text, url = bench.plane.kubeconfig().read_text(), "http://127.0.0.1"
        file = bench.plane.folder / "start.kubeconfig"
        file.write_text(text.replace(bench.hands.server, f"{url}:{server.getsockname()[1]}"))

        def first_request(bench: Bench, path: Path) -> Figures:
            program = Program.operator(bench, path, f"--kubeconfig={file}", "--once")
            connection, _ = server.accept()
            took = time.perf_counter() - program.started
            program.kill()
            connection.close()
            return {"wall": took}

        command = (sys.executable, "-c", IMPORTS)
        base, *turns = in_turns(
            lambda: Program(bench, *command).end(),
            *bench.versions(first_request),
            rounds=4 * ROUNDS - 1,
        )
    now, what = turns[0], "start to the first request"
    bench.compare(what, f'`python -c "{IMPORTS}"`', now["wall"], base["wall"], most=1.1)
    bench.before(what, "wall", turns)


# ---------- The rows: bursts ----------


def burst(
    bench: Bench, start: Callable[[str], Program], *more: mo.Obj, size: int = 0, replicas: int = 3
) -> Figures:
    """Start a program in a namespace with so many Milvus resources (if not said, with MANY), and
    `more` that do not count, and wait until all pods exist."""
    size = size or MANY
    with bench.burst_namespace(size, replicas=replicas) as namespace:
        for body in more:
            bench.hands.send("POST", milvuses_path(namespace), body)
        before, program = server_cpu(bench), start(namespace)
        program.drain()
        rate, end = bench.watch(namespace, size * replicas)
        wall = end - program.started
        cores = {"own": program.cpu() / wall, "server": (server_cpu(bench) - before) / wall}
        program.stop()
        return {"rate": rate, "wall": wall, "memory": program.peak} | cores


def running(bench: Bench, *options: str, path: Path = OURS) -> Callable[[str], Program]:
    return lambda namespace: Program.operator(bench, path, "-n", namespace, *options)


def bring_up(bench: Bench) -> None:
    """Bare POSTs, the operator with `--once`, the operator running, and kopf."""

    def bare() -> Figures:
        with bench.burst_namespace(MANY) as namespace:
            pods = bench.hands.pod_bodies(bench.hands.items(milvuses_path(namespace)))
            rate, _ = bench.watch(namespace, 3 * MANY, "create_pods", pods)
            return {"rate": rate, "wall": 3 * MANY / rate}

    posts, single, steady, kopf = in_turns(
        bare,
        functools.partial(burst, bench, running(bench, "--once")),
        functools.partial(burst, bench, running(bench)),
        functools.partial(burst, bench, functools.partial(kopf_peer, bench)),
    )
    what = f"bring-up of {MANY:,} × 3"
    against = f"bare POSTs of the same bodies, {THREADS} threads"
    rates = (posts["rate"], "/s")
    bench.compare(f"{what}, `--once`: pods/s", against, single["rate"], *rates, least=0.85)
    bench.compare(f"{what}, running: pods/s", against, steady["rate"], *rates, least=0.85)
    peer = "kopf, a handler that creates the same pods"
    whole = f"{what}, `--once`, from the start of the process"
    bench.compare(whole, peer, single["wall"], kopf["wall"], most=0.5)
    bench.compare("bare POSTs alone", peer, posts["wall"], kopf["wall"])
    memory = (single["memory"], kopf["memory"], " MiB")
    bench.compare(f"{what}, `--once`: peak memory", "kopf", *memory, most=0.5)
    cores = f"{median(steady['own']):.2f} : {median(steady['server']):.2f}"
    bench.add(f"{what}, running: cores in use", "etcd and kube-apiserver", cores)


def statuses(bench: Bench) -> None:
    """Until each Milvus has a status that counts its three pods."""

    def measure(bench: Bench, path: Path) -> Figures:
        with bench.burst_namespace(MANY) as namespace:
            changes, done = bench.hands.follow(milvuses_path(namespace)), set[str]()
            program = Program.operator(bench, path, "-n", namespace)
            program.drain()
            while len(done) < MANY:
                one = next(changes)["object"]
                if one.get("status", {}).get("replicas") == 3:
                    done.add(mo.name_of(one))
            wall, cpu = time.perf_counter() - program.started, program.cpu()
            program.kill()
            return {"wall": wall, "cpu": 1000 * cpu / (3 * MANY), "memory": program.peak}

    now, *_ = turns = in_turns(*bench.versions(measure))
    rows = (("wall", "time", " s", 0.67), ("cpu", "CPU for each pod", " ms", 0.8))
    for key, name, unit, most in rows:
        what = f"until all statuses of {MANY:,} × 3 are written: {name}"
        bench.add(what, "from the start of the process", shown(median(now[key]), unit))
        bench.before(what, key, turns, unit, most)
    bench.before("the same: peak memory", "memory", turns, " MiB")


def one_of_many_pods(bench: Bench) -> None:
    def measure(bench: Bench, path: Path) -> Figures:
        return burst(bench, running(bench, path=path), size=1, replicas=MANY)

    now, *_ = turns = in_turns(*bench.versions(measure))
    what = f"one Milvus of {MANY:,} replicas: until all pods exist"
    bench.add(what, "from the start of the process", shown(median(now["wall"]), " s"))
    bench.before(what, "wall", turns)


def scale_down(bench: Bench) -> None:
    def measure(is_bare: bool) -> Figures:
        with bench.burst_namespace(MANY) as namespace:
            run_once(bench, namespace)
            names = [f"mv{number:05}" for number in range(MANY)]
            if is_bare:
                surplus = [f"{name}-{ordinal}" for name in names for ordinal in (2, 1)]
                return {"rate": bench.watch(namespace, MANY, "delete_pods", namespace, surplus)[0]}
            for name in names:
                path = f"{milvuses_path(namespace)}/{name}"
                bench.hands.patch(path, {"spec": {"replicas": 1}})
            program = Program.operator(bench, OURS, "-n", namespace, "--once")
            program.drain()
            rate, _ = bench.watch(namespace, MANY)
            program.process.wait()
            return {"rate": rate}

    now, bare = in_turns(lambda: measure(False), lambda: measure(True))
    what, against = (
        f"scale-down of {MANY:,} from 3 to 1: pods/s",
        f"bare DELETEs, {THREADS} threads",
    )
    bench.compare(what, against, now["rate"], bare["rate"], "/s", least=0.85)


def bad_milvus(bench: Bench) -> None:
    """A bring-up beside one more Milvus whose 100 creates are rejected, or hang in a webhook."""
    unsound = {"spec": {"containers": [{"name": mo.CONTAINER, "imagePullPolicy": "Sometimes"}]}}
    bad = [milvus("rejected", 100, pod=unsound), milvus("hangs", 100)]

    with socket.create_server(("127.0.0.1", 0), backlog=500) as silent:
        port = silent.getsockname()[1]
        hook: mo.Obj = {"name": "hangs.example.com", "sideEffects": "None", "failurePolicy": "Fail"}
        hook |= {"admissionReviewVersions": ["v1"], "timeoutSeconds": 30}
        hook |= {"clientConfig": {"url": f"https://127.0.0.1:{port}/"}}
        hook |= {"objectSelector": {"matchLabels": {mo.INSTANCE_LABEL: "hangs"}}}
        pods = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
        hook |= {"rules": [pods | {"operations": ["CREATE"]}]}
        hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
        bench.hands.send("POST", hooks, {"metadata": {"name": "bench"}, "webhooks": [hook]})
        time.sleep(2)  # until the API server uses it
        alone, *beside = in_turns(
            functools.partial(burst, bench, running(bench)),
            *(functools.partial(burst, bench, running(bench), one) for one in bad),
        )
        bench.hands.send("DELETE", f"{hooks}/bench")
    for turns, happens in zip(beside, ("are rejected", "hang for 30 s"), strict=True):
        what = f"bring-up of {MANY:,} × 3 beside one whose creates {happens}"
        bench.compare(what, "without it", turns["wall"], alone["wall"], most=1.1)


# ---------- The rows: changes ----------


def change_to_pod(bench: Bench, namespace: str, number: int) -> float:
    """Seconds from scaling one Milvus to a fourth pod until that pod exists."""
    name = f"mv{number:05}"
    started = time.perf_counter()
    bench.hands.patch(f"{milvuses_path(namespace)}/{name}", {"spec": {"replicas": 4}})
    while bench.hands.send("GET", f"{pods_path(namespace)}/{name}-3").get("kind") != "Pod":
        time.sleep(0.01)
    return time.perf_counter() - started


def one_change(bench: Bench) -> None:
    """A change of one Milvus among many at rest, and while a burst is under way."""
    interval = 2.0

    def measure(bench: Bench, path: Path) -> Figures:
        with bench.burst_namespace(MANY) as namespace:
            run_once(bench, namespace, path)
            options = ("-n", namespace, f"--interval={interval:g}", "-v")
            program = Program.operator(bench, path, *options)
            wall = [seconds_of(program.says("pass over")) for _ in range(3)][-1]
            program.drain()
            quiet = list[float]()
            for number in range(3):
                time.sleep(2 * interval + 0.37 * number)
                quiet.append(change_to_pod(bench, namespace, number))
            burst, before = [milvus(f"burst-{i}") for i in range(MANY)], bench.pods_in(namespace)
            post = functools.partial(bench.hands.send, "POST", milvuses_path(namespace))
            bench.hands.each(post, burst)
            busy = list[float]()
            for number, share in enumerate(SHARES, 3):
                while bench.pods_in(namespace) < before + share * 3 * MANY:
                    time.sleep(0.02)
                busy.append(change_to_pod(bench, namespace, number))
            done = bench.pods_in(namespace) - before
            bench.watch(namespace, before + 3 * MANY + len(SHARES))
            program.kill()
            slowest = {"quiet": max(quiet), "busy": max(busy)}
            return slowest | {"limit": interval + 2 * wall, "done": done}

    now, *_ = turns = in_turns(*bench.versions(measure))
    limit, quiet, busy = median(now["limit"]), max(now["quiet"]), max(now["busy"])
    what = f"a change of one among {MANY:,} quiet: slowest of {3 * ROUNDS}"
    against = f"interval + 2 quiet passes: {limit:.1f} s"
    bench.add(what, against, shown(quiet, " s"), quiet / limit, most=1)
    what, limit = f"a change while {3 * MANY:,} creates are under way", limit + 1
    against = f"interval + 2 quiet passes + 1 s: {limit:.1f} s"
    figures = f"{shown(busy, ' s')} (at most {max(now['done']):,.0f} created by then)"
    bench.add(f"{what}: slowest of {ROUNDS * len(SHARES)}", against, figures, busy / limit, most=1)
    bench.before(what, "busy", turns)


def change_among_moves(bench: Bench) -> None:
    """A change of one Milvus while a large one is rolled, and an interval that is long."""
    interval, pods, changes = 10.0, 30, 4

    def measure(bench: Bench, path: Path) -> Figures:
        with bench.burst_namespace(100) as namespace:
            run_once(bench, namespace, path)
            program = Program.operator(bench, path, "-n", namespace, f"--interval={interval:g}")
            program.drain()
            large, body = f"{milvuses_path(namespace)}/large", milvus("large", pods, pod=ON_NODE)
            bench.hands.send("POST", milvuses_path(namespace), body)
            bench.wait_for_status(namespace, "large", readyReplicas=pods)
            bench.hands.patch(large, {"spec": {"image": "milvusdb/milvus:v2.6.5"}})
            took = list[float]()
            for number in range(changes):
                time.sleep(3 + 0.37 * number)
                took.append(change_to_pod(bench, namespace, number))
            program.kill()
            return {"slowest": max(took), "median": median(took)}

    with bench.kubelets(1):
        now, *_ = turns = in_turns(*bench.versions(measure))
    what, slowest = "a change of one while another is rolled", max(now["slowest"])
    figures = f"{shown(slowest, ' s')} (median {shown(median(now['median']), ' s')})"
    count = f"slowest of {changes * ROUNDS}"
    against = f"the interval: {interval:g} s"
    bench.add(f"{what}: {count}", against, figures, slowest / interval, most=0.5)
    bench.before(f"{what}: slowest of {changes}", "slowest", turns)


def roll(bench: Bench) -> None:
    """A rolling update: from the change until the last new pod is Ready. The pods' own time is that
    in which one of them ends or starts, as the API server reports it."""
    pods, seconds = 5, 1.0

    def measure(bench: Bench, path: Path) -> Figures:
        with bench.burst_namespace(0) as namespace:
            program = Program.operator(bench, path, "-n", namespace)
            program.drain()
            body = milvus("roll", pods, pod=ON_NODE)
            bench.hands.send("POST", milvuses_path(namespace), body)
            bench.wait_for_status(namespace, "roll", readyReplicas=pods)
            time.sleep(10)  # until nothing has changed for two intervals
            changes = bench.hands.follow(pods_path(namespace))
            since, own, left, begun = time.perf_counter(), 0.0, pods, dict[str, float]()
            image = {"spec": {"image": "milvusdb/milvus:v2.6.5"}}
            bench.hands.patch(f"{milvuses_path(namespace)}/roll", image)
            now = since
            while left:
                change, now = next(changes), time.perf_counter()
                pod, is_gone = change["object"], change["type"] == "DELETED"
                if not is_gone and not mo.is_ready(pod):
                    begun.setdefault(mo.uid_of(pod), now)
                elif mo.uid_of(pod) in begun:
                    own += now - begun.pop(mo.uid_of(pod))
                    left -= not is_gone
            program.kill()
            return {"wall": now - since, "own": own}

    with bench.kubelets(seconds):
        now, *_ = turns = in_turns(*bench.versions(measure))
    what = (
        f"a rolling update of {pods} pods that take {seconds:g} s to end and {seconds:g} s to start"
    )
    bench.compare(what, "the pods' own time", now["wall"], now["own"], most=2)
    bench.before(what, "wall", turns)


# ---------- The rows: several operators, and peers ----------


def two_copies(bench: Bench) -> None:
    """Two namespaces, with one operator for each."""
    names, size = ["half-a", "half-b"], 2 * MANY
    for name in names:
        bench.hands.namespace(name)
        bench.hands.create_milvuses(name, size)
    began, before = time.perf_counter(), server_cpu(bench)
    operators = [Program.operator(bench, OURS, "-n", name, "--once") for name in names]
    for one in operators:
        one.drain()
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda name: bench.watch(name, 3 * size), names))
    took, server = time.perf_counter() - began, server_cpu(bench) - before
    own = sum(one.cpu() for one in operators)
    for one in operators:
        one.process.wait()
    cores = f"{own / took:.2f} : {server / took:.2f} cores of {os.cpu_count()}"
    what = f"two operators bring up 2 × {size:,} × 3"
    figures = f"{6 * size / took:.0f} pods/s; {cores}"
    bench.add(what, "etcd and kube-apiserver beside them", figures)
    for name in names:
        bench.hands.clear(name)


def replica_sets(bench: Bench) -> None:
    """ReplicaSets with the same pods, served by kube-controller-manager."""
    name, hands = "replicasets", bench.hands
    hands.namespace(name)
    one = milvus("web") | {"metadata": {"name": "web", "namespace": name, "uid": "x"}}
    pod = mo.new_pod(one, mo.spec_of(one), 0)["spec"]
    pod = {key: value for key, value in pod.items() if key not in ("hostname", "subdomain")}
    path = f"/apis/apps/v1/namespaces/{name}/replicasets"

    def create(number: int) -> None:
        labels = {"app": f"web-{number}"}
        template = {"metadata": {"labels": labels}, "spec": pod}
        spec = {"replicas": 3, "selector": {"matchLabels": labels}, "template": template}
        hands.send("POST", path, {"metadata": {"name": f"web-{number}"}, "spec": spec})

    def measure(count: int, *flags: str) -> Figures:
        hands.each(create, range(count))
        manager = Program(
            bench,
            str(commands()["kube-controller-manager"]),
            "--controllers=replicaset-controller",
            f"--kubeconfig={bench.plane.kubeconfig()}",
            "--leader-elect=false",
            "--secure-port=0",
            f"--cert-dir={bench.plane.folder}/pki-bench",
            *flags,
        )
        manager.drain()
        rate, _ = bench.watch(name, 3 * count)
        manager.kill()
        hands.send("DELETE", path, {"gracePeriodSeconds": 0, "propagationPolicy": "Background"})
        hands.clear(name)
        return {"rate": rate}

    lifted = (
        "--kube-api-qps=100000",
        "--kube-api-burst=100000",
        f"--concurrent-replicaset-syncs={THREADS}",
    )
    ours = functools.partial(burst, bench, running(bench, "--once"))
    for flags, count, options in (
        ("default flags", MANY // 5, ()),
        ("limits lifted", MANY, lifted),
    ):
        now, theirs = in_turns(ours, functools.partial(measure, count, *options), rounds=1)
        what = f"bring-up of {MANY:,} × 3: pods/s"
        against = f"ReplicaSets, kube-controller-manager with {flags}"
        bench.compare(what, against, now["rate"], theirs["rate"], "/s", least=1)


def kopf_peer(bench: Bench, namespace: str) -> Program:
    arguments = ("-m", "kopf", "run", "-q", "-n", namespace, str(HERE / "peer_kopf.py"))
    return Program(bench, sys.executable, *arguments)


def kopf_memory(bench: Bench) -> None:
    """Kopf with the largest number of Milvus resources, whose pods exist: it is done when each has
    the annotation that it writes when its handler has finished."""
    size = max(SIZES)
    namespace = bench.quiet_namespace(size)
    peer = kopf_peer(bench, namespace)
    peer.drain()
    paths = [f"{milvuses_path(namespace)}/mv{i:05}" for i in range(0, size, size // 20)]
    key = "kopf.zalando.org/last-handled-configuration"
    while not all(
        key in (bench.hands.send("GET", path)["metadata"].get("annotations") or {})
        for path in paths
    ):
        time.sleep(1)
    peer.kill()
    ours = quiet_passes(bench, OURS, namespace, 2, 10)["memory"]
    against = "kopf, Milvus alone, its handler through for each"
    bench.compare(f"peak memory, {size:,} × 3", against, [ours], [peer.peak], " MiB", most=0.5)


BURSTS = [start, bring_up, statuses, one_of_many_pods, scale_down, bad_milvus]
CHANGES = [roll, one_change, change_among_moves]
PASSES = [worst_pass, foreign_pods, quiet_pass, once]
ROWS: list[Callable[[Bench], None]] = [*BURSTS, *CHANGES, replica_sets, two_copies, *PASSES]
ROWS += [kopf_memory]  # those with the largest size come last


# ---------- The report ----------


def machine() -> str:
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    gibibytes = int(memory[1]) // 2**20 if memory else 0
    linux, processor = platform.release().split("-")[0], cpu[1] if cpu else platform.machine()
    return f"{os.cpu_count()} cores ({processor}), {gibibytes} GiB, Linux {linux}"


def report(bench: Bench, seconds: float) -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("kubernetes", "urllib3", "kopf"))
    kubernetes = bench.hands.send("GET", "/version")["gitVersion"]
    conditions = (
        f"{datetime.now(UTC):%Y-%m-%d}, {machine()}; Python {platform.python_version()}, "
        f"{packages}; etcd and kube-apiserver {kubernetes} on the same machine. "
        f"{seconds / 60:.0f} minutes. Figures are medians; what is compared ran in turns, and the "
        "ratio is the median of those of the turns."
    )
    title, table = "# Results of `make bench`", "| what | measured against | figures | ratio |"
    head = [title, "", fingerprint.line(), "", conditions, "", f"{table} to reach | |"]
    return "\n".join([*head, "|---|---|---|---|---|---|", *map(str, bench.rows)]) + "\n"


def measure(
    plane: ControlPlane, rows: Iterable[Callable[[Bench], None]], others: list[Path]
) -> Bench:
    config = yaml.safe_load(plane.kubeconfig().read_text())
    server, token = config["clusters"][0]["cluster"]["server"], config["users"][0]["user"]["token"]
    hands = Hands(server, str(plane.folder / "pki" / "apiserver.crt"), token)
    bench, started = Bench(plane, hands, others), time.monotonic()
    for row in rows:
        print(f"{row.__name__} …", flush=True)
        row(bench)
        text = report(bench, time.monotonic() - started)
        if rows is ROWS:  # after each row, so that a run that is stopped keeps its results
            (TOP / "docs/reports/benchmark.md").write_text(text)
    print(f"\n{text}")
    return bench


def main() -> int:
    names = ", ".join(row.__name__ for row in ROWS)
    parser = argparse.ArgumentParser(description="Measure the operator.")
    parser.add_argument("rows", nargs="*", help=f"the first letters of some of {names}")
    parser.add_argument("--against", metavar="PATH", type=Path, action="append", default=[])
    options = parser.parse_args()
    chosen = [row for row in ROWS if row.__name__.startswith(tuple(options.rows))]
    if sys.platform != "linux" or (options.rows and not chosen):
        parser.error(f"choose from these rows, on Linux: {names}")
    try:
        with ControlPlane(nodes=False) as plane:
            bench = measure(plane, chosen if options.rows else ROWS, options.against)
    except Unavailable as error:
        print(f"there is no control plane to measure against: {error}")
        return 1
    return int(any(row.verdict == "MISSED" for row in bench.rows))


if __name__ == "__main__":
    sys.exit(main())
