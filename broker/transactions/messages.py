"""The messages of a transaction as stored: half messages, their copies, committed messages and op records.

Source: RocketMQ 5.3.3 TransactionalMessageBridge, EndTransactionProcessor.
"""

from typing import Final

from msgspec.structs import replace

from broker.message.properties import with_properties
from broker.message.record import TRANSACTION_BITS, Record, property_value
from broker.put.message_to_store import MessageToStore
from broker.store.settings import NamedTopic, TopicLike
from broker.transactions.core.state import Half

COMMIT: Final = 8
ROLLBACK: Final = 12
OPS_PER_RECORD_MAX: Final = 100_000
COPY_ROOM_BYTES: Final = 128
"""Bytes of properties that a half message must leave for those of its copies, and for a checksum."""

CHECKS: Final = b"TRANSACTION_CHECK_TIMES"
ROOT: Final = b"TRAN_PREPARED_QUEUE_OFFSET"
IMMUNITY: Final = b"CHECK_IMMUNITY_TIME_IN_SECONDS"
_OP_PROPERTIES: Final = b"WAIT\x01true\x02TAGS\x01d"


HALF_TOPIC: Final = NamedTopic("RMQ_SYS_TRANS_HALF_TOPIC")
OP_TOPIC: Final = NamedTopic("RMQ_SYS_TRANS_OP_HALF_TOPIC")
GIVEN_UP_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
GROUP: Final = "CID_RMQ_SYS_TRANS"
"""Its consumer offsets are the positions from which a new master reads the half and the op queue."""


def half_message(to_store: MessageToStore) -> MessageToStore:
    """Returns the half message for a message. Delay properties have no effect on it."""
    changes: dict[bytes, bytes | None] = {
        b"__transactionId__": property_value(to_store.properties, b"UNIQ_KEY"),
        b"REAL_TOPIC": to_store.topic.name.encode(),
        b"REAL_QID": b"%d" % to_store.queue_id,
        CHECKS: None,  # set by brokers only; a client that forwards a received message may send them
        ROOT: None,
    }
    return replace(
        to_store,
        topic=HALF_TOPIC,
        queue_id=0,
        properties=with_properties(to_store.properties, changes),
        sys_flag=to_store.sys_flag & ~TRANSACTION_BITS,
        delay_level=0,
    )


def half_of(
    queue_offset: int,
    log_offset: int,
    size: int,
    properties: bytes,
    *,
    born_ms: int,
    stored_ms: int,
    timeout_ms: int,
    interval_ms: int,
    give_up_after_ms: int,
) -> Half:
    """Returns the state of a half message. timeout_ms: transactionTimeOut. A transaction of exactly that age
    is not checked yet (broker-ops pitfall 5). A producer's fast clock delays no check. Immunity ends
    after give_up_after_ms at the latest; 0: no limit."""
    checks, root = number(properties, CHECKS) or 0, root_of(queue_offset, properties)
    immunity_s = number(properties, IMMUNITY)
    immunity_ms = timeout_ms if immunity_s is None else immunity_s * 1_000
    due_ms = min(born_ms, stored_ms) + min(immunity_ms, give_up_after_ms or immunity_ms) + 1
    if root != queue_offset:
        due_ms = max(due_ms, stored_ms + interval_ms)
    return Half(queue_offset, root, log_offset, size, due_ms, checks, stored_ms)


def root_of(queue_offset: int, properties: bytes) -> int:
    """Returns the queue offset of the first copy of a half message, which identifies the transaction."""
    root = number(properties, ROOT)
    return queue_offset if root is None else min(root, queue_offset)


def copy_message(record: Record, half: Half, checks: int) -> MessageToStore:
    """Returns a copy for the end of the half queue, so that the queue's position can advance. It keeps its
    age: with a born time after its store time (a fast clock), it would be as young as its copy."""
    changes: dict[bytes, bytes | None] = {CHECKS: b"%d" % checks, ROOT: b"%d" % half.root}
    to_store = _message(record, HALF_TOPIC, 0, with_properties(record.properties, changes), record.sys_flag)
    to_store.born_timestamp = min(record.born_timestamp, record.store_timestamp)
    return to_store


def committed_message(record: Record, topic: TopicLike, queue_id: int) -> MessageToStore:
    """Returns the message that consumers get, with the properties of the half message."""
    to_store = _message(record, topic, queue_id, record.properties, record.sys_flag | COMMIT)
    to_store.prepared_offset = record.offset
    return to_store


def given_up_message(record: Record, topic: TopicLike) -> MessageToStore:
    """Returns the message for TRANS_CHECK_MAX_TIME_TOPIC."""
    return _message(record, topic, 0, record.properties, record.sys_flag)


def resumed_message(record: Record) -> MessageToStore:
    """Returns the half message of a new transaction for a message that was given up."""
    changes: dict[bytes, bytes | None] = {CHECKS: None, ROOT: None}
    return _message(record, HALF_TOPIC, 0, with_properties(record.properties, changes), record.sys_flag)


def op_message(half_offsets: list[int], host: bytes, now_ms: int) -> MessageToStore:
    """Returns an op record that ends the half messages at these queue offsets."""
    body = b"".join(b"%d," % offset for offset in half_offsets)
    return MessageToStore(OP_TOPIC, 0, body, _OP_PROPERTIES, 0, 0, now_ms, host, 0)


def ended_by(body: bytes) -> list[int]:
    """Returns the half queue's offsets in an op record. Other text is skipped: RocketMQ's versions write `7`,
    `7,` or `7,8,`."""
    texts = body.split(b",", OPS_PER_RECORD_MAX)
    return [int(text) for text in texts if text.isdigit() and len(text) < 19]


def _message(
    record: Record, topic: TopicLike, queue_id: int, properties: bytes, sys_flag: int
) -> MessageToStore:
    return MessageToStore(
        topic, queue_id, record.body, properties, record.flag, sys_flag, record.born_timestamp,
        record.born_host, record.reconsume_times,
    )  # fmt: skip


def number(properties: bytes, name: bytes) -> int | None:
    """Returns the number in a property; None: there is none, it is not a number, or it is negative."""
    text = property_value(properties, name)
    return int(text) if text is not None and text.isdigit() and len(text) < 19 else None
