"""Health and metrics over HTTP, as a cluster's own tools read them."""

import resource
import socket

import pytest

import milvus_operator as mo
from local.controlplane import free_ports
from tests.lib.front import Request
from tests.lib.kit import Kube, Start, eventually, http_get
from tests.lib.world import Later, World, at_rest, metric, milvus


def serve(world: World) -> int:
    """Serve the health of an operator, until the end of all tests; the port."""
    port = free_ports(1)[0]
    mo.start_health_server(world.operator, port)
    return port


@pytest.mark.parametrize("interval", [5, 3600])
def test_a_stuck_loop_causes_a_restart_but_no_outage(interval: float) -> None:
    """It may wait for the next pass, or to list again; and each request has its timeout."""
    world = World(interval=interval)
    port = serve(world)

    def codes() -> str:
        return f"{http_get(port, '/healthz')[0]} {http_get(port, '/readyz')[0]}"

    rule = world.server.fault("list", "pods", "unreachable")
    world.passes()
    assert codes() == "200 503", "not every namespace has been listed yet"
    world.server.rules.remove(rule)
    world.operator.run_pass()
    timeout = world.operator.api.timeout
    world.clock.advance(interval + timeout + 39)
    assert codes() == "200 200"
    world.clock.advance(2)
    assert codes() == "503 200"
    world.server.fault("list", "pods", "unreachable")
    world.operator.run_pass()
    assert codes() == "200 200"


def test_events_do_not_hide_a_stuck_loop() -> None:
    later = Later()
    world = World(milvus(), sender=later)
    world.passes()
    world.clock.advance(1000)
    for task, event in later.tasks:
        task(event)
    assert not world.operator.is_alive()


def test_a_long_list_is_not_a_stuck_loop() -> None:
    """Each page is progress; a page that does not come for long is none."""
    several = [milvus(f"x{number}", replicas=0) for number in range(3 * mo.PAGE)]
    world = World(*several)
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


@pytest.mark.platform
def test_metrics_count_passes_and_milvus() -> None:
    world = at_rest(milvus("x", replicas=2), milvus("bad", milvusSpec="proxy.port: 1"))
    passes = metric("pass_duration_seconds_count")
    world.add(milvus("waits"))
    world.passes(3)
    assert metric("pass_duration_seconds_count") == passes + 3
    shown = http_get(serve(world), "/metrics")[1]
    assert '\nmilvus_operator_passes_total{result="success"} ' in shown
    for state in ("ready", "progressing", "failed"):
        assert f'\nmilvus_operator_milvuses{{state="{state}"}} 1.0\n' in shown


@pytest.mark.parametrize("path", ["/", "/livez", "/healthz/", "/metrics/", "/readyzz"])
def test_any_other_path_is_not_found(path: str) -> None:
    """A probe with a typing error must not succeed for ever."""
    assert http_get(serve(World()), path)[0] == 404


def test_a_query_changes_nothing() -> None:
    world = World()
    port = serve(world)
    world.clock.advance(1000)
    assert http_get(port, "/healthz?verbose")[0] == 503
    assert "milvus_operator_passes_total" in http_get(port, "/metrics?a=b")[1]


def test_each_milvus_has_a_sample_with_its_state_as_long_as_it_is_there() -> None:
    world = at_rest(milvus("x"), milvus("bad", milvusSpec="proxy.port: 1"))
    port = serve(world)

    def samples() -> list[str]:
        lines = http_get(port, "/metrics")[1].splitlines()
        return [line for line in lines if line.startswith("milvus_operator_milvus_state{")]

    assert samples() == [
        'milvus_operator_milvus_state{name="bad",namespace="test",state="failed"} 1.0',
        'milvus_operator_milvus_state{name="x",namespace="test",state="ready"} 1.0',
    ]
    world.remove("milvuses", "x")
    world.server.set_pod("x-0", ready=False)
    world.passes()
    assert len(samples()) == 1


def test_without_file_handles_it_goes_on(kube: Kube, command: Start) -> None:
    """Meanwhile, what needs a new connection or a file fails with a line."""
    process = command("--interval", "0.5", "-v")
    process.says("pass finished")
    limit = resource.prlimit(process.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(process.process.pid, resource.RLIMIT_NOFILE, (1, limit[1]))
    for number in range(20):
        kube.create(f"m{number}", replicas=2)
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
    port = serve(World())
    socket.create_connection(("127.0.0.2", port)).close()
    if socket.has_dualstack_ipv6():
        socket.create_connection(("::1", port)).close()


def test_a_port_in_use_is_one_clear_line() -> None:
    port = serve(World())
    text = f"cannot listen on port {port}: Address already in use; choose another with"
    with pytest.raises(mo.Unusable, match=text):
        mo.start_health_server(World().operator, port)


def test_a_client_that_sends_nothing_is_disconnected() -> None:
    with socket.create_connection(("127.0.0.1", serve(World())), timeout=20) as client:
        assert client.recv(1) == b"", "else it would keep a thread for ever"
