"""The fixtures: one control plane for all; a namespace, an operator and a wire for each test."""

import functools
import hashlib
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NoReturn

import pytest
from kubernetes.client.exceptions import ApiException

import milvus_operator as mo
from local.controlplane import ControlPlane, Unavailable, cache, commands
from tests.lib import kit
from tests.lib.kit import TOP, Command, Kube, Start, eventually, output_of
from tests.lib.wire import Api, Wire

# Settings of a make that runs the tests must not reach the make that a test runs.
for _name in ("MAKEFLAGS", "MAKELEVEL", "PYTHON", "DOCKER", "IMAGE", "YES"):
    os.environ.pop(_name, None)
# A proxy of the machine is for downloads, not for the servers of the tests.
_direct = os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
os.environ |= dict.fromkeys(("no_proxy", "NO_PROXY"), f"127.0.0.1,{_direct}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more than there are cores, because tests often wait; but not too many control planes."""
    return min((os.cpu_count() or 1) + 1, 4)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need a cluster; run the long ones, which have a time limit, first."""
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)
    for item in items:
        if "plane" in getattr(item, "fixturenames", ()):
            item.add_marker("cluster")


@pytest.hookimpl(tryfirst=True)  # before a worker reports what it collected
def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what is missing of the control plane, outside the tests' time limits."""
    needed = any(item.get_closest_marker("cluster") for item in session.items)
    if needed and not session.config.option.collectonly:
        try:
            commands()
        except Unavailable as error:
            stop(session, error)


def stop(session: pytest.Session, error: Unavailable) -> NoReturn:
    """End the whole run with the reason, instead of one error for each test."""
    reason = f"The control plane can't be started: {error}"
    if hasattr(session.config, "workerinput"):
        session.shouldstop = reason  # which the worker passes on
    pytest.exit(reason, returncode=1)


@pytest.fixture(scope="session")
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A control plane with our CRD: a new one, or the one that runs in the folder CONTROL_PLANE."""
    with ExitStack() as stack:
        try:
            if running := os.environ.get("CONTROL_PLANE"):
                plane = ControlPlane.running(running)
            else:
                plane = stack.enter_context(ControlPlane())
        except Unavailable as error:
            stop(request.session, error)
        # Also for commands of make and of the documents.
        os.environ["KUBECACHEDIR"] = f"{plane.folder}/kubectl"
        kube = Kube(plane, "default")
        eventually(lambda: kube.milvuses.get(namespace="default"), ignoring=(ApiException,))
        yield plane


@pytest.fixture
def kube(plane: ControlPlane) -> Iterator[Kube]:
    """A separate namespace for each test."""
    with kit.new_namespace(plane) as kube:
        yield kube


@pytest.fixture
def operator(kube: Kube) -> mo.Operator:
    """An operator for the namespace of the test, to make single passes with."""
    return kit.new_operator(kube)


@pytest.fixture
def wire(plane: ControlPlane) -> Iterator[Wire]:
    with closing(kit.new_wire(plane)) as wire:
        yield wire


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    """The server in memory on a port."""
    with closing(Api(tmp_path)) as api:
        yield api


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts the command with this kubeconfig, and kills it after the test."""
    started = list[Command]()

    def start(kubeconfig: str, *arguments: str) -> Command:
        started.append(Command("--kubeconfig", kubeconfig, *arguments))
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.fixture
def command(kube: Kube, start: Start) -> Start:
    """Starts the command for the namespace of the test, and for others that are named."""
    return functools.partial(start, str(kube.plane.kubeconfig()), "-n", kube.ns)


UNPACK = """
import milvus, sys
milvus._initialize_data_files(sys.argv[1])
config = milvus.MilvusServerConfig(data_dir=sys.argv[1])
config.resolve()
config.cleanup_listen_ports()
config.set("system_log_path", "")
config.write_config()
"""


@pytest.fixture(scope="session")
def installed() -> Path:
    """A folder with the Milvus server 2.3.5 in bin/, its milvus.yaml in configs/, and an environment
    with its client; made once."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("the wheel with the Milvus server exists for Linux on x86-64 only")
    pins = TOP / "tests/requirements-milvus.txt"
    digest = hashlib.sha256(pins.read_bytes()).hexdigest()[:12]
    folder = cache().parent / f"milvus-{digest}"
    python = str(folder / "venv/bin/python")
    if not (folder / "ready").exists():
        output_of(sys.executable, "-m", "venv", "--clear", str(folder / "venv"))
        output_of(python, "-m", "pip", "install", "--quiet", "-r", str(pins))
        output_of(python, "-c", UNPACK, str(folder))
        (folder / "ready").touch()
    return folder
