"""A damaged or lost epoch file: replication stops and says why. No epoch goes back, and none is forgotten."""

import logging
from pathlib import Path

import pytest

from broker.ha.core.epochs import Epochs
from broker.ha.epoch_file import EpochFile
from broker.ha.epoch_wal import wal_of
from broker.ha.log_epochs import LogEpochs
from keelmq.runtime.durable_file import backup_of
from tests.support.file_damage import DAMAGE, content_of, put_back, times_of, tries

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
            is_torn = part == "wal" and not finished  # as after a power cut: no term began with it
            assert epochs.now == NEW or (is_torn and epochs.now in (OLD, Epochs()))
        else:
            assert str(path) in epochs.fault and "keelmq repair" in epochs.fault
            assert epochs.fault in caplog.text
        put_back(tmp_path, files, times)


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
