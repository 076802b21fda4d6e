"""ProcessParts: the parts that the brokers of one process share, or that its only broker uses alone."""

import msgspec

from keelmq.remoting.peer_limits import PeerLimits
from keelmq.remoting.servers.tcp import UNSENT_BYTES_MAX
from keelmq.remoting.write_buffers import WriteBuffers
from keelmq.runtime.tls.contexts import ClientTls, ServerTls
from keelmq.runtime.tls.settings import client_tls, server_tls
from keelmq.security.server_config import ServerConfig


class ProcessParts(msgspec.Struct, frozen=True):
    """tls: of all ports; client_tls: of all connections to others, None: they are plain. write_buffers,
    limits: of all connections together."""

    tls: ServerTls
    client_tls: ClientTls | None
    write_buffers: WriteBuffers
    limits: PeerLimits


def make_process_parts(config: ServerConfig) -> ProcessParts:
    """Raises ConfigError."""
    return ProcessParts(
        server_tls(config), client_tls(config), WriteBuffers(UNSENT_BYTES_MAX), config.peer_limits()
    )
