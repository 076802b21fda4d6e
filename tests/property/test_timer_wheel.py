"""The wheel against a plain list: random timers, phases that are cut off anywhere, and new masters that know
an older frontier. Nothing is lost, nothing goes out before it is due, and what a frontier has never goes out
again.
"""

import random
import sys
import tracemalloc

import pytest

from broker.timers.core.wheel import Frontier, TimerWheel
from tests.support.items import items_held


class Model:
    """The queue as a list of (time, key that is recalled or None); `out` counts deliveries by offset."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.queue: list[tuple[int, bytes | None]] = []
        self.out: dict[int, int] = {}
        self.now = 1_000
        self.wheel = TimerWheel()
        self.kept: list[tuple[Frontier, int, dict[int, int]]] = [(Frontier(), 0, {})]
        """Frontiers that could be known to a new master, where it begins to read, and what was out then."""

    def send(self) -> None:
        for _ in range(self.random.randrange(4)):
            late = self.random.choice([-30, 0, 5, 20, 100])
            recalls = b"%d" % self.random.randrange(40) if self.random.random() < 0.2 else None
            self.queue.append((self.now + late, recalls))

    def read(self) -> None:
        if self.wheel.in_phase:
            return
        for at in range(self.wheel.read_end, len(self.queue)):
            out_ms, recalls = self.queue[at]
            if recalls is None:
                self.wheel.add(out_ms, at)
            else:
                self.wheel.recall(out_ms, at, recalls)

    def deliver(self) -> None:
        self.now += self.random.choice([0, 1, 10, 50])
        if not self.wheel.in_phase:
            self.read()
            self.wheel.begin_phase(self.now)
        last = (-1, -1)
        for _ in range(self.random.randrange(6)):
            due = self.wheel.next_due()
            if due is None:
                return
            assert last < due and due[0] <= self.now, "in order, and not early"
            last = due
            self.take(*due)
            self.wheel.delivered()

    def set_back(self) -> None:
        """The clock, by an operator, or it is that of another master. Not to before a phase that a new master
        could find unfinished: it would deliver some of it once more."""
        if not self.wheel.in_phase:
            known = [self.wheel.frontier, *(frontier for frontier, _, _ in self.kept)]
            self.now = max(self.now - 60, *(frontier.slot_ms for frontier in known))

    def take(self, out_ms: int, at: int) -> None:
        assert self.queue[at][0] == out_ms
        if self.queue[at][1] is None and not self.wheel.is_recalled(out_ms, b"%d" % (at % 40)):
            self.out[at] = self.out.get(at, 0) + 1

    def keep(self) -> None:
        """Timers that are earlier than those of an unfinished phase before are in no frontier until theirs
        ends: a new master would deliver them once more."""
        frontier = self.wheel.frontier
        if not self.wheel.in_phase or frontier.phase_offset == self.wheel.read_end:
            self.kept.append((frontier, self.wheel.first_offset(), dict(self.out)))

    def crash(self) -> None:
        """A new master, whose log ends where this frontier was made: what went out later is not in it."""
        frontier, start, out = self.random.choice(self.kept[-3:])
        self.kept = self.kept[: next(i for i, each in enumerate(self.kept) if each[0] is frontier) + 1]
        self.out = dict(out)
        self.wheel = TimerWheel(frontier, start=start)

    def check(self) -> None:
        self.wheel.check_invariants()

    def finish(self) -> None:
        self.now += 3_000
        if self.wheel.in_phase:
            self.drain()
        self.read()
        self.wheel.begin_phase(self.now)
        self.drain()

    def drain(self) -> None:
        while (due := self.wheel.next_due()) is not None:
            self.take(*due)
            self.wheel.delivered()

    def expected(self) -> set[int]:
        return {at for at, (_, recalls) in enumerate(self.queue) if recalls is None}


@pytest.mark.parametrize("recalls", [False, True])
@pytest.mark.parametrize("seed", range(150))
def test_each_goes_out_once(seed: int, recalls: bool) -> None:
    model = Model(seed)
    for _ in range(150):
        model.random.choice([model.send, model.read, model.deliver, model.deliver, model.keep, model.check,
                             model.set_back if model.random.random() < 0.2 else model.send,
                             model.crash if model.random.random() < 0.3 else model.keep])()  # fmt: skip
        if not recalls:
            model.queue = [(out_ms, None) for out_ms, _ in model.queue]
    model.finish()
    model.check()
    assert all(times == 1 for times in model.out.values()), "twice"
    assert len(model.wheel) == 0
    if recalls:
        assert model.out.keys() <= model.expected()
        taken_back = {(out_ms, key) for out_ms, key in model.queue if key is not None}
        spared = {at for at in model.expected() if (model.queue[at][0], b"%d" % (at % 40)) not in taken_back}
        assert spared <= model.out.keys(), "a timer that nobody took back is lost"
    else:
        assert model.out.keys() == model.expected(), "lost"


class RollingModel(Model):
    """Timers are rolled, too. origin: the offset at which a timer was sent, of each of its copies. A crash
    loses the copies that were written after the frontier that the new master knows."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.origin: dict[int, int] = {}
        self.lost: set[int] = set()
        self.lengths = [0]
        self.before: int | None = None  # of a roll that goes on

    def read(self) -> None:
        while not self.wheel.in_phase and self.wheel.read_end < len(self.queue):
            at = self.wheel.read_end
            out_ms, recalls = self.queue[at]
            if at in self.lost:
                self.wheel.skip(at)
            elif recalls is None:
                self.wheel.add(out_ms, at)
            else:
                self.wheel.recall(out_ms, at, recalls)

    def roll(self) -> None:
        if self.wheel.in_phase:
            return
        before = self.before or self.random.randrange(1, self.wheel.read_end + 2)
        for _ in range(self.random.randrange(12)):
            timer = self.wheel.next_to_roll(before)
            if timer is None:
                assert self.wheel.first_offset() >= min(before, self.wheel.read_end), "all are rolled"
                self.before = None
                return
            self.before = before
            out_ms, at = timer
            assert self.queue[at][0] == out_ms and at not in self.lost
            self.origin[len(self.queue)] = self.origin.get(at, at)
            self.queue.append(self.queue[at])
            self.wheel.rolled()

    def roll_all(self) -> None:
        """Ends a roll that has begun."""
        while self.wheel.in_phase:
            self.deliver()
        end = len(self.queue)
        self.read()
        while (timer := self.wheel.next_to_roll(end)) is not None:
            self.origin[len(self.queue)] = self.origin.get(timer[1], timer[1])
            self.queue.append(self.queue[timer[1]])
            self.wheel.rolled()

    def take(self, out_ms: int, at: int) -> None:
        sent_at = self.origin.get(at, at)
        if self.queue[at][1] is None and not self.wheel.is_recalled(out_ms, b"%d" % (sent_at % 40)):
            self.out[sent_at] = self.out.get(sent_at, 0) + 1

    def keep(self) -> None:
        """Not in the middle of a roll: a new master would deliver some of it twice."""
        if self.before is not None:
            return
        count = len(self.kept)
        super().keep()
        self.lengths += [len(self.queue)] * (len(self.kept) - count)

    def crash(self) -> None:
        index = self.random.randrange(max(len(self.kept) - 3, 0), len(self.kept))
        self.kept, self.lengths = self.kept[: index + 1], self.lengths[: index + 1]
        frontier, start, out = self.kept[-1]
        self.before = None
        self.lost |= {at for at in self.origin if at >= self.lengths[-1]}
        self.out, self.wheel = dict(out), TimerWheel(frontier, start=start)

    def expected(self) -> set[int]:
        return {at for at in super().expected() if at not in self.origin}


@pytest.mark.parametrize("seed", range(200))
def test_rolled_timers_go_out_once(seed: int) -> None:
    model = RollingModel(seed)
    for _ in range(200):
        model.random.choice([model.send, model.read, model.deliver, model.deliver, model.keep, model.check,
                             model.roll, model.roll,
                             model.crash if model.random.random() < 0.2 else model.keep])()  # fmt: skip
        model.queue = [(out_ms, None) for out_ms, _ in model.queue]
    model.roll_all()
    model.finish()
    model.check()
    assert model.origin or seed, "something was rolled"
    assert all(times == 1 for times in model.out.values()), "twice"
    assert model.out.keys() == model.expected(), "lost"
    assert len(model.wheel) == 0


def test_a_recall_is_rolled_with_its_timer() -> None:
    wheel = TimerWheel()
    wheel.add(1_000, 0)
    wheel.recall(1_000, 1, b"key")
    for at in (2, 3):
        assert wheel.next_to_roll(2) == (1_000, at - 2)
        wheel.rolled()
        wheel.check_invariants()
    assert wheel.next_to_roll(2) is None and len(wheel) == 0 and wheel.first_offset() == 2
    wheel.add(1_000, 2)
    wheel.recall(1_000, 3, b"key")
    wheel.begin_phase(1_000)
    assert wheel.next_due() == (1_000, 2) and wheel.is_recalled(1_000, b"key")


def test_ten_thousand_timers_need_little() -> None:
    wheel = TimerWheel()
    for at in range(10_000):
        wheel.add(1_000 + at % 7, at)
    wheel.begin_phase(2_000)
    order = []
    while (due := wheel.next_due()) is not None:
        order.append(due)
        wheel.delivered()
    assert order == sorted(order) and len(order) == 10_000 and items_held(wheel) == 0
    assert wheel.frontier == Frontier(2_000, 10_000)


def test_recalls_keep_no_long_keys() -> None:
    """A client chooses them, and a recall is kept until its timer is due: 20,000,000 at most."""
    count, key_bytes = 300, 30_000
    wheel = TimerWheel()
    tracemalloc.start()
    try:
        for at in range(count):
            wheel.recall(1_000 + at, at, b"TopicA+" + b"%d" % at * key_bytes)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < count * 2_000
    for at in range(count):
        assert wheel.is_recalled(1_000 + at, b"TopicA+" + b"%d" % at * key_bytes)
        assert not wheel.is_recalled(1_000 + at, b"TopicA+" + b"%d" % at * key_bytes + b"0")


def test_the_first_offset_costs_the_same_with_any_number_of_slots() -> None:
    """Seen: 200 ms on the event loop, once a minute, with a million delivery times."""
    assert lines_of_first_offset(10) == lines_of_first_offset(1_000)


def lines_of_first_offset(slots: int) -> int:
    """Returns how many lines first_offset() runs."""
    wheel = TimerWheel()
    for at in range(slots):
        wheel.add(1_000 + at, at)
    count = 0

    def trace(frame: object, event: str, argument: object) -> object:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        assert wheel.first_offset() == 0
    finally:
        sys.settrace(before)
    return count
