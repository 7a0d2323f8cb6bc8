"""The command: its options, exit codes, signals, and the one line that each failure gets."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

import milvus_operator as mo
from local.controlplane import free_ports
from tests.lib.kit import TOP, Command, Kube, eventually, http_get, kubeconfig
from tests.lib.wire import Handler, Wire

Start = Callable[..., Command]


def fails(process: Command, code: int, *texts: str) -> None:
    """It exits with this code, logs each text on exactly one line, and shows no traceback."""
    assert process.end() == code, process.log
    for text in texts:
        assert len([line for line in process.log.splitlines() if text in line]) == 1, process.log
    assert "Traceback" not in process.log


@pytest.mark.parametrize(("option", "value"), [("--log-format", "xml"), ("--health-port", "70000")])
def test_an_invalid_value_of_an_option_exits_2(command: Start, option: str, value: str) -> None:
    process = command(option, value)
    assert process.end() == 2
    assert re.search(rf"Error: Invalid value for '{option}'", process.log)


@pytest.mark.platform
def test_log_lines_as_json(kube: Kube, command: Start) -> None:
    kube.create()
    kube.create(
        "bad",
        milvusSpec="hunter2: {PROXY_PORT: hunter2, a: [{hunter2: hunter2}]}\nproxy.port: hunter2",
    )
    process = command("--once", "--log-format", "json")
    assert process.end() == 1
    lines = [json.loads(line) for line in process.log.splitlines()]
    for line in lines:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["timestamp"])
        assert line["level"] in ("INFO", "WARNING")
    told: Any = sorted(
        (line for line in lines if "milvus" in line), key=lambda line: str(line["level"])
    )
    assert [
        {key: line[key] for key in line if key not in ("timestamp", "message")} for line in told
    ] == [
        {"level": "INFO", "namespace": kube.ns, "milvus": "x", "pod": "x-0", "reason": "missing"},
        {"level": "WARNING", "namespace": kube.ns, "milvus": "bad", "reason": "Invalid"},
    ]
    assert "hunter2" not in process.log


def test_nothing_secret_is_logged(kube: Kube, command: Start, tmp_path: Path) -> None:
    """Logs, metrics, events and statuses show neither the content of spec.milvusSpec nor the token."""
    port = free_ports(1)[0]
    kube.create("a", milvusSpec="minio: {secretAccessKey: hunter2}\n# hunter2")
    kube.create("b", milvusSpec="hunter2: [{hunter2: hunter2}]")
    kube.create("c", milvusSpec="hunter2: &hunter2 hunter2\nhunter2: *hunter2")
    kube.create("d", milvusSpec="hunter2: [")
    kube.create("e", milvusSpec="this is hunter2")
    token = re.search(r"token: (\S+)", kube.plane.kubeconfig().read_text().replace('"', ""))
    assert token
    process = command("-v", "--health-port", str(port), "--interval", "0.3")
    eventually(lambda: all(kube.status(name) for name in "abcde"))
    process.says("pass over")
    told = [http_get(port, "/metrics")[1], kube.kubectl("get", "events", "-o", "yaml")]
    told += [json.dumps(kube.status(name)) for name in "abcde"]
    assert process.stop() == 0
    for text in [*told, process.log]:
        assert "hunter2" not in text
        assert token[1].strip("{}") not in text


@pytest.mark.platform
def test_once_creates_what_is_missing_and_exits_0(kube: Kube, command: Start) -> None:
    kube.create(replicas=3)
    process = command("--once")
    assert process.end() == 0, process.log
    assert kube.names() == ["x-0", "x-1", "x-2"]
    first, *lines = process.log.splitlines()
    server = kube.api.configuration.host
    assert first.endswith(
        f"INFO    milvus-operator {mo.__version__} serves namespace {kube.ns} once on {server}"
    )
    assert sorted(line.partition("INFO    ")[2] for line in lines[:-1]) == [
        f"created pod {kube.ns}/x-{i}: missing" for i in range(3)
    ]
    assert re.search(
        r"pass over 1 Milvus and 0 pods: 3 created, 1 status update\(s\), \d\.\d\d s$", lines[-1]
    )


def test_once_exits_1_when_a_milvus_could_not_be_served(kube: Kube, command: Start) -> None:
    kube.create_pod("x-0")
    kube.create("x")
    kube.create("y")
    fails(
        command("--once"),
        1,
        f"WARNING milvus {kube.ns}/x: NameConflict: pod x-0 belongs to somebody else and is left alone",
    )
    assert kube.names() == ["x-0", "y-0"]


@pytest.mark.parametrize(("changes", "codes", "exits"), [(1, [409, 200], 0), (99, [409] * 5, 1)])
def test_once_retries_what_changed_meanwhile_but_not_forever(
    kube: Kube,
    command: Start,
    tmp_path: Path,
    wire: Wire,
    changes: int,
    codes: list[int],
    exits: int,
) -> None:
    milvus, changed = kube.create(), 0
    kube.create_pod("x-0", labels=mo.pod_labels(milvus, 0))

    def fault(handler: Handler, verb: str, path: str) -> bool:
        nonlocal changed
        if verb == "PATCH" and "/pods/x-0" in path and changed < changes:
            changed += 1
            kube.patch_pod("x-0", annotations={"changed": str(changed)})
        return False

    wire.fault = fault
    process = command(
        "--kubeconfig", kubeconfig(tmp_path / "config", kube.plane, server=wire.url), "--once"
    )
    assert process.end() == exits, process.log
    adopted = [
        request
        for request in wire.requests
        if request.verb == "PATCH" and request.path.endswith("/pods/x-0")
    ]
    assert [request.code for request in adopted] == codes


@pytest.mark.platform
def test_it_runs_until_sigterm_and_exits_0(kube: Kube, command: Start) -> None:
    process = command("--interval", "0.2")
    process.says("every 0.2 s")
    kube.create()
    kube.ready("x-0")
    eventually(lambda: kube.condition("Ready").get("status") == "True")
    started = time.monotonic()
    assert process.stop() == 0
    assert time.monotonic() - started < 5
    assert process.log.endswith("INFO    stopped\n")


@pytest.mark.platform
def test_the_options_read_the_environment(kube: Kube, command: Start) -> None:
    kube.create()
    names = {
        "MILVUS_OPERATOR_NAMESPACE": f"default {kube.ns}",
        "MILVUS_OPERATOR_ONCE": "1",
        "MILVUS_OPERATOR_VERBOSE": "1",
    }
    process = command(env=names | {"KUBECONFIG": str(kube.plane.kubeconfig())}, kubeconfig=None)
    assert process.end() == 0, process.log
    assert f"serves namespace default, namespace {kube.ns} once" in process.log
    assert kube.names() == ["x-0"]


@pytest.mark.parametrize(
    ("value", "served"),
    [
        ("a,b", "namespace a, namespace b"),
        ("a, b a", "namespace a, namespace b"),
        ("", "all namespaces"),  # as OLM sets it
        (" ", "all namespaces"),
    ],
)
def test_the_namespaces_of_the_environment(
    kube: Kube, command: Start, value: str, served: str
) -> None:
    env = {"MILVUS_OPERATOR_NAMESPACE": value, "KUBECONFIG": str(kube.plane.kubeconfig())}
    process = command("--once", "--dry-run", env=env, kubeconfig=None)
    process.end()
    assert f"serves {served} once" in process.log


def test_a_namespace_of_the_command_line_wins_over_an_empty_variable(
    kube: Kube, command: Start
) -> None:
    process = command("--once", env={"MILVUS_OPERATOR_NAMESPACE": ""})
    assert process.end() == 0, process.log
    assert f"serves namespace {kube.ns} once" in process.log


def test_every_option_reads_its_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in (
        "NAMESPACE=a b", "ALL_NAMESPACES=1", "INTERVAL=7", "ONCE=1", "DRY_RUN=1", "KUBECONFIG=/a", "CONTEXT=b",
        "TIMEOUT=8", "WORKERS=9", "HEALTH_PORT=10", "LOG_FORMAT=json", "VERBOSE=1",
    ):  # fmt: skip
        name, _, value = setting.partition("=")
        monkeypatch.setenv(f"MILVUS_OPERATOR_{name}", value)
    assert mo.main.make_context("milvus_operator.py", []).params == {
        "namespaces": ("a", "b"), "all_namespaces": True, "interval": 7, "once": True, "dry_run": True,
        "kubeconfig": "/a", "context": "b", "timeout": 8, "workers": 9, "health_port": 10,
        "log_format": "json", "verbose": True,
    }  # fmt: skip


def test_all_namespaces(kube: Kube, command: Start) -> None:
    kube.create()
    process = command("-A", "--once")
    process.end()
    assert "serves all namespaces once" in process.log
    assert kube.names() == ["x-0"]


def test_the_namespace_of_the_context_is_the_default(
    kube: Kube, command: Start, tmp_path: Path
) -> None:
    kube.create()
    file = kubeconfig(tmp_path / "config", kube.plane, namespace=kube.ns)
    process = command("--once", "--kubeconfig", file, "--context", "admin", kubeconfig=None)
    assert process.end() == 0, process.log
    assert kube.names() == ["x-0"]
    other = command("--once", "--kubeconfig", str(kube.plane.kubeconfig()), kubeconfig=None)
    other.end()
    assert "serves namespace default once" in other.log


def test_verbose_logs_the_passes_that_did_nothing(command: Start) -> None:
    quiet, verbose = command("--once"), command("--once", "-v")
    assert (quiet.end(), verbose.end()) == (0, 0)
    assert "pass over" not in quiet.log
    assert "DEBUG   pass over 0 Milvus and 0 pods: nothing written" in verbose.log


def test_a_dry_run_says_so(kube: Kube, command: Start) -> None:
    kube.create()
    process = command("--once", "--dry-run")
    assert process.end() == 0
    assert "(dry run)" in process.log.splitlines()[0]
    assert f"created pod {kube.ns}/x-0 (dry run): missing" in process.log
    assert kube.names() == []


def test_one_worker_is_enough(kube: Kube, command: Start) -> None:
    kube.create(replicas=20)
    assert command("--once", "--workers", "1").end() == 0
    assert len(kube.names()) == 20


@pytest.mark.platform
def test_version_and_help() -> None:
    def said(option: str) -> str:
        return subprocess.run(
            [sys.executable, TOP / "milvus_operator.py", option], capture_output=True, text=True
        ).stdout

    assert said("--version") == f"milvus-operator {mo.__version__}\n"
    assert said("-h") == said("--help")
    assert said("--help").startswith("Usage: milvus_operator.py [OPTIONS]")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-A", "-n", "a"], "cannot be used together"),
        (["--interval", "0"], "a finite number of seconds greater than 0"),
        (["--interval", "-1"], "a finite number of seconds greater than 0"),
        (["--interval", "nan"], "a finite number of seconds greater than 0"),
        (["--interval", "inf"], "a finite number of seconds greater than 0"),
        (["--interval", "soon"], "'soon' is not a valid float"),
        (["--timeout", "0"], "a finite number of seconds greater than 0"),
        (["--workers", "0"], "0 is not in the range 1<=x<=256"),
        (["-n", ""], "'' is not the name of a namespace"),
        (["-n", "../x"], "'../x' is not the name of a namespace"),
        (["--bogus"], "No such option"),
        (["surplus"], "Got unexpected extra argument (surplus)"),
    ],
)
@pytest.mark.platform
def test_wrong_usage_exits_2(command: Start, arguments: list[str], message: str) -> None:
    process = command(*arguments, "--once", kubeconfig=None)
    fails(process, 2)
    assert message in process.log


def test_no_kubeconfig(command: Start) -> None:
    fails(
        command(kubeconfig=None),
        2,
        "no kubeconfig at /nonexistent/.kube/config: name one with --kubeconfig or KUBECONFIG",
    )
    fails(command("--kubeconfig", "/nowhere", kubeconfig=None), 2, "no kubeconfig at /nowhere")


def test_an_unknown_context(command: Start) -> None:
    process = command("--context", "nope", "--once")
    fails(
        process,
        2,
        "Expected object with name nope",
        "`kubectl config get-contexts` shows what is there",
    )


@pytest.mark.parametrize(
    "content", ["", "text", "a: [", "{}", "[1]", "\0", "clusters: 7", "current-context: x"]
)
def test_a_file_that_is_not_a_kubeconfig(command: Start, tmp_path: Path, content: str) -> None:
    (tmp_path / "config").write_text(content)
    fails(
        command("--kubeconfig", str(tmp_path / "config"), kubeconfig=None),
        2,
        f"cannot use {tmp_path}/config: ",
    )


def test_a_kubeconfig_that_may_not_be_read(command: Start, tmp_path: Path) -> None:
    if os.geteuid() == 0:  # root can read everything, but nobody can read a loop of links
        (tmp_path / "config").symlink_to(tmp_path / "config")
    else:
        (tmp_path / "config").touch(mode=0)
    fails(
        command("--kubeconfig", str(tmp_path / "config"), kubeconfig=None),
        2,
        f"{tmp_path}/config: ",
    )


def test_a_kubeconfig_that_is_a_folder(command: Start, tmp_path: Path) -> None:
    fails(command("--kubeconfig", str(tmp_path), kubeconfig=None), 2, f"cannot use {tmp_path}: ")


def test_an_unreachable_server_is_reported_once_and_retried(
    kube: Kube, command: Start, tmp_path: Path, wire: Wire
) -> None:
    file = kubeconfig(tmp_path / "config", kube.plane, server=wire.url)
    down = True

    def fault(handler: Handler, verb: str, path: str) -> bool:
        if down:
            handler.connection.close()
            handler.close_connection = True
        return down

    wire.fault = fault
    kube.create()
    process = command("--kubeconfig", file, "--interval", "0.1")
    process.says(f"ERROR   cannot reach {wire.url}: ")
    time.sleep(2.5)
    down = False
    process.says(f"INFO    resolved: cannot reach {wire.url}: ")
    kube.ready("x-0")
    assert process.stop() == 0
    assert process.log.count("ERROR") == 1, process.log


def test_an_unreachable_server_with_once_exits_1(
    kube: Kube, command: Start, tmp_path: Path
) -> None:
    file = kubeconfig(tmp_path / "config", kube.plane, server="https://127.0.0.1:1")
    fails(command("--kubeconfig", file, "--once"), 1, "cannot reach https://127.0.0.1:1: Failed to establish a new "
          "connection: [Errno 111] Connection refused")  # fmt: skip
    file = kubeconfig(tmp_path / "config", kube.plane, server="https://no-such-host.invalid")
    fails(
        command("--kubeconfig", file, "--once"),
        1,
        "cannot reach https://no-such-host.invalid: Failed to resolve",
    )


def test_a_certificate_for_another_host_is_refused(
    kube: Kube, command: Start, tmp_path: Path
) -> None:
    file = kubeconfig(tmp_path / "config", kube.plane, tls_server_name="somebody.else")
    fails(
        command("--kubeconfig", file, "--once"), 1, "certificate verify failed: Hostname mismatch"
    )


def test_an_expired_token(kube: Kube, command: Start, tmp_path: Path) -> None:
    file = kubeconfig(tmp_path / "config", kube.plane, token="expired")
    fails(
        command("--kubeconfig", file, "--once"),
        1,
        "does not accept the credentials (401): log in again",
    )


def test_a_missing_right_names_verb_resource_and_namespace(kube: Kube, command: Start) -> None:
    process = command("--once", "--kubeconfig", str(kube.plane.kubeconfig("nobody")))
    fails(
        process,
        1,
        f"not allowed to list pods in namespace {kube.ns}: grant this right to the operator",
    )


def test_a_missing_right_to_write_is_reported_once_for_all_objects(
    kube: Kube, command: Start
) -> None:
    kube.kubectl("create", "role", "r", "--verb=list", "--resource=pods,milvuses.zilliz.com")
    kube.kubectl("create", "rolebinding", "r", "--role=r", "--user=nobody")
    for name in "abc":
        kube.create(name, replicas=2)
    process = command("--once", "--kubeconfig", str(kube.plane.kubeconfig("nobody")))
    fails(process, 1, f"not allowed to create pods in namespace {kube.ns}: grant this right to the operator",
          f"not allowed to patch milvuses/status in namespace {kube.ns}: grant this right to the operator")  # fmt: skip
    assert "WARNING" not in process.log


@pytest.mark.parametrize("token", ["a\nb", "\u2603"])
def test_a_token_that_is_not_valid_in_a_header_is_not_shown(
    kube: Kube, command: Start, tmp_path: Path, token: str
) -> None:
    file = kubeconfig(tmp_path / "config", kube.plane, token=f"secret{token}")
    process = command("--kubeconfig", file, "--once")
    fails(process, 1, "the credentials contain characters that are not allowed in an HTTP header")
    assert "secret" not in process.log


@pytest.mark.parametrize(
    "change",
    [
        {"certificate_authority_data": "bm9uZQ=="},
        {"server": "nonsense"},
        {"server": "ftp://x"},
        {"server": "https://"},
    ],
)
def test_certificates_and_addresses_that_are_malformed(
    kube: Kube, command: Start, tmp_path: Path, change: dict[str, str]
) -> None:
    file = kubeconfig(tmp_path / "config", kube.plane, **change)
    fails(command("--kubeconfig", file, "--once"), 2, f"Error: cannot use {file}: ")


def test_nothing_is_left_in_the_temporary_folder(command: Start, tmp_path: Path) -> None:
    process = command("-v", env={"TMPDIR": str(tmp_path)})
    process.says("pass over")
    assert process.stop() == 0
    assert list(tmp_path.iterdir()) == []


def test_a_namespace_that_is_named_twice_is_served_once(kube: Kube, command: Start) -> None:
    process = command("--once", "-n", kube.ns, "-n", kube.ns)
    assert process.end() == 0
    assert f"serves namespace {kube.ns} once" in process.log


def test_a_message_of_several_lines_is_one_line_of_the_log() -> None:
    record = mo.log.makeRecord("", 20, "", 0, "%s", ("one\n  two\r\nthree",), None)
    assert mo.text_line(record).endswith("INFO    one two three")
    assert json.loads(mo.json_line(record))["message"] == "one\n  two\r\nthree"


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
        (lambda h: h.answer(200, b"<html>welcome</html>", "text/html"), "the answer is not JSON"),
        (lambda h: h.answer(200, b'{"kind": "Status"}'), "the answer is not a list"),
        (lambda h: h.answer(200, b'{"kind": "PodList", "items": [{'), "the answer is not JSON"),
        (
            lambda h: h.answer(502, b"<html>bad gateway</html>", "text/html"),
            "HTTP 502: Bad Gateway",
        ),
        (lambda h: h.answer(410, b'{"kind": "Status", "message": "too old"}'), "HTTP 410: too old"),
        (lambda h: time.sleep(2), "no answer within 1 s"),
    ],
)
def test_a_list_that_failed_is_not_an_empty_list(
    kube: Kube,
    command: Start,
    tmp_path: Path,
    wire: Wire,
    answer: Callable[[Any], None],
    message: str,
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
    started = time.monotonic()
    fails(command("--kubeconfig", file, "--once", "--timeout", "1"), 1, message)
    assert time.monotonic() - started < 5
    assert kube.uids() == before
    assert not [request for request in wire.requests if request.verb != "GET"]


def test_each_pass_asks_once(kube: Kube, command: Start, tmp_path: Path, wire: Wire) -> None:
    """The next pass is the retry; retries within a request would multiply the timeout."""
    asked = 0

    def fault(handler: Handler, verb: str, path: str) -> bool:
        nonlocal asked
        asked += 1
        handler.reset()
        return True

    wire.fault = fault
    file = kubeconfig(tmp_path / "config", kube.plane, server=wire.url)
    fails(command("--kubeconfig", file, "--once"), 1, f"cannot reach {wire.url}")
    assert asked == 1


def test_a_long_burst_shows_its_progress(
    kube: Kube, command: Start, tmp_path: Path, wire: Wire
) -> None:
    def fault(handler: Handler, verb: str, path: str) -> bool:
        if verb == "POST":
            time.sleep(1)
        return False

    wire.fault = fault
    kube.create(replicas=8)
    process = command(
        "--kubeconfig",
        kubeconfig(tmp_path / "config", kube.plane, server=wire.url),
        "--once",
        "--workers",
        "1",
    )
    assert re.search(
        r"in progress: \d created so far, 1 Milvus left", process.says("in progress: ")
    )
    assert process.end() == 0
    assert len(kube.names()) == 8, "however long it takes"


@pytest.mark.parametrize(
    ("code", "reason"),
    [(429, "TooManyRequests"), (500, "InternalError"), (503, "ServiceUnavailable")],
)
def test_a_server_that_is_busy_is_asked_again_in_the_next_pass(
    kube: Kube, command: Start, tmp_path: Path, wire: Wire, code: int, reason: str
) -> None:
    refused = 0

    def fault(handler: Handler, verb: str, path: str) -> bool:
        nonlocal refused
        if verb == "POST" and refused < 2:
            refused += 1
            handler.answer(
                code,
                json.dumps(
                    {"kind": "Status", "reason": reason, "message": "not now", "code": code}
                ).encode(),
            )
            return True
        return False

    wire.fault = fault
    kube.create()
    process = command(
        "--kubeconfig",
        kubeconfig(tmp_path / "config", kube.plane, server=wire.url),
        "--interval",
        "0.5",
    )
    process.says(f"WARNING milvus {kube.ns}/x: APIError: not now")
    kube.ready("x-0")
    process.says(f"INFO    milvus {kube.ns}/x: Reconciled: no longer APIError")
    eventually(lambda: kube.condition("Reconciled").get("status") == "True")


def test_a_create_whose_answer_is_lost_makes_no_second_pod(
    kube: Kube, command: Start, tmp_path: Path, wire: Wire
) -> None:
    lost = 0

    def fault(handler: Handler, verb: str, path: str) -> bool:
        nonlocal lost
        if verb == "POST" and not lost:
            lost += 1
            kube.pods.create(body=json.loads(handler.seen), namespace=kube.ns)
            handler.close_connection = True
            handler.connection.close()
            return True
        return False

    wire.fault = fault
    kube.create()
    process = command(
        "--kubeconfig",
        kubeconfig(tmp_path / "config", kube.plane, server=wire.url),
        "--interval",
        "0.5",
    )
    kube.ready("x-0")
    eventually(lambda: kube.condition("Ready").get("status") == "True")
    assert process.stop() == 0
    assert lost == 1


def test_a_create_that_hangs_delays_no_other_pod(
    kube: Kube, command: Start, tmp_path: Path, wire: Wire
) -> None:
    hanging = threading.Event()

    def fault(handler: Handler, verb: str, path: str) -> bool:
        hangs = verb == "POST" and b'"name": "bad-0"' in handler.seen
        if hangs:
            hanging.set()
            time.sleep(20)
        return hangs

    wire.fault = fault
    kube.create("bad")
    file = kubeconfig(tmp_path / "config", kube.plane, server=wire.url)
    process = command("--kubeconfig", file, "--interval", "0.3", "--timeout", "15")
    assert hanging.wait(20)
    for name in "abc":
        kube.create(name)
        kube.ready(*[f"{n}-0" for n in "abc" if n <= name])
    started = time.monotonic()
    assert process.stop() == 0, "even while a write hangs"
    assert time.monotonic() - started < 5


def test_the_package_is_one_module_that_imports_without_a_cluster() -> None:
    code = "import milvus_operator, sys; print(callable(milvus_operator.milvuses), callable(milvus_operator.pods))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=TOP, capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.stdout == "True True\n"
    assert isinstance(mo.main, click.Command)
