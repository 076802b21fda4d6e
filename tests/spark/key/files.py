"""The files that programs leave of a true history, by each writer's own clock, with damage; and what of it
can be known from them.

Damage: files that were copied while they grew, so their lines are there twice; files that were compressed,
one of them cut off; lines that are no records, half a line at the end; files of unknown kinds.
"""

import gzip
import random
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from keelmq.remoting.records import (
    ClockSample,
    ConsumerLag,
    ControllerEvent,
    GroupView,
    HaSample,
    Record,
    ReplicaSample,
    RoleChange,
    SendGap,
    encode_record,
    name_of,
)
from tests.spark.key.samples import Backlog, Sample, backlogs_of, samples_of
from tests.spark.key.world import (
    CONTROLLERS,
    DAY_MS,
    DELAY_MS,
    HOUR_MS,
    MINUTE_MS,
    REPLICAS,
    Event,
    Group,
    Plan,
    Ready,
    View,
)

CLUSTER = "KeelCluster"
WRONG_TIMES = (17_000, 18_000, 19_000)
DAMAGED = b"\x00damaged\n"
"""In place of the line of an event that is lost."""
BAD_LINES = (b'{"record":"ha_sample","v":1,"ts":17\n', b"[]\n", b"\xff\xfe half a page of nothing\n")


@dataclass(frozen=True)
class Clock:
    """A clock sample: the controller's time, and what it measured."""

    ts: int
    broker: int
    controller: str
    offset_ms: int


@dataclass
class Known:
    """What the files of a group tell, in true time: the truth without what was lost.

    `record_hours`: the hours with a controller's record of the group, by their start.
    """

    group: Group
    samples: list[Sample] = field(default_factory=list)
    backlogs: list[Backlog] = field(default_factory=list)
    clocks: list[Clock] = field(default_factory=list)
    record_hours: set[int] = field(default_factory=set)


@dataclass
class Written:
    """What is in the files. Counts are by kind of record."""

    groups: list[Known] = field(default_factory=list)
    rows: Counter[str] = field(default_factory=Counter)
    duplicates: Counter[str] = field(default_factory=Counter)
    bad_lines: Counter[str] = field(default_factory=Counter)
    unread_files: Counter[str] = field(default_factory=Counter)
    outliers: Counter[str] = field(default_factory=Counter)


def write(root: Path, groups: Sequence[Group], plan: Plan, *, seed: int = 1, damage: bool = True) -> Written:
    """Writes the telemetry of all groups below `root`; returns what is in it."""
    return _Writer(root, plan, random.Random(f"{seed} files"), damage).whole(groups, seed)


class _Writer:
    def __init__(self, root: Path, plan: Plan, dice: random.Random, damage: bool) -> None:
        self._root, self._plan, self._dice, self._damage = root, plan, dice, damage
        self._files: dict[tuple[str, str, int], list[tuple[int, bytes]]] = defaultdict(list)
        """Times and lines, by node, kind and hour of the writer's clock."""
        self._written = Written()

    def whole(self, groups: Sequence[Group], seed: int) -> Written:
        for group in groups:
            known = Known(group, samples_of(group, self._plan, seed), backlogs_of(group, self._plan, seed))
            known.clocks = [] if group.features.unmeasured else list(self._clocks(group))
            self._written.groups.append(known)
            self._put_group(known)
        if self._damage:
            self._put_outliers(self._written.groups[0])
        for (node, kind, hour), lines in sorted(self._files.items()):
            self._write(self._path(node, kind, hour), kind, [line for _, line in sorted(lines)])
        self._written.rows -= self._written.outliers
        if self._damage:
            self._damage_files()
        return self._written

    # ------------------------------------------------------------------ records
    def _put_group(self, known: Known) -> None:
        group = known.group
        for sample in known.samples:
            own = sample.ts - group.offset_at(sample.broker, sample.ts)
            self._put(f"{group.name}-{sample.broker}", _ha_sample(group, sample, own))
        for backlog in known.backlogs:
            own = backlog.ts - group.offset_at(backlog.broker, backlog.ts)
            self._put(f"{group.name}-{backlog.broker}", _consumer_lag(group, backlog, own))
        for change in group.ready:
            own = change.ts - group.offset_at(change.broker, change.ts)
            self._put(f"{group.name}-{change.broker}", _role_change(group, change, own))
        for gap in group.gaps:
            gap_record = SendGap(
                ts=gap.ended + gap.skew_ms, cluster_name=CLUSTER, broker_name=group.name,
                broker_id=gap.broker, program=gap.program, started_ts=gap.started + gap.skew_ms,
                gap_ms=gap.ended - gap.started,
            )  # fmt: skip
            self._put("producer", gap_record)
        for each in known.clocks:
            clock = ClockSample(
                ts=each.ts, cluster_name=CLUSTER, broker_name=group.name, broker_id=each.broker,
                controller_id=each.controller, offset_ms=each.offset_ms, heartbeats=60,
            )  # fmt: skip
            self._put(each.controller, clock)
        self._put_events(known)

    def _put_outliers(self, known: Known) -> None:
        """Slaves whose clocks began in 1970, and were a month ahead: their hours are left out."""
        (slave, *_) = (each for each in known.samples if each.role == "slave")
        for own in (*WRONG_TIMES, self._plan.end + 30 * DAY_MS):
            self._put(f"{known.group.name}-{slave.broker}", _ha_sample(known.group, slave, own))
            self._written.outliers["ha_sample"] += 1

    def _put_events(self, known: Known) -> None:
        group = known.group
        for event in group.events:
            if not event.recorded:
                if event.ts - event.ts % HOUR_MS != group.lost_hour:
                    self._lost_lines(event)
                continue
            known.record_hours.add(event.ts - event.ts % HOUR_MS)
            copies = CONTROLLERS if self._dice.random() < 0.8 else self._dice.sample(CONTROLLERS, 2)
            detector = self._dice.choice(copies)
            for controller in copies:
                self._put(controller, _event(group, event, controller, knows_loss=controller == detector))
        for moment, controller in self._snapshots(group):
            before = [each for each in group.events if each.ts <= moment]
            if not before or group.lost_hour == moment - moment % HOUR_MS:
                continue
            known.record_hours.add(moment - moment % HOUR_MS)
            shown = Event(moment, before[-1].log, before[-1].event_id, "snapshot", None, before[-1].after)
            self._put(controller, _event(group, shown, controller, knows_loss=False))

    def _lost_lines(self, event: Event) -> None:
        """The event's line is damaged at every controller."""
        for controller in CONTROLLERS:
            self._files[controller, "controller_event", event.ts // HOUR_MS].append((event.ts, DAMAGED))

    def _snapshots(self, group: Group) -> Iterator[tuple[int, str]]:
        """Yields when each controller opens a file: in the first seconds of an hour, in which brokers have
        sampled already, and when it starts."""
        starts = [*self._plan.moments(HOUR_MS), self._plan.resume, *group.log_starts[1:]]
        for start in starts:
            for controller in self._dice.sample(CONTROLLERS, self._dice.randint(1, 3)):
                yield start + self._dice.randint(650, 2_400), controller

    def _clocks(self, group: Group) -> Iterator[Clock]:
        """Yields a sample per broker and minute. The active controller changes in the middle."""
        change = (self._plan.start + self._plan.pause) // 2 + 17_000
        for broker in REPLICAS:
            least = self._dice.randint(0, DELAY_MS - 1)
            for minute in self._plan.moments(MINUTE_MS):
                ts = minute + 1_000 + 37 * broker
                if not self._plan.runs_at(ts) or not self._is_up(group, broker, ts):
                    continue
                controller = CONTROLLERS[0] if ts < change else CONTROLLERS[1]
                yield Clock(
                    ts, broker, controller, group.offset_at(broker, ts) + self._dice.randint(least, DELAY_MS)
                )

    def _is_up(self, group: Group, broker: int, ts: int) -> bool:
        return any(group.belief_at(broker, each).role != "down" for each in (ts, ts - MINUTE_MS))

    # ------------------------------------------------------------------ files
    def _put(self, node: str, record: Record) -> None:
        mine = self._files[node, name_of(type(record)), record.ts // HOUR_MS]
        mine.append((record.ts, encode_record(record)))

    def _write(self, path: Path, kind: str, lines: Sequence[bytes]) -> None:
        self._written.rows[kind] += _good(lines)
        self._written.bad_lines[kind] += len(lines) - _good(lines)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(lines))

    def _path(self, node: str, kind: str, hour: int) -> Path:
        moment = datetime.fromtimestamp(hour * 3_600, UTC)
        folder = self._root / node / "telemetry" / kind / f"dt={moment:%Y-%m-%d}" / f"hour={moment:%H}"
        return folder / f"{node}-{hour * HOUR_MS}.jsonl"

    def _damage_files(self) -> None:
        """Damages files, a kind of damage each, and counts it."""
        paths = sorted(self._root.rglob("*.jsonl"))
        by_kind: dict[str, list[Path]] = defaultdict(list)
        for path in paths:
            by_kind[path.parts[-4]].append(path)
        for kind, mine in sorted(by_kind.items()):
            chosen = self._dice.sample(mine, min(5, len(mine)))
            damages = (
                self._copied,
                self._compressed_copy,
                self._cut_copy,
                self._bad_lines,
                self._half_a_line,
            )
            for path, damage in zip(chosen, damages, strict=False):
                damage(kind, path)
            self._unread(kind, mine[0])

    def _copied(self, kind: str, path: Path) -> None:
        """It was copied while it grew: the last line is not whole yet."""
        lines = path.read_bytes().splitlines(keepends=True)
        part = lines[: self._dice.randint(1, len(lines))]
        copy = path.with_name(f"{path.name}.open")
        copy.write_bytes(b"".join(part) + lines[0][:20])
        self._written.duplicates[kind] += _good(part)
        self._written.bad_lines[kind] += len(part) - _good(part)

    def _compressed_copy(self, kind: str, path: Path) -> None:
        data = path.read_bytes()
        path.with_name(f"copy-{path.name}.gz").write_bytes(gzip.compress(data))
        lines = data.splitlines(keepends=True)
        self._written.duplicates[kind] += _good(lines)
        self._written.bad_lines[kind] += len(lines) - _good(lines)

    def _cut_copy(self, kind: str, path: Path) -> None:
        """A compressed copy that ends early: its readable part counts."""
        data = gzip.compress(path.read_bytes())
        half = data[: max(len(data) * 2 // 3, 20)]
        path.with_name(f"cut-{path.name}.gz").write_bytes(half)
        readable = zlib.decompressobj(wbits=31).decompress(half)
        lines = readable[: readable.rfind(b"\n") + 1].splitlines(keepends=True)
        self._written.duplicates[kind] += _good(lines)
        self._written.bad_lines[kind] += len(lines) - _good(lines)

    def _bad_lines(self, kind: str, path: Path) -> None:
        lines = path.read_bytes().splitlines(keepends=True)
        for line in BAD_LINES:
            lines.insert(self._dice.randint(0, len(lines)), line)
        path.write_bytes(b"".join(lines))
        self._written.bad_lines[kind] += len(BAD_LINES)

    def _half_a_line(self, kind: str, path: Path) -> None:
        """Its writer was killed: the file will not grow any more."""
        data = path.read_bytes()
        path.write_bytes(data + data.splitlines()[0][:30])
        self._written.bad_lines[kind] += 1

    def _unread(self, kind: str, path: Path) -> None:
        path.with_name(f"{path.stem}.jsonl.bak").write_bytes(b"?")
        self._written.unread_files[kind] += 1


def _good(lines: Iterable[bytes]) -> int:
    return sum(line != DAMAGED for line in lines)


# ---------------------------------------------------------------------- a line of each kind
def _ha_sample(group: Group, sample: Sample, own_ts: int) -> HaSample:
    replicas = tuple(
        ReplicaSample(broker_id=each.broker, ack_offset=each.ack, lag_ms=each.lag_ms, in_sync=each.in_sync)
        for each in sample.replicas
    )
    return HaSample(
        ts=own_ts, cluster_name=CLUSTER, broker_name=group.name, broker_id=sample.broker,
        role=sample.role, master_epoch=sample.epoch, max_offset=sample.max_offset,  # type: ignore[arg-type]
        confirm_offset=sample.confirm_offset, lag_ms=sample.lag_ms, lag_ms_max=sample.lag_ms_max,
        lag_bytes_max=sample.lag_bytes_max, min_in_sync_replicas=sample.minimum, replicas=replicas,
        lag_us=sample.lag_us, confirm_us=sample.confirm_us,
    )  # fmt: skip


def _consumer_lag(group: Group, backlog: Backlog, own_ts: int) -> ConsumerLag:
    return ConsumerLag(
        ts=own_ts, cluster_name=CLUSTER, broker_name=group.name, broker_id=backlog.broker,
        consumer_group=backlog.consumer_group, topic=backlog.topic, lag_messages=backlog.messages,
        lag_ms=backlog.lag_ms,
    )  # fmt: skip


def _role_change(group: Group, change: Ready, own_ts: int) -> RoleChange:
    return RoleChange(
        ts=own_ts, cluster_name=CLUSTER, broker_name=group.name, broker_id=change.broker, role=change.role,
        master_epoch=change.epoch, previous_role="slave", previous_epoch=max(change.epoch - 1, 0),
        started_ts=own_ts - 3, max_offset=0, confirm_offset=0,
    )  # fmt: skip


def _event(group: Group, event: Event, controller: str, *, knows_loss: bool) -> ControllerEvent:
    """`knows_loss`: only the controller that was active then knows when the master was lost."""
    return ControllerEvent(
        ts=event.ts, cluster_name=CLUSTER, broker_name=group.name, event_id=event.event_id, type=event.type,
        controller_id=controller, log_id=f"{group.name}-log-{event.log}", before=_view(event.before),
        after=_view(event.after), reason=event.reason, unclean=event.unclean,
        last_heartbeat_ts=event.heard if knows_loss else None,
        detected_ts=event.detected if knows_loss else None,
    )  # fmt: skip


def _view(view: View | None) -> GroupView | None:
    if view is None:
        return None
    return GroupView(
        master_broker_id=view.master, master_epoch=view.epoch, sync_state_set=view.members,
        sync_state_set_epoch=view.set_epoch, replicas=view.replicas,
    )  # fmt: skip
