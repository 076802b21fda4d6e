"""The live tables on an engine without streams: the same functions over the new bytes, every few seconds.

    OUT/live/position.json     the bytes that the tables have, and their status; written after each batch

After a kill, the process continues behind the last batch in position.json. It reads the bytes of the next
batch again, with those that came since, as a batch of the same number, which replaces the files that were
left.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from analytics.live.following import Following
from analytics.live.positions import Positions, ranges
from analytics.live.publish import LiveRun, line_of
from analytics.live.tables import Status
from keelmq.runtime.clock import now_ms, wall_ms
from keelmq.runtime.durable_file import replace_file

POSITION = "position.json"


class Position(msgspec.Struct, frozen=True):
    """After a batch: `positions`, as Positions.to_json() has them, and the status of the tables."""

    positions: dict[str, Any]
    status: Status


class LiveLoop:
    """The batches of one directory, one after the other."""

    def __init__(
        self,
        spark: SparkSession,
        telemetry: Path,
        out: Path,
        *,
        every_ms: int,
        following: Following | None = None,
        wall_clock: Callable[[], int] = wall_ms,
    ) -> None:
        self._following = following or Following(telemetry)
        self._path = out / "live" / POSITION
        known = _read(self._path)
        self._at = self._following.first() if known is None else Positions.of_json(known.positions)
        status = Status() if known is None else known.status
        self._next = status.batch + 1
        self._run = LiveRun(spark, telemetry, out, every_ms=every_ms, status=status, wall_clock=wall_clock)

    def step(self) -> tuple[Status | None, bool]:
        """Processes the new bytes; returns the status, None if there were no new bytes, and whether some are
        left, because a batch has a largest size."""
        end = self._following.after(self._at)
        batch = list(ranges(self._at, end))
        status = None
        if batch:
            status = self._run.take(batch, self._next)
            self._next += 1
        if end != self._at:
            self._at = end
            if status is not None:
                position = Position(end.to_json(), status)
                replace_file(self._path, msgspec.json.encode(position), keep_backup=False)
        return status, self._following.is_full(batch)


def run_loop(
    spark: SparkSession,
    telemetry: Path,
    out: Path,
    *,
    trigger_s: float,
    stopped: threading.Event,
    progress: Callable[[str], None],
) -> None:
    """Runs until `stopped` is set; a batch that has begun is finished."""
    loop = LiveLoop(spark, telemetry, out, every_ms=round(trigger_s * 1_000))
    due_ms = now_ms()
    while not stopped.is_set():
        status, has_more = loop.step()
        if status is not None:
            progress(line_of(status))
        due_ms = now_ms() if has_more else max(due_ms + round(trigger_s * 1_000), now_ms())
        stopped.wait((due_ms - now_ms()) / 1_000)


def _read(path: Path) -> Position | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Position)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None  # as lost: the first batch begins with the hour before, and replaces all tables
