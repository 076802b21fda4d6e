"""keelmq certificates: the cluster's own CA, and certificates for controllers' raft ports, for the ports of
any program, and for clients.

The CA is created once and reused, so the same command renews certificates. What members of a raft
group require of a certificate is in namesrv.plugins.controller.raft.transport.certificates.
"""

import os
import re
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.command_line import print
from keelmq.runtime.config import in_words

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
    from cryptography.x509 import Certificate, CertificateBuilder, GeneralName, KeyUsage, Name

ID = re.compile(r"^[A-Za-z0-9_.]{1,63}$")
NAME = re.compile(r"^[A-Za-z0-9_.-]{1,63}$")
HOST = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?")
CLOCKS_DIFFER = timedelta(hours=1)  # a certificate is valid at once, even if a machine's clock is behind
TOGETHER = "members"
DAYS_MAX = 36_500
"""Limit of a validity: about a century. A certificate cannot end after the year 9999."""

DAYS, CA_DAYS = 365, 3_650

DaysOption = Annotated[
    int, typer.Option("--days", min=1, max=DAYS_MAX, help="Validity of a certificate, days")
]
CaDaysOption = Annotated[
    int, typer.Option("--ca-days", min=1, max=DAYS_MAX, help="Validity of a new CA, days")
]


class Role(StrEnum):
    """`server`: for a broker, name server or controller: its ports, and its connections to others. `client`:
    for applications and tools."""

    RAFT = "raft"
    SERVER = "server"
    CLIENT = "client"


class CertificatesError(Exception):
    """The certificates cannot be created; the text is one line that says why."""


@dataclass(frozen=True)
class Authority:
    """A certificate authority with its key."""

    certificate: "Certificate"
    key: "EllipticCurvePrivateKey"

    @property
    def pair(self) -> "Pair":
        """What ca.crt and ca.key have."""
        return _pair(self.certificate, self.key)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key in PEM. `ends`: the end of its validity."""

    certificate: str
    key: str = field(repr=False)
    ends: datetime


def certificates(
    members: Annotated[
        list[str],
        typer.Argument(metavar="ID...", help="controllerDLegerSelfId of each; for other roles, names"),
    ],
    output: Annotated[
        Path, typer.Option("--output", metavar="DIR", help="Directory of the files; a CA in it is reused")
    ] = Path("certificates"),
    days: DaysOption = DAYS,
    ca_days: CaDaysOption = CA_DAYS,
    together: Annotated[
        bool, typer.Option("--together", help="One certificate with all names (one Secret for all pods)")
    ] = False,
    role: Annotated[
        Role,
        typer.Option("--role", help="What the certificates are for: raft ports, servers (tls.*), or clients"),
    ] = Role.RAFT,
    hosts: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", help="A DNS name or IP address to add; not for raft"),
    ] = None,
) -> None:
    """Create a CA and certificates for raft ports, servers or clients, or renew them with the same CA."""
    try:
        for line in make(
            members, output, days=days, ca_days=ca_days, together=together, role=role, hosts=hosts or []
        ):
            print(line)
    except (CertificatesError, OSError) as error:
        print(f"keelmq certificates: {in_words(error)}", file=sys.stderr)
        raise typer.Exit(1) from error


def make(
    members: list[str],
    output: Path,
    *,
    days: int,
    ca_days: int,
    together: bool,
    role: Role = Role.RAFT,
    hosts: Sequence[str] = (),
) -> list[str]:
    """Creates the files; returns the lines to print. Raises CertificatesError, OSError."""
    if hosts and role is Role.RAFT:
        raise CertificatesError("--host is for --role server and client: a raft member is known by its id")
    for member in members:
        if role is Role.RAFT and not ID.match(member):
            raise CertificatesError(f"{member!r} is not a controller's id (letters, digits, _ and .)")
        if not NAME.match(member):
            raise CertificatesError(f"{member!r} is not a name (letters, digits, _ . and -)")
        if member == "ca":
            raise CertificatesError("'ca' is the name of the CA's own files: choose another id")
    for host in hosts:
        if not is_host(host):
            raise CertificatesError(f"--host {host!r} is neither a DNS name nor an IP address (no port)")
    output.mkdir(parents=True, exist_ok=True, mode=0o700)
    told = []
    if not (output / "ca.crt").exists() and not (output / "ca.key").exists():
        new_authority(output, ca_days)
        told.append(
            f"made {output}/ca.crt, and ca.key: whoever has that key can create members; keep it elsewhere"
        )
    authority = read_authority(output)
    groups = {TOGETHER: members} if together else {member: [member] for member in members}
    for stem, names in groups.items():
        until = issue(authority, output, stem, [*names, *hosts], days, role)
        told.append(
            f"made {output}/{stem}.crt, and {stem}.key, for {', '.join([*names, *hosts])}, until "
            f"{until:%Y-%m-%d}"
        )
    return [*told, "", *_settings(role, output.absolute(), next(iter(groups)), together=together)]


def is_host(name: str) -> bool:
    """Returns whether a certificate can be for it: an IP address, or a DNS name in ASCII."""
    return HOST.fullmatch(name) is not None or _address(name) is not None


def _address(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name)
    except ValueError:
        return None


def _settings(role: Role, output: Path, stem: str, *, together: bool) -> list[str]:
    certificate, key, trust = output / f"{stem}.crt", output / f"{stem}.key", output / "ca.crt"
    if role is Role.RAFT:
        who = "each controller" if together else f"controller {stem}"
        return [
            f"# {who}; instead of controllerRaftSecretFile",
            f"controllerRaftTlsCertPath={certificate}",
            f"controllerRaftTlsKeyPath={key}",
            f"controllerRaftTlsTrustCertPath={trust}",
        ]
    if role is Role.CLIENT:
        return [
            "# an application: TlsSettings(ca=..., certificate=..., key=...); a tool:",
            f"mqadmin --tls-ca {trust} --tls-cert {certificate} --tls-key {key}",
        ]
    return [
        f"# {'each server' if together else f'server {stem}'}; when all have it: tls.server.mode=enforcing",
        f"tls.server.certPath={certificate}",
        f"tls.server.keyPath={key}",
        f"tls.server.trustCertPath={trust}",
        "tls.enable=true",
        f"tls.client.certPath={certificate}",
        f"tls.client.keyPath={key}",
        f"tls.client.trustCertPath={trust}",
    ]


def new_authority(output: Path, days: float) -> None:
    """Writes ca.crt and ca.key of a new certificate authority, which ends after `days` days."""
    _write_pair(output, "ca", make_authority(days).pair)


def make_authority(days: float) -> Authority:
    """Returns a new certificate authority, which ends after `days` days."""
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
    return Authority(certificate, key)


def read_authority(output: Path) -> Authority:
    """Returns the certificate authority of ca.crt and ca.key. Raises CertificatesError, OSError."""
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


def issue(
    authority: Authority, output: Path, stem: str, names: Sequence[str], days: int, role: Role
) -> datetime:
    """Writes a certificate and its key; returns the end of its validity, at most that of the CA."""
    ca_ends = authority.certificate.not_valid_after_utc
    if ca_ends <= datetime.now(UTC):
        raise CertificatesError(
            f"the CA of {output} ended at {ca_ends:%Y-%m-%d}: move it and ca.key away to get a new CA"
        )
    pair = sign(authority, stem, names, days, role)
    _write_pair(output, stem, pair)
    return pair.ends


def sign(authority: Authority, subject_name: str, names: Sequence[str], days: int, role: Role) -> Pair:
    """Returns a new key with a certificate for `names`, which ends with the CA at the latest."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    ca_ends, now = authority.certificate.not_valid_after_utc, datetime.now(UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject_name)])
    usage = [] if role is Role.CLIENT else [ExtendedKeyUsageOID.SERVER_AUTH]
    usage.append(ExtendedKeyUsageOID.CLIENT_AUTH)  # every server is also a client of others
    issuer = authority.certificate
    certificate = (
        _builder(subject, issuer.subject, key.public_key(), min(now + timedelta(days=days), ca_ends))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False
        )
        .sign(authority.key, hashes.SHA256())
    )
    return _pair(certificate, key)


def _general_name(name: str) -> "GeneralName":
    from cryptography import x509

    address = _address(name)
    return x509.DNSName(name) if address is None else x509.IPAddress(address)


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


def _pair(certificate: "Certificate", key: "EllipticCurvePrivateKey") -> Pair:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    shown = certificate.public_bytes(Encoding.PEM)
    return Pair(shown.decode("ascii"), pem.decode("ascii"), certificate.not_valid_after_utc)


def _write_pair(output: Path, stem: str, pair: Pair) -> None:
    _write(output / f"{stem}.key", pair.key.encode("ascii"), mode=0o600)
    _write(output / f"{stem}.crt", pair.certificate.encode("ascii"), mode=0o644)


def _write(path: Path, data: bytes, *, mode: int) -> None:
    """Replaces the file atomically: a member may read it at any moment."""
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
    os.replace(beside, path)
