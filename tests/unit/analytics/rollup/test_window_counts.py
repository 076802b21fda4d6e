"""The arithmetic of lag: buckets as everywhere else, and sums that do not depend on how samples come."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analytics.rollup import lag
from analytics.rollup.window_counts import WindowCounts, bucket, bucket_top, hour_buckets, lag_rows
from keelmq.runtime.log_buckets import BUCKETS, EDGES, bucket_of
from keelmq.runtime.log_buckets import bucket_top as top_of

BASE_MS, MINUTE_MS, HOUR_MS = 10_000, 60_000, 3_600_000
LONG_MAX = (1 << 63) - 1
HISTOGRAM = pa.list_(pa.struct([("bucket", pa.int16()), ("n", pa.int32())]))
Row = dict[str, Any]


def buckets_of(values: list[int]) -> list[int]:
    found: list[int] = bucket(np.array(values, np.int64)).tolist()
    return found


def test_every_edge() -> None:
    around = {edge + off for edge in EDGES for off in (-3, -2, -1, 0, 1) if -2 <= edge + off <= LONG_MAX}
    values = sorted(around | {LONG_MAX, -LONG_MAX})
    assert buckets_of(values) == [bucket_of(value) for value in values]
    assert bucket_top(np.arange(BUCKETS)).tolist() == [top_of(number) for number in range(BUCKETS)]


@settings(deadline=None)
@given(st.lists(st.integers(-(1 << 63), LONG_MAX)))
def test_any_number(values: list[int]) -> None:
    assert buckets_of(values) == [bucket_of(value) for value in values]


def sample(gid: int, second: int, lag_bytes: int, *, is_stale: bool, us: list[tuple[int, int]] | None) -> Row:
    histogram = None if us is None else [{"bucket": number, "n": n} for number, n in us]
    return {
        "gid": gid, "ts": second * 1_000, "broker_id": 1, "is_stale": is_stale, "max_offset": 1_000 + second,
        "confirm_offset": 1_000 + second - lag_bytes, "lag_ms": lag_bytes % 50, "lag_ms_max": 7,
        "lag_bytes_max": 70, "lag_us": histogram, "confirm_us": histogram,
    }  # fmt: skip


samples = st.lists(
    st.builds(
        sample,
        st.integers(1, 4),
        st.integers(0, 3_599),
        st.integers(-1, 900),
        is_stale=st.booleans(),
        us=st.none() | st.lists(st.tuples(st.integers(0, 503), st.integers(0, 9)), max_size=3),
    ),
    min_size=1,
    max_size=60,
    unique_by=lambda row: (row["gid"], row["ts"]),
)


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    types = {"is_stale": pa.bool_(), "lag_us": HISTOGRAM, "confirm_us": HISTOGRAM}
    return pa.RecordBatch.from_pydict(
        {name: pa.array(values, types.get(name, pa.int64())) for name, values in columns.items()}
    )


def answers(counts: list[WindowCounts]) -> list[list[Row]]:
    """Of all widths: the rows of lag, and the histogram of the hour."""
    widths = (BASE_MS, MINUTE_MS, HOUR_MS)
    found = [[row for of in counts for row in lag_rows(of, width, BASE_MS).to_pylist()] for width in widths]
    return [*found, [row for of in counts for row in hour_buckets(of, BASE_MS).to_pylist()]]


@pytest.mark.slow
@settings(deadline=None)
@given(samples, st.randoms(use_true_random=False))
def test_neither_batches_nor_their_order_matter(rows: list[Row], dice: Any) -> None:
    whole = WindowCounts.of_samples(batch_of(rows), BASE_MS)
    dice.shuffle(rows)
    cuts = sorted(dice.sample(range(len(rows) + 1), dice.randint(0, min(3, len(rows)))))
    pieces = [rows[start:end] for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    counted = [WindowCounts.of_samples(batch_of(each), BASE_MS) for each in pieces if each]
    merged = WindowCounts.merge(counted)
    assert answers([merged]) == answers([whole])
    totals = [
        sum(row["samples"] + row["stale_master"] + row["above_max"] for row in of)
        for of in answers([whole])[:3]
    ]
    assert totals == [len(rows)] * 3


@settings(deadline=None)
@given(samples, st.integers(1, 20))
def test_a_groups_hour_is_never_cut(rows: list[Row], windows_max: int) -> None:
    whole = WindowCounts.of_samples(batch_of(rows), BASE_MS)
    rows.sort(key=lambda row: (row["gid"], row["ts"]))
    batches = [
        WindowCounts.of_samples(batch_of(rows[start : start + 2]), BASE_MS)
        for start in range(0, len(rows), 2)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lag, "WINDOWS_MAX", windows_max)
        assert answers(list(lag.merge_hours(batches))) == answers([whole])


def test_a_sample_covers_the_next_second_of_its_own_group_only() -> None:
    """Also in the next window; the group that follows in the arrays begins where this one ends."""
    rows = [sample(1, second, 0, is_stale=False, us=None) for second in (9, 10)]
    rows.append(sample(2, 21, 0, is_stale=False, us=None))
    counts = WindowCounts.of_samples(batch_of([*rows, sample(1, 19, 0, is_stale=False, us=None)]), BASE_MS)
    found = {
        (row["gid"], row["at"]): row["covered_ms"] for row in lag_rows(counts, BASE_MS, BASE_MS).to_pylist()
    }
    assert found == {(1, 0): 1_000, (1, 1): 3_000, (2, 2): 2_000}


@pytest.mark.parametrize("lags", [(800, 801), (801, 800)])
def test_the_worst_of_a_bucket(lags: tuple[int, int]) -> None:
    """Both are in one bucket, whose worst value is the highest, not the first."""
    rows = [sample(1, second, each, is_stale=False, us=None) for second, each in enumerate(lags)]
    (hour,) = lag_rows(WindowCounts.of_samples(batch_of(rows), BASE_MS), HOUR_MS, BASE_MS).to_pylist()
    assert (hour["bytes_p99"], hour["bytes_max"]) == (801, 801)
