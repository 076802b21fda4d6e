"""Reads page files: the index of the fleet, a group's history, and series cut to a time.

A group is found by its exact name in the index, and only names that this module makes become paths. Decoded
indexes are kept by generation. Safe to call from several threads.
"""

import threading
from pathlib import Path
from typing import Any

import msgspec

from keelmq.web.live_reader import LiveFiles
from keelmq.web.page_files import (
    CURRENT,
    GENERATION_NAME,
    GROUP,
    INDEX,
    PAGES,
    PAGES_VERSION,
    POINTS_MAX,
    STEP_MS,
    Current,
    Index,
    Series,
    choose_resolution,
    cut,
    escaped,
    series_files,
)
from keelmq.web.reading import PageFileError, decoded, read_bytes, read_unpacked

__all__ = ["Generation", "NoPagesError", "PageFileError", "PageFiles", "RangeError", "UnknownGroupError"]

DEFAULT_MS = 24 * STEP_MS["hour"]


class NoPagesError(Exception):
    """There are no page files yet."""


class UnknownGroupError(Exception):
    """The index has no such group."""


class RangeError(Exception):
    """No series can be given for this time."""


class Generation(msgspec.Struct, frozen=True):
    """`packed_index`: index.json.gz as it is."""

    current: Current
    directory: Path
    packed_index: bytes
    index: Index
    names: frozenset[tuple[str, str]]


class GroupAnswer(msgspec.Struct, kw_only=True):
    """A group with one series: what the HTTP server answers, and what a report holds.

    `group`: group.json. `finest_ms`: the step of the finest series that this run has.
    """

    v: int = PAGES_VERSION
    generated_ts: int
    interval_ms: int | None
    from_ts: int
    to_ts: int
    finest_ms: int
    group: Any
    series: Series


class PageFiles:
    """The page files below one output directory of analytics."""

    def __init__(self, output_dir: Path) -> None:
        self._output_dir = output_dir
        self._lock = threading.Lock()
        self._known: Generation | None = None
        self.live = LiveFiles(output_dir)

    def generation(self) -> Generation:
        """Returns the newest generation. Raises NoPagesError or PageFileError."""
        path = self._output_dir / CURRENT
        try:
            current = decoded(path, path.read_bytes(), Current)
        except FileNotFoundError:
            raise NoPagesError(str(path)) from None
        except OSError as error:
            raise PageFileError(f"cannot read {path}: {error.strerror}") from None
        with self._lock:
            if self._known is None or self._known.current != current:
                self._known = self._read(current)
            return self._known

    def group(
        self,
        generation: Generation,
        cluster: str,
        broker: str,
        *,
        from_ts: int | None = None,
        to_ts: int | None = None,
        step_ms: int = 0,
    ) -> GroupAnswer:
        """Returns the group with the finest series of at least `step_ms` that fits; without a time, of the
        last day. Raises UnknownGroupError, RangeError or PageFileError."""
        if (cluster, broker) not in generation.names:
            raise UnknownGroupError(f"{cluster}/{broker}")
        index, live = generation.index, self.live.head()
        minutes = None
        if live is not None and live.data_to_ts > index.to_ts:
            minutes = self.live.series(live, cluster, broker, from_ts or 0)
        is_newer = minutes is not None
        data_to_ts = live.data_to_ts if live is not None and is_newer else index.to_ts
        after = data_to_ts + 1
        end = after if to_ts is None else to_ts
        start = min(end, after) - DEFAULT_MS if from_ts is None else from_ts
        if start >= end:
            raise RangeError(f"from ({start}) must be before to ({end})")
        # Time without data has no points: it is cut off before the resolution is chosen.
        start, end = max(start, index.from_ts), min(end, after)
        if start >= end:
            raise RangeError(f"there is data from {index.from_ts} to {data_to_ts} only")
        resolution = choose_resolution(index, start, end, step_ms)
        if resolution is None:
            raise RangeError(f"{POINTS_MAX} points of the widest step do not reach: ask for a shorter time")
        directory = generation.directory / "groups" / escaped(cluster) / escaped(broker)
        newest = minutes if is_newer and resolution == "minute" else None
        series = _series(directory, resolution, start, end, newest)
        return GroupAnswer(
            generated_ts=live.computed_ts if live is not None and is_newer else index.generated_ts,
            interval_ms=index.interval_ms,
            from_ts=index.from_ts,
            to_ts=data_to_ts,
            finest_ms=index.detail_ms or STEP_MS["minute"],
            group=msgspec.Raw(read_unpacked(directory / GROUP)),
            series=series,
        )

    def _read(self, current: Current) -> Generation:
        if current.v != PAGES_VERSION:
            raise PageFileError(
                f"{CURRENT} has version {current.v}, this release reads version {PAGES_VERSION}; compute it "
                "again with this release"
            )
        directory = self._output_dir / PAGES / str(current.generation)
        packed_index = read_bytes(directory / INDEX)
        index = decoded(directory / INDEX, read_unpacked(directory / INDEX, packed_index), Index)
        names = frozenset((each.cluster_name, each.broker_name) for each in index.groups)
        return Generation(current, directory, packed_index, index, names)


def generations(output_dir: Path) -> list[int]:
    """Returns the generations that have a folder, oldest first."""
    names = [path.name for path in (output_dir / PAGES).glob("*") if GENERATION_NAME.fullmatch(path.name)]
    return sorted(map(int, names))


def _series(directory: Path, resolution: str, from_ts: int, to_ts: int, newest: Series | None) -> Series:
    found = []
    for name in series_files(resolution, from_ts, to_ts):
        path = directory / name
        if path.exists():
            found.append(decoded(path, read_unpacked(path), Series))
    if (
        newest is not None
        and newest.start_ts < to_ts
        and newest.start_ts + newest.count * newest.step_ms > from_ts
    ):
        found.append(newest)
    if not found:
        raise RangeError(f"this group has no {resolution} series in this time")
    return cut(found, from_ts, to_ts)
