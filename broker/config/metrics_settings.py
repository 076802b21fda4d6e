"""MetricsSettings: how a broker exports metrics beside httpPort. A part of BrokerConfig.

Source: RocketMQ 5.3.3 BrokerConfig.
"""

import re
from typing import Any, Final

from pydantic import Field, field_validator

from keelmq.runtime.config import Config

PORT_MAX: Final = 65_535
DISABLE, PROM = "DISABLE", "PROM"
_TYPES: Final = {"0": DISABLE, "1": "OTLP_GRPC", "2": PROM, "3": "LOG"}
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")


class MetricsSettings(Config):
    """Names are RocketMQ's keys."""

    metrics_exporter_type: str = Field(
        DISABLE,
        description="PROM (2): metrics also at metricsPromExporterPort; DISABLE (0): at httpPort only; "
        "OTLP_GRPC and LOG are refused",
    )
    metrics_prom_exporter_port: int = Field(
        5557, ge=0, le=PORT_MAX, description="port of /, /metrics and /-/healthy with PROM; 0: any free one"
    )
    metrics_prom_exporter_host: str = Field("", description="its interface; empty: brokerIP1")
    metrics_label: str = Field("", description="labels that all metrics get in addition, k:v,k:v")
    metrics_exporter_compat: bool = Field(
        False, description="also the gauges of RocketMQ's stand-alone exporter, for its dashboards (ours)"
    )
    metrics_in_delta: bool = Field(False, description="only false: Prometheus reads totals")
    metrics_otel_cardinality_limit: int = Field(
        1_000,
        gt=0,
        le=50_000,
        description="series of one metric in one scrape (RocketMQ: 50000); those beyond it are counted by "
        "rocketmq_metrics_overflow_series",
    )

    @field_validator("metrics_exporter_type", mode="before")
    @classmethod
    def _known_type(cls, value: Any) -> str:
        name = _TYPES.get(str(value), str(value).upper())
        if name not in _TYPES.values():
            raise ValueError(f"must be one of {', '.join(_TYPES.values())}")
        if name not in (DISABLE, PROM):
            raise ValueError(f"{name} is not supported: use PROM, or /metrics at httpPort")
        return name

    @field_validator("metrics_in_delta")
    @classmethod
    def _no_deltas(cls, value: bool) -> bool:
        if value:
            raise ValueError("deltas are not supported: Prometheus reads totals")
        return value

    @field_validator("metrics_label")
    @classmethod
    def _check_label(cls, value: str) -> str:
        for part in filter(None, value.split(",")):
            name, separator, text = part.partition(":")
            if not separator or not _LABEL.match(name.strip()) or not text.strip():
                raise ValueError(f"{part!r} is not name:value")
        return value

    @property
    def more_labels(self) -> dict[str, str]:
        """Returns metricsLabel as names and values."""
        pairs = (part.partition(":") for part in self.metrics_label.split(",") if part)
        return {name.strip(): text.strip() for name, _, text in pairs}
