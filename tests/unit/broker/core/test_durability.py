"""Durability settings: what a producer is answered in every combination, and what makes a message durable.

The table is broker-ha.md §13 and broker-ops.md §3.4: replicas are judged before the disk, WAIT=false asks for
neither, and 10, 11, 12 say that the message is stored.
"""

import itertools
import threading
from pathlib import Path
from unittest import mock

import pytest
from msgspec.structs import replace

from broker.admission.pending_replies import PendingReplies
from broker.core.durability import Durability, guarantees
from broker.store.log.group_commit import GroupCommit
from broker.store.log.sync_fault import SyncError
from keelmq.remoting.command import RemotingCommand
from tests.support.ha_parts import ha_settings
from tests.support.handler_context import send_gate
from tests.support.handler_parts import Broker
from tests.support.store_parts import FakePeer
from tests.unit.broker.ha.test_ha_service import FAST, group, until

SLAVE_TIMEOUT_MS, FLUSH_TIMEOUT_MS = 3_000, 5_000
MODES = ("asynchronous", "all ack", "count")


class Case:
    """One broker with these settings, one message, and what becomes of it."""

    def __init__(
        self, path: Path, *, sync_flush: bool, mode: str, in_sync: int = 3, minimum: int = 1
    ) -> None:
        replicas, copies = mode != "asynchronous", 2 if mode == "count" else 1
        self.broker = broker = Broker(path)
        broker.gate.wait = replicas or sync_flush
        broker.gate.in_sync, broker.gate.min_in_sync = in_sync, minimum
        broker.use_pending(PendingReplies(broker.gate, replicas=replicas, disk=sync_flush))
        broker.pending.few_replicas = in_sync < copies

    def send(self, properties: str = "UNIQ_KEY\x01K") -> RemotingCommand | None:
        return self.broker.send(i=properties)

    def outcome(self, *, replicated: bool, flushed: bool) -> RemotingCommand:
        """The answer, after everything that will happen has happened and the time is over."""
        end = self.broker.store.commit_log.max_offset
        if replicated:
            self.broker.pending.release(end)
        if flushed:
            self.broker.pending.flushed(end)
        self.broker.pending.expire(1 << 50, SLAVE_TIMEOUT_MS, FLUSH_TIMEOUT_MS)
        (answer,) = self.broker.answers()
        return answer


EVERY = list(itertools.product((False, True), MODES, (False, True), (False, True)))


@pytest.mark.parametrize(("sync_flush", "mode", "replicated", "flushed"), EVERY)
def test_the_answer_of_every_combination(
    tmp_path: Path, sync_flush: bool, mode: str, replicated: bool, flushed: bool
) -> None:
    case = Case(tmp_path, sync_flush=sync_flush, mode=mode)
    answer = case.send()
    if mode == "asynchronous" and not sync_flush:
        assert answer is not None and answer.code == 0, "nothing to wait for"
        return
    assert answer is None
    answer = case.outcome(replicated=replicated, flushed=flushed)
    expected: tuple[int, str | None] = (0, None)
    if mode != "asynchronous" and not replicated:
        expected = (12, "not replicated within 3000 ms")
    elif sync_flush and not flushed:
        expected = (10, "not on disk within 5000 ms")
    assert (answer.code, answer.remark) == expected
    assert answer.ext_fields["queueOffset"] == "0", "10, 11 and 12 say that it is stored"


@pytest.mark.parametrize("sync_flush", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_wait_false_waits_for_nothing_and_needs_no_replicas(
    tmp_path: Path, sync_flush: bool, mode: str
) -> None:
    case = Case(tmp_path, sync_flush=sync_flush, mode=mode, in_sync=1, minimum=2)
    answer = case.send("UNIQ_KEY\x01K\x02WAIT\x01false")
    assert answer is not None and answer.code == 0


@pytest.mark.parametrize("sync_flush", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_too_few_in_sync_is_refused_and_nothing_stored(tmp_path: Path, sync_flush: bool, mode: str) -> None:
    case = Case(tmp_path, sync_flush=sync_flush, mode=mode, in_sync=1, minimum=2)
    answer = case.send()
    assert answer is not None and answer.code == 1
    assert answer.remark == "in-sync replicas not enough: 1 of at least 2"
    assert case.broker.store.commit_log.max_offset == 0


@pytest.mark.parametrize("sync_flush", [False, True])
def test_nobody_to_replicate_to_is_11(tmp_path: Path, sync_flush: bool) -> None:
    case = Case(tmp_path, sync_flush=sync_flush, mode="count", in_sync=1)
    assert case.send() is None, "a slave that comes in time still makes it 0"
    answer = case.outcome(replicated=False, flushed=True)
    assert (answer.code, answer.ext_fields["queueOffset"]) == (11, "0")
    assert answer.remark is not None and "inSyncReplicas" in answer.remark


def test_all_ack_of_a_lone_master_is_enough(tmp_path: Path) -> None:
    case = Case(tmp_path, sync_flush=False, mode="all ack", in_sync=1)
    assert case.send() is None
    assert case.outcome(replicated=True, flushed=False).code == 0


def test_both_have_their_own_time(tmp_path: Path) -> None:
    """The answer waits for the later of both, as upstream's two futures do."""
    case = Case(tmp_path, sync_flush=True, mode="all ack")
    case.send()
    sent_ms = case.broker.writer.tick.ms
    pending = case.broker.pending
    assert pending.expire(sent_ms + 4_999, SLAVE_TIMEOUT_MS, FLUSH_TIMEOUT_MS) == 0
    assert pending.expire(sent_ms + 5_000, SLAVE_TIMEOUT_MS, FLUSH_TIMEOUT_MS) == 1
    assert [answer.code for answer in case.broker.answers()] == [12]


def test_what_was_replicated_or_flushed_in_one_term_counts_in_no_other() -> None:
    pending = PendingReplies(send_gate(), replicas=True, disk=True)
    pending.release(1_000)
    pending.flushed(1_000)
    pending.fail_all(12, "role change")
    peer = FakePeer()
    pending.add(500, peer, b"reply", 0)
    pending.flushed(500)
    assert peer.sent == [] and len(pending) == 1
    pending.release(500)
    assert peer.sent == [b"reply"]


@pytest.mark.parametrize("disk_first", [True, False])
def test_a_condition_that_is_added_counts_at_once(disk_first: bool) -> None:
    """Also before the first acknowledgement or fsync that follows the change (25)."""
    pending, peer = (
        PendingReplies(send_gate(is_open=True), replicas=not disk_first, disk=disk_first),
        FakePeer(),
    )
    pending.release(1_000)
    pending.flushed(1_000)
    pending.configure(replicas=True, disk=True, flushed_offset=1_000)
    pending.add(1_500, peer, b"reply", 0)
    pending.release(2_000)
    assert peer.sent == [] and len(pending) == 1, "it is not on the disk"
    pending.flushed(2_000)
    assert peer.sent == [b"reply"]
    pending.configure(replicas=False, disk=True, flushed_offset=2_000)
    pending.configure(replicas=True, disk=True, flushed_offset=2_000)
    pending.add(1_800, peer, b"second", 0)
    pending.flushed(3_000)
    assert peer.sent == [b"reply"], "what was replicated before it did not count is not known"
    pending.release(1_800)
    assert peer.sent == [b"reply", b"second"]


# -- the disk ----------------------------------------------------------------------------------------------


class SlowDisk:
    """sync() ends when it is let; what is written meanwhile belongs to the next round."""

    def __init__(self) -> None:
        self.end = self.durable = self.calls = 0
        self.let = threading.Semaphore(0)
        self.error: OSError | None = None

    def sync(self) -> int:
        target = self.end
        self.calls += 1
        assert self.let.acquire(timeout=5)
        if self.error is not None:
            raise self.error
        self.durable = target
        return target


async def test_one_fdatasync_for_all_that_wait() -> None:
    disk = SlowDisk()
    seen = list[int]()
    commit = GroupCommit(disk.sync, on_flushed=lambda: seen.append(disk.durable), on_fault=pytest.fail)
    disk.end = 100
    commit.want()
    await until(lambda: disk.calls == 1)
    for end in range(200, 1_200, 100):
        disk.end = end
        commit.want()
    disk.let.release()
    await until(lambda: disk.calls == 2)
    assert seen == [100]
    disk.let.release()
    await until(lambda: seen == [100, 1_100])
    assert commit.rounds == 2, "ten messages, one round"
    await commit.close()


async def test_a_disk_that_failed_once_is_not_believed_again() -> None:
    disk, faults, seen = SlowDisk(), list[str](), list[int]()
    commit = GroupCommit(disk.sync, on_flushed=lambda: seen.append(disk.durable), on_fault=faults.append)
    disk.end, disk.error = 100, SyncError(5, "Input/output error")
    commit.want()
    disk.let.release()
    await until(lambda: bool(faults))
    disk.error = None
    commit.want()
    assert (seen, disk.calls) == ([], 1)
    assert "Input/output error" in faults[0]
    await commit.close()


async def test_what_fails_before_the_sync_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """No free descriptor for the directory of a new file: nothing is lost."""
    disk, seen = SlowDisk(), list[int]()
    commit = GroupCommit(disk.sync, on_flushed=lambda: seen.append(disk.durable), on_fault=pytest.fail)
    disk.end, disk.error = 100, OSError(24, "Too many open files")
    commit.want()
    for calls in (1, 2):
        disk.let.release()
        await until(lambda calls=calls: disk.calls > calls)
    disk.error = None
    disk.let.release()
    await until(lambda: seen == [100])
    assert caplog.text.count("Too many open files") == 1
    await commit.close()


async def test_a_replica_acks_what_is_on_disk(tmp_path: Path) -> None:
    """broker-ha.md pitfall 56: upstream's acks are of the page cache."""
    settings = ha_settings(send_heartbeat_interval_ms=100, max_time_slave_not_catchup_ms=5_000, all_ack=True)
    async with group(tmp_path, 2, settings) as (master, slave):
        gate = threading.Semaphore(0)

        def sync() -> int:
            assert gate.acquire(timeout=5)
            return slave.store.commit_log.sync()

        commit = GroupCommit(sync, on_flushed=lambda: slave.service.flushed(), on_fault=pytest.fail)
        await slave.restart(commit=commit)
        slave.service.configure(replace(settings, sync_flush=True))
        await master.lead(1)
        first = master.put()
        await slave.follow(master, 1)
        gate.release()  # the log is empty: where it ends is known at once
        await until(lambda: slave.store.commit_log.max_offset == first, "the bytes arrived")
        await until(lambda: commit.rounds == 1)
        links = master.service.links
        assert links[2].ack_offset == 0
        gate.release()
        await until(lambda: links[2].ack_offset == first, "and count when they are on disk")
        end = master.put(count=3)
        await until(lambda: slave.store.commit_log.max_offset == end)
        assert links[2].ack_offset == first
        for _ in range(3):
            gate.release()
        await until(lambda: links[2].ack_offset == end)
        await slave.service.stop()
        gate.release()
        await commit.close()


async def test_consumers_never_see_what_a_power_cut_could_take_back(tmp_path: Path) -> None:
    """store.md pitfall 1: under SYNC_FLUSH confirmOffset stops at what is flushed."""
    settings = ha_settings(all_ack=False, sync_flush=True)
    async with group(tmp_path, 1, settings) as (master,):
        await master.lead(1)
        end = master.put()
        assert master.store.confirm_offset == 0
        master.store.commit_log.sync()
        master.service.flushed()
        assert master.store.confirm_offset == end
    assert FAST.sync_flush is False


async def test_a_newcomer_must_have_what_only_the_disk_is_missing_for(tmp_path: Path) -> None:
    """S1 with SYNC_FLUSH: a master alone counts a message as replicated before it is flushed, and confirms it
    afterwards. A replica that joined in between, without it, could be elected. Found by the whole-group
    simulator."""
    async with group(tmp_path, 1, ha_settings(all_ack=True, sync_flush=True)) as (master,):
        await master.lead(1)
        end = master.put()
        mastership = master.service.mastership
        assert mastership is not None and master.store.confirm_offset == 0
        asked = list[int]()

        def noted(_links: object, *, confirm_offset: int, **_more: object) -> None:
            asked.append(confirm_offset)

        with mock.patch.object(mastership.sync_state_set_manager, "next_proposal", noted):
            await until(lambda: bool(asked), "looks at the SyncStateSet")
        assert set(asked) == {end}


# -- the banner --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "failures", "says"),
    [
        (Durability(controlled=False), 0, "stand-alone"),
        (Durability(controlled=True), 0, "asynchronous"),
        (Durability(controlled=True, copies=2), 0, "any of them"),
        (Durability(controlled=True, all_ack=True), 0, "master alone"),
        (Durability(controlled=True, all_ack=True, min_in_sync=2), 1, "no more than 1 replica is lost"),
        (Durability(controlled=True, all_ack=True, min_in_sync=3), 2, "no more than 2 replicas are lost"),
        (Durability(controlled=True, sync_flush=True), 0, "on the disk of this broker"),
        (Durability(controlled=False, flush_interval_ms=700), 0, "up to 700 ms of messages are lost"),
        (Durability(controlled=True, heartbeat_timeout_ms=10_000), 0, "process dies, 10300 ms when it hangs"),
        (
            Durability(controlled=True, all_ack=True),
            0,
            "1200 ms when it hangs and its replicas report that, else 3300 ms when it hangs",
        ),
        (Durability(controlled=True), 0, "a planned stop fails no send: after the hand-over"),
        (Durability(controlled=True, forward_ms=30_000), 0, "fails no send of KeelMQ's clients; RocketMQ's"),
        (Durability(controlled=True, hands_over=False), 0, "a planned stop is like a death"),
    ],
)
def test_the_banner_tells_what_is_lost_and_how_long_it_takes(
    settings: Durability, failures: int, says: str
) -> None:
    lines = list(guarantees(settings))
    assert [line.partition(":")[0] for line in lines] == ["RPO", "RPO at a power cut", "RTO"]
    assert settings.failures == failures
    assert any(says in line for line in lines), lines
