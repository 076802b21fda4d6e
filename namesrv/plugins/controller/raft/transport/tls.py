"""TlsChannel: mutual TLS 1.3 over memory buffers, with the frames of PlainChannel inside. No I/O.

It proves that the peer has a certificate of our CA; the names in it are the members that the peer may be.
HELLO contains the member's id, and Links compares the two. Sessions are not resumed.
"""

import ssl
from typing import Any

from namesrv.plugins.controller.raft.transport.channel import ChannelError, PlainChannel

READ_BYTES = 64 * 1024

_REFUSED = {
    7: "certificate of another CA",  # of ours by name, but not by signature
    9: "certificate not valid yet",
    10: "certificate expired",
    18: "certificate of another CA",  # self-signed
    19: "certificate of another CA",  # a chain to an unknown root
    20: "certificate of another CA",  # issuer unknown
    21: "certificate of another CA",  # the first signature cannot be verified
    26: "certificate for another purpose",
}
"""OpenSSL verification codes -> reasons of ChannelError. Metrics have them as labels, so they are few."""


class TlsChannel(PlainChannel):
    """`dialed`: this side opened the connection and is the client in the handshake."""

    def __init__(self, context: ssl.SSLContext, *, dialed: bool) -> None:
        super().__init__()
        self.is_open = False
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=not dialed)
        self._names: frozenset[str] = frozenset()

    def start(self) -> bytes:
        self._handshake()
        return self._outgoing.read()

    def receive_data(self, data: bytes) -> None:
        self._incoming.write(data)
        if not self.is_open:
            self._handshake()
        if self.is_open:
            self._decrypt()

    def data_to_send(self) -> bytes:
        return self._outgoing.read()

    def may_be(self, member: str) -> bool:
        return member in self._names

    def encode_frame(self, frame: bytes) -> bytes:
        rest = memoryview(super().encode_frame(frame))
        try:
            while rest:
                rest = rest[self._tls.write(rest) :]
        except ssl.SSLError as error:
            raise _channel_error(error) from None
        return self._outgoing.read()

    def _handshake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise _channel_error(error) from None
        if self._tls.server_side and not _is_for_servers(self._tls.getpeercert(binary_form=True) or b""):
            raise ChannelError("certificate for another purpose", "than a controller's, which is a server")
        certificate: Any = self._tls.getpeercert() or {}
        self._names = frozenset(
            str(name) for kind, name in certificate.get("subjectAltName", ()) if kind == "DNS"
        )
        self.is_open = True

    def _decrypt(self) -> None:
        try:
            while data := self._tls.read(READ_BYTES):
                self._buffer += data
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise _channel_error(error) from None
        raise ChannelError("closed by the other side")  # close_notify


def _is_for_servers(certificate: bytes) -> bool:
    """Returns whether a certificate that OpenSSL has verified is valid for a server: the listener's OpenSSL
    checks only that it is valid for a client, and the CA may also issue some to applications."""
    # imported here: a member without certificates does not need the library's memory
    from cryptography.x509 import (
        DuplicateExtension,
        ExtendedKeyUsage,
        ExtensionNotFound,
        load_der_x509_certificate,
    )
    from cryptography.x509.oid import ExtendedKeyUsageOID

    try:
        extensions = load_der_x509_certificate(certificate).extensions
        return ExtendedKeyUsageOID.SERVER_AUTH in extensions.get_extension_for_class(ExtendedKeyUsage).value
    except ExtensionNotFound:
        return True  # for any use
    except (ValueError, DuplicateExtension):
        return False


def _channel_error(error: ssl.SSLError) -> ChannelError:
    detail = (error.reason or str(error)).replace("_", " ").lower()
    if isinstance(error, ssl.SSLCertVerificationError):
        return ChannelError(_REFUSED.get(error.verify_code, "certificate not accepted"), error.verify_message)
    if "did not return a certificate" in detail:
        return ChannelError("no certificate")
    if "alert" in detail:
        return ChannelError("our certificate or TLS was refused", detail)
    return ChannelError("no TLS 1.3 of ours", detail)
