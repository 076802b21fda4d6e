"""Garbage at the raft port: one error comes out, whatever goes in; and the log observer bears any entry."""

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from namesrv.plugins.controller.raft.codec import (
    Acknowledgement,
    AppendEntries,
    CodecError,
    Hello,
    MemberListNote,
    VoteEligibility,
    decode_message,
    encode,
)
from namesrv.plugins.controller.raft.membership.member_list import MemberList
from namesrv.plugins.controller.raft.storage.files import DamagedError
from namesrv.plugins.controller.raft.storage.snapshot import decode_snapshot
from namesrv.plugins.controller.raft.transport.certificates import Certificates
from namesrv.plugins.controller.raft.transport.channel import Channel, ChannelError, KeyChannel, PlainChannel
from tests.support.raft_certificates import Authority

FRAMES = [
    encode(each)
    for each in (
        AppendEntries(3, 7, ((b"\x01", 8, 3), (b"\x00abc", 9, 3)), prev_index=7, prev_term=2),
        AppendEntries(3, 7, serialized=(b"x" * 40, True, False)),
        Acknowledgement(9, reset=False, success=True, term=3),
        Hello(1, "c", "n0", "n1", "0123"),
        VoteEligibility("0123", "promised", (("n0", "a"), ("n1", "b"))),
        MemberListNote(4, ("n0", "n1")),
    )
]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    frame = bytearray(draw(st.sampled_from(FRAMES)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(frame) - 1))
        match draw(st.sampled_from(("set", "cut", "insert"))):
            case "set":
                frame[at] = draw(st.integers(0, 255))
            case "cut" if at:
                del frame[at:]
            case "insert":
                frame[at:at] = draw(st.binary(max_size=8))
    return bytes(frame)


@given(mutated() | st.binary(max_size=200))
def test_a_frame_is_a_message_or_one_error(frame: bytes) -> None:
    try:
        message = decode_message(frame)
    except CodecError:
        return
    assert decode_message(encode(message)) == message


@cache
def certificates() -> Certificates:
    with tempfile.TemporaryDirectory() as directory:
        return Certificates(Authority(Path(directory)).issue("n0"), "n0")


CHANNELS: dict[str, Callable[[], Channel]] = {
    "plain": PlainChannel,
    "key": lambda: KeyChannel(bytes(32), "c", dialed=False),
    "tls": lambda: certificates().channel(dialed=False),
    "tls, dialed": lambda: certificates().channel(dialed=True),
}
HELLO_OF_TLS = certificates().channel(dialed=True).start()


@st.composite
def almost_tls(draw: st.DrawFn) -> list[bytes]:
    data = bytearray(HELLO_OF_TLS)
    for _ in range(draw(st.integers(1, 4))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    at = draw(st.integers(0, len(data)))
    return [bytes(data[:at]), bytes(data[at:])]


@given(st.lists(st.binary(max_size=80), max_size=8) | almost_tls(), st.sampled_from(sorted(CHANNELS)))
def test_a_stream_is_frames_or_one_error(pieces: list[bytes], kind: str) -> None:
    channel, with_key = CHANNELS[kind](), kind != "plain"
    channel.start()
    try:
        for piece in pieces:
            channel.receive_data(piece)
            while (frame := channel.next_frame()) is not None:
                assert not with_key, "nobody without the key makes a frame"
                assert len(frame) <= channel.frame_bytes_max
    except ChannelError as error:
        assert len(error.reason) < 40, "the reason is ours, not theirs"


@given(
    st.binary(max_size=100) | st.binary(max_size=60).map(lambda data: b"\x00\x92\x00\x91\xa7members" + data)
)
def test_the_member_list_bears_any_entry(command: bytes) -> None:
    member_list = MemberList({"n0": ("h", 1)})
    member_list.appended(command, 5, 1)
    assert member_list.index in (0, 5)


@given(st.binary(max_size=100))
def test_a_snapshot_is_whole_or_one_error(data: bytes) -> None:
    for attempt in (data, b"KeelSN1\n" + data):
        try:
            decode_snapshot(attempt, "x")
        except (DamagedError, msgspec.MsgspecError) as error:
            assert isinstance(error, DamagedError)
