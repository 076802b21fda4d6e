"""LogEpochs: changes come into force when they are on disk, and never overtake each other."""

import asyncio
import errno
from pathlib import Path
from unittest.mock import patch

import pytest

from broker.ha.core.epochs import Epochs
from broker.ha.epoch_file import EpochFile
from broker.ha.log_epochs import LogEpochs

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
