"""Signals: writes in progress are finished, and the process ends with the right exit code."""

import re
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.lib.front import Request
from tests.lib.kit import Start, output_of
from tests.lib.wire import Api
from tests.lib.world import milvus


def slow_creates(api: Api, seconds: float) -> threading.Event:
    """From now on, creating a pod takes this long; the event is set once the first one is asked."""
    in_progress = threading.Event()

    def slow(_: Request) -> None:
        in_progress.set()
        api.over.wait(seconds)

    api.world.server.when("create", "pods", slow)
    return in_progress


def is_handled(folder: Path) -> bool:
    """Whether a process has a handler for SIGTERM."""
    caught = re.search(r"SigCgt:\s+(\w+)", (folder / "status").read_text())
    return bool(caught and int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


DELAYS = [0, 0.1, 0.2, 0.3, 0.4, 0.6, 1.2, 2.5]


@pytest.mark.parametrize("delay", DELAYS)
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


@pytest.mark.platform
def test_a_signal_while_garbage_is_collected_is_not_lost(api: Api) -> None:
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
    said = output_of(sys.executable, "-c", code, "-v", "--kubeconfig", api.kubeconfig(), timeout=60)
    assert said.endswith("INFO    stopped\n")
    assert said.count("pass over") == 1
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("signum", "count", "code"),
    [(signal.SIGTERM, 1, 0), (signal.SIGTERM, 2, 143), (signal.SIGINT, 2, 130)],
)
def test_a_write_that_hangs_delays_the_end_by_seconds_and_a_second_signal_ends_it_immediately(
    api: Api, start: Start, signum: int, count: int, code: int
) -> None:
    in_progress = slow_creates(api, 60)
    api.world.add(milvus("x"))
    process = start(api.kubeconfig(), "-v")
    assert in_progress.wait(20)
    for _ in range(count):
        assert process.process.poll() is None, "it waits for the write in progress"
        process.process.send_signal(signum)
        time.sleep(1)
    assert process.end(15) == code, "0 means that its four seconds were over"


def test_writes_in_progress_finish_and_none_begins(api: Api, start: Start) -> None:
    in_progress = slow_creates(api, 2.5)
    api.world.add(milvus("x", replicas=5))
    process = start(api.kubeconfig(), "-v", "--workers", "1")
    assert in_progress.wait(20)
    time.sleep(1.2)
    assert process.stop() == 0
    assert "created pod x-0\n" in process.log
    assert api.world.pods() == ["x-0"]
