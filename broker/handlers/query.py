"""Queries: messages by key (12) and by offset message id (33), offsets by time (29), the oldest message (32).

Not on the fast path; an answer has at most QUERY_BYTES_MAX. Source: RocketMQ 5.3.3
QueryMessageProcessor, AdminBrokerProcessor.
"""

from typing import Final

from broker.message.checked_topic import checked_topic
from broker.message.record import decode
from broker.put.handler_context import HandlerContext
from broker.store.querying import earliest_time, find_by_key, offset_by_time, record_at
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, CommandError, OperationTable, Reply
from keelmq.remoting.operations.broker import (
    GET_EARLIEST_MSG_STORETIME,
    QUERY_MESSAGE,
    SEARCH_OFFSET_BY_TIMESTAMP,
    VIEW_MESSAGE_BY_ID,
    OffsetResponse,
    QueryMessageRequest,
    QueryMessageResponse,
    QueueRequest,
    SearchOffsetRequest,
    TimestampResponse,
    ViewMessageRequest,
)

QUERY_MESSAGES_MAX: Final = 64  # maxMsgsNumBatch
QUERY_BYTES_MAX: Final = 8 << 20


class QueryHandlers:
    def __init__(self, context: HandlerContext) -> None:
        self._store, self._settings = context.store, context.settings

    def bind(self, table: OperationTable) -> None:
        """Binds 12, 33, 29 and 32."""
        table.bind(QUERY_MESSAGE, self.query_message)
        table.bind(VIEW_MESSAGE_BY_ID, self.view_message_by_id)
        table.bind(SEARCH_OFFSET_BY_TIMESTAMP, self.search_offset)
        table.bind(GET_EARLIEST_MSG_STORETIME, self.get_earliest_time)

    async def query_message(self, header: QueryMessageRequest, call: Call) -> Reply:
        """Returns joined records, oldest first; the newest ones if there are too many."""
        index = self._store.index
        if index is None:
            raise CommandError(ResponseCode.QUERY_NOT_FOUND, "messageIndexEnable is false: there is no index")
        limit = self._settings.default_query_max_num if header.unique_key_query else header.max_num
        if limit is None:
            raise CommandError(ResponseCode.SYSTEM_ERROR, "header field maxNum is missing")
        views = find_by_key(
            self._store,
            header.topic,
            header.key,
            min(max(limit, 1), QUERY_MESSAGES_MAX),
            header.begin_timestamp,
            header.end_timestamp,
        )
        while len(views) > 1 and sum(map(len, views)) > QUERY_BYTES_MAX:
            views.pop(0)
        stored, offset = index.last()
        answer = QueryMessageResponse(index_last_update_timestamp=stored, index_last_update_phyoffset=offset)
        if not views:
            raise CommandError(
                ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct", answer
            )
        return Reply(header=answer, body=b"".join(views))

    async def view_message_by_id(self, header: ViewMessageRequest, call: Call) -> Reply:
        """Returns the record at a log offset (33). Raises CommandError if none begins there."""
        view = record_at(self._store, header.offset)
        if view is None:
            raise CommandError(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset: {header.offset}"
            )
        if call.caller.checks_topics:
            record = decode(view)
            call.caller.check_topic(checked_topic(record.topic, record.properties))
        return Reply(body=bytes(view))

    async def search_offset(self, header: SearchOffsetRequest, call: Call) -> OffsetResponse:
        """Returns the queue offset at a store timestamp (29); boundaryType UPPER: the last one at or before
        it."""
        upper = (header.boundary_type or "").upper() == "UPPER"
        offset = offset_by_time(self._store, header.topic, header.queue_id, header.timestamp, upper=upper)
        return OffsetResponse(offset=offset)

    async def get_earliest_time(self, header: QueueRequest, call: Call) -> TimestampResponse:
        """Returns the store timestamp (ms) of the oldest message of a queue; -1 if it is empty (32)."""
        return TimestampResponse(timestamp=earliest_time(self._store, header.topic, header.queue_id))
