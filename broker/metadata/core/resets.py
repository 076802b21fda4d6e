"""Offsets that an operator has reset, until the consumers have received them. Pure.

The consumer's next pull of the queue is answered with the new offset, once. Until then its commits are
ignored, because they are of the old position. A new reset of the same queue replaces the older one. Source:
RocketMQ 5.3.3 ConsumerOffsetManager.resetOffsetTable.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

RESETS_MAX: Final = 100_000

Key: TypeAlias = tuple[str, str, int]
"""group, topic, queue id"""


def _no_op() -> None:
    """No pull is suspended."""


class PendingResets:
    """Every pull reads `offsets`, which is nearly always empty."""

    def __init__(self, *, resets_max: int = RESETS_MAX) -> None:
        self.offsets: dict[Key, int] = {}
        self.wake_pulls: Callable[[], None] = _no_op
        """Answers the suspended pulls of queues that have a reset; set by their handler."""
        self._max = resets_max

    def set(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Adds a reset. Returns False if there are too many."""
        key = (group, topic, queue_id)
        if key not in self.offsets and len(self.offsets) >= self._max:
            return False
        self.offsets[key] = offset
        return True

    def take(self, group: str, topic: str, queue_id: int) -> int | None:
        """Removes a reset and returns its offset; None: there is none."""
        return self.offsets.pop((group, topic, queue_id), None)

    def is_pending(self, group: str, topic: str, queue_id: int) -> bool:
        """Returns whether the queue has a reset that its consumer has not received."""
        return (group, topic, queue_id) in self.offsets

    def forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Drops the resets of a deleted topic or group (broker-ops pitfall 10)."""
        gone = [key for key in self.offsets if group == key[0] or topic == key[1]]
        for key in gone:
            del self.offsets[key]
