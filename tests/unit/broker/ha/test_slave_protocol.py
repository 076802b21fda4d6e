"""SlaveProtocol: what a read brings goes to its place, wherever it was cut; a small packet is one read."""

import asyncio
import random
import threading
from pathlib import Path
from typing import cast
from unittest.mock import Mock, patch

import pytest

from broker.ha import slave_protocol
from broker.ha.core.epochs import Epochs
from broker.ha.core.frames import ACK, MasterHandshake, SlaveHandshake, TransferHeader
from broker.ha.core.hello import Admitted, Group, MasterHello, SlaveHello
from broker.ha.core.slave_link import SlaveLink
from broker.ha.epoch_file import EpochFile
from broker.ha.log_epochs import EpochSave, LogEpochs
from broker.ha.slave_protocol import CONTROL_BYTES, TURN_BYTES_MAX, SlaveProtocol
from broker.store.message_store import StoreConfig
from broker.store.offline import offline_store
from tests.support.client_parts import until
from tests.support.ha_parts import slave_settings

FILE_BYTES = 64 << 10


class Transport:
    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.aborted = False
        self.reading = asyncio.Event()
        self.reading.set()

    def is_reading(self) -> bool:
        return self.reading.is_set()

    def pause_reading(self) -> None:
        self.reading.clear()

    def resume_reading(self) -> None:
        self.reading.set()

    def is_closing(self) -> bool:
        return self.aborted

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def abort(self) -> None:
        self.aborted = True
        self.reading.set()  # nobody waits any more

    @property
    def acks(self) -> list[int]:
        """Offsets, also of acks that were written together; the first write is a handshake or a hello."""
        acks = [data for data in self.written if data and len(data) % ACK.size == 0]
        return [offset for data in acks for _, offset in ACK.iter_unpack(data)]


class Owner:
    confirm = 0

    def __init__(self, root: Path) -> None:
        self.log_epochs = LogEpochs(root / "epochFileCheckpoint", lambda epochs: None)

    def confirm_offset_received(self, offset: int) -> None:
        self.confirm = offset

    def log_truncated(self, before: int, end: int) -> None:
        raise AssertionError("nothing to cut")


class Slave:
    def __init__(self, root: Path, group: Group | None = None) -> None:
        self.store = offline_store(StoreConfig(root, FILE_BYTES, 6000))
        self.store.load()
        self.owner, self.transport = Owner(root), Transport()

        def new_hello(_: asyncio.Transport, now_ms: int) -> SlaveHello:
            assert group is not None
            return SlaveHello(group, 2, nonce=bytes(32), binding=b"", now_ms=now_ms)

        link = SlaveLink(2, slave_settings(FILE_BYTES), epochs=Epochs(), min_offset=0, max_offset=0, now_ms=0)
        self.protocol = SlaveProtocol(
            link, self.store, self.owner, lambda: 0, None, None if group is None else new_hello
        )
        self.protocol.connection_made(cast(asyncio.BaseTransport, self.transport))
        self.reads = 0

    async def receive(self, stream: bytes, step: int) -> None:
        """As a socket does: never more than there is room for, or has come, and nothing while paused."""
        while stream and not self.transport.aborted:
            buffer = self.protocol.get_buffer(-1)
            count = min(step, len(buffer), len(stream))
            buffer[:count] = stream[:count]
            del buffer
            self.protocol.buffer_updated(count)
            stream = stream[count:]
            self.reads += 1
            if not self.transport.aborted:
                await self.transport.reading.wait()

    def log_bytes(self) -> bytes:
        log, content = self.store.commit_log, b""
        while view := log.view(len(content), FILE_BYTES):
            content += bytes(view)
        return content


def make_stream(sizes: list[int]) -> tuple[bytes, bytes]:
    """(stream, log) of packets with so many bytes; none crosses a file."""
    stream, log = MasterHandshake(0, ((1, 0),)).encode(), b""
    for size in sizes:
        size = min(size, FILE_BYTES - len(log) % FILE_BYTES)
        body = random.Random(len(log)).randbytes(size)
        stream += TransferHeader(size, len(log), 1, 0, len(log)).encode() + body
        log += body
    return stream, log


@pytest.mark.parametrize("step", [1, 7, 35, 36, 37, 1_000, CONTROL_BYTES, 1 << 20])
async def test_every_byte_gets_to_its_place_wherever_a_read_ends(tmp_path: Path, step: int) -> None:
    sizes = [1, 0, 400, 3_000, 2_047, 2_048, 2_049, CONTROL_BYTES, 5_000, 30_000, 60_000, 60_000, 500, 500, 0]
    stream, log = make_stream(sizes)
    slave = Slave(tmp_path)
    await slave.receive(stream, step)
    await asyncio.sleep(0)  # the reports about large reads are for the end of the turn
    assert slave.log_bytes() == log
    assert slave.transport.acks == sorted(set(slave.transport.acks))
    assert slave.transport.acks[-1] == len(log)
    assert slave.owner.confirm == len(log)
    assert EpochFile(tmp_path / "epochFileCheckpoint").load() == slave.owner.log_epochs.now
    assert slave.owner.log_epochs.now.pairs == ((1, 0),)
    slave.store.close()


async def test_small_packets_are_one_read_and_large_ones_go_straight_into_the_log(tmp_path: Path) -> None:
    slave = Slave(tmp_path)
    await slave.receive(make_stream([])[0], 1 << 20)
    packet = TransferHeader(400, 0, 1, 0, 0).encode() + bytes(400)
    slave.reads = 0
    await slave.receive(packet, 1 << 20)
    assert slave.reads == 1
    await slave.receive(TransferHeader(50_000, 400, 1, 0, 0).encode() + bytes(50_000), 1 << 20)
    assert slave.reads == 3
    slave.store.close()


async def test_a_slave_that_catches_up_leaves_time_to_the_others_of_its_loop(tmp_path: Path) -> None:
    packet = FILE_BYTES // 2
    stream, log = make_stream([packet] * (2 * TURN_BYTES_MAX // packet + 1))
    first = len(make_stream([packet])[0])
    slave = Slave(tmp_path)
    await slave.receive(stream[:first], 1 << 20)  # its epoch is saved by a thread
    await asyncio.sleep(0)
    writes, acks = len(slave.transport.written), len(slave.transport.acks)
    receiving = asyncio.ensure_future(slave.receive(stream[first:], 1 << 20))
    await asyncio.sleep(0)
    assert not slave.transport.is_reading()
    assert slave.store.commit_log.max_offset < 2 * TURN_BYTES_MAX
    assert len(slave.transport.written) == writes, "a write for each packet"
    await receiving
    await asyncio.sleep(0)
    assert slave.log_bytes() == log
    assert slave.transport.acks[-1] == len(log)
    assert len(slave.transport.acks) - acks > 3 * (len(slave.transport.written) - writes)
    slave.store.close()


@pytest.mark.parametrize("packet", [500, FILE_BYTES // 2])
async def test_a_slave_with_much_to_dispatch_reads_nothing(
    tmp_path: Path, packet: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A promotion would find all of that undispatched, and consumers wait for it."""
    limit = 3 * packet
    monkeypatch.setattr(slave_protocol, "BACKLOG_BYTES_MAX", limit)
    stream, log = make_stream([packet] * 8)
    slave = Slave(tmp_path)
    slave.owner.confirm_offset_received = slave.store.set_confirm_offset  # type: ignore[method-assign]
    receiving = asyncio.ensure_future(slave.receive(stream, 36 + packet))
    await until(lambda: slave.store.dispatcher.dispatch_backlog > limit, "too much waits")
    for _ in range(5):
        await asyncio.sleep(0)
    assert not slave.transport.is_reading() and slave.store.commit_log.max_offset < len(log)
    while not receiving.done():
        slave.store.dispatcher.dispatch_offset = slave.store.confirm_offset - limit // 2 - 1
        slave.protocol.dispatched()
        assert not slave.transport.is_reading(), "half of it is still there"
        slave.store.dispatcher.dispatch_offset = slave.store.confirm_offset
        slave.protocol.dispatched()
        assert slave.transport.is_reading()
        await until(lambda: receiving.done() or not slave.transport.is_reading(), "it reads on")
    await receiving
    assert slave.log_bytes() == log
    slave.store.close()


async def test_a_slave_that_is_far_behind_copies_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be elected; what it has not dispatched counts from its last bytes on."""
    packet = FILE_BYTES // 2
    monkeypatch.setattr(slave_protocol, "BACKLOG_BYTES_MAX", packet)
    monkeypatch.setattr(slave_protocol, "FAR_BYTES", 2 * packet)
    stream, log = make_stream([packet] * 8)
    slave = Slave(tmp_path)
    slave.owner.confirm_offset_received = slave.store.set_confirm_offset  # type: ignore[method-assign]
    await slave.receive(stream[:100], 1 << 20)
    slave.protocol.link.master_max_offset = len(log)
    receiving = asyncio.ensure_future(slave.receive(stream[100:], 1 << 20))
    await until(lambda: not slave.transport.is_reading(), "it is near, and too much waits")
    for _ in range(5):
        await asyncio.sleep(0)
    assert not slave.transport.is_reading()
    assert (
        0
        < len(log) - slave.store.commit_log.max_offset
        <= 2 * packet
        < slave.store.dispatcher.dispatch_backlog
    )
    slave.store.dispatcher.dispatch_offset = slave.store.confirm_offset
    while not receiving.done():
        slave.store.dispatcher.dispatch_offset = slave.store.confirm_offset
        slave.protocol.dispatched()
        await asyncio.sleep(0)
    assert slave.log_bytes() == log
    slave.store.close()


async def test_nothing_reaches_the_log_after_the_role_has_changed(tmp_path: Path) -> None:
    slave = Slave(tmp_path)
    stream, _ = make_stream([400, 400, 9_000])
    await slave.receive(stream[:-10_000], 1 << 20)
    buffer = slave.protocol.get_buffer(-1)
    before = slave.store.commit_log.max_offset
    slave.protocol.close("the role changes")
    buffer[:500] = bytes(500)
    slave.protocol.buffer_updated(500)
    assert slave.store.commit_log.max_offset == before
    del buffer
    slave.store.close()


async def test_a_full_disk_ends_the_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slave = Slave(tmp_path)

    def full() -> memoryview:
        raise OSError(28, "No space left on device")

    await slave.receive(make_stream([])[0], 1 << 20)
    monkeypatch.setattr(slave.store.commit_log, "receive_view", full)
    await slave.receive(TransferHeader(400, 0, 1, 0, 0).encode() + bytes(400), 1 << 20)
    assert slave.transport.aborted
    slave.store.close()


@pytest.mark.parametrize("size", [400, 50_000])
async def test_a_log_that_somebody_else_has_changed_takes_nothing(tmp_path: Path, size: int) -> None:
    slave = Slave(tmp_path)
    await slave.receive(make_stream([400])[0], 1 << 20)
    await slave.receive(TransferHeader(size, 400, 1, 0, 0).encode(), 1 << 20)
    slave.store.commit_log.received(8)
    await slave.receive(bytes(size), 1 << 20)
    await asyncio.sleep(0)  # a close in get_buffer() is for the next turn
    assert slave.transport.aborted
    assert slave.store.commit_log.max_offset == 408
    slave.store.close()


async def test_a_master_that_reads_no_acks_is_left(tmp_path: Path) -> None:
    """It may send a log for ever: the acks that it does not take must not pile up here."""
    slave = Slave(tmp_path)
    try:
        slave.protocol.pause_writing()  # from inside a write: the transport is not touched there
        assert not slave.transport.aborted
        await asyncio.sleep(0)
        assert slave.transport.aborted
    finally:
        slave.store.close(clean=True)


async def test_a_new_epoch_is_written_by_a_thread_before_a_byte_of_it_is_read(tmp_path: Path) -> None:
    slave = Slave(tmp_path)
    disk = threading.Lock()
    begin_save = slave.owner.log_epochs.begin_save

    def on_a_slow_disk(epochs: Epochs) -> EpochSave:
        save = begin_save(epochs)

        def write() -> None:
            with disk:
                save.write()

        return EpochSave(write, save.use)

    with patch.object(slave.owner.log_epochs, "begin_save", on_a_slow_disk):
        with disk:
            receiving = asyncio.ensure_future(slave.receive(make_stream([400])[0], 1 << 20))
            await asyncio.sleep(0)
            assert not slave.transport.is_reading(), "the loop goes on, and the link waits for the disk"
            assert (slave.log_bytes(), slave.transport.acks) == (b"", [0])
        await receiving
    assert slave.log_bytes() == make_stream([400])[1]
    slave.store.close()


async def test_an_epoch_that_cannot_be_written_ends_the_link(tmp_path: Path) -> None:
    slave = Slave(tmp_path)
    full = OSError(28, "No space left on device")
    failing = EpochSave(Mock(side_effect=full), Mock(side_effect=AssertionError("it is not on disk")))
    with patch.object(slave.owner.log_epochs, "begin_save", return_value=failing):
        await slave.receive(make_stream([400])[0], 1 << 20)
    assert slave.transport.aborted
    assert slave.log_bytes() == b""
    slave.store.close()


async def test_a_master_is_told_nothing_but_the_hello_before_its_proof(tmp_path: Path) -> None:
    """Not by a tick or by the group commit either, which may end a round at any time."""
    group = Group("c", "b", "member", b"secret")
    slave = Slave(tmp_path, group)
    slave.protocol.flushed()
    slave.protocol.tick()
    (hello,) = slave.transport.written
    master = MasterHello(group, plain_allowed=False, nonce=bytes(32), binding=b"", now_ms=0)
    challenge = master.receive_data(hello)
    assert isinstance(challenge, bytes)
    await slave.receive(challenge[:-1], 1 << 20)
    slave.protocol.flushed()
    assert len(slave.transport.written) == 1
    await slave.receive(challenge[-1:], 1 << 20)
    _, proof, handshake = slave.transport.written
    assert master.receive_data(proof + handshake) == Admitted(2, handshake)
    assert SlaveHandshake(2).encode() == handshake
    slave.store.close()


async def test_a_link_that_was_stopped_while_it_connected_is_closed_at_once(tmp_path: Path) -> None:
    slave = Slave(tmp_path)
    slave.protocol.close("the role changes")
    late = Transport()
    slave.protocol.connection_made(cast(asyncio.BaseTransport, late))
    assert late.aborted and not late.written
    slave.store.close()
