"""Health and metrics over HTTP, as a cluster's own tools read them."""

import os
import resource
import socket
import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

import milvus_operator as mo
from local.controlplane import free_ports
from tests.lib.front import Request
from tests.lib.kit import Kube, Start, eventually, http_get
from tests.lib.world import World, at_rest, milvus

OK = (200, "ok\n")


def serve(world: World) -> int:
    """Serve the health of an operator, until the end of all tests; the port."""
    port = free_ports(1)[0]
    mo.serve_health(world.operator, port)
    return port


@pytest.mark.parametrize(("interval", "patience"), [(5, 30), (3600, 3600)])
def test_a_stuck_loop_causes_a_restart_but_no_outage(interval: float, patience: float) -> None:
    """It may wait for the next pass, or to list again; and each request has its timeout."""
    world, timeout = World(interval=interval), 10
    port = serve(world)
    rule = world.server.fault("list", "pods", "unreachable")
    world.passes()
    assert http_get(port, "/healthz?verbose") == OK
    assert http_get(port, "/readyz") == (503, "not every namespace has been listed yet\n")
    assert http_get(port, "/nowhere")[0] == 404
    world.server.rules.remove(rule)
    world.operator.run_pass()
    assert http_get(port, "/readyz") == OK
    world.clock.advance(patience + timeout + 9)
    assert http_get(port, "/healthz") == OK
    world.clock.advance(2)
    assert http_get(port, "/healthz") == (503, "the loop has made no progress for too long\n")
    world.operator.run_pass()
    assert http_get(port, "/healthz") == OK


def test_a_long_list_is_not_a_stuck_loop() -> None:
    """Each page is progress; a page that never comes is none."""
    world = World(*[milvus(f"x{number}", replicas=0) for number in range(300)])
    alive = []

    def page(request: Request) -> None:
        world.clock.advance(45)
        alive.append(world.operator.is_alive())

    for progress in (True, False):  # the pages of the second pass take twice as long
        world.server.when("list", "milvuses", page)
        alive.clear()
        world.operator.run_pass()
        assert len(alive) > 2
        assert all(alive) == progress


def samples(port: int) -> dict[str, float]:
    """Each of our samples by its name and labels, read by Prometheus's own parser."""
    text = http_get(port, "/metrics")[1]
    found = dict[str, float]()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = [f"{key}={value}" for key, value in sorted(sample.labels.items())]
            found[" ".join([sample.name.removeprefix("milvus_operator_"), *labels])] = sample.value
    return found


@pytest.mark.platform
def test_metrics_count_what_a_pass_does() -> None:
    world = at_rest(milvus("x", replicas=2), milvus("bad", milvusSpec="proxy.port: 1"))
    port = serve(world)
    before = samples(port)
    world.change("x", replicas=1)
    world.add(milvus("waits"))
    world.passes(3)
    after = samples(port)
    assert {
        name: value - before.get(name, 0)
        for name, value in after.items()
        if name.startswith(("api_requests_total", "passes_total", "pass_duration_seconds_count"))
        and value != before.get(name)
    } == {
        "passes_total result=success": 3,  # one bad Milvus is not a failure of the operator
        "pass_duration_seconds_count": 3,
        "api_requests_total code=200 resource=pods verb=list": 3,
        "api_requests_total code=200 resource=milvuses verb=list": 3,
        "api_requests_total code=200 resource=milvuses/status verb=patch": 2,
        "api_requests_total code=201 resource=pods verb=create": 1,
        "api_requests_total code=200 resource=pods verb=delete": 1,
        "api_requests_total code=201 resource=events verb=create": 2,
    }
    for state in ("ready", "progressing", "failed"):
        assert after[f"milvuses state={state}"] == 1, state
    assert after["seconds_since_good_pass"] == 5
    world.server.fault("list", "pods", "reset")
    world.passes()
    failed = "api_requests_total code=error resource=pods verb=list"
    assert samples(port)[failed] == after.get(failed, 0) + 1


def test_hundreds_of_idle_clients_delay_nobody() -> None:
    def used() -> int:
        return threading.active_count() + len(os.listdir("/proc/self/fd"))

    port, before = serve(World()), used()
    idle = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(300)]
    for path in ("/healthz", "/metrics"):
        assert http_get(port, path)[0] == 200
    assert idle[0].recv(1) == b"", "the server does not wait for it forever"
    assert used() - before < 300 + 150, "only the test itself keeps its ends open"
    for client in idle:
        client.close()


def test_without_file_handles_it_goes_on(kube: Kube, command: Start) -> None:
    """Meanwhile, what needs a new connection or a file fails with a line."""
    process = command("--interval", "0.5", "-v")
    process.says("pass over")
    limit = resource.prlimit(process.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(process.process.pid, resource.RLIMIT_NOFILE, (1, limit[1]))
    kube.create(replicas=40)
    process.says("Too many open files")
    resource.prlimit(process.process.pid, resource.RLIMIT_NOFILE, limit)
    eventually(lambda: len(kube.names()) == 40, 60)
    assert process.stop() == 0
    assert "Traceback" not in process.log


def test_only_in_a_pod_does_health_listen_on_all_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mo.HealthServer, "address_family", socket.AF_INET)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", serve(World())))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    socket.create_connection(("127.0.0.2", serve(World()))).close()


def test_a_port_in_use_is_one_clear_line() -> None:
    port = serve(World())
    text = f"cannot listen on port {port}: Address already in use; choose another with"
    with pytest.raises(mo.Unusable, match=text):
        mo.serve_health(World().operator, port)
