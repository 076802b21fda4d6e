"""Decides whether bytes of another replica may replace a damaged range of this log. Pure.

A piece is accepted only if its records follow each other exactly from its start to its end, each passes its
checksum, every byte of it was first written under the same masterEpochs on both replicas (epoch and start
offset), and no readable data here contradicts it: no sound record here has another body, and no entry of a
ConsumeQueue points into the piece at another record.

BODYCRC covers the body alone. A record's topic and properties are covered by a checksum with
enabledAppendPropCRC=true only, as in RocketMQ.
"""

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from broker.ha.core.epochs import Epochs
from broker.message.lost_record import is_lost_record
from broker.message.prop_crc import RecordParser, parse_with_prop_crc
from broker.message.record import BLANK, BLANK_BYTES, MAGIC_BLANK, Buffer, Parsed

_CRC_AT: Final = 8
_CRC_BYTES: Final = 4

Pairs = tuple[tuple[int, int], ...]
"""(epoch, start offset) of masterEpochs, ascending."""
UnitOf = Callable[[bytes, int, int], tuple[int, int] | None]
"""(topic, queueId, queue offset) -> (CommitLog offset, size) of the entry here; None: there is none."""


class Refusal(StrEnum):
    """Why a piece is not accepted. The values are labels of a metric."""

    CHECKSUM = "checksum"
    EPOCHS = "epochs"
    CONTRADICTED = "contradicted"
    OUTSIDE = "outside"


class Piece(msgspec.Struct, frozen=True):
    """Bytes of a replica's log from `start` on. epochs: those that cover them there."""

    start: int
    data: bytes
    epochs: Pairs

    @property
    def end(self) -> int:
        """The offset behind the last byte."""
        return self.start + len(self.data)


class Placed(NamedTuple):
    """A record of a log: its offset, its content, and whether it is a lost record."""

    offset: int
    parsed: Parsed
    is_lost: bool


def records_of(
    data: Buffer, offset: int, *, file_bytes: int, parser: RecordParser = parse_with_prop_crc
) -> Iterator[Placed]:
    """Yields the sound records that follow each other from the beginning of `data`, which is the log's at
    `offset`. The size of a blank record must lead to the end of its file."""
    pos, end = 0, len(data)
    while pos < end:
        parsed = parser(data, pos, end, offset=offset + pos)
        if parsed is None:
            return
        size, topic = parsed[:2]
        is_blank = not topic and end - pos >= BLANK_BYTES and BLANK.unpack_from(data, pos)[1] == MAGIC_BLANK
        if is_blank and (offset + pos + size) % file_bytes:
            return
        yield Placed(offset + pos, parsed, not is_blank and is_lost_record(data, pos))
        pos += size


def sound_end(data: Buffer, offset: int, *, file_bytes: int) -> int:
    """Returns the offset behind the last of records_of(data, offset); `offset` if the first is not sound."""
    end = offset
    for record in records_of(data, offset, file_bytes=file_bytes):
        end = record.offset + record.parsed[0]
    return end


def covering(epochs: Epochs, start: int, end: int) -> Pairs:
    """Returns the epochs that have a byte of [start, end); () if one of these bytes has no known epoch."""
    found = [entry for entry in epochs.entries if entry.start_offset < end and start < entry.end_offset]
    if not found or found[0].start_offset > start:
        return ()
    return tuple((entry.epoch, entry.start_offset) for entry in found)


def by_epoch(piece: Piece) -> list[Piece]:
    """Returns the parts of a piece that were each written under one masterEpoch there; the whole piece if no
    epoch is named. Two logs may differ from one epoch on, in the middle of a piece."""
    if not piece.epochs:
        return [piece]
    parts: list[Piece] = []
    ends = [start for _, start in piece.epochs[1:]] + [piece.end]
    for epoch, end in zip(piece.epochs, ends, strict=True):
        start = max(epoch[1], piece.start)
        if not piece.start <= start < end <= piece.end:
            return [piece]  # these are not the epochs of these bytes: refused as a whole
        parts.append(Piece(start, piece.data[start - piece.start : end - piece.start], (epoch,)))
    return parts or [piece]


def encode_epochs(pairs: Pairs) -> str:
    """Returns the epochs as the header of 29047 has them."""
    return ",".join(f"{epoch}@{start}" for epoch, start in pairs)


def decode_epochs(text: str) -> Pairs:
    """Parses the result of encode_epochs(). ValueError: another text."""
    pairs = []
    for part in filter(None, text.split(",")):
        epoch, _, start = part.partition("@")
        pairs.append((int(epoch), int(start)))
    return tuple(pairs)


class Here(msgspec.Struct, frozen=True):
    """This replica, for the range of one piece. local: the bytes of the range, damaged ones among them.
    needs_epochs: False without controllers, where there are no epochs."""

    epochs: Epochs
    needs_epochs: bool
    file_bytes: int
    local: bytes
    unit_of: UnitOf


def refusal_of(piece: Piece, here: Here) -> Refusal | None:
    """Returns why the piece must not be written; None: it may be. The caller has checked that it is in the
    damaged range."""
    if len(here.local) != len(piece.data):
        return Refusal.OUTSIDE
    if sound_end(piece.data, piece.start, file_bytes=here.file_bytes) != piece.end:
        return Refusal.CHECKSUM
    ours = covering(here.epochs, piece.start, piece.end)
    if ours != piece.epochs or (here.needs_epochs and not ours):
        return Refusal.EPOCHS
    records = list(records_of(piece.data, piece.start, file_bytes=here.file_bytes))
    if _contradicts_record(piece, here, records) or _contradicts_queue(piece, here, records):
        return Refusal.CONTRADICTED
    return None


def _contradicts_record(piece: Piece, here: Here, records: list[Placed]) -> bool:
    """Whether a record here passes its checksum, at the offset of one with another body."""
    for record in records:
        at = record.offset - piece.start
        mine = next(
            records_of(here.local[at : at + record.parsed[0]], record.offset, file_bytes=here.file_bytes),
            None,
        )
        if mine is None or not mine.parsed[1] or mine.is_lost:
            continue  # blank, lost, or of a transaction: no consumer received it
        crc = slice(at + _CRC_AT, at + _CRC_AT + _CRC_BYTES)
        if here.local[crc] != piece.data[crc] or mine.parsed[0] != record.parsed[0]:
            return True
    return False


def _contradicts_queue(piece: Piece, here: Here, records: list[Placed]) -> bool:
    """Whether an entry here points into the piece at a record with a different number."""
    for offset, parsed, _ in records:
        size, topic, queue_id, number = parsed[:4]
        unit = here.unit_of(topic, queue_id, number) if topic else None
        if unit is not None and piece.start <= unit[0] < piece.end and unit != (offset, size):
            return True
    return False
