"""What is durable after a cut or a reset of the store, and how it goes on afterwards."""

import os
from pathlib import Path
from random import Random

import pytest

from broker.store.log.checkpoint import StoreCheckpoint, read_checkpoint, write_checkpoint
from broker.store.log.mapped_file import file_name
from tests.support.store_disk import After, StoreDisk, Torn
from tests.support.store_parts import FILE_BYTES, bodies, crash, cut_demoted, open_store, put, put_many
from tests.unit.broker.store.test_message_store import copy_log

OPERATIONS_MAX = 10_000


def messages(count: int) -> list[bytes]:
    return [b"message %d" % number for number in range(count)]


def test_what_the_checkpoint_of_a_cut_counts_survives_a_power_cut(tmp_path: Path) -> None:
    disk = StoreDisk(tmp_path / "a")
    with disk.watched(After(OPERATIONS_MAX)):
        store = open_store(tmp_path / "a")
        put_many(store, 40, queues=1)
        end = store.commit_log.max_offset
        put_many(store, 10, queues=1)
        cut_demoted(store, end)
    assert read_checkpoint(tmp_path / "a" / "checkpoint").confirm_offset == end
    for seed in range(10):
        again = open_store(disk.survivors_of_a_power_cut(tmp_path / f"{seed}", Random(seed)))
        again.set_confirm_offset(again.commit_log.max_offset)
        assert bodies(again) == messages(40), seed
        crash(again)
    crash(store)


def test_the_first_checkpoint_survives_a_power_cut(tmp_path: Path) -> None:
    """Its file is new. Without it an end of the log that a disk has lost would pass for one that was never
    synced, and this replica might be elected."""
    disk = StoreDisk(tmp_path / "a")
    with disk.watched(After(OPERATIONS_MAX)):
        store = open_store(tmp_path / "a")
        put_many(store, 20, queues=1)
        store.flush_checkpoint()
        end = store.commit_log.max_offset
    for seed in range(10):
        root = disk.survivors_of_a_power_cut(tmp_path / f"{seed}", Random(seed))
        assert read_checkpoint(root / "checkpoint").confirm_offset == end, seed
        os.truncate(root / "commitlog" / file_name(0), end // 2)
        again = open_store(root)
        assert again.damage.lost_end == end, seed
        crash(again)
    crash(store)


@pytest.mark.parametrize("operations", range(4))
def test_a_checkpoint_whose_writer_was_killed_has_a_durable_name_with_the_next(
    tmp_path: Path, operations: int
) -> None:
    root = tmp_path / "a"
    root.mkdir()
    disk = StoreDisk(root)
    with disk.watched(After(operations)), pytest.raises(Torn):
        write_checkpoint(root / "checkpoint", StoreCheckpoint(confirm_offset=1))
    with disk.watched(After(OPERATIONS_MAX)):
        write_checkpoint(root / "checkpoint", StoreCheckpoint(confirm_offset=2))
    assert disk.lasting(root)


def test_units_that_were_cut_do_not_come_back_for_those_that_follow(tmp_path: Path) -> None:
    """The log is further than before the cut, so the old units would pass for good ones."""
    disk = StoreDisk(tmp_path / "a")
    with disk.watched(After(OPERATIONS_MAX)):
        store = open_store(tmp_path / "a")
        put_many(store, 5, queues=1)
        end = store.commit_log.max_offset
        put_many(store, 35, queues=1)
        store.flush_checkpoint()
        cut_demoted(store, end)
        new = [b"%d" % number * 2_000 for number in range(3)]
        for body in new:
            put(store, body)
        store.set_confirm_offset(store.commit_log.max_offset)
        store.flush_checkpoint()
    for seed in range(20):
        again = open_store(disk.survivors_of_a_power_cut(tmp_path / f"{seed}", Random(seed)))
        assert bodies(again) == messages(5) + new, seed
        crash(again)
    crash(store)


@pytest.mark.parametrize("flushed", [10, 29])
def test_what_follows_a_cut_is_not_on_disk_before_it_is_flushed(tmp_path: Path, flushed: int) -> None:
    """With SYNC_FLUSH it would be acknowledged before."""
    store = open_store(tmp_path)
    log, ends = store.commit_log, list[int]()
    for number in range(30):
        if number == flushed:
            store.flush()
        ends.append(put(store)[1])
    log.truncate(ends[20])
    durable = min(ends[flushed - 1], ends[20])
    assert log.flushed_offset == durable
    put(store)
    assert log.flushed_offset == durable
    assert store.flush() == log.flushed_offset == log.max_offset
    crash(store)


def test_a_cut_in_front_of_the_log_leaves_nothing(tmp_path: Path) -> None:
    """A new master has less than the oldest file that is left here."""
    store = open_store(tmp_path)
    put_many(store, 200, queues=1)
    while store.commit_log.file_count > 2:
        store.commit_log.take_oldest().delete()
    for queue in store.queues.each():
        for file in queue.expire(store.commit_log.min_offset):
            file.delete()
    cut_demoted(store, FILE_BYTES)
    log, queue = store.commit_log, store.queues.get("TopicA", 0)
    assert (log.file_count, log.min_offset, log.max_offset) == (0, FILE_BYTES, FILE_BYTES)
    assert queue.min_offset == queue.max_offset
    assert not any((tmp_path / "commitlog").glob("0*"))
    offset, end, queue_offset = put(store, b"new")
    store.set_confirm_offset(end)
    assert offset == FILE_BYTES and bodies(store, offset=queue_offset) == [b"new"]
    store.close()


def test_a_cut_that_a_clean_stop_interrupts_is_finished_by_it(tmp_path: Path) -> None:
    """The next start believes what is on disk."""
    store = open_store(tmp_path)
    put_many(store, 5, queues=1)
    end = store.commit_log.max_offset
    put_many(store, 5, queues=1)
    store.become_slave()
    store.cutter.begin_cut(end)
    store.close()
    again = open_store(tmp_path)
    assert again.commit_log.max_offset == end and bodies(again) == messages(5)
    again.close()


def test_a_reset_that_did_not_reach_the_disk_is_finished(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_many(store, 60)
    store.become_slave()
    begin = 20 * FILE_BYTES
    store.cutter.begin_reset(begin)
    assert store.commit_log.min_offset == store.confirm_offset == store.dispatch_offset == begin
    assert (tmp_path / "commitlog" / file_name(0)).exists()
    assert store.cutter.truncate_half_message() == begin and not store.cutter.is_cutting
    assert not any((tmp_path / "commitlog").iterdir())
    assert not any((tmp_path / "consumequeue" / "TopicA").iterdir())
    assert read_checkpoint(tmp_path / "checkpoint").confirm_offset == begin
    crash(store)


@pytest.mark.parametrize("begin", [20 * FILE_BYTES, 20 * FILE_BYTES + 500])
def test_a_reset_survives_a_power_cut(tmp_path: Path, begin: int) -> None:
    """An old file that is back would be one that the log does not continue."""
    disk = StoreDisk(tmp_path / "a")
    with disk.watched(After(OPERATIONS_MAX)):
        store = open_store(tmp_path / "a", master=False)
        store.become_master()
        put_many(store, 60)
        store.flush()
        store.become_slave()
        store.cutter.reset_to(begin)
    for seed in range(10):
        again = open_store(disk.survivors_of_a_power_cut(tmp_path / f"{seed}", Random(seed)), master=False)
        assert again.commit_log.min_offset == again.commit_log.max_offset, seed
        assert again.commit_log.min_offset in ((begin,) if begin % FILE_BYTES else (begin, 0)), seed
        crash(again)
    crash(store)


def test_a_master_that_becomes_a_slave_dispatches_what_it_copies(tmp_path: Path) -> None:
    """It has units for its own messages only."""
    one, two = open_store(tmp_path / "1"), open_store(tmp_path / "2", master=False)
    put_many(one, 5, queues=1)
    put(one, b"message 5")
    copy_log(one, two)
    two.set_confirm_offset(two.commit_log.max_offset)
    two.become_master()
    put(two, b"message 6")
    one.become_slave()
    copy_log(two, one)
    one.set_confirm_offset(one.commit_log.max_offset)
    while one.dispatcher.dispatch(2):
        pass
    assert bodies(one) == messages(7) and not one.dispatcher.dispatch_behind
    one.close()
    two.close()
