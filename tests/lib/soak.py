"""A long run against a real control plane: users change their minds, the wire fails, and nothing grows.

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
from tests.lib.judge import Copy, Judge
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

    def growth(self) -> dict[str, float]:
        """For each figure, the mean of the last third divided by that of the third before; for threads, which come and
        go with each pass, the minimum instead of the mean."""
        third, growth = len(self.samples) // 3, dict[str, float]()
        for name in ("memory", "threads", "files", "connections"):
            of = min if name == "threads" else mean
            middle, last = (
                of([float(getattr(sample, name)) for sample in some])
                for some in (self.samples[third : 2 * third], self.samples[2 * third :])
            )
            growth[name] = last / middle
        return growth


def soak(
    kube: Kube,
    wire: Wire,
    folder: Path,
    seconds: float,
    share: float,
    authority: Path | None = None,
) -> Soak:
    """Run it, wait until every Milvus has what its spec asks for, and judge. Raises AssertionError if harm was done.

    `authority` is the certificate of the wire's authority, if it speaks TLS."""
    users, faults, judge = Users(kube, seed=9), Faults(seed=8, reads=share, writes=share), Judge()
    recorder = Recorder(kube)
    wire.copy, wire.patience, wire.keep = Copy(judge), 1, False
    samples, log = list[Sample](), folder / "operator.log"
    trusted = (
        {"certificate_authority_data": base64.b64encode(authority.read_bytes()).decode()}
        if authority
        else {}
    )
    config = kubeconfig(folder / "kubeconfig", kube.plane, server=wire.url, **trusted)
    with log.open("w") as stderr:
        operator = Command(
            "-n",
            kube.ns,
            "--interval=0.5",
            "--timeout=2",
            env={"KUBECONFIG": config},
            stderr=stderr,
        )
    try:
        kube.create(
            "warm", replicas=60
        )  # so that each worker has its connection before anything is compared
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
    happened = judge.seen + recorder.judge(users.deleted)
    assert not judge.harm, "\n".join(judge.harm)
    said = log.read_text()
    assert "Traceback" not in said
    assert "unexpected" not in said
    done = {"changes by users": users.changes, "faults injected": faults.done.total()}
    return Soak(samples, done | {f"judged: {what}": happened[what] for what in sorted(happened)})


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
        lines.append(
            f"| {sample.seconds / 60:.0f} | {sample.memory:.1f} | {sample.threads} | {sample.files} | {sample.connections} |"
        )
    growth = ", ".join(f"{name} {ratio:.3f}" for name, ratio in run.growth().items())
    return "\n".join([*lines, "", f"The last third divided by the third before: {growth}.", ""])


def main(minutes: float) -> int:
    with (
        ControlPlane() as plane,
        new_namespace(plane) as kube,
        tempfile.TemporaryDirectory() as folder,
    ):
        certificate(Path(folder, "server"), certificate(Path(folder, "authority")))
        wire = new_wire(plane, Path(folder, "server"))
        run = soak(kube, wire, Path(folder), 60 * minutes, 0.03, Path(folder, "authority", "crt"))
        wire.close()
    text = report(minutes, run)
    print(text)
    RESULTS.write_text(text)
    return 0 if max(run.growth().values()) < 1.1 else 1


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if sys.argv[1:] else 60))
