"""A certificate signed by one that may not sign others."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID

from namesrv.plugins.controller.raft.api import TlsFiles
from tests.support.raft_certificates import Authority, pem_of


def signed_by_client(authority: Authority, directory: Path, name: str) -> TlsFiles:
    """Returns a certificate of `name` that a client's certificate of the authority has signed, with the
    chain."""
    directory.mkdir(parents=True, exist_ok=True)
    client = authority.issue("client.example", stem="client-as-ca")
    issuer = x509.load_pem_x509_certificate(client.certificate.read_bytes())
    issuer_key = load_pem_private_key(client.key.read_bytes(), None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    files = TlsFiles(directory / "member.crt", directory / "member.key", authority.path)
    files.certificate.write_bytes(certificate.public_bytes(Encoding.PEM) + client.certificate.read_bytes())
    files.key.write_bytes(pem_of(key))
    return files
