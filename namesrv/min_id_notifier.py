"""905 to the members of a group whose lowest broker id changed, over connections that we open to them.

Oneway and with a short limit: whoever misses it learns the same from its next look at the member group (901).
"""

import asyncio
import logging

from namesrv.core.values import MinIdChange
from remoting.client import RemotingClient
from remoting.operations.route import NOTIFY_MIN_BROKER_ID_CHANGE, MinBrokerIdChangeRequest

log = logging.getLogger(__name__)

TIMEOUT_MS = 300
IN_FLIGHT_MAX = 4_096
"""Messages on their way; more are dropped, and the log says so."""


class MinIdNotifier:
    def __init__(self) -> None:
        self._client: RemotingClient | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def notify(self, change: MinIdChange) -> None:
        """Only in the event loop; returns at once."""
        header = MinBrokerIdChangeRequest(
            min_broker_id=change.min_id,
            min_broker_addr=change.min_addr,
            offline_broker_addr=change.offline_addr,
            ha_broker_addr=change.ha_addr,
            broker_name=change.broker_name,
        )
        log.info("%s: the lowest broker id is %d now", change.broker_name, change.min_id)
        for address in change.receivers:
            if len(self._tasks) >= IN_FLIGHT_MAX:
                log.warning("%d notifications are on their way: none to %s", IN_FLIGHT_MAX, address)
                continue
            task = asyncio.create_task(self._send(address, header))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    async def _send(self, address: str, header: MinBrokerIdChangeRequest) -> None:
        if self._client is None:
            self._client = RemotingClient(connect_timeout_ms=TIMEOUT_MS)
        if not await self._client.oneway(address, NOTIFY_MIN_BROKER_ID_CHANGE, header):
            log.info("%s did not hear that the lowest broker id of its group changed", address)
