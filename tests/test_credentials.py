"""Credentials: they are found as kubectl finds them, and renewed without a restart."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import socket
import socketserver
import ssl
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
from tests.lib.kit import (
    Command,
    Kube,
    client,
    eventually,
    kubeconfig,
    make_pass,
    new_wire,
    operator_of,
    settle,
)
from tests.lib.wire import Wire

Start = Callable[..., Command]
Obj = dict[str, Any]
pytestmark = pytest.mark.platform


def content_of(file: str | Path) -> Obj:
    return yaml.safe_load(Path(file).read_text())  # type: ignore[no-any-return]


def admins_token(kube: Kube) -> str:
    return str(content_of(kube.plane.kubeconfig())["users"][0]["user"]["token"])


def sent(wire: Wire, operator: mo.Operator) -> set[str]:
    """The tokens of the requests of one pass."""
    wire.requests.clear()
    make_pass(operator)
    return {request.credentials.split()[-1] for request in wire.requests}


# --- Tokens ---
def new_token(kube: Kube) -> str:
    return kube.kubectl("create", "token", "operator").strip()


def new_account(kube: Kube) -> str:
    """A token of the service account, which is recreated: earlier tokens are no longer valid."""
    kube.kubectl("delete", "serviceaccount", "operator", "--ignore-not-found")
    kube.kubectl("create", "serviceaccount", "operator")
    return new_token(kube)


@pytest.fixture
def rights(kube: Kube) -> None:
    """The service account may do everything in its namespace."""
    role = ["--clusterrole=cluster-admin", f"--serviceaccount={kube.ns}:operator"]
    kube.kubectl("create", "rolebinding", "operator", *role)


def test_a_token_in_a_file_that_is_rewritten_is_used_in_the_next_pass(
    kube: Kube, wire: Wire, rights: None, tmp_path: Path
) -> None:
    user = {"tokenFile": str(tmp_path / "token")}
    file = kubeconfig(tmp_path / "config", kube.plane, user, server=wire.url)
    (tmp_path / "token").write_text((first := new_account(kube)) + "\n")
    operator = operator_of(file, kube)
    assert sent(wire, operator) == {first}
    (tmp_path / "token").write_text(second := new_token(kube))
    assert first != second
    assert sent(wire, operator) == {second}


def test_a_token_that_is_revoked_is_told_once_and_replaced_by_the_next_one_in_its_file(
    kube: Kube, command: Start, rights: None, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(new_account(kube))
    file = kubeconfig(tmp_path / "config", kube.plane, {"tokenFile": str(tmp_path / "token")})
    process = command("--kubeconfig", file, "--interval", "0.5")
    kube.create("x")
    kube.ready("x-0")
    token = new_account(kube)
    process.says("rejects the credentials: log in again, or renew the token")
    (tmp_path / "token").write_text(token)
    kube.create("y")
    kube.ready("x-0", "y-0")
    process.says("resolved: ")
    assert process.stop() == 0
    assert process.log.count("ERROR") == 1, process.log


def test_in_a_pod_it_follows_a_rotated_token(
    kube: Kube, rights: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The files and variables of a pod are simulated; the tokens and the server are real."""
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
    cluster = mo.Cluster(functools.partial(mo.connect, None, 4))
    assert cluster.connection.namespace == kube.ns
    operator = mo.Operator(cluster, [kube.ns], interval=5, workers=2)
    assert sent(wire, operator) == {first}
    (tmp_path / "token").write_text(second := new_token(kube))
    assert sent(wire, operator) == {second}, "although the first is still valid"
    third = new_account(kube)
    eventually(lambda: not make_pass(operator))
    (tmp_path / "token").write_text(third)
    assert make_pass(operator)
    wire.close()


# --- The kubeconfig ---
def test_a_context_that_is_switched_elsewhere_does_not_move_a_running_operator(
    kube: Kube, wire: Wire, rights: None, tmp_path: Path
) -> None:
    """But a new token of its own context in the file is used."""
    elsewhere = new_wire(kube.plane)
    file = kubeconfig(tmp_path / "config", kube.plane, server=wire.url)
    content = content_of(file)
    (one,), (name,) = content["clusters"], [context["name"] for context in content["contexts"]]
    content["clusters"].append({"name": "b", "cluster": one["cluster"] | {"server": elsewhere.url}})
    user = content["users"][0]["name"]
    content["contexts"].append({"name": "b", "context": {"cluster": "b", "user": user}})
    Path(file).write_text(yaml.safe_dump(content))
    operator = operator_of(file, kube)
    assert sent(wire, operator) == {admins_token(kube)}
    content["current-context"] = "b"
    Path(file).write_text(yaml.safe_dump(content))
    assert sent(wire, operator) == {admins_token(kube)}
    content["users"][0]["user"] = {"token": (token := new_account(kube))}
    Path(file).write_text(yaml.safe_dump(content))
    assert sent(wire, operator) == {token}
    content["contexts"] = [one for one in content["contexts"] if one["name"] != name]
    Path(file).write_text(yaml.safe_dump(content))
    assert sent(wire, operator) == {token}, "also if its own context is gone"
    assert elsewhere.connections == []
    elsewhere.close()


def test_a_kubeconfig_that_is_half_written_is_read_again_when_it_is_whole(
    kube: Kube, wire: Wire, rights: None, tmp_path: Path
) -> None:
    file = kubeconfig(tmp_path / "config", kube.plane, server=wire.url)
    operator = operator_of(file, kube)
    assert make_pass(operator)
    whole = kubeconfig(tmp_path / "new", kube.plane, {"token": new_account(kube)}, server=wire.url)
    text = Path(whole).read_text()
    for part in ("", text[: len(text) // 2], text[: len(text) // 3]):
        Path(file).write_text(part)
        assert sent(wire, operator) == {admins_token(kube)}
    Path(file).unlink()
    assert sent(wire, operator) == {admins_token(kube)}
    Path(file).write_text(text)
    assert admins_token(kube) not in sent(wire, operator)


def test_kubeconfig_may_name_several_files(kube: Kube, command: Start, tmp_path: Path) -> None:
    """The first wins, a missing one is skipped, and relative paths are relative to their file."""
    content = content_of(kube.plane.kubeconfig())
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
    files = os.pathsep.join(str(tmp_path / name) for name in ("missing", *parts))
    process = command("--once", kubeconfig=files)
    assert process.end() == 0, process.log
    assert f"namespace {kube.ns}, once" in process.log
    assert kube.names() == ["x-0"]


@pytest.mark.parametrize("how", [{"as": "a"}, {"as": "a", "as-groups": ["b"]}, {"as-uid": "1"}])
def test_impersonation_is_refused_in_one_clear_line(
    kube: Kube, command: Start, tmp_path: Path, how: Obj
) -> None:
    """Else the operator would have more rights than kubectl with the same file."""
    user = {"token": admins_token(kube)} | how
    file = kubeconfig(tmp_path / "config", kube.plane, user)
    process = command("--kubeconfig", file, "--once")
    assert process.end() == 2
    reason = "impersonation (`as`) is not supported"
    assert process.log == f"Error: cannot use {file}: {reason}\n"


# --- Plugins ---
class Plugin:
    """An exec plugin, as used by EKS, GKE and OIDC logins: a command that prints a token."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls_file = folder, folder / "calls"
        self.calls_file.touch()
        (folder / "plugin").write_text(f"""#!/bin/sh
cd {folder}
mkdir busy || echo two at once >> calls
echo asked >> calls
while [ -e wait ]; do sleep 0.1; done
rmdir busy
cat credential 2> /dev/null && exit
printf 'no luck\\ntoday "or" tomorrow' >&2
exit 1
""")
        (folder / "plugin").chmod(0o755)

    def user(self) -> Obj:
        run = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}
        return {"exec": run | {"command": str(self.folder / "plugin")}}

    def prints(self, token: str, expires: int = 3600) -> None:
        """From now on, it succeeds and prints this token, which expires in so many seconds."""
        end = datetime.now(UTC).replace(microsecond=0, tzinfo=None) + timedelta(seconds=expires)
        status = {"token": token, "expirationTimestamp": f"{end.isoformat()}Z"}
        kind = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
        (self.folder / "new").write_text(json.dumps(kind | {"status": status}))
        (self.folder / "new").rename(self.folder / "credential")

    def fails(self) -> None:
        (self.folder / "credential").unlink()

    def waits(self) -> None:
        """From now on, it does not end before `goes_on`."""
        (self.folder / "wait").touch()

    def goes_on(self) -> None:
        (self.folder / "wait").unlink(missing_ok=True)

    @property
    def calls(self) -> int:
        """How often it has been run so far; it never runs twice at once."""
        lines = self.calls_file.read_text().splitlines()
        assert {*lines} <= {"asked"}
        return len(lines)


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Plugin]:
    plugin = Plugin(tmp_path)
    yield plugin
    plugin.goes_on()


def test_a_plugin_is_asked_only_for_a_token_that_has_expired_or_is_rejected(
    kube: Kube, wire: Wire, rights: None, plugin: Plugin, tmp_path: Path
) -> None:
    plugin.prints(new_account(kube))
    file = kubeconfig(tmp_path / "config", kube.plane, plugin.user(), server=wire.url)
    operator = operator_of(file, kube)
    kube.create(replicas=20)
    settle(operator)
    assert (len(kube.names()), plugin.calls) == (20, 1), "not for each request, nor each pass"
    plugin.prints(token := new_account(kube), expires=-1)
    eventually(lambda: not make_pass(operator))  # the server caches tokens for some seconds
    assert plugin.calls == 1
    assert sent(wire, operator) == {token}
    assert plugin.calls == 2
    plugin.prints(token := new_token(kube))
    assert sent(wire, operator) == {token}, "the last one has expired, although it is accepted"
    assert make_pass(operator)
    assert plugin.calls == 3


def test_a_plugin_that_waits_or_fails_stops_no_pass_while_the_token_is_good(
    kube: Kube,
    wire: Wire,
    rights: None,
    plugin: Plugin,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    plugin.prints(admins_token(kube), expires=-1)
    file = kubeconfig(tmp_path / "config", kube.plane, plugin.user(), server=wire.url)
    operator = operator_of(file, kube)
    plugin.fails()
    plugin.waits()
    for name in "abc":
        kube.create(name)
        assert make_pass(operator)
    assert plugin.calls == 2, "it is still the same one that waits"
    plugin.goes_on()
    for name in "de":
        kube.create(name)
        assert make_pass(operator)
    assert kube.names() == ["a-0", "b-0", "c-0", "d-0", "e-0"]
    plugin.prints(token := new_account(kube))
    eventually(lambda: sent(wire, operator) == {token})
    calls = plugin.calls
    assert make_pass(operator)
    assert plugin.calls == calls
    assert not [record for record in caplog.records if record.levelname == "ERROR"
                and record.name == "milvus_operator"]  # fmt: skip


def test_a_plugin_that_waits_while_the_token_is_rejected_is_named(
    kube: Kube, rights: None, plugin: Plugin, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plugin.prints(new_account(kube))
    operator = operator_of(kubeconfig(tmp_path / "config", kube.plane, plugin.user()), kube)
    assert make_pass(operator)
    plugin.waits()
    plugin.prints(new_account(kube))
    eventually(lambda: not make_pass(operator))
    make_pass(operator)
    told = "exec plugin"
    eventually(lambda: told in "".join(operator.run_pass().outages))
    plugin.goes_on()
    eventually(lambda: make_pass(operator))


def test_a_plugin_that_fails_at_the_start_is_retried_until_it_works(
    kube: Kube, command: Start, plugin: Plugin, tmp_path: Path
) -> None:
    file = kubeconfig(tmp_path / "config", kube.plane, plugin.user())
    options = ["--interval", "0.5", "-v", "--log-format", "json"]
    process = command("--kubeconfig", file, "-n", kube.ns, "-n", "kube-public", *options)
    line = json.loads(process.says('"level": "ERROR"'))
    assert "rejects the credentials: exec: process returned 1. " in line["message"]
    assert " ".join(line["message"].split()).endswith('no luck today "or" tomorrow')
    process.says("pass over")
    plugin.prints(admins_token(kube))
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
    run = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}
    user = {"exec": run | {"command": "/no/such/plugin"}}
    process = command("--kubeconfig", kubeconfig(tmp_path / "config", kube.plane, user), "--once")
    assert process.end() == 1
    assert "Traceback" not in process.log
    (line,) = (line for line in process.log.splitlines() if "ERROR" in line)
    assert "/no/such/plugin" in line
    assert len(process.log.splitlines()) <= 3


# --- Certificates ---
def pair(kube: Kube, folder: Path, user: str, group: str, days: int = 1) -> Obj:
    """A client certificate and key that the control plane accepts; in files of the same names."""
    plane, now, key = kube.plane.folder, datetime.now(UTC), new_key(folder / "new.key")
    authority: Any = serialization.load_pem_private_key(
        (plane / "client-ca.key").read_bytes(), None
    )
    issuer = x509.load_pem_x509_certificate((plane / "client-ca.crt").read_bytes()).subject
    names = {x509.NameOID.COMMON_NAME: user, x509.NameOID.ORGANIZATION_NAME: group}
    subject = x509.Name([x509.NameAttribute(oid, name) for oid, name in names.items()])
    builder = x509.CertificateBuilder().issuer_name(issuer).subject_name(subject)
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=10))
    builder = builder.not_valid_after(now + timedelta(days=days))
    signed = builder.sign(authority, hashes.SHA256())
    (folder / "new.key").rename(folder / "key")
    (folder / "crt").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    return {"client-certificate": str(folder / "crt"), "client-key": str(folder / "key")}


def test_a_client_certificate_that_is_renewed_is_used_in_the_next_pass(
    kube: Kube, tmp_path: Path
) -> None:
    kube.create()
    user = pair(kube, tmp_path, "somebody", "nobodies")
    operator = operator_of(kubeconfig(tmp_path / "config", kube.plane, user), kube)
    right = f"not allowed to list pods in namespace {kube.ns}"
    assert right in "".join(operator.run_pass().outages)
    new_key(tmp_path / "key")  # of a renewal in progress
    assert right in "".join(operator.run_pass().outages), "the loop goes on"
    pair(kube, tmp_path, "admin", "system:masters", days=-1)
    assert "rejects the credentials" in "".join(operator.run_pass().outages)
    pair(kube, tmp_path, "admin", "system:masters")
    assert make_pass(operator)
    assert kube.names() == ["x-0"]


def test_client_certificates_from_files_and_from_the_kubeconfig(
    kube: Kube, command: Start, tmp_path: Path
) -> None:
    folder = kube.plane.folder
    admin = {"client-certificate": folder / "admin.crt", "client-key": folder / "admin.key"}
    encoded = {key: base64.b64encode(path.read_bytes()).decode() for key, path in admin.items()}
    for number, user in enumerate([
        {key: str(path) for key, path in admin.items()},
        {f"{key}-data": content for key, content in encoded.items()},
    ]):  # fmt: skip
        kube.create(f"mv{number}")
        file = kubeconfig(tmp_path / "config", kube.plane, user)
        process = command("--kubeconfig", file, "--once")
        assert process.end() == 0, process.log
        assert f"created pod {kube.ns}/mv{number}-0" in process.log


def test_connections_are_kept_alive(kube: Kube, wire: Wire, tmp_path: Path) -> None:
    operator = operator_of(kubeconfig(tmp_path / "config", kube.plane, server=wire.url), kube)
    kube.create(replicas=40)
    settle(operator)
    assert len(wire.requests) > 40
    assert len(wire.connections) <= 24, "no more than there are workers and listers"
    before = len(wire.connections)
    for _ in range(10):
        make_pass(operator)
    assert len(wire.connections) == before


# --- Proxies ---
class Proxy(socketserver.StreamRequestHandler):
    """A proxy without authentication, by CONNECT."""

    server: Any

    def handle(self) -> None:
        host, _, port = self.rfile.readline().split()[1].decode().rpartition(":")
        while self.rfile.readline().strip():
            pass
        self.server.asked.append((host, int(port)))
        with socket.create_connection((host, int(port))) as upstream:
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            to_client = threading.Thread(
                target=self.copy, args=(upstream, self.connection), daemon=True
            )
            to_client.start()
            self.copy(self.connection, upstream)

    def copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while some := source.recv(65536):
                target.sendall(some)
            target.shutdown(socket.SHUT_WR)


@pytest.fixture
def proxy() -> Iterator[Any]:
    """A running proxy, with its port and the hosts that clients asked for."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Proxy) as server:
        server.daemon_threads, server.asked = True, []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_a_socks_proxy_without_pysocks_is_one_clear_line(
    kube: Kube, command: Start, tmp_path: Path
) -> None:
    file = kubeconfig(tmp_path / "config", kube.plane, proxy_url="socks5://127.0.0.1:1")
    process = command("--kubeconfig", file)
    assert process.end() == 2
    assert process.log == (
        f"Error: cannot use {file}: a SOCKS proxy needs the package PySocks (pip install PySocks)\n"
    )


PROXIED: dict[str, tuple[str, dict[str, str], bool]] = {
    "proxy-url": ("proxy", {}, True),
    "proxy-url and NO_PROXY": ("proxy", {"NO_PROXY": "localhost,127.0.0.1,10.0.0.0/8"}, True),
    "proxy-url and HTTPS_PROXY": ("proxy", {"HTTPS_PROXY": "http://127.0.0.1:1"}, True),
    "HTTPS_PROXY": ("", {"HTTPS_PROXY": "proxy"}, True),
    "HTTPS_PROXY and NO_PROXY": ("", {"HTTPS_PROXY": "proxy", "NO_PROXY": "127.0.0.1"}, False),
    "HTTP_PROXY, for another protocol": ("", {"HTTP_PROXY": "proxy"}, False),
    "ALL_PROXY": ("", {"ALL_PROXY": "proxy"}, False),
    "ALL_PROXY by SOCKS": ("", {"ALL_PROXY": "socks5://127.0.0.1:1"}, False),
}


@pytest.mark.parametrize("name", PROXIED)
def test_proxies_are_used_as_by_kubectl(
    kube: Kube, command: Start, proxy: Any, tmp_path: Path, name: str
) -> None:
    url, env, is_used = PROXIED[name]
    ours = f"http://127.0.0.1:{proxy.server_address[1]}"
    changes = {"proxy_url": ours} if url else {}
    file = kubeconfig(tmp_path / "config", kube.plane, **changes)
    env = {key: value.replace("proxy", ours) for key, value in env.items()}
    process = command("--kubeconfig", file, "--once", env=env)
    assert process.end() == 0, process.log
    server = urlsplit(kube.api.configuration.host)
    assert {*proxy.asked} == ({(server.hostname, server.port)} if is_used else set())
