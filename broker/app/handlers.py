"""The handlers of the data path (send, pull, send-back, query), and those of 21, 30 and 31."""

from broker.config.broker_config import BrokerConfig
from broker.handlers.pull import PullHandler
from broker.handlers.query import QueryHandlers
from broker.handlers.send import SendHandler
from broker.handlers.send_back import SendBackHandler
from broker.metadata.pages import page_of
from broker.metadata.topics import PERM_READ, PERM_WRITE
from broker.put.handler_context import HandlerContext
from broker.put.message_writer import MessageWriter
from keelmq.remoting.body import body_bytes
from keelmq.remoting.operation import Call, OperationTable, Reply
from keelmq.remoting.operations.broker import (
    GET_ALL_TOPIC_CONFIG,
    GET_MAX_OFFSET,
    GET_MIN_OFFSET,
    OffsetResponse,
    QueueRequest,
)
from keelmq.remoting.operations.route import (
    DataVersion,
    TopicConfigSerializeWrapper,
    TopicPageRequest,
    TopicPageResponse,
)


class OffsetAndTopicHandlers:
    """Handlers of 30 (max offset), 31 (min offset) and 21 (all topics)."""

    def __init__(self, context: HandlerContext) -> None:
        self._context = context

    def bind(self, table: OperationTable) -> None:
        """Binds 30 (GET_MAX_OFFSET), 31 (GET_MIN_OFFSET) and 21 (GET_ALL_TOPIC_CONFIG)."""
        table.bind(GET_MAX_OFFSET, self.get_max_offset)
        table.bind(GET_MIN_OFFSET, self.get_min_offset)
        table.bind(GET_ALL_TOPIC_CONFIG, self.get_all_topic_config)

    async def get_max_offset(self, header: QueueRequest, call: Call) -> OffsetResponse:
        """Returns the end of the messages visible to consumers (30); 0 for a queue without messages."""
        return OffsetResponse(offset=self._context.store.max_queue_offset(header.topic, header.queue_id))

    async def get_min_offset(self, header: QueueRequest, call: Call) -> OffsetResponse:
        """Returns the first offset of a queue that retention has not deleted (31)."""
        return OffsetResponse(offset=self._context.store.min_queue_offset(header.topic, header.queue_id))

    async def get_all_topic_config(self, header: TopicPageRequest, call: Call) -> Reply:
        """Returns the topic table with its DataVersion (21), in pages if it does not fit into a frame."""
        topics = await self._context.topics.encoder.encoded()
        page = page_of(
            topics,
            "topics",
            seq=header.topic_seq,
            count_max=header.max_topic_num,
            version=header.data_version,
        )
        wrapper = TopicConfigSerializeWrapper(data_version=topics.version, mapping_data_version=DataVersion())
        body = page.body(body_bytes(wrapper), b"topicConfigTable")
        return Reply(TopicPageResponse(total_topic_num=page.total), body)


class BrokerHandlers:
    """The handlers of the data path. The app calls expire() once or several times a second."""

    def __init__(self, context: HandlerContext, writer: MessageWriter) -> None:
        self._context = context
        self.send, self.pull = SendHandler(context, writer), PullHandler(context)
        self.offsets_and_topics = OffsetAndTopicHandlers(context)
        self.send_back = SendBackHandler(context, writer)
        self.query = QueryHandlers(context)

    def configure(self, config: BrokerConfig) -> None:
        """Applies settings that were changed while the broker runs."""
        context = self._context
        context.message_bytes_max, context.flush_timeout_ms = (
            config.max_message_size,
            config.sync_flush_timeout,
        )
        context.replication_timeout_ms = config.slave_timeout
        context.readable = bool(config.broker_permission & PERM_READ)
        context.gate.configure(
            permits_write=bool(config.broker_permission & PERM_WRITE),
            accept_from_ms=config.start_accept_send_request_time_stamp,
        )
        self.send.configure()
        self.pull.configure()

    @property
    def refusal(self) -> str:
        """The remark with which all sends are refused now; empty: they are accepted."""
        refused = self._context.gate.refuse_all()
        return "" if refused is None else refused.remark

    def expire(self, now_ms: int) -> None:
        """Answers waiting pulls and replies whose timeout has passed."""
        self.pull.expire(now_ms)
        context = self._context
        context.pending.expire(now_ms, context.replication_timeout_ms, context.flush_timeout_ms)


def bind_broker_operations(
    table: OperationTable, context: HandlerContext, writer: MessageWriter
) -> BrokerHandlers:
    """Makes the handlers of the data path, and binds their operations."""
    handlers = BrokerHandlers(context, writer)
    handlers.send.bind(table)
    handlers.pull.bind(table)
    handlers.send_back.bind(table)
    handlers.offsets_and_topics.bind(table)
    handlers.query.bind(table)
    return handlers
