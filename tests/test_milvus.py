"""The generated container with the real Milvus server: it comes up, serves, and keeps its data.

The server's binary is in the wheel milvus==2.3.5. A test takes the container from the real API
server, after its defaulting, and runs its args with its environment as the kubelet would;
only paths and ports are changed, because it does not run in a container.
"""

import fcntl
import hashlib
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from urllib3.exceptions import HTTPError

import milvus_operator as mo
from local import controlplane
from tests.lib.kit import TOP, Kube, Obj, eventually, http_get, output_of

PORTS = (
    "PROXY_PORT", "METRICS_PORT", "PROXY_INTERNALPORT", "ROOTCOORD_PORT", "QUERYCOORD_PORT",
    "QUERYNODE_PORT", "INDEXNODE_PORT", "DATACOORD_PORT", "DATANODE_PORT",
)  # fmt: skip
FLUSH = """
from pymilvus import Collection, connections
connections.connect(port="19530")
Collection("demo").flush()
"""


@pytest.fixture(scope="session")
def server() -> Path:
    """A folder with the server's binary in bin/ and an environment with its client; made once."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("the wheel with the Milvus server exists for Linux on x86-64 only")
    pins = TOP / "tests/requirements-milvus.txt"
    digest = hashlib.sha256(pins.read_bytes()).hexdigest()[:12]
    folder = controlplane.cache().parent / f"milvus-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    python = folder / "venv" / "bin" / "python"
    unpack = """
import milvus, sys
milvus._initialize_data_files(sys.argv[1])
config = milvus.MilvusServerConfig(data_dir=sys.argv[1])
config.resolve()
config.cleanup_listen_ports()
config.set("system_log_path", "")
config.write_config()
"""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
            for command in (
                [sys.executable, "-m", "venv", "--clear", str(folder / "venv")],
                [*pip, "-r", str(pins)],
                [str(python), "-c", unpack, str(folder)],
            ):
                subprocess.run(command, check=True)
            (folder / "ready").touch()
    return folder


class Server:
    """One container of a pod as a process."""

    def __init__(self, folder: Path, home: Path, container: Obj) -> None:
        self.folder, self.home, self.container = folder, home, container
        self.ports = dict(zip(PORTS, controlplane.free_ports(len(PORTS)), strict=True))
        self.etcd, peer = controlplane.free_ports(2)
        (home / "configs/advanced").mkdir(parents=True)
        for name in ("milvus.yaml", "glog.conf"):  # from the wheel, as in an image
            shutil.copy(folder / "configs" / name, home / "configs")
        (home / "configs/advanced/etcd.yaml").write_text(f"""
            listen-client-urls: http://127.0.0.1:{self.etcd}
            advertise-client-urls: http://127.0.0.1:{self.etcd}
            listen-peer-urls: http://127.0.0.1:{peer}
            initial-advertise-peer-urls: http://127.0.0.1:{peer}
            initial-cluster: default=http://127.0.0.1:{peer}
        """)
        self.process: subprocess.Popen[bytes] | None = None

    def environment(self) -> dict[str, str]:
        """The environment, expanded as by the kubelet, with paths and ports changed."""
        ours = {one["name"]: one["value"].replace("$$", "$") for one in self.container["env"]}
        moved = {
            "localhost:2479": f"localhost:{self.etcd}",
            "/var/lib/milvus": f"{self.home}/data",
            "/milvus/": f"{self.home}/",
        }
        for old, new in moved.items():
            ours = {name: value.replace(old, new) for name, value in ours.items()}
        return ours | {name: str(port) for name, port in self.ports.items()} | {
            "LOCALSTORAGE_PATH": f"{self.home}/data/data",
            "ROCKSMQ_PATH": f"{self.home}/data/rdb_data",
            "MILVUS_RUN_DIR": str(self.home),
            "PATH": f"{self.folder}/bin:/usr/bin:/bin",
            "LD_LIBRARY_PATH": f"{self.folder}/bin",
            "HOME": str(self.home),
        }  # fmt: skip

    def start(self) -> None:
        """Start it, and wait until both probes pass."""
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.container["args"], cwd=self.home, env=self.environment(),
                stdout=log, stderr=log, executable=f"{self.folder}/bin/milvus",
            )  # fmt: skip
        eventually(self.is_ready, 120, ignoring=(HTTPError,))

    def is_ready(self) -> bool:
        """Whether the probes pass."""
        assert self.process
        assert self.process.poll() is None, (self.home / "log").read_text()[-2000:]
        path = self.container["readinessProbe"]["httpGet"]["path"]
        return http_get(self.ports["METRICS_PORT"], path)[0] == 200

    def run(self, code: str) -> str:
        """Run a program of a user; returns what it prints."""
        code = code.replace("19530", str(self.ports["PROXY_PORT"]))
        return output_of(f"{self.folder}/venv/bin/python", "-c", code, code=None, timeout=180)

    def stop(self, signum: int, seconds: float) -> None:
        assert self.process
        self.process.send_signal(signum)
        self.process.wait(seconds)


@pytest.fixture
def milvus(kube: Kube, operator: mo.Operator, server: Path, tmp_path: Path) -> Iterator[Server]:
    """The container that the operator generated, as the API server returns it."""
    unknown = "no: {such: {setting: '$(HOME) $$'}}"
    known = "proxy: {maxNameLength: 20}\ncommon: {storageType: local}"
    kube.create(milvusSpec=f"{known}\n{unknown}")
    operator.run_pass()
    (container,) = kube.all_pods()["x-0"]["spec"]["containers"]
    running = Server(server, tmp_path, container)
    yield running
    if running.process and running.process.poll() is None:
        running.stop(signal.SIGKILL, 5)


@pytest.mark.slow
@pytest.mark.timeout(900)  # the first run downloads the server
def test_the_real_server_serves_the_readmes_example_takes_its_settings_and_keeps_its_data(
    kube: Kube, milvus: Server
) -> None:
    grace = kube.all_pods()["x-0"]["spec"]["terminationGracePeriodSeconds"]
    assert milvus.environment()["no.such.setting"] == "$(HOME) $$", "which does no harm"
    readme = (TOP / "README.md").read_text()
    example, _ = re.findall(r"^```python\n(.*?)^```$", readme, re.M | re.S)
    connect, _, rest = example.partition("client.create_collection")
    search = f"{connect}client.load_collection('demo')\n{rest[rest.index('print') :]}"
    milvus.start()
    found = milvus.run(example)
    assert re.search(r"\b42\b", found)
    assert "Traceback" not in found
    assert milvus.run(FLUSH) == ""
    too_long = milvus.run(f"{connect}client.create_collection('n' * 21, dimension=4)")
    assert "must be less than 20 characters" in too_long
    just_fits = milvus.run(f"{connect}client.create_collection('n' * 20, dimension=4)")
    assert "Traceback" not in just_fits
    for signum in (signal.SIGTERM, signal.SIGKILL):
        milvus.stop(signum, grace)
        milvus.start()
        assert milvus.run(search) == found, "also after a crash"
    written = {path.name for path in (milvus.home / "data").iterdir()}
    assert {"etcd", "data", "rdb_data"} <= written, "all data is on the volume"
