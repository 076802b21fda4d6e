"""Metrics as tables, and a scrape of them for prometheus_client.

A program declares its metrics (name, meaning, labels) once; the scrape and docs/reference/metrics.md both
come from that table. Values are read from existing state at the scrape, so the data path does no extra work.
This module does not import prometheus_client: programs need it at their first scrape (families.py).
"""

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from keelmq.remoting.peer_limits import REASONS
from keelmq.runtime.histogram import Histogram
from keelmq.runtime.loop_watch import LoopWatch

if TYPE_CHECKING:
    from keelmq.remoting.servers.families import Family


class Metric(msgspec.Struct, frozen=True):
    """A counter if the name ends with _total, a histogram if is_histogram, else a gauge. `labels`: in
    addition to those of the whole table."""

    name: str
    meaning: str
    labels: tuple[str, ...] = ()
    is_histogram: bool = False

    @property
    def kind(self) -> str:
        """Returns "counter", "gauge" or "histogram"."""
        if self.is_histogram:
            return "histogram"
        return "counter" if self.name.endswith("_total") else "gauge"

    def samples(self) -> Mapping[str, tuple[str, ...]]:
        """Returns the names that a scrape shows, with the labels that each has in addition to the table's."""
        if not self.is_histogram:
            return {self.name: self.labels}
        return {
            self.name + "_bucket": (*self.labels, "le"),
            self.name + "_count": self.labels,
            self.name + "_sum": self.labels,
        }


class Table(msgspec.Struct, frozen=True):
    """Metrics that share their first labels."""

    title: str
    labels: tuple[str, ...]
    metrics: tuple[Metric, ...]


class Series(NamedTuple):
    """One series of a metric. labels: all values, the table's first. buckets: of a histogram, (upper bound,
    count up to it), the last one without a bound; value is the sum then."""

    labels: tuple[str, ...]
    value: float
    buckets: Sequence[tuple[float, int]] = ()


SERIES_MAX = 50_000
"""Series of one metric in one scrape, by default."""

OVERFLOW = Metric(
    "rocketmq_metrics_overflow_series",
    "series that a metric would have beyond metricsOtelCardinalityLimit; absent: all are shown",
    ("metric",),
)


class Scrape:
    """The values of one moment: add() them, then iterate over the families. Metrics without a value are
    absent."""

    def __init__(self, table: Table, labels: Sequence[str], limit: int = SERIES_MAX) -> None:
        """`labels`: the values of table.labels. limit: series of one metric, without one for all others."""
        self.limit = limit
        self.left_out: Counter[str] = Counter()
        """Series beyond the limit, by metric; left_out_of() adds to it."""
        assert len(labels) == len(table.labels), table.title
        self._table, self._labels = table, tuple(labels)
        self._metrics = {metric.name: metric for metric in table.metrics}
        self._series: dict[str, list[Series]] = {}

    def add(self, name: str, value: float, *labels: str) -> None:
        """Adds the value of a counter or gauge. `labels`: the values of the metric's own labels."""
        self._add(name, Series((*self._labels, *labels), value))

    def add_histogram(self, name: str, histogram: Histogram, *labels: str) -> None:
        """Adds the present counts of a histogram."""
        self.add_buckets(name, histogram.bounds, histogram.counts, histogram.total, *labels)

    def add_buckets(
        self, name: str, bounds: Sequence[float], counts: Sequence[int], total: float, *labels: str
    ) -> None:
        """Adds a histogram from its parts, as Histogram has them: one count per bucket, and one more for
        values above all bounds."""
        buckets = list(zip((*bounds, math.inf), accumulate(counts), strict=True))
        self._add(name, Series((*self._labels, *labels), total, buckets))

    def _add(self, name: str, series: Series) -> None:
        metric = self._metrics[name]
        assert len(series.labels) == len(self._labels) + len(metric.labels), name
        assert bool(series.buckets) == metric.is_histogram, name
        found = self._series.setdefault(name, [])
        if len(found) <= self.limit:
            found.append(series)
        else:
            self.left_out[name] += 1

    def add_left_out(self) -> None:
        """Adds OVERFLOW, as the last one."""
        for name, count in sorted(self.left_out.items()):
            self.add(OVERFLOW.name, count, name)

    def __iter__(self) -> "Iterator[Family]":
        # prometheus_client loads Python's HTTP server and client: 2 MB that only a scrape needs.
        from keelmq.remoting.servers.families import histogram_family, simple_family

        for name, series in self._series.items():
            metric = self._metrics[name]
            labels = (*self._table.labels, *metric.labels)
            if metric.is_histogram:
                yield histogram_family(name, metric.meaning, labels, series)
            else:
                rows = ((each.labels, each.value) for each in series)
                yield simple_family(metric.kind, name, metric.meaning, labels, rows)


class ScrapeCollector:
    """A collector for a prometheus registry: it calls `scrapes` anew each time. more_labels: of all samples
    (metricsLabel); a label that a sample has already keeps its value."""

    def __init__(
        self, scrapes: Callable[[], Iterable[Scrape]], more_labels: Mapping[str, str] | None = None
    ) -> None:
        self._scrapes, self._more_labels = scrapes, more_labels or {}

    def collect(self) -> "Iterator[Family]":
        """Reads the values, and returns the families of all scrapes, which any thread may make."""
        return _families(list(self._scrapes()), self._more_labels)


class SlicedCollector:
    """As ScrapeCollector, for values that are read in slices between which the event loop does other work."""

    def __init__(
        self,
        scrapes: Callable[[], Awaitable[Iterable[Scrape]]],
        more_labels: Mapping[str, str] | None = None,
    ) -> None:
        self._scrapes, self._more_labels = scrapes, more_labels or {}

    async def read(self) -> "Iterator[Family]":
        """As ScrapeCollector.collect()."""
        return _families(list(await self._scrapes()), self._more_labels)


def _families(scrapes: Sequence[Scrape], more: Mapping[str, str]) -> "Iterator[Family]":
    for scrape in scrapes:
        for family in scrape:
            if more:
                samples = family.samples
                family.samples = [each._replace(labels={**more, **each.labels}) for each in samples]
            yield family


class TelemetryCounts(Protocol):
    """The members of the writer in keelmq/remoting/telemetry.py that metrics read."""

    written_records: int
    written_bytes: int
    dropped_records: int
    fault: str | None


TELEMETRY_METRICS = (
    Metric("rocketmq_telemetry_records_total", "telemetry records written since the start"),
    Metric("rocketmq_telemetry_bytes_total", "bytes of telemetry written since the start"),
    Metric("rocketmq_telemetry_dropped_records_total", "telemetry records lost: a full queue or a full disk"),
    Metric("rocketmq_telemetry_fault", "1 while telemetry cannot be written, else 0"),
)


def add_telemetry(scrape: Scrape, writer: TelemetryCounts | None) -> None:
    """Adds TELEMETRY_METRICS. `writer` None: telemetry is switched off."""
    if writer is None:
        return
    scrape.add("rocketmq_telemetry_records_total", writer.written_records)
    scrape.add("rocketmq_telemetry_bytes_total", writer.written_bytes)
    scrape.add("rocketmq_telemetry_dropped_records_total", writer.dropped_records)
    scrape.add("rocketmq_telemetry_fault", writer.fault is not None)


class UnsentCounts(Protocol):
    """The members of WriteBuffers (keelmq/remoting/write_buffers.py) that metrics read."""

    held_bytes: int
    given_up: Counter[str]


def unsent_metrics(prefix: str) -> tuple[Metric, ...]:
    """Returns the metrics of a server's write buffers."""
    return (
        Metric(
            f"{prefix}_unsent_bytes",
            "bytes that wait in write buffers for clients to read them, as seen at most 5 s ago; "
            "above a limit the connections with the most are closed",
        ),
        Metric(
            f"{prefix}_unread_connections_total",
            "connections closed because the client did not read: stalled (nothing read for 30 s),  "
            "over_limit (too many unsent bytes), slow_close (still open 10 s after the close)",
            ("reason",),
        ),
    )


def add_unsent(scrape: Scrape, prefix: str, buffers: UnsentCounts) -> None:
    """Adds the values of unsent_metrics(prefix)."""
    scrape.add(f"{prefix}_unsent_bytes", buffers.held_bytes)
    for reason, count in sorted(buffers.given_up.items()):
        scrape.add(f"{prefix}_unread_connections_total", count, reason)


def loop_metrics(prefix: str) -> tuple[Metric, ...]:
    """Returns the metrics of the event loop of a process."""
    return (
        Metric(
            f"{prefix}_event_loop_lateness_seconds",
            "how late a timer of the event loop is, measured every 20 ms; requests wait for so long, too. "
            "Long ones without CPU time are a stopped process or a busy machine",
            is_histogram=True,
        ),
        Metric(
            f"{prefix}_event_loop_longest_stall_seconds",
            "the longest lateness of the last minute",
        ),
    )


def add_loop(scrape: Scrape, prefix: str, watch: LoopWatch | None) -> None:
    """Adds the values of loop_metrics(prefix), if this process measures them."""
    if watch is not None:
        scrape.add_histogram(f"{prefix}_event_loop_lateness_seconds", watch.lateness)
        scrape.add(f"{prefix}_event_loop_longest_stall_seconds", watch.longest_s)


class LimitCounts(Protocol):
    """The members of PeerLimits (keelmq/remoting/peer_limits.py) that metrics read."""

    partial_bytes: int
    refused_requests: int
    closed: Counter[str]


def limit_metrics(prefix: str) -> tuple[Metric, ...]:
    """Returns the metrics of the limits of all remoting ports of a process."""
    return (
        Metric(f"{prefix}_unfinished_frame_bytes", "received bytes of incomplete frames"),
        Metric(
            f"{prefix}_limited_connections_total",
            "connections refused or closed by a limit, of all remoting ports of this process: per_address "
            "(maxConnectionsPerAddress), total (maxConnections), evicted (not authenticated, closed for a "
            "new one at maxConnections), frame_bytes (no room for its frame), slow_frame "
            "(frameTimeoutMillis)",
            ("reason",),
        ),
        Metric(
            f"{prefix}_limited_requests_total",
            "requests refused because of unauthenticatedRequestsPerSecond",
        ),
    )


def add_limits(scrape: Scrape, prefix: str, limits: LimitCounts) -> None:
    """Adds the values of limit_metrics(prefix)."""
    scrape.add(f"{prefix}_unfinished_frame_bytes", limits.partial_bytes)
    for reason in REASONS:
        scrape.add(f"{prefix}_limited_connections_total", limits.closed[reason], reason)
    scrape.add(f"{prefix}_limited_requests_total", limits.refused_requests)


def documented(tables: Iterable[Table]) -> Mapping[str, tuple[str, frozenset[str]]]:
    """Returns {name of a sample: (kind, all labels)}: all samples that a scrape may show."""
    return {
        name: (metric.kind, frozenset((*table.labels, *labels)))
        for table in tables
        for metric in table.metrics
        for name, labels in metric.samples().items()
    }
