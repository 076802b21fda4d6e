"""Broker groups whose true history is known: every event, role, sample and clock, in true time.

Nothing here knows how analytics computes. True time is the active controller's clock, which is the time axis
of the tables. Each broker writes by its own clock; a controller measures that clock once a minute, with the
network's delay in the measurement.

Events that decide about a sample are at least GUARD_MS away from it, and samples are away from the edges of
their second, so the tolerance of a measurement (expected.py) never decides a count.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

START_TS = 1_767_225_600_000
"""2026-01-01 00:00 UTC."""
HOUR_MS, MINUTE_MS, DAY_MS = 3_600_000, 60_000, 86_400_000
GUARD_MS = 400
DELAY_MS = 3
"""A heartbeat takes 0 to DELAY_MS from a broker to a controller."""
UNCORRECTED_MS = 200
"""A clock that is off by no more is not corrected."""
SILENCE_MS = 8 * DAY_MS
LONGEST_MS = 1_000_000
"""What happens takes no longer, so it ends before the programs pause."""
CONTROLLERS = ("n0", "n1", "n2")
REPLICAS = (1, 2, 3)

Role = Literal["master", "slave", "none", "down"]


@dataclass(frozen=True)
class View:
    """A group's state: `master` None: there is none."""

    master: int | None
    epoch: int
    members: tuple[int, ...]
    set_epoch: int
    replicas: tuple[int, ...]


@dataclass(frozen=True)
class Event:
    """An applied event of the controllers' log number `log`. `heard`, `detected`: of a loss; `recorded`:
    False if no controller's file has it."""

    ts: int
    log: int
    event_id: int
    type: str
    before: View | None
    after: View
    reason: str = ""
    unclean: bool = False
    heard: int | None = None
    detected: int | None = None
    recorded: bool = True


@dataclass(frozen=True)
class Belief:
    """What a broker holds itself for, from `ts` on."""

    ts: int
    role: Role
    log: int = 0
    epoch: int = 0


@dataclass(frozen=True)
class Ready:
    """A role change that a broker finished. `is_late`: of a master that had been replaced long before."""

    ts: int
    broker: int
    role: Literal["master", "slave"]
    log: int
    epoch: int
    is_late: bool = False


@dataclass(frozen=True)
class Gap:
    """A producer's view of a fail-over, in true time; `skew_ms` is added to what the producer writes."""

    started: int
    ended: int
    broker: int
    program: str
    skew_ms: int


@dataclass(frozen=True)
class Features:
    """What happens to a group. `clocks`: by broker, what must be added to its time; `cadence_ms`: of samples;
    `born_ms`: after the start; `cleaned`: a replica is taken out for ever."""

    clocks: tuple[int, ...] = (0, 0, 0)
    cadence_ms: int = 10_000
    born_ms: int = 0
    cleaned: bool = False
    two_masters: bool = False
    rebuilt: bool = False
    lost_hour: bool = False
    lost_event: bool = False
    steps: bool = False
    minimum_changes: bool = True
    unmeasured: bool = False


@dataclass
class Group:
    """The truth about a group."""

    name: str
    features: Features
    events: list[Event] = field(default_factory=list)
    beliefs: dict[int, list[Belief]] = field(default_factory=dict)
    ready: list[Ready] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    minimum: list[tuple[int, int]] = field(default_factory=list)
    clocks: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    log_starts: list[int] = field(default_factory=list)
    lost_hour: int | None = None
    """The hour of which no controller's file of events is left."""

    def belief_at(self, broker: int, ts: int) -> Belief:
        """Returns what a broker holds itself for."""
        found = Belief(0, "down")
        for each in self.beliefs.get(broker, ()):
            if each.ts > ts:
                break
            found = each
        return found

    def offset_at(self, broker: int, ts: int) -> int:
        """Returns what must be added to the broker's time at this true time."""
        found = 0
        for since, offset in self.clocks[broker]:
            if since > ts:
                break
            found = offset
        return found

    def view_at(self, ts: int) -> View | None:
        """Returns the group's state after the last event up to `ts`; None: there was none."""
        found = None
        for each in self.events:
            if each.ts > ts:
                break
            found = each.after
        return found

    def minimum_at(self, ts: int) -> int:
        """Returns the brokers' minInSyncReplicas."""
        return [value for since, value in self.minimum if since <= ts][-1]


@dataclass(frozen=True)
class Plan:
    """[start, pause) and [resume, end) are the times in which programs run; between them is the silence."""

    start: int = START_TS
    pause: int = START_TS + 3 * HOUR_MS
    resume: int = START_TS + 3 * HOUR_MS + SILENCE_MS - 600_000
    end: int = START_TS + 3 * HOUR_MS + SILENCE_MS

    @property
    def running(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The times in which programs run."""
        return (self.start, self.pause), (self.resume, self.end)

    def moments(self, step_ms: int) -> Iterator[int]:
        """Yields the multiples of `step_ms` at which programs run."""
        for start, end in self.running:
            yield from range(-(-start // step_ms) * step_ms, end, step_ms)

    def runs_at(self, ts: int) -> bool:
        """Returns whether programs run."""
        return any(start <= ts < end for start, end in self.running)


class Life:
    """Lives a group's life on the clock `now`, and notes the truth."""

    def __init__(self, name: str, seed: int, features: Features, plan: Plan) -> None:
        self._dice = random.Random(f"{name} {seed}")
        self._plan, self._log, self._ids = plan, 0, self._dice.randint(1, 40)
        self.group = Group(name, features)
        self._view: View | None = None
        self._cut_off: set[int] = set()
        self._replicas = REPLICAS
        self.now = (
            plan.start + features.born_ms + self._dice.randint(60, 600) * 1_000 + self._dice.randint(0, 999)
        )

    def whole(self) -> Group:
        """Returns the group at the end of its life."""
        group, features = self.group, self.group.features
        group.log_starts.append(self._plan.start)
        for broker in REPLICAS:
            group.clocks[broker] = [(0, features.clocks[broker - 1])]
        group.minimum.append((0, self._dice.choice([1, 2])))
        for broker in REPLICAS:
            self._believe(broker, "none")
        self._birth()
        special = [
            action
            for action, wanted in (
                (self._isolate, features.two_masters),
                (self._isolate_over_hour, features.two_masters),
                (self._rebuild, features.rebuilt),
                (self._lose_event, features.lost_event),
                (self._step_clock, features.steps),
                (self._change_minimum, features.minimum_changes),
                (self._clean, features.cleaned),
            )
            if wanted
        ]
        usual = [self._fail_over, self._shrink, self._flap, self._hand_over, self._nobody]
        actions = [*special, self._fail_over, self._flap]
        if features.lost_hour:  # without elections, nobody needs a controller to know who is master
            usual, actions = [self._shrink, self._flap], []
        self._dice.shuffle(actions)
        while self.now < self._plan.pause - LONGEST_MS:
            (actions.pop() if actions else self._dice.choice(usual))()
            self._pass(self._dice.randint(20, 240) * 1_000)
        self._heal()
        if features.lost_hour:
            self._lose_hour()
        self.now = self._plan.resume + 60_000 + self._dice.randint(0, 999)
        self._shrink()
        self._pass(self._dice.randint(20, 60) * 1_000)
        self._fail_over()
        return group

    # ------------------------------------------------------------------ the clock
    def _pass(self, ms: int) -> None:
        """Lets time go by; not to the first seconds of an hour, in which controllers write their
        snapshots."""
        self.now += ms + self._dice.randint(0, 999)
        into = self.now % HOUR_MS
        if into < 5_000 or into > HOUR_MS - 60_000:
            self.now += HOUR_MS - into + 8_000 if into > HOUR_MS - 60_000 else 8_000

    def _stay_in_hour(self, ms: int) -> None:
        """Goes to the next hour if less than `ms` are left of this one."""
        if self.now % HOUR_MS > HOUR_MS - ms:
            self.now += HOUR_MS - self.now % HOUR_MS + 30_000

    # ------------------------------------------------------------------ the log
    def _apply(self, type: str, after: View, **more: object) -> Event:
        self._ids += self._dice.choice([1, 1, 2, 5])
        event = Event(self.now, self._log, self._ids, type, self._view, after, **more)  # type: ignore[arg-type]
        self.group.events.append(event)
        self._view = after
        self.now += 1
        return event

    def _birth(self) -> None:
        for count in range(1, len(self._replicas) + 1):
            self._apply("applyBrokerId", View(None, 0, (), 0, self._replicas[:count]))
            self.now += self._dice.randint(1, 400)
        self._elect(self._dice.choice(self._replicas), reason="the first master")
        self._pass(3_000)
        self._set(self._replicas, "caught_up")
        self._pass(30_000)

    def _elect(self, broker: int, *, reason: str, unclean: bool = False, **loss: int) -> Event:
        """Elects a master, which is ready a moment later; the others that run follow it."""
        old = self._known
        after = View(broker, old.epoch + 1, (broker,), old.set_epoch + 1, old.replicas)
        event = self._apply("electMaster", after, reason=reason, unclean=unclean, **loss)
        self.now += self._dice.randint(5, 180)
        self._become(broker, "master")
        for other in REPLICAS:
            if other != broker and other not in self._cut_off and not self._is_down(other):
                self.now += self._dice.randint(1, 9)
                self._become(other, "slave")
        return event

    def _become(self, broker: int, role: Literal["master", "slave"]) -> None:
        epoch = self._known.epoch
        self._believe(broker, role, epoch)
        self.group.ready.append(Ready(self.now, broker, role, self._log, epoch))

    def _believe(self, broker: int, role: Role, epoch: int = 0) -> None:
        self.group.beliefs.setdefault(broker, []).append(Belief(self.now, role, self._log, epoch))

    @property
    def _known(self) -> View:
        assert self._view is not None
        return self._view

    def _set(self, members: tuple[int, ...], reason: str, **more: object) -> None:
        """The master asks for another SyncStateSet."""
        view = self._known
        after = replace(view, members=tuple(sorted(members)), set_epoch=view.set_epoch + 1)
        self._apply("alterSyncStateSet", after, reason=reason, **more)

    def _is_down(self, broker: int) -> bool:
        return self.group.belief_at(broker, self.now).role == "down"

    # ------------------------------------------------------------------ what happens
    def _heal(self) -> None:
        """Everybody is up again and in the set."""
        if self._known.master is None:
            self._elect(1, reason="a replica came back", unclean=not self._known.members)
            self._pass(3_000)
        for broker in self._replicas:
            if broker in self._cut_off or self._is_down(broker):
                self._become(broker, "slave")
                self._pass(1_000)
        self._cut_off.clear()
        if self._known.members != self._replicas:
            self._set(self._replicas, "caught_up")
            self._pass(1_500)

    def _slaves(self) -> list[int]:
        return [each for each in self._known.members if each != self._known.master]

    def _shrink(self) -> None:
        self._heal()
        gone = self._dice.choice(self._slaves())
        self._set(tuple(each for each in self._known.members if each != gone), "lag")

    def _flap(self) -> None:
        """A replica leaves and comes back, within the five minutes of a flap or just after them."""
        self._heal()
        self._stay_in_hour(420_000)
        gone = self._dice.choice(self._slaves())
        started = self.now
        self._set(tuple(each for each in self._known.members if each != gone), "lag")
        self.now = started + self._dice.choice([20_000, 299_999, 300_000, 300_001])
        self._set((*self._known.members, gone), "caught_up")

    def _lose(self) -> dict[str, int]:
        """The master is killed, and a controller notices. Returns when it was heard last, and when that
        was."""
        lost = self._known.master
        assert lost is not None
        self._believe(lost, "down")
        heard = self.now - self._dice.randint(0, 900)
        self.now += self._dice.randint(200, 2_500)
        return {"heard": heard, "detected": self.now}

    def _fail_over(self) -> None:
        self._heal()
        self._stay_in_hour(120_000)
        lost, started = self._known.master, self.now
        loss = self._lose()
        self.now += self._dice.randint(0, 40)
        self._elect(self._dice.choice(self._slaves()), reason=f"master {lost} is not active", **loss)
        assert lost is not None
        ended = self.now + self._dice.randint(1, 300)
        if self._dice.random() < 0.8:
            skew = self._dice.choice([0, 0, 4_000, 30_000, -30_000])
            # half a minute off, a gap without its master's id could be of another election
            seen = lost if abs(skew) > 10_000 else self._dice.choice([lost, lost, 0])
            self.group.gaps.append(Gap(started, ended, seen, f"broker-{lost}", skew))
        self.now = ended + 5_000
        self._pass(20_000)
        self._heal()

    def _hand_over(self) -> None:
        self._heal()
        self._elect(self._dice.choice(self._slaves()), reason="asked for by an operator")
        self._pass(3_000)

    def _nobody(self) -> None:
        """The only replica in the set is killed; it comes back, or another one is elected uncleanly."""
        self._heal()
        self._stay_in_hour(240_000)
        lost = self._known.master
        assert lost is not None
        self._set((lost,), "lag")
        self._pass(5_000)
        loss = self._lose()
        view = self._known
        after = replace(view, master=None, epoch=view.epoch + 1)
        self._apply("electMaster", after, reason="nobody can be elected", **loss)
        self._pass(self._dice.randint(2, 90) * 1_000)
        if self._dice.random() < 0.5:
            self._elect(lost, reason="a replica came back")
        else:
            other = self._dice.choice([each for each in self._replicas if each != lost])
            self._elect(other, reason="unclean elections are allowed", unclean=True)
        self._pass(5_000)

    def _isolate(self) -> None:
        """A master that is cut off samples on while its successor works, restarts, and hears of it then."""
        self._heal()
        self._stay_in_hour(900_000)
        old, epoch = self._cut_off_master()
        self._pass(self._dice.randint(70, 200) * 1_000)
        self.group.ready.append(Ready(self.now, old, "master", self._log, epoch, is_late=True))
        self._pass(self._dice.randint(30, 200) * 1_000)
        self._heal()

    def _isolate_over_hour(self) -> None:
        """The same from the end of an hour to the next, in which no event tells of the election any more."""
        self._heal()
        edge = (self.now + 110_000) // HOUR_MS * HOUR_MS + HOUR_MS
        if edge + 300_000 < self._plan.pause:
            self.now = edge - 100_000 + self._dice.randint(0, 999)
            self._cut_off_master()
            self.now = edge + 40_000
            self._heal()

    def _cut_off_master(self) -> tuple[int, int]:
        """Returns the master that does not hear that another one is elected, and its epoch."""
        old, epoch = self._known.master, self._known.epoch
        assert old is not None
        heard = self.now - self._dice.randint(0, 900)
        self.now += self._dice.randint(200, 2_500)
        loss = {"heard": heard, "detected": self.now}
        self.now += self._dice.randint(0, 40)
        self._cut_off.add(old)
        self._elect(self._dice.choice(self._slaves()), reason=f"master {old} is not active", **loss)
        return old, epoch

    def _rebuild(self) -> None:
        """The controllers' directories are deleted: another log, whose ids and epochs start again."""
        self._heal()
        self._stay_in_hour(600_000)
        self._pass(31_000)
        self._log += 1
        self._ids, self._view = 0, None
        self.group.log_starts.append(self.now)
        self._birth()

    def _lose_event(self) -> None:
        """The line of an event is damaged in all controllers' files."""
        self._heal()
        self._stay_in_hour(600_000)
        gone = self._slaves()[0]
        self._set(tuple(each for each in self._known.members if each != gone), "lag")
        self._pass(60_000)
        self._set((*self._known.members, gone), "caught_up", recorded=False)
        self._pass(60_000)
        self._set(tuple(each for each in self._known.members if each != gone), "lag")
        self._pass(20_000)

    def _step_clock(self) -> None:
        """A slave is down for long, and has another clock afterwards."""
        self._heal()
        broker = self._slaves()[0]
        self._set(tuple(each for each in self._known.members if each != broker), "gone")
        self._believe(broker, "down")
        self._pass(300_000)
        self.group.clocks[broker].append((self.now, self._dice.choice([0, 90_000, -90_000, 7_000])))
        self._pass(60_000)
        self._heal()

    def _clean(self) -> None:
        """An operator takes a slave out of the group for ever."""
        self._heal()
        gone, view = self._slaves()[0], self._known
        self._believe(gone, "down")
        self._pass(30_000)
        self._replicas = tuple(each for each in self._replicas if each != gone)
        members = tuple(each for each in view.members if each != gone)
        after = replace(view, members=members, set_epoch=view.set_epoch + 1, replicas=self._replicas)
        self._apply("cleanBrokerData", after)
        self._pass(30_000)

    def _change_minimum(self) -> None:
        others = [each for each in (1, 2, 3) if each != self.group.minimum[-1][1]]
        self.group.minimum.append((self.now, self._dice.choice(others)))

    def _lose_hour(self) -> None:
        """No controller's file of an hour without elections is left; None if there is no such hour."""
        first, last = self._plan.start // HOUR_MS + 1, self._plan.pause // HOUR_MS - 1
        elected = {each.ts // HOUR_MS for each in self.group.events if each.type == "electMaster"}
        free = [hour for hour in range(first, last) if hour not in elected]
        if free:
            self.group.lost_hour = free[0] * HOUR_MS
            self.group.events = [
                replace(each, recorded=each.recorded and each.ts // HOUR_MS != free[0])
                for each in self.group.events
            ]


KINDS: tuple[Features, ...] = (
    Features(clocks=(0, 150, -150), steps=False),
    Features(clocks=(90_000, -90_000, 0), steps=True),
    Features(clocks=(0, -HOUR_MS, 90_000), minimum_changes=True),
    Features(clocks=(-90_000, 90_000, 5_000), two_masters=True),
    Features(clocks=(0, 90_000, -90_000), rebuilt=True),
    Features(clocks=(7_000, -7_000, 0), lost_event=True),
    Features(clocks=(90_000, -90_000, 0), lost_hour=True),
    Features(clocks=(0, 0, 0), unmeasured=True),
    Features(clocks=(90_000, 0, -90_000), born_ms=HOUR_MS, cleaned=True),
)


def aligned(features: Features) -> Features:
    """Returns the same with all clocks right."""
    return replace(features, clocks=(0, 0, 0), steps=False)


def groups(count: int, plan: Plan, *, seed: int = 1, right_clocks: bool = False) -> list[Group]:
    """Returns the first `count` of all kinds of groups, again and again with other dice."""
    found = []
    for number in range(count):
        features = KINDS[number % len(KINDS)]
        if right_clocks:
            features = aligned(features)
        found.append(Life(f"key-{number:02}", seed, features, plan).whole())
    return found
