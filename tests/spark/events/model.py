"""States and counts in plain Python, from their definitions: slow, obvious, and apart from the Spark code.

Time is looked at in steps so small that nothing changes within one; nothing here knows window functions,
spans or joins. Which log a line belongs to is known from the history's truth, not from its event ids.
"""

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from keelmq.remoting.records import ControllerEvent, GroupView, HaSample
from tests.spark.events.fleet import HOUR_MS, Life

FLAP_MS = 300_000
COUNTS = ("shrinks", "expands", "flaps", "elections", "unclean_elections")


@dataclass
class Entry:
    """An applied event or a snapshot. `time`: from when on it counts; `found`: the group in front of it."""

    log: int
    event: ControllerEvent
    time: int
    is_gap: bool = False
    is_restart: bool = False

    @property
    def is_snapshot(self) -> bool:
        return self.event.type == "snapshot"

    @property
    def found(self) -> GroupView | None:
        return self.event.after if self.is_snapshot else self.event.before

    @property
    def after(self) -> GroupView:
        assert self.event.after is not None
        return self.event.after


def entries_of(life: Life, from_ts: int, to_ts: int) -> list[Entry]:
    unique = {}
    for line in life.lines:
        if line.refused is None and from_ts <= line.ts < to_ts:
            log = sum(start <= line.ts for start in life.log_starts)
            is_snapshot = line.type == "snapshot"
            moment = line.ts if is_snapshot else 0
            unique[log, line.event_id, is_snapshot, moment, line.type] = Entry(log, line, line.ts)
    entries = [unique[key] for key in sorted(unique)]
    following = None
    for entry in reversed(entries):
        if not entry.is_snapshot:
            following = entry.event.ts
        elif following is not None:
            entry.time = min(entry.event.ts, following)
    for one, other in itertools.pairwise(entries):
        other.time = max(one.time, other.time)
        differs = epochs(other.found) != epochs(one.after)
        other.is_gap = one.log == other.log and bool(one.after.replicas) and differs
        goes_on = one.event.event_id < other.event.event_id and not differs
        other.is_restart = one.log != other.log and not goes_on
    return entries


def epochs(view: GroupView | None) -> tuple[int, int] | None:
    return None if view is None else (view.master_epoch, view.sync_state_set_epoch)


def hour_of(moment: int) -> int:
    return moment // HOUR_MS


def is_there(view: GroupView | None) -> bool:
    return view is not None and view.master_epoch > 0 and bool(view.replicas)


UNKNOWN = "unknown"


def state_at(entries: Sequence[Entry], moment: int) -> GroupView | str | None:
    """None: the group is not there."""
    earlier = [entry for entry in entries if entry.time <= moment]
    later = entries[len(earlier) :]
    last, following = earlier[-1] if earlier else None, later[0] if later else None
    if last is None:
        is_near = following is not None and hour_of(following.time) == hour_of(moment)
        return following.found if following and is_near and is_there(following.found) else None
    if following is None:
        if not is_there(last.after):
            return None
        return last.after if hour_of(moment) == hour_of(last.time) else UNKNOWN
    nothing = UNKNOWN if is_there(last.after) or is_there(following.found) else None
    hours = hour_of(following.time) - hour_of(last.time)
    if hours <= 1 and following.is_gap:
        return nothing
    if hours == 0 or (hours == 1 and not following.is_restart) or hour_of(moment) == hour_of(last.time):
        return last.after if is_there(last.after) else None
    if hour_of(moment) == hour_of(following.time) and following.found is not None:
        return following.found if is_there(following.found) else None
    return nothing


@dataclass
class Step:
    start: int
    end: int
    view: GroupView | None
    """None: unknown."""

    @property
    def ms(self) -> int:
        return self.end - self.start


def steps_of(
    entries: Sequence[Entry], from_ts: int, to_ts: int, window_ms: int, *, cuts: Iterable[int] = ()
) -> Iterator[Step]:
    """[start, end) in which neither the group changes nor a window or an hour ends."""
    edges = {edge for width in (window_ms, HOUR_MS) for edge in range(from_ts // width * width, to_ts, width)}
    edges |= {entry.time for entry in entries} | set(cuts) | {from_ts, to_ts}
    for start, end in itertools.pairwise(sorted(edge for edge in edges if from_ts <= edge <= to_ts)):
        state = state_at(entries, start)
        if state is not None:
            yield Step(start, end, None if isinstance(state, str) else state)


def role_in(broker_id: int, view: GroupView) -> str:
    if broker_id == view.master_broker_id:
        return "master"
    return "in_sync" if broker_id in view.sync_state_set else "out"


def membership(steps: Iterable[Step]) -> dict[int, list[tuple[int, int, str]]]:
    spans: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    for step in steps:
        for broker_id in step.view.replicas if step.view else ():
            role, mine = role_in(broker_id, step.view), spans[broker_id]  # type: ignore[arg-type]
            if mine and mine[-1][1:] == (step.start, role):
                mine[-1] = (mine[-1][0], step.end, role)
            else:
                mine.append((step.start, step.end, role))
    return dict(spans)


def minimum_at(samples: Sequence[HaSample], moment: int) -> int | None:
    """`samples`: by time."""
    found = samples[0].min_in_sync_replicas if samples else None
    for sample in samples:
        if sample.ts <= moment:
            found = sample.min_in_sync_replicas
    return found


def events_of(entries: Sequence[Entry]) -> list[ControllerEvent]:
    return [entry.event for entry in entries if not entry.is_snapshot]


def counts_of(event: ControllerEvent) -> Counter[str]:
    assert event.after is not None
    found: Counter[str] = Counter()
    old = set(event.before.sync_state_set) if event.before is not None else set()
    new = set(event.after.sync_state_set)
    if event.type == "alterSyncStateSet":
        found["shrinks"] = int(bool(old - new))
        found["expands"] = int(bool(new - old) and not old - new)
    if is_election(event):
        found["elections"] = 1
        found["unclean_elections"] = int(event.unclean)
    return found


def is_election(event: ControllerEvent) -> bool:
    assert event.after is not None
    if event.type != "electMaster" or event.before is None:
        return False
    return event.after.master_broker_id not in (None, event.before.master_broker_id)


def flaps_of(entries: Sequence[Entry]) -> list[tuple[int, int]]:
    """(brokerId, when it was back)."""
    found, left_at = [], {}
    for entry in entries:
        if entry.is_snapshot or entry.event.type not in (
            "alterSyncStateSet",
            "electMaster",
            "cleanBrokerData",
        ):
            continue
        old = set(entry.event.before.sync_state_set) if entry.event.before is not None else set()
        new = set(entry.after.sync_state_set)
        is_asked = entry.event.type == "alterSyncStateSet"
        for broker_id in sorted(new - old):
            since = left_at.pop(broker_id, None)
            if is_asked and since is not None and entry.time - since <= FLAP_MS:
                found.append((broker_id, entry.event.ts))
        for broker_id in old - new:
            left_at[broker_id] = entry.time if is_asked else None
        left_at = {each: since for each, since in left_at.items() if since is not None}
    return found


@dataclass
class State:
    """Of a window."""

    known_ms: int = 0
    unknown_ms: int = 0
    no_master: int = 0
    below: int = 0
    with_minimum_ms: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    replicas: Counter[tuple[int, str]] = field(default_factory=Counter)

    @property
    def below_min_ms(self) -> int | None:
        return self.below if self.with_minimum_ms else None

    @property
    def no_master_ms(self) -> int | None:
        return self.no_master if self.known_ms else None


def group_state(life: Life, from_ts: int, to_ts: int, window_ms: int) -> dict[int, State]:
    found: dict[int, State] = defaultdict(State)
    entries = entries_of(life, from_ts, to_ts)
    samples = sorted(
        (each for each in life.samples if from_ts <= each.ts < to_ts),
        key=lambda each: (each.ts, each.broker_id),
    )
    for step in steps_of(entries, from_ts, to_ts, window_ms, cuts=(each.ts for each in samples)):
        state = found[step.start // window_ms * window_ms]
        if step.view is None:
            state.unknown_ms += step.ms
            continue
        state.known_ms += step.ms
        state.no_master += step.ms * (step.view.master_broker_id is None)
        minimum = minimum_at(samples, step.start)
        if minimum is not None:
            state.with_minimum_ms += step.ms
            state.below += step.ms * (len(step.view.sync_state_set) < minimum)
        for broker_id in step.view.replicas:
            state.replicas[broker_id, f"{role_in(broker_id, step.view)}_ms"] += step.ms
    for event in events_of(entries):
        found[event.ts // window_ms * window_ms].counts += counts_of(event)
    for broker_id, ts in flaps_of(entries):
        state = found[ts // window_ms * window_ms]
        state.counts["flaps"] += 1
        state.replicas[broker_id, "flaps"] += 1
    return dict(found)


def by_hours(life: Life, from_ts: int, to_ts: int, window_ms: int) -> dict[int, State]:
    """Each hour from its own records."""
    found: dict[int, State] = {}
    for hour in range(hour_of(from_ts), hour_of(to_ts - 1) + 1):
        start, end = max(hour * HOUR_MS, from_ts), min((hour + 1) * HOUR_MS, to_ts)
        found |= group_state(life, start, end, window_ms)
    return found


def reasons(entries: Sequence[Entry]) -> list[tuple[str, int]]:
    found = Counter(re.sub(r"\d+", "#", event.reason) for event in events_of(entries) if is_election(event))
    return sorted(found.items())
