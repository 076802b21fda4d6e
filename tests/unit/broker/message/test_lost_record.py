"""Records that stand for lost bytes: parsed by everything that parses a log, delivered by nothing."""

import pytest

from broker.message.lost_record import LOST_BYTES_MAX, LOST_BYTES_MIN, is_lost_record, lost_records
from broker.message.record import BLANK_BYTES, MAGIC_BLANK, decode, parse

FILE = 8 << 20


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (0, LOST_BYTES_MIN),
        (0, LOST_BYTES_MIN + 1),
        (500, 500 + 250),
        (7, 7 + LOST_BYTES_MAX),
        (7, 7 + LOST_BYTES_MAX + 1),
        (7, 7 + 3 * LOST_BYTES_MAX + 5),
        (FILE - 8, FILE),
        (FILE - 50, FILE),
        (FILE - 99, FILE),
        (FILE - 100, FILE),
        (FILE - 101, FILE),
        (FILE - LOST_BYTES_MAX - 60, FILE),
        (FILE - 1_000, FILE + 1_000),
        (0, 2 * FILE),
    ],
)
def test_a_chain_of_records_fills_the_range(start: int, end: int) -> None:
    raw = lost_records(start, end, file_bytes=FILE, stored_ms=77)
    assert len(raw) == end - start
    at = 0
    while at < len(raw):
        file_end = (start + at) // FILE * FILE + FILE
        room_end = min(file_end, end) - start
        parsed = parse(raw, at, room_end, offset=start + at, check_crc=True)
        assert parsed is not None
        assert parsed[1] == b"", "no queue gets it"
        if int.from_bytes(raw[at + 4 : at + 8], "big") == MAGIC_BLANK:
            assert start + at + parsed[0] == file_end, "a blank record ends the file"
        else:
            assert is_lost_record(raw, at)
            assert start + at + parsed[0] + BLANK_BYTES <= file_end, "a file ends with a blank record"
            record = decode(raw, at)
            assert record.store_timestamp == 77 and record.offset == start + at
            assert parsed[0] <= LOST_BYTES_MAX
        at += parsed[0]
    assert at == len(raw)


def test_two_replicas_make_the_same_bytes() -> None:
    assert lost_records(9, 5_000, file_bytes=FILE, stored_ms=1) == lost_records(
        9, 5_000, file_bytes=FILE, stored_ms=1
    )


@pytest.mark.parametrize("size", [1, 50, LOST_BYTES_MIN - 1])
def test_a_range_that_is_no_record_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="no room"):
        lost_records(100, 100 + size, file_bytes=FILE, stored_ms=1)
