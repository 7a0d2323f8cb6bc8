"""`make matrix`: the tests marked `platform` on each Python, with the oldest and the newest
packages that requirements.txt allows, and against an API server other than the pinned one.

A Python is found on the PATH or below ~/.pyenv/versions.
"""

import os
import re
from pathlib import Path

import nox

nox.options.default_venv_backend = "venv"
nox.options.stop_on_first_error = False

PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
APISERVERS = ["v1.34.4", "v1.37.2"]
SHOW = "import kubernetes, ssl; print(kubernetes.__version__, ssl.OPENSSL_VERSION)"
TOP = Path(__file__).parent.parent
PYENV = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")

folders = [str(folder) for folder in PYENV.glob("versions/*/bin")]
os.environ["PATH"] = os.pathsep.join([*folders, os.environ["PATH"]])


def run_tests(session: nox.Session, packages: str, **env: str) -> None:
    session.chdir(TOP)
    requirements = Path("requirements.txt").read_text()
    if packages == "oldest":
        requirements = re.sub(r">=([^,]+),.*", r"==\1", requirements)
    file = Path(session.create_tmp(), "requirements.txt")
    file.write_text(requirements)
    session.install("-r", str(file), "-r", "tests/requirements.txt")
    session.run("python", "-c", SHOW)
    options = ["-q", "-n", "auto", "-m", "platform and not slow", "-p", "no:cacheprovider"]
    session.run("python", "-m", "pytest", *options, env=env)


@nox.session(python=PYTHONS)
@nox.parametrize("packages", ["oldest", "newest"])
def platform(session: nox.Session, packages: str) -> None:
    run_tests(session, packages)


@nox.session
@nox.parametrize("version", APISERVERS, ids=APISERVERS)
def apiserver(session: nox.Session, version: str) -> None:
    build = ["python", "-m", "local.controlplane", "build", version]
    session.chdir(TOP)
    folder = session.run(*build, silent=True, stderr=None)
    assert folder
    run_tests(session, "newest", KUBEBUILDER_ASSETS=folder.split()[-1])
