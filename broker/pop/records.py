"""The records of a revive queue (checkpoint, acknowledgement), and retries and dead letters as stored.

Tags and bodies are RocketMQ's. RocketMQ delays these records until they are due; KeelMQ writes them at once
and keeps the due times in memory. KeelMQ adds three fields of a checkpoint: `no`, the group's next offset
(-1: an earlier record has it), `ow`, the client for which the checkpoint is renewed, and `dl`, whether that
client is known to have its messages. It adds the tag `reset`,
which RocketMQ skips: the next offsets in the checkpoints before it, in the same revive queue, are void.
Source: RocketMQ 5.5 PopCheckPoint, AckMsg, BatchAckMsg, PopReviveService.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from broker.message.properties import with_properties
from broker.message.record import Record, offset_message_id, property_value
from broker.pop.core.handles import BITS_MAX
from broker.pop.core.order import QueueOfGroup
from broker.pop.core.state import INVISIBLE_MS_MAX, NO_NEXT_OFFSET, Checkpoint, Key
from broker.put.message_to_store import MessageToStore
from broker.store.settings import TopicLike

REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
"""Its consumer offsets are the positions from which a new master reads the revive queues."""
SETTLED_GROUP: Final = "CID_RMQ_SYS_REVIVE_SETTLED"
"""Before its consumer offsets in the revive queues, the next offsets in checkpoints are in the table of
consumer offsets, or another request has written a different one there since."""
CHECKPOINT, ACK, BATCH_ACK, RESET = b"ck", b"ack", b"bAck", b"reset"
FIRST_POP_TIME: Final = b"1ST_POP_TIME"
OFFSETS_MAX: Final = BITS_MAX
"""Messages that one record names: far more than one pop returns. Numbers are checked before they are used: a
record that raises would raise again at every start."""
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
"""An offset or a time (ms)."""
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=OFFSETS_MAX)]
Differences: TypeAlias = Annotated[
    list[Annotated[int, msgspec.Meta(ge=0, le=0x7FFFFFFF)]], msgspec.Meta(max_length=OFFSETS_MAX)
]
Offsets: TypeAlias = Annotated[list[Number], msgspec.Meta(max_length=OFFSETS_MAX)]


class BadRecord(ValueError):
    """The body is neither KeelMQ's nor RocketMQ's."""


UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class CheckpointBody(msgspec.Struct, rename={
    "start_offset": "so", "pop_ms": "pt", "invisible_ms": "it", "acked": "bm", "count": "n", "queue_id": "q",
    "topic": "t", "group": "c", "differences": "d", "broker_name": "bn", "next_offset": "no",
    "is_suspended": "sp", "owner": "ow", "is_delivered": "dl",
}):  # fmt: skip
    """is_suspended, owner, is_delivered: written only if set, since brokers before RocketMQ 5.5 have no such
    fields."""

    start_offset: Number
    pop_ms: Number
    invisible_ms: Number
    topic: str
    group: str
    queue_id: Number
    count: Count = 0
    acked: int = 0
    differences: Differences = []
    broker_name: str = ""
    next_offset: Annotated[int, msgspec.Meta(ge=NO_NEXT_OFFSET, le=1 << 62)] = 0
    is_suspended: bool | msgspec.UnsetType = msgspec.UNSET
    owner: str | msgspec.UnsetType = msgspec.UNSET
    is_delivered: bool | msgspec.UnsetType = msgspec.UNSET


class AckBody(msgspec.Struct, omit_defaults=True, rename={
    "offset": "ao", "offsets": "aol", "start_offset": "so", "pop_ms": "pt", "queue_id": "q", "topic": "t",
    "group": "c", "broker_name": "bn",
}):  # fmt: skip
    start_offset: Number
    pop_ms: Number
    topic: str
    group: str
    queue_id: Number
    offset: int = -1
    offsets: Offsets = []
    broker_name: str = ""


class ResetBody(msgspec.Struct, rename={"topic": "t", "group": "c", "queue_id": "q", "offset": "o"}):
    """offset: the group's new offset, which is only for troubleshooting."""

    topic: str
    group: str
    queue_id: Number
    offset: Number


_read_checkpoint = msgspec.json.Decoder(CheckpointBody, strict=False).decode
_read_ack = msgspec.json.Decoder(AckBody, strict=False).decode
_read_reset = msgspec.json.Decoder(ResetBody).decode


def checkpoint_body(checkpoint: Checkpoint, broker_name: str) -> bytes:
    """Returns the body of a `ck` record (PopCheckPoint)."""
    key, count = checkpoint.key, len(checkpoint.offsets)
    body = CheckpointBody(
        key.start_offset, key.pop_ms, checkpoint.invisible_ms, key.topic, key.group, key.queue_id, count,
        ~checkpoint.open & ((1 << count) - 1), [offset - key.start_offset for offset in checkpoint.offsets],
        broker_name, checkpoint.next_offset, checkpoint.is_suspended or msgspec.UNSET,
        checkpoint.owner or msgspec.UNSET, checkpoint.is_delivered or msgspec.UNSET,
    )  # fmt: skip
    return msgspec.json.encode(body)


def checkpoint_of(raw: bytes, revive_queue: int) -> Checkpoint:
    """Parses the body of a `ck` record. Raises BadRecord."""
    try:
        body = _read_checkpoint(raw)
    except UNREADABLE as error:
        raise BadRecord(str(error)) from error
    differences = body.differences or list(range(body.count))
    offsets = tuple(body.start_offset + difference for difference in differences)
    if not offsets:
        raise BadRecord("the checkpoint names no message")
    key = Key(body.group, body.topic, body.queue_id, body.start_offset, body.pop_ms)
    is_open = ~body.acked & ((1 << len(offsets)) - 1)
    invisible_ms = min(body.invisible_ms, INVISIBLE_MS_MAX)
    return Checkpoint(
        key, invisible_ms, offsets, body.next_offset or offsets[-1] + 1, revive_queue,
        open=is_open, is_suspended=body.is_suspended is True, owner=body.owner or "",
        is_delivered=body.is_delivered is True,
    )  # fmt: skip


def ack_body(key: Key, offsets: Sequence[int], broker_name: str) -> tuple[bytes, bytes]:
    """Returns tag and body of an acknowledgement: `ack` for one offset, else `bAck`."""
    body = AckBody(key.start_offset, key.pop_ms, key.topic, key.group, key.queue_id, broker_name=broker_name)
    if len(offsets) == 1:
        body.offset = offsets[0]
        return ACK, msgspec.json.encode(body)
    body.offsets = list(offsets)
    return BATCH_ACK, msgspec.json.encode(body)


def ack_of(raw: bytes) -> tuple[Key, list[int]]:
    """Returns the checkpoint's key and the acknowledged offsets of a record. Raises BadRecord."""
    try:
        body = _read_ack(raw)
    except UNREADABLE as error:
        raise BadRecord(str(error)) from error
    offsets = body.offsets or [body.offset]
    return Key(body.group, body.topic, body.queue_id, body.start_offset, body.pop_ms), offsets


def reset_body(place: QueueOfGroup, offset: int) -> bytes:
    """Returns the body of a `reset` record."""
    return msgspec.json.encode(ResetBody(place.topic, place.group, place.queue_id, offset))


def reset_of(raw: bytes) -> QueueOfGroup:
    """Returns the queue and group of a `reset` record. Raises BadRecord."""
    try:
        body = _read_reset(raw)
    except UNREADABLE as error:
        raise BadRecord(str(error)) from error
    return QueueOfGroup(body.group, body.topic, body.queue_id)


def revive_message(
    topic: TopicLike, revive_queue: int, tag: bytes, body: bytes, host: bytes, now_ms: int
) -> MessageToStore:
    """Returns the message that stores a record in a revive queue."""
    return MessageToStore(topic, revive_queue, body, b"TAGS\x01%b\x02" % tag, 0, 0, now_ms, host, 0)


def retry_message(
    record: Record, topic: TopicLike, key: Key, reconsume_times: int, *, queue_id: int
) -> MessageToStore:
    """Returns the message for the group's retry topic. key: of the checkpoint."""
    properties = record.properties
    first = property_value(properties, FIRST_POP_TIME) if record.reconsume_times else None
    changes: dict[bytes, bytes | None] = {
        FIRST_POP_TIME: first or b"%d" % key.pop_ms,
        b"ORIGIN_GROUP": key.group.encode(),
        b"POP_CK": None,
    }
    return _message(record, topic, with_properties(properties, changes), reconsume_times, queue_id)


def dead_letter(record: Record, topic: TopicLike, origin_topic: str, reconsume_times: int) -> MessageToStore:
    """Returns the message for the group's dead letter topic."""
    properties = record.properties
    origin = offset_message_id(record.store_host, record.offset).encode()
    changes: dict[bytes, Any] = {
        b"RETRY_TOPIC": origin_topic.encode(),
        b"ORIGIN_MESSAGE_ID": property_value(properties, b"ORIGIN_MESSAGE_ID") or origin,
        b"DLQ_ORIGIN_TOPIC": origin_topic.encode(),
        b"DLQ_ORIGIN_MESSAGE_ID": property_value(properties, b"ORIGIN_MESSAGE_ID") or origin,
        b"POP_CK": None,
    }
    return _message(record, topic, with_properties(properties, changes), reconsume_times, 0)


def unchanged_message(
    record: Record, topic: TopicLike, reconsume_times: int, *, queue_id: int
) -> MessageToStore:
    """Returns the message without added properties, for one whose properties have no room left."""
    properties = record.properties
    if property_value(properties, b"POP_CK") is not None:
        properties = with_properties(properties, {b"POP_CK": None})
    return _message(record, topic, properties, reconsume_times, queue_id)


def _message(
    record: Record, topic: TopicLike, properties: bytes, reconsume_times: int, queue_id: int
) -> MessageToStore:
    return MessageToStore(
        topic, queue_id, record.body, properties, record.flag, record.sys_flag, record.born_timestamp,
        record.born_host, reconsume_times,
    )  # fmt: skip
