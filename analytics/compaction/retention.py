"""Deletes sources whose lines are all in durable, readable parts."""

from collections.abc import Callable

from analytics.compaction.lock import locked
from analytics.compaction.manifest import HOUR_MS, Source
from analytics.compaction.parquet import verify_part
from analytics.compaction.plan import Manifests, by_home
from analytics.compaction.scan import SourceFile, Sources
from analytics.compaction.storage import Storage, open_storage
from analytics.errors import AnalyticsError
from keelmq.runtime.clock import wall_ms

LATE_MS = 10 * 60_000
"""An hour counts as closed this long after its end."""


def delete_sources(
    sources: Sources,
    out: str,
    *,
    progress: Callable[[str], None] = lambda _: None,
    wall_clock: Callable[[], int] = wall_ms,
) -> int:
    """Deletes the compacted sources of closed hours; returns their number. Call it after compact().

    Kept are: files that grow or changed since they were read, files outside of hourly folders, and files with
    bad lines or damage, as evidence. Raises AnalyticsError if `out` cannot be read or another compaction is
    running.
    """
    closed_ts = wall_clock() - LATE_MS - HOUR_MS
    deleted = 0
    with open_storage(out) as storage, locked(storage):
        manifests = Manifests(storage)
        verified: dict[int, str] = {}
        for source in sorted(sources.files, key=by_home):
            if source.home_ts is None or source.home_ts > closed_ts or source.grows:
                continue
            entry = manifests.source(source.home_ts, source.name)
            if entry is None or not _is_compacted(source, entry, manifests):
                continue
            for hour_ts in entry.hours:
                if hour_ts not in verified:
                    verified[hour_ts] = _wrong_parts(storage, manifests, hour_ts)
                    if verified[hour_ts]:
                        progress(f"its sources are kept: {verified[hour_ts]}")
            if any(verified[hour_ts] for hour_ts in entry.hours):
                continue
            try:
                deleted += source.delete()
            except OSError as error:
                raise AnalyticsError(
                    f"cannot delete {source.path}: {error.strerror or error}; {deleted} sources were deleted"
                ) from error
    return deleted


def _is_compacted(source: SourceFile, entry: Source, manifests: Manifests) -> bool:
    is_whole = bool(source.compression) or entry.read_bytes == entry.size_bytes
    is_same = (entry.size_bytes, entry.modified_ns) == (source.size_bytes, source.modified_ns)
    is_clean = entry.home and not entry.error and not entry.bad
    return (
        is_whole
        and is_same
        and is_clean
        and all(
            manifests.source(hour_ts, source.name) is not None
            for hour_ts in entry.hours
            if hour_ts >= manifests.kept_from
        )
    )


def _wrong_parts(storage: Storage, manifests: Manifests, hour_ts: int) -> str:
    """Returns what is wrong with the parts of an hour; "": nothing."""
    for parts in manifests.get(hour_ts).parts.values():
        for part in parts:
            if wrong := verify_part(storage, part):
                return f"{part.path}: {wrong}"
    return ""
