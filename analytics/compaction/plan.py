"""Which sources have lines that are not compacted yet, and from which byte on."""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from analytics.compaction.decode import INCOMPLETE, NEWER
from analytics.compaction.kept import kept_from
from analytics.compaction.manifest import (
    HOUR_MS,
    HourManifest,
    Source,
    manifest_hours,
    manifest_name,
    read_manifest,
)
from analytics.compaction.reading import head_digest
from analytics.compaction.scan import SourceFile, Sources
from analytics.compaction.storage import Storage
from keelmq.remoting.records import RECORD_VERSION

MANIFESTS_KEPT = 64


class Manifests:
    """The manifests of an output. MANIFESTS_KEPT stay in memory: one may name thousands of sources."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.hours = set(manifest_hours(storage))
        self.kept_from = kept_from(storage)
        """Earlier hours were deleted because of their age, and are not compacted again."""
        self._read: dict[int, HourManifest] = {}
        self._by_name: dict[int, dict[str, Source]] = {}
        self._home_of: dict[str, int] | None = None

    def get(self, hour_ts: int) -> HourManifest:
        """Returns the manifest; an empty one if there is none. Raises AnalyticsError if it is damaged."""
        if hour_ts not in self._read:
            if len(self._read) >= MANIFESTS_KEPT:
                oldest = next(iter(self._read))
                del self._read[oldest]
                self._by_name.pop(oldest, None)
            known = hour_ts in self.hours
            self._read[hour_ts] = (
                read_manifest(self._storage, hour_ts) if known else HourManifest(hour_ts=hour_ts)
            )
        return self._read[hour_ts]

    def source(self, hour_ts: int, path: str) -> Source | None:
        """Returns the source's entry in the hour's manifest."""
        if hour_ts not in self._by_name:
            self._by_name[hour_ts] = {each.path: each for each in self.get(hour_ts).sources}
        return self._by_name[hour_ts].get(path)

    def home_of(self, path: str) -> int | None:
        """Returns the home of a source whose path does not show it; None: it was never read."""
        if self._home_of is None:
            entries = ((hour, each) for hour in self.hours for each in self.get(hour).sources)
            self._home_of = {each.path: hour for hour, each in entries if each.home}
        return self._home_of.get(path)

    def commit(self, manifest: HourManifest) -> bool:
        """Writes the manifest; returns False if it is as it was. Raises OSError."""
        hour_ts = manifest.hour_ts
        if hour_ts in self.hours and self.get(hour_ts) == manifest:
            return False
        content = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        self._storage.replace(manifest_name(hour_ts), content + b"\n")
        self.hours.add(hour_ts)
        self._read[hour_ts] = manifest
        self._by_name.pop(hour_ts, None)
        return True


@dataclass(frozen=True, slots=True)
class Task:
    """Read `source` from the byte `start` on. `home_ts` None: unknown until it is read. `entry`: of the bytes
    before, in the home's manifest; None if `start` is 0."""

    source: SourceFile
    home_ts: int | None
    start: int
    entry: Source | None


def tasks_of(
    sources: Sources, manifests: Manifests, from_ts: int | None, to_ts: int | None
) -> Iterator[Task]:
    """Yields the sources that are new or changed, of hours that overlap [from_ts, to_ts) and are kept;
    sources outside of hourly folders always. A source with an OSError is a task, whose reading will fail."""
    from_ts = max(from_ts or 0, manifests.kept_from)
    for source in sorted(sources.files, key=by_home):
        home = source.home_ts
        if home is None:
            home = manifests.home_of(source.name)
        elif home + HOUR_MS <= from_ts or (to_ts is not None and home >= to_ts):
            continue
        entry = None if home is None else manifests.source(home, source.name)
        if entry is None or home is None or not entry.home:
            yield Task(source, home, 0, None)
            continue
        try:
            start = _start(source, home, entry, manifests)
        except OSError:
            start = 0
        if start is not None:
            yield Task(source, home, start, entry if start else None)


def by_home(source: SourceFile) -> tuple[bool, int]:
    """Sort and group key of sources: those of one hour are read together; those without an hour at the
    end."""
    return source.home_ts is None, source.home_ts or 0


def _start(source: SourceFile, home: int, entry: Source, manifests: Manifests) -> int | None:
    """Returns the first byte to read; None: nothing has changed.

    Read again as a whole are: a file with lines of a newer version than its reader knew, when this program
    knows it; one with lines of several hours, so that the counts of each are replaced; one that could not be
    read to its end; and one that grew although it seemed complete: it was being copied, and the half line at
    its end is complete now. A file that was only touched or copied again gets its new time into the manifest.
    """
    others = [hour for hour in entry.hours if hour != home and hour >= manifests.kept_from]
    if any(manifests.source(hour, source.name) is None for hour in others):
        return 0  # the manifest of that hour was deleted
    if entry.failed or (entry.bad.get(NEWER) and entry.record_version < RECORD_VERSION):
        return 0
    resumable = not others and not source.compression and source.home_ts is not None
    if source.size_bytes == entry.size_bytes:
        is_touched = source.modified_ns != entry.modified_ns
        if is_touched and not _same_head(source, entry):
            return 0
        is_whole = source.grows or source.compression or entry.error or entry.read_bytes >= entry.size_bytes
        if is_whole and not is_touched:
            return None
        return entry.read_bytes if resumable else 0  # at most a last line that is incomplete is left to read
    resumable = resumable and not entry.error and not entry.bad.get(INCOMPLETE)
    if source.size_bytes > entry.size_bytes and resumable and _same_head(source, entry):
        return entry.read_bytes
    return 0


def _same_head(source: SourceFile, entry: Source) -> bool:
    return head_digest(source, entry.size_bytes) == entry.head
