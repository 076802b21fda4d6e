"""What a pull gets without a filter is what it gets with one that takes everything, found another way."""

import random
import struct
from pathlib import Path

import pytest

from broker.message.record import HEADER_BYTES, decode
from broker.store.queue.consume_queue import FILLER, UNIT_BYTES
from broker.store.queue.reading import DamagedQueueError, GetStatus
from tests.support.store_parts import (
    QUEUE_FILE_BYTES,
    damage_unit,
    open_store,
    put,
    put_many,
    records_in,
)


@pytest.mark.parametrize("seed", range(10))
def test_all_of_the_next_messages(tmp_path: Path, seed: int) -> None:
    """Adjacent records, scattered ones, both; ends of files of log and queue; too few bytes, or enough; short
    messages, which are copied, and long ones, which are not."""
    dice = random.Random(seed)
    body_bytes_max = dice.choice([200, 10_000])
    store = open_store(
        tmp_path,
        commit_log_file_bytes=20 * body_bytes_max,
        consume_queue_file_bytes=20 * UNIT_BYTES,
    )
    runs = dice.choice([1, 3, 40])
    for number in range(60):
        put(store, b"x" * dice.randrange(1, body_bytes_max), queue_id=number // runs % 2, tags="A")
    store.set_confirm_offset(store.commit_log.max_offset)
    every_code = frozenset(unit[2] for unit in store.queues.get("TopicA", 0).units(0, 20))
    for _ in range(100):
        queue_id, offset = dice.randrange(2), dice.randrange(35)
        nums, size = dice.choice([1, 5, 32]), dice.choice([1, 700, 5_000, 50_000, 1 << 20])
        plain = store.get("TopicA", queue_id, offset, nums, size, None)
        looked_at = store.get("TopicA", queue_id, offset, nums, size, every_code)
        assert plain == looked_at
        assert plain.body_bytes == sum(map(len, plain.views))
    store.close()


@pytest.mark.parametrize("body_bytes", [10, 9_000])
@pytest.mark.parametrize(
    "place", [(-(2**63), 100), (2**63 - 1, 100), (500, -600), (2**40, 100), (2**20 - 9_000, 9_000), (50, 0)]
)
@pytest.mark.parametrize("damaged", [0, 1])
@pytest.mark.parametrize("has_filter", [True, False])
def test_a_damaged_queue_gives_no_part_of_it(
    tmp_path: Path, body_bytes: int, place: tuple[int, int], damaged: int, has_filter: bool
) -> None:
    """A response with fewer bytes than it announces would leave its connection out of step."""
    store = open_store(tmp_path, commit_log_file_bytes=1 << 20, consume_queue_file_bytes=20 * UNIT_BYTES)
    for number in range(9):
        put(store, b"x" * body_bytes, queue_id=number % 3, tags="A")
    store.set_confirm_offset(store.commit_log.max_offset)
    (_, _, code), *_ = store.queues.get("TopicA", 0).units(0, 1)
    (path,) = (tmp_path / "consumequeue" / "TopicA" / "0").iterdir()
    with path.open("r+b") as file:  # the last place but one is in the file, behind the log's end
        file.seek(damaged * UNIT_BYTES)
        file.write(struct.pack(">qiq", *place, code))
    tag_codes = frozenset({code}) if has_filter else None
    if place[0] < 0:  # passed over, as a record is whose file was deleted
        found = store.get("TopicA", 0, 0, 32, 1 << 20, tag_codes)
        assert found.message_count == 2 and found.body_bytes == sum(map(len, found.views))
    else:
        if damaged:  # what is in front of it is good
            found = store.get("TopicA", 0, 0, 32, 1 << 20, tag_codes)
            assert (found.message_count, found.next_begin_offset) == (1, 1)
            assert [record.queue_offset for record in records_in(found)] == [0]
        with pytest.raises(DamagedQueueError, match=rf"queue 0, is damaged near offset {damaged}: .* not in"):
            store.get("TopicA", 0, damaged, 32, 1 << 20, tag_codes)
    store.close()


@pytest.mark.parametrize("place", [(7, 60), (1, 300), (10, 1)])
@pytest.mark.parametrize("has_filter", [True, False])
def test_who_decodes_records_gets_nothing_else(
    tmp_path: Path, place: tuple[int, int], has_filter: bool
) -> None:
    """The bytes are in the log, but at no record."""
    store = open_store(tmp_path)
    for _ in range(3):
        put(store, tags="A")
    store.set_confirm_offset(store.commit_log.max_offset)
    (_, _, code), *_ = store.queues.get("TopicA", 0).units(0, 1)
    tag_codes = frozenset({code}) if has_filter else None
    assert store.get("TopicA", 0, 0, 32, 1 << 20, tag_codes, decodes=True).message_count == 3
    damage_unit(tmp_path, 1, place)
    found = store.get("TopicA", 0, 0, 32, 1 << 20, tag_codes, decodes=True)
    assert found.message_count == 1
    with pytest.raises(DamagedQueueError, match=r"queue 0, is damaged near offset 1: .* not in"):
        store.get("TopicA", 0, 1, 32, 1 << 20, tag_codes, decodes=True)
    store.close()


def test_a_body_that_looks_like_a_record_is_none(tmp_path: Path) -> None:
    """All but its magic number fits: size, queue and offset."""
    store = open_store(tmp_path)
    put(store, struct.pack(">i", 100) + bytes(200))
    store.set_confirm_offset(store.commit_log.max_offset)
    damage_unit(tmp_path, 0, (HEADER_BYTES, 100))
    with pytest.raises(DamagedQueueError, match="size 100, magic 0x0"):
        store.get("TopicA", 0, 0, 32, 1 << 20, None, decodes=True)
    store.close()


def write_units(root: Path, number: int, units: bytes) -> None:
    """Writes units of queue 0, all in one of its files."""
    start = number * UNIT_BYTES // QUEUE_FILE_BYTES * QUEUE_FILE_BYTES
    with (root / "consumequeue" / "TopicA" / "0" / f"{start:020d}").open("r+b") as file:
        file.seek(number * UNIT_BYTES - start)
        file.write(units)


def test_no_filter_passes_over_a_lost_entry(tmp_path: Path) -> None:
    """It has lost its tag, too. Nor is it a message that retention has deleted."""
    store = open_store(tmp_path)
    for index in range(200):
        put(store, b"message %d" % index, tags="A")
    store.set_confirm_offset(store.commit_log.max_offset)
    store.close()
    write_units(tmp_path, 150, bytes(2 * UNIT_BYTES))
    min((tmp_path / "commitlog").iterdir()).unlink()
    store = open_store(tmp_path)
    assert store.queues.get("TopicA", 0).min_offset > 0
    code = store.queues.get("TopicA", 0).unit(149)[2]
    for codes in (None, frozenset({code}), frozenset({code + 1})):
        with pytest.raises(DamagedQueueError):
            store.get("TopicA", 0, 150, 32, 1 << 20, codes)
    store.close()


def test_consumers_pass_over_fillers_of_a_whole_log(tmp_path: Path) -> None:
    """No record says what was there, and none has been deleted."""
    store = open_store(tmp_path)
    put_many(store, 20)
    store.close()
    write_units(tmp_path, 4, 2 * FILLER)
    store = open_store(tmp_path)
    assert store.commit_log.min_offset == 0
    result = store.get("TopicA", 0, 4, 1, 1 << 20, None)
    assert (result.status, result.next_begin_offset) == (GetStatus.FOUND, 7)
    assert [decode(each).queue_offset for each in result.views] == [6]
    store.close()
