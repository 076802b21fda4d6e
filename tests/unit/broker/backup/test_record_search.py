"""Damaged records are found without knowing where records begin."""

import random

from broker.backup.checksums import search_damage
from broker.message.prop_crc import with_empty_crc, with_prop_crcs
from broker.message.record import BLANK, MAGIC_BLANK, Record, encode, host_bytes

BASE = 70_000
FILE_BYTES = 1 << 20
HOST = host_bytes("10.0.0.1", 10911)


def a_log(bodies: list[bytes], base: int = BASE) -> tuple[bytes, list[int]]:
    """Returns records one after the other, and the CommitLog offset of each and of their end."""
    log, starts = b"", [base]
    for number, body in enumerate(bodies):
        record = Record(
            0, 0, 0, 1, 0, number, base + len(log), 0, 1_000, HOST, 2_000, HOST, 0, 0, body, "T", b""
        )
        log += encode(record)
        starts.append(base + len(log))
    return log, starts


def flipped(log: bytes, at: int) -> bytes:
    return log[:at] + bytes([log[at] ^ 1]) + log[at + 1 :]


BODIES = [b"%04d" % number * (1 + number % 7) for number in range(20)]


def test_sound_records_at_every_range() -> None:
    log, starts = a_log(BODIES)
    end = starts[-1]
    for start in range(BASE, end, 3):
        found = search_damage(log, BASE, start, min(start + 64, end), file_bytes=FILE_BYTES, is_boundary=True)
        assert found.damaged == () and found.records >= 1 and found.is_anchored


def test_every_flipped_byte_that_a_check_can_see_is_within_the_record_that_is_named() -> None:
    """Of a record in the middle: sizes, magic code, checksum, offset, body. The other fields have no
    checksum."""
    log, starts = a_log(BODIES)
    start, end = starts[7], starts[8]
    body_at = start - BASE + 88
    checked = [*range(12), *range(28, 36), *range(84, 88), *range(88, 88 + len(BODIES[7]))]
    for field in checked:
        damaged = flipped(log, start - BASE + field)
        for low, high in ((start, end), (start + field, start + field + 1), (BASE, starts[-1])):
            found = search_damage(damaged, BASE, low, high, file_bytes=FILE_BYTES, is_boundary=True)
            assert [(each.start, each.end) for each in found.damaged] == [(start, end)], field
    of_body = search_damage(flipped(log, body_at), BASE, start, end, file_bytes=FILE_BYTES, is_boundary=True)
    assert "does not match its body" in of_body.damaged[0].fault


def test_what_is_beside_the_range_is_not_reported() -> None:
    log, starts = a_log(BODIES)
    damaged = flipped(log, starts[7] - BASE + 90)
    assert (
        search_damage(damaged, BASE, starts[8], starts[9], file_bytes=FILE_BYTES, is_boundary=True).damaged
        == ()
    )
    assert (
        search_damage(damaged, BASE, starts[6], starts[7], file_bytes=FILE_BYTES, is_boundary=True).damaged
        == ()
    )


def test_zeros_over_several_records_end_where_the_next_whole_one_begins() -> None:
    log, starts = a_log(BODIES)
    low, high = starts[5] - BASE, starts[8] - BASE + 10
    damaged = log[:low] + bytes(high - low) + log[high:]
    (found,) = search_damage(
        damaged, BASE, starts[6], starts[6] + 1, file_bytes=FILE_BYTES, is_boundary=True
    ).damaged
    assert (found.start, found.end) == (starts[5], starts[9]) and "size 0" in found.fault


def test_without_a_record_in_front_nothing_is_said_about_the_range() -> None:
    """Unless the data begins where a record does: at the begin of a file."""
    log, starts = a_log(BODIES)
    damaged = bytes(190) + log[190:]
    unknown = search_damage(damaged, BASE, BASE + 10, BASE + 20, file_bytes=FILE_BYTES, is_boundary=False)
    assert not unknown.is_anchored and unknown.damaged[0].fault == "no whole record is in front of it"
    known = search_damage(damaged, BASE, BASE + 10, BASE + 20, file_bytes=FILE_BYTES, is_boundary=True)
    assert known.is_anchored and [each[:2] for each in known.damaged] == [(BASE, starts[2])]


def test_the_checksum_of_a_whole_record_counts_where_there_is_one() -> None:
    """A flipped property is invisible to BODYCRC."""
    records, starts = b"", [BASE]
    for number in range(3):
        properties = with_empty_crc(b"KEYS\x01abc\x02")
        at = BASE + len(records)
        record = Record(0, 0, 0, 1, 0, number, at, 0, 1_000, HOST, 2_000, HOST, 0, 0, b"x", "T", properties)
        records += encode(record)
        starts.append(BASE + len(records))
    log = with_prop_crcs(records)
    assert search_damage(log, BASE, BASE, starts[3], file_bytes=FILE_BYTES, is_boundary=True).damaged == ()
    damaged = flipped(log, log.index(b"abc", starts[1] - BASE))
    for low, high in ((BASE, starts[3]), (starts[2] - 1, starts[2]), (starts[1], starts[1] + 1)):
        (found,) = search_damage(damaged, BASE, low, high, file_bytes=FILE_BYTES, is_boundary=True).damaged
        assert (found.start, found.end) == (starts[1], starts[2]) and "whole record" in found.fault


def test_a_blank_record_ends_a_file() -> None:
    log, starts = a_log(BODIES)
    whole = log + BLANK.pack(100, MAGIC_BLANK) + bytes(92)
    assert (
        search_damage(
            whole, BASE, starts[-1] + 20, starts[-1] + 30, file_bytes=BASE + len(whole), is_boundary=True
        ).damaged
        == ()
    )
    damaged = flipped(whole, starts[-2] - BASE)
    (found,) = search_damage(
        damaged, BASE, starts[-2], starts[-1] + 30, file_bytes=BASE + len(whole), is_boundary=True
    ).damaged
    assert (found.start, found.end) == (starts[-2], starts[-1])


def test_a_body_that_has_records_is_a_body() -> None:
    """A copy of a log in a message has other offsets than the records at its place."""
    inner, _ = a_log([b"inner"] * 3, base=5)
    log, starts = a_log([b"before", inner, b"after"])
    assert (
        search_damage(
            log, BASE, starts[1] + 150, starts[1] + 160, file_bytes=FILE_BYTES, is_boundary=True
        ).damaged
        == ()
    )


def test_random_bytes_end() -> None:
    randomness = random.Random(1)
    for _ in range(200):
        data = randomness.randbytes(randomness.randrange(8, 600))
        found = search_damage(data, BASE, BASE + 3, BASE + 7, file_bytes=FILE_BYTES, is_boundary=True)
        assert found.records == 0 and found.damaged[0].start == BASE
