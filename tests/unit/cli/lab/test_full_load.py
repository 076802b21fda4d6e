"""Numbered batches: what a broker stores of them, and what a reader recognises."""

import struct

import pytest

from cli.lab.full_load import Sent, parse_line
from cli.lab.numbered_batches import BODY_BYTES, BatchTemplate, Numbered, read_numbered

ITEM = struct.Struct(">iiiii")


def items(body: bytes) -> list[tuple[bytes, str]]:
    """Body and properties of each item of a batch."""
    found, at = [], 0
    while at < len(body):
        size, magic, crc, flag, body_bytes = ITEM.unpack_from(body, at)
        assert (magic, crc, flag) == (0, 0, 0)
        start = at + ITEM.size
        properties_at = start + body_bytes + 2
        (length,) = struct.unpack_from(">h", body, properties_at - 2)
        assert properties_at + length == at + size
        found.append((body[start : start + body_bytes], body[properties_at : at + size].decode()))
        at += size
    return found


def test_a_batch_has_its_numbers_and_one_key_for_each_message() -> None:
    template = BatchTemplate(7, 50)
    first, second = items(template.encode(3)), items(template.encode(4))
    assert [read_numbered(body) for body, _ in first] == [Numbered(7, 3, at, 50) for at in range(50)]
    assert [read_numbered(body) for body, _ in second] == [Numbered(7, 4, at, 50) for at in range(50)]
    keys = [properties for _, properties in first + second]
    assert len(set(keys)) == 100
    assert f"UNIQ_KEY\x01{template.key(3)}" in keys[0] and f"UNIQ_KEY\x01{template.key(4)}" in keys[50]


def test_every_flipped_bit_of_a_body_is_recognised() -> None:
    ((body, _),) = items(BatchTemplate(7, 1).encode(3))
    assert len(body) == BODY_BYTES and read_numbered(body) == Numbered(7, 3, 0, 1)
    for bit in range(8 * len(body)):
        damaged = bytearray(body)
        damaged[bit // 8] ^= 1 << bit % 8
        assert read_numbered(bytes(damaged)) is None
    assert read_numbered(bytes(BODY_BYTES)) is None and read_numbered(body[:-1]) is None


def test_the_line_of_a_run_is_read_back() -> None:
    sent = Sent(acked=400_000, seconds=8.0, failed=1)
    assert parse_line(sent.line()) == sent and sent.rate == 50_000
    with pytest.raises(ValueError, match="not a result of full load: 'Traceback'"):
        parse_line("Traceback")
