"""Runs what may differ between Pythons and clients on each that this machine has: `make matrix`.

It takes each Python that is on the PATH or under ~/.pyenv/versions, with the oldest packages that requirements.txt
allows and with the newest; imports the operator with warnings as errors; and runs the tests that are marked
`platform`. The table goes into docs/tested.md, also what was not run and why. Exit code 1 when anything failed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from local.controlplane import commands

TOP = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
OLDEST, NEWEST = "the oldest allowed", "the newest allowed"
SAYS = "import ssl, sys, kubernetes as k; print(sys.version.split()[0], k.__version__, ssl.OPENSSL_VERSION.split()[1])"


def find_python(version: str) -> str | None:
    """Where the interpreter of this minor version is, if it starts."""
    candidates = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    for path in candidates:
        if path and subprocess.run([path, "-c", "import venv"], capture_output=True).returncode == 0:
            return str(path)
    return None


def lower_bounds() -> list[str]:
    """requirements.txt with `==` the lower bound of each package."""
    lines = (TOP / "requirements.txt").read_text().splitlines()
    return [re.sub(r">=([^,]+),.*", r"==\1", line) for line in lines if line and not line.startswith("#")]


def environment(python: str, version: str, packages: str) -> str:
    """A new virtual environment with these packages; returns its interpreter. Raises CalledProcessError."""
    folder = TOP / ".matrix" / f"{version}-{'oldest' if packages == OLDEST else 'newest'}"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([python, "-m", "venv", folder], check=True, capture_output=True, text=True)
    pinned = lower_bounds() if packages == OLDEST else ["-r", str(TOP / "requirements.txt")]
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--upgrade", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, *pinned, "-r", str(TOP / "tests/requirements.txt")], check=True, capture_output=True, text=True
    )
    return str(folder / "bin/python")


def try_out(version: str, packages: str) -> tuple[str, bool]:
    """A row of the table, and whether all went well."""
    python = find_python(version)
    if not python:
        return f"| {version} | – | – | not run: this machine has no Python {version} |", True
    try:
        interpreter = environment(python, version, packages)
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines()[-1:]
        return f"| {version} | {packages} | – | not run: pip cannot install them: {' '.join(last)[:200]} |", False
    exact, client, tls = subprocess.run([interpreter, "-c", SAYS], capture_output=True, text=True).stdout.split()
    imported = subprocess.run(
        [interpreter, "-W", "error", "-c", "import milvus_operator"], cwd=TOP, capture_output=True
    )
    started = time.monotonic()
    tests = [interpreter, "-m", "pytest", "-q", "-m", "platform", "-p", "no:cacheprovider"]
    done = subprocess.run(tests, cwd=TOP, capture_output=True, text=True)
    sys.stderr.write("" if done.returncode == 0 else done.stdout[-3000:])
    summary = done.stdout.strip().splitlines()[-1].strip("= ").partition(" in ")[0]
    result = f"{summary}, in {time.monotonic() - started:.0f} s" if imported.returncode == 0 else "the import warns"
    row = f"| {exact} | {packages}: kubernetes {client} | {tls} | {result} |"
    return row, done.returncode == imported.returncode == 0


def main() -> int:
    server = subprocess.run([commands()["kube-apiserver"], "--version"], capture_output=True, text=True).stdout.split()[
        1
    ]
    print(f"tests marked platform, against kube-apiserver {server}", flush=True)
    rows, good = [], True
    for version in PYTHONS:
        for packages in (OLDEST, NEWEST):
            row, well = try_out(version, packages)
            if row not in rows:
                print(row, flush=True)
                rows.append(row)
            good = good and well
    machine = f"{os.uname().sysname} on {os.uname().machine}"
    (TOP / "docs/tested.md").write_text(
        f"# Tested with\n\n`make matrix` on {datetime.now(UTC):%Y-%m-%d}, {machine}, kube-apiserver {server}. It runs the\n"
        "tests that are marked `platform`: what may differ between Pythons and clients. All tests run on one Python\n"
        "(`make test`).\n\n| Python | packages | OpenSSL | result |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
