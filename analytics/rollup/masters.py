"""Which samples are of the current master, and a number for each group of an hour.

A master that was replaced goes on sampling until it hears of it; its numbers are right for its own log and
wrong for the group. A sample is stale if a higher masterEpoch began at or before its time. What is known of
that within an hour: the views in the controllers' events, snapshots among them, and the samples' own epochs.
An epoch that is seen in the first EARLY_MS of an hour, in which no election began it, is of the hour before.
Epochs here are those of analytics/rollup/logs.py.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from analytics.rollup.arrays import Bools, Ints, arrow, numbers_of, reduced, run_starts, texts
from analytics.tables import GROUP

GroupName = tuple[str, str]
EARLY_MS = 3_000
"""Each master samples once a second, and controllers write their snapshots as late."""
_HOUR_MS = 3_600_000
_NEVER = (1 << 63) - 1


class GroupNumbers:
    """Numbers groups from 0 in the order in which their names come: arithmetic on names costs a multiple."""

    def __init__(self) -> None:
        self._numbers: dict[GroupName, int] = {}

    @property
    def names(self) -> list[GroupName]:
        """The names, by number."""
        return list(self._numbers)

    def of(self, batch: pa.RecordBatch) -> Ints:
        """Returns the number of each row's group."""
        cluster, broker = (_as_dictionary(batch.column(name)) for name in GROUP)
        clusters, brokers = cluster.dictionary.to_pylist(), broker.dictionary.to_pylist()
        width = max(len(brokers), 1)
        code = numbers_of(cluster.indices) * width + numbers_of(broker.indices)
        number = np.zeros(len(clusters) * width, np.int64)
        first = np.full(len(number), len(code))
        starts = run_starts(code)
        np.minimum.at(first, code[starts], starts)
        for each in sorted(np.unique(code[starts]).tolist(), key=first.__getitem__):
            name = clusters[each // width], brokers[each % width]
            number[each] = self._numbers.setdefault(name, len(self._numbers))
        found: Ints = number[code]
        return found


class Terms:
    """The masterEpochs that were seen in an hour. First add() all, then ask."""

    def __init__(self) -> None:
        self._began: dict[int, dict[int, int]] = {}
        """By group and masterEpoch: the first time that it was seen."""
        self._elected: set[tuple[int, int]] = set()

    def add_elections(self, gid: Ints, epoch: Ints) -> None:
        """Takes masterEpochs that began in this hour."""
        self._elected.update(zip(gid.tolist(), epoch.tolist(), strict=True))

    def add(self, gid: Ints, epoch: Ints, ts: Ints) -> None:
        """Takes rows that have seen a masterEpoch. Fast if rows of a group and epoch follow one another."""
        starts = run_starts(gid, epoch)
        first = reduced(np.minimum, ts, starts)
        for group, number, at in zip(
            gid[starts].tolist(), epoch[starts].tolist(), first.tolist(), strict=True
        ):
            of_group = self._began.setdefault(group, {})
            of_group[number] = min(at, of_group.get(number, at))

    def is_stale(self, gid: Ints, epoch: Ints, ts: Ints) -> tuple[Bools, Bools]:
        """Returns for each row whether its epoch was seen, and whether it is of a replaced master."""
        starts = run_starts(gid, epoch)
        keys = zip(gid[starts].tolist(), epoch[starts].tolist(), strict=True)
        found = [self._stale_from.get(key) for key in keys]
        lengths = np.diff(np.append(starts, len(gid)))
        is_seen = np.repeat(np.array([each is not None for each in found], np.bool_), lengths)
        stale_from = np.array([_NEVER if each is None else each for each in found], np.int64)
        return is_seen, ts >= np.repeat(stale_from, lengths)

    @cached_property
    def _stale_from(self) -> dict[tuple[int, int], int]:
        """Returns from when on a sample of this group with this epoch is stale."""
        found = {}
        for group, of_group in self._began.items():
            began = _NEVER
            for epoch in sorted(of_group, reverse=True):
                found[group, epoch] = began
                first = of_group[epoch]
                is_early = first % _HOUR_MS < EARLY_MS and (group, epoch) not in self._elected
                began = min(began, first - first % _HOUR_MS if is_early else first)
        return found


def named_rows(rows: pa.Table, names: Sequence[GroupName], schema: pa.Schema, key: int) -> pa.Table:
    """Returns the columns of the schema, with GROUP in place of gid, in the order of its first `key` columns.

    `names`: by gid.
    """
    rank = np.empty(len(names), np.int64)
    rank[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    rows = rows.append_column("rank", arrow(rank[numbers_of(rows["gid"])]))
    order = ("rank", *schema.names[len(GROUP) : key])
    rows = rows.sort_by([(each, "ascending") for each in order])
    gid = rows["gid"].combine_chunks()
    for place, name in enumerate(GROUP):
        of_group = texts([each[place] for each in names])
        rows = rows.append_column(name, of_group.take(gid))
    return rows.select(schema.names).cast(schema).combine_chunks()


def _as_dictionary(column: pa.Array) -> pa.DictionaryArray:
    return column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
