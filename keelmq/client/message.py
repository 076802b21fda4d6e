"""Messages as applications see them, and the records of pull bodies.

Bytes in, values out. A pull body is a sequence of CommitLog records, exactly as stored; source: RocketMQ's
record layout (v1 and v2, IPv4 and IPv6 hosts). Bodies of zlib, LZ4 and Zstandard are inflated, up to a limit.
A message whose body cannot be inflated has a `body_error`; the others around it are not affected. Of a pull,
a damaged record is reported, and the good ones around it are messages.
"""

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from keelmq.client.core.checks import (
    INT32_MAX,
    INT64_MAX,
    check_body,
    check_int,
    check_one_of,
    check_pairs,
    check_text,
    check_texts,
)
from keelmq.client.message_id import encode_offset_message_id
from keelmq.remoting.messages.inflate import Codec, InflatedTooLarge, InflateError, inflated
from keelmq.remoting.messages.unique_keys import of_process as unique_keys_of_process
from keelmq.remoting.operation import RemoteProtocolError

NAME_END, PROPERTY_END = "\x01", "\x02"
UNIQ_KEY, KEYS, TAGS, WAIT, DELAY = "UNIQ_KEY", "KEYS", "TAGS", "WAIT", "DELAY"
RETRY_TOPIC, ORIGIN_MESSAGE_ID, TRAN_MSG = "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "TRAN_MSG"
PRIORITY, SHARDING_KEY = "_SYS_MSG_PRIORITY_", "__SHARDINGKEY"
INNER_NUM = "INNER_NUM"
TIMER_PROPERTIES: Final = ("TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS")

NOT_WITH_PRIORITY: Final = (DELAY, *TIMER_PROPERTIES, TRAN_MSG, SHARDING_KEY)
"""Properties of messages whose priority a broker removes."""
PRIORITY_DIGITS_MAX: Final = 10

MAGIC_V1 = -626843481
MAGIC_V2 = -626843477
COMPRESSED_FLAG = 0x1
COMPRESSION_TYPE_MASK = 0x700
COMPRESSION_CODECS: Final = {0x000: Codec.ZLIB, 0x100: Codec.LZ4, 0x200: Codec.ZSTD, 0x300: Codec.ZLIB}
"""Codecs by the bits of COMPRESSION_TYPE_MASK. Old producers set no bits, and use zlib."""
BODY_BYTES_MAX: Final = 64 << 20
"""The longest inflated body, and all inflated bodies of one answer, if the caller sets no limit. 16 times a
broker's default maxMessageSize."""
INNER_BATCH_FLAGS = 0xC0  # of an inner batch: messages that are stored as one record
HALF_FLAG = 0x4  # of an open transaction
BORN_HOST_V6_FLAG = 0x10
STORE_HOST_V6_FLAG = 0x20
ZLIB_LEVEL = 5

# TOTALSIZE MAGIC BODYCRC QUEUEID FLAG QUEUEOFFSET PHYSICALOFFSET SYSFLAG BORNTIMESTAMP | born host | ...
_HEAD = struct.Struct(">iiiiiqqiq")
_STORE_TIMESTAMP = struct.Struct(">q")
_TAIL = struct.Struct(">iqi")  # RECONSUMETIMES PREPAREDTRANSACTIONOFFSET BODYLENGTH
_PORT = struct.Struct(">i")
_BYTE = struct.Struct(">B")
_SHORT = struct.Struct(">h")
_ITEM = struct.Struct(">i8xii")  # of an inner batch: SIZE magic crc FLAG BODYLENGTH


@dataclass(frozen=True, slots=True)
class Message:
    """A message to send. `keys`: index keys, joined by blanks on the wire; a str is one key. `wait`: the
    broker responds after the flush and replication that it is configured for. `delay_level`: 1 (1 s) to 18 (2
    h) with the broker's default levels; 0: no delay. `priority`: 0 is the lowest; the broker stores the
    message in the queue of that number."""

    topic: str
    body: bytes
    tags: str | None = None
    keys: str | Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0
    wait: bool = True
    delay_level: int = 0
    priority: int | None = None


@dataclass(frozen=True, slots=True)
class MessageExt:
    """A stored message. Timestamps are wall-clock ms; hosts are "address:port". `body_error`: why the body
    could not be inflated; it is then still as stored. "": the body is as the application sent it. Consumers
    deliver no message with a body_error."""

    topic: str
    body: bytes
    properties: Mapping[str, str]
    queue_id: int
    queue_offset: int
    physical_offset: int
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: str
    store_timestamp: int
    store_host: str
    reconsume_times: int
    stored_bytes: int
    broker_name: str = ""
    body_error: str = ""

    @property
    def held_bytes(self) -> int:
        """Returns about how much memory the message takes: an inflated body is longer than its record."""
        return max(self.stored_bytes, len(self.body))

    @property
    def tags(self) -> str | None:
        """Returns the property TAGS, None if not set."""
        return self.properties.get(TAGS)

    @property
    def keys(self) -> str | None:
        """Returns the property KEYS (index keys joined by blanks), None if not set."""
        return self.properties.get(KEYS)

    @property
    def priority(self) -> int | None:
        """Returns the priority, None if not set or no number."""
        text = self.properties.get(PRIORITY, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) <= PRIORITY_DIGITS_MAX else None

    @property
    def offset_msg_id(self) -> str:
        """Returns the broker's id, which encodes where the message is stored."""
        return encode_offset_message_id(self.store_host, self.physical_offset)

    @property
    def msg_id(self) -> str:
        """Returns the producer's UNIQ_KEY (the same for all its attempts), "" if it set none."""
        return self.properties.get(UNIQ_KEY, "")


@dataclass(frozen=True, slots=True)
class DamagedRecord:
    """Messages that a broker cannot deliver: their queue offsets [queue_offset, end_offset), of which some
    may not match the subscription. physical_offset: where the record is in the broker's CommitLog; None: it
    is not known. reason: what is wrong with it."""

    queue_offset: int
    end_offset: int
    physical_offset: int | None
    reason: str


def unique_keys() -> Iterator[str]:
    """Returns the iterator over this process's UNIQ_KEY values (keelmq/remoting/messages/unique_keys.py)."""
    return unique_keys_of_process


def index_keys(message: Message) -> str:
    """Returns the keys as on the wire: joined by blanks, "" if there are none."""
    return message.keys if isinstance(message.keys, str) else " ".join(message.keys)


def encode_properties(message: Message, unique_key: str) -> str:
    """Returns the message's properties as on the wire: key \\x01 value \\x02 ... ValueError: a text contains
    these separators, delay_level or priority is negative, or there is no topic. TypeError: a field has
    another type; a body that is not bytes would be written as JSON."""
    _check(message)
    pairs = dict(message.properties)
    pairs[UNIQ_KEY] = unique_key
    pairs[WAIT] = "true" if message.wait else "false"
    if message.tags:
        pairs[TAGS] = message.tags
    if message.keys:
        pairs[KEYS] = index_keys(message)
    if message.delay_level:
        pairs[DELAY] = str(message.delay_level)
    if message.priority is not None:
        pairs[PRIORITY] = str(message.priority)
    return encode_pairs(pairs)


def _check(message: Message) -> None:
    """TypeError, ValueError: a field is of another type, or cannot be carried. The text names the field."""
    check_one_of("message", message, Message)
    check_text("topic", message.topic)
    if not message.topic:
        raise ValueError("a message needs the name of a topic")
    check_body("the body of a message", message.body)
    check_text("tags", message.tags, optional=True)
    check_texts("keys", message.keys)
    check_pairs("properties", message.properties)
    for name in TIMER_PROPERTIES:
        if name in message.properties:
            _check_timer(name, message.properties[name])
    check_int("flag", message.flag, least=-INT32_MAX - 1, most=INT32_MAX)
    check_one_of("wait", message.wait, bool)
    check_int("delay_level", message.delay_level, most=INT32_MAX)
    _check_priority(message)


def _check_priority(message: Message) -> None:
    """TypeError, ValueError: a priority that a broker would refuse or remove."""
    check_int("priority", message.priority, most=INT32_MAX, optional=True)
    if message.priority is None:
        return
    others = [name for name in NOT_WITH_PRIORITY if name in message.properties]
    if message.delay_level or others:
        other = others[0] if others else "delay_level"
        raise ValueError(f"priority with {other}: such a message is not delayed, ordered or in a transaction")


def _check_timer(name: str, text: str) -> None:
    """ValueError: a delay or a time that no broker can keep."""
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"property {name} is {text[:32]!r}: write a whole number from 0 on, in digits")
    if len(text) > 19 or int(text) > INT64_MAX:
        raise ValueError(f"property {name} is {text[:32]!r}: {INT64_MAX} is the limit")


def encode_pairs(pairs: Mapping[str, str]) -> str:
    """Returns properties as on the wire, without empty ones. ValueError: a text contains the format's
    separators."""
    for key, value in pairs.items():
        if NAME_END in key + value or PROPERTY_END in key + value:
            raise ValueError(f"property {key!r}: names and values cannot contain \\x01 or \\x02")
    return "".join(f"{key}{NAME_END}{value}{PROPERTY_END}" for key, value in pairs.items() if key and value)


def decode_properties(text: str) -> dict[str, str]:
    """Returns the properties. Lenient as RocketMQ: a segment without a name, a value or a separator is
    skipped."""
    pairs: dict[str, str] = {}
    for segment in text.split(PROPERTY_END):
        key, _, value = segment.partition(NAME_END)
        if key and value:
            pairs[key] = value
    return pairs


def inflated_body(body: bytes, sys_flag: int, limit: int) -> bytes:
    """Returns a body as the application sent it, `limit` bytes at most. InflateError: it cannot be inflated;
    the text names the codec."""
    if not sys_flag & COMPRESSED_FLAG:
        return body
    kind = sys_flag & COMPRESSION_TYPE_MASK
    codec = COMPRESSION_CODECS.get(kind)
    if codec is None:
        raise InflateError(f"compression type {kind >> 8} is unknown (known: 1 LZ4, 2 ZSTD, 3 ZLIB)")
    return inflated(body, codec, limit)


class _Inflation:
    """The bodies of one answer. `limit`: of each, and of all inflated ones together. `is_full`: one did not
    fit any more, although it may be shorter than the limit."""

    def __init__(self, limit: int) -> None:
        self.limit, self._left = limit, limit
        self.is_full = False

    def body(self, body: bytes, sys_flag: int) -> tuple[bytes, str]:
        """Returns the inflated body and ""; or the body as it is and the reason."""
        if not sys_flag & COMPRESSED_FLAG:
            return body, ""
        try:
            found = inflated_body(body, sys_flag, self._left)
        except InflatedTooLarge as error:
            if self._left == self.limit:
                return body, f"the body cannot be inflated: {error}"
            self.is_full = True
            return (
                body,
                f"the body was not inflated: all bodies of this answer have {self.limit} bytes at most",
            )
        except InflateError as error:
            return body, f"the body cannot be inflated: {error}"
        self._left -= len(found)
        return found, ""


def decode_messages(
    body: bytes, broker_name: str = "", *, inflated_max: int = BODY_BYTES_MAX
) -> list[MessageExt]:
    """Returns every message of a pull body, including those of inner batches (queue.type=BatchCQ), each with
    its own queue offset. inflated_max: bytes of one inflated body, and of all of them; a body that exceeds it
    stays compressed (`body_error`). RemoteProtocolError: a record is cut, damaged or of another format."""
    messages: list[MessageExt] = []
    inflation = _Inflation(inflated_max)
    position = 0
    try:
        while position < len(body):
            message = _decode_record(body, position, broker_name, inflation)
            position += message.stored_bytes
            if is_inner_batch(message):
                messages += _unwrapped(message)
            else:
                messages.append(message)
    except struct.error as error:
        raise RemoteProtocolError(f"damaged record at byte {position} of a pull body: {error}") from None
    return messages


@dataclass(frozen=True, slots=True)
class DecodedPull:
    """Both lists are in order. `end`: the queue offset of the next pull."""

    messages: list[MessageExt]
    damaged: list[DamagedRecord]
    end: int


def decode_pull(
    body: bytes, broker_name: str = "", *, begin: int, end: int, inflated_max: int = BODY_BYTES_MAX
) -> DecodedPull:
    """Returns the messages of a pull body, as decode_messages(), and what is damaged in it. begin: the
    requested queue offset; end: the next one. If all bodies together would exceed inflated_max, the result
    ends in front of the message that does not fit, and the next pull begins there."""
    messages: list[MessageExt] = []
    damaged: list[DamagedRecord] = []
    inflation = _Inflation(inflated_max)
    position, expected = 0, begin
    bad_at, reason = -1, ""  # of a damaged part: where it begins, and what is wrong with its first record
    while position < len(body):
        try:
            message = _decode_record(body, position, broker_name, inflation)
        except (RemoteProtocolError, struct.error) as error:
            if bad_at < 0:
                bad_at, reason = position, str(error)
            position = _next_record(body, position, broker_name)
            continue
        found = _unwrapped(message) if is_inner_batch(message) else [message]
        if bad_at >= 0:
            damaged.append(_damaged(body[bad_at:position], expected, found[0].queue_offset, reason))
            bad_at = -1
        if inflation.is_full:
            return DecodedPull(messages, damaged, found[0].queue_offset)
        messages += found
        position, expected = position + message.stored_bytes, found[-1].queue_offset + 1
    if bad_at >= 0:
        damaged.append(_damaged(body[bad_at:], expected, end, reason))
    return DecodedPull(messages, damaged, end)


def unreadable(message: MessageExt) -> DamagedRecord:
    """Returns what a consumer reports of a message with a body_error, or of an inner batch with one."""
    count = message.properties.get(INNER_NUM, "") if is_inner_batch(message) else ""
    end = message.queue_offset + (int(count) if count.isdecimal() and 0 < int(count) < 1 << 31 else 1)
    return DamagedRecord(message.queue_offset, end, message.physical_offset, message.body_error)


def is_inner_batch(message: MessageExt) -> bool:
    """Returns whether the record holds several messages (queue.type=BatchCQ)."""
    return message.sys_flag & INNER_BATCH_FLAGS == INNER_BATCH_FLAGS


def _damaged(part: bytes, begin: int, end: int, reason: str) -> DamagedRecord:
    """part: one damaged record or more, between the good ones with the queue offsets begin - 1 and end. Its
    header counts only if it agrees with them."""
    end = max(end, begin + 1)
    if len(part) >= _HEAD.size:
        size, magic, _, _, _, queue_offset, physical_offset, *_ = _HEAD.unpack_from(part)
        if magic in (MAGIC_V1, MAGIC_V2) and begin <= queue_offset < end:
            end = queue_offset + 1 if size == len(part) else end
            return DamagedRecord(queue_offset, end, physical_offset, reason)
    return DamagedRecord(begin, end, None, reason)


def _next_record(body: bytes, position: int, broker_name: str) -> int:
    """Returns where the next good record begins behind a damaged one; the body's end if there is none."""
    magics = (struct.pack(">i", MAGIC_V1), struct.pack(">i", MAGIC_V2))
    at = position + 4
    while True:
        places = [each for each in (body.find(magic, at + 1) for magic in magics) if each >= 0]
        if not places:
            return len(body)
        at = min(places)
        try:
            _decode_record(body, at - 4, broker_name, None)
        except (RemoteProtocolError, struct.error):
            continue
        return at - 4


def _decode_record(data: bytes, start: int, broker_name: str, inflation: _Inflation | None) -> MessageExt:
    """inflation None: bodies stay as they are."""
    size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born = _HEAD.unpack_from(
        data, start
    )
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise RemoteProtocolError(f"record with magic code {magic} in a pull body")
    if not _HEAD.size < size <= len(data) - start:
        raise RemoteProtocolError(f"record of {size} bytes, {len(data) - start} are left in the pull body")
    born_host, position = _host(data, start + _HEAD.size, v6=bool(sys_flag & BORN_HOST_V6_FLAG))
    (stored,) = _STORE_TIMESTAMP.unpack_from(data, position)
    store_host, position = _host(data, position + 8, v6=bool(sys_flag & STORE_HOST_V6_FLAG))
    reconsume_times, _, body_bytes = _TAIL.unpack_from(data, position)
    position += _TAIL.size
    body = data[position : position + body_bytes]
    if body_bytes < 0 or (zlib.crc32(body) & 0x7FFFFFFF) != crc:
        raise RemoteProtocolError(
            f"CRC of the record at CommitLog offset {physical_offset} does not match its body"
        )
    position += body_bytes
    length = _BYTE if magic == MAGIC_V1 else _SHORT
    (topic_bytes,) = length.unpack_from(data, position)
    position += length.size
    topic = _text(data[position : position + topic_bytes])
    position += topic_bytes
    (properties_bytes,) = _SHORT.unpack_from(data, position)
    position += 2
    if topic_bytes < 0 or properties_bytes < 0 or position + properties_bytes != start + size:
        raise RemoteProtocolError(
            f"parts of the record at CommitLog offset {physical_offset} exceed its size"
        )
    body_error = ""
    if inflation is not None:
        body, body_error = inflation.body(body, sys_flag)
    return MessageExt(
        topic=topic,
        body=body,
        properties=decode_properties(_text(data[position : position + properties_bytes])),
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        flag=flag,
        sys_flag=sys_flag,
        born_timestamp=born,
        born_host=born_host,
        store_timestamp=stored,
        store_host=store_host,
        reconsume_times=reconsume_times,
        stored_bytes=size,
        broker_name=broker_name,
        body_error=body_error,
    )


def _text(data: bytes) -> str:
    """Lenient as Java and the brokers: a message that cannot be decoded would block its queue for ever."""
    return data.decode("utf-8", "replace")


def _unwrapped(batch: MessageExt) -> list[MessageExt]:
    """Returns the messages of an inner batch; they share location, times, hosts and sys_flag. A body that is
    not a batch is returned as it is, as in RocketMQ's clients, so it does not block the queue."""
    if batch.body_error:
        return [batch]
    found: list[MessageExt] = []
    data, at = batch.body, 0
    try:
        while at < len(data):
            size, flag, body_bytes = _ITEM.unpack_from(data, at)
            body_at, end = at + _ITEM.size, at + size
            (properties_bytes,) = _SHORT.unpack_from(data, body_at + body_bytes)
            properties_at = body_at + body_bytes + _SHORT.size
            lengths_fit = body_bytes >= 0 and properties_bytes >= 0
            if not lengths_fit or properties_at + properties_bytes != end or end > len(data):
                return [batch]
            found.append(
                replace(
                    batch,
                    flag=flag,
                    body=data[body_at : body_at + body_bytes],
                    properties=decode_properties(_text(data[properties_at:end])),
                    queue_offset=batch.queue_offset + len(found),
                )
            )
            at = end
    except struct.error:
        return [batch]
    return found or [batch]


def _host(data: bytes, position: int, *, v6: bool) -> tuple[str, int]:
    """Returns ("address:port", position after it). The port is an int32."""
    width = 16 if v6 else 4
    raw = data[position : position + width]
    (port,) = _PORT.unpack_from(data, position + width)
    if v6:
        address = (
            "["
            + ":".join(f"{high << 8 | low:x}" for high, low in zip(raw[::2], raw[1::2], strict=True))
            + "]"
        )
    else:
        address = ".".join(map(str, raw))
    return f"{address}:{port}", position + width + 4
