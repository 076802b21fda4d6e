"""QueueLocks: which client consumes a queue in order. Pure.

A lock ends LOCK_MS after its last renewal; clients renew their locks every 20 s. Locks are not replicated:
after a fail-over clients lock again, at the new master. Source: RocketMQ 5.3.3 RebalanceLockManager.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

LOCK_MS: Final = 60_000
LOCKS_MAX: Final = 200_000


class Queue(NamedTuple):
    """A queue of this broker: the broker name that a client uses does not matter."""

    topic: str
    queue_id: int


class QueueLocks:
    """group -> queue -> (client id, last renewal in ms)."""

    def __init__(self, *, locks_max: int = LOCKS_MAX) -> None:
        self._groups: dict[str, dict[Queue, tuple[str, int]]] = {}
        self._count, self._max = 0, locks_max

    def __len__(self) -> int:
        return self._count

    def lock(self, group: str, client_id: str, queues: Iterable[Queue], *, now_ms: int) -> list[Queue]:
        """Locks queues, or renews their locks. Returns those that the client holds now."""
        locks = self._groups.setdefault(group, {})
        mine = []
        for queue in queues:
            held = locks.get(queue)
            if held is None:
                if self._count >= self._max:
                    continue
                self._count += 1
            elif held[0] != client_id and now_ms - held[1] < LOCK_MS:
                continue
            locks[queue] = (client_id, now_ms)
            mine.append(queue)
        if not locks:
            del self._groups[group]
        return mine

    def unlock(self, group: str, client_id: str, queues: Iterable[Queue]) -> None:
        """Unlocks queues. Those that another client holds stay locked."""
        locks = self._groups.get(group)
        if locks is None:
            return
        for queue in queues:
            if queue in locks and locks[queue][0] == client_id:
                del locks[queue]
                self._count -= 1
        if not locks:
            del self._groups[group]

    def is_ordered(self, group: str, *, now_ms: int) -> bool:
        """Returns whether any client of the group holds a lock."""
        locks = self._groups.get(group, {})
        return any(now_ms - at_ms < LOCK_MS for _, at_ms in locks.values())

    def clear(self) -> None:
        """Drops all locks."""
        self._groups.clear()
        self._count = 0

    def expire(self, *, now_ms: int) -> None:
        """Drops the locks that were not renewed for LOCK_MS."""
        for group, locks in list(self._groups.items()):
            old = [queue for queue, (_, at_ms) in locks.items() if now_ms - at_ms >= LOCK_MS]
            for queue in old:
                del locks[queue]
            self._count -= len(old)
            if not locks:
                del self._groups[group]
