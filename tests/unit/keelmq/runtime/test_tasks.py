"""Supervised tasks: a death is logged with its traceback, and the task lives again."""

import asyncio
import logging
import random

import pytest

from keelmq.runtime.backoff import Backoff
from keelmq.runtime.tasks import TaskSet, Trouble, supervise, wait_for_event


@pytest.mark.promise("S14")
async def test_a_task_that_dies_is_logged_and_started_again(caplog: pytest.LogCaptureFixture) -> None:
    lives, alive_again = 0, asyncio.Event()

    async def dies_once() -> None:
        nonlocal lives
        lives += 1
        if lives == 1:
            raise ZeroDivisionError("on purpose")
        alive_again.set()
        await asyncio.Event().wait()

    tasks = TaskSet()
    with caplog.at_level(logging.ERROR):
        tasks.start("mortal", dies_once)
        async with asyncio.timeout(5):
            await alive_again.wait()
    await tasks.stop()
    assert lives == 2 and tasks.deaths == {"mortal": 1}
    assert "background task mortal failed" in caplog.text and "on purpose" in caplog.text


async def test_trouble_of_the_machine_is_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "random", lambda: 0.5)
    alive_again = asyncio.Event()

    async def full_once() -> None:
        if not caplog.records:
            raise Trouble("the disk is full")
        alive_again.set()

    tasks = TaskSet()
    tasks.start("writer", full_once)
    async with asyncio.timeout(5):
        await alive_again.wait()
    await tasks.stop()
    assert [record.getMessage() for record in caplog.records] == [
        "writer: the disk is full; trying again in 50 ms"
    ]
    assert "Traceback" not in caplog.text and tasks.deaths == {"writer": 1}


async def test_a_task_that_keeps_dying_starts_again_more_slowly_until_it_lived_for_long(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keelmq.runtime.tasks.RESTART", Backoff(first_ms=1, max_ms=4))
    monkeypatch.setattr(random, "random", lambda: 1.0)
    lives = 0

    async def dies_five_times() -> None:
        nonlocal lives
        lives += 1
        if lives == 5:
            monkeypatch.setattr("keelmq.runtime.tasks.HEALTHY_AFTER_MS", 0)
        if lives <= 5:
            raise Trouble("the disk is full")

    async with asyncio.timeout(5):
        await supervise("writer", dies_five_times)
    pauses = [record.getMessage().split("again in ")[1] for record in caplog.records]
    assert pauses == ["1 ms", "2 ms", "4 ms", "4 ms", "1 ms"]


async def test_stop_waits_for_all() -> None:
    tasks, ended = TaskSet(), asyncio.Event()

    async def runs() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    tasks.start("runs", runs)
    await asyncio.sleep(0)
    await tasks.stop()
    assert ended.is_set()


async def test_wait_for_event_clears_what_it_saw() -> None:
    event = asyncio.Event()
    event.set()
    assert await wait_for_event(event, 1_000)
    assert not event.is_set()
    assert not await wait_for_event(event, 1)
