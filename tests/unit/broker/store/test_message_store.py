"""The store as a whole: what consumers see, dispatch on both roles, recovery, cutting, queue offsets."""

import errno
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from broker.admin.repair import inspect_store
from broker.message.record import decode, java_hash
from broker.store import message_store
from broker.store.log import commit_log
from broker.store.log.checkpoint import read_checkpoint
from broker.store.log.mapped_file import MappedFile, StoreError, file_name
from broker.store.message_store import MessageStore, StoreConfig
from broker.store.offline import offline_store
from broker.store.queue import consume_queue
from broker.store.queue import queue_table as queues
from broker.store.queue.reading import GetStatus
from broker.store.settings import NamedTopic
from tests.support.store_disk import StoreDisk, boot_again
from tests.support.store_parts import (
    BORN_HOST,
    FILE_BYTES,
    TOPIC,
    bodies,
    crash,
    cut_demoted,
    open_store,
    put,
    put_many,
    records_in,
)

FIXTURES = Path(__file__).parents[3] / "fixtures" / "store"


def copy_log(source: MessageStore, target: MessageStore, piece_bytes: int = 700) -> None:
    """What HA does: the master's bytes, received in place."""
    while target.commit_log.max_offset < source.commit_log.max_offset:
        room = target.commit_log.receive_view()
        piece = source.commit_log.view(target.commit_log.max_offset, min(len(room), piece_bytes))
        room[: len(piece)] = piece
        target.commit_log.received(len(piece))


def next_offset(store: MessageStore, queue_id: int = 0) -> int:
    queue = store.find_queue("TopicA", queue_id)
    return 0 if queue is None else queue.next_offset


def test_nothing_is_visible_beyond_confirm_offset(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    ends = [put(store, b"%d" % index)[1] for index in range(10)]
    assert store.get("TopicA", 0, 0, 32, 1 << 20, None).status is GetStatus.NO_MESSAGE_IN_QUEUE
    store.set_confirm_offset(ends[3] + 5)  # in the middle of the fifth
    assert bodies(store) == [b"0", b"1", b"2", b"3"]
    assert store.max_queue_offset("TopicA", 0) == 4
    assert not store.dispatcher.dispatch_behind
    store.set_confirm_offset(1 << 40)
    assert len(bodies(store)) == 10
    assert store.confirm_offset == ends[-1]
    store.set_confirm_offset(ends[0])
    assert store.confirm_offset == ends[-1]  # never back
    store.close()


def test_put_is_for_masters(tmp_path: Path) -> None:
    store = open_store(tmp_path, master=False)
    with pytest.raises(AssertionError, match="not master"):
        put(store)
    store.become_master()
    put(store)
    store.become_slave()
    with pytest.raises(AssertionError, match="not master"):
        put(store)
    store.close()


def test_a_refused_message_leaves_no_gap(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store)
    with pytest.raises(ValueError, match="does not fit"):
        put(store, b"x" * FILE_BYTES)
    assert put(store)[2] == 1
    store.close()


def test_client_host_bits_are_ignored(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put(TOPIC, 0, b"body", b"", 0, 0x31, 1, bytes(8), 0, 0)
    record = decode(store.commit_log.view(0, FILE_BYTES))
    assert (record.sys_flag, record.body) == (0x01, b"body")
    store.close()


@pytest.mark.parametrize("records_max", [1, 7, 1000])
def test_a_replica_dispatches_in_slices(tmp_path: Path, records_max: int) -> None:
    master, slave = open_store(tmp_path / "m"), open_store(tmp_path / "s", master=False)
    put_many(master, 60)
    copy_log(master, slave)
    seen: list[tuple[str, int]] = []
    slave.dispatcher.on_queue = lambda topic, queue_id: seen.append((topic, queue_id))
    slave.set_confirm_offset(master.confirm_offset - 1)
    while slave.dispatcher.dispatch(records_max):
        pass
    assert len(bodies(slave, 0)) + len(bodies(slave, 1)) == 59
    slave.set_confirm_offset(master.confirm_offset)
    slave.dispatcher.dispatch(records_max)
    for queue_id in (0, 1):
        assert bodies(slave, queue_id) == bodies(master, queue_id)
    assert sorted(seen) == [("TopicA", 0), ("TopicA", 1)]
    master.close()
    slave.close()


def test_a_replica_that_begins_mid_log(tmp_path: Path) -> None:
    master, slave = open_store(tmp_path / "m"), open_store(tmp_path / "s", master=False)
    put_many(master, 60)
    slave.cutter.reset_to(FILE_BYTES)
    copy_log(master, slave)
    slave.set_confirm_offset(master.confirm_offset)
    slave.dispatcher.dispatch(1000)
    first = slave.min_queue_offset("TopicA", 0)
    assert first > 0
    assert bodies(slave, 0, first) == bodies(master, 0, first)
    early = slave.get("TopicA", 0, 0, 32, 1 << 20, None)
    assert (early.status, early.next_begin_offset) == (GetStatus.OFFSET_TOO_SMALL, first)
    crash(slave)
    again = open_store(tmp_path / "s", master=False)
    assert again.commit_log.min_offset == FILE_BYTES
    assert again.min_queue_offset("TopicA", 0) == first
    assert bodies(again, 0, first) == bodies(master, 0, first)
    master.close()
    again.close()


def test_a_new_master_never_reuses_queue_offsets_of_its_unconfirmed_tail(tmp_path: Path) -> None:
    """The promise S4: records that were replicated but not yet indexed count."""
    master, slave = open_store(tmp_path / "m"), open_store(tmp_path / "s", master=False)
    put_many(master, 10, queues=1)
    confirmed = master.confirm_offset
    for _ in range(5):
        put(master, b"tail")
    copy_log(master, slave)
    slave.set_confirm_offset(confirmed)
    slave.become_master()
    assert slave.max_queue_offset("TopicA", 0) == 0  # not dispatched yet
    assert put(slave, b"new")[2] == 15
    slave.set_confirm_offset(slave.commit_log.max_offset)
    assert slave.dispatcher.dispatch_behind
    while slave.dispatcher.dispatch(3):
        pass
    assert bodies(slave)[-2:] == [b"tail", b"new"]
    assert slave.max_queue_offset("TopicA", 0) == 16
    master.close()
    slave.close()


def test_more_unconfirmed_messages_than_are_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_store, "QUEUED_UNITS_MAX", 10)
    store = open_store(tmp_path)
    for index in range(37):
        put(store, b"%d" % index)
    store.set_confirm_offset(store.commit_log.max_offset)
    while store.dispatcher.dispatch(4):
        pass
    assert bodies(store) == [b"%d" % index for index in range(37)]
    put(store, b"last")
    store.set_confirm_offset(store.commit_log.max_offset)
    assert bodies(store)[-1] == b"last"  # by the fast way again
    store.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("checkpointed", [True, False])
def test_everything_is_there_after_a_restart(tmp_path: Path, clean: bool, checkpointed: bool) -> None:
    store = open_store(tmp_path)
    put_many(store, 60)
    if checkpointed:
        store.flush_checkpoint()
    put_many(store, 10)
    put(store, b"unconfirmed")
    before = [bodies(store, 0), bodies(store, 1)]
    confirm, end = store.confirm_offset, store.commit_log.max_offset
    store.close(clean=clean)
    assert (tmp_path / "abort").exists() is not clean
    again = open_store(tmp_path, master=False)
    assert [bodies(again, 0), bodies(again, 1)] == before
    assert (again.commit_log.max_offset, again.confirm_offset) == (end, confirm)
    assert next_offset(again) == len(before[0]) + 1  # the unconfirmed one keeps its queue offset
    again.close()


def test_a_torn_last_record_is_cut(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_many(store, 10, queues=1)
    offset, end, _ = put(store, b"torn" * 20)
    store.set_confirm_offset(end)
    crash(store)
    path = tmp_path / "commitlog" / file_name(0)
    raw = bytearray(path.read_bytes())
    raw[offset + 90] ^= 1
    path.write_bytes(raw)
    boot_again(tmp_path)
    again = open_store(tmp_path)
    assert again.commit_log.max_offset == again.confirm_offset == offset
    assert len(bodies(again)) == 10
    assert put(again, b"next")[2] == 10
    assert not any(path.read_bytes()[again.commit_log.max_offset :])
    again.close()


def test_a_log_that_lacks_confirmed_records_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path)
    put_many(store, 10)
    end = store.commit_log.max_offset
    store.close()
    crash(open_store(tmp_path))
    assert "confirmed up to" not in caplog.text
    log = tmp_path / "commitlog" / file_name(0)
    raw = bytearray(log.read_bytes())
    size = int.from_bytes(raw[:4], "big")
    raw[end - size + 4] ^= 1  # the magic code of the last record
    log.write_bytes(raw)
    (tmp_path / "abort").unlink()
    store = open_store(tmp_path)
    assert f"the log ends at {end - size}, and was confirmed up to {end}" in caplog.text
    assert [len(bodies(store, 0)), len(bodies(store, 1))] == [5, 4], "its unit is gone with it"
    assert put(store, b"next", queue_id=1)[2] == 4
    store.set_confirm_offset(store.commit_log.max_offset)
    assert bodies(store, 1)[-1] == b"next"
    crash(store)


def test_a_replica_whose_confirmed_end_is_lost_refuses_to_be_master_until_it_is_copied(
    tmp_path: Path,
) -> None:
    """Over any number of starts. The file is how an operator gives the end up."""
    store = open_store(tmp_path)
    put_many(store, 10)
    end = store.commit_log.max_offset
    store.close()
    log = tmp_path / "commitlog" / file_name(0)
    whole = log.read_bytes()
    os.truncate(log, end - 40)
    for _ in range(2):
        store = open_store(tmp_path, master=False)
        cut = store.commit_log.max_offset
        assert (
            cut < end
            and str(end) in store.dispatcher.tail_fault()
            and store.dispatcher.tail_fault() in store.damage.describe()
        )
        crash(store)
    given_up = tmp_path.with_name("given-up")
    shutil.copytree(tmp_path, given_up)
    (given_up / "damagedRanges").unlink()
    store = open_store(given_up, master=False)
    assert not store.dispatcher.tail_fault()
    crash(store)

    store = open_store(tmp_path, master=False)
    store.commit_log.receive_view()[: end - cut] = whole[cut:end]
    store.commit_log.received(end - cut)
    store.set_confirm_offset(end)
    while store.dispatcher.scan(100):
        pass
    assert not store.dispatcher.tail_fault() and not store.damage.describe()
    store.close()
    assert not (tmp_path / "damagedRanges").exists()


def test_a_checkpoint_behind_a_lost_file_of_the_log_is_not_believed(tmp_path: Path) -> None:
    """Every offset of the store would be behind the end of the log."""
    store = open_store(tmp_path)
    put_many(store, 60, queues=1)
    assert len(store.commit_log.file_starts()) == 2
    store.flush_checkpoint()
    crash(store)
    max((tmp_path / "commitlog").glob("0*")).unlink()
    store = open_store(tmp_path)
    end, left = store.commit_log.max_offset, len(bodies(store, 0))
    assert 0 < left < 60 and store.confirm_offset == store.dispatch_offset == end
    assert put(store, b"next")[2] == left
    store.set_confirm_offset(store.commit_log.max_offset)
    assert bodies(store, 0)[-1] == b"next"
    store.close()


@pytest.mark.parametrize("lost", ["queues", "checkpoint", "both"])
def test_queues_and_checkpoint_can_be_made_again(tmp_path: Path, lost: str) -> None:
    store = open_store(tmp_path)
    put_many(store, 60)
    before = bodies(store, 1)
    crash(store)
    if lost != "checkpoint":
        shutil.rmtree(tmp_path / "consumequeue")
    if lost != "queues":
        (tmp_path / "checkpoint").unlink(missing_ok=True)
    again = open_store(tmp_path)
    again.set_confirm_offset(again.commit_log.max_offset)
    while again.dispatcher.dispatch(100):
        pass
    assert bodies(again, 1) == before
    assert put(again, queue_id=1)[2] == len(before)
    again.close()


def test_records_and_blanks_of_any_size_are_passed(tmp_path: Path) -> None:
    """The next start, a replica and a new master read the log: a large batch can leave a large rest."""
    sizes = {"commit_log_file_bytes": 24 << 20, "consume_queue_file_bytes": 4_000}
    store = open_store(tmp_path, **sizes)
    for size in (10 << 20, 1, 15 << 20, 2):  # the third one is in the next file, behind a rest of 14 MiB
        put(store, bytes(size))
    assert store.commit_log.max_offset > 24 << 20
    crash(store)
    shutil.rmtree(tmp_path / "consumequeue")
    again = open_store(tmp_path, **sizes)
    again.set_confirm_offset(again.commit_log.max_offset)
    while again.dispatcher.dispatch(1):
        pass
    assert again.max_queue_offset("TopicA", 0) == 4
    again.close()
    shutil.rmtree(tmp_path / "index")
    again = open_store(tmp_path, **sizes)
    while again.dispatcher.catch_up_index(1):
        pass
    assert again.index is not None and again.index.offset == again.commit_log.max_offset
    again.close()


def test_a_replica_indexes_what_it_has_before_what_comes(tmp_path: Path) -> None:
    """Its index is new, or was behind: nothing between is left out."""
    master, replica = open_store(tmp_path / "m"), open_store(tmp_path / "s", master=False)

    def follow(key: str) -> list[int]:
        offset, _, _ = master.put(TOPIC, 0, b"", b"KEYS\x01%b" % key.encode(), 0, 0, 1, BORN_HOST, 0, 0)
        master.set_confirm_offset(master.commit_log.max_offset)
        copy_log(master, replica)
        replica.set_confirm_offset(master.confirm_offset)
        while replica.dispatcher.dispatch(1):
            pass
        return [offset]

    first = follow("first")
    replica.close()
    shutil.rmtree(tmp_path / "s" / "index")
    replica = open_store(tmp_path / "s", master=False)
    second = follow("second")
    while replica.dispatcher.catch_up_index(1):
        pass
    third = follow("third")
    assert replica.index is not None
    for key, offsets in {"first": first, "second": second, "third": third}.items():
        assert replica.index.find(java_hash("TopicA#"), key.encode(), 9, 0, 1 << 62) == offsets
    master.close()
    replica.close()


def test_a_topic_that_is_no_name_of_a_directory_gets_no_queue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A master would not take it; a replica takes what is in the log, and goes on behind it."""
    master, replica = open_store(tmp_path / "m"), open_store(tmp_path / "s", master=False)
    master.put(NamedTopic("../../evil"), 0, b"", b"", 0, 0, 1, BORN_HOST, 0, 0)
    put(master)
    copy_log(master, replica)
    replica.set_confirm_offset(replica.commit_log.max_offset)
    while replica.dispatcher.dispatch(9):
        pass
    assert "it is added to no ConsumeQueue" in caplog.text
    assert len(bodies(replica)) == 1 and not list(tmp_path.rglob("evil"))
    master.close()
    replica.close()


def test_units_without_their_records_cost_no_long_recovery(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A power cut without SYNC_FLUSH: the log is synced first, so the newest units are often of lost records.
    What the checkpoint promises is as good as without them."""
    store = open_store(tmp_path)
    put_many(store, 60)
    store.flush_checkpoint()
    promised = store.confirm_offset
    before = bodies(store, 0)
    put_many(store, 20)
    crash(store)
    boot_again(tmp_path)
    path = tmp_path / "commitlog" / file_name(promised // FILE_BYTES * FILE_BYTES)
    raw = path.read_bytes()
    path.write_bytes(raw[: promised % FILE_BYTES].ljust(FILE_BYTES, b"\0"))
    for later in sorted(path.parent.iterdir()):
        if later > path:
            later.unlink()
    with caplog.at_level(logging.INFO):
        again = open_store(tmp_path)
    assert f"scanned from {promised}" in caplog.text
    assert bodies(again, 0) == before
    again.close()


def test_a_flush_that_failed_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a whole: what was to be synced is not forgotten, and the checkpoint says nothing of it before."""
    root = tmp_path / "s"
    disk = StoreDisk(root)
    with disk.watched(lambda operation, path: None):
        store = open_store(root)
        put_many(store, 3, queues=3)
        store.flush_checkpoint()
        promised = read_checkpoint(root / "checkpoint").confirm_offset
        put_many(store, 40, queues=3)  # some of it in new files

        def fail(path: Path) -> None:
            raise OSError(errno.EMFILE, "too many open files")

        for place in (commit_log, consume_queue):
            with monkeypatch.context() as patch, pytest.raises(OSError, match="too many"):
                patch.setattr(place, "sync_directory", fail)
                store.flush_checkpoint()
            assert read_checkpoint(root / "checkpoint").confirm_offset == promised
        store.flush_checkpoint()
        assert read_checkpoint(root / "checkpoint").confirm_offset == store.commit_log.max_offset
    assert disk.lasting(root / "consumequeue") and disk.lasting(root / "commitlog")
    for seed in range(10):
        left = disk.survivors_of_a_power_cut(tmp_path / f"after-{seed}", Random(seed))
        again = open_store(left)
        assert [len(bodies(again, queue_id)) for queue_id in range(3)] == [15, 14, 14]
        again.close()
    store.close()


def test_what_a_killed_process_had_in_memory_is_synced_by_the_next(tmp_path: Path) -> None:
    """The page cache outlives a kill, not the power cut behind it: the checkpoint must not count on it."""
    root, killed = tmp_path / "s", tmp_path / "killed"
    disk = StoreDisk(root)
    with disk.watched(lambda operation, path: None):
        store = open_store(root)
        put_many(store, 80)
        crash(store)
    disk = StoreDisk(disk.survivors_of_a_kill(killed), is_durable=False)
    with disk.watched(lambda operation, path: None):
        store = open_store(killed)
        store.set_confirm_offset(store.commit_log.max_offset)
        while store.dispatcher.dispatch(9):
            pass
        before = bodies(store)
        store.flush_checkpoint()
    assert len(before) == 40 and store.commit_log.max_offset > 2 * FILE_BYTES
    for seed in range(10):
        again = open_store(disk.survivors_of_a_power_cut(tmp_path / f"after-{seed}", Random(seed)))
        assert bodies(again) == before
        again.close()
    store.close()


def test_a_power_failure_that_lost_queue_units(tmp_path: Path) -> None:
    """Newer pages of a queue are on disk, older ones are not: all after the checkpoint is built again."""
    store = open_store(tmp_path)
    put_many(store, 20, queues=1)
    store.flush_checkpoint()
    put_many(store, 40, queues=1)
    before = bodies(store)
    crash(store)
    path = tmp_path / "consumequeue" / "TopicA" / "0" / file_name(400)
    path.write_bytes(bytes(60) + path.read_bytes()[60:])
    again = open_store(tmp_path)
    assert bodies(again) == before
    again.close()


@pytest.mark.parametrize("keep", [0, 1, 25, 59])
def test_truncate_takes_queues_and_queue_offsets_along(tmp_path: Path, keep: int) -> None:
    store = open_store(tmp_path)
    offsets = [put(store, b"%d" % index, queue_id=index % 2)[0] for index in range(60)]
    store.set_confirm_offset(store.commit_log.max_offset)
    cut_demoted(store, offsets[keep])
    assert store.confirm_offset == store.commit_log.max_offset == offsets[keep]
    assert read_checkpoint(tmp_path / "checkpoint").confirm_offset <= offsets[keep]
    kept = [b"%d" % index for index in range(keep)]
    assert [bodies(store, 0), bodies(store, 1)] == [kept[::2], kept[1::2]]
    assert put(store, queue_id=keep % 2)[2] == keep // 2
    store.set_confirm_offset(store.commit_log.max_offset)
    crash(store)
    again = open_store(tmp_path)
    assert len(bodies(again, 0)) + len(bodies(again, 1)) == keep + 1
    again.close()


def test_half_a_message_at_the_end_is_cut(tmp_path: Path) -> None:
    master, slave = open_store(tmp_path / "m"), open_store(tmp_path / "s", master=False)
    ends = [put(master)[1] for _ in range(5)]
    copy_log(master, slave)
    slave.cutter.truncate(ends[3] - 1)  # any byte, as an HA truncation may ask
    assert slave.cutter.truncate_half_message() == ends[2]
    slave.become_master()
    assert put(slave)[2] == 3
    master.close()
    slave.close()


def test_the_peers_data_directory_is_opened_as_it_is(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES, tmp_path / "store")
    config = StoreConfig(tmp_path / "store", commit_log_file_bytes=65_536, consume_queue_file_bytes=6_000)
    before = {
        path: path.read_bytes()
        for path in (tmp_path / "store" / "consumequeue").rglob("0*")
        if path.is_file()
    }
    store = offline_store(config)
    store.load()
    assert store.commit_log.max_offset == store.confirm_offset == 0x157C2
    assert [store.max_queue_offset("FxNormal", queue_id) for queue_id in range(4)] == [28, 27, 23, 27]
    result = store.get("FxNormal", 0, 0, 32, 1 << 20, frozenset({java_hash("TagA")}))
    assert result.status is GetStatus.FOUND
    store.close()
    assert {path: path.read_bytes() for path in before} == before


def test_two_processes_cannot_have_one_store(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(StoreError, match="in use by another broker"):
        open_store(tmp_path)
    store.close()
    open_store(tmp_path).close()


LOCK_AS_JAVA = """
import fcntl, sys
file = open(sys.argv[1], "r+")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, 0)
print("locked", flush=True)
sys.stdin.read()
"""


def as_java(lock: Path) -> "subprocess.Popen[bytes]":
    """A process that locks the file's first byte, as RocketMQ's broker does (FileChannel.tryLock(0, 1))."""
    command = [sys.executable, "-c", LOCK_AS_JAVA, str(lock)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)


def test_a_store_that_rocketmq_has_open_is_not_ours(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_many(store, 1)
    store.close()
    with as_java(tmp_path / "lock") as theirs:
        assert theirs.stdout is not None and theirs.stdout.readline() == b"locked\n"
        with pytest.raises(StoreError, match="in use by another broker"):
            open_store(tmp_path)
        assert inspect_store(tmp_path).is_running
        theirs.communicate()
    assert not inspect_store(tmp_path).is_running
    store = open_store(tmp_path)
    with as_java(tmp_path / "lock") as theirs:  # nor ours theirs
        assert theirs.communicate()[0] == b"" and theirs.returncode == 1
    store.close()


@pytest.mark.parametrize(
    ("offset", "status", "next_begin"),
    [
        (0, GetStatus.FOUND, 10),
        (9, GetStatus.FOUND, 10),
        (10, GetStatus.OFFSET_OVERFLOW_ONE, 10),
        (11, GetStatus.OFFSET_OVERFLOW_BADLY, 10),
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
    ],
)
def test_get_outside_and_inside(tmp_path: Path, offset: int, status: GetStatus, next_begin: int) -> None:
    store = open_store(tmp_path)
    put_many(store, 10, queues=1)
    result = store.get("TopicA", 0, offset, 32, 1 << 20, None)
    assert (result.status, result.next_begin_offset) == (status, next_begin)
    assert (result.min_offset, result.max_offset) == (0, 10)
    assert store.get("Nobody", 0, 0, 1, 1, None).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    store.close()


def test_get_merges_notifications_and_keeps_its_limits(tmp_path: Path) -> None:
    store = open_store(tmp_path, commit_log_file_bytes=65_536)
    put_many(store, 9, queues=1)
    whole = store.get("TopicA", 0, 0, 32, 1 << 20, None)
    assert (len(whole.views), whole.message_count, whole.next_begin_offset) == (1, 9, 9)
    for count in (1, 3, 8):
        assert store.get("TopicA", 0, 0, count, 1 << 20, None).message_count == count
    size = len(whole.views[0]) // 9
    assert store.get("TopicA", 0, 0, 32, 3 * size, None).message_count == 3
    assert store.get("TopicA", 0, 0, 32, 1, None).message_count == 1  # the first one always
    store.close()


def test_get_by_tag(tmp_path: Path) -> None:
    store = open_store(tmp_path, commit_log_file_bytes=65_536)
    for index in range(9):
        put(store, b"%d" % index, tags="ABC"[index % 3])
    store.set_confirm_offset(store.commit_log.max_offset)
    result = store.get("TopicA", 0, 0, 32, 1 << 20, frozenset({java_hash("B")}))
    assert [record.body for record in records_in(result)] == [b"1", b"4", b"7"]
    assert result.next_begin_offset == 9
    none = store.get("TopicA", 0, 0, 32, 1 << 20, frozenset({java_hash("D")}))
    assert (none.status, none.next_begin_offset) == (GetStatus.NO_MATCHED_MESSAGE, 9)
    store.close()


def test_waiters_are_called_once_when_their_offset_is_there(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    called: list[str] = []
    assert store.wait_for("TopicA", 0, 0, lambda: called.append("first"))
    assert store.wait_for("TopicA", 0, 1, lambda: called.append("second"))
    assert store.wait_for("TopicA", 1, 0, lambda: called.append("other queue"))
    ends = [put(store)[1] for _ in range(3)]
    assert called == []
    store.set_confirm_offset(ends[0])
    assert called == ["first"]
    store.set_confirm_offset(ends[2])
    assert called == ["first", "second"]
    store.close()


def test_a_waiter_that_raises_hurts_nobody_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(tmp_path)
    called: list[str] = []

    def fails() -> None:
        called.append("fails")
        raise RuntimeError("a bug")

    assert store.wait_for("TopicA", 0, 0, lambda: called.append("before"))
    assert store.wait_for("TopicA", 0, 0, fails)
    assert store.wait_for("TopicA", 0, 0, lambda: called.append("behind"))
    assert store.wait_for("TopicA", 1, 0, lambda: called.append("another queue"))
    put(store)
    put(store, queue_id=1)
    store.set_confirm_offset(store.commit_log.max_offset)  # as the HA link does: nothing comes out of it
    assert called == ["before", "fails", "behind", "another queue"]
    assert store.queues.waiter_count == 0
    assert [record.getMessage() for record in caplog.records] == [
        "a waiter for TopicA, queue 0, failed: RuntimeError('a bug')"
    ]
    put(store)
    store.set_confirm_offset(store.commit_log.max_offset)
    assert len(called) == 4
    store.close()


def test_a_waiter_may_stop_another_or_wait_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    called: list[str] = []

    def second() -> None:
        called.append("second")

    def first() -> None:
        called.append("first")
        store.stop_waiting("TopicA", 0, second)
        store.wait_for("TopicA", 0, 1, first)

    assert store.wait_for("TopicA", 0, 0, first) and store.wait_for("TopicA", 0, 0, second)
    for _ in range(2):
        put(store)
        store.set_confirm_offset(store.commit_log.max_offset)
    assert called == ["first", "first"] and store.queues.waiter_count == 1
    store.close()


def test_waiters_are_bounded_and_can_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "WAITERS_MAX", 1)
    store = open_store(tmp_path)
    called: list[int] = []

    def waiter() -> None:
        called.append(1)

    assert store.wait_for("TopicA", 0, 0, waiter)
    assert not store.wait_for("TopicA", 0, 0, waiter)
    store.stop_waiting("TopicA", 0, waiter)
    assert store.wait_for("TopicA", 0, 0, waiter)
    store.stop_waiting("TopicA", 0, waiter)
    put_many(store, 1)
    assert called == []
    store.close()


@pytest.mark.parametrize("role", ["master", "replica"])
def test_a_queue_without_room_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, role: str
) -> None:
    """A full disk must not end the broker (a store into a hole would be a SIGBUS), nor lose a unit."""
    source = open_store(tmp_path / "source")
    for index in range(20):
        put(source, b"%d" % index)
    store = source
    if role == "replica":
        store = open_store(tmp_path / "replica", master=False)
        copy_log(source, store)
    full = OSError(errno.ENOSPC, "No space left on device")

    def no_room(self: MappedFile, start: int, count: int) -> None:
        raise full

    with monkeypatch.context() as disk:
        disk.setattr(MappedFile, "reserve", no_room)
        store.set_confirm_offset(store.commit_log.max_offset)
        for _ in range(3):
            assert not store.dispatcher.dispatch(100)
        assert store.max_queue_offset("TopicA", 0) == 0
        assert store.dispatcher.dispatch_behind
    assert caplog.text.count("no disk space for a ConsumeQueue") == 1
    while store.dispatcher.dispatch(7):
        pass
    assert len(bodies(store)) == 20
    assert not store.dispatcher.dispatch_behind
    for each in {source, store}:
        each.close()


def test_s4_after_a_power_cut_every_queue_counts_on(tmp_path: Path) -> None:
    """A queue whose file had no durable name was missing after a power cut, and counted from 0 again: the
    checkpoint said that everything is there, and the other queue was. Found by the whole-group simulator."""
    for seed in range(20):
        root = tmp_path / f"before-{seed}"
        disk = StoreDisk(root)
        with disk.watched(lambda operation, path: None):
            store = open_store(root)
            put_many(store, 5, queues=2)
            store.flush_checkpoint()
        assert disk.lasting(root / "consumequeue") and disk.lasting(root / "abort")
        left = disk.survivors_of_a_power_cut(tmp_path / f"after-{seed}", Random(seed))
        again = open_store(left)
        assert put(again, queue_id=0)[2] == 3
        assert put(again, queue_id=1)[2] == 2
        again.close()
        store.close()
