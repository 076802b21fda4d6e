"""Whole groups by seed, and what stands below them: the judge, the machines, the network, the disks."""

import asyncio
import logging
import os
import time
from functools import cache
from pathlib import Path
from random import Random

import pytest

from tests.sim.checkers import Violation
from tests.sim.kinds import found_seeds
from tests.sim.whole.disks import Disk, watched_files
from tests.sim.whole.group import Conditions, WholeGroup, play, seconds
from tests.sim.whole.judge import Acked, Judge, LeftOut, LogView
from tests.sim.whole.machines import PROCESS, MachineLoop, Process
from tests.sim.whole.nemesis import run_seed, story
from tests.support.slices import first
from tests.support.store_parts import open_store, put

FAST, SLOW = range(1, 5), range(5, 300)
ran = cache(run_seed)
"""For tests that look at the same seeds."""


@pytest.mark.parametrize("seed", first(5, [*FAST, *found_seeds("whole")]))
def test_every_promise_is_kept(seed: int) -> None:
    ran(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", SLOW)
def test_every_promise_is_kept_in_more_weather(seed: int) -> None:
    run_seed(seed)


def test_the_same_seed_gives_the_same_run() -> None:
    one, other = ran(4), run_seed(4)
    assert one.notes == other.notes
    assert one.judge.log == other.judge.log
    assert one.judge.acked == other.judge.acked


def burn(milliseconds: int) -> None:
    end = time.thread_time() + milliseconds / 1000
    while time.thread_time() < end:
        sum(range(100))


def test_a_callback_that_keeps_the_loop_waiting_fails_the_seed() -> None:
    """And is named. Checkers and helper threads may work for longer, and one slow moment is forgiven."""
    runs: list[int] = []

    async def works(world: WholeGroup) -> None:
        async def handler(milliseconds: int) -> None:
            burn(milliseconds)
            await asyncio.sleep(0)

        runs.append(1)
        burn(80)  # a checker
        await asyncio.to_thread(burn, 80)
        context = Process(world.loop, "a broker", "10.0.9.9").context
        await world.loop.create_task(asyncio.to_thread(burn, 80), context=context)
        await world.loop.create_task(handler(30), context=context)
        if len(runs) != 2:
            await world.loop.create_task(handler(80), context=context)

    play(3, works)
    assert len(runs) == 2, "the second run has no long callback"
    with pytest.raises(Violation, match=r"keeps the event loop waiting: .*handler:"):
        play(3, works)


@pytest.mark.slow
def test_the_worlds_have_faults_in_them() -> None:
    """A quiet simulator proves nothing."""
    worlds = [ran(seed) for seed in range(1, 6)]
    faults = set().union(*(world.faults for world in worlds))
    assert {"kill", "power cut", "pause", "cut"} <= faults
    assert sum(len(world.judge.masters) for world in worlds) >= 8
    assert all(world.judge.acked and world.judge.log for world in worlds)
    assert any(world.judge.topics and world.judge.groups and world.judge.offsets for world in worlds)


@pytest.mark.slow
def test_without_all_ack_the_seeds_lose_messages() -> None:
    """S2: the same dice, with asynchronous replication and without the lease."""
    conditions = Conditions(
        fault_every_s=0.3, settings={"allAckInSyncStateSet": False, "isolationLeaseEnable": False}
    )
    with pytest.raises(Violation, match=r"lacks|before|was acknowledged"):
        for seed in range(20, 40):
            play(seed, story, conditions)


class Bytes(LogView):
    def __init__(self, data: bytes, min_offset: int = 0) -> None:
        self.data, self.min_offset = data, min_offset

    def view(self, offset: int, limit: int, *, end: int | None = None) -> memoryview:
        if offset < self.min_offset:
            return memoryview(b"")
        return memoryview(self.data)[offset : min(offset + limit, len(self.data) if end is None else end)]


def log_of(root: Path, *bodies: bytes, queue_offsets: tuple[int, ...] = ()) -> tuple[Bytes, list[int]]:
    """A real log with these messages in queue 0; where they begin. queue_offsets: others than 0, 1, 2..."""
    store = open_store(root)
    offsets = []
    for number, body in enumerate(bodies):
        if queue_offsets:
            store.queues.get("TopicA", 0).next_offset = queue_offsets[number]
        offsets.append(put(store, body)[0])
    data = bytes(store.commit_log.view(0, 4_096))
    store.close()
    return Bytes(data), offsets


class TestTheJudge:
    """Each must reject a history that is wrong in the way it looks for."""

    def test_a_master_without_an_acknowledged_message(self, tmp_path: Path) -> None:
        log, offsets = log_of(tmp_path / "a", b"one", b"two")
        judge = Judge(acked=[Acked(b"two", offsets[1], "TopicA", 0, 1)])
        judge.began("b1", 1, log)
        shorter, _ = log_of(tmp_path / "b", b"one")
        with pytest.raises(Violation, match="lacks"):
            judge.began("b2", 2, shorter)
        with pytest.raises(Violation, match="two masters"):
            judge.began("b2", 1, log)
        judge.began("b2", 3, shorter, is_newest=False)

    def test_confirmed_bytes_that_change(self) -> None:
        judge = Judge()
        judge.confirmed("b1", Bytes(b"abcdef"), 0, 4)
        judge.confirmed("b2", Bytes(b"abcdxy"), 2, 4)
        judge.confirmed("b2", Bytes(b"abcdxy"), 4, 6)
        with pytest.raises(Violation, match="other bytes at 4"):
            judge.confirmed("b1", Bytes(b"abcdef"), 4, 6)
        with pytest.raises(Violation, match="cannot be read"):
            judge.confirmed("b3", Bytes(b"ab"), 0, 4)

    def test_a_consumer_that_reads_something_else(self) -> None:
        judge = Judge()
        judge.consumed("T", 0, 5, b"one")
        judge.consumed("T", 0, 5, b"one")
        with pytest.raises(Violation, match="offset 5 of queue T/0"):
            judge.consumed("T", 0, 5, b"two")

    @pytest.mark.parametrize("queue_offsets", [(0, 0), (0, 2), (1, 2)])
    def test_queue_offsets_that_are_reused_or_left_out(
        self, tmp_path: Path, queue_offsets: tuple[int, ...]
    ) -> None:
        good, _ = log_of(tmp_path / "a", b"one", b"two")
        assert Judge().queue_offsets("b1", good, len(good.data)) == {("TopicA", 0): 2}
        bad, _ = log_of(tmp_path / "b", b"one", b"two", queue_offsets=queue_offsets)
        with pytest.raises(Violation, match="has offset"):
            Judge().queue_offsets("b1", bad, len(bad.data))

    @pytest.mark.parametrize(
        ("begin", "raw", "at", "next_offset", "is_right"),
        [
            (0, b"?", 1, 2, True),
            (0, b"?", 1_000, 2, False),  # an earlier record
            (0, b"?", 1, 3, False),  # another number
            (0, b"", 1, 2, False),  # no damage
            (50, b"?", 1, 2, False),  # too little of it
        ],
    )
    def test_queue_offsets_that_a_promotion_leaves_out(
        self, tmp_path: Path, begin: int, raw: bytes, at: int, next_offset: int, is_right: bool
    ) -> None:
        """The record at 0 had no readable header there: it may have been any one."""
        log, offsets = log_of(tmp_path, b"one", b"two", b"three", queue_offsets=(0, 2, 3))
        judge = Judge()
        judge.confirmed("b1", log, 0, len(log.data))
        unread = ((begin, offsets[1], raw),)
        judge.left_out.append(LeftOut(at, unread, {("TopicA", 0): next_offset, ("TopicA", 1): 2}))
        if is_right:
            assert judge.queue_offsets("b1", log, len(log.data)) == {("TopicA", 0): 4}
            return
        with pytest.raises(Violation, match=r"has offset 2 of queue .*, not 1"):
            judge.queue_offsets("b1", log, len(log.data))

    def test_a_log_that_begins_later_than_retention_has_deleted(self, tmp_path: Path) -> None:
        log, offsets = log_of(tmp_path / "a", b"one", b"two", b"three")
        judge = Judge(acked=[Acked(b"one", 0, "TopicA", 0, 0), Acked(b"two", offsets[1], "TopicA", 0, 1)])
        judge.confirmed("b1", log, 0, len(log.data))
        kept = Bytes(log.data, offsets[1])
        for check in (
            lambda: judge.has_all("b2", kept),
            lambda: judge.confirmed("b2", kept, 0, len(log.data)),
        ):
            with pytest.raises(Violation, match=f"begins at {offsets[1]}; retention has deleted 0"):
                check()
        judge.deleted = offsets[1]
        judge.has_all("b2", kept)
        judge.confirmed("b2", kept, 0, len(log.data))
        assert judge.queue_offsets("b2", kept, len(log.data)) == {("TopicA", 0): 3}
        with pytest.raises(Violation, match="begins at"):
            judge.has_all("b2", Bytes(log.data, offsets[2]))
        other = Bytes(log.data.replace(b"two", b"TWO"), offsets[1])
        with pytest.raises(Violation, match="lacks"):
            judge.has_all("b2", other)
        with pytest.raises(Violation, match="other bytes"):
            judge.confirmed("b2", other, 0, len(log.data))

    def test_metadata_that_is_missing(self) -> None:
        judge = Judge(topics={"T": 4}, groups={"G"}, offsets={("G", "T", 0): 7})
        judge.has_metadata("b1", {"T": 4, "U": 1}, {"G"}, {("G", "T", 0): 8})
        for topics, groups, offset in (({"T": 2}, {"G"}, 7), ({"T": 4}, set[str](), 7), ({"T": 4}, {"G"}, 6)):
            with pytest.raises(Violation):
                judge.has_metadata("b1", topics, groups, {("G", "T", 0): offset})


async def started(world: WholeGroup) -> None:
    world.start()
    world.start_clients(producers=1, others=False)
    await world.whole()


class TestTheWorld:
    def test_an_error_that_nobody_handles_is_a_violation(self) -> None:
        async def bad(world: WholeGroup) -> None:
            await started(world)
            world.loop.call_soon(lambda: 1 / 0)
            await seconds(0.1)
            world.raise_problem()

        with pytest.raises(Violation, match="ZeroDivisionError"):
            play(1, bad, Conditions())

    def test_a_cut_in_one_direction_is_one(self) -> None:
        """A slave that hears its master, and cannot say so, holds every acknowledgement up."""

        async def one_way(world: WholeGroup) -> None:
            await started(world)
            assert world.master is not None
            master = world.master.name
            slave = world.others(master)[0]
            world.cut([slave], [master])
            await seconds(0.2)
            before, log = len(world.judge.acked), world.brokers[slave].broker
            assert log is not None
            end = log.store.commit_log.max_offset
            await seconds(0.3)
            assert len(world.judge.acked) == before
            assert log.store.commit_log.max_offset >= end
            await world.conclude()

        play(1, one_way, Conditions())

    def test_logging_is_left_as_it_was(self) -> None:
        before = logging.root.manager.disable
        play(1, started, Conditions())
        assert logging.root.manager.disable == before


class TestTheMachines:
    def test_a_process_that_is_held_back_does_nothing_and_then_everything(self) -> None:
        loop = MachineLoop(Random(1))
        process, ticks = Process(loop, "p", "10.0.0.1"), list[float]()

        async def tick() -> None:
            while len(ticks) < 4:
                await asyncio.sleep(1.0)
                ticks.append(loop.time())

        async def main() -> None:
            process.run(tick)
            await asyncio.sleep(1.5)
            process.pause()
            await asyncio.sleep(5.0)
            assert len(ticks) == 1
            process.resume()
            assert process.main is not None
            await process.main

        loop.run_until_complete(main())
        loop.close()
        assert [round(each - 1_000, 1) for each in ticks] == [1.0, 6.5, 7.5, 8.5]

    def test_a_power_cut_takes_what_was_not_synced(self, tmp_path: Path) -> None:
        loop = MachineLoop(Random(1))
        disk = Disk(tmp_path, "d", Random(1), watched=True)
        process = Process(loop, "p", "10.0.0.1")
        process.disk, operations = disk, list[str]()
        process.on_disk = operations.append
        root = disk.mount()

        def work() -> None:
            assert PROCESS.get() is process
            for name in ("synced", "lost"):
                (root / name).write_bytes(name.encode())
            descriptor = os.open(root / "synced", os.O_RDWR)
            os.fsync(descriptor)
            os.close(descriptor)
            directory = os.open(root, os.O_RDONLY)
            os.unlink(root / "lost")
            os.fsync(directory)
            os.close(directory)

        with watched_files():
            process.context.run(work)
            disk.crash(power=True)
        loop.close()
        assert operations == ["fsync", "unlink", "fsync"]
        assert [(each.name, each.read_bytes()) for each in disk.root.iterdir()] == [("synced", b"synced")]
