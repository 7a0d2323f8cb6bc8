"""Credentials: used as by the official client, loaded anew when they are rejected, never shown."""

import base64
import json
import os
import re
import ssl
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from kubernetes.config import incluster_config

import milvus_operator as mo
from tests.lib.certificates import certificate, server_context
from tests.lib.front import http_response
from tests.lib.kit import Obj, make_pass
from tests.lib.wire import Api, Handler, write_kubeconfig
from tests.lib.world import milvus

NOWHERE = "https://127.0.0.1:1"  # where nobody listens
pytestmark = pytest.mark.platform


def test_in_a_pod_its_own_account_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    certificate(tmp_path)
    api = Api(tmp_path, tls=server_context(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(api.server_port))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(mo, "NAMESPACE_FILE", str(tmp_path / "namespace"))
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "crt"))
    (tmp_path / "namespace").write_text("its-own\n")
    (tmp_path / "token").write_text("first\n")
    with closing(api):
        operator = api.operator("")
        assert mo.connect("", None, 1).namespace == "its-own"
        assert api.tokens(operator) == {"first"}
    with pytest.raises(mo.Unusable, match="there is no such file"):
        mo.connect(None, "another", 1)  # who names a context means a kubeconfig


def test_rejected_credentials_are_loaded_anew_in_the_context_of_the_start(api: Api) -> None:
    """Until they can be loaded, one line says why not."""
    file = Path(api.kubeconfig({"token": "first"}))
    operator = api.operator(str(file))
    changed = file.read_text().replace("first", "second")
    changed = changed.replace("current-context: a", "current-context: b")
    changed = changed.replace(
        "clusters:", f"clusters:\n- {{name: b, cluster: {{server: '{NOWHERE}'}}}}"
    )
    changed = changed.replace("contexts:", "contexts:\n- {name: b, context: {cluster: b, user: a}}")
    file.write_text(changed)
    assert api.tokens(operator) == {"first"}
    rule = api.world.server.when("list", "*", lambda _: http_response(401, b"Unauthorized"))
    operator.run_pass()
    advice = "log in again, or renew the token; in a cluster, delete the operator's pod"
    assert api.world.warnings == [f"{api.url} rejects the credentials: {advice}"]
    api.world.forget()
    file.write_text("half: [")
    for _ in range(2):
        operator.run_pass()
    (line,) = api.world.warnings
    assert line.startswith("the configuration cannot be loaded: ")
    file.write_text(changed)
    rule.times = 0
    assert api.tokens(operator) == {"second"}


def test_a_token_may_be_in_a_file_and_of_several_kubeconfigs_some_may_be_missing(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    (api.folder / "token").write_text("first\n")  # relative to the kubeconfig
    config = api.kubeconfig({"tokenFile": "token"})
    monkeypatch.setenv("KUBECONFIG", f"/missing{os.pathsep}{config}")
    assert api.tokens(api.operator("")) == {"first"}


def test_of_several_kubeconfigs_the_first_current_context_counts_as_for_kubectl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kubectl would also take the first of two clusters of the same name."""
    names = ("none", "first", "second")
    for name in names:
        file = tmp_path / name
        write_kubeconfig(file, f"https://{name}.example")
        text = file.read_text().replace("name: a", f"name: {name}")
        for key in ("cluster", "user", "current-context"):
            text = text.replace(f"{key}: a\n", f"{key}: {name}\n")
        file.write_text(text.replace("current-context: none", ""))
    paths = [str(tmp_path / name) for name in names]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(paths))
    connection = mo.connect(None, None, 1)
    assert connection.context == "first"
    assert connection.client.configuration.host == "https://first.example"
    assert mo.connect(None, "second", 1).client.configuration.host == "https://second.example"


def test_an_exec_plugin_runs_once_a_pass_when_its_token_has_expired(api: Api) -> None:
    plugin = api.folder / "plugin"
    calls = api.folder / "calls"
    plugin.write_text(f"#!/bin/sh\ncd {api.folder}\necho >> calls\ncat credential\n")
    plugin.chmod(0o755)
    version = {"apiVersion": "client.authentication.k8s.io/v1"}

    def prints(token: str, end: str) -> None:
        status = {"token": token, "expirationTimestamp": end}
        credential = version | {"kind": "ExecCredential", "status": status}
        (api.folder / "credential").write_text(json.dumps(credential))

    past, future = "2020-01-01T00:00:00Z", "2100-01-01T00:00:00Z"
    prints("first", past)
    run = {"command": str(plugin), "interactiveMode": "Never"}
    operator = api.operator(api.kubeconfig({"exec": version | run}))
    for token, end, used, count in (
        ("first", past, "first", 1),
        ("second", future, "second", 1),
        ("third", future, "second", 0),
    ):
        prints(token, end)
        calls.write_text("")
        api.world.forget()
        assert api.tokens(operator) == {used}
        assert len(calls.read_text()) == count


AUTHORITY: Obj = {"certificate_authority": "authority/crt"}  # relative to the kubeconfig
NONE = r"^\[\]$"  # no warnings
TUNNEL = {"host": x509.DNSName("kubernetes.example")}  # whose address is not in the certificate


@pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")
@pytest.mark.parametrize(
    ("certified", "cluster", "warnings"),
    [
        ({}, AUTHORITY, NONE),  # as in older clusters; Python 3.13 is stricter
        (TUNNEL, AUTHORITY | {"tls_server_name": "kubernetes.example"}, NONE),
        (TUNNEL, AUTHORITY, "certificate verify failed: IP address mismatch"),
        ({}, {"insecure_skip_tls_verify": True}, NONE),
        ({}, {}, "certificate verify failed: (self-signed certificate|unable to get local issuer)"),
    ],
)
def test_certificates_are_accepted_as_by_kubectl_or_rejected_with_the_reason(
    tmp_path: Path, certified: Obj, cluster: Obj, warnings: str
) -> None:
    certificate(tmp_path / "server", certificate(tmp_path / "authority"), **certified)
    with closing(Api(tmp_path, tls=server_context(tmp_path / "server"))) as api:
        operator = api.operator(api.kubeconfig(**cluster))
        operator.run_pass()
        assert re.search(warnings, str(api.world.warnings))


def test_a_renewed_authority_is_used_and_certificates_leave_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate(tmp_path / "another")
    authority = certificate(tmp_path / "authority")
    certificate(tmp_path / "server", authority)
    certificate(tmp_path / "user", authority)
    user = {}
    for key, file in {"certificate": "crt", "key": "key"}.items():
        content = (tmp_path / "user" / file).read_bytes()
        user[f"client-{key}-data"] = base64.b64encode(content).decode()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    tls = server_context(tmp_path / "server")
    tls.load_verify_locations(tmp_path / "authority/crt")
    tls.verify_mode = ssl.CERT_REQUIRED
    with closing(Api(tmp_path, tls=tls)) as api:
        operator = api.operator(api.kubeconfig(user, certificate_authority="another/crt"))
        assert not make_pass(operator)
        api.kubeconfig(user, certificate_authority="authority/crt")
        assert make_pass(operator)
        assert [*(tmp_path / "temporary").iterdir()] == []


def test_connections_are_kept_alive_and_a_request_is_sent_once(api: Api) -> None:
    """The next pass is the retry. Responses may be compressed."""
    encodings = []  # of the lists

    def reset(handler: Handler, verb: str, path: str) -> bool:
        encodings.append(handler.headers["Accept-Encoding"])
        handler.reset()
        return True

    for number in range(20):
        api.world.add(milvus(f"m{number}"))
    operator = api.operator(api.kubeconfig())
    for _ in range(4):
        assert make_pass(operator)
    assert len(api.requests) > 60
    connections = {request.client for request in api.requests}
    assert len(connections) <= 8, "no more than there are workers and listers"
    api.fault = reset
    assert not make_pass(operator)
    assert encodings == ["gzip"]


@pytest.mark.parametrize(
    ("user", "change", "said"),
    [
        ({"auth-provider": {"name": "azure"}}, {}, "its user or exec plugin gave no credentials"),
        ({"token": "a"}, {"users": []}, "its context names a user that is not there"),
        (
            {"token": "a"},
            {"current-context": ""},
            "no current-context is set: choose one with --con",
        ),
        ({"username": "a", "password": "b"}, {}, ""),
        ({}, {}, ""),
    ],
)
def test_a_kubeconfig_without_a_usable_user_or_context_is_rejected(
    tmp_path: Path, user: Obj, change: Obj, said: str
) -> None:
    """As nobody, the API server would only say that anonymous users may not list pods."""
    file = Path(write_kubeconfig(tmp_path / "config", NOWHERE, user))
    file.write_text(json.dumps(yaml.safe_load(file.read_text()) | change))
    if said:
        with pytest.raises(mo.Unusable, match=said):
            mo.connect(str(file), None, 1)
    else:
        mo.connect(str(file), None, 1)


# --- What nobody may read ---
@pytest.mark.parametrize(
    ("server", "user", "cluster"),
    [
        ("http://127.0.0.1:1", {"token": "HUNTER2\nb"}, {}),
        ("http://127.0.0.1:1", {"token": "HUNTER2\u2603"}, {}),
        ("https://user:HUNTER2@127.0.0.1:1", {}, {}),
        ("https://user:HUN/TER2:HUNTER2@127.0.0.1:1", {}, {}),
        ("https://user:a@HUNTER2@127.0.0.1:1", {}, {}),
        (NOWHERE, {}, {"proxy_url": "http://user:HUNTER2@127.0.0.1:1"}),
    ],
)
def test_tokens_and_passwords_in_urls_are_not_shown(
    api: Api, tmp_path: Path, server: str, user: Obj, cluster: Obj
) -> None:
    operator = api.operator(write_kubeconfig(tmp_path / "config", server, user, **cluster))
    operator.run_pass()
    assert api.world.warnings
    assert "HUNTER2" not in f"{api.world.log} {operator.api.server}"
