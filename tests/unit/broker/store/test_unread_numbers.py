"""A new master gives no queue offset again that a record with a damaged header may have had (design S4)."""

import logging
from pathlib import Path

import pytest

from broker.healing.evidence import records_of
from broker.healing.units import restore_units
from broker.message.record import HEADER_BYTES
from broker.store.message_store import MessageStore
from tests.support.store_parts import bodies, crash, open_store, put
from tests.unit.broker.store.test_damaged_log import write
from tests.unit.broker.store.test_message_store import copy_log
from tests.unit.broker.store.test_scan import next_offsets, pair, scan_all

MAGIC_AT, BODY_AT = 4, HEADER_BYTES


def confirm(store: MessageStore) -> None:
    store.set_confirm_offset(store.commit_log.max_offset)
    while store.dispatcher.dispatch(7):
        pass


def damaged_pair(
    root: Path, *, at: int = MAGIC_AT, behind: int = 1
) -> tuple[MessageStore, MessageStore, int]:
    """Two replicas with 10 messages in each of two queues, one more in queue 3, whose copy is damaged at the
    second replica, and then some in queue 0. Returns the place of the damaged one, too."""
    master, slave = pair(root)
    begin, end, number = put(master, b"seen by consumers", queue_id=3)
    assert number == 0
    for queue_id in range(behind):
        put(master, queue_id=queue_id)
    copy_log(master, slave)
    slave.flush()
    write(root / "s", begin + at, b"\x11")
    confirm(master)
    return master, slave, end - begin


@pytest.mark.parametrize("is_scanned", [True, False])
@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_a_promotion_with_a_damaged_header(
    tmp_path: Path, is_scanned: bool, restarts: int, caplog: pytest.LogCaptureFixture
) -> None:
    master, slave, size = damaged_pair(tmp_path)
    if is_scanned:
        scan_all(slave)
    confirm(slave)
    for _ in range(restarts):
        slave.flush_checkpoint()
        crash(slave)
        slave = open_store(tmp_path / "s", master=False)
    left_out = size // HEADER_BYTES
    assert left_out
    slave.become_master()
    assert put(slave, queue_id=3)[2] == left_out, "a new queue, as far as this replica knows"
    assert put(slave, queue_id=1)[2] == 10 + left_out, "its last record is in front of the damage"
    assert put(slave, queue_id=0)[2] == 11, "the record behind the damage tells"
    assert "1 damaged ranges" in caplog.text and slave.damage
    crash(master)
    crash(slave)


@pytest.mark.parametrize("is_used", [False, True])
def test_several_promotions_leave_out_as_much_as_one(tmp_path: Path, is_used: bool) -> None:
    """Otherwise the log has no room for the gap: after a restart the record behind it counts as damaged."""
    master, slave, size = damaged_pair(tmp_path)
    confirm(slave)
    left_out, first = size // HEADER_BYTES, int(is_used)
    for number in range(20):
        slave.become_slave()
        slave.become_master()
        slave.queues.get("TopicA", 2)  # a new one
        if is_used and not number:
            assert put(slave, queue_id=1)[2] == 10 + left_out
            confirm(slave)
    assert put(slave, queue_id=1)[2] == 10 + left_out + first
    assert put(slave, queue_id=2)[2] == put(slave, queue_id=3)[2] == left_out
    confirm(slave)
    slave.flush_checkpoint()
    crash(slave)
    slave = open_store(tmp_path / "s", master=False)
    confirm(slave)
    assert len(slave.damage.ranges) == 1
    slave.become_master()
    assert put(slave, queue_id=1)[2] == 11 + left_out + first
    crash(master)
    crash(slave)


def test_consumers_pass_the_gap(tmp_path: Path) -> None:
    master, slave, _ = damaged_pair(tmp_path)
    confirm(slave)
    slave.become_master()
    _, _, number = put(slave, b"next", queue_id=1)
    confirm(slave)
    offset, found = 0, list[int]()
    while (result := slave.get("TopicA", 1, offset, 32, 1 << 20, None)).next_begin_offset > offset:
        found.append(result.message_count)
        offset = result.next_begin_offset
    assert offset == number + 1 and sum(found) == 11
    crash(master)
    crash(slave)


def test_other_replicas_follow(tmp_path: Path) -> None:
    """They have the record whole, and count on from it."""
    master, slave, _ = damaged_pair(tmp_path)
    confirm(slave)
    slave.become_master()
    for queue_id in range(4):
        put(slave, queue_id=queue_id)
    master.become_slave()
    begin = master.commit_log.max_offset
    data = slave.commit_log.view(begin, 1 << 20)
    master.commit_log.receive_view()[: len(data)] = data
    master.commit_log.received(len(data))
    for each in (master, slave):
        scan_all(each)
        confirm(each)
    assert not master.damage
    assert next_offsets(master) == next_offsets(slave)
    crash(master)
    crash(slave)


def test_what_is_healed_is_known(tmp_path: Path) -> None:
    """Before a promotion: nothing is left out. After one: its message gets its place in the gap."""
    master, slave, size = damaged_pair(tmp_path)
    confirm(slave)
    (damaged,) = slave.damage.ranges
    data = bytes(master.commit_log.view(damaged.start, damaged.end - damaged.start))

    def heal(store: MessageStore) -> None:
        store.commit_log.view(damaged.start, len(data))[:] = data
        restore_units(store, records_of(data, damaged.start, file_bytes=store.commit_log.file_bytes))
        store.damage.healed(damaged.start, damaged.end)

    slave.become_master()
    number = put(slave, b"later", queue_id=3)[2]
    confirm(slave)
    heal(slave)
    assert bodies(slave, 3)[:1] == [b"seen by consumers"] and number == size // HEADER_BYTES
    slave.become_slave()
    slave.become_master()
    assert put(slave, queue_id=3)[2] == number + 1
    assert put(slave, queue_id=2)[2] == 0
    crash(master)
    crash(slave)


def test_a_gap_that_has_no_room_at_another_replica(tmp_path: Path) -> None:
    """The damaged record was a long one, so many are left out, and little follows it. A replica that has it
    whole takes the next record for damaged until its peers say the same."""
    master, slave = pair(tmp_path)
    begin, end, _ = put(master, b"x" * 1_000, queue_id=3)
    put(master)
    copy_log(master, slave)
    slave.flush()
    write(tmp_path / "s", begin + MAGIC_AT, b"\x11")
    confirm(master)
    confirm(slave)
    slave.become_master()
    place, place_end, number = put(slave, b"behind the gap", queue_id=3)
    assert number == (end - begin) // HEADER_BYTES
    data = bytes(slave.commit_log.view(place, place_end - place))
    master.become_slave()
    master.commit_log.receive_view()[: len(data)] = data
    master.commit_log.received(len(data))
    confirm(master)
    assert master.damage.overlaps(place, place_end)
    records = list(records_of(data, place, file_bytes=master.commit_log.file_bytes))
    for term in (0, place + 1):  # another record of the queue is in the same term; none is
        assert not restore_units(master, records, ((1, term),))
    assert restore_units(master, records, ((1, 0), (2, place))) == 1
    master.damage.healed(place, place_end)
    assert master.queues.get("TopicA", 3).unit(number)[:2] == (place, place_end - place)
    assert bodies(master, 3, number) == [b"behind the gap"]
    master.become_master()
    assert put(master, queue_id=3)[2] == number + 1
    crash(master)
    crash(slave)


@pytest.mark.parametrize("at", [BODY_AT, MAGIC_AT])
def test_a_header_that_can_be_read_tells(tmp_path: Path, at: int) -> None:
    """The body alone is damaged, or a record that this process has read before."""
    master, slave, _ = damaged_pair(tmp_path, at=BODY_AT)
    confirm(slave)
    record = slave.queues.get("TopicA", 3).unit(0)
    if at == MAGIC_AT:
        write(tmp_path / "s", record[0] + MAGIC_AT, b"\x11")
    slave.damage.add(record[0], record[0] + record[1], "the scrub has found it")
    slave.become_master()
    assert [put(slave, queue_id=number)[2] for number in range(4)] == [11, 10, 0, 1]
    crash(master)
    crash(slave)


def test_a_cut_forgets_what_was_seen_behind_it(tmp_path: Path) -> None:
    master, slave, size = damaged_pair(tmp_path, behind=2)
    confirm(slave)
    slave.cutter.truncate(master.queues.get("TopicA", 0).log_end_offset())
    slave.become_master()
    assert put(slave, queue_id=0)[2] == 11
    assert put(slave, queue_id=1)[2] == 10 + size // HEADER_BYTES
    crash(master)
    crash(slave)


def test_ends_of_emptied_queues_count_as_well(tmp_path: Path) -> None:
    """A queue without a record goes on behind both; one that has left some out is told to the replicas."""
    master, slave, size = damaged_pair(tmp_path)
    slave.queues.get("TopicA", 2)
    confirm(slave)
    slave.become_master()
    slave.queues.go_on_from("TopicA", 2, 1_000)
    slave.queues.go_on_from("TopicA", 0, 1_000)
    assert next(slave.queues.emptied(0))["TopicA", 1] == 10 + size // HEADER_BYTES
    assert put(slave, queue_id=2)[2] == 1_000
    assert put(slave, queue_id=0)[2] == 11
    crash(master)
    crash(slave)


def test_without_damage_nothing_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    master, slave = pair(tmp_path)
    with caplog.at_level(logging.ERROR):
        slave.become_master()
    assert put(slave, queue_id=3)[2] == 0 and put(slave)[2] == 10
    assert not caplog.text
    crash(master)
    crash(slave)


@pytest.mark.parametrize("restarts", [0, 1])
def test_damage_of_what_the_queues_have_leaves_nothing_out(tmp_path: Path, restarts: int) -> None:
    """As found by the scrub, of any size: an idle queue must not fill its files with a gap."""
    _, slave, size = damaged_pair(tmp_path, at=BODY_AT)
    confirm(slave)
    end = slave.commit_log.max_offset
    for _ in range(restarts):
        slave.flush_checkpoint()
        crash(slave)
        slave = open_store(tmp_path / "s", master=False)
    slave.commit_log.view(size, 2 * size)[:] = bytes(2 * size)
    slave.damage.add(size, 3 * size, "as a scrub finds it")
    for _ in range(restarts):
        slave.flush_checkpoint()
        slave.close()
        slave = open_store(tmp_path / "s", master=False)
    assert slave.damage.overlaps(size, 3 * size) is not None and slave.commit_log.max_offset == end
    slave.become_master()
    assert [put(slave, queue_id=each)[2] for each in (1, 9)] == [10, 0]
    crash(slave)
