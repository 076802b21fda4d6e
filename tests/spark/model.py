"""Elections and fail-overs of a history in plain Python, from their definitions: slow, obvious, and apart
from the Spark code."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from keelmq.remoting.records import ControllerEvent, RoleChange, SendGap
from tests.spark.histories import History

FLAP_MS = 300_000
SLACK_MS = 1_000


def times_of(events: Sequence[ControllerEvent]) -> list[int]:
    """From when on each event counts: time stands still while the log goes on with an earlier clock."""
    times: list[int] = []
    for event in events:
        times.append(max(event.ts, times[-1]) if times else event.ts)
    return times


def counts(history: History) -> dict[str, int]:
    found = Counter(shrinks=0, expands=0, elections=0, unclean_elections=0, flaps=0)
    left_at: dict[int, int] = {}
    for event, time in zip(history.events, times_of(history.events), strict=True):
        assert event.after is not None
        old = set(event.before.sync_state_set) if event.before is not None else set()
        new = set(event.after.sync_state_set)
        if event.type == "alterSyncStateSet":
            found["shrinks"] += bool(old - new)
            found["expands"] += bool(new - old) and not old - new
            found["flaps"] += sum(time - left_at[each] <= FLAP_MS for each in new - old if each in left_at)
            left_at.update(dict.fromkeys(old - new, time))
        elif event.type == "electMaster":
            if event.after.master_broker_id is not None:
                found["elections"] += 1
                found["unclean_elections"] += event.unclean
            for each in old - new:  # left because of the election: no fault of its own
                left_at.pop(each, None)
        for each in new - old:
            left_at.pop(each, None)
    return dict(found)


@dataclass
class Failover:
    event_id: int
    elected_ts: int
    old_master: int | None
    new_master: int
    master_epoch: int
    last_heartbeat_ts: int | None
    detected_ts: int | None
    ready_ts: int | None = None
    fault_ts: int | None = None
    killed_program: str | None = None
    gap_ms: int | None = None

    @property
    def parts(self) -> tuple[int | None, int | None, int | None]:
        def between(start: int | None, end: int | None) -> int | None:
            return None if start is None or end is None else max(end - start, 0)

        return (
            between(self.last_heartbeat_ts if self.fault_ts is None else self.fault_ts, self.detected_ts),
            between(self.detected_ts, self.elected_ts),
            between(self.elected_ts, self.ready_ts),
        )


def failovers(history: History) -> list[Failover]:
    found: list[Failover] = []
    master: int | None = None
    loss: ControllerEvent | None = None
    for event in history.events:
        if event.type not in ("electMaster", "cleanBrokerData"):
            continue
        assert event.before is not None and event.after is not None
        if event.type == "cleanBrokerData":
            if event.after.master_broker_id is None:
                loss = event
            continue
        transfer_target = event.after.master_broker_id
        if transfer_target is None:
            loss = event
            continue
        if master is not None:
            told = loss if loss is not None and event.detected_ts is None else event
            found.append(
                Failover(
                    event_id=event.event_id,
                    elected_ts=event.ts,
                    old_master=master,
                    new_master=transfer_target,
                    master_epoch=event.after.master_epoch,
                    last_heartbeat_ts=told.last_heartbeat_ts,
                    detected_ts=told.detected_ts,
                    ready_ts=ready_ts(history.role_changes, transfer_target, event.after.master_epoch),
                )
            )
        master, loss = transfer_target, None
    join_gaps(found, history.send_gaps)
    return found


def ready_ts(changes: Sequence[RoleChange], transfer_target: int, master_epoch: int) -> int | None:
    mine = [
        change.ts
        for change in changes
        if (change.role, change.broker_id, change.master_epoch) == ("master", transfer_target, master_epoch)
    ]
    return min(mine, default=None)


def join_gaps(found: Sequence[Failover], gaps: Sequence[SendGap]) -> None:
    """Each gap goes to the fail-over nearest to it, and a fail-over takes the nearest of its gaps."""
    taken: dict[int, list[SendGap]] = defaultdict(list)
    for gap in gaps:
        near = [
            each
            for each in found
            if each.old_master == gap.broker_id
            and gap.started_ts - SLACK_MS <= each.elected_ts <= gap.ts + SLACK_MS
        ]
        if near:
            best = min(near, key=lambda each: (abs(each.elected_ts - gap.started_ts), each.event_id))
            taken[best.event_id].append(gap)
    for each in found:
        if each.event_id in taken:
            gap = min(taken[each.event_id], key=lambda gap: abs(each.elected_ts - gap.started_ts))
            each.fault_ts, each.killed_program, each.gap_ms = gap.started_ts, gap.program, gap.gap_ms
