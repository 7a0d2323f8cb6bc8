"""The generated container with the real Milvus server: it comes up, serves, and keeps its data.

The server's binary is in the wheel milvus==2.3.5. The test takes the container from the real API
server, after its defaulting, and runs its args with its environment as the kubelet would, on its
ports; only paths are changed, because it does not run in a container.
"""

import contextlib
import hashlib
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from urllib3.exceptions import HTTPError

import milvus_operator as mo
from local import controlplane
from tests.lib import kubelet
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
# The file of etcd that the image has, and that pods of earlier versions of the operator used.
IMAGES_ETCD = """
listen-client-urls: http://127.0.0.1:2479
advertise-client-urls: http://127.0.0.1:2479
"""
# The environment of the Milvus project's script for Docker, and the file that it mounts.
SCRIPT = {
    "ETCD_USE_EMBED": "true",
    "ETCD_DATA_DIR": "/var/lib/milvus/etcd",
    "ETCD_CONFIG_PATH": "/milvus/configs/embedEtcd.yaml",
    "COMMON_STORAGETYPE": "local",
}
SCRIPTS_ETCD = """
listen-client-urls: http://0.0.0.0:2379
advertise-client-urls: http://0.0.0.0:2379
quota-backend-bytes: 4294967296
auto-compaction-mode: revision
auto-compaction-retention: '1000'
"""
INSERT = """
from pymilvus import Collection, MilvusClient, connections
client = MilvusClient("http://localhost:19530")
client.create_collection("moved", dimension=4)
client.insert("moved", [{"id": i, "vector": [i, i, i, 1.0]} for i in range(500)])
connections.connect(port="19530")
Collection("moved").flush()
"""
COUNT = """
from pymilvus import MilvusClient
client = MilvusClient("http://localhost:19530")
client.load_collection("moved")
rows = client.query("moved", filter="id >= 0", output_fields=["count(*)"], consistency_level="Strong")
(nearest,) = client.search("moved", [[42, 42, 42, 1.0]], limit=1)
print(rows[0]["count(*)"], nearest[0]["id"])
"""
LOGIN = """
from grpc import RpcError
from pymilvus import MilvusClient
from pymilvus.exceptions import MilvusException
for token in ("", "root:Milvus"):
    try:
        MilvusClient("http://localhost:19530", token=token).list_collections()
        print("served")
    except (MilvusException, RpcError):
        print("refused")
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
    """One container as a process: its variables, and its files by the paths that it knows."""

    def __init__(
        self, folder: Path, home: Path, env: dict[str, str], files: dict[str, str]
    ) -> None:
        self.folder, self.home = folder, home
        self.command = ["milvus", "run", "standalone"]
        (home / "configs").mkdir(parents=True)
        for name in ("milvus.yaml", "glog.conf"):  # from the wheel, as in an image
            shutil.copy(folder / "configs" / name, home / "configs")
        for path, text in files.items():
            file = Path(self.here(path))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        self.environment = {
            "LOCALSTORAGE_PATH": f"{home}/data/data",
            "ROCKSMQ_PATH": f"{home}/data/rdb_data",
            "MILVUS_RUN_DIR": str(home),
            "PATH": f"{folder}/bin:/usr/bin:/bin",
            "LD_LIBRARY_PATH": f"{folder}/bin",
            "HOME": str(home),
        }
        self.environment |= {name: self.here(value) for name, value in env.items()}

    def here(self, path: str) -> str:
        """Where a path of the container is."""
        for start, there in {"/var/lib/milvus": "data", "/milvus": ".", "/etc": "etc"}.items():
            if path == start or path.startswith(f"{start}/"):
                return f"{self.home}/{there}{path.removeprefix(start)}"
        return path

    def start(self) -> None:
        """Start it, and wait until its probe passes."""
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=self.home,
                env=self.environment,
                stdout=log,
                stderr=log,
            )
        eventually(self.is_ready, 120, ignoring=(HTTPError,))

    def is_ready(self) -> bool:
        assert self.process.poll() is None, (self.home / "log").read_text()[-2000:]
        return http_get(9091, "/healthz")[0] == 200

    def stop(self, signum: int = signal.SIGTERM, grace: float = 60) -> None:
        """As the kubelet does; `docker stop` waits for ten seconds."""
        self.process.send_signal(signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(grace)
        self.process.kill()
        self.process.wait()

    def run(self, code: str) -> str:
        """Run a program of a user; returns what it prints."""
        return output_of(f"{self.folder}/venv/bin/python", "-c", code, code=None, timeout=180)


def container_of(kube: Kube, operator: mo.Operator, name: str = "x", **spec: Any) -> Obj:
    """The pod that the operator makes, as the API server returns it."""
    kube.create(name, **spec)
    operator.run_pass()
    return kube.all_pods()[f"{name}-0"]


def generated(installed: Path, home: Path, pod: Obj) -> Server:
    """What the kubelet would run for a pod."""
    (container,) = pod["spec"]["containers"]
    probe = container["readinessProbe"]["httpGet"]
    assert (probe["port"], probe["path"]) == (9091, "/healthz")
    server = Server(installed, home, kubelet.variables(pod), kubelet.files(pod))
    server.command = [*container.get("command", ()), *container["args"]]
    return server


@contextlib.contextmanager
def running(server: Server) -> Iterator[Server]:
    try:
        server.start()
        yield server
    finally:
        server.process.kill()
        server.process.wait()


def quota_of_etcd() -> float:
    """What the embedded etcd says of itself, on this host."""
    shown = http_get(2379, "/metrics")[1]
    (quota,) = re.findall(r"^etcd_server_quota_backend_bytes (.*)$", shown, re.M)
    return float(quota)


@pytest.mark.slow
@pytest.mark.timeout(900)  # the first run downloads the server
def test_the_real_server_runs_the_readmes_example_reads_its_settings_and_keeps_its_data(
    kube: Kube, operator: mo.Operator, installed: Path, tmp_path: Path
) -> None:
    pod = container_of(kube, operator, milvusSpec=SETTINGS)
    with running(generated(installed, tmp_path / "x", pod)) as server:
        assert server.environment["no.such.setting"] == "$(HOME) $$", "which does no harm"
        assert quota_of_etcd() == 4 << 30
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
        for signum in (signal.SIGTERM, signal.SIGKILL):
            server.stop(signum)
            server.start()
            assert server.run(search) == found, "also after a crash"
        written = {path.name for path in (server.home / "data").iterdir()}
        assert {"etcd", "data", "rdb_data", "rdb_data_meta_kv"} <= written, "all is on the volume"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_settings_reach_the_server_through_a_shell_so_that_a_login_is_asked_for(
    kube: Kube, operator: mo.Operator, installed: Path, tmp_path: Path
) -> None:
    """`sh`, by which secrets are injected, drops variables with dots in their names. And `on` is
    true in Milvus's own file, but not in a variable."""
    container = {
        "name": "milvus",
        "command": ["sh", "-c"],
        "args": ["[ ! -f /vault/secrets/env ] || . /vault/secrets/env; exec milvus run standalone"],
    }
    spec: Obj = {
        "milvusSpec": "common.security.authorizationEnabled: on",
        "pod": {"spec": {"containers": [container]}},
    }
    pod = container_of(kube, operator, **spec)
    with running(generated(installed, tmp_path / "server", pod)) as server:
        said = [line for line in server.run(LOGIN).splitlines() if line in ("refused", "served")]
        assert said == ["refused", "served"], "without a login, and with that of root"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("origin", ["an earlier pod", "Docker", "a backup"])
def test_data_from_elsewhere_is_found_in_a_generated_pod(
    kube: Kube, operator: mo.Operator, installed: Path, tmp_path: Path, origin: str
) -> None:
    """Of a pod with the etcd file of the image, of the Milvus project's script for Docker, and of
    another Milvus: in each case the server is stopped, and its folder is copied."""
    pod = container_of(kube, operator)
    before = generated(installed, tmp_path / "before", pod)
    if origin == "an earlier pod":
        path = "/milvus/configs/advanced/etcd.yaml"
        env = {"ETCD_CONFIG_PATH": path, "ETCD_ENDPOINTS": "localhost:2479"}
        env = kubelet.variables(pod) | env
        before = Server(installed, tmp_path / "earlier", env, {path: IMAGES_ETCD})
    if origin == "Docker":
        files = {SCRIPT["ETCD_CONFIG_PATH"]: SCRIPTS_ETCD}
        before = Server(installed, tmp_path / "docker", SCRIPT, files)
    with running(before):
        assert "Traceback" not in before.run(INSERT)
        before.stop(grace=10 if origin == "Docker" else 60)
    restored = container_of(kube, operator, "restored")
    after = generated(installed, tmp_path / "after", restored)
    shutil.copytree(before.home / "data", after.home / "data")
    with running(after):
        assert after.run(COUNT).split() == ["500", "42"]
        assert quota_of_etcd() == 4 << 30
