"""keelmq repair --rebuild-queues: what a damaged queue hid is read again; no queue offset is given twice."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from broker.admin.repair import RepairError, inspect_store
from broker.backup.queue_rebuild import QueueRebuild
from broker.message.delay_levels import TIMER_TOPIC
from broker.store.message_store import MessageStore
from broker.store.queue.consume_queue import UNIT, UNIT_BYTES
from broker.store.queue.reading import DamagedQueueError
from broker.store.settings import NamedTopic
from cli.keelmq import app
from tests.support.store_disk import After, FailsOnce, StoreDisk, Torn
from tests.support.store_parts import (
    BORN_HOST,
    FILE_BYTES,
    TOPIC,
    bodies,
    crash,
    damage_unit,
    open_store,
    put,
    put_many,
    records_in,
)
from tests.unit.cli.test_repair import content, repair

FIXTURES = Path(__file__).parents[2] / "fixtures" / "store"
BODIES = {queue: [b"message %d" % index for index in range(queue, 40, 2)] for queue in (0, 1)}
BATCH = NamedTopic("Batches")
BATCH_BODIES = [b"batch %d " % index * 8 for index in range(30)]


class Topics:
    """Only Batches has queue.type=BatchCQ."""

    on_batch_topic: Callable[[str], None] | None = None

    def is_batch(self, name: str) -> bool:
        return name == BATCH.name


def filled(root: Path) -> None:
    store = open_store(root, Topics())
    for index, body in enumerate(BATCH_BODIES):  # old: a start after a crash trusts these
        store.put(BATCH, 0, body, b"", 0, 0, 1, BORN_HOST, 0, 0, store_timestamp=(index + 1) * 1_000_000)
    put_many(store, 40)
    store.close()


def read(root: Path) -> dict[int, list[bytes]]:
    """What consumers get of TopicA from a broker that starts with this store. All batches are there."""
    store = open_store(root, Topics())
    store.set_confirm_offset(store.commit_log.max_offset)
    try:
        batches = store.get(BATCH.name, 0, 0, 32, 1 << 20, None)
        assert [record.body for record in records_in(batches)] == BATCH_BODIES
        return {queue_id: bodies(store, queue_id) for queue_id in (0, 1)}
    finally:
        store.close()


def rebuild(root: Path) -> str:
    done = repair(root, "--rebuild-queues", "--yes")
    assert done.exit_code == 0, done.output
    return done.output


def test_a_damaged_queue_is_whole_again_and_the_old_one_is_kept(tmp_path: Path) -> None:
    filled(tmp_path)
    damage_unit(tmp_path, 3)
    queues = ("consumequeue", "batchconsumequeue")
    before = {name: content(tmp_path / name) for name in queues}
    with pytest.raises(DamagedQueueError):
        read(tmp_path)
    told = rebuild(tmp_path)
    assert "The log is whole: 70 records of 3 queues." in told
    (aside,) = tmp_path.glob("before-rebuild-*")
    assert str(aside) in told
    assert {path.name: content(path) for path in aside.iterdir()} == before
    assert read(tmp_path) == BODIES
    assert read(tmp_path) == BODIES, "from the new queues"


def test_it_is_offered_and_changes_nothing_unasked(tmp_path: Path) -> None:
    filled(tmp_path)
    before = content(tmp_path)
    assert "--rebuild-queues  moves the queues aside" in repair(tmp_path).output
    shown = repair(tmp_path, "--rebuild-queues").output
    assert "Nothing was changed" in shown
    assert "--resync" not in shown
    assert content(tmp_path) == before


def test_a_running_broker_is_left_alone(tmp_path: Path) -> None:
    filled(tmp_path)
    store = open_store(tmp_path)
    refused = repair(tmp_path, "--rebuild-queues", "--yes")
    assert refused.exit_code == 1
    assert "stop it first" in refused.output
    for steps in (QueueRebuild(inspect_store(tmp_path)).check, QueueRebuild(inspect_store(tmp_path)).prepare):
        with pytest.raises(RepairError, match="stop it first"):
            list(steps())  # type: ignore[call-overload]
    assert bodies(store) == BODIES[0]
    crash(store)


def test_what_was_not_confirmed_stays_unconfirmed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_many(store, 10)
    confirmed = store.confirm_offset
    put(store, b"not yet")
    store.close()
    rebuild(tmp_path)
    store = open_store(tmp_path, master=False)
    assert store.confirm_offset == confirmed
    assert len(bodies(store)) == 5
    crash(store)


@pytest.mark.parametrize("is_last", [False, True])
def test_a_log_with_a_bad_record_is_refused(tmp_path: Path, is_last: bool) -> None:
    """A start without queues would end the log there."""
    filled(tmp_path)
    files = sorted((tmp_path / "commitlog").iterdir())
    path = files[-1] if is_last else files[0]
    data = bytearray(path.read_bytes())
    at = data.index(b"message" if is_last else b"batch")
    data[at] ^= 1
    path.write_bytes(data)
    before = content(tmp_path)
    refused = repair(tmp_path, "--rebuild-queues", "--yes")
    assert refused.exit_code == 1
    assert "the log has a bad record at offset" in refused.output
    assert "--resync" in refused.output
    assert {name: data for name, data in content(tmp_path).items() if name in before} == before


def test_a_log_that_ends_in_front_of_what_is_confirmed_is_refused(tmp_path: Path) -> None:
    """The record is not one any more, so it looks like the end."""
    filled(tmp_path)
    path = sorted((tmp_path / "commitlog").iterdir())[-1]
    data = bytearray(path.read_bytes())
    data[:8] = bytes(8)
    path.write_bytes(data)
    refused = repair(tmp_path, "--rebuild-queues", "--yes")
    assert refused.exit_code == 1
    assert f"bad record at offset {int(path.name)}" in refused.output


def emptied(root: Path) -> int:
    """The first three messages, of queue 3, are in a deleted file of the log. Returns where that begins."""
    store = open_store(root)
    for index in range(3):
        put(store, b"old %d" % index, queue_id=3)
    while store.commit_log.max_offset < FILE_BYTES + 200:
        put(store, b"new", queue_id=0)
    store.set_confirm_offset(store.commit_log.max_offset)
    store.flush()
    store.commit_log.take_oldest().delete()
    begin = store.commit_log.min_offset
    store.close()
    return begin


def next_offset(store: MessageStore, queue_id: int) -> int:
    queue = store.queues.find(TOPIC.name, queue_id)
    assert queue is not None
    return queue.next_offset


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_queue_without_messages_keeps_its_numbering(tmp_path: Path, is_damaged: bool) -> None:
    begin = emptied(tmp_path)
    store = open_store(tmp_path)
    kept = {queue_id: next_offset(store, queue_id) for queue_id in (0, 3)}
    assert kept[3] == 3
    first = store.min_queue_offset(TOPIC.name, 0)
    store.close()
    if is_damaged:  # as if its last record were in the middle of the log
        queue = next((tmp_path / "consumequeue" / TOPIC.name / "3").iterdir())
        data = bytearray(queue.read_bytes())
        data[40:48] = (begin + 100).to_bytes(8, "big")
        queue.write_bytes(data)
    assert "and 1 without one keep their numbering" in rebuild(tmp_path)
    for _ in range(2):  # starts
        store = open_store(tmp_path)
        assert next_offset(store, 3) == 3
        assert next_offset(store, 0) == kept[0]
        assert store.min_queue_offset(TOPIC.name, 0) == first
        assert not bodies(store, 3, 3)
        assert len(bodies(store, 0, first)) == kept[0] - first
        store.close()
    store = open_store(tmp_path)
    assert put(store, b"next", queue_id=3)[2] == 3
    store.set_confirm_offset(store.commit_log.max_offset)
    assert bodies(store, 3, 3) == [b"next"]
    crash(store)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_rebuild_that_broke_off_loses_nothing(tmp_path: Path, is_damaged: bool) -> None:
    """Neither for a start, which builds what is missing, nor for a second rebuild."""
    operations, done = 0, False
    while not done:
        root, left = tmp_path / str(operations), tmp_path / f"{operations}-left"
        filled(root)
        if is_damaged:
            damage_unit(root, 3)
        disk = StoreDisk(root)
        with disk.watched(After(operations)):
            try:
                done = repair(root, "--rebuild-queues", "--yes").exit_code == 0
            except Torn:
                done = False
        disk.survivors_of_a_kill(left)
        if is_damaged and not done:
            rebuild(left)
        assert read(left) == BODIES
        operations += 1
    assert operations > 5


def test_on_a_full_disk_it_says_so_and_the_next_one_keeps_the_numbering(tmp_path: Path) -> None:
    failed = 0
    for operation in range(100):
        root = tmp_path / str(operation)
        emptied(root)
        hook = FailsOnce(operation)
        with StoreDisk(root).watched(hook):
            done = repair(root, "--rebuild-queues", "--yes")
        if not hook.failed:
            break
        if done.exit_code:
            assert done.exit_code == 1
            assert "No space left on device" in done.output
            failed += 1
            rebuild(root)
        store = open_store(root)
        assert next_offset(store, 3) == 3
        store.close()
    assert failed > 5


@pytest.mark.parametrize("ahead", [1, 2])
@pytest.mark.parametrize("is_allocated", [False, True])
def test_files_that_were_created_ahead_are_no_part_of_the_log(
    tmp_path: Path, ahead: int, is_allocated: bool
) -> None:
    """As RocketMQ's broker leaves them."""
    filled(tmp_path)
    end = inspect_store(tmp_path).max_offset
    last = sorted((tmp_path / "commitlog").iterdir())[-1]
    for number in range(1, ahead + 1):
        name = f"{int(last.name) + number * FILE_BYTES:020}"
        (last.parent / name).write_bytes(bytes(FILE_BYTES if is_allocated else 0))
    assert inspect_store(tmp_path).max_offset == end
    checked = CliRunner().invoke(app, ["verify", "--from-dir", str(tmp_path)])
    assert checked.exit_code == 0, checked.output
    damage_unit(tmp_path, 3)
    rebuild(tmp_path)
    assert read(tmp_path) == BODIES


def test_the_numbering_is_durable_before_the_old_queues_go(tmp_path: Path) -> None:
    emptied(tmp_path)
    done = list[tuple[str, Path]]()
    with StoreDisk(tmp_path).watched(lambda operation, path: done.append((operation, path))):
        rebuild(tmp_path)
    synced = [at for at, (name, path) in enumerate(done) if "sync" in name and path.parent.name == "3"]
    renamed = [at for at, (name, path) in enumerate(done) if name == "rename" and path.name == "consumequeue"]
    assert len(synced) == 1
    assert synced[0] < renamed[0]


def test_one_way_at_a_time(tmp_path: Path) -> None:
    refused = repair(tmp_path, "--rebuild-queues", "--resync")
    assert refused.exit_code == 2


def test_javas_queues_are_equal_to_the_byte(tmp_path: Path) -> None:
    """With delayed messages and half messages. Only the tags codes of timer messages are ours: their delivery
    times."""
    root = tmp_path / "store"
    shutil.copytree(FIXTURES, root)
    before = content(root / "consumequeue")
    rebuild(root)
    assert content(root / "consumequeue") == {}
    queue_bytes = {len(data) for data in before.values()}
    store = open_store(
        root, commit_log_file_bytes=64 << 10, consume_queue_file_bytes=max(queue_bytes), index_enable=False
    )
    store.set_confirm_offset(store.commit_log.max_offset)
    store.close()
    after = content(root / "consumequeue")
    assert after.keys() == before.keys()
    assert len(after) > 5
    for name, data in after.items():
        if name.startswith(TIMER_TOPIC):
            assert [unit[:2] for unit in units(data)] == [unit[:2] for unit in units(before[name])]
        else:
            assert units(data) == units(before[name]), name


def units(data: bytes) -> list[tuple[int, ...]]:
    return [unit for unit in UNIT.iter_unpack(data[: len(data) // UNIT_BYTES * UNIT_BYTES]) if unit[1]]


@pytest.mark.parametrize("left", [0, 7, 61, 150])
def test_a_queue_whose_file_was_cut_is_rebuilt(tmp_path: Path, left: int) -> None:
    """A broker does not start with a file of a wrong size."""
    filled(tmp_path)
    os.truncate(tmp_path / "consumequeue" / TOPIC.name / "0" / "0".zfill(20), left)
    rebuild(tmp_path)
    assert read(tmp_path) == BODIES


def test_what_is_no_queue_is_moved_aside_as_well(tmp_path: Path) -> None:
    filled(tmp_path)
    for name in ("TopicA/notes", "lost+found", "TopicA/7"):
        (tmp_path / "consumequeue" / name).mkdir()
    (tmp_path / "consumequeue" / "TopicA" / "8").write_text("no directory")
    (tmp_path / "consumequeue" / "TopicA" / "0" / "old.bak").write_text("no file of the queue")
    rebuild(tmp_path)
    (aside,) = tmp_path.glob("before-rebuild-*")
    assert (aside / "consumequeue" / "TopicA" / "8").exists()
    assert read(tmp_path) == BODIES
