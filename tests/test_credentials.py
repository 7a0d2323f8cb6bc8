"""Credentials: they are found as kubectl finds them, and renewed without a restart."""

from __future__ import annotations

import base64
import functools
import json
import os
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from kubernetes.config import incluster_config

import milvus_operator as mo
from local.controlplane import new_key
from tests.lib.kit import Clock, Command, Kube, client, eventually, make_pass, operator_of
from tests.lib.wire import Wire

Start = Callable[..., Command]
Obj = dict[str, Any]
pytestmark = pytest.mark.platform


def content_of(kube: Kube) -> Obj:
    return yaml.safe_load(kube.plane.kubeconfig().read_text())  # type: ignore[no-any-return]


def admins_token(kube: Kube) -> str:
    return str(content_of(kube)["users"][0]["user"]["token"])


def login(path: Path, kube: Kube, user: Obj | None = None, **cluster: Any) -> str:
    """A kubeconfig with this user, and these changes to the cluster."""
    content = content_of(kube)
    content["users"][0]["user"] = content["users"][0]["user"] if user is None else user
    content["clusters"][0]["cluster"] |= {
        key.replace("_", "-"): value for key, value in cluster.items()
    }
    path.write_text(yaml.safe_dump(content))
    return str(path)


# Tokens --------------------------------------------------------------------------------


def new_account(kube: Kube) -> str:
    """A token of the service account, which is recreated, so that earlier tokens are no longer valid."""
    kube.kubectl("delete", "serviceaccount", "operator", "--ignore-not-found")
    kube.kubectl("create", "serviceaccount", "operator")
    return kube.kubectl("create", "token", "operator").strip()


@pytest.fixture
def rights(kube: Kube) -> None:
    """The service account may do everything in its namespace."""
    kube.kubectl(
        "create",
        "rolebinding",
        "operator",
        "--clusterrole=cluster-admin",
        f"--serviceaccount={kube.ns}:operator",
    )


def test_a_token_file_that_is_rewritten_is_used_within_a_minute(
    kube: Kube, wire: Wire, clock: Clock, rights: None, tmp_path: Path
) -> None:
    file, tokens = (
        login(tmp_path / "config", kube, {"tokenFile": str(tmp_path / "token")}, server=wire.url),
        list[str](),
    )

    def sent() -> set[str]:
        wire.requests.clear()
        assert make_pass(operator)
        return {request.credentials.removeprefix("Bearer ") for request in wire.requests}

    (tmp_path / "token").write_text(new_account(kube) + "\n")
    operator = operator_of(file, kube, clock)
    for _ in range(3):
        tokens.append((tmp_path / "token").read_text().strip())
        assert sent() == {tokens[-1]}
        kube.create(f"mv{len(tokens)}")
        (tmp_path / "token").write_text(kube.kubectl("create", "token", "operator"))
        clock.skip(60)
    assert len({*tokens}) == 3


def test_a_token_that_is_revoked_is_replaced_by_the_next_one_in_its_file(
    kube: Kube, command: Start, rights: None, tmp_path: Path
) -> None:
    """Without waiting for the minute to pass."""
    (tmp_path / "token").write_text(new_account(kube))
    file = login(tmp_path / "config", kube, {"tokenFile": str(tmp_path / "token")})
    process = command("--kubeconfig", file, "--interval", "0.5")
    kube.create("x")
    kube.ready("x-0")
    token = new_account(kube)
    process.says(
        "does not accept the credentials (401): log in again, or renew the token in the kubeconfig"
    )
    (tmp_path / "token").write_text(token)
    kube.create("y")
    kube.ready("x-0", "y-0")
    process.says("resolved: ")
    assert process.stop() == 0
    assert process.log.count("401") == 2, f"logged once, and once as resolved: {process.log}"


def test_in_a_pod_it_follows_a_rotated_token(
    kube: Kube, rights: None, clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    """The files and variables of a pod are simulated; the tokens, and the server that checks them, are real."""
    pki, tls = kube.plane.folder / "pki", ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pki / "apiserver.crt", pki / "apiserver.key")
    wire = Wire(client(kube.plane).configuration.host, str(pki / "apiserver.crt"), tls)
    url = urlsplit(wire.url)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", str(url.hostname))
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(url.port))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(mo, "SERVICE_ACCOUNT", str(tmp_path))
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(pki / "apiserver.crt"))
    (tmp_path / "namespace").write_text(kube.ns)
    (tmp_path / "token").write_text(first := new_account(kube))
    cluster = mo.Cluster(functools.partial(mo.connect, None, None, 4), clock=clock)
    assert cluster.connection.namespace == kube.ns
    operator = mo.Operator(cluster, [kube.ns], interval=5, workers=2)

    def passes_with(token: str) -> bool:
        wire.requests.clear()
        return make_pass(operator) and {
            request.credentials.split()[1] for request in wire.requests
        } == {token}

    assert passes_with(first)
    (tmp_path / "token").write_text(second := kube.kubectl("create", "token", "operator").strip())
    clock.skip(60)
    assert passes_with(second), "although the first is still valid"
    third = new_account(kube)
    eventually(lambda: not make_pass(operator))
    assert "does not accept the credentials (401)" in caplog.text
    (tmp_path / "token").write_text(third)
    assert passes_with(third), "in the next pass, without waiting for the minute to pass"
    wire.close()


# Plugins -------------------------------------------------------------------------------


class Plugin:
    """An exec plugin, as used by EKS, GKE and OIDC logins: the kubeconfig names a command that prints a token."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls_file = folder, folder / "calls"
        self.calls_file.touch()
        (folder / "plugin").write_text(f"""#!/bin/sh
cd {folder}
mkdir busy || echo two at once >> calls
echo asked >> calls
sleep 0.1
rmdir busy
cat credential 2> /dev/null && exit
printf 'no luck\\ntoday "or" tomorrow' >&2
exit 1
""")
        (folder / "plugin").chmod(0o755)

    def user(self) -> Obj:
        run = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}
        return {"exec": run | {"command": str(self.folder / "plugin")}}

    def prints(self, **status: str) -> None:
        """From now on, it succeeds and prints this."""
        credential = {
            "apiVersion": "client.authentication.k8s.io/v1",
            "kind": "ExecCredential",
            "status": status,
        }
        (self.folder / "new").write_text(json.dumps(credential))
        (self.folder / "new").rename(self.folder / "credential")

    def fails(self) -> None:
        (self.folder / "credential").unlink()

    @property
    def calls(self) -> int:
        """How often it has been run so far; it never runs twice at once."""
        lines = self.calls_file.read_text().splitlines()
        assert {*lines} <= {"asked"}
        return len(lines)


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


def test_a_plugin_runs_once_a_minute_and_its_credentials_are_used(
    kube: Kube, wire: Wire, clock: Clock, rights: None, plugin: Plugin, tmp_path: Path
) -> None:
    plugin.prints(token=admins_token(kube), expirationTimestamp="2020-01-01T00:00:00Z")
    operator = operator_of(
        login(tmp_path / "config", kube, plugin.user(), server=wire.url), kube, clock
    )
    kube.create(replicas=20)
    for _ in range(10):
        assert make_pass(operator)
    assert (len(kube.names()), plugin.calls) == (20, 1), "it does not run for each request"
    token = new_account(kube)
    plugin.prints(token=token)
    clock.skip(60)
    wire.requests.clear()
    for _ in range(10):
        assert make_pass(operator)
    assert plugin.calls == 2
    assert {request.credentials for request in wire.requests} == {f"Bearer {token}"}


def test_a_plugin_that_fails_does_no_harm_while_the_last_token_is_valid(
    kube: Kube, clock: Clock, plugin: Plugin, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plugin.prints(token=admins_token(kube))
    operator = operator_of(login(tmp_path / "config", kube, plugin.user()), kube, clock)
    plugin.fails()
    for name in "abc":
        kube.create(name)
        assert make_pass(operator)
        clock.skip(60)
    assert plugin.calls == 3
    assert kube.names() == ["a-0", "b-0", "c-0"]
    assert not [
        record
        for record in caplog.records
        if record.name == "milvus_operator" and record.levelname == "ERROR"
    ]


def test_a_plugin_that_fails_at_the_start_is_retried_until_it_works(
    kube: Kube, command: Start, plugin: Plugin, tmp_path: Path
) -> None:
    file = login(tmp_path / "config", kube, plugin.user())
    namespaces = ("-n", kube.ns, "-n", "kube-public", "-n", "kube-node-lease")
    process = command(
        "--kubeconfig", file, *namespaces, "--interval", "0.5", "-v", "--log-format", "json"
    )
    line = json.loads(process.says('"level": "ERROR"'))
    assert "does not accept the credentials (401): exec: process returned 1. " in line["message"]
    assert line["message"].endswith('no luck today "or" tomorrow')
    for _ in range(3):
        process.says("pass over")
    passes = process.log.count("pass over")
    assert 3 <= plugin.calls <= passes + 2, "once before each pass, not for each request"
    plugin.prints(token=admins_token(kube))
    process.says("resolved: ")
    kube.create(replicas=20)
    before = plugin.calls
    eventually(lambda: len(kube.names()) == 20)
    assert plugin.calls == before
    assert process.stop() == 0
    for line in process.log.splitlines():
        assert {"timestamp", "level", "message"} <= json.loads(line).keys()
    assert process.log.count("ERROR") == 1


def test_a_missing_plugin_is_named_on_one_line(kube: Kube, command: Start, tmp_path: Path) -> None:
    run = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "interactiveMode": "Never",
        "command": "/no/such/plugin",
    }
    process = command("--kubeconfig", login(tmp_path / "config", kube, {"exec": run}), "--once")
    assert process.end() == 1
    assert "Traceback" not in process.log
    (line,) = (line for line in process.log.splitlines() if "ERROR" in line)
    assert "/no/such/plugin" in line
    assert len(process.log.splitlines()) <= 3


# Certificates --------------------------------------------------------------------------


def pair(kube: Kube, folder: Path, user: str, group: str, days: int = 1) -> Obj:
    """A client certificate and key, signed by the authority of the control plane; always in files of the same names."""
    plane, now, key = kube.plane.folder, datetime.now(UTC), new_key(folder / "new.key")
    authority = serialization.load_pem_private_key((plane / "client-ca.key").read_bytes(), None)
    issuer = x509.load_pem_x509_certificate((plane / "client-ca.crt").read_bytes()).subject
    names = {x509.NameOID.COMMON_NAME: user, x509.NameOID.ORGANIZATION_NAME: group}
    certificate = (
        x509.CertificateBuilder().issuer_name(issuer).public_key(key.public_key())
        .subject_name(x509.Name([x509.NameAttribute(oid, name) for oid, name in names.items()]))
        .serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(days=10))
        .not_valid_after(now + timedelta(days=days)).sign(authority, hashes.SHA256())  # type: ignore[arg-type]
    )  # fmt: skip
    (folder / "new.key").rename(folder / "key")
    (folder / "crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return {"client-certificate": str(folder / "crt"), "client-key": str(folder / "key")}


def test_a_client_certificate_that_is_renewed_is_used_within_a_minute(
    kube: Kube, clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kube.create()
    file = login(tmp_path / "config", kube, pair(kube, tmp_path, "somebody", "nobodies"))
    operator = operator_of(file, kube, clock)
    assert not make_pass(operator)
    assert f"not allowed to list pods in namespace {kube.ns}" in caplog.text
    new_key(tmp_path / "key")  # of a renewal in progress
    clock.skip(60)
    assert not make_pass(operator), "but the loop goes on"
    pair(kube, tmp_path, "admin", "system:masters")
    clock.skip(60)
    assert make_pass(operator)
    assert kube.names() == ["x-0"]
    assert "Traceback" not in caplog.text


def test_a_client_certificate_that_has_expired_is_read_again_before_the_next_pass(
    kube: Kube, clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kube.create()
    file = login(
        tmp_path / "config", kube, pair(kube, tmp_path, "admin", "system:masters", days=-1)
    )
    operator = operator_of(file, kube, clock)
    assert not make_pass(operator)
    assert "does not accept the credentials (401)" in caplog.text
    pair(kube, tmp_path, "admin", "system:masters")
    assert make_pass(operator)
    assert kube.names() == ["x-0"]


def test_client_certificates_and_tokens_from_files(
    kube: Kube, command: Start, tmp_path: Path
) -> None:
    folder = kube.plane.folder
    (tmp_path / "token").write_text(admins_token(kube) + "\n")
    admin = {"client-certificate": folder / "admin.crt", "client-key": folder / "admin.key"}
    ways: list[dict[str, str]] = [
        {key: str(path) for key, path in admin.items()},
        {
            f"{key}-data": base64.b64encode(path.read_bytes()).decode()
            for key, path in admin.items()
        },
        {"tokenFile": str(tmp_path / "token")},
    ]
    for number, user in enumerate(ways):
        kube.create(f"mv{number}")
        process = command("--kubeconfig", login(tmp_path / "config", kube, user), "--once")
        assert process.end() == 0, process.log
        assert f"created pod {kube.ns}/mv{number}-0" in process.log


def test_tls_is_verified_unless_the_kubeconfig_says_otherwise(
    kube: Kube, command: Start, tmp_path: Path
) -> None:
    content = content_of(kube)
    cluster = content["clusters"][0]["cluster"]
    del cluster["certificate-authority-data"]
    (tmp_path / "config").write_text(yaml.safe_dump(content))
    process = command("--kubeconfig", str(tmp_path / "config"), "--once")
    assert process.end() == 1
    assert "certificate verify failed" in process.log
    cluster["insecure-skip-tls-verify"] = True
    (tmp_path / "config").write_text(yaml.safe_dump(content))
    process = command("--kubeconfig", str(tmp_path / "config"), "--once")
    assert process.end() == 0, process.log
    assert "Warning" not in process.log


def test_kubeconfig_may_name_several_files(kube: Kube, command: Start, tmp_path: Path) -> None:
    """The first file wins, a missing file is skipped, and a relative path is relative to the file that contains it."""
    content = content_of(kube)
    (tmp_path / "users").mkdir()
    (tmp_path / "users" / "token").write_text(admins_token(kube))
    content["users"][0]["user"] = {"tokenFile": "token"}
    content["contexts"][0]["context"]["namespace"] = kube.ns
    parts = {
        "contexts": {key: content[key] for key in ("current-context", "contexts")},
        "clusters": {"current-context": "no-such-context", "clusters": content["clusters"]},
        "users/config": {"users": content["users"]},
    }
    for name, part in parts.items():
        (tmp_path / name).write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config"} | part))
    kube.create()
    process = command(
        "--once", kubeconfig=os.pathsep.join(str(tmp_path / name) for name in ("missing", *parts))
    )
    assert process.end() == 0, process.log
    assert f"serves namespace {kube.ns} once" in process.log
    assert kube.names() == ["x-0"]


# Connections ---------------------------------------------------------------------------


def test_connections_are_kept_alive(kube: Kube, wire: Wire, clock: Clock, tmp_path: Path) -> None:
    """Also when the configuration is read again after a minute and has not changed."""
    operator = operator_of(login(tmp_path / "config", kube, server=wire.url), kube, clock)
    for number in range(10):
        kube.create(f"mv{number}", replicas=2)
        make_pass(operator)
    assert len(wire.requests) > 60
    assert len(wire.connections) <= 16, "no more than there are workers"
    before = len(wire.connections)
    for _ in range(10):
        make_pass(operator)
        clock.skip(61)
    assert len(wire.connections) <= before + 1


# Proxies -------------------------------------------------------------------------------


class Proxy(socketserver.StreamRequestHandler):
    """A proxy without authentication: SOCKS 5, or HTTP's CONNECT."""

    server: Any

    def handle(self) -> None:
        first = self.rfile.read(1)
        host, port = self.socks() if first == b"\5" else self.connect()
        self.server.asked.append((host, port))
        with socket.create_connection((host, port)) as upstream:
            self.wfile.write(
                b"\5\0\0\1" + bytes(6) if first == b"\5" else b"HTTP/1.1 200 OK\r\n\r\n"
            )
            thread = threading.Thread(
                target=self.copy, args=(upstream, self.connection), daemon=True
            )
            thread.start()
            self.copy(self.connection, upstream)

    def socks(self) -> tuple[str, int]:
        self.rfile.read(self.rfile.read(1)[0])
        self.wfile.write(b"\5\0")
        kind = self.rfile.read(4)[3]
        host = (
            socket.inet_ntoa(self.rfile.read(4))
            if kind == 1
            else self.rfile.read(self.rfile.read(1)[0]).decode()
        )
        return host, int.from_bytes(self.rfile.read(2), "big")

    def connect(self) -> tuple[str, int]:
        host, _, port = self.rfile.readline().split()[1].decode().rpartition(":")
        while self.rfile.readline().strip():
            pass
        return host, int(port)

    def copy(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while some := source.recv(65536):
                target.sendall(some)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass


@pytest.fixture
def proxy() -> Iterator[Any]:
    """A running proxy, with its port and the hosts that clients asked for."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Proxy) as server:
        server.daemon_threads, server.asked = True, []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="session")
def pysocks(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with the package PySocks."""
    folder = str(tmp_path_factory.mktemp("pysocks"))
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--target",
        folder,
    ]
    done = subprocess.run([*pip, "PySocks"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"PySocks cannot be installed: {done.stderr.strip()[-200:]}")
    return folder


def test_a_socks_proxy_without_pysocks_is_one_clear_line(
    kube: Kube, command: Start, tmp_path: Path
) -> None:
    file = login(tmp_path / "config", kube, proxy_url="socks5://127.0.0.1:1")
    process = command("--kubeconfig", file)
    assert process.end() == 2
    assert process.log == (
        f"Error: cannot use {file}: a SOCKS proxy needs the package PySocks (pip install PySocks)\n"
    )


def test_a_socks_proxy_with_pysocks(
    kube: Kube, command: Start, proxy: Any, pysocks: str, tmp_path: Path
) -> None:
    kube.create()
    file = login(
        tmp_path / "config", kube, proxy_url=f"socks5://127.0.0.1:{proxy.server_address[1]}"
    )
    process = command("--kubeconfig", file, "--once", env={"PYTHONPATH": pysocks})
    assert process.end() == 0, process.log
    assert f"created pod {kube.ns}/x-0" in process.log
    url = urlsplit(kube.api.configuration.host)
    assert {*proxy.asked} == {(url.hostname, url.port)}


def test_a_proxy_that_speaks_http(kube: Kube, command: Start, proxy: Any, tmp_path: Path) -> None:
    kube.create()
    file = login(tmp_path / "config", kube, proxy_url=f"http://127.0.0.1:{proxy.server_address[1]}")
    process = command("--kubeconfig", file, "--once")
    assert process.end() == 0, process.log
    assert f"created pod {kube.ns}/x-0" in process.log
    url = urlsplit(kube.api.configuration.host)
    assert {*proxy.asked} == {(url.hostname, url.port)}
