"""A replica that is down keeps its last acknowledgement."""

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from analytics.rollup.filled import HOUR_MS, LAG_COLUMNS, ReplicaFill
from analytics.rollup.tables import LAG, REPLICA_LAG

W = 60_000
GROUP = ("c", "g")
Row = tuple[Any, ...]


def lag_of(rows: list[Row]) -> pa.Table:
    """Rows: group, window, max_offset."""
    schema = pa.schema([LAG.schema.field(name) for name in LAG_COLUMNS])
    named = [dict(zip(LAG_COLUMNS, (*GROUP[:1], *row), strict=True)) for row in rows]
    return pa.Table.from_pylist(named, schema)


def replicas_of(rows: list[Row]) -> pa.Table:
    """Rows: group, window, and the other columns of the table."""
    named = [dict(zip(REPLICA_LAG.columns, (*GROUP[:1], *row), strict=True)) for row in rows]
    return pa.Table.from_pylist(named, REPLICA_LAG.schema)


def test_later_windows_are_filled() -> None:
    """Replica 2 is down after the second window, and back in the sixth; replica 3 comes late and had all.

    The fourth window has no sample of the current master, the fifth no row at all.
    """
    max_offsets = {0: 100, 1: 200, 2: 300, 3: None, 5: 600, 6: 700}
    lag = lag_of([("g", at * W, offset) for at, offset in max_offsets.items()])
    replicas = replicas_of(
        [
            ("g", 0, 2, 60, 5, 7, 0, 100, W - 1_000),
            ("g", W, 2, 30, 50, 70, 9, 150, W + 30_000),
            ("g", 5 * W, 3, 10, 0, 0, 0, 900, 5 * W + 10_000),
            ("g", 6 * W, 2, 10, 1, 2, 3, 699, 7 * W - 1),
        ]
    )
    rows = ReplicaFill(W).hour(0, lag, replicas).to_pylist()
    found = [
        (
            row["broker_id"],
            row["window_ts"] // W,
            row["samples"],
            row["bytes_max"],
            row["ms_max"],
            row["is_filled"],
        )
        for row in rows
    ]
    assert sorted(found) == [
        (2, 0, 60, 5, 7, False),
        (2, 1, 30, 50, 70, False),
        (2, 2, 0, 150, 70 + 90_000, True),
        (2, 5, 0, 450, 70 + 270_000, True),
        (2, 6, 10, 1, 2, False),
        (3, 5, 10, 0, 0, False),
        (3, 6, 0, 0, 0, True),
    ]
    assert [(row["window_ts"], row["broker_id"]) for row in rows] == sorted(
        (row["window_ts"], row["broker_id"]) for row in rows
    )


def expected(masters: dict[tuple[str, int], int], replicas: dict[tuple[str, int, int], Row]) -> list[Row]:
    """Plain Python, from the definition. Keys: group, window; and brokerId."""
    found: list[Row] = []
    for name, broker in {(name, broker) for name, _, broker in replicas}:
        own = {at: row for (group, at, of), row in replicas.items() if (group, of) == (name, broker)}
        for at in {window for group, window in masters if group == name} | own.keys():
            earlier = [each for each in own if each <= at]
            if at in own:
                found.append((name, at, broker, *own[at], False))
            elif earlier:
                _, _, ms, _, ack, ts = own[max(earlier)]
                behind = max(masters[name, at] - ack, 0)
                grown = ms + at + W - ts if behind else 0
                found.append((name, at, broker, 0, behind, grown, 0, ack, ts, True))
    return sorted(found)


windows = st.integers(0, 179).map(lambda each: each * W)
numbers = st.integers(0, 1_000)


@given(
    st.dictionaries(st.tuples(st.sampled_from("bag"), windows), numbers, max_size=40),
    st.dictionaries(
        st.tuples(st.sampled_from("abgx"), windows, st.integers(-1, 2)),
        st.tuples(numbers, numbers, numbers, numbers, numbers, numbers),
        max_size=12,
    ),
)
def test_hour_by_hour(masters: dict[tuple[str, int], int], replicas: dict[tuple[str, int, int], Row]) -> None:
    fill, found = ReplicaFill(W), []
    for hour_ts in (0, HOUR_MS, 2 * HOUR_MS):
        of_hour = range(hour_ts, hour_ts + HOUR_MS)
        lag = lag_of([(*key, end) for key, end in sorted(masters.items()) if key[1] in of_hour])
        own = replicas_of([(*key, *row) for key, row in sorted(replicas.items()) if key[1] in of_hour])
        rows = fill.hour(hour_ts, lag, own)
        found += [tuple(row.values())[1:] for row in rows.to_pylist()]
        assert rows.schema.names[:4] == ["cluster_name", "broker_name", "window_ts", "broker_id"]
    assert sorted(found) == expected(masters, replicas)
