"""LogCheck, WholeRanges and check_file()."""

import os
import random
from itertools import pairwise
from pathlib import Path

import pytest

from broker.message.record import BLANK, MAGIC_BLANK, Record, encode
from broker.store.log_check import PIECE_BYTES, SEARCH_BYTES, Piece, check_file
from broker.store.whole_ranges import RANGES_MAX, WholeRanges

FILE_BYTES = 32 << 20
BASE = FILE_BYTES  # the second file
HOST = b"\x7f\0\0\1\0\0\0\1"


def record(offset: int, body: bytes) -> bytes:
    return encode(Record(0, 0, 0, 3, 0, 7, offset, 0, 1, HOST, 2, HOST, 0, 0, body, "T", b""))


def log_of(sizes: list[int]) -> tuple[bytearray, list[int]]:
    log, starts = bytearray(), []
    for size in sizes:
        starts.append(len(log))
        log += record(BASE + len(log), bytes([1]) * size)
    return log, [*starts, len(log)]


@pytest.fixture
def checked(tmp_path: Path):  # type: ignore[no-untyped-def]
    def check(log: bytes | bytearray, end: int | None = None) -> list[Piece]:
        path = tmp_path / "log"
        path.write_bytes(log)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            pieces = list(check_file(descriptor, BASE, BASE + (len(log) if end is None else end), FILE_BYTES))
        finally:
            os.close(descriptor)
        ends = [BASE, *(piece.end for piece in pieces)]
        assert [piece.start for piece in pieces] == ends[:-1]
        return pieces

    return check


def bad(pieces: list[Piece]) -> list[tuple[int, int]]:
    return [(piece.start - BASE, piece.end - BASE) for piece in pieces if piece.fault]


def test_whole_files_are_whole(checked) -> None:  # type: ignore[no-untyped-def]
    log, _ = log_of([100] * 5000 + [3 << 20] + [10] * 10)
    assert bad(checked(log)) == []


@pytest.mark.parametrize("what", ["bit", "size", "zeros", "offset"])
def test_exactly_the_damaged_record_is_named(checked, what: str) -> None:  # type: ignore[no-untyped-def]
    log, starts = log_of([100] * 3000 + [3 << 20] + [10] * 10)
    for number in (0, 1, 1500, 2999, 3000, 3001, 3010):
        start, end = starts[number], starts[number + 1]
        damaged = bytearray(log)
        match what:
            case "bit":
                damaged[start + 90] ^= 4
            case "size":
                damaged[start + 3] ^= 4
            case "zeros":
                damaged[start:end] = bytes(end - start)
            case "offset":
                damaged[start + 35] ^= 4
        assert bad(checked(damaged)) == [(start, end)], number


def test_a_long_hole_is_one_range_after_another(checked) -> None:  # type: ignore[no-untyped-def]
    log, starts = log_of([1 << 20] * 30)
    damaged = bytearray(log)
    damaged[starts[2] : starts[28]] = bytes(starts[28] - starts[2])
    found = bad(checked(damaged))
    assert found[0][0] == starts[2] and found[-1][1] == starts[28]
    assert all(end - start <= SEARCH_BYTES for start, end in found)


def test_the_end_of_a_file_is_known_by_its_blank_record(checked) -> None:  # type: ignore[no-untyped-def]
    log, starts = log_of([100, 100])
    rest = FILE_BYTES - len(log)
    log += BLANK.pack(rest, MAGIC_BLANK) + bytes(rest - 8)
    assert bad(checked(log)) == []
    log[starts[1] + 95] ^= 1
    assert bad(checked(log)) == [(starts[1], starts[2])]


def test_a_read_is_a_piece_at_most(tmp_path: Path) -> None:
    log, _ = log_of([100] * 5000)
    (tmp_path / "log").write_bytes(log)
    counts: list[int] = []

    def read(descriptor: int, count: int, position: int, /) -> bytes:
        counts.append(count)
        return os.pread(descriptor, count, position)

    descriptor = os.open(tmp_path / "log", os.O_RDONLY)
    assert len(list(check_file(descriptor, BASE, BASE + len(log), FILE_BYTES, read=read))) == len(counts)
    os.close(descriptor)
    assert max(counts) == PIECE_BYTES


def test_whole_ranges_against_a_set() -> None:
    for seed in range(100):
        rng, whole, model = random.Random(seed), WholeRanges(), set[int]()
        for _ in range(40):
            start = rng.randrange(100)
            if rng.random() < 0.2:
                whole.remove_above(start)
                model = {at for at in model if at < start}
            else:
                end = start + rng.randrange(12)
                whole.add(start, end)
                model |= set(range(start, end))
            assert {at for low, high in whole for at in range(low, high)} == model
            ranges = list(whole)
            assert all(a[1] < b[0] for a, b in pairwise(ranges))
            for at in range(120):
                end = whole.end_of(at)
                assert set(range(at, end)) <= model and (end not in model)


def test_whole_ranges_are_bounded() -> None:
    whole = WholeRanges()
    for number in range(RANGES_MAX + 10):
        whole.add(number * 100, number * 100 + 1 + (number >= 10))
    assert len(list(whole)) == RANGES_MAX
    assert whole.end_of(0) == 0 and whole.end_of(2000) == 2002
