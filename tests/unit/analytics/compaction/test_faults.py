"""Compaction that is killed, or whose disk is full, at each of its file operations."""

import errno
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from analytics.errors import AnalyticsError
from keelmq.remoting.records import HaSample, ReplicaSample
from tests.support.slices import ALL
from tests.unit.analytics.compaction.model import HOUR, contents, file_of, run, table_rows, write

EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir"}
STEP = 1 if ALL else 7
"""Without --all, every seventh change."""


class Killed(BaseException):
    """Nothing that the process does afterwards has an effect either."""


@dataclass
class Fault:
    """The changes below `root` from number `at` on do not happen; with a full disk, deleting does."""

    root: str
    at: int
    error: type[BaseException]
    count: int = 0

    def change(self, *, grows: bool = True) -> None:
        self.count += 1
        if self.count < self.at:
            return
        if self.error is Killed:
            raise Killed
        if grows:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.root)


_active: list[Fault] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not _active or event not in EVENTS or not arguments or not isinstance(arguments[0], str | os.PathLike):
        return
    is_change = event != "open" or arguments[2] & (os.O_CREAT | os.O_WRONLY)
    if is_change and os.fspath(arguments[0]).startswith(_active[0].root):
        _active[0].change(grows=event in ("open", "os.mkdir"))


@cache
def _install_hook() -> None:
    """Once, and not at import: every process that collects the tests would have the hook to its end."""
    sys.addaudithook(_hook)


@contextmanager
def fault(root: Path, at: int, error: type[BaseException]) -> Iterator[Fault]:
    """Audit hooks see what Python does with files, and the patched functions what pyarrow and fsync do."""
    _install_hook()
    found = Fault(str(root), at, error)
    write_table = pq.ParquetWriter.write_table

    def written(self: Any, *arguments: Any, **options: Any) -> None:
        found.change()
        write_table(self, *arguments, **options)

    def synced(descriptor: int) -> None:
        found.change()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pq.ParquetWriter, "write_table", written)
        patch.setattr(os, "fsync", synced)
        _active.append(found)
        try:
            yield found
        finally:
            _active.clear()


def sample(at: int) -> HaSample:
    replicas = (ReplicaSample(broker_id=2, ack_offset=at, lag_ms=0, in_sync=True),)
    return HaSample(
        ts=HOUR + at,
        cluster_name="c",
        broker_name="b",
        broker_id=1,
        role="master" if at % 3 else "slave",
        master_epoch=1,
        max_offset=at,
        confirm_offset=at,
        replicas=replicas,
    )


def prepared(tmp_path: Path) -> tuple[Path, Path]:
    """Returns telemetry, and an output of some of it: more lines, a late file and another hour are new."""
    root, out = tmp_path / "in", tmp_path / "out"
    write(root, [sample(at) for at in range(6)], "n-1.jsonl.open")
    run(root, out)
    path = file_of(root, "ha_sample", "n-1.jsonl.open")
    more = tmp_path / "more"
    write(more, [sample(at) for at in (6, 7, 3_600_001, -1)])
    with path.open("ab") as file:
        file.write(next(more.rglob("*.jsonl")).read_bytes() + b"[]\n")
    write(root, [sample(at) for at in (2, 8, 9)], "late-2.jsonl")
    write(root, [sample(3_600_000 + at) for at in (2, 8, 9)], "n-3.jsonl", HOUR + 3_600_000)
    return root, out


def operations(root: Path, before: Path, out: Path) -> int:
    """Returns how many changes a run makes in a copy of `before`."""
    shutil.copytree(before, out)
    with fault(out, sys.maxsize, Killed) as found:
        run(root, out)
    return found.count


@pytest.mark.slow
@pytest.mark.parametrize("error", [Killed, OSError])
def test_a_fault_at_every_step(tmp_path: Path, error: type[BaseException]) -> None:
    root, before = prepared(tmp_path)
    complete = tmp_path / "complete"
    count = operations(root, before, complete)
    assert count > 60
    wanted, old = contents(complete), rows_of(before)
    for at in range(1, count + 1, STEP):
        out = tmp_path / f"out-{at}"
        shutil.copytree(before, out)
        with fault(out, at, error):
            if error is Killed:
                with pytest.raises(Killed):
                    run(root, out)
            else:
                full(root, out)
        assert old <= rows_of(out) <= rows_of(complete)
        run(root, out)
        assert contents(out) == wanted
        assert not list(out.rglob(".tmp-*"))
        shutil.rmtree(out)


def rows_of(out: Path) -> set[str]:
    """Returns what readers see: the rows of the parts that manifests name."""
    return {f"{name} {row}" for name, rows in table_rows(out).items() for row in rows}


def full(root: Path, out: Path) -> None:
    """The disk is full: one line says so; at the very end nothing is left to write."""
    try:
        run(root, out)
    except AnalyticsError as error:
        assert "No space left on device" in str(error) and "\n" not in str(error)
