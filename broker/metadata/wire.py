"""The body of 29001: MetadataUpdates as JSON, deflated if it is large. A whole table may have megabytes.

Rows are converted in pieces. So a thread that encodes or decodes a whole table yields to the event loop,
which a single call of an encoder would block. A piece is one line, and so is the text between the tables:

    {"updates":[
    {"store":"consumerOffsets","version":{...},"gone":{},"rows":{
    "topic1@group":{"0":7},"topic2@group":{"0":9},
    "topic3@group":{"0":1}
    }}
    ]}

Earlier versions of KeelMQ write and expect the same JSON in one line, so each version reads the other's.
"""

import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from broker.metadata.files import PIECE_ROWS
from keelmq.remoting.messages.inflate import Codec, InflateError, inflated
from keelmq.remoting.operations.broker_metadata import MetadataUpdate
from keelmq.remoting.operations.route import DataVersion
from keelmq.runtime.long_work import LongWork

PLAIN_BYTES_MAX = 65_536
INFLATED_BYTES_MAX = 256 << 20
LARGE_ROWS: Final = 1_000
"""A change of more rows is converted by a thread: 1 to 3 ms."""
_LEVEL = 1  # speed matters more, and JSON compresses well at any level


class _Version(msgspec.Struct, rename="camel"):
    state_version: int = 0
    timestamp: int = 0
    counter: int = 0


class _Update(msgspec.Struct):
    store: str
    version: _Version
    base: _Version | None = None
    rows: dict[str, Any] = {}
    gone: dict[str, int] = {}
    parts: dict[str, Any] = {}


class _Updates(msgspec.Struct):
    updates: list[_Update] = []


_BEGIN, _END = b'{"updates":[', b"]}"
_BODY = msgspec.json.Decoder(_Updates, strict=False)
_TABLE = msgspec.json.Decoder(_Update, strict=False)
_ROWS = msgspec.json.Decoder(dict[str, Any])


def is_large(updates: Sequence[MetadataUpdate]) -> bool:
    """Returns whether a thread should convert these updates."""
    return sum(len(update.rows) + len(update.gone) + len(update.parts) for update in updates) > LARGE_ROWS


def encode_updates(updates: list[MetadataUpdate]) -> bytes:
    """Returns the body; deflated above PLAIN_BYTES_MAX."""
    work, plain, size = LongWork(is_shared=is_large(updates)), list[bytes](), 0
    deflate, deflated = zlib.compressobj(_LEVEL), list[bytes]()
    for line in _body_lines(updates):
        work.between()
        size += len(line)
        plain.append(line)
        if size > PLAIN_BYTES_MAX:
            deflated += [deflate.compress(each) for each in plain]
            plain.clear()
    return b"".join((*deflated, deflate.flush()) if deflated else plain)


def _body_lines(updates: list[MetadataUpdate]) -> Iterator[bytes]:
    yield _BEGIN + b"\n"
    for number, update in enumerate(updates):
        if number:
            yield b",\n"
        yield from (line + b"\n" for line in _table_lines(update))
    yield _END


def _table_lines(update: MetadataUpdate) -> Iterator[bytes]:
    head = {"store": update.store, "version": update.version.model_dump(by_alias=True)}
    if update.base is not None:
        head["base"] = update.base.model_dump(by_alias=True)
    if update.parts:
        head["parts"] = update.parts
    yield msgspec.json.encode(head | {"gone": update.gone})[:-1] + b',"rows":{'
    rows, left = iter(update.rows.items()), len(update.rows)
    while piece := dict(islice(rows, PIECE_ROWS)):
        left -= len(piece)
        yield msgspec.json.encode(piece)[1:-1] + (b"," if left else b"")
    yield b"}}"


def decode_updates(raw: bytes) -> list[MetadataUpdate]:
    """Parses the body. Raises ValueError if it is damaged, or inflates to more than INFLATED_BYTES_MAX."""
    is_deflated = bool(raw) and not raw.startswith(b"{")
    if is_deflated:
        try:
            raw = inflated(raw, Codec.ZLIB, INFLATED_BYTES_MAX)
        except InflateError as error:
            raise ValueError(f"metadata cannot be inflated: {error}") from None
    if not raw:
        return []
    begin, *lines = raw.split(b"\n")
    try:
        if begin == _BEGIN and lines:
            return list(_tables(lines, LongWork(is_shared=is_deflated)))
        return [_received(update) for update in _BODY.decode(raw).updates]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"metadata cannot be read: {error}") from None


def _tables(lines: list[bytes], work: LongWork) -> Iterator[MetadataUpdate]:
    update: _Update | None = None
    for line in lines[:-1]:
        work.between()
        if line == b",":
            continue
        if update is None:
            update = _TABLE.decode(line + b"}}")
        elif line == b"}}":
            yield _received(update)
            update = None
        else:
            update.rows.update(_ROWS.decode(b"{" + line.removesuffix(b",") + b"}"))
    if update is not None or lines[-1] != _END:
        raise ValueError("metadata of which the end is missing")


def _received(update: _Update) -> MetadataUpdate:
    return MetadataUpdate.model_construct(
        store=update.store,
        version=_data_version(update.version),
        base=None if update.base is None else _data_version(update.base),
        rows=update.rows,
        gone=update.gone,
        parts=update.parts,
    )


def _data_version(version: _Version) -> DataVersion:
    return DataVersion(
        state_version=version.state_version, timestamp=version.timestamp, counter=version.counter
    )


def encode_update(update: MetadataUpdate) -> bytes:
    """Returns one line of a journal. Format 1 is the update. Format 2 has parts of rows: releases that do not
    know them find no update in the line, and refuse the journal instead of ignoring the changes."""
    line = b"".join(_table_lines(update))
    return b'{"format":2,"update":%b}' % line if update.parts else line


def update_of_line(value: Any) -> MetadataUpdate:
    """Returns the update of a journal's line. Raises ValueError, TypeError or ValidationError."""
    if isinstance(value, dict) and "format" in value:
        if value["format"] != 2:
            raise ValueError(f"format {value['format']!r} is of a later release")
        value = value.get("update")
    return MetadataUpdate.model_validate(value)
