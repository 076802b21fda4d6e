"""keelmq certificates: a CA of the group's own, and a certificate for each controller's raft port.

The CA is created once and reused, so the same command renews certificates. What members require of a
certificate is in namesrv.plugins.controller.raft.transport.certificates.
"""

import os
import re
import secrets
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keelmq.runtime.config import in_words

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
    from cryptography.x509 import Certificate, CertificateBuilder, KeyUsage, Name

ID = re.compile(r"^[A-Za-z0-9_.]{1,63}$")
CLOCKS_DIFFER = timedelta(hours=1)  # a certificate is valid at once, also where the clock is behind
TOGETHER = "members"


class CertificatesError(Exception):
    """The certificates cannot be created; the text is one line that says why."""


@dataclass(frozen=True)
class Authority:
    certificate: "Certificate"
    key: "EllipticCurvePrivateKey"


def certificates(
    members: Annotated[
        list[str], typer.Argument(metavar="ID...", help="controllerDLegerSelfId of each controller")
    ],
    output: Annotated[
        Path, typer.Option("--output", metavar="DIR", help="Directory of the files; a CA in it is reused")
    ] = Path("certificates"),
    days: Annotated[int, typer.Option("--days", min=1, help="Validity of a certificate, days")] = 365,
    ca_days: Annotated[int, typer.Option("--ca-days", min=1, help="Validity of a new CA, days")] = 3_650,
    together: Annotated[
        bool, typer.Option("--together", help="One certificate with all names (one Secret for all pods)")
    ] = False,
) -> None:
    """Create a CA and a certificate for each controller's raft port, or renew them with the same CA."""
    try:
        for line in make(members, output, days=days, ca_days=ca_days, together=together):
            print(line)
    except (CertificatesError, OSError) as error:
        print(f"keelmq certificates: {in_words(error)}", file=sys.stderr)
        raise typer.Exit(1) from error


def make(members: list[str], output: Path, *, days: int, ca_days: int, together: bool) -> list[str]:
    """Creates the files; returns the lines to print. Raises CertificatesError, OSError."""
    for member in members:
        if not ID.match(member):
            raise CertificatesError(f"{member!r} is not a controller's id (letters, digits, _ and .)")
        if member == "ca":
            raise CertificatesError("'ca' is the name of the CA's own files: choose another id")
    output.mkdir(parents=True, exist_ok=True, mode=0o700)
    told = []
    if not (output / "ca.crt").exists() and not (output / "ca.key").exists():
        new_authority(output, ca_days)
        told.append(
            f"made {output}/ca.crt, and ca.key: whoever has that key can create members; keep it elsewhere"
        )
    authority = _read_authority(output)
    groups = {TOGETHER: members} if together else {member: [member] for member in members}
    for stem, names in groups.items():
        until = _issue(authority, output, stem, names, days)
        told.append(
            f"made {output}/{stem}.crt, and {stem}.key, for {', '.join(names)}, until {until:%Y-%m-%d}"
        )
    first = next(iter(groups))
    return [
        *told,
        "",
        f"# {'each controller' if together else f'controller {first}'}; instead of controllerRaftSecretFile",
        f"controllerRaftTlsCertPath={output.absolute() / first}.crt",
        f"controllerRaftTlsKeyPath={output.absolute() / first}.key",
        f"controllerRaftTlsTrustCertPath={output.absolute()}/ca.crt",
    ]


def new_authority(output: Path, days: float) -> None:
    """Writes ca.crt and ca.key of a new certificate authority, which ends in so many days."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    # two CAs with one name cannot be told apart while one replaces the other
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"KeelMQ raft CA {secrets.token_hex(4)}")])
    certificate = (
        _builder(name, name, key.public_key(), datetime.now(UTC) + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write_pair(output, "ca", certificate, key)


def _read_authority(output: Path) -> Authority:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        certificate = x509.load_pem_x509_certificate((output / "ca.crt").read_bytes())
        key = load_pem_private_key((output / "ca.key").read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise CertificatesError(f"{output}/ca.crt or ca.key cannot be used: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise CertificatesError(
            f"{output}/ca.key is not the key of {output}/ca.crt, or was not created by this command"
        )
    return Authority(certificate, key)


def _issue(authority: Authority, output: Path, stem: str, names: list[str], days: int) -> datetime:
    """Writes a certificate and its key; returns the end of its validity, at most that of the CA."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    ca_ends, now = authority.certificate.not_valid_after_utc, datetime.now(UTC)
    if ca_ends <= now:
        raise CertificatesError(
            f"{output}/ca.crt ended at {ca_ends:%Y-%m-%d}: move it and ca.key away to get a new CA"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, stem)])
    both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    issuer = authority.certificate
    certificate = (
        _builder(subject, issuer.subject, key.public_key(), min(now + timedelta(days=days), ca_ends))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(both, critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False
        )
        .sign(authority.key, hashes.SHA256())
    )
    _write_pair(output, stem, certificate, key)
    return certificate.not_valid_after_utc


def _builder(
    subject: "Name", issuer: "Name", key: "EllipticCurvePublicKey", ends: datetime
) -> "CertificateBuilder":
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - CLOCKS_DIFFER)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> "KeyUsage":
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _write_pair(output: Path, stem: str, certificate: "Certificate", key: "EllipticCurvePrivateKey") -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    _write(output / f"{stem}.key", pem, mode=0o600)
    _write(output / f"{stem}.crt", certificate.public_bytes(Encoding.PEM), mode=0o644)


def _write(path: Path, data: bytes, *, mode: int) -> None:
    """Replaces the file atomically: a member may read it at any moment."""
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
    os.replace(beside, path)
