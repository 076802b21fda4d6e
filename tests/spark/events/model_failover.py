"""Fail-overs, clocks and availability in plain Python, from their definitions."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from keelmq.remoting.records import ClockSample, RoleChange, SendGap
from tests.spark.events.fleet import HOUR_MS, Life
from tests.spark.events.model import Entry, entries_of, hour_of, is_election, minimum_at, steps_of

SLACK_MS, PRODUCER_SKEW_MS, SKEW_MAX_MS, REACH_MS, STEP_MS = 1_000, 10_000, 60_000, 180_000, 200


@dataclass
class Election:
    """`loss`: (last heartbeat, detected)."""

    entry: Entry
    old_master: int | None
    loss: tuple[int | None, int | None]
    until_ts: int | None = None
    asked_ts: int | None = None
    ready_ts: int | None = None
    is_measured: bool = False
    gap: SendGap | None = None
    fault_ts: int | None = None

    @property
    def elected_ts(self) -> int:
        return self.entry.event.ts

    @property
    def master(self) -> int:
        assert self.entry.after.master_broker_id is not None
        return self.entry.after.master_broker_id

    @property
    def epoch(self) -> int:
        return self.entry.after.master_epoch

    @property
    def is_failover(self) -> bool:
        return self.entry.event.before is not None and self.entry.event.before.master_epoch > 0

    @property
    def parts(self) -> tuple[int | None, int | None, int | None]:
        def between(start: int | None, end: int | None) -> int | None:
            return end - start if start is not None and end is not None and end >= start else None

        heard, detected = self.loss
        return (
            between(heard if self.fault_ts is None else self.fault_ts, detected),
            between(detected, self.elected_ts),
            between(self.elected_ts, self.ready_ts),
        )


def elections(entries: Sequence[Entry]) -> list[Election]:
    found: list[Election] = []
    known: int | None = None
    loss: tuple[int | None, int | None] = (None, None)
    open_one: Election | None = None
    for entry in entries:
        event, before, after = entry.event, entry.event.before, entry.after
        was = (before.master_broker_id, before.master_epoch) if before else (None, None)
        moved = event.type in ("electMaster", "cleanBrokerData") and was != (
            after.master_broker_id,
            after.master_epoch,
        )
        if moved or entry.is_restart:
            if open_one is not None:
                open_one.until_ts, open_one = event.ts, None
            told = (event.last_heartbeat_ts, event.detected_ts)
            if not entry.is_snapshot and is_election(event):
                if was[0] is None:
                    told = tuple(
                        mine if mine is not None else its for mine, its in zip(told, loss, strict=True)
                    )  # type: ignore[assignment]
                open_one = Election(entry, known if was[0] is None else was[0], told)
                found.append(open_one)
            if after.master_broker_id is not None:
                loss = (None, None)
            elif was[0] is not None:
                loss = (event.last_heartbeat_ts, event.detected_ts)
            known = next((each for each in (after.master_broker_id, was[0]) if each is not None), known)
    for each in found:
        asked = [
            entry.event.ts
            for entry in entries
            if entry.event.type == "alterSyncStateSet" and entry.log == each.entry.log
            and (entry.after.master_broker_id, entry.after.master_epoch) == (each.master, each.epoch)
        ]  # fmt: skip
        each.asked_ts = min(asked, default=None)
    return found


def is_near(ts: int, election: Election) -> bool:
    end = ts if election.until_ts is None else election.until_ts + SKEW_MAX_MS
    return election.elected_ts - SKEW_MAX_MS <= ts <= end


@dataclass
class Piece:
    broker_id: int
    samples: list[ClockSample]

    @property
    def offset_ms(self) -> int:
        return min(each.offset_ms for each in self.samples)

    @property
    def uncertain_ms(self) -> int:
        return max(each.offset_ms for each in self.samples) - self.offset_ms

    def distance(self, moment: int) -> int:
        start, end = self.samples[0].ts - 60_000, self.samples[-1].ts
        return max(start - moment, moment - end, 0)


def pieces_of(samples: Iterable[ClockSample]) -> list[Piece]:
    found: list[Piece] = []
    for each in sorted(samples, key=lambda each: (each.broker_id, each.ts, each.controller_id)):
        last = found[-1].samples[-1] if found else None
        is_same = last is not None and (last.broker_id, hour_of(last.ts), last.controller_id) == (
            each.broker_id, hour_of(each.ts), each.controller_id,
        )  # fmt: skip
        if is_same and last is not None and abs(last.offset_ms - each.offset_ms) <= STEP_MS:
            found[-1].samples.append(each)
        else:
            found.append(Piece(each.broker_id, [each]))
    return found


@dataclass
class Bounds:
    least: int | None = None
    most: int | None = None
    samples: int = 0

    def allow(self, offset: int) -> bool:
        return (self.least is None or self.least <= offset) and (self.most is None or offset <= self.most)

    @property
    def middle(self) -> int | None:
        if self.least is None or self.most is None or not 0 <= self.most - self.least <= 500:
            return None
        return (self.least + self.most) // 2


def bounds_of(found: Sequence[Election], changes: Sequence[RoleChange]) -> dict[tuple[int, int], Bounds]:
    """By broker and hour of its clock."""
    bounds: dict[tuple[int, int], Bounds] = defaultdict(Bounds)
    for election in found:
        near = [
            each for each in changes if each.master_epoch == election.epoch and is_near(each.ts, election)
        ]
        first = min(
            (each.ts for each in near if (each.role, each.broker_id) == ("master", election.master)),
            default=None,
        )
        for each in near:
            mine = bounds[each.broker_id, hour_of(each.ts)]
            mine.samples += 1
            least = election.elected_ts - each.ts
            mine.least = least if mine.least is None else max(mine.least, least)
            is_first = (each.role, each.broker_id, each.ts) == ("master", election.master, first)
            if is_first and election.asked_ts is not None:
                most = election.asked_ts - each.ts + 100
                mine.most = most if mine.most is None else min(mine.most, most)
    return bounds


def make_ready(
    found: Sequence[Election], changes: Sequence[RoleChange], samples: Sequence[ClockSample]
) -> None:
    pieces, bounds = pieces_of(samples), bounds_of(found, changes)
    for election in found:
        for change in sorted(changes, key=lambda each: each.ts):
            if (change.role, change.broker_id, change.master_epoch) != (
                "master",
                election.master,
                election.epoch,
            ):
                continue
            near, fitting = [], []
            for piece in pieces:
                moment = change.ts + piece.offset_ms
                if piece.broker_id != change.broker_id or piece.distance(moment) > REACH_MS:
                    continue
                near.append(piece)
                slack = piece.uncertain_ms + 5
                is_late = election.until_ts is not None and moment > election.until_ts + slack
                if moment >= election.elected_ts - slack and not is_late:
                    fitting.append((piece.distance(moment), moment, piece.offset_ms))
            if (near and not fitting) or (not near and not is_near(change.ts, election)):
                continue  # it belongs to another election
            moment: int | None
            if near:
                offsets = [offset for *_, offset in fitting]
                moment = min(fitting)[1] if max(offsets) - min(offsets) <= STEP_MS else None
                election.is_measured = moment is not None
            else:
                mine = bounds[change.broker_id, hour_of(change.ts)]
                middle = mine.middle
                moment = change.ts if mine.allow(0) else None if middle is None else change.ts + middle
            election.ready_ts = None if moment is None else max(moment, election.elected_ts)
            break


def join_gaps(found: Sequence[Election], gaps: Sequence[SendGap]) -> None:
    """Each gap goes to the fail-over nearest to it, and a fail-over takes the nearest of its gaps."""
    taken: dict[int, list[tuple[tuple[int, int, int], int, SendGap]]] = defaultdict(list)
    for gap in gaps:
        near = []
        for number, each in enumerate(found):
            outside = max(gap.started_ts - each.elected_ts, each.elected_ts - gap.ts, 0)
            if each.is_failover and gap.broker_id in (0, each.old_master) and outside <= PRODUCER_SKEW_MS:
                near.append((outside, abs(each.elected_ts - gap.started_ts), number))
        if near:
            taken[min(near)[2]].append((min(near), -gap.gap_ms, gap))
    for number, choices in taken.items():
        each = found[number]
        each.gap = min(choices, key=lambda choice: choice[:2])[2]
        heard, detected = each.loss
        latest = each.elected_ts if detected is None else detected
        if (heard is None or each.gap.started_ts >= heard - SLACK_MS) and each.gap.started_ts <= latest:
            each.fault_ts = each.gap.started_ts


# ---------------------------------------------------------------------- availability
def availability(life: Life, from_ts: int, to_ts: int) -> tuple[int, int]:
    """(available ms, judged ms)."""
    entries = entries_of(life, from_ts, to_ts)
    found = elections(entries)
    make_ready(found, life.role_changes, life.clock_samples)
    samples = sorted(life.samples, key=lambda each: (each.ts, each.broker_id))
    moments = {each.ts for each in samples}
    losses: dict[tuple[int, int, int], int] = {}
    asked: dict[tuple[int, int, int], int] = {}
    for entry in entries:
        event, after = entry.event, entry.after
        if event.type == "alterSyncStateSet" and after.master_broker_id is not None:
            asked.setdefault((entry.log, after.master_broker_id, after.master_epoch), entry.time)
        if event.before is None or event.before.master_broker_id is None or event.last_heartbeat_ts is None:
            continue
        key = entry.log, event.before.master_broker_id, event.before.master_epoch
        losses[key] = min(event.last_heartbeat_ts, losses.get(key, event.last_heartbeat_ts))
    of_reign = {(each.entry.log, each.master, each.epoch): each for each in found}
    moments |= {*losses.values(), *asked.values()}
    moments |= {each.ready_ts for each in found if each.ready_ts is not None}
    available = judged = 0
    for step in steps_of(entries, from_ts, to_ts, HOUR_MS, cuts=moments):
        minimum = minimum_at(samples, step.start)
        if step.view is None or minimum is None:
            continue
        master = step.view.master_broker_id
        if master is None:
            judged += step.ms
            continue
        log = log_at(entries, step.start)
        key = log, master, step.view.master_epoch
        election, is_lost = of_reign.get(key), step.start >= losses.get(key, 1 << 60)
        is_ready = election is None or step.start >= min(
            (each for each in (election.ready_ts, asked.get(key)) if each is not None), default=1 << 60
        )
        if is_lost or not is_ready:
            judged += step.ms * (is_lost or (election is not None and election.ready_ts is not None))
        else:
            judged += step.ms
            available += step.ms * (len(step.view.sync_state_set) >= minimum)
    return available, judged


def log_at(entries: Sequence[Entry], moment: int) -> int:
    """The log of the record that state_at() takes the state from."""
    earlier = [entry for entry in entries if entry.time <= moment]
    following = entries[len(earlier)] if len(earlier) < len(entries) else None
    if not earlier:
        assert following is not None
        return following.log
    last = earlier[-1]
    if following is None or not hour_of(last.time) < hour_of(moment) == hour_of(following.time):
        return last.log
    is_far = hour_of(following.time) - hour_of(last.time) > 1
    return following.log if is_far or following.is_restart else last.log
