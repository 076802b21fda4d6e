"""Broker groups that live for hours, with what goes wrong in practice: controllers built anew, lost files,
brokers' and producers' clocks that are seconds apart and step, masters that were cut off and go on.

A Life keeps what the files hold, and the truth beside it.
"""

import random
from dataclasses import dataclass, field

import msgspec

from keelmq.remoting.records import ClockSample, ControllerEvent, HaSample, Record, RoleChange
from tests.spark.histories import CLUSTER, CONTROLLERS, START_TS, Generator

HOUR_MS = 3_600_000
MINUTE_MS = 60_000


@dataclass
class Life:
    """`log_starts`: when each log of controllers began. `lost`: time of which no controller's file is left.
    `true_ready`: (broker, log, epoch) -> when it was ready, by the controllers' clock."""

    broker_name: str
    lines: list[ControllerEvent] = field(default_factory=list)
    role_changes: list[RoleChange] = field(default_factory=list)
    send_gaps: list[Record] = field(default_factory=list)
    samples: list[HaSample] = field(default_factory=list)
    clock_samples: list[ClockSample] = field(default_factory=list)
    log_starts: list[int] = field(default_factory=list)
    lost: tuple[int, int] = (0, 0)
    true_ready: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def records(self) -> list[Record]:
        return [*self.samples, *self.role_changes, *self.lines, *self.send_gaps, *self.clock_samples]


class LongGenerator(Generator):
    """Like Generator, with hours between some events, snapshots at their start, and skewed clocks.

    `names`: of the logs: "named", "old" (no log_id) or "mixed" (old, then named).
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed, replicas=random.Random(seed).randint(2, 3))
        self.dice = random.Random(~seed)
        self._ids = 400
        self.history.broker_name = f"life-{seed}"
        self.life = Life(self.history.broker_name, log_starts=[START_TS - HOUR_MS])
        self.names = self.dice.choice(["named", "old", "mixed"])
        self.offsets = {each: self.dice.choice([0, 0, 7, 5_000, -5_000, -300]) for each in self._all}
        self.steps: dict[int, list[tuple[int, int]]] = {each: [] for each in self._all}
        self.producer_ms = self.dice.choice([0, 0, 0, 3_000, -4_000, 30_000])

    def whole(self, steps: int) -> Life:
        half = self.dice.randint(2, steps - 2)
        self.live(half)
        if self.dice.random() < 0.5:
            self._rebuild()
        for _ in range(steps - half):
            self._wait()
            self.dice.choice([self._alter, self._alter, self._alter, self._lose_master, self._hand_over,
                              self._cut_off, self._step, self._sample])()  # fmt: skip
        life = self.life
        life.samples, life.send_gaps = (
            self.history.samples,
            [
                msgspec.structs.replace(
                    each,
                    ts=each.ts + self.producer_ms,
                    started_ts=each.started_ts + self.producer_ms,
                    broker_id=self.dice.choice([each.broker_id, each.broker_id, 0]),
                )
                for each in self.history.send_gaps
            ],
        )
        life.lines = self._without_lost(self.history.lines)
        self.dice.shuffle(life.lines)
        if self.dice.random() < 0.7:
            life.clock_samples = self._clock_samples(self.dice.choice([1.0, 0.6]))
        return life

    def offset_of(self, broker_id: int, moment: int) -> int:
        return next((ms for since, ms in reversed(self.steps[broker_id]) if since <= moment),
                    self.offsets[broker_id])  # fmt: skip

    # ------------------------------------------------------------------ the log
    def _wait(self) -> None:
        before = self.now
        super()._wait()
        if self.dice.random() < 0.2:
            self.now += self.dice.choice([600_000, HOUR_MS, self.dice.randint(0, 3 * HOUR_MS)])
        for hour in range(before // HOUR_MS * HOUR_MS + HOUR_MS, self.now + 1, HOUR_MS):
            self._headers(hour)

    def _headers(self, hour: int) -> None:
        """The first lines of each controller's file; one that is behind writes an older state."""
        if self._view is None:
            return
        for controller in self.dice.sample(CONTROLLERS, self.dice.randint(1, 3)):
            event = self._event(
                "snapshot", None, self._view, ts=min(hour + self.dice.randint(0, 900), self.now)
            )
            self.history.lines.append(msgspec.structs.replace(event, controller_id=controller))

    def _event(self, *args, **more) -> ControllerEvent:  # type: ignore[no-untyped-def]
        count = len(self.life.log_starts)
        is_named = self.names == "named" or (self.names == "mixed" and count > 1)
        return msgspec.structs.replace(
            super()._event(*args, **more), log_id=f"log-{count}" if is_named else ""
        )

    def _snapshot(self) -> None:
        """Never over the edge of an hour: what it would show there is of another hour's file."""
        before = len(self.history.lines)
        super()._snapshot()
        edge = self.now // HOUR_MS * HOUR_MS + HOUR_MS - 1
        self.history.lines[before:] = [
            msgspec.structs.replace(each, ts=min(each.ts, edge)) for each in self.history.lines[before:]
        ]

    def _rebuild(self) -> None:
        """Other controllers, with an empty state or with the old one, and event ids from 1 on."""
        self.now += self.dice.randint(MINUTE_MS, 2 * HOUR_MS)
        self.life.log_starts.append(self.now)
        self._ids = 0
        if self.dice.random() < 0.5:
            self._ids = 1
            self._headers(self.now)
            return
        self._view = None
        for broker_id in self._all:
            self._register(broker_id)
        self._elect("first master")

    def _without_lost(self, lines: list[ControllerEvent]) -> list[ControllerEvent]:
        """Minutes or hours of which no file is left."""
        if self.dice.random() < 0.3:
            return lines
        start = self.dice.choice(lines).ts - self.dice.choice([0, 1, 500_000])
        end = start + self.dice.choice([1, 1_000, 600_000, HOUR_MS, 4 * HOUR_MS])
        self.life.lost = (start, end)
        return [each for each in lines if not start <= each.ts < end]

    # ------------------------------------------------------------------ brokers
    def _change_role(self, broker_id: int, role: str, master_epoch: int) -> None:
        self._say(broker_id, role, master_epoch, self.now)
        if role == "master":
            key = broker_id, len(self.life.log_starts), master_epoch
            self.life.true_ready.setdefault(key, self.now)

    def _say(self, broker_id: int, role: str, master_epoch: int, moment: int) -> None:
        self.life.role_changes.append(
            RoleChange(
                ts=moment - self.offset_of(broker_id, moment), cluster_name=CLUSTER,
                broker_name=self.history.broker_name, broker_id=broker_id, role=role,  # type: ignore[arg-type]
                master_epoch=master_epoch, previous_role="slave", previous_epoch=master_epoch - 1,
                started_ts=0, max_offset=0, confirm_offset=0,
            )
        )  # fmt: skip

    def _cut_off(self) -> None:
        """The old master does not hear of its successor, restarts and is master of its old epoch again."""
        assert self._view is not None
        old = self._view
        self._elect("master 1 is not active")
        if old.master_broker_id is not None:
            self.now += 70_000
            self._say(old.master_broker_id, "master", old.master_epoch, self.now)

    def _step(self) -> None:
        broker_id = self.dice.choice(self._all)
        self.steps[broker_id].append((self.now, self.dice.choice([0, 2_000, -7_000])))

    def _sample(self) -> None:
        if self.dice.random() < 0.2:
            self.min_in_sync_replicas = self.dice.randint(1, 3)
        if self._view is not None and self._view.master_broker_id is not None:
            self.now += self.dice.choice([0, 1, 1_000])
            self._sample_of(self._view.master_broker_id, self._view)

    def _clock_samples(self, kept: float) -> list[ClockSample]:
        """Of the minutes around each role change."""
        moments = {
            (each.broker_id, (each.ts + ms) // MINUTE_MS + minute)
            for each in self.life.role_changes
            for ms in {0, *self.offsets.values()}
            for minute in range(-2, 3)
        }
        found = []
        for broker_id, minute in sorted(moments):
            ts = minute * MINUTE_MS
            if self.dice.random() < kept:
                offset = min(self.offset_of(broker_id, ts), self.offset_of(broker_id, ts - MINUTE_MS + 1))
                found.append(
                    ClockSample(
                        ts=ts, cluster_name=CLUSTER, broker_name=self.history.broker_name,
                        broker_id=broker_id, controller_id=CONTROLLERS[0],
                        offset_ms=offset + self.dice.randint(0, 3), heartbeats=60,
                    )
                )  # fmt: skip
        return found


def random_life(seed: int, *, steps: int = 16) -> Life:
    return LongGenerator(seed).whole(steps)
