"""The fast port: listenPort - 2, to which clients with the "VIP channel" send.

It serves the operations of listenPort except pulls, pops and related requests, so that a consumer that is far
behind does not delay a producer. No route names this port, so a broker that cannot bind it works without.
Source: RocketMQ 5.3.3 BrokerController.registerProcessor.
"""

import logging
from collections.abc import Callable
from typing import Final

from keelmq.remoting.codes import RequestCode
from keelmq.remoting.operation import OperationTable
from keelmq.remoting.peer_limits import PeerLimits
from keelmq.remoting.servers.tcp import TcpServer
from keelmq.remoting.write_buffers import WriteBuffers
from keelmq.runtime.config import ConfigError
from keelmq.runtime.tls.contexts import PortTls

logger = logging.getLogger(__name__)

BELOW: Final = 2
NAME: Final = "fastListenPort"
NOT_THERE: Final = frozenset(
    {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.POLLING_INFO,
    }
)
"""Answered with code 3 (not supported)."""


def without_pulls(table: OperationTable) -> OperationTable:
    """Returns the operations of the fast port."""
    fast = OperationTable()
    fast.access, fast.audit = table.access, table.audit
    fast.handlers = {code: bound for code, bound in table.handlers.items() if code not in NOT_THERE}
    fast.fast_path = {code: fast_path for code, fast_path in table.fast_path.items() if code not in NOT_THERE}
    return fast


async def open_fast_port(
    table: OperationTable,
    *,
    host: str,
    configured: int,
    listen_port: int,
    name: str = NAME,
    on_closed: Callable[[int], None],
    write_buffers: WriteBuffers,
    limits: PeerLimits | None = None,
    tls: PortTls | None = None,
) -> TcpServer | None:
    """Returns the server, listening. None: the broker works without it.

    configured: fastListenPort; 0 for listen_port - 2, -1 for none. listen_port: as configured; with 0 (the
    system chooses) there is no fast port, because no client could guess it. name: for log lines. ConfigError:
    the configured port cannot be bound."""
    port = configured or listen_port - BELOW
    if configured < 0 or (not listen_port and not configured):
        return None
    if port < 1:
        logger.warning("no %s: %d - %d is not a port; set fastListenPort", name, listen_port, BELOW)
        return None
    server = TcpServer(
        without_pulls(table),
        host=host,
        port=port,
        name=name,
        on_closed=on_closed,
        write_buffers=write_buffers,
        limits=limits,
        tls=tls,
    )
    try:
        await server.start()
    except ConfigError as error:
        if configured:
            raise
        logger.warning(
            "%s; the broker starts without it: clients with the VIP channel (vipChannelEnabled) cannot "
            "send to it; free the port, set another one, or -1 for none",
            error,
        )  # fmt: skip
        return None
    return server
