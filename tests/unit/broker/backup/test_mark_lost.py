"""A damaged range that no replica has: shown with its messages, marked, and passed by everything."""

import shutil
from pathlib import Path

import pytest

from broker.admin.repair import RepairError, StoreReport, inspect_store
from broker.backup.mark_lost import LostRange, find_damage, mark_lost
from broker.backup.offline_check import StoreCheck, check_stopped
from broker.backup.queue_repair import Repaired, repair_queues
from broker.ha.epoch_file import EpochFile
from broker.healing.journal import HealJournal
from broker.message.lost_record import is_lost_record
from broker.store.message_store import MessageStore
from tests.support.healing import DirectClient, Replica, flip, group_of, healer_of, log_of
from tests.support.store_disk import After, StoreDisk, Torn
from tests.support.store_parts import crash, open_store, put, records_in


def stopped(tmp_path: Path, hurt: tuple[int, ...] = (6, 7, 20)) -> tuple[Path, Replica]:
    """A stopped store with these records damaged, which nobody has found yet, and what the replica was."""
    (replica,) = group_of(tmp_path, 1)
    for number in hurt:
        flip(replica.store, replica.places[number][1] - 20)
        flip(replica.store, replica.places[number][0] + 90)
        flip(replica.store, replica.places[number][0] + 4)
    replica.store.close()
    EpochFile(tmp_path / "0" / "epochFileCheckpoint").save(replica.epochs)
    return tmp_path / "0", replica


def damage_of(root: Path) -> tuple[StoreReport, list[LostRange]]:
    report, found = inspect_store(root), list[LostRange]()
    for _ in find_damage(report, found):
        pass
    return report, found


def numbers(store: MessageStore, queue_id: int) -> list[int]:
    """The queue offsets that a consumer is given."""
    found, at = list[int](), 0
    while True:
        result = store.get("TopicA", queue_id, at, 32, 1 << 20, None)
        found += [record.queue_offset for record in records_in(result)] if result.views else []
        if result.next_begin_offset == at:
            return found
        at = result.next_begin_offset


def test_what_would_be_lost_is_shown(tmp_path: Path) -> None:
    root, replica = stopped(tmp_path)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    _, found = damage_of(root)
    assert [(each.start, each.end) for each in found] == [
        (replica.places[6][0], replica.places[7][1]),
        replica.places[20],
    ]
    assert [[(each.queue_id, each.numbers) for each in lost.queues] for lost in found] == [
        [(0, (3,)), (1, (3,))],
        [(0, (10,))],
    ]
    assert [each.message_count for each in found] == [2, 1]
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_consumers_pass_a_mark(tmp_path: Path) -> None:
    root, replica = stopped(tmp_path)
    report, found = damage_of(root)
    kept = mark_lost(report, found)
    assert sorted(path.name for path in kept.iterdir()) == sorted(
        f"{each.start}-{each.end}" for each in found
    )
    store = open_store(root)
    assert not store.damage
    assert store.confirm_offset == replica.places[-1][1]
    assert numbers(store, 0) == [each for each in range(20) if each not in (3, 10)]
    assert numbers(store, 1) == [each for each in range(20) if each != 3]
    assert put(store, b"goes on")[2] == 20
    crash(store)


def test_a_marked_store_is_whole(tmp_path: Path) -> None:
    """For keelmq verify --from-dir, repair --queues, and a start that reads all of the log."""
    root, replica = stopped(tmp_path)
    report, found = damage_of(root)
    mark_lost(report, found)
    check = StoreCheck(root)
    for _ in check_stopped(root, check):
        pass
    assert check.faults == [] and check.unqueued == 0
    queues = {path: path.read_bytes() for path in (root / "consumequeue").rglob("*") if path.is_file()}
    repaired = Repaired()
    for _ in repair_queues(inspect_store(root), repaired, writes=True, file_bytes=200):
        pass
    assert not repaired.count and not repaired.left
    assert {path: path.read_bytes() for path in queues} == queues
    shutil.rmtree(root / "consumequeue")
    (root / "checkpoint").unlink()
    (root / "abort").write_text("another program's")
    store = open_store(root)
    assert store.commit_log.max_offset == replica.places[-1][1]
    store.set_confirm_offset(store.commit_log.max_offset)
    while store.dispatcher.dispatch(1_000):
        pass
    assert numbers(store, 0) == [each for each in range(20) if each not in (3, 10)]
    crash(store)


def test_retention_after_a_mark_hides_no_message(tmp_path: Path) -> None:
    """The search for the first message of a queue may meet a filler in its middle."""
    for first in range(6, 38):
        root, replica = stopped(tmp_path / str(first), tuple(range(first, min(first + 6, 39))))
        report, found = damage_of(root)
        mark_lost(report, found)
        store = open_store(root)
        store.commit_log.take_oldest().delete()
        begin = store.commit_log.min_offset
        for queue_id in (0, 1):
            queue = store.find_queue("TopicA", queue_id)
            assert queue is not None
            for file in queue.expire(begin):
                file.delete()
            lost = range(first, min(first + 6, 39))
            wanted = [
                number // 2
                for number, (offset, _) in enumerate(replica.places)
                if offset >= begin and number % 2 == queue_id and number not in lost
            ]
            read = list[int]()
            at = queue.min_offset
            while at < queue.max_offset:
                result = store.get("TopicA", queue_id, at, 32, 1 << 20, None)
                read += [each.queue_offset for each in records_in(result)] if result.views else []
                at = result.next_begin_offset
            assert read == wanted, (first, queue_id)
        crash(store)


async def test_the_other_replicas_get_the_mark(tmp_path: Path) -> None:
    mine, other = group_of(tmp_path, 2)
    start, end = mine.places[6][0], mine.places[8][1]
    for each in (mine, other):
        for number in (6, 7, 8):
            flip(each.store, each.places[number][0] + 4)
    other.store.damage.add(start, end, "test")
    mine.store.close()
    EpochFile(mine.store.root / "epochFileCheckpoint").save(mine.epochs)
    report, found = damage_of(mine.store.root)
    mark_lost(report, found)
    mine.store = open_store(mine.store.root, master=False)
    client = DirectClient([mine, other])
    assert await healer_of(other, client, ["0"]).heal(other.store.damage.ranges)
    assert log_of(other.store) == log_of(mine.store)
    for queue_id in (0, 1):
        assert numbers(other.store, queue_id) == numbers(mine.store, queue_id)
    mine.store.flush()
    other.store.flush()
    for path in (mine.store.root / "consumequeue").rglob("*"):
        if path.is_file():
            there = other.store.root / path.relative_to(mine.store.root)
            assert there.read_bytes() == path.read_bytes()
    crash(mine.store)
    crash(other.store)


def test_only_damage_in_front_of_the_confirmed_end(tmp_path: Path) -> None:
    root, _ = stopped(tmp_path, ())
    assert damage_of(root)[1] == []


def test_a_range_that_is_no_record_is_refused(tmp_path: Path) -> None:
    root, replica = stopped(tmp_path)
    start = replica.places[6][0]
    with pytest.raises(RepairError, match="where records do"):
        mark_lost(inspect_store(root), [LostRange(start, start + 40, "")])


def test_a_running_broker_is_refused(tmp_path: Path) -> None:
    root, _ = stopped(tmp_path)
    report, found = damage_of(root)
    store = open_store(root, master=False)
    with pytest.raises(RepairError, match="stop it first"):
        mark_lost(report, found)
    crash(store)


async def test_a_crash_at_every_step(tmp_path: Path) -> None:
    """The range is damaged as before, or the next start finishes the mark."""
    root, replica = stopped(tmp_path / "made", (6, 7))
    steps, states = 0, set[str]()
    while True:
        work = tmp_path / f"work{steps}"
        shutil.copytree(root, work)
        report, found = damage_of(work)
        try:
            with (disk := StoreDisk(work)).watched(After(steps)):
                mark_lost(report, found)
            is_done = True
        except Torn:
            is_done = False
        work = disk.survivors_of_a_kill(tmp_path / f"left{steps}")
        store = open_store(work, master=False)
        mine = Replica("0", store, replica.epochs, replica.places)
        await healer_of(mine, DirectClient([]), []).finish()
        assert HealJournal(work).read() is None
        start = replica.places[6][0]
        view = store.commit_log.view(start, 200)
        if is_lost_record(view, 0):
            states.add("marked")
            assert numbers(store, 0) == [each for each in range(20) if each != 3]
            assert numbers(store, 1) == [each for each in range(20) if each != 3]
            assert not store.damage
        else:
            states.add("as before")
        crash(store)
        if is_done:
            break
        steps += 1
    assert states == {"marked", "as before"}


def test_a_range_that_fails_the_checksum_of_whole_records(tmp_path: Path) -> None:
    """enabledAppendPropCRC: the broker has named it, and BODYCRC does not see it. One that is sound is not
    taken."""
    (replica,) = group_of(tmp_path, 1, append_prop_crc=True)
    start, end = replica.places[6]
    flip(replica.store, end - 30, 1)
    replica.store.damage.add(start, end, "its own checksum")
    replica.store.damage.add(*replica.places[9], "a mistake")
    replica.store.close()
    EpochFile(tmp_path / "0" / "epochFileCheckpoint").save(replica.epochs)
    _, found = damage_of(tmp_path / "0")
    assert [(each.start, each.end, each.message_count) for each in found] == [(start, end, 1)]
