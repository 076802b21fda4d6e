"""A damaged or lost epoch file: replication stops and says why. No epoch goes back, and none is forgotten."""

import logging
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from broker.ha.core.epochs import Epochs
from broker.ha.epoch_file import EpochFile, EpochFileError, decode_epochs, encode_epochs
from broker.ha.epoch_wal import BODY, FILE_BYTES, HEAD, PAGE_BYTES, WAL_BYTES, wal_of
from broker.ha.log_epochs import LogEpochs
from keelmq.runtime.durable_file import backup_of
from tests.support.file_damage import DAMAGE, changed, content_of, put_back, times_of, tries

OLD, NEW = Epochs.of([(1, 0)]), Epochs.of([(1, 0), (2, 4_096)])
FLIPS = 150


def filled(path: Path, *, versions: int, finished: bool) -> None:
    file = EpochFile(path)
    file.prepare()
    for epochs in (OLD, NEW)[2 - versions :]:
        file.save_ahead(epochs)
    if finished:
        file.finish()


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("versions", [1, 2])
@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("part", ["file", "wal", "backup"])
def test_epochs_are_the_newest_or_a_fault(
    tmp_path: Path, part: str, kind: str, versions: int, finished: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "epochFileCheckpoint"
    filled(path, versions=versions, finished=finished)
    damaged = {"file": path, "wal": wal_of(path), "backup": backup_of(path)}[part]
    if not damaged.exists():
        return
    files, times = content_of(tmp_path), times_of(tmp_path)
    for dice in tries(kind, FLIPS):
        DAMAGE[kind](damaged, dice)
        epochs = LogEpochs(path, lambda epochs: None)
        with caplog.at_level(logging.ERROR):
            epochs.load()
        if epochs.fault is None:
            assert epochs.now == NEW
        else:
            assert str(path) in epochs.fault and "keelmq repair" in epochs.fault
            assert epochs.fault in caplog.text
        put_back(tmp_path, files, times)


def bad_copies(raw: bytes) -> Iterator[bytes]:
    """The write-ahead file with any bit of a record's copy flipped, or with any of its pages zeroed."""
    size = HEAD.size + BODY.size + len(encode_epochs(NEW))
    for at in (*range(size), *range(WAL_BYTES, WAL_BYTES + size)):
        yield raw[:at] + bytes([raw[at] ^ 1 << at % 8]) + raw[at + 1 :]
    for at in range(0, FILE_BYTES, PAGE_BYTES):
        yield raw[:at] + bytes(PAGE_BYTES) + raw[at + PAGE_BYTES :]


@pytest.mark.parametrize("versions", [1, 2])
def test_a_version_that_is_in_the_write_ahead_file_only_survives_there(
    tmp_path: Path, versions: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A crash within a second after an election, and a bad disk."""
    path = tmp_path / "epochFileCheckpoint"
    filled(path, versions=versions, finished=False)
    files, times = content_of(tmp_path), times_of(tmp_path)
    for content in bad_copies(files[wal_of(path).name]):
        changed(wal_of(path), content)
        assert EpochFile(path).load() == NEW
        epochs = LogEpochs(path, lambda epochs: None)
        epochs.load()
        assert epochs.now == NEW and epochs.fault is None
        assert EpochFile(path).load() == NEW, "it is in the epoch file now"
        put_back(tmp_path, files, times)
    assert "its second copy is used" in caplog.text


@pytest.mark.parametrize("versions", [1, 2])
def test_a_truncated_write_ahead_file_is_a_fault_if_it_may_have_had_a_version(
    tmp_path: Path, versions: int
) -> None:
    path = tmp_path / "epochFileCheckpoint"
    filled(path, versions=versions, finished=False)
    files, times = content_of(tmp_path), times_of(tmp_path)
    raw = files[wal_of(path).name]
    end = HEAD.size + BODY.size + len(encode_epochs(NEW))
    for size in range(end):
        changed(wal_of(path), raw[:size])
        epochs = LogEpochs(path, lambda epochs: None)
        epochs.load()
        assert (
            epochs.fault is not None and "was truncated" in epochs.fault and "keelmq repair" in epochs.fault
        )
        if versions == 2:
            assert f"{path} has the version before" in epochs.fault
            assert EpochFile(path).load_older() == OLD
        put_back(tmp_path, files, times)
    EpochFile(path).save(NEW)  # what a repair does
    assert EpochFile(path).load() == NEW


@pytest.mark.parametrize("versions", [0, 1, 2])
def test_a_lost_write_ahead_file_is_a_fault_until_the_epochs_are_written_again(
    tmp_path: Path, versions: int
) -> None:
    """What a killed broker leaves, and a disk loses."""
    path = tmp_path / "epochFileCheckpoint"
    filled(path, versions=versions, finished=False)
    wal_of(path).unlink()
    for _ in range(2):
        epochs = LogEpochs(path, lambda epochs: None)
        epochs.load()
        assert epochs.fault is not None and "epochFileCheckpoint.wal is lost" in epochs.fault
        assert (f"{path} has the version before" in epochs.fault) == (versions == 2)
    EpochFile(path).save(NEW)  # what a repair does
    assert EpochFile(path).load() == NEW


async def test_a_write_ahead_file_that_is_lost_after_a_clean_stop_is_not_missed(tmp_path: Path) -> None:
    path = tmp_path / "epochFileCheckpoint"
    epochs = LogEpochs(path, lambda epochs: None)
    epochs.load()
    await epochs.save(OLD)
    await epochs.save(NEW)
    await epochs.close()
    wal_of(path).unlink()
    again = LogEpochs(path, lambda epochs: None)
    again.load()
    assert (again.now, again.fault) == (NEW, None)


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("part", ["file", "wal"])
async def test_a_version_ahead_is_put_into_the_file_whatever_is_damaged_meanwhile(
    tmp_path: Path, part: str, kind: str
) -> None:
    path = tmp_path / "epochFileCheckpoint"
    for dice in tries(kind, 20):
        epochs = LogEpochs(path, lambda epochs: None)
        epochs.load()
        await epochs.save(OLD)
        await epochs.finish()
        await epochs.save(NEW)
        DAMAGE[kind](path if part == "file" else wal_of(path), dice)
        await epochs.close()
        assert decode_epochs(path.read_bytes()) == NEW and EpochFile(path).load() == NEW


async def test_a_stop_that_cannot_write_the_file_leaves_the_version_ahead(tmp_path: Path) -> None:
    path = tmp_path / "epochFileCheckpoint"
    epochs = LogEpochs(path, lambda epochs: None)
    epochs.load()
    await epochs.save(NEW)
    with patch("broker.ha.epoch_file.replace_file", side_effect=OSError("No space left on device")):
        await epochs.close()
    assert EpochFile(path).load() == NEW
    wal_of(path).unlink()
    with pytest.raises(EpochFileError, match="is lost"):
        EpochFile(path).load()


def test_a_truncated_write_ahead_file_without_a_version_is_no_fault(tmp_path: Path) -> None:
    """That of an earlier release is shorter, too; such a release removed the first copy alone."""
    path = tmp_path / "epochFileCheckpoint"
    filled(path, versions=2, finished=False)
    pending = wal_of(path).read_bytes()
    EpochFile(path).finish()
    removed = wal_of(path).read_bytes()
    for size in (*range(1, 100), WAL_BYTES, FILE_BYTES - 1):
        changed(wal_of(path), removed[:size])
        assert EpochFile(path).load() == NEW
    EpochFile(path).save(OLD)
    changed(wal_of(path), removed[:WAL_BYTES] + pending[WAL_BYTES:])
    assert EpochFile(path).load() == OLD, "the second copy does not come back"
    changed(wal_of(path), pending[:WAL_BYTES])
    assert EpochFile(path).load() == NEW, "a pending version of an earlier release"


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_while_the_broker_runs_is_overwritten(tmp_path: Path, kind: str) -> None:
    """The file is read at the start only."""
    path = tmp_path / "epochFileCheckpoint"
    filled(path, versions=1, finished=True)
    epochs = LogEpochs(path, lambda epochs: None)
    epochs.load()
    for dice in tries(kind, 20):
        DAMAGE[kind](path, dice)
        newest = epochs.now.append(epochs.now.last_epoch + 1, epochs.now.pairs[-1][1] + 1)
        save = epochs.begin_save(newest)
        save.write()
        save.use()
        assert EpochFile(path).load() == newest
        EpochFile(path).finish()
        assert EpochFile(path).load() == newest
