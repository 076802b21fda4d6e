"""EpochFile.save_ahead() and finish(): what load() returns after each step, failure and crash."""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest

from broker.ha.core.epochs import Epochs
from broker.ha.epoch_file import EpochFile, EpochFileError, decode_epochs, encode_epochs
from broker.ha.epoch_wal import CONTENT_BYTES_MAX, EpochRecord, EpochWal, base_of, wal_of
from keelmq.runtime.durable_file import backup_of, replace_file
from tests.support.store_disk import After, FailsOnce, StoreDisk, Torn

A, B, C = (Epochs.of([(1, 0), *later]) for later in ([], [(2, 400)], [(2, 400), (3, 900)]))


def prepared(root: Path) -> EpochFile:
    file = EpochFile(root / "epochFileCheckpoint")
    file.prepare()
    return file


def loaded(file: EpochFile) -> Epochs:
    """What another process finds."""
    return EpochFile(file.path).load()


def in_main(file: EpochFile) -> Epochs:
    """What RocketMQ's tools read."""
    return decode_epochs(file.path.read_bytes())


def test_a_save_is_loaded_before_and_after_it_is_finished(tmp_path: Path) -> None:
    file = prepared(tmp_path)
    for epochs in (A, B, C):
        file.save_ahead(epochs)
        assert (loaded(file), file.is_pending) == (epochs, True)
        if epochs is not A:
            assert in_main(file) != epochs
        file.finish()
        assert (loaded(file), file.is_pending, in_main(file)) == (epochs, False, epochs)
        assert EpochWal(wal_of(file.path)).read() is None
    assert decode_epochs(backup_of(file.path).read_bytes()) == B


def test_loading_changes_nothing(tmp_path: Path) -> None:
    file = prepared(tmp_path)
    file.save(A)
    file.save_ahead(B)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert loaded(file) == B
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_next_save_finishes_the_one_before(tmp_path: Path) -> None:
    file = prepared(tmp_path)
    for epochs in (A, B, C):
        file.save_ahead(epochs)
    assert (in_main(file), loaded(file)) == (B, C)


def test_the_path_of_a_save_has_one_sync(tmp_path: Path) -> None:
    """Neither a new nor a renamed file: that is what it is for."""
    file = prepared(tmp_path)
    file.save(A)
    seen: list[str] = []
    with StoreDisk(tmp_path).watched(lambda operation, path: seen.append(f"{operation} {path.suffix}")):
        file.save_ahead(B)
    assert seen == ["pwrite .wal", "pwrite .wal", "fdatasync .wal"]


@pytest.mark.parametrize("main", [None, A, C])
def test_a_record_of_another_base_is_ignored_and_removed(tmp_path: Path, main: Epochs | None) -> None:
    file = prepared(tmp_path)
    if main is not None:
        file.save(main)
    stale = EpochRecord(base_of(b"another"), encode_epochs(B))
    EpochWal(wal_of(file.path)).write(stale)
    if main is None:  # the file was there
        with pytest.raises(EpochFileError, match=r"missing, although epochFileCheckpoint\.wal exists"):
            loaded(file)
        return
    assert loaded(file) == main
    again = prepared(tmp_path)
    assert not again.is_pending
    again.finish()
    assert EpochWal(wal_of(file.path)).read() is None
    assert loaded(file) == main


def test_a_save_never_leaves_a_record_that_would_override_it(tmp_path: Path) -> None:
    """The record that replaced A by B supersedes A: it must be gone when the file is A again."""
    file = prepared(tmp_path)
    file.save(A)
    file.save_ahead(B)
    EpochFile(file.path).save(A)  # e.g. by `keelmq repair`
    assert loaded(file) == A
    file = prepared(tmp_path)
    file.save_ahead(B)
    file.finish()
    file.save_ahead(A)
    file.finish()
    assert (loaded(file), in_main(file)) == (A, A)


def test_a_removed_record_does_not_come_back_in_a_power_cut(tmp_path: Path) -> None:
    file = prepared(tmp_path)
    file.save(A)
    disk = StoreDisk(tmp_path)
    with disk.watched(After(1_000)):
        file.save_ahead(B)
        file.save(A)
    for seed in range(8):
        left = disk.survivors_of_a_power_cut(tmp_path / f"left-{seed}", Random(seed))
        assert EpochFile(left / file.path.name).load() == A


def test_a_pending_record_of_no_file_is_the_first_version(tmp_path: Path) -> None:
    file = prepared(tmp_path)
    file.save_ahead(A)
    assert not file.path.exists()
    assert loaded(file) == A


@pytest.mark.parametrize("damage", [b"", b"2\n773307083\n7-7000\n", None])
def test_a_damaged_file_stays_an_error_beside_a_record(tmp_path: Path, damage: bytes | None) -> None:
    file = prepared(tmp_path)
    file.save(A)
    file.save(B)
    file.save_ahead(C)
    if damage is None:
        file.path.unlink()
    else:
        file.path.write_bytes(damage)
    with pytest.raises(EpochFileError, match=r"epochFileCheckpoint.*Restore it"):
        loaded(file)
    assert EpochFile(file.path).load_older() == C
    file.save_ahead(C)
    assert loaded(file) == C, "what was saved over a damaged file counts, as ever"
    file.finish()
    assert decode_epochs(backup_of(file.path).read_bytes()) == A, "a damaged file replaces no .bak"


def test_without_a_record_a_repair_gets_the_backup(tmp_path: Path) -> None:
    file = prepared(tmp_path)
    file.save(A)
    file.save(B)
    file.path.write_bytes(b"x")
    assert EpochFile(file.path).load_older() == A


def test_what_the_write_ahead_file_cannot_hold_is_saved_directly(tmp_path: Path) -> None:
    file = prepared(tmp_path)
    file.save_ahead(A)
    many = Epochs.of((each, each * 100_000) for each in range(1, 1_500))
    assert len(encode_epochs(many)) > CONTENT_BYTES_MAX
    file.save_ahead(many)
    assert (file.is_pending, loaded(file), in_main(file)) == (False, many, many)
    file = prepared(tmp_path)
    wal_of(file.path).unlink()
    file.save_ahead(many)
    assert (loaded(file), wal_of(file.path).exists()) == (many, False), "nothing is missed"


def test_without_a_write_ahead_file_saves_are_direct(tmp_path: Path) -> None:
    file = EpochFile(tmp_path / "epochFileCheckpoint")
    file.save_ahead(A)
    assert (file.is_pending, in_main(file)) == (False, A)
    file = prepared(tmp_path)
    wal_of(file.path).unlink()
    file.save_ahead(B)
    assert (file.is_pending, in_main(file), wal_of(file.path).exists()) == (False, B, True), "made again"
    file.save_ahead(C)
    assert (loaded(file), in_main(file)) == (C, B)


# -- failures ----------------------------------------------------------------------------------------------


@contextmanager
def failing(function: str) -> Iterator[None]:
    with patch(function, side_effect=OSError(errno.ENOSPC, "No space left on device")):
        yield


def test_a_finish_that_failed_is_done_by_the_next_save(tmp_path: Path) -> None:
    file = prepared(tmp_path)
    file.save(A)
    file.save_ahead(B)
    with failing("broker.ha.epoch_file.replace_file"):
        with pytest.raises(OSError, match="No space"):
            file.finish()
        assert file.is_pending
        with pytest.raises(OSError, match="No space"):
            file.save_ahead(C)
        assert loaded(file) == B, "the only durable copy was not overwritten"
    file.save_ahead(C)
    assert (in_main(file), loaded(file)) == (B, C)


def test_a_finish_whose_rename_may_not_be_durable_is_done_again(tmp_path: Path) -> None:
    """The file is B for everybody, and A after a power cut; a record over base B would be ignored then."""
    file = prepared(tmp_path)
    file.save(A)
    disk = StoreDisk(tmp_path)
    with disk.watched(After(1_000)):
        file.save_ahead(B)
        with failing("keelmq.runtime.durable_file.sync_directory"), pytest.raises(OSError, match="No space"):
            file.finish()
        assert in_main(file) == B
        file.save_ahead(C)
    for seed in range(8):
        left = disk.survivors_of_a_power_cut(tmp_path / f"left-{seed}", Random(seed))
        assert EpochFile(left / file.path.name).load() == C


def save_ahead_twice(file: EpochFile) -> None:
    file.save_ahead(B)
    file.save_ahead(C)


STEPS: list[tuple[Callable[[EpochFile], None], Epochs]] = [
    (lambda file: file.save_ahead(B), B),
    (save_ahead_twice, C),
    (lambda file: file.save(B), B),
    (lambda file: (file.save_ahead(B), file.finish())[0], B),
    (lambda file: (file.save_ahead(B), file.save(A), file.save_ahead(C))[0], C),
]


@pytest.mark.parametrize(("step", "end"), STEPS)
def test_a_failure_at_every_operation(tmp_path: Path, step: Callable[[EpochFile], None], end: Epochs) -> None:
    """Once more, and it is as if nothing had failed."""
    operation, failed = 0, True
    while failed:
        root = tmp_path / str(operation)
        file = prepared(root)
        file.save(A)
        disk, hook = StoreDisk(root), FailsOnce(operation)
        with disk.watched(hook):
            try:
                step(file)
            except OSError:
                assert loaded(file) in (A, B, end)
                step(file)
        assert loaded(file) == end
        for seed in range(4):
            left = disk.survivors_of_a_power_cut(tmp_path / f"{operation}-left-{seed}", Random(seed))
            assert EpochFile(left / file.path.name).load() == end
        operation, failed = operation + 1, hook.failed
    assert operation > 2


# -- crashes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "end"), STEPS)
@pytest.mark.parametrize("survival", range(4))  # 0: a kill; else a power cut, each time another one
def test_torn_away_at_every_operation(
    tmp_path: Path, step: Callable[[EpochFile], None], end: Epochs, survival: int
) -> None:
    operation, done = 0, False
    while not done:
        root, left = tmp_path / str(operation), tmp_path / f"{operation}-left"
        file = prepared(root)
        file.save(A)
        disk = StoreDisk(root)
        with disk.watched(After(operation)):
            try:
                step(file)
                done = True
            except Torn:
                pass
        if survival:
            disk.survivors_of_a_power_cut(left, Random(survival + 4 * operation))
        else:
            disk.survivors_of_a_kill(left)
        found = EpochFile(left / file.path.name).load()
        assert found == end if done else found in (A, B, end)
        again = prepared(left)
        again.finish()
        assert (loaded(again), in_main(again)) == (found, found)
        operation += 1
    assert operation > 2


def test_what_a_killed_process_did_not_sync_is_durable_once_it_is_used(tmp_path: Path) -> None:
    """Killed between pwrite and fdatasync; the next process finds B in the page cache, and acknowledges
    messages under it."""
    file = prepared(tmp_path)
    file.save(A)
    disk = StoreDisk(tmp_path)
    with disk.watched(After(1)), pytest.raises(Torn):
        file.save_ahead(B)
    assert loaded(file) == B
    with disk.watched(After(1_000)):
        prepared(tmp_path)
    for seed in range(8):
        left = disk.survivors_of_a_power_cut(tmp_path / f"left-{seed}", Random(seed))
        assert EpochFile(left / file.path.name).load() == B


def test_a_file_that_a_killed_process_renamed_is_durable_once_it_is_used(tmp_path: Path) -> None:
    """Killed between the rename and the sync of the directory."""
    file = prepared(tmp_path)
    file.save(A)
    disk = StoreDisk(tmp_path)

    def until_the_directory(operation: str, path: Path) -> None:
        if (operation, path) == ("fsync", tmp_path):
            raise Torn

    with disk.watched(until_the_directory), pytest.raises(Torn):
        file.save(B)
    assert in_main(file) == B
    with disk.watched(After(1_000)):
        prepared(tmp_path).finish()
    left = disk.survivors_of_a_power_cut(tmp_path / "left", Random(1))
    assert EpochFile(left / file.path.name).load() == B


def test_an_older_release_that_knows_no_record_is_not_overridden(tmp_path: Path) -> None:
    file = prepared(tmp_path)
    file.save(A)
    file.save_ahead(B)
    replace_file(file.path, encode_epochs(C))
    assert loaded(file) == C
