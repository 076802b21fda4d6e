"""Roll-ups of brokers whose clocks are off are those of the same brokers with right clocks."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from analytics.compaction.manifest import read_manifests
from analytics.rollup.edges import NEAR_MS
from analytics.rollup.inputs import inputs_of
from analytics.rollup.run import roll_up
from analytics.rollup.store import RollupStore
from analytics.span import span_of
from keelmq.remoting.records import ClockSample, ConsumerLag, HaSample, Record, ReplicaSample
from tests.spark.rollup.conftest import read_rollup
from tests.unit.analytics.compaction.model import HOUR, run, write

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

HOUR_MS, MINUTE_MS = 3_600_000, 60_000
FROM, TO = HOUR + 40 * MINUTE_MS, HOUR + 2 * HOUR_MS + 20 * MINUTE_MS
"""An hour and 40 minutes, in three hours."""
BROKERS = [("right", 1), ("ahead", 1), ("behind", 1), ("hour", 1), ("hour", 2)]
TABLES = {
    "lag": MINUTE_MS,
    "lag_histogram": HOUR_MS,
    "replica_lag": MINUTE_MS,
    "consumer_lag": MINUTE_MS,
    "minimum": HOUR_MS,
}
Clocks = Mapping[tuple[str, int], Callable[[int], int]]
"""The offset of a broker's clock at a moment; of others it is 0."""

STEADY: Clocks = {
    ("ahead", 1): lambda _: -90_000,
    ("behind", 1): lambda _: 90_000,
    ("hour", 1): lambda _: -HOUR_MS,
}
STEPS: Clocks = {
    ("ahead", 1): lambda ts: 0 if ts < HOUR + HOUR_MS + 31 * MINUTE_MS + 7_000 else -90_000,
    ("hour", 1): lambda ts: 0 if ts < HOUR + HOUR_MS + 31 * MINUTE_MS + 7_000 else -5 * HOUR_MS,
}


def right_clock(_: int) -> int:
    return 0


def records(clocks: Clocks, *, until: int = TO) -> Iterator[Record]:
    for ts in range(FROM, until, 5_000):
        for name, broker_id in BROKERS:
            clock = clocks.get((name, broker_id), right_clock)
            own = ts - clock(ts)
            group: dict[str, Any] = {"cluster_name": "c", "broker_name": name, "broker_id": broker_id}
            yield HaSample(
                ts=own, **group, role="master" if broker_id == 1 else "slave", master_epoch=1, max_offset=ts,
                confirm_offset=ts - ts // 7_000 % 5_000, lag_ms=ts // 9_000 % 300, min_in_sync_replicas=1,
                replicas=(ReplicaSample(broker_id=2, ack_offset=ts - 5, lag_ms=3, in_sync=True),),
            )  # fmt: skip
            if ts % MINUTE_MS == 0:
                yield ConsumerLag(
                    ts=own, **group, consumer_group="g", topic="t", lag_messages=ts % 97, lag_ms=1
                )
                least = min(clock(ts - 1_000 * each) for each in range(60))
                yield ClockSample(ts=ts, **group, controller_id="n1", offset_ms=least, heartbeats=60)


def rolled(spark: SparkSession, out: Path, *, outliers: int = 0) -> list[int]:
    """Rolls up what a run of the job does; returns its span. `outliers`: how many hours it leaves out."""
    manifests = read_manifests(str(out))
    span = span_of(manifests, now_ms=TO, from_ts=None, to_ts=None, progress=lambda _: None)
    assert [each.hour_ts for each in span.hours] == [HOUR, HOUR + HOUR_MS, HOUR + 2 * HOUR_MS][
        : len(span.hours)
    ]
    assert len(span.outliers) == outliers
    roll_up(spark, str(out), span.hours, inputs=inputs_of(manifests), ends=span.ends)
    return [span.from_ts, span.to_ts]


def tables(out: Path) -> dict[str, list[dict[str, Any]]]:
    return {name: read_rollup(out, name, width) for name, width in TABLES.items()}


@pytest.fixture(scope="module")
def right(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("right")
    write(folder / "in", records({}))
    run(folder / "in", folder / "out")
    assert rolled(spark, folder / "out") == [FROM, TO - 5_000 + 1]
    found = tables(folder / "out")
    assert [name for name, rows in found.items() if not rows] == []
    return found


@pytest.mark.parametrize("clocks", [STEADY, STEPS], ids=["steady", "steps"])
def test_wrong_clocks_change_nothing(
    spark: SparkSession, tmp_path: Path, right: dict[str, list[dict[str, Any]]], clocks: Clocks
) -> None:
    write(tmp_path / "in", records(clocks))
    run(tmp_path / "in", tmp_path / "out")
    assert rolled(spark, tmp_path / "out") == [FROM, TO - 5_000 + 1]
    found = tables(tmp_path / "out")
    for name in TABLES:
        assert found[name] == right[name], name


def test_without_clock_samples_a_broker_keeps_its_own_time(
    spark: SparkSession, tmp_path: Path, right: dict[str, list[dict[str, Any]]]
) -> None:
    """Nor does it move the end of the span: what it wrote after the others is left out."""
    measured = [
        each
        for each in records(STEADY)
        if not (isinstance(each, ClockSample) and each.broker_name != "right")
    ]
    write(tmp_path / "in", measured)
    run(tmp_path / "in", tmp_path / "out")
    assert rolled(spark, tmp_path / "out", outliers=1)[1] == TO - 5_000 + 1
    lag = tables(tmp_path / "out")["lag"]
    mine = [row for row in lag if row["broker_name"] == "right"]
    assert mine == [row for row in right["lag"] if row["broker_name"] == "right"]
    assert {row["window_ts"] for row in lag if row["broker_name"] == "hour"} == {
        row["window_ts"] + HOUR_MS for row in right["lag"]
        if row["broker_name"] == "hour" and row["window_ts"] + HOUR_MS < TO + NEAR_MS - 5_000
    }  # fmt: skip


def test_rows_after_the_end_of_the_others_are_left_out(spark: SparkSession, tmp_path: Path) -> None:
    """Of a master whose clock is ahead, by how much is not known: they would give each group a gap."""
    last = HOUR + 50 * MINUTE_MS
    ahead: Clocks = {("hour", 1): lambda _: -5 * MINUTE_MS}
    write(tmp_path / "in", [each for each in records(ahead, until=last) if not isinstance(each, ClockSample)])
    run(tmp_path / "in", tmp_path / "out")
    assert rolled(spark, tmp_path / "out") == [FROM, last - 5_000 + 1]
    until = {row["broker_name"]: row["window_ts"] for row in tables(tmp_path / "out")["lag"]}
    assert until == {
        **dict.fromkeys(("right", "ahead", "behind"), last - MINUTE_MS),
        "hour": last + MINUTE_MS,
    }


def test_hour_by_hour_is_all_at_once(
    spark: SparkSession, tmp_path: Path, right: dict[str, list[dict[str, Any]]]
) -> None:
    write(tmp_path / "in", records(STEADY))
    run(tmp_path / "in", tmp_path / "out")
    manifests = read_manifests(str(tmp_path / "out"))
    for each in manifests[:3]:
        assert roll_up(spark, str(tmp_path / "out"), [each], inputs=inputs_of(manifests)) == [each.hour_ts]
    assert tables(tmp_path / "out") == right


def test_run_by_run_is_all_at_once(
    spark: SparkSession, tmp_path: Path, right: dict[str, list[dict[str, Any]]]
) -> None:
    """What a later run brings changes the hours that its rows belong to, and these only."""
    every = list(records(STEADY))
    until = HOUR + HOUR_MS + 10 * MINUTE_MS
    early = [*records(STEADY, until=until)]
    seen = {msgspec.json.encode(each) for each in early}
    late = [each for each in every if msgspec.json.encode(each) not in seen]
    out = tmp_path / "out"
    for at, some in enumerate((early, late)):
        write(tmp_path / "in", some, name=f"n-{at}.jsonl")
        run(tmp_path / "in", out)
        rolled(spark, out)
    assert tables(out) == right
    manifests = read_manifests(str(out))
    assert RollupStore(str(out)).stale(manifests[:3], [MINUTE_MS, HOUR_MS], inputs_of(manifests)) == []
