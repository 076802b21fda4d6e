"""A group of real brokers behind a controller, in this process, whose master can be taken away in the middle
of something; and a client that talks to whoever is master.
"""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from broker.app.background_services import BackgroundServices
from broker.app.broker import Broker
from broker.config.broker_config import BrokerConfig
from broker.message.record import Record, decode
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Call, Empty, Ok, Operation, OperationTable, Wire
from keelmq.remoting.operations.broker import SEND_MESSAGE_V2, SendMessageRequestV2, SendMessageResponse
from keelmq.remoting.operations.clients import HEART_BEAT, HeartbeatData, ProducerData
from keelmq.runtime.clock import now_ms, wall_ms
from tests.unit.namesrv.plugins.controller.test_controller_plugin import members, server

DEADLINE_MS = 30_000
CLIENT_ID = "10.0.0.9@1"


async def until(condition: Callable[[], Any], what: str) -> None:
    deadline_ms = now_ms() + DEADLINE_MS
    while not condition():
        assert now_ms() < deadline_ms, f"not within {DEADLINE_MS} ms: {what}"
        await asyncio.sleep(0.01)


class Trio:
    """Three replicas that acknowledge what all of them have."""

    def __init__(self, brokers: dict[Broker, AsyncExitStack]) -> None:
        self._stops = brokers
        self.asked: list[Call] = []
        self.pushed = OperationTable()
        self.client = RemotingClient(self.pushed)

    def answer(self, operation: Operation[Any, Any]) -> list[tuple[Any, Call]]:
        """What brokers ask this client with it."""
        found: list[tuple[Any, Call]] = []

        async def keep(header: Wire, call: Call) -> None:
            found.append((header, call))

        self.pushed.bind(operation, keep)
        return found

    @property
    def master(self) -> Broker:
        (found,) = [each for each in self._stops if each.status.role_name == "master" and each.gate.writable]
        return found

    @property
    def deliveries(self) -> BackgroundServices:
        return self.master.services

    @property
    def settled(self) -> bool:
        """Every replica knows how far the master's timers are."""
        tables = [broker.metadata.timers.table for broker in self._stops]
        mine = self.master.metadata.timers
        known = all(table.rows == mine.table.rows for table in tables)
        return self.deliveries.timers.is_settled and not mine.is_staged and known

    async def led(self, in_sync: int) -> None:
        def whole() -> bool:
            leads = [each for each in self._stops if each.status.role_name == "master" and each.gate.writable]
            return len(leads) == 1 and leads[0].gate.in_sync == in_sync

        await until(whole, f"a master with {in_sync} in sync")

    async def lose_master(self) -> None:
        """It just stops; another one is elected."""
        count = self.master.gate.in_sync
        await self._stops.pop(self.master).aclose()
        await self.led(count - 1)

    async def send(self, topic: str, body: bytes, **properties: object) -> SendMessageResponse:
        text = "".join(f"{key}\x01{value}\x02" for key, value in properties.items())
        header = SendMessageRequestV2(a="P", b=topic, e=0, g=wall_ms(), i=text)
        outcome = await self.client.call(self.master.address, SEND_MESSAGE_V2, header, body)
        assert isinstance(outcome, Ok), outcome
        return outcome.header

    async def heartbeat(self, group: str) -> None:
        body = HeartbeatData(clientID=CLIENT_ID, producer_data_set=[ProducerData(group_name=group)])
        outcome = await self.client.call(self.master.address, HEART_BEAT, Empty(), body)
        assert isinstance(outcome, Ok), outcome

    def records(self, topic: str, queue_id: int = 0) -> list[Record]:
        store = self.master.store
        queue = store.find_queue(topic, queue_id)
        units = [queue.unit(at) for at in range(queue.min_offset, queue.max_offset)] if queue else []
        return [decode(store.commit_log.view(offset, size)) for offset, size, _ in units]

    def bodies(self, topic: str, queue_id: int = 0) -> list[bytes]:
        return [record.body for record in self.records(topic, queue_id)]

    async def close(self) -> None:
        await self.client.close()
        for stop in self._stops.values():
            await stop.aclose()


def log_offset(answer: SendMessageResponse) -> int:
    return int(struct.unpack(">q", bytes.fromhex(answer.msg_id)[-8:])[0])


@asynccontextmanager
async def trio(tmp_path: Path, **settings: object) -> AsyncIterator[Trio]:
    (controller_config,) = members(tmp_path, ["n0"]).values()
    address = ":".join(map(str, controller_config.request_addresses["n0"]))
    common = {
        "brokerName": "group",
        "bindAddress": "127.0.0.1",
        "brokerIP1": "127.0.0.1",
        "listenPort": 0,
        "httpPort": -1,
        "telemetryEnable": False,
        "mappedFileSizeCommitLog": 1 << 18,
        "mappedFileSizeConsumeQueue": 2_000,
        "enableControllerMode": True,
        "brokerRole": "SLAVE",
        "controllerAddr": address,
        "allAckInSyncStateSet": True,
        "shutdownHandOverTimeout": 0,
    }
    async with server(controller_config):
        made = Trio({})
        try:
            for number in range(3):
                root = {"storePathRootDir": tmp_path / f"b{number}"}
                stack = AsyncExitStack()
                config = BrokerConfig.model_validate(common | root | settings)
                made._stops[await stack.enter_async_context(Broker(config))] = stack
            await made.led(3)
            yield made
        finally:
            await made.close()
