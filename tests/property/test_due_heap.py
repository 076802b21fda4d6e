"""When popped messages are due, against lists that are searched from end to end: also of checkpoints that are
put off, and while a heap is made anew because most of its entries have ended."""

import random
from collections.abc import Callable

import pytest

from broker.pop.core import due_heap
from broker.pop.core.due_heap import DueHeap
from broker.pop.core.state import Checkpoint, Key, PopState

QUEUES = 2


@pytest.fixture(params=[(64, 4, 16), (0, 1, 1), (4, 2, 3)])
def limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the broker, and others with which a heap is almost always being made anew."""
    for name, value in zip(("STALE_MIN", "STALE_FACTOR", "MOVED_AT_ONCE"), request.param, strict=True):
        monkeypatch.setattr(due_heap, name, value)


@pytest.mark.parametrize("seed", range(20))
def test_the_most_overdue_checkpoint_is_next(seed: int, limits: None) -> None:
    dice, state = random.Random(seed), PopState([0] * QUEUES)
    held: dict[
        tuple[int, Key], tuple[int, int]
    ] = {}  # (revive queue, key) -> due, and until when it is put off
    now = number = 0

    def pop() -> None:
        nonlocal number
        number += 1
        key, queue = Key(dice.choice("gh"), "T", 0, number, now), dice.randrange(QUEUES)
        checkpoint = Checkpoint(key, dice.choice([1, 30, 400]), (number,), number + 1, queue)
        state.stored(checkpoint, state.ends[queue])
        held[queue, key] = checkpoint.due_ms, checkpoint.due_ms

    def ack() -> None:
        if held:
            queue, key = place = dice.choice(list(held))
            assert state.end(key, queue, key.start_offset)
            del held[place]

    def wait() -> None:
        nonlocal now
        now += dice.choice([0, 1, 20])

    def put_off() -> None:
        if (found := state.next_due(now)) is not None:
            until = now + dice.choice([1, 50])
            state.put_off(found, until)
            held[found.revive_queue, found.key] = found.due_ms, until

    steps: list[Callable[[], None]] = [pop, pop, pop, ack, ack, wait, put_off]
    for turn in range(600):
        ack() if turn > 400 else dice.choice(steps)()
        state.check_invariants()
        due = sorted((until, queue, key) for (queue, key), (_, until) in held.items() if until <= now)
        found = state.next_due(now)
        assert (found is None) == (not due)
        assert found is None or (found.revive_queue, found.key) == due[0][1:]
        since = {}
        for (queue, _), (due_ms, until) in held.items():
            if due_ms <= now or until != due_ms:
                since[queue] = min(since.get(queue, due_ms), due_ms)
        assert state.overdue_since(now) == since
    assert len(state) == len(held)


def test_a_heap_of_ended_keys_shrinks_a_few_entries_at_a_time() -> None:
    """43 ms, when 150,000 of 200,000 had ended: it was made anew in one step."""
    heap, live = DueHeap[int](), set(range(10_000))
    for key in live:
        heap.push(key, key)
    longest = 0
    for key in range(10_000):
        live.discard(key)
        before = len(heap)
        heap.drop_stale(live, len(live))
        longest = max(longest, before - len(heap))
    assert len(heap) <= due_heap.STALE_MIN and longest <= 16
