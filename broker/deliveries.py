"""What a master does by itself with messages that were laid by: delay levels, timers, transactions.

Each is a supervised task, and a state that is made again from the log in every term. Wired here, out of what
the broker app has.
"""

from broker.clients.service import Clients
from broker.config import BrokerConfig
from broker.delay.service import DelayedDelivery
from broker.handlers.parts import BrokerParts
from broker.handlers.reply import ReplyHandlers
from broker.handlers.writer import Writer
from broker.metadata.service import Metadata
from broker.pop.consumption import PopConsumption
from broker.store_settings import HOUR_MS
from broker.timers.handlers import TimerHandlers
from broker.timers.service import Timers
from broker.transactions.handlers import EndTransactionHandler
from broker.transactions.service import Transactions
from remoting.operation import OperationTable
from remoting.tasks import TaskSet


class Deliveries:
    def __init__(
        self, config: BrokerConfig, metadata: Metadata, clients: Clients, parts: BrokerParts, writer: Writer
    ) -> None:
        self._parts, self._metadata, self._writer = parts, metadata, writer
        self.replies = ReplyHandlers(parts, writer, clients)
        self.transactions = parts.halves = Transactions(
            parts.store,
            metadata,
            writer,
            settings=config,
            broker_name=config.broker_name,
            find_producer=clients.find_producer,
            give_up_after_ms=config.file_reserved_time * HOUR_MS,
        )

        self.timers = parts.timers = Timers(parts.store, metadata, writer, settings=config)
        self.pop = PopConsumption(parts, metadata, writer, broker_name=config.broker_name)

    def bind(self, table: OperationTable) -> None:
        self.pop.bind(table)
        self.replies.bind(table)
        TimerHandlers(self._parts, self._writer, self._metadata.timers).bind(table)
        EndTransactionHandler(self._parts, self._writer, self.transactions).bind(table)

    def start(self, tasks: TaskSet) -> None:
        self.pop.start(tasks)
        tasks.start("delayed messages", self._deliver_delayed)
        tasks.start("transactions", self.transactions.run)
        tasks.start("timers", self.timers.run)

    async def _deliver_delayed(self) -> None:
        await DelayedDelivery(self._parts.store, self._metadata, self._writer).run()
