"""Compacted rows for the suite analytics: hours of busy broker groups at 1 Hz, with and without fail-overs.

DuckDB makes the numbers from hashes, so that equal options give equal rows; pyarrow writes the files as
compaction does.
"""

from pathlib import Path

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from analytics.compaction.manifest import COMPACTED, HourManifest, Part, folder_of, manifest_name
from analytics.compaction.storage import open_storage
from analytics.tables import MASTER_SAMPLE, REPLICA_SAMPLE, Table

HOUR_MS = 3_600_000
FIRST_HOUR_TS = 1_767_225_600_000
REPLICAS = 2
DELTA = ("ts", "max_offset", "confirm_offset", "ack_offset")

_MASTERS = """
SELECT 'KeelCluster' AS cluster_name, printf('group-%05d', g) AS broker_name,
       {hour} + s * 1000 + h % 7 AS ts,
       CASE WHEN g % 10 = 0 AND s >= 1800 THEN 2 ELSE 1 END AS broker_id,
       CASE WHEN g % 10 = 0 AND s >= 1800 THEN 8 ELSE 7 END AS master_epoch,
       {hour} // 1000 * 65536 + s * 65536 AS max_offset,
       max_offset - lag_bytes AS confirm_offset,
       CASE WHEN lag_bytes = 0 THEN 0 ELSE (h >> 8) % 40 END AS lag_ms,
       lag_ms + (h >> 16) % 5 AS lag_ms_max,
       lag_bytes + (h >> 16) % 4096 AS lag_bytes_max,
       [1, 2, 3] AS sync_state_set, 4 AS sync_state_set_epoch, 2 AS min_in_sync_replicas,
       [{{'bucket': 60 + h % 3, 'n': 4}}, {{'bucket': 64 + h % 4, 'n': 5}}, {{'bucket': 70, 'n': 1}}]
         AS lag_us,
       [{{'bucket': 70 + b + h % 2, 'n': 30}} FOR b IN range(0, 12, 2)] AS confirm_us
FROM (SELECT g, s, h, CASE WHEN h % 2 = 0 THEN 0 ELSE (h >> 24) % 65536 END AS lag_bytes
      FROM (SELECT g, s, (hash(g, s, {hour}) >> 1)::BIGINT AS h
            FROM range({groups}) AS _(g), range(3600) AS __(s)))
"""
_REPLICAS = """
SELECT cluster_name, broker_name, ts, broker_id, master_epoch, max_offset, broker_id % 3 + r AS replica_id,
       confirm_offset AS ack_offset, lag_ms, lag_ms < 39 AS in_sync
FROM masters, range(1, 3) AS _(r)
"""


def write_hours(out: Path, *, groups: int, hours: int) -> int:
    """Writes the hours below `out` as compaction does, with manifests; returns the number of rows.

    An hour has 3,600 samples per group, with REPLICAS rows each.
    """
    total = 0
    with (
        duckdb.connect(config={"threads": 1}) as connection,
        open_storage(str(out)) as storage,
    ):
        for number in range(hours):
            hour_ts = FIRST_HOUR_TS + number * HOUR_MS
            query = _MASTERS.format(hour=hour_ts, groups=groups)
            connection.execute("SET enable_progress_bar = false")
            connection.execute(f"CREATE OR REPLACE TEMP TABLE masters AS {query}")
            parts = {}
            for table, rows in ((MASTER_SAMPLE, "FROM masters"), (REPLICA_SAMPLE, _REPLICAS)):
                found = connection.sql(f"{rows} ORDER BY {', '.join(table.key)}").to_arrow_table()
                parts[table.name] = [_write(found, out, table, hour_ts)]
                total += found.num_rows
            manifest = HourManifest(hour_ts=hour_ts, parts=parts)
            storage.replace(manifest_name(hour_ts), msgspec.json.encode(manifest))
    return total


def _write(rows: pa.Table, out: Path, table: Table, hour_ts: int) -> Part:
    name = f"{COMPACTED}/{table.name}/{folder_of(hour_ts)}/1.parquet"
    path = out / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        rows.cast(table.schema),
        path,
        compression="zstd",
        column_encoding={column: "DELTA_BINARY_PACKED" for column in DELTA if column in rows.column_names},
        use_dictionary=["cluster_name", "broker_name"],
    )
    last_ts = hour_ts + HOUR_MS - 1
    return Part(path=name, rows=rows.num_rows, size_bytes=path.stat().st_size, min_ts=hour_ts, max_ts=last_ts)
