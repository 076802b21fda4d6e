"""A new master gives no queue offset again that a record with a damaged header may have had (design S4)."""

import logging
from pathlib import Path

import pytest

from broker.ha.core.epochs import Epochs
from broker.healing.evidence import records_of
from broker.healing.units import restore_units
from broker.message.record import HEADER_BYTES
from broker.store.log_check import RECORD_BYTES_MAX
from broker.store.message_store import MessageStore
from broker.store.number_check import GAP_MAX
from tests.support.store_parts import FILE_BYTES, bodies, crash, open_store, put, put_many
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


def receive(store: MessageStore, data: bytes) -> None:
    store.commit_log.receive_view()[: len(data)] = data
    store.commit_log.received(len(data))


def heal(store: MessageStore, start: int, data: bytes) -> int:
    store.commit_log.view(start, len(data))[:] = data
    restored = restore_units(store, records_of(data, start, file_bytes=FILE_BYTES))
    store.damage.healed(start, start + len(data))
    return restored


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
    receive(master, bytes(slave.commit_log.view(begin, 1 << 20)))
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
    slave.become_master()
    number = put(slave, b"later", queue_id=3)[2]
    confirm(slave)
    heal(slave, damaged.start, data)
    assert bodies(slave, 3)[:1] == [b"seen by consumers"] and number == size // HEADER_BYTES
    slave.become_slave()
    slave.become_master()
    assert put(slave, queue_id=3)[2] == number + 1
    assert put(slave, queue_id=2)[2] == 0
    crash(master)
    crash(slave)


def gap_without_room(root: Path, others: int = 0) -> tuple[MessageStore, int, list[bytes], int]:
    """A sound replica, where the next term begins, the records of that term that it has not received yet, and
    the queue offset of the last one. The damaged record of the new master was a long one, so many are left
    out, and little follows it. others: records of queue 0 in front of it in that term."""
    old, new = pair(root)
    put(old)
    put(old, queue_id=3)
    begin, end, _ = put(old, b"x" * 1_000, queue_id=3)
    put(old)
    copy_log(old, new)
    new.flush()
    write(root / "s", begin + MAGIC_AT, b"\x11")
    confirm(new)
    new.become_master()
    places = [put(new)[:2] for _ in range(others)]
    *place, number = put(new, b"behind the gap", queue_id=3)
    assert number == 1 + (end - begin) // HEADER_BYTES
    records = [bytes(new.commit_log.view(at, to - at)) for at, to in [*places, place]]
    crash(new)
    old.become_slave()
    old.dispatcher.scan_again()
    return old, old.commit_log.max_offset, records, number


@pytest.mark.parametrize("records_max", [0, 1, 1_000])
def test_a_sound_replica_follows_a_new_master_over_a_gap(tmp_path: Path, records_max: int) -> None:
    """With records of the term before and of this one in one slice of the scan, or without a scan, as at a
    start."""
    replica, term, (first, second, behind), number = gap_without_room(tmp_path, others=2)
    replica.numbers.term_of = Epochs.of([(1, 0), (2, term)]).term_of
    receive(replica, first + second)
    if records_max:
        scan_all(replica, records_max)
    confirm(replica)
    receive(replica, behind)
    if records_max:
        scan_all(replica, records_max)
    confirm(replica)
    assert not replica.damage
    assert bodies(replica, 3, number) == [b"behind the gap"]
    replica.become_master()
    assert put(replica, queue_id=3)[2] == number + 1
    crash(replica)


@pytest.mark.parametrize("epochs", [(), ((1, 0),)])
def test_only_the_first_record_of_a_term_may_be_far_ahead(
    tmp_path: Path, epochs: tuple[tuple[int, int], ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Without epochs nobody knows which one is the first. A healed record without an entry is named."""
    replica, term, (data,), number = gap_without_room(tmp_path)
    replica.numbers.term_of = Epochs.of(epochs).term_of
    receive(replica, data)
    confirm(replica)
    assert replica.damage.overlaps(term, term + len(data))
    with caplog.at_level(logging.ERROR):
        assert not heal(replica, term, data)
    assert f"record at {term}, message {number} of TopicA/3, gets no ConsumeQueue entry" in caplog.text
    assert f"keelmq repair --store {replica.root} --queues" in caplog.text
    crash(replica)


def test_a_record_behind_a_gap_gets_its_entry_when_its_term_is_known(tmp_path: Path) -> None:
    """When it was dispatched, the epochs of the log were lost."""
    replica, term, (data,), number = gap_without_room(tmp_path)
    receive(replica, data)
    confirm(replica)
    assert replica.damage.overlaps(term, term + len(data))
    replica.numbers.term_of = Epochs.of([(1, 0), (2, term)]).term_of
    assert heal(replica, term, data) == 1 and not replica.damage
    assert bodies(replica, 3, number) == [b"behind the gap"]
    crash(replica)


def test_new_masters_may_have_left_out_as_many_as_the_largest_records(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_many(store, 4)
    _, end, number = put(store)
    confirm(store)
    queue = store.queues.get("TopicA", 0)
    store.numbers.term_of = Epochs.of([(1, 0), (2, end)]).term_of
    of_one = RECORD_BYTES_MAX // HEADER_BYTES

    def may_lack(count: int) -> bool:
        return store.numbers.has_its_number(queue, (100, b"TopicA", 0, number + 1 + count, 0, 0, b""), end)

    assert may_lack(0) and may_lack(of_one) and may_lack(3 * of_one)
    assert may_lack(GAP_MAX) and not may_lack(GAP_MAX + 1)
    crash(store)


def test_promotions_do_not_add_up_when_something_was_healed_in_between(tmp_path: Path) -> None:
    """Two records of queues 1 and 3 are damaged; the first one is healed between two promotions."""
    master, slave = pair(tmp_path)
    places = [put(master, b"damaged", queue_id=queue_id)[:2] for queue_id in (1, 3)]
    put(master)
    copy_log(master, slave)
    slave.flush()
    for begin, _ in places:
        write(tmp_path / "s", begin + MAGIC_AT, b"\x11")
    confirm(master)
    confirm(slave)
    assert len(slave.unread.ranges()) == 1
    left_out = sum(end - begin for begin, end in places) // HEADER_BYTES
    begin, end = places[0]
    for attempt in range(4):
        slave.become_slave()
        slave.become_master()
        slave.queues.get("TopicA", 2)
        if not attempt:
            assert heal(slave, begin, bytes(master.commit_log.view(begin, end - begin))) == 1
    assert slave.unread.ranges()
    assert put(slave, queue_id=1)[2] == 10 + left_out
    assert put(slave, queue_id=2)[2] == left_out
    assert put(slave, queue_id=3)[2] == (places[1][1] - places[1][0]) // HEADER_BYTES, (
        "new, since the healing"
    )
    assert slave.queues.moved_on["TopicA", 1] == 10 + left_out
    crash(master)
    crash(slave)


def test_damage_behind_a_promotion_counts_at_the_next_one(tmp_path: Path) -> None:
    master, slave, size = damaged_pair(tmp_path)
    confirm(slave)
    slave.become_master()
    left_out = size // HEADER_BYTES
    assert slave.queues.get("TopicA", 1).next_offset == 10 + left_out
    begin, end, _ = put(slave, b"damaged later", queue_id=5)
    put(slave)
    slave.become_slave()
    slave.damage.add(begin, end, "as a scan finds it")
    slave.damage.passed_over(begin, end)
    slave.commit_log.view(begin, end - begin)[MAGIC_AT] ^= 1
    slave.become_master()
    assert put(slave, queue_id=1)[2] == 10 + left_out + (end - begin) // HEADER_BYTES
    crash(master)
    crash(slave)


def test_a_log_that_begins_anew_has_left_nothing_out(tmp_path: Path) -> None:
    """As its queues: no count of the log before is left."""
    master, slave, size = damaged_pair(tmp_path)
    confirm(slave)
    slave.become_master()
    queue = slave.queues.get("TopicA", 1)
    assert queue.skipped_to and queue.next_offset == 10 + size // HEADER_BYTES
    slave.become_slave()
    slave.cutter.reset_to(slave.commit_log.max_offset)
    assert not queue.skipped_to
    slave.become_master()
    assert put(slave, queue_id=1)[2] == 0 and not slave.queues.moved_on
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
