"""Metrics as tables, and a scrape of them for prometheus_client.

A program declares its metrics (name, meaning, labels) once: the scrape and docs/metrics.md both come from
that table. Values are read at the scrape, from existing state: the data path does no extra work.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.utils import floatToGoString

from keelmq.runtime.histogram import Histogram

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


@dataclass(frozen=True, slots=True)
class Metric:
    """A counter if the name ends with _total, a histogram if it says so, else a gauge. `labels`: beside those
    of the whole table."""

    name: str
    meaning: str
    labels: tuple[str, ...] = ()
    is_histogram: bool = False

    @property
    def kind(self) -> str:
        if self.is_histogram:
            return "histogram"
        return "counter" if self.name.endswith("_total") else "gauge"

    def samples(self) -> Mapping[str, tuple[str, ...]]:
        """The names that a scrape shows, with the labels that each has beside the table's."""
        if not self.is_histogram:
            return {self.name: self.labels}
        return {
            self.name + "_bucket": (*self.labels, "le"),
            self.name + "_count": self.labels,
            self.name + "_sum": self.labels,
        }


@dataclass(frozen=True, slots=True)
class Table:
    """Metrics that share their first labels."""

    title: str
    labels: tuple[str, ...]
    metrics: tuple[Metric, ...]


class Scrape:
    """The values of one moment: add() them, then iterate over the families. What has no value is absent."""

    def __init__(self, table: Table, labels: Sequence[str]) -> None:
        """`labels`: the values of table.labels."""
        assert len(labels) == len(table.labels), table.title
        self._table, self._labels = table, list(labels)
        self._metrics = {metric.name: metric for metric in table.metrics}
        self._families: dict[str, Family] = {}

    def add(self, name: str, value: float, *labels: str) -> None:
        family = self._family(name, labels)
        assert not isinstance(family, HistogramMetricFamily), name
        family.add_metric([*self._labels, *labels], value)

    def add_histogram(self, name: str, histogram: Histogram, *labels: str) -> None:
        self.add_buckets(name, histogram.bounds, histogram.counts, histogram.total, *labels)

    def add_buckets(
        self, name: str, bounds: Sequence[float], counts: Sequence[int], total: float, *labels: str
    ) -> None:
        """As Histogram has them: each count of its own bucket, one more for what is above all bounds."""
        family = self._family(name, labels)
        assert isinstance(family, HistogramMetricFamily), name
        edges = [*map(floatToGoString, bounds), "+Inf"]
        buckets = list(zip(edges, accumulate(counts), strict=True))
        family.add_metric([*self._labels, *labels], buckets, total)

    def _family(self, name: str, labels: Sequence[str]) -> Family:
        metric = self._metrics[name]
        assert len(labels) == len(metric.labels), name
        family = self._families.get(name)
        if family is None:
            names = (*self._table.labels, *metric.labels)
            family = self._families[name] = _MAKERS[metric.kind](name, metric.meaning, labels=names)
        return family

    def __iter__(self) -> Iterator[Family]:
        return iter(self._families.values())


_MAKERS: Mapping[str, Callable[..., Family]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


class ScrapeCollector:
    """What a prometheus registry calls: the families of `scrapes()`, made anew each time."""

    def __init__(self, scrapes: Callable[[], Iterable[Scrape]]) -> None:
        self._scrapes = scrapes

    def collect(self) -> Iterator[Family]:
        for scrape in self._scrapes():
            yield from scrape


class TelemetryCounts(Protocol):
    """keelmq/remoting/telemetry.py's writer, as far as metrics need it."""

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
    """None: telemetry is switched off."""
    if writer is None:
        return
    scrape.add("rocketmq_telemetry_records_total", writer.written_records)
    scrape.add("rocketmq_telemetry_bytes_total", writer.written_bytes)
    scrape.add("rocketmq_telemetry_dropped_records_total", writer.dropped_records)
    scrape.add("rocketmq_telemetry_fault", writer.fault is not None)


class UnsentCounts(Protocol):
    """keelmq/remoting/write_buffers.py, as far as metrics need it."""

    held_bytes: int
    given_up: Counter[str]


def unsent_metrics(prefix: str) -> tuple[Metric, ...]:
    """Of the connections of a server."""
    return (
        Metric(
            f"{prefix}_unsent_bytes",
            "bytes that wait in write buffers for clients to read them, as seen at most 5 s ago; "
            "above a limit the connections with most are closed",
        ),
        Metric(
            f"{prefix}_unread_connections_total",
            "connections closed because the client did not read: stalled (nothing taken for 30 s), "
            "over_limit (too many unsent bytes), slow_close (not gone 10 s after the close)",
            ("reason",),
        ),
    )


def add_unsent(scrape: Scrape, prefix: str, buffers: UnsentCounts) -> None:
    scrape.add(f"{prefix}_unsent_bytes", buffers.held_bytes)
    for reason, count in sorted(buffers.given_up.items()):
        scrape.add(f"{prefix}_unread_connections_total", count, reason)


def documented(tables: Iterable[Table]) -> Mapping[str, tuple[str, frozenset[str]]]:
    """{name of a sample: (kind, all labels)}: what a scrape may show."""
    return {
        name: (metric.kind, frozenset((*table.labels, *labels)))
        for table in tables
        for metric in table.metrics
        for name, labels in metric.samples().items()
    }
