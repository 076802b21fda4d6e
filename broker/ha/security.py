"""Who may replicate, and how HA links are encrypted: the settings of broker/ha/core/hello.py and of TLS."""

import os
from collections.abc import Collection
from typing import Protocol, cast

import msgspec

from broker.ha.core.hello import NONCE_BYTES, Group, MasterHello, SlaveHello
from keelmq.remoting.operation import Audit
from keelmq.runtime.tls.contexts import ClientTls, ServerTls
from keelmq.security.core.address_patterns import AddressPattern
from keelmq.security.signer import Credentials


class Transport(Protocol):
    """The part of asyncio's transports that is needed here."""

    def get_extra_info(self, name: str) -> object: ...


class HaSecurity(msgspec.Struct, frozen=True, kw_only=True):
    """The comments name the configuration keys. The defaults: every peer may replicate, without
    encryption."""

    cluster: str = ""  # brokerClusterName
    broker_name: str = ""  # brokerName
    credentials: Credentials | None = None  # innerClientAuthenticationCredentials
    required: bool = False  # haAuthenticationRequired
    plain_slaves: tuple[AddressPattern, ...] = ()  # haPlainSlaves
    plain_master: bool = False  # haPlainMaster
    certificate_names: frozenset[str] = frozenset()  # memberCertificateNames
    tls: ServerTls | None = None  # haTlsMode; None: disabled
    client_tls: ClientTls | None = None  # haTlsEnable; None: disabled
    audit: Audit | None = None
    """Records each peer that has not proved its membership."""

    @property
    def group(self) -> Group | None:
        """The identity to prove; None: this broker has no credentials."""
        if self.credentials is None:
            return None
        return Group(
            self.cluster, self.broker_name, self.credentials.access_key, self.credentials.secret_key.encode()
        )

    def admits_plain(self, transport: Transport) -> bool:
        """Whether this peer may replicate without a hello: by its address, or by its certificate."""
        if not self.required:
            return True
        names = cast(Collection[str] | None, transport.get_extra_info("certificate_names"))
        if self.certificate_names.intersection(names or ()):
            return True
        peer = cast(tuple[str, int] | None, transport.get_extra_info("peername"))
        return peer is not None and any(pattern.matches(peer[0]) for pattern in self.plain_slaves)

    def master_hello(self, transport: Transport, now_ms: int) -> MasterHello:
        """For a connection that was accepted."""
        return MasterHello(
            self.group,
            plain_allowed=self.admits_plain(transport),
            nonce=os.urandom(NONCE_BYTES),
            binding=binding_of(transport),
            now_ms=now_ms,
        )


def slave_hello(group: Group, broker_id: int, transport: Transport, now_ms: int) -> SlaveHello:
    """For a connection that was opened."""
    return SlaveHello(
        group, broker_id, nonce=os.urandom(NONCE_BYTES), binding=binding_of(transport), now_ms=now_ms
    )


class TlsObject(Protocol):
    """The part of ssl.SSLObject that is needed here."""

    def get_channel_binding(self, cb_type: str) -> bytes | None: ...


def binding_of(transport: Transport) -> bytes:
    """Returns bytes that only the two ends of this TLS connection know; empty without TLS.

    The client's Finished: RFC 5929 has no name for it in TLS 1.3, but it is as unique, since sessions are not
    resumed here.
    """
    tls = cast(TlsObject | None, transport.get_extra_info("ssl_object"))
    return b"" if tls is None else tls.get_channel_binding("tls-unique") or b""
