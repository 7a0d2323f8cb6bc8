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
from typing import NamedTuple

from local.controlplane import ControlPlane
from tests.lib.certificates import certificate, server_context
from tests.lib.chaos import Faults, Recorder, Users
from tests.lib.judge import Judge
from tests.lib.kit import TOP, Command, Kube, eventually, kubeconfig, new_namespace, new_wire
from tests.lib.wire import Wire
from tools import fingerprint

# What is measured, and how much of it comes and goes.
FIGURES = {"memory, MiB": 3, "threads": 4, "open files": 4, "connections": 4}


def measure(pid: int) -> list[float]:
    """The figures of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    memory, threads = (int(n) for n in re.findall(r"(?:VmRSS|Threads):\s+(\d+)", status))
    files = subprocess.getoutput(f"ls -l /proc/{pid}/fd")  # some are closed meanwhile
    return [memory / 1024, threads, files.count(" -> "), files.count(" -> socket:")]


class Soak(NamedTuple):
    samples: list[tuple[float, list[float]]]  # seconds since the start, and the figures
    happened: dict[str, int]

    def means(self) -> dict[str, tuple[float, float]]:
        """Of each figure, the mean of the second third, and that of the last."""
        figures, third = [figures for _, figures in self.samples], len(self.samples) // 3
        parts = figures[third : 2 * third], figures[2 * third :]
        columns = [[mean(column) for column in zip(*part, strict=True)] for part in parts]
        return dict(zip(FIGURES, zip(*columns, strict=True), strict=True))

    def growth(self) -> list[str]:
        """What has grown by more than a tenth, and by more than comes and goes."""
        return [
            f"{name}: {before:.1f}, then {after:.1f}"
            for name, (before, after) in self.means().items()
            if after > 1.1 * before + FIGURES[name]
        ]


def soak(kube: Kube, wire: Wire, folder: Path, seconds: float, **tls: str) -> Soak:
    """Run it, wait until every Milvus has what its spec asks for, and judge. Raises AssertionError
    if harm was done. `tls` is what the kubeconfig must say about the wire's certificate."""
    faults = Faults(seed=8, reads=0.03, writes=0.03)
    users, judge, recorder = Users(kube, seed=9), Judge(), Recorder(kube)
    log, samples = folder / "operator.log", list[tuple[float, list[float]]]()
    wire.judge = judge
    config = kubeconfig(folder / "kubeconfig", kube.plane, server=wire.url, **tls)
    options = ["-n", kube.ns, "--interval=0.5", "--timeout=2"]
    with log.open("w") as stderr:
        operator = Command(*options, env={"KUBECONFIG": config}, stderr=stderr)
    try:
        kube.create("warm", replicas=60)  # so that each worker has its connection from the start
        eventually(lambda: kube.status("warm").get("readyReplicas") == 60, 60)
        wire.fault, started = faults, time.monotonic()
        while (now := time.monotonic() - started) < seconds:
            if now >= len(samples):
                samples.append((now, measure(operator.process.pid)))
            users.change()
            time.sleep(0.3)
        faults.reads = faults.writes = 0
        users.settle_down()
    finally:
        operator.kill()
    users.check_harm(judge, recorder)
    said = log.read_text()
    assert "Traceback" not in said
    assert "unexpected" not in said
    happened = {"changes by users": users.changes, "faults injected": faults.done.total()}
    happened |= {f"judged: {what}": count for what, count in sorted(judge.seen.items())}
    return Soak(samples, happened)


def report(minutes: float, run: Soak) -> str:
    lines = [
        "# A long run", "",
        f"`make soak`, {datetime.now(UTC):%Y-%m-%d}, {minutes:g} minutes.", "",
        fingerprint.line(), "",
        "| what happened | how often |", "|---|---|",
        *(f"| {what} | {number:,} |" for what, number in run.happened.items()), "",
        f"| minute | {' | '.join(FIGURES)} |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for seconds, figures in run.samples[:: max(1, len(run.samples) // 12)]:
        cells = [f"{seconds / 60:.0f}", f"{figures[0]:.1f}", *(f"{n:.0f}" for n in figures[1:])]
        lines.append(f"| {' | '.join(cells)} |")
    means = [f"{name} {one:.1f} and {two:.1f}" for name, (one, two) in run.means().items()]
    text = f"Means of the second and the last third: {', '.join(means[1:])}."
    return "\n".join([*lines, "", text, ""])


def main(minutes: float) -> int:
    with ControlPlane() as plane, new_namespace(plane) as kube, TemporaryDirectory() as folder:
        server, authority = Path(folder, "server"), Path(folder, "authority")
        certificate(server, certificate(authority))
        wire = new_wire(plane, server_context(server))
        bundle = base64.b64encode((authority / "crt").read_bytes()).decode()
        tls = {"certificate-authority-data": bundle}
        run = soak(kube, wire, Path(folder), 60 * minutes, **tls)
        wire.close()
    text = report(minutes, run)
    print(text)
    (TOP / "docs/reports/soak.md").write_text(text)
    return 1 if run.growth() else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if sys.argv[1:] else 60))
