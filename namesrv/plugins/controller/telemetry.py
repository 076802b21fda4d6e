"""ControllerTelemetry: every applied event as a ControllerEvent record, on its way to analytics.

Its hooks run in the raft thread, also while the log is replayed: they only map values and put them on the
writer's queue. What this controller wrote before it was started is found in its own newest file and left out;
a damaged end of that file costs duplicates, which readers drop. Events that came inside a snapshot of the log
have no record here: the groups as they are then take their place.
"""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, get_args

import msgspec

from namesrv.plugins.controller.config import ControllerConfig
from namesrv.plugins.controller.core.apply import Applied
from namesrv.plugins.controller.core.events import AnyEvent, AnyGroupEvent, ImportState, UpdateConfig
from namesrv.plugins.controller.core.state import BrokerSet, State
from remoting.clock import wall_ms
from remoting.records import ControllerEvent, GroupView, decode_record, name_of
from remoting.telemetry import TelemetryWriter

logger = logging.getLogger(__name__)

SNAPSHOT = "snapshot"
_TYPES = {each: str(each.__struct_config__.tag) for each in get_args(AnyGroupEvent)}


class Written(NamedTuple):
    """The newest event in this controller's files."""

    event_id: int
    ts: int


NOTHING = Written(0, 0)


class ControllerTelemetry:
    """resume() before the log is opened; the writer runs from then on, and is closed after the log."""

    def __init__(self, config: ControllerConfig, wall_clock: Callable[[], int] = wall_ms) -> None:
        self._controller_id, self._wall_clock = config.controller_d_leger_self_id, wall_clock
        self._node = f"controller-{self._controller_id}"
        self._directory = config.telemetry_directory
        self._state = State()
        self._views: dict[str, tuple[BrokerSet, GroupView | None]] = {}  # after each group's last event
        self._written = NOTHING
        self._has_gap = False
        self._fault: str | None = None
        self.writer = TelemetryWriter(
            self._directory,
            node=self._node,
            reserved_hours=config.telemetry_reserved_time,
            bytes_max=config.telemetry_bytes_max,
            on_open=self._header,
            wall_clock=wall_clock,
        )

    # ------------------------------------------------------------------ event loop
    def resume(self) -> None:
        """Reads files: call it in a thread."""
        self._written = last_written(self._directory, self._node, self._controller_id)

    def active_changed(self, is_active: bool) -> None:
        """The active controller always has a file, and so has each of its hours, however quiet."""
        if is_active:
            self._put_groups(self._state, self._wall_clock())

    def health(self) -> dict[str, object]:
        return {
            "written": self.writer.written_records,
            "dropped": self.writer.dropped_records,
            "fault": self._fault or self.writer.fault,
        }

    # ------------------------------------------------------------------ raft thread
    def applied(self, event: AnyEvent, applied: Applied) -> None:
        """Implements EventHook. An exception would end the controller; telemetry is not worth that."""
        before, self._state = self._state, applied.state
        if not event.ts or self._is_written(applied.state.event_count, event.ts):
            return
        try:
            if self._has_gap:
                self._put_groups(before, event.ts)
            if isinstance(event, ImportState):
                self._put_groups(applied.state, event.ts)
            elif not isinstance(event, UpdateConfig):  # a record tells about a group
                self.writer.put(record_of(event, applied, self._controller_id, self._view_of))
                if applied.after is None:
                    self._views.pop(event.broker_name, None)
        except Exception as error:
            if self._fault is None:
                logger.exception("telemetry: a controller event was lost; the controller goes on")
            self._fault = repr(error)

    def _view_of(self, group: BrokerSet | None) -> GroupView | None:
        """What an event finds is nearly always what the event before it left."""
        if group is None:
            return None
        known = self._views.get(group.broker_name)
        if known is None or known[0] is not group:
            known = self._views[group.broker_name] = group, view_of(group)
        return known[1]

    def restored(self, state: State) -> None:
        """The state of a snapshot: our own at the start, or the leader's because we were too far behind.

        The groups are written when the next event comes, and with its time: what follows may be old.
        """
        if state.event_count > max(self._written.event_id, self._state.event_count):
            self._has_gap = True
        self._state = state
        self._views.clear()

    def _is_written(self, event_id: int, ts: int) -> bool:
        """Also by time: were the log thrown away, its new events would have the old numbers."""
        return event_id <= self._written.event_id and ts <= self._written.ts

    def _put_groups(self, state: State, ts: int) -> None:
        for record in snapshot_of(state, ts, self._controller_id):
            self.writer.put(record)
        self._has_gap = False

    def _header(self, _record: str) -> list[ControllerEvent]:
        return list(snapshot_of(self._state, self._wall_clock(), self._controller_id))


def snapshot_of(state: State, ts: int, controller_id: str) -> Iterator[ControllerEvent]:
    """Each group as it is."""
    for name in sorted(state.brokers):
        yield ControllerEvent(
            ts=ts,
            cluster_name=state.brokers[name].cluster_name,
            broker_name=name,
            event_id=state.event_count,
            type=SNAPSHOT,
            controller_id=controller_id,
            after=view_of(state.brokers[name]),
        )


def record_of(
    event: AnyGroupEvent,
    applied: Applied,
    controller_id: str,
    view: Callable[[BrokerSet | None], GroupView | None] | None = None,
) -> ControllerEvent:
    """cluster_name of an event that was refused because its group is unknown: what it says itself, or ""."""
    group, refused, view = applied.after or applied.before, applied.refused, view or view_of
    return ControllerEvent(
        ts=event.ts,
        cluster_name=getattr(event, "cluster_name", "") if group is None else group.cluster_name,
        broker_name=event.broker_name,
        event_id=applied.state.event_count,
        type=_TYPES[type(event)],
        controller_id=controller_id,
        before=view(applied.before),
        after=view(applied.after),
        refused=None if refused is None else f"{refused.code.name}: {refused.remark}",
        reason=getattr(event, "reason", ""),
        unclean=getattr(event, "unclean", False),
        last_heartbeat_ts=getattr(event, "last_heartbeat_ts", None),
        detected_ts=getattr(event, "detected_ts", None),
    )


def view_of(group: BrokerSet | None) -> GroupView | None:
    if group is None:
        return None
    return GroupView(
        master_broker_id=group.master_broker_id,
        master_epoch=group.master_epoch,
        sync_state_set=tuple(sorted(group.sync_state_set)),
        sync_state_set_epoch=group.sync_state_set_epoch,
        replicas=tuple(sorted(group.replicas)),
    )


def last_written(directory: Path, node: str, controller_id: str) -> Written:
    """The newest event in the files of `node`; NOTHING: no file, or none that can be read.

    Snapshot records do not count: the writer may have stopped before the events that they stand in front of.
    """
    files = directory.glob(f"{name_of(ControllerEvent)}/dt=*/hour=*/{node}-*.jsonl*")
    try:
        for path in sorted(files, reverse=True):  # a path sorts by hour, then by the ms of its opening
            for line in reversed(path.read_bytes().splitlines()):
                written = _event_in(line, controller_id)
                if written is not None:
                    return written
    except OSError as error:
        logger.warning("cannot read own telemetry (%s): events may be written twice", error)
    return NOTHING


def _event_in(line: bytes, controller_id: str) -> Written | None:
    try:
        record = decode_record(line)
    except msgspec.DecodeError:
        return None  # half a line of a crash, or damage
    if not isinstance(record, ControllerEvent) or record.type == SNAPSHOT:
        return None
    return Written(record.event_id, record.ts) if record.controller_id == controller_id else None
