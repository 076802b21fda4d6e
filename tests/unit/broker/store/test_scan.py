"""What a replica knows of the records that it has received, before it is elected: where the last whole one
ends, and which queue offset comes next."""

import os
from pathlib import Path

import pytest

from broker.message.record import MAGIC_BLANK
from broker.store import dispatching
from broker.store.message_store import MessageStore
from broker.store.settings import NamedTopic
from tests.support.store_parts import BORN_HOST, crash, open_store, put, put_many
from tests.unit.broker.store.test_message_store import copy_log

LONG = b"x" * 700


def pair(root: Path, count: int = 20) -> tuple[MessageStore, MessageStore]:
    """A master with unconfirmed messages, and a replica that has received them."""
    master, slave = open_store(root / "m"), open_store(root / "s", master=False)
    slave.become_slave()
    put_many(master, count)
    copy_log(master, slave)
    return master, slave


def scan_all(store: MessageStore, records_max: int = 3) -> None:
    while store.dispatcher.scan(records_max):
        pass


def next_offsets(store: MessageStore) -> dict[tuple[str, int], int]:
    return {(queue.topic, queue.queue_id): queue.next_offset for queue in store.queues.each()}


@pytest.mark.parametrize("records_max", [1, 3, 1_000])
def test_received_records_count_before_they_are_confirmed(tmp_path: Path, records_max: int) -> None:
    master, slave = pair(tmp_path)
    assert slave.dispatcher.scan_behind and slave.dispatch_offset == 0
    scan_all(slave, records_max)
    assert not slave.dispatcher.scan_behind
    assert slave.dispatcher.scanned_offset == master.commit_log.max_offset
    assert next_offsets(slave) == next_offsets(master)
    crash(master)
    crash(slave)


def test_a_promotion_reads_nothing_that_was_scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = pair(tmp_path)
    scan_all(slave)
    put_many(master, 2)
    copy_log(master, slave)
    begun, real = list[int](), dispatching.scan_ends
    before = slave.dispatcher.scanned_offset

    def noted(raw: bytes, offset: int, *rest: object) -> object:
        begun.append(offset)
        return real(raw, offset, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(dispatching, "scan_ends", noted)
    slave.become_master()
    assert begun and min(begun) == before > 0
    assert put(slave)[2] == 11
    crash(master)
    crash(slave)


def test_half_a_record_is_no_whole_one_and_its_rest_is_read_later(tmp_path: Path) -> None:
    master, slave = pair(tmp_path, 4)
    scan_all(slave)
    begin = master.commit_log.max_offset
    put(master, LONG)
    record = bytes(master.commit_log.view(begin, 4_096))
    for part in (record[:10], record[10:300], record[300:]):
        assert slave.dispatcher.scanned_offset == begin
        slave.commit_log.receive_view()[: len(part)] = part
        slave.commit_log.received(len(part))
        assert slave.dispatcher.scan_behind
        scan_all(slave)
        assert not slave.dispatcher.scan_behind, "the same bytes are not read again and again"
    assert slave.dispatcher.scanned_offset == begin + len(record)
    crash(master)
    crash(slave)


def test_what_is_dispatched_is_scanned(tmp_path: Path) -> None:
    master, slave = pair(tmp_path)
    slave.set_confirm_offset(slave.commit_log.max_offset)
    while slave.dispatcher.dispatch(3):
        pass
    assert slave.dispatcher.scanned_offset == slave.commit_log.max_offset
    assert next_offsets(slave) == next_offsets(master)
    slave.become_master()
    assert put(slave)[2] == 10
    crash(master)
    crash(slave)


def test_a_demoted_master_has_read_its_own_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    put_many(store, 10)
    store.become_slave()
    assert store.dispatcher.scanned_offset == store.commit_log.max_offset and not store.dispatcher.scan_behind
    store.become_master()
    assert put(store)[2] == 5
    crash(store)


def test_after_a_cut_the_next_offsets_are_those_of_what_is_left(tmp_path: Path) -> None:
    """Nothing is dispatched: the queues themselves know nothing of these records."""
    master, slave = pair(tmp_path, 13)
    end = master.commit_log.max_offset
    put_many(master, 7)
    copy_log(master, slave)
    scan_all(slave)
    slave.cutter.truncate(end)
    assert slave.dispatcher.scan_behind
    scan_all(slave)
    assert slave.dispatcher.scanned_offset == end
    assert next_offsets(slave) == {("TopicA", 0): 7, ("TopicA", 1): 6}
    crash(master)
    crash(slave)


def test_a_queue_of_a_topic_that_consumers_wait_for_is_told_with_its_first_record(tmp_path: Path) -> None:
    """The queue exists in memory already: a consumer waits there, or a record was scanned."""
    told = list[tuple[str, int]]()
    master, slave = pair(tmp_path)
    slave.dispatcher.on_queue = lambda topic, queue_id: told.append((topic, queue_id))
    slave.wait_for("TopicA", 0, 0, lambda: None)
    scan_all(slave)
    assert not told, "a record that is not confirmed may be cut off"
    slave.set_confirm_offset(slave.commit_log.max_offset)
    while slave.dispatcher.dispatch(100):
        pass
    assert sorted(told) == [("TopicA", 0), ("TopicA", 1)]
    crash(master)
    crash(slave)


def test_long_records_and_many_files_and_topics(tmp_path: Path) -> None:
    master, slave = open_store(tmp_path / "m"), open_store(tmp_path / "s", master=False)
    topics = [NamedTopic(name) for name in ("A", "SCHEDULE_TOPIC_XXXX", "B" * 200)]
    for number in range(60):
        master.put(
            topics[number % 3], number % 2, LONG[: number * 10], b"", 0, 0, 1, BORN_HOST, 0, 0, 1_000 + number
        )
    copy_log(master, slave)
    scan_all(slave, 7)
    slave.set_confirm_offset(slave.commit_log.max_offset)
    while slave.dispatcher.dispatch(7):
        pass
    master.set_confirm_offset(master.commit_log.max_offset)
    assert next_offsets(slave) == next_offsets(master)
    for queue in master.queues.each():
        copied = slave.queues.get(queue.topic, queue.queue_id)
        wanted = [unit[:2] for unit in queue.units(0, 100)]
        assert wanted and [unit[:2] for unit in copied.units(0, 100)] == wanted
    assert slave.dispatcher.last_store_timestamp == master.dispatcher.last_store_timestamp
    crash(master)
    crash(slave)


@pytest.mark.parametrize("behind", [0, 2])
def test_a_damaged_confirmed_record_is_not_taken_for_the_logs_end(tmp_path: Path, behind: int) -> None:
    """The records behind it were confirmed, too; without one, nothing tells where it ended."""
    master, slave = pair(tmp_path)
    scan_all(slave)
    assert not slave.dispatcher.tail_fault()
    begin, end, _ = put(master)
    put_many(master, behind)
    copy_log(master, slave)
    path = next((slave.root / "commitlog").iterdir())
    with path.open("r+b") as file:  # the magic number
        os.pwrite(file.fileno(), b"\0", begin + 4)
    slave.set_confirm_offset(slave.commit_log.max_offset)
    scan_all(slave)
    if behind:
        assert (
            slave.dispatcher.scanned_offset == slave.commit_log.max_offset
            and not slave.dispatcher.tail_fault()
        )
        assert [(each.start, each.end) for each in slave.damage.ranges] == [(begin, end)]
    else:
        assert slave.dispatcher.scanned_offset == begin
        assert str(begin) in slave.dispatcher.tail_fault() and "damaged" in slave.dispatcher.tail_fault()
    crash(master)
    crash(slave)


def test_a_size_that_points_behind_the_end_is_no_part_of_a_record(tmp_path: Path) -> None:
    """Good records follow it, so it has arrived whole: a promotion must not cut them off."""
    master, slave = pair(tmp_path)
    scan_all(slave)
    begin, _, _ = put(master)
    put_many(master, 2)
    copy_log(master, slave)
    path = next((slave.root / "commitlog").iterdir())
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), b"\x07", begin + 2)
    slave.set_confirm_offset(slave.commit_log.max_offset)
    scan_all(slave)
    assert slave.dispatcher.scanned_offset == begin
    assert str(begin) in slave.dispatcher.tail_fault()
    crash(master)
    crash(slave)


@pytest.mark.parametrize("kept", [10, 200])
def test_a_confirmed_part_of_a_record_is_no_damage(tmp_path: Path, kept: int) -> None:
    """Packets end anywhere, and so do acks: nobody acknowledged the record."""
    master, slave = pair(tmp_path, 4)
    begin = master.commit_log.max_offset
    put(master, LONG)
    part = bytes(master.commit_log.view(begin, kept))
    slave.commit_log.receive_view()[:kept] = part
    slave.commit_log.received(kept)
    slave.set_confirm_offset(begin + kept)
    scan_all(slave)
    assert slave.dispatcher.scanned_offset == begin and not slave.dispatcher.tail_fault()
    slave.become_master()
    assert slave.commit_log.max_offset == begin
    crash(master)
    crash(slave)


def test_a_blank_record_that_has_not_arrived_whole_is_no_damage(tmp_path: Path) -> None:
    _, slave = pair(tmp_path, 2)
    blank = (500).to_bytes(4, "big") + MAGIC_BLANK.to_bytes(4, "big") + bytes(92)
    slave.commit_log.receive_view()[: len(blank)] = blank
    slave.commit_log.received(len(blank))
    slave.set_confirm_offset(slave.commit_log.max_offset)
    scan_all(slave)
    assert not slave.dispatcher.tail_fault()
    slave.become_master()
    assert put(slave)[2] == 1
    crash(slave)
