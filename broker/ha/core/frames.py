"""The packets of the AutoSwitch HA stream in both directions: bytes <-> values. No socket, no clock.

All integers are big-endian. The stream has no magic, no checksum and no version, so every length is checked
before it is used, and no packet is parsed before all of its bytes have arrived. Source: RocketMQ 5.1.1 and
later (a handshake of 16 bytes with the slave's id; older brokers sent an address and are not supported).
"""

import struct
from itertools import pairwise

import msgspec

from keelmq.remoting.operation import RemoteProtocolError

STATE_HANDSHAKE = 1
STATE_TRANSFER = 2

STATE = struct.Struct(">i")
SLAVE_HANDSHAKE = struct.Struct(">ihhq")
"""Slave -> master: state(4)=1 | isSyncFromLastFile(2) | isAsyncLearner(2) | slave brokerControllerId(8)."""

PULLS_METADATA = 2
"""A value of isAsyncLearner: a KeelMQ slave, which must have all metadata to be in sync. RocketMQ tests the
field for 1, so it does not consider this slave a learner."""

ACK = struct.Struct(">iq")
"""Slave -> master: state(4)=2 | maxPhyOffset(8)."""

MASTER_HANDSHAKE = struct.Struct(">iiqi")
"""Master -> slave: state(4)=1 | bodySize(4)=12n | maxPhyOffset(8) | last epoch(4), -1 if none | n epochs."""

EPOCH = struct.Struct(">iq")
"""One epoch of the handshake body: epoch(4) | startOffset(8). Ends are not sent: the next start is the end.
"""

TRANSFER = struct.Struct(">iiqiqq")
"""Master -> slave: state(4)=2 | bodySize(4) | offset(8) | epoch(4) | epoch startOffset(8) |
confirmOffset(8) | body.
"""

SLAVE_HANDSHAKE_BYTES = SLAVE_HANDSHAKE.size  # 16
ACK_BYTES = ACK.size  # 12
MASTER_HANDSHAKE_BYTES = MASTER_HANDSHAKE.size  # 20
TRANSFER_BYTES = TRANSFER.size  # 36

EPOCHS_MAX = 1000
"""Limit of a Java master's handshake buffer, and of what a Java slave can read."""

JAVA_BUFFER_BYTES = 4 << 20
TRANSFER_BODY_BYTES_MAX = JAVA_BUFFER_BYTES - TRANSFER_BYTES
"""A Java slave never completes a larger packet, so no master sends one."""


class SlaveHandshake(msgspec.Struct, frozen=True):
    """The first packet of a link. An async learner copies the log and is never a member of the SyncStateSet.
    pulls_metadata: it requests metadata by 29001, which RocketMQ's replicas never do."""

    slave_id: int
    sync_from_last_file: bool = False
    async_learner: bool = False
    pulls_metadata: bool = False

    def encode(self) -> bytes:
        """Returns the 16 bytes."""
        kind = int(self.async_learner) or (PULLS_METADATA if self.pulls_metadata else 0)
        return SLAVE_HANDSHAKE.pack(STATE_HANDSHAKE, self.sync_from_last_file, kind, self.slave_id)


class Ack(msgspec.Struct, frozen=True, gc=False):
    """The slave has every byte below `offset`."""

    offset: int

    def encode(self) -> bytes:
        """Returns the 12 bytes."""
        return encode_ack(self.offset)


def encode_ack(offset: int) -> bytes:
    """Returns the 12 bytes of an Ack."""
    return ACK.pack(STATE_TRANSFER, offset)


class MasterHandshake(msgspec.Struct, frozen=True):
    """The master's log: its maxOffset, and (epoch, start offset) of each of its epochs, ascending."""

    max_offset: int
    epochs: tuple[tuple[int, int], ...]

    @property
    def last_epoch(self) -> int:
        """The last epoch; -1 if there is none, as on the wire."""
        return self.epochs[-1][0] if self.epochs else -1

    def encode(self) -> bytes:
        """Returns header and epoch list."""
        body = b"".join(EPOCH.pack(epoch, start) for epoch, start in self.epochs)
        return MASTER_HANDSHAKE.pack(STATE_HANDSHAKE, len(body), self.max_offset, self.last_epoch) + body


class TransferHeader(msgspec.Struct, frozen=True, gc=False):
    """The header in front of `body_bytes` raw log bytes at `offset`. No body: a heartbeat, or the first
    mention of an epoch.

    `offset` may be -1 in the heartbeats of a Java master whose log is empty.
    """

    body_bytes: int
    offset: int
    epoch: int
    epoch_start_offset: int
    confirm_offset: int

    def encode(self) -> bytes:
        """Returns the header's bytes, without the body."""
        return encode_transfer(
            self.body_bytes, self.offset, self.epoch, self.epoch_start_offset, self.confirm_offset
        )


def encode_transfer(
    body_bytes: int, offset: int, epoch: int, epoch_start_offset: int, confirm_offset: int
) -> bytes:
    """Returns the 36 bytes of a TransferHeader."""
    return TRANSFER.pack(STATE_TRANSFER, body_bytes, offset, epoch, epoch_start_offset, confirm_offset)


class SlaveStreamDecoder:
    """The stream from a slave to its master: receive_data() stores bytes, next_packet() returns a packet, or
    None for 'need more'."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def lone_ack(self, data: bytes) -> int | None:
        """Returns the offset if `data` is exactly one ack and nothing is buffered: the usual case. None: use
        receive_data()."""
        if len(data) != ACK_BYTES or self._buffer:
            return None
        state, offset = ACK.unpack(data)
        return int(offset) if state == STATE_TRANSFER else None

    def receive_data(self, data: bytes) -> None:
        self._buffer += data

    def next_packet(self) -> SlaveHandshake | Ack | None:
        """Returns the next packet; None: it is incomplete. Raises RemoteProtocolError for a state number that
        no slave sends."""
        if len(self._buffer) < 4:
            return None
        (state,) = STATE.unpack_from(self._buffer)
        if state == STATE_TRANSFER:
            return self._next_ack()
        if state == STATE_HANDSHAKE:
            return self._next_handshake()
        raise RemoteProtocolError(f"HA packet with state {state} from a slave")

    def _next_ack(self) -> Ack | None:
        if len(self._buffer) < ACK_BYTES:
            return None
        _, offset = ACK.unpack_from(self._buffer)
        del self._buffer[:ACK_BYTES]
        return Ack(offset)

    def _next_handshake(self) -> SlaveHandshake | None:
        if len(self._buffer) < SLAVE_HANDSHAKE_BYTES:
            return None  # RocketMQ parses at 12 bytes, before the id has arrived
        _, last_file, kind, slave_id = SLAVE_HANDSHAKE.unpack_from(self._buffer)
        del self._buffer[:SLAVE_HANDSHAKE_BYTES]
        return SlaveHandshake(slave_id, last_file == 1, kind == 1, kind == PULLS_METADATA)


def master_handshake_body_bytes(head: bytes | bytearray) -> int:
    """Returns how many bytes follow the 20-byte head of a master's handshake. Raises RemoteProtocolError for
    another packet."""
    state, body_bytes, _, _ = MASTER_HANDSHAKE.unpack(head)
    if state != STATE_HANDSHAKE:
        raise RemoteProtocolError(f"HA packet with state {state} where the master's handshake was due")
    if body_bytes % EPOCH.size or not 0 <= body_bytes <= JAVA_BUFFER_BYTES:
        raise RemoteProtocolError(f"HA handshake with a body of {body_bytes} bytes")
    return int(body_bytes)


def parse_master_handshake(packet: bytes | bytearray) -> MasterHandshake:
    """Parses head and body. Raises RemoteProtocolError unless epochs ascend and offsets never go back."""
    _, _, max_offset, last_epoch = MASTER_HANDSHAKE.unpack_from(packet)
    epochs = tuple(EPOCH.iter_unpack(memoryview(packet)[MASTER_HANDSHAKE_BYTES:]))
    if any(later[0] <= earlier[0] or later[1] < earlier[1] for earlier, later in pairwise(epochs)):
        raise RemoteProtocolError(f"HA handshake with epochs out of order: {epochs}")
    if epochs and epochs[-1][0] != last_epoch:
        raise RemoteProtocolError(
            f"HA handshake: last epoch {last_epoch}, but the list ends at {epochs[-1][0]}"
        )
    return MasterHandshake(max_offset, epochs)


def parse_transfer_header(head: bytes | bytearray | memoryview) -> TransferHeader:
    """Parses 36 bytes. Raises RemoteProtocolError for another state or an impossible body size."""
    state, body_bytes, offset, epoch, epoch_start_offset, confirm_offset = TRANSFER.unpack(head)
    if state != STATE_TRANSFER:
        raise RemoteProtocolError(f"HA packet with state {state} where a transfer was due")
    if not 0 <= body_bytes <= TRANSFER_BODY_BYTES_MAX:
        raise RemoteProtocolError(f"HA transfer with a body of {body_bytes} bytes")
    return TransferHeader(body_bytes, offset, epoch, epoch_start_offset, confirm_offset)
