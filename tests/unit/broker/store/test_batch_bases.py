"""Queue offsets of batches, in units and in records: a disk that changes one makes consumers pass no message,
and gives no number twice."""

import shutil
from pathlib import Path

import pytest

from broker.store.message_store import MessageStore
from broker.store.queue.batch_queue import BATCH_UNIT_BYTES
from broker.store.queue.reading import DamagedQueueError
from tests.support.file_damage import changed
from tests.support.store_parts import crash
from tests.unit.broker.store.test_damaged_log import write
from tests.unit.broker.store.test_inner_batch import confirm, messages, open_batches, put_items
from tests.unit.broker.store.test_inner_batch import items as batch_of
from tests.unit.broker.store.test_message_store import copy_log
from tests.unit.broker.store.test_scan import scan_all
from tests.unit.broker.store.test_scrub import scrub_of, whole_round

BATCHES, SIZE = 10, 3
COUNT = BATCHES * SIZE
BASE_AT, MESSAGES_AT, QUEUE_OFFSET_AT = 28, 36, 20
BITS = [*range(0, 57, 7), *range(57, 80)]
"""Of base offset and number of messages; the last ones change them by little."""


def filled(root: Path) -> MessageStore:
    store = open_batches(root)
    for first in range(0, COUNT, SIZE):
        put_items(store, batch_of(SIZE, first))
    confirm(store)
    store.flush_checkpoint()
    return store


def flip_unit(root: Path, number: int, bit: int) -> tuple[Path, bytes]:
    """Flips a bit behind BASE_AT in a unit. Returns the file, and its content before."""
    paths = sorted((root / "batchconsumequeue" / "Batches" / "0").iterdir())
    path, at = paths[number // 4], number % 4 * BATCH_UNIT_BYTES + BASE_AT + bit // 8
    right = path.read_bytes()
    changed(path, right[:at] + bytes([right[at] ^ 0x80 >> bit % 8]) + right[at + 1 :])
    return path, right


@pytest.mark.parametrize("clean", [True, False])
def test_a_wrong_last_unit_moves_no_number_at_a_start(
    tmp_path: Path, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path / "0").close(clean=clean)
    for bit in BITS:
        root = tmp_path / f"{bit + 1}"
        shutil.copytree(tmp_path / "0", root)
        path, right = flip_unit(root, BATCHES - 1, bit)
        store = open_batches(root)
        assert store.max_queue_offset("Batches", 0) == COUNT, bit
        assert path.read_bytes() == right
        assert put_items(store, batch_of(1, COUNT))[2] == COUNT
        confirm(store)
        assert [offset for offset, _ in messages(store)] == list(range(COUNT + 1))
        crash(store)
    assert "the last entry of the ConsumeQueue Batches/0 was damaged" in caplog.text


def test_a_wrong_unit_behind_a_cut_moves_no_number(tmp_path: Path) -> None:
    """The unit that was the last but one is the last one now."""
    store = filled(tmp_path)
    store.become_slave()
    end = store.queues.get("Batches", 0).unit(COUNT - SIZE)[0]
    flip_unit(tmp_path, BATCHES - 2, 50)
    store.cutter.truncate(end)
    store.become_master()
    assert put_items(store, batch_of(1))[2] == COUNT - SIZE
    crash(store)


@pytest.mark.parametrize("nums", [1, SIZE, 7, 32])
@pytest.mark.parametrize("number", [0, 1, 4, 8, BATCHES - 1])
def test_a_consumer_passes_no_message(tmp_path: Path, number: int, nums: int) -> None:
    """It gets what is in front of the wrong unit, and then an error."""
    store = filled(tmp_path)
    for bit in BITS:
        path, right = flip_unit(tmp_path, number, bit)
        for begin in range(COUNT):
            offset, got = begin, list[tuple[int, int]]()
            try:
                while offset < COUNT:
                    result = store.get("Batches", 0, offset, nums, 1 << 20, None)
                    assert result.next_begin_offset > offset
                    got.append((result.message_count, result.next_begin_offset))
                    base = offset - offset % SIZE
                    assert base + result.message_count == result.next_begin_offset, (bit, begin)
                    offset = result.next_begin_offset
            except DamagedQueueError:
                assert offset < (number + 1) * SIZE or begin > number * SIZE, (bit, begin, offset)
        changed(path, right)
    assert [offset for offset, _ in messages(store)] == list(range(COUNT))
    crash(store)


@pytest.mark.parametrize("bit", [0, 1, 5, 12])
async def test_a_wrong_number_in_a_record_is_damage_and_the_unit_stays(tmp_path: Path, bit: int) -> None:
    """The record has it a second time."""
    store = filled(tmp_path)
    begin, size, _ = store.queues.get("Batches", 0).unit(4 * SIZE)
    at = begin + QUEUE_OFFSET_AT + 7 - bit // 8
    byte = store.commit_log.view(at, 1)[0] ^ 1 << bit % 8
    paths = sorted((tmp_path / "batchconsumequeue" / "Batches" / "0").iterdir())
    before = [path.read_bytes() for path in paths]
    write(tmp_path, at, bytes([byte]))
    with pytest.raises(DamagedQueueError):
        store.get("Batches", 0, 4 * SIZE, 1, 1 << 20, None)
    for _ in range(2):  # the next round does not take it for whole
        await whole_round(scrub_of(store))
        (damaged,) = store.damage.ranges
        assert (damaged.start, damaged.end) == (begin, begin + size) and "INNER_BASE" in damaged.reason
    assert [path.read_bytes() for path in paths] == before
    crash(store)


def test_a_replica_dispatches_no_record_with_a_wrong_number(tmp_path: Path) -> None:
    master, slave = filled(tmp_path / "m"), open_batches(tmp_path / "s", master=False)
    slave.become_slave()
    copy_log(master, slave)
    begin, size, _ = master.queues.get("Batches", 0).unit(COUNT - 1)
    slave.commit_log.view(begin + QUEUE_OFFSET_AT, 8)[7] ^= 8
    scan_all(slave)
    confirm(slave)
    (damaged,) = slave.damage.ranges
    assert (damaged.start, damaged.end) == (begin, begin + size)
    assert slave.max_queue_offset("Batches", 0) == COUNT - SIZE
    slave.become_master()
    assert put_items(slave, batch_of(1))[2] >= COUNT
    crash(master)
    crash(slave)
