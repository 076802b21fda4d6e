"""The services of a master that handle stored messages on their own: scheduled messages (delay levels),
timers, transactions, pops, replies.

Each has a supervised task, and a state that is rebuilt from the log in every term.
"""

from broker.admin.runtime_info import RuntimeInfo
from broker.admin.timer_metrics import TimerTimes
from broker.clients.service import Clients
from broker.config.broker_config import BrokerConfig
from broker.config.store_settings import HOUR_MS
from broker.handlers.reply import ReplyHandlers
from broker.metadata.service import Metadata
from broker.pop.consumption import PopConsumption
from broker.put.handler_context import HandlerContext
from broker.put.message_writer import MessageWriter
from broker.store.message_store import MessageStore
from broker.timers.handlers import TimerHandlers
from broker.timers.schedule_message_service import ScheduleMessageService
from broker.timers.service import TimerService
from broker.transactions.handlers import EndTransactionHandler
from broker.transactions.service import TransactionService
from keelmq.remoting.operation import OperationTable
from keelmq.runtime.tasks import TaskSet


def make_transactions(
    config: BrokerConfig, metadata: Metadata, clients: Clients, store: MessageStore, writer: MessageWriter
) -> TransactionService:
    """Makes the service of half messages, with the broker's settings."""
    return TransactionService(
        store,
        metadata,
        writer,
        settings=config,
        broker_name=config.broker_name,
        find_producer=clients.find_producer,
        give_up_after_ms=config.file_reserved_time * HOUR_MS,
    )


class BackgroundServices:
    """Makes the handlers of these services, binds their requests, and starts their tasks."""

    def __init__(
        self,
        context: HandlerContext,
        writer: MessageWriter,
        metadata: Metadata,
        clients: Clients,
        *,
        transactions: TransactionService,
        timers: TimerService,
        runtime_info: RuntimeInfo,
    ) -> None:
        """transactions, timers: those of `context`, with their types. runtime_info: answers 28."""
        self.runtime_info = runtime_info
        self._context, self._metadata, self._writer = context, metadata, writer
        self.transactions, self.timers = transactions, timers
        self.timer_times = TimerTimes(timers)
        self.replies = ReplyHandlers(context, writer, clients)
        self.pop = PopConsumption(context, metadata, writer, broker_name=context.broker_name)

    def bind(self, table: OperationTable) -> None:
        """Binds 28 and the requests of pop, replies, timers and transactions."""
        self.runtime_info.bind(table)
        self.pop.bind(table)
        self.replies.bind(table)
        TimerHandlers(self._context, self._writer, self._metadata.timers).bind(table)
        EndTransactionHandler(self._context, self._writer, self.transactions).bind(table)

    def start(self, tasks: TaskSet) -> None:
        """Starts a task for each service. They wait until this broker is master."""
        self.pop.start(tasks)
        tasks.start("delayed messages", self._deliver_delayed)
        tasks.start("transactions", self.transactions.run)
        tasks.start("timers", self.timers.run)

    async def _deliver_delayed(self) -> None:
        await ScheduleMessageService(self._context.store, self._metadata, self._writer).run()
