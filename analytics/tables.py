"""The compacted tables: what compaction writes, and everything else reads.

One file format, one order: rows are sorted by `key`, which is unique. Times are wall-clock ms UTC of the
writer, offsets bytes of the CommitLog.
"""

from dataclasses import dataclass

import pyarrow as pa

GROUP = ("cluster_name", "broker_name")
"""The columns that name a broker group."""

_GROUP = [("cluster_name", pa.string()), ("broker_name", pa.string())]
_HISTOGRAM = pa.list_(pa.struct([("bucket", pa.int16()), ("n", pa.int32())]))
_VIEW = pa.struct(
    [
        ("master_broker_id", pa.int64()),
        ("master_epoch", pa.int64()),
        ("sync_state_set", pa.list_(pa.int64())),
        ("sync_state_set_epoch", pa.int64()),
        ("replicas", pa.list_(pa.int64())),
    ]
)


@dataclass(frozen=True)
class Table:
    """`key`: unique, and the order of the rows."""

    name: str
    key: tuple[str, ...]
    schema: pa.Schema


def _table(name: str, key: tuple[str, ...], *columns: tuple[str, pa.DataType]) -> Table:
    return Table(name, ("cluster_name", "broker_name", "ts", *key), pa.schema([*_GROUP, *columns]))


MASTER_SAMPLE = _table(
    "master_sample",
    ("broker_id",),
    ("ts", pa.int64()),
    ("broker_id", pa.int64()),
    ("master_epoch", pa.int64()),
    ("max_offset", pa.int64()),
    ("confirm_offset", pa.int64()),
    ("lag_ms", pa.int64()),
    ("lag_ms_max", pa.int64()),
    ("lag_bytes_max", pa.int64()),
    ("sync_state_set", pa.list_(pa.int64())),
    ("sync_state_set_epoch", pa.int64()),
    ("min_in_sync_replicas", pa.int32()),
    ("lag_us", _HISTOGRAM),
    ("confirm_us", _HISTOGRAM),
)
"""ha_sample records of masters."""

REPLICA_SAMPLE = _table(
    "replica_sample",
    ("broker_id", "replica_id"),
    ("ts", pa.int64()),
    ("broker_id", pa.int64()),
    ("master_epoch", pa.int64()),
    ("max_offset", pa.int64()),
    ("replica_id", pa.int64()),
    ("ack_offset", pa.int64()),
    ("lag_ms", pa.int64()),
    ("in_sync", pa.bool_()),
)
"""One row per replica in a master's ha_sample; broker_id, master_epoch, max_offset are the master's."""

SLAVE_SAMPLE = _table(
    "slave_sample",
    ("broker_id",),
    ("ts", pa.int64()),
    ("broker_id", pa.int64()),
    ("role", pa.string()),
    ("master_epoch", pa.int64()),
    ("max_offset", pa.int64()),
    ("confirm_offset", pa.int64()),
)
"""ha_sample records of the roles "slave" and "none"."""

ROLE_CHANGE = _table(
    "role_change",
    ("broker_id", "role"),
    ("ts", pa.int64()),
    ("broker_id", pa.int64()),
    ("role", pa.string()),
    ("master_epoch", pa.int64()),
    ("previous_role", pa.string()),
    ("previous_epoch", pa.int64()),
    ("started_ts", pa.int64()),
    ("max_offset", pa.int64()),
    ("confirm_offset", pa.int64()),
    ("truncated_bytes", pa.int64()),
)

CONTROLLER_EVENT = _table(
    "controller_event",
    ("log_id", "event_id", "type", "controller_id"),
    ("ts", pa.int64()),
    ("log_id", pa.string()),
    ("event_id", pa.int64()),
    ("type", pa.string()),
    ("controller_id", pa.string()),
    ("before", _VIEW),
    ("after", _VIEW),
    ("refused", pa.string()),
    ("reason", pa.string()),
    ("unclean", pa.bool_()),
    ("last_heartbeat_ts", pa.int64()),
    ("detected_ts", pa.int64()),
)
"""Every controller's copy of every event: Spark merges them, because one copy may have more details than
another."""

SEND_GAP = _table(
    "send_gap",
    ("broker_id", "program", "started_ts"),
    ("ts", pa.int64()),
    ("broker_id", pa.int64()),
    ("program", pa.string()),
    ("started_ts", pa.int64()),
    ("gap_ms", pa.int64()),
)

CLOCK_SAMPLE = _table(
    "clock_sample",
    ("broker_id", "controller_id"),
    ("ts", pa.int64()),
    ("broker_id", pa.int64()),
    ("controller_id", pa.string()),
    ("offset_ms", pa.int64()),
    ("heartbeats", pa.int64()),
)

CONSUMER_LAG = _table(
    "consumer_lag",
    ("broker_id", "consumer_group", "topic"),
    ("ts", pa.int64()),
    ("broker_id", pa.int64()),
    ("consumer_group", pa.string()),
    ("topic", pa.string()),
    ("lag_messages", pa.int64()),
    ("lag_ms", pa.int64()),
)

TABLES = (
    MASTER_SAMPLE,
    REPLICA_SAMPLE,
    SLAVE_SAMPLE,
    ROLE_CHANGE,
    CONTROLLER_EVENT,
    SEND_GAP,
    CLOCK_SAMPLE,
    CONSUMER_LAG,
)
