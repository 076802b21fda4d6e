"""AdminClient's requests to one broker about stored messages and offsets of queues."""

from dataclasses import dataclass

from keelmq.client.admin.transport import AdminError, AdminTransport
from keelmq.client.message import BODY_BYTES_MAX, MessageExt, decode_messages
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Ok, RemoteProtocolError
from keelmq.remoting.operations.broker import (
    PULL_MESSAGE,
    QUERY_MESSAGE,
    SEARCH_OFFSET_BY_TIMESTAMP,
    VIEW_MESSAGE_BY_ID,
    PullMessageRequest,
    QueryMessageRequest,
    SearchOffsetRequest,
    ViewMessageRequest,
)
from keelmq.remoting.operations.broker_metadata import QUERY_CONSUMER_OFFSET, ConsumerOffsetRequest
from keelmq.remoting.queue_map import QueueKey

LONG_MAX = 2**63 - 1
QUERY_NUMS = 64
"""The most messages that a broker returns for one key."""
TOOLS_GROUP = "TOOLS_CONSUMER"
"""RocketMQ's name of the group in which tools read."""
_NOTHING = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)


@dataclass(frozen=True)
class PulledMessages:
    """Messages of one queue from an offset on. next_offset: where the next pull begins."""

    messages: list[MessageExt]
    next_offset: int


class MessageAdmin(AdminTransport):
    """Requests to one broker about messages. All methods raise AdminError. `inflated_max`: bytes of
    one inflated body, and of all of them; a body that exceeds it stays compressed (MessageExt.body_error)."""

    async def query_messages(
        self, broker_addr: str, header: QueryMessageRequest, *, inflated_max: int = BODY_BYTES_MAX
    ) -> list[MessageExt]:
        """Returns messages by key; [] if there are none (QUERY_MESSAGE, 12)."""
        try:
            answer = await self.ask(broker_addr, QUERY_MESSAGE, header)
        except AdminError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return []
            raise
        return _decoded(answer.body, broker_addr, QUERY_MESSAGE.name, inflated_max)

    async def view_message(
        self, broker_addr: str, topic: str, offset: int, *, inflated_max: int = BODY_BYTES_MAX
    ) -> list[MessageExt]:
        """Returns the message at a CommitLog offset (VIEW_MESSAGE_BY_ID, 33); several of an inner batch."""
        header = ViewMessageRequest(offset=offset, topic=topic)
        answer = await self.ask(broker_addr, VIEW_MESSAGE_BY_ID, header)
        return _decoded(answer.body, broker_addr, VIEW_MESSAGE_BY_ID.name, inflated_max)

    async def pull_messages(
        self,
        broker_addr: str,
        queue: QueueKey,
        offset: int,
        count: int,
        *,
        bytes_max: int | None = None,
        inflated_max: int = BODY_BYTES_MAX,
    ) -> PulledMessages:
        """Returns messages of a queue, without waiting (PULL_MESSAGE, 11). No offset of a group changes.
        bytes_max: about how many bytes, by RocketMQ 5's brokers."""
        header = PullMessageRequest(
            consumer_group=TOOLS_GROUP,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=count,
            max_msg_bytes=bytes_max,
            bname=queue.broker_name,
        )
        outcome = await self._client.call(
            broker_addr,
            PULL_MESSAGE,
            header,
            timeout_ms=self.timeout_ms or 5_000,
            good=frozenset((ResponseCode.SUCCESS, *_NOTHING)),
        )
        if not isinstance(outcome, Ok):
            raise self.error_of(broker_addr, PULL_MESSAGE.name, outcome)
        messages = _decoded(outcome.body, broker_addr, PULL_MESSAGE.name, inflated_max, queue.broker_name)
        kept = [each for each in messages if each.queue_offset >= offset]
        return PulledMessages(kept, outcome.header.next_begin_offset)

    async def offset_at(self, broker_addr: str, queue: QueueKey, timestamp_ms: int) -> int:
        """Returns the offset of the first message stored at that time or later (29)."""
        header = SearchOffsetRequest(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms)
        return (await self.ask(broker_addr, SEARCH_OFFSET_BY_TIMESTAMP, header)).header.offset

    async def committed_offset(self, broker_addr: str, group: str, queue: QueueKey) -> int | None:
        """Returns a group's offset in a queue; None: it has consumed nothing there (14)."""
        header = ConsumerOffsetRequest(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, set_zero_if_not_found=False
        )
        try:
            return (await self.ask(broker_addr, QUERY_CONSUMER_OFFSET, header)).header.offset
        except AdminError as error:
            if error.code != ResponseCode.QUERY_NOT_FOUND:
                raise
            return None


def _decoded(
    body: bytes | None, address: str, request: str, inflated_max: int, broker_name: str = ""
) -> list[MessageExt]:
    try:
        return decode_messages(body or b"", broker_name, inflated_max=inflated_max)
    except RemoteProtocolError as error:
        raise AdminError(request, address, f"unreadable: {error}", 0) from None
