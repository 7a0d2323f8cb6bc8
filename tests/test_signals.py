"""Signals: writes in progress are finished, and the process ends with the right exit code."""

import fcntl
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest

import milvus_operator as mo
from tests.lib.front import Request
from tests.lib.kit import Command, Start, eventually
from tests.lib.wire import Api
from tests.lib.world import milvus


def is_handled(folder: Path) -> bool:
    """Whether a process has a handler for SIGTERM."""
    status = (folder / "status").read_text()
    (caught,) = re.findall(r"SigCgt:\s+(\w+)", status)
    bit = 1 << (signal.SIGTERM - 1)
    return bool(int(caught, 16) & bit)


@pytest.mark.parametrize("delay", [0, 0.1, 0.3, 0.6, 1.2, 2.5])
def test_a_signal_ends_it_immediately(api: Api, start: Start, delay: float) -> None:
    """During the imports, which take long, while the kubeconfig is read, in the first pass, and
    between two passes. Process 1 of a container gets only the signals that it handles."""
    process = start(api.kubeconfig(), "--interval", "3600")
    folder = Path(f"/proc/{process.process.pid}")
    while not is_handled(folder):  # Python itself is starting
        time.sleep(0.001)
    assert "site-packages" not in (folder / "maps").read_text(), "before the imports"
    time.sleep(delay)
    assert process.stop() == 0, process.log
    assert "Traceback" not in process.log


@pytest.mark.parametrize("by", ["option", "variable"])
def test_a_signal_before_anything_was_done_is_a_failure_of_once(api: Api, by: str) -> None:
    options = ["--once"] if by == "option" else []
    env = {"MILVUS_OPERATOR_ONCE": "True"} if by == "variable" else {}
    process = Command("--kubeconfig", api.kubeconfig(), *options, env=env)
    while not is_handled(Path(f"/proc/{process.process.pid}")):
        time.sleep(0.001)
    assert process.stop() == 1


# How long a write takes, the signals, one second apart, the exit code, the pods then, options.
ENDS = [
    (2, [signal.SIGTERM], 0, ["x-0"], []),
    (60, [signal.SIGTERM], 0, [], []),
    (60, [signal.SIGTERM], 1, [], ["--once"]),
    (60, [signal.SIGINT, signal.SIGINT], 130, [], []),
]


@pytest.mark.parametrize(("seconds", "signals", "code", "pods", "options"), ENDS)
def test_writes_in_progress_get_four_seconds_none_begins_and_a_second_signal_ends_it_immediately(
    api: Api,
    start: Start,
    seconds: float,
    signals: list[int],
    code: int,
    pods: list[str],
    options: list[str],
) -> None:
    in_progress = threading.Event()

    def slow(_: Request) -> None:
        in_progress.set()
        api.over.wait(seconds)

    api.world.server.when("create", "pods", slow)
    api.world.add(milvus("x", replicas=5))
    process = start(api.kubeconfig(), "--workers", "1", *options)
    assert in_progress.wait(20)
    for signum in signals:
        assert process.process.poll() is None, "it waits for the write in progress"
        process.process.send_signal(signum)
        time.sleep(1)
    assert process.end() == code
    gave_up = "stopped" not in process.log
    assert gave_up == (seconds == 60), "it waits neither less nor longer"
    assert mo.STOPPING < 5
    assert api.world.pods() == pods


def test_a_log_that_nobody_reads_does_not_keep_it_from_ending(api: Api) -> None:
    """A pipe holds so much; then each line waits for a reader."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    options = ["--kubeconfig", api.kubeconfig(), "--verbose", "--interval", "0.1"]
    process = Command(*options, stderr=writer).process
    try:
        eventually(lambda: len(api.requests) > 10, 30)
        before = 0
        while len(api.requests) > before:  # it makes passes
            before = len(api.requests)
            time.sleep(2)
        process.terminate()
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.communicate()
        os.close(reader)
        os.close(writer)
