"""A long run against a real control plane: users change their minds, the wire fails, and nothing
grows.

    python -m tests.lib.soak [MINUTES]          # 60 by default; writes benchmarks/SOAK.md

The operator runs in a separate process. The judge checks every write; memory, threads, open
files and connections are read from /proc (Linux).
"""

from __future__ import annotations

import base64
import os
import re
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from benchmarks import fingerprint
from local.controlplane import ControlPlane
from tests.lib.certificates import certificate
from tests.lib.chaos import Faults, Recorder, Users
from tests.lib.judge import Judge
from tests.lib.kit import Command, Kube, eventually, kubeconfig, new_namespace, new_wire
from tests.lib.wire import Wire

RESULTS = Path(__file__).resolve().parent.parent.parent / "benchmarks" / "SOAK.md"


class Sample(NamedTuple):
    seconds: float
    memory: float  # MiB
    threads: int
    files: int
    connections: int

    @classmethod
    def of(cls, pid: int, seconds: float) -> Sample:
        status = Path(f"/proc/{pid}/status").read_text()
        files = [
            os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()
        ]
        number = {key: int(value) for key, value in re.findall(r"(VmRSS|Threads):\s+(\d+)", status)}
        sockets = sum(name.startswith("socket:") for name in files)
        return cls(seconds, number["VmRSS"] / 1024, number["Threads"], len(files), sockets)


class Soak(NamedTuple):
    samples: list[Sample]
    happened: dict[str, int]

    def means(self) -> dict[str, tuple[float, float]]:
        """Of each figure, the mean of the second third, and that of the last."""
        third = len(self.samples) // 3
        parts = self.samples[third : 2 * third], self.samples[2 * third :]
        figures = list(zip(*[map(mean, zip(*part, strict=True)) for part in parts], strict=True))
        return dict(zip(Sample._fields, figures, strict=True))

    def growth(self) -> list[str]:
        """What has grown by more than a tenth, and by more than comes and goes."""
        grown = list[str]()
        for name, most in {"memory": 3, "threads": 4, "files": 4, "connections": 4}.items():
            before, after = self.means()[name]
            if after > 1.1 * before + most:
                grown.append(f"{name}: {before:.1f}, then {after:.1f}")
        return grown


def soak(kube: Kube, wire: Wire, folder: Path, seconds: float, share: float, **tls: str) -> Soak:
    """Run it, wait until every Milvus has what its spec asks for, and judge. Raises AssertionError
    if harm was done. `tls` is what the kubeconfig must say about the wire's certificate."""
    users, faults, judge = Users(kube, seed=9), Faults(seed=8, reads=share, writes=share), Judge()
    recorder = Recorder(kube)
    wire.copy, wire.keep = judge, False
    samples, log = list[Sample](), folder / "operator.log"
    config = kubeconfig(folder / "kubeconfig", kube.plane, server=wire.url, **tls)
    options = ["-n", kube.ns, "--interval=0.5", "--timeout=2"]
    with log.open("w") as stderr:
        operator = Command(*options, env={"KUBECONFIG": config}, stderr=stderr)
    try:
        kube.create("warm", replicas=60)  # so that each worker has its connection from the start
        eventually(lambda: kube.status("warm").get("readyReplicas") == 60, 60)
        wire.fault, started = faults, time.monotonic()
        sampled = started
        while (now := time.monotonic()) - started < seconds:
            users.change()
            time.sleep(0.3)
            if now - sampled >= seconds / 60:
                sampled = now
                samples.append(Sample.of(operator.process.pid, now - started))
        faults.stop()
        users.settle_down()
        eventually(users.are_served, 90, ignoring=(AssertionError,))
    finally:
        operator.kill()
    harm = judge.harm(recorder.history(), users.deleted)
    assert not harm, "\n".join(harm)
    said = log.read_text()
    assert "Traceback" not in said
    assert "unexpected" not in said
    done = {"changes by users": users.changes, "faults injected": faults.done.total()}
    done |= {f"judged: {what}": judge.seen[what] for what in sorted(judge.seen)}
    return Soak(samples, done)


def report(minutes: float, run: Soak) -> str:
    lines = [
        "# A long run", "",
        f"`make soak`, {datetime.now(UTC):%Y-%m-%d}, {minutes:g} minutes.", "",
        fingerprint.line(), "",
        "| what happened | how often |", "|---|---|",
        *(f"| {what} | {number:,} |" for what, number in run.happened.items()), "",
        "| minute | memory, MiB | threads | open files | connections |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for sample in run.samples[:: max(1, len(run.samples) // 12)]:
        counts = f"{sample.threads} | {sample.files} | {sample.connections}"
        lines.append(f"| {sample.seconds / 60:.0f} | {sample.memory:.1f} | {counts} |")
    figures = list(run.means().items())[1:]
    means = ", ".join(f"{name} {one:.1f} and {two:.1f}" for name, (one, two) in figures)
    return "\n".join([*lines, "", f"Means of the second and the last third: {means}.", ""])


def main(minutes: float) -> int:
    with (
        ControlPlane() as plane,
        new_namespace(plane) as kube,
        tempfile.TemporaryDirectory() as folder,
    ):
        certificate(Path(folder, "server"), certificate(Path(folder, "authority")))
        wire = new_wire(plane, Path(folder, "server"))
        bundle = base64.b64encode(Path(folder, "authority", "crt").read_bytes()).decode()
        tls = {"certificate_authority_data": bundle}
        run = soak(kube, wire, Path(folder), 60 * minutes, 0.03, **tls)
        wire.close()
    text = report(minutes, run)
    print(text)
    RESULTS.write_text(text)
    return 1 if run.growth() else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if sys.argv[1:] else 60))
