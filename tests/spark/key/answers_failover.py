"""What is true of fail-overs, availability, clocks and the quality of what was read."""

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.spark.key.answers_events import counts_of, epoch_gaps, flaps, is_election, pieces_of, recorded
from tests.spark.key.answers_samples import is_stale
from tests.spark.key.expected import Key, Near, Row, near, tolerance_of
from tests.spark.key.files import Known, Written
from tests.spark.key.world import DELAY_MS, HOUR_MS, MINUTE_MS, Event, Gap, Ready

SLACK_MS, PRODUCER_MS = 1_000, 10_000
STEP_MS = 200
KINDS = ("ha_sample", "role_change", "controller_event", "send_gap", "clock_sample", "consumer_lag")


def failovers(known: Known) -> dict[Key, Row]:
    """Returns the run table `failovers` by group, log and event id."""
    group, found = known.group, {}
    for event in recorded(known):
        if not is_election(event) or event.before is None or event.before.epoch == 0:
            continue
        lost, heard, detected = _loss(known, event)
        gap = _gap(known, event, lost)
        fault = _fault(gap, heard, event.ts if detected is None else detected)
        ready = _ready(known, event)
        slack = _ready_tolerance(known, ready)
        found[group.name, f"{group.name}-log-{event.log}", event.event_id] = {
            "ts": event.ts, "elected_ts": event.ts, "old_master": lost, "new_master": event.after.master,
            "master_epoch": event.after.epoch, "reason": event.reason, "unclean": event.unclean,
            "last_heartbeat_ts": heard, "detected_ts": detected, "fault_ts": fault,
            "gap_ms": gap.ended - gap.started if gap else None,
            "killed_program": gap.program if gap else None,
            "detect_ms": _between(heard if fault is None else fault, detected),
            "elect_ms": _between(detected, event.ts),
            "ready_ts": near(ready.ts, slack), "ready_ms": near(ready.ts - event.ts, slack),
            "ready_uncertain_ms": None if group.features.unmeasured else Near(DELAY_MS / 2, DELAY_MS / 2),
        }  # fmt: skip
    return found


def _between(start: int | None, end: int | None) -> int | None:
    return None if start is None or end is None or end < start else end - start


def _loss(known: Known, event: Event) -> tuple[int | None, int | None, int | None]:
    """Returns the master that was lost, when it was heard last and when that was detected. While nobody could
    be elected, it stands in the event that cleared it."""
    assert event.before is not None
    if event.before.master is not None:
        return event.before.master, event.heard, event.detected
    clearing = [each for each in recorded(known) if each.ts < event.ts and each.type == "electMaster"][-1]
    assert clearing.before is not None
    return clearing.before.master, clearing.heard, clearing.detected


def _gap(known: Known, event: Event, lost: int | None) -> Gap | None:
    """Returns the producer's gap that this fail-over caused, if its clock is close enough to tell."""
    for gap in known.group.gaps:
        if gap.started <= event.ts <= gap.ended and gap.broker in (0, lost):
            early, late = gap.started + gap.skew_ms, gap.ended + gap.skew_ms
            return gap if max(early - event.ts, event.ts - late, 0) <= PRODUCER_MS else None
    return None


def _fault(gap: Gap | None, heard: int | None, latest: int) -> int | None:
    """Returns when the producer's clock says that the fault was, if that is possible."""
    if gap is None:
        return None
    started = gap.started + gap.skew_ms
    return started if (heard is None or started >= heard - SLACK_MS) and started <= latest else None


def _ready(known: Known, event: Event) -> Ready:
    mine = (event.log, event.after.epoch, event.after.master, "master")
    found = [each for each in known.group.ready if (each.log, each.epoch, each.broker, each.role) == mine]
    return min(found, key=lambda each: each.ts)


def _ready_tolerance(known: Known, ready: Ready) -> int:
    """A role change is corrected by what was measured, however little that is."""
    return 0 if known.group.features.unmeasured else DELAY_MS if known.clocks else tolerance_of(
        known.group, ready.broker, ready.ts
    )  # fmt: skip


def group_totals(known: Known, minimum: Sequence[Row], to_ts: int) -> dict[Key, Row]:
    """Returns the run table `group_totals` by group. `minimum`: over all hours."""
    pieces = pieces_of(known, minimum, to_ts)
    events = recorded(known)
    counts: Counter[str] = Counter()
    for event in events:
        counts.update(counts_of(event))
    seen = [each for each in pieces if each.view is not None]
    judged = [each for each in seen if each.minimum is not None]
    available = [each for each in judged if each.is_ready and len(_members(each.view)) >= (each.minimum or 0)]
    below = sum(each.ms for each in judged if len(_members(each.view)) < (each.minimum or 0))
    known_ms, judged_ms = _ms(seen), _ms(judged)
    replica_ms = sum(each.ms * len(each.view.replicas) for each in seen if each.view)
    slack = sum(row["slack"] for row in minimum)
    late = DELAY_MS * sum(is_election(each) for each in events) + slack
    returns = len(flaps(events))
    reasons = Counter(re.sub(r"\d+", "#", each.reason) for each in events if is_election(each))
    row = {
        "known_ms": known_ms, "unknown_ms": _ms(pieces) - known_ms, "replica_ms": replica_ms,
        "no_master_ms": sum(each.ms for each in seen if each.view and each.view.master is None),
        "below_min_ms": near(below, slack), "judged_ms": judged_ms,
        "available_ms": near(_ms(available), late),
        "availability": Near(_ms(available) / judged_ms, late / judged_ms + 1e-12), "flaps": returns,
        "flaps_per_replica_hour": Near(returns * HOUR_MS / replica_ms, 1e-12),
        "elections_by_reason": [{"reason": reason, "n": n} for reason, n in sorted(reasons.items())],
        **{name: counts[name] for name in ("shrinks", "expands", "elections", "unclean_elections")},
    }  # fmt: skip
    return {(known.group.name,): row}


def _ms(pieces: Sequence[Any]) -> int:
    return sum(each.ms for each in pieces)


def _members(view: Any) -> tuple[int, ...]:
    found: tuple[int, ...] = view.members
    return found


def clock_skew(known: Known) -> list[Row]:
    """Returns the measured rows of the run table `clock_skew`: a row per broker, hour and active controller,
    and where the clock stepped."""
    found = []
    in_order = sorted(known.clocks, key=lambda each: (each.broker, each.ts))
    pieces: list[list[Any]] = []
    for one, other in itertools.pairwise([None, *in_order]):
        assert other is not None
        goes_on = (
            one is not None
            and (one.broker, one.ts // HOUR_MS, one.controller)
            == (other.broker, other.ts // HOUR_MS, other.controller)
            and abs(one.offset_ms - other.offset_ms) <= STEP_MS
        )
        if goes_on:
            pieces[-1].append(other)
        else:
            pieces.append([other])
    for mine in pieces:
        offsets = [each.offset_ms for each in mine]
        true = known.group.offset_at(mine[0].broker, mine[0].ts)
        assert true <= min(offsets) <= true + DELAY_MS, (
            "the measurement is wrong by more than a heartbeat's delay"
        )
        found.append(
            {
                "broker_name": known.group.name, "broker_id": mine[0].broker,
                "from_ts": mine[0].ts - MINUTE_MS,
                "to_ts": mine[-1].ts, "offset_ms": min(offsets), "uncertain_ms": max(offsets) - min(offsets),
                "samples": len(mine), "controller_id": mine[0].controller,
            }
        )  # fmt: skip
    return found


def quality_of_files(written: Written) -> dict[Key, Row]:
    """Returns what `data_quality` says of what was read, by kind of record."""
    return {
        (kind,): {
            "rows": written.rows[kind], "duplicates": written.duplicates[kind],
            "bad_lines": written.bad_lines[kind], "unread_files": written.unread_files[kind], "outliers":
            written.outliers[kind],
        }
        for kind in KINDS
    }  # fmt: skip


def quality_of_group(known: Known, to_ts: int) -> Row:
    """Returns what `data_quality` says of a group, whatever kind of record a number is about."""
    group = known.group
    masters = [each for each in known.samples if each.role == "master"]
    stale = [is_stale(known, each) for each in masters]
    above = [
        each.confirm_offset > each.max_offset and not late for each, late in zip(masters, stale, strict=True)
    ]
    offsets = [abs(each.offset_ms) for each in known.clocks]
    pieces = pieces_of(known, [], to_ts)
    return {
        "stale_master": sum(stale), "confirm_above_max": sum(above), "epoch_gaps": epoch_gaps(known),
        "stale_roles": sum(each.is_late for each in group.ready), "logs": len(group.log_starts),
        "unknown_ms": _ms([each for each in pieces if each.view is None]),
        "skew_max_ms": near(max(offsets, default=0), DELAY_MS), "skew_unknown": 0,
    }  # fmt: skip
