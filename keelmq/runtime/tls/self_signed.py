"""Certificates: when a file's first one expires, and a self-signed one in memory.

The library is imported when a certificate is read or made: a program without TLS does not pay for it.
"""

import os
import secrets
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

SELF_SIGNED_DAYS: Final = 3_650
CLOCKS_DIFFER: Final = timedelta(hours=1)


def expiry_of(path: Path) -> datetime | None:
    """Returns when the first certificate of a chain expires. None: it cannot be read; OpenSSL says why."""
    from cryptography.x509 import load_pem_x509_certificates

    try:
        return min(each.not_valid_after_utc for each in load_pem_x509_certificates(path.read_bytes()))
    except (ValueError, OSError):
        return None


class SelfSigned(msgspec.Struct, frozen=True):
    """A certificate that nobody can verify, and its key: one PEM text."""

    pem: bytes

    @classmethod
    def make(cls) -> "SelfSigned":
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
        from cryptography.x509.oid import NameOID

        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
        name = x509.Name(
            [x509.NameAttribute(NameOID.COMMON_NAME, f"KeelMQ self-signed {secrets.token_hex(4)}")]
        )
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCKS_DIFFER)
            .not_valid_after(now + timedelta(days=SELF_SIGNED_DAYS))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return cls(private + certificate.public_bytes(Encoding.PEM))


def load_self_signed(context: ssl.SSLContext, signed: SelfSigned) -> None:
    """OpenSSL's Python binding reads pairs from files only. OSError, ssl.SSLError."""
    with _readable(signed.pem) as path:
        context.load_cert_chain(path)


@contextmanager
def _readable(data: bytes) -> Iterator[str]:
    """A path of bytes that are on no disk, where the system can do that."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("certificate")
        try:
            os.write(descriptor, data)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile() as file:  # mode 600
        file.write(data)
        file.flush()
        yield file.name
