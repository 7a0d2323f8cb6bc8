"""Runs the tests marked `platform` on several Pythons, packages and API servers: `make matrix`.

It uses each Python on the PATH or under ~/.pyenv/versions, with the oldest packages that
requirements.txt allows and with the newest, and one Python with the newest packages against an
older API server. A table in docs/reports/tested.md says what came of it, or why something was not
run; what follows the table there was written by hand, and stays.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from local.controlplane import MODULES, Unavailable, build, cache, commands
from tests.lib.kit import TOP, output_of
from tools import fingerprint

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
OLDER = ("v1.34.4",)  # API servers older than the one that local/modules/go.mod pins
OLDEST, NEWEST = "the oldest allowed", "the newest allowed"
SAYS = """
import ssl, sys, kubernetes
print(sys.version.split()[0], kubernetes.__version__, ssl.OPENSSL_VERSION.split()[1])
"""


def find_python(version: str) -> str | None:
    """The path of an interpreter of this minor version that starts, if there is one."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = [*pyenv.glob(f"versions/{version}.*/bin/python")]
    if installed := shutil.which(f"python{version}"):
        found.insert(0, Path(installed))
    for path in found:
        with contextlib.suppress(AssertionError):
            output_of(str(path), "-c", "import venv")
            return str(path)
    return None


def environment(folder: Path, python: str, packages: str) -> str:
    """A new environment with these packages; its interpreter. Raises AssertionError."""
    ranges = (TOP / "requirements.txt").read_text()
    if packages == OLDEST:
        ranges = re.sub(r">=([^,]+),.*", r"==\1", ranges)
    interpreter = str(folder / "bin/python")
    output_of(python, "-m", "venv", "--clear", str(folder))
    (folder / "requirements.txt").write_text(ranges)
    pip = [interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    output_of(*pip, "-r", f"{folder}/requirements.txt", "-r", f"{TOP}/tests/requirements.txt")
    return interpreter


def apiserver(version: str) -> Path:
    """A folder with kube-apiserver of this version, built if it is missing. Raises Unavailable.

    The version pins everything: its own go.mod names the versions of its dependencies, and Go
    verifies downloads with the public checksum database.
    """
    pinned = (MODULES / "go.mod").read_text()
    replaced = pinned[pinned.index("replace (") :]
    replaced = re.sub(r" v0\.\S+", version.replace("v1", " v0", 1), replaced)
    with tempfile.TemporaryDirectory() as name:
        module = Path(name)
        required = f"go 1.26.0\n\nrequire k8s.io/kubernetes {version}"
        (module / "go.mod").write_text(f"module controlplane\n\n{required}\n\n{replaced}")
        folder = cache(f"kube-apiserver-{version}", module, "-mod=mod")
        if not (folder / "kube-apiserver").exists():
            folder.mkdir(parents=True, exist_ok=True)
            build(["kube-apiserver"], folder, module, "-mod=mod")
    return folder


def try_out(version: str, packages: str, older: str) -> tuple[str, bool]:
    """A row of the table, and whether all went well."""
    python = find_python(version)
    if not python:
        return f"| {version} | – | – | – | not run: this machine has no Python {version} |", True
    try:
        assets = apiserver(older) if older else commands()["kube-apiserver"].parent
        interpreter = environment(TOP / ".matrix" / version, python, packages)
    except (Unavailable, AssertionError) as error:
        last = str(error).strip().splitlines()[-1]
        return f"| {version} | – | {packages} | {older} | not run: {last[:200]} |", False
    exact, client, tls = output_of(interpreter, "-c", SAYS).split()[:3]
    server = output_of(f"{assets}/kube-apiserver", "--version").split()[1]
    env = dict(os.environ)
    if older:
        env["KUBEBUILDER_ASSETS"] = str(assets)
    options = ["-q", "-n", "auto", "-m", "platform and not slow", "-p", "no:cacheprovider"]
    tests = [interpreter, "-m", "pytest", *options]
    done = subprocess.run(tests, cwd=TOP, capture_output=True, text=True, env=env)
    if done.returncode != 0:
        sys.stderr.write(done.stdout[-3000:])
    result = done.stdout.strip().splitlines()[-1].strip("= ")
    row = f"| {exact} | {tls} | {packages}: kubernetes {client} | {server} | {result} |"
    return row, done.returncode == 0


def main() -> int:
    default = f"{sys.version_info.major}.{sys.version_info.minor}"
    runs = [(version, packages, "") for version in PYTHONS for packages in (OLDEST, NEWEST)]
    runs += [(default, NEWEST, older) for older in OLDER]
    rows = dict[str, bool]()  # a Python that is missing has one row
    for run in runs:
        row, well = try_out(*run)
        print(row, flush=True)
        rows[row] = well
    machine = f"{os.uname().sysname} on {os.uname().machine}"
    file = TOP / "docs/reports/tested.md"
    _, mark, by_hand = file.read_text().partition("\n## ")
    text = f"""# Tested with

`make matrix` on {datetime.now(UTC):%Y-%m-%d}, {machine}. It runs the tests marked `platform`,
whose result may depend on the Python, the packages or the API server. `make test-all` runs all
tests on one Python. Of the control plane, only kube-apiserver is ever older.

{fingerprint.line()}

| Python | OpenSSL | packages | kube-apiserver | result |
|---|---|---|---|---|
"""
    file.write_text(text + "\n".join(rows) + "\n" + mark + by_hand)
    return 0 if all(rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
