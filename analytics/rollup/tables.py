"""The roll-up tables that are made of samples: their columns, and what they are made of."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from analytics.rollup.window_counts import LAG_COLUMNS
from analytics.tables import CONSUMER_LAG, GROUP, MASTER_SAMPLE, REPLICA_SAMPLE, Table

MINUTE_MS = 60_000
_NARROW = {"bucket": pa.int16(), "min_in_sync_replicas": pa.int32()}
_TEXTS = frozenset({*GROUP, "unit", "consumer_group", "topic"})


@dataclass(frozen=True)
class RollUp:
    """A roll-up table. `columns` in order; the first `key` of them are unique in an hour, and its order.

    `sources`: the compacted tables whose rows it is made of; an hour without any has no such roll-up.
    """

    name: str
    columns: tuple[str, ...]
    key: int
    sources: tuple[Table, ...]

    @property
    def schema(self) -> pa.Schema:
        """Returns the names and types of its columns."""
        return pa.schema(
            [
                (each, pa.string() if each in _TEXTS else _NARROW.get(each, pa.int64()))
                for each in self.columns
            ]
        )


LAG = RollUp("lag", (*GROUP, "window_ts", *LAG_COLUMNS), 3, (MASTER_SAMPLE,))
LAG_HISTOGRAM = RollUp(
    "lag_histogram", (*GROUP, "window_ts", "unit", "bucket", "n", "worst"), 5, (MASTER_SAMPLE,)
)
REPLICA_LAG = RollUp(
    "replica_lag",
    (*GROUP, "window_ts", "broker_id", "samples", "bytes_max", "ms_max", "samples_out", "last_ack_offset",
     "last_ts"),
    4,
    (REPLICA_SAMPLE,),
)  # fmt: skip
MINIMUM = RollUp("minimum", (*GROUP, "window_ts", "min_in_sync_replicas"), 3, (MASTER_SAMPLE,))
CONSUMERS = RollUp(
    "consumer_lag",
    (*GROUP, "window_ts", "consumer_group", "topic", "lag_messages_max", "lag_messages_last", "lag_ms_max"),
    5,
    (CONSUMER_LAG,),
)  # fmt: skip

TABLES: Mapping[str, RollUp] = {
    each.name: each for each in (LAG, LAG_HISTOGRAM, REPLICA_LAG, MINIMUM, CONSUMERS)
}
