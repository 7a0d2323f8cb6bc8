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


def fails(process: Command, code: int, text: str) -> None:
    """It exits with this code, logs the text on one line, no traceback, and no idle pass."""
    assert process.end() == code, process.log
    assert len([line for line in process.log.splitlines() if text in line]) == 1, process.log
    assert "Traceback" not in process.log
    assert "nothing written" not in process.log


# --- Options ---
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("-A -n a", "-A/--all-namespaces cannot be combined with -n/--namespace"),
        ("--interval 0", "must be a number of seconds greater than 0"),
        ("--interval nan", "must be a number of seconds greater than 0"),
        ("--timeout 0", "must be a number of seconds greater than 0"),
        ("--workers 0", "0 is not in the range 1<=x<=256"),
        ("--health-port 70000", "70000 is not in the range"),
        ("-n ../x", "'../x' is not a valid namespace name"),
        (f"-n {64 * 'x'}", "is not a valid namespace name"),
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
    said = [CliRunner().invoke(mo.main, option).output for option in ("--version", "-h", "--help")]
    assert said[0] == f"milvus-polling-operator {mo.__version__}\n"
    assert said[1] == said[2]


@pytest.mark.parametrize(
    ("arguments", "variable", "managed"),
    [
        ("", None, "namespace test"),
        ("-n b -n a -n b", None, "namespace b, namespace a"),
        ("", "a, b a", "namespace a, namespace b"),
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
    fails(process, 1, f"requests to {NOWHERE} fail: Failed to establish a new connection: [Errno 1")
    start = f"milvus-polling-operator {mo.__version__}: {managed}, once, server {NOWHERE}\n"
    assert process.log.splitlines(keepends=True)[0].endswith(start)


# --- What it does, and what it logs ---
@pytest.mark.platform
def test_log_lines_as_json_and_a_dry_run_that_sends_only_dry_runs(api: Api) -> None:
    api.world.add(milvus("x"))
    api.world.add(milvus("bad", milvusSpec="proxy.port: 1"))
    process = Command("--once", "--dry-run", "--log-format=json", "--kubeconfig", api.kubeconfig())
    assert process.end() == 1
    lines = [json.loads(line) for line in process.log.splitlines()]
    messages = [line.pop("message") for line in lines]
    assert [bool(text) for text in messages] == 4 * [True], messages
    assert messages[0].endswith("(dry run)")
    assert "created pod test/x-0 (dry run)" in messages
    assert api.world.pods() == []
    for line in lines:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("timestamp"))
    about = sorted((line for line in lines if "milvus" in line), key=str)
    assert about == [
        {"level": "INFO", "namespace": "test", "milvus": "x", "pod": "x-0"},
        {"level": "WARNING", "namespace": "test", "milvus": "bad"},
    ]


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
    _, metrics = http_get(port, "/metrics")
    assert http_get(port, "/healthz") == http_get(port, "/readyz") == (200, "ok\n")
    assert process.stop() == 0
    events = json.dumps(api.world.server.all_of("events"))
    for text in (metrics, events, process.log, *map(str, map(api.world.status, names))):
        assert text
        assert "hunter2" not in text


# --- No usable configuration ---
def test_no_kubeconfig_says_how_to_give_one() -> None:
    advice = "give one with --kubeconfig or KUBECONFIG"
    fails(Command(), 2, f"Error: no kubeconfig at /nonexistent/.kube/config: {advice}")
    fails(Command("--kubeconfig", "/nowhere"), 2, f"Error: no kubeconfig at /nowhere: {advice}")


def refusal(file: str, context: str | None = None) -> str:
    """What is said about a kubeconfig that cannot be used."""
    with pytest.raises(mo.Unusable) as raised:
        mo.connect(file, 1, context)
    assert file in raised.value.message
    assert "\n" not in raised.value.message
    return raised.value.message.replace(file, "FILE")


def test_a_file_that_is_not_a_kubeconfig_or_cannot_be_read_is_named(tmp_path: Path) -> None:
    file = tmp_path / "config"
    assert "nope" in refusal(write_kubeconfig(file, NOWHERE), context="nope")
    refusal(str(tmp_path))
    for text in ("", "text", "a: [", "{}", "[1]", "clusters: 7", "current-context: x"):
        file.write_text(text)
        refusal(str(file))
    text = Path(write_kubeconfig(file, NOWHERE)).read_text()
    file.write_text(text.replace("user: a", "user: nobody"))
    assert "nobody" in refusal(str(file))
    file.write_text(text.replace("user: a", ""))
    assert mo.connect(str(file), 1, None).namespace
    file.write_text("\0")
    assert refusal(str(file)) == "cannot use FILE: it is not valid YAML"
    file.write_text("users: *HUNTER2")
    said = refusal(str(file))
    assert said == 'cannot use FILE: it is not valid YAML in "FILE", line 1, column 8'
    file.unlink()
    file.symlink_to(file)  # not even root can read a loop of links
    refusal(str(file))


@pytest.mark.parametrize(
    ("server", "user", "cluster", "message"),
    [
        ("nonsense", {}, {}, "its server nonsense is not an http or https URL"),
        ("https://", {}, {}, "its server https: is not an http or https URL"),
        ("https://127.0.0.1:1", {}, {"certificate_authority_data": "bm9uZQ=="}, ""),
        (NOWHERE, {}, {"proxy_url": "socks5://x"},
         "a SOCKS proxy needs the package PySocks (pip install PySocks)"),
        # Else the operator would have more permissions than kubectl with the same file.
        (NOWHERE, {"as": "a"}, {}, "impersonation (`as`) is not supported"),
        (NOWHERE, {"as-uid": "1"}, {}, "impersonation (`as`) is not supported"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_named(
    tmp_path: Path, server: str, user: Obj, cluster: Obj, message: str
) -> None:
    said = refusal(write_kubeconfig(tmp_path / "config", server, user, **cluster))
    assert said.startswith("cannot use FILE: ")
    assert message in said


# --- A server that does not answer ---
@pytest.mark.parametrize("token", ["secret\nb", "secret\u2603"])
def test_a_token_that_is_not_valid_in_a_header_is_not_shown(api: Api, token: str) -> None:
    (line,) = api.operator(api.kubeconfig({"token": token})).run_pass().outages
    words = "the credentials contain characters that are not allowed in an HTTP header"
    assert line == f"requests to {api.url} fail: {words}"


def test_a_list_that_does_not_come_in_time_is_an_error(api: Api) -> None:
    api.fault = lambda handler, verb, path: not api.over.wait(3)
    process = Command("--once", "--timeout", "1", "--kubeconfig", api.kubeconfig())
    fails(process, 1, "Read timed out.")
