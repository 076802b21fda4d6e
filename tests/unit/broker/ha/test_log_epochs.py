"""LogEpochs: changes come into force when they are on disk, and never overtake each other."""

import asyncio
import errno
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

from broker.ha.core.epochs import Epochs
from broker.ha.epoch_file import EpochFile, decode_epochs
from broker.ha.log_epochs import LogEpochs
from tests.unit.broker.ha.test_ha_service import until

OLD, NEW = Epochs.of([(1, 0)]), Epochs.of([(1, 0), (2, 400)])


def log_epochs(tmp_path: Path) -> tuple[LogEpochs, list[Epochs]]:
    changes: list[Epochs] = []
    return LogEpochs(tmp_path / "epochFileCheckpoint", changes.append), changes


async def test_epochs_are_used_when_they_are_on_disk(tmp_path: Path) -> None:
    epochs, changes = log_epochs(tmp_path)
    await epochs.save(OLD)
    assert (epochs.now, changes) == (OLD, [OLD])
    assert EpochFile(epochs.path).load() == OLD


@pytest.mark.parametrize("order", [("write old", "write new"), ("write new", "write old")])
def test_the_version_asked_for_last_stays_whatever_thread_is_first(
    tmp_path: Path, order: tuple[str, str]
) -> None:
    """The thread of a link that has ended may still write when the next role has written its own epochs."""
    epochs, changes = log_epochs(tmp_path)
    old, new = epochs.begin_save(OLD), epochs.begin_save(NEW)
    steps = {"write old": old.write, "write new": new.write}
    for step in order:
        steps[step]()
    new.use()
    old.use()
    assert (epochs.now, changes, EpochFile(epochs.path).load()) == (NEW, [NEW], NEW)


async def test_epochs_that_cannot_be_written_are_not_used(tmp_path: Path) -> None:
    epochs, changes = log_epochs(tmp_path)
    await epochs.save(OLD)
    full = OSError(errno.ENOSPC, "No space left on device")
    with (
        patch("broker.ha.epoch_file.replace_file", side_effect=full),
        pytest.raises(OSError, match="No space"),
    ):
        await epochs.save(NEW)
    assert (epochs.now, changes) == (OLD, [OLD])


async def test_epochs_of_deleted_files_are_forgotten(tmp_path: Path) -> None:
    epochs, changes = log_epochs(tmp_path)
    await epochs.save(NEW)
    await epochs.drop_below(400)
    kept = Epochs.of([(2, 400)])
    assert (epochs.now, changes, EpochFile(epochs.path).load()) == (kept, [NEW, kept], kept)


async def test_what_is_forgotten_does_not_take_the_place_of_what_is_being_saved(tmp_path: Path) -> None:
    """The epoch of a promotion would be lost, on disk as well."""
    epochs, changes = log_epochs(tmp_path)
    await epochs.save(NEW)
    newer = NEW.append(3, 500)
    promotion = epochs.begin_save(newer)
    await epochs.drop_below(400)
    promotion.write()
    await epochs.drop_below(400)
    promotion.use()
    assert (epochs.now, changes, EpochFile(epochs.path).load()) == (newer, [NEW, newer], newer)
    await epochs.drop_below(400)
    assert epochs.now == Epochs.of([(2, 400), (3, 500)])


async def test_epochs_are_forgotten_after_a_save_that_failed(tmp_path: Path) -> None:
    epochs, _ = log_epochs(tmp_path)
    await epochs.save(NEW)
    full = OSError(errno.ENOSPC, "No space left on device")
    with patch.object(EpochFile, "save_ahead", side_effect=full), pytest.raises(OSError, match="No space"):
        await epochs.save(NEW.append(3, 500))
    await epochs.drop_below(400)
    assert epochs.now == Epochs.of([(2, 400)])


async def test_the_loop_runs_while_a_slow_disk_writes(tmp_path: Path) -> None:
    epochs, _ = log_epochs(tmp_path)
    loop, written = asyncio.get_running_loop(), asyncio.Event()

    def slow(*args: object, **kwargs: object) -> None:
        asyncio.run_coroutine_threadsafe(written.wait(), loop).result(timeout=10)

    with patch("broker.ha.epoch_file.replace_file", side_effect=slow):
        saving = asyncio.create_task(epochs.save(OLD))
        await asyncio.sleep(0)
        assert epochs.now == Epochs()
        written.set()  # only a loop that is not blocked gets here
        await saving
    assert epochs.now == OLD


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    epochs, _ = log_epochs(tmp_path)
    epochs.path.write_text("2\n7\n")
    epochs.load()
    assert epochs.fault is not None and "checksum" in epochs.fault


# -- the write-ahead file ----------------------------------------------------------------------------------


def in_main(epochs: LogEpochs) -> Epochs:
    return decode_epochs(epochs.path.read_bytes())


def is_in_main(epochs: LogEpochs, which: Epochs) -> bool:
    return epochs.path.exists() and in_main(epochs) == which


async def test_a_save_does_not_wait_for_the_epoch_file(tmp_path: Path) -> None:
    epochs, changes = log_epochs(tmp_path)
    epochs.load()
    await epochs.save(OLD)
    await epochs.finish()
    with patch("broker.ha.epoch_file.replace_file", side_effect=AssertionError("it is slow")):
        await epochs.save(NEW)
    assert (epochs.now, changes, in_main(epochs)) == (NEW, [OLD, NEW], OLD)
    assert EpochFile(epochs.path).load() == NEW
    await epochs.finish()
    assert in_main(epochs) == NEW


async def test_saves_are_finished_without_being_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.ha.log_epochs.FINISH_PERIOD_MS", 1)
    epochs, _ = log_epochs(tmp_path)
    epochs.load()
    task = asyncio.create_task(epochs.finish_forever())
    for each in (OLD, NEW):
        await epochs.save(each)
        await until(partial(is_in_main, epochs, each), "epoch file")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_full_disk_is_logged_once_and_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    epochs, _ = log_epochs(tmp_path)
    epochs.load()
    await epochs.save(OLD)
    full = OSError(errno.ENOSPC, "No space left on device")
    with patch("broker.ha.epoch_file.replace_file", side_effect=full):
        for _ in range(3):
            await epochs.finish()
        with pytest.raises(OSError, match="No space"):
            await epochs.save(NEW)
    assert [record.getMessage() for record in caplog.records] == [
        f"{epochs.path}.wal has the epochs, {epochs.path} cannot be written: {full}"
    ]
    assert (epochs.now, EpochFile(epochs.path).load()) == (OLD, OLD)
    await epochs.save(NEW)
    await epochs.finish()
    assert (epochs.now, in_main(epochs)) == (NEW, NEW)


def test_a_start_finishes_what_a_killed_broker_saved(tmp_path: Path) -> None:
    epochs, _ = log_epochs(tmp_path)
    epochs.load()
    epochs.begin_save(OLD).write()
    again, _ = log_epochs(tmp_path)
    again.load()
    assert (again.now, in_main(again)) == (OLD, OLD)


def test_a_start_on_a_full_disk_uses_what_a_killed_broker_saved(tmp_path: Path) -> None:
    epochs, _ = log_epochs(tmp_path)
    epochs.load()
    epochs.begin_save(OLD).write()
    again, _ = log_epochs(tmp_path)
    with patch("broker.ha.epoch_file.replace_file", side_effect=OSError(errno.ENOSPC, "No space")):
        again.load()
    assert (again.now, again.fault) == (OLD, None)
    again.begin_save(NEW).write()
    assert EpochFile(again.path).load() == NEW


def test_a_disk_too_full_for_a_write_ahead_file_is_no_reason_to_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    epochs, _ = log_epochs(tmp_path)
    with patch(
        "broker.ha.epoch_wal.replace_file", side_effect=OSError(errno.ENOSPC, "No space left on device")
    ):
        epochs.load()
    assert epochs.fault is None
    assert "Role changes take longer without this file" in caplog.text
    epochs.begin_save(OLD).write()
    assert in_main(epochs) == OLD


def test_epochs_that_may_not_be_durable_are_not_used(tmp_path: Path) -> None:
    """A killed broker wrote them, and the disk fails when they are synced."""
    epochs, _ = log_epochs(tmp_path)
    epochs.load()
    epochs.begin_save(OLD).write()
    again, _ = log_epochs(tmp_path)
    with patch("os.fsync", side_effect=OSError(errno.EIO, "Input/output error")):
        again.load()
    assert again.fault is not None
    assert "epochFileCheckpoint.wal: [Errno 5] Input/output error" in again.fault


def test_a_damaged_file_leaves_the_record_to_a_repair(tmp_path: Path) -> None:
    epochs, _ = log_epochs(tmp_path)
    epochs.load()
    epochs.begin_save(OLD).write()
    epochs.path.write_text("2\n7\n")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    again, _ = log_epochs(tmp_path)
    again.load()
    assert again.fault is not None and "checksum" in again.fault
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_version_that_was_overtaken_is_not_finished_over_the_later_one(tmp_path: Path) -> None:
    epochs, _ = log_epochs(tmp_path)
    epochs.load()
    old, new = epochs.begin_save(OLD), epochs.begin_save(NEW)
    new.write()
    old.write()
    asyncio.run(epochs.finish())
    assert in_main(epochs) == NEW
