"""HA packets against streams captured between two Java brokers, and against what is cut or wrong."""

from pathlib import Path

import pytest

from broker.ha.core import frames
from broker.ha.core.frames import Ack, MasterHandshake, SlaveHandshake, SlaveStreamDecoder, TransferHeader
from remoting.operation import RemoteProtocolError

FIXTURES = Path(__file__).parent.parent / "fixtures" / "ha"
LINKS = ("link-1", "link-2")


def decode_slave_stream(data: bytes, step: int) -> list[SlaveHandshake | Ack]:
    decoder, packets = SlaveStreamDecoder(), []
    for start in range(0, len(data), step):
        decoder.receive_data(data[start : start + step])
        while (packet := decoder.next_packet()) is not None:
            packets.append(packet)
    return packets


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_slave_stream_decodes_and_encodes_to_the_same_bytes(link: str, step: int) -> None:
    data = (FIXTURES / f"{link}.slave-to-master.bin").read_bytes()
    packets = decode_slave_stream(data, step)
    assert isinstance(packets[0], SlaveHandshake)
    assert all(isinstance(packet, Ack) for packet in packets[1:])
    assert b"".join(packet.encode() for packet in packets) == data


@pytest.mark.parametrize("link", LINKS)
def test_master_stream_decodes_and_encodes_to_the_same_bytes(link: str) -> None:
    data = (FIXTURES / f"{link}.master-to-slave.bin").read_bytes()
    head = data[: frames.MASTER_HANDSHAKE_BYTES]
    pos = len(head) + frames.master_handshake_body_bytes(head)
    again = frames.parse_master_handshake(data[:pos]).encode()
    while pos < len(data):
        header = frames.parse_transfer_header(data[pos : pos + frames.TRANSFER_BYTES])
        pos += frames.TRANSFER_BYTES
        again += header.encode() + data[pos : pos + header.body_bytes]
        pos += header.body_bytes
    assert again == data


def test_known_packets() -> None:
    assert SlaveHandshake(2).encode().hex(" ", 4) == "00000001 00000000 00000000 00000002"
    assert Ack(5000).encode().hex(" ", 4) == "00000002 00000000 00001388"
    handshake = MasterHandshake(5000, ((1, 0), (3, 4096)))
    assert handshake.encode().hex() == (
        "0000000100000018000000000000138800000003000000010000000000000000000000030000000000001000"
    )
    assert TransferHeader(100, 5000, 3, 4096, 4900).encode().hex() == (
        "000000020000006400000000000013880000000300000000000010000000000000001324"
    )
    assert MasterHandshake(0, ()).encode().hex() == "00000001000000000000000000000000ffffffff"


def test_a_handshake_needs_all_16_bytes() -> None:
    """Pitfall 39: at 12 bytes the id has not arrived."""
    decoder = SlaveStreamDecoder()
    decoder.receive_data(SlaveHandshake(7, sync_from_last_file=True, async_learner=True).encode()[:15])
    assert decoder.next_packet() is None
    decoder.receive_data(b"\x07")
    assert decoder.next_packet() == SlaveHandshake(7, sync_from_last_file=True, async_learner=True)
    assert decoder.next_packet() is None


@pytest.mark.parametrize("state", [0, 3, 4, 5, -1, 1 << 30])
def test_an_unknown_state_is_one_clean_error(state: int) -> None:
    decoder = SlaveStreamDecoder()
    decoder.receive_data(state.to_bytes(4, "big", signed=True))
    with pytest.raises(RemoteProtocolError):
        decoder.next_packet()


@pytest.mark.parametrize(
    "packet",
    [
        MasterHandshake(10, ((1, 0), (1, 5))),
        MasterHandshake(10, ((1, 5), (2, 4))),
        MasterHandshake(10, ((2, 0), (1, 5))),
    ],
)
def test_epochs_out_of_order_are_refused(packet: MasterHandshake) -> None:
    with pytest.raises(RemoteProtocolError):
        frames.parse_master_handshake(packet.encode())


@pytest.mark.parametrize("body_bytes", [-1, 1, 13, frames.JAVA_BUFFER_BYTES * 12])
def test_an_impossible_handshake_size_is_refused(body_bytes: int) -> None:
    with pytest.raises(RemoteProtocolError):
        frames.master_handshake_body_bytes(frames.MASTER_HANDSHAKE.pack(1, body_bytes, 0, -1))


@pytest.mark.parametrize(("state", "body_bytes"), [(1, 0), (9, 0), (2, -1), (2, (4 << 20) - 35)])
def test_an_impossible_transfer_is_refused(state: int, body_bytes: int) -> None:
    with pytest.raises(RemoteProtocolError):
        frames.parse_transfer_header(frames.TRANSFER.pack(state, body_bytes, 0, 1, 0, 0))
