"""Messages of gRPC as messages of remoting, and back. Pure.

The properties have RocketMQ's names, so consumers of either protocol see the same message. A compressed body
is inflated: gRPC's clients know only GZIP, and remoting's consumers know everything else.
Source: behaviour of RocketMQ 5.3's proxy, SendMessageActivity and GrpcConverter.
"""

import hashlib
import zlib
from collections.abc import Mapping
from typing import Final

import msgspec

from keelmq.client.message import (
    HALF_FLAG,
    KEYS,
    RETRY_TOPIC,
    TAGS,
    TRAN_MSG,
    UNIQ_KEY,
    WAIT,
    MessageExt,
    encode_pairs,
)
from proxy.core.handles import Receipt
from proxy.core.limits import RECOVERY_MS_MAX, Limits
from proxy.core.statuses import NO_LITE, Refused
from proxy.core.times import duration, ms_of, timestamp
from proxy.wire import messaging_pb2 as pb

SHARDING_KEY: Final = "__SHARDINGKEY"
DELIVER_MS: Final = "TIMER_DELIVER_MS"
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
TRACE_CONTEXT, BORN_HOST, BORN_TIMESTAMP = "TRACE_CONTEXT", "__BORNHOST", "BORN_TIMESTAMP"
PRODUCER_GROUP: Final = "PGROUP"
IMMUNITY_S: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
DLQ_TOPIC, DLQ_MESSAGE_ID = "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"

SYSTEM_NAMES: Final = frozenset({
    "KEYS", "TAGS", "WAIT", "DELAY", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "TRAN_MSG", "PGROUP",
    "MIN_OFFSET", "MAX_OFFSET", "BUYER_ID", "ORIGIN_MESSAGE_ID", "TRANSFER_FLAG", "CORRECTION_FLAG",
    "MQ2_FLAG", "RECONSUME_TIME", "MSG_REGION", "TRACE_ON", "UNIQ_KEY", "EXTEND_UNIQ_INFO",
    "MAX_RECONSUME_TIMES", "CONSUME_START_TIME", "INNER_NUM", "INNER_BASE", "DUP_INFO",
    "CHECK_IMMUNITY_TIME_IN_SECONDS", "TRAN_PREPARED_QUEUE_OFFSET", "__transactionId__",
    "TRANSACTION_CHECK_TIMES", "INSTANCE_ID", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "ARRIVE_TIME",
    "PUSH_REPLY_TIME", "CLUSTER", "MSG_TYPE", "POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME", "__SHARDINGKEY",
    "PROPERTY_FORWARD_QUEUE_ID", "REDIRECT", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET",
    "TRACE_CONTEXT", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_ENQUEUE_MS",
    "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES", "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY", "__BORNHOST",
    "BORN_TIMESTAMP", "__CRC32#", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "ORIGIN_GROUP",
    "_SYS_MSG_PRIORITY_",
})  # fmt: skip
"""Properties that are RocketMQ's own. No client may set one as its own, and none is shown as a client's."""


class Sent(msgspec.Struct, frozen=True):
    """A message that is sent: the parts of a request 310. message_group: the messages of a group go to one
    queue; None: to any."""

    message_id: str
    kind: pb.MessageType
    body: bytes
    properties: str
    sys_flag: int
    message_group: str | None


def kind_of(system: pb.SystemProperties) -> pb.MessageType:
    """Returns the type that the fields of a message show. Raises Refused: they exclude each other, or the
    message says another type."""
    shown = [
        kind
        for field, kind in (
            ("message_group", pb.FIFO),
            ("delivery_timestamp", pb.DELAY),
            ("priority", pb.PRIORITY),
            ("lite_topic", pb.LITE),
        )
        if system.HasField(field)
    ]
    if system.message_type == pb.TRANSACTION:
        shown.append(pb.TRANSACTION)
    if len(shown) > 1:
        names = " and ".join(pb.MessageType.Name(kind) for kind in shown)
        raise _conflict(f"a message is one of {names}, not both")
    kind = shown[0] if shown else pb.NORMAL
    said = system.message_type
    if said not in (pb.MESSAGE_TYPE_UNSPECIFIED, kind):
        what = f"its fields show {pb.MessageType.Name(kind)}"
        raise _conflict(f"the message says that it is {_type_name(said)}, and {what}")
    return kind


def sent_of(message: pb.Message, topic: str, *, now_ms: int, limits: Limits) -> Sent:
    """Returns the message for the brokers. topic: its name there. Raises Refused."""
    system = message.system_properties
    kind = kind_of(system)
    if kind == pb.LITE:
        raise Refused(pb.UNSUPPORTED, NO_LITE)
    _check(message, limits)
    pairs = dict(message.user_properties)
    pairs[UNIQ_KEY], pairs[WAIT] = system.message_id, "true"
    if system.HasField("tag"):
        pairs[TAGS] = system.tag
    if system.keys:
        pairs[KEYS] = " ".join(system.keys)
    if system.HasField("trace_context"):
        pairs[TRACE_CONTEXT] = system.trace_context
    if system.born_host:
        pairs[BORN_HOST] = system.born_host
    if system.HasField("born_timestamp"):
        pairs[BORN_TIMESTAMP] = str(ms_of(system.born_timestamp))
    pairs |= _of_kind(kind, system, topic, now_ms, limits)
    try:
        properties = encode_pairs(pairs)
    except ValueError as error:
        raise Refused(pb.ILLEGAL_MESSAGE_PROPERTY_KEY, str(error)) from None
    flag = HALF_FLAG if kind == pb.TRANSACTION else 0
    body = _inflated_body(message.body, system.body_encoding, limits.max_message_size)
    return Sent(system.message_id, kind, body, properties, flag, pairs.get(SHARDING_KEY))


def _of_kind(
    kind: pb.MessageType, system: pb.SystemProperties, topic: str, now_ms: int, limits: Limits
) -> Mapping[str, str]:
    """The properties that make a message one of its kind."""
    if kind == pb.FIFO:
        group = system.message_group
        if not group.strip() or len(group.encode()) >= limits.max_message_group_size:
            most = limits.max_message_group_size - 1
            raise Refused(pb.ILLEGAL_MESSAGE_GROUP, f"a message group has 1 to {most} bytes")
        return {SHARDING_KEY: _plain(group, pb.ILLEGAL_MESSAGE_GROUP, "message group")}
    if kind == pb.DELAY:
        deliver_ms = ms_of(system.delivery_timestamp)
        if deliver_ms - now_ms > limits.max_delay_ms:
            remark = f"the delivery is more than {limits.max_delay_ms} ms ahead"
            raise Refused(pb.ILLEGAL_DELIVERY_TIME, remark)
        return {DELIVER_MS: str(max(deliver_ms, 0))}
    if kind == pb.PRIORITY:
        if system.priority < 0:
            raise Refused(pb.BAD_REQUEST, f"the priority {system.priority} is below 0")
        return {PRIORITY: str(system.priority)}
    if kind == pb.TRANSACTION:
        return {TRAN_MSG: "true", PRODUCER_GROUP: topic, **_immunity(system)}
    return {}


def _immunity(system: pb.SystemProperties) -> Mapping[str, str]:
    if not system.HasField("orphaned_transaction_recovery_duration"):
        return {}
    recovery_ms = ms_of(system.orphaned_transaction_recovery_duration)
    if not 0 <= recovery_ms <= RECOVERY_MS_MAX:
        remark = f"orphaned_transaction_recovery_duration is not in 0..{RECOVERY_MS_MAX} ms"
        raise Refused(pb.BAD_REQUEST, remark)
    return {IMMUNITY_S: str(recovery_ms // 1_000)}


def _check(message: pb.Message, limits: Limits) -> None:
    system, properties = message.system_properties, message.user_properties
    if not system.message_id.strip():
        raise Refused(pb.ILLEGAL_MESSAGE_ID, "the message has no message_id")
    _plain(system.message_id, pb.ILLEGAL_MESSAGE_ID, "message_id")
    if not message.body:
        raise Refused(pb.MESSAGE_BODY_EMPTY, "the body is empty")
    if len(message.body) > limits.max_message_size:
        remark = f"the body has {len(message.body)} bytes; {limits.max_message_size} is the limit"
        raise Refused(pb.MESSAGE_BODY_TOO_LARGE, remark)
    if system.HasField("tag"):
        tag = _plain(system.tag, pb.ILLEGAL_MESSAGE_TAG, "tag")
        if not tag.strip() or "|" in tag:
            raise Refused(pb.ILLEGAL_MESSAGE_TAG, "a tag is not blank, and has no | in it")
    for key in system.keys:
        if not _plain(key, pb.ILLEGAL_MESSAGE_KEY, "key").strip():
            raise Refused(pb.ILLEGAL_MESSAGE_KEY, "a key is blank")
    if len(properties) > limits.user_property_max_num:
        remark = f"{len(properties)} properties; {limits.user_property_max_num} is the limit"
        raise Refused(pb.MESSAGE_PROPERTIES_TOO_LARGE, remark)
    for name, value in properties.items():
        if not name or name in SYSTEM_NAMES:
            raise Refused(pb.ILLEGAL_MESSAGE_PROPERTY_KEY, f"no property may be named {name!r}")
        _plain(name, pb.ILLEGAL_MESSAGE_PROPERTY_KEY, "property name")
        _plain(value, pb.ILLEGAL_MESSAGE_PROPERTY_KEY, "property")
    texts = (*properties, *properties.values(), system.tag, *system.keys)
    size = sum(len(text.encode()) for text in texts)
    if size > limits.max_user_property_size:
        remark = f"properties, tag and keys have {size} bytes; {limits.max_user_property_size} is the limit"
        raise Refused(pb.MESSAGE_PROPERTIES_TOO_LARGE, remark)


def _plain(text: str, code: pb.Code, what: str) -> str:
    """Control characters separate the properties of a record."""
    if any(character < " " or character == "\x7f" for character in text):
        raise Refused(code, f"a {what} has a control character in it")
    return text


def _inflated_body(body: bytes, encoding: pb.Encoding, limit: int) -> bytes:
    if encoding != pb.GZIP:
        return body
    inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)  # gzip or zlib, by the header
    try:
        found = inflate.decompress(body, limit + 1)
    except zlib.error as error:
        raise Refused(pb.MESSAGE_CORRUPTED, f"the body is not GZIP: {error}") from None
    if len(found) > limit:
        raise Refused(pb.MESSAGE_BODY_TOO_LARGE, f"the inflated body has more than {limit} bytes")
    if not inflate.eof:
        raise Refused(pb.MESSAGE_CORRUPTED, "the body is cut: its GZIP data has no end")
    return found


def message_of(
    message: MessageExt, topic: pb.Resource, receipt: Receipt | None = None, attempt: int = 1
) -> pb.Message:
    """Returns a stored message for a client. topic: as the client calls it. receipt: of a popped message.
    attempt: how often it was delivered, this time included."""
    properties = message.properties
    system = pb.SystemProperties(
        message_id=message.msg_id or message.offset_msg_id,
        body_digest=pb.Digest(type=pb.MD5, checksum=_md5(message.body)),
        body_encoding=pb.IDENTITY,
        message_type=_stored_kind(properties),
        born_timestamp=timestamp(_born_ms(message)),
        born_host=properties.get(BORN_HOST) or message.born_host,
        store_timestamp=timestamp(message.store_timestamp),
        store_host=message.store_host,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        delivery_attempt=attempt,
        keys=(message.keys or "").split(),
    )
    if message.tags is not None:
        system.tag = message.tags
    if SHARDING_KEY in properties:
        system.message_group = properties[SHARDING_KEY]
    if TRACE_CONTEXT in properties:
        system.trace_context = properties[TRACE_CONTEXT]
    if (deliver_ms := _number(properties.get(DELIVER_MS) or properties.get(TIMER_OUT_MS))) is not None:
        system.delivery_timestamp.CopyFrom(timestamp(deliver_ms))
    if (priority := _number(properties.get(PRIORITY))) is not None:
        system.priority = min(priority, 2**31 - 1)
    if DLQ_TOPIC in properties:
        origin = pb.DeadLetterQueue(
            topic=properties[DLQ_TOPIC], message_id=properties.get(DLQ_MESSAGE_ID, "")
        )
        system.dead_letter_queue.CopyFrom(origin)
    if receipt is not None:
        system.receipt_handle = receipt.text()
        system.invisible_duration.CopyFrom(duration(receipt.handle.invisible_ms))
    users = {name: value for name, value in properties.items() if name not in SYSTEM_NAMES}
    return pb.Message(topic=topic, user_properties=users, system_properties=system, body=message.body)


def _stored_kind(properties: Mapping[str, str]) -> pb.MessageType:
    if properties.get(TRAN_MSG) == "true":
        return pb.TRANSACTION
    if SHARDING_KEY in properties:
        return pb.FIFO
    if DELIVER_MS in properties or (TIMER_OUT_MS in properties and RETRY_TOPIC not in properties):
        return pb.DELAY
    return pb.PRIORITY if PRIORITY in properties else pb.NORMAL


def _born_ms(message: MessageExt) -> int:
    born_ms = _number(message.properties.get(BORN_TIMESTAMP))
    return message.born_timestamp if born_ms is None else born_ms


def _number(text: str | None) -> int | None:
    """None: not a number of 14 digits or less, which is what a Timestamp can show."""
    return int(text) if text and len(text) <= 14 and text.isascii() and text.isdigit() else None


def _md5(body: bytes) -> str:
    """MD5 is the digest that all clients compute alike: of CRC32 they compare different texts."""
    return hashlib.md5(body, usedforsecurity=False).hexdigest().upper()


def _conflict(remark: str) -> Refused:
    return Refused(pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, remark)


def _type_name(kind: pb.MessageType) -> str:
    return pb.MessageType.Name(kind) if kind in pb.MessageType.values() else str(kind)
