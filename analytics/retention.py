"""Deletes data older than --keep-days: compacted hours and their roll-ups, of which pages are made.

Kept data begins at a day, UTC, that only moves forward; the day is written to OUT/compacted/kept_from.json
before anything is deleted. A process that is killed in between leaves manifests or files of days before it:
no reader uses them, and the next run deletes them. Compaction neither reads telemetry of those days again nor
takes such lines from files of later hours. The tables of a run (membership, totals, fail-overs) begin there,
too.
"""

import re
from collections.abc import Callable, Iterator, Sequence

import pyarrow.fs as pa_fs

from analytics.compaction.kept import keep_from, kept_from
from analytics.compaction.lock import locked
from analytics.compaction.manifest import COMPACTED, MANIFESTS, HourManifest, folder_of, hour_of
from analytics.compaction.storage import open_storage
from analytics.errors import AnalyticsError
from analytics.rollup.outliers import outliers_of
from analytics.rollup.store import MANIFESTS as ROLLUP_MANIFESTS
from analytics.rollup.store import ROLLUP, RollupStore

DAY_MS = 86_400_000
_DAY = re.compile(r"dt=(\d{4}-\d\d-\d\d)(?:-hour=\d\d)?", re.ASCII)


def prune(
    out: str,
    manifests: Sequence[HourManifest],
    *,
    keep_days: int,
    now_ms: int,
    progress: Callable[[str], None] = lambda _: None,
) -> int:
    """Deletes the days before the newest `keep_days` with data; returns the first moment that is kept.

    `out`: a directory or a URL. `manifests`: of all hours. Hours of wrong clocks do not count as the newest.
    Raises AnalyticsError if something cannot be deleted, or another compaction is running.
    """
    system, root = RollupStore(out).place_of_files
    with open_storage(out) as storage, locked(storage):
        from_ts = max(kept_from(storage), _wanted(manifests, keep_days, now_ms))
        if from_ts <= 0:
            return 0
        old = [each for each in manifests if each.hour_ts < from_ts and each.parts]
        if old:
            rows = sum(each.rows for each in old)
            first, last = (_day_of(each.hour_ts) for each in (old[0], old[-1]))
            progress(
                f"--keep-days {keep_days}: deleting {len(old)} hours, {rows:,} rows, of {first} to {last}; "
                "totals and membership begin after them"
            )
        try:
            keep_from(storage, from_ts)
            for each in _older(system, root, from_ts):
                delete(system, each)
        except OSError as error:
            raise AnalyticsError(
                f"cannot change {error.filename or out}: {error.strerror or error}; the next run tries again"
            ) from error
    return from_ts


def _wanted(manifests: Sequence[HourManifest], keep_days: int, now_ms: int) -> int:
    """Returns the first moment to be kept; 0: there is nothing yet."""
    right = {each.hour_ts for each in manifests if each.rows} - outliers_of(manifests, now_ms).keys()
    newest = max(right, default=0)
    return max(0, newest // DAY_MS * DAY_MS - (keep_days - 1) * DAY_MS)


def _older(system: pa_fs.FileSystem, root: str, from_ts: int) -> Iterator[pa_fs.FileInfo]:
    """Yields manifests first, then roll-ups, then folders of parts: a manifest never names a deleted part."""

    def below(path: str) -> list[pa_fs.FileInfo]:
        infos = system.get_file_info(pa_fs.FileSelector(path, allow_not_found=True))
        return sorted(infos, key=lambda each: each.path)

    def folders(path: str) -> list[str]:
        return [each.path for each in below(path) if each.type == pa_fs.FileType.Directory]

    tables = [window for table in folders(f"{root}/{ROLLUP}") for window in folders(table)]
    for folder in (
        f"{root}/{MANIFESTS}",
        f"{root}/{ROLLUP_MANIFESTS}",
        *tables,
        *folders(f"{root}/{COMPACTED}"),
    ):
        yield from (each for each in below(folder) if _is_older(each.base_name, from_ts))


def delete(system: pa_fs.FileSystem, info: pa_fs.FileInfo) -> None:
    """Deletes a file, or a folder with all that is in it. Raises OSError."""
    if info.type == pa_fs.FileType.Directory:
        system.delete_dir(info.path)
    else:
        system.delete_file(info.path)


def _is_older(name: str, from_ts: int) -> bool:
    match = _DAY.match(name)
    return match is not None and hour_of(match[1], "00") < from_ts


def _day_of(hour_ts: int) -> str:
    return folder_of(hour_ts).partition("/")[0].removeprefix("dt=")
