"""Work in slices: a generator that yields where the event loop may serve others, and returns its result.

What the generator reads may change at each yield: it copies a mapping before it iterates over it, and decides
in one slice what belongs together.
"""

import asyncio
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Slices = Generator[None, None, T]


def at_once(slices: Slices[T]) -> T:
    """Does all the work in one step: for tools, and where no event loop runs."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            result: T = end.value
            return result


async def in_slices(slices: Slices[T]) -> T:
    """Does the work, and lets the event loop serve others at each yield. A cancellation closes the generator
    at a yield."""
    try:
        while True:
            try:
                next(slices)
            except StopIteration as end:
                result: T = end.value
                return result
            await asyncio.sleep(0)
    finally:
        slices.close()
