"""TLS between a hub and its clients: the hub's certificate follows from its secret, clients know its digest.

So a hub that is started again with its secret has the certificate that its clients expect, and no file holds
a key. A random secret makes a new certificate.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from rft_data.core.errors import TokenError
from rft_data.core.lookup import need

_NAME = "rft-data hub"
_VALID = (datetime(2020, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC))
"""Clients compare the digest of the certificate, not its dates."""
_SCRYPT = {"n": 1 << 14, "r": 8, "p": 1, "dklen": 32}
"""Some 50 ms: who meets the hub can try out what its secret may be, if a person chose it."""


class OtherCertificateError(TokenError):
    """The hub at an address is not the one whose certificate has the wanted digest."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A hub's certificate, ready to be served."""

    context: ssl.SSLContext
    digest: str
    """SHA-256 of the certificate, hexadecimal."""


def certificate(secret: str) -> Certificate:
    """The certificate of the hub that has this secret.

    Raises: MissingExtraError without the package cryptography.
    """
    why = "a hub that other machines reach (its address is not loopback)"
    x509 = need("cryptography.x509", "tls", why)
    ed25519 = need("cryptography.hazmat.primitives.asymmetric.ed25519", "tls", why)
    forms = need("cryptography.hazmat.primitives.serialization", "tls", why)
    seed = hashlib.scrypt(secret.encode(), salt=_NAME.encode(), **_SCRYPT)
    key = ed25519.Ed25519PrivateKey.from_private_bytes(seed)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(_VALID[0])
        .not_valid_after(_VALID[1])
        .sign(key, None)
    )
    password = secrets.token_bytes(32)
    locked = key.private_bytes(
        forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.BestAvailableEncryption(password)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with TemporaryDirectory() as folder:  # ssl reads files only; what they hold is locked
        chain = Path(folder) / "chain.pem"
        chain.write_bytes(locked + made.public_bytes(forms.Encoding.PEM))
        context.load_cert_chain(chain, password=password)
    return Certificate(context, hashlib.sha256(made.public_bytes(forms.Encoding.DER)).hexdigest())


def connected(place: tuple[str, int], digest: str, within_s: float) -> ssl.SSLSocket:
    """A TLS connection to the hub whose certificate has this digest; no authority is asked.

    Raises: OtherCertificateError for another certificate, or none; OSError.
    """
    plain = socket.create_connection(place, within_s)
    try:
        secured = _client_context().wrap_socket(plain, server_hostname=None)
    except ssl.SSLError as err:
        plain.close()
        if isinstance(err, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            raise
        raise OtherCertificateError(
            f"what listens at {place[0]}:{place[1]} is no hub that speaks TLS ({err.reason}); compare the "
            "address with the one that the run printed."
        ) from err
    except BaseException:
        plain.close()
        raise
    found = hashlib.sha256(secured.getpeercert(binary_form=True) or b"").hexdigest()
    if not hmac.compare_digest(found, digest):
        secured.close()
        raise OtherCertificateError(
            f"the hub at {place[0]}:{place[1]} has another certificate than wanted (digest {found}); nothing "
            "was sent. It is another run's, or was started again with another secret: take the address that "
            "it printed."
        )
    return secured


def _client_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the digest of the certificate is compared instead
    return context
