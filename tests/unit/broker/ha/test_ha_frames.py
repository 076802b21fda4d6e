"""HA packets: captured between two brokers of RocketMQ 5.1.4 (fixtures/ha), and as they are stated for 5.3.3;
and what is cut or wrong. Both versions have one layout, 5.1.0 another.
"""

from pathlib import Path

import pytest

from broker.ha.core import frames
from broker.ha.core.frames import Ack, MasterHandshake, SlaveHandshake, SlaveStreamDecoder, TransferHeader
from keelmq.remoting.operation import RemoteProtocolError

FIXTURES = Path(__file__).parents[3] / "fixtures" / "ha"
LINKS = ("link-1", "link-2")
"""5.1.4: an empty slave 2 behind master 1, and slave 1 behind master 2 after an election."""

HEX_5_3_3 = {
    "slave's handshake": "00000001 0000 0000 0000000000000002",
    "ack": "00000002 0000000000001388",
    "master's handshake": "00000001 00000018 0000000000001388 00000003"
    "00000001 0000000000000000 00000003 0000000000001000",
    "transfer": "00000002 00000064 0000000000001388 00000003 0000000000001000 0000000000001324",
    "heartbeat": "00000002 00000000 00000000000013ec 00000003 0000000000001000 0000000000001388",
}
STATED_5_3_3 = {name: bytes.fromhex(text) for name, text in HEX_5_3_3.items()}
"""Of 5.3.3: slave 2, whose log ends at 5000, behind a master with the epochs 1@0 and 3@4096."""


def decode_slave_stream(data: bytes, step: int) -> list[SlaveHandshake | Ack]:
    decoder, packets = SlaveStreamDecoder(), []
    for start in range(0, len(data), step):
        decoder.receive_data(data[start : start + step])
        while (packet := decoder.next_packet()) is not None:
            packets.append(packet)
    return packets


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_slave_stream_of_5_1_4_decodes_and_encodes_to_the_same_bytes(link: str, step: int) -> None:
    data = (FIXTURES / f"{link}.slave-to-master.bin").read_bytes()
    packets = decode_slave_stream(data, step)
    assert isinstance(packets[0], SlaveHandshake)
    assert all(isinstance(packet, Ack) for packet in packets[1:])
    assert b"".join(packet.encode() for packet in packets) == data


@pytest.mark.parametrize("link", LINKS)
def test_master_stream_of_5_1_4_decodes_and_encodes_to_the_same_bytes(link: str) -> None:
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


def decoded(name: str, data: bytes) -> SlaveHandshake | Ack | MasterHandshake | TransferHeader:
    """One packet, or the header of one, by what its name says."""
    if "transfer" in name or "heartbeat" in name:
        return frames.parse_transfer_header(data[: frames.TRANSFER_BYTES])
    if "master" in name.removesuffix("-to-master.bin"):
        return frames.parse_master_handshake(data)
    (packet,) = decode_slave_stream(data, 1 << 20)
    return packet


@pytest.mark.parametrize(
    ("name", "packet"),
    [
        ("link-1.handshake-1.slave-to-master.bin", SlaveHandshake(2)),
        ("link-1.ack-2.slave-to-master.bin", Ack(32_768)),
        ("link-1.handshake-1.master-to-slave.bin", MasterHandshake(43_222, ((1, 0),))),
        ("link-1.transfer-1.master-to-slave.bin", TransferHeader(32_768, 0, 1, 0, 43_222)),
        ("link-1.heartbeat-2.master-to-slave.bin", TransferHeader(0, 43_222, 1, 0, 43_222)),
        ("link-2.handshake-1.master-to-slave.bin", MasterHandshake(87_716, ((1, 0), (2, 87_716)))),
        ("link-2.transfer-1.master-to-slave.bin", TransferHeader(286, 87_716, 2, 87_716, 87_716)),
    ],
)
def test_packets_captured_from_5_1_4(
    name: str, packet: SlaveHandshake | Ack | MasterHandshake | TransferHeader
) -> None:
    data = (FIXTURES / name).read_bytes()
    assert decoded(name, data) == packet
    assert packet.encode() == (data[: frames.TRANSFER_BYTES] if "transfer" in name else data)


@pytest.mark.parametrize(
    ("name", "packet"),
    [
        ("slave's handshake", SlaveHandshake(2)),
        ("ack", Ack(5_000)),
        ("master's handshake", MasterHandshake(5_000, ((1, 0), (3, 4_096)))),
        ("transfer", TransferHeader(100, 5_000, 3, 4_096, 4_900)),
        ("heartbeat", TransferHeader(0, 5_100, 3, 4_096, 5_000)),
    ],
)
def test_packets_stated_for_5_3_3(
    name: str, packet: SlaveHandshake | Ack | MasterHandshake | TransferHeader
) -> None:
    assert decoded(name, STATED_5_3_3[name]) == packet
    assert packet.encode() == STATED_5_3_3[name]


def test_a_master_without_epochs_says_minus_one() -> None:
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
