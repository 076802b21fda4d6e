"""A replica that is down keeps its last acknowledgement."""

import random
from typing import TYPE_CHECKING, Any

import pytest

from analytics.queries.replicas import REPLICA_COLUMNS, filled
from tests.spark.samples.frames import by_window

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

W = 60_000
LAG = "cluster_name string, broker_name string, window int, window_ts bigint, max_offset bigint"
REPLICAS = f"""cluster_name string, broker_name string, window int, window_ts bigint, broker_id bigint,
    {", ".join(f"{name} bigint" for name in REPLICA_COLUMNS)}"""
Row = tuple[Any, ...]
Masters = dict[tuple[str, int], int | None]
"""max_offset by group and window."""
Replicas = dict[tuple[str, int, int], Row]
"""REPLICA_COLUMNS by group, window and brokerId."""


def found(spark: "SparkSession", masters: Masters, replicas: Replicas, window: int = W) -> dict[Any, Row]:
    lag = [("c", name, window, at, end) for (name, at), end in masters.items()]
    own = [("c", name, window, at, broker, *row) for (name, at, broker), row in replicas.items()]
    rows = filled(spark.createDataFrame(lag, LAG), spark.createDataFrame(own, REPLICAS))
    (of_width,) = by_window(rows, "broker_id").values()
    return {key: tuple(row.values()) for key, row in of_width.items()}


def test_later_windows_are_filled(spark: "SparkSession") -> None:
    """Replica 2 is down after the second window, and back in the seventh; replica 3 comes late and had all.

    The fourth window has no sample of the current master, the fifth no row at all.
    """
    masters = {("g", at * W): end for at, end in {0: 100, 1: 200, 2: 300, 3: None, 5: 600, 6: 700}.items()}
    replicas = {
        ("g", 0, 2): (60, 5, 7, 0, 100, W - 1_000),
        ("g", W, 2): (30, 50, 70, 9, 150, W + 30_000),
        ("g", 5 * W, 3): (10, 0, 0, 0, 900, 5 * W + 10_000),
        ("g", 6 * W, 2): (10, 1, 2, 3, 699, 7 * W - 1),
    }
    rows = found(spark, masters, replicas)
    short = {(key[2], key[1] // W): (*row[:3], row[-1]) for key, row in rows.items()}
    assert short == {
        (2, 0): (60, 5, 7, False),
        (2, 1): (30, 50, 70, False),
        (2, 2): (0, 150, 70 + 90_000, True),
        (2, 5): (0, 450, 70 + 270_000, True),
        (2, 6): (10, 1, 2, False),
        (3, 5): (10, 0, 0, False),
        (3, 6): (0, 0, 0, True),
    }


def expected(masters: Masters, replicas: Replicas) -> dict[Any, Row]:
    """Plain Python, from the definition."""
    rows: dict[Any, Row] = {}
    for name, broker in {(name, broker) for name, _, broker in replicas}:
        own = {at: row for (group, at, of), row in replicas.items() if (group, of) == (name, broker)}
        for at in {
            at for (group, at), end in masters.items() if group == name and end is not None
        } | own.keys():
            earlier = [each for each in own if each <= at]
            if at in own:
                rows[name, at, broker] = (*own[at], False)
            elif earlier:
                _, _, ms, _, ack, ts = own[max(earlier)]
                behind = max((masters[name, at] or 0) - ack, 0)
                rows[name, at, broker] = (0, behind, ms + at + W - ts if behind else 0, 0, ack, ts, True)
    return rows


@pytest.mark.parametrize("seed", range(3))
def test_any_replicas(spark: "SparkSession", seed: int) -> None:
    dice = random.Random(seed)
    masters = {
        (dice.choice("bag"), dice.randrange(180) * W): dice.choice([None, *[dice.randint(0, 1_000)] * 9])
        for _ in range(200)
    }
    replicas = {
        (dice.choice("abgx"), dice.randrange(180) * W, dice.randint(-1, 2)): tuple(
            dice.randint(0, 1_000) for _ in REPLICA_COLUMNS
        )
        for _ in range(40)
    }
    assert found(spark, masters, replicas) == expected(masters, replicas)
