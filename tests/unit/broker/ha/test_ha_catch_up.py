"""Runs: what a thread sends to a replica that is far behind, over real sockets and with faults on its way."""

import asyncio
import os
import socket
import threading
import time
from pathlib import Path
from typing import cast

import pytest
import uvloop
from msgspec.structs import replace

from broker.ha import catch_up, producer_load
from broker.ha.catch_up import SendfileBatch
from broker.ha.core import master_link
from broker.ha.core.epochs import Epochs
from broker.ha.core.frames import TRANSFER_BYTES, Ack, SlaveHandshake, parse_transfer_header
from broker.ha.core.master_link import MasterLink, MasterLog, Send
from broker.ha.master_server import MasterProtocol
from broker.ha.producer_load import demand_us
from tests.support.ha_parts import ha_settings, link_settings
from tests.unit.broker.ha.test_ha_service import FILE_BYTES, HOST, Broker, TopicT, group, same, until

pytestmark = pytest.mark.usefixtures("small_runs")

SETTINGS = ha_settings(
    batch_bytes=8192, send_heartbeat_interval_ms=200, max_time_slave_not_catchup_ms=600, all_ack=True
)
MIB = 1 << 20


# -- the core ---------------------------------------------------------------------------------------------


def far_link(log: MasterLog, **settings: int) -> MasterLink:
    link = MasterLink(log, link_settings(batch_bytes=8192, **settings), now_ms=0)
    link.receive_data(SlaveHandshake(2).encode() + Ack(0).encode(), 0)
    assert link.next_sendfile_batch(0) == [], "the handshake goes first, over the loop"
    assert isinstance(link.next_effect(0), Send)
    return link


def a_log(end: int, *pairs: tuple[int, int], confirm: int | None = None) -> MasterLog:
    return MasterLog(MIB, Epochs.of(pairs or [(1, 0)]), 0, end, end if confirm is None else confirm)


def test_runs_are_the_packets_that_the_loop_would_send() -> None:
    """Labels, ends of epochs and of files: byte for byte."""
    log = a_log(3 * MIB, (1, 0), (2, 100_000), (5, MIB + 5))
    by_thread, by_loop = far_link(log), far_link(log)
    packets: list[Send] = []
    while run := by_thread.next_sendfile_batch(0):
        assert sum(packet.body_bytes for packet in run) <= master_link.SENDFILE_BYTES + 8192
        packets += run
    assert 0 < log.max_offset - by_thread.position < master_link.FAR_BYTES, "the loop has the rest"
    assert packets == [by_loop.next_effect(0) for _ in packets]


def test_only_confirmed_bytes_are_sent_by_threads() -> None:
    link = far_link(a_log(3 * MIB, confirm=MIB))
    while link.next_sendfile_batch(0):
        assert link.position <= MIB
    assert not link.is_far_behind and link.has_more


def test_a_limit_holds_for_runs_too() -> None:
    """haFlowControlEnable: no more than the limit in a second, but for one run; crumbs are no runs."""
    link = far_link(a_log(64 * MIB), bytes_per_second=MIB)
    for now_ms in range(0, 10_000, 10):
        link.receive_data(Ack(max(link.position - 1, 0)).encode(), now_ms)
        while link.next_sendfile_batch(now_ms):
            pass
    assert 9 * MIB < link.position <= 10.5 * MIB
    slow = far_link(a_log(64 * MIB), bytes_per_second=65_536)
    assert slow.is_far_behind and slow.next_sendfile_batch(0) == []


def test_a_far_replica_leaves_producers_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """maxHaTransferByteInSecond while they write, or twice what they write; no limit while they do not."""
    log = a_log(400 * MIB)
    link = far_link(log, far_bytes_per_second=4 * MIB)
    link.receive_data(Ack(0).encode(), 1)

    def sent_in_a_second(begin_ms: int) -> int:
        before = link.position
        for now_ms in range(begin_ms, begin_ms + 1_000, 10):
            link.receive_data(Ack(link.position).encode(), now_ms)
            while link.next_sendfile_batch(now_ms) and link.position - before < 100 * MIB:
                pass
        return link.position - before

    assert sent_in_a_second(0) >= 100 * MIB, "nobody writes"
    log.append_rate = 2 * MIB
    sent_in_a_second(1_000)
    assert sent_in_a_second(2_000) == pytest.approx(4 * MIB, rel=0.1)
    log.append_rate = 8 * MIB
    assert sent_in_a_second(3_000) == pytest.approx(16 * MIB, rel=0.2), "it must come nearer"
    log.is_busy = True
    monkeypatch.setattr(master_link, "BUSY_BYTES_PER_SECOND", MIB)
    log.append_rate = MIB
    sent_in_a_second(4_000)
    assert sent_in_a_second(5_000) == pytest.approx(1.5 * MIB, rel=0.3), "nothing to spare, and still nearer"
    log.append_rate = 0
    assert sent_in_a_second(6_000) >= 100 * MIB


def test_the_demand_of_a_thread_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    before, used = demand_us(), time.thread_time_ns() // 1_000
    while time.thread_time_ns() // 1_000 - used < 20_000:
        pass
    assert demand_us() - before >= 10_000
    monkeypatch.setattr(producer_load, "SCHEDSTAT", Path("/proc/no-such-file"))
    assert demand_us() == 0


def test_a_member_that_is_sent_more_is_not_caught_up() -> None:
    """It has acknowledged everything that was sent, which is not everything: its lag counts on."""
    link = far_link(a_log(MIB))
    link.receive_data(Ack(0).encode(), 0)
    for now_ms in range(100, 1_000, 100):
        link.next_effect(now_ms)
        link.receive_data(Ack(link.position).encode(), now_ms)
    assert link.caught_up_ms(1_000) == 0


# -- groups over real sockets -------------------------------------------------------------------------------


def fill(master: Broker, runs: float = 8.5) -> int:
    """So many runs of records; the end of the log."""
    for _ in range(int(runs * master_link.SENDFILE_BYTES) // 1_100):
        master.store.put(TopicT(), 0, os.urandom(1_000), b"", 0, 0, 1, HOST, 0, 0)
    master.service.appended()
    return master.store.commit_log.max_offset


async def catches_up(tmp_path: Path, sent: list[SendfileBatch]) -> None:
    async with group(tmp_path, 2, SETTINGS) as (master, slave):
        await master.lead(1)
        fill(master)
        await slave.follow(master, 1)
        await until(lambda: master.in_sync() == [1, 2], "joins")
        assert len(sent) >= 5
        master.put(count=3)
        await until(lambda: same(master, slave), "same logs")
        assert len(sent) < 12, "the end goes packet by packet"


async def test_a_far_replica_is_served_by_threads(tmp_path: Path, sent: list[SendfileBatch]) -> None:
    await catches_up(tmp_path, sent)


def test_a_far_replica_is_served_by_threads_on_the_loop_of_production(
    tmp_path: Path, sent: list[SendfileBatch]
) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(catches_up(tmp_path, sent))


async def test_producers_go_on_meanwhile(tmp_path: Path, sent: list[SendfileBatch]) -> None:
    async with group(tmp_path, 2, replace(SETTINGS, far_bytes_per_second=0)) as (master, slave):
        await master.lead(1)
        fill(master)
        await slave.follow(master, 1)
        while master.in_sync() != [1, 2]:
            master.put(count=5)
            await asyncio.sleep(0)
        await until(lambda: same(master, slave), "same logs")
        assert sent


class Gate:
    """Holds a thread in the middle of a run, until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        original = os.sendfile

        def sendfile(out: int, file: int, offset: int, count: int) -> int:
            self.reached.set()
            assert self.go.wait(10)
            return original(out, file, offset, count)

        monkeypatch.setattr(os, "sendfile", sendfile)


async def test_the_role_changes_in_the_middle_of_a_run(
    tmp_path: Path, sent: list[SendfileBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing leaves after it: the old master's log is cut next."""
    gate = Gate(monkeypatch)
    async with group(tmp_path, 3, SETTINGS) as (old, transfer_target, third):
        await old.lead(1)
        fill(old)
        await third.follow(old, 1)
        await until(gate.reached.is_set, "a thread sends")
        had = third.store.commit_log.max_offset
        await transfer_target.lead(2)
        change = asyncio.ensure_future(old.follow(transfer_target, 2))
        await until(lambda: not old.service.links, "the links are closed")
        assert not change.done(), "it waits for the thread"
        gate.go.set()
        await change
        assert old.service.mastership is None
        await until(lambda: all(run.is_closed for run in sent), "the run ends")
        assert third.store.commit_log.max_offset - had <= 8192


@pytest.mark.parametrize("who", ["slave", "stop"])
async def test_a_link_ends_in_the_middle_of_a_run(
    tmp_path: Path, sent: list[SendfileBatch], monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    gate = Gate(monkeypatch)
    async with group(tmp_path, 2, SETTINGS) as (master, slave):
        await master.lead(1)
        fill(master)
        await slave.follow(master, 1)
        await until(gate.reached.is_set, "a thread sends")
        if who == "stop":
            stopping = asyncio.ensure_future(master.service.stop())
            await until(lambda: sent[0].aborted, "the link is closed")
            assert not stopping.done(), "it waits for the thread"
            gate.go.set()
            await stopping
            return
        assert slave.service.client is not None and slave.service.client.protocol is not None
        (link,) = master.service.links.values()
        slave.service.client.protocol.close("a test")
        await until(lambda: link not in master.service.links.values(), "the master sees it")
        gate.go.set()
        await until(lambda: same(master, slave), "it dials again, and gets everything")


async def test_a_file_is_deleted_in_the_middle_of_a_run(
    tmp_path: Path, sent: list[SendfileBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention takes it: what is on its way still arrives, whole."""
    gate = Gate(monkeypatch)
    async with group(tmp_path, 2, SETTINGS) as (master, slave):
        await master.lead(1)
        fill(master)
        before = master.log_bytes()
        await slave.follow(master, 1)
        await until(gate.reached.is_set, "a thread sends")
        master.store.commit_log.take_oldest().delete()
        assert master.store.commit_log.min_offset == FILE_BYTES
        gate.go.set()
        await until(lambda: master.in_sync() == [1, 2], "joins")
        await until(lambda: slave.log_bytes() == before, "the deleted file has arrived, too")


async def test_a_file_is_cut_in_the_middle_of_a_run(
    tmp_path: Path, sent: list[SendfileBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No packet without its bytes: the link ends."""
    monkeypatch.setattr(os, "sendfile", lambda out, file, offset, count: 0)
    async with group(tmp_path, 2, SETTINGS) as (master, slave):
        await master.lead(1)
        fill(master)
        await slave.follow(master, 1)
        await until(lambda: len(sent) > 1, "the slave dials again")
        assert slave.store.commit_log.max_offset == 0


def make_peer(port: int) -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", port))
    peer.settimeout(5)
    peer.sendall(SlaveHandshake(9).encode())
    peer.recv(4096)
    peer.sendall(Ack(0).encode())
    return peer


@pytest.mark.parametrize("threads", [0, 1])
async def test_a_replica_that_stands_still_is_closed_by_its_silence(
    tmp_path: Path, sent: list[SendfileBatch], monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """It reads nothing and says nothing, with a thread or a full buffer waiting for it:
    haHousekeepingInterval, as always."""
    monkeypatch.setattr(catch_up, "ABORT_CHECK_MS", 60_000)  # it is told, it need not look
    settings = replace(SETTINGS, housekeeping_interval_ms=300, catch_up_threads=threads)
    async with group(tmp_path, 1, settings) as (master,):
        await master.lead(1)
        monkeypatch.setattr(master_link, "SENDFILE_BYTES", 16 * MIB)  # more than sockets take
        fill(master, 1.5)
        peer = await asyncio.to_thread(make_peer, master.service.address[1])
        await until(lambda: 9 in master.service.links, "connected")
        await until(lambda: not master.service.links, "closed")
        assert bool(sent) == bool(threads)
        await until(lambda: all(run.is_closed for run in sent), "the thread has ended")
        peer.close()


@pytest.mark.parametrize("threads", [0, 1])
async def test_more_far_replicas_than_threads(
    tmp_path: Path, sent: list[SendfileBatch], threads: int
) -> None:
    """haCatchUpThreads: the loop serves the others."""
    async with group(tmp_path, 3, replace(SETTINGS, catch_up_threads=threads)) as (master, slave, third):
        await master.lead(1)
        fill(master)
        await slave.follow(master, 1)
        await third.follow(master, 1)
        await until(lambda: master.in_sync() == [1, 2, 3], "both join")
        assert bool(sent) == bool(threads)
        await until(lambda: same(master, slave) and same(master, third), "same logs")


async def test_what_the_loop_has_written_leaves_first(
    tmp_path: Path, sent: list[SendfileBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A packet that waits in the transport while the log grows far ahead: the stream stays in order."""
    paused: list[MasterProtocol] = []
    original = MasterProtocol.pause_writing

    def pause_writing(protocol: MasterProtocol) -> None:
        paused.append(protocol)
        original(protocol)

    monkeypatch.setattr(MasterProtocol, "pause_writing", pause_writing)
    monkeypatch.setattr(master_link, "FAR_BYTES", 12 * MIB)
    async with group(tmp_path, 1, SETTINGS) as (master,):
        await master.lead(1)
        fill(master, 0.2)
        peer = await asyncio.to_thread(make_peer, master.service.address[1])
        await until(lambda: bool(master.service.links), "connected")
        async with asyncio.timeout(10):
            while not paused:
                fill(master, 1)
                await asyncio.sleep(0.01)
        monkeypatch.setattr(master_link, "FAR_BYTES", MIB // 8)
        end = fill(master, 8)
        got = await asyncio.to_thread(read_log, peer, end)
        assert got == master.log_bytes()
        assert sent
        peer.close()


class Transport:
    """With bytes that are not sent yet; its socket is a real one."""

    def __init__(self, connected: socket.socket, protocol: MasterProtocol) -> None:
        self.connected, self.buffered, self.high = connected, 0, -1
        self.protocol = protocol
        self.written: list[bytes] = []

    def get_extra_info(self, name: str) -> object:
        return {"socket": self.connected, "peername": ("127.0.0.1", 1)}.get(name)

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high
        if self.buffered > high:
            self.protocol.pause_writing()

    def abort(self) -> None:
        self.connected.close()

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.written.append(data)


async def test_a_run_waits_for_an_empty_buffer(tmp_path: Path, sent: list[SendfileBatch]) -> None:
    """Else its bytes would overtake what the transport still holds."""
    async with group(tmp_path, 1, SETTINGS) as (master,):
        await master.lead(1)
        fill(master)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        protocol = MasterProtocol(master.service.server)
        transport = Transport(ours, protocol)
        protocol.connection_made(cast(asyncio.Transport, transport))
        protocol.data_received(SlaveHandshake(9).encode())
        transport.buffered = len(transport.written[0])
        await asyncio.sleep(0)  # the turn after the handshake
        protocol.data_received(Ack(0).encode())
        assert not sent and transport.high == 0, "it asks to be told when nothing is left"
        transport.buffered = 0
        protocol.resume_writing()
        await until(lambda: bool(sent), "a thread sends")
        theirs.close()
        protocol.connection_lost(None)
        await until(lambda: all(run.is_closed for run in sent), "the thread has ended")
        ours.close()


def read_log(peer: socket.socket, end: int) -> bytes:
    stream, log = b"", b""
    while len(log) < end:
        data = peer.recv(MIB)
        assert data, "closed"
        stream += data
        while len(stream) >= TRANSFER_BYTES:
            header = parse_transfer_header(stream[:TRANSFER_BYTES])
            size = TRANSFER_BYTES + header.body_bytes
            if len(stream) < size:
                break
            assert header.offset == len(log) or not header.body_bytes
            log += stream[TRANSFER_BYTES:size]
            stream = stream[size:]
    return log
