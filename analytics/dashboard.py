"""dashboard.json: all that a page draws, small, so that pages never wait for Spark.

Times are wall-clock ms UTC, lags in bytes and ms. A series has at most windows.POINTS_MAX points, a list of
spans too, a list of changes or fail-overs CHANGES_MAX entries, the newest.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

DASHBOARD_VERSION = 1
CHANGES_MAX = 1000

REPLICA_SERIES = ("ts", "bytes_max", "ms_max")

Row = Mapping[str, Any]


class Rows(msgspec.Struct, kw_only=True):
    """How many records were read, and what was wrong with them."""

    ha_sample: int = 0
    role_change: int = 0
    controller_event: int = 0
    send_gap: int = 0
    corrupt: int = 0
    confirm_above_max: int = 0
    epoch_gaps: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{count:,} {name}" for name, count in msgspec.structs.asdict(self).items() if count)


class Lag(msgspec.Struct, kw_only=True):
    """The lag in the masters' samples; parallel lists, one entry per window that has samples."""

    ts: list[int] = []
    samples: list[int] = []
    bytes_p50: list[int] = []
    bytes_p95: list[int] = []
    bytes_p99: list[int] = []
    bytes_max: list[int] = []
    ms_p50: list[int] = []
    ms_p95: list[int] = []
    ms_p99: list[int] = []
    ms_max: list[int] = []


class ReplicaLag(msgspec.Struct, kw_only=True):
    broker_id: int
    ts: list[int] = []
    bytes_max: list[int] = []
    ms_max: list[int] = []


class Span(msgspec.Struct, kw_only=True, rename={"from_ts": "from", "to_ts": "to"}):
    from_ts: int
    to_ts: int
    state: Literal["master", "in_sync", "out"]


class Member(msgspec.Struct, kw_only=True):
    broker_id: int
    spans: list[Span] = []


class Totals(msgspec.Struct, kw_only=True):
    shrinks: int = 0
    expands: int = 0
    elections: int = 0
    unclean_elections: int = 0
    below_min_ms: int = 0
    out_of_sync_ms: dict[str, int] = {}
    flaps: int = 0


class Change(msgspec.Struct, kw_only=True):
    ts: int
    event_id: int
    type: Literal["alterSyncStateSet", "electMaster", "cleanBrokerData"]
    reason: str
    left: list[int]
    joined: list[int]
    sync_state_set: list[int]
    sync_state_set_epoch: int
    master_broker_id: int | None
    master_epoch: int
    unclean: bool


class Failover(msgspec.Struct, kw_only=True):
    ts: int
    old_master: int | None
    new_master: int
    master_epoch: int
    reason: str
    unclean: bool
    fault_ts: int | None
    last_heartbeat_ts: int | None
    detected_ts: int | None
    elected_ts: int
    ready_ts: int | None
    detect_ms: int | None
    elect_ms: int | None
    ready_ms: int | None
    killed_program: str | None
    gap_ms: int | None


class Group(msgspec.Struct, kw_only=True):
    cluster_name: str
    broker_name: str
    lag: Lag
    replica_lag: list[ReplicaLag]
    members: list[Member]
    totals: Totals
    changes: list[Change]
    failovers: list[Failover]


class Dashboard(msgspec.Struct, kw_only=True):
    v: int = DASHBOARD_VERSION
    generated_ts: int
    from_ts: int
    to_ts: int
    window_ms: int
    inputs: list[str]
    rows: Rows
    groups: list[Group]


class Parts(msgspec.Struct, kw_only=True):
    """The rows of each table that a page shows."""

    lag: Sequence[Row]
    replica_lag: Sequence[Row]
    members: Sequence[Row]
    out_of_sync: Sequence[Row]
    totals: Sequence[Row]
    changes: Sequence[Row]
    failovers: Sequence[Row]


def assemble_groups(parts: Parts) -> list[Group]:
    """Returns the groups sorted by cluster and broker name, from the tables' collected rows."""
    by_group = {name: _split(getattr(parts, name)) for name in parts.__struct_fields__}
    known = sorted({key for name in ("lag", "members", "totals") for key in by_group[name]})
    return [
        Group(
            cluster_name=key[0],
            broker_name=key[1],
            **_group({name: rows.get(key, []) for name, rows in by_group.items()}),
        )
        for key in known
    ]


def _group(rows: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    members = _members(rows["members"])
    out_of_sync = {str(member.broker_id): 0 for member in members}
    out_of_sync |= {str(row["broker_id"]): row["out_ms"] for row in rows["out_of_sync"]}
    (totals,) = rows["totals"] or [{}]
    return {
        "lag": Lag(**_columns(rows["lag"], Lag.__struct_fields__)),
        "replica_lag": [
            ReplicaLag(broker_id=broker_id, **_columns(of_replica, REPLICA_SERIES))
            for broker_id, of_replica in _by_broker(rows["replica_lag"])
        ],
        "members": members,
        "totals": msgspec.structs.replace(msgspec.convert(totals, Totals), out_of_sync_ms=out_of_sync),
        "changes": msgspec.convert(_sorted(rows["changes"], "event_id"), list[Change]),
        "failovers": msgspec.convert(_sorted(rows["failovers"], "event_id"), list[Failover]),
    }


def _members(rows: Sequence[Row]) -> list[Member]:
    return [
        Member(
            broker_id=broker_id,
            spans=[
                Span(from_ts=row["from_ts"], to_ts=row["to_ts"], state=row["state"])
                for row in _sorted(spans, "from_ts")
            ],
        )
        for broker_id, spans in _by_broker(rows)
    ]


def _columns(rows: Sequence[Row], names: Iterable[str]) -> dict[str, list[int]]:
    """Returns the rows as parallel lists, in time order."""
    ordered = _sorted(rows, "window_ts")
    return {name: [row["window_ts" if name == "ts" else name] for row in ordered] for name in names}


def _by_broker(rows: Sequence[Row]) -> list[tuple[int, list[Row]]]:
    found: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["broker_id"]].append(row)
    return sorted(found.items())


def _split(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        found[row["cluster_name"], row["broker_name"]].append(row)
    return found


def _sorted(rows: Sequence[Row], key: str) -> list[Row]:
    return sorted(rows, key=lambda row: row[key])
