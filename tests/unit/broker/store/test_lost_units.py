"""Files and entries of a ConsumeQueue that the disk has lost: a start keeps all others, gives no number twice
and says what to do; a read of a lost one is an error, and keelmq repair --queues brings it back."""

import logging
from pathlib import Path
from random import Random

import pytest

from broker.admin.repair import inspect_store
from broker.backup.queue_repair import Repaired, repair_queues
from broker.store.log.mapped_file import StoreError
from broker.store.message_store import MessageStore
from broker.store.queue.consume_queue import UNIT_BYTES
from broker.store.queue.reading import DamagedQueueError
from tests.support.slices import share
from tests.support.store_parts import QUEUE_FILE_BYTES, bodies, open_store, put, put_many, records_in
from tests.unit.broker.store.test_inner_batch import confirm, messages, open_batches, put_items
from tests.unit.broker.store.test_inner_batch import items as batch_of

UNITS = QUEUE_FILE_BYTES // UNIT_BYTES
COUNT = 60
"""Messages in each of two queues."""


def queue_file(root: Path, number: int) -> Path:
    return root / "consumequeue" / "TopicA" / "0" / f"{number * QUEUE_FILE_BYTES:020d}"


def zero(root: Path, begin: int, end: int) -> None:
    for unit in range(begin, end):
        with queue_file(root, unit // UNITS).open("r+b") as file:
            file.seek(unit % UNITS * UNIT_BYTES)
            file.write(bytes(UNIT_BYTES))


def filled(root: Path, *, clean: bool = True) -> None:
    store = open_store(root)
    put_many(store, 2 * COUNT)
    store.flush_checkpoint()
    store.close(clean=clean)


def readable(store: MessageStore) -> set[int]:
    """The offsets of queue 0 at which a consumer gets its message; at each other one it gets an error."""
    found = set()
    queue = store.queues.get("TopicA", 0)
    for offset in range(queue.min_offset, queue.max_offset):
        try:
            result = store.get("TopicA", 0, offset, 1, 1 << 20, None, decodes=True)
        except DamagedQueueError as error:
            assert "keelmq repair --queues" in str(error)
            continue
        assert [record.queue_offset for record in records_in(result)] == [offset]
        found.add(offset)
    return found


def repair(root: Path) -> None:
    for _ in repair_queues(inspect_store(root), Repaired(), writes=True, file_bytes=QUEUE_FILE_BYTES):
        pass


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("lost", [{0}, {1}, {2, 3}, {1, 4}])
def test_a_lost_file_is_an_error_at_its_messages_only(
    tmp_path: Path, lost: set[int], clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path, clean=clean)
    for number in lost:
        queue_file(tmp_path, number).unlink()
    first = UNITS if 0 in lost else 0  # retention deletes first files, too
    expected = {offset for offset in range(first, COUNT) if offset // UNITS not in lost}
    for _ in range(2):  # it is told at each start
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            store = open_store(tmp_path)
        told = f"lost {len(lost)} files, from {queue_file(tmp_path, min(lost))} on: consumers get an error"
        assert (told in caplog.text) is (0 not in lost)
        assert (f"run keelmq repair --store {tmp_path} --queues" in caplog.text) is (0 not in lost)
        assert readable(store) == expected
        assert store.queues.get("TopicA", 0).next_offset == COUNT
        store.close()
    repair(tmp_path)
    store = open_store(tmp_path)
    assert bodies(store) == [b"message %d" % index for index in range(0, 2 * COUNT, 2)]
    store.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("begin", range(0, COUNT - UNITS, 3))
def test_lost_entries_end_no_queue(tmp_path: Path, begin: int, clean: bool) -> None:
    """The messages behind them stay, and their numbers are given to no other message."""
    filled(tmp_path, clean=clean)
    end = min(begin + 5, COUNT - UNITS)
    zero(tmp_path, begin, end)
    store = open_store(tmp_path)
    assert readable(store) == set(range(COUNT)) - set(range(begin, end))
    assert put(store)[2] == COUNT
    store.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("page", [0, 1, 2])
def test_a_lost_page_of_the_last_file_ends_no_queue(tmp_path: Path, page: int, clean: bool) -> None:
    """Most queues have one file."""
    store = open_store(tmp_path, consume_queue_file_bytes=20_000, commit_log_file_bytes=1 << 20)
    put_many(store, 1_000, queues=1)
    put(store, queue_id=1)  # the start looks for new records behind the newest entry of all queues
    store.set_confirm_offset(store.commit_log.max_offset)
    store.flush_checkpoint()
    store.close(clean=clean)
    with queue_file(tmp_path, 0).open("r+b") as file:
        file.seek(page * 4_096)
        file.write(bytes(4_096))
    store = open_store(tmp_path, consume_queue_file_bytes=20_000, commit_log_file_bytes=1 << 20)
    lost = range(page * 4_096 // UNIT_BYTES, -(-(page + 1) * 4_096 // UNIT_BYTES))
    assert set(range(1_000)) - readable(store) <= set(lost)
    assert put(store)[2] == 1_000
    store.close()


@pytest.mark.parametrize("seed", range(share(200)))
def test_a_cut_and_retention_pass_over_lost_entries(tmp_path: Path, seed: int) -> None:
    """Both look for a unit by the place of its record."""
    random = Random(seed)
    filled(tmp_path)
    lost = {random.randrange(1, COUNT // UNITS - 1) for _ in range(2)}
    for number in lost:
        queue_file(tmp_path, number).unlink()
    store = open_store(tmp_path)
    queue = store.queues.get("TopicA", 0)
    kept = [offset for offset in range(COUNT) if offset // UNITS not in lost]
    at = random.choice(kept)
    place = queue.unit(at)[0]
    if random.random() < 0.5:
        queue.truncate(place)
        assert queue.max_offset in range(max([0, *(each + 1 for each in kept if each < at)]), at + 1)
        assert all(queue.unit(each)[1] for each in kept if each < at)
    else:
        gone = queue.expire(place)
        assert [each for each in gone if each.start_offset // UNIT_BYTES + UNITS > at] == []
        assert queue.min_offset in range(max([0, *(each + 1 for each in kept if each < at)]), at + 1)
        for file in gone:
            file.delete()
    store.close()


@pytest.mark.parametrize("number", [UNITS * 20_000, 7])
def test_a_file_that_continues_no_other_is_named(tmp_path: Path, number: int) -> None:
    """To fill the gap would make more files than the disk may have."""
    filled(tmp_path)
    path = queue_file(tmp_path, 0).with_name(f"{number * UNIT_BYTES:020d}")
    path.write_bytes(queue_file(tmp_path, 1).read_bytes())
    with pytest.raises(StoreError, match="does not continue"):
        open_store(tmp_path)
    assert len(list(path.parent.iterdir())) < 20


def test_an_empty_file_is_a_lost_one(tmp_path: Path) -> None:
    """A power cut after two files were begun may leave the first one so."""
    filled(tmp_path, clean=False)
    queue_file(tmp_path, 1).write_bytes(b"")
    store = open_store(tmp_path)
    assert readable(store) == set(range(COUNT)) - set(range(UNITS, 2 * UNITS))
    store.close()


@pytest.mark.parametrize("clean", [True, False])
def test_a_lost_file_of_batches(tmp_path: Path, clean: bool, caplog: pytest.LogCaptureFixture) -> None:
    store = open_batches(tmp_path)
    for first in range(0, 2_500, 2):
        put_items(store, batch_of(2, first))
    confirm(store)
    store.flush_checkpoint()
    files = store.queues.get("Batches", 0).file_count
    assert files > 3
    store.close(clean=clean)
    paths = sorted((tmp_path / "batchconsumequeue" / "Batches" / "0").iterdir())
    per_file = paths[0].stat().st_size // 46 * 2
    paths[1].unlink()
    with caplog.at_level(logging.ERROR):
        store = open_batches(tmp_path)
    assert f"lost 1 files, from {paths[1]} on" in caplog.text and "--resync" in caplog.text
    assert store.queues.get("Batches", 0).next_offset == 2_500
    assert [number for number, _ in messages(store, 2 * per_file)] == list(range(2 * per_file, 2_500))
    for offset in (per_file, per_file + 7, 2 * per_file - 1):
        with pytest.raises(DamagedQueueError):
            store.get("Batches", 0, offset, 32, 1 << 20, None)
    assert store.get("Batches", 0, per_file - 1, 32, 1 << 20, None).message_count == 2
    store.close()
