"""Records by hand, for cases that decide a definition. Times are ms after START_TS."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from keelmq.remoting.records import (
    ClockSample,
    ControllerEvent,
    GroupView,
    HaSample,
    Record,
    RoleChange,
    SendGap,
)
from tests.spark.histories import CLUSTER, START_TS

Master = tuple[int | None, int]
WHO: dict[str, Any] = {"cluster_name": CLUSTER, "broker_name": "to be named"}


def view(
    master: int | None,
    epoch: int,
    *members: int,
    set_epoch: int | None = None,
    replicas: Sequence[int] = (1, 2, 3),
) -> GroupView:
    """Without `members`: the master alone. `set_epoch` None: the master's epoch."""
    alone = () if master is None else (master,)
    return GroupView(
        master_broker_id=master, master_epoch=epoch, sync_state_set=members or alone,
        sync_state_set_epoch=epoch if set_epoch is None else set_epoch, replicas=tuple(replicas),
    )  # fmt: skip


def event(
    event_id: int, type: str, before: GroupView | None, after: GroupView | None, *, ts: int, **more: Any
) -> ControllerEvent:
    fields = {"controller_id": "n0"} | more
    return ControllerEvent(
        **WHO, ts=START_TS + ts, event_id=event_id, type=type, before=before, after=after, **fields
    )


def election(event_id: int, before: GroupView, after: GroupView, *, ts: int, **more: Any) -> ControllerEvent:
    times = ("last_heartbeat_ts", "detected_ts")
    absolute = {name: value + START_TS if name in times else value for name, value in more.items()}
    return event(event_id, "electMaster", before, after, ts=ts, **absolute)


def alter(event_id: int, before: GroupView, after: GroupView, *, ts: int, **more: Any) -> ControllerEvent:
    return event(event_id, "alterSyncStateSet", before, after, ts=ts, **more)


def snapshot(event_id: int, after: GroupView, *, ts: int, **more: Any) -> ControllerEvent:
    return event(event_id, "snapshot", None, after, ts=ts, **more)


def life(first: int = 1, *, ts: int = -50, start_id: int = 1, **more: Any) -> list[ControllerEvent]:
    """Registered, and the first master."""
    nobody = view(None, 0)
    return [
        event(start_id, "applyBrokerId", None, nobody, ts=ts, **more),
        election(start_id + 1, nobody, view(first, 1), ts=ts + 10, **more),
    ]


def ready(broker_id: int, epoch: int, *, ts: int) -> RoleChange:
    return RoleChange(
        **WHO, ts=START_TS + ts, broker_id=broker_id, role="master", master_epoch=epoch,
        previous_role="slave", previous_epoch=0, started_ts=0, max_offset=0, confirm_offset=0,
    )  # fmt: skip


def gap(broker_id: int, *, started: int, ended: int) -> SendGap:
    return SendGap(
        **WHO, ts=START_TS + ended, broker_id=broker_id, program=f"broker-{broker_id}",
        started_ts=START_TS + started, gap_ms=ended - started,
    )  # fmt: skip


def clock(broker_id: int, offset_ms: int, *, ts: int, controller: str = "n0") -> ClockSample:
    return ClockSample(
        **WHO,
        ts=START_TS + ts,
        broker_id=broker_id,
        controller_id=controller,
        offset_ms=offset_ms,
        heartbeats=60,
    )


def sample(minimum: int, *, ts: int) -> HaSample:
    return HaSample(
        **WHO, ts=START_TS + ts, broker_id=1, role="master", master_epoch=1, max_offset=0, confirm_offset=0,
        min_in_sync_replicas=minimum,
    )  # fmt: skip


def named(cases: Mapping[str, Sequence[Record]]) -> list[Record]:
    """The records of all cases, each as a group of its own."""
    return [
        msgspec.structs.replace(each, broker_name=name) for name, records in cases.items() for each in records
    ]
