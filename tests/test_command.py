"""The command as a process, its configuration, and what else it serves over HTTP."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import urllib3
import yaml
from kubernetes.config import incluster_config

import milvus_operator as mo
from tests.server import NAMESPACE, Server
from tests.world import World, eventually, milvus

TOP = Path(mo.__file__).parent
Run = Callable[..., subprocess.Popen[str]]


class Handler(BaseHTTPRequestHandler):
    """Hands requests on to the server in memory."""

    memory: Server
    protocol_version = "HTTP/1.1"

    def handle_request(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        response = self.memory.request(self.command, self.path, body)
        self.send_response_only(response.status)
        self.send_header("Content-Length", str(len(response.data)))
        self.end_headers()
        self.wfile.write(response.data)

    do_GET = do_POST = do_PATCH = do_DELETE = handle_request


@pytest.fixture
def world() -> World:
    return World(milvus(replicas=2))


@pytest.fixture
def kubeconfig(world: World, tmp_path: Path) -> Iterator[Path]:
    """A kubeconfig for the server in memory."""
    handler = type("Here", (Handler,), {"memory": world.server})
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=http.serve_forever, args=[0.01], daemon=True).start()
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(new_config(f"http://127.0.0.1:{http.server_port}")))
    yield path
    http.shutdown()
    http.server_close()


def new_config(server: str) -> Any:
    context = {"cluster": "a", "user": "a", "namespace": NAMESPACE}
    return {
        "current-context": "a",
        "contexts": [{"name": "a", "context": context}, {"name": "b", "context": context}],
        "clusters": [{"name": "a", "cluster": {"server": server}}],
        "users": [{"name": "a", "user": {"token": "secret"}}],
    }


@pytest.fixture
def run(kubeconfig: Path) -> Iterator[Run]:
    """Starts the command; it is killed after the test."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str, **variables: str) -> subprocess.Popen[str]:
        env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "KUBECONFIG": str(kubeconfig)}
        command = [sys.executable, str(TOP / "milvus_operator.py"), *arguments]
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, env=env | variables, **pipes))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def end_of(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code, and all that was printed."""
    out, err = process.communicate(timeout=30)
    return process.returncode, out + err


# --- Options and exit codes ---

WRONG = [
    (["--nonsense"], "No such option"),
    (["-A", "-n", "a"], "-A cannot be combined with -n or MILVUS_OPERATOR_NAMESPACE"),
    (["--interval", "0"], "0.0 is not in the range"),
    (["--workers", "0"], "0 is not in the range"),
    (["--context", "missing"], "cannot use the kubeconfig"),
    (["--kubeconfig", "/nonexistent"], "cannot use the kubeconfig /nonexistent"),
    (["--health-port", "70000"], "70000 is not in the range"),
]


@pytest.mark.parametrize(("arguments", "text"), WRONG)
def test_wrong_usage_ends_with_code_2_and_one_clear_line(
    run: Run, arguments: list[str], text: str
) -> None:
    code, said = end_of(run(*arguments))
    assert code == 2
    assert text in said
    assert "Traceback" not in said


def test_every_option_is_in_the_help(run: Run) -> None:
    code, said = end_of(run("-h"))
    assert code == 0
    documented = "-n -A --interval --once --dry-run --kubeconfig --context --timeout --workers"
    documented += " --health-port --log-format -v --version -h"
    assert [option for option in documented.split() if option not in said] == []
    assert end_of(run("--version")) == (0, f"milvus-polling-operator {mo.__version__}\n")


def test_once_makes_the_pods_and_ends_with_0(run: Run, world: World) -> None:
    code, said = end_of(run("--once"))
    assert (code, world.names()) == (0, ["x-0", "x-1"])
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ INFO ", said)


def test_once_ends_with_1_when_something_failed(run: Run, world: World) -> None:
    world.server.reject("create pods", 403, "forbidden\x1b[31m\x9b\nfor you")
    code, said = end_of(run("--once"))
    assert code == 1
    assert "WARNING milvus test/x: forbidden [31m for you" in said


def test_a_dry_run_ends_with_0_and_writes_nothing(run: Run, world: World) -> None:
    code, said = end_of(run("--dry-run"))
    assert (code, world.names()) == (0, [])
    assert "created pod x-0, pod x-1, service x (dry run)" in said


def test_options_are_variables_too_and_log_lines_can_be_json(run: Run) -> None:
    variables = {
        "MILVUS_OPERATOR_ONCE": "1",
        "MILVUS_OPERATOR_LOG_FORMAT": "json",
        "MILVUS_OPERATOR_NAMESPACE": f"another, {NAMESPACE}",
    }
    code, said = end_of(run(**variables))
    assert code == 0
    lines = [json.loads(line) for line in said.splitlines()]
    assert "another, test, every 5 s" in lines[0]["message"]
    about = next(line for line in lines if "created pod x-0, pod" in line["message"])
    assert (about["namespace"], about["name"], about["level"]) == (NAMESPACE, "x", "INFO")


def test_all_namespaces_are_listed_at_once(run: Run, world: World) -> None:
    assert end_of(run("-A", "--once"))[0] == 0
    listed = [request for request in world.server.journal if request.verb == "list"]
    assert {request.namespace for request in listed} == {""}


def test_sigterm_ends_it_at_once_even_while_a_request_hangs(run: Run, world: World) -> None:
    over = threading.Event()
    world.server.when("list pods", lambda request: over.wait(20) and None)
    process = run()
    eventually(lambda: world.server.journal)
    started = time.monotonic()
    process.send_signal(signal.SIGTERM)
    code, said = end_of(process)
    over.set()
    assert code == 0
    assert time.monotonic() - started < 10
    assert "Traceback" not in said


# --- Health and metrics ---


def test_health_and_metrics_are_served(run: Run, world: World) -> None:
    world.server.reject("list services", 500, "not yet")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    in_a_pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}  # there, it listens on all addresses
    run("--health-port", str(port), "--interval", "0.1", **in_a_pod)

    def get(path: str) -> tuple[int, str]:
        try:
            response = urllib3.request("GET", f"http://127.0.0.2:{port}{path}", retries=False)
        except urllib3.exceptions.HTTPError:
            return 0, ""
        return response.status, response.data.decode()

    eventually(lambda: get("/healthz") == (200, "OK\n"))
    failure = 'milvus_operator_passes_total{result="failure"}'
    eventually(lambda: failure in get("/metrics")[1])
    assert get("/readyz")[0] == 503
    assert get("/other")[0] == 404
    world.server.rules.clear()
    eventually(lambda: get("/readyz") == (200, "OK\n"))
    sample = 'milvus_operator_milvus_state{name="x",namespace="test",state="progressing"} 1.0'
    eventually(lambda: sample in get("/metrics")[1])


def test_after_an_outage_it_stays_with_the_context_that_it_began_with(
    run: Run, world: World, kubeconfig: Path
) -> None:
    process = run("--interval", "0.1", "-v")
    eventually(world.names)
    config = yaml.safe_load(kubeconfig.read_text())
    config["contexts"][1]["context"] = {"cluster": "dead", "user": "a"}
    config["clusters"].append({"name": "dead", "cluster": {"server": "http://127.0.0.1:1"}})
    kubeconfig.write_text(yaml.safe_dump(config | {"current-context": "b"}))
    world.server.reject("list", 401, "log in", times=1)
    eventually(lambda: not any(times for _, _, times in world.server.rules))
    world.remove("pods", "x-0")
    eventually(lambda: "x-0" in world.names())
    assert process.poll() is None


# --- The configuration ---

MALFORMED: dict[str, Callable[[Any], Any]] = {
    "no cluster": lambda config: config | {"clusters": []},
    "a cluster without a server": lambda config: config | {"clusters": [{"name": "a"}]},
    "no current context": lambda config: config | {"current-context": None},
    "a plugin that is missing": lambda config: (
        config | {"users": [{"name": "a", "user": {"exec": {"command": "/nonexistent"}}}]}
    ),
    "text": lambda config: "secret",
    "nothing": lambda config: None,
}


@pytest.mark.parametrize("change", MALFORMED)
def test_a_configuration_that_cannot_be_used_is_one_line_without_secrets(
    tmp_path: Path, change: str
) -> None:
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(MALFORMED[change](new_config("http://127.0.0.1:1"))))

    def use() -> None:
        client = mo.connect(str(path), None, 1).client
        mo.Api(client).list_all(mo.pods(client), "a")

    with pytest.raises((mo.Unusable, mo.ApiError)) as error:
        use()
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)


def test_the_context_chooses_the_namespace(tmp_path: Path) -> None:
    config = new_config("http://127.0.0.1:1")
    config["contexts"][1]["context"] = {"cluster": "a", "user": "a"}
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(config))
    assert mo.connect(str(path), None, 1)[1:] == (NAMESPACE, "a")
    assert mo.connect(str(path), "b", 1)[1:] == ("default", "b")


def test_in_a_pod_its_service_account_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {"token": "t0ken", "ca.crt": "ca", "namespace": "vectors\n"}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(mo, "NAMESPACE_FILE", str(tmp_path / "namespace"))
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(mo, "new_client", lambda configuration, workers: configuration)
    configuration, namespace, context = mo.connect(None, None, 1)
    assert (configuration.host, namespace, context) == ("https://10.0.0.1:443", "vectors", None)  # type: ignore[attr-defined]


def test_other_programs_can_use_the_resources(world: World) -> None:
    listed = mo.milvuses(world.client()).get(namespace=NAMESPACE)
    assert [item.metadata.name for item in listed.items] == ["x"]
    world.passes()
    pods = mo.pods(world.client()).get(namespace=NAMESPACE)
    assert [item.metadata.name for item in pods.items] == ["x-0", "x-1"]
