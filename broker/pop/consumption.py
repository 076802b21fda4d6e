"""Pop consumption as one part of the broker: makes its services and handlers, and starts its tasks."""

import asyncio
from typing import Final

from broker.metadata.service import Metadata
from broker.pop.assignment import AssignmentHandlers
from broker.pop.handlers import PopHandlers
from broker.pop.long_polling import PopLongPolling
from broker.pop.service import PopService
from broker.put.handler_context import HandlerContext
from broker.put.message_writer import MessageWriter
from keelmq.remoting.operation import OperationTable
from keelmq.runtime.clock import now_ms
from keelmq.runtime.tasks import TaskSet

EXPIRE_PERIOD_MS: Final = 100


class PopConsumption:
    """`pop` revives overdue messages; `handlers` and `assignment` answer clients."""

    def __init__(
        self, context: HandlerContext, metadata: Metadata, writer: MessageWriter, *, broker_name: str
    ) -> None:
        polling = PopLongPolling(
            context.store, context.topics, context.call_soon, per_key_max=context.settings.pop_polling_size
        )
        self.pop = PopService(
            context.store,
            metadata,
            writer,
            cluster_name=context.cluster_name,
            broker_name=broker_name,
            on_free=polling.free,
            on_dead=context.reads.count_dead_letter,
            on_retry_queues=polling.watch,
            has_separate_retry_queues=lambda: context.settings.use_separate_retry_queue,
        )
        self.handlers = PopHandlers(context, metadata, writer, self.pop, polling)
        self.assignment = AssignmentHandlers(context, metadata, broker_name)

    def bind(self, table: OperationTable) -> None:
        """Binds the requests 200050 to 200055, 200151, 400, 401 and 402."""
        self.handlers.bind(table)
        self.assignment.bind(table)

    def start(self, tasks: TaskSet) -> None:
        """Starts the revival of overdue messages and the expiry of waiting pops."""
        tasks.start("pop", self.pop.run)
        tasks.start("waiting pops", self._expire_forever)

    async def _expire_forever(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_PERIOD_MS / 1000)
            self.handlers.expire(now_ms())
