"""Frames between a container's supervisor and its workers: any cut, any garbage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.container.core.frames import LENGTH_BYTES, FrameDecoder, FrameError, encode_frame

PAYLOADS = st.lists(st.binary(min_size=1, max_size=40), max_size=6)


def decoded(decoder: FrameDecoder) -> list[bytes]:
    frames = []
    while (frame := decoder.next_frame()) is not None:
        frames.append(frame)
    return frames


@given(PAYLOADS, st.data())
def test_frames_survive_any_cut(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(encode_frame, payloads))
    decoder, got = FrameDecoder(), []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        decoder.receive_data(stream[:cut])
        stream = stream[cut:]
        got += decoded(decoder)
    assert got == payloads
    assert decoder.stored_bytes == 0


@given(PAYLOADS.filter(bool), st.data())
def test_a_frame_that_is_cut_at_the_end_is_no_frame(payloads: list[bytes], data: st.DataObject) -> None:
    """The worker was killed while it wrote."""
    last = encode_frame(payloads[-1])
    kept = data.draw(st.integers(1, len(last) - 1))
    decoder = FrameDecoder()
    decoder.receive_data(b"".join(map(encode_frame, payloads[:-1])) + last[:kept])
    assert decoded(decoder) == payloads[:-1]
    assert decoder.stored_bytes == kept


@given(st.lists(st.binary(max_size=30), max_size=8))
def test_any_garbage_is_frames_or_one_error(pieces: list[bytes]) -> None:
    decoder, bytes_max, received = FrameDecoder(16), 16, 0
    for piece in pieces:
        decoder.receive_data(piece)
        received += len(piece)
        try:
            frames = decoded(decoder)
        except FrameError:
            with pytest.raises(FrameError):
                decoder.next_frame()  # and there is nothing after it
            return
        assert all(0 < len(frame) <= bytes_max for frame in frames)
        assert decoder.stored_bytes < LENGTH_BYTES + bytes_max


@pytest.mark.parametrize("size", [0, 17])
def test_bounds_hold_in_both_directions(size: int) -> None:
    with pytest.raises(FrameError, match=f"a frame of {size} bytes"):
        encode_frame(b"x" * size, 16)
    decoder = FrameDecoder(16)
    decoder.receive_data(size.to_bytes(LENGTH_BYTES, "big"))
    with pytest.raises(FrameError):
        decoder.next_frame()
    assert len(encode_frame(b"x" * 16, 16)) == LENGTH_BYTES + 16
