"""Suite analytics: what the job costs, in CPU seconds of Java and Python together.

On the engine of this Python environment: the embedded one of .venv, or Spark of .venv-spark.

job_fixed_cpu_s: the whole job on the JSON lines of three groups, as a demo leaves them, from an empty output
to pages. The others begin with compacted rows: `--rows N` is the number of master_sample rows of the small
input; replica rows are twice as many, the large input has five times as many of both. lag_vs_duckdb: the
table lag, of minutes and hours, written by a warm session, against DuckDB's answer to the same question from
the same files.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.bench.native import BenchError
from tests.bench.report import Measurement, Results
from tests.spark.programs import EMBEDDED, names

ROWS = 1_080_000
GROUPS = 100
ROWS_PER_HOUR = GROUPS * 3_600
TIMES = 5
GROUPS_OF_DEMO = 3
FIXED_CPU_S_MAX = 5.0 if EMBEDDED in names() else 25.0
CPU_S_PER_MILLION_MAX = 3.0 if EMBEDDED in names() else 6.0
PEAK_GIB_MAX = 4.0
SCALE_MAX = 5.5
LAG_ONLY = "lag-only"
"""The folder for the table lag alone, below that of the compacted rows."""

_LAG = """
WITH samples AS (FROM read_parquet('{files}')),
began AS (SELECT cluster_name, broker_name, ts // 3600000 AS hour, master_epoch, min(ts) AS began_ts
          FROM samples GROUP BY ALL),
ended AS (SELECT * EXCLUDE began_ts,
                 min(began_ts) OVER (PARTITION BY cluster_name, broker_name, hour ORDER BY master_epoch DESC
                                     ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS stale_from_ts
          FROM began),
kept AS (SELECT samples.*, ts // 60000 AS minute, max_offset - confirm_offset AS lag_bytes
         FROM samples LEFT JOIN ended ON samples.cluster_name = ended.cluster_name
           AND samples.broker_name = ended.broker_name AND samples.ts // 3600000 = ended.hour
           AND samples.master_epoch = ended.master_epoch
         WHERE ts < coalesce(stale_from_ts, ts + 1) AND confirm_offset <= max_offset),
once AS (SELECT cluster_name, broker_name, minute, floor(log2(lag_bytes + 1) * 8)::SMALLINT AS b,
                floor(log2(lag_ms + 1) * 8)::SMALLINT AS m, count(*) AS n,
                max(greatest(lag_bytes, lag_bytes_max)) AS worst_b,
                max(greatest(lag_ms, lag_ms_max)) AS worst_m
         FROM kept GROUP BY ALL),
listed AS (SELECT cluster_name, broker_name, minute, 2 AS unit, unnest(lag_us) AS each FROM kept UNION ALL
           SELECT cluster_name, broker_name, minute, 3, unnest(confirm_us) FROM kept),
minutes AS (
    SELECT cluster_name, broker_name, minute, 0 AS unit, b AS bucket, sum(n) AS n, max(worst_b) AS worst
    FROM once GROUP BY ALL UNION ALL
    SELECT cluster_name, broker_name, minute, 1, m, sum(n), max(worst_m) FROM once GROUP BY ALL UNION ALL
    SELECT cluster_name, broker_name, minute, unit, each.bucket, sum(each.n), NULL FROM listed GROUP BY ALL),
counted AS (SELECT cluster_name, broker_name, width, minute // width AS place, unit, bucket, sum(n) AS n,
                   max(worst) AS worst
            FROM minutes, (VALUES (1), (60)) AS _(width) GROUP BY ALL),
ranked AS (SELECT *, sum(n) OVER (series ORDER BY bucket) AS up_to, sum(n) OVER series AS total FROM counted
           WINDOW series AS (PARTITION BY cluster_name, broker_name, width, place, unit))
SELECT cluster_name, broker_name, width, place, unit, max(total) AS total, max(worst) AS worst,
       min(bucket) FILTER (up_to * 100 >= total * 50) AS p50,
       min(bucket) FILTER (up_to * 100 >= total * 95) AS p95,
       min(bucket) FILTER (up_to * 100 >= total * 99) AS p99
FROM ranked GROUP BY ALL
"""


@dataclass(frozen=True)
class Took:
    """Of one process."""

    cpu_s: float
    peak_kib: int


def run(rows: int = ROWS) -> Results:
    from tests.bench.analytics_rows import write_hours
    from tests.spark.histories import random_history, write_telemetry

    hours = max(rows // ROWS_PER_HOUR, 1)
    with tempfile.TemporaryDirectory(prefix="keelmq-bench-") as name:
        demo, small, large = (Path(name, size) for size in ("demo", "small", "large"))
        for seed in range(GROUPS_OF_DEMO):
            write_telemetry(demo / f"node-{seed}" / "telemetry", random_history(seed).records())
        counts = [write_hours(small, groups=GROUPS, hours=hours)]
        counts.append(write_hours(large, groups=GROUPS, hours=hours * TIMES))
        nothing = Path(name, "nothing")
        (nothing / "telemetry" / "ha_sample").mkdir(parents=True)
        (nothing / "telemetry" / "ha_sample" / "empty.jsonl").touch()
        environ = dict(os.environ)
        fixed = _job(environ, str(demo), str(Path(name, "out")))
        first, second = (_job(environ, str(nothing), str(out)) for out in (small, large))
        spark_s, duckdb_s = _job(environ, "--lag", str(small)).cpu_s, _duckdb_s(small)
    million = (second.cpu_s - fixed.cpu_s) / (counts[1] / 1e6)
    scale, peak = second.cpu_s / first.cpu_s, second.peak_kib / (1 << 20)
    return {
        "job_fixed_cpu_s": _against(fixed.cpu_s, "CPU s", FIXED_CPU_S_MAX),
        "job_cpu_s_per_million": _against(million, "CPU s", CPU_S_PER_MILLION_MAX),
        "peak_gib": _against(peak, "GiB", PEAK_GIB_MAX),
        "scale_5x": _against(scale, "times", SCALE_MAX),
        "lag_vs_duckdb": Measurement(spark_s, "CPU s", duckdb_s, spark_s / duckdb_s),
    }


def _against(value: float, unit: str, limit: float) -> Measurement:
    return Measurement(value, unit, limit, value / limit)


def _job(environ: Mapping[str, str], *arguments: str) -> Took:
    return Took(**json.loads(_run(environ, "-m", "tests.bench.analytics_job", *arguments).splitlines()[-1]))


def _run(environ: Mapping[str, str], *arguments: str) -> str:
    """Returns what a Python program printed."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=dict(environ), stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise BenchError(f"{' '.join(command)} ended with {done.returncode}")
    return done.stdout


def _duckdb_s(out: Path) -> float:
    """CPU seconds of the second time."""
    import duckdb

    query = _LAG.format(files=out / "compacted" / "master_sample" / "**" / "*.parquet")
    with duckdb.connect(config={"threads": 2}) as connection:
        connection.execute("SET enable_progress_bar = false")
        for _ in range(2):
            before = time.process_time()
            connection.execute(f"CREATE OR REPLACE TEMP TABLE lag AS {query}")
            took = time.process_time() - before
        _check(out, connection)
    return took


def _check(out: Path, connection: object) -> None:
    """Both found the same windows and the same numbers of samples."""
    theirs = connection.sql("SELECT count(*), sum(total) FROM lag WHERE unit = 0").fetchall()  # type: ignore[attr-defined]
    files = f"{out}/{LAG_ONLY}/**/*.parquet"
    ours = connection.sql(f"SELECT count(*), sum(samples) FROM read_parquet('{files}')").fetchall()  # type: ignore[attr-defined]
    if ours != theirs:
        raise BenchError(f"Spark found {ours} windows and samples, DuckDB {theirs}")
