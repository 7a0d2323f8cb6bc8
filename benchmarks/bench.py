"""Measures the operator against a floor, bare requests and its peers, in one run on one machine.

    make bench                                   # everything, about 25 minutes on two cores
    .venv/bin/python -m benchmarks.bench quiet   # only the rows whose function name begins with this

It starts only etcd and kube-apiserver of the tests' control plane, without scheduler and kubelets, to leave
the cores to what is measured. Things that are compared run in turns (A B A B), and the figures are medians.
It prints the table, and writes it to RESULTS.md with the pictures beside it.
"""

from __future__ import annotations

import functools
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import yaml

import milvus_operator as mo
from benchmarks import fingerprint
from benchmarks.cluster import MERGE, THREADS, Hands, milvus, milvuses_path, pods_path
from local.controlplane import ControlPlane, Unavailable, commands, free_ports

HERE = Path(__file__).resolve().parent
TOP = HERE.parent
ROUNDS = 3
SIZES = (100, 300, 1000, 10000)  # Milvus, of three pods each
TICKS = os.sysconf("SC_CLK_TCK")
median = statistics.median


@dataclass
class Row:
    what: str
    against: str
    figures: str
    ratio: float | None = None
    most: float | None = None  # the ratio must be at most this
    least: float | None = None  # or at least this

    @property
    def target(self) -> str:
        return (
            f"≤ {self.most:g}"
            if self.most is not None
            else f"≥ {self.least:g}"
            if self.least is not None
            else "–"
        )

    @property
    def verdict(self) -> str:
        if self.ratio is None or (self.most is None and self.least is None):
            return ""
        reached = (
            self.ratio <= self.most if self.most is not None else self.ratio >= (self.least or 0)
        )
        return "reached" if reached else "MISSED"


def send_bare(hands: tuple[str, str, str], method: str, *arguments: Any) -> None:
    getattr(Hands(*hands), method)(*arguments)


@dataclass
class Bench:
    """The control plane under measurement, and what was measured."""

    plane: ControlPlane
    hands: Hands
    rows: list[Row] = field(default_factory=list)
    curves: dict[str, dict[int, float]] = field(
        default_factory=dict
    )  # for the pictures, by name and size
    loaded: set[str] = field(default_factory=set)

    def add(self, *values: Any, **options: Any) -> None:
        row = Row(*values, **options)
        self.rows.append(row)
        ratio = "" if row.ratio is None else f"{row.ratio:.2f} ({row.target}: {row.verdict or '-'})"
        print(f"  {row.what} | {row.against} | {row.figures} | {ratio}", flush=True)

    def quiet_namespace(self, size: int, foreign: int = 0) -> str:
        """A namespace with that many Milvus resources of three Ready pods each, at rest; created only once."""
        name = f"quiet-{size}" + (f"-{foreign}" if foreign else "")
        if name not in self.loaded:
            self.loaded.add(name)
            started = time.monotonic()
            self.hands.namespace(name)
            self.hands.create_pods(self.hands.pod_bodies(self.hands.create_milvuses(name, size)))
            if foreign:
                pod = {"spec": {"containers": [{"name": "c", "image": "nginx"}]}}
                named = [
                    {"metadata": {"name": f"web-{i}", "namespace": name}} | pod
                    for i in range(foreign)
                ]
                self.hands.create_pods(named)
            self.hands.make_ready(name)
            Program.operator(self, "-n", name, "--once").end()
            print(f"  ({name} loaded in {time.monotonic() - started:.0f} s)", flush=True)
        return name

    @contextmanager
    def burst_namespace(self, size: int = 1000, **spec: Any) -> Iterator[tuple[str, list[mo.Obj]]]:
        """A new namespace with that many Milvus resources and no pods, for the duration of the `with`."""
        name = f"burst-{time.monotonic_ns()}"
        self.hands.namespace(name)
        try:
            yield name, self.hands.create_milvuses(name, size, **spec)
        finally:
            self.hands.clear(name)

    def pods_in(self, namespace: str) -> int:
        page = self.hands.send("GET", f"{pods_path(namespace)}?limit=1")
        return len(page["items"]) + int(page["metadata"].get("remainingItemCount", 0))

    def watch(self, namespace: str, total: int, *bare: Any) -> tuple[float, float]:
        """Wait until that many pods exist, or are left; returns pods per second since the first change, and the time.

        Polling costs the server something, so whatever is compared is watched in the same way. `bare` are
        the bare requests that make the change, if nothing else does; a separate process sends them.
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
                return abs(total - changed) / (now - first), now
            time.sleep(0.05)


class Program:
    """A process whose CPU time and peak memory are read from /proc."""

    def __init__(self, bench: Bench, *command: str, **env: str) -> None:
        self.started = time.perf_counter()
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=os.environ | {"KUBECONFIG": str(bench.plane.kubeconfig()), "PYTHONPATH": str(TOP)} | env,
        )  # fmt: skip
        self.pid, self.peak, self.log = self.process.pid, 0.0, ""
        threading.Thread(target=self.look_at_memory, daemon=True).start()

    @classmethod
    def operator(cls, bench: Bench, *options: str) -> Program:
        return cls(bench, sys.executable, str(TOP / "milvus_operator.py"), *options)

    @classmethod
    def floor(cls, bench: Bench, namespace: str, passes: int, *more: str) -> Program:
        hands = bench.hands
        options = (hands.server, hands.authority, hands.token, namespace, str(passes), *more)
        return cls(bench, sys.executable, str(HERE / "floor.py"), *options)

    def look_at_memory(self) -> None:
        """Poll the peak, because the kernel's figure for a process that has ended may be that of its parent."""
        while self.process.returncode is None:
            try:
                status = Path(f"/proc/{self.pid}/status").read_text()
            except OSError:
                return
            if found := re.search(r"VmHWM:\s+(\d+)", status):
                self.peak = max(self.peak, int(found[1]) / 1024)
            time.sleep(0.01)

    def cpu(self) -> float:
        """User and system seconds; also of a process that has ended, until somebody waits for it."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def end(self) -> tuple[float, float]:
        """Wait until it ends; returns CPU seconds and wall-clock seconds."""
        assert self.process.stdout
        self.log += self.process.stdout.read()
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        wall, cpu = time.perf_counter() - self.started, self.cpu()
        if self.process.wait() not in (0, -9):
            raise RuntimeError(f"{self.process.args!r} failed: {self.log[-600:]}")
        return cpu, wall

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def says(self, text: str) -> str:
        assert self.process.stdout
        for line in self.process.stdout:
            self.log += line
            if text in line:
                return line
        raise RuntimeError(f"it never said {text!r}: {self.log[-600:]}")

    def drain(self) -> None:
        """Keep reading its output, so that it never blocks on a full pipe."""
        threading.Thread(
            target=lambda: [None for _ in self.process.stdout or ()], daemon=True
        ).start()


def python(bench: Bench, code: str) -> Program:
    return Program(bench, sys.executable, "-c", code)


IMPORTS = "import kubernetes, click, yaml"


# --------------------------------------------------------------------------------------
# The rows
# --------------------------------------------------------------------------------------


def quiet_passes(
    bench: Bench,
    namespaces: list[str],
    passes: int,
    interval: float,
    change: Callable[[], Any] = lambda: None,
) -> tuple[float, float, float, str]:
    """Figures of an operator at rest: CPU and wall-clock seconds of a pass, peak memory, and the requests of a pass.
    `change` is called before each pass."""
    port = free_ports(1)[0]
    operator = Program.operator(
        bench, *(f"-n{name}" for name in namespaces), "-v", f"--interval={interval:g}", f"--health-port={port}"
    )  # fmt: skip
    for _ in range(2):
        operator.says("pass over")
    cpu, asked, walls = operator.cpu(), requests(port), []
    for _ in range(passes):
        change()
        walls.append(float(re.findall(r"([\d.]+) s$", operator.says("pass over"))[0]))
    cost, after = (operator.cpu() - cpu) / passes, requests(port)
    operator.kill()
    delta = {
        key: (after[key] - asked.get(key, 0)) / passes
        for key in after
        if after[key] != asked.get(key)
    }
    return (
        cost,
        median(walls),
        operator.peak,
        ", ".join(f"{count:g} × {what}" for what, count in delta.items()),
    )


def requests(port: int) -> dict[str, float]:
    import urllib.request

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    found = re.findall(
        r'api_requests_total\{code="\d+",resource="(\S+?)",verb="(\w+)"\} (\S+)', text
    )
    return {f"{verb} {resource}": float(count) for resource, verb, count in found}


def quiet_pass(bench: Bench) -> None:
    base = median(python_peak(bench) for _ in range(ROUNDS))
    for size in SIZES:
        namespace = bench.quiet_namespace(size)
        ours, floors, bares, walls, peaks, asked = [], [], [], [], [], ""
        for _ in range(ROUNDS if size < 10000 else 2):
            floor = Program.floor(bench, namespace, 3)
            floor.end()
            floors.append(median(map(float, floor.log.split()[1:])))
            if size == 1000:
                bare = Program.floor(bench, namespace, 3, "nogc")
                bare.end()
                bares.append(median(map(float, bare.log.split()[1:])))
            cost, wall, peak, asked = quiet_passes(bench, [namespace], 4, max(1, size / 2000))
            ours.append(cost)
            walls.append(wall)
            peaks.append(peak)
        for name, value in {"operator": median(ours), "floor": median(floors)}.items():
            bench.curves.setdefault(f"cpu {name}", {})[size] = value
        bench.curves.setdefault("memory operator", {})[size] = median(peaks)
        bench.curves.setdefault("memory imports", {})[size] = base
        bench.add(f"a quiet pass, {size:,} × 3: CPU", "the floor: GET and json.loads of the two lists",
                  f"{median(ours):.3f} s : {median(floors):.3f} s", median(ours) / median(floors), most=0.75)  # fmt: skip
        if bares:
            bench.add(f"the same, {size:,} × 3", "the floor without garbage collection",
                      f"{median(ours):.3f} s : {median(bares):.3f} s", median(ours) / median(bares))  # fmt: skip
        pages = math.ceil(3 * size / mo.PAGE) + math.ceil(size / mo.PAGE)
        bench.add(
            f"its requests, {size:,} × 3", f"the pages of the two lists: {pages}", asked or "none"
        )
        if size in (1000, 10000):
            bench.add(f"peak memory, {size:,} × 3 at rest", f"`{IMPORTS}`", f"{median(peaks):.0f} MiB : {base:.0f} MiB",
                      median(peaks) / base, most=1.6 if size == 1000 else 3)  # fmt: skip


def worst_pass(bench: Bench) -> None:
    """There is nothing to do, but every page of pods must be parsed, because one pod on it has changed."""
    namespace = bench.quiet_namespace(1000)
    ours, peaks, floors, bares = list[float](), list[float](), list[float](), list[float]()
    names = sorted(mo.name_of(pod) for pod in bench.hands.items(pods_path(namespace)))
    for _ in range(ROUNDS):
        for found, options in ((floors, []), (bares, ["nogc"])):
            program = Program.floor(bench, namespace, 3, *options)
            program.end()
            found.append(median(map(float, program.log.split()[1:])))
        change = functools.partial(
            bench.hands.annotate_pods, namespace, names[mo.PAGE // 2 :: mo.PAGE]
        )
        cost, _, peak, _ = quiet_passes(bench, [namespace], 4, 2, change)
        ours.append(cost)
        peaks.append(peak)
    bench.add("the worst pass, 1,000 × 3, a pod on every page has changed: CPU", "the floor: as above",
              f"{median(ours):.3f} s : {median(floors):.3f} s", median(ours) / median(floors))  # fmt: skip
    bench.add("the same", "the floor without garbage collection",
              f"{median(ours):.3f} s : {median(bares):.3f} s", median(ours) / median(bares))  # fmt: skip
    bench.add("the same: peak memory", "a quiet pass: above", f"{median(peaks):.0f} MiB")


def python_peak(bench: Bench) -> float:
    program = python(bench, f"{IMPORTS}; import time; time.sleep(0.2)")
    program.end()
    return program.peak


def once(bench: Bench) -> None:
    for size in (1000, 10000):
        namespace = bench.quiet_namespace(size)
        ours, floors = [], []
        for _ in range(ROUNDS if size < 10000 else 2):
            floors.append(Program.floor(bench, namespace, 1).end())
            ours.append(Program.operator(bench, "-n", namespace, "--once").end())
        for number, (what, most) in enumerate({"CPU": 0.85, "wall": 0.9}.items()):
            a, b = median(one[number] for one in ours), median(one[number] for one in floors)
            bench.add(f"`--once`, {size:,} × 3, whole process: {what}", "the floor, whole process",
                      f"{a:.2f} s : {b:.2f} s", a / b, most=most)  # fmt: skip


def bring_up(bench: Bench) -> None:
    """1,000 × 3 pods: bare POSTs, the operator with `--once`, the operator running, and kopf, in turns."""
    bare, ours, running, kopf, cpu, peaks, kopf_peaks = [], [], [], [], [], [], []
    for _ in range(ROUNDS):
        with bench.burst_namespace() as (namespace, milvuses):
            pods = bench.hands.pod_bodies(milvuses)
            bare.append(bench.watch(namespace, 3000, "create_pods", pods)[0])
        with bench.burst_namespace() as (namespace, _):
            operator = Program.operator(bench, "-n", namespace, "--once")
            operator.drain()
            rate, end = bench.watch(namespace, 3000)
            ours.append((rate, end - operator.started))
            operator.process.wait()
            peaks.append(operator.peak)
        with bench.burst_namespace() as (namespace, _):
            operator, before = Program.operator(bench, "-n", namespace), server_cpu(bench)
            operator.drain()
            rate, end = bench.watch(namespace, 3000)
            running.append((rate, end - operator.started))
            cpu.append(
                (
                    operator.cpu() / (end - operator.started),
                    (server_cpu(bench) - before) / (end - operator.started),
                )
            )
            operator.kill()
        with bench.burst_namespace() as (namespace, _):
            peer = kopf_peer(bench, namespace)
            _, end = bench.watch(namespace, 3000)
            kopf.append(end - peer.started)
            peer.kill()
            kopf_peaks.append(peer.peak)
    rates = [median(bare), median(one[0] for one in ours), median(one[0] for one in running)]
    bench.add("bring-up of 1,000 × 3, `--once`: pods/s", f"bare POSTs of the same bodies, {THREADS} threads",
              f"{rates[1]:.0f}/s : {rates[0]:.0f}/s", median(a[0] / b for a, b in zip(ours, bare, strict=True)), least=0.85)  # fmt: skip
    bench.add("the same, running with the default interval", "the same", f"{rates[2]:.0f}/s : {rates[0]:.0f}/s",
              median(a[0] / b for a, b in zip(running, bare, strict=True)), least=0.85)  # fmt: skip
    seconds = median(one[1] for one in ours)
    bench.add("the same, from the start of the process", "kopf, a handler that creates the same pods",
              f"{seconds:.1f} s : {median(kopf):.1f} s", median(a[1] / b for a, b in zip(ours, kopf, strict=True)), most=0.5)  # fmt: skip
    bench.add("bare POSTs alone", "kopf, as above", f"{3000 / rates[0]:.1f} s : {median(kopf):.1f} s",
              median(3000 / a / b for a, b in zip(bare, kopf, strict=True)))  # fmt: skip
    bench.add("the same: peak memory", "kopf", f"{median(peaks):.0f} MiB : {median(kopf_peaks):.0f} MiB",
              median(peaks) / median(kopf_peaks), most=0.5)  # fmt: skip
    bench.add("the same: cores in use", "etcd and kube-apiserver",
              f"{median(one[0] for one in cpu):.2f} : {median(one[1] for one in cpu):.2f}")  # fmt: skip


def kopf_peer(bench: Bench, namespace: str) -> Program:
    peer = Program(
        bench,
        sys.executable,
        "-m",
        "kopf",
        "run",
        "-q",
        "-n",
        namespace,
        str(HERE / "peer_kopf.py"),
    )
    peer.drain()
    return peer


def kopf_memory(bench: Bench) -> None:
    """Kopf with 10,000 Milvus resources whose pods exist: it is done when each has its annotation."""
    namespace = bench.quiet_namespace(10000)
    peer = kopf_peer(bench, namespace)
    last = f"{milvuses_path(namespace)}/mv"
    while True:  # each is annotated when its handler has finished
        done = [bench.hands.send("GET", f"{last}{number:05}") for number in range(0, 10000, 500)]
        if all(
            "kopf.zalando.org/last-handled-configuration"
            in (one["metadata"].get("annotations") or {})
            for one in done
        ):
            break
        time.sleep(1)
    peer.kill()
    ours = quiet_passes(bench, [namespace], 2, 10)[2]
    bench.add("peak memory, 10,000 × 3", "kopf, Milvus alone, its handler through for each",
              f"{ours:.0f} MiB : {peer.peak:.0f} MiB", ours / peer.peak, most=0.5)  # fmt: skip


def server_cpu(bench: Bench) -> float:
    """CPU seconds used by the control plane's processes so far."""
    children = Path(
        f"/proc/{bench.plane.supervisor.pid}/task/{bench.plane.supervisor.pid}/children"
    ).read_text()
    stats = [
        Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in children.split()
    ]
    return sum(int(one[11]) + int(one[12]) for one in stats) / TICKS


def replica_sets(bench: Bench) -> None:
    """ReplicaSets with the same pods, served by kube-controller-manager."""
    name, hands = "replicasets", bench.hands
    hands.namespace(name)
    web = milvus("web") | {"metadata": {"name": "web", "namespace": name, "uid": "x"}}
    body = mo.new_pod(web, mo.spec_of(web), 0)

    def one(number: int) -> mo.Obj:
        labels = {"app": f"web-{number}"}
        spec = {
            key: value
            for key, value in body["spec"].items()
            if key not in ("hostname", "subdomain")
        }
        template = {"metadata": {"labels": labels}, "spec": spec}
        return {"metadata": {"name": f"web-{number}"},
                "spec": {"replicas": 3, "selector": {"matchLabels": labels}, "template": template}}  # fmt: skip

    path = f"/apis/apps/v1/namespaces/{name}/replicasets"
    rates = {}
    for flags, count in {"default flags": 200, "limits lifted": 1000}.items():
        hands.each(lambda number: hands.send("POST", path, one(number)), range(count))
        lifted = [
            "--kube-api-qps=100000",
            "--kube-api-burst=100000",
            "--concurrent-replicaset-syncs=16",
        ]
        manager = Program(
            bench, str(commands()["kube-controller-manager"]), "--controllers=replicaset-controller",
            f"--kubeconfig={bench.plane.kubeconfig()}", "--leader-elect=false", "--secure-port=0",
            f"--cert-dir={bench.plane.folder}/pki-bench", *(lifted if count == 1000 else []),
        )  # fmt: skip
        manager.drain()
        rates[flags] = bench.watch(name, 3 * count)[0]
        manager.kill()
        hands.send("DELETE", path, {"gracePeriodSeconds": 0, "propagationPolicy": "Background"})
        hands.clear(name)
    ours = []
    for _ in range(ROUNDS):
        with bench.burst_namespace() as (namespace, _):
            operator = Program.operator(bench, "-n", namespace, "--once")
            operator.drain()
            ours.append(bench.watch(namespace, 3000)[0])
            operator.process.wait()
    for flags, rate in rates.items():
        bench.add("bring-up of 1,000 × 3: pods/s", f"ReplicaSets, kube-controller-manager with {flags}",
                  f"{median(ours):.0f}/s : {rate:.0f}/s", median(ours) / rate, least=1)  # fmt: skip


def scale_down(bench: Bench) -> None:
    bare: list[float] = []
    ours: list[float] = []
    for _ in range(ROUNDS):
        for rates in (bare, ours):
            with bench.burst_namespace() as (namespace, milvuses):
                bench.hands.create_pods(bench.hands.pod_bodies(milvuses))
                Program.operator(bench, "-n", namespace, "--once").end()
                if rates is bare:
                    surplus = [
                        f"{mo.name_of(one)}-{ordinal}" for one in milvuses for ordinal in (2, 1)
                    ]
                    rates.append(bench.watch(namespace, 1000, "delete_pods", namespace, surplus)[0])
                    continue
                for one in milvuses:
                    bench.hands.send(
                        "PATCH",
                        f"{milvuses_path(namespace)}/{mo.name_of(one)}",
                        {"spec": {"replicas": 1}},
                        MERGE,
                    )
                operator = Program.operator(bench, "-n", namespace, "--once")
                operator.drain()
                rates.append(bench.watch(namespace, 1000)[0])
                operator.process.wait()
    bench.add("scale-down of 1,000 from 3 to 1: pods/s", f"bare DELETEs, {THREADS} threads",
              f"{median(ours):.0f}/s : {median(bare):.0f}/s", median(a / b for a, b in zip(ours, bare, strict=True)), least=0.85)  # fmt: skip


def start(bench: Bench) -> None:
    """The time from the start of the process to its first connection."""
    ours, theirs = [], []
    with socket.create_server(("127.0.0.1", 0)) as server:
        text = (
            bench.plane.kubeconfig()
            .read_text()
            .replace(bench.hands.server, f"http://127.0.0.1:{server.getsockname()[1]}")
        )
        file = bench.plane.folder / "start.kubeconfig"
        file.write_text(text)
        for _ in range(4 * ROUNDS - 1):
            theirs.append(python(bench, IMPORTS).end()[1])
            operator = Program.operator(bench, f"--kubeconfig={file}", "--once")
            connection, _ = server.accept()
            ours.append(time.perf_counter() - operator.started)
            operator.kill()
            connection.close()
    bench.add("start to the first request", f'`python -c "{IMPORTS}"`', f"{median(ours):.2f} s : {median(theirs):.2f} s",
              median(ours) / median(theirs), most=1.1)  # fmt: skip


def foreign_pods(bench: Bench) -> None:
    alone, crowded = bench.quiet_namespace(1000), bench.quiet_namespace(1000, foreign=10000)
    without, among = [], []
    for _ in range(ROUNDS):
        without.append(quiet_passes(bench, [alone], 6, 1)[:2])
        among.append(quiet_passes(bench, [crowded], 6, 1)[:2])
    for number, what in enumerate(("CPU", "wall")):
        a, b = median(one[number] for one in among), median(one[number] for one in without)
        bench.add(f"a quiet pass among 10,000 foreign pods: {what}", "without them", f"{a:.3f} s : {b:.3f} s", a / b,
                  most=1.05 if what == "CPU" else None)  # fmt: skip


def bad_milvus(bench: Bench) -> None:
    """Bring-up of 1,000 × 3 beside one more Milvus whose 100 creates are refused, or hang in a webhook."""
    with socket.create_server(("127.0.0.1", 0), backlog=500) as silent:
        hook = {
            "name": "hangs.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 30,
            "clientConfig": {"url": f"https://127.0.0.1:{silent.getsockname()[1]}/"}, "failurePolicy": "Fail",
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
            "objectSelector": {"matchLabels": {mo.INSTANCE_LABEL: "hangs"}},
        }  # fmt: skip
        hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
        bench.hands.send("POST", hooks, {"metadata": {"name": "bench"}, "webhooks": [hook]})
        time.sleep(2)  # until the API server uses it
        unsound = {"spec": {"containers": [{"name": mo.CONTAINER, "imagePullPolicy": "Sometimes"}]}}
        bad = {
            "": None,
            "refused": milvus("refused", 100, pod=unsound),
            "hangs": milvus("hangs", 100),
        }
        seconds: dict[str, list[float]] = {kind: [] for kind in bad}
        for _ in range(ROUNDS):
            for kind, body in bad.items():
                with bench.burst_namespace() as (namespace, _):
                    if body:
                        bench.hands.send("POST", milvuses_path(namespace), body)
                    operator = Program.operator(bench, "-n", namespace)
                    operator.drain()
                    seconds[kind].append(bench.watch(namespace, 3000)[1] - operator.started)
                    operator.kill()
        bench.hands.send("DELETE", f"{hooks}/bench")
    for kind in ("refused", "hangs"):
        ratio = median(a / b for a, b in zip(seconds[kind], seconds[""], strict=True))
        what = "are refused" if kind == "refused" else "hang for 30 s"
        bench.add(f"bring-up of 1,000 × 3 beside one whose creates {what}", "without it",
                  f"{median(seconds[kind]):.1f} s : {median(seconds['']):.1f} s", ratio, most=1.1)  # fmt: skip


def one_change(bench: Bench) -> None:
    """The time from a change of one Milvus to its new pod: among 1,000 at rest, and during a burst of 3,000 creates."""
    interval, namespace = 2.0, bench.quiet_namespace(1000)
    _, wall, _, _ = quiet_passes(bench, [namespace], 4, 1)
    operator = Program.operator(bench, "-n", namespace, f"--interval={interval:g}", "-v")
    for _ in range(3):
        operator.says("pass over")
    operator.drain()
    quiet = []
    for number in range(7):
        time.sleep(interval + 0.37 * number)
        quiet.append(change_to_pod(bench, namespace, number))
    limit = interval + 2 * wall
    bench.add("a change of one among 1,000 quiet: slowest of 7", f"interval + 2 quiet passes: {limit:.1f} s",
              f"{max(quiet):.1f} s (median {median(quiet):.1f} s)", max(quiet) / limit, most=1)  # fmt: skip
    busy = []
    for number in range(ROUNDS):
        burst = [milvus(f"burst-{number}-{i}") for i in range(1000)]
        before = bench.pods_in(namespace)
        bench.hands.each(
            lambda body: bench.hands.send("POST", milvuses_path(namespace), body), burst
        )
        while bench.pods_in(namespace) < before + 300:
            time.sleep(0.02)
        busy.append(
            (change_to_pod(bench, namespace, 100 + number), bench.pods_in(namespace) - before)
        )
        bench.watch(namespace, before + 3001)
    operator.kill()
    bench.loaded.discard(namespace)
    bench.hands.clear(namespace)
    worst, done = max(busy)
    bench.add("the same while 3,000 creates are under way: slowest of 3", f"interval + 2 quiet passes + 1 s: {limit + 1:.1f} s",
              f"{worst:.1f} s ({done:,} of 3,000 created by then)", worst / (limit + 1), most=1)  # fmt: skip


def change_to_pod(bench: Bench, namespace: str, number: int) -> float:
    """Seconds from scaling one Milvus to a fourth pod until that pod exists."""
    name = f"mv{number:05}"
    started = time.perf_counter()
    bench.hands.send(
        "PATCH", f"{milvuses_path(namespace)}/{name}", {"spec": {"replicas": 4}}, MERGE
    )
    while bench.hands.send("GET", f"{pods_path(namespace)}/{name}-3").get("kind") != "Pod":
        time.sleep(0.01)
    return time.perf_counter() - started


def two_copies(bench: Bench) -> None:
    """10,000 × 3 in two namespaces: one copy that serves both, and two copies that serve one each."""
    names = ["half-a", "half-b"]
    for name in names:
        bench.hands.namespace(name)
        bench.hands.create_milvuses(name, 5000)
    operators, before = (
        [Program.operator(bench, "-n", name, "--once") for name in names],
        server_cpu(bench),
    )
    for one in operators:
        one.drain()
    threads = [threading.Thread(target=bench.watch, args=(name, 15000)) for name in names]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took, server = time.perf_counter() - began, server_cpu(bench) - before
    own = sum(one.cpu() for one in operators)
    for one in operators:
        one.process.wait()
    bench.add("two copies bring up 2 × 5,000 × 3", "etcd and kube-apiserver beside them", f"{30000 / took:.0f} pods/s; "
              f"{own / took:.2f} : {server / took:.2f} cores of {os.cpu_count()}")  # fmt: skip
    for name in names:
        bench.hands.make_ready(name)
        Program.operator(bench, "-n", name, "--once").end()
    copies = quiet_passes_at_once(bench, names)
    bench.add("the same at rest, CPU and wall of a pass and peak memory of each copy", "one copy with all: above",
              "; ".join(f"{cpu:.2f} s, {wall:.2f} s, {peak:.0f} MiB" for cpu, wall, peak in copies))  # fmt: skip
    for name in names:
        bench.hands.clear(name)


def quiet_passes_at_once(bench: Bench, namespaces: list[str]) -> list[tuple[float, float, float]]:
    """CPU and wall-clock seconds of a quiet pass and peak memory, of copies that run at once, one per namespace."""
    answers: list[tuple[float, float, float]] = []

    def measure(namespace: str) -> None:
        cpu, wall, peak, _ = quiet_passes(bench, [namespace], 3, 8)
        answers.append((cpu, wall, peak))

    threads = [threading.Thread(target=measure, args=[namespace]) for namespace in namespaces]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


ROWS: list[Callable[[Bench], None]] = [
    start, bring_up, scale_down, bad_milvus, quiet_pass, worst_pass, once, foreign_pods, one_change, two_copies, replica_sets, kopf_memory,
]  # fmt: skip


# --------------------------------------------------------------------------------------
# The report
# --------------------------------------------------------------------------------------


def machine() -> str:
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    return (f"{os.cpu_count()} cores ({cpu[1] if cpu else platform.machine()}), "
            f"{int(memory[1]) // 2**20 if memory else 0} GiB, Linux {platform.release().split('-')[0]}")  # fmt: skip


def report(bench: Bench, seconds: float) -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("kubernetes", "urllib3", "kopf"))
    kubernetes = bench.hands.send("GET", "/version")["gitVersion"]
    lines = [
        "# Results of `make bench`", "",
        f"{datetime.now(UTC):%Y-%m-%d}, {machine()}; Python {platform.python_version()}, {packages}; "
        f"etcd and kube-apiserver {kubernetes} on the same machine. {seconds / 60:.0f} minutes. Figures are medians; "
        "what is compared ran in turns; where rates are compared, the ratio is the median of those of the turns.", "",
        fingerprint.line(), "",
        "| what | measured against | figures | ratio | to reach | |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in bench.rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        lines.append(
            f"| {row.what} | {row.against} | {row.figures} | {ratio} | {row.target} | {row.verdict} |"
        )
    return "\n".join(lines) + "\n"


def pictures(bench: Bench) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "milvus-operator"  # the same picture for the same figures
    from matplotlib import pyplot

    for kind, label in {"cpu": "CPU seconds of a quiet pass", "memory": "peak memory, MiB"}.items():
        curves = {
            name: curve for name, curve in bench.curves.items() if name.startswith(f"{kind} ")
        }
        if not curves:
            continue
        figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
        for name, curve in curves.items():
            axes.plot(
                list(curve), list(curve.values()), marker="o", label=name.removeprefix(f"{kind} ")
            )
        axes.set(xscale="log", xlabel="Milvus resources of three pods each", ylabel=label)
        if kind == "cpu":
            axes.set(yscale="log")
        else:
            axes.set_ylim(bottom=0)
        axes.set_xticks(SIZES, [f"{size:,}" for size in SIZES])
        axes.grid(alpha=0.3)
        axes.legend()
        figure.savefig(HERE / f"{kind}.svg", metadata={"Date": None})
        pyplot.close(figure)


def main(chosen: list[str]) -> int:
    if sys.platform != "linux":
        print("the benchmark reads /proc: it needs Linux")
        return 2
    rows = [
        row for row in ROWS if not chosen or any(row.__name__.startswith(name) for name in chosen)
    ]
    if not rows:
        print(
            f"choose from these rows: {', '.join(row.__name__ for row in ROWS)}; or name none to run all"
        )
        return 2
    started = time.monotonic()
    try:
        with ControlPlane(nodes=False) as plane:
            config = yaml.safe_load(plane.kubeconfig().read_text())
            server, token = (
                config["clusters"][0]["cluster"]["server"],
                config["users"][0]["user"]["token"],
            )
            bench = Bench(plane, Hands(server, str(plane.folder / "pki" / "apiserver.crt"), token))
            bench.hands.send(
                "POST",
                "/api/v1/namespaces/default/serviceaccounts",
                {"metadata": {"name": "default"}},
            )
            for row in rows:
                print(f"{row.__name__} …", flush=True)
                row(bench)
                text = report(bench, time.monotonic() - started)
                if not chosen:  # after each row, so that a run that is stopped keeps its results
                    (HERE / "RESULTS.md").write_text(text)
                    pictures(bench)
            print(f"\n{text}")
    except Unavailable as error:
        print(f"there is no control plane to measure against: {error}")
        return 1
    return int(any(row.verdict == "MISSED" for row in bench.rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
