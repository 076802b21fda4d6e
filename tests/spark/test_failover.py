"""The fail-over table: random histories against the model, and the cases that decide a definition."""

from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from analytics.failover import failovers
from analytics.inputs import good, read_records
from analytics.sync_state_set import group_history
from keelmq.remoting.records import ControllerEvent, GroupView, Record, RoleChange, SendGap
from tests.spark import model
from tests.spark.conftest import World, put_records, rows_by_group
from tests.spark.histories import CLUSTER, START_TS

pytestmark = pytest.mark.spark

Table = dict[str, list[dict[str, Any]]]

NAMES = (
    "event_id", "elected_ts", "old_master", "new_master", "master_epoch", "last_heartbeat_ts", "detected_ts",
    "ready_ts", "fault_ts", "killed_program", "gap_ms",
)  # fmt: skip


def test_against_the_model(world: World) -> None:
    table = failovers(world.group_history, world.frames[RoleChange], world.frames[SendGap])
    rows = rows_by_group(table)
    count = with_gap = 0
    for history in world.histories:
        found = sorted(rows.get(history.broker_name, []), key=lambda row: row["event_id"])
        expected = model.failovers(history)
        assert [tuple(row[name] for name in NAMES) for row in found] == [
            tuple(getattr(each, name) for name in NAMES) for each in expected
        ]
        assert [(row["detect_ms"], row["elect_ms"], row["ready_ms"]) for row in found] == [
            each.parts for each in expected
        ]
        count += len(found)
        with_gap += sum(row["gap_ms"] is not None for row in found)
    assert count > 200
    assert with_gap > 50


def test_a_failover_from_its_records(table: Table) -> None:
    (row,) = table["plain"]
    assert (row["old_master"], row["new_master"], row["master_epoch"]) == (1, 2, 2)
    assert (row["detect_ms"], row["elect_ms"], row["ready_ms"]) == (350, 50, 40)
    assert (row["killed_program"], row["gap_ms"]) == ("broker-1", 460)


def test_after_a_cleared_master(table: Table) -> None:
    """Nobody could be elected: the loss was detected with the clearing. The old master may be the new one."""
    first, second = table["cleared"]
    assert (first["old_master"], first["new_master"], first["elected_ts"]) == (1, 1, START_TS + 5_000)
    assert (first["detect_ms"], first["elect_ms"], first["ready_ms"]) == (800, 4_100, None)
    assert second["detected_ts"] is None, "a hand-over: nothing was detected"


def test_the_first_election_is_none(table: Table) -> None:
    assert "first" not in table


def test_an_old_master_before_the_history(table: Table) -> None:
    """The files begin when the group had no master: who it was is not known."""
    (row,) = table["unknown"]
    assert (row["old_master"], row["new_master"], row["gap_ms"]) == (None, 2, None)


def test_the_nearest_gap_wins_and_counts_once(table: Table) -> None:
    """Two fail-overs of the same broker within one gap; two producers at one fail-over; clocks 1 s apart."""
    assert {row["event_id"]: row["gap_ms"] for row in table["gaps"]} == {30: 1_600, 31: 100, 32: None}


def test_clocks_that_disagree(table: Table) -> None:
    (row,) = table["clocks"]
    assert (row["detect_ms"], row["elect_ms"], row["ready_ms"]) == (0, 0, 0)


# ---------------------------------------------------------------------- records by hand
Master = tuple[int | None, int]
WHO: dict[str, Any] = {"cluster_name": CLUSTER, "broker_name": "to be named"}


def view(master: int | None, master_epoch: int) -> GroupView:
    return GroupView(
        master_broker_id=master,
        master_epoch=master_epoch,
        sync_state_set=() if master is None else (master,),
        sync_state_set_epoch=master_epoch,
        replicas=(1, 2, 3),
    )


def event(
    event_id: int, type: str, before: GroupView | None, after: GroupView, *, ts: int, **more: Any
) -> ControllerEvent:
    return ControllerEvent(
        **WHO,
        ts=START_TS + ts,
        event_id=event_id,
        type=type,
        controller_id="n0",
        before=before,
        after=after,
        **more,
    )


def election(event_id: int, before: Master, after: Master, *, ts: int, **times: int) -> ControllerEvent:
    absolute = {name: START_TS + time for name, time in times.items()}
    return event(event_id, "electMaster", view(*before), view(*after), ts=ts, **absolute)


def life(nobody: Master, first: Master) -> list[ControllerEvent]:
    """Registered, and the first master."""
    return [event(1, "applyBrokerId", None, view(*nobody), ts=-50), election(2, nobody, first, ts=-40)]


def ready(broker_id: int, master_epoch: int, *, ts: int) -> RoleChange:
    return RoleChange(
        **WHO, ts=START_TS + ts, broker_id=broker_id, role="master", master_epoch=master_epoch,
        previous_role="slave", previous_epoch=0, started_ts=0, max_offset=0, confirm_offset=0,
    )  # fmt: skip


def gap(broker_id: int, *, started: int, ended: int) -> SendGap:
    return SendGap(
        **WHO, ts=START_TS + ended, broker_id=broker_id, program=f"broker-{broker_id}",
        started_ts=START_TS + started, gap_ms=ended - started,
    )  # fmt: skip


CASES: dict[str, list[Record]] = {
    "plain": [
        *life((None, 0), (1, 1)),
        election(30, (1, 1), (2, 2), ts=1_000, last_heartbeat_ts=200, detected_ts=950),
        ready(2, 2, ts=1_040),
        ready(2, 2, ts=9_000),  # said again, by a restart
        ready(3, 2, ts=1_005),  # not the heir
        gap(1, started=600, ended=1_060),
        gap(2, started=600, ended=1_060),  # another broker's
    ],
    "cleared": [
        *life((None, 0), (1, 1)),
        election(30, (1, 1), (None, 2), ts=1_000, last_heartbeat_ts=100, detected_ts=900),
        election(31, (None, 2), (1, 3), ts=5_000),
        election(32, (1, 3), (2, 4), ts=9_000),
    ],
    "first": [*life((None, 0), (1, 1)), ready(1, 1, ts=5)],
    "unknown": [
        event(29, "snapshot", None, view(None, 2), ts=0),
        election(31, (None, 2), (2, 3), ts=500),
    ],
    "gaps": [
        *life((None, 0), (1, 1)),
        election(30, (1, 1), (2, 2), ts=1_000),
        election(31, (2, 2), (1, 3), ts=1_500),
        election(32, (1, 3), (2, 4), ts=2_000),
        gap(1, started=900, ended=2_500),
        gap(1, started=400, ended=2_600),
        gap(2, started=2_500, ended=2_600),  # 1 s after the election: still its own
        gap(2, started=2_501, ended=2_601),  # too late
    ],
    "clocks": [
        *life((None, 0), (1, 1)),
        election(30, (1, 1), (2, 2), ts=1_000, last_heartbeat_ts=1_300, detected_ts=1_200),
        ready(2, 2, ts=990),
    ],
}


@pytest.fixture(scope="module")
def table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Table:
    """The fail-overs of every case, in order."""
    root = put_records(
        tmp_path_factory.mktemp("cases"),
        *(
            msgspec.structs.replace(record, broker_name=name)
            for name, records in CASES.items()
            for record in records
        ),
    )
    kinds = (ControllerEvent, RoleChange, SendGap)
    frames = {kind: good(read_records(spark, [str(root)], kind)) for kind in kinds}
    found = failovers(group_history(frames[ControllerEvent]), frames[RoleChange], frames[SendGap])
    return rows_by_group(found.orderBy("event_id"))
