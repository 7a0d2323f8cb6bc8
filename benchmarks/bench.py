"""Measures the operator: how soon it acts, what it costs, and how much of it one process can do.

    make bench                             # everything, in about an hour; TURNS=1: in twenty minutes
    make bench ARGS='quiet roll'           # only what begins with one of these words in rows.yaml
    make bench MANY=20                     # tiny, once: only to see that it works

rows.yaml says what is measured, and the targets. What is compared runs in turns (A B, B A, A B),
each time on an etcd and a kube-apiserver of its own. Logs are in build/bench.log.
"""

import argparse
import os
import random
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from statistics import median, median_low

import yaml

import milvus_operator as mo
from benchmarks.bare import CORE, MILVUSES, PODS, Obj, Space, new_pods
from local.controlplane import ControlPlane, commands

MANY = int(os.environ.get("MANY", "1000"))  # in place of 1,000 Milvus resources
IS_FULL = MANY >= 1000
TURNS = int(os.environ.get("TURNS", "3")) if IS_FULL else 1
OPERATORS = 20 if IS_FULL else 2  # side by side
INTERVAL = 5  # seconds, the operator's own default
REST = 45 if IS_FULL else 5  # seconds without a change, after which passes are an interval apart
MINUTE = 60 if IS_FULL else 10
NEW_IMAGE = "milvusdb/milvus:v2.6.5"
LOG = Path("build/bench.log")
TABLE = yaml.safe_load(Path("benchmarks/rows.yaml").read_text())
PROGRAMS = TABLE["programs"]
PATHS = defaultdict(lambda: MILVUSES, TABLE["workloads"])  # of what each program works on

Figures = dict[str, float]  # what was measured in one turn, by name


@contextmanager
def cluster(program: str, size: int, replicas: int, spaces: int = 1) -> Iterator[list[Space]]:
    """An etcd and a kube-apiserver; a node; and so many namespaces, with what a program works on."""
    with ControlPlane(nodes=False) as plane:
        found = [Space(plane.kubeconfig(), f"bench{number}") for number in range(spaces)]
        found[0].request("POST", "api/v1/nodes", {"metadata": {"name": "node"}})
        for space in found:
            space.request("POST", "api/v1/namespaces", {"metadata": {"name": space.name}})
            space.request("POST", f"{CORE}/serviceaccounts", {"metadata": {"name": "default"}})
            space.send_all(("POST", MILVUSES, new_milvus(f"mv{n}", replicas)) for n in range(size))
            if program in TABLE["workloads"]:
                milvuses = space.get(MILVUSES)["items"]
                space.send_all(("POST", PATHS[program], new_workload(one)) for one in milvuses)
        yield found


@contextmanager
def running(program: str, space: Space) -> Iterator[int]:
    """A program works in a namespace. Yields its process ID."""
    values = {"namespace": space.name, "kubeconfig": space.kubeconfig, "python": sys.executable}
    words = [word.format(**values, **commands()) for word in PROGRAMS[program].split()]
    environment = os.environ | {"KUBECONFIG": str(space.kubeconfig)}
    with LOG.open("a") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, env=environment)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def new_milvus(name: str, replicas: int) -> Obj:
    spec = TABLE["milvus"]["spec"] | {"replicas": replicas}
    return TABLE["milvus"] | {"metadata": {"name": name}, "spec": spec}


def new_workload(milvus: Obj) -> Obj:
    """A StatefulSet of the same pods; or a ReplicaSet, which ignores what it does not know."""
    labels = {"app": mo.name_of(milvus)}
    template = {"metadata": {"labels": labels}, "spec": new_pods(milvus)[0]["spec"]}
    spec = {"replicas": milvus["spec"]["replicas"], "selector": {"matchLabels": labels}}
    spec |= TABLE["workload"] | {"template": template}
    return {"metadata": {"name": mo.name_of(milvus)}, "spec": spec}


def wait_for(space: Space, path: str, size: int, **status: int) -> None:
    """Wait until so many objects have had these fields in their statuses."""
    right = set[str]()
    for _, obj in space.watch(path):
        if mo.contains(obj.get("status", {}), status):
            right.add(mo.name_of(obj))
        if len(right) == size:
            return


def cpu_of(pids: list[int], work: Callable[[], None]) -> list[float]:
    """How much CPU each process uses during this work, in per cent of a core."""
    started = time.monotonic()
    before = [cpu_seconds(pid) for pid in pids]
    work()
    seconds = time.monotonic() - started
    return [100 * (cpu_seconds(pid) - b) / seconds for pid, b in zip(pids, before, strict=True)]


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def reactions(program: str, size: int, replicas: int) -> Figures:
    """Many operators, with a namespace each: so there are many samples at once."""
    with cluster(program, size, replicas, OPERATORS) as spaces, ExitStack() as stack:
        stack.enter_context(running("kubelet", spaces[0]))
        for space in spaces:
            stack.enter_context(running(program, space))
        for space in spaces:
            wait_for(space, MILVUSES, size, readyReplicas=replicas)
        reacting = [space.threads.submit(react, space) for space in spaces]
        samples = [one.result() for one in reacting]
    figures = Figures()
    for effect in samples[0]:
        seconds = [sample[effect] for sample in samples]
        figures |= {f"{effect} median": median(seconds), f"{effect} worst": max(seconds)}
    return figures


def react(space: Space) -> Figures:
    """At rest, at any moment of the interval: create a Milvus, delete a pod of another, and edit
    the image of a third. Returns after how many seconds each of them had its effect."""
    effects = {("ADDED", "new-0"): "apply", ("ADDED", "mv0-0"): "lost"}
    effects["MODIFIED", "mv1-0"] = "edit"  # it is ending
    time.sleep(REST + INTERVAL * random.random())
    version = space.get(f"{PODS}?limit=1")["metadata"]["resourceVersion"]
    changed = time.monotonic()
    space.request("POST", MILVUSES, new_milvus("new", 1))
    space.request("DELETE", f"{PODS}/mv0-0", {"gracePeriodSeconds": 0})
    space.request("PATCH", f"{MILVUSES}/mv1", {"spec": {"image": NEW_IMAGE}})
    seconds = Figures()
    for word, pod in space.watch(PODS, version):
        if effect := effects.pop((word, mo.name_of(pod)), ""):
            seconds[effect] = time.monotonic() - changed
        if not effects:
            break
    return seconds


def roll(program: str, size: int, replicas: int) -> Figures:
    """From an edit of the image until the status says that each pod is a new one, and Ready."""
    path = PATHS[program]
    with cluster(program, size, replicas) as [space]:
        edited = space.get(f"{MILVUSES}/mv0")
        edited["spec"]["image"] = NEW_IMAGE
        if program in TABLE["workloads"]:
            edited = new_workload(edited)
        done = {"observedGeneration": 2, "updatedReplicas": replicas, "readyReplicas": replicas}
        with running("kubelet", space), running(program, space):
            wait_for(space, path, size, readyReplicas=replicas)
            time.sleep(REST + INTERVAL * random.random())
            started = time.monotonic()
            space.request("PATCH", f"{path}/mv0", {"spec": edited["spec"]})
            wait_for(space, path, size, **done)
            return {"seconds": time.monotonic() - started}


def price(program: str, size: int, replicas: int) -> Figures:
    """CPU of the operator and of kube-apiserver. What a kubelet says is said here."""
    with cluster(program, size, replicas) as [space]:
        server = int(space.kubeconfig.with_name("kube-apiserver.pid").read_text())
        with running(program, space) as pid:
            wait_for(space, MILVUSES, size, replicas=replicas)
            names = [mo.name_of(pod) for pod in space.get(PODS)["items"]]
            space.send_all(("PATCH", f"{PODS}/{one}/status", TABLE["ready"]) for one in names)
            wait_for(space, MILVUSES, size, readyReplicas=replicas)
            time.sleep(REST)
            quiet = cpu_of([pid, server], lambda: time.sleep(MINUTE))
            lossy = cpu_of([pid, server], lambda: lose_pods(space))
            status = Path(f"/proc/{pid}/status").read_text()
        alone = cpu_of([server], lambda: time.sleep(MINUTE / 2))
    memory = int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024  # the peak, in MiB
    figures = {"quiet": quiet[0], "lossy": lossy[0], "memory": memory}
    return figures | {"server quiet": quiet[1], "server lossy": lossy[1], "server alone": alone[0]}


def lose_pods(space: Space) -> None:
    """Lose a pod every ten seconds, for a minute."""
    for number in range(MINUTE // 10):
        space.request("DELETE", f"{PODS}/mv{number}-0", {"gracePeriodSeconds": 0})
        time.sleep(10)
        space.request("PATCH", f"{PODS}/mv{number}-0/status", TABLE["ready"])


def bring_up(program: str, size: int, replicas: int) -> Figures:
    """From the first pod until each status says that all are there. No pod starts."""
    with cluster(program, size, replicas) as [space], running(program, space):
        while not space.get(f"{PODS}?limit=1")["items"]:
            time.sleep(0.02)
        started = time.monotonic()
        wait_for(space, PATHS[program], size, replicas=replicas)
        return {"seconds": time.monotonic() - started}


def measure(what: Obj) -> Iterator[str]:
    """The rows of a measurement."""
    what = what | {"size": max(min(10, what["size"]), what["size"] * MANY // 1000)}
    programs = ["operator", *what.get("beside", [])]
    found = defaultdict[str, list[float]](list)  # in each turn, by program and figure
    for turn in range(TURNS):
        for program in programs if turn % 2 == 0 else programs[::-1]:
            figures = globals()[what["how"]](program, what["size"], what["replicas"])
            for figure, value in figures.items():
                found[f"{program}.{figure}"].append(value)
    rows = [row | {"what": row["what"].format(**what)} for row in what["rows"]]
    yield from (row_of(found, row) for row in rows)


def row_of(found: dict[str, list[float]], row: Obj) -> str:
    """A figure or, beside another, their ratio: the median, the least and the most of the turns."""
    ours = found[row["ours"]]
    theirs = found.get(row.get("theirs", ""), [1.0] * len(ours))
    ratios = [one / max(other, 0.001) for one, other in zip(ours, theirs, strict=True)]
    turn = ratios.index(median_low(ratios))
    figures = f"{ours[turn]:.3g} {row.get('unit', 's')}"
    if "theirs" in row:
        figures += f" : {theirs[turn]:.3g} {row.get('unit', 's')}"
    target = "|"
    if "most" in row:
        verdict = "reached" if max(ratios) <= row["most"] else "not decided"
        target = f"≤ {row['most']:g} | {'MISSED' if min(ratios) > row['most'] else verdict}"
    spread = f"{ratios[turn]:.3g} ({min(ratios):.3g} to {max(ratios):.3g})"
    return f"| {row['what']} | {row.get('beside', '')} | {figures} | {spread} | {target} |"


def report(rows: list[str]) -> str:
    commit = subprocess.getoutput("git describe --always --dirty")
    server = subprocess.getoutput(f"{commands()['kube-apiserver']} --version")
    models = re.findall("model name\\s*: (.*)", Path("/proc/cpuinfo").read_text())
    text = Path("benchmarks/report.md").read_text()
    return text.format(
        operator=f"{mo.__version__}, commit {commit}; {time.strftime('%Y-%m-%d')}",
        machine=f"{os.cpu_count()} cores of {(models or ['an unknown model'])[0]}",
        software=f"{server}, Python {sys.version.split()[0]}",
        libraries=f"kubernetes {version('kubernetes')}, kopf {version('kopf')}",
        turns=TURNS,
        rows="\n".join(rows),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the operator, on Linux.")
    parser.add_argument("words", nargs="*", help="how some names in rows.yaml begin")
    options = parser.parse_args()
    LOG.parent.mkdir(exist_ok=True)
    rows = list[str]()
    for name, what in TABLE["measurements"].items():
        if name.startswith(tuple(options.words) or ""):
            print(f"{name} …", flush=True)
            for row in measure(what):
                print(row, flush=True)
                rows.append(row)
    text = report(rows)
    print(f"\n{text}")
    if IS_FULL and not options.words:
        Path("docs/reports/benchmark.md").write_text(text)


if __name__ == "__main__":
    main()
