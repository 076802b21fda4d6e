"""What is true of masters and SyncStateSets: from the events in true time. Definitions: docs/analytics.md.

A group's time is cut into pieces in which nothing changes, and each number is a sum over pieces.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.spark.key.expected import Key, Row, near
from tests.spark.key.files import Known
from tests.spark.key.world import HOUR_MS, Event, View

FLAP_MS = 300_000
CHANGES = ("alterSyncStateSet", "electMaster", "cleanBrokerData")


@dataclass(frozen=True)
class Piece:
    """[start, end) in which a group is there and nothing changes. `view` None: its state is unknown.
    `minimum` None: no sample says it. `is_ready`: its master takes messages."""

    start: int
    end: int
    view: View | None
    minimum: int | None
    is_ready: bool

    @property
    def ms(self) -> int:
        return self.end - self.start


def recorded(known: Known) -> list[Event]:
    """Returns the events that some controller's file has."""
    return [each for each in known.group.events if each.recorded]


def pieces_of(
    known: Known, minimum: Sequence[Row], to_ts: int, *, from_ts: int = 0, width: int = HOUR_MS
) -> list[Piece]:
    """Returns the group's time in [from_ts, to_ts), from its first master on. `minimum`: see
    answers_samples."""
    group = known.group
    from_ts = max(from_ts, group.events[0].ts)
    cuts = {each.ts for each in group.events} | {from_ts, to_ts}
    cuts |= set(range(from_ts // width * width, to_ts, width))
    cuts |= {row["true_ts"] for row in minimum}
    cuts |= {each.ts for each in group.ready} | {
        each.heard for each in group.events if each.heard is not None
    }
    found = []
    for start, end in itertools.pairwise(sorted(each for each in cuts if from_ts <= each <= to_ts)):
        view = group.view_at(start)
        if view is None or view.epoch == 0 or not view.replicas:
            continue
        is_known = _is_known(known, start)
        value = _minimum_at(minimum, start)
        found.append(Piece(start, end, view if is_known else None, value, _is_ready(known, start)))
    return found


def _is_known(known: Known, ts: int) -> bool:
    """Returns whether a controller wrote a record of the group in this hour, and no event is missing here."""
    if ts - ts % HOUR_MS not in known.record_hours:
        return False
    events = known.group.events
    for at, event in enumerate(events):
        if event.recorded or event.ts - event.ts % HOUR_MS == known.group.lost_hour:
            continue
        before = max(each.ts for each in events[:at] if each.recorded)
        after = min(each.ts for each in events[at:] if each.recorded)
        if before <= ts < after:
            return False
    return True


def _minimum_at(minimum: Sequence[Row], ts: int) -> int | None:
    """Before the first sample, that one counts."""
    if not minimum:
        return None
    known = [row for row in minimum if row["true_ts"] <= ts] or minimum[:1]
    value: int = known[-1]["min_in_sync_replicas"]
    return value


def _is_ready(known: Known, ts: int) -> bool:
    """Returns whether the master takes messages: it has been ready, and has not been lost since."""
    group = known.group
    view = group.view_at(ts)
    assert view is not None
    if view.master is None:
        return False
    log = [each.log for each in group.events if each.ts <= ts][-1]
    ready = [
        each.ts
        for each in group.ready
        if (each.log, each.epoch, each.broker) == (log, view.epoch, view.master)
    ]
    lost = [
        each.heard
        for each in group.events
        if each.log == log and each.heard is not None and each.before is not None
        and (each.before.master, each.before.epoch) == (view.master, view.epoch)
    ]  # fmt: skip
    return min(ready) <= ts and not any(heard <= ts for heard in lost)


def role_in(broker: int, view: View) -> str:
    """Returns the state of a replica."""
    if broker == view.master:
        return "master"
    return "in_sync" if broker in view.members else "out"


# ---------------------------------------------------------------------- counts
def is_election(event: Event) -> bool:
    """Returns whether a broker became master."""
    before = event.before.master if event.before else None
    return event.type == "electMaster" and event.after.master not in (None, before)


def moves(event: Event) -> tuple[list[int], list[int]]:
    """Returns who left the SyncStateSet and who joined it."""
    if event.type not in CHANGES:
        return [], []
    old = event.before.members if event.before else ()
    new = event.after.members
    return [each for each in old if each not in new], [each for each in new if each not in old]


def counts_of(event: Event) -> Counter[str]:
    """Returns what an event counts as."""
    left, joined = moves(event)
    is_asked = event.type == "alterSyncStateSet"
    return Counter(
        shrinks=int(is_asked and bool(left)),
        expands=int(is_asked and bool(joined) and not left),
        elections=int(is_election(event)),
        unclean_elections=int(is_election(event) and event.unclean),
    )


def flaps(events: Sequence[Event]) -> list[tuple[int, int]]:
    """Returns (broker, when it was back) of each replica that its master removed and added within FLAP_MS."""
    last: dict[int, tuple[str, str, int]] = {}
    found = []
    for event in events:
        left, joined = moves(event)
        for broker in joined:
            move, type, ts = last.get(broker, ("", "", 0))
            asked = type == event.type == "alterSyncStateSet"
            if move == "left" and asked and event.ts - ts <= FLAP_MS:
                found.append((broker, event.ts))
            last[broker] = "joined", event.type, event.ts
        for broker in left:
            last[broker] = "left", event.type, event.ts
    return found


# ---------------------------------------------------------------------- tables
def group_state(known: Known, minimum: Sequence[Row], to_ts: int, width: int) -> dict[Key, Row]:
    """Returns the roll-up `group_state` by group and window: each hour from its own records. `minimum`: by
    hour."""
    times: dict[int, Counter[str]] = defaultdict(Counter)
    by_hour: dict[int, list[Row]] = defaultdict(list)
    for row in minimum:
        by_hour[row["hour_ts"]].append(row)
    for piece in _by_hours(known, by_hour, to_ts, width):
        _add_times(times[piece.start // width * width], piece)
    for event in recorded(known):
        window = times[event.ts // width * width]
        window.update(counts_of(event))
    for _, back in _flaps_by_hour(known):
        times[back // width * width]["flaps"] += 1
    slack = _slack_of_windows(minimum, width)
    return {
        (known.group.name, window_ts): _state_row(counts, slack[window_ts])
        for window_ts, counts in times.items()
    }


def _by_hours(known: Known, minimum: dict[int, list[Row]], to_ts: int, width: int) -> Iterator[Piece]:
    for hour in sorted(known.record_hours):
        end = min(hour + HOUR_MS, to_ts)
        yield from pieces_of(known, minimum.get(hour, []), end, from_ts=hour, width=width)


def _add_times(found: Counter[str], piece: Piece) -> None:
    if piece.view is None:
        found["unknown_ms"] += piece.ms
        return
    found["known_ms"] += piece.ms
    found["no_master_ms"] += piece.ms * (piece.view.master is None)
    if piece.minimum is not None:
        found["with_minimum_ms"] += piece.ms
        found["below_ms"] += piece.ms * (len(piece.view.members) < piece.minimum)


def _state_row(found: Counter[str], slack: int) -> Row:
    return {
        "unknown_ms": found["unknown_ms"],
        "below_min_ms": near(found["below_ms"], slack) if found["with_minimum_ms"] else None,
        "no_master_ms": found["no_master_ms"] if found["known_ms"] else None,
        **{name: found[name] for name in ("shrinks", "expands", "flaps", "elections", "unclean_elections")},
    }


def _slack_of_windows(minimum: Iterable[Row], width: int) -> Counter[int]:
    """Returns by how much a change of the minimum may move time below it, by window."""
    found: Counter[int] = Counter()
    for row in minimum:
        for window_ts in {(row["true_ts"] + ms) // width * width for ms in (-row["slack"], row["slack"])}:
            found[window_ts] += row["slack"]
    return found


def _flaps_by_hour(known: Known) -> list[tuple[int, int]]:
    hours = itertools.groupby(recorded(known), key=lambda each: each.ts // HOUR_MS)
    return [each for _, mine in hours for each in flaps(list(mine))]


def replica_state(known: Known, to_ts: int, width: int) -> dict[Key, Row]:
    """Returns the roll-up `replica_state` by group, window and replica."""
    found: dict[Key, Counter[str]] = defaultdict(Counter)
    for piece in _by_hours(known, {}, to_ts, width):
        for broker in piece.view.replicas if piece.view else ():
            key = known.group.name, piece.start // width * width, broker
            found[key][f"{role_in(broker, piece.view)}_ms"] += piece.ms  # type: ignore[arg-type]
    for broker, back in _flaps_by_hour(known):
        found[known.group.name, back // width * width, broker]["flaps"] += 1
    names = ("master_ms", "in_sync_ms", "out_ms", "flaps")
    return {key: {name: counts[name] for name in names} for key, counts in found.items()}


def membership(known: Known, to_ts: int) -> dict[Key, Row]:
    """Returns the run table `membership` by group, replica and beginning."""
    spans: dict[int, list[list[Any]]] = defaultdict(list)
    for piece in pieces_of(known, [], to_ts):
        for broker in piece.view.replicas if piece.view else ():
            state, mine = role_in(broker, piece.view), spans[broker]  # type: ignore[arg-type]
            if mine and mine[-1][1:] == [piece.start, state]:
                mine[-1][1] = piece.end
            else:
                mine.append([piece.start, piece.end, state])
    return {
        (known.group.name, broker, start): {"to_ts": end, "state": state}
        for broker, mine in spans.items()
        for start, end, state in mine
    }


def sync_state_set_changes(known: Known) -> dict[Key, Row]:
    """Returns the run table `sync_state_set_changes` by group, log and event id."""
    found = {}
    events = recorded(known)
    for at, event in enumerate(events):
        left, joined = moves(event)
        before = event.before.master if event.before else None
        if event.type not in CHANGES or not (left or joined or before != event.after.master):
            continue
        counts, after = counts_of(event), event.after
        found[known.group.name, f"{known.group.name}-log-{event.log}", event.event_id] = {
            "ts": event.ts, "type": event.type, "reason": event.reason, "left": left, "joined": joined,
            "is_shrink": bool(counts["shrinks"]), "is_expand": bool(counts["expands"]),
            "sync_state_set": list(after.members), "sync_state_set_epoch": after.set_epoch,
            "master_broker_id": after.master, "master_epoch": after.epoch, "unclean": event.unclean,
            "is_gap": at > 0 and events[at - 1].log == event.log and events[at - 1].after != event.before
            and events[at - 1].ts // HOUR_MS == event.ts // HOUR_MS,  # else a snapshot is between them
        }  # fmt: skip
    return found


def epoch_gaps(known: Known) -> int:
    """Returns the number of places where events are missing: each run of lost events."""
    flags = [each.recorded for each in known.group.events]
    return sum(one and not other for one, other in itertools.pairwise(flags))
