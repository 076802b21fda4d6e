"""Journal, vote file, snapshot and data directory: what a crash or a flipped byte may cost, and what not."""

import errno
import os
import random
import zlib
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keelmq.runtime.config import ConfigError
from namesrv.plugins.controller.raft.api import EXIT_JOURNAL, EXIT_TRUNCATION
from namesrv.plugins.controller.raft.replica import FatalRaftError
from namesrv.plugins.controller.raft.storage.directory import DataDirectory
from namesrv.plugins.controller.raft.storage.files import DamagedError
from namesrv.plugins.controller.raft.storage.journal import MAGIC, RESERVE_BYTES_MIN, Journal, LogEntry
from namesrv.plugins.controller.raft.storage.snapshot import (
    Snapshot,
    decode_snapshot,
    encode_snapshot,
    read_snapshot,
    write_snapshot,
)

NO_OP = b"\x01"


def fatal(code: int, text: str) -> NoReturn:
    raise FatalRaftError(code, text)


def open_journal(path: Path) -> Journal:
    return Journal(path, fatal=fatal, sync=False)


def filled(path: Path, batches: list[int]) -> tuple[Journal, list[int]]:
    """Entries 1.. of term 1, one sync per batch; (journal, how far the file was durable after each batch)."""
    journal, index, ends = open_journal(path), 0, []
    for count in batches:
        for _ in range(count):
            index += 1
            journal.add(NO_OP + b"x" * (index % 7), index, 1)
        journal.sync()
        ends.append(journal.file_bytes)
    return journal, ends


def test_what_was_synced_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "raft.journal"
    journal, _ = filled(path, [3, 2])
    journal.setCurrentTerm(4, "n1")
    journal.setRaftCommitIndex(5)
    journal.deleteEntriesTo(2)
    journal.add(NO_OP, 6, 4)
    entries = journal[:]
    journal.close()
    again = open_journal(path)
    assert again[:] == entries
    assert (again.getCurrentTerm(), again.getVotedForNodeId(), again.getRaftCommitIndex()) == (4, "n1", 5)
    again.close()


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_operations_against_a_list(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("journal") / "raft.journal"
    journal, model, term = open_journal(path), list[LogEntry](), 1
    journal.setCurrentTerm(1, None)
    for _ in range(data.draw(st.integers(1, 25))):
        match data.draw(st.sampled_from(["add", "add", "add", "sync", "cut", "compact", "clear", "reopen"])):
            case "add":
                entry = (NO_OP + data.draw(st.binary(max_size=20)), model[-1][1] + 1 if model else 1, term)
                journal.add(*entry)
                model.append(entry)
            case "sync":
                journal.sync()
            case "cut" if len(model) > 1:
                position = data.draw(st.integers(1, len(model) - 1))
                journal.deleteEntriesFrom(position)
                del model[position:]
            case "compact" if len(model) > 1:
                position = data.draw(st.integers(0, len(model) - 1))
                journal.deleteEntriesTo(position)
                del model[:position]
            case "clear" if model:
                entry = (NO_OP, model[-1][1] + 5, term)
                journal.clear()
                journal.add(*entry)
                model[:] = [entry]
            case "reopen":
                journal.close()
                journal = open_journal(path)
        assert journal[:] == model
        assert len(journal) == len(model)
    journal.close()
    again = open_journal(path)
    assert again[:] == model
    again.close()


def recovered(path: Path, data: bytes) -> list[LogEntry] | None:
    """The entries found in a file with these bytes; None: refused to start."""
    path.write_bytes(data)
    try:
        journal = open_journal(path)
    except DamagedError:
        return None
    try:
        journal.align(None, None)
        return journal[:]
    except DamagedError:
        return None
    finally:
        journal.close()


def test_every_cut_of_the_file_leaves_a_prefix_or_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "raft.journal"
    journal, ends = filled(path, [2, 3, 1])
    journal.setCurrentTerm(1, None)
    journal.setRaftCommitIndex(4)
    entries = journal[:]
    journal.close()
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        found = recovered(path, whole[:length])
        assert found is None or found == entries[: len(found)]
        assert found is None or len(found) >= 4, f"{length} bytes: a committed entry is gone"
    assert recovered(path, whole) == entries
    assert ends[-1] == len(whole)


def test_every_flipped_byte_leaves_what_later_records_prove_or_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "raft.journal"
    journal, ends = filled(path, [2, 3, 2, 1])
    journal.setCurrentTerm(1, None)
    entries = journal[:]
    journal.close()
    whole = path.read_bytes()
    proved = ends[2]  # the last record says that everything before it was durable
    dice = random.Random(7)
    for offset in range(len(whole)):
        damaged = bytearray(whole)
        damaged[offset] ^= 1 << dice.randrange(8)
        found = recovered(path, bytes(damaged))
        if offset < proved:
            assert found is None, f"damage at {offset} was not noticed"
        else:
            assert found == entries[:-1]


def test_the_log_grows_into_durable_zeros(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "raft.journal"
    journal, ends = filled(path, [3])
    size = path.stat().st_size
    assert size == ends[0] + RESERVE_BYTES_MIN
    while journal.file_bytes < size - 100:
        journal.add(NO_OP + b"y" * 50, len(journal) + 1, 1)
        journal.sync()
        assert path.stat().st_size == size, "no sync changes the file's size"
    entries, killed = journal[:], path.read_bytes()
    journal.setCurrentTerm(1, None)
    assert killed[journal.file_bytes :] == bytes(size - journal.file_bytes)
    journal.close()
    assert path.stat().st_size == journal.file_bytes, "a stopped member leaves no zeros"
    assert recovered(path, killed) == entries
    assert caplog.records == [], "zeros are no torn tail"
    again = open_journal(path)
    again.add(NO_OP, len(entries) + 1, 1)
    again.sync()
    assert recovered(path, path.read_bytes()) == [*entries, (NO_OP, len(entries) + 1, 1)]


def test_a_record_that_was_torn_in_the_zeros_is_cut(tmp_path: Path) -> None:
    """As after a power cut: any part of the last record reached the disk, the rest is zeros still."""
    path = tmp_path / "raft.journal"
    journal, ends = filled(path, [3, 1])
    journal.setCurrentTerm(1, None)
    entries, whole = journal[:], path.read_bytes()
    journal.close()
    for length in range(ends[0], ends[1]):
        rest = bytes(len(whole) - length)
        assert recovered(path, whole[:length] + rest) == entries[:3]
        page = ends[0] + (ends[1] - ends[0]) // 2  # or the first part is missing
        assert recovered(path, whole[: ends[0]] + bytes(page - ends[0]) + whole[page:]) == entries[:3]
    flipped = bytearray(whole)
    flipped[-5] ^= 8
    assert recovered(path, bytes(flipped)) == entries, "nothing was durable there"


def test_no_room_for_zeros_is_no_reason_to_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "raft.journal"
    journal = open_journal(path)
    pwrite = os.pwrite

    def nearly_full(file: int, data: bytes, offset: int) -> int:
        if len(data) > 4_000:
            raise OSError(errno.ENOSPC, "full")
        return pwrite(file, data, offset)

    monkeypatch.setattr(os, "pwrite", nearly_full)
    for index in range(1, 4):
        journal.add(NO_OP, index, 1)
        journal.sync()
    assert path.stat().st_size == journal.file_bytes
    journal.setCurrentTerm(1, None)
    journal.close()
    assert len(recovered(path, path.read_bytes()) or ()) == 3


def test_a_torn_tail_is_cut_also_with_pages_out_of_order(tmp_path: Path) -> None:
    path = tmp_path / "raft.journal"
    journal, ends = filled(path, [3])
    journal.setCurrentTerm(1, None)
    for index in (4, 5, 6):
        journal.add(NO_OP + b"y" * 50, index, 1)
    journal.close()
    whole = bytearray(path.read_bytes())
    whole[ends[0] : ends[0] + 60] = bytes(60)  # the first of the unsynced records never reached the disk
    found = recovered(path, bytes(whole))
    assert found is not None
    assert [index for _, index, _ in found] == [1, 2, 3]


def test_files_that_must_exist_together(tmp_path: Path) -> None:
    path = tmp_path / "raft.journal"
    journal, _ = filled(path, [3])
    journal.setCurrentTerm(1, "n0")
    journal.close()
    vote = path.with_suffix(".vote")
    content = vote.read_bytes()
    vote.unlink()
    with pytest.raises(DamagedError, match=r"raft\.vote: missing"):
        open_journal(path)
    for broken in (b"", content[:-1], content[:5] + bytes([content[5] ^ 1]) + content[6:]):
        vote.write_bytes(broken)
        with pytest.raises(DamagedError, match="last vote is unknown"):
            open_journal(path)
    vote.write_bytes(content)
    path.unlink()
    with pytest.raises(DamagedError, match=r"raft\.journal: missing or empty"):
        open_journal(path)


@pytest.mark.parametrize("begun", [b"", MAGIC[:3], bytes(8), bytes(5), MAGIC[:6] + bytes(2), MAGIC])
def test_a_power_cut_while_it_was_created_costs_nothing(tmp_path: Path, begun: bytes) -> None:
    """The size may reach the disk before the bytes."""
    path = tmp_path / "raft.journal"
    path.write_bytes(begun)
    journal = open_journal(path)
    journal.add(NO_OP, 1, 0)
    journal.close()
    assert path.read_bytes().startswith(MAGIC)
    again = open_journal(path)
    assert again[:] == [(NO_OP, 1, 0)]
    again.close()


@pytest.mark.parametrize("damaged", [bytes(8), bytes(9), MAGIC[:3] + b"x", MAGIC[1:], bytes(7) + b"\n"])
def test_what_was_a_journal_is_not_begun_anew(tmp_path: Path, damaged: bytes) -> None:
    """Zeros are a new one only while nothing was voted for."""
    path = tmp_path / "raft.journal"
    if damaged == bytes(8):
        journal = open_journal(path)
        journal.setCurrentTerm(1, "n0")
        journal.close()
    path.write_bytes(damaged)
    with pytest.raises(DamagedError, match=r"raft\.journal: "):
        open_journal(path)
    assert path.read_bytes() == damaged


def test_align_keeps_what_follows_the_snapshot(tmp_path: Path) -> None:
    """A crash between the snapshot and the compaction: the library alone would clear the whole journal."""
    path = tmp_path / "raft.journal"
    journal, _ = filled(path, [9])
    journal.setCurrentTerm(1, None)
    entries = journal[:]
    journal.align(entries[4], entries[5])
    assert journal[:] == entries[4:]
    with pytest.raises(DamagedError, match="begins at index 5"):
        journal.align(None, None)
    with pytest.raises(DamagedError, match="begins at index 5"):
        journal.align(entries[1], entries[2])
    journal.close()


def test_the_commit_index_never_goes_back(tmp_path: Path) -> None:
    journal, _ = filled(tmp_path / "raft.journal", [9])
    journal.setRaftCommitIndex(7)
    with pytest.raises(FatalRaftError) as caught:
        journal.deleteEntriesFrom(6)
    assert caught.value.code == EXIT_TRUNCATION
    journal.close()


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_a_failed_write_ends_the_process(tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "raft.journal", fatal=fatal)
    journal.add(NO_OP, 1, 1)

    def fail(*_: object) -> NoReturn:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        with pytest.raises(FatalRaftError, match=r"raft\.journal: No space left on device") as caught:
            journal.sync()
    assert caught.value.code == EXIT_JOURNAL
    journal.close()


def test_no_room_for_the_reserve_is_no_excuse_for_records_that_were_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An fsync tells of lost pages once: if records were written before it, they may be the lost ones."""
    for written_early in (False, True):
        path = tmp_path / f"{written_early}" / "raft.journal"
        path.parent.mkdir()
        journal = Journal(path, fatal=fatal)
        journal.add(bytes(2 << 20 if written_early else 100), 1, 1)

        def full(_descriptor: int) -> NoReturn:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            if written_early:
                with pytest.raises(FatalRaftError, match="No space left") as caught:
                    journal.sync()
                assert caught.value.code == EXIT_JOURNAL
            else:
                journal.sync()  # the zeros alone found no room: the log itself is synced
        journal.close()


SNAPSHOT = Snapshot(
    cluster_id="c1",
    members=("n0", "n1"),
    last=(b"\x00abc", 12, 3),
    previous=(b"\x01", 11, 3),
    claimed_term=3,
    state=b"state" * 20,
    answers=(("id", b"\xc0"),),
)


def test_snapshot_round_trip_keeps_tuples(tmp_path: Path) -> None:
    path = tmp_path / "raft.snapshot"
    write_snapshot(path, SNAPSHOT)
    assert read_snapshot(path, "c1") == SNAPSHOT
    assert read_snapshot(path, "c1").last == (b"\x00abc", 12, 3)
    with pytest.raises(DamagedError, match="belongs to cluster"):
        read_snapshot(path, "c2")


def test_older_releases_can_read_a_snapshot() -> None:
    """They refuse one without `answers`, or with a field that they do not know."""
    without = msgspec.structs.replace(SNAPSHOT, answers=())
    fields = msgspec.msgpack.decode(zlib.decompress(encode_snapshot(without)[12:]))
    assert fields["answers"] == []
    names = "cluster_id members last previous claimed_term state welcomed former member_list answers"
    assert list(fields) == names.split()


def test_every_damaged_snapshot_is_refused() -> None:
    whole = encode_snapshot(SNAPSHOT)
    damaged = [whole[:length] for length in range(len(whole))]
    damaged += [whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :] for at in range(len(whole))]
    for data in damaged:
        with pytest.raises(DamagedError):
            decode_snapshot(data, "snapshot")


def test_a_directory_has_one_process_and_one_member(tmp_path: Path) -> None:
    first, second = DataDirectory(tmp_path), DataDirectory(tmp_path)
    first.open("c1", "n0")
    with pytest.raises(ConfigError, match="in use by another process"):
        second.open("c1", "n0")
    first.close()
    with pytest.raises(ConfigError, match="belongs to member 'n0' of cluster 'c1', not to 'n1' of 'c1'"):
        second.open("c1", "n1")
    second.open("c1", "n0")
    second.close()
