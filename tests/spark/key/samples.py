"""What brokers sample in a group's true history: each number is made up, and each moment is the true one."""

import random
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from tests.spark.key.world import GUARD_MS, HOUR_MS, MINUTE_MS, REPLICAS, START_TS, Belief, Group, Plan

PHASES = {1: 330, 2: 480, 3: 630}
"""Where in its second a broker samples, ms."""
PAIRS = (("GID_orders", "TopicA"), ("GID_orders", "TopicB"))


@dataclass(frozen=True)
class Replica:
    """A replica as its master sees it."""

    broker: int
    ack: int
    lag_ms: int
    in_sync: bool


@dataclass(frozen=True)
class Sample:
    """`log`: of the controllers, of which the epoch is. Histograms: (bucket, count)."""

    ts: int
    broker: int
    role: str
    log: int
    epoch: int
    max_offset: int
    confirm_offset: int
    lag_ms: int = 0
    lag_ms_max: int = 0
    lag_bytes_max: int = 0
    minimum: int = 1
    replicas: tuple[Replica, ...] = ()
    lag_us: tuple[tuple[int, int], ...] = ()
    confirm_us: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Backlog:
    """Of a consumer group and topic, as a master sees it."""

    ts: int
    broker: int
    consumer_group: str
    topic: str
    messages: int
    lag_ms: int


def samples_of(group: Group, plan: Plan, seed: int = 1) -> list[Sample]:
    """Returns the samples of all brokers of a group, by time."""
    dice = random.Random(f"{group.name} {seed} samples")
    found = []
    for broker in REPLICAS:
        for ts in _moments(group, plan, broker, dice):
            mine = group.belief_at(broker, ts)
            if mine.role != "down":
                found.append(_sample(group, broker, ts, mine, dice))
    return sorted(found, key=lambda each: (each.ts, each.broker))


def backlogs_of(group: Group, plan: Plan, seed: int = 1) -> list[Backlog]:
    """Returns what masters, replaced ones among them, know of consumer groups, by time."""
    dice = random.Random(f"{group.name} {seed} backlogs")
    moments = _decisive(group)
    return [
        Backlog(ts, broker, *pair, dice.randint(0, 9_999), dice.randint(0, 60_000))
        for minute in plan.moments(MINUTE_MS)
        for broker in REPLICAS
        for ts in [minute + 20_000 + broker * 5_000 + PHASES[broker]]
        if group.belief_at(broker, ts).role == "master" and not _is_near(moments, ts)
        for pair in PAIRS
    ]


def _moments(group: Group, plan: Plan, broker: int, dice: random.Random) -> Iterator[int]:
    """Yields when a broker samples: every cadence_ms, every second for some minutes, and not near to a moment
    that decides what the sample means."""
    moments = _decisive(group)
    busy = {dice.randrange(plan.start // MINUTE_MS, plan.pause // MINUTE_MS) for _ in range(4)}
    for second_ts in plan.moments(1_000):
        is_due = second_ts % group.features.cadence_ms == 0 or second_ts // MINUTE_MS in busy
        if (
            not is_due and second_ts % HOUR_MS != HOUR_MS - 1_000
        ):  # an hour's last one says how far it reaches
            continue
        ts = second_ts + PHASES[broker] + dice.randint(-9, 9)
        if dice.random() < 0.97 and not _is_near(moments, ts):
            yield ts


def _decisive(group: Group) -> list[int]:
    found = {each.ts for each in group.events} | {each.ts for each in group.ready}
    found |= {since for since, _ in group.minimum}
    found |= {each.ts for beliefs in group.beliefs.values() for each in beliefs}
    return sorted(found)


def _is_near(moments: list[int], ts: int) -> bool:
    at = bisect_left(moments, ts - GUARD_MS)
    return at < len(moments) and moments[at] <= ts + GUARD_MS


def _sample(group: Group, broker: int, ts: int, mine: Belief, dice: random.Random) -> Sample:
    end = (ts - START_TS) * 10
    if mine.role != "master":
        return Sample(ts, broker, mine.role, mine.log, mine.epoch, end, end)
    view = group.view_at(ts)
    assert view is not None
    if (view.master, view.epoch) != (broker, mine.epoch):
        end = (mine.ts - START_TS) * 10  # cut off: nobody sends it anything
    lag = dice.choice([0, 0, 0, 7, 512, dice.randint(0, 5_000_000), 1 << dice.randint(0, 33)])
    lag_ms = dice.choice([0, 0, 1, 3, dice.randint(0, 900), dice.randint(0, 30_000)])
    is_above = dice.random() < 0.02
    return Sample(
        ts, broker, "master", mine.log, mine.epoch, end, end + 5 if is_above else end - lag,
        lag_ms=lag_ms, lag_ms_max=lag_ms + dice.choice([0, 0, 40]), lag_bytes_max=dice.choice([0, lag * 2]),
        minimum=group.minimum_at(ts), replicas=tuple(_replicas(group, broker, ts, mine, end, dice)),
        lag_us=_histogram(dice), confirm_us=_histogram(dice),
    )  # fmt: skip


def _replicas(
    group: Group, master: int, ts: int, mine: Belief, end: int, dice: random.Random
) -> Iterator[Replica]:
    """Yields those that this master has had a connection to in its term."""
    view = group.view_at(ts)
    assert view is not None
    for broker in REPLICAS:
        if broker == master:
            continue
        now = group.belief_at(broker, ts)
        in_sync = broker in view.members
        if (now.role, now.log, now.epoch) == ("slave", mine.log, mine.epoch):
            ack = end - dice.choice([0, 0, 64, dice.randint(0, 1 << 22), -3])
            yield Replica(broker, ack, dice.choice([0, 0, dice.randint(0, 5_000)]), in_sync)
            continue
        followed = [
            each
            for each in group.beliefs[broker]
            if each.ts <= ts and (each.role, each.log, each.epoch) == ("slave", mine.log, mine.epoch)
        ]
        if followed:
            left = min(each.ts for each in group.beliefs[broker] if each.ts > followed[-1].ts)
            yield Replica(broker, (left - START_TS) * 10 - 100, ts - left, in_sync)


def _histogram(dice: random.Random) -> tuple[tuple[int, int], ...]:
    if dice.random() < 0.3:
        return ()
    buckets = sorted(dice.sample(range(8, 250), dice.randint(1, 4)))
    return tuple((each, dice.randint(1, 40)) for each in buckets)


def hour_of(ts: int) -> int:
    """Returns the start of the UTC hour."""
    return ts - ts % HOUR_MS
