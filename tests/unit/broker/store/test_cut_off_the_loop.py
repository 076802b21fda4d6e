"""The loop never waits for a disk: a cut of the log goes on in a thread, while a flush hangs in fdatasync."""

import asyncio
import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.store.cut_store import CutPlan
from keelmq.runtime.slices import Slices
from tests.support.store_parts import bodies, crash, open_store, put_many
from tests.unit.broker.ha.test_ha_service import group, same, until

HANG_S = 3.0
"""The disk hangs no longer than this, if nobody lets it go on."""
LATE_S = 1.0


class HungDisk:
    """Each fdatasync and fsync of a file below `root` waits until the test lets it go on."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()
        for name in ("fdatasync", "fsync"):
            real = getattr(os, name)

            def hang(descriptor: int, real: object = real) -> None:
                if str(root) in os.readlink(f"/proc/self/fd/{descriptor}"):
                    self.entered.set()
                    self.go_on.wait(HANG_S)
                real(descriptor)  # type: ignore[operator]

            patch.setattr(os, name, hang)


@pytest.fixture
def flushing() -> Iterator[list[threading.Thread]]:
    threads: list[threading.Thread] = []
    yield threads
    for thread in threads:
        thread.join()


async def test_a_slave_cuts_its_log_while_a_flush_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flushing: list[threading.Thread]
) -> None:
    """1.5 s stood still: truncate() waited on the loop for the lock of a running fdatasync."""
    async with group(tmp_path, 2) as (one, two):
        await one.lead(1)
        one.put(count=5)
        await two.follow(one, 1)
        await until(lambda: same(one, two), "copied")
        cut_at = two.store.commit_log.max_offset
        await two.service.leave_role("its master is lost")
        one.put(b"lost" * 30, 3)
        await two.lead(2)
        two.put(b"new", 4)
        hung = HungDisk(tmp_path / "1" / "commitlog", monkeypatch)
        flushing.append(threading.Thread(target=one.store.flush))
        flushing[0].start()
        await until(hung.entered.is_set, "the flush hangs")
        began = time.monotonic()
        await one.follow(two, 2)
        await until(lambda: one.store.commit_log.max_offset == cut_at, "readers see the cut")
        late_s = 0.0
        for _ in range(20):
            before = time.monotonic()
            await asyncio.sleep(0.005)
            late_s = max(late_s, time.monotonic() - before)
        assert late_s < LATE_S and time.monotonic() - began < HANG_S
        assert one.store.cutter.is_cutting and flushing[0].is_alive()
        hung.go_on.set()
        await until(lambda: same(two, one), "cut and copied")
        assert not one.store.cutter.is_cutting and b"lost" not in one.log_bytes()


async def test_a_link_that_is_closed_while_a_cut_is_planned_cuts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store may belong to a master by then."""
    async with group(tmp_path, 2) as (one, two):
        await one.lead(1)
        one.put(count=5)
        await two.follow(one, 1)
        await until(lambda: same(one, two), "copied")
        await two.service.leave_role("its master is lost")
        end = one.put(b"lost" * 30, 3)
        await two.lead(2)
        two.put(b"new", 4)
        go_on, planning, real = threading.Event(), threading.Event(), one.store.cutter.plan_cut

        def slow(offset: int) -> Slices[CutPlan]:
            planning.set()
            while not go_on.is_set():
                yield
            return (yield from real(offset))

        with monkeypatch.context() as patch:
            patch.setattr(one.store.cutter, "plan_cut", slow)
            await one.follow(two, 2)
            await until(planning.is_set, "it looks for the queues to cut")
            await one.service.leave_role("the master is lost")
            go_on.set()
            for _ in range(20):
                await asyncio.sleep(0.001)
            assert (one.store.cutter.cut_count, one.store.commit_log.max_offset) == (0, end)
        await one.follow(two, 2)
        await until(lambda: same(two, one), "cut and copied")
        assert one.store.cutter.cut_count == 1 and b"lost" not in one.log_bytes()


async def test_a_promotion_cuts_half_a_message_while_a_flush_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flushing: list[threading.Thread]
) -> None:
    async with group(tmp_path, 1) as (one,):
        await one.lead(1)
        end = one.put(count=5)
        await one.service.leave_role("nobody is master")
        one.store.become_slave()
        one.store.commit_log.receive_view()[:10] = b"half a mes"
        one.store.commit_log.received(10)
        hung = HungDisk(tmp_path / "1" / "commitlog", monkeypatch)
        flushing.append(threading.Thread(target=one.store.flush))
        flushing[0].start()
        await until(hung.entered.is_set, "the flush hangs")
        began = time.monotonic()
        promotion = asyncio.create_task(one.lead(2))
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert time.monotonic() - began < LATE_S and not promotion.done()
        hung.go_on.set()
        await promotion
        assert one.store.is_master and one.put() > end


def test_a_cut_that_failed_on_disk_is_finished_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No room for the zeros behind the cut: memory has the new end, and nothing may be written before the
    disk has it."""
    store = open_store(tmp_path)
    put_many(store, 5)
    end = store.commit_log.max_offset
    put_many(store, 5)
    store.become_slave()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match="No space left"):
            store.cutter.truncate(end)
    assert (
        store.cutter.is_cutting and not store.dispatcher.dispatch_behind and not store.dispatcher.dispatch(10)
    )
    assert not store.sync_fault.text
    assert store.cutter.truncate_half_message() == end and not store.cutter.is_cutting
    store.become_master()
    put_many(store, 1)
    store.close()
    again = open_store(tmp_path, master=False)
    assert len(bodies(again, 0)) + len(bodies(again, 1)) == 6
    crash(again)
