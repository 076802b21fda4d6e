"""Series of a scrape as families of prometheus_client. Imported at the first scrape: see metrics.py."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.utils import floatToGoString

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily

_SIMPLE: Final[Mapping[str, type[CounterMetricFamily | GaugeMetricFamily]]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
}


def simple_family(
    kind: str, name: str, meaning: str, labels: Sequence[str], series: Iterable[tuple[Sequence[str], float]]
) -> Family:
    """Returns a family of kind "counter" or "gauge". series: values of the labels, and the value."""
    family = _SIMPLE[kind](name, meaning, labels=labels)
    for values, value in series:
        family.add_metric(values, value)
    return family


def histogram_family(
    name: str,
    meaning: str,
    labels: Sequence[str],
    series: Iterable[tuple[Sequence[str], float, Sequence[tuple[float, int]]]],
) -> Family:
    """Returns a histogram. series: values of the labels, the sum, and (upper bound, count up to it) of each
    bucket."""
    family = HistogramMetricFamily(name, meaning, labels=labels)
    for values, total, buckets in series:
        edges = map(floatToGoString, (bound for bound, _ in buckets))
        counts = (count for _, count in buckets)
        family.add_metric(values, list(zip(edges, counts, strict=True)), total)
    return family
