"""What tools, slaves and consumers ask beside the data path: 30, 31, 21; and the binding of the handlers."""

from broker.handlers.parts import BrokerParts
from broker.handlers.pull import PullHandler
from broker.handlers.query import QueryHandlers
from broker.handlers.send import SendHandler
from broker.handlers.send_back import SendBackHandler
from remoting.operation import Call, Empty, OperationTable, Reply
from remoting.operations.broker import (
    GET_ALL_TOPIC_CONFIG,
    GET_MAX_OFFSET,
    GET_MIN_OFFSET,
    OffsetResponse,
    QueueRequest,
)


class AdminHandlers:
    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts

    def bind(self, table: OperationTable) -> None:
        table.bind(GET_MAX_OFFSET, self.get_max_offset)
        table.bind(GET_MIN_OFFSET, self.get_min_offset)
        table.bind(GET_ALL_TOPIC_CONFIG, self.get_all_topic_config)

    async def get_max_offset(self, header: QueueRequest, call: Call) -> OffsetResponse:
        """The next offset that a consumer can see; 0 for a queue without messages."""
        return OffsetResponse(offset=self._parts.store.max_queue_offset(header.topic, header.queue_id))

    async def get_min_offset(self, header: QueueRequest, call: Call) -> OffsetResponse:
        return OffsetResponse(offset=self._parts.store.min_queue_offset(header.topic, header.queue_id))

    async def get_all_topic_config(self, header: Empty, call: Call) -> Reply:
        return Reply(body=self._parts.topics.wrapper())


class BrokerHandlers:
    """Everything bound; the app calls expire() once or several times a second."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        self.send, self.pull, self.admin = SendHandler(parts), PullHandler(parts), AdminHandlers(parts)
        self.send_back = SendBackHandler(parts, self.send.writer)
        self.query = QueryHandlers(parts)

    def configure(
        self, *, message_bytes_max: int, readable: bool, permits_write: bool, flush_timeout_ms: int
    ) -> None:
        """Settings that were changed while the broker runs."""
        parts = self._parts
        parts.message_bytes_max, parts.flush_timeout_ms = message_bytes_max, flush_timeout_ms
        parts.readable, parts.permits_write = readable, permits_write
        self.send.configure()
        self.pull.configure()

    def expire(self, now_ms: int) -> None:
        self.pull.expire(now_ms)
        parts = self._parts
        parts.pending.expire(now_ms, parts.replication_timeout_ms, parts.flush_timeout_ms)


def bind_broker_operations(table: OperationTable, parts: BrokerParts) -> BrokerHandlers:
    handlers = BrokerHandlers(parts)
    handlers.send.bind(table)
    handlers.pull.bind(table)
    handlers.send_back.bind(table)
    handlers.admin.bind(table)
    handlers.query.bind(table)
    return handlers
