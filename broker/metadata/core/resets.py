"""Offsets that an operator set back or forward, until the consumers have heard of it. Pure.

The consumer's next pull of the queue is answered with the new offset, once. Until then its own commits are of
the old position and do not count. Bounded; a new reset of the same queue replaces the older one. Source:
RocketMQ 5.3.3 ConsumerOffsetManager.resetOffsetTable.
"""

from typing import Final, TypeAlias

RESETS_MAX: Final = 100_000

Key: TypeAlias = tuple[str, str, int]
"""group, topic, queue id"""


class PendingResets:
    """`offsets` is looked at by every pull: empty nearly always."""

    def __init__(self, *, resets_max: int = RESETS_MAX) -> None:
        self.offsets: dict[Key, int] = {}
        self._max = resets_max

    def set(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """False: there are too many already."""
        key = (group, topic, queue_id)
        if key not in self.offsets and len(self.offsets) >= self._max:
            return False
        self.offsets[key] = offset
        return True

    def take(self, group: str, topic: str, queue_id: int) -> int | None:
        return self.offsets.pop((group, topic, queue_id), None)

    def is_pending(self, group: str, topic: str, queue_id: int) -> bool:
        return (group, topic, queue_id) in self.offsets

    def forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Of a group or a topic that is deleted (broker-ops pitfall 10)."""
        gone = [key for key in self.offsets if group == key[0] or topic == key[1]]
        for key in gone:
            del self.offsets[key]
