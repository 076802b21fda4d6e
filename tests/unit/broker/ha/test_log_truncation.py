"""Truncation of a replica's log: where it ends, and that the store goes on afterwards."""

from pathlib import Path

import pytest

from broker.ha.log_truncation import truncate_partial_record
from broker.store.message_store import MessageStore
from tests.support.store_parts import bodies, crash, open_store, put_many
from tests.unit.broker.store.test_scan import pair


def replica(root: Path, count: int = 5) -> MessageStore:
    store = open_store(root)
    put_many(store, count, queues=1)
    store.become_slave()
    return store


def log_on_disk(root: Path) -> bytes:
    return next((root / "commitlog").iterdir()).read_bytes()


async def test_a_whole_log_is_not_cut(tmp_path: Path) -> None:
    store = replica(tmp_path)
    end = store.commit_log.max_offset
    assert await truncate_partial_record(store) == end
    assert store.cutter.cut_count == 0, "a copy that a backup makes stays good"
    crash(store)


async def test_a_replica_goes_on_behind_a_partial_record_that_was_cut(tmp_path: Path) -> None:
    """A store that is still cutting dispatches nothing."""
    store = replica(tmp_path)
    end = store.commit_log.max_offset
    record = bytes(store.commit_log.view(0, end // 5))
    store.commit_log.receive_view()[:10] = record[:10]
    store.commit_log.received(10)
    assert await truncate_partial_record(store) == end == store.commit_log.max_offset
    assert not store.cutter.is_cutting and not any(log_on_disk(tmp_path)[end:])
    store.become_master()
    put_many(store, 1, queues=1)
    assert len(bodies(store)) == 6
    crash(store)


async def test_a_cut_that_did_not_reach_the_disk_is_finished(tmp_path: Path) -> None:
    """The log ends with a whole record: only the store knows that the disk has more."""
    store = replica(tmp_path)
    size = store.commit_log.max_offset // 5
    store.cutter.begin_cut(3 * size)
    assert store.cutter.is_cutting and any(log_on_disk(tmp_path)[3 * size :])
    assert await truncate_partial_record(store) == 3 * size
    assert not store.cutter.is_cutting and not any(log_on_disk(tmp_path)[3 * size :])
    crash(store)


async def test_in_the_middle_of_a_record_the_whole_one_before_it_is_the_end(tmp_path: Path) -> None:
    store = replica(tmp_path)
    size = store.commit_log.max_offset // 5
    store.cutter.begin_cut(3 * size + 50)
    assert await truncate_partial_record(store) == 3 * size == store.commit_log.max_offset
    assert len(bodies(store)) == 3
    crash(store)


@pytest.mark.parametrize("first", [0, 3, 9])
@pytest.mark.parametrize("at", [2, 4])
async def test_confirmed_records_with_a_damaged_one_in_front_are_not_cut(
    tmp_path: Path, first: int, at: int
) -> None:
    """A size that points behind the log's end, so more might be on its way; or another magic code. A replica
    of the SyncStateSet must not become shorter than what is confirmed, not even for a moment."""
    master, store = pair(tmp_path, 10)
    end, size = master.commit_log.max_offset, master.commit_log.max_offset // 10
    store.commit_log.view(first * size, size)[at] ^= 4
    store.set_confirm_offset(end)
    assert await truncate_partial_record(store) == end == store.commit_log.max_offset
    damaged = first * size, (first + 1) * size
    assert [(each.start, each.end) for each in store.damage.ranges] == [
        damaged
    ] and store.cutter.cut_count == 0
    put_many(master, 2)
    data = bytes(master.commit_log.view(end, 2 * size))
    store.commit_log.receive_view()[: len(data)] = data
    store.commit_log.received(len(data))
    store.set_confirm_offset(store.commit_log.max_offset)
    store.commit_log.view(first * size, size)[at] ^= 4  # what a healing does
    store.damage.healed(*damaged)
    while store.dispatcher.dispatch(3):
        pass
    assert await truncate_partial_record(store) == end + 2 * size == store.dispatcher.scanned_offset
    assert len(bodies(store)) == 6 and not store.dispatcher.tail_fault() and store.cutter.cut_count == 0
    crash(master)
    crash(store)
