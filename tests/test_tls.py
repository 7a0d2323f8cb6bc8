"""Certificates of API servers: every Python accepts those that kubectl accepts, and no others."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from tests.lib.certificates import certificate, server_context
from tests.lib.kit import Obj, make_pass
from tests.lib.wire import Api
from tests.lib.world import milvus

AUTHORITY: Obj = {"certificate_authority": "authority/crt"}  # relative to the kubeconfig
ANOTHER: Obj = {"certificate_authority": "another/crt"}
TUNNEL = {"host": x509.DNSName("kubernetes.example")}  # whose address is not in the certificate
UNKNOWN = (
    "self-signed certificate|unable to get local issuer certificate|certificate signature failure"
)
Serve = Callable[..., Api]
pytestmark = pytest.mark.platform


@pytest.fixture
def serve(tmp_path: Path, request: pytest.FixtureRequest) -> Serve:
    """Serves the API with such a certificate, signed by an authority."""

    def start(key_identifiers: bool = True, **certified: Any) -> Api:
        certificate(tmp_path / "another")
        authority = certificate(tmp_path / "authority", key_identifiers=key_identifiers)
        certificate(tmp_path / "server", authority, key_identifiers=key_identifiers, **certified)
        api = Api(tmp_path, milvus("x"), tls=server_context(tmp_path / "server"))
        request.addfinalizer(api.close)
        return api

    return start


@pytest.mark.filterwarnings("error::urllib3.exceptions.InsecureRequestWarning")
@pytest.mark.parametrize(
    ("certified", "cluster"),
    [
        ({}, AUTHORITY),
        ({"key_identifiers": False}, AUTHORITY),
        (TUNNEL, AUTHORITY | {"tls_server_name": "kubernetes.example"}),
        ({}, {"insecure_skip_tls_verify": True}),
    ],
    ids=["today's", "older", "with the name of another host", "not verified"],
)
def test_certificates_are_accepted_as_by_kubectl(
    serve: Serve, certified: Obj, cluster: Obj
) -> None:
    """By default, Python 3.13 and later reject those without key identifiers."""
    api = serve(**certified)
    assert make_pass(api.operator(api.kubeconfig(**cluster)))
    assert api.world.pods() == ["x-0"]


@pytest.mark.parametrize(
    ("certified", "cluster", "reason"),
    [
        ({"days": -1}, AUTHORITY, "certificate has expired"),
        ({}, ANOTHER, UNKNOWN),
        ({}, {}, UNKNOWN),
        (TUNNEL, AUTHORITY, "IP address mismatch"),
        (TUNNEL, AUTHORITY | {"tls_server_name": "elsewhere.example"}, "Hostname mismatch"),
    ],
)
def test_an_invalid_certificate_is_refused_with_the_reason(
    serve: Serve, certified: Obj, cluster: Obj, reason: str
) -> None:
    api = serve(**certified)
    (line,) = api.operator(api.kubeconfig(**cluster)).run_pass().outages
    words = f"requests to {api.url} fail: .*certificate verify failed: ({reason})"
    assert re.match(words, line), line
    assert api.world.pods() == []


def test_an_authority_that_is_replaced_is_trusted_in_the_next_pass(
    serve: Serve, tmp_path: Path
) -> None:
    """Its bundle is a file that is rewritten."""
    api = serve()
    operator = api.operator(api.kubeconfig(**ANOTHER))
    assert not make_pass(operator)
    (tmp_path / "another" / "crt").write_bytes((tmp_path / "authority" / "crt").read_bytes())
    assert make_pass(operator)
