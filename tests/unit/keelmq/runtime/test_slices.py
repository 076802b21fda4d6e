"""A generator that works in slices: its result, and who is served in between."""

import asyncio

import pytest

from keelmq.runtime.slices import Slices, at_once, in_slices


def count_to(end: int, seen: list[int]) -> Slices[int]:
    try:
        for number in range(end):
            seen.append(number)
            yield
    finally:
        seen.append(-1)
    return end


async def test_others_are_served_between_slices() -> None:
    seen: list[int] = []
    work = asyncio.create_task(in_slices(count_to(3, seen)))
    for number in range(3):
        await asyncio.sleep(0)
        assert seen[-1] == number
    assert await work == 3
    assert at_once(count_to(2, seen)) == 2


async def test_a_cancellation_ends_the_work_at_a_yield() -> None:
    seen: list[int] = []
    work = asyncio.create_task(in_slices(count_to(9, seen)))
    await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert seen == [0, -1]
