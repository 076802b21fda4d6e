"""Memory: answers that rarely change, for a caller that asks the same servers every few seconds."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

KEEP_S = 15.0
"""Settings, topic lists and epoch files are requested again after this time."""

T = TypeVar("T")


class Memory:
    """Keys are (question, server, what else the answer depends on). Without repetitions it does nothing."""

    def __init__(self, keep_s: float = KEEP_S) -> None:
        self._keep_s = keep_s
        self._answers: dict[tuple[str, ...], tuple[float, Any]] = {}

    async def recall(self, key: tuple[str, ...], ask: Callable[[], Awaitable[T]]) -> T:
        """Returns the answer of `ask`, or that of an earlier call that is not too old. An exception of `ask`
        is not kept."""
        now_s = asyncio.get_running_loop().time()
        kept = self._answers.get(key)
        if kept is not None and now_s < kept[0]:
            answer: T = kept[1]
            return answer
        answer = await ask()
        self._answers[key] = (now_s + self._keep_s, answer)
        self._forget(now_s)
        return answer

    def _forget(self, now_s: float) -> None:
        """Removes what is too old, so that servers that are gone take no memory."""
        for key in [key for key, (until_s, _) in self._answers.items() if until_s <= now_s]:
            del self._answers[key]
