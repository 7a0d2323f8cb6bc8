"""The Python that runs the tests and the Python of the image, which may differ."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys

import pytest

from local.controlplane import cache
from tests.lib.kit import TOP
from tests.lib.matrix import NEWEST, environment, find_python

TESTS = (
    "tests/test_python.py",
    "tests/test_tls.py",
    "tests/test_command.py::test_once_creates_what_is_missing_and_exits_0",
    "tests/test_clusters.py::test_a_spec_nested_thousands_of_levels_deep_harms_nobody",
)


@pytest.mark.platform
def test_the_import_gives_no_warnings() -> None:
    command = [sys.executable, "-W", "error", "-c", "import milvus_operator"]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.timeout(1200)  # the first run installs packages
def test_the_images_python_starts_verifies_certificates_and_reads_deep_json() -> None:
    named = re.search(r"python:(\d+\.\d+)", (TOP / "Dockerfile").read_text())
    assert named
    python = find_python(named[1])
    if not python:
        pytest.skip(f"this machine has no Python {named[1]}, which the image has")
    files = ("requirements.txt", "tests/requirements.txt")
    pins = b"".join((TOP / file).read_bytes() for file in files)
    folder = cache().parent / f"python-{named[1]}-{hashlib.sha256(pins).hexdigest()[:12]}"
    if not (folder / "ready").exists():
        environment(folder, python, NEWEST)
        (folder / "ready").touch()
    pytest_options = ["-q", "-m", "platform", "-p", "no:cacheprovider"]
    run = [str(folder / "bin/python"), "-m", "pytest", *pytest_options, *TESTS]
    done = subprocess.run(run, cwd=TOP, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
