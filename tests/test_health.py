"""Health, metrics and logs, as a cluster's own tools read them."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import milvus_operator as mo
from local.controlplane import free_ports
from tests.lib.kit import (
    Clock,
    Command,
    Kube,
    eventually,
    http_get,
    kubeconfig,
    make_pass,
    new_operator,
)
from tests.lib.wire import Handler, Wire

Start = Callable[..., Command]


def metrics(port: int) -> dict[str, float]:
    """Each sample by its name and labels, read by Prometheus's own parser."""
    code, text = http_get(port, "/metrics")
    assert code == 200
    return {
        sample.name
        + "".join(f" {key}={value}" for key, value in sorted(sample.labels.items())): sample.value
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
    assert http_get(port, "/healthz") == (200, "ok\n")
    assert http_get(port, "/readyz") == (200, "ok\n")
    assert http_get(port, "/nowhere")[0] == 404
    seen = eventually(
        lambda: (m := metrics(port))["milvus_operator_milvuses state=ready"] == 1 and m
    )
    for name, value in {
        "milvus_operator_milvuses state=ready": 1,
        "milvus_operator_milvuses state=progressing": 1,
        "milvus_operator_milvuses state=failed": 1,
        "milvus_operator_api_requests_total code=201 resource=pods verb=create": 3,
    }.items():
        assert seen[name] == value, name
    assert seen["milvus_operator_api_requests_total code=200 resource=milvuses verb=list"] >= 2
    assert seen["milvus_operator_passes_total result=success"] >= 2, (
        "one bad Milvus is not a failure of the operator"
    )
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


def test_an_unreachable_server_does_not_cause_a_restart(
    command: Start, kube: Kube, tmp_path: Path
) -> None:
    port = free_ports(1)[0]
    file = kubeconfig(tmp_path / "config", kube.plane, server="https://127.0.0.1:1")
    process = command("--kubeconfig", file, "--health-port", str(port))
    process.says("cannot reach")
    assert http_get(port, "/healthz") == (200, "ok\n")
    assert http_get(port, "/readyz") == (503, "no\n"), "nothing has been listed yet"
    seen = metrics(port)
    assert seen["milvus_operator_api_requests_total code=error resource=pods verb=list"] >= 1
    assert seen["milvus_operator_passes_total result=failure"] >= 1
    assert process.stop() == 0


def test_a_stuck_loop_is_detected(kube: Kube, clock: Clock) -> None:
    operator, patient = (
        new_operator(kube, clock=clock),
        new_operator(kube, clock=clock, interval=3600),
    )
    for one in (operator, patient):
        make_pass(one)
        assert one.is_turning()
    clock.skip(45)
    assert operator.is_turning(), "10 s timeout, 30 s of back-off, 10 s for the rest"
    clock.skip(10)
    assert not operator.is_turning()
    make_pass(operator)
    assert operator.is_turning()
    clock.skip(3540)
    assert patient.is_turning(), "it waits for the next pass"
    clock.skip(60)
    assert not patient.is_turning()


def test_a_slow_list_is_not_a_stuck_loop(
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
    assert all(turned), "each request has its timeout"
    assert operator.is_turning()


def test_a_list_without_an_answer_is_detected(kube: Kube, wire: Wire, clock: Clock) -> None:
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
    eventually(lambda: http_get(port, "/healthz")[0] == 200, ignoring=(OSError,))
    slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    assert http_get(port, "/healthz")[0] == 200
    slow[0].settimeout(20)
    assert slow[0].recv(1) == b"", "the server does not wait for it forever"
    started = time.monotonic()
    assert process.stop() == 0
    assert time.monotonic() - started < 5
    for sock in slow:
        sock.close()


@pytest.mark.parametrize("in_pod", [True, False])
def test_only_in_a_pod_does_health_listen_on_all_addresses(
    command: Start, kube: Kube, in_pod: bool
) -> None:
    port = free_ports(1)[0]
    process = command(
        "-v",
        "--health-port",
        str(port),
        env={"KUBERNETES_SERVICE_HOST": "10.0.0.1"} if in_pod else None,
    )
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
    assert (
        f"Error: cannot listen on port {port}: Address already in use; choose another with"
        in process.log
    )
    assert "Traceback" not in process.log


def test_once_exits_although_health_is_served(
    kube: Kube, command: Start, wire: Wire, tmp_path: Path
) -> None:
    """The thread that serves it does not keep the process alive."""
    port, seen = free_ports(1)[0], []

    def fault(handler: Handler, verb: str, path: str) -> bool:
        seen.append(http_get(port, "/healthz"))
        return False

    wire.fault = fault
    file = kubeconfig(tmp_path / "config", kube.plane, server=wire.url)
    process = command("--once", "--health-port", str(port), "--kubeconfig", file)
    assert process.end() == 0, process.log
    assert seen[0] == (200, "ok\n")
