"""The CommitLog record: layout, encoding, parsing, and message ids. Pure.

The same bytes are stored, replicated, and returned to a pull. All integers are big-endian. Source: RocketMQ
5.3.3 MessageDecoder and CommitLog; version 1 shown with IPv4 hosts (an IPv6 host is 20 bytes wide):

    0 TOTALSIZE i32 | 4 MAGIC | 8 BODYCRC | 12 QUEUEID | 16 FLAG | 20 QUEUEOFFSET i64 | 28 PHYSICALOFFSET i64
    36 SYSFLAG i32 | 40 BORNTIMESTAMP i64 | 48 BORNHOST | 56 STORETIMESTAMP i64 | 64 STOREHOST
    72 RECONSUMETIMES i32 | 76 PREPAREDTRANSACTIONOFFSET i64 | 84 BODYLENGTH i32, BODY
    TOPICLENGTH u8 (version 2: i16), TOPIC | PROPERTIESLENGTH i16, PROPERTIES

A blank record (size, magic, anything) fills a file's end: a record never spans two files.
"""

import ipaddress
import socket
import struct
from itertools import accumulate
from typing import Final, TypeAlias

import msgspec
from isal.isal_zlib import crc32

Buffer: TypeAlias = bytes | bytearray | memoryview

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB  # topics of 128 bytes and more: two-byte topic length
MAGIC_BLANK: Final = 0xCBD43194
BLANK_BYTES: Final = 8  # reserved at every file end, so that a blank header always fits

BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
HOST_V6_BITS: Final = BORN_HOST_V6 | STORE_HOST_V6
TRANSACTION_BITS: Final = 0xC
TRANSACTION_PREPARED: Final = 0x4

HOST_V4_BYTES: Final = 8
HOSTS_V4_BYTES: Final = 2 * HOST_V4_BYTES  # of both hosts
HOST_V6_BYTES: Final = 20
TOPIC_V1_BYTES_MAX: Final = 127  # Java reads the version 1 length as a signed byte
TOPIC_V1_RAW_MAX: Final = TOPIC_V1_BYTES_MAX + 1  # with the length
PROPERTIES_BYTES_MAX: Final = 32767

HEADERS: Final = {
    (born, store): struct.Struct(f">iIIiiqqiq{born}sq{store}siqi")
    for born in (HOST_V4_BYTES, HOST_V6_BYTES)
    for store in (HOST_V4_BYTES, HOST_V6_BYTES)
}
"""Everything before BODY, by the widths of BORNHOST and STOREHOST."""
HEADER: Final = HEADERS[HOST_V4_BYTES, HOST_V4_BYTES]
HEADER_BYTES: Final = HEADER.size  # 88
_I16 = struct.Struct(">h")
_I64 = struct.Struct(">q")
BLANK = struct.Struct(">iI")
PACK_HEADER = HEADER.pack
PACK_I16 = _I16.pack
_UNPACK_PREFIX = struct.Struct(">iIIiiqqi16xq").unpack_from  # with STORETIMESTAMP after an IPv4 BORNHOST
_UNPACK_I64 = _I64.unpack_from
_SYS_FLAG_AT: Final = 36
_STORE_TIMESTAMP_AT: Final = 56
_STORE_TIMESTAMP_V6_AT: Final = 68  # after an IPv6 BORNHOST
_UNPACK_BLANK = BLANK.unpack_from
_UNPACK_I32 = struct.Struct(">i").unpack_from
_UNPACK_I16 = _I16.unpack_from

CRC_MASK: Final = 0x7FFFFFFF
_TAGS_CACHED_MAX: Final = 4096
_tags_cache: dict[str, int] = {}
_raw_tags_cache: dict[bytes, int] = {}

SEPARATOR: Final = "\x02"
UNIQ_KEY: Final = "\x02UNIQ_KEY\x01"
TAGS: Final = "\x02TAGS\x01"
KEYS: Final = "\x02KEYS\x01"

Parsed: TypeAlias = tuple[int, bytes, int, int, int, int, bytes]
"""(size, topic, queue_id, queue_offset, tags_code, store_timestamp in ms, properties). topic b"": no queue
indexes it, skip `size` bytes."""

_NOTHING: Final = (b"", 0, 0, 0, 0, b"")


def body_crc(body: Buffer) -> int:
    """Returns BODYCRC: the CRC-32 (zlib's polynomial) without its top bit."""
    return crc32(body) & CRC_MASK


def topic_bytes(topic: str) -> bytes:
    """Returns the topic with its length in front, as the record stores it: one byte, or an i16 (version 2)
    above 127 bytes."""
    raw = topic.encode()
    return bytes([len(raw)]) + raw if len(raw) <= TOPIC_V1_BYTES_MAX else _I16.pack(len(raw)) + raw


def host_bits(sys_flag: int, born_host: bytes, store_host: bytes) -> int:
    """Returns sys_flag with the host bits set by the widths of the hosts; the client's host bits are
    ignored."""
    sys_flag &= ~HOST_V6_BITS
    born = BORN_HOST_V6 if len(born_host) != HOST_V4_BYTES else 0
    return sys_flag | born | (STORE_HOST_V6 if len(store_host) != HOST_V4_BYTES else 0)


def java_hash(text: str) -> int:
    """Returns Java's String.hashCode(): over UTF-16 units, a signed 32-bit number."""
    value = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(raw[::2], raw[1::2], strict=True):
        value = (value * 31 + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


HIGH_DIGITS: Final = bytes(b"0123456789abcdefghijklmnopqrstu"[byte // 31 % 31] for byte in range(256))
LOW_DIGITS: Final = bytes(b"0123456789abcdefghijklmnopqrstu"[byte % 31] for byte in range(256))
KEY_DIGITS_MAX: Final = 1_024  # int() of very long texts is quadratic, and limited
POWERS: Final = tuple(pow(31, exponent, 1 << 32) for exponent in range(KEY_DIGITS_MAX + 1))
_ZERO: Final = ord("0")  # upper-case hex has one digit per character, if counted from here
FROM_ZERO: Final = bytes(
    b"0123456789abcdefghijklmnopqrstu"[byte - _ZERO] if 0 <= byte - _ZERO < 31 else ord("!")
    for byte in range(256)
)
ZEROS_HASHES: Final = tuple(_ZERO * each for each in accumulate(POWERS, initial=0))  # of "", "0", "00" ...


def key_hash(prefix_hash: int, key: bytes) -> int:
    """Returns abs(String.hashCode()) of prefix + key as IndexFile stores it: 0 where abs overflows.

    prefix_hash: java_hash() of the prefix. A Java hash is the text as a number of base 31 whose digits are
    the characters. int() computes it in C, once for the high and once for the low digit of each character.
    """
    if len(key) <= KEY_DIGITS_MAX and key.isascii():
        high, low = int(key.translate(HIGH_DIGITS), 31), int(key.translate(LOW_DIGITS), 31)
        value = (prefix_hash * POWERS[len(key)] + high * 31 + low) & 0xFFFFFFFF
    else:
        text = key.decode("utf-8", "surrogateescape")
        units = len(text.encode("utf-16-be", "surrogatepass")) // 2
        value = (prefix_hash * pow(31, units, 1 << 32) + java_hash(text)) & 0xFFFFFFFF
    return value if value < 0x80000000 else -value & 0x7FFFFFFF


def index_keys(properties: bytes) -> tuple[bytes, bytes]:
    """Returns (UNIQ_KEY, KEYS) of a record, b"" if absent; KEYS is blank-separated. If a property occurs
    twice, the last one counts, as in a map."""
    text = b"\x02" + properties
    _, has_unique, unique = text.rpartition(b"\x02UNIQ_KEY\x01")
    _, has_keys, keys = text.rpartition(b"\x02KEYS\x01")
    return (
        unique.partition(b"\x02")[0] if has_unique else b"",
        keys.partition(b"\x02")[0] if has_keys else b"",
    )


def property_value(properties: bytes, name: bytes) -> bytes | None:
    """Returns the value of one property in `key \\x01 value \\x02 ...` text; None if it is absent."""
    start = 0
    needle = name + b"\x01"
    while (at := properties.find(needle, start)) >= 0:
        start = at + len(needle)
        if at == 0 or properties[at - 1] == 2:
            end = properties.find(b"\x02", start)
            return properties[start:] if end < 0 else properties[start:end]
    return None


def is_half(properties: bytes) -> bool:
    """Returns whether these are the properties of a half message."""
    return property_value(properties, b"TRAN_MSG") == b"true"


def store_timestamp(record: Buffer) -> int:
    """Returns STORETIMESTAMP (ms) of the record at the buffer's start, for hosts of any width."""
    (sys_flag,) = _UNPACK_I32(record, _SYS_FLAG_AT)
    at = _STORE_TIMESTAMP_V6_AT if sys_flag & BORN_HOST_V6 else _STORE_TIMESTAMP_AT
    timestamp: int = _UNPACK_I64(record, at)[0]
    return timestamp


def parse_properties(properties: bytes) -> dict[str, str]:
    """Returns the properties as RocketMQ parses them: segments without a key and a value are skipped, and the
    first \\x01 separates."""
    found = {}
    for segment in properties.decode("utf-8", "replace").split("\x02"):
        key, _, value = segment.partition("\x01")
        if key and value:
            found[key] = value
    return found


def tags_code(properties: bytes) -> int:
    """Returns the tags code of a record's ConsumeQueue unit: the Java hash of TAGS, 0 without a tag."""
    tag = (
        (b"\x02" + properties).partition(b"\x02TAGS\x01")[2].partition(b"\x02")[0]
    )  # faster than find, slice
    code = _raw_tags_cache.get(tag)
    if code is None:
        code = tag_code(tag.decode("utf-8", "replace"))
        if len(_raw_tags_cache) < _TAGS_CACHED_MAX:
            _raw_tags_cache[tag] = code
    return code


def tag_code(tag: str) -> int:
    """Returns the Java hash of a tag, 0 for "". Cached, up to a bound."""
    code = _tags_cache.get(tag)
    if code is None:
        code = java_hash(tag)
        if len(_tags_cache) < _TAGS_CACHED_MAX:
            _tags_cache[tag] = code
    return code


def parse(buffer: Buffer, pos: int, end: int, *, offset: int, check_crc: bool = False) -> Parsed | None:
    """Parses the record at `pos`, whose own CommitLog offset must be `offset`; reads nothing at or after
    `end`.

    None: no whole good record (cut, torn, stale or never written). A blank record, and a record that no queue
    indexes (prepared or rolled back transaction), give (size, b"", 0, 0, 0, 0, b""). check_crc: also check
    BODYCRC.
    """
    room = end - pos
    if room < HEADER_BYTES + 3:
        if room >= BLANK_BYTES:
            size, magic = _UNPACK_BLANK(buffer, pos)
            if magic == MAGIC_BLANK and BLANK_BYTES <= size <= room:
                return (size, *_NOTHING)
        return None
    size, magic, crc, queue_id, _, queue_offset, own_offset, sys_flag, stored = _UNPACK_PREFIX(buffer, pos)
    if magic == MAGIC_BLANK:
        return (size, *_NOTHING) if BLANK_BYTES <= size <= room else None
    if not HEADER_BYTES < size <= room or own_offset != offset or queue_offset < 0:
        return None
    body_at = pos + HEADER_BYTES
    if sys_flag & HOST_V6_BITS:
        body_at += 12 * bool(sys_flag & BORN_HOST_V6) + 12 * bool(sys_flag & STORE_HOST_V6)
        if sys_flag & BORN_HOST_V6:
            (stored,) = _UNPACK_I64(buffer, pos + _STORE_TIMESTAMP_V6_AT)
    record_end = pos + size
    body_length: int = _UNPACK_I32(buffer, body_at - 4)[0] if body_at < record_end else -1
    at = body_at + body_length
    if body_length < 0 or at + 3 > record_end:
        return None
    if magic == MAGIC_V1:
        topic_end = at + 1 + buffer[at]
        at += 1
    elif magic == MAGIC_V2:
        topic_end = at + 2 + _UNPACK_I16(buffer, at)[0]
        at += 2
    else:
        return None
    if topic_end <= at or topic_end + 2 > record_end:
        return None
    properties_at = topic_end + 2
    if properties_at + _UNPACK_I16(buffer, topic_end)[0] != record_end:
        return None
    if check_crc and (
        crc32(buffer[body_at : body_at + body_length]) & CRC_MASK != crc
        or 0 in buffer[at:topic_end]
        or 0 in buffer[properties_at:record_end]
    ):
        return None  # BODYCRC does not cover topic and properties, but zeros in them mean lost pages
    if sys_flag & TRANSACTION_PREPARED and sys_flag & TRANSACTION_BITS != 0x8:
        return (size, *_NOTHING)
    topic = bytes(buffer[at:topic_end])
    properties = bytes(buffer[properties_at:record_end])
    return (size, topic, queue_id, queue_offset, tags_code(properties), stored, properties)


def is_incomplete(buffer: Buffer, offset: int) -> bool:
    """Returns whether a buffer, which begins at this CommitLog offset, ends in the middle of its first
    record. The lengths in a record must not contradict its size, as far as they are in the buffer."""
    if len(buffer) < HEADER_BYTES:
        return True
    size, magic, *_, own_offset, sys_flag, _ = _UNPACK_PREFIX(buffer)
    if magic == MAGIC_BLANK:
        return len(buffer) < int(size)
    if magic not in (MAGIC_V1, MAGIC_V2) or own_offset != offset or len(buffer) >= size:
        return False
    at = HEADER_BYTES + 12 * bool(sys_flag & BORN_HOST_V6) + 12 * bool(sys_flag & STORE_HOST_V6)
    if len(buffer) < at:
        return True
    width, body_bytes = 1 if magic == MAGIC_V1 else 2, _UNPACK_I32(buffer, at - 4)[0]
    at += body_bytes
    if body_bytes < 0 or at + width + 2 >= size:
        return False
    if len(buffer) < at + width:
        return True
    at += width + (buffer[at] if width == 1 else _UNPACK_I16(buffer, at)[0])
    if at + 2 > size:
        return False
    return len(buffer) < at + 2 or bool(at + 2 + _UNPACK_I16(buffer, at)[0] == size)


class Record(msgspec.Struct, frozen=True):
    """A whole record, for handlers of single records, tools and tests; the fast path never makes one."""

    size: int
    magic: int
    crc: int
    queue_id: int
    flag: int
    queue_offset: int
    offset: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    body: bytes
    topic: str
    properties: bytes


def decode(buffer: Buffer, pos: int = 0) -> Record:
    """Decodes the record at `pos`. ValueError: its sizes contradict each other."""
    size, magic = _UNPACK_BLANK(buffer, pos)
    if magic not in (MAGIC_V1, MAGIC_V2) or not HEADER_BYTES < size <= len(buffer) - pos:
        raise ValueError(f"no record at {pos}: size {size}, magic {magic:#x}")
    (sys_flag,) = _UNPACK_I32(buffer, pos + _SYS_FLAG_AT)
    header = HEADERS[
        HOST_V6_BYTES if sys_flag & BORN_HOST_V6 else HOST_V4_BYTES,
        HOST_V6_BYTES if sys_flag & STORE_HOST_V6 else HOST_V4_BYTES,
    ]
    *fields, body_length = header.unpack_from(buffer, pos)
    at = pos + header.size
    body, at = bytes(buffer[at : at + body_length]), at + body_length
    if magic == MAGIC_V1:
        length, at = buffer[at], at + 1
    else:
        length, at = _UNPACK_I16(buffer, at)[0], at + 2
    topic, at = bytes(buffer[at : at + length]).decode(), at + length
    length, at = _UNPACK_I16(buffer, at)[0], at + 2
    if at + length != pos + size:
        raise ValueError(f"record at {pos}: parts end at {at + length}, size says {pos + size}")
    return Record(*(*fields, body, topic, bytes(buffer[at : at + length])))


def encode(record: Record) -> bytes:
    """Encodes a record; its size, magic and crc are ignored, and computed from the other fields.
    struct.error: a number is out of its field's range."""
    topic = topic_bytes(record.topic)
    tail = topic + PACK_I16(len(record.properties)) + record.properties
    layout = HEADERS[len(record.born_host), len(record.store_host)]
    header = layout.pack(
        layout.size + len(record.body) + len(tail), MAGIC_V1 if len(topic) <= TOPIC_V1_RAW_MAX else MAGIC_V2,
        body_crc(record.body), record.queue_id, record.flag, record.queue_offset, record.offset,
        record.sys_flag, record.born_timestamp, record.born_host, record.store_timestamp, record.store_host,
        record.reconsume_times, record.prepared_offset, len(record.body),
    )  # fmt: skip
    return header + record.body + tail


def host_bytes(host: str, port: int) -> bytes:
    """Returns the raw address and the port as i32: 8 bytes for IPv4, 20 for IPv6."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.inet_pton(family, host) + struct.pack(">i", port)


def host_text(host: bytes) -> str:
    """Returns "address:port" of a host that host_bytes() made."""
    (port,) = _UNPACK_I32(host, len(host) - 4)
    return f"{ipaddress.ip_address(host[:-4])}:{port}"


def offset_message_id(store_host: bytes, offset: int) -> str:
    """Returns the offsetMsgId of a send's response: store host and CommitLog offset in upper-case hex."""
    return f"{store_host.hex().upper()}{offset:016X}"
