"""The command: its options, its exit codes, its log, and the one line that each failure gets."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

import milvus_operator as mo
from local.controlplane import free_ports
from tests.lib.kit import TOP, Command, Kube, eventually, http_get, kubeconfig, operator_of
from tests.lib.wire import Handler, Wire

Start = Callable[..., Command]
NOWHERE = "http://127.0.0.1:1"  # where nobody listens


def fails(process: Command, code: int, *texts: str) -> None:
    """It exits with this code, logs each text on exactly one line, and shows no traceback."""
    assert process.end() == code, process.log
    for text in texts:
        assert len([line for line in process.log.splitlines() if text in line]) == 1, process.log
    assert "Traceback" not in process.log


@pytest.fixture
def nowhere(tmp_path: Path) -> str:
    """A kubeconfig for a server that nobody runs."""
    part = {"clusters": {"server": NOWHERE}, "users": {"token": "secret"}}
    part |= {"contexts": {"cluster": "a", "user": "a", "namespace": "its-own"}}
    content = {key: [{"name": "a", key[:-1]: value}] for key, value in part.items()}
    (tmp_path / "nowhere").write_text(yaml.safe_dump(content | {"current-context": "a"}))
    return str(tmp_path / "nowhere")


# --- Options ---
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("-A -n a", "-A/--all-namespaces can't be combined with -n/--namespace"),
        ("--interval 0", "must be a number of seconds greater than 0"),
        ("--interval -1", "must be a number of seconds greater than 0"),
        ("--interval nan", "must be a number of seconds greater than 0"),
        ("--interval inf", "must be a number of seconds greater than 0"),
        ("--interval soon", "'soon' is not a valid float"),
        ("--timeout 0", "must be a number of seconds greater than 0"),
        ("--workers 0", "0 is not in the range 1<=x<=256"),
        ("--health-port 70000", "70000 is not in the range"),
        ("--log-format xml", "'xml' is not one of 'text', 'json'"),
        ("-n ../x", "'../x' is not a valid namespace name"),
        ("-n=", "'=' is not a valid namespace name"),
        ("--bogus", "No such option"),
        ("surplus", "Got unexpected extra argument (surplus)"),
    ],
)
def test_wrong_usage_exits_2(arguments: str, message: str) -> None:
    done = CliRunner().invoke(mo.main, arguments)
    assert done.exit_code == 2
    assert message in done.output


def test_every_option_reads_its_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in (
        "NAMESPACE=a b", "ALL_NAMESPACES=1", "INTERVAL=7", "ONCE=1", "DRY_RUN=1", "KUBECONFIG=/a",
        "CONTEXT=b", "TIMEOUT=8", "WORKERS=9", "HEALTH_PORT=10", "LOG_FORMAT=json", "VERBOSE=1",
    ):  # fmt: skip
        name, _, value = setting.partition("=")
        monkeypatch.setenv(f"MILVUS_OPERATOR_{name}", value)
    assert mo.main.make_context("milvus_operator.py", []).params == {
        "namespaces": ("a", "b"), "all_namespaces": True, "interval": 7, "once": True,
        "dry_run": True, "kubeconfig": "/a", "context": "b", "timeout": 8, "workers": 9,
        "health_port": 10, "log_format": "json", "verbose": True,
    }  # fmt: skip


@pytest.mark.platform
def test_version_and_help() -> None:
    def said(option: str) -> str:
        command = [sys.executable, str(TOP / "milvus_operator.py"), option]
        return subprocess.run(command, capture_output=True, text=True).stdout

    assert said("--version") == f"milvus-polling-operator {mo.__version__}\n"
    assert said("-h") == said("--help")
    assert said("--help").startswith("Usage: milvus_operator.py [OPTIONS]")


@pytest.mark.parametrize(
    ("arguments", "variable", "managed"),
    [
        ("", None, "namespace its-own"),
        ("-n b -n a -n b", None, "namespace b, namespace a"),
        ("", "a,b", "namespace a, namespace b"),
        ("", "a, b a", "namespace a, namespace b"),
        ("", "", "all namespaces"),  # as OLM sets it
        ("-n a", "", "namespace a"),
        ("-A", None, "all namespaces"),
    ],
)
def test_it_manages_the_namespaces_that_it_is_given(
    nowhere: str, arguments: str, variable: str | None, managed: str
) -> None:
    """By default that of the kubeconfig's context."""
    env = {} if variable is None else {"MILVUS_OPERATOR_NAMESPACE": variable}
    process = Command("--once", "--kubeconfig", nowhere, *arguments.split(), env=env)
    assert process.end() == 1
    start = f"milvus-polling-operator {mo.__version__}: {managed}, once, server {NOWHERE}\n"
    assert process.log.splitlines(keepends=True)[0].endswith(start)


# --- What it does, and what it logs ---
@pytest.mark.platform
def test_once_creates_what_is_missing_and_exits_0(kube: Kube, command: Start) -> None:
    kube.create(replicas=3)
    process = command("--once", "--workers", "1")
    assert process.end() == 0, process.log
    assert kube.names() == ["x-0", "x-1", "x-2"]
    assert kube.status()["pods"] == kube.names()
    lines = [line.partition("INFO    ")[2] for line in process.log.splitlines()]
    assert [line for line in lines if "created pod" in line] == [
        f"created pod {kube.ns}/x-{number}" for number in range(3)
    ]
    done = "pass over 1 Milvus resource(s) and 0 pod(s): 3 created, "
    assert lines[4].startswith(done), process.log


def test_once_exits_1_if_a_milvus_could_not_be_served(kube: Kube, command: Start) -> None:
    kube.create_pod("x-0")
    kube.create("x")
    kube.create("y")
    conflict = "NameConflict: pod x-0 already exists and has no controller, so the operator does not touch it"
    fails(command("--once"), 1, f"WARNING milvus {kube.ns}/x: {conflict}")
    assert kube.names() == ["x-0", "y-0"]


@pytest.mark.platform
def test_it_runs_until_sigterm_and_exits_0(kube: Kube, command: Start) -> None:
    process = command("--interval", "0.2")
    process.says("a pass every 0.2 s")
    kube.create()
    kube.ready("x-0")
    eventually(lambda: kube.condition("Ready").get("status") == "True")
    assert process.stop() == 0
    assert process.log.endswith("INFO    stopped\n")


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(kube: Kube, command: Start) -> None:
    kube.create(replicas=2, storage={"size": "1Gi"})
    assert command("--once").end() == 0
    kube.change(replicas=1)
    kube.create("y", storage={"size": "1Gi"})
    before = kube.uids(), kube.status(), kube.kubectl("get", "pvc", "-o", "name")
    process = command("--once", "--dry-run")
    assert process.end() == 0, process.log
    assert "(dry run)" in process.log.splitlines()[0]
    for done in ("deleted pod {}/x-1", "created claim {}/data-y-0", "created pod {}/y-0"):
        assert re.search(rf"{done.format(kube.ns)}.* \(dry run\)\n", process.log), process.log
    assert before == (kube.uids(), kube.status(), kube.kubectl("get", "pvc", "-o", "name"))
    assert kube.status("y") == {"observedGeneration": -1}


def test_verbose_logs_the_passes_that_did_nothing(command: Start) -> None:
    quiet, verbose = command("--once"), command("--once", "-v")
    assert (quiet.end(), verbose.end()) == (0, 0)
    assert "pass over" not in quiet.log
    assert "DEBUG   pass over 0 Milvus resource(s) and 0 pod(s): nothing written" in verbose.log


@pytest.mark.platform
def test_log_lines_as_json(kube: Kube, command: Start) -> None:
    kube.create()
    kube.create("bad", milvusSpec="proxy.port: 1")
    process = command("--once", "--log-format", "json")
    assert process.end() == 1
    lines = [json.loads(line) for line in process.log.splitlines()]
    for line in lines:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("timestamp"))
        assert line.pop("message")
    about = sorted((line for line in lines if "milvus" in line), key=lambda line: str(line))
    assert about == [
        {"level": "INFO", "namespace": kube.ns, "milvus": "x", "pod": "x-0"},
        {"level": "WARNING", "namespace": kube.ns, "milvus": "bad"},
    ]


def test_nothing_secret_is_logged(kube: Kube, command: Start) -> None:
    """Logs, metrics, events and statuses show neither spec.milvusSpec nor the token."""
    port = free_ports(1)[0]
    kube.create("a", milvusSpec="minio: {secretAccessKey: hunter2}\n# hunter2")
    kube.create("b", milvusSpec="hunter2: [{hunter2: hunter2}]")
    kube.create("c", milvusSpec="hunter2: &hunter2 hunter2\nhunter2: *hunter2")
    kube.create("d", milvusSpec="hunter2: [")
    kube.create("e", milvusSpec="this is hunter2")
    kube.create("f", milvusSpec="{minio.secretAccessKey=hunter2}")
    token = yaml.safe_load(kube.plane.kubeconfig().read_text())["users"][0]["user"]["token"]
    process = command("-v", "--health-port", str(port), "--interval", "0.3")
    eventually(lambda: all("pods" in kube.status(name) for name in "abcdef"))
    told = [http_get(port, "/metrics")[1], kube.kubectl("get", "events", "-o", "yaml")]
    told += [json.dumps(kube.status(name)) for name in "abcdef"]
    assert process.stop() == 0
    for text in [*told, process.log]:
        assert "hunter2" not in text
        assert token not in text


WORDS = [
    "system:anonymous",
    "cannot set blockOwnerDeletion",
    'x: User "system:anonymous" cannot create resource "pods" in API group ""',
    "\x1b[2J\x1b]0;owned\x07\x9b31m",
]


def test_a_users_words_are_not_the_servers_and_control_no_terminal(
    kube: Kube, command: Start
) -> None:
    for number, words in enumerate(WORDS):
        kube.create(f"a{number}", pod={"spec": {"dnsPolicy": words}})
        kube.create(f"b{number}", pod={"spec": {"priorityClassName": words}})
    process = command("--once")
    assert process.end() == 1
    assert process.log.count("WARNING") == 2 * len(WORDS), process.log
    assert "ERROR" not in process.log, "no Milvus is an outage"
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", process.log)


def test_a_message_is_one_line_without_control_characters() -> None:
    record = mo.log.makeRecord("", 20, "", 0, "%s", ("one\n  two\r\n\x1b[2J\x9bthree\x07",), None)
    assert mo.text_line(record).endswith("INFO    one two [2J three ")
    assert json.loads(mo.json_line(record))["message"].startswith("one\n  two")
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", mo.json_line(record))


def test_nothing_is_left_in_the_temporary_folder(command: Start, tmp_path: Path) -> None:
    process = command("-v", env={"TMPDIR": str(tmp_path)})
    process.says("pass over")
    assert process.stop() == 0
    assert list(tmp_path.iterdir()) == []


# --- No usable configuration ---
def test_no_kubeconfig_says_how_to_give_one() -> None:
    advice = "give one with --kubeconfig or KUBECONFIG"
    fails(Command(), 2, f"Error: no kubeconfig at /nonexistent/.kube/config: {advice}")
    fails(Command("--kubeconfig", "/nowhere"), 2, f"Error: no kubeconfig at /nowhere: {advice}")


def test_an_unknown_context_exits_2(nowhere: str) -> None:
    process = Command("--kubeconfig", nowhere, "--context", "nope", "--once")
    fails(process, 2, f"Error: cannot use {nowhere}: ")
    assert "nope" in process.log


def malformed(folder: Path, content: str) -> mo.Unusable:
    """What it says about a kubeconfig with this content."""
    (folder / "config").write_text(content)
    with pytest.raises(mo.Unusable) as raised:
        mo.connect(str(folder / "config"), 1, None)
    assert str(folder / "config") in raised.value.message
    assert "\n" not in raised.value.message
    assert raised.value.exit_code == 2
    return raised.value


@pytest.mark.parametrize(
    "content", ["", "text", "a: [", "{}", "[1]", "\0", "clusters: 7", "current-context: x"]
)
def test_a_file_that_is_not_a_kubeconfig_is_named(tmp_path: Path, content: str) -> None:
    malformed(tmp_path, content)


def test_a_kubeconfig_that_is_half_written_is_named(nowhere: str, tmp_path: Path) -> None:
    """Wherever it ends; a part of it may be a kubeconfig, if only its last value is cut."""
    whole = Path(nowhere).read_text()
    for end in range(0, len(whole) - 20, 7):
        with contextlib.suppress(pytest.fail.Exception):
            malformed(tmp_path, whole[:end])


@pytest.mark.parametrize(
    ("old", "new"),
    [(NOWHERE, "nonsense"), (NOWHERE, "ftp://x"), (NOWHERE, "https://"),
     (NOWHERE, "https://127.0.0.1:1\n    certificate-authority-data: bm9uZQ==")],
)  # fmt: skip
def test_malformed_certificates_and_addresses_are_named(
    nowhere: str, tmp_path: Path, old: str, new: str
) -> None:
    content = Path(nowhere).read_text()
    assert old in content
    malformed(tmp_path, content.replace(old, new))


def test_a_kubeconfig_that_cannot_be_read_exits_2(tmp_path: Path) -> None:
    fails(Command("--kubeconfig", str(tmp_path)), 2, f"Error: cannot use {tmp_path}: ")
    if os.geteuid() == 0:  # root can read everything, but nobody can read a loop of links
        (tmp_path / "config").symlink_to(tmp_path / "config")
    else:
        (tmp_path / "config").touch(mode=0)
    fails(Command("--kubeconfig", str(tmp_path / "config")), 2, f"{tmp_path}/config: ")


# --- A server that does not answer, or refuses ---
def test_an_unreachable_server_is_told_once_and_retried(
    kube: Kube, command: Start, tmp_path: Path, wire: Wire
) -> None:
    file = kubeconfig(tmp_path / "config", kube.plane, server=wire.url)
    refused = list[str]()

    def fault(handler: Handler, verb: str, path: str) -> bool:
        if len(refused) == 2:
            return False
        refused.append(path)
        handler.reset()
        return True

    wire.fault = fault
    kube.create()
    process = command("--kubeconfig", file, "--interval", "0.1")
    process.says(f"ERROR   requests to {wire.url} fail: ")
    process.says(f"INFO    resolved: requests to {wire.url} fail\n")
    kube.ready("x-0")
    assert process.stop() == 0
    assert process.log.count("ERROR") == 1, process.log


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (NOWHERE, "Failed to establish a new connection: [Errno 111] Connection refused"),
        ("https://no-such-host.invalid", "Failed to resolve"),
    ],
)
def test_an_unreachable_server_with_once_exits_1(
    nowhere: str, tmp_path: Path, server: str, words: str
) -> None:
    (tmp_path / "config").write_text(Path(nowhere).read_text().replace(NOWHERE, server))
    process = Command("--kubeconfig", str(tmp_path / "config"), "--once")
    fails(process, 1, f"ERROR   requests to {server} fail: {words}")


@pytest.mark.parametrize("token", ["a\nb", "\u2603"])
def test_a_token_that_is_not_valid_in_a_header_is_not_shown(
    kube: Kube, command: Start, tmp_path: Path, token: str
) -> None:
    file = kubeconfig(tmp_path / "config", kube.plane, token=f"secret{token}")
    process = command("--kubeconfig", file, "--once")
    fails(process, 1, "the credentials contain characters that are not allowed in an HTTP header")
    assert "secret" not in process.log


def test_missing_rights_are_told_once_for_all_objects(kube: Kube, command: Start) -> None:
    nobody = str(kube.plane.kubeconfig("nobody"))
    right = "not allowed to list pods in namespace {}: add this permission to the operator's role"
    fails(command("--once", "--kubeconfig", nobody), 1, right.format(kube.ns))
    kube.kubectl("create", "role", "r", "--verb=list", "--resource=pods,milvuses.zilliz.com")
    kube.kubectl("create", "rolebinding", "r", "--role=r", "--user=nobody")
    for name in "abc":
        kube.create(name, replicas=2)
    process = command("--once", "--kubeconfig", nobody)
    fails(process, 1, f"not allowed to create pods in namespace {kube.ns}: add this permission",
          f"not allowed to patch milvuses/status in namespace {kube.ns}: add")  # fmt: skip
    assert "WARNING" not in process.log


def test_a_namespace_that_does_not_exist_is_empty_as_for_kubectl(
    kube: Kube, command: Start
) -> None:
    kube.create()
    process = command("--once", "-n", "nowhere", "-n", kube.ns)
    assert process.end() == 0, process.log
    assert "ERROR" not in process.log
    assert kube.names() == ["x-0"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda handler: handler.answer(200, b"<html>", "text/html"), "the response is not a list"),
        (lambda handler: handler.answer(200, b'{"items": [{'), "the response is not JSON"),
        (lambda handler: handler.wire.over.wait(3), "Read timed out."),
    ],
    ids=["HTML", "cut short", "nothing"],
)
def test_a_list_that_failed_is_not_an_empty_list(
    kube: Kube, command: Start, tmp_path: Path, wire: Wire, answer: Any, message: str
) -> None:
    kube.create(replicas=2)
    assert command("--once").end() == 0
    before = kube.uids()

    def fault(handler: Handler, verb: str, path: str) -> bool:
        if "/pods" in path:
            answer(handler)
        return "/pods" in path

    wire.fault = fault
    file = kubeconfig(tmp_path / "config", kube.plane, server=wire.url)
    fails(command("--kubeconfig", file, "--once", "--timeout", "1"), 1, message)
    assert kube.uids() == before
    assert not [request for request in wire.requests if request.verb != "GET"]


def test_a_request_is_sent_once_because_the_next_pass_is_the_retry(
    kube: Kube, tmp_path: Path, wire: Wire
) -> None:
    asked = []

    def fault(handler: Handler, verb: str, path: str) -> bool:
        asked.append(path)
        handler.reset()
        return True

    wire.fault = fault
    operator = operator_of(kubeconfig(tmp_path / "config", kube.plane, server=wire.url), kube)
    started = time.monotonic()
    assert len(operator.run_pass().outages) == 1
    assert len(asked) == 1
    assert time.monotonic() - started < 20
