"""No checksum covers QUEUEOFFSET: one that cannot be makes its record a damaged range. It neither fills a
disk with entries, nor moves the numbers of its queue."""

import logging
from pathlib import Path

import pytest

from broker.ha.core.epochs import Epochs
from broker.message.record import HEADER_BYTES
from broker.store.message_store import MessageStore
from broker.store.number_check import may_have
from tests.support.store_parts import FILE_BYTES, bodies, crash, open_store, put, put_many
from tests.unit.broker.store.test_damaged_log import of_queue, read, write
from tests.unit.broker.store.test_message_store import copy_log
from tests.unit.broker.store.test_scan import next_offsets, scan_all
from tests.unit.broker.store.test_scrub import scrub_of, whole_round

QUEUE_OFFSET_AT = 20
BITS = [12, 24, 31, 40, 55, 62]


def flip_number(root: Path, offset: int, bit: int) -> None:
    at = offset + QUEUE_OFFSET_AT + 7 - bit // 8
    write(root, at, bytes([read(root, at, 1)[0] ^ 1 << bit % 8]))


def damaged_copy(root: Path, number: int, bit: int) -> tuple[MessageStore, MessageStore]:
    """A replica that has received a master's log; one record of its copy is changed."""
    master, slave = open_store(root / "m"), open_store(root / "s", master=False)
    slave.become_slave()
    put_many(master, 60)
    copy_log(master, slave)
    slave.flush()
    flip_number(root / "s", of_queue(root / "m")[number].offset, bit)
    return master, slave


def disk_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in (root / "consumequeue").rglob("*") if path.is_file())


@pytest.mark.parametrize("bit", BITS)
@pytest.mark.parametrize("number", [1, 10, 29])
@pytest.mark.parametrize("records_max", [1, 7, 1_000])
@pytest.mark.parametrize("is_scanned", [True, False])
def test_a_replica(tmp_path: Path, bit: int, number: int, records_max: int, is_scanned: bool) -> None:
    master, slave = damaged_copy(tmp_path, number, bit)
    if is_scanned:
        scan_all(slave, records_max)
        assert all(offset <= 30 for offset in next_offsets(slave).values())
    slave.set_confirm_offset(slave.commit_log.max_offset)
    while slave.dispatcher.dispatch(records_max):
        pass
    scan_all(slave, records_max)
    (damaged,) = slave.damage.ranges
    assert damaged.start == of_queue(tmp_path / "m")[number].offset and "QUEUEOFFSET" in damaged.reason
    assert slave.dispatch_offset == slave.commit_log.max_offset
    assert slave.queues.get("TopicA", 1).max_offset == 30
    assert slave.queues.get("TopicA", 0).max_offset == (30 if number < 29 else 29)
    assert disk_bytes(tmp_path / "s") == disk_bytes(tmp_path / "m")
    crash(master)
    crash(slave)


@pytest.mark.parametrize("records_max", [0, 1, 1_000])
@pytest.mark.parametrize(("number", "bit"), [(9, 12), (10, 24), (11, 12)])
def test_at_the_begin_of_a_term(tmp_path: Path, number: int, bit: int, records_max: int) -> None:
    """Only record 10, the first one of its queue in its masterEpoch, may be far ahead, by GAP_MAX at most."""
    master, slave = damaged_copy(tmp_path, number, bit)
    records = of_queue(tmp_path / "m")
    slave.numbers.term_of = Epochs.of([(1, 0), (2, records[10].offset)]).term_of
    if records_max:
        scan_all(slave, records_max)
    slave.set_confirm_offset(slave.commit_log.max_offset)
    while slave.dispatcher.dispatch(records_max or 7):
        pass
    (damaged,) = slave.damage.ranges
    assert damaged.start == records[number].offset
    assert slave.queues.get("TopicA", 0).max_offset == 30
    crash(master)
    crash(slave)


@pytest.mark.parametrize("bit", BITS)
def test_a_start_after_a_crash(tmp_path: Path, bit: int, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(tmp_path)
    put_many(store, 60)
    crash(store)
    record = of_queue(tmp_path)[20]
    flip_number(tmp_path, record.offset, bit)
    with caplog.at_level(logging.ERROR):
        store = open_store(tmp_path)
    assert [(each.start, each.end) for each in store.damage.ranges] == [
        (record.offset, record.offset + record.size)
    ]
    assert "QUEUEOFFSET" in caplog.text and "TopicA/0 lacks entries 20 to 20" in caplog.text
    assert len(bodies(store, 1)) == 30 and put(store)[2] == 30
    store.close()


def test_the_first_record_of_a_queue(tmp_path: Path) -> None:
    """A queue may begin anywhere, but not behind any number that a broker gives."""
    store = open_store(tmp_path)
    put_many(store, 4, queues=1)
    crash(store)
    flip_number(tmp_path, 0, 50)
    store = open_store(tmp_path)
    (damaged,) = store.damage.ranges
    assert damaged.start == 0 and put(store)[2] == 4
    store.close()


def test_as_many_numbers_may_be_missing_as_have_room_in_the_log(tmp_path: Path) -> None:
    """Those of records that were damaged when they were dispatched."""
    store = open_store(tmp_path)
    put_many(store, 20)
    queue, end = store.queues.get("TopicA", 0), store.queues.get("TopicA", 0).log_end_offset()
    assert may_have(queue, 10, end) and may_have(queue, 3, end)
    assert may_have(queue, 12, end + 2 * HEADER_BYTES) and not may_have(queue, 13, end + 2 * HEADER_BYTES)
    store.close()


async def test_the_scrub_does_not_take_it_for_healed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_many(store, 60)
    crash(store)
    flip_number(tmp_path, of_queue(tmp_path)[20].offset, 40)
    store = open_store(tmp_path)
    assert store.damage.ranges and store.commit_log.max_offset > FILE_BYTES
    store.flush()
    await whole_round(scrub_of(store))
    assert store.damage.ranges
    store.close()
