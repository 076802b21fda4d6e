"""The queue lock of one worker, on a clock of the test's own."""

import asyncio
from typing import Any

import pytest

from client.core.queues import MessageQueue
from client.core.subscription import Subscription
from client.worker import LOCK_VALID_MS, QueueWorker


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("client.worker.now_ms", clock)
    return clock


def worker(*, needs_lock: bool = True) -> QueueWorker:
    parts: Any = None
    return QueueWorker(MessageQueue("T", "b", 0), Subscription("T"), parts, needs_lock=needs_lock)


async def test_a_lock_counts_from_when_it_was_asked_for(clock: Clock) -> None:
    held = worker()
    assert not held.is_locked
    waits = asyncio.create_task(held.until_locked())
    await asyncio.sleep(0)
    held.grant(clock.ms)
    await waits
    clock.ms += LOCK_VALID_MS - 1
    assert held.is_locked
    clock.ms += 1
    assert not held.is_locked


async def test_a_renewed_lock_keeps_what_is_held_and_a_lost_one_does_not(clock: Clock) -> None:
    held = worker()
    held.grant(clock.ms)
    held.seek(7)
    window = held.window
    clock.ms += LOCK_VALID_MS - 1
    held.grant(clock.ms)
    assert held.window is window and held.commit_offset == 7
    clock.ms += LOCK_VALID_MS
    held.grant(clock.ms)
    assert held.window is None and held.is_locked, (
        "somebody else may have had it: the offset is asked for anew"
    )
    held.seek(9)
    held.revoke()
    assert held.window is None and not held.is_locked and held.commit_offset is None


async def test_without_locks_nobody_waits(clock: Clock) -> None:
    free = worker(needs_lock=False)
    await free.until_locked()
    assert free.is_locked
