"""The tests' own control plane: it leaves nothing behind, and says why if it cannot start."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from local import controlplane
from tests.lib.kit import TOP, eventually, output_of

SCRIPT = str(TOP / "local" / "controlplane.py")


def processes_of(folder: str) -> list[str]:
    """The processes with this folder in their command line."""
    command = ["grep", "-lsF", folder, *map(str, Path("/proc").glob("[0-9]*/cmdline"))]
    return output_of(*command, code=None, env={}).splitlines()


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
    env = {"HOME": str(tmp_path), "PATH": "/nowhere"}
    env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
    said = output_of(sys.executable, SCRIPT, "build", code=1, env=env)
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("control plane: cannot install a Go toolchain")


SUITE = ["-m", "pytest", "-n2", "-p", "no:cacheprovider", "tests/test_cluster_rules.py"]


@pytest.mark.parametrize(
    ("command", "code"),
    [(["-m", "local.demo", "--wait=no"], 1), pytest.param(SUITE, 2, marks=pytest.mark.cluster)],
)
def test_given_binaries_need_no_build_and_one_that_does_not_start_is_named_once_with_its_words(
    command: list[str], code: int, tmp_path: Path
) -> None:
    for name in controlplane.COMMANDS:
        (tmp_path / name).write_text("#!/bin/sh\necho no luck today >&2\nexit 3\n")
        (tmp_path / name).chmod(0o755)
    env = os.environ | {"KUBEBUILDER_ASSETS": str(tmp_path), "XDG_CACHE_HOME": "/nowhere"}
    said = output_of(sys.executable, *command, code=code, env=env)
    found = re.findall("(etcd|kube-apiserver) ended with code 3: no luck today", said)
    assert len(found) == said.count("luck") == 1, said


FAKE_GO = r"""#!/bin/sh
[ "$1" = build ] || exec echo go1.26.0
cd "${3#-o=}"
echo '#!/bin/sh' >server
printf '#!/bin/sh\necho "panic: no luck\ngoroutine 1" >&2; exit 2' >kwok
chmod +x server kwok
"""


def test_a_new_binary_that_does_not_start_is_thrown_away_and_quoted(tmp_path: Path) -> None:
    """The Go of this test makes scripts: the server, which is etcd, starts."""
    (tmp_path / "go").write_text(FAKE_GO)
    (tmp_path / "go").chmod(0o755)
    env = {"HOME": str(tmp_path), "PATH": f"{tmp_path}:/usr/bin:/bin"}
    said = output_of(sys.executable, SCRIPT, "build", code=1, env=env)
    why = "kwok was built and thrown away, because it ended with code 2: panic: no luck"
    assert why in said.splitlines()[-1]
    (cached,) = tmp_path.glob(".cache/milvus-operator/*")
    assert sorted(path.name for path in cached.iterdir()) == ["etcd", "lock"]


def test_the_cache_belongs_to_everything_that_decides_the_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controlplane, "find_go", lambda: "printenv")  # it prints GOVERSION
    module = Path(shutil.copytree(controlplane.MODULES, tmp_path / "modules"))
    folders = {controlplane.cache()}
    assert folders == {controlplane.cache(module=module)}
    monkeypatch.setenv("GOVERSION", "go1.26.2")
    folders.add(controlplane.cache())
    for name in ("go.mod", "go.sum"):
        with (module / name).open("a") as pins:
            pins.write("// changed")
        folders.add(controlplane.cache(module=module))
    others = {"COMMANDS": {}, "GO_ENV": {}, "flags": lambda _: ["-race"]}
    for name, value in others.items():
        monkeypatch.setattr(controlplane, name, value)
        folders.add(controlplane.cache(module=module))
    assert len(folders) == 7
