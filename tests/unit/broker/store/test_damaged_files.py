"""Damaged files beside the log: checkpoint, abort, damagedRanges, ConsumeQueue, BatchQueue, index. A start
keeps every message, and gives none a wrong place; or it is refused, with file and next step, and changes
nothing."""

import logging
import random
import shutil
import signal
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from broker.message.record import decode
from broker.store.damage import FILE_NAME
from broker.store.log.checkpoint import StoreCheckpoint, read_checkpoint, write_checkpoint
from broker.store.log.mapped_file import StoreError
from broker.store.message_store import MessageStore
from broker.store.querying import find_by_key
from broker.store.queue.consume_queue import UNIT_BYTES
from broker.store.queue.queue_ends import FILE_NAME as ENDS_NAME
from broker.store.queue.queue_ends import NO_OFFSET, QueueEnds, read_ends
from broker.store.queue.reading import DamagedQueueError
from tests.support.file_damage import DAMAGE, changed, content_of, put_back, times_of, tries
from tests.support.store_parts import bodies, crash, new_store, open_store, put, put_many, records_in
from tests.unit.broker.store.test_index import found, put_keyed, settle
from tests.unit.broker.store.test_inner_batch import confirm, messages, open_batches, put_items
from tests.unit.broker.store.test_inner_batch import items as batch_of

COUNT = 60
"""Messages in each of two queues."""
FLIPS = 40
ALL = [b"message %d" % index for index in range(0, 2 * COUNT, 2)]


def filled(root: Path, *, clean: bool = True) -> None:
    store = open_store(root)
    put_many(store, 2 * COUNT)
    store.flush_checkpoint()
    store.close(clean=clean)


def served(store: MessageStore, queue_id: int = 0) -> list[bytes]:
    """What a consumer gets, one message at a time; at a damaged entry it gets an error with the repair."""
    got, queue = list[bytes](), store.queues.get("TopicA", queue_id)
    for offset in range(queue.min_offset, queue.max_offset):
        try:
            result = store.get("TopicA", queue_id, offset, 1, 1 << 20, None, decodes=True)
        except DamagedQueueError as error:
            assert "keelmq repair" in str(error)
            continue
        for record in records_in(result):
            assert record.queue_offset == offset and record.body == ALL[offset]
            got.append(record.body)
    return got


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("name", ["checkpoint", "abort"])
def test_a_damaged_checkpoint_loses_nothing(tmp_path: Path, name: str, kind: str, clean: bool) -> None:
    filled(tmp_path, clean=clean)
    path, files, times = tmp_path / name, content_of(tmp_path), times_of(tmp_path)
    if not path.exists():
        assert name == "abort" and clean
        return
    for dice in tries(kind, FLIPS):
        DAMAGE[kind](path, dice)
        store = open_store(tmp_path)
        assert bodies(store) == ALL
        assert put(store)[2] == COUNT
        crash(store)
        put_back(tmp_path, files, times)


@pytest.mark.parametrize("name", ["commitlog", "consumequeue/TopicA/0", "index"])
def test_a_mapped_file_that_a_program_truncates_ends_the_broker(tmp_path: Path, name: str) -> None:
    """No disk does this. What was acknowledged is judged by the next start."""
    store = open_store(tmp_path)
    for number in range(3):
        put_keyed(store, f"key{number}")
    store.close()
    program = (
        "import os, sys; from pathlib import Path; from tests.support.store_parts import *;"
        "from tests.unit.broker.store.test_index import *;"
        "store = open_store(Path(sys.argv[1])); found(store, 'key1');"
        "os.truncate(min((Path(sys.argv[1]) / sys.argv[2]).glob('[0-9]*')), 0);"
        "found(store, 'key1'); bodies(store)"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path), name], check=False, timeout=60)
    assert ended.returncode == -signal.SIGBUS


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("bit", range(0, 48 * 8, 5))
def test_no_value_of_a_damaged_checkpoint_is_used(
    tmp_path: Path, kind: str, bit: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong time or offset would make a start trust files that are not durable."""
    path, values = (
        tmp_path / "checkpoint",
        StoreCheckpoint(1_700_000_000_000, 1_700_000_000_000, 3, 0, 77_777),
    )
    write_checkpoint(path, values)
    assert read_checkpoint(path) == values
    if kind == "flip":
        content = bytearray(path.read_bytes())
        content[bit // 8] ^= 1 << bit % 8
        changed(path, bytes(content))
    else:
        DAMAGE[kind](path, random.Random(bit))
    with caplog.at_level(logging.ERROR):
        assert read_checkpoint(path) == StoreCheckpoint()
    if path.exists() and any(path.read_bytes()):
        assert f"{path}: " in caplog.text and "the whole log is scanned" in caplog.text


def test_a_checkpoint_of_rocketmq_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(struct.pack(">qqqqq", 1, 2, 3, 4, 5).ljust(4_096, b"\0"))
    assert read_checkpoint(path) == StoreCheckpoint(1, 2, 3, 4, 5)


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_list_of_damage_is_made_again(tmp_path: Path, kind: str, clean: bool) -> None:
    """Lost marks are set again by an operator; until then the consumer gets an error."""
    filled(tmp_path)
    store = open_store(tmp_path)
    store.damage.add(0, 100, "a test")
    store.close(clean=clean)
    for dice in tries(kind, FLIPS):
        path, files, times = tmp_path / FILE_NAME, content_of(tmp_path), times_of(tmp_path)
        if not path.exists():
            return
        before = path.read_bytes()
        DAMAGE[kind](path, dice)
        if path.exists() and path.read_bytes().strip() == before.strip():
            continue  # only the newline is lost
        store = open_store(tmp_path)
        assert store.damage.is_file_lost is path.exists() and not store.damage
        assert bodies(store) == ALL
        crash(store)
        put_back(tmp_path, files, times)


# -- queues --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alive", [True, False])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("kind", ["flip", "zero"])
def test_a_damaged_entry_is_an_error_and_never_another_message(
    tmp_path: Path, kind: str, clean: bool, alive: bool
) -> None:
    """Of a queue with several files; a start after a crash makes the last entries again."""
    filled(tmp_path, clean=clean)
    paths = sorted((tmp_path / "consumequeue" / "TopicA" / "0").iterdir())
    files, times = content_of(tmp_path), times_of(tmp_path)
    for seed, dice in enumerate(tries("flip", 2 * FLIPS)):
        path = paths[seed % len(paths)]
        if alive:
            store = open_store(tmp_path)
            DAMAGE[kind](path, dice)
        else:
            DAMAGE[kind](path, dice)
            store = open_store(tmp_path)
        got = served(store)
        lost = 1 if kind == "flip" else 10
        assert len(got) >= COUNT - lost and not store.damage, "the log is whole"
        assert put(store)[2] == COUNT
        crash(store)
        put_back(tmp_path, files, times)


def damage_the_last_entry(root: Path, damage: str) -> None:
    path = max((root / "consumequeue" / "TopicA" / "0").iterdir())
    content = path.read_bytes()
    last = COUNT * UNIT_BYTES % len(content) or len(content)
    unit = bytearray(content[last - UNIT_BYTES : last])
    if damage == "page":
        changed(path, bytes(len(content)))
    elif damage == "file":
        path.unlink()
    else:
        unit[{"offset": 0, "size": 8, "sign": 8}[damage]] ^= 0x80 if damage == "sign" else 0x20
        changed(path, content[: last - UNIT_BYTES] + bytes(unit) + content[last:])


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("interrupted", [True, False])
@pytest.mark.parametrize("damage", ["page", "file", "offset", "size", "sign", "queue"])
def test_lost_entries_at_the_end_are_made_again(
    tmp_path: Path, damage: str, interrupted: bool, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A number that was given once is given to no other message, also if the start that finds the damage is
    killed."""
    filled(tmp_path, clean=clean)
    if damage == "queue":
        shutil.rmtree(tmp_path / "consumequeue" / "TopicA" / "0")
    else:
        damage_the_last_entry(tmp_path, damage)
    if interrupted:
        left = new_store(tmp_path)
        left.dispatcher.dispatch = killed  # type: ignore[method-assign, assignment]
        with pytest.raises(KilledError):
            left.load()
        left.close(clean=False)
    store = open_store(tmp_path)
    assert "made again from the log" in caplog.text
    if (
        interrupted and not clean
    ):  # the first start has lowered the checkpoint, so what was confirmed is not known
        store.set_confirm_offset(store.commit_log.max_offset)
        while store.dispatcher.dispatch(100):
            pass
    assert bodies(store) == ALL
    assert put(store)[2] == COUNT
    store.close()


@pytest.mark.parametrize("damage", ["page", "file"])
@pytest.mark.parametrize("other_queue", [True, False])
def test_entries_since_the_ends_were_written_are_made_again(
    tmp_path: Path, damage: str, other_queue: bool
) -> None:
    """After a crash: a queue that ends at the begin of a page may have lost the next one."""
    store = open_store(tmp_path)
    put_many(store, 2 * COUNT - 20)
    store.flush_checkpoint()
    put_many(store, 20)
    if other_queue:  # the newest entry is in another queue
        put(store, queue_id=1)
        store.set_confirm_offset(store.commit_log.max_offset)
    store.flush_checkpoint()
    ends = read_ends(tmp_path)
    assert ends is not None and ("TopicA", 0, COUNT - 10) in ends.ends
    crash(store)
    damage_the_last_entry(tmp_path, damage)
    store = open_store(tmp_path)
    assert store.queues.get("TopicA", 0).max_offset == COUNT and put(store)[2] == COUNT
    assert bodies(store) == ALL[: COUNT - 10] + ALL[:10]
    store.close()


def with_new_queue(root: Path, flushes: str) -> MessageStore:
    """Queue 3 and its only entry are newer than the ends; a checkpoint counts the entry as durable."""
    store = open_store(root)
    put_many(store, 2 * COUNT)
    store.flush_checkpoint()
    put(store, b"first", queue_id=3)
    store.set_confirm_offset(store.commit_log.max_offset)
    if "flush" in flushes:
        store.flush()
    store.flush_checkpoint()
    if "twice" in flushes:
        put(store, b"other", queue_id=2)
        store.set_confirm_offset(store.commit_log.max_offset)
        store.flush_checkpoint()
    crash(store)
    return store


@pytest.mark.parametrize("flushes", ["once", "flush", "twice"])
@pytest.mark.parametrize("damage", ["directory", "file"])
def test_a_new_queue_that_is_lost_is_made_again(
    tmp_path: Path, flushes: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """After a crash within 10 s: its numbers are not given again."""
    with_new_queue(tmp_path, flushes)
    directory = tmp_path / "consumequeue" / "TopicA" / "3"
    if damage == "directory":
        shutil.rmtree(directory)
    else:
        next(directory.iterdir()).unlink()
    store = open_store(tmp_path)
    assert "the new ConsumeQueue TopicA/3 is lost" in caplog.text
    assert bodies(store, 3) == [b"first"] and put(store, queue_id=3)[2] == 1
    assert bodies(store)[:3] == ALL[:3] and put(store)[2] == COUNT
    store.close()


def test_new_queues_in_damaged_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A line that is torn or damaged ends the list, and says so; the ends in front of it count."""
    with_new_queue(tmp_path, "twice")
    path = tmp_path / ENDS_NAME
    raw = path.read_bytes()
    whole = read_ends(tmp_path)
    assert whole is not None and whole.new == [("TopicA", 3), ("TopicA", 2)]
    first, second = raw.index(b"\n"), raw.rindex(b"\n")
    for at in range(first + 1, len(raw)):
        for content, is_left in (
            (raw[:at], at >= second),
            (raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :], at > second),
        ):
            caplog.clear()
            changed(path, content)
            found = read_ends(tmp_path)
            assert found is not None and found.ends == whole.ends
            assert found.new == (whole.new[:1] if is_left else []), at
            assert len(content) == second or "not written as a whole" in caplog.text


def test_ends_are_forgotten_before_a_cut(tmp_path: Path) -> None:
    """A queue that was cut has not lost its last entries; the next checkpoint writes the new ends."""
    filled(tmp_path)
    store = open_store(tmp_path)
    store.flush_checkpoint()
    assert (tmp_path / ENDS_NAME).exists()
    store.become_slave()
    store.cutter.begin_cut(0)
    store.cutter.write_cut()
    assert not (tmp_path / ENDS_NAME).exists()
    store.cutter.end_cut()
    store.flush_checkpoint()
    ends = read_ends(tmp_path)
    assert ends is not None and all(end == 0 for _, _, end in ends.ends)
    crash(store)


def test_ends_of_before_a_cut_are_not_written_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint runs in a thread; the cut begins while it flushes."""
    filled(tmp_path)
    store = open_store(tmp_path)
    store.become_slave()
    sync = store.commit_log.sync
    monkeypatch.setattr(store.commit_log, "sync", lambda: (store.cutter.begin_cut(0), sync())[1])
    store.flush_checkpoint()
    assert read_ends(tmp_path) is None
    monkeypatch.undo()
    crash(store)


def test_ends_as_earlier_releases_wrote_them(tmp_path: Path) -> None:
    body = b'[["TopicA",0,60],["TopicA",1,60]]'
    (tmp_path / ENDS_NAME).write_bytes(b"%08x " % zlib.crc32(body) + body)
    assert read_ends(tmp_path) == QueueEnds(NO_OFFSET, [("TopicA", 0, 60), ("TopicA", 1, 60)])


class KilledError(Exception):
    """In the place of kill -9."""


def killed(*_: object, **__: object) -> bool:
    raise KilledError


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_ends_of_queues_are_not_used(tmp_path: Path, kind: str) -> None:
    filled(tmp_path)
    files, times = content_of(tmp_path), times_of(tmp_path)
    for dice in tries(kind, FLIPS):
        DAMAGE[kind](tmp_path / ENDS_NAME, dice)
        store = open_store(tmp_path)
        assert bodies(store) == ALL
        assert put(store)[2] == COUNT
        crash(store)
        put_back(tmp_path, files, times)


@pytest.mark.parametrize("kind", ["flip", "zero"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_entry_of_a_batch_queue(tmp_path: Path, kind: str, clean: bool) -> None:
    store = open_batches(tmp_path)
    for first in range(0, 200, 2):
        put_items(store, batch_of(2, first))
    confirm(store)
    store.flush_checkpoint()
    store.close(clean=clean)
    (path, *_) = sorted((tmp_path / "batchconsumequeue" / "Batches" / "0").iterdir())
    files, times = content_of(tmp_path), times_of(tmp_path)
    for dice in tries(kind, FLIPS):
        DAMAGE[kind](path, dice)
        try:
            store = open_batches(tmp_path)
        except StoreError as error:
            assert str(path.parent) in str(error)
            put_back(tmp_path, files, times)
            continue
        for offset in range(0, store.queues.get("Batches", 0).max_offset, 2):
            try:
                for number, _ in messages(store, offset)[:2]:
                    assert number in range(offset, 200)
            except DamagedQueueError:
                continue
        crash(store)
        put_back(tmp_path, files, times)


# -- index ---------------------------------------------------------------------------------------------------


def test_a_truncated_index_is_made_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    offsets = [put_keyed(store, f"key{number}") for number in range(COUNT)]
    store.close()
    path = min((tmp_path / "index").iterdir())
    changed(path, path.read_bytes()[:37])
    store = open_store(tmp_path)
    settle(store)
    assert [found(store, f"key{number}") for number in range(COUNT)] == [[offset] for offset in offsets]
    store.close()


@pytest.mark.parametrize("alive", [True, False])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_index_finds_fewer_messages_and_none_that_is_wrong(
    tmp_path: Path, kind: str, clean: bool, alive: bool
) -> None:
    store = open_store(tmp_path)
    offsets = [put_keyed(store, f"key{number}") for number in range(COUNT)]
    assert found(store, "key0") == offsets[:1]  # what waits is written
    store.flush_checkpoint(index_too=True)
    store.close(clean=clean)
    path, files, times = min((tmp_path / "index").iterdir()), content_of(tmp_path), times_of(tmp_path)
    for dice in tries(kind, 2 * FLIPS):
        store = open_store(tmp_path) if alive and kind != "truncate" else None
        DAMAGE[kind](path, dice)
        store = store or open_store(tmp_path)
        settle(store)
        for number, offset in enumerate(offsets):
            records = [decode(view) for view in find_by_key(store, "TopicA", f"key{number}", 32, 0, 1 << 62)]
            assert {record.offset for record in records} <= {offset}
        assert bodies(store) == [b"body"] * COUNT
        assert put_keyed(store, "new") > offset
        settle(store)
        if kind in ("truncate", "lose") and not alive:
            assert [found(store, f"key{number}") for number in range(COUNT)] == [[each] for each in offsets]
        crash(store)
        put_back(tmp_path, files, times)
