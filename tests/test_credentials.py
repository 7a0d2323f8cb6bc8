"""Credentials: used as by the official client, loaded anew when they are rejected, never shown."""

import base64
import json
import os
import re
import tempfile
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from kubernetes.config import incluster_config

import milvus_operator as mo
from tests.lib.certificates import certificate, server_context
from tests.lib.kit import Obj, make_pass
from tests.lib.wire import Api, write_kubeconfig
from tests.lib.world import milvus

NOWHERE = "https://127.0.0.1:1"  # where nobody listens
pytestmark = pytest.mark.platform


class Later(datetime):
    """Two minutes later: the client reads the file of a token once a minute."""

    @classmethod
    def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
        return datetime.now() + timedelta(minutes=2)


def test_in_a_pod_its_own_account_is_used_and_its_rotated_token_is_read_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    certificate(tmp_path)
    api = Api(tmp_path, tls=server_context(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(api.http.server_port))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(mo, "SERVICE_ACCOUNT", str(tmp_path))
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "crt"))
    (tmp_path / "namespace").write_text("its-own\n")
    (tmp_path / "token").write_text("first\n")
    with closing(api):
        operator = api.operator("")
        assert operator.cluster.connection.namespace == "its-own"
        assert api.tokens(operator) == {"first"}
        (tmp_path / "token").write_text("second\n")
        later = SimpleNamespace(datetime=Later, timedelta=timedelta)
        monkeypatch.setattr(incluster_config, "datetime", later)
        assert api.tokens(operator) == {"second"}


def test_rejected_credentials_are_loaded_anew_in_the_context_of_the_start(api: Api) -> None:
    """Until they can be loaded, one line says why not."""
    file = Path(api.kubeconfig({"token": "first"}))
    operator = api.operator(str(file))
    content = yaml.safe_load(file.read_text().replace("first", "second"))
    content["clusters"].append({"name": "b", "cluster": {"server": NOWHERE}})
    content["contexts"].append({"name": "b", "context": {"cluster": "b", "user": "a"}})
    file.write_text(yaml.safe_dump(content | {"current-context": "b"}))
    assert api.tokens(operator) == {"first"}
    api.accept("second")
    outages = operator.run_pass().outages
    assert outages == {f"{api.url} rejects the credentials": "log in again, or renew the token"}
    good = file.read_text()
    file.write_text("half: [")
    for _ in range(2):
        assert [*operator.run_pass().outages] == ["the configuration cannot be loaded"]
    file.write_text(good)
    assert api.tokens(operator) == {"second"}


def test_a_token_in_a_file_may_end_with_a_newline_and_of_several_kubeconfigs_some_may_be_missing(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("first\n")  # relative to the kubeconfig
    files = str(tmp_path / "missing"), api.kubeconfig({"tokenFile": "token"})
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(files))
    assert api.tokens(api.operator("")) == {"first"}


def test_an_exec_plugin_runs_once_a_pass_when_its_token_has_expired(api: Api) -> None:
    version = {"apiVersion": "client.authentication.k8s.io/v1"}
    plugin, calls = api.folder / "plugin", api.folder / "calls"
    plugin.write_text(f"#!/bin/sh\ncd {api.folder}\necho >> calls\ncat credential\n")
    plugin.chmod(0o755)

    def prints(token: str, seconds: int) -> None:
        end = f"{datetime.now(UTC) + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%SZ}"
        status = {"kind": "ExecCredential", "status": {"token": token, "expirationTimestamp": end}}
        (api.folder / "credential").write_text(json.dumps(version | status))

    prints("first", seconds=-1)
    run = {"command": str(plugin), "interactiveMode": "Never"}
    operator = api.operator(api.kubeconfig({"exec": version | run}))
    for token, seconds, count in (("first", -1, 1), ("second", 3600, 1), ("third", 3600, 0)):
        prints(token, seconds)
        calls.write_text("")
        assert api.tokens(operator) == {token if count else "second"}
        assert len(calls.read_text()) == count


AUTHORITY: Obj = {"certificate_authority": "authority/crt"}  # relative to the kubeconfig
TUNNEL = {"host": x509.DNSName("kubernetes.example")}  # whose address is not in the certificate


@pytest.mark.parametrize(
    ("certified", "cluster", "refusal"),
    [
        ({}, AUTHORITY, ""),
        ({"key_identifiers": False}, AUTHORITY, ""),  # older clusters; Python 3.13 is stricter
        (TUNNEL, AUTHORITY | {"tls_server_name": "kubernetes.example"}, ""),
        ({}, {"insecure_skip_tls_verify": True}, ""),
        ({"days": -1}, AUTHORITY, "certificate has expired"),
        ({}, {}, "self-signed certificate|unable to get local issuer certificate"),
        (TUNNEL, AUTHORITY, "IP address mismatch"),
    ],
)
def test_certificates_are_accepted_as_by_kubectl_or_refused_with_the_reason(
    tmp_path: Path, certified: Obj, cluster: Obj, refusal: str
) -> None:
    certificate(tmp_path / "server", certificate(tmp_path / "authority"), **certified)
    with closing(Api(tmp_path, milvus("x"), tls=server_context(tmp_path / "server"))) as api:
        line = str(api.operator(api.kubeconfig(**cluster)).run_pass().outages)
        words = f"requests to {api.url} fail': .*certificate verify failed: ({refusal})"
        assert re.search(words, line) if refusal else line == "{}", line
        assert api.world.pods() == ([] if refusal else ["x-0"])


def test_a_renewed_authority_and_client_certificate_are_used_and_leave_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, another = certificate(tmp_path / "authority"), certificate(tmp_path / "another")
    certificate(tmp_path / "server", authority)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    tls = server_context(tmp_path / "server", clients=tmp_path / "authority")
    with closing(Api(tmp_path, tls=tls)) as api:

        def renew(signer: Any, authority: str) -> str:
            certificate(tmp_path / "user", signer)
            files = {"client-certificate-data": "user/crt", "client-key-data": "user/key"}
            user = {key: (tmp_path / file).read_bytes() for key, file in files.items()}
            encoded = {key: base64.b64encode(content).decode() for key, content in user.items()}
            return api.kubeconfig(encoded, certificate_authority=f"{authority}/crt")

        operator = api.operator(renew(authority, "another"))
        assert not make_pass(operator)
        renew(another, "authority")
        assert not make_pass(operator)
        renew(authority, "authority")
        assert make_pass(operator)
        assert [*(tmp_path / "temporary").iterdir()] == []


def test_connections_are_kept_alive_and_a_request_is_sent_once(api: Api) -> None:
    """The next pass is the retry."""
    for number in range(20):
        api.world.add(milvus(f"m{number}"))
    operator = api.operator(api.kubeconfig())
    assert all(make_pass(operator) for _ in range(4))
    assert len(api.requests) > 60
    before = len(api.connections)
    assert before <= 8, "no more than there are workers and listers"
    api.up = False
    assert not make_pass(operator)
    assert len(api.connections) <= before + 2, "each list breaks one and needs another"


# --- What nobody may read ---
@pytest.mark.parametrize("token", ["HUNTER2\nb", "HUNTER2\u2603"])
def test_a_token_that_no_header_can_hold_is_not_shown(api: Api, token: str) -> None:
    outages = api.operator(api.kubeconfig({"token": token})).run_pass().outages
    assert outages
    assert "HUNTER2" not in str(outages)


def test_passwords_are_not_shown(api: Api, tmp_path: Path) -> None:
    """Of a proxy, in the server's URL, in an entry that the client library quotes as a whole, or
    in the text of a file that is not YAML. One for a key is not asked for on the terminal."""
    file = tmp_path / "config"
    urls: list[tuple[str, Obj]] = [
        ("https://user:HUNTER2@127.0.0.1:1", {}),
        (NOWHERE, {"proxy_url": "http://user:HUNTER2@127.0.0.1:1"}),
    ]
    for server, cluster in urls:
        operator = api.operator(write_kubeconfig(file, server, **cluster))
        assert operator.run_pass().outages
        assert "HUNTER2" not in f"{operator.outages} {operator.cluster.server}"
    good = Path(write_kubeconfig(file, NOWHERE, {"token": "HUNTER2"})).read_text()
    _, key = certificate(tmp_path / "user")
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    encrypted = key.private_bytes(pem, form, serialization.BestAvailableEncryption(b"HUNTER2"))
    (tmp_path / "user" / "key").write_bytes(encrypted)
    user = {"client-certificate": "user/crt", "client-key": "user/key"}
    locked = Path(write_kubeconfig(file, NOWHERE, user)).read_text()
    for text in (good.replace("user:\n", "usr:\n"), "users: *HUNTER2", "HUNTER2: [", locked):
        file.write_text(text)
        with pytest.raises(mo.Unusable) as raised:
            mo.connect(str(file), 1, None)
        assert "HUNTER2" not in raised.value.message
