"""Metric families as Prometheus text, for the transfer from a worker to the supervisor: JSON has neither
infinity nor NaN."""

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector


@dataclass(frozen=True, slots=True)
class _Families(Collector):
    families: list[Metric]

    def collect(self) -> list[Metric]:
        return self.families


def to_text(families: Iterable[Metric]) -> str:
    """Returns Prometheus text."""
    return generate_latest(_Families(list(families))).decode()


def to_families(text: str) -> list[Metric]:
    """Returns the families of Prometheus text. Raises ValueError."""
    return list(text_string_to_metric_families(text))
