"""The lag of a replica that is down: it keeps its last acknowledgement, so its lag grows.

A pure function of two roll-ups of an hour, lag and replica_lag, and of what the hours before left: the hours
of a run are filled one after the other, in the order of time.
"""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from analytics.rollup.arrays import Ints, arrow, ints, one_batch
from analytics.rollup.masters import GroupNumbers, named_rows
from analytics.rollup.tables import REPLICA_LAG
from analytics.rollup.window_counts import HOUR_MS
from analytics.tables import GROUP

LAG_COLUMNS = (*GROUP, "window_ts", "max_offset")
SCHEMA = REPLICA_LAG.schema.append(pa.field("is_filled", pa.bool_()))

_CARRIED = ("ms_max", "last_ack_offset", "last_ts")
_OF_ROW = ("samples", "bytes_max", "samples_out", *_CARRIED)
_NOTHING = (0,) * len(_CARRIED)
_NO_ROW = -1
_NO_MASTER = -(1 << 63)
_Replica = tuple[int, int]
"""The number of the group, and the brokerId."""


@dataclass
class ReplicaFill:
    """Fills windows of `window_ms`, hour by hour.

    A row is added for each window, after a replica's first one, in which its group has a master and the
    replica has no sample: is_filled, samples 0. Its lag in bytes is the master's max_offset without the
    replica's last ack, and in ms its last one and the time since its last sample, up to the window's end. A
    window without a sample of the current master has no row.
    """

    window_ms: int
    _numbers: GroupNumbers = field(default_factory=GroupNumbers)
    _last: dict[_Replica, tuple[int, ...]] = field(default_factory=dict)
    """Of each replica that was seen: _CARRIED of its last row."""

    def hour(self, hour_ts: int, lag: pa.Table, replicas: pa.Table) -> pa.Table:
        """Returns the rows of `replicas` and those that are added, with SCHEMA, in the order of the key.

        `lag`: LAG_COLUMNS of the table; a max_offset of NULL is no sample.
        """
        masters, own = one_batch(lag.filter(lag["max_offset"].is_valid())), one_batch(replicas)
        master_gid, own_gid = self._numbers.of(masters), self._numbers.of(own)
        own_keys = list(zip(own_gid.tolist(), ints(own, "broker_id").tolist(), strict=True))
        keys = sorted(self._last.keys() | set(own_keys))
        line_of = {key: line for line, key in enumerate(keys)}
        count = HOUR_MS // self.window_ms

        row = np.full((len(keys), count), _NO_ROW)
        row[[line_of[key] for key in own_keys], self._at(own, hour_ts)] = np.arange(len(own))
        last_at = np.maximum.accumulate(np.where(row == _NO_ROW, -1, np.arange(count)), axis=1)
        newest = np.where(last_at < 0, _NO_ROW, np.take_along_axis(row, np.maximum(last_at, 0), axis=1))
        end = np.full((len(self._numbers.names), count), _NO_MASTER)
        end[master_gid, self._at(masters, hour_ts)] = ints(masters, "max_offset")
        end = end[[gid for gid, _ in keys]]

        carried = np.array([self._last.get(key, _NOTHING) for key in keys], np.int64).reshape(
            -1, len(_CARRIED)
        )
        was_seen = np.array([key in self._last for key in keys], np.bool_)
        is_seen = (newest != _NO_ROW) | was_seen[:, np.newaxis]
        line, at = np.nonzero((row != _NO_ROW) | (is_seen & (end != _NO_MASTER)))
        of_row = {name: np.append(ints(own, name), 0) for name in _OF_ROW}  # the 0 is _NO_ROW's

        def latest(name: str, lines: Ints, rows: Ints) -> Ints:
            return np.where(rows == _NO_ROW, carried[lines, _CARRIED.index(name)], of_row[name][rows])

        mine = row[line, at]
        known = {name: latest(name, line, newest[line, at]) for name in _CARRIED}
        is_filled = mine == _NO_ROW
        behind = np.maximum(end[line, at] - known["last_ack_offset"], 0)
        window_ts = hour_ts + at * self.window_ms
        waited = window_ts + self.window_ms - known["last_ts"]
        grown = np.where(behind == 0, 0, known["ms_max"] + waited)
        rows = {
            "gid": np.array([gid for gid, _ in keys], np.int64)[line],
            "broker_id": np.array([broker for _, broker in keys], np.int64)[line],
            "window_ts": window_ts,
            **{name: of_row[name][mine] for name in ("samples", "samples_out")},
            "bytes_max": np.where(is_filled, behind, of_row["bytes_max"][mine]),
            "ms_max": np.where(is_filled, grown, of_row["ms_max"][mine]),
            "last_ack_offset": known["last_ack_offset"],
            "last_ts": known["last_ts"],
        }
        every, at_the_end = np.arange(len(keys)), newest[:, -1]
        after = np.column_stack([latest(name, every, at_the_end) for name in _CARRIED]).tolist()
        self._last = {key: tuple(values) for key, values in zip(keys, after, strict=True)}
        table = pa.table({name: arrow(values) for name, values in rows.items()})
        table = table.append_column("is_filled", arrow(is_filled))
        return named_rows(table, self._numbers.names, SCHEMA, REPLICA_LAG.key)

    def _at(self, rows: pa.RecordBatch, hour_ts: int) -> Ints:
        return (ints(rows, "window_ts") - hour_ts) // self.window_ms
