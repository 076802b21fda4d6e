"""Half an hour of a fleet over the edge of an hour, in the order in which its files grow: births, fail-overs
with two masters, groups without a master, rebuilt controllers, skewed clocks, late and doubled lines."""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from keelmq.remoting.records import (
    ClockSample,
    ControllerEvent,
    GroupView,
    HaSample,
    Record,
    ReplicaSample,
    encode_record,
    name_of,
)

HOUR_MS, MINUTE_MS = 3_600_000, 60_000
HOUR_TS = 1_767_225_600_000 + 4 * HOUR_MS
FROM_TS, TO_TS = HOUR_TS + 45 * MINUTE_MS, HOUR_TS + 70 * MINUTE_MS
CLUSTER = "Last"
CONTROLLERS = ("n0", "n1")

Written = tuple[int, str, Record]
"""When it is in a file, of which node, and what."""


def view(master: int | None, epoch: int, members: tuple[int, ...], set_epoch: int) -> GroupView:
    return GroupView(
        master_broker_id=master,
        master_epoch=epoch,
        sync_state_set=members,
        sync_state_set_epoch=set_epoch,
        replicas=(1, 2, 3),
    )


@dataclass
class Group:
    """`reigns`: (broker, epoch, from, to) of brokers that sample as masters, by the true clock. `views`: what
    controllers agree on, from when on. `offsets`: what is to be added to a broker's time."""

    name: str
    reigns: list[tuple[int, int, int, int]]
    views: list[tuple[int, str, GroupView | None]]
    offsets: dict[int, int] = field(default_factory=dict)
    minimum: list[tuple[int, int]] = field(default_factory=lambda: [(0, 2)])
    log: str = "L"
    late_ms: int = 0
    """How late the controllers' events are in their files."""
    knows_controllers: bool = True

    def records(self, dice: random.Random) -> Iterator[Written]:
        yield from self._samples(dice)
        if self.knows_controllers:
            yield from self._events(dice)
            yield from self._clock_samples()

    def _samples(self, dice: random.Random) -> Iterator[Written]:
        for broker, epoch, start, end in self.reigns:
            offset, phase = self.offsets.get(broker, 0), dice.randrange(1_000)
            for true_ts in range(start + phase, end, 1_000):
                if dice.random() < 0.02 or true_ts // 1_000 % 300 == 240:
                    continue  # a pause of the broker; behind a minute whose last sample comes late
                offset_bytes = (true_ts - HOUR_TS) * 100
                behind = int(dice.expovariate(1 / 3_000))
                sample = HaSample(
                    ts=true_ts - offset,
                    cluster_name=CLUSTER,
                    broker_name=self.name,
                    broker_id=broker,
                    role="master",
                    master_epoch=epoch,
                    max_offset=offset_bytes,
                    confirm_offset=offset_bytes - behind,
                    lag_ms=behind // 100,
                    lag_ms_max=behind // 50,
                    lag_bytes_max=behind,
                    min_in_sync_replicas=[n for since, n in self.minimum if since <= true_ts][-1],
                    replicas=tuple(
                        ReplicaSample(
                            broker_id=each, ack_offset=offset_bytes - behind, lag_ms=1, in_sync=True
                        )
                        for each in (1, 2, 3)
                        if each != broker
                    ),
                    lag_us=((60 + dice.randrange(9), 4),),
                )
                # not in every minute: what else changes a minute must be noticed, too
                is_last = true_ts // 1_000 % 60 == 59
                is_late = true_ts // MINUTE_MS % 5 == 3 and (is_last or dice.random() < 0.02)
                late = 200_000 if is_late else 0
                for _ in range(1 + (dice.random() < 0.03)):
                    yield true_ts + late, f"{self.name}-{broker}", sample

    def _events(self, dice: random.Random) -> Iterator[Written]:
        number, before, log = 7, None, self.log
        for ts, type, after in self.views:
            if type == "rebuilt":
                number, before, log = 0, None, f"{self.log}-new"
                continue
            number += 1
            for controller in CONTROLLERS:
                event = self._event(ts, type, number, controller, log, before, after)
                yield ts + self.late_ms + dice.randrange(3_000), controller, event
            before = after
        hours = {ts // HOUR_MS * HOUR_MS for ts in range(FROM_TS, TO_TS, MINUTE_MS)}
        for hour in sorted(hours):
            known = [each for each in self.views if each[0] < hour and each[2] is not None]
            for controller in CONTROLLERS if known else ():
                ts = hour + dice.randrange(900)
                event = self._event(ts, "snapshot", number, controller, log, None, known[-1][2])
                yield ts, controller, event

    def _event(
        self,
        ts: int,
        type: str,
        number: int,
        controller: str,
        log: str,
        before: GroupView | None,
        after: GroupView | None,
    ) -> ControllerEvent:
        return ControllerEvent(
            ts=ts, cluster_name=CLUSTER, broker_name=self.name, event_id=number, type=type,
            controller_id=controller, log_id=log, before=before, after=after, reason="lag",
        )  # fmt: skip

    def _clock_samples(self) -> Iterator[Written]:
        for broker, offset in self.offsets.items():
            for ts in range(FROM_TS, TO_TS, MINUTE_MS):
                sample = ClockSample(
                    ts=ts + MINUTE_MS, cluster_name=CLUSTER, broker_name=self.name, broker_id=broker,
                    controller_id="n0", offset_ms=offset, heartbeats=60,
                )  # fmt: skip
                yield ts + MINUTE_MS, "n0", sample


def at(minute: float) -> int:
    """A time, in minutes after HOUR_TS."""
    return HOUR_TS + round(minute * MINUTE_MS)


def fleet() -> list[Group]:
    whole = [(1, 4, FROM_TS, TO_TS)]
    old = (at(-30), "electMaster", view(1, 4, (1, 2, 3), 9))
    none = view(None, 5, (), 10)
    return [
        Group("steady", whole, [old], minimum=[(0, 1), (at(50.4), 2), (at(61.2), 3)]),
        Group(
            "born",
            [(1, 1, at(47.3), TO_TS)],
            [
                (at(47.2), "applyBrokerId", view(None, 0, (), 0)),
                (at(47.25), "electMaster", view(1, 1, (1,), 1)),
                (at(47.9), "alterSyncStateSet", view(1, 1, (1, 2), 2)),
                (at(52.5), "alterSyncStateSet", view(1, 1, (1, 2, 3), 3)),
            ],
        ),
        Group(
            "two-masters",
            [(1, 4, FROM_TS, at(53)), (2, 5, at(51.41), TO_TS)],
            [
                old,
                (at(51.3), "electMaster", view(2, 5, (2,), 10)),
                (at(52.1), "alterSyncStateSet", view(2, 5, (2, 3), 11)),
            ],
            late_ms=200_000,
        ),
        Group(
            "two-masters-at-the-edge",
            [(1, 4, FROM_TS, at(61.6)), (2, 5, at(59.97), TO_TS)],
            [old, (at(59.96), "electMaster", view(2, 5, (2, 3), 10))],
        ),
        Group("unheard", [(1, 4, FROM_TS, at(55)), (3, 5, at(54.2), TO_TS)], [], knows_controllers=False),
        Group(
            "lost",
            [(1, 4, FROM_TS, at(49)), (3, 6, at(50.7), TO_TS)],
            [old, (at(49.05), "electMaster", none), (at(50.65), "electMaster", view(3, 6, (3,), 11))],
        ),
        Group(
            "rebuilt",
            [(1, 4, FROM_TS, at(56)), (2, 1, at(56.2), TO_TS)],
            [old, (0, "rebuilt", None), (at(56.1), "electMaster", view(2, 1, (2, 3), 1))],
        ),
        Group("cleaned", [(1, 4, FROM_TS, at(48))], [old, (at(48.5), "cleanBrokerData", None)]),
        Group("ahead", whole, [old], offsets={1: -90_000}),
        Group("behind", whole, [old], offsets={1: 90_250}),
        Group(
            "an-hour-ahead",
            [(1, 4, FROM_TS, at(52)), (2, 5, at(51.9), TO_TS)],
            [old, (at(51.85), "electMaster", view(2, 5, (2, 3), 10))],
            offsets={2: -HOUR_MS},
        ),
    ]


def written(seed: int, *, with_skew: bool) -> list[Written]:
    """Every line, in the order in which files grow. `with_skew`: also of groups with clocks that are off."""
    dice = random.Random(seed)
    groups = [group for group in fleet() if with_skew or not group.offsets]
    lines = [each for group in groups for each in group.records(dice)]
    return sorted(lines, key=lambda each: each[0])


class GrowingTelemetry:
    """The files below `root`, up to a time."""

    def __init__(self, root: Path, seed: int, *, with_skew: bool) -> None:
        self.root, self._lines, self._at = root, written(seed, with_skew=with_skew), 0

    def grow(self, until_ts: int) -> None:
        """Appends what is written before."""
        texts: dict[Path, list[bytes]] = {}
        while self._at < len(self._lines) and self._lines[self._at][0] < until_ts:
            _, node, record = self._lines[self._at]
            hour = time.strftime("dt=%Y-%m-%d/hour=%H", time.gmtime(record.ts // 1_000))
            path = self.root / node / "telemetry" / name_of(type(record)) / hour / f"{node}-1.jsonl.open"
            texts.setdefault(path, []).append(encode_record(record))
            self._at += 1
        for path, lines in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.write(b"".join(lines))

    def close(self) -> None:
        """Names all files as those of hours that are over."""
        self.grow(1 << 62)
        for path in self.root.rglob("*.jsonl.open"):
            path.rename(path.with_suffix(""))
