"""What a slave fetches from its master's broker port: topics (21) and the HA address (26).

Regularly, at every role change, and soon after a record of an unknown topic arrived over the HA link: topics
are part of being in sync, since after a switch nobody else has them (design S3).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from broker.topics import TopicTable
from remoting.client import RemotingClient
from remoting.operation import Empty, Ok
from remoting.operations.broker import GET_ALL_TOPIC_CONFIG, GET_BROKER_CONFIG
from remoting.tasks import wait_for_event

logger = logging.getLogger(__name__)

SYNC_PERIOD_MS = 3_000
CALL_TIMEOUT_MS = 1_000
HURRY_MS = 50
"""Unknown topics come in bursts: one fetch for all that arrived meanwhile."""


class SlaveSync:
    """Idle until follow() says whom."""

    def __init__(self, client: RemotingClient, topics: TopicTable) -> None:
        self._client, self._topics = client, topics
        self._master_address: Callable[[], str | None] = lambda: None
        self._refresh_ha_address: Callable[[], Awaitable[None]] = _nothing
        self._hurry = asyncio.Event()
        self.route_ha_address: tuple[str, str] | None = None
        """(master address, HA address) as a name server last said it."""

    def follow(
        self, master_address: Callable[[], str | None], refresh_ha_address: Callable[[], Awaitable[None]]
    ) -> None:
        """master_address: where to ask now; None while we are master ourselves or have no master."""
        self._master_address, self._refresh_ha_address = master_address, refresh_ha_address

    def unknown_topic(self) -> None:
        self._hurry.set()

    async def run(self) -> None:
        while True:
            if await wait_for_event(self._hurry, SYNC_PERIOD_MS):
                await asyncio.sleep(HURRY_MS / 1000)
            master = self._master_address()
            if master is not None:
                await self.fetch_topics(master)
                await self._refresh_ha_address()

    async def fetch_topics(self, master: str) -> bool:
        """False: not now; it is tried again with the next round."""
        outcome = await self._client.call(master, GET_ALL_TOPIC_CONFIG, Empty(), timeout_ms=CALL_TIMEOUT_MS)
        if not isinstance(outcome, Ok) or outcome.body is None:
            logger.info("topics of master %s: %s", master, outcome)
            return False
        if self._master_address() not in (None, master):
            return False  # another one is master by now
        self._topics.apply_remote(outcome.body)
        return True

    async def find_ha_address(self, master: str) -> str | None:
        """Ask the master itself; else what a name server said about it."""
        outcome = await self._client.call(master, GET_BROKER_CONFIG, Empty(), timeout_ms=CALL_TIMEOUT_MS)
        if isinstance(outcome, Ok) and outcome.body:
            found = ha_address_of(bytes(outcome.body).decode("utf-8", "replace"), master)
            if found is not None:
                return found
        if self.route_ha_address is not None and self.route_ha_address[0] == master:
            return self.route_ha_address[1]
        return None


async def _nothing() -> None:
    return


def ha_address_of(properties: str, broker_address: str) -> str | None:
    """haListenPort at brokerIP2, brokerIP1 or the host that we asked; None: no port in there."""
    settings = {
        key.strip(): value.strip()
        for key, equals, value in (line.partition("=") for line in properties.splitlines())
        if equals
    }
    port = settings.get("haListenPort", "")
    if not port.isdecimal() or not 0 < int(port) < 65_536:
        return None
    host = settings.get("brokerIP2") or settings.get("brokerIP1") or broker_address.rpartition(":")[0]
    return f"{host}:{port}"
