"""Random hours of samples as compacted Parquet, with their manifests; rolled up once for all tests."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from analytics.compaction.manifest import HourManifest, Part, folder_of
from analytics.rollup.run import roll_up
from analytics.tables import CONSUMER_LAG, CONTROLLER_EVENT, MASTER_SAMPLE, REPLICA_SAMPLE, Table
from tests.spark.model_samples import HOUR_MS, Life, Row, mark_stale

GROUPS, HOURS = 12, 3
BASE_MS = 5_000


@dataclass(frozen=True)
class Compacted:
    """`masters` and `replicas` with is_stale. `manifests`: by hour."""

    out: Path
    masters: list[Row]
    replicas: list[Row]
    consumers: list[Row]
    manifests: list[HourManifest]


def write_part(out: Path, table: Table, rows: Sequence[Row], name: str = "1") -> Part:
    """Writes the rows of an hour, in the table's order."""
    rows = sorted(rows, key=lambda row: tuple(row[column] for column in table.key))
    path = Path("compacted", table.name, folder_of(rows[0]["ts"]), f"{name}.parquet")
    (out / path).parent.mkdir(parents=True, exist_ok=True)
    plain = [{key: value for key, value in row.items() if key in table.schema.names} for row in rows]
    pq.write_table(pa.Table.from_pylist(plain, table.schema), out / path, compression="zstd")
    times = [row["ts"] for row in rows]
    size = (out / path).stat().st_size
    return Part(path=str(path), rows=len(rows), size_bytes=size, min_ts=min(times), max_ts=max(times))


def write_hours(out: Path, rows: dict[Table, list[Row]]) -> list[HourManifest]:
    hours: dict[int, dict[str, list[Part]]] = {}
    for table, every in rows.items():
        for hour_ts in sorted({row["ts"] // HOUR_MS * HOUR_MS for row in every}):
            of_hour = [row for row in every if row["ts"] // HOUR_MS * HOUR_MS == hour_ts]
            hours.setdefault(hour_ts, {})[table.name] = [write_part(out, table, of_hour)]
    return [HourManifest(hour_ts=hour_ts, parts=parts) for hour_ts, parts in sorted(hours.items())]


@pytest.fixture(scope="session")
def compacted(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Compacted:
    out = tmp_path_factory.mktemp("rollup")
    lives = [Life(seed, HOURS) for seed in range(GROUPS)]
    masters = [row for life in lives for row in life.masters]
    replicas = [row for life in lives for row in life.replicas]
    events = [row for life in lives for row in life.events]
    consumers = [row for life in lives for row in life.consumers]
    manifests = write_hours(
        out,
        {MASTER_SAMPLE: masters, REPLICA_SAMPLE: replicas, CONTROLLER_EVENT: events, CONSUMER_LAG: consumers},
    )
    assert roll_up(spark, str(out), manifests, base_ms=BASE_MS) == [each.hour_ts for each in manifests]
    return Compacted(
        out,
        mark_stale(masters, masters, events),
        mark_stale(replicas, masters, events),
        consumers,
        manifests,
    )


def read_rollup(out: Path, table: str, window_ms: int) -> list[dict[str, Any]]:
    paths = sorted((out / "rollup" / table / f"window={window_ms}").rglob("*.parquet"))
    return [row for path in paths for row in pq.ParquetFile(path).read().to_pylist()]


def contents(out: Path) -> dict[str, bytes]:
    root = out / "rollup"
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
