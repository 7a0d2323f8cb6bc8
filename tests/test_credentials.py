"""Credentials and certificates: they are used as by kubectl, and renewed without a restart."""

import base64
import json
import os
import pty
import re
import subprocess
import sys
import tempfile
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from kubernetes.config import incluster_config

import milvus_operator as mo
from local.controlplane import new_key
from tests.lib.certificates import certificate, server_context
from tests.lib.kit import Obj, Start, eventually, make_pass
from tests.lib.wire import Api, write_kubeconfig
from tests.lib.world import milvus

NOWHERE = "https://127.0.0.1:1"  # where nobody listens
pytestmark = pytest.mark.platform


def test_in_a_pod_a_rotated_token_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    certificate(tmp_path)
    api = Api(tmp_path, tls=server_context(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(api.http.server_port))
    monkeypatch.setenv("ALL_PROXY", NOWHERE)  # kubectl does not read it
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(mo, "SERVICE_ACCOUNT", str(tmp_path))
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "crt"))
    (tmp_path / "namespace").write_text("its-own\n")
    (tmp_path / "token").write_text("first")
    operator = api.operator("")
    assert operator.cluster.connection.namespace == "its-own"
    assert api.tokens(operator) == {"first"}
    (tmp_path / "token").write_text("second")
    eventually(lambda: api.tokens(operator) == {"second"})
    api.close()


def test_a_changed_kubeconfig_is_read_again_but_its_context_is_not_switched(api: Api) -> None:
    """While it is half written, or missing, the last credentials are used."""
    file = Path(api.kubeconfig({"token": "first"}))
    operator = api.operator(str(file))
    whole = file.read_text().replace("first", "second")
    for part in ("", whole[: len(whole) // 2], whole[: len(whole) // 3]):
        file.write_text(part)
        assert api.tokens(operator) == {"first"}
    file.unlink()
    assert api.tokens(operator) == {"first"}
    content = yaml.safe_load(whole)
    content["clusters"].append({"name": "b", "cluster": {"server": NOWHERE}})
    content["contexts"].append({"name": "b", "context": {"cluster": "b", "user": "a"}})
    content["current-context"] = "b"
    file.write_text(yaml.safe_dump(content))
    # Of the context that it was started with:
    eventually(lambda: api.tokens(operator) == {"second"})
    del content["contexts"][0]
    file.write_text(yaml.safe_dump(content).replace("second", "third"))
    assert api.tokens(operator) == {"second"}, "also if that is gone"


def test_kubeconfig_may_name_several_files_and_a_token_in_another_file_is_followed(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first wins, a missing one is skipped, and relative paths are relative to their file."""
    content = yaml.safe_load(Path(api.kubeconfig({"tokenFile": "token"})).read_text())
    (tmp_path / "users").mkdir()
    (tmp_path / "users" / "token").write_text("first\n")
    parts = {
        "contexts": {key: content[key] for key in ("current-context", "contexts")},
        "clusters": {"current-context": "no-such-context", "clusters": content["clusters"]},
        "users/config": {"users": content["users"]},
    }
    for name, part in parts.items():
        (tmp_path / name).write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config"} | part))
    files = os.pathsep.join(str(tmp_path / name) for name in ("missing", *parts))
    monkeypatch.setenv("KUBECONFIG", files)
    operator = api.operator("")
    assert operator.cluster.connection.namespace == "test"
    assert api.tokens(operator) == {"first"}
    (tmp_path / "users" / "token").write_text("second")
    # On a busy machine, reading it takes longer than a pass waits: then the next pass has it.
    eventually(lambda: api.tokens(operator) == {"second"})  # although the first is still valid


def test_the_secrets_of_a_malformed_entry_are_not_told(api: Api) -> None:
    """The client library quotes the entry whole. What was wrong and is put right is not told."""
    file = Path(api.kubeconfig({"token": "first"}))
    operator = api.operator(str(file))
    good = file.read_text()
    bad = good.replace("user:\n    token: first", "token: HUNTER2")
    for text in (bad, good):
        file.write_text(text)
        assert make_pass(operator), "with the token at hand"
    api.accept("second")
    (line,) = operator.run_pass().outages
    assert line.endswith(": log in again, or renew the token")
    file.write_text(bad)
    assert not make_pass(operator)
    (line,) = operator.run_pass().outages
    assert line.endswith(f"Expected key user in {file}")
    run = {"apiVersion": "client.authentication.k8s.io/v1", "command": "true"}
    environment = [{"name": "PASSWORD", "value": "HUNTER2"}, {"name": "EMPTY"}]
    plugin = mo.connect(api.kubeconfig({"exec": run | {"env": environment}}), 1, None)
    assert "Expected key value in" in plugin.complaint
    assert "HUNTER2" not in plugin.complaint


class Plugin:
    """An exec plugin, as used by EKS, GKE and OIDC logins: a command that prints a token."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "plugin").write_text(f"""#!/bin/sh
cd {folder}
echo asked >> calls
for try in $(seq 300); do [ -e wait ] && sleep 0.1; done
cat credential 2> /dev/null && exit
printf 'no luck\\ntoday "or" tomorrow' >&2
exit 1
""")
        (folder / "plugin").chmod(0o755)
        run = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}
        self.user: Obj = {"exec": run | {"command": str(folder / "plugin")}}

    def prints(self, token: str, expires: int = 3600) -> None:
        """From now on, it succeeds and prints this token, which expires in so many seconds."""
        end = datetime.now(UTC).replace(microsecond=0, tzinfo=None) + timedelta(seconds=expires)
        status = {"token": token, "expirationTimestamp": f"{end.isoformat()}Z"}
        kind = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
        (self.folder / "new").write_text(json.dumps(kind | {"status": status}))
        (self.folder / "new").rename(self.folder / "credential")

    def calls(self) -> int:
        """How often it has been run so far."""
        return len((self.folder / "calls").read_text().splitlines())


def test_a_plugin_is_asked_only_for_a_token_that_has_expired_or_is_rejected(api: Api) -> None:
    plugin = Plugin(api.folder)
    plugin.prints("first")
    operator = api.operator(api.kubeconfig(plugin.user))
    assert [api.tokens(operator) for _ in range(2)] == [{"first"}, {"first"}]
    assert plugin.calls() == 1, "not for each request, nor each pass"
    api.accept("second")
    plugin.prints("second", expires=-1)
    assert not make_pass(operator)
    assert plugin.calls() == 1
    eventually(lambda: api.tokens(operator) == {"second"})
    assert plugin.calls() == 2
    (api.folder / "credential").unlink()
    assert make_pass(operator), "the token has expired, but it is accepted"
    (api.folder / "wait").touch()
    api.accept("third")
    plugin.prints("third")
    told = "".join("".join(operator.run_pass().outages) for _ in range(2))
    assert told.endswith("plugin is still running; it may be waiting for a login")
    (api.folder / "wait").unlink()
    eventually(lambda: make_pass(operator))
    calls = plugin.calls()
    eventually(lambda: api.tokens(operator) == {"third"})
    assert plugin.calls() == calls


def test_a_plugin_that_fails_at_the_start_is_retried_until_it_works(api: Api, start: Start) -> None:
    plugin = Plugin(api.folder)
    api.accept("good")
    options = ["--interval", "0.5", "-v", "--log-format", "json"]
    process = start(api.kubeconfig(plugin.user), *options)
    line = json.loads(process.says('"level": "ERROR"'))
    assert "rejects the credentials: exec: process returned 1. " in line["message"]
    assert " ".join(line["message"].split()).endswith('no luck today "or" tomorrow')
    plugin.prints("good")
    process.says("resolved: ")
    assert process.stop() == 0
    assert process.log.count("ERROR") == 1


def test_on_a_terminal_a_plugin_that_fails_speaks_for_itself(api: Api) -> None:
    api.accept("good")
    master, terminal = pty.openpty()
    command = [sys.executable, mo.__file__, "--once", "--kubeconfig"]
    command.append(api.kubeconfig(Plugin(api.folder).user))
    done = subprocess.run(command, stdin=terminal, stdout=terminal, stderr=subprocess.PIPE)
    os.close(master)
    os.close(terminal)
    said = r"today .* rejects the credentials: the .* plugin failed; its own words are above\n"
    assert re.search(said, done.stderr.decode(), re.DOTALL)


AUTHORITY: Obj = {"certificate_authority": "authority/crt"}  # relative to the kubeconfig
TUNNEL = {"host": x509.DNSName("kubernetes.example")}  # whose address is not in the certificate


@pytest.mark.filterwarnings("error::urllib3.exceptions.InsecureRequestWarning")
@pytest.mark.parametrize(
    ("certified", "cluster", "refusal"),
    [
        ({}, AUTHORITY, ""),
        ({"key_identifiers": False}, AUTHORITY, ""),  # as in older clusters
        (TUNNEL, AUTHORITY | {"tls_server_name": "kubernetes.example"}, ""),
        ({}, {"insecure_skip_tls_verify": True}, ""),
        ({"days": -1}, AUTHORITY, "certificate has expired"),
        ({}, {"certificate_authority": "another/crt"}, ".*"),
        ({}, {}, "unable to get local issuer certificate"),
        (TUNNEL, AUTHORITY, "IP address mismatch"),
    ],
)
def test_certificates_are_accepted_as_by_kubectl_or_refused_with_the_reason(
    tmp_path: Path, certified: Obj, cluster: Obj, refusal: str
) -> None:
    """By default, Python 3.13 and later reject those without key identifiers. An authority may be
    signed by another one that is not known."""
    another = certificate(tmp_path / "another")
    authority = certificate(tmp_path / "authority", another, is_authority=True)
    certificate(tmp_path / "server", authority, **certified)
    with closing(Api(tmp_path, milvus("x"), tls=server_context(tmp_path / "server"))) as api:
        line = "".join(api.operator(api.kubeconfig(**cluster)).run_pass().outages)
        words = f"requests to {api.url} fail: .*certificate verify failed: ({refusal})"
        assert re.match(words if refusal else "$", line), line
        assert api.world.pods() == ([] if refusal else ["x-0"])


def test_a_client_certificate_and_an_authority_that_are_renewed_are_used_in_the_next_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, another = certificate(tmp_path / "authority"), certificate(tmp_path / "another")
    certificate(tmp_path / "server", authority)
    api = Api(tmp_path, tls=server_context(tmp_path / "server", clients=tmp_path / "authority"))
    certificate(tmp_path / "user", another)
    user = {"client-certificate": "user/crt", "client-key": "user/key"}
    operator = api.operator(api.kubeconfig(user, certificate_authority="another/crt"))
    assert "certificate verify failed" in "".join(operator.run_pass().outages)
    (tmp_path / "another" / "crt").write_bytes((tmp_path / "authority" / "crt").read_bytes())
    (line,) = operator.run_pass().outages
    assert "certificate verify failed" not in line, "it is the server that refuses the client"
    new_key(tmp_path / "user" / "key")
    assert not make_pass(operator), "the renewal is in progress"
    certificate(tmp_path / "user", authority)
    assert make_pass(operator)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "server"))
    before = {*(tmp_path / "server").iterdir()}
    encoded = {
        f"{key}-data": base64.b64encode((tmp_path / path).read_bytes()).decode()
        for key, path in user.items()
    }
    operator = api.operator(api.kubeconfig(encoded, certificate_authority="authority/crt"))
    assert make_pass(operator)
    assert {*(tmp_path / "server").iterdir()} == before, "the key is not left in a temporary file"
    api.close()


def test_a_client_key_that_is_encrypted_or_of_another_certificate_is_named(tmp_path: Path) -> None:
    """Else OpenSSL would ask for a password on the terminal."""
    _, key = certificate(tmp_path / "user")
    user = {"client-certificate": str(tmp_path / "user/crt"), "client-key": str(tmp_path / "key")}
    file = write_kubeconfig(tmp_path / "config", NOWHERE, user)
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    encrypted = key.private_bytes(pem, form, serialization.BestAvailableEncryption(b"secret"))
    new_key(tmp_path / "key")
    for content in ((tmp_path / "key").read_bytes(), encrypted, b""):
        (tmp_path / "key").write_bytes(content)
        with pytest.raises(mo.Unusable, match="key are encrypted, incomplete, or do not match"):
            mo.connect(file, 1, None)


def test_connections_are_kept_alive_and_a_request_is_sent_once(api: Api) -> None:
    """The next pass is the retry."""
    operator = api.operator(api.kubeconfig())
    for number in range(20):
        api.world.add(milvus(f"m{number}"))
    for _ in range(10):
        assert make_pass(operator)
    assert len(api.requests) > 60
    assert len(api.connections) <= 6, "no more than there are workers and listers"
    before = len(api.connections)
    api.up = False
    assert len(operator.run_pass().outages) == 1
    assert len(api.connections) == before, "another try would need a new one"


OURS, OTHER = "http://127.0.0.1:8080", "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("url", "env", "used"),
    [
        (OURS, {}, OURS),
        (OURS, {"NO_PROXY": "localhost,127.0.0.1,10.0.0.0/8"}, OURS),
        (OURS, {"HTTPS_PROXY": OTHER}, OURS),
        ("", {"HTTPS_PROXY": OURS}, OURS),
        (None, {"HTTPS_PROXY": OURS}, OURS),
        (None, {"HTTPS_PROXY": "127.0.0.1:8080"}, OURS),
        (None, {"HTTPS_PROXY": OURS, "NO_PROXY": "example.test"}, None),
        (None, {"HTTP_PROXY": OURS}, None),
        (None, {"ALL_PROXY": OURS}, None),
        (None, {"ALL_PROXY": "socks5://127.0.0.1:1"}, None),
    ],
)
def test_proxies_are_used_as_by_kubectl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str | None, env: Obj, used: str | None
) -> None:
    """But none of the environment for this machine."""
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    cluster: Obj = {} if url is None else {"proxy_url": url}
    for host in ("api.example.test", "localhost", "127.0.0.1:6443", "[::1]:6443"):
        file = write_kubeconfig(tmp_path / "config", f"https://{host}", **cluster)
        proxy = getattr(mo.connect(file, 1, None).api.rest_client.pool_manager, "proxy", None)
        is_used = used and (url or host == "api.example.test")
        assert (proxy and str(proxy)) == (used if is_used else None), host


def test_the_password_of_a_proxy_is_sent_and_no_password_is_told(tmp_path: Path) -> None:
    file = tmp_path / "config"
    write_kubeconfig(file, "https://api.example.test", proxy_url="http://user:p%40ss@127.0.0.1:1")
    manager: Any = mo.connect(str(file), 1, None).api.rest_client.pool_manager
    assert manager.proxy_headers == {"proxy-authorization": "Basic dXNlcjpwQHNz"}
    write_kubeconfig(file, "https://api.example.test", proxy_url="http://user:secret/x@127.0.0.1:1")
    with pytest.raises(mo.Unusable) as told:
        mo.connect(str(file), 1, None)
    assert told.value.message == f"cannot use {file}: its server or the proxy is not a valid URL"
    write_kubeconfig(file, "https://user:secret@example.com:6443")
    cluster = mo.Cluster(lambda _: mo.connect(str(file), 1, None))
    assert cluster.server == "https://example.com:6443"
