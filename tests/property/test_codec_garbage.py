"""Garbage in: one error out, of one kind. What we encode, we decode."""

import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from keelmq.remoting.command import BadRequest, RemotingCommand, SerializeType, decode, decode_body, encode
from keelmq.remoting.frame import FrameDecoder
from keelmq.remoting.operation import RemoteProtocolError
from keelmq.remoting.operations.route import RegisterBrokerBody
from tests.support.slices import share

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
INT32 = st.integers(-(2**31), 2**31 - 1)

COMMANDS = st.builds(
    RemotingCommand,
    code=st.integers(0, 32767),
    opaque=INT32,
    flag=INT32,
    remark=st.none() | TEXT,
    ext_fields=st.dictionaries(TEXT, TEXT, max_size=5),
    body=st.binary(max_size=50),
    language=st.sampled_from(["JAVA", "PYTHON", "GO"]),
    version=st.integers(0, 1000),
    serialize_type=st.sampled_from(SerializeType),
)


def drain(decoder: FrameDecoder) -> None:
    """Decodes until 'need more' or the one legal error."""
    try:
        while (payload := decoder.next_frame()) is not None:
            decode(payload)
    except RemoteProtocolError:
        pass


@given(COMMANDS)
def test_round_trip(command: RemotingCommand) -> None:
    assert decode(encode(command)[4:]) == command


@given(st.binary(max_size=200))
def test_random_bytes(data: bytes) -> None:
    decoder = FrameDecoder()
    decoder.receive_data(data)
    drain(decoder)


@given(st.binary(max_size=200), st.sampled_from([0, 1, 1 << 24, 2 << 24]), st.binary(max_size=9))
def test_random_headers(header: bytes, word: int, body: bytes) -> None:
    decoder = FrameDecoder()
    decoder.receive_data(struct.pack(">II", 4 + len(header) + len(body), word | len(header)) + header + body)
    drain(decoder)


@settings(max_examples=share(300))
@given(COMMANDS, st.data())
def test_one_changed_byte(command: RemotingCommand, data: st.DataObject) -> None:
    frame = bytearray(encode(command))
    frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    decoder = FrameDecoder()
    decoder.receive_data(frame)
    drain(decoder)


@given(st.text(st.sampled_from("{}[]:,\"'\\0129-truefalsn Set\n\x00\u00e9"), max_size=60))
def test_random_bodies(text: str) -> None:
    try:
        decode_body(RegisterBrokerBody, text.encode())
    except BadRequest:
        pass
