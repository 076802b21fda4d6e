"""What the controllers agreed on in the last hours, for the live page of the fleet: who is below the minimum,
and who has no master.

A few events per group, in memory; after a restart they are read from the batches again. The hourly job, which
knows more of logs and gaps, replaces these numbers. Pure.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from keelmq.web.live_files import MINUTE_MS

GroupName = tuple[str, str]
State = tuple[int, int, str, bool, int]
"""(ts, event_id, log_id, it has a master, size of the SyncStateSet), in the order of the log."""
GONE = True, 1 << 62
"""Of a group that was cleaned as a whole, which lacks neither a master nor replicas."""


class GroupStates:
    """Events in, milliseconds per minute out."""

    def __init__(self) -> None:
        self._states: defaultdict[GroupName, list[State]] = defaultdict(list)
        self._minimum: dict[GroupName, int] = {}

    def add_events(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Takes rows of the table controller_event; the same one may come again, and events of one log in
        any order."""
        changed = set()
        for row in rows:
            after = row["after"]
            if row["refused"] is not None:
                continue
            group = row["cluster_name"], row["broker_name"]
            found = GONE
            if after is not None:
                found = after["master_broker_id"] is not None, len(after["sync_state_set"] or ())
            state = (row["ts"], row["event_id"], row["log_id"] or "", *found)
            if state not in self._states[group]:
                self._states[group].append(state)
                changed.add(group)
        for group in changed:
            self._states[group] = _in_order(self._states[group])

    def set_minimum(self, group: GroupName, replicas: int) -> None:
        """Takes minInSyncReplicas of a group's newest sample."""
        self._minimum[group] = replicas

    def forget(self, before_ts: int) -> None:
        """Drops what ended before; the newest state of a group stays, unless the group is gone."""
        for group, states in list(self._states.items()):
            last = max((i for i, each in enumerate(states) if each[0] < before_ts), default=0)
            del states[:last]
            if len(states) == 1 and states[0][0] < before_ts and states[0][3:] == GONE:
                del self._states[group]

    def minutes(
        self, from_ts: int, count: int, until_ts: int
    ) -> dict[GroupName, tuple[list[int], list[int]]]:
        """Returns ms below the minimum and ms without a master, in `count` minutes from `from_ts`, of groups
        with any. Nothing counts from `until_ts` on."""
        found = {}
        for group, states in self._states.items():
            least = self._minimum.get(group, 0)
            bad = [not has_master or size < least for _, _, _, has_master, size in states]
            if not any(bad):
                continue
            below, without = [0] * count, [0] * count
            ends = [*(each[0] for each in states[1:]), until_ts]
            for (start, _, _, has_master, size), end in zip(states, ends, strict=True):
                if size < least:
                    _add(below, start, min(end, until_ts), from_ts)
                if not has_master:
                    _add(without, start, min(end, until_ts), from_ts)
            if any(below) or any(without):
                found[group] = below, without
        return found


def _in_order(states: Sequence[State]) -> list[State]:
    """By the log, and logs by their first event; a state never begins before the one in front of it."""
    began: dict[str, int] = {}
    for ts, _, log, _, _ in states:
        began[log] = min(ts, began.get(log, ts))
    found: list[State] = []
    for ts, number, log, has_master, size in sorted(states, key=lambda each: (began[each[2]], *each[1::-1])):
        found.append((max(ts, found[-1][0]) if found else ts, number, log, has_master, size))
    return found


def _add(minutes: list[int], start: int, end: int, from_ts: int) -> None:
    for i in range(max(0, (start - from_ts) // MINUTE_MS), len(minutes)):
        at = from_ts + i * MINUTE_MS
        if at >= end:
            break
        minutes[i] += max(0, min(end, at + MINUTE_MS) - max(start, at))
