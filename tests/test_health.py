"""Health, metrics and logs, as a cluster's own tools read them."""

from __future__ import annotations

import re
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from local.controlplane import free_ports
from tests.lib.front import Request
from tests.lib.kit import TOP, Command, Kube, eventually, http_get, kubeconfig
from tests.lib.wire import Handler, Wire
from tests.lib.world import World, milvus

Start = Callable[..., Command]


def metrics(port: int) -> dict[str, float]:
    """Each sample by its name and labels, read by Prometheus's own parser."""
    code, text = http_get(port, "/metrics")
    assert code == 200
    samples = dict[str, float]()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = [f"{key}={value}" for key, value in sorted(sample.labels.items())]
            samples[" ".join([sample.name, *labels])] = sample.value
    return samples


@pytest.mark.platform
def test_health_readiness_and_metrics(kube: Kube, command: Start) -> None:
    port = free_ports(1)[0]
    kube.create(replicas=2)
    kube.create("bad", milvusSpec="proxy.port: 1")
    kube.create("waits", image="milvus:broken")
    process = command("--health-port", str(port), "--interval", "0.2")
    process.says("pass over")
    eventually(lambda: kube.names() == ["waits-0", "x-0", "x-1"])
    assert http_get(port, "/healthz?verbose") == (200, "ok\n")
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
    process.says("requests to")
    assert http_get(port, "/healthz") == (200, "ok\n")
    code, text = http_get(port, "/readyz")
    assert (code, text) == (503, "not every namespace has been listed yet\n")
    seen = eventually(
        lambda: (m := metrics(port)).get("milvus_operator_passes_total result=failure") and m
    )
    assert seen["milvus_operator_api_requests_total code=error resource=pods verb=list"] >= 1
    assert process.stop() == 0


@pytest.mark.parametrize(("interval", "patience"), [(5, 30), (3600, 3600)])
def test_a_loop_that_is_stuck_is_detected(interval: float, patience: float) -> None:
    """It may wait for the next pass, or to list again; and each request has its timeout."""
    world = World(interval=interval)
    operator, timeout = world.operator, 10
    assert not operator.is_ready()
    operator.run_pass()
    assert operator.is_ready()
    world.clock.advance(patience + timeout + 9)
    assert operator.is_alive()
    world.clock.advance(2)
    assert not operator.is_alive()
    operator.run_pass()
    assert operator.is_alive()


def test_a_long_list_is_not_a_stuck_loop() -> None:
    """Each page is progress; a page that never comes is none."""
    world = World(*[milvus(f"x{number}", replicas=0) for number in range(300)])
    alive = []

    def page(request: Request) -> None:
        world.clock.advance(45)
        alive.append(world.operator.is_alive())

    world.server.when("list", "milvuses", page)
    world.operator.run_pass()
    assert len(alive) > 2
    assert all(alive)
    world.server.when("list", "milvuses", page)
    world.operator.run_pass()
    assert not alive[-1]


@pytest.fixture
def idle() -> Iterator[Callable[[int, int], list[socket.socket]]]:
    """Opens connections to a port that say nothing."""
    opened = list[socket.socket]()

    def open_them(port: int, count: int) -> list[socket.socket]:
        for _ in range(count):
            opened.append(socket.create_connection(("127.0.0.1", port), timeout=20))
        return opened

    yield open_them
    for sock in opened:
        sock.close()


def test_hundreds_of_idle_clients_delay_nobody(
    command: Start, kube: Kube, idle: Callable[[int, int], list[socket.socket]]
) -> None:
    port = free_ports(1)[0]
    process = command("--health-port", str(port), "--interval", "0.3")
    eventually(lambda: http_get(port, "/healthz")[0] == 200, ignoring=(OSError,))
    slow = idle(port, 500)
    for path in ("/healthz", "/metrics"):
        assert http_get(port, path)[0] == 200
    assert slow[0].recv(1) == b"", "the server does not wait for it forever"
    pid = process.process.pid
    assert len(list(Path(f"/proc/{pid}/fd").iterdir())) < 200
    assert len(list(Path(f"/proc/{pid}/task").iterdir())) < 200
    kube.create()
    kube.ready("x-0")
    assert process.stop() == 0
    assert "Traceback" not in process.log


SHORTAGE = """if True:
    import logging, os, threading, time
    import milvus_operator

    def use_up():
        start, taken = threading.Thread.start, []

        def refuse(thread):
            raise RuntimeError("can't start new thread")

        threading.Thread.start = refuse
        try:
            while True:
                taken.append(os.open("/dev/null", 0))
        except OSError:
            time.sleep(3)
        threading.Thread.start = start
        for handle in taken:
            os.close(handle)

    class Start(logging.Handler):
        def emit(self, record):
            if "a pass every" in record.getMessage():
                threading.Thread(target=use_up).start()
                time.sleep(1)

    milvus_operator.log.addHandler(Start())
    milvus_operator.main()
"""


def test_without_file_handles_or_threads_it_goes_on(kube: Kube) -> None:
    """While there are none, passes fail with a line; then they succeed."""
    options = ["-n", kube.ns, "--kubeconfig", str(kube.plane.kubeconfig()), "--interval", "0.5"]
    process = subprocess.Popen(
        [sys.executable, "-c", SHORTAGE, *options],
        cwd=TOP, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)),
    )  # fmt: skip
    kube.create(replicas=40)
    try:
        eventually(lambda: len(kube.names()) == 40, 60)
    finally:
        process.terminate()
        log = process.communicate()[1]
    assert process.returncode == 0, log
    assert "Traceback" not in log
    assert "ERROR   a pass failed: " in log
    assert "INFO    resolved: a pass failed" in log


@pytest.mark.parametrize("in_pod", [True, False])
def test_only_in_a_pod_does_health_listen_on_all_addresses(
    command: Start, kube: Kube, in_pod: bool
) -> None:
    port = free_ports(1)[0]
    env = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"} if in_pod else None
    process = command("-v", "--health-port", str(port), env=env)
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
    text = f"Error: cannot listen on port {port}: Address already in use; choose another with"
    assert text in process.log
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
