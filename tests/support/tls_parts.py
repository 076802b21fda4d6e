"""What tests of TLS need: server and client settings of one CA, and peers that break handshakes."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Ok, Outcome
from keelmq.remoting.operations.controller import GET_NEXT_BROKER_ID, BrokerSetRequest
from keelmq.runtime.tls.contexts import ClientAuth, ClientTls, Mode, ServerTls
from keelmq.runtime.tls.files import CertificateFiles, key_names
from tests.support.raft_certificates import Authority

LOCAL = "localhost"


def server_files(authority: Authority, *names: str, **options: Any) -> CertificateFiles:
    found = authority.issue(*(names or (LOCAL,)), **options)
    return CertificateFiles(key_names("tls.server"), found.certificate, found.key, None, found.trust)


def client_files(authority: Authority, *names: str, **options: Any) -> CertificateFiles:
    found = authority.issue(*names, **options)
    return CertificateFiles(key_names("tls.client"), found.certificate, found.key, None, found.trust)


def server_tls(
    authority: Authority, mode: Mode = "permissive", client_auth: ClientAuth = "none", **options: Any
) -> ServerTls:
    return ServerTls(mode, server_files(authority, **options), client_auth=client_auth)


def trusting(authority: Authority, *names: str, **options: Any) -> ClientTls:
    """A client that verifies with this CA; with `names` it shows a certificate."""
    files = CertificateFiles(key_names("tls.client"), trust=authority.path)
    if names:
        files = client_files(authority, *names)
    return ClientTls(files, verify=True, **options)


async def ask(address: str, tls: ClientTls | None, name: str = "g") -> Outcome[Any]:
    """One call by a client of its own."""
    client = RemotingClient(tls=tls)
    try:
        return await client.call(
            address, GET_NEXT_BROKER_ID, BrokerSetRequest(cluster_name="c", broker_name=name)
        )
    finally:
        await client.close()


def answered(outcome: Outcome[Any]) -> bool:
    return isinstance(outcome, Ok) and outcome.header.next_broker_id == 3


def client_hello() -> bytes:
    """The first bytes of a TLS client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    layer = context.wrap_bio(incoming, outgoing)
    try:
        layer.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("a handshake without an answer")


async def closed(reader: asyncio.StreamReader) -> bytes:
    """What the other side sends until it closes."""
    async with asyncio.timeout(5):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


def with_password(files: CertificateFiles, password: str | None) -> CertificateFiles:
    """The same files, the key encrypted with "secret"; `password`: what the settings say."""
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    assert files.key is not None
    key = load_pem_private_key(files.key.read_bytes(), None)
    encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    path = files.key.with_suffix(".encrypted")
    path.write_bytes(encrypted)
    path.chmod(0o600)
    secret = None if password is None else SecretStr(password)
    return CertificateFiles(files.names, files.certificate, Path(path), secret, files.trust)
