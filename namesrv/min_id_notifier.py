"""MinIdNotifier: sends 905 to the members of a group whose lowest broker id changed, over new connections.

Sent oneway and with a short timeout: a broker that misses it reads the same with its next
getBrokerMemberGroup (901).
"""

import asyncio
import logging

from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operations.route import NOTIFY_MIN_BROKER_ID_CHANGE, MinBrokerIdChangeRequest
from keelmq.runtime.tasks import cancel_all
from keelmq.runtime.tls.contexts import ClientTls
from keelmq.security.signer import Signer
from namesrv.core.values import MinIdChange

log = logging.getLogger(__name__)

TIMEOUT_MS = 300
IN_FLIGHT_MAX = 4_096
"""Maximum number of messages in flight; more are dropped and logged."""


class MinIdNotifier:
    """Event loop only."""

    def __init__(self, tls: ClientTls | None = None, signer: Signer | None = None) -> None:
        self._tls, self._signer = tls, signer
        self._client: RemotingClient | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def notify(self, change: MinIdChange) -> None:
        """Sends to all receivers of the change in the background. Event loop only."""
        header = MinBrokerIdChangeRequest(
            min_broker_id=change.min_id,
            min_broker_addr=change.min_addr,
            offline_broker_addr=change.offline_addr,
            ha_broker_addr=change.ha_addr,
            broker_name=change.broker_name,
        )
        log.info("%s: the lowest broker id is now %d", change.broker_name, change.min_id)
        for address in change.receivers:
            if len(self._tasks) >= IN_FLIGHT_MAX:
                log.warning("%d notifications are in flight: %s is not notified", IN_FLIGHT_MAX, address)
                continue
            task = asyncio.create_task(self._send(address, header))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancels the messages in flight and closes the connections."""
        await cancel_all(self._tasks)
        if self._client is not None:
            await self._client.close()

    async def _send(self, address: str, header: MinBrokerIdChangeRequest) -> None:
        if self._client is None:
            self._client = RemotingClient(connect_timeout_ms=TIMEOUT_MS, tls=self._tls, signer=self._signer)
        if not await self._client.oneway(address, NOTIFY_MIN_BROKER_ID_CHANGE, header):
            log.info("%s could not be notified of its group's new lowest broker id", address)
