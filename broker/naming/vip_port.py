"""The fast port: listenPort - 2, where clients with the "VIP channel" send to, whether told to or not.

The same operations as on the clients' port but pulls, pops and what goes with them: a consumer that is far
behind does not stand in a producer's way. Nobody announces this port, so a broker that cannot have it works
without. Source: RocketMQ 5.3.3 BrokerController.registerProcessor.
"""

import logging
from collections.abc import Callable
from typing import Final

from remoting.codes import RequestCode
from remoting.config import ConfigError
from remoting.doors.tcp import TcpDoor
from remoting.operation import OperationTable

logger = logging.getLogger(__name__)

BELOW: Final = 2
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
"""Answered 3."""


def without_pulls(table: OperationTable) -> OperationTable:
    fast = OperationTable()
    fast.handlers = {code: bound for code, bound in table.handlers.items() if code not in NOT_THERE}
    fast.hot = {code: hot for code, hot in table.hot.items() if code not in NOT_THERE}
    return fast


async def open_fast_port(
    table: OperationTable,
    *,
    host: str,
    configured: int,
    listen_port: int,
    on_closed: Callable[[int], None],
) -> TcpDoor | None:
    """configured: fastListenPort, 0 for two below listen_port (0: the system chose that one, and nobody can
    know of ours). None: it works without. ConfigError: a port that somebody asked for is not to be had."""
    port = configured or listen_port - BELOW
    if configured < 0 or (not listen_port and not configured):
        return None
    if port < 1:
        logger.warning("no fast port: listenPort %d - %d is none; set fastListenPort", listen_port, BELOW)
        return None
    door = TcpDoor(without_pulls(table), host=host, port=port, name="fastListenPort", on_closed=on_closed)
    try:
        await door.start()
    except ConfigError as error:
        if configured:
            raise
        logger.warning(
            "%s; going on without it: clients with the VIP channel (vipChannelEnabled) cannot send to this "
            "broker; free the port, set another one, or -1 for none",
            error,
        )  # fmt: skip
        return None
    return door
