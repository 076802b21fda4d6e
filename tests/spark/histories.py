"""Random but consistent histories of broker groups, as the records that their programs would write.

A History keeps the truth (each event once, in the log's order) beside what the files hold: every event from
three controllers, elections with and without a time of detection, lost role changes, clocks that disagree.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from keelmq.remoting.records import (
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

CLUSTER = "KeelCluster"
CONTROLLERS = ("n0", "n1", "n2")
START_TS = 1_767_225_600_000
"""2026-01-01 00:00 UTC; a multiple of every window that the tests use."""


@dataclass
class History:
    """`events`: applied ones, once each, in order. The other lists: what is in the files."""

    broker_name: str
    events: list[ControllerEvent] = field(default_factory=list)
    lines: list[ControllerEvent] = field(default_factory=list)
    role_changes: list[RoleChange] = field(default_factory=list)
    send_gaps: list[SendGap] = field(default_factory=list)
    samples: list[HaSample] = field(default_factory=list)

    def records(self) -> Iterator[Record]:
        yield from [*self.samples, *self.role_changes, *self.lines, *self.send_gaps]


class Generator:
    """One group's life on the clock `now`. `is_messy`: clocks disagree, files are doubled and cut."""

    def __init__(self, seed: int, *, replicas: int | None = None, is_messy: bool = False) -> None:
        self._random = random.Random(seed)
        self._is_messy = is_messy
        self._all = tuple(range(1, (replicas or self._random.randint(1, 4)) + 1))
        self._ids = self._random.randint(1, 50)
        self._view: GroupView | None = None
        self.now = START_TS + self._random.choice([0, 0, 1, 999, 1_000, self._random.randint(0, 5_000)])
        self.min_in_sync_replicas = self._random.randint(1, len(self._all))
        self.history = History(f"group-{seed}")

    def live(self, steps: int) -> History:
        for broker_id in self._all:
            self._register(broker_id)
        self._elect("first master")
        for _ in range(steps):
            self._wait()
            self._random.choice(
                [
                    self._alter,
                    self._alter,
                    self._alter,
                    self._alter,
                    self._lose_master,
                    self._refuse,
                    self._hand_over,
                    self._clean,
                ]
            )()
            if self._random.random() < 0.3:
                self._snapshot()
            if self._random.random() < 0.5:
                self._sample()
        self._wait()
        self._sample()
        if self._is_messy:
            self._random.shuffle(self.history.lines)
        return self.history

    # ------------------------------------------------------------------ the log
    def _register(self, broker_id: int) -> None:
        old = self._view
        if old is None:
            new = GroupView(
                master_broker_id=None,
                master_epoch=0,
                sync_state_set=(),
                sync_state_set_epoch=0,
                replicas=(broker_id,),
            )
        else:
            new = msgspec.structs.replace(old, replicas=tuple(sorted({*old.replicas, broker_id})))
        self._apply("applyBrokerId", new)

    def _alter(self) -> None:
        """A random new set around the master; sometimes the same one, which changes nothing."""
        assert self._view is not None
        master = self._view.master_broker_id
        if master is None:
            return self._elect("a replica came back")
        others = [each for each in self._all if each != master and self._random.random() < 0.6]
        new = tuple(sorted({master, *others}))
        is_new = new != self._view.sync_state_set
        self._apply(
            "alterSyncStateSet",
            msgspec.structs.replace(
                self._view,
                sync_state_set=new,
                sync_state_set_epoch=self._view.sync_state_set_epoch + is_new,
            ),
            reason=self._random.choice(["caught_up", "lag", "gone"]),
        )

    def _lose_master(self) -> None:
        """Killed; an heir is elected at once, later, or only after the master had been cleared."""
        assert self._view is not None
        if self._view.master_broker_id is None:
            return self._elect("a replica came back")
        lost, started = self._view.master_broker_id, self.now
        heard = started - self._random.randint(0, 900)
        self.now += self._random.randint(0, 400)
        detected = {"last_heartbeat_ts": heard, "detected_ts": self.now}
        self.now += self._random.randint(0, 30)
        transfer_targets = [each for each in self._view.sync_state_set if each != lost]
        if not transfer_targets or self._random.random() < 0.2:
            self._clear(detected)
            self.now += self._random.randint(0, 3_000)
            detected = {}
            if self._random.random() < 0.4:
                return  # nobody for now
        elected_ts = self._elect("the master was lost", **detected)
        if self._random.random() < 0.8:
            ended = max(elected_ts, started) + self._random.randint(0, 500)
            gap = {"started_ts": started, "gap_ms": ended - started}
            self._put(
                self.history.send_gaps, SendGap, ts=ended, broker_id=lost, program=f"broker-{lost}", **gap
            )
            self.now = max(self.now, ended)

    def _hand_over(self) -> None:
        self._elect("asked for by an operator")

    def _elect(self, reason: str, **detected: int) -> int:
        """The time of the election. Unclean when nobody in the set may win."""
        assert self._view is not None
        old = self._view
        transfer_targets = [each for each in old.sync_state_set if each != old.master_broker_id]
        unclean = bool(old.sync_state_set) and not transfer_targets
        transfer_target = self._random.choice(
            transfer_targets or [each for each in self._all if each != old.master_broker_id] or [0]
        )
        if transfer_target == 0:
            return self.now
        new = GroupView(
            master_broker_id=transfer_target,
            master_epoch=old.master_epoch + 1,
            sync_state_set=(transfer_target,),
            sync_state_set_epoch=old.sync_state_set_epoch + 1,
            replicas=old.replicas,
        )
        event = self._apply("electMaster", new, reason=reason, unclean=unclean, **detected)
        self._become_ready(new, transfer_target)
        return event.ts

    def _become_ready(self, view: GroupView, transfer_target: int) -> None:
        """As master once, twice, or never (it died first); the others follow it."""
        self.now += self._random.randint(0, 50)
        for _ in range(self._random.choice([1, 1, 1, 2, 0])):
            self._change_role(transfer_target, "master", view.master_epoch)
            self.now += self._random.randint(0, 9)
        for slave in [each for each in self._all if each != transfer_target]:
            self._change_role(slave, "slave", view.master_epoch)

    def _change_role(self, broker_id: int, role: str, master_epoch: int) -> None:
        self._put(
            self.history.role_changes,
            RoleChange,
            ts=self.now,
            broker_id=broker_id,
            role=role,
            master_epoch=master_epoch,
            previous_role="slave",
            previous_epoch=master_epoch - 1,
            started_ts=self.now - 3,
            max_offset=0,
            confirm_offset=0,
        )

    def _clear(self, detected: dict[str, int]) -> None:
        assert self._view is not None
        new = msgspec.structs.replace(
            self._view, master_broker_id=None, master_epoch=self._view.master_epoch + 1
        )
        self._apply("electMaster", new, reason="nobody can be elected", **detected)

    def _clean(self) -> None:
        """An operator takes a replica out for ever, perhaps the master; never the last of the set."""
        assert self._view is not None
        old = self._view
        gone = self._random.choice(
            [each for each in old.replicas if {each} != set(old.sync_state_set)] or [0]
        )
        if gone == 0 or self._random.random() < 0.5:
            return
        is_master = gone == old.master_broker_id
        self._all = tuple(each for each in self._all if each != gone)
        new = GroupView(
            master_broker_id=None if is_master else old.master_broker_id,
            master_epoch=old.master_epoch + is_master,
            sync_state_set=tuple(each for each in old.sync_state_set if each != gone),
            sync_state_set_epoch=old.sync_state_set_epoch + (gone in old.sync_state_set),
            replicas=self._all,
        )
        self._apply("cleanBrokerData", new, reason=f"master {gone} was cleaned" if is_master else "")

    def _refuse(self) -> None:
        """An event that came too late: it changes nothing and counts nowhere."""
        assert self._view is not None
        self._ids += 1
        self._write(self._event("electMaster", self._view, self._view, refused="CONTROLLER_FENCED: late"))

    def _snapshot(self) -> None:
        """Some controllers open a file; one that is behind may do so late."""
        assert self._view is not None
        for controller in CONTROLLERS:
            if self._random.random() < 0.5:
                late = self._random.choice([0, 0, 5, 700])
                event = self._event("snapshot", None, self._view, ts=self.now + late)
                self.history.lines.append(msgspec.structs.replace(event, controller_id=controller))

    def _apply(self, type: str, view: GroupView, **more: object) -> ControllerEvent:
        self._ids += self._random.choice([1, 1, 2, 7])  # other groups' events lie between
        skew = self._random.choice([0, 0, -40, 40, -1_500]) if self._is_messy else 0
        event = self._event(type, self._view, view, ts=self.now + skew, **more)
        self._view = view
        self.history.events.append(event)
        self._write(event)
        return event

    def _event(
        self, type: str, before: GroupView | None, after: GroupView, *, ts: int | None = None, **more: object
    ) -> ControllerEvent:
        return ControllerEvent(
            ts=self.now if ts is None else ts,
            cluster_name=CLUSTER,
            broker_name=self.history.broker_name,
            event_id=self._ids,
            type=type,
            controller_id=CONTROLLERS[0],
            before=before,
            after=after,
            **more,  # type: ignore[arg-type]
        )

    def _write(self, event: ControllerEvent) -> None:
        """By every controller; by some twice, by a crashed one not at all."""
        copies = self._random.choice([3, 3, 3, 2, 1, 4]) if self._is_messy else 3
        for number in range(copies):
            controller = CONTROLLERS[number % len(CONTROLLERS)]
            self.history.lines.append(msgspec.structs.replace(event, controller_id=controller))

    # ------------------------------------------------------------------ brokers
    def _wait(self) -> None:
        """Often to the edge of a second, or of the five minutes of a flap."""
        to_edge = -self.now % 1_000
        around_flap = self._random.choice([5, 299_999, 300_000, 300_001])
        self.now += self._random.choice(
            [0, 1, 7, to_edge, 1_000, self._random.randint(0, 4_000), around_flap]
        )

    def _sample(self) -> None:
        """A burst of samples of every broker that is up; the master alone knows set and replicas."""
        assert self._view is not None
        for _ in range(self._random.randint(1, 12)):
            self.now += self._random.choice([0, 1, 90, 1_000])
            for broker_id in self._all:
                self._sample_of(broker_id, self._view)

    def _sample_of(self, broker_id: int, view: GroupView) -> None:
        is_master = broker_id == view.master_broker_id
        max_offset = 1 << 40
        lag = int(self._random.expovariate(1.0) * self._random.choice([0, 1, 40, 5_000, 3_000_000]))
        if self._random.random() < 0.05:
            lag = (1 << self._random.randint(0, 30)) - self._random.randint(0, 1)  # on an edge of a bucket
        lag = -5 if self._random.random() < 0.04 else lag
        lag_ms = self._random.choice([0, 0, 1, 2, 3, 7, 8, 15, 16, self._random.randint(0, 20_000)])
        self._put(
            self.history.samples,
            HaSample,
            ts=self.now,
            broker_id=broker_id,
            role="master" if is_master else self._random.choice(["slave", "none"]),
            master_epoch=view.master_epoch,
            max_offset=max_offset,
            confirm_offset=max_offset - lag,
            lag_ms=lag_ms,
            lag_ms_max=lag_ms + self._random.choice([0, 0, 300]),
            lag_bytes_max=self._random.choice([0, max(lag, 0) * 2]),
            sync_state_set=view.sync_state_set if is_master else (),
            sync_state_set_epoch=view.sync_state_set_epoch,
            min_in_sync_replicas=self.min_in_sync_replicas if is_master else 1,
            replicas=self._replica_samples(broker_id, view, max_offset) if is_master else (),
        )

    def _replica_samples(self, master: int, view: GroupView, max_offset: int) -> tuple[ReplicaSample, ...]:
        return tuple(
            ReplicaSample(
                broker_id=each,
                ack_offset=max_offset - self._random.choice([-3, 0, self._random.randint(0, 1 << 25)]),
                lag_ms=self._random.randint(0, 30_000),
                in_sync=each in view.sync_state_set,
            )
            for each in self._all
            if each != master and self._random.random() < 0.9
        )

    def _put(self, target: list, record: type[Record], **fields: object) -> None:  # type: ignore[type-arg]
        target.append(record(cluster_name=CLUSTER, broker_name=self.history.broker_name, **fields))  # type: ignore[arg-type]


def random_history(seed: int, *, steps: int = 12, is_messy: bool = False) -> History:
    return Generator(seed, is_messy=is_messy).live(steps)


def write_telemetry(root: Path, records: Iterable[Record], *, suffix: str = ".jsonl") -> Path:
    """The records as files below `root`, one per kind. The root."""
    by_kind: dict[str, list[bytes]] = {}
    for record in records:
        by_kind.setdefault(name_of(type(record)), []).append(encode_record(record))
    for kind, lines in by_kind.items():
        folder = root / kind / "dt=2026-01-01" / "hour=00"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"node-{START_TS}{suffix}").write_bytes(b"".join(lines))
    return root
