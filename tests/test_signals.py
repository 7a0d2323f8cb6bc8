"""Signals: writes in progress are finished, and the process ends with the right exit code."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lib.kit import TOP, Command, Kube, eventually, kubeconfig
from tests.lib.wire import Handler, Wire

Start = Callable[..., Command]


class Contained(Command):
    """The command as process 1, as in a container: it gets only the signals that it handles."""

    def __init__(self, *arguments: str, env: dict[str, str]) -> None:
        unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
        tried = subprocess.run([*unshare, "true"], capture_output=True, text=True)
        if tried.returncode:
            pytest.skip(f"no process can be process 1 here: {tried.stderr.strip()}")
        command = [*unshare, sys.executable, str(TOP / "milvus_operator.py"), *arguments]
        self.process = subprocess.Popen(
            command, stdout=-1, stderr=-1, text=True, env=os.environ | env
        )
        self.log = ""

    def pid(self) -> int:
        pid = self.process.pid
        return int(eventually(lambda: Path(f"/proc/{pid}/task/{pid}/children").read_text()))

    def signal(self, signum: int) -> None:
        os.kill(self.pid(), signum)


class Plain(Command):
    def pid(self) -> int:
        return self.process.pid

    def signal(self, signum: int) -> None:
        self.process.send_signal(signum)


@pytest.fixture(params=[Plain, Contained])
def run(request: pytest.FixtureRequest, kube: Kube, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts the command, as an ordinary process or as process 1."""
    started = []

    def start(*arguments: str, wire: Wire | None = None) -> Plain | Contained:
        file = kubeconfig(tmp_path / "config", kube.plane, **({"server": wire.url} if wire else {}))
        started.append(request.param("-n", kube.ns, "-v", *arguments, env={"KUBECONFIG": file}))
        return started[-1]  # type: ignore[no-any-return]

    yield start
    for process in started:
        process.kill()


def slow_creates(wire: Wire, seconds: float) -> threading.Event:
    """From now on, creating a pod takes this long; the event is set once the first one is asked."""
    in_progress = threading.Event()

    def fault(handler: Handler, verb: str, path: str) -> bool:
        if verb == "POST" and path.partition("?")[0].endswith("/pods"):
            in_progress.set()
            wire.over.wait(seconds)
        return False

    wire.fault = fault
    return in_progress


def has_handler(pid: int) -> bool:
    """Whether the process has a handler for SIGTERM; until then, Python itself is starting."""
    caught = re.search(r"SigCgt:\s+(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(caught and int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_a_signal_during_the_start_ends_it_at_once(run: Callable[..., Any]) -> None:
    """During the imports, while the kubeconfig is read, and up to the end of the first pass."""
    for delay in (0, 100, 200, 300, 400, 600, 1200):
        process = run()
        while not has_handler(process.pid()):
            time.sleep(0.001)
        assert "site-packages" not in Path(f"/proc/{process.pid()}/maps").read_text(), (
            "before the imports, which take long"
        )
        time.sleep(delay / 1000)
        process.signal(signal.SIGTERM)
        assert process.end(10) == 0, f"after {delay} ms: {process.log}"
        assert "Traceback" not in process.log


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_right_after_its_first_line_ends_it_at_once(command: Start, signum: int) -> None:
    for _ in range(3):
        process = command()
        process.says("a pass every")
        assert process.stop(signum) == 0, process.log
        assert process.log.endswith("INFO    stopped\n")


def test_a_signal_between_two_passes_ends_it_at_once(run: Callable[..., Any]) -> None:
    process = run("--interval", "3600")
    process.says("pass over")
    process.signal(signal.SIGTERM)
    assert process.end(10) == 0
    assert process.log.endswith("INFO    stopped\n")


@pytest.mark.platform
def test_a_signal_while_garbage_is_collected_is_not_lost(kube: Kube) -> None:
    """An exception that a handler raises in a finalizer, as of an old connection, would be lost."""
    code = """if True:
        import logging, os, signal, weakref
        import milvus_operator

        class Garbage(logging.Handler):
            def emit(self, record):
                if "pass over" in record.getMessage():
                    garbage = type("Cycle", (), {})
                    weakref.finalize(garbage, os.kill, os.getpid(), signal.SIGTERM)

        logging.getLogger("milvus_operator").addHandler(Garbage())
        milvus_operator.main()
    """
    options = ["-v", "-n", kube.ns, "--kubeconfig", str(kube.plane.kubeconfig())]
    command = [sys.executable, "-c", code, *options]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith("INFO    stopped\n")
    assert done.stderr.count("pass over") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_ends_it_at_once(
    kube: Kube, wire: Wire, run: Callable[..., Any], signum: int, code: int
) -> None:
    in_progress = slow_creates(wire, 20)
    kube.create()
    process = run(wire=wire)
    assert in_progress.wait(20)
    process.signal(signum)
    time.sleep(0.3)
    assert process.process.poll() is None, "it waits for the write in progress"
    process.signal(signum)
    assert process.end() == code, "0 would mean that its four seconds were over"
    assert "Traceback" not in process.log


@pytest.mark.parametrize("interval", ["3600", "0.3"])
def test_writes_in_progress_are_finished_before_it_ends(
    kube: Kube, wire: Wire, run: Callable[..., Any], interval: str
) -> None:
    """Even those that take longer than their pass."""
    in_progress = slow_creates(wire, 2.5)
    kube.create()
    process = run("--interval", interval, wire=wire)
    assert in_progress.wait(20)
    time.sleep(1.2)
    process.signal(signal.SIGTERM)
    assert process.end() == 0
    assert f"created pod {kube.ns}/x-0\n" in process.log
    assert kube.names() == ["x-0"]


def test_a_write_that_hangs_delays_the_end_by_seconds_only(
    kube: Kube, wire: Wire, run: Callable[..., Any]
) -> None:
    in_progress = slow_creates(wire, 60)
    kube.create()
    process = run(wire=wire)
    assert in_progress.wait(20)
    process.signal(signal.SIGTERM)
    assert process.end(15) == 0, "four seconds, and a slow machine"


def test_after_a_signal_no_write_begins(kube: Kube, wire: Wire, run: Callable[..., Any]) -> None:
    in_progress = slow_creates(wire, 2)
    kube.create(replicas=5)
    process = run("--workers", "1", wire=wire)
    assert in_progress.wait(20)
    process.signal(signal.SIGTERM)
    assert process.end() == 0
    assert len([request for request in wire.requests if request.verb == "POST"]) == 1
    assert kube.names() == ["x-0"]
