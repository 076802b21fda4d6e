"""Compaction in plain Python: a dict by key. And telemetry files to try it on."""

import gzip
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from analytics.compaction.columns import KINDS
from analytics.compaction.compactor import compact
from analytics.compaction.manifest import HourManifest, folder_of, read_manifests
from analytics.compaction.scan import find_sources
from analytics.tables import TABLES
from keelmq.remoting.records import (
    RECORD_VERSION,
    ClockSample,
    ConsumerLag,
    ControllerEvent,
    GroupView,
    HaSample,
    Record,
    ReplicaSample,
    RoleChange,
    SendGap,
    decode_record,
    encode_record,
    name_of,
)

HOUR = 1_767_225_600_000
"""2026-01-01T00 UTC."""
TS_MAX = 253_402_300_799_999

_COMMON = {
    "cluster_name": st.sampled_from(["c", "c", "c", "d"]),
    "broker_name": st.sampled_from(["a", "a", "é"]),
    "broker_id": st.sampled_from([1, 1, 2]),
}
_SMALL = st.integers(0, 2)
_PAIRS = st.lists(st.tuples(st.integers(0, 9), _SMALL), max_size=3).map(tuple)
_IDS = st.lists(st.integers(1, 3), max_size=3).map(tuple)
_VIEW = st.builds(
    GroupView,
    master_broker_id=st.none() | _SMALL,
    master_epoch=_SMALL,
    sync_state_set=_IDS,
    sync_state_set_epoch=_SMALL,
    replicas=_IDS,
)
_REPLICAS = st.lists(
    st.builds(
        ReplicaSample, broker_id=st.integers(1, 3), ack_offset=_SMALL, lag_ms=_SMALL, in_sync=st.booleans()
    ),
    max_size=3,
).map(tuple)


def times(hours: int = 1) -> st.SearchStrategy[int]:
    """Returns few different times in each of some hours, so that keys meet."""
    at = st.sampled_from([0, 0, 1])
    return st.builds(lambda hour, at: HOUR + hour * 3_600_000 + at, st.integers(0, hours - 1), at)


Rows = dict[str, list[dict[str, Any]]]


def records_at(ts: st.SearchStrategy[int]) -> st.SearchStrategy[Record]:
    """Returns records of every kind, many with equal keys."""
    common = {**_COMMON, "ts": ts}
    group = {name: common[name] for name in ("cluster_name", "broker_name", "ts")}
    ha = st.builds(
        HaSample,
        **common,
        role=st.sampled_from(["master", "slave", "none"]),
        master_epoch=_SMALL,
        max_offset=_SMALL,
        confirm_offset=_SMALL,
        lag_ms=_SMALL,
        sync_state_set=_IDS,
        replicas=_REPLICAS,
        lag_us=_PAIRS,
        confirm_us=_PAIRS,
    )
    others = [
        st.builds(
            RoleChange,
            **common,
            role=st.sampled_from(["master", "slave"]),
            master_epoch=_SMALL,
            previous_role=st.just("none"),
            previous_epoch=_SMALL,
            started_ts=_SMALL,
            max_offset=_SMALL,
            confirm_offset=_SMALL,
        ),
        st.builds(
            ControllerEvent,
            **group,
            event_id=_SMALL,
            type=st.sampled_from(["electMaster", "snapshot"]),
            controller_id=st.just("n1"),
            before=st.none() | _VIEW,
            after=st.none() | _VIEW,
            refused=st.none() | st.just("no"),
            detected_ts=st.none() | _SMALL,
        ),
        st.builds(SendGap, **common, program=st.just("p"), started_ts=_SMALL, gap_ms=_SMALL),
        st.builds(ClockSample, **common, controller_id=st.just("n1"), offset_ms=_SMALL, heartbeats=_SMALL),
        st.builds(
            ConsumerLag,
            **common,
            consumer_group=st.just("g"),
            topic=st.sampled_from("tu"),
            lag_messages=_SMALL,
            lag_ms=_SMALL,
        ),
    ]
    return st.one_of(ha, ha, ha, *others)


def good(line: bytes, kind: str) -> Record | None:
    """Returns the record in a line, or None if it is a bad one."""
    try:
        record = decode_record(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    fits = all(-(1 << 63) <= value < 1 << 63 for value in _numbers(msgspec.to_builtins(record)))
    known = record.v <= RECORD_VERSION and 0 <= record.ts <= TS_MAX
    return record if known and fits and name_of(type(record)) == kind else None


def _numbers(value: Any) -> Iterable[int]:
    if isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _numbers(each)
    elif isinstance(value, int):
        yield value


def kept(record: Record) -> Record:
    """Returns the record as the tables keep it: a master's replicas by id, of a slave what it knows."""
    changes: dict[str, Any] = {"v": RECORD_VERSION}
    if isinstance(record, HaSample):
        if record.role == "master":
            replicas = {each.broker_id: each for each in record.replicas}
            changes["replicas"] = tuple(replicas[each] for each in sorted(replicas))
        else:
            mine = {"ts", "cluster_name", "broker_name", "broker_id", "role", "master_epoch", "max_offset"}
            defaults = [
                each for each in msgspec.structs.fields(HaSample) if each.default is not msgspec.NODEFAULT
            ]
            changes |= {each.name: each.default for each in defaults if each.name not in mine}
    return msgspec.structs.replace(record, **changes)


def expected(records: Iterable[Record]) -> Rows:
    """Returns the rows of each table that compaction is to make of these records."""
    winners: dict[tuple[Any, ...], Record] = {}
    keys = {table.name: table.key for table in TABLES}
    for record in map(kept, records):
        kind = name_of(type(record))
        names = keys["slave_sample" if kind == "ha_sample" else kind]
        key = (kind, *(getattr(record, name) for name in names))
        winners[key] = max(winners.get(key, record), record, key=encode_record)
    rows: Rows = {table.name: [] for table in TABLES}
    for record in winners.values():
        for name, row in _rows(record):
            rows[name].append(row)
    for table in TABLES:
        rows[table.name].sort(key=lambda row, table=table: [row[name] for name in table.key])  # type: ignore[misc]
    return rows


def _rows(record: Record) -> Iterable[tuple[str, dict[str, Any]]]:
    values = msgspec.to_builtins(record)
    if not isinstance(record, HaSample):
        yield name_of(type(record)), values
    elif record.role != "master":
        yield "slave_sample", values
    else:
        for name in ("lag_us", "confirm_us"):
            values[name] = [{"bucket": bucket, "n": n} for bucket, n in values[name]]
        yield "master_sample", values
        for each in values["replicas"]:
            yield (
                "replica_sample",
                values | each | {"replica_id": each["broker_id"], "broker_id": record.broker_id},
            )


def projected(rows: Rows) -> Rows:
    """Returns the rows with their tables' columns only, lists as lists."""
    schemas = {table.name: table.schema for table in TABLES}
    return {name: pa.Table.from_pylist(some, schema=schemas[name]).to_pylist() for name, some in rows.items()}


def table_rows(out: Path) -> Rows:
    """Returns the rows of all hours below `out`, as the manifests name them. Each file is sorted by key."""
    keys = {table.name: table.key for table in TABLES}
    rows: Rows = {table.name: [] for table in TABLES}
    for manifest in read_manifests(str(out)):
        for name, parts in manifest.parts.items():
            for part in parts:
                table = pq.ParquetFile(out / part.path).read()
                assert len(table) == part.rows and (out / part.path).stat().st_size == part.size_bytes
                found = [tuple(row[each] for each in keys[name]) for row in table.to_pylist()]
                assert found == sorted(set(found))
                rows[name] += table.to_pylist()
    for table in TABLES:
        rows[table.name].sort(key=lambda row, table=table: [row[name] for name in table.key])  # type: ignore[misc]
    return rows


def run(root: Path, out: Path, **options: Any) -> list[HourManifest]:
    """Finds and compacts the telemetry below `root`."""
    return compact(find_sources([str(root)]), str(out), **options)


def contents(out: Path, *, manifests: bool = True) -> dict[str, bytes]:
    """Returns the bytes of everything that the manifests name, and of the manifests."""
    named = {path for manifest in read_manifests(str(out)) for path in manifest.paths()}
    found = {path: (out / path).read_bytes() for path in named}
    if manifests:
        found |= {path.name: path.read_bytes() for path in (out / "compacted" / "manifest").glob("dt=*")}
    return found


def file_of(root: Path, kind: str, name: str, hour: int = HOUR) -> Path:
    """Returns the path of a telemetry file, in a folder that exists."""
    path = root / "telemetry" / kind / folder_of(hour) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def write(root: Path, records: Iterable[Record], name: str = "n-1.jsonl", hour: int = HOUR) -> None:
    """Writes the records of each kind to a file of this name; gzipped if it says so."""
    by_kind: dict[str, bytes] = dict.fromkeys(KINDS, b"")
    for record in records:
        by_kind[name_of(type(record))] += encode_record(record)
    for kind, data in by_kind.items():
        if data:
            data = gzip.compress(data, mtime=0) if name.endswith(".gz") else data
            file_of(root, kind, name, hour).write_bytes(data)
