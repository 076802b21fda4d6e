"""The record of epochFileCheckpoint.wal, without and with a file."""

import os
from pathlib import Path
from unittest.mock import patch

import pytest

from broker.ha.epoch_wal import (
    CONTENT_BYTES_MAX,
    FILE_BYTES,
    WAL_BYTES,
    Base,
    EpochRecord,
    EpochWal,
    base_of,
    decode_record,
    encode_record,
    wal_of,
)

RECORDS = [
    EpochRecord(base_of(None), b"1\n1725254278\n1-0\n"),
    EpochRecord(base_of(b"1\n1725254278\n1-0\n"), b"2\n1131518206\n1-0\n3-4096\n"),
    EpochRecord(base_of(b""), b""),
    EpochRecord(base_of(b"x"), b"y" * CONTENT_BYTES_MAX),
]


@pytest.mark.parametrize("record", RECORDS)
def test_round_trip(record: EpochRecord) -> None:
    data = encode_record(record)
    assert len(data) <= WAL_BYTES
    assert decode_record(data) == record
    assert decode_record(data.ljust(WAL_BYTES, b"\0")) == record


def test_the_layout() -> None:
    record = EpochRecord(Base(3, 0x352441C2), b"new")
    assert base_of(b"abc") == record.base
    assert encode_record(record).hex() == "4b45454c45504f31c5603adc0000000000000003352441c2000000036e6577"


def test_a_file_and_no_file_are_different_bases() -> None:
    assert base_of(None) != base_of(b"")


@pytest.mark.parametrize("before", [bytes(200), encode_record(RECORDS[0]).ljust(200, b"\0")])
def test_a_record_that_is_torn_at_any_byte_is_none(before: bytes) -> None:
    """Either part may reach the disk. The other part is what was there before: zeros, or another record."""
    data = encode_record(RECORDS[1])
    for end in range(len(data)):
        assert decode_record(data[:end]) is None
        for torn in (data[:end] + before[end:], before[:end] + data[end:]):
            whole = [each for each in RECORDS[:2] if torn.startswith(encode_record(each))]
            assert decode_record(torn) == (whole[0] if whole else None), end


def test_any_changed_byte_is_found() -> None:
    data = encode_record(RECORDS[1])
    for at in range(len(data)):
        assert decode_record(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) is None


def test_the_file_is_made_once_and_keeps_its_record(tmp_path: Path) -> None:
    wal = EpochWal(wal_of(tmp_path / "sub" / "epochFileCheckpoint"))
    assert wal.read() is None
    wal.clear()
    assert not wal.path.exists(), "nothing to remove is no reason for a file"
    wal.prepare()
    assert wal.path == tmp_path / "sub" / "epochFileCheckpoint.wal"
    assert wal.path.read_bytes() == bytes(FILE_BYTES)
    for record in RECORDS:
        wal.write(record)
        wal.prepare()
        assert wal.read() == record
    wal.clear()
    assert wal.read() is None
    assert wal.path.stat().st_size == FILE_BYTES


def test_a_file_that_was_not_completed_is_completed(tmp_path: Path) -> None:
    wal = EpochWal(tmp_path / "w")
    wal.path.write_bytes(encode_record(RECORDS[1]))
    wal.prepare()
    assert (wal.read(), wal.path.stat().st_size) == (RECORDS[1], FILE_BYTES)


def test_a_disk_that_writes_in_pieces(tmp_path: Path) -> None:
    wal, real = EpochWal(tmp_path / "w"), os.pwrite
    wal.prepare()
    with patch("os.pwrite", lambda file, data, offset: real(file, data[:7], offset)):
        wal.write(RECORDS[1])
    assert wal.read() == RECORDS[1]
