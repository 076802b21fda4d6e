"""Pop consumption as one part of the broker: wired, bound, and its tasks started."""

import asyncio
from typing import Final

from broker.handlers.parts import BrokerParts
from broker.handlers.writer import Writer
from broker.metadata.service import Metadata
from broker.pop.assignment import AssignmentHandlers
from broker.pop.handlers import PopHandlers
from broker.pop.service import Pop
from remoting.clock import now_ms
from remoting.operation import OperationTable
from remoting.tasks import TaskSet

EXPIRE_PERIOD_MS: Final = 100


class PopConsumption:
    def __init__(self, parts: BrokerParts, metadata: Metadata, writer: Writer, *, broker_name: str) -> None:
        self.pop = Pop(
            parts.store, metadata, writer, cluster_name=parts.cluster_name, broker_name=broker_name
        )
        self.handlers = PopHandlers(parts, metadata, writer, self.pop)
        self.assignment = AssignmentHandlers(parts, metadata, broker_name)

    def bind(self, table: OperationTable) -> None:
        self.handlers.bind(table)
        self.assignment.bind(table)

    def start(self, tasks: TaskSet) -> None:
        tasks.start("pop", self.pop.run)
        tasks.start("waiting pops", self._expire_forever)

    async def _expire_forever(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_PERIOD_MS / 1000)
            self.handlers.expire(now_ms())
