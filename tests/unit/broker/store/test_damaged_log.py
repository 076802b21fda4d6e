"""Damaged records of the CommitLog: the good ones around them are served, they are not, and a start destroys
none of the others."""

import shutil
from pathlib import Path

import pytest

from broker.message.record import Record, decode, parse
from broker.store.message_store import MessageStore
from broker.store.querying import record_at
from broker.store.whole_reading import DamagedRecordError, check_record
from tests.support.store_disk import boot_again
from tests.support.store_parts import (
    FILE_BYTES,
    bodies,
    crash,
    cut_demoted,
    open_store,
    put,
    put_many,
    records_in,
)
from tests.unit.broker.store.test_inner_batch import confirm, open_batches, put_items
from tests.unit.broker.store.test_inner_batch import items as batch_of

COUNT = 100
"""Messages in each of two queues; they need several files."""


def log_file(root: Path, offset: int) -> Path:
    return root / "commitlog" / f"{offset - offset % FILE_BYTES:020d}"


def write(root: Path, offset: int, data: bytes) -> None:
    with log_file(root, offset).open("r+b") as file:
        file.seek(offset % FILE_BYTES)
        file.write(data)


def read(root: Path, offset: int, count: int) -> bytes:
    return log_file(root, offset).read_bytes()[offset % FILE_BYTES :][:count]


def records(root: Path, topic: str = "TopicA") -> list[Record]:
    found, offset = list[Record](), 0
    for path in sorted((root / "commitlog").iterdir()):
        if not path.name.isdigit():
            continue
        raw, at, offset = path.read_bytes(), 0, int(path.name)
        while (parsed := parse(raw, at, len(raw), offset=offset + at)) is not None:
            if parsed[1] == topic.encode():
                found.append(decode(raw, at))
            at += parsed[0]
    return found


def of_queue(root: Path, queue_id: int = 0) -> list[Record]:
    return [record for record in records(root) if record.queue_id == queue_id]


def flip(root: Path, record: Record) -> None:
    """A bit of its body."""
    at = record.offset + 88
    write(root, at, bytes([read(root, at, 1)[0] ^ 1]))


def zero(root: Path, record: Record) -> None:
    write(root, record.offset, bytes(record.size))


def resize(root: Path, record: Record) -> None:
    write(root, record.offset + 3, bytes([read(root, record.offset + 3, 1)[0] ^ 8]))


DAMAGES = [flip, zero, resize]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    store = open_store(tmp_path)
    put_many(store, 2 * COUNT)
    store.close()
    return tmp_path


def what_a_consumer_gets(
    store: MessageStore, queue_id: int = 0, nums: int = 32
) -> tuple[list[int], list[int]]:
    """Queue offsets that are delivered, and those at which the consumer gets an error."""
    got, errors, offset = list[int](), list[int](), 0
    queue = store.queues.get("TopicA", queue_id)
    while offset < queue.max_offset:
        try:
            result = store.get("TopicA", queue_id, offset, nums, 1 << 20, None)
        except DamagedRecordError as error:
            assert f"message {offset} of topic TopicA, queue {queue_id}, is damaged" in str(error)
            errors.append(offset)
            offset += 1
            continue
        got += [record.queue_offset for record in records_in(result)]
        assert result.next_begin_offset > offset
        offset = result.next_begin_offset
    return got, errors


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("nums", [1, 32])
def test_a_consumer_gets_all_but_the_damaged_records(root: Path, damage, nums: int) -> None:  # type: ignore[no-untyped-def]
    hurt = [of_queue(root)[number] for number in (0, 17, 18, 60)]
    for record in hurt:
        damage(root, record)
    store = open_store(root)
    got, errors = what_a_consumer_gets(store, nums=nums)
    assert errors == [0, 17, 18, 60]
    assert got == [offset for offset in range(COUNT) if offset not in errors]
    assert what_a_consumer_gets(store, 1) == (list(range(COUNT)), [])
    assert [(found.start, found.end) for found in store.damage.ranges] == [
        (record.offset, record.offset + record.size) for record in hurt
    ]
    store.close()


def test_with_filters_only_wanted_records_matter(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for number in range(40):
        put(store, b"%d" % number, tags="ab"[number % 2])
    store.set_confirm_offset(store.commit_log.max_offset)
    store.close()
    hurt = of_queue(tmp_path)[15]
    flip(tmp_path, hurt)
    store = open_store(tmp_path)
    codes = [frozenset({97}), frozenset({98})]
    assert store.get("TopicA", 0, 10, 32, 1 << 20, codes[0]).message_count == 5
    result = store.get("TopicA", 0, 10, 32, 1 << 20, codes[1])
    assert [record.queue_offset for record in records_in(result)] == [11, 13]
    with pytest.raises(DamagedRecordError, match="message 15 of"):
        store.get("TopicA", 0, 14, 32, 1 << 20, codes[1])
    store.close()


def test_a_healed_record_is_served_again(root: Path) -> None:
    hurt = of_queue(root)[17]
    good = read(root, hurt.offset, hurt.size)
    flip(root, hurt)
    store = open_store(root)
    assert what_a_consumer_gets(store)[1] == [17]
    write(root, hurt.offset, good)
    assert what_a_consumer_gets(store)[1] == [17], "it is healed when that is said"
    store.damage.healed(hurt.offset, hurt.offset + hurt.size)
    assert what_a_consumer_gets(store) == (list(range(COUNT)), [])
    store.close()


def test_a_restart_remembers(root: Path) -> None:
    hurt = of_queue(root)[17]
    flip(root, hurt)
    store = open_store(root)
    assert what_a_consumer_gets(store)[1] == [17]
    store.close()
    store = open_store(root)
    assert [found.start for found in store.damage.ranges] == [hurt.offset]
    store.close()


def test_what_this_process_wrote_is_not_checked_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_many(store, 20)
    assert store.log_check.is_all_whole
    store.close()
    store = open_store(tmp_path)
    assert not store.log_check.is_all_whole, "the disk may have lost something"
    first = store.commit_log.max_offset
    put_many(store, 20)
    assert store.log_check.is_whole(first, store.commit_log.max_offset)
    store.become_slave()
    store.cutter.truncate(first - 200 if store.commit_log.is_record_start(first - 200) else 0)
    store.close()


def test_a_cut_forgets_damage_behind_it(root: Path) -> None:
    hurt = of_queue(root)[60]
    flip(root, hurt)
    store = open_store(root)
    assert what_a_consumer_gets(store)[1] == [60]
    cut_demoted(store, hurt.offset)
    assert not store.damage
    put_many(store, 10)
    assert bodies(store, 0, 58)
    store.close()


@pytest.mark.parametrize("resets", [False, True])
def test_damage_that_a_cut_has_removed_is_not_remembered(root: Path, resets: bool) -> None:
    """Good records may be at these offsets before the next checkpoint, and a crash."""
    hurt = of_queue(root)[60]
    store = open_store(root, master=False)
    store.damage.add(hurt.offset, hurt.offset + hurt.size, "a test")
    store.flush_checkpoint()
    store.cutter.reset_to(0) if resets else store.cutter.truncate(of_queue(root)[50].offset)
    store.become_master()
    put_many(store, 2 * COUNT)
    crash(store)
    store = open_store(root)
    assert not store.damage
    store.close()


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("end", ["clean", "killed", "abort of another program"])
def test_a_start_keeps_the_records_behind_damage(root: Path, damage, end: str) -> None:  # type: ignore[no-untyped-def]
    """Also if it must scan the log, because the last record that a queue names is bad, too."""
    hurt, last = of_queue(root)[17], records(root)[-1]
    damage(root, hurt)
    flip(root, last)
    if end != "clean":
        (root / "abort").write_text("keelmq 1" if end == "killed" else "")
    store = open_store(root)
    assert store.commit_log.max_offset == last.offset + last.size
    got, _ = what_a_consumer_gets(store)
    assert got == [offset for offset in range(COUNT) if offset != 17]
    assert what_a_consumer_gets(store, 1)[0] == list(range(COUNT - 1))
    assert any(found.start == hurt.offset for found in store.damage.ranges)
    _, _, queue_offset = put(store, queue_id=0)
    assert queue_offset == COUNT
    store.close()


def test_a_start_does_not_take_a_torn_end_for_damage(tmp_path: Path) -> None:
    """Behind what the checkpoint counts as durable, a hole is what a power cut leaves: the log ends there."""
    store = open_store(tmp_path)
    put_many(store, 20)
    store.flush_checkpoint()
    put_many(store, 20)
    crash(store)
    boot_again(tmp_path)
    hurt = of_queue(tmp_path)[15]
    zero(tmp_path, hurt)
    store = open_store(tmp_path)
    assert store.commit_log.max_offset == hurt.offset and not store.damage
    store.close()


def test_a_zeroed_file_is_one_range(root: Path) -> None:
    log_file(root, FILE_BYTES).write_bytes(bytes(FILE_BYTES))
    lost = [record.queue_offset for record in of_queue(root)]
    (root / "abort").touch()
    store = open_store(root)
    assert [(found.start, found.end) for found in store.damage.ranges] == [(FILE_BYTES, 2 * FILE_BYTES)]
    assert what_a_consumer_gets(store)[0] == lost
    store.close()


def test_a_batch_is_one_record(tmp_path: Path) -> None:
    store = open_batches(tmp_path)
    for number in range(4):
        put_items(store, batch_of(3, 3 * number))
    confirm(store)
    topic = next(iter(store.queues.each())).topic
    store.close()
    hurt = records(tmp_path, topic)[2]
    flip(tmp_path, hurt)
    store = open_batches(tmp_path)
    result = store.get(topic, 0, 0, 32, 1 << 20, None)
    assert (result.message_count, result.next_begin_offset) == (6, 6)
    with pytest.raises(DamagedRecordError, match="messages 6 to 8 of"):
        store.get(topic, 0, 7, 32, 1 << 20, None)
    assert store.get(topic, 0, 9, 32, 1 << 20, None).message_count == 3
    store.close()


def test_single_records_are_checked(root: Path) -> None:
    hurt, good = of_queue(root)[17], of_queue(root)[18]
    flip(root, hurt)
    store = open_store(root)
    assert record_at(store, hurt.offset) is None and record_at(store, good.offset) is not None
    check_record(store.log_check, good.offset, good.size)
    with pytest.raises(DamagedRecordError, match=f"the record at {hurt.offset} is damaged"):
        check_record(store.log_check, hurt.offset, hurt.size)
    store.close()


def test_a_replica_dispatches_past_a_damaged_header(root: Path) -> None:
    """One that it has stored: what is behind it must reach consumers and the index."""
    hurt = of_queue(root)[17]
    resize(root, hurt)
    store = open_store(root, master=False)
    store.dispatcher.dispatch_offset = store.commit_log.min_offset
    while store.dispatcher.dispatch(64):
        pass
    assert store.dispatch_offset == store.confirm_offset
    assert store.index is not None
    store.index.offset = 0
    while store.dispatcher.catch_up_index(64):
        pass
    assert store.index.offset == store.confirm_offset
    store.close()


@pytest.mark.parametrize("number", [0, 60, COUNT - 2])
def test_a_start_passes_a_size_that_points_behind_the_end(root: Path, number: int) -> None:
    """The ConsumeQueues are lost, so it reads the whole log. No record of it is still on its way when it was
    confirmed: a size that is too large is damage, and what is behind it is kept."""
    hurt, end = of_queue(root)[number], of_queue(root, 1)[-1].offset + of_queue(root, 1)[-1].size
    write(root, hurt.offset + 1, b"\1")
    shutil.rmtree(root / "consumequeue")
    (root / "abort").write_text("keelmq 1")
    store = open_store(root, master=False)
    assert store.commit_log.max_offset == store.confirm_offset == end
    assert [(each.start, each.end) for each in store.damage.ranges] == [
        (hurt.offset, hurt.offset + hurt.size)
    ]
    assert store.max_queue_offset("TopicA", 0) == store.max_queue_offset("TopicA", 1) == COUNT
    store.close()
