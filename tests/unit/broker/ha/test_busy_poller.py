"""The master that stays awake for one message's acks: how long, and when it does not try."""

import asyncio

from broker.ha.busy_poller import PAUSE, TURNS_MAX, BusyPoller

TURNS_ENOUGH = 2 * TURNS_MAX


class Wait:
    """A message that waits for its replicas, and how often somebody asked whether it does."""

    def __init__(self) -> None:
        self.is_waiting = True
        self.looks = 0
        self.now_ms = 5_000
        self.busy_poller = BusyPoller(self.look, lambda: self.now_ms)

    def look(self) -> bool:
        self.looks += 1
        return self.is_waiting

    async def begin(self) -> int:
        """How often it asks while it polls."""
        before = self.looks
        self.busy_poller.begin()
        for _ in range(TURNS_ENOUGH):
            await asyncio.sleep(0)
        return self.looks - before


async def test_it_ends_with_the_wait() -> None:
    wait = Wait()
    wait.busy_poller.begin()
    for _ in range(10):
        await asyncio.sleep(0)
    assert 8 <= wait.looks <= 12, "one look in each turn of the loop"
    wait.is_waiting = False
    looks = wait.looks
    for _ in range(TURNS_ENOUGH):
        await asyncio.sleep(0)
    assert wait.looks == looks + 1


async def test_nobody_waits_nothing_is_scheduled() -> None:
    wait = Wait()
    wait.is_waiting = False
    assert await wait.begin() == 1


async def test_the_next_message_begins_anew() -> None:
    wait = Wait()
    wait.busy_poller.begin()
    for _ in range(TURNS_MAX - 10):
        await asyncio.sleep(0)
    assert await wait.begin() == 1 + TURNS_MAX, "one polling, not two at once"


async def test_in_vain_it_is_tried_less_and_less() -> None:
    wait, pause_ms = Wait(), PAUSE.first_ms
    assert await wait.begin() == 1 + TURNS_MAX
    for _ in range(12):
        wait.now_ms += pause_ms - 1
        assert await wait.begin() == 1
        wait.now_ms += 1
        assert await wait.begin() == 1 + TURNS_MAX
        pause_ms = min(2 * pause_ms, PAUSE.max_ms)
    assert pause_ms == PAUSE.max_ms


async def test_an_ack_in_time_ends_the_pauses() -> None:
    wait = Wait()
    for _ in range(4):
        await wait.begin()
        wait.now_ms += PAUSE.max_ms
    wait.busy_poller.begin()
    wait.is_waiting = False
    await asyncio.sleep(0)
    wait.is_waiting = True
    await wait.begin()  # in vain
    assert await wait.begin() == 1
    wait.now_ms += PAUSE.first_ms
    assert await wait.begin() == 1 + TURNS_MAX
