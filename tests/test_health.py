"""Health, metrics and logs, as a cluster's own tools read them."""

from __future__ import annotations

import json
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import milvus_operator as mo
from local.controlplane import free_ports
from tests.kit import Clock, Command, Kube, eventually, kubeconfig, make_pass, new_operator
from tests.wire import Handler, Wire

Start = Callable[..., Command]


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def metrics(port: int) -> dict[str, float]:
    """Each sample by its name and labels, read by Prometheus's own parser."""
    code, text = get(port, "/metrics")
    assert code == 200
    return {
        sample.name + "".join(f" {key}={value}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.platform
def test_health_readiness_and_metrics(kube: Kube, command: Start) -> None:
    port = free_ports(1)[0]
    kube.create(replicas=2)
    kube.create("bad", milvusSpec="proxy.port: 1")
    kube.create("waits", image="milvus:broken")
    process = command("--health-port", str(port), "--interval", "0.2")
    process.says("pass over")
    eventually(lambda: kube.names() == ["waits-0", "x-0", "x-1"])
    assert get(port, "/healthz") == (200, "ok\n")
    assert get(port, "/readyz") == (200, "ok\n")
    assert get(port, "/nowhere")[0] == 404
    seen = eventually(lambda: (m := metrics(port))["milvus_operator_milvuses state=ready"] == 1 and m)
    for name, value in {
        "milvus_operator_milvuses state=ready": 1,
        "milvus_operator_milvuses state=progressing": 1,
        "milvus_operator_milvuses state=failed": 1,
        "milvus_operator_api_requests_total code=201 resource=pods verb=create": 3,
    }.items():
        assert seen[name] == value, name
    assert seen["milvus_operator_api_requests_total code=200 resource=milvuses verb=list"] >= 2
    assert seen["milvus_operator_passes_total result=success"] >= 2, "one bad Milvus is no failure of the operator"
    assert "milvus_operator_passes_total result=failure" not in seen
    assert seen["milvus_operator_pass_duration_seconds_count"] >= 2
    kube.delete("bad")
    kube.change(replicas=1)
    eventually(lambda: metrics(port)["milvus_operator_milvuses state=failed"] == 0)
    deleted = "milvus_operator_api_requests_total code=200 resource=pods verb=delete"
    after = eventually(lambda: (m := metrics(port)).get(deleted) and m)
    assert after[deleted] == 1
    assert after["milvus_operator_seconds_since_good_pass"] < 60
    ours = {re.split(r"[ =]", name)[0] for name in after if name.startswith("milvus_operator")}
    assert {re.sub("_(created|total|bucket|sum|count)$", "", name) for name in ours} == {
        "milvus_operator_passes",
        "milvus_operator_pass_duration_seconds",
        "milvus_operator_seconds_since_good_pass",
        "milvus_operator_milvuses",
        "milvus_operator_api_requests",
    }
    assert process.stop() == 0
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=1)


def test_a_server_that_is_gone_is_no_reason_for_a_restart(command: Start, kube: Kube, tmp_path: Path) -> None:
    port = free_ports(1)[0]
    file = kubeconfig(tmp_path / "config", kube.plane, server="https://127.0.0.1:1")
    process = command("--kubeconfig", file, "--health-port", str(port))
    process.says("cannot reach")
    assert get(port, "/healthz") == (200, "ok\n")
    assert get(port, "/readyz") == (503, "no\n"), "nothing has been listed yet"
    seen = metrics(port)
    assert seen["milvus_operator_api_requests_total code=error resource=pods verb=list"] >= 1
    assert seen["milvus_operator_passes_total result=failure"] >= 1
    assert process.stop() == 0


def test_a_loop_that_has_stopped_turning_is_seen(kube: Kube, clock: Clock) -> None:
    operator, patient = new_operator(kube, clock=clock), new_operator(kube, clock=clock, interval=3600)
    for one in (operator, patient):
        make_pass(one)
        assert one.is_turning()
    clock.skip(45)
    assert operator.is_turning(), "10 s time-out, 30 s of back-off, 10 s for the rest"
    clock.skip(10)
    assert not operator.is_turning()
    make_pass(operator)
    assert operator.is_turning()
    clock.skip(3540)
    assert patient.is_turning(), "it waits for the next pass"
    clock.skip(60)
    assert not patient.is_turning()


def test_a_slow_list_is_a_loop_that_turns(
    kube: Kube, wire: Wire, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mo, "PAGE", 1)
    kube.create("a", replicas=0)
    kube.create("b", replicas=0)
    kube.create("c", replicas=0)
    operator = new_operator(kube, server=wire.url, clock=clock)
    turned = []

    def fault(handler: Handler, verb: str, path: str) -> bool:
        if verb == "GET":
            clock.skip(45)
            turned.append(operator.is_turning())
        return False

    wire.fault = fault
    make_pass(operator)
    assert len(turned) > 3
    assert all(turned), "each request has its time-out"
    assert operator.is_turning()


def test_a_list_without_an_answer_is_seen(kube: Kube, wire: Wire, clock: Clock) -> None:
    operator, turned = new_operator(kube, server=wire.url, clock=clock), []

    def fault(handler: Handler, verb: str, path: str) -> bool:
        clock.skip(55)
        turned.append(operator.is_turning())
        return False

    wire.fault = fault
    make_pass(operator)
    assert turned[0] is False


def test_a_slow_client_of_the_health_port_delays_nobody(command: Start, kube: Kube) -> None:
    port = free_ports(1)[0]
    process = command("--health-port", str(port))
    eventually(lambda: get(port, "/healthz")[0] == 200, ignoring=(OSError,))
    slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    assert get(port, "/healthz")[0] == 200
    slow[0].settimeout(20)
    assert slow[0].recv(1) == b"", "it is not waited for for ever"
    started = time.monotonic()
    assert process.stop() == 0
    assert time.monotonic() - started < 5
    for sock in slow:
        sock.close()


@pytest.mark.parametrize("in_pod", [True, False])
def test_in_a_pod_health_is_for_all_elsewhere_for_this_machine_alone(command: Start, kube: Kube, in_pod: bool) -> None:
    port = free_ports(1)[0]
    process = command("-v", "--health-port", str(port), env={"KUBERNETES_SERVICE_HOST": "10.0.0.1"} if in_pod else None)
    process.says("pass over")
    socket.create_connection(("127.0.0.1", port)).close()
    if in_pod:
        socket.create_connection(("127.0.0.2", port)).close()
    else:
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.2", port))


def test_a_port_in_use_is_one_clear_line(command: Start, kube: Kube) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        process = command("--health-port", str(port))
        assert process.end() == 2
    assert f"Error: cannot listen on port {port}: Address already in use; choose another with" in process.log
    assert "Traceback" not in process.log


@pytest.mark.parametrize(("option", "value"), [("--log-format", "xml"), ("--health-port", "70000")])
def test_options_that_are_wrong(command: Start, option: str, value: str) -> None:
    process = command(option, value)
    assert process.end() == 2
    assert re.search(rf"Error: Invalid value for '{option}'", process.log)


@pytest.mark.platform
def test_log_lines_as_json(kube: Kube, command: Start) -> None:
    kube.create()
    kube.create("bad", milvusSpec="hunter2: {PROXY_PORT: hunter2, a: [{hunter2: hunter2}]}\nproxy.port: hunter2")
    process = command("--once", "--log-format", "json")
    assert process.end() == 1
    lines = [json.loads(line) for line in process.log.splitlines()]
    for line in lines:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["timestamp"])
        assert line["level"] in ("INFO", "WARNING")
    told: Any = sorted((line for line in lines if "milvus" in line), key=lambda line: str(line["level"]))
    assert [{key: line[key] for key in line if key not in ("timestamp", "message")} for line in told] == [
        {"level": "INFO", "namespace": kube.ns, "milvus": "x", "pod": "x-0", "reason": "missing"},
        {"level": "WARNING", "namespace": kube.ns, "milvus": "bad", "reason": "Invalid"},
    ]
    assert "hunter2" not in process.log


def test_nothing_secret_is_told(kube: Kube, command: Start, tmp_path: Path) -> None:
    """Neither what is in spec.milvusSpec nor the token, wherever an operator speaks."""
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
    told = [get(port, "/metrics")[1], kube.kubectl("get", "events", "-o", "yaml")]
    told += [json.dumps(kube.status(name)) for name in "abcde"]
    assert process.stop() == 0
    for text in [*told, process.log]:
        assert "hunter2" not in text
        assert token[1].strip("{}") not in text


def test_once_ends_although_health_is_served(kube: Kube, command: Start, wire: Wire, tmp_path: Path) -> None:
    """The thread that serves it does not keep the process."""
    port, seen = free_ports(1)[0], []

    def fault(handler: Handler, verb: str, path: str) -> bool:
        seen.append(get(port, "/healthz"))
        return False

    wire.fault = fault
    file = kubeconfig(tmp_path / "config", kube.plane, server=wire.url)
    process = command("--once", "--health-port", str(port), "--kubeconfig", file)
    assert process.end() == 0, process.log
    assert seen[0] == (200, "ok\n")


def test_a_write_that_fails_after_its_pass_is_over_is_told(
    kube: Kube, command: Start, wire: Wire, tmp_path: Path
) -> None:
    answer = b'{"kind": "Status", "reason": "InternalError", "message": "webhook timed out"}'
    wire.spoil("POST", "/pods", 500, answer, after=1)
    kube.create()
    command("--kubeconfig", kubeconfig(tmp_path / "config", kube.plane, server=wire.url), "--interval", "0.3")
    eventually(lambda: kube.condition("Reconciled").get("reason") == "APIError")
    assert kube.condition("Reconciled")["message"] == "webhook timed out"
    wire.fault = None
    kube.ready("x-0")
    eventually(lambda: kube.condition("Reconciled")["status"] == "True")


def test_a_status_that_is_refused_holds_up_no_other(kube: Kube, wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
    answer = b'{"kind": "Status", "reason": "Forbidden", "message": "denied by a webhook"}'
    wire.spoil("PATCH", "/a/status", 403, answer)
    operator = new_operator(kube, server=wire.url)
    kube.create("a")
    make_pass(operator)
    kube.create("b")
    for _ in range(3):
        make_pass(operator)
    assert kube.status("b")["replicas"] == 1
    assert caplog.text.count(f"cannot write the status of milvus {kube.ns}/a: denied by a webhook") == 1
    wire.fault = None
    make_pass(operator)
    assert kube.status("a") == {"observedGeneration": -1}, "it waits for its back-off"
    kube.change("a", replicas=2)
    make_pass(operator)
    assert kube.status("a")["replicas"] == 2, "a changed spec is tried at once"


def test_answers_that_are_json_but_no_objects_stop_nothing(
    kube: Kube, wire: Wire, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(handler: Handler, verb: str, path: str) -> bool:
        refused = verb == "POST" and b'"name": "a-0"' in handler.seen
        if refused:
            handler.answer(200, b'{"metadata": {}}')
        return refused

    wire.fault = fault

    def odd(handler: Handler, verb: str, path: str) -> bool:
        handler.answer(200, b'{"kind": "PodList", "items": [{}]}')
        return True

    operator = new_operator(kube, server=wire.url, clock=clock)
    kube.create("a")
    kube.create("b")
    make_pass(operator)
    assert kube.names() == ["b-0"]
    assert "Traceback" not in caplog.text
    wire.fault = odd
    assert not make_pass(operator)
    assert "Traceback" not in caplog.text
    wire.fault = None
    clock.skip(30)
    make_pass(operator)
    assert kube.names() == ["a-0", "b-0"]
