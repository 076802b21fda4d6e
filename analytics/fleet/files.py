"""Writes a planned fleet: telemetry as brokers write it, or compacted tables; and incidents.json."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analytics import tables
from analytics.compaction.manifest import COMPACTED, Counts, HourManifest, Part, folder_of, manifest_name
from analytics.compaction.storage import open_storage
from analytics.fleet.plan import HOUR_MS, Fleet
from analytics.fleet.records import records_of
from keelmq.remoting.records import (
    AnyRecord,
    ClockSample,
    ControllerEvent,
    HaSample,
    RoleChange,
    encode_record,
    name_of,
)

INCIDENTS = "incidents.json"
GROUPS_A_FILE = 100
Progress = Callable[[str], None]


def write_incidents(fleet: Fleet, out: Path) -> Path:
    """Writes the planted incidents: kind, group, replica, from, to. Returns the path."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / INCIDENTS
    content = {"seed": fleet.seed, "from": fleet.from_ts, "to": fleet.to_ts, "groups": len(fleet.names)}
    path.write_bytes(msgspec.json.encode(content | {"incidents": fleet.incidents()}))
    return path


def write_telemetry(fleet: Fleet, out: Path, *, every_ms: int, progress: Progress) -> int:
    """Writes OUT/machine-N/telemetry/<record>/dt=/hour=/*.jsonl; returns the number of records."""
    written = 0
    for number, groups in enumerate(_batched(range(len(fleet.names)), GROUPS_A_FILE)):
        machine = f"machine-{number}"
        for hour in range(fleet.from_ts, fleet.to_ts, HOUR_MS):
            lines: dict[str, list[bytes]] = {}
            for record in _records(fleet, groups, hour, every_ms):
                lines.setdefault(name_of(type(record)), []).append(encode_record(record))
            for name, each in lines.items():
                path = out / machine / "telemetry" / name / folder_of(hour) / f"{machine}-{hour}.jsonl"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(b"".join(each))
                written += len(each)
        progress(f"{machine}: {written:,} records")
    return written


def write_compacted(fleet: Fleet, out: Path, *, every_ms: int, progress: Progress) -> int:
    """Writes OUT/compacted as compaction does, with an hour's manifest after its parts; returns the number of
    rows. An hour that has a manifest already gets this one."""
    written = 0
    with open_storage(str(out)) as storage:
        for hour in range(fleet.from_ts, fleet.to_ts, HOUR_MS):
            manifest = _write_hour(fleet, out, hour, every_ms)
            storage.replace(manifest_name(hour), msgspec.json.encode(manifest))
            written += sum(part.rows for parts in manifest.parts.values() for part in parts)
            progress(f"hour {folder_of(hour)}: {written:,} rows")
    return written


def _write_hour(fleet: Fleet, out: Path, hour: int, every_ms: int) -> HourManifest:
    """Writes the parts of an hour, which follow each other in the order of the groups' names."""
    parts: dict[str, list[Part]] = {}
    counts: Counter[str] = Counter()
    in_order = sorted(range(len(fleet.names)), key=fleet.names.__getitem__)
    for number, some in enumerate(_batched(in_order, GROUPS_A_FILE)):
        rows: dict[str, list[dict[str, Any]]] = {}
        for record in _records(fleet, some, hour, every_ms):
            counts[name_of(type(record))] += 1
            for name, row in _rows(record):
                rows.setdefault(name, []).append(row)
        for table in tables.TABLES:
            if table.name in rows:
                part = _write(table, rows[table.name], out, hour, number)
                parts.setdefault(table.name, []).append(part)
    return HourManifest(
        hour_ts=hour, parts=parts, counts={name: Counts(rows=count) for name, count in counts.items()}
    )


def _batched(numbers: Iterable[int], n: int) -> Iterator[list[int]]:
    """Yields lists of n numbers; the last one may be shorter."""
    left = iter(numbers)
    while some := list(islice(left, n)):
        yield some


def _records(fleet: Fleet, groups: Iterable[int], hour: int, every_ms: int) -> Iterable[AnyRecord]:
    for number in groups:
        yield from records_of(fleet, number, hour, every_ms=every_ms)


def _rows(record: AnyRecord) -> Iterable[tuple[str, dict[str, Any]]]:
    row = msgspec.to_builtins(record)
    match record:
        case HaSample(role="master"):
            histograms = {
                name: [{"bucket": bucket, "n": n} for bucket, n in row[name]]
                for name in ("lag_us", "confirm_us")
            }
            yield tables.MASTER_SAMPLE.name, row | histograms
            for each in row["replicas"]:
                of_master = {name: row[name] for name in _SHARED}
                replica = {"replica_id": each.pop("broker_id"), **each}
                yield tables.REPLICA_SAMPLE.name, of_master | replica
        case HaSample():
            yield tables.SLAVE_SAMPLE.name, row
        case RoleChange():
            yield tables.ROLE_CHANGE.name, row
        case ControllerEvent():
            yield tables.CONTROLLER_EVENT.name, row
        case ClockSample():
            yield tables.CLOCK_SAMPLE.name, row


_SHARED = ("cluster_name", "broker_name", "ts", "broker_id", "master_epoch", "max_offset")


def _write(table: tables.Table, rows: list[dict[str, Any]], out: Path, hour: int, number: int) -> Part:
    name = f"{COMPACTED}/{table.name}/{folder_of(hour)}/fleet-{number:04d}.parquet"
    path = out / name
    path.parent.mkdir(parents=True, exist_ok=True)
    bare = [{name: row.get(name) for name in table.schema.names} for row in rows]
    found = pa.Table.from_pylist(bare, schema=table.schema)
    order = [(name, "ascending") for name in table.key]
    pq.write_table(found.sort_by(order), path, compression="zstd")
    times = pc.min_max(found["ts"]).as_py()
    return Part(
        path=name, rows=len(rows), size_bytes=path.stat().st_size, min_ts=times["min"], max_ts=times["max"]
    )
