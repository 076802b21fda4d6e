"""Known faults of RocketMQ's store that have no other test here; docs/pitfalls.md has them all."""

from pathlib import Path

import pytest

from broker.store.batched_put import BatchedPut
from broker.store.log.checkpoint import read_checkpoint
from broker.store.log.mapped_file import MappedFile
from broker.store.queue.reading import SCAN_UNITS_MIN, GetStatus
from keelmq.runtime.clock import wall_ms
from tests.support.store_disk import boot_again
from tests.support.store_parts import BORN_HOST, TOPIC, bodies, crash, open_store, put, put_many
from tests.unit.broker.store.test_message_store import copy_log


def test_a_clean_stop_with_dispatch_behind_loses_no_queue_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """store.md pitfall 11: the mark of a clean stop was removed while records had no unit yet."""
    store = open_store(tmp_path)
    put_many(store, 10, queues=1)

    def no_room(file: MappedFile, start: int, count: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(MappedFile, "reserve", no_room)
    for number in range(10, 20):
        put(store, b"message %d" % number)
    store.set_confirm_offset(store.commit_log.max_offset)
    assert store.dispatcher.dispatch_fault
    assert store.max_queue_offset("TopicA", 0) < 20
    monkeypatch.undo()
    store.close()
    store = open_store(tmp_path)
    store.set_confirm_offset(store.commit_log.max_offset)
    while store.dispatcher.dispatch(100):
        pass
    assert bodies(store) == [b"message %d" % number for number in range(20)]
    store.close()


def test_a_clean_stop_between_the_units_of_one_batch_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest unit of all queues is no sign that everything in front of it has one."""
    store = open_store(tmp_path)
    put(store, b"first", queue_id=0)
    store.set_confirm_offset(store.commit_log.max_offset)
    reserve = MappedFile.reserve

    def no_room_for_queue_1(file: MappedFile, start: int, count: int) -> None:
        if file.path.parent.name == "1":
            raise OSError(28, "No space left on device")
        reserve(file, start, count)

    monkeypatch.setattr(MappedFile, "reserve", no_room_for_queue_1)
    batch = BatchedPut(store)
    cursors = [batch.cursor(TOPIC, queue_id) for queue_id in (0, 1)]
    messages = [
        (cursors[number % 2], 0, 0, 1, BORN_HOST, 0, b"%d" % number, b"", 0, b"", b"") for number in range(5)
    ]
    assert batch.put(messages, 1_700_000_000_000)
    store.set_confirm_offset(store.commit_log.max_offset)
    assert store.dispatcher.dispatch_fault and bodies(store, 0) == [b"first", b"0", b"2", b"4"]
    monkeypatch.undo()
    store.close()
    store = open_store(tmp_path)
    assert bodies(store, 0) == [b"first", b"0", b"2", b"4"]
    assert bodies(store, 1) == [b"1", b"3"]
    put(store, b"new", queue_id=1)
    store.set_confirm_offset(store.commit_log.max_offset)
    assert bodies(store, 1) == [b"1", b"3", b"new"]
    store.close()


def test_stray_files_among_the_queues_are_passed_over(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_many(store, 10)
    store.close()
    for place in ("consumequeue", "consumequeue/TopicA"):
        (tmp_path / place / ".DS_Store").write_bytes(b"x")
        (tmp_path / place / "7").write_bytes(b"x")
    store = open_store(tmp_path)
    assert len(bodies(store, 0)) == len(bodies(store, 1)) == 5
    store.close()


def test_after_a_power_cut_a_clock_that_was_set_back_hides_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file behind the checkpoint looks older than the checkpoint: the scan began there, and the damage in
    front of it stayed in the log."""
    store = open_store(tmp_path)
    put_many(store, 5, queues=1)
    store.flush_checkpoint()
    checked = store.commit_log.max_offset
    before_ms = wall_ms() - 60_000
    monkeypatch.setattr("broker.store.message_store.wall_ms", lambda: before_ms)
    while len(store.commit_log.file_starts()) < 3:
        put_many(store, 1, queues=1)
    store.commit_log.view(checked + 4, 36)[:] = bytes(36)  # of what was not synced, this was not written
    crash(store)
    boot_again(tmp_path)
    monkeypatch.undo()
    store = open_store(tmp_path)
    assert store.commit_log.max_offset == checked
    assert len(bodies(store, 0)) == 5
    store.close()


def test_a_selective_consumer_looks_at_a_bounded_number_of_units(tmp_path: Path) -> None:
    """store.md pitfall 17: the limit is of units, where bytes were compared with it."""
    store = open_store(tmp_path, commit_log_file_bytes=1 << 20, consume_queue_file_bytes=20 * 10_000)
    for _ in range(SCAN_UNITS_MIN + 50):
        put(store, tags="TagA")
    put(store, tags="TagB")
    store.set_confirm_offset(store.commit_log.max_offset)
    first = store.get("TopicA", 0, 0, 32, 1 << 20, frozenset({0}))
    assert (first.status, first.next_begin_offset) == (GetStatus.NO_MATCHED_MESSAGE, SCAN_UNITS_MIN)
    store.close()


@pytest.mark.parametrize("count", [1, 8, 32])
def test_as_many_messages_as_were_asked_for(tmp_path: Path, count: int) -> None:
    """store.md pitfall 23: one fewer was given."""
    store = open_store(tmp_path, consume_queue_file_bytes=2_000)
    put_many(store, 100, queues=1)
    for wanted in (None, frozenset({0})):  # two ways of reading: all of them, and by their tags
        found = store.get("TopicA", 0, 0, count, 1 << 20, wanted)
        assert (found.message_count, found.next_begin_offset) == (count, count)
    store.close()


def test_a_replicas_checkpoint_advances(tmp_path: Path) -> None:
    """store.md pitfall 21: it stood still, and a start after a crash looked at the whole log."""
    master, slave = open_store(tmp_path / "m"), open_store(tmp_path / "s", master=False)
    for number in range(100):
        master.put(TOPIC, 0, b"body", b"", 0, 0, 1, bytes(8), 0, 0, 5_000 + number)
    copy_log(master, slave)
    slave.set_confirm_offset(slave.commit_log.max_offset)
    while slave.dispatcher.dispatch(10):
        pass
    slave.flush_checkpoint()
    found = read_checkpoint(tmp_path / "s" / "checkpoint")
    assert (found.physic_msg_timestamp, found.logics_msg_timestamp) == (5_099, 5_099)
    assert found.confirm_offset == slave.commit_log.max_offset
    master.close()
    slave.close()
