"""Certificates of API servers: every Python accepts those that kubectl accepts, and no others."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from tests.lib.certificates import certificate
from tests.lib.kit import Command, Kube, kubeconfig, make_pass, new_wire, operator_of

Start = Callable[..., Command]
Obj = dict[str, Any]
pytestmark = pytest.mark.platform
Serve = Callable[..., str]


@pytest.fixture
def serve(kube: Kube, tmp_path: Path) -> Iterator[Serve]:
    """Serves the API with one certificate; returns a kubeconfig that trusts another one."""
    wires = []

    def start(served: Path, trusted: Path, **changes: str) -> str:
        wires.append(new_wire(kube.plane, served))
        bundle = base64.b64encode((trusted / "crt").read_bytes()).decode()
        changes |= {"server": wires[-1].url, "certificate_authority_data": bundle}
        return kubeconfig(tmp_path / "config", kube.plane, **changes)

    yield start
    for wire in wires:
        wire.close()


@pytest.mark.parametrize(
    ("of_authority", "of_server"),
    [
        ({}, {}),
        ({}, {"key_identifiers": False}),
        ({"key_identifiers": False}, {"key_identifiers": False}),
        ({"key_usage": False}, {}),
        ({"critical": False}, {}),
    ],
    ids=["today's", "no authority key", "no keys", "no key usage", "not critical"],
)
def test_certificates_of_older_clusters_are_accepted(
    kube: Kube, command: Start, serve: Serve, tmp_path: Path, of_authority: Obj, of_server: Obj
) -> None:
    """By default, Python 3.13 and later accept only the first of them; kubectl accepts all."""
    authority = certificate(tmp_path / "authority", **of_authority)
    certificate(tmp_path / "server", authority, **of_server)
    kube.create()
    process = command("--once", "--kubeconfig", serve(tmp_path / "server", tmp_path / "authority"))
    assert process.end() == 0, process.log
    assert kube.names() == ["x-0"]


@pytest.mark.parametrize(
    ("authority", "of_server", "reason"),
    [
        ("authority", {"days": -1}, "certificate has expired"),
        ("another", {}, "self-signed certificate in certificate chain|"
                        "unable to get local issuer certificate|certificate signature failure"),
        ("authority", {"host": x509.DNSName("elsewhere.example")}, "IP address mismatch"),
    ],
    ids=["expired", "of another authority", "of another host"],
)  # fmt: skip
def test_an_invalid_certificate_is_refused_with_the_reason(
    kube: Kube,
    command: Start,
    serve: Serve,
    tmp_path: Path,
    authority: str,
    of_server: Obj,
    reason: str,
) -> None:
    certificate(tmp_path / "another")
    certificate(tmp_path / "server", certificate(tmp_path / "authority"), **of_server)
    kube.create()
    process = command("--once", "--kubeconfig", serve(tmp_path / "server", tmp_path / authority))
    assert process.end() == 1
    (line,) = (line for line in process.log.splitlines() if "ERROR" in line)
    assert re.search(
        f"requests to https://127.0.0.1:.* fail: .*certificate verify failed: ({reason})", line
    )
    assert "Traceback" not in process.log
    assert kube.names() == []


def test_the_certificate_must_name_the_host_in_tls_server_name(
    kube: Kube, command: Start, serve: Serve, tmp_path: Path
) -> None:
    """For a server behind a tunnel, whose address is not in its certificate."""
    certificate(
        tmp_path / "server",
        certificate(tmp_path / "authority"),
        host=x509.DNSName("kubernetes.example"),
    )
    kube.create()
    for name, code in {"elsewhere.example": 1, "kubernetes.example": 0}.items():
        file = serve(tmp_path / "server", tmp_path / "authority", tls_server_name=name)
        process = command("--once", "--kubeconfig", file)
        assert process.end() == code, process.log
    assert kube.names() == ["x-0"]


def test_tls_is_verified_unless_the_kubeconfig_says_otherwise(
    kube: Kube, command: Start, serve: Serve, tmp_path: Path
) -> None:
    certificate(tmp_path / "server", certificate(tmp_path / "authority"))
    file = Path(serve(tmp_path / "server", tmp_path / "authority"))
    content = yaml.safe_load(file.read_text())
    cluster = content["clusters"][0]["cluster"]
    del cluster["certificate-authority-data"]
    for code, insecure in ((1, False), (0, True)):
        cluster["insecure-skip-tls-verify"] = insecure
        file.write_text(yaml.safe_dump(content))
        process = command("--kubeconfig", str(file), "--once")
        assert process.end() == code, process.log
        assert ("certificate verify failed" in process.log) != insecure
        assert "Warning" not in process.log


def test_an_authority_that_is_replaced_is_trusted_in_the_next_pass(
    kube: Kube, serve: Serve, tmp_path: Path
) -> None:
    """Its bundle is a file that is rewritten."""
    certificate(tmp_path / "earlier")
    certificate(tmp_path / "server", certificate(tmp_path / "authority"))
    file = Path(serve(tmp_path / "server", tmp_path / "authority"))
    content = yaml.safe_load(file.read_text())
    cluster = content["clusters"][0]["cluster"]
    del cluster["certificate-authority-data"]
    cluster["certificate-authority"] = str(tmp_path / "bundle")
    file.write_text(yaml.safe_dump(content))
    bundle = tmp_path / "bundle"
    bundle.write_bytes((tmp_path / "earlier" / "crt").read_bytes())
    operator = operator_of(str(file), kube)
    assert not make_pass(operator)
    bundle.write_bytes((tmp_path / "authority" / "crt").read_bytes())
    assert make_pass(operator)
