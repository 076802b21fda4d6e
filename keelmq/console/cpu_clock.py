"""CpuClock: the CPU time that the polls of a console take, in the event loop's thread and in others."""

import asyncio
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class CpuClock:
    """Owned by the event loop's thread."""

    def __init__(self) -> None:
        self._elsewhere_s = 0.0

    def seconds(self) -> float:
        """Returns the CPU time of the calling thread and of the functions of in_thread(), in s."""
        return time.thread_time() + self._elsewhere_s

    async def in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Returns what the function returns, called in another thread."""

        def timed() -> tuple[T, float]:
            began_s = time.thread_time()
            return function(*args, **kwargs), time.thread_time() - began_s

        answer, took_s = await asyncio.to_thread(timed)
        self._elsewhere_s += took_s
        return answer
