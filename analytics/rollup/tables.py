"""The roll-up tables: their columns, their sources, and the queries that make them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.compaction.manifest import HOUR_MS
from analytics.queries.availability import group_state
from analytics.queries.consumers import consumer_lag
from analytics.queries.lag import LAG_COLUMNS, lag, lag_histogram
from analytics.queries.replicas import REPLICA_COLUMNS, replica_lag
from analytics.queries.sync_state_set import replica_state
from analytics.rollup.hours import Hours, hour_of
from analytics.tables import CONSUMER_LAG, CONTROLLER_EVENT, GROUP, MASTER_SAMPLE, REPLICA_SAMPLE, Table

_NARROW = {"bucket": pa.int16(), "min_in_sync_replicas": pa.int32(), "is_filled": pa.bool_()}
_TEXTS = frozenset({*GROUP, "unit", "consumer_group", "topic"})


@dataclass(frozen=True)
class RollUp:
    """A roll-up table. `columns` in order; the first `key` of them are unique in an hour, and its order.

    `sources`: the compacted tables whose rows it is made of; an hour without any has no such roll-up. `roll`
    makes its rows, with a column `window`, the width in ms; without it they are of hours.
    """

    name: str
    columns: tuple[str, ...]
    key: int
    sources: tuple[Table, ...]
    roll: Callable[[Hours], DataFrame]

    @property
    def schema(self) -> pa.Schema:
        """Returns the names and types of its columns."""
        return pa.schema(
            [
                (each, pa.string() if each in _TEXTS else _NARROW.get(each, pa.int64()))
                for each in self.columns
            ]
        )

    def rows(self, hours: Hours) -> pa.Table:
        """Returns the rows of these hours, in any order."""
        rows = self.roll(hours)
        width = F.col("window") if "window" in rows.columns else F.lit(HOUR_MS).alias("window")
        return rows.select(width, *self.columns).toArrow()


def _group_state(hours: Hours) -> DataFrame:
    ts = F.col("window_ts")
    minimum = hours.minimum().select(
        *GROUP, hour_of(ts).alias("hour_ts"), ts.alias("ts"), "min_in_sync_replicas"
    )
    return group_state(hours.history(), hours.spans(), minimum, hours.windows)


LAG = RollUp(
    "lag",
    (*GROUP, "window_ts", *LAG_COLUMNS),
    3,
    (MASTER_SAMPLE,),
    lambda hours: lag(hours.masters(), hours.windows, hours.cells()),
)
LAG_HISTOGRAM = RollUp(
    "lag_histogram",
    (*GROUP, "window_ts", "unit", "bucket", "n", "worst"),
    5,
    (MASTER_SAMPLE,),
    lambda hours: lag_histogram(hours.cells()),
)
REPLICA_LAG = RollUp(
    "replica_lag",
    (*GROUP, "window_ts", "broker_id", *REPLICA_COLUMNS),
    4,
    (REPLICA_SAMPLE,),
    lambda hours: replica_lag(hours.replicas(), hours.windows),
)
FILLED_LAG = replace(REPLICA_LAG, columns=(*REPLICA_LAG.columns, "is_filled"))
"""The table of a run, with the lag of replicas that are down: see queries.replicas.filled()."""
MINIMUM = RollUp(
    "minimum",
    (*GROUP, "window_ts", "min_in_sync_replicas"),
    3,
    (MASTER_SAMPLE,),
    lambda hours: hours.minimum(),
)
CONSUMERS = RollUp(
    "consumer_lag",
    (*GROUP, "window_ts", "consumer_group", "topic", "lag_messages_max", "lag_messages_last", "lag_ms_max"),
    5,
    (CONSUMER_LAG,),
    lambda hours: consumer_lag(hours.rows(CONSUMER_LAG), hours.windows),
)
GROUP_STATE = RollUp(
    "group_state",
    (
        *(*GROUP, "window_ts", "below_min_ms", "unknown_ms", "no_master_ms", "shrinks", "expands", "flaps"),
        *("elections", "unclean_elections"),
    ),
    3,
    (CONTROLLER_EVENT,),
    _group_state,
)
REPLICA_STATE = RollUp(
    "replica_state",
    (*GROUP, "window_ts", "broker_id", "master_ms", "in_sync_ms", "out_ms", "flaps"),
    4,
    (CONTROLLER_EVENT,),
    lambda hours: replica_state(hours.history(), hours.spans(), hours.windows),
)

TABLES: Mapping[str, RollUp] = {
    each.name: each
    for each in (LAG, LAG_HISTOGRAM, REPLICA_LAG, MINIMUM, CONSUMERS, GROUP_STATE, REPLICA_STATE)
}
