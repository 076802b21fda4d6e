"""Framing: cut anywhere, judged at once."""

import struct

import pytest

from keelmq.remoting.frame import FRAME_BYTES_MAX, FrameDecoder, frame_bytes, large_frame, whole_frames
from keelmq.remoting.operation import RemoteProtocolError

FRAME = struct.pack(">II", 4 + 3 + 2, 3) + b"abc" + b"de"


def frames(pieces: list[bytes]) -> list[bytes]:
    decoder, found = FrameDecoder(), []
    for piece in pieces:
        decoder.receive_data(piece)
        while (payload := decoder.next_frame()) is not None:
            found.append(payload)
    assert decoder.pending_bytes == 0
    return found


@pytest.mark.parametrize("cut", range(2 * len(FRAME) + 1))
def test_cut_at_every_byte(cut: int) -> None:
    stream = FRAME * 2
    assert frames([stream[:cut], stream[cut:]]) == [FRAME[4:]] * 2


@pytest.mark.parametrize("cut", range(2 * len(FRAME) + 1))
def test_a_read_is_split_into_its_whole_frames(cut: int) -> None:
    whole = cut // len(FRAME)
    ends = [len(FRAME) * (index + 1) for index in range(whole)]
    assert list(whole_frames((FRAME * 2)[:cut])) == [(0, b"abc", b"de", end) for end in ends]


@pytest.mark.parametrize("length", [-1, 3, 4, 6, 7, 8, 9, FRAME_BYTES_MAX - 3])
@pytest.mark.parametrize("word", [0, 3, 4, 1 << 24, 1 << 24 | 4, 2 << 24, 0x80 << 24, 0xFFFFFFFF])
def test_both_ways_to_split_judge_alike(length: int, word: int) -> None:
    """Else a connection would stop at a frame that one way calls whole and the other does not."""
    stream = FRAME + struct.pack(">iI", length, word) + b"{},x"
    found = list(whole_frames(stream))
    assert found[0] == (0, b"abc", b"de", len(FRAME))
    try:
        size = frame_bytes(stream, len(FRAME), len(stream))
    except RemoteProtocolError:
        assert len(found) == 1
        return
    is_whole = len(FRAME) + size <= len(stream)
    assert [frame[3] for frame in found[1:2]] == ([len(FRAME) + size] if is_whole else [])


def test_a_large_frame_is_one_frame() -> None:
    assert list(large_frame(bytearray(FRAME))) == [(0, b"abc", b"de", len(FRAME))]


def test_byte_by_byte() -> None:
    assert frames([bytes([byte]) for byte in FRAME * 3]) == [FRAME[4:]] * 3


def test_half_a_frame_is_no_frame() -> None:
    decoder = FrameDecoder()
    decoder.receive_data(FRAME + FRAME[:-1])
    assert decoder.next_frame() == FRAME[4:]
    assert decoder.next_frame() is None
    assert decoder.pending_bytes == len(FRAME) - 1


LENGTH_MAX = FRAME_BYTES_MAX - 4


@pytest.mark.parametrize(
    ("start", "text"),
    [
        (struct.pack(">i", -1), "frame length -1"),
        (struct.pack(">i", 3), "frame length 3"),
        (struct.pack(">i", LENGTH_MAX + 1), "frame length"),
        (struct.pack(">II", 8, 5), "header of 5 bytes in a frame of 8"),
        (struct.pack(">II", 8, 2 << 24), "unknown serialize type 2"),
        (struct.pack(">II", 8, 0xFF << 24), "unknown serialize type 255"),
        (b"\x16\x03\x01\x00", "TLS"),
        (b"GET / HTTP/1.1", "HTTP"),
        (b"HTTP/1.1 400 Bad Request", "answer of an HTTP port"),
        (b"PROXY TCP4", "PROXY"),
        (b"\r\n\r\n\x00\r\nQUIT\n", "PROXY"),
    ],
)
def test_garbage_is_refused_as_soon_as_it_is_seen(start: bytes, text: str) -> None:
    decoder = FrameDecoder()
    decoder.receive_data(start)
    with pytest.raises(RemoteProtocolError, match=text):
        decoder.next_frame()


@pytest.mark.parametrize("length", [4, LENGTH_MAX])
def test_smallest_and_largest_frame_are_legal(length: int) -> None:
    decoder = FrameDecoder()
    decoder.receive_data(struct.pack(">II", length, 0) + bytes(length - 4))
    payload = decoder.next_frame()
    assert payload is not None
    assert len(payload) == length
