"""The generated container with the real Milvus server: it comes up, serves, and keeps its data.

The server's binary is in the wheel milvus==2.3.5. The test takes the container from the real API
server, after its defaulting, and runs its args with its environment and files as the kubelet would,
on its ports; only paths are changed, because it does not run in a container. That version reads
milvus.yaml and variables, but neither default.yaml nor user.yaml: `handed_on` does it instead.
"""

import contextlib
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from urllib3.exceptions import HTTPError

import milvus_operator as mo
from tests.lib import kubelet
from tests.lib.kit import TOP, Kube, Obj, eventually, http_get, output_of

SETTINGS = """
proxy: {maxNameLength: 20}
common: {storageType: local}
no: {such: {setting: '$(HOME) $$'}}
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
FLUSH = """
from pymilvus import Collection, connections
connections.connect(port="19530")
Collection("demo").flush()
"""


def handed_on(files: dict[str, str], env: dict[str, str]) -> dict[str, str]:
    """The settings of default.yaml and user.yaml as variables, each under two names, for a server of
    2.3. Variables of the pod win, as with 2.4."""
    found = dict[str, tuple[str, str]]()
    for name in ("default.yaml", "user.yaml"):
        tree = yaml.safe_load(files.get(f"{mo.CONFIGS}/{name}", "")) or {}
        found |= {mo.canonical(name): (name, value) for name, value in flat(tree)}
    taken = {mo.canonical(name) for name in env}
    settings = dict[str, str]()
    for key, (name, value) in found.items():
        if key not in taken:
            settings |= {name.lower(): value, re.sub("[./]", "_", name).upper(): value}
    return settings


def flat(tree: Obj, prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value).lower() if isinstance(value, bool) else str(value)


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
        settings = handed_on(files, env) | env
        self.environment |= {name: self.here(value) for name, value in settings.items()}

    def here(self, path: str) -> str:
        """Where a path of the container is."""
        for start, there in {mo.DATA: "data", "/milvus": "."}.items():
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
def test_the_real_server_runs_the_documents_example_reads_its_settings_and_keeps_its_data(
    kube: Kube, operator: mo.Operator, installed: Path, tmp_path: Path
) -> None:
    pod = container_of(kube, operator, milvusSpec=SETTINGS)
    with running(generated(installed, tmp_path / "x", pod)) as server:
        assert quota_of_etcd() == 4 << 30
        text = (TOP / "docs/integrations.md").read_text()
        example, _ = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
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
@pytest.mark.parametrize("origin", ["Docker", "a backup"])
def test_data_from_elsewhere_is_found_in_a_generated_pod(
    kube: Kube, operator: mo.Operator, installed: Path, tmp_path: Path, origin: str
) -> None:
    """Of the Milvus project's script for Docker, and of another Milvus: in each case the server is
    stopped, and its folder is copied."""
    pod = container_of(kube, operator)
    before = generated(installed, tmp_path / "before", pod)
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
