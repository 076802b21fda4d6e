"""The scrub mends ConsumeQueue entries that a disk has changed, by their records, and no other ones."""

import asyncio
import struct
from pathlib import Path

import pytest

from broker.message.delay_levels import SCHEDULE_TOPIC, TIMER_TOPIC
from broker.message.record import tag_code, tags_code
from broker.store import entry_check
from broker.store.entry_check import EntryCheck, expected_units
from broker.store.message_store import MessageStore
from broker.store.queue.batch_queue import BATCH_UNIT_BYTES
from broker.store.queue.consume_queue import GAP_FILLER, UNIT, UNIT_BYTES
from broker.store.settings import NamedTopic
from tests.support import slices
from tests.support.file_damage import changed
from tests.support.store_parts import (
    BORN_HOST,
    QUEUE_FILE_BYTES,
    TOPIC,
    bodies,
    crash,
    open_store,
    put,
    records_in,
)
from tests.unit.broker.store.test_inner_batch import confirm, messages, open_batches, put_items
from tests.unit.broker.store.test_inner_batch import items as batch_of
from tests.unit.broker.store.test_scrub import scrub_of, whole_round

pytestmark = pytest.mark.usefixtures("small_slices")

COUNT = 30
TAGS = ("a", "b")
ALL = [b"message %02d" % number for number in range(COUNT)]


def filled(root: Path) -> MessageStore:
    """Records of one size, half of them with another tag, in two queues; confirmed and durable."""
    store = open_store(root)
    for number, body in enumerate(ALL):
        for queue_id in (0, 1):
            put(store, body, queue_id=queue_id, tags=TAGS[number % 2])
    store.set_confirm_offset(store.commit_log.max_offset)
    store.flush_checkpoint()
    return store


def units_path(root: Path, number: int, topic: str = "TopicA", queue_id: int = 0) -> tuple[Path, int]:
    start, at = divmod(number * UNIT_BYTES, QUEUE_FILE_BYTES)
    return root / "consumequeue" / topic / str(queue_id) / f"{start * QUEUE_FILE_BYTES:020d}", at


def overwrite(root: Path, number: int, unit: bytes, topic: str = "TopicA") -> None:
    path, at = units_path(root, number, topic)
    content = bytearray(path.read_bytes())
    content[at : at + len(unit)] = unit
    changed(path, bytes(content))


def unit_at(root: Path, number: int) -> bytes:
    path, at = units_path(root, number)
    return path.read_bytes()[at : at + UNIT_BYTES]


def filtered(store: MessageStore, tag: str) -> list[bytes]:
    found, offset = list[bytes](), 0
    while offset < COUNT:
        result = store.get("TopicA", 0, offset, COUNT, 1 << 20, frozenset({tag_code(tag)}))
        found += [record.body for record in records_in(result)]
        offset = result.next_begin_offset
    return found


@pytest.mark.parametrize("bit", range(0, UNIT_BYTES * 8, 3 if slices.ALL else 13))
@pytest.mark.parametrize("number", [0, 9, 14, COUNT - 1])
async def test_a_flipped_bit_is_mended(tmp_path: Path, number: int, bit: int) -> None:
    """The first and last entries of a queue and of a file, and one between; each byte."""
    store = filled(tmp_path)
    right = unit_at(tmp_path, number)
    wrong = bytearray(right)
    wrong[bit // 8] ^= 1 << bit % 8
    overwrite(tmp_path, number, bytes(wrong))
    scrub = scrub_of(store)
    await whole_round(scrub)
    assert unit_at(tmp_path, number) == right
    assert scrub.entries.rewritten == 1 and not store.damage
    assert bodies(store) == ALL
    store.close()


async def test_a_filtered_consumer_misses_nothing_any_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = filled(tmp_path)
    offset, size, code = UNIT.unpack(unit_at(tmp_path, 4))
    overwrite(tmp_path, 4, UNIT.pack(offset, size, code ^ 1))
    assert ALL[4] not in filtered(store, "a")
    scrub = scrub_of(store)
    await whole_round(scrub)
    assert filtered(store, "a") == ALL[::2] and filtered(store, "b") == ALL[1::2]
    assert "the entry 4 of the ConsumeQueue TopicA/0 was damaged" in caplog.text
    assert scrub.runtime_info()["scrubEntriesRewritten"] == "1"
    store.close()


@pytest.mark.parametrize("other", [2, 20])
async def test_the_place_of_another_record_of_the_same_size(tmp_path: Path, other: int) -> None:
    store = filled(tmp_path)
    right = unit_at(tmp_path, 10)
    overwrite(tmp_path, 10, unit_at(tmp_path, other)[:12] + right[12:])
    await whole_round(scrub_of(store))
    assert unit_at(tmp_path, 10) == right and bodies(store) == ALL
    store.close()


async def test_entries_side_by_side_that_name_another_record(tmp_path: Path) -> None:
    """The place of an entry whose record is of another number proves nothing about its neighbour."""
    store = filled(tmp_path)
    right = [unit_at(tmp_path, number) for number in (10, 11)]
    for number in (10, 11):
        overwrite(tmp_path, number, unit_at(tmp_path, 2))
    await whole_round(scrub_of(store))
    assert [unit_at(tmp_path, number) for number in (10, 11)] == right and bodies(store) == ALL
    store.close()


@pytest.mark.parametrize("lost", [bytes(UNIT_BYTES), GAP_FILLER])
async def test_lost_entries_of_sound_records_are_written(tmp_path: Path, lost: bytes) -> None:
    """A zeroed page, and the fillers of records that were damaged."""
    store = filled(tmp_path)
    files = {path: path.read_bytes() for path in (tmp_path / "consumequeue" / "TopicA" / "0").iterdir()}
    for number in range(5, 25):
        overwrite(tmp_path, number, lost)
    scrub = scrub_of(store)
    await whole_round(scrub)
    assert {path: path.read_bytes() for path in files} == files
    assert scrub.entries.rewritten == 20 and bodies(store) == ALL
    store.close()


async def test_what_is_mended_is_durable_with_the_next_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path)
    right = unit_at(tmp_path, 3)
    overwrite(tmp_path, 3, bytes(UNIT_BYTES))
    await whole_round(scrub_of(store))
    synced: list[Path] = []
    monkeypatch.setattr("broker.store.queue.consume_queue.sync_file", lambda _, path: synced.append(path))
    store.flush()
    assert units_path(tmp_path, 3)[0] in synced
    crash(store)
    store = open_store(tmp_path)
    assert unit_at(tmp_path, 3) == right and bodies(store) == ALL
    store.close()


async def test_sound_queues_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path)
    scrub = scrub_of(store)
    monkeypatch.setattr(EntryCheck, "judge", lambda *_: pytest.fail("an entry was judged"))
    await whole_round(scrub)
    assert scrub.entries.rewritten == 0
    store.close()


async def test_an_entry_of_a_newer_record_of_the_number_stays(tmp_path: Path) -> None:
    """RocketMQ gives numbers again to a topic that was deleted and is made again."""
    store = filled(tmp_path)
    queue = store.queues.get("TopicA", 0)
    first = UNIT.unpack(unit_at(tmp_path, 0))[0]
    queue.next_offset = 0
    again = put(store, ALL[0], tags="a")[0]
    overwrite(tmp_path, 0, struct.pack(">q", again))
    store.set_confirm_offset(store.commit_log.max_offset)
    check = EntryCheck(store)
    check.judge(queue, 0, first)
    assert check.rewritten == 0 and UNIT.unpack(unit_at(tmp_path, 0))[0] == again
    store.close()


async def test_entries_of_light_topics_stay(tmp_path: Path) -> None:
    """RocketMQ's multi-dispatch: an entry of a record of another topic."""
    store = open_store(tmp_path)
    light = NamedTopic("%LMQ%x")
    properties = b"INNER_MULTI_DISPATCH\x01%LMQ%y,%LMQ%x\x02"
    for number in range(3):
        store.put(light, 0, b"own %d" % number, b"", 0, 0, 1, BORN_HOST, 0, 0)
    other = store.put(TOPIC, 0, b"other", properties, 0, 0, 1, BORN_HOST, 0, 0)
    store.set_confirm_offset(store.commit_log.max_offset)
    entry = UNIT.pack(other[0], other[1] - other[0], 77)
    overwrite(tmp_path, 1, entry, topic="%LMQ%x")
    store.flush_checkpoint()
    scrub = scrub_of(store)
    await whole_round(scrub)
    assert scrub.entries.rewritten == 0
    assert store.queues.get("%LMQ%x", 0).unit(1) == UNIT.unpack(entry)
    store.close()


async def test_a_timer_of_rocketmq_stays(tmp_path: Path) -> None:
    """Its entry has the code of the tag, where one of ours has the time."""
    store = open_store(tmp_path)
    timer, properties = NamedTopic(TIMER_TOPIC), b"TAGS\x01a\x02TIMER_OUT_MS\x0112000\x02"
    for code in (tags_code(properties), 12_000, 54_321):
        store.put(timer, 0, b"timer", properties, 0, 0, 1, BORN_HOST, 0, code)
    store.set_confirm_offset(store.commit_log.max_offset)
    store.flush_checkpoint()
    scrub = scrub_of(store)
    await whole_round(scrub)
    codes = [store.queues.get(TIMER_TOPIC, 0).unit(number)[2] for number in range(3)]
    assert codes == [tags_code(properties), 12_000, 12_000] and scrub.entries.rewritten == 1
    store.close()


async def test_codes_that_are_not_sure_stay(tmp_path: Path) -> None:
    """Delivery times by another messageDelayLevel, two tags, and addresses in consumequeue_ext."""
    store = open_store(tmp_path)
    delayed, twice = NamedTopic(SCHEDULE_TOPIC), b"TAGS\x01a\x02TAGS\x01b\x02"
    store.put(delayed, 2, b"late", b"DELAY\x013\x02", 0, 0, 1, BORN_HOST, 0, 12_345)
    store.put(TOPIC, 0, b"twice", twice, 0, 0, 1, BORN_HOST, 0, 54_321)
    store.set_confirm_offset(store.commit_log.max_offset)
    store.flush_checkpoint()
    scrub = scrub_of(store)
    await whole_round(scrub)
    assert scrub.entries.rewritten == 0
    assert store.queues.get(SCHEDULE_TOPIC, 2).unit(0)[2] == 12_345
    assert store.queues.get("TopicA", 0).unit(0)[2] == 54_321 != tags_code(twice)
    store.close()


@pytest.mark.parametrize("has_file", [True, False])
async def test_an_address_of_an_extended_entry_stays(tmp_path: Path, has_file: bool) -> None:
    if has_file:
        (tmp_path / "consumequeue_ext").mkdir()
    store = filled(tmp_path)
    overwrite(tmp_path, 7, unit_at(tmp_path, 7)[:12] + struct.pack(">q", -(1 << 40)))
    scrub = scrub_of(store)
    await whole_round(scrub)
    assert scrub.entries.rewritten == (0 if has_file else 1)
    store.close()


async def test_nothing_is_judged_after_a_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path)
    wanted = list(expected_units(bytes(store.commit_log.view(0, 2_000)), 0, {}))
    for number in range(3):
        overwrite(tmp_path, number, bytes(UNIT_BYTES))
    store.become_slave()
    judged: list[int] = []

    def judge(_: EntryCheck, __: object, number: int, ___: int) -> None:
        judged.append(number)
        store.cutter.begin_cut(store.commit_log.max_offset - 200)

    monkeypatch.setattr(entry_check, "STEP_US", 0)
    monkeypatch.setattr(EntryCheck, "judge", judge)
    await EntryCheck(store).compare(wanted, store.cutter.cut_count)
    assert judged == [0]
    store.close()


async def test_the_loop_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a time that passes by 1 ms at each look, others run after each entry or two."""
    store = filled(tmp_path)
    for number in range(COUNT):
        overwrite(tmp_path, number, bytes(UNIT_BYTES))
    times = iter(range(0, 10**9, 1_000))
    monkeypatch.setattr(entry_check, "now_us", lambda: next(times))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(others())
    log = store.commit_log
    wanted = [
        each
        for start in log.file_starts()
        for each in expected_units(bytes(log.view(start, log.file_bytes)), start, {})
    ]
    check = EntryCheck(store)
    await check.compare(wanted, store.cutter.cut_count)
    task.cancel()
    assert check.rewritten == COUNT
    assert turns >= COUNT // 2
    store.close()


# -- queues of batches ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("bit", range(0, 38 * 8, 5 if slices.ALL else 19))
@pytest.mark.parametrize("number", [0, 3, 5, 9])
async def test_a_flipped_bit_in_an_entry_of_batches(tmp_path: Path, number: int, bit: int) -> None:
    store = open_batches(tmp_path)
    for first in range(0, 20, 2):
        put_items(store, batch_of(2, first))
    confirm(store)
    store.flush_checkpoint()
    paths = sorted((tmp_path / "batchconsumequeue" / "Batches" / "0").iterdir())
    path, at = paths[number // 4], number % 4 * BATCH_UNIT_BYTES
    right = path.read_bytes()
    wrong = bytearray(right)
    wrong[at + bit // 8] ^= 1 << bit % 8
    changed(path, bytes(wrong))
    scrub = scrub_of(store)
    await whole_round(scrub)
    assert path.read_bytes() == right and scrub.entries.rewritten == 1
    assert [offset for offset, _ in messages(store)] == list(range(20))
    store.close()


async def test_a_lost_page_of_batches(tmp_path: Path) -> None:
    store = open_batches(tmp_path)
    for first in range(0, 20, 2):
        put_items(store, batch_of(2, first))
    confirm(store)
    store.flush_checkpoint()
    path = sorted((tmp_path / "batchconsumequeue" / "Batches" / "0").iterdir())[1]
    right = path.read_bytes()
    changed(path, bytes(len(right)))
    await whole_round(scrub_of(store))
    assert path.read_bytes() == right
    store.close()
