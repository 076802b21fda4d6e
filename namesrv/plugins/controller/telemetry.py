"""ControllerTelemetry: writes every applied event as a ControllerEvent record for analytics; and, if this
controller is active, each minute a ClockSample of every registered broker.

Its event hooks run in the raft thread, even during replay: they only convert values and queue them for the
writer. Events that an earlier process has written are skipped: the newest file shows the last one. A damaged
end of that file causes duplicates, which readers drop. Events inside a snapshot of the log have no record:
records of the current groups replace them.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, get_args

import msgspec

from keelmq.remoting.records import ClockSample, ControllerEvent, GroupView, decode_record, name_of
from keelmq.remoting.telemetry import TelemetryWriter
from keelmq.runtime.clock import wall_ms
from namesrv.plugins.controller.config import ControllerConfig
from namesrv.plugins.controller.core.apply import Applied
from namesrv.plugins.controller.core.clock_offsets import KEYS_MAX, ClockOffsets
from namesrv.plugins.controller.core.events import AnyEvent, AnyGroupEvent, ImportState, UpdateConfig
from namesrv.plugins.controller.core.state import BrokerSet, State

logger = logging.getLogger(__name__)

SNAPSHOT = "snapshot"
CLOCK_PERIOD_MS = 60_000
"""Interval at which a ClockSample of each broker is written."""
_TYPES = {each: str(each.__struct_config__.tag) for each in get_args(AnyGroupEvent)}


class Written(NamedTuple):
    """The newest event in the files of this controller. log_id "": an older release wrote it."""

    event_id: int
    ts: int
    log_id: str


NOTHING = Written(0, 0, "")


class ControllerTelemetry:
    """Call resume() before the log is opened. `writer` runs from then on and is closed after the log."""

    def __init__(self, config: ControllerConfig, wall_clock: Callable[[], int] = wall_ms) -> None:
        self._controller_id, self._wall_clock = config.controller_d_leger_self_id, wall_clock
        self._node = f"controller-{self._controller_id}"
        self._directory = config.telemetry_directory
        self._state = State()
        self._views: dict[str, tuple[BrokerSet, GroupView | None]] = {}  # each group after its last event
        self._written = NOTHING
        self._has_gap = False
        self._fault: str | None = None
        self._is_active = False
        self.clock_offsets = ClockOffsets()
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
        """Finds the newest event in the files. Blocks: call it in a thread."""
        self._written = last_written(self._directory, self._node, self._controller_id)

    def active_changed(self, is_active: bool) -> None:
        """Writes a record of every group when this controller becomes active, so that there is a file even
        without events."""
        self._is_active = is_active
        if is_active:
            self._put_groups(self._state, self._wall_clock())

    async def compare_clocks(self) -> None:
        """Writes the clock samples until it is cancelled."""
        while True:
            await asyncio.sleep(CLOCK_PERIOD_MS / 1_000)
            self.put_clock_samples()

    def put_clock_samples(self) -> None:
        """Writes what was found since the last call. Only of an active controller, and of registered brokers:
        a client can send heartbeats under any name."""
        left_out, ts, brokers = self.clock_offsets.left_out, self._wall_clock(), self._state.brokers
        found = self.clock_offsets.take()
        if not self._is_active:
            return
        if left_out:
            logger.warning("clocks: %d heartbeats of brokers beyond the first %d ignored", left_out, KEYS_MAX)
        for key, offset in found.items():
            group = brokers.get(key.broker_name)
            if (
                group is not None
                and key.cluster_name == group.cluster_name
                and key.broker_id in group.replicas
            ):
                self.writer.put(
                    ClockSample(
                        ts=ts,
                        cluster_name=key.cluster_name,
                        broker_name=key.broker_name,
                        broker_id=key.broker_id,
                        controller_id=self._controller_id,
                        offset_ms=offset.offset_ms,
                        heartbeats=offset.heartbeats,
                    )
                )

    def health(self) -> dict[str, object]:
        return {
            "written": self.writer.written_records,
            "dropped": self.writer.dropped_records,
            "fault": self._fault or self.writer.fault,
        }

    # ------------------------------------------------------------------ raft thread
    def applied(self, event: AnyEvent, applied: Applied) -> None:
        """Implements EventHook. Never raises: that would end the controller."""
        before, self._state = self._state, applied.state
        if not event.ts or self._is_written(applied.state, event.ts):
            return
        try:
            if self._has_gap:
                self._put_groups(before, event.ts)
            if isinstance(event, ImportState):
                self._put_groups(applied.state, event.ts)
            elif not isinstance(event, UpdateConfig):  # a record belongs to a group
                self.writer.put(record_of(event, applied, self._controller_id, self._view_of))
                if applied.after is None:
                    self._views.pop(event.broker_name, None)
        except Exception as error:
            if self._fault is None:
                logger.exception("telemetry: a controller event was not recorded; the controller continues")
            self._fault = repr(error)

    def _view_of(self, group: BrokerSet | None) -> GroupView | None:
        """Caches the view of each group: `before` of an event is nearly always `after` of the previous
        one."""
        if group is None:
            return None
        known = self._views.get(group.broker_name)
        if known is None or known[0] is not group:
            known = self._views[group.broker_name] = group, view_of(group)
        return known[1]

    def restored(self, state: State) -> None:
        """Implements RestoreHook: the state comes from our own snapshot at the start, or from the leader's.

        The groups are written together with the next event, with its time: that event may be old.
        """
        is_other_log = state.log_id != self._written.log_id != ""
        written = 0 if is_other_log else self._written.event_id
        if state.event_count > max(written, self._state.event_count):
            self._has_gap = True
        self._state = state
        self._views.clear()

    def _is_written(self, state: State, ts: int) -> bool:
        """`state`: after the event. The events of a new log reuse the numbers of an old one; without a log_id
        the time tells them apart."""
        event_id, written_ts, log_id = self._written
        if state.event_count > event_id:
            return False
        return state.log_id == log_id if state.log_id and log_id else ts <= written_ts

    def _put_groups(self, state: State, ts: int) -> None:
        for record in snapshot_of(state, ts, self._controller_id):
            self.writer.put(record)
        self._has_gap = False

    def _header(self, record: str) -> list[ControllerEvent]:
        if record != name_of(ControllerEvent):
            return []
        return list(snapshot_of(self._state, self._wall_clock(), self._controller_id))


def snapshot_of(state: State, ts: int, controller_id: str) -> Iterator[ControllerEvent]:
    """Yields a record of the current state of each group."""
    for name in sorted(state.brokers):
        yield ControllerEvent(
            ts=ts,
            cluster_name=state.brokers[name].cluster_name,
            broker_name=name,
            event_id=state.event_count,
            type=SNAPSHOT,
            controller_id=controller_id,
            log_id=state.log_id,
            after=view_of(state.brokers[name]),
        )


def record_of(
    event: AnyGroupEvent,
    applied: Applied,
    controller_id: str,
    view: Callable[[BrokerSet | None], GroupView | None] | None = None,
) -> ControllerEvent:
    """Returns the record of an applied event. The cluster of an unknown group is the event's, or ""."""
    group, refused, view = applied.after or applied.before, applied.refused, view or view_of
    return ControllerEvent(
        ts=event.ts,
        cluster_name=getattr(event, "cluster_name", "") if group is None else group.cluster_name,
        broker_name=event.broker_name,
        event_id=applied.state.event_count,
        type=_TYPES[type(event)],
        controller_id=controller_id,
        log_id=applied.state.log_id,
        before=view(applied.before),
        after=view(applied.after),
        refused=None if refused is None else f"{refused.code.name}: {refused.remark}",
        reason=getattr(event, "reason", ""),
        unclean=getattr(event, "unclean", False),
        last_heartbeat_ts=getattr(event, "last_heartbeat_ts", None),
        detected_ts=getattr(event, "detected_ts", None),
    )


def view_of(group: BrokerSet | None) -> GroupView | None:
    """Returns the record of a group; None for None."""
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
    """Returns the newest event in the files of `node`; NOTHING: there is none, or no file is readable.

    Snapshot records do not count: the writer may have stopped before the event that belongs to them.
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
        return None  # a line cut by a crash, or damage
    if not isinstance(record, ControllerEvent) or record.type == SNAPSHOT:
        return None
    return (
        Written(record.event_id, record.ts, record.log_id) if record.controller_id == controller_id else None
    )
