"""Offsets beyond the ends of their queues: found without a scan of the table, and set back before a term."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random

from broker.metadata.offset_checks import TRUNCATIONS_MAX
from broker.metadata.offsets import CHECKED_MAX, Clamped, ConsumerOffsetTable
from broker.metadata.ports import StoreQueues
from broker.metadata.service import Metadata
from tests.support.metadata_parts import QueuesWithoutLog, ReplicasT, begin_term, open_metadata
from tests.support.server_parts import until
from tests.support.store_parts import open_store, put, put_many


class CountedQueues(QueuesWithoutLog):
    """Counts how often a queue's end is asked for."""

    def __init__(self, end: int = 1 << 60) -> None:
        self.end, self.asked = end, 0

    def queue_end(self, topic: str, queue_id: int) -> int:
        self.asked += 1
        return self.end


def scan(table: ConsumerOffsetTable, end_of: Callable[[str, int], int]) -> list[Clamped]:
    """The plain rule: every offset of every row."""
    found = []
    for key in sorted(table.table.rows):
        topic, group = key.split("@")
        for queue_id, offset in sorted(table.table.rows[key].items()):
            if offset > end_of(topic, queue_id):
                found.append(Clamped(group, topic, queue_id, offset, end_of(topic, queue_id)))
    return found


def test_the_doubtful_rows_are_enough(tmp_path: Path) -> None:
    """Against the scan of the whole table, over random commits, versions, removals, growth, truncations."""
    ends: dict[tuple[str, int], int] = {}

    def end_of(topic: str, queue_id: int) -> int:
        return ends[topic, queue_id]

    for seed in range(60):
        dice = Random(seed)
        table = ConsumerOffsetTable(tmp_path / f"{seed}.json")
        table.load()
        ends.update(((topic, queue_id), 0) for topic in "ABC" for queue_id in range(3))
        for _ in range(120):
            topic, queue_id, group = dice.choice("ABC"), dice.randrange(3), dice.choice("gh")
            step = dice.randrange(8)
            if step <= 2:
                table.commit(group, topic, queue_id, dice.randrange(30))
            elif step == 3:
                table.commit_staged()
            elif step == 4:
                ends[topic, queue_id] += dice.randrange(8)
            elif step == 5:
                table.check(end_of, dice.randrange(4))
            elif step == 6 and dice.random() < 0.3:
                ends[topic, queue_id] //= 2
                table.doubt_all()
            elif step == 7 and dice.random() < 0.3:
                table.remove_group(group)
        expected = scan(table, end_of)
        assert table.beyond(end_of) == expected, seed
        assert table.doubtful == len({(each.group, each.topic) for each in expected}), seed


def test_rows_of_a_file_and_of_a_master_are_doubtful(tmp_path: Path) -> None:
    master = ConsumerOffsetTable(tmp_path / "m.json")
    master.commit("g", "T", 0, 9)
    master.flush()
    again, replica = ConsumerOffsetTable(tmp_path / "m.json"), ConsumerOffsetTable(tmp_path / "r.json")
    again.load()
    update = master.updates_since(None)
    assert update is not None and replica.accept(update) is None
    first = master.table.version
    master.commit("h", "T", 0, 8)
    master.commit_staged()
    beyond = [Clamped("g", "T", 0, 9, 5)]
    assert again.beyond(lambda topic, queue_id: 5) == replica.beyond(lambda topic, queue_id: 5) == beyond
    replica.check(lambda topic, queue_id: 99)
    assert replica.doubtful == 0
    change = master.table.since(first)
    assert change is not None and replica.accept(master.to_wire(change)) is None
    assert replica.beyond(lambda topic, queue_id: 5) == [Clamped("h", "T", 0, 8, 5)], "only what changed"


def test_one_check_is_bounded(tmp_path: Path) -> None:
    table = ConsumerOffsetTable(tmp_path / "t.json")
    for number in range(CHECKED_MAX):
        table.commit(f"g{number}", "T", 0, 1)
    queues = CountedQueues()
    rows, found = table.check(queues.queue_end)
    assert rows == queues.asked == CHECKED_MAX // 2 and not found, "a row costs as much as an offset"
    assert table.doubtful == CHECKED_MAX - rows


async def test_a_promotion_looks_at_what_changed_since_the_last_check(tmp_path: Path) -> None:
    queues = CountedQueues()
    replica = open_metadata(tmp_path, queues=queues)
    for number in range(3 * CHECKED_MAX):
        replica.offsets.commit(f"g{number}", "T", 0, 1)
    replica.offsets.commit_staged()
    async with checking(replica):
        await until(lambda: replica.offsets.doubtful == 0)
    queues.asked = 0
    replica.offsets.commit("late", "T", 0, 7)
    queues.end = 5
    begin_term(replica, 1)
    assert queues.asked == 1, "not the whole table"
    assert replica.offsets.query("late", "T", 0) == 5


async def test_the_loop_goes_on_while_many_offsets_are_set_back(tmp_path: Path) -> None:
    """And the term begins when all of them are."""
    metadata = open_metadata(tmp_path, queues=CountedQueues(end=3))
    count = 4 * CHECKED_MAX
    for number in range(count):
        metadata.offsets.commit(f"g{number}", "T", 0, 9)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while metadata.epoch == 0:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    await metadata.begin_term(2, ReplicasT(), on_released=lambda: None)
    assert turns >= 2 * count // CHECKED_MAX - 1
    assert {tuple(row.items()) for row in metadata.offsets.table.rows.values()} == {((0, 3),)}
    assert not metadata.offsets.is_staged and metadata.offsets.table.version.state_version == 2
    await other


async def test_a_truncation_is_reported_with_the_ends_of_that_moment(tmp_path: Path) -> None:
    """The master sends the log again before the report is made."""
    store = open_store(tmp_path / "s")
    put_many(store, 5, queues=1)
    end = store.commit_log.max_offset
    put_many(store, 4, queues=1)
    metadata = open_metadata(tmp_path / "m", queues=StoreQueues(store))
    metadata.offsets.commit("billing", "TopicA", 0, 7)
    metadata.offsets.commit("audit", "TopicA", 0, 5)
    before = store.commit_log.max_offset
    store.become_slave()
    store.cutter.truncate(end)
    store.become_master()
    metadata.log_truncated(before, end)
    put_many(store, 4, queues=1)
    put(store, b"more", queue_id=0)
    notes = tmp_path / "m" / "config" / "truncation.json"
    async with checking(metadata):
        await until(notes.exists)
    (note,) = json.loads(notes.read_text())["notes"]
    assert note["offsets"] == [{"group": "billing", "topic": "TopicA", "queueId": 0, "was": 7, "queueEnd": 5}]
    store.close()


async def test_truncations_that_wait_for_their_report_are_bounded(tmp_path: Path) -> None:
    metadata = open_metadata(tmp_path, queues=CountedQueues(end=3))
    metadata.offsets.commit("g", "T", 0, 9)
    for number in range(TRUNCATIONS_MAX + 3):
        metadata.log_truncated(1_000 + number, 500)
    notes = tmp_path / "config" / "truncation.json"
    async with checking(metadata):
        await until(lambda: notes.exists() and notes.read_text().count('"reason"') == TRUNCATIONS_MAX)
    assert "from 1002 to" not in notes.read_text() and "from 1006 to" in notes.read_text()


@contextlib.asynccontextmanager
async def checking(metadata: Metadata) -> AsyncIterator[None]:
    """Inside, the offsets are checked as in a broker."""
    task = asyncio.create_task(metadata.check_offsets())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
