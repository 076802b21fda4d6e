"""The run tables together: of a chaos run from its history, and data quality."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from analytics.queries.quality import READ_SCHEMA
from analytics.queries.run_tables import EventFrames, run_tables
from cli.lab.chaos.checkers import recoveries, sort
from cli.lab.chaos.history import AnyEntry, Fault, Send
from cli.lab.chaos.judge import put_gaps
from keelmq.remoting.records import (
    ClockSample,
    ControllerEvent,
    GroupView,
    HaSample,
    Record,
    RoleChange,
    SendGap,
    decode_record,
)
from tests.spark.events.cases import WHO, alter, clock, election, life, named, ready, sample, snapshot, view
from tests.spark.frames import frames_of, rows_by_group
from tests.spark.histories import START_TS

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

FAULTS = 12
BROKERS = {"broker-1": 1, "broker-2": 2}
LAG_SCHEMA = "cluster_name string, broker_name string, stale_master bigint, above_max bigint"


class ChaosRun:
    """A master is killed FAULTS times: its history by the lab's clock, its telemetry by the programs'."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.entries: list[AnyEntry] = []
        self.records: list[Record] = []
        self.expected: list[tuple[int, int, int]] = []
        """Of each fault: detect_ms, elect_ms, ready_ms."""
        self._count = 0

    def run(self) -> None:
        now, master = 1_000, 1
        group = view(1, 1, replicas=(1, 2))
        self.records += life(1, ts=0, start_id=1)[1:]
        for number in range(FAULTS):
            self._send(now, now + 2)
            fault = now = now + self._random.randint(500, 30_000)
            self._fault("start", fault, number, master)
            self._fault("placed", fault + 1, number, master)
            blocked = fault + self._random.randint(2, 50)
            now = detected = fault + self._random.randint(100, 3_000)
            now = elected = detected + self._random.randint(0, 40)
            heir = 3 - master
            other = GroupView(
                master_broker_id=heir, master_epoch=group.master_epoch + 1, sync_state_set=(heir,),
                sync_state_set_epoch=group.sync_state_set_epoch + 1, replicas=(1, 2),
            )  # fmt: skip
            self.records.append(
                election(
                    100 + number, group, other, ts=elected, last_heartbeat_ts=fault - 20, detected_ts=detected
                )
            )
            now = taken = elected + self._random.randint(1, 300)
            self.records.append(ready(heir, other.master_epoch, ts=taken))
            self._send(blocked, taken + 1)
            self._fault("end", taken + 100, number, master)
            self.expected.append((detected - fault, elected - detected, taken - elected))
            group, master, now = other, heir, taken + 200

    def _send(self, begun: int, ended: int) -> None:
        self._count += 1
        self.entries.append(Send(t=begun * 1_000, type="invoke", number=self._count))
        self.entries.append(Send(t=ended * 1_000, type="ok", number=self._count, queue=0, offset=self._count))

    def _fault(self, phase: Any, ms: int, number: int, master: int) -> None:
        name = f"broker-{master}"
        self.entries.append(
            Fault(t=ms * 1_000, phase=phase, number=number, kinds=("kill",), targets=(name,), master=name)
        )


def gaps_in(directory: Path) -> list[Record]:
    lines = [line for path in directory.rglob("*.jsonl") for line in path.read_bytes().splitlines()]
    return [decode_record(line) for line in lines]


AHEAD_MS = 3_600_000

CASES: dict[str, Sequence[Record]] = {
    "sound": [*life(ts=10), ready(1, 1, ts=30), clock(1, 3, ts=60_000), sample(1, ts=40)],
    "bad": [
        *life(ts=10, start_id=50, log_id="a"),
        alter(55, view(1, 5), view(1, 5, 1, 2, set_epoch=6), ts=5_000, log_id="a"),
        snapshot(2, view(1, 9), ts=600_000, log_id="b"),
        clock(2, -7_000, ts=60_000),
        clock(2, -7_100, ts=120_000),
        ready(1, 1, ts=-5_000 + 20),
        ready(3, 1, ts=50),
    ],
    "an hour ahead": [
        *life(ts=10),
        ready(1, 1, ts=AHEAD_MS + 30),
        election(10, view(1, 1), view(2, 2), ts=70_000),
        ready(2, 2, ts=AHEAD_MS + 70_050),
        alter(11, view(2, 2), view(2, 2, 1, 2, set_epoch=3), ts=75_000),
        clock(1, -AHEAD_MS, ts=60_000),
        clock(2, -AHEAD_MS, ts=120_000),
    ],
}


@pytest.fixture(scope="module")
def chaos() -> ChaosRun:
    made = ChaosRun(7)
    made.run()
    return made


@pytest.fixture(scope="module")
def tables(
    spark: SparkSession, chaos: ChaosRun, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, DataFrame]:
    folder = tmp_path_factory.mktemp("run")
    put_gaps(folder, recoveries(sort(chaos.entries)), BROKERS, began_wall_ms=START_TS)
    gaps = [each for each in gaps_in(folder) if isinstance(each, SendGap)]
    assert len(gaps) == FAULTS
    records = named({"chaos": [*chaos.records, *gaps], **CASES})
    frames = frames_of(spark, tmp_path_factory.mktemp("frames"), records)
    read = spark.createDataFrame(
        [("ha_sample", 100, 7, 2, 3, 1, 5, 99), ("send_gap", 10, 0, 0, 0, 0, 7, 8)], READ_SCHEMA
    )
    lag = spark.createDataFrame(
        [(WHO["cluster_name"], "bad", 4, 1), (WHO["cluster_name"], "bad", 2, 0)], LAG_SCHEMA
    )
    kinds = (ControllerEvent, RoleChange, SendGap, ClockSample, HaSample)
    return run_tables(
        EventFrames(*(frames[kind] for kind in kinds)), read, lag, from_ts=START_TS - 10_000,
        to_ts=START_TS + 3_600_000,
    )  # fmt: skip


def test_the_fail_overs_of_a_chaos_run(chaos: ChaosRun, tables: dict[str, DataFrame]) -> None:
    """One per fault; gap_ms is the recovery that the lab prints, and the parts are what was done."""
    rows = sorted(rows_by_group(tables["failovers"])["chaos"], key=lambda row: row["n"])
    found = recoveries(sort(chaos.entries))
    assert [row["gap_ms"] for row in rows] == [each.ms for each in found]
    assert [row["killed_program"] for row in rows] == [each.master for each in found]
    assert [row["fault_ts"] - START_TS for row in rows] == [each.start_t // 1_000 for each in found]
    assert [(row["detect_ms"], row["elect_ms"], row["ready_ms"]) for row in rows] == chaos.expected


def test_data_quality(tables: dict[str, DataFrame]) -> None:
    rows = {
        (row["record"], row["broker_name"]): {
            name: value
            for name, value in row.asDict().items()
            if value is not None and name not in ("record", "cluster_name", "broker_name")
        }
        for row in tables["data_quality"].collect()
    }
    assert rows["ha_sample", None] == {
        "rows": 100, "duplicates": 7, "bad_lines": 2, "outliers": 3, "unread_files": 1,
        "from_ts": 5, "to_ts": 99,
    }  # fmt: skip
    assert rows["ha_sample", "bad"] == {"stale_master": 6, "confirm_above_max": 1}
    assert rows["role_change", "bad"] == {"stale_master": 1}
    events = rows["controller_event", "bad"]
    assert (events["epoch_gaps"], events["logs"], events["unknown_ms"]) == (1, 2, 4_980)
    assert rows["clock_sample", "bad"] == {"skew_max_ms": 7_100, "skew_unknown": 1}
    sound = rows["controller_event", "sound"]
    assert (sound["epoch_gaps"], sound["logs"], sound.get("unknown_ms")) == (0, 1, None)
    assert rows["clock_sample", "sound"] == {"skew_max_ms": 3, "skew_unknown": 0}
    assert ("role_change", "sound") not in rows
    assert ("role_change", "an hour ahead") not in rows
    assert rows["clock_sample", "an hour ahead"] == {"skew_max_ms": AHEAD_MS, "skew_unknown": 0}
