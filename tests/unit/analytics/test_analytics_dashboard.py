"""dashboard.json from rows: order, grouping, names, and groups of which only a part is known."""

from pathlib import Path
from typing import Any

import msgspec

from analytics.dashboard import Dashboard, Lag, Parts, Rows, Totals, assemble_groups

EXAMPLE = Path(__file__).parents[2] / "fixtures" / "dashboard" / "example.json"
EMPTY: dict[str, list[Any]] = {name: [] for name in Parts.__struct_fields__}


def row(broker_name: str, **fields: Any) -> dict[str, Any]:
    return {"cluster_name": "c", "broker_name": broker_name, **fields}


def lag_row(broker_name: str, window_ts: int, value: int) -> dict[str, Any]:
    values = {name: value for name in Lag.__struct_fields__ if name != "ts"}
    return row(broker_name, window_ts=window_ts, **values)


def change_row(event_id: int) -> dict[str, Any]:
    return row(
        "a", ts=1, event_id=event_id, type="electMaster", reason="", left=[1], joined=[], sync_state_set=[2],
        sync_state_set_epoch=4, master_broker_id=None, master_epoch=3, unclean=False, is_shrink=False,
    )  # fmt: skip


def test_series_are_parallel_and_in_time_order() -> None:
    parts = Parts(**EMPTY | {"lag": [lag_row("a", 20, 2), lag_row("b", 5, 9), lag_row("a", 10, 1)]})
    first, second = assemble_groups(parts)
    assert (first.broker_name, first.lag.ts, first.lag.ms_p99) == ("a", [10, 20], [1, 2])
    assert (second.broker_name, second.lag.bytes_max) == ("b", [9])


def test_members_and_time_out() -> None:
    spans = [
        row("a", broker_id=2, from_ts=5, to_ts=9, state="in_sync"),
        row("a", broker_id=2, from_ts=0, to_ts=5, state="out"),
        row("a", broker_id=1, from_ts=0, to_ts=9, state="master"),
    ]
    out = [row("a", broker_id=2, out_ms=5)]
    (group,) = assemble_groups(Parts(**EMPTY | {"members": spans, "out_of_sync": out}))
    assert group.totals == Totals(out_of_sync_ms={"1": 0, "2": 5})
    assert msgspec.json.decode(msgspec.json.encode(group.members)) == [
        {"broker_id": 1, "spans": [{"from": 0, "to": 9, "state": "master"}]},
        {
            "broker_id": 2,
            "spans": [{"from": 0, "to": 5, "state": "out"}, {"from": 5, "to": 9, "state": "in_sync"}],
        },
    ]


def test_changes_are_in_the_order_of_the_log() -> None:
    totals = [row("a", shrinks=1, expands=2, elections=3, unclean_elections=0, below_min_ms=7, flaps=1)]
    parts = Parts(**EMPTY | {"changes": [change_row(9), change_row(3)], "totals": totals})
    (group,) = assemble_groups(parts)
    assert [change.event_id for change in group.changes] == [3, 9]
    assert (group.totals.expands, group.totals.below_min_ms) == (2, 7)


def test_the_example_is_one() -> None:
    """The page's example has this shape, and nothing that we would not write."""
    example = msgspec.json.decode(EXAMPLE.read_bytes(), type=Dashboard)
    assert example.rows == msgspec.convert(msgspec.to_builtins(example.rows), Rows)
    assert msgspec.json.decode(msgspec.json.encode(example)) == msgspec.json.decode(EXAMPLE.read_bytes())
