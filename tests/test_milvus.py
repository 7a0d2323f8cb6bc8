"""The generated container with the real Milvus server: it comes up, serves, and keeps its data.

The server's binary is in the wheel milvus==2.3.5. The test takes the container from the real API
server, after its defaulting, and runs its args with its environment as the kubelet would, on its
ports; only paths are changed, because it does not run in a container.
"""

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

SETTINGS = """
proxy: {maxNameLength: 20}
common: {storageType: local}
no: {such: {setting: '$(HOME) $$'}}
"""
UNPACK = """
import milvus, sys
milvus._initialize_data_files(sys.argv[1])
config = milvus.MilvusServerConfig(data_dir=sys.argv[1])
config.resolve()
config.cleanup_listen_ports()
config.set("system_log_path", "")
config.write_config()
"""
ETCD = """
listen-client-urls: http://127.0.0.1:2479
advertise-client-urls: http://127.0.0.1:2479
listen-peer-urls: http://127.0.0.1:2480
initial-advertise-peer-urls: http://127.0.0.1:2480
initial-cluster: default=http://127.0.0.1:2480
"""
FLUSH = """
from pymilvus import Collection, connections
connections.connect(port="19530")
Collection("demo").flush()
"""


@pytest.fixture(scope="session")
def installed() -> Path:
    """A folder with the server's binary in bin/ and an environment with its client; made once."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("the wheel with the Milvus server exists for Linux on x86-64 only")
    pins = TOP / "tests/requirements-milvus.txt"
    digest = hashlib.sha256(pins.read_bytes()).hexdigest()[:12]
    folder = controlplane.cache().parent / f"milvus-{digest}"
    python = str(folder / "venv/bin/python")
    if not (folder / "ready").exists():
        output_of(sys.executable, "-m", "venv", "--clear", str(folder / "venv"))
        output_of(python, "-m", "pip", "install", "--quiet", "-r", str(pins))
        output_of(python, "-c", UNPACK, str(folder))
        (folder / "ready").touch()
    return folder


class Server:
    """One container of a pod as a process."""

    def __init__(self, folder: Path, home: Path, container: Obj) -> None:
        self.folder, self.home, self.container = folder, home, container
        (home / "configs/advanced").mkdir(parents=True)
        for name in ("milvus.yaml", "glog.conf"):  # from the wheel, as in an image
            shutil.copy(folder / "configs" / name, home / "configs")
        (home / "configs/advanced/etcd.yaml").write_text(ETCD)
        self.environment = {
            "LOCALSTORAGE_PATH": f"{home}/data/data",
            "ROCKSMQ_PATH": f"{home}/data/rdb_data",
            "MILVUS_RUN_DIR": str(home),
            "PATH": f"{folder}/bin:/usr/bin:/bin",
            "LD_LIBRARY_PATH": f"{folder}/bin",
            "HOME": str(home),
        }
        for variable in container["env"]:
            value = variable["value"].replace("$$", "$")  # as by the kubelet
            value = value.replace("/var/lib/milvus", f"{home}/data")
            self.environment[variable["name"]] = value.replace("/milvus/", f"{home}/")

    def start(self) -> None:
        """Start it, and wait until its probe passes."""
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.container["args"],
                executable=f"{self.folder}/bin/milvus",
                cwd=self.home,
                env=self.environment,
                stdout=log,
                stderr=log,
            )
        eventually(self.is_ready, 120, ignoring=(HTTPError,))

    def is_ready(self) -> bool:
        assert self.process.poll() is None, (self.home / "log").read_text()[-2000:]
        probe = self.container["readinessProbe"]["httpGet"]
        return http_get(probe["port"], probe["path"])[0] == 200

    def run(self, code: str) -> str:
        """Run a program of a user; returns what it prints."""
        return output_of(f"{self.folder}/venv/bin/python", "-c", code, code=None, timeout=180)


@pytest.fixture
def server(kube: Kube, operator: mo.Operator, installed: Path, tmp_path: Path) -> Iterator[Server]:
    """The container that the operator generated, as the API server returns it, running."""
    kube.create(milvusSpec=SETTINGS)
    operator.run_pass()
    (container,) = kube.all_pods()["x-0"]["spec"]["containers"]
    server = Server(installed, tmp_path, container)
    try:
        server.start()
        yield server
    finally:
        server.process.kill()


@pytest.mark.slow
@pytest.mark.timeout(900)  # the first run downloads the server
def test_the_real_server_runs_the_readmes_example_reads_its_settings_and_keeps_its_data(
    kube: Kube, server: Server
) -> None:
    assert server.environment["no.such.setting"] == "$(HOME) $$", "which does no harm"
    readme = (TOP / "README.md").read_text()
    example, _ = re.findall(r"^```python\n(.*?)^```$", readme, re.M | re.S)
    connect, _, rest = example.partition("client.create_collection")
    found = server.run(example)
    assert re.search(r"\b42\b", found)
    assert "Traceback" not in found
    assert server.run(FLUSH) == ""
    create = f"{connect}client.create_collection('n' * %d, dimension=4)"
    assert "must be less than 20 characters" in server.run(create % 21)
    assert "Traceback" not in server.run(create % 20)
    search = f"{connect}client.load_collection('demo')\n{rest[rest.index('print') :]}"
    grace = kube.all_pods()["x-0"]["spec"]["terminationGracePeriodSeconds"]
    for signum in (signal.SIGTERM, signal.SIGKILL):
        server.process.send_signal(signum)
        server.process.wait(grace)
        server.start()
        assert server.run(search) == found, "also after a crash"
    written = {path.name for path in (server.home / "data").iterdir()}
    assert {"etcd", "data", "rdb_data"} <= written, "all data is on the volume"
