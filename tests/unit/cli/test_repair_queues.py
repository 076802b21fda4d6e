"""keelmq repair --queues: damaged queues are read again as before, and nothing else is changed."""

import os
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from broker.admin.repair import RepairError, inspect_store
from broker.backup import queue_files, queue_repair
from broker.backup.queue_repair import Repaired, TopicQueue, repair_queues
from broker.ha.core.epochs import Epochs
from broker.ha.epoch_file import EpochFile
from broker.message.record import tags_code
from broker.store.log.checkpoint import read_checkpoint, write_checkpoint
from broker.store.log.disk_jobs import run
from broker.store.log.mapped_file import StoreError
from broker.store.queue.consume_queue import UNIT, UNIT_BYTES
from broker.store.queue.reading import DamagedQueueError
from broker.store.settings import NamedTopic
from tests.support.slices import share
from tests.support.store_disk import After, StoreDisk, Torn
from tests.support.store_parts import (
    BORN_HOST,
    QUEUE_FILE_BYTES,
    bodies,
    crash,
    damage_unit,
    open_store,
    put,
    put_many,
    records_in,
)
from tests.unit.broker.store.test_inner_batch import confirm, items, open_batches, put_items
from tests.unit.broker.store.test_unread_numbers import gap_without_room, heal, receive
from tests.unit.cli.test_repair import content, repair

UNITS = QUEUE_FILE_BYTES // UNIT_BYTES
BODIES = {queue: [b"message %d" % index for index in range(queue, 60, 2)] for queue in (0, 1)}


def filled(root: Path) -> None:
    store = open_store(root)
    put_many(store, 60)
    store.close()


def read(root: Path) -> dict[int, list[bytes]]:
    """What consumers get of a broker that starts with this store. The next messages get the next numbers."""
    store = open_store(root)
    try:
        store.set_confirm_offset(store.commit_log.max_offset)
        while store.dispatcher.dispatch(1_000):
            pass
        found = {queue_id: bodies(store, queue_id) for queue_id in (0, 1)}
        for queue_id, before in found.items():
            assert store.queues.get("TopicA", queue_id).next_offset == len(before)
        return found
    finally:
        store.close()


def queue(root: Path, queue_id: int = 0, topic: str = "TopicA") -> Path:
    return root / "consumequeue" / topic / str(queue_id)


def file(root: Path, number: int, queue_id: int = 0) -> Path:
    return queue(root, queue_id) / f"{number * QUEUE_FILE_BYTES:020d}"


def repaired(root: Path, *, writes: bool = True) -> Repaired:
    found = Repaired()
    steps = repair_queues(inspect_store(root), found, writes=writes, file_bytes=QUEUE_FILE_BYTES)
    for done, total in steps:
        assert 0 <= done <= total
    return found


def test_a_damaged_entry_is_written_anew_and_nothing_else(tmp_path: Path) -> None:
    filled(tmp_path)
    before = content(tmp_path)
    damage_unit(tmp_path, 3)
    damaged = content(tmp_path)
    with pytest.raises(DamagedQueueError):
        read(tmp_path)
    done = repair(tmp_path, "--queues", "--yes")
    assert done.exit_code == 0, done.output
    assert "queue TopicA 0: 1 entry\n1 entry and 0 files were written." in done.output
    assert content(tmp_path) == before != damaged
    assert read(tmp_path) == BODIES
    assert "no record whose entry is damaged or missing" in repair(tmp_path, "--queues", "--yes").output


def test_it_changes_nothing_unasked(tmp_path: Path) -> None:
    filled(tmp_path)
    damage_unit(tmp_path, 3)
    file(tmp_path, 1).unlink()
    before = content(tmp_path)
    assert "--queues  reads the log" in repair(tmp_path).output
    shown = repair(tmp_path, "--queues")
    assert shown.exit_code == 0
    assert "queue TopicA 0: 11 entries\n11 entries and 1 file are damaged or missing.\n" in shown.output
    assert "Nothing was changed: add --yes" in shown.output and "--resync" not in shown.output
    assert content(tmp_path) == before
    for other in (["--resync"], ["--wipe-after", "1"]):
        assert repair(tmp_path, "--queues", *other).exit_code == 2


@pytest.mark.parametrize("size", [None, 27])
def test_to_look_at_a_lost_or_short_last_file_changes_nothing(tmp_path: Path, size: int | None) -> None:
    filled(tmp_path)
    if size is None:
        file(tmp_path, 2).unlink()
    else:
        os.truncate(file(tmp_path, 2), size)
    before = content(tmp_path)
    shown = repair(tmp_path, "--queues")
    assert shown.exit_code == 0, shown.output
    assert "1 file are damaged or missing" in shown.output
    assert content(tmp_path) == before


def test_a_broker_that_works_is_left_alone(tmp_path: Path) -> None:
    filled(tmp_path)
    store = open_store(tmp_path)
    refused = repair(tmp_path, "--queues", "--yes")
    assert refused.exit_code == 1 and "stop it first" in refused.output
    with pytest.raises(RepairError, match="stop it first"):
        repaired(tmp_path)
    crash(store)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_lost_files_come_back(tmp_path: Path, number: int) -> None:
    filled(tmp_path)
    before = content(tmp_path)
    file(tmp_path, number).unlink()
    found = repaired(tmp_path)
    assert (found.count, found.files) == (UNITS, 1)
    assert content(tmp_path) == before
    assert read(tmp_path) == BODIES


@pytest.mark.parametrize("size", [0, 27, 4 * UNIT_BYTES])
def test_short_files_get_their_size_back(tmp_path: Path, size: int) -> None:
    filled(tmp_path)
    before = content(tmp_path)
    os.truncate(file(tmp_path, 1), size)
    assert repaired(tmp_path).files == 1
    assert content(tmp_path) == before


def test_what_no_record_tells_is_passed_over(tmp_path: Path) -> None:
    """The log has lost its first file, so nothing tells what the first entries of a lost file were."""
    filled(tmp_path)
    first = min((tmp_path / "commitlog").iterdir())
    first.unlink()
    for number in (0, 1):
        file(tmp_path, number).unlink()
    found = repaired(tmp_path)
    assert 0 < found.count < UNITS
    store = open_store(tmp_path)
    start = store.min_queue_offset("TopicA", 0)
    assert bodies(store, 0, start) == BODIES[0][start:]
    crash(store)


def test_a_tags_code_is_part_of_an_entry(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for index in range(5):
        put(store, b"%d" % index, tags="A")
    store.set_confirm_offset(store.commit_log.max_offset)
    store.close()
    path = file(tmp_path, 0)
    raw = bytearray(path.read_bytes())
    raw[2 * UNIT_BYTES + 15] ^= 1
    raw[3 * UNIT_BYTES + 12 : 4 * UNIT_BYTES] = struct.pack(
        ">q", -(1 << 40)
    )  # an address in consumequeue_ext
    path.write_bytes(raw)
    assert repaired(tmp_path).entries == {TopicQueue("TopicA", 0): 1}
    store = open_store(tmp_path)
    wanted = frozenset([tags_code(b"TAGS\x01A")])
    assert [record.body for record in records_in(store.get("TopicA", 0, 2, 1, 1 << 20, wanted))] == [b"2"]
    crash(store)


def twice(root: Path, first: int, second: int) -> list[bytes]:
    """In RocketMQ a topic that was deleted, and made again, is numbered from 0 again."""
    store = open_store(root)
    for index in range(first):
        put(store, b"old %d" % index)
    store.set_confirm_offset(store.commit_log.max_offset)
    run(store.queues.get("TopicA", 0).cut_all())
    made = [b"new %d" % index for index in range(second)]
    for body in made:
        put(store, body)
    store.set_confirm_offset(store.commit_log.max_offset)
    store.close()
    return made


@pytest.mark.parametrize("lost", ["nothing", "one", "file"])
def test_a_topic_that_was_made_again_gets_no_old_messages(tmp_path: Path, lost: str) -> None:
    made = twice(tmp_path, 45, 25)
    before = content(tmp_path)
    if lost == "one":
        damage_unit(tmp_path, 7)
    elif lost == "file":
        file(tmp_path, 0).unlink()
    found = repaired(tmp_path)
    assert found.count == {"nothing": 0, "one": 1, "file": UNITS}[lost]
    assert content(tmp_path) == before
    store = open_store(tmp_path)
    assert bodies(store) == made
    crash(store)


def test_a_queue_whose_numbers_go_back_is_left_alone(tmp_path: Path) -> None:
    """Newer records have lower numbers, and the entries of the older ones are there: who is right?"""
    made = twice(tmp_path, 45, 25)
    shutil.rmtree(queue(tmp_path))
    store = open_store(tmp_path, master=False)
    store.dispatcher.dispatch_offset = 0  # gives the old records their entries again
    while store.dispatcher.dispatch(1_000):
        pass
    store.close()
    damage_unit(tmp_path, 7)
    before = content(tmp_path)
    shown = repair(tmp_path, "--queues", "--yes")
    assert shown.exit_code == 1 and "newest record has number 24, an older one 44" in shown.output
    assert content(tmp_path) == before and made


def test_what_is_not_dispatched_yet_is_left_to_the_start(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_many(store, 10)
    put(store, b"not confirmed")
    store.close()
    before = content(tmp_path)
    assert repaired(tmp_path).count == 0
    assert content(tmp_path) == before


@pytest.mark.parametrize("has_directory", [True, False])
def test_a_queue_without_files_stays_without(tmp_path: Path, has_directory: bool) -> None:
    """Its topic may have been deleted. If it was not, an empty file brings the queue back."""
    filled(tmp_path)
    before = content(tmp_path)
    for path in queue(tmp_path).iterdir():
        path.unlink()
    if not has_directory:
        queue(tmp_path).rmdir()
    shown = repair(tmp_path, "--queues", "--yes")
    assert shown.exit_code == 0 and not list(queue(tmp_path).glob("*"))
    assert "queue TopicA 0: has records and no file. If its topic was not deleted, make" in shown.output
    assert f"and repair again: {file(tmp_path, 0)}\n" in shown.output
    queue(tmp_path).mkdir(exist_ok=True)
    file(tmp_path, 0).touch()
    assert not repaired(tmp_path).without_file
    assert content(tmp_path) == before


def test_an_entry_of_several_queues_stays(tmp_path: Path) -> None:
    """RocketMQ's LMQ: the record is of another queue."""
    store = open_store(tmp_path)
    multi = b"INNER_MULTI_DISPATCH\x01%LMQ%x,TopicA\x02INNER_MULTI_QUEUE_OFFSET\x010,3"
    offset, size, _ = store.put(NamedTopic("Parent"), 0, b"m", multi, 0, 0, 1, BORN_HOST, 0, 0)
    put_many(store, 10, queues=1)
    store.close()
    damage_unit(tmp_path, 3, (offset, size))
    before = content(tmp_path)
    assert repaired(tmp_path).count == 0
    assert content(tmp_path) == before


def test_the_size_of_files_must_be_known(tmp_path: Path) -> None:
    """The largest file may have been shortened, like the others."""
    store = open_store(tmp_path)
    put_many(store, 10)
    store.close()
    for queue_id in (0, 1):
        os.truncate(file(tmp_path, 0, queue_id), 80 + 20 * queue_id)
    damage_unit(tmp_path, 3)
    before = content(tmp_path)
    shown = repair(tmp_path, "--queues", "--yes")
    assert shown.exit_code == 1 and "--queue-file-bytes" in shown.output
    assert content(tmp_path) == before
    size = ("--queue-file-bytes", str(QUEUE_FILE_BYTES))
    shown = repair(tmp_path, "--queues", "--yes", *size)
    assert shown.exit_code == 0, shown.output
    assert read(tmp_path) == {queue: each[:5] for queue, each in BODIES.items()}
    assert repair(tmp_path, "--queues", "--queue-file-bytes", "199").exit_code == 2
    assert repair(tmp_path, *size).exit_code == 2


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_damaged_log_is_refused(tmp_path: Path, has_checkpoint: bool) -> None:
    """What is behind the damage is not known to be there, and its entries must not be emptied."""
    filled(tmp_path)
    if not has_checkpoint:  # a checkpoint says how far the log was confirmed
        (tmp_path / "checkpoint").unlink()
    damage_unit(tmp_path, 3)
    log = max((tmp_path / "commitlog").iterdir())
    raw = bytearray(log.read_bytes())
    raw[4] ^= 1
    log.write_bytes(raw)
    before = content(tmp_path)
    shown = repair(tmp_path, "--queues", "--yes")
    assert shown.exit_code == 1
    assert (
        f"the log {'ends' if has_checkpoint else 'has no complete record'} at {int(log.name)}" in shown.output
    )
    assert content(tmp_path) == before


@pytest.mark.parametrize("confirmed", [0, 4])
def test_an_old_confirm_offset_drops_nothing(tmp_path: Path, confirmed: int) -> None:
    """RocketMQ's brokers leave one: what has its entry counts, whatever the checkpoint says."""
    store = open_store(tmp_path)
    ends = [put(store, b"%d" % index, queue_id=index % 2)[1] for index in range(18)]
    store.set_confirm_offset(ends[-1])
    store.close()
    checkpoint = read_checkpoint(tmp_path / "checkpoint")
    checkpoint.confirm_offset = ends[confirmed - 1] if confirmed else 0
    write_checkpoint(tmp_path / "checkpoint", checkpoint)
    before = content(tmp_path / "consumequeue")
    damage_unit(tmp_path, 5)
    assert repaired(tmp_path).count == 1
    assert content(tmp_path / "consumequeue") == before
    assert {queue_id: len(found) for queue_id, found in read(tmp_path).items()} == {0: 9, 1: 9}


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_a_newest_entry_of_batches_counts_too(tmp_path: Path, is_confirmed: bool) -> None:
    """A start dispatches nothing in front of it, also if the checkpoint has no confirmOffset."""
    store = open_batches(tmp_path)
    put_many(store, 12, queues=1)
    put_items(store, items(2))
    confirm(store)
    store.close()
    if not is_confirmed:
        checkpoint = read_checkpoint(tmp_path / "checkpoint")
        checkpoint.confirm_offset = 0
        write_checkpoint(tmp_path / "checkpoint", checkpoint)
    before = content(tmp_path)
    with file(tmp_path, 1).open("r+b") as raw:
        raw.seek(UNIT_BYTES)
        raw.write(bytes(UNIT_BYTES))
    assert repaired(tmp_path).count == 1
    assert content(tmp_path) == before


def test_a_lost_page_at_the_beginning_of_the_last_file_is_refused(tmp_path: Path) -> None:
    """It looks like a file that RocketMQ has created ahead."""
    filled(tmp_path)
    (tmp_path / "checkpoint").unlink()
    log = max((tmp_path / "commitlog").iterdir())
    with log.open("r+b") as raw:
        raw.write(bytes(8))
    damage_unit(tmp_path, 3)
    before = content(tmp_path)
    shown = repair(tmp_path, "--queues", "--yes")
    assert shown.exit_code == 1 and "no complete record at" in shown.output
    assert content(tmp_path) == before


@pytest.mark.parametrize("has_file", [True, False])
def test_a_store_without_a_record_is_one_line(tmp_path: Path, has_file: bool) -> None:
    EpochFile(tmp_path / "epochFileCheckpoint").save(Epochs.of([(1, 0)]))
    (tmp_path / "commitlog").mkdir()
    if has_file:
        (tmp_path / "commitlog" / f"{0:020d}").touch()
    shown = repair(tmp_path, "--queues", "--yes")
    assert shown.exit_code == 1 and "has no record" in shown.output, shown.output


def test_empty_entries_that_no_record_has_do_not_end_the_queue(tmp_path: Path) -> None:
    """They are in front of the log's first record, and a start looks for the first empty one in halves."""
    store = open_store(tmp_path, consume_queue_file_bytes=2_000)
    put_many(store, 100)
    store.close()
    min((tmp_path / "commitlog").iterdir()).unlink()
    store = open_store(tmp_path, consume_queue_file_bytes=2_000)
    start = store.min_queue_offset("TopicA", 0)
    store.close()
    assert start > 2
    with file(tmp_path, 0).open("r+b") as raw:
        raw.write(bytes(start * UNIT_BYTES))
    for _ in repair_queues(inspect_store(tmp_path), found := Repaired(), writes=True, file_bytes=2_000):
        pass
    assert found.count == start
    store = open_store(tmp_path, consume_queue_file_bytes=2_000)
    assert store.min_queue_offset("TopicA", 0) == start
    assert len(bodies(store, 0, start)) == 50 - start
    crash(store)


@pytest.mark.parametrize("number", [4, 14, 24])
def test_an_empty_entry_that_no_record_has_holds_no_consumer(tmp_path: Path, number: int) -> None:
    """A start makes empty ones in the place of a lost file."""
    filled(tmp_path)
    store = open_store(tmp_path)
    topic_queue = store.queues.get("TopicA", 0).unit(number)[0]
    store.close()
    log = max(path for path in (tmp_path / "commitlog").iterdir() if int(path.name) <= topic_queue)
    with log.open("r+b") as raw:
        raw.seek(topic_queue - int(log.name) + 20)  # its QUEUEOFFSET
        raw.write(struct.pack(">q", 1))
    with file(tmp_path, number // UNITS).open("r+b") as raw:
        raw.seek(number % UNITS * UNIT_BYTES)
        raw.write(bytes(UNIT_BYTES))
    repaired(tmp_path, writes=False)
    repaired(tmp_path)
    assert repaired(tmp_path).count == 0
    assert passed_over(tmp_path) == [number]


def test_a_topic_that_is_not_the_queues_takes_no_entry_away(tmp_path: Path) -> None:
    """No checksum covers the topic's name, and consumers get the message as it is."""
    filled(tmp_path)
    before = {queue_id: len(found) for queue_id, found in read(tmp_path).items()}
    log = max((tmp_path / "commitlog").iterdir())
    raw = log.read_bytes()
    at = raw.rindex(b"TopicA")
    log.write_bytes(raw[:at] + b"TopicB" + raw[at + 6 :])
    entries = content(tmp_path / "consumequeue")
    assert repaired(tmp_path).count == 0
    assert content(tmp_path / "consumequeue") == entries
    assert sum(before.values()) == 60


def test_a_log_without_one_of_its_files_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_many(store, 120)
    store.close()
    damage_unit(tmp_path, 3)
    _, second, *more = sorted((tmp_path / "commitlog").iterdir())
    assert more
    second.unlink()
    before = content(tmp_path)
    shown = repair(tmp_path, "--queues", "--yes")
    assert shown.exit_code == 1 and "the file before it ends at" in shown.output
    assert content(tmp_path) == before


def test_files_of_another_size_are_named(tmp_path: Path) -> None:
    filled(tmp_path)
    odd = queue(tmp_path) / f"{30:020d}"
    odd.write_bytes(bytes(100))
    damage_unit(tmp_path, 3)
    before = content(tmp_path)
    shown = repair(tmp_path, "--queues", "--yes")
    assert shown.exit_code == 1
    assert f"queue TopicA 0: cannot be repaired: {odd} has 100 bytes" in shown.output
    assert content(tmp_path) == before


def test_a_number_that_cannot_be_makes_no_files(tmp_path: Path) -> None:
    filled(tmp_path)
    (log, *_) = sorted((tmp_path / "commitlog").iterdir())
    with log.open("r+b") as raw:
        raw.seek(20)  # QUEUEOFFSET of the first record
        raw.write(struct.pack(">q", 10**15))
    damage_unit(tmp_path, 3)
    found = repaired(tmp_path)
    assert (found.files, found.count) == (0, 1)
    assert len(list(queue(tmp_path).iterdir())) == 3


def test_a_full_disk_is_one_line_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path)
    file(tmp_path, 1).unlink()

    def full(path: Path, target: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", full)
        shown = repair(tmp_path, "--queues", "--yes")
    assert shown.exit_code == 1 and "No space left on device" in shown.output
    assert not list((tmp_path / "consumequeue").glob(".repair"))
    repaired(tmp_path)
    assert read(tmp_path) == BODIES


# -- a repair that ends early --------------------------------------------------------------------------------


def passed_over(root: Path) -> list[int]:
    """The numbers of messages that a consumer does not get and gets no error for."""
    store, found, offset = open_store(root), [], 0
    try:
        end = store.queues.get("TopicA", 0).max_offset
        while offset < end:
            try:
                result = store.get("TopicA", 0, offset, 1, 1 << 20, None)
            except DamagedQueueError:
                offset += 1
                continue
            got = [record.queue_offset for record in records_in(result)]
            found += [each for each in range(offset, result.next_begin_offset) if each not in got]
            offset = result.next_begin_offset
        return found
    finally:
        store.close()


@pytest.mark.parametrize("power_cut", [False, True])
@pytest.mark.parametrize("count", range(0, 60, 3))
def test_a_repair_that_ends_early_hides_no_message(tmp_path: Path, count: int, power_cut: bool) -> None:
    """The broker may be started before it is repeated, as by a system that starts again."""
    root = tmp_path / "store"
    filled(root)
    before = content(root)
    file(root, 1).unlink()
    os.truncate(file(root, 2), 70)
    damage_unit(root, 3)
    disk = StoreDisk(root)
    with disk.watched(After(count)), suppress(Torn):
        repaired(root)
    target = tmp_path / "after"
    if power_cut:
        disk.survivors_of_a_power_cut(target, Random(count), journal=True)
    else:
        disk.survivors_of_a_kill(target)
    copy = shutil.copytree(target, tmp_path / "copy")
    if os.path.getsize(file(copy, 2)) == QUEUE_FILE_BYTES:  # else the start names it
        assert passed_over(copy) == []
    repaired(target)
    assert content(target) == before


def test_an_interrupted_repair_leaves_no_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_repair, "RECORDS_PER_STEP", 10)
    filled(tmp_path)
    file(tmp_path, 1).unlink()
    before = content(tmp_path)
    steps = repair_queues(inspect_store(tmp_path), Repaired(), writes=True, file_bytes=QUEUE_FILE_BYTES)
    assert next(done for done, total in steps if done > total / 2)
    assert len(content(tmp_path)) == len(before) + 1
    steps.close()  # type: ignore[attr-defined]  # as Ctrl-C does
    assert content(tmp_path) == before


# -- any damage --------------------------------------------------------------------------------------------


def zero(path: Path, random: Random) -> None:
    raw = bytearray(path.read_bytes())
    begin = random.randrange(len(raw) or 1)
    end = random.randrange(begin, len(raw) + 1)
    raw[begin:end] = bytes(end - begin)
    path.write_bytes(raw)


def garble(path: Path, random: Random) -> None:
    raw = bytearray(path.read_bytes())
    for _ in range(random.randint(1, 30)):
        if raw:
            raw[random.randrange(len(raw))] = random.randrange(256)
    path.write_bytes(raw)


def shorten(path: Path, random: Random) -> None:
    os.truncate(path, random.randrange(path.stat().st_size + 1))


def swap(path: Path, random: Random) -> None:
    units = list(UNIT.iter_unpack(path.read_bytes()[: path.stat().st_size // UNIT_BYTES * UNIT_BYTES]))
    random.shuffle(units)
    path.write_bytes(b"".join(UNIT.pack(*unit) for unit in units))


def lose(path: Path, random: Random) -> None:
    if len(list(path.parent.iterdir())) > 1:
        path.unlink()


DAMAGES: tuple[Callable[[Path, Random], None], ...] = (zero, garble, shorten, swap, lose)


@pytest.mark.parametrize("seed", range(share(400)))
def test_any_damage_of_queues_is_undone(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    store = open_store(tmp_path)
    sent: dict[int, list[bytes]] = {0: [], 1: []}
    for index in range(random.randint(2, 120)):
        queue_id = random.choice((0, 0, 1))
        sent[queue_id].append(b"%d" % index * random.randint(1, 40))
        put(store, sent[queue_id][-1], queue_id=queue_id, tags=random.choice(("", "A", "B")))
    if random.random() < 0.8:
        store.set_confirm_offset(store.commit_log.max_offset)
    store.close(clean=random.random() < 0.7)
    for _ in range(random.randint(1, 4)):
        paths = sorted(each for each in (tmp_path / "consumequeue").glob("*/*/*") if each.is_file())
        if paths:
            random.choice(DAMAGES)(random.choice(paths), random)
    repaired(tmp_path, writes=False)
    repaired(tmp_path)
    assert read(tmp_path) == sent
    assert read(tmp_path) == sent, "also after the next start"


@pytest.mark.parametrize("bytes_now", [QUEUE_FILE_BYTES, 100, 400, 6_000])
def test_queues_of_mixed_sizes_get_the_size_asked_for(tmp_path: Path, bytes_now: int) -> None:
    """An older KeelMQ made the last files of some queues larger before it refused the size."""
    filled(tmp_path)
    with file(tmp_path, 2, 1).open("ab") as last:
        last.truncate(6_000)
    os.rename(file(tmp_path, 2, 1), file(tmp_path, 0, 1))  # only the larger one
    before = content(tmp_path)
    for size in (QUEUE_FILE_BYTES, 6_000):
        with pytest.raises(StoreError, match=r"repair .* --queue-file-bytes|set mappedFile"):
            open_store(tmp_path, consume_queue_file_bytes=size)
    assert content(tmp_path) == before
    flags = ["--queues", "--queue-file-bytes", str(bytes_now)]
    shown = repair(tmp_path, *flags)
    assert shown.exit_code == 0 and "Nothing was changed" in shown.output
    assert content(tmp_path) == before
    done = repair(tmp_path, *flags, "--yes")
    assert done.exit_code == 0, done.output
    assert "Start the broker now." in done.output
    store = open_store(tmp_path, consume_queue_file_bytes=bytes_now)
    assert {queue_id: bodies(store, queue_id) for queue_id in (0, 1)} == BODIES
    store.close()


@pytest.mark.parametrize("bytes_now", [100, 400])
@pytest.mark.parametrize("died_at", range(1, 8))
def test_a_new_size_is_written_crash_safe(
    tmp_path: Path, bytes_now: int, died_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash in between no broker starts with a part of the entries, and a second call ends it."""
    filled(tmp_path)
    synced = 0

    def dies(directory: Path) -> None:
        nonlocal synced
        synced += 1
        if synced == died_at:
            raise KeyboardInterrupt

    units = {number: unit for number in range(30) if (unit := file_unit(tmp_path, number))}
    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(queue_files, "sync_directory", dies)
        queue_files.resize(queue(tmp_path), bytes_now)
        died_at = 0
    if died_at:
        for size in (QUEUE_FILE_BYTES, bytes_now):
            with suppress(StoreError):
                store = open_store(tmp_path, consume_queue_file_bytes=size)
                assert bodies(store) == BODIES[0]
                store.close()
                return
    queue_files.resize(queue(tmp_path), bytes_now)
    queue_files.resize(queue(tmp_path, 1), bytes_now)
    store = open_store(tmp_path, consume_queue_file_bytes=bytes_now)
    assert bodies(store) == BODIES[0] and units
    store.close()


def file_unit(root: Path, number: int) -> bytes:
    start, at = divmod(number * UNIT_BYTES, QUEUE_FILE_BYTES)
    return (queue(root) / f"{start * QUEUE_FILE_BYTES:020d}").read_bytes()[at : at + UNIT_BYTES].strip(b"\0")


def test_healed_records_behind_a_gap_of_queue_offsets(tmp_path: Path) -> None:
    """A slave without controllers gave them no entry; its log names this remedy."""
    slave, start, (data,), number = gap_without_room(tmp_path)
    receive(slave, data)
    confirm(slave)
    assert not heal(slave, start, data)
    slave.close()
    for _ in repair_queues(inspect_store(slave.root), Repaired(), writes=True):
        pass
    store = open_store(slave.root)
    assert bodies(store, 3, number) == [b"behind the gap"]
    assert put(store, queue_id=3)[2] == number + 1
    crash(store)
