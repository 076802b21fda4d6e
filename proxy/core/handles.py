"""Receipt handles: all that an acknowledgement needs, in one text. Pure.

`K1 group topic logOffset extraInfo`, where extraInfo is the handle of remoting (broker/pop/core/handles.py),
with the broker's name, the queue and the offset of the message. Any proxy can use it, also after a fail-over.
It is no capability: a request is authorized by the group and the topic that it names, and these must be the
handle's. So a forged or a stolen handle permits nothing that its sender may not do anyway
(docs/adr/0076-the-proxy-keeps-no-state.md)."""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from broker.pop.core.handles import (
    BITS_MAX,
    NUMBER_CHARS_MAX,
    BadHandle,
    Handle,
    bits_text,
    parse_handle,
    retry_flag,
)
from keelmq.client.message import MessageExt
from keelmq.remoting.operations.clients import SendBackRequest
from keelmq.remoting.operations.pop import (
    AckMessageRequest,
    BatchAck,
    BatchAckBody,
    ChangeInvisibleTimeRequest,
    ChangeInvisibleTimeResponse,
    PopMessageResponse,
)
from proxy.core.statuses import Refused
from proxy.wire import messaging_pb2 as pb

VERSION: Final = "K1"
FIELDS_BEFORE: Final = 4
DEAD: Final = -1
"""delayLevel of a message that is sent back to be a dead letter."""
CHARACTERS_MAX: Final = 2_048
POP_CK: Final = "POP_CK"


class Receipt(msgspec.Struct, frozen=True):
    """A popped message. topic: the subscribed one, also if the message was popped from a retry topic.
    log_offset: of its record in the CommitLog."""

    group: str
    topic: str
    log_offset: int
    handle: Handle

    @property
    def broker_name(self) -> str:
        """The broker that has the message."""
        return self.handle.broker_name

    @property
    def offset(self) -> int:
        """The message's offset in its queue."""
        assert self.handle.offset is not None, "checked by receipt_of()"
        return self.handle.offset

    def text(self) -> str:
        """Returns the handle as clients get it."""
        return f"{VERSION} {self.group} {self.topic} {self.log_offset} {self.handle.text()}"

    def ack(self) -> AckMessageRequest:
        """Returns the request that acknowledges the message."""
        return AckMessageRequest(
            consumer_group=self.group,
            topic=self.topic,
            queue_id=self.handle.queue_id,
            extra_info=self.handle.text(),
            offset=self.offset,
        )

    @property
    def fits_batch(self) -> bool:
        """Whether a batch can name the message: it is not too far behind the first one of its checkpoint."""
        return 0 <= self.offset - self.handle.start_offset < BITS_MAX

    def send_back(self, message_id: str) -> SendBackRequest:
        """Returns the request that copies the message to the group's dead letter topic."""
        return SendBackRequest(
            offset=self.log_offset,
            group=self.group,
            delay_level=DEAD,
            origin_msg_id=message_id,
            origin_topic=self.topic,
        )

    def change(self, invisible_ms: int, *, suspend: bool = False) -> ChangeInvisibleTimeRequest:
        """Returns the request that makes the message visible again invisible_ms from now. suspend: the next
        delivery is no further attempt."""
        return ChangeInvisibleTimeRequest(
            consumer_group=self.group,
            topic=self.topic,
            queue_id=self.handle.queue_id,
            extra_info=self.handle.text(),
            offset=self.offset,
            invisible_time=invisible_ms,
            suspend=suspend or None,
        )

    def changed(self, answer: ChangeInvisibleTimeResponse) -> "Receipt":
        """Returns the receipt that replaces this one. The checkpoint of a changed message begins at it."""
        handle = self.handle._replace(
            start_offset=self.handle.start_offset if self.handle.is_ordered else self.offset,
            pop_ms=answer.pop_time,
            invisible_ms=answer.invisible_time,
            revive_queue=answer.revive_qid,
        )
        return Receipt(self.group, self.topic, self.log_offset, handle)


def batch_ack_of(receipts: Iterable[Receipt]) -> BatchAckBody:
    """Returns the request that acknowledges messages of one broker. Each fits_batch."""
    checkpoints: dict[tuple[str, str, Handle], list[int]] = {}
    for each in receipts:
        checkpoint = each.group, each.topic, each.handle._replace(offset=None)
        checkpoints.setdefault(checkpoint, []).append(each.offset - each.handle.start_offset)
    return BatchAckBody(
        acks=[
            BatchAck(
                c=group,
                t=topic,
                r=handle.retry,
                so=handle.start_offset,
                q=handle.queue_id,
                rq=handle.revive_queue,
                pt=handle.pop_ms,
                it=handle.invisible_ms,
                b=bits_text(indexes),
            )
            for (group, topic, handle), indexes in checkpoints.items()
        ]
    )


def receipt_of(text: str, *, group: str, topic: str) -> Receipt:
    """Parses a handle that a request for this group and topic names. Raises Refused."""
    if len(text) > CHARACTERS_MAX:
        raise _invalid(f"it has {len(text)} characters")
    fields = text.split(" ", FIELDS_BEFORE)
    if len(fields) <= FIELDS_BEFORE or fields[0] != VERSION:
        raise _invalid("it is not one of this cluster's")
    _, of_group, of_topic, log_offset, extra_info = fields
    if (of_group, of_topic) != (group, topic):
        raise _invalid("it is of another consumer group or topic")
    try:
        handle = parse_handle(extra_info)
    except BadHandle as error:
        raise _invalid(str(error)) from None
    if handle.queue_id < 0 or handle.offset is None or not handle.broker_name:
        raise _invalid("it names no message")
    if not (log_offset.isascii() and log_offset.isdigit() and len(log_offset) <= NUMBER_CHARS_MAX):
        raise _invalid("its offset in the log is not a number")
    return Receipt(group, topic, int(log_offset), handle)


def receipts_of(
    messages: list[MessageExt], header: PopMessageResponse, *, group: str, topic: str, broker_name: str
) -> Iterator[tuple[Receipt, int]]:
    """Yields for each message of a pop its receipt, and how often it was delivered, this time included."""
    starts = dict(_starts(header.start_offset_info or ""))
    counts = dict(_counts(header.order_count_info or ""))
    for message in messages:
        flag = retry_flag(message.topic, group)
        place = flag, message.queue_id
        handle = _own_handle(message)
        if handle is None:
            handle = Handle(
                starts.get(place, message.queue_offset),
                header.pop_time,
                header.invisible_time,
                header.revive_qid,
                flag,
                broker_name,
                message.queue_id,
                message.queue_offset,
            )
        earlier = counts.get((*place, message.queue_offset), 0)
        yield (
            Receipt(group, topic, message.physical_offset, handle),
            1 + max(message.reconsume_times, earlier),
        )


def _own_handle(message: MessageExt) -> Handle | None:
    """A message of a retry topic has its handle with it, for it is given out under the subscribed topic."""
    try:
        return parse_handle(message.properties[POP_CK]) if POP_CK in message.properties else None
    except BadHandle:
        return None


def _starts(text: str) -> Iterator[tuple[tuple[str, int], int]]:
    """Reads startOffsetInfo: `flag queueId offset` joined by semicolons."""
    for entry in filter(None, text.split(";")):
        flag, queue_id, offset = entry.split(" ")
        yield (flag, int(queue_id)), int(offset)


def _counts(text: str) -> Iterator[tuple[tuple[str, int, int], int]]:
    """Reads the entries of orderCountInfo that name a message: `flag qo<queueId>%<offset> count`."""
    for entry in filter(None, text.split(";")):
        flag, place, count = entry.split(" ")
        if place.startswith("qo"):
            queue_id, _, offset = place.removeprefix("qo").partition("%")
            yield (flag, int(queue_id), int(offset)), int(count)


def _invalid(why: str) -> Refused:
    return Refused(pb.INVALID_RECEIPT_HANDLE, f"the receipt handle is invalid: {why}")
