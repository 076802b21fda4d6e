"""A CA and certificates for tests: good ones, and every kind of bad one. EC keys, made in a millisecond."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from namesrv.plugins.controller.raft.api import TlsFiles

BOTH = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
DAY = timedelta(days=1)
SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


def pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


class Authority:
    """One CA in `directory`; issue() writes what a member needs."""

    def __init__(
        self, directory: Path, *, days: tuple[float, float] = (-1, 100), name: str | None = None
    ) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"CA {name or directory.name}")])
        builder = self._builder(self._name, self._key.public_key(), days)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(SIGNS_CERTIFICATES, critical=True)
        self.pem = builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)
        self.path = directory / "ca.crt"
        self.path.write_bytes(self.pem)

    def issue(
        self,
        *names: str,
        days: tuple[float, float] = (-1, 50),
        usage: Sequence[ObjectIdentifier] = BOTH,
        stem: str | None = None,
    ) -> TlsFiles:
        """Files stem.crt, stem.key (default: the first name). `days`: from, to, counted from now."""
        stem = stem or names[0]
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, stem)])
        builder = self._builder(subject, key.public_key(), days)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usage), critical=False)
        if names:
            sans = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
            builder = builder.add_extension(sans, critical=False)
        files = TlsFiles(self.directory / f"{stem}.crt", self.directory / f"{stem}.key", self.path)
        files.certificate.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))
        files.key.write_bytes(pem_of(key))
        return files

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, days: tuple[float, float]
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + days[0] * DAY)
            .not_valid_after(now + days[1] * DAY)
            # Since Python 3.13 a client that is not told otherwise refuses a certificate without them.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )


def mutual_tls(authority: Authority, member: str) -> dict[str, str]:
    """Returns the settings of a program with TLS in both directions; `member`: in its certificate."""
    files = authority.issue("localhost", member)
    files.key.chmod(0o600)
    return {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": str(files.certificate),
        "tls.server.keyPath": str(files.key),
        "tls.server.need.client.auth": "optional",
        "tls.server.trustCertPath": str(files.trust),
        "tls.enable": "true",
        "tls.client.trustCertPath": str(files.trust),
        "tls.client.certPath": str(files.certificate),
        "tls.client.keyPath": str(files.key),
    }
