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
from tests.lib.kit import TOP, eventually

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
    done = subprocess.run(
        [sys.executable, SCRIPT, "build"], env=env, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("control plane: cannot install a Go toolchain: ")


SUITE = ["-m", "pytest", "-n2", "-p", "no:cacheprovider", "tests/test_cluster_rules.py"]


@pytest.mark.parametrize(
    "command",
    [[SCRIPT], ["-m", "local.demo", "--wait=no"], pytest.param(SUITE, marks=pytest.mark.cluster)],
)
def test_a_binary_that_does_not_start_is_named_once_with_the_end_of_its_log(
    command: list[str], tmp_path: Path
) -> None:
    for name in controlplane.COMMANDS:
        (tmp_path / name).write_text("#!/bin/sh\necho no luck today >&2\nexit 3\n")
        (tmp_path / name).chmod(0o755)
    env = os.environ | {"KUBEBUILDER_ASSETS": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, *command], cwd=TOP, env=env, capture_output=True, text=True
    )
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert (
        len(re.findall("(etcd|kube-apiserver) ended with code 3: no luck today", said))
        == said.count("luck")
        == 1
    ), said


FAKE_GO = r"""#!/bin/sh
case "$1" in
env) echo "${TOOLCHAIN-go1.26.0}" ;;
list) echo k8s.io/kubernetes/cmd/kubectl ;;
build)
  for part; do case "$part" in
  -o=*) folder="${part#-o=}" ;;
  */cmd/* | */v3)
    name="${part%/v3}" && name="${name##*/}"
    printf '#!/bin/sh\ncase "$0" in *kwok) echo "panic: no luck\ngoroutine 1" >&2; exit 2 ;; esac\n' >"$folder$name"
    chmod +x "$folder$name" ;;
  esac; done ;;
esac
"""


@pytest.fixture
def fake_go(tmp_path: Path) -> Path:
    """A folder with a Go that makes scripts; the one named kwok does not start."""
    (tmp_path / "go").write_text(FAKE_GO)
    (tmp_path / "go").chmod(0o755)
    return tmp_path


def test_a_new_binary_that_does_not_start_is_thrown_away_and_its_words_are_shown(
    fake_go: Path,
) -> None:
    env = {"HOME": str(fake_go), "PATH": f"{fake_go}:/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, SCRIPT, "build"], env=env, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert (
        "kwok was built and thrown away, because it ended with code 2: panic: no luck."
        in done.stderr.splitlines()[-1]
    )
    (cached,) = fake_go.glob(".cache/milvus-operator/*")
    assert sorted(path.name for path in cached.iterdir()) == ["etcd", "lock"]


def test_the_cache_belongs_to_everything_that_decides_the_bytes(
    fake_go: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controlplane, "find_go", lambda: str(fake_go / "go"))
    for file in ("go.mod", "go.sum"):
        (tmp_path / file).write_bytes((controlplane.MODULES / file).read_bytes())
    folders = [controlplane.cache(module=tmp_path)]
    assert folders == [controlplane.cache()], "the same modules in another folder"
    for name, value in (
        ("COMMANDS", {"etcd": "another/package"}),
        ("GO_ENV", {}),
        ("flags", lambda module: ["-race"]),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(controlplane, name, value)
            folders.append(controlplane.cache(module=tmp_path))
    monkeypatch.setenv("TOOLCHAIN", "go1.26.2")
    folders.append(controlplane.cache(module=tmp_path))
    for file in ("go.mod", "go.sum"):
        with (tmp_path / file).open("a") as pins:
            pins.write("// changed\n")
        folders.append(controlplane.cache(module=tmp_path))
    assert len(set(folders)) == len(folders) == 7


def test_kubebuilder_assets_are_preferred_and_need_no_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert capsys.readouterr().out == (
        f"NAME\nx-0\n{up}a line\nNAME\nx-0\n{up}NAME\nx-0\nx-1\n\x1b[3A\x1b[Jthe end\n"
    )


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    assert demo.colour("x-0   1/1   Running") == "x-0   1/1   Running"
    monkeypatch.setattr(demo, "GREEN", "<")
    monkeypatch.setattr(demo, "PLAIN", ">")
    assert demo.colour("NAME READY\nx-0 Running") == "NAME READY\nx-0 <Running>"
