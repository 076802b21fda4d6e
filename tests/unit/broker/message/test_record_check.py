"""good_end() and next_good(), against record.parse()."""

import random
import struct
from itertools import pairwise

import pytest

from broker.message.record import BLANK, MAGIC_BLANK, Record, encode, parse
from broker.message.record_check import all_good, good_end, last_good, next_good

BASE = 1 << 20


def record(offset: int, body: bytes, topic: str = "T", host_bytes: int = 8, properties: bytes = b"") -> bytes:
    host = bytes(host_bytes - 1) + b"\1"
    sys_flag = 0x30 if host_bytes == 20 else 0
    return encode(Record(0, 0, 0, 3, 0, 7, offset, sys_flag, 1, host, 2, host, 0, 0, body, topic, properties))


def some_log(rng: random.Random) -> tuple[bytearray, list[int]]:
    log, starts = bytearray(), []
    for _ in range(rng.randrange(1, 8)):
        starts.append(len(log))
        topic = rng.choice(("T", "a" * 100, "b" * 200))
        body = rng.randbytes(rng.choice((0, 1, 40, 300)))
        log += record(BASE + len(log), body, topic, rng.choice((8, 20)), rng.choice((b"", b"K\1v\2")))
    if rng.random() < 0.5:
        starts.append(len(log))
        log += BLANK.pack(30, MAGIC_BLANK) + bytes(22)
    return log, starts


def by_parsing(view: memoryview, pos: int, end: int, offset: int) -> int:
    at = pos
    while at < end and (parsed := parse(view, at, end, offset=offset + at - pos, check_crc=True)) is not None:
        at += parsed[0]
    return at


@pytest.mark.parametrize("seed", range(40))
def test_good_end_is_what_parse_says(seed: int) -> None:
    rng = random.Random(seed)
    log, starts = some_log(rng)
    assert good_end(memoryview(log), 0, len(log), BASE) == len(log)
    for _ in range(200):
        damaged = bytearray(log)
        for _ in range(rng.randrange(3)):
            damaged[rng.randrange(len(log))] ^= 1 << rng.randrange(8)
        if rng.random() < 0.2:
            at = rng.randrange(len(log))
            damaged[at : at + 64] = bytes(len(damaged[at : at + 64]))
        pos, end = rng.choice(starts), rng.choice((len(log), rng.randrange(len(log) + 1)))
        if pos <= end:
            view = memoryview(damaged)
            assert good_end(view, pos, end, BASE + pos) == by_parsing(view, pos, end, BASE + pos)


@pytest.mark.parametrize("seed", range(20))
def test_all_good_is_good_end_of_each_unit(seed: int) -> None:
    rng = random.Random(seed)
    log, starts = some_log(rng)
    for _ in range(100):
        damaged = bytearray(log)
        if rng.random() < 0.5:
            damaged[rng.randrange(len(log))] ^= 1 << rng.randrange(8)
        places = [(at, end - at) for at, end in zip(starts, [*starts[1:], len(log)], strict=True)]
        chosen = [each for each in places if rng.random() < 0.7]
        if chosen and rng.random() < 0.3:
            at, size = chosen.pop()
            chosen.append((at + rng.choice((-1, 0, 1)), size + rng.choice((-1, 0, 1, 2**30))))
        units = b"".join([struct.pack(">qiq", BASE + at, size, 0) for at, size in chosen])
        view = memoryview(damaged)
        expected = all(
            at >= 0 and at + size <= len(log) and by_parsing(view, at, at + size, BASE + at) == at + size
            for at, size in chosen
        )
        assert all_good(view, BASE, units) is expected
    assert not all_good(memoryview(log), BASE, struct.pack(">qiq", BASE, 0, 0))
    assert not all_good(memoryview(log), BASE, struct.pack(">qiq", -(2**63), 50, 0))


def test_a_range_outside_of_the_view_is_refused() -> None:
    with pytest.raises(IndexError):
        good_end(memoryview(bytes(8)), 0, 9, 0)


@pytest.mark.parametrize("seed", range(20))
def test_lengths_are_signed(seed: int) -> None:
    rng = random.Random(seed)
    log = bytearray(record(BASE, bytes(70_000), "b" * 200, properties=b"K\1v\2"))
    for at in (84, 88 + 70_000, 88 + 70_000 + 2 + 200):
        damaged = bytearray(log)
        struct.pack_into(">H", damaged, at, rng.randrange(0x8000, 0x10000))
        assert good_end(memoryview(damaged), 0, len(log), BASE) == 0


def test_the_next_good_record_is_found_behind_damage() -> None:
    first, body = (
        record(BASE, b"one"),
        record(BASE + 4096, b"a copy of a record in a body has another offset"),
    )
    second = record(BASE + len(first), body)
    third = record(BASE + len(first) + len(second), b"three")
    log = bytearray(first + second + third)
    at = len(first) + len(second)
    log[len(first) : len(first) + 30] = bytes(30)
    view = memoryview(log)
    assert next_good(view, len(first), len(log), BASE + len(first), 9999) == at
    assert next_good(view, at, len(log), BASE + at, 9999) == -1
    assert next_good(view, len(first), at, BASE + len(first), 9999) == -1


def test_a_blank_record_is_the_next_good_one_if_it_ends_the_file() -> None:
    log = record(BASE, b"one") + BLANK.pack(30, MAGIC_BLANK) + bytes(22)
    at = len(log) - 30
    assert next_good(memoryview(log), 0, len(log), BASE, len(log)) == at
    assert next_good(memoryview(log), 0, len(log), BASE, len(log) + 1) == -1


def test_the_last_good_record_in_front_of_a_byte_is_found() -> None:
    first = record(BASE, b"one")
    inner = record(BASE + 4096, b"a copy of a record in a body has another offset")
    second = record(BASE + len(first), inner)
    third = record(BASE + len(first) + len(second), b"three")
    log = bytearray(first + second + third)
    starts = [0, len(first), len(first) + len(second), len(log)]
    view = memoryview(log)
    for at, following in pairwise(starts):
        assert {last_good(view, pos, BASE) for pos in range(at, following)} == {at}
    log[starts[1] + 100] ^= 1
    assert last_good(view, starts[1] + 50, BASE) == 0
    log[starts[0] + 8] ^= 1
    assert last_good(view, starts[1] + 50, BASE) == -1
