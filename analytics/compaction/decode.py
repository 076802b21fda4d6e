"""Bytes of lines to columns: the one place that decides which line is a record.

A good line is one that `decode_record` accepts, of the kind of its folder, of a known version, with `ts`
before the year 10000 and numbers that fit their columns. Every other line is counted, with its offset and
its reason. Whatever reads telemetry, from files or as a stream, decodes with this function.
"""

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from analytics.compaction.columns import SCHEMAS, rows_of
from keelmq.remoting.records import RECORD_VERSION, RECORDS, AnyRecord, Record, decode_record, name_of

TS_MAX = 253_402_300_799_999
"""The end of the year 9999: a later time is damage."""
LINE_BYTES_MAX = 16 << 20
BAD_LISTED_MAX = 20
"""Limit of listed bad lines per file; all are counted."""

UNDECODABLE, WRONG_KIND, NEWER, BAD_TS, TOO_LARGE, TOO_LONG, INCOMPLETE = BAD_REASONS = (
    "undecodable",
    "wrong_record",
    "newer_version",
    "ts",
    "number_too_large",
    "line_too_long",
    "incomplete",
)
"""Why a line is bad; INCOMPLETE: the last line of a file that does not grow any more."""

_version = attrgetter("v")
_KINDS: dict[str, type[Record]] = {name_of(record): record for record in RECORDS}
_lines_decoder = msgspec.json.Decoder(AnyRecord)


class BadLine(msgspec.Struct, frozen=True):
    """`offset`: of the line's first byte, in the (decompressed) file. `reason`: one of BAD_REASONS."""

    offset: int
    reason: str
    text: str = ""


@dataclass(slots=True)
class Decoded:
    """`rows`: a table of SCHEMAS[kind], which tables_of() splits. `consumed`: bytes up to the end of the last
    complete line; give the rest again when there is more."""

    kind: str
    rows: pa.Table
    consumed: int
    bad: Counter[str] = field(default_factory=Counter)
    bad_lines: list[BadLine] = field(default_factory=list)
    """The first BAD_LISTED_MAX."""


def decode_lines(data: bytes, kind: str, *, first_offset: int = 0, closed: bool = False) -> Decoded:
    """Decodes the complete lines in `data`; with `closed`, also a last one without its newline.

    `kind`: the name of the record, which is the name of its folder. `first_offset`: of data[0] in its file.
    """
    with _no_gc():
        return _decode(data, kind, first_offset, closed)


@contextmanager
def _no_gc() -> Iterator[None]:
    """Pauses the garbage collector, which would scan all the new objects repeatedly, to no effect."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _decode(data: bytes, kind: str, first_offset: int, closed: bool) -> Decoded:
    end = data.rfind(b"\n") + 1
    rows = _all_lines(data if end == len(data) else data[:end], kind)
    bad: list[BadLine] = []
    records: list[Record] = []
    if rows is None:
        records += _each_line(data[:end].split(b"\n")[:-1], kind, first_offset, bad.append)
    if closed and end < len(data):
        records += _each_line([data[end:]], kind, first_offset + end, _incomplete(bad.append))
        end = len(data)
    if rows is None:
        rows = rows_of(kind, records)
    elif records:
        rows = pa.concat_tables([rows, rows_of(kind, records)])
    return Decoded(kind, rows, end, Counter(each.reason for each in bad), bad[:BAD_LISTED_MAX])


def empty(kind: str) -> pa.Table:
    """Returns a table without rows."""
    return SCHEMAS[kind].empty_table()


def _all_lines(data: bytes, kind: str) -> pa.Table | None:
    """Returns the rows if all lines are good, else None. Three times as fast as line by line.

    msgspec's decode_lines() also accepts two objects on one line, and one object on two lines. Neither is
    possible if each newline is between a "}" and the beginning of a record, and there are as many lines as
    records.
    """
    try:
        records: list[Record] = list(_lines_decoder.decode_lines(data))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if not records:
        return None if data else empty(kind)
    if data.count(b'}\n{"record":') + 1 != len(records) or data.count(b"\n") != len(records):
        return None
    if not (data.startswith(b'{"record":') and data.endswith(b"}\n")):
        return None
    if set(map(type, records)) != {_KINDS[kind]} or max(map(_version, records)) > RECORD_VERSION:
        return None
    rows = _rows(kind, records)
    if rows is None:
        return None
    times = pc.min_max(rows["ts"]).as_py()
    return rows if times["min"] >= 0 and times["max"] <= TS_MAX else None


def _each_line(
    lines: Sequence[bytes], kind: str, offset: int, add_bad: Callable[[BadLine], None]
) -> Iterator[Record]:
    for line in lines:
        record, reason, text = _decoded(line, kind)
        if record is None:
            add_bad(BadLine(offset, reason, text))
        else:
            yield record
        offset += len(line) + 1


def _decoded(line: bytes, kind: str) -> tuple[Record | None, str, str]:
    """Returns the record, or None, the reason and its text."""
    if len(line) > LINE_BYTES_MAX:
        return None, TOO_LONG, f"{len(line)} bytes"
    try:
        record = decode_record(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return None, UNDECODABLE, str(error)[:200]
    if type(record) is not _KINDS[kind]:
        return None, WRONG_KIND, f"{name_of(type(record))} in the folder {kind}"
    if record.v > RECORD_VERSION:
        return None, NEWER, f"v={record.v}, and this program knows {RECORD_VERSION}"
    if not 0 <= record.ts <= TS_MAX:
        return None, BAD_TS, f"ts={record.ts}"
    if _rows(kind, [record]) is None:
        return None, TOO_LARGE, "a number does not fit its column"
    return record, "", ""


def _incomplete(add_bad: Callable[[BadLine], None]) -> Callable[[BadLine], None]:
    def add(line: BadLine) -> None:
        is_half = line.reason == UNDECODABLE
        add_bad(BadLine(line.offset, INCOMPLETE, line.text) if is_half else line)

    return add


def _rows(kind: str, records: Sequence[Record]) -> pa.Table | None:
    """Returns the rows; None: a number does not fit its column."""
    try:
        return rows_of(kind, records)
    except (OverflowError, pa.ArrowInvalid):
        return None
