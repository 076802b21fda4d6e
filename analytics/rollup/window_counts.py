"""What windows of confirmOffset lag hold, as numpy arrays: counted from samples, added up, made into rows.

A window has one entry in each of the arrays of totals, and one per bucket that is not empty in those of the
cells. Merging and widening are the same sum: windows with equal (gid, at) are added up.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analytics.rollup.arrays import (
    Bools,
    Ints,
    arrow,
    begins,
    bools_of,
    ints,
    numbers_of,
    reduced,
    run_starts,
    texts,
)
from keelmq.runtime.log_buckets import BUCKETS, EDGES

UNITS = ("bytes", "ms", "lag_us", "confirm_us")
PERCENT = {"p50": 50, "p95": 95, "p99": 99}
LAG_COLUMNS = (
    "samples", *(f"{unit}_{name}" for unit in UNITS for name in (*PERCENT, "max")), "confirms", "covered_ms",
    "stale_master", "above_max", "max_offset", "confirm_offset",
)  # fmt: skip

SECOND_MS, MINUTE_MS, HOUR_MS = 1_000, 60_000, 3_600_000
_BUCKET_BITS = 10
_UNIT_BITS = 2
_CELL_BITS = _UNIT_BITS + _BUCKET_BITS
_AT_BITS = 12
_NONE = -1
"""No sample, no worst value: all of them are 0 or more."""

_EDGES = np.array([min(edge, (1 << 63) - 1) for edge in EDGES], np.int64)
_TOPS = np.array([EDGES[number + 1] - 2 for number in range(BUCKETS)], np.int64)


def bucket(values: Ints) -> Ints:
    """Returns the bucket of each whole number, as bucket_of() of log_buckets does."""
    whole = np.clip(values, 0, (1 << 63) - 3) + 1
    return np.searchsorted(_EDGES, whole, side="right").astype(np.int64) - 1


def bucket_top(numbers: Ints) -> Ints:
    """Returns the largest whole number of each bucket, as bucket_top() of log_buckets does."""
    return _TOPS[numbers]


@dataclass(frozen=True, slots=True)
class WindowCounts:
    """Windows in ascending order of (gid, at), each once.

    `seconds`: a bit for each second of the minute with a sample that counts. `last`: orders the samples of a
    group; max_offset and confirm_offset are of the last one. `cell_of`: the window's place; `cell`: its unit
    and bucket; `n`: how many values; `worst`: the highest of them.
    """

    gid: Ints
    at: Ints
    samples: Ints
    stale_master: Ints
    above_max: Ints
    seconds: Ints
    last: Ints
    max_offset: Ints
    confirm_offset: Ints
    cell_of: Ints
    cell: Ints
    n: Ints
    worst: Ints

    def __len__(self) -> int:
        return len(self.gid)

    @classmethod
    def of_samples(cls, batch: pa.RecordBatch, base_ms: int) -> "WindowCounts":
        """Counts the samples of a batch: rows of master_sample by in_terms(), in any order."""
        ts = ints(batch, "ts")
        in_hour = ts % HOUR_MS
        end, confirmed = ints(batch, "max_offset"), ints(batch, "confirm_offset")
        is_stale = bools_of(batch.column("is_stale"))
        is_above = ~is_stale & (confirmed > end)
        counts = ~is_stale & ~is_above
        order = np.where(counts, ts * 1024 + ints(batch, "broker_id") % 1024, _NONE)
        at = in_hour // base_ms
        second = np.left_shift(np.int64(1), in_hour % MINUTE_MS // SECOND_MS)
        cells = _cells(batch, end - confirmed, np.flatnonzero(counts))
        rows = cls(
            ints(batch, "gid"), at, counts.astype(np.int64), is_stale.astype(np.int64),
            is_above.astype(np.int64), np.where(counts, second, 0), order, end, confirmed, *cells,
        )  # fmt: skip
        return rows._summed(at)

    @classmethod
    def merge(cls, counts: Sequence["WindowCounts"]) -> "WindowCounts":
        """Returns the sum; windows may be in several of them."""
        starts = np.cumsum([0, *map(len, counts)])
        of = {
            each.name: np.concatenate([getattr(one, each.name) for one in counts])
            for each in fields(cls)
            if each.name != "cell_of"
        }
        cell_of = np.concatenate([one.cell_of + start for one, start in zip(counts, starts, strict=False)])
        rows = cls(cell_of=cell_of, **of)
        return rows._summed(rows.at)

    def widened(self, factor: int) -> "WindowCounts":
        """Returns windows that are `factor` times as wide."""
        return self if factor == 1 else self._summed(self.at // factor)

    def split_last(self) -> tuple["WindowCounts", "WindowCounts"]:
        """Returns the windows of all gids but the last, and those of the last."""
        cut = int(np.searchsorted(self.gid, self.gid[-1]))
        cells_cut = int(np.searchsorted(self.cell_of, cut))
        return self._slice(slice(cut), slice(cells_cut)), self._slice(
            slice(cut, None), slice(cells_cut, None)
        )

    def _slice(self, windows: slice, cells: slice) -> "WindowCounts":
        of_cells = ("cell_of", "cell", "n", "worst")
        of = {
            each.name: getattr(self, each.name)[cells if each.name in of_cells else windows]
            for each in fields(self)
        }
        of["cell_of"] = of["cell_of"] - (windows.start or 0)
        return WindowCounts(**of)

    def _summed(self, at: Ints) -> "WindowCounts":
        """Returns the sums of windows with equal (gid, at); self may have each many times, in any order."""
        key = (self.gid << _AT_BITS) + at
        order = np.lexsort((self.max_offset, self.last, key))
        key = key[order]
        starts = run_starts(key)
        last = np.append(starts[1:], len(key)) - 1 if len(key) else starts
        window = np.empty(len(key), np.int64)
        window[order] = np.cumsum(begins(key)) - 1
        cells = (window[self.cell_of] << _CELL_BITS) + self.cell
        by_cell = np.argsort(cells, kind="stable")
        cells = cells[by_cell]
        cell_starts = run_starts(cells)

        def added(values: Ints) -> Ints:
            return reduced(np.add, values[order], starts)

        return WindowCounts(
            gid=key[starts] >> _AT_BITS,
            at=key[starts] & ((1 << _AT_BITS) - 1),
            samples=added(self.samples),
            stale_master=added(self.stale_master),
            above_max=added(self.above_max),
            seconds=reduced(np.bitwise_or, self.seconds[order], starts),
            last=self.last[order][last],
            max_offset=self.max_offset[order][last],
            confirm_offset=self.confirm_offset[order][last],
            cell_of=cells[cell_starts] >> _CELL_BITS,
            cell=cells[cell_starts] & ((1 << _CELL_BITS) - 1),
            n=reduced(np.add, self.n[by_cell], cell_starts),
            worst=reduced(np.maximum, self.worst[by_cell], cell_starts),
        )


def lag_rows(base: WindowCounts, window_ms: int, base_ms: int) -> pa.RecordBatch:
    """Returns gid, window, at and LAG_COLUMNS of these windows. `base`: whole hours of groups, merged."""
    counts = base.widened(window_ms // base_ms)
    has_any = counts.samples > 0
    columns: dict[str, Any] = {
        "gid": counts.gid,
        "window": np.full(len(counts), window_ms, np.int32),
        "at": counts.at,
        "samples": counts.samples,
        **_percentiles(counts),
        "covered_ms": _covered_ms(base, window_ms, base_ms),
        "stale_master": counts.stale_master,
        "above_max": counts.above_max,
        "max_offset": (counts.max_offset, has_any),
        "confirm_offset": (counts.confirm_offset, has_any),
    }
    order = ("gid", "window", "at", *LAG_COLUMNS)
    return pa.RecordBatch.from_pydict({name: _array(columns[name]) for name in order})


def hour_buckets(base: WindowCounts, base_ms: int) -> pa.RecordBatch:
    """Returns gid, unit (its name), bucket, n and worst of the hour."""
    hours = base.widened(HOUR_MS // base_ms)
    numbers = hours.cell & ((1 << _BUCKET_BITS) - 1)
    units = pa.DictionaryArray.from_arrays(arrow((hours.cell >> _BUCKET_BITS).astype(np.int32)), texts(UNITS))
    return pa.RecordBatch.from_pydict(
        {
            "gid": arrow(hours.gid[hours.cell_of]),
            "unit": units.cast(pa.string()),
            "bucket": arrow(numbers.astype(np.int16)),
            "n": arrow(hours.n),
            "worst": arrow(np.where(hours.worst == _NONE, bucket_top(numbers), hours.worst)),
        }
    )


def _percentiles(counts: WindowCounts) -> dict[str, Any]:
    """Returns per unit p50, p95, p99 and max, and confirms."""
    series = (counts.cell_of << _UNIT_BITS) + (counts.cell >> _BUCKET_BITS)
    starts = run_starts(series)
    place = series[starts]
    total = reduced(np.add, counts.n, starts)
    up_to = np.cumsum(counts.n)
    before = np.append(0, up_to)[starts]
    ends = np.append(starts[1:], len(series)) - 1 if len(series) else starts
    numbers = counts.cell & ((1 << _BUCKET_BITS) - 1)
    worst = reduced(np.maximum, counts.worst, starts)
    most = np.where(worst == _NONE, bucket_top(numbers[ends]), worst)
    values = {"max": most}
    for name, percent in PERCENT.items():
        rank = -(-total * percent // 100)
        reached = np.maximum(np.searchsorted(up_to, before + rank), starts)
        values[name] = np.minimum(bucket_top(numbers[reached]), most)
    found: dict[str, Any] = {}
    for number, unit in enumerate(UNITS):
        mine = np.flatnonzero(place & ((1 << _UNIT_BITS) - 1) == number)
        windows = place[mine] >> _UNIT_BITS
        for name, of in values.items():
            found[f"{unit}_{name}"] = _scattered(of[mine], windows, len(counts))
        if unit == "confirm_us":
            found["confirms"] = _scattered(total[mine], windows, len(counts))
    return found


def _covered_ms(base: WindowCounts, window_ms: int, base_ms: int) -> Ints:
    """Returns covered_ms of the windows of `window_ms`, in their order."""
    fine_ms = min(window_ms, MINUTE_MS)
    fine = base.widened(fine_ms // base_ms)
    width = fine_ms // SECOND_MS
    first = fine.at * width % (MINUTE_MS // SECOND_MS)  # the bit of the window's first second
    seconds = fine.seconds >> first
    follows = np.append(False, (np.diff(fine.at) == 1) & (np.diff(fine.gid) == 0))[: len(fine)]
    carried = np.where(follows, np.roll(seconds, 1) >> (width - 1) & 1, 0)
    covered = (seconds | seconds << 1 | carried) & ((1 << width) - 1)
    ms = np.bitwise_count(covered).astype(np.int64) * SECOND_MS
    wide = (fine.gid << _AT_BITS) + fine.at // (window_ms // fine_ms)
    return reduced(np.add, ms, run_starts(wide))


def _cells(batch: pa.RecordBatch, lag_bytes: Ints, rows: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Returns cell_of (the row), cell, n and worst of the samples that count."""
    lag_ms = np.maximum(ints(batch, "lag_ms"), 0)
    found = []
    for unit, (values, most) in enumerate(((lag_bytes, "lag_bytes_max"), (lag_ms, "lag_ms_max"))):
        here = values[rows]
        worst = np.maximum(here, ints(batch, most)[rows])
        found.append((rows, (unit << _BUCKET_BITS) + bucket(here), np.ones(len(rows), np.int64), worst))
    counts = np.zeros(len(batch), np.bool_)
    counts[rows] = True
    for unit, name in ((UNITS.index(name), name) for name in ("lag_us", "confirm_us")):
        lists = batch.column(name)
        of = numbers_of(pc.list_parent_indices(lists))
        numbers, n = (numbers_of(each) for each in lists.flatten().flatten())
        kept = counts[of]
        cell = (unit << _BUCKET_BITS) + numbers[kept]
        found.append((of[kept], cell, n[kept], np.full(len(cell), _NONE, np.int64)))
    cell_of, cell, n, worst = (np.concatenate(each) for each in zip(*found, strict=True))
    return cell_of, cell, n, worst


def _scattered(values: Ints, places: Ints, count: int) -> tuple[Ints, Bools]:
    """Returns an array with these values at these places, and where there is one."""
    found, is_there = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    found[places], is_there[places] = values, True
    return found, is_there


def _array(column: Any) -> pa.Array:
    if isinstance(column, tuple):
        values, is_there = column
        return arrow(values, is_there)
    return arrow(column)
