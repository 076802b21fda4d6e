"""Applies SQL92 filters to stored records: selects the records of a pull that the consumer gets."""

import struct
from collections.abc import Iterable
from typing import Final

from broker.filter.core.sql import Expression
from broker.message.record import BORN_HOST_V6, HEADER_BYTES, MAGIC_V1, STORE_HOST_V6, parse_properties
from broker.store.queue.reading import GetResult, GetStatus

_V6_MORE_BYTES: Final = 12  # than an IPv4 host
_SYS_FLAG_AT: Final = 36
_SIZE_MAGIC = struct.Struct(">iI")
_I32 = struct.Struct(">i")
_I16 = struct.Struct(">h")


def properties_of(view: memoryview, at: int) -> tuple[int, bytes]:
    """Returns the size and the properties of the whole record at `at` (reading.check_records)."""
    size, magic = _SIZE_MAGIC.unpack_from(view, at)
    (sys_flag,) = _I32.unpack_from(view, at + _SYS_FLAG_AT)
    body_at = at + HEADER_BYTES
    body_at += _V6_MORE_BYTES * (bool(sys_flag & BORN_HOST_V6) + bool(sys_flag & STORE_HOST_V6))
    (body_length,) = _I32.unpack_from(view, body_at - 4)
    topic_at = body_at + body_length
    if magic == MAGIC_V1:
        properties_at = topic_at + 1 + view[topic_at] + 2
    else:
        properties_at = topic_at + 2 + _I16.unpack_from(view, topic_at)[0] + 2
    return size, bytes(view[properties_at : at + size])


def select(result: GetResult, expression: Expression) -> GetResult:
    """Returns a FOUND result with the matching records only; NO_MATCHED_MESSAGE if there are none."""
    runs, count = _matching(result.views, expression)
    if not count:
        return result._replace(status=GetStatus.NO_MATCHED_MESSAGE, views=[], message_count=0, body_bytes=0)
    return result._replace(views=runs, message_count=count, body_bytes=sum(len(run) for run in runs))


def _matching(views: Iterable[memoryview], expression: Expression) -> tuple[list[memoryview], int]:
    """Returns the matching records and their number. Adjacent records stay in one view."""
    runs, count = [], 0
    for view in views:
        at = run_start = 0
        while at < len(view):
            size, properties = properties_of(view, at)
            if expression.matches(parse_properties(properties)):
                count += 1
            else:
                if run_start < at:
                    runs.append(view[run_start:at])
                run_start = at + size
            at += size
        if run_start < at:
            runs.append(view[run_start:at])
    return runs, count
