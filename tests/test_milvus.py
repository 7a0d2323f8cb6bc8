"""The generated container with the real thing: the Milvus server 2.3.5, which is in a wheel, and
Milvus's own code that reads settings, of 2.6 and 3.0, which is in Go modules.

It is laid out in a folder: `data` is /var/lib/milvus there, and `configs` is /milvus/configs."""

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import urllib3

import milvus_operator as mo
from local.controlplane import GO_ENV, caches, find_go
from tests.server import Obj
from tests.world import eventually, milvus

# The first run downloads the server and builds, for some minutes; later ones find what is there.
pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
Read = Callable[..., dict[str, str]]
UNPACK = "import milvus, sys; milvus._initialize_data_files(sys.argv[1]); print(milvus.__path__[0])"


def output_of(*command: str | Path, **options: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="session")
def installed() -> Path:
    """Has the server in bin/, the files of its image in configs/, and its client in venv/."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("the wheel with the Milvus server exists for Linux on x86-64 only")
    folder = caches() / "milvus-server"
    python = folder / "venv/bin/python"
    output_of(sys.executable, "-m", "venv", folder / "venv")
    output_of(python, "-m", "pip", "install", "--quiet", "-r", HERE / "requirements-milvus.txt")
    data = Path(output_of(python, "-c", UNPACK, folder).strip()) / "data"
    (folder / "configs").mkdir(exist_ok=True)
    shutil.copy(data / "glog.conf", folder / "configs")
    # The default of each `{{ port: 1 }}`; and as in an image what the wheel has for one process.
    text = (data / "config.yaml.template").read_text()
    text = re.sub(r"\{\{[^:}]*:? *(.*?) *\}\}", r"\1", text).replace("embed: true", "embed: false")
    text = text.replace("type: rocksmq", "type: default").replace("Type: local", "Type: remote")
    (folder / "configs/milvus.yaml").write_text(text)
    return folder


def new_pod(text: str = "", **variables: str) -> Obj:
    """The pod for this milvusSpec, and for these variables in spec.pod."""
    env = [{"name": name, "value": value} for name, value in variables.items()]
    over = {"spec": {"containers": [{"name": "milvus", "env": env}]}}
    x = milvus(milvusSpec=text, pod=over, storage={"size": "1Gi"})
    return mo.new_pod(x, mo.spec_of(x), 0)


def lay_out(installed: Path, home: Path, pod: Obj) -> dict[str, str]:
    """Lay the container of a pod out in a folder. Returns the environment of its process."""

    def here(text: str) -> str:
        text = text.replace("/milvus/configs", f"{home}/configs")
        return text.replace("/var/lib/milvus", f"{home}/data")

    (container,) = pod["spec"]["containers"]
    paths = {one.get("subPath"): one["mountPath"] for one in container["volumeMounts"]}
    (items,) = [v["downwardAPI"]["items"] for v in pod["spec"]["volumes"] if "downwardAPI" in v]
    shutil.copytree(installed / "configs", home / "configs", dirs_exist_ok=True)
    for item in items:
        annotation = item["fieldRef"]["fieldPath"].split("'")[1]
        text = here(pod["metadata"]["annotations"][annotation])
        Path(here(paths[item["path"]])).write_bytes(text.encode())
    env = {one["name"]: here(one["value"]) for one in container["env"]}
    return env | {"HOME": str(home), "MILVUSCONF": f"{home}/configs"}


CLIENT = """
from pymilvus import Collection, MilvusClient
client = MilvusClient("http://127.0.0.1:19530")
def fill():
    client.create_collection("films", dimension=4)
    insert(range(100))
    Collection("films", using=client._using).flush()
def insert(ids):
    client.insert("films", [{"id": id, "vector": [id, id, id, 1.0]} for id in ids])
def find():
    client.load_collection("films")
    count = client.query("films", "id >= 0", ["count(*)"], consistency_level="Strong")
    (nearest,) = client.search("films", [[42, 42, 42, 1.0]], limit=1)
    print(count[0]["count(*)"], nearest[0]["id"])
"""
# The variables of the Milvus project's script for Docker, and what its image's milvus.yaml says.
SCRIPT = """
DEPLOY_MODE=STANDALONE ETCD_USE_EMBED=true COMMON_STORAGETYPE=local
ETCD_CONFIG_PATH=HOME/configs/etcd.yaml ETCD_DATA_DIR=HOME/data/etcd
LOCALSTORAGE_PATH=HOME/data/data ROCKSMQ_PATH=HOME/data/rdb_data
"""
QUOTA = "etcd_server_quota_backend_bytes 4.294967296e+09"  # 4 GiB


def answer(port: int, path: str) -> str:
    """What is told at this port; nothing, unless with code 200."""
    url = f"http://127.0.0.1:{port}{path}"
    try:
        response = urllib3.request("GET", url, retries=False, timeout=5)
    except urllib3.exceptions.HTTPError:
        return ""
    return response.data.decode() if response.status == 200 else ""


@contextmanager
def serving(
    installed: Path, home: Path, env: dict[str, str], signum: int = signal.SIGTERM
) -> Iterator[Callable[[str], str]]:
    """A server whose probe passes; yields what runs a user's code. It ends by this signal."""
    env |= {"PATH": f"{installed}/bin:/usr/bin:/bin", "LD_LIBRARY_PATH": f"{installed}/bin"}
    command = ["milvus", "run", "standalone"]
    with (home / "log").open("ab") as log:
        process = subprocess.Popen(command, cwd=home, env=env, stdout=log, stderr=log)
    try:
        eventually(lambda: process.poll() is not None or answer(9091, "/healthz"), 120)
        assert process.poll() is None, (home / "log").read_text()[-2000:]
        yield lambda code: output_of(installed / "venv/bin/python", "-c", CLIENT + code)
        process.send_signal(signum)
        process.wait(60)  # as in a pod
    finally:
        process.kill()
        process.wait()
        Path(f"/tmp/milvus/server_id_{process.pid}").unlink(missing_ok=True)  # left by Milvus


def handed_on(home: Path, env: dict[str, str]) -> dict[str, str]:
    """A server of 2.3 reads neither default.yaml nor user.yaml: it gets them as variables."""
    settings = dict[str, str]()
    for name in ("default.yaml", "user.yaml"):
        settings |= mo.flatten(mo.parse_settings((home / "configs" / name).read_text()))
    for name in env:
        settings.pop(mo.canonical(name), None)
    return settings | env


def test_the_real_server_serves_and_keeps_its_data(installed: Path, tmp_path: Path) -> None:
    pod = new_pod("proxy: {maxNameLength: 20}")
    (container,) = pod["spec"]["containers"]
    assert container["args"] == ["milvus", "run", "standalone"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/healthz", "port": 9091}
    env = handed_on(tmp_path, lay_out(installed, tmp_path, pod))
    with serving(installed, tmp_path, env) as run:
        assert QUOTA in answer(2379, "/metrics")
        with pytest.raises(AssertionError, match="must be less than 20 characters"):
            run("client.create_collection('n' * 21, dimension=4)")
        assert run("fill(); find()") == "100 42\n"
    with serving(installed, tmp_path, env, signal.SIGKILL) as run:
        assert run("find(); insert(range(100, 200))") == "100 42\n", "after SIGTERM"
    with serving(installed, tmp_path, env) as run:
        assert run("find()") == "200 42\n", "after SIGKILL, also what was not flushed"
    assert {"etcd", "data", "rdb_data"} <= {path.name for path in (tmp_path / "data").iterdir()}
    assert {path.name for path in tmp_path.iterdir()} == {"configs", "data", "log"}


def test_data_of_the_milvus_projects_script_is_found(installed: Path, tmp_path: Path) -> None:
    docker, there = tmp_path / "docker", tmp_path / "pod"
    script = dict(one.split("=") for one in SCRIPT.replace("HOME", str(docker)).split())
    env = lay_out(installed, docker, new_pod()) | script
    with serving(installed, docker, env, signal.SIGKILL) as run:
        run("fill()")
    env = handed_on(there, lay_out(installed, there, new_pod()))
    shutil.copytree(docker / "data", there / "data")
    with serving(installed, there, env) as run:
        assert run("find()") == "100 42\n"


# ---------- The settings code of later versions ----------

DEFAULTS = """
etcd.use.embed=true etcd.endpoints=127.0.0.1:2379 etcd.config.path=HOME/configs/etcd.yaml mq.type=rocksmq
common.storageType=local common.gracefulStopTimeout=5 proxy.port=19530 metrics.port=9091
rootCoord.ip=127.0.0.1 dataCoord.ip=127.0.0.1 queryCoord.ip=127.0.0.1 indexCoord.ip=127.0.0.1 proxy.ip=127.0.0.1
dataNode.ip=127.0.0.1 queryNode.ip=127.0.0.1 indexNode.ip=127.0.0.1 streamingNode.ip=127.0.0.1
etcd.data.dir=HOME/data/etcd localStorage.path=HOME/data/data rocksmq.path=HOME/data/rdb_data
natsmq.server.storeDir=HOME/data/nats woodpecker.storage.rootPath=HOME/data/woodpecker
"""
# In milvusSpec, as variables; then the storage, whether etcd is embedded, and the queue.
SERVICES: list[tuple[str, dict[str, str], str]] = [
    ("minio.address: s3.example.com", {}, "remote true rocksmq"),
    ("milvus: {minio: {address: s3.example.com}}", {}, "remote true rocksmq"),
    ("etcd: {endpoints: ['a:2379', 'b:2379']}", {}, "local false rocksmq"),
    ("kafka: {brokerList: 'kafka:9092'}", {}, "local true kafka"),
    ("pulsar_address: pulsar", {}, "local true pulsar"),
    ("minio.address: localhost\nkafka.brokerList: '127.0.0.1:9092'", {}, "local true rocksmq"),
    ("", {"MINIO_ADDRESS": "s3.example.com"}, "remote true rocksmq"),
    ("", {"MILVUS_CONF_ETCD_ENDPOINTS": "a:2379"}, "local false rocksmq"),
    ("pulsar.address: pulsar", {"PULSAR_ADDRESS": "localhost"}, "local true rocksmq"),
]

# What an owner may write, and no YAML parser of Milvus may choke on: it would drop all of its files.
ODD = [
    "a: 1\na_b: 2\nA.c: 3\n1: a\n2.5: b\ntrue: c\nnull: d\n~: e\na b: d e f\n'x: y': z",
    "a: ~\nb: null\nc:\nd: ''\ne: [1, two, 3.0, null, on, ~]\nf: []\ng: {}",
    "a: on\nb: Y\nc: oFF\nd: 'no'\ne: =\nf: <<\ng: '*x'\nh: '&y'\ni: '!z'",
    "a: 0o17\nb: 017\nc: 0x1F\nd: 0b11\ne: 1_000\nf: +12\ng: -0\nh: 123456789012345678901234567890",
    "a: .inf\nb: -.INF\nc: .nan\nd: 1e3\ne: 1.5e+300\nf: 1e400\ng: 12:30:45\nh: 190:20:30.15",
    "a: 2001-12-14t21:59:43.10-05:00\nb: 2002-12-14\nc: 2002-99-99\nd: 127.0.0.1:2379",
    "# by hand\r\na: 1\r\nb:\r\n  c: 2\r\n",
    "\ufeffa: 1\nb: 2",
    "---\na: 1\n...\n",
    "--- # a comment\na: &anchor 1\nb: &other {c: 2}",
    "a: |\n  two\n  lines\nb: >-\n  a\n  b\nc: |2+\n    more\n\n",
    "a: 'it''s'\nb: \"tab\\t \\u263a \\x41 \\N\"\n名前: é😀\né: 1\nc: $(HOME) $$ ${X} {{y}} %s `z`",
    "? a\n: 1\n? b\n:\n  c: 2\nd:\n- 1\n-  two\ne:\n  - x",
    '{"a":1,"b":{"c":"d"}, e: {c: [2, 3], d: }, f}',
    "a: b#c\nb: 'x' # y\nc: x - y\nd:    1\ne:\t2",
    "a: " + "x" * 30_000,
    "{a: " * 50 + "1" + "}" * 50,
    "path: /nowhere\nhome: /nowhere\nld_library_path: /nowhere",
    "# only a comment",
    "{}",
    "these words set nothing",
]


@pytest.fixture(scope="session", params=["v2.6.20", "v3.0.0"])
def read(request: Any, installed: Path, tmp_path_factory: Any) -> Read:
    """Reads settings as this version of Milvus does in a pod, by its own code."""
    version, major = request.param, request.param[:2]
    home = tmp_path_factory.mktemp(major)
    folder = caches() / f"milvus-settings-{version}"
    folder.mkdir(exist_ok=True)
    source = (HERE / "milvus_settings.go.txt").read_text().replace("VERSION/", f"{major}/")
    required = f"github.com/milvus-io/milvus/pkg/{major} {version}"
    (folder / "main.go").write_text(source)
    (folder / "go.mod").write_text(f"module settings\ngo 1.26\nrequire {required}\n")
    env = os.environ | GO_ENV | {"GOFLAGS": "-mod=mod"}
    output_of(find_go(), "mod", "tidy", cwd=folder, env=env)
    output_of(find_go(), "build", "-o", "settings", ".", cwd=folder, env=env)

    def read(pod: Obj, *names: str) -> dict[str, str]:
        output_of(folder / "settings", *names, cwd=home, env=lay_out(installed, home, pod))
        return dict(json.loads((home / "settings.json").read_text().replace(str(home), "HOME")))

    return read


def test_each_default_of_ours_holds_over_a_stock_file(read: Read) -> None:
    expected = dict(one.split("=") for one in DEFAULTS.split())
    assert mo.DEFAULTS.keys() <= expected.keys(), "this test lacks a default"
    found = read(new_pod(), "/metrics", *expected)
    assert QUOTA in found.pop("/metrics"), "the embedded etcd reads its file"
    assert found == expected


def test_user_yaml_of_yaml_1_1_wins_over_ours_and_a_variable_over_both(read: Read) -> None:
    text = "common: {gracefulStopTimeout: 9, security.authorizationEnabled: on}\n"
    text += "proxy: {maxNameLength: 20, ginLogSkipPaths: [a, b], accessLog.enable: y}"
    expected = {"common.gracefulStopTimeout": "9", "proxy.ginLogSkipPaths": "a,b"}
    words = ("common.security.authorizationEnabled", "proxy.accessLog.enable")
    expected |= dict.fromkeys(words, "true")
    variables = {"proxy.maxNameLength": "30", "mq.type": "kafka"}
    found = read(new_pod(text, **variables), *expected, *variables)
    assert found == expected | variables


def test_an_address_outside_the_pod_is_all_that_chooses_a_service(read: Read) -> None:
    for text, variables, expected in SERVICES:
        found = read(new_pod(text, **variables), "common.storageType", "etcd.use.embed", "mq.type")
        assert " ".join(found.values()) == expected, (text, variables)


def test_no_text_that_is_accepted_makes_milvus_drop_its_files(read: Read) -> None:
    """Then our defaults would be gone, too: for such a server, the data lies elsewhere."""
    for text in ODD:
        assert read(new_pod(text), "mq.type") == {"mq.type": "rocksmq"}, text


def test_texts_that_are_refused_would_turn_a_login_off(read: Read) -> None:
    login = "common.security.authorizationEnabled"
    text = "common: {security: {authorizationEnabled: true}}\n"
    pod = new_pod(text)
    assert read(pod, login) == {login: "true"}
    for more in ("common: {other: 1}", "a: !!int abc"):
        with pytest.raises(mo.InvalidSpec):
            new_pod(text + more)
        pod["metadata"]["annotations"]["zilliz.com/user.yaml"] = text + more
        assert read(pod, login) != {login: "true"}, more
