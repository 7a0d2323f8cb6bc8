"""Certificates, like those of older clusters: without key identifiers."""

import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

LOCALHOST = ipaddress.ip_address("127.0.0.1")
PEM = serialization.Encoding.PEM
PKCS8 = serialization.PrivateFormat.PKCS8


def certificate(
    folder: Path,
    authority: Any = None,
    host: x509.GeneralName = x509.IPAddress(LOCALHOST),  # noqa: B008  # it is immutable
) -> tuple[Any, Any]:
    """A new certificate and its key, in crt and key: signed by an authority, or one itself."""
    folder.mkdir(exist_ok=True)
    now, key = datetime.now(UTC), ec.generate_private_key(ec.SECP256R1())
    (folder / "key").write_bytes(key.private_bytes(PEM, PKCS8, serialization.NoEncryption()))
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, folder.name)])
    issuer, signer = (authority[0].subject, authority[1]) if authority else (name, key)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=10))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(not authority, None), critical=True)
        .add_extension(x509.SubjectAlternativeName([host]), critical=False)
    )
    signed = builder.sign(signer, hashes.SHA256())
    (folder / "crt").write_bytes(signed.public_bytes(PEM))
    return signed, key


def server_context(server: Path) -> ssl.SSLContext:
    """TLS with the certificate in a folder."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(server / "crt", server / "key")
    return tls
