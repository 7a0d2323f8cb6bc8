"""The command: its options, its exit codes, its log, and the one line that each failure gets."""

import base64
import json
import re
import shlex
from pathlib import Path
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

import milvus_operator as mo
from local.controlplane import free_ports
from tests.lib.kit import Command, Start, eventually, http_get
from tests.lib.wire import Api, write_kubeconfig
from tests.lib.world import milvus

NOWHERE = "https://127.0.0.1:1"  # where nobody listens


def fails(process: Command, code: int, words: str) -> None:
    """It exits with this code, and has one line with these words, and no traceback."""
    assert process.end() == code, process.log
    assert process.log.count(words) == 1, process.log
    assert "Traceback" not in process.log


# --- Options ---
@pytest.mark.platform
def test_wrong_usage_exits_2_and_its_questions_are_answered() -> None:
    for arguments, code, message in (
        ("-A -n a", 2, "-A cannot be combined with -n"),
        ("--namespace=", 2, "-n needs the name of a namespace; for all of them, use -A"),
        ("--interval nan", 2, "must be a number of seconds greater than 0"),
        ("--timeout 0", 2, "must be a number of seconds greater than 0"),
        ("--workers 0", 2, "0 is not in the range 1<=x<=256"),
        ("--health-port 70000", 2, "70000 is not in the range"),
        ("--version", 0, f"milvus-polling-operator {mo.__version__}\n"),
        ("-h", 0, "Keep the pods of every Milvus resource running."),
    ):
        done = CliRunner().invoke(mo.main, arguments)
        assert done.exit_code == code
        assert message in done.output


def test_every_option_reads_its_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    options = "namespace all_namespaces interval once dry_run kubeconfig context timeout workers"
    names = f"{options} health_port log_format verbose".split()
    for name in names:
        value = "json" if name == "log_format" else "1"
        monkeypatch.setenv(f"MILVUS_OPERATOR_{name.upper()}", value)
    found = mo.main.make_context("milvus_operator.py", []).params
    assert found.keys() == {*names}
    for name, value in found.items():
        assert value in (1, "1", ("1",), "json"), name


@pytest.mark.parametrize(
    ("arguments", "variable", "managed"),
    [
        ("", None, "namespace test"),  # of the kubeconfig's context
        ("-n b -n a -n b", None, "namespace b, namespace a"),
        ('-n "b, a" -n b', None, "namespace b, namespace a"),
        ("", "a,b", "namespace a, namespace b"),
        ("", "a, b", "namespace a, namespace b"),
        ("", "", "all namespaces"),
        ("-A", None, "all namespaces"),
    ],
)
def test_it_manages_the_namespaces_that_it_is_given(
    tmp_path: Path, arguments: str, variable: str | None, managed: str
) -> None:
    env = {} if variable is None else {"MILVUS_OPERATOR_NAMESPACE": variable}
    file = write_kubeconfig(tmp_path / "config", NOWHERE)
    process = Command("--once", "--kubeconfig", file, *shlex.split(arguments), env=env)
    fails(process, 1, f"requests to {NOWHERE} fail: ")
    start = f"milvus-polling-operator {mo.__version__}: {managed}, every 5 s, server {NOWHERE}\n"
    assert start in process.log


# --- What it does, and what it logs ---
@pytest.mark.platform
def test_log_lines_as_json_and_a_dry_run_that_sends_only_dry_runs(api: Api) -> None:
    api.world.add(milvus("x"))
    api.world.add(milvus("bad", milvusSpec="proxy.port: 1"))
    process = Command("--once", "--dry-run", "--log-format=json", "--kubeconfig", api.kubeconfig())
    assert process.end() == 1
    levels = {}
    for text in process.log.splitlines():
        line = json.loads(text)
        levels[line["message"]] = line["level"]
        about = re.match("milvus (.*?)/(.*?):", line["message"])
        assert (line.get("namespace"), line.get("name")) == (
            about.groups() if about else (None, None)
        )
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["timestamp"])
    assert levels["milvus test/x: created pod x-0 (dry run)"] == "INFO"
    assert "WARNING" in levels.values()
    assert api.world.pods() == []


@pytest.mark.platform
def test_health_is_served_until_sigterm_and_nothing_secret_is_shown(api: Api, start: Start) -> None:
    """Logs, metrics, events and statuses show neither spec.milvusSpec nor the token."""
    secrets = ["minio: {secretAccessKey: hunter2}", "hunter2: [", "this is hunter2", "{a=hunter2}"]
    names = [f"m{number}" for number in range(len(secrets))]
    for name, secret in zip(names, secrets, strict=True):
        api.world.add(milvus(name, milvusSpec=secret))
    port = free_ports(1)[0]
    config = api.kubeconfig({"token": "hunter2"})
    process = start(config, "-v", f"--health-port={port}", "--interval=0.3")
    eventually(lambda: all("pods" in api.world.status(name) for name in names))
    shown = http_get(port, "/metrics")[1]
    assert http_get(port, "/healthz") == (200, "OK\n")
    assert http_get(port, "/readyz") == (200, "OK\n")
    assert process.stop() == 0
    shown += process.log + str(api.world.server.all_of("events"))
    shown += str([api.world.status(name) for name in names])
    assert "hunter2" not in shown


@pytest.mark.parametrize("hanging", ["get", "post"])
def test_a_response_that_does_not_come_in_time_is_an_error(api: Api, hanging: str) -> None:
    api.world.add(milvus())
    api.fault = lambda handler, verb, path: verb.lower() == hanging and not api.over.wait(3)
    process = Command("--once", "--timeout", "0.3", "--kubeconfig", api.kubeconfig())
    fails(process, 1, "Read timed out after 0.3 s")


# --- No usable configuration ---
def test_no_kubeconfig_says_how_to_give_one() -> None:
    text = "/nonexistent/.kube/config: there is no such file; give one with --kubeconfig or KUBECO"
    fails(Command(), 2, text)


def test_an_exec_plugin_that_fails_leaves_no_anonymous_operator(tmp_path: Path) -> None:
    """The client library would go on without credentials, and print what the plugin says."""
    says = ["-c", "echo hunter2 >&2; exit 1"]
    version = "client.authentication.k8s.io/v1"
    plugin = {"apiVersion": version, "command": "sh", "args": says, "interactiveMode": "Never"}
    file = write_kubeconfig(tmp_path / "config", NOWHERE, {"exec": plugin})
    process = Command("--kubeconfig", file)
    fails(process, 2, "its user or exec plugin gave no credentials; see what kubectl says")
    assert "hunter2" not in process.log


def rejection(file: Path, context: str | None = None) -> str:
    """What is said about a kubeconfig that cannot be used."""
    with pytest.raises(mo.Unusable) as raised:
        mo.connect(str(file), context, 1)
    said = raised.value.message
    assert raised.value.exit_code == 2
    assert str(file) in said
    assert "\n" not in said
    assert "hunter2" not in said
    return said


def test_a_token_that_cannot_be_renewed_is_not_called_an_invalid_kubeconfig(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mo.Client, "renew", Mock(side_effect=mo.Unusable("no token")))
    with pytest.raises(mo.Unusable, match=r"^no token$"):
        mo.connect(write_kubeconfig(tmp_path / "config", NOWHERE), None, 1)


MALFORMED = ("", "text", "a: [", "[1]", "clusters: 7", "current-context: x", "\0")
LEAKING = ("users: *hunter2", "hunter2: [")  # an error quotes what the parser has read


def test_what_cannot_be_used_is_one_line_without_secrets(tmp_path: Path) -> None:
    file = tmp_path / "config"
    assert "there is no such file" in rejection(file)
    # To pass over `as` would give the operator more permissions than kubectl has.
    write_kubeconfig(file, NOWHERE, {"as": "a"})
    assert "impersonation (`as`) is not supported" in rejection(file)
    write_kubeconfig(file, NOWHERE, certificate_authority_data="bm9uZQ==")
    assert "certificate" in rejection(file)
    write_kubeconfig(file, NOWHERE, {"tokenFile": "hunter2"})  # where somebody has put the token
    assert "a file that it refers to (tokenFile …), cannot be read: No such file" in rejection(file)
    expired = base64.b64encode(b'{"exp": 1}').decode().rstrip("=")
    oidc = {"idp-issuer-url": NOWHERE, "id-token": f"a.{expired}.c", "refresh-token": "hunter2"}
    write_kubeconfig(file, NOWHERE, {"auth-provider": {"name": "oidc", "config": oidc}})
    assert "its identity provider did not answer" in rejection(file)
    write_kubeconfig(file, NOWHERE, {"token": "hunter2"})
    assert "nope" in rejection(file, context="nope")
    good = file.read_text()
    no_user = good.replace("user:\n", "usr:\n")  # the client library quotes the whole entry
    no_cluster = good.replace("cluster: a", "cluster: nobody")
    for text in (*MALFORMED, *LEAKING, no_user, no_cluster):
        file.write_text(text)
        rejection(file)
    file.write_text(good.replace("user: a", ""))
    assert mo.connect(str(file), None, 1).namespace == "test"
    file.unlink()
    file.symlink_to(file)  # not even root can read a loop of links
    rejection(file)
