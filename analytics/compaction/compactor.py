"""Compaction: new lines of telemetry are merged into the hours that they belong to.

Compaction adds new lines to the rows in an hour's parts and removes none, whatever the order of the sources,
and even if sources are deleted meanwhile. So an hour costs its new lines and one pass over its rows, and the
result depends on the set of lines alone.

A source belongs to the hour of its folder, its home, whose manifest says how far it was read. Lines of other
hours are written to those first, so a crash in between costs a second reading, never a line.
"""

import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from analytics.compaction.columns import KINDS, TABLES_OF
from analytics.compaction.decode import BAD_LISTED_MAX
from analytics.compaction.lock import locked
from analytics.compaction.manifest import COMPACTED, HOUR_MS, Counts, HourManifest, Part, Source, folder_of
from analytics.compaction.merge import Accumulator
from analytics.compaction.parquet import read_parts, write_parts
from analytics.compaction.plan import Manifests, Task, by_home, tasks_of
from analytics.compaction.reading import ReadResult, read_lines
from analytics.compaction.reports import bad_line_totals, write_bad_lines, write_not_read
from analytics.compaction.scan import NotRead, Sources
from analytics.compaction.storage import TEMPORARY, Storage, open_storage
from analytics.compaction.sweep import sweep
from analytics.compaction.times import Times, TimesReader
from analytics.errors import AnalyticsError
from keelmq.remoting.records import RECORD_VERSION
from keelmq.runtime.clock import wall_ms

MEMORY_BYTES = 512 << 20
MEMORY_BYTES_MIN = 64 << 20
_WAITING_SHARE, _LOAD_SHARE = 8, 12
"""Rows that wait to be sorted take 1/8 of the memory: sorting holds three copies of them, and Python, pyarrow
and the Parquet writers need 200 MB."""

Progress = Callable[[str], None]


@dataclass(slots=True)
class _Read:
    """A task, and the result of reading it."""

    task: Task
    result: ReadResult
    rows: Counter[int]
    """By hour."""
    home_ts: int = 0


@dataclass(slots=True)
class _Hour:
    """What is new in an hour, by kind: parts, number of records, and the times of their writers."""

    parts: dict[str, dict[str, list[Part]]] = field(default_factory=dict)
    records: dict[str, int] = field(default_factory=dict)
    times: dict[str, Times] = field(default_factory=dict)


def compact(
    sources: Sources,
    out: str,
    *,
    progress: Progress = lambda _: None,
    memory_bytes: int = MEMORY_BYTES,
    from_ts: int | None = None,
    to_ts: int | None = None,
    wall_clock: Callable[[], int] = wall_ms,
) -> list[HourManifest]:
    """Compacts what is new; returns the manifests of the hours that changed, by hour.

    `from_ts`, `to_ts`: only sources of hours that overlap this span are read. Raises AnalyticsError if the
    output cannot be written, or another compaction is running: every hour is then as it was, or complete.
    """
    try:
        with (
            _system_memory(),
            open_storage(out) as storage,
            locked(storage),
            _work_folder(storage) as folder,
        ):
            compaction = _Compaction(storage, folder, progress, max(memory_bytes, MEMORY_BYTES_MIN))
            compaction.run(sources, from_ts, to_ts)
            sweep(storage, compaction.manifests, wall_clock())
            return [compaction.manifests.get(hour) for hour in sorted(compaction.changed)]
    except OSError as error:
        raise AnalyticsError(
            f"cannot write {error.filename or out}: {error.strerror or error}; what was compacted before "
            "remains, and the next run continues"
        ) from error


class _Compaction:
    def __init__(self, storage: Storage, folder: Path, progress: Progress, memory_bytes: int) -> None:
        self.manifests, self.changed = Manifests(storage), set[int]()
        self._storage, self._folder, self._progress = storage, folder, progress
        self._memory_bytes = memory_bytes
        self._not_read: list[NotRead] = []
        self._too_old = 0

    def run(self, sources: Sources, from_ts: int | None, to_ts: int | None) -> None:
        self._not_read = list(sources.not_read)
        tasks = list(tasks_of(sources, self.manifests, from_ts, to_ts))
        self._progress(f"{sources}, {len(tasks)} of them new or grown")
        for _, some in groupby(tasks, key=lambda task: by_home(task.source)):
            self._compact(list(some))
        for each in write_not_read(self._storage, self._not_read):
            self._progress(each)
        for each in bad_line_totals(map(self.manifests.get, sorted(self.changed))):
            self._progress(each)
        if self._too_old:
            day = folder_of(self.manifests.kept_from).partition("/")[0].removeprefix("dt=")
            self._progress(f"left out: {self._too_old:,} rows from before {day}, which --keep-days deleted")

    def _compact(self, tasks: Sequence[Task]) -> None:
        """Compacts sources of one home, or those without."""
        reads: list[_Read] = []
        hours: defaultdict[int, _Hour] = defaultdict(_Hour)
        for kind in KINDS:
            mine = [task for task in tasks if task.source.kind == kind]
            waiting = _Waiting(kind, self._folder, self._memory_bytes // _WAITING_SHARE)
            reads += [read for task in mine if (read := self._read(task, waiting)) is not None]
            for hour_ts in waiting.hours():
                self._merge(hour_ts, kind, waiting, hours[hour_ts])
        for read in reads:
            known = read.task.home_ts
            read.home_ts = known if known is not None else min(read.rows, default=0)
        homes = {read.home_ts for read in reads}
        others = {hour for read in reads for hour in read.rows if hour != read.home_ts}
        for hour_ts in sorted(others):
            self._commit(hour_ts, hours[hour_ts], [read for read in reads if read.home_ts != hour_ts])
        for hour_ts in sorted(homes):
            self._commit(hour_ts, hours[hour_ts], reads)

    def _read(self, task: Task, waiting: "_Waiting") -> _Read | None:
        rows: Counter[int] = Counter()

        def add(table: pa.Table) -> None:
            for hour_ts, some in by_hour(table):
                if hour_ts < self.manifests.kept_from:
                    self._too_old += len(some)
                    continue
                rows[hour_ts] += len(some)
                waiting.add(hour_ts, some)

        try:
            return _Read(task, read_lines(task.source, task.start, add), rows)
        except OSError as error:
            if waiting.failed:
                raise
            self._not_read.append(NotRead(task.source.path, error.strerror or str(error)))
            return None

    def _merge(self, hour_ts: int, kind: str, waiting: "_Waiting", hour: _Hour) -> None:
        for rows in read_parts(self._storage, kind, self.manifests.get(hour_ts).parts):
            waiting.add(hour_ts, rows)
        merged = waiting.take(hour_ts, self._memory_bytes // _LOAD_SHARE)
        times = TimesReader()
        hour.parts[kind], hour.records[kind] = write_parts(
            self._storage, self._folder, kind, hour_ts, merged, times.add
        )
        hour.times[kind] = times.times()

    def _commit(self, hour_ts: int, hour: _Hour, reads: Iterable[_Read]) -> None:
        before = self.manifests.get(hour_ts)
        entries = {each.path: each for each in before.sources}
        new = [_entry(read, hour_ts) for read in reads if read.home_ts == hour_ts or read.rows[hour_ts]]
        entries |= {each.path: each for each in new}
        sources = [entries[path] for path in sorted(entries)]
        parts = dict(before.parts)
        for kind, of_kind in hour.parts.items():
            parts = {name: some for name, some in parts.items() if name not in TABLES_OF[kind]} | of_kind
        manifest = HourManifest(
            hour_ts=hour_ts,
            parts={name: parts[name] for name in sorted(parts)},
            counts=_counts(before.counts, hour.records, sources),
            sources=sources,
            times={
                kind: times for kind, times in sorted((before.times | hour.times).items()) if times != Times()
            },
        )
        write_bad_lines(self._storage, manifest)
        if self.manifests.commit(manifest):
            self.changed.add(hour_ts)
            rows = ", ".join(f"{each.rows:,} {kind}" for kind, each in manifest.counts.items() if each.rows)
            self._progress(f"{folder_of(hour_ts)}: {len(new)} files read; {rows or 'no rows'}")


class _Waiting:
    """The rows of a kind that wait to be merged, by hour, within a number of bytes."""

    def __init__(self, kind: str, folder: Path, bytes_max: int) -> None:
        self._kind, self._folder, self._bytes_max = kind, folder, bytes_max
        self._hours: dict[int, Accumulator] = {}
        self.failed = False
        """A temporary file could not be written."""

    def add(self, hour_ts: int, rows: pa.Table) -> None:
        hour = self._hours.get(hour_ts)
        if hour is None:
            name = f"{self._kind}-{hour_ts}"
            hour = self._hours[hour_ts] = Accumulator(self._kind, self._folder, name)
        hour.add(rows)
        if sum(each.nbytes for each in self._hours.values()) > self._bytes_max:
            try:
                max(self._hours.values(), key=lambda each: each.nbytes).spill()
            except OSError:
                self.failed = True
                raise

    def hours(self) -> list[int]:
        return sorted(self._hours)

    def take(self, hour_ts: int, load_bytes: int) -> Iterator[pa.Table]:
        return self._hours.pop(hour_ts).sorted_rows(load_bytes)


def by_hour(rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yields (ms at which the hour begins, its rows)."""
    found = pc.min_max(rows["ts"]).as_py()
    first, last = found["min"] // HOUR_MS, found["max"] // HOUR_MS
    if first == last:
        yield first * HOUR_MS, rows
        return
    hours = pc.divide(rows["ts"], HOUR_MS)
    for hour in sorted(hours.unique().to_pylist()):
        yield hour * HOUR_MS, rows.filter(pc.equal(hours, hour))


def _entry(read: _Read, hour_ts: int) -> Source:
    source, old, result = read.task.source, read.task.entry, read.result
    entry = Source(
        path=source.name,
        kind=source.kind,
        size_bytes=source.size_bytes,
        modified_ns=source.modified_ns,
        read_bytes=result.read_bytes,
        head=result.head,
        rows=read.rows[hour_ts],
        home=False,
    )
    if read.home_ts != hour_ts:
        return entry
    bad = result.bad + Counter(old.bad if old is not None else {})
    listed = [*(old.bad_lines if old is not None else ()), *result.bad_lines][:BAD_LISTED_MAX]
    return replace(
        entry,
        home=True,
        rows=entry.rows + (old.rows if old is not None else 0),
        hours=sorted({*read.rows, *(old.hours if old is not None else ())}),
        bad=dict(sorted(bad.items())),
        bad_lines=listed,
        error=result.error,
        failed=result.failed,
        record_version=RECORD_VERSION,
    )


def _counts(
    before: Mapping[str, Counts], records: Mapping[str, int], sources: Iterable[Source]
) -> dict[str, Counts]:
    lines: Counter[str] = Counter()
    bad: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for source in sources:
        lines[source.kind] += source.rows
        bad[source.kind].update(source.bad)
    counts = {}
    for kind in KINDS:
        rows = records.get(kind, before[kind].rows if kind in before else 0)
        if kind in lines or rows:
            counts[kind] = Counts(
                rows=rows,
                duplicates=max(0, lines[kind] - rows),
                bad_lines=dict(sorted(bad[kind].items())),
            )
    return counts


@contextmanager
def _system_memory() -> Iterator[None]:
    """Lets pyarrow allocate with malloc. Measured: its default returns memory to the operating system all the
    time and asks for it again, which costs a seventh of the CPU time and 50 MB more."""
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)


@contextmanager
def _work_folder(storage: Storage) -> Iterator[Path]:
    """Yields a local folder for files that are not complete; deletes those of runs that were killed."""
    near = storage.work_folder()
    if near is not None:
        near = near / COMPACTED
        for old in near.glob(f"{TEMPORARY}*"):
            shutil.rmtree(old, ignore_errors=True)
        for old in (near / "manifest").glob(f"{TEMPORARY}*"):
            old.unlink(missing_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=near))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
