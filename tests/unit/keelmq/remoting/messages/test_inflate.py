"""What inflates, what does not, and how much memory a bomb gets."""

import os
import sys
import tracemalloc
import zlib

import pytest

from keelmq.client.message import BODY_BYTES_MAX, COMPRESSED_FLAG, inflated_body
from keelmq.remoting.messages.inflate import Codec, InflatedTooLarge, InflateError, inflated
from tests.support.bodies import LZ4, PACKERS, ZLIB, ZSTD, malformed

PACKED = {Codec.ZLIB: PACKERS[ZLIB], Codec.LZ4: PACKERS[LZ4], Codec.ZSTD: PACKERS[ZSTD]}
BODIES = (b"", b"x", b"abc" * 100_000, os.urandom(70_000))


@pytest.mark.parametrize("codec", Codec)
def test_bodies_up_to_the_limit(codec: Codec) -> None:
    for body in BODIES:
        packed = PACKED[codec](body)
        assert inflated(packed, codec, len(body)) == body
        assert inflated(packed + b"tail", codec, len(body)) == body
        if body:
            with pytest.raises(InflatedTooLarge, match=rf"{codec.value} .* more than {len(body) - 1} bytes"):
                inflated(packed, codec, len(body) - 1)


@pytest.mark.parametrize("codec", Codec)
def test_a_cut_body_is_refused_wherever_it_is_cut(codec: Codec) -> None:
    packed = PACKED[codec](b"the quick brown fox" * 9)
    for length in range(len(packed)):
        with pytest.raises(InflateError, match=codec.value):
            inflated(packed[:length], codec, 10_000)


@pytest.mark.parametrize("codec", Codec)
def test_a_bomb_gets_no_more_memory_than_the_limit_allows(codec: Codec) -> None:
    limit = 1 << 20
    bomb = PACKED[codec](bytes(64 * limit))
    tracemalloc.start()
    try:
        with pytest.raises(InflatedTooLarge):
            inflated(bomb, codec, limit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * limit + 2 * len(bomb), "of 64 MiB"


def test_a_codec_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    with pytest.raises(InflateError, match=r"LZ4 needs the package lz4.frame, which is not installed"):
        inflated(PACKERS[LZ4](b"x"), Codec.LZ4, 10)


@pytest.mark.parametrize(
    ("flag", "body"), [row[1:] for row in malformed(1_000)], ids=[row[0] for row in malformed(1_000)]
)
def test_malformed_bodies_are_refused_by_name(flag: int, body: bytes) -> None:
    with pytest.raises(InflateError, match=r"ZLIB|LZ4|ZSTD"):
        inflated_body(body, flag, 1_000)


def test_flags_of_java_producers() -> None:
    for flag, pack in PACKERS.items():
        assert inflated_body(pack(b"hello"), flag, 5) == b"hello"
    assert inflated_body(b"plain", 0, 0) == b"plain", "not compressed: no limit"
    assert inflated_body(b"plain", 0x300, 0) == b"plain"
    assert inflated_body(zlib.compress(b"x"), COMPRESSED_FLAG, BODY_BYTES_MAX) == b"x"
