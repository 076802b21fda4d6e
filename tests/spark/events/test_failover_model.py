"""Fail-overs and totals of random groups against the model, and against what truly happened."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from analytics.queries.availability import group_totals
from analytics.queries.failover import failovers
from keelmq.remoting.records import SendGap
from tests.spark.events import model, model_failover
from tests.spark.events.conftest import Fleet
from tests.spark.events.fleet import Life
from tests.spark.frames import rows_by_group

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


@dataclasses.dataclass(frozen=True)
class Truth:
    life: Life
    elections: Sequence[model_failover.Election]


@pytest.fixture(scope="module")
def truths(fleet: Fleet) -> list[Truth]:
    found = []
    for life in fleet.lives:
        elections = model_failover.elections(model.entries_of(life, fleet.from_ts, fleet.to_ts))
        model_failover.make_ready(elections, life.role_changes, life.clock_samples)
        model_failover.join_gaps(elections, life.send_gaps)  # type: ignore[arg-type]
        found.append(Truth(life, elections))
    return found


def test_failovers(fleet: Fleet, truths: list[Truth]) -> None:
    rows = rows_by_group(failovers(fleet.ready, fleet.frames[SendGap]))
    for truth in truths:
        found = sorted(rows.get(truth.life.broker_name, []), key=lambda row: row["n"])
        expected = [each for each in truth.elections if each.is_failover]
        assert [shown(row) for row in found] == [modelled(each) for each in expected], truth.life.broker_name
        parts = ("detect_ms", "elect_ms", "ready_ms")
        assert not any(row[part] is not None and row[part] < 0 for row in found for part in parts)


def shown(row: dict[str, Any]) -> list[Any]:
    return [
        row["event_id"], row["elected_ts"], row["old_master"], row["new_master"], row["master_epoch"],
        row["ready_ts"], (row["killed_program"], row["gap_ms"], row["fault_ts"]),
        (row["detect_ms"], row["elect_ms"], row["ready_ms"]),
    ]  # fmt: skip


def modelled(each: model_failover.Election) -> list[Any]:
    gap = (each.gap.program, each.gap.gap_ms, each.fault_ts) if each.gap else (None, None, None)
    return [
        each.entry.event.event_id, each.elected_ts, each.old_master, each.master, each.epoch, each.ready_ts,
        gap, each.parts,
    ]  # fmt: skip


def test_what_is_measured_is_true(fleet: Fleet, truths: list[Truth]) -> None:
    """A broker's clock may be 5 s off and step: a measured moment is that of the controller's clock."""
    rows = rows_by_group(fleet.ready)
    measured = 0
    for truth in truths:
        mine = rows.get(truth.life.broker_name, [])
        by_n = {(row["event_id"], row["elected_ts"]): row for row in mine}
        for each in truth.elections:
            row = by_n[each.entry.event.event_id, each.elected_ts]
            true = truth.life.true_ready.get((each.master, each.entry.log, each.epoch))
            if each.is_measured:
                assert true is not None
                assert abs(row["ready_ts"] - true) <= row["ready_uncertain_ms"] + 5
                measured += 1
    assert measured > 60


def test_the_clocks_are_worth_it(truths: list[Truth]) -> None:
    found = [each for truth in truths for each in truth.elections]
    unknown = [each for each in found if each.ready_ts is None]
    assert len(found) > 200
    assert 10 < len(unknown) < len(found) / 2
    assert sum(each.gap is not None for each in found) > 20
    assert sum(each.fault_ts is not None for each in found) > 10
    assert sum(each.gap is not None and each.fault_ts is None for each in found) > 5


def test_totals(fleet: Fleet) -> None:
    rows = rows_by_group(group_totals(fleet.history, fleet.spans, fleet.minimum, fleet.ready))
    shares = []
    for life in fleet.lives:
        row: dict[str, Any] | None
        (row,) = rows.get(life.broker_name, [None])
        (state,) = model.group_state(life, fleet.from_ts, fleet.to_ts, 1 << 50).values() or [None]
        assert (row is None) == (state is None), "a group of which nothing is left"
        if row is None or state is None:
            continue
        replica_ms = sum(ms for (_, name), ms in state.replicas.items() if name != "flaps")
        available, judged = model_failover.availability(life, fleet.from_ts, fleet.to_ts)
        entries = model.entries_of(life, fleet.from_ts, fleet.to_ts)
        expected = {name: state.counts[name] for name in model.COUNTS} | {
            "known_ms": state.known_ms,
            "unknown_ms": state.unknown_ms,
            "below_min_ms": state.below_min_ms,
            "no_master_ms": state.no_master_ms,
            "replica_ms": replica_ms,
            "judged_ms": judged or None,
            "available_ms": available if judged else None,
        }
        assert {name: row[name] for name in expected} == expected, life.broker_name
        found = [(each["reason"], each["n"]) for each in row["elections_by_reason"] or []]
        assert found == model.reasons(entries)
        assert row["availability"] == (pytest.approx(available / judged) if judged else None)
        hours = replica_ms / 3_600_000
        assert row["flaps_per_replica_hour"] == (
            pytest.approx(state.counts["flaps"] / hours) if hours else None
        )
        shares.append(row["availability"])
    assert sum(share is None for share in shares) < len(shares) / 2
    assert sum(share is not None and 0 < share < 1 for share in shares) > 15
