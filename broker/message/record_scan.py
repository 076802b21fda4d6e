"""Reads the fields that queues need from many records of the log, in one pass over their bytes.

Used to read stored records by a replica, for the bytes that it has copied, and by a start. It stops in front
of a record that the caller must parse with record.parse(): one of a queue that has no QueueScan yet,
an inner batch, one whose unit has more than the tag's hash, one out of order, and one that is not whole or
not good. Pure; a compiled leaf.
"""

import struct
from typing import Any, Final, NamedTuple, TypeAlias

from isal.isal_zlib import crc32

from broker.message.indexed_keys import Keyed
from broker.message.inner_batch import INNER_BATCH, sys_flag_at
from broker.message.property_scan import scan
from broker.message.record import (
    BLANK_BYTES,
    BORN_HOST_V6,
    CRC_MASK,
    HEADER_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    STORE_HOST_V6,
    TRANSACTION_BITS,
    TRANSACTION_PREPARED,
    index_keys,
    parse,
)
from keelmq.runtime.compiled import is_compiled, prefer_twin

QUEUE, IS_PLAIN, FIRST, NEXT, UNITS, LOG_BYTES, PREFIX_HASH = range(7)
"""The members of a QueueScan."""
QueueScan: TypeAlias = list[Any]
"""[queue, is plain: a record's unit only needs its tag, first queue offset of the units or -1, queue
offset behind the last record or -1, packed units (a bytearray), total size of their records, key_prefix_hash]
of one queue."""
QueueScans: TypeAlias = dict[bytes, dict[int, QueueScan]]
"""By topic and queueId."""

_IS_COMPILED: Final = is_compiled(__file__)
_ROLLED_BACK: Final = 0x8
_NO_QUEUES: Final[dict[int, QueueScan]] = {}
_UNIT = struct.Struct(">qiq")
_UNIT_BYTES: Final = 20
_SIGN: Final = 0x80000000
_STORED_AT: Final = 56
_STORED_V6_AT: Final = 68  # behind an IPv6 BORNHOST


class Scanned(NamedTuple):
    """end: log offset behind the last record that was read. records: how many were. timestamp: STORETIMESTAMP
    (ms) of the last one that belongs to a queue; 0: none does. queue_scans: that got a record."""

    end: int
    records: int
    timestamp: int
    queue_scans: list[QueueScan]


def new_queue_scan(queue: object, prefix_hash: int, *, is_plain: bool) -> QueueScan:
    """Returns a QueueScan without records. prefix_hash: java_hash(topic + "#")."""
    return [queue, is_plain, -1, -1, bytearray(), 0, prefix_hash]


def clear(queue_scan: QueueScan) -> None:
    """Forgets the records that were read for this queue."""
    queue_scan[FIRST:PREFIX_HASH] = (-1, -1, bytearray(), 0)


def scan_ends(raw: bytes, offset: int, count_max: int, queue_scans: QueueScans) -> Scanned:
    """Reads records for the next offsets of their queues: NEXT of each QueueScan is raised. raw: bytes of the
    log from `offset` on. At most count_max records are read."""
    if _IS_COMPILED:
        return _scanned(raw, offset, count_max, queue_scans, None, False, False)
    return _interpreted(raw, offset, count_max, queue_scans, None, False, False)


def scan_units(
    raw: bytes,
    offset: int,
    count_max: int,
    queue_scans: QueueScans,
    keys: list[Keyed] | None,
    *,
    check_crc: bool,
) -> Scanned:
    """Reads records for their units: each QueueScan gets those of consecutive queue offsets, FIRST to NEXT.
    For the other arguments see scan_ends(). keys: gets the keys of every record; None: not needed. check_crc:
    of record.parse()."""
    if _IS_COMPILED:
        return _scanned(raw, offset, count_max, queue_scans, keys, True, check_crc)
    return _interpreted(raw, offset, count_max, queue_scans, keys, True, check_crc)


def _interpreted(
    raw: bytes,
    offset: int,
    count_max: int,
    queue_scans: QueueScans,
    keys: list[Keyed] | None,
    has_units: bool,
    check_crc: bool,
) -> Scanned:
    pos, count, timestamp, end = 0, 0, 0, len(raw)
    touched: list[QueueScan] = []
    while pos < end and count < count_max:
        parsed = parse(raw, pos, end, offset=offset + pos, check_crc=check_crc)
        if parsed is None:
            break
        size, topic, queue_id, queue_offset, code, stored, properties = parsed
        if topic:
            queue_scan = queue_scans.get(topic, {}).get(queue_id)
            if queue_scan is None or sys_flag_at(raw, pos) & INNER_BATCH:
                break
            if has_units:
                if not queue_scan[IS_PLAIN] or (queue_scan[FIRST] >= 0 and queue_offset != queue_scan[NEXT]):
                    break
                if queue_scan[FIRST] < 0:
                    queue_scan[FIRST] = queue_offset
                    touched.append(queue_scan)
                queue_scan[UNITS] += _UNIT.pack(offset + pos, size, code)
                queue_scan[LOG_BYTES] += size
                queue_scan[NEXT] = queue_offset + 1
                if keys is not None:
                    keys.append((queue_scan[PREFIX_HASH], offset + pos, stored, *index_keys(properties)))
            else:
                if queue_scan[NEXT] < 0:
                    touched.append(queue_scan)
                queue_scan[NEXT] = max(queue_scan[NEXT], queue_offset + 1)
            timestamp = stored
        pos += size
        count += 1
    return Scanned(offset + pos, count, timestamp, touched)


# -- compiled --------------------------------------------------------------------------------------


def _scanned(
    source: bytes,
    offset: int,
    count_max: int,
    queue_scans: QueueScans,
    keys: list[Keyed] | None,
    has_units: bool,
    check_crc: bool,
) -> Scanned:
    raw, end = source, len(source)
    pos = count = timestamp = topic_at = topic_bytes = 0
    queue_id = last_queue_id = -1
    queues: dict[int, QueueScan] = {}
    queue_scan: QueueScan | None = None
    touched: list[QueueScan] = []
    unit, parts = bytearray(_UNIT_BYTES), [0, 0, 0, 0, 0]
    unit_target = unit
    while pos < end and count < count_max:
        size = _layout(raw, pos, end, offset + pos, parts)
        if not size:
            break
        at, text_end, properties_at, record_end = parts[2], parts[3], parts[4], pos + size
        if check_crc and at and not _is_sound(source, raw, pos, record_end, parts):
            break
        sys_flag = _i32(raw, pos + 36) if at else TRANSACTION_PREPARED  # a blank record belongs to no queue
        if sys_flag & TRANSACTION_PREPARED and sys_flag & TRANSACTION_BITS != _ROLLED_BACK:
            pos = record_end
            count += 1
            continue
        if sys_flag & INNER_BATCH:
            break
        queue_id, queue_offset = _i32(raw, pos + 12), _i64(raw, pos + 20)
        if queue_scan is None or text_end - at != topic_bytes or not _is_same(raw, topic_at, at, topic_bytes):
            topic_at, topic_bytes = at, text_end - at
            queues = queue_scans.get(source[at:text_end], _NO_QUEUES)
            queue_scan = queues.get(queue_id)
        elif queue_id != last_queue_id:
            queue_scan = queues.get(queue_id)
        last_queue_id = queue_id
        if queue_scan is None:
            break
        first, following = queue_scan[FIRST], queue_scan[NEXT]
        stored = _i64(raw, pos + (_STORED_V6_AT if sys_flag & BORN_HOST_V6 else _STORED_AT))
        if has_units:
            if not queue_scan[IS_PLAIN] or (first >= 0 and queue_offset != following):
                break
            _, _, _, code, unique_key, own_keys = scan(source[properties_at:record_end])
            if first < 0:
                queue_scan[FIRST] = queue_offset
                touched.append(queue_scan)
            _put(unit_target, 0, 8, offset + pos)
            _put(unit_target, 8, 4, size)
            _put(unit_target, 12, 8, code)
            units = queue_scan[UNITS]
            units += unit
            queue_scan[LOG_BYTES] = queue_scan[LOG_BYTES] + size
            queue_scan[NEXT] = queue_offset + 1
            if keys is not None:
                keys.append((queue_scan[PREFIX_HASH], offset + pos, stored, unique_key, own_keys))
        else:
            if following < 0:
                touched.append(queue_scan)
            if following <= queue_offset:
                queue_scan[NEXT] = queue_offset + 1
        timestamp = stored
        pos = record_end
        count += 1
    return Scanned(offset + pos, count, timestamp, touched)


def _layout(raw: bytes, pos: int, end: int, offset: int, parts: list[int]) -> int:
    """Returns the size of the record at `pos`, whose CommitLog offset is `offset`, as record.parse() finds
    it; 0: it is not whole. parts: get where the body begins, its size, where the topic begins (0: a blank
    record) and ends, and where the properties begin."""
    room = end - pos
    if room < BLANK_BYTES:
        return 0
    size, magic = _i32(raw, pos), _u32(raw, pos + 4)
    if magic == MAGIC_BLANK:
        parts[2] = 0
        return size if BLANK_BYTES <= size <= room else 0
    if room < HEADER_BYTES + 3 or not HEADER_BYTES < size <= room:
        return 0
    if _i64(raw, pos + 28) != offset or _i64(raw, pos + 20) < 0:
        return 0
    sys_flag = _i32(raw, pos + 36)
    body_at, record_end = pos + HEADER_BYTES, pos + size
    if sys_flag & BORN_HOST_V6:
        body_at += 12
    if sys_flag & STORE_HOST_V6:
        body_at += 12
    if body_at >= record_end:
        return 0
    body_bytes = _i32(raw, body_at - 4)
    at = body_at + body_bytes
    if body_bytes < 0 or at + 3 > record_end:
        return 0
    if magic == MAGIC_V1:
        text_end = at + 1 + raw[at]
        at += 1
    elif magic == MAGIC_V2:
        text_end = at + 2 + _i16(raw, at)
        at += 2
    else:
        return 0
    if text_end <= at or text_end + 2 > record_end or text_end + 2 + _i16(raw, text_end) != record_end:
        return 0
    parts[0], parts[1], parts[2], parts[3], parts[4] = body_at, body_bytes, at, text_end, text_end + 2
    return size


def _is_sound(source: bytes, raw: bytes, pos: int, record_end: int, parts: list[int]) -> bool:
    """Whether the body has its checksum, and topic and properties have no zeros. raw: the bytes of source."""
    body_at, body_bytes = parts[0], parts[1]
    crc = crc32(source[body_at : body_at + body_bytes])
    return (
        crc & CRC_MASK == _u32(raw, pos + 8)
        and not _has_zero(raw, parts[2], parts[3])
        and not _has_zero(raw, parts[4], record_end)
    )


def _u32(raw: bytes, at: int) -> int:
    word = raw[at]
    word = word << 8 | raw[at + 1]
    word = word << 8 | raw[at + 2]
    return word << 8 | raw[at + 3]


def _i32(raw: bytes, at: int) -> int:
    word = _u32(raw, at)
    return word if word < _SIGN else word - 2 * _SIGN


def _i16(raw: bytes, at: int) -> int:
    word = raw[at] << 8 | raw[at + 1]
    return word if word < 0x8000 else word - 0x10000


def _i64(raw: bytes, at: int) -> int:
    return _i32(raw, at) * 0x100000000 + _u32(raw, at + 4)


def _has_zero(raw: bytes, begin: int, end: int) -> bool:
    for index in range(begin, end):  # noqa: SIM110 - a loop in C
        if raw[index] == 0:
            return True
    return False


def _is_same(raw: bytes, first: int, second: int, count: int) -> bool:
    for index in range(count):  # noqa: SIM110 - a loop in C
        if raw[first + index] != raw[second + index]:
            return False
    return True


def _put(target: bytearray, at: int, width: int, value: int) -> None:
    """Stores a number big-endian; it may be negative."""
    for index in range(width):
        target[at + width - 1 - index] = value & 0xFF
        value >>= 8


prefer_twin(__name__, globals(), "scan_ends", "scan_units")
