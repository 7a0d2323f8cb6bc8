"""A long run against a real control plane: users change their minds, the wire fails, and nothing
grows: `make soak`. It writes docs/reports/soak.md.

The operator runs in a separate process. The judge checks every write; the figures are read from
/proc (Linux).
"""

import base64
import re
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from local.controlplane import ControlPlane
from tests.lib.certificates import certificate, server_context
from tests.lib.chaos import Faults, Users
from tests.lib.judge import Judge, Obj
from tests.lib.kit import TOP, Command, Kube, eventually, kubeconfig, new_namespace, new_wire
from tests.lib.wire import Wire
from tools import fingerprint

LINE = "\n"  # which no expression in an f-string may contain
# What is measured, and how much of it comes and goes.
FIGURES = {
    "memory, MiB": 3,
    "threads": 4,
    "open files": 4,
    "connections": 4,
}
Figures = list[float]


def measure(pid: int) -> Figures:
    """The figures of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    memory, threads = re.findall(r"(?:VmRSS|Threads):\s+(\d+)", status)
    files = subprocess.getoutput(f"ls -l /proc/{pid}/fd")  # some are closed meanwhile
    return [
        int(memory) / 1024,
        int(threads),
        files.count(" -> "),
        files.count(" -> socket:"),
    ]


class Soak(NamedTuple):
    times: list[float]  # of the samples, in seconds since the start
    samples: list[Figures]
    happened: dict[str, int]

    def means(self, third: int) -> Figures:
        """The mean of each figure in a third of the samples: 0, 1 or 2."""
        size = len(self.samples) // 3
        start = third * size
        columns = zip(*self.samples[start : start + size], strict=True)
        return [mean(column) for column in columns]

    def growth(self) -> list[str]:
        """What has grown by more than a tenth, and by more than comes and goes."""
        grown = []
        for name, before, after in zip(FIGURES, self.means(1), self.means(2), strict=True):
            if after > 1.1 * before + FIGURES[name]:
                grown.append(f"{name}: {before:.1f}, then {after:.1f}")
        return grown


def soak(
    kube: Kube,
    wire: Wire,
    folder: Path,
    seconds: float,
    share: float = 0.03,
    least: int = 0,
    **tls: Any,
) -> Soak:
    """Run it and break a share of the requests, at least so many; wait until every Milvus has what
    its spec asks for, and judge. Raises AssertionError if harm was done. `tls` is what the
    kubeconfig must say about the wire's certificate."""
    faults = Faults(share)
    users = Users(kube)
    wire.judge = Judge(kube.all_pods)
    log = folder / "operator.log"
    times = list[float]()
    samples = list[Figures]()
    config = kubeconfig(folder / "kubeconfig", kube.plane, server=wire.url, **tls)
    options = ("-n", kube.ns, "--interval=0.5", "--timeout=2")
    with log.open("w") as stderr:
        operator = Command(*options, env={"KUBECONFIG": config}, stderr=stderr)
    try:
        kube.create("warm", replicas=60)  # so that each worker has its connection from the start
        eventually(lambda: kube.get("warm")["status"].get("readyReplicas") == 60, 60)
        wire.fault = faults
        started = time.monotonic()
        while (now := time.monotonic() - started) < seconds or faults.done.total() < least:
            if now >= len(samples):
                times.append(now)
                samples.append(measure(operator.process.pid))
            users.change()
            time.sleep(0.3)
        faults.share = 0
        users.settle_down()
    finally:
        operator.kill()
    users.check_harm(wire.judge)
    said = log.read_text()
    assert "Traceback" not in said
    assert "unexpected" not in said
    happened = {
        "changes by users": users.changes,
        "faults injected": faults.done.total(),
    }
    for what, count in sorted(wire.judge.seen.items()):
        happened[f"judged: {what}"] = count
    return Soak(times, samples, happened)


def report(minutes: float, run: Soak) -> str:
    happened = [f"| {what} | {number:,} |" for what, number in run.happened.items()]
    rows = []
    step = max(1, len(run.samples) // 12)
    for row in range(0, len(run.samples), step):
        memory, *counts = run.samples[row]
        numbers = " | ".join(f"{number:.0f}" for number in counts)
        rows.append(f"| {run.times[row] / 60:.0f} | {memory:.1f} | {numbers} |")
    means = []
    for name, one, two in zip(FIGURES, run.means(1), run.means(2), strict=True):
        means.append(f"{name} {one:.1f} and {two:.1f}")
    return f"""# A long run

`make soak`, {datetime.now(UTC):%Y-%m-%d}, {minutes:g} minutes.

{fingerprint.line()}

| what happened | how often |
|---|---|
{LINE.join(happened)}

| minute | {" | ".join(FIGURES)} |
|---|---|---|---|---|
{LINE.join(rows)}

Means of the second and the last third: {", ".join(means[1:])}.
"""


def main(minutes: float) -> int:
    with ControlPlane() as plane, new_namespace(plane) as kube, TemporaryDirectory() as name:
        folder = Path(name)
        server = folder / "server"
        authority = folder / "authority"
        certificate(server, certificate(authority))
        wire = new_wire(plane, server_context(server))
        bundle = base64.b64encode((authority / "crt").read_bytes())
        tls: Obj = {"certificate-authority-data": bundle.decode()}
        run = soak(kube, wire, folder, 60 * minutes, **tls)
        wire.close()
    text = report(minutes, run)
    print(text)
    (TOP / "docs/reports/soak.md").write_text(text)
    return 1 if run.growth() else 0


if __name__ == "__main__":
    arguments = [*sys.argv[1:], "60"]
    sys.exit(main(float(arguments[0])))
