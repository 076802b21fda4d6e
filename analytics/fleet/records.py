"""Telemetry records of a planned fleet: what its brokers and controllers would have written in an hour.

An hour of a group is a pure function of the plan, so hours can be written in any order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from analytics.fleet.plan import HOUR_MS, MASTER, MIN_IN_SYNC, MINUTE_MS, REPLICAS, Fleet, Planted
from keelmq.remoting.records import (
    AnyRecord,
    ClockSample,
    ControllerEvent,
    GroupView,
    HaSample,
    ReplicaSample,
    RoleChange,
)
from keelmq.runtime.log_buckets import bucket_of

BYTES_A_MS = 400
SAMPLES_US = 20
"""Numbers in a histogram of one sample."""
LOST_MS, DETECT_MS, READY_MS = 2_000, 6_000, 90
"""Planned time to loss of the master; loss to detection and election; election to readiness."""
SHRINKS_MS, EXPANDS_MS = (10_000, 40_000), (20_000, 50_000)
"""When in a minute a flapping replica leaves and comes back."""
NEW_MASTER = 2
CONTROLLER = "n0"


@dataclass(frozen=True, slots=True)
class _Change:
    ts: int
    type: str
    before: GroupView
    after: GroupView
    reason: str
    lost_ts: int | None = None
    unclean: bool = False


def records_of(fleet: Fleet, number: int, hour_ts: int, *, every_ms: int = 1_000) -> list[AnyRecord]:
    """Returns the records of one group in one hour, by ts. `every_ms`: between two samples of a broker."""
    group = _GroupRecords(fleet, number)
    found = sorted(group.hour(hour_ts, every_ms), key=lambda record: record.ts)
    gaps = [each for each in fleet.by_group.get(number, ()) if each.kind == "gap"]
    return [each for each in found if not any(gap.from_ts <= each.ts < gap.to_ts for gap in gaps)]


class _GroupRecords:
    def __init__(self, fleet: Fleet, number: int) -> None:
        self._fleet, self._number = fleet, number
        cluster, broker = fleet.names[number]
        self._names: dict[str, Any] = {"cluster_name": cluster, "broker_name": broker}
        self._incident = next(iter(fleet.by_group.get(number, ())), None)
        self._base_ms = 1 + fleet.random_of(number, "base").expovariate(0.4)
        self._changes = _changes(self._incident)
        self._first_event = number * 1_000_000

    def hour(self, hour_ts: int, every_ms: int) -> Iterator[AnyRecord]:
        end = min(hour_ts + HOUR_MS, self._fleet.to_ts)
        yield from self._controller(hour_ts, end)
        dice = self._fleet.random_of(self._number, str(hour_ts))
        for ts in range(hour_ts, end, every_ms):
            yield from self._samples(ts, 0.7 + 0.6 * dice.random())
        for ts in range(hour_ts, end, MINUTE_MS):
            for broker in REPLICAS:
                skewed = self._incident if self._incident and self._incident.kind == "skew" else None
                size = 5_000 + 85_000 * skewed.size if skewed and skewed.replica == broker else 0
                yield ClockSample(
                    ts=ts, **self._names, broker_id=broker, controller_id=CONTROLLER,
                    offset_ms=int(size) + broker, heartbeats=60,
                )  # fmt: skip

    def _controller(self, start: int, end: int) -> Iterator[AnyRecord]:
        done = [each for each in self._changes if each.ts < start]
        view = done[-1].after if done else _view(MASTER, 1, REPLICAS, 1)
        common: dict[str, Any] = {
            **self._names,
            "controller_id": CONTROLLER,
            "log_id": f"fleet-{self._fleet.seed}",
        }
        yield ControllerEvent(
            ts=start,
            **common,
            event_id=self._first_event + len(done),
            type="snapshot",
            after=view,
        )
        for i, each in enumerate(self._changes):
            if not start <= each.ts < end:
                continue
            detected = None if each.lost_ts is None else each.lost_ts + DETECT_MS
            yield ControllerEvent(
                ts=each.ts, **common, event_id=self._first_event + i + 1, type=each.type,
                before=each.before, after=each.after, reason=each.reason, unclean=each.unclean,
                last_heartbeat_ts=each.lost_ts, detected_ts=detected,
            )  # fmt: skip
            if each.type == "electMaster" and each.after.master_broker_id is not None:
                offset = (each.ts - self._fleet.from_ts) * BYTES_A_MS
                yield RoleChange(
                    ts=each.ts + READY_MS, **self._names, broker_id=each.after.master_broker_id,
                    role="master", master_epoch=each.after.master_epoch, previous_role="slave",
                    previous_epoch=each.before.master_epoch, started_ts=each.ts, max_offset=offset,
                    confirm_offset=offset,
                )  # fmt: skip

    def _samples(self, ts: int, noise: float) -> Iterator[HaSample]:
        view = self._view_at(ts)
        active = (
            self._incident if self._incident and self._incident.from_ts <= ts < self._incident.to_ts else None
        )
        kind = active.kind if active else ""
        lag_ms = self._base_ms * noise
        if active and kind == "lag":
            lag_ms = 4_000 + 26_000 * active.size * noise
        offset = (ts - self._fleet.from_ts) * BYTES_A_MS
        lost = [each.lost_ts for each in self._changes if each.lost_ts is not None]
        is_lost = any(each <= ts < each + DETECT_MS + READY_MS for each in lost)
        master = view.master_broker_id
        if master is not None and not is_lost:
            yield self._master(ts, master, view, offset, lag_ms, active)
        if kind == "stale-master" and ts % 2_000 == 0:
            stale = _view(MASTER, 1, REPLICAS, 1)
            yield self._master(ts, MASTER, stale, offset // 2, lag_ms, None)
        down = active.replica if active and kind == "dead-replica" else None
        is_cut_off = is_lost or kind == "stale-master"  # a broker writes one sample at a time
        for broker in REPLICAS:
            if broker not in (master, down) and not (is_cut_off and broker == MASTER):
                yield HaSample(
                    ts=ts, **self._names, broker_id=broker, role="slave", master_epoch=view.master_epoch,
                    max_offset=offset, confirm_offset=offset - int(lag_ms * BYTES_A_MS),
                )  # fmt: skip

    def _view_at(self, ts: int) -> GroupView:
        done = [each for each in self._changes if each.ts <= ts]
        return done[-1].after if done else _view(MASTER, 1, REPLICAS, 1)

    def _master(
        self, ts: int, broker: int, view: GroupView, offset: int, lag_ms: float, active: Planted | None
    ) -> HaSample:
        behind = int(lag_ms * BYTES_A_MS)
        down = active.replica if active and active.kind == "dead-replica" else None
        slow = [each for each in REPLICAS if each not in view.sync_state_set]
        replicas = tuple(
            ReplicaSample(
                broker_id=each, ack_offset=max(0, offset - behind * (3 if each in slow else 1)),
                lag_ms=int(lag_ms * (3 if each in slow else 1)), in_sync=each not in slow,
            )
            for each in REPLICAS
            if each not in (broker, down)
        )  # fmt: skip
        return HaSample(
            ts=ts, **self._names, broker_id=broker, role="master", master_epoch=view.master_epoch,
            max_offset=offset, confirm_offset=max(0, offset - behind), lag_ms=int(lag_ms),
            lag_ms_max=int(lag_ms * 1.5), lag_bytes_max=int(behind * 1.5), sync_state_set=view.sync_state_set,
            sync_state_set_epoch=view.sync_state_set_epoch, min_in_sync_replicas=MIN_IN_SYNC,
            replicas=replicas,
            lag_us=((bucket_of(int(lag_ms * 1_000)), SAMPLES_US),),
            confirm_us=((bucket_of(int(lag_ms * 700)), SAMPLES_US),),
        )  # fmt: skip


def _view(master: int | None, epoch: int, in_sync: tuple[int, ...], set_epoch: int) -> GroupView:
    return GroupView(
        master_broker_id=master,
        master_epoch=epoch,
        sync_state_set=in_sync,
        sync_state_set_epoch=set_epoch,
        replicas=REPLICAS,
    )


def _changes(one: Planted | None) -> list[_Change]:
    """Returns the controllers' decisions because of an incident, in order."""
    steps: list[tuple[int, tuple[int, ...], str]] = []
    found: list[_Change] = []
    view = _view(MASTER, 1, REPLICAS, 1)
    if one is None:
        return found
    if one.kind in ("failover", "unclean", "stale-master"):
        lost = one.from_ts + LOST_MS if one.kind != "stale-master" else one.from_ts - DETECT_MS
        elected = lost + DETECT_MS
        after = _view(NEW_MASTER, 2, (NEW_MASTER,), 2)
        reason = f"master {MASTER} is not active"
        found.append(_Change(elected, "electMaster", view, after, reason, lost, one.kind == "unclean"))
        view = after
        steps = [
            (elected + 10_000, (2, 3), "caught_up"),
            (max(one.to_ts, elected) + 20_000, REPLICAS, "caught_up"),
        ]
    elif one.kind == "below-min":
        steps = [(one.from_ts, (MASTER,), "gone"), (one.to_ts, REPLICAS, "caught_up")]
    elif one.kind == "dead-replica":
        left = tuple(each for each in REPLICAS if each != one.replica)
        steps = [(one.from_ts, left, "gone"), (one.to_ts, REPLICAS, "caught_up")]
    elif one.kind == "flap":
        left = tuple(each for each in REPLICAS if each != one.replica)
        for minute in range(one.from_ts, one.to_ts, MINUTE_MS):
            for shrink, expand in zip(SHRINKS_MS, EXPANDS_MS, strict=True):
                steps += [(minute + shrink, left, "lag"), (minute + expand, REPLICAS, "caught_up")]
    for ts, in_sync, reason in steps:
        after = _view(view.master_broker_id, view.master_epoch, in_sync, view.sync_state_set_epoch + 1)
        found.append(_Change(ts, "alterSyncStateSet", view, after, reason))
        view = after
    return found
