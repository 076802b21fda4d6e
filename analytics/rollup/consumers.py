"""How far consumer groups are behind, per window."""

from collections.abc import Sequence

import pyarrow as pa

from analytics.rollup.arrays import Ints, arrow, ints, numbers_of

HOUR_MS = 3_600_000
PAIR = ("consumer_group", "topic")


def consumer_samples(batch: pa.RecordBatch, gid: Ints) -> pa.Table:
    """Returns rows of the table consumer_lag with gid in place of the group's name, and `last`, which orders
    the samples of a pair."""
    last = ints(batch, "ts") * 1024 + ints(batch, "broker_id") % 1024
    columns = {name: batch.column(name) for name in (*PAIR, "ts", "lag_messages", "lag_ms")}
    return pa.table({"gid": arrow(gid), "last": arrow(last), **columns})


def consumer_lag(samples: Sequence[pa.Table], window_ms: int) -> pa.Table:
    """Returns gid, at and the columns of the table. `samples`: of consumer_samples(), one at least."""
    rows = pa.concat_tables(samples).sort_by([("last", "ascending"), ("lag_messages", "ascending")])
    at = numbers_of(rows["ts"]) % HOUR_MS // window_ms
    keys = ["gid", "at", *PAIR]
    numbers = [("lag_messages", "max"), ("lag_messages", "last"), ("lag_ms", "max")]
    # threads would mix up which row is the last one
    return rows.append_column("at", arrow(at)).group_by(keys, use_threads=False).aggregate(numbers)
