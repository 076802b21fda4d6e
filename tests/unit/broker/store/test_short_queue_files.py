"""Files of ConsumeQueues that have lost their ends: a start makes them whole, gives no number twice, and
makes the lost entries again, at the end of a queue at once, and elsewhere by the scrub."""

import logging
import os
from pathlib import Path

import pytest

from broker.store.log.mapped_file import StoreError
from broker.store.message_store import MessageStore
from broker.store.queue.consume_queue import UNIT_BYTES
from broker.store.queue.queue_ends import FILE_NAME as ENDS_NAME
from cli.lab.chaos.damage import same_time
from tests.support.file_damage import changed, content_of, put_back, times_of
from tests.support.slices import share
from tests.support.store_parts import QUEUE_FILE_BYTES, bodies, crash, open_store, put, put_many
from tests.unit.broker.store.test_inner_batch import confirm, messages, open_batches, put_items
from tests.unit.broker.store.test_inner_batch import items as batch_of
from tests.unit.broker.store.test_lost_units import readable
from tests.unit.broker.store.test_scrub import scrub_of, whole_round

pytestmark = pytest.mark.usefixtures("small_slices")

COUNT = 60
"""Messages in each of two queues."""
UNITS = QUEUE_FILE_BYTES // UNIT_BYTES
ALL = [b"message %d" % index for index in range(0, 2 * COUNT, 2)]
LARGE = 2_000
"""Files of one queue each: nothing but the other one proves their size."""


def queue_file(root: Path, number: int = 0, *, size: int = QUEUE_FILE_BYTES, queue_id: int = 0) -> Path:
    return root / "consumequeue" / "TopicA" / str(queue_id) / f"{number * size:020d}"


def cut(path: Path, size: int) -> None:
    with same_time(path):
        os.truncate(path, size)


def filled(root: Path, *, clean: bool, size: int = QUEUE_FILE_BYTES) -> None:
    store = open_store(root, consume_queue_file_bytes=size)
    put_many(store, 2 * COUNT)
    store.flush_checkpoint()
    store.close(clean=clean)


async def healed(store: MessageStore) -> None:
    """The scrub begins at the log's begin, and mends every entry."""
    scrub = scrub_of(store)
    scrub.load()
    await whole_round(scrub)
    assert bodies(store)[:COUNT] == ALL and not store.damage


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("number", [0, 1, 3, COUNT // UNITS - 1])
async def test_each_cut_of_one_of_several_files_heals(tmp_path: Path, number: int, clean: bool) -> None:
    """The first, one in the middle, the last; also within an entry, and to one byte."""
    filled(tmp_path, clean=clean)
    files, times = content_of(tmp_path), times_of(tmp_path)
    path = queue_file(tmp_path, number)
    for size in [1, 19, 20, *range(33, QUEUE_FILE_BYTES - 1, 1_000 // share(100)), QUEUE_FILE_BYTES - 1]:
        cut(path, size)
        store = open_store(tmp_path)
        assert path.stat().st_size == QUEUE_FILE_BYTES
        lost = range(number * UNITS + size // UNIT_BYTES, (number + 1) * UNITS)
        is_last = (number + 1) * UNITS == COUNT
        assert readable(store) >= set(range(COUNT)) - (set() if is_last else set(lost))
        assert put(store)[2] == COUNT
        await healed(store)
        crash(store)
        put_back(tmp_path, files, times)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("has_ends", [True, False])
def test_each_cut_of_the_only_file_of_a_queue_heals(tmp_path: Path, has_ends: bool, clean: bool) -> None:
    """At once: the entries are at the queue's end. Behind the 1,200 bytes of entries nothing is lost."""
    filled(tmp_path, clean=clean, size=LARGE)
    if not has_ends:
        (tmp_path / ENDS_NAME).unlink()
    files, times = content_of(tmp_path), times_of(tmp_path)
    for size in [1, 19, 20, 33, 600, 1_000, 1_199, 1_200, 1_201, 1_400, 1_999]:
        cut(queue_file(tmp_path, size=LARGE), size)
        store = open_store(tmp_path, consume_queue_file_bytes=LARGE)
        assert bodies(store) == ALL
        assert put(store)[2] == COUNT
        crash(store)
        put_back(tmp_path, files, times)


@pytest.mark.parametrize("has_ends", [True, False])
@pytest.mark.parametrize("left", [0, 1, 9, 10, 11, 19])
def test_entries_since_the_ends_were_written_are_made_again(
    tmp_path: Path, left: int, has_ends: bool
) -> None:
    """After a crash: a checkpoint counts them as durable, and queueEnds does not. left: how many of the last
    file are."""
    size = 400
    store = open_store(tmp_path, consume_queue_file_bytes=size)
    put_many(store, 2 * 42)
    store.flush_checkpoint()
    put_many(store, 2 * 17)
    for _ in range(2):  # the newest entry is in another queue, which does not end where a page does
        put(store, queue_id=1)
    store.set_confirm_offset(store.commit_log.max_offset)
    store.flush_checkpoint()
    crash(store)
    if not has_ends:
        (tmp_path / ENDS_NAME).unlink()
    cut(queue_file(tmp_path, 2, size=size), left * UNIT_BYTES + 3)
    store = open_store(tmp_path, consume_queue_file_bytes=size)
    assert store.queues.get("TopicA", 0).max_offset == 59 and put(store)[2] == 59
    assert bodies(store)[:59] == ALL[:42] + ALL[:17]
    store.close()


def test_a_part_of_an_entry_is_no_entry(tmp_path: Path) -> None:
    """With zeros behind it, the first bytes of its tag code, or of its size, would pass for one."""
    store = open_store(tmp_path)
    for index in range(COUNT):
        put(store, b"x" * 300, queue_id=index % 2, tags="a tag")
    store.set_confirm_offset(store.commit_log.max_offset)
    store.close()
    files, times = content_of(tmp_path), times_of(tmp_path)
    for size in range(5 * UNIT_BYTES + 1, 6 * UNIT_BYTES):
        cut(queue_file(tmp_path, 1), size)
        store = open_store(tmp_path)
        queue = store.queues.get("TopicA", 0)
        assert queue.unit(UNITS + 4)[1] > 300 and queue.unit(UNITS + 5) == (0, 0, 0)
        crash(store)
        put_back(tmp_path, files, times)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("has_ends", [True, False])
async def test_the_last_entry_is_damaged_as_well(tmp_path: Path, has_ends: bool, clean: bool) -> None:
    """Its record does not end where it says, and the log, which is not read from there on, is not damaged."""
    filled(tmp_path, clean=clean, size=LARGE)
    if not has_ends:
        (tmp_path / ENDS_NAME).unlink()
    path = queue_file(tmp_path, size=LARGE)
    cut(path, 30 * UNIT_BYTES)
    content = bytearray(path.read_bytes())
    content[29 * UNIT_BYTES + 11] ^= 0x20  # of its size
    changed(path, bytes(content))
    store = open_store(tmp_path, consume_queue_file_bytes=LARGE)
    assert not store.damage
    assert store.queues.get("TopicA", 0).max_offset == COUNT and put(store)[2] == COUNT
    await healed(store)
    store.close()


async def test_the_scrub_begins_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It would come to the lost entries in an hour only."""
    filled(tmp_path, clean=True)
    store = open_store(tmp_path)
    scrub = scrub_of(store)
    scrub.position = store.commit_log.max_offset - 100
    scrub.save()
    store.close()
    cut(queue_file(tmp_path, 1), 50)
    with caplog.at_level(logging.ERROR):
        store = open_store(tmp_path)
    assert f"{queue_file(tmp_path, 1)} has lost its end, at 50 of {QUEUE_FILE_BYTES} bytes" in caplog.text
    await healed(store)
    store.close()
    store = open_store(tmp_path)
    scrub = scrub_of(store)
    scrub.position = 4_000
    scrub.save()
    scrub.load()
    assert scrub.position == 4_000, "nothing is lost any more"
    store.close()


async def test_a_lost_file_makes_the_scrub_begin_anew(tmp_path: Path) -> None:
    filled(tmp_path, clean=True)
    store = open_store(tmp_path)
    scrub = scrub_of(store)
    scrub.position = store.commit_log.max_offset - 100
    scrub.save()
    store.close()
    queue_file(tmp_path, 1).unlink()
    store = open_store(tmp_path)
    assert readable(store) == set(range(COUNT)) - set(range(UNITS, 2 * UNITS))
    await healed(store)
    store.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("number", [0, 1, -1])
async def test_a_short_file_of_batches(tmp_path: Path, number: int, clean: bool) -> None:
    store = open_batches(tmp_path)
    for first in range(0, 500, 2):
        put_items(store, batch_of(2, first))
    confirm(store)
    store.flush_checkpoint()
    store.close(clean=clean)
    path = sorted((tmp_path / "batchconsumequeue" / "Batches" / "0").iterdir())[number]
    whole, files, times = path.stat().st_size, content_of(tmp_path), times_of(tmp_path)
    for size in (1, 46, 47, whole // 2 // 46 * 46, whole // 2, whole - 1):
        cut(path, size)
        store = open_batches(tmp_path)
        assert store.queues.get("Batches", 0).next_offset == 500
        await whole_round(scrub_of(store))
        assert [offset for offset, _ in messages(store)] == list(range(500))
        crash(store)
        put_back(tmp_path, files, times)


@pytest.mark.parametrize("clean", [True, False])
def test_another_size_is_refused_as_before(tmp_path: Path, clean: bool) -> None:
    filled(tmp_path, clean=clean)
    cut(queue_file(tmp_path, 1), 50)
    before = content_of(tmp_path)
    with pytest.raises(StoreError, match=f"set mappedFileSizeConsumeQueue={QUEUE_FILE_BYTES}"):
        open_store(tmp_path, consume_queue_file_bytes=6_000_000)
    assert content_of(tmp_path) == before
