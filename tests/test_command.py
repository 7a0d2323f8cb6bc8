"""The command: its options, its exit codes, its log, and the one line that each failure gets."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import milvus_operator as mo
from local.controlplane import free_ports
from tests.lib.kit import Command, Obj, Start, eventually, http_get
from tests.lib.wire import Api, write_kubeconfig
from tests.lib.world import milvus

NOWHERE = "http://127.0.0.1:1"  # where nobody listens


def fails(process: Command, code: int, *words: str) -> None:
    """It exits with this code, and has one line with all these words, and no traceback."""
    assert process.end() == code, process.log
    lines = process.log.splitlines()
    assert sum(all(word in line for word in words) for line in lines) == 1, process.log
    assert "Traceback" not in process.log


# --- Options ---
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("-A -n a", "-A cannot be combined with -n"),
        ("--interval 0", "must be a number of seconds greater than 0"),
        ("--interval nan", "must be a number of seconds greater than 0"),
        ("--timeout 0", "must be a number of seconds greater than 0"),
        ("--workers 0", "0 is not in the range 1<=x<=256"),
        ("--health-port 70000", "70000 is not in the range"),
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
        "namespace": ("a", "b"), "all_namespaces": True, "interval": 7, "once": True,
        "dry_run": True, "kubeconfig": "/a", "context": "b", "timeout": 8, "workers": 9,
        "health_port": 10, "log_format": "json", "verbose": True,
    }  # fmt: skip


@pytest.mark.platform
def test_version_and_help() -> None:
    said = [CliRunner().invoke(mo.main, option).output for option in ("--version", "-h", "--help")]
    assert said[0] == f"milvus-polling-operator {mo.__version__}\n"
    assert said[1] == said[2]


@pytest.mark.parametrize(
    ("arguments", "variable", "managed"),
    [
        ("", None, "namespace test"),
        ("-n b -n a -n b", None, "namespace b, namespace a"),
        ("", "a,b", "namespace a, namespace b"),
        ("", "", "all namespaces"),  # as OLM sets it
        ("-n a", "", "namespace a"),
        ("-A", None, "all namespaces"),
    ],
)
def test_it_manages_the_namespaces_that_it_is_given(
    tmp_path: Path, arguments: str, variable: str | None, managed: str
) -> None:
    """By default that of the kubeconfig's context."""
    env = {} if variable is None else {"MILVUS_OPERATOR_NAMESPACE": variable}
    file = write_kubeconfig(tmp_path / "config", NOWHERE, {"token": "secret"})
    process = Command("--once", "--kubeconfig", file, *arguments.split(), env=env)
    fails(process, 1, f"requests to {NOWHERE} fail: ", "Connection refused")
    first = process.log.splitlines()[0]
    assert f"milvus-polling-operator {mo.__version__}: {managed}, " in first
    assert first.endswith(f"server {NOWHERE}")


# --- What it does, and what it logs ---
@pytest.mark.platform
def test_log_lines_as_json_and_a_dry_run_that_sends_only_dry_runs(api: Api) -> None:
    api.world.add(milvus("x"))
    api.world.add(milvus("bad", milvusSpec="proxy.port: 1"))
    process = Command("--once", "--dry-run", "--log-format=json", "--kubeconfig", api.kubeconfig())
    assert process.end() == 1
    lines = [json.loads(line) for line in process.log.splitlines()]
    for line in lines:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("timestamp"))
    assert lines[0]["message"].endswith("(dry run)")
    done = {"level": "INFO", "message": "milvus test/x: created pod x-0 (dry run)"}
    assert [line for line in lines if "test/x" in line["message"]] == [done]
    assert {line["level"] for line in lines if "test/bad" in line["message"]} == {"WARNING"}
    assert api.world.pods() == []


@pytest.mark.platform
def test_health_is_served_until_sigterm_and_nothing_secret_is_shown(api: Api, start: Start) -> None:
    """Logs, metrics, events and statuses show neither spec.milvusSpec nor the token."""
    secrets = ["minio: {secretAccessKey: hunter2}", "hunter2: [", "this is hunter2", "{a=hunter2}"]
    for number, text in enumerate(secrets):
        api.world.add(milvus(f"m{number}", milvusSpec=text))
    port = free_ports(1)[0]
    options = ["-v", "--health-port", str(port), "--interval", "0.3"]
    process = start(api.kubeconfig({"token": "hunter2"}), *options)
    names = [f"m{number}" for number in range(len(secrets))]
    eventually(lambda: all("pods" in api.world.status(name) for name in names))
    metrics = http_get(port, "/metrics")[1]
    assert http_get(port, "/healthz")[0] == http_get(port, "/readyz")[0] == 200
    assert process.stop() == 0
    events = json.dumps(api.world.server.all_of("events"))
    for text in (metrics, events, process.log, *map(str, map(api.world.status, names))):
        assert text
        assert "hunter2" not in text


# --- No usable configuration ---
def test_no_kubeconfig_says_how_to_give_one() -> None:
    advice = "--kubeconfig or KUBECONFIG"
    fails(Command(), 2, "/nonexistent/.kube/config", advice)
    fails(Command("--kubeconfig", "/nowhere"), 2, "/nowhere", advice)


def refusal(file: str, context: str | None = None) -> str:
    """What is said about a kubeconfig that cannot be used."""
    with pytest.raises(mo.Unusable) as raised:
        mo.connect(file, 1, context)
    assert raised.value.exit_code == 2
    assert file in raised.value.message
    assert "\n" not in raised.value.message
    return raised.value.message


def test_what_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "config"
    assert "nope" in refusal(write_kubeconfig(file, NOWHERE), context="nope")
    refusal(str(tmp_path))
    good = file.read_text()
    for text in ("", "text", "a: [", "{}", "[1]", "clusters: 7", "current-context: x", "\0",
                 good.replace("cluster: a", "cluster: nobody")):  # fmt: skip
        file.write_text(text)
        refusal(str(file))
    file.write_text(good.replace("user: a", ""))
    assert mo.connect(str(file), 1, None).namespace == "test"
    file.unlink()
    file.symlink_to(file)  # not even root can read a loop of links
    refusal(str(file))


# To pass over `as` would give the operator more permissions than kubectl has with the same file.
@pytest.mark.parametrize(
    ("user", "cluster", "words"),
    [
        ({"as": "a"}, {}, "impersonation (`as`) is not supported"),
        ({}, {"certificate_authority_data": "bm9uZQ=="}, "certificate"),
    ],
)
def test_what_is_not_supported_is_named(
    tmp_path: Path, user: Obj, cluster: Obj, words: str
) -> None:
    file = write_kubeconfig(tmp_path / "config", "https://127.0.0.1:1", user, **cluster)
    assert words in refusal(file)


def test_a_list_that_does_not_come_in_time_is_an_error(api: Api) -> None:
    api.fault = lambda handler, verb, path: not api.over.wait(3)
    process = Command("--once", "--timeout", "1", "--kubeconfig", api.kubeconfig())
    fails(process, 1, "Read timed out.")
