"""The tests' own control plane: it leaves nothing behind, and says why if it cannot start."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from local import controlplane, demo
from tests.kit import TOP, eventually

SCRIPT = str(TOP / "local" / "controlplane.py")


def processes_of(folder: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if folder in command:
            found.append(command)
    return found


@pytest.mark.cluster
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_behind(signum: int) -> None:
    """Even as a background job of a shell, which starts with SIGINT ignored."""
    job = ["sh", "-c", 'trap \'\' INT; exec "$0" "$@"', sys.executable, SCRIPT]
    asker = subprocess.Popen(job, stdout=subprocess.PIPE, text=True)
    assert asker.stdout
    folder = str(Path(asker.stdout.readline().strip().removeprefix("export KUBECONFIG=")).parent)
    assert len(processes_of(folder)) >= 5
    asker.send_signal(signum)
    asker.communicate()
    eventually(lambda: not processes_of(folder) and not Path(folder).exists())


def test_a_build_that_fails_says_why_on_one_line(tmp_path: Path) -> None:
    env = {
        "HOME": str(tmp_path),
        "PATH": "/nowhere",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": "",
        "PIP_CONFIG_FILE": os.devnull,
    }
    done = subprocess.run([sys.executable, SCRIPT, "build"], env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("control plane: cannot install a Go toolchain: ")


def test_a_binary_that_does_not_start_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    for name in controlplane.COMMANDS:
        (tmp_path / name).write_text("#!/bin/sh\necho no luck today >&2\nexit 3\n")
        (tmp_path / name).chmod(0o755)
    env = os.environ | {"KUBEBUILDER_ASSETS": str(tmp_path)}
    done = subprocess.run([sys.executable, SCRIPT], env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.search("control plane: (etcd|kube-apiserver) ended with code 3: no luck today", done.stderr)


def test_kubebuilder_assets_are_preferred_and_need_no_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in controlplane.COMMANDS:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    assert controlplane.commands() == {name: tmp_path / name for name in controlplane.COMMANDS}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    monkeypatch.delattr(controlplane, "build")
    assert controlplane.commands() == {name: tmp_path / name for name in controlplane.COMMANDS}


def test_the_live_table_of_the_demo_stays_below_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    screen = demo.Screen()
    screen.watch("NAME\nx-0")
    screen.show("a line")
    screen.watch("NAME\nx-0\nx-1")
    screen.watch("")
    screen.show("the end")
    up = "\x1b[2A\x1b[J"
    assert capsys.readouterr().out == (f"NAME\nx-0\n{up}a line\nNAME\nx-0\n{up}NAME\nx-0\nx-1\n\x1b[3A\x1b[Jthe end\n")


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    assert demo.colour("x-0   1/1   Running") == "x-0   1/1   Running"
    monkeypatch.setattr(demo, "GREEN", "<")
    monkeypatch.setattr(demo, "PLAIN", ">")
    assert demo.colour("NAME READY\nx-0 Running") == "NAME READY\nx-0 <Running>"
