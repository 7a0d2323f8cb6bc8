"""The tests' own control plane: it leaves nothing behind, and says why if it cannot start."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lib.kit import TOP, eventually, output_of

SCRIPT = str(TOP / "local" / "controlplane.py")


def processes_of(folder: str) -> list[str]:
    """The processes with this folder in their command line."""
    files = map(str, Path("/proc").glob("[0-9]*/cmdline"))
    found = output_of("grep", "-lsF", folder, *files, code=None, env={})
    return found.splitlines()


@pytest.mark.cluster
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_behind(signum: int) -> None:
    """Even as a background job of a shell, which starts with SIGINT ignored."""
    job = ["sh", "-c", 'trap \'\' INT; exec "$0" "$@"', sys.executable, SCRIPT]
    asker = subprocess.Popen(job, stdout=subprocess.PIPE, text=True)
    assert asker.stdout
    said = asker.stdout.readline()
    folder = os.path.dirname(said.removeprefix("export KUBECONFIG="))
    assert len(processes_of(folder)) >= 5
    asker.send_signal(signum)
    asker.communicate()
    eventually(lambda: not processes_of(folder))
    eventually(lambda: not os.path.exists(folder))


def test_a_build_that_fails_says_why_on_one_line(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "PATH": "/nowhere", "PIP_NO_INDEX": "1"}
    said = output_of(sys.executable, SCRIPT, "build", code=1, env=env)
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("control plane: cannot install a Go toolchain")
