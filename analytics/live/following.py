"""What a batch reads next: the bytes that growing files have gained since positions that are known."""

from collections.abc import Sequence
from pathlib import Path

from analytics.live.files import GrowingFiles
from analytics.live.positions import Positions, Range, advance, followed_from, ranges
from keelmq.runtime.clock import wall_ms

HOUR_MS = 3_600_000
BATCH_BYTES_MAX = 64 << 20
"""About 300,000 samples: the backlog of a stop is read in pieces of this size."""
HOURS_BEFORE = 1
"""A first batch begins with this many hours before the current one: the page shows the last hour, and each
hour begins with the controllers' snapshots."""


class Following:
    """The files below one directory. `hour`: the current one since 1970, instead of the clock's."""

    def __init__(self, directory: Path, *, bytes_max: int = BATCH_BYTES_MAX, hour: int | None = None) -> None:
        self._files, self._bytes_max, self._hour = GrowingFiles(directory), bytes_max, hour

    def first(self) -> Positions:
        """Returns the positions before the first batch."""
        return Positions(self._now() - HOURS_BEFORE, {})

    def after(self, start: Positions, *, bytes_max: int | None = None) -> Positions:
        """Returns the positions after the next batch; each ends a line. `bytes_max`: instead of the usual."""
        hour = self._now()
        sizes = self._files.whole_lines(followed_from(start, hour), hour + 1)
        end = advance(start, sizes, hour=hour, bytes_max=self._bytes_max if bytes_max is None else bytes_max)
        cut = {
            each.name: self._files.cut(each.name, each.start, each.end)
            for each in ranges(start, end)
            if each.end < sizes[each.name]
        }
        return Positions(end.from_hour, {**end.files, **cut})

    def is_full(self, batch: Sequence[Range]) -> bool:
        """Returns whether a batch was cut at its largest size, so that more is there already."""
        return sum(each.size for each in batch) >= self._bytes_max // 2

    def _now(self) -> int:
        return wall_ms() // HOUR_MS if self._hour is None else self._hour
