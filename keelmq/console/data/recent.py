"""Recent: answers that several pages request within seconds, fetched once."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

from keelmq.runtime.clock import now_ms

T = TypeVar("T")

KEPT_MS: Final = 5_000
KEPT_MAX: Final = 32


class Recent(Generic[T]):
    """Keeps answers for KEPT_MS. A key names the user: what one user may see is not shown to another."""

    def __init__(self, clock: Callable[[], int] = now_ms) -> None:
        self._clock = clock
        self._kept: OrderedDict[Hashable, tuple[int, asyncio.Task[T]]] = OrderedDict()

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        """Returns the recent answer, or a new one. Requests that come meanwhile wait for the same answer."""
        found = self._kept.get(key)
        if found is None or self._clock() - found[0] >= KEPT_MS:
            found = (self._clock(), asyncio.ensure_future(_asked(ask)))
            self._kept[key] = found
            self._kept.move_to_end(key)
            while len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
        try:
            return await asyncio.shield(found[1])
        except BaseException:
            if self._kept.get(key) is found and found[1].done():
                del self._kept[key]
            raise


async def _asked(ask: Callable[[], Awaitable[T]]) -> T:
    return await ask()
