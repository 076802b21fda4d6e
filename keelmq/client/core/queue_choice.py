"""Chooses the queue of the next message: round-robin that avoids failed and slow brokers, or by a key.

A broker name is avoided for a while after a slow response, longer after a slower one; a failed attempt counts
as ten seconds. If every broker is to be avoided, the one whose time ends first is used. Source: RocketMQ
5.3.3 MQFaultStrategy, its table for sendLatencyFaultEnable.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from keelmq.client.core.queues import MessageQueue

BACK_OFF: Final = ((15_000, 30_000), (5_000, 10_000), (3_000, 6_000), (1_800, 5_000), (550, 2_000))
"""(latency, how long to avoid the broker), both in ms; the first entry whose latency is reached applies."""
FAILED_COUNTS_AS_MS: Final = 10_000
BROKERS_MAX: Final = 10_000


def back_off_ms(latency_ms: int) -> int:
    """Returns how long a broker with this latency is avoided (ms); 0: not at all."""
    return next((left_out for at_least, left_out in BACK_OFF if latency_ms >= at_least), 0)


@dataclass(slots=True)
class FaultTable:
    """Broker name -> when it may be used again. Expired entries are removed at BROKERS_MAX."""

    _until_ms: dict[str, int] = field(default_factory=dict)

    def answered(self, broker_name: str, latency_ms: int, *, now_ms: int) -> None:
        """Records the latency of a successful attempt."""
        self._leave_out(broker_name, back_off_ms(latency_ms), now_ms)

    def failed(self, broker_name: str, *, now_ms: int) -> None:
        """Records a failed attempt, as FAILED_COUNTS_AS_MS."""
        self._leave_out(broker_name, back_off_ms(FAILED_COUNTS_AS_MS), now_ms)

    def is_available(self, broker_name: str, *, now_ms: int) -> bool:
        """Returns whether the broker need not be avoided now."""
        return self._until_ms.get(broker_name, 0) <= now_ms

    def due_ms(self, broker_name: str) -> int:
        """Returns when the broker may be used again (monotonic ms); 0: at any time."""
        return self._until_ms.get(broker_name, 0)

    def _leave_out(self, broker_name: str, for_ms: int, now_ms: int) -> None:
        if not for_ms:
            self._until_ms.pop(broker_name, None)
            return
        if len(self._until_ms) >= BROKERS_MAX:
            self._until_ms = {name: until for name, until in self._until_ms.items() if until > now_ms}
        self._until_ms[broker_name] = now_ms + for_ms


@dataclass(slots=True)
class QueueChooser:
    """Round-robin over the queues of one topic. Without `faults` only a repeated attempt avoids a broker."""

    faults: FaultTable | None = None
    _next: int = 0

    def choose(self, queues: Sequence[MessageQueue], last_broker: str, *, now_ms: int) -> MessageQueue | None:
        """Returns the next queue, None without queues. `last_broker`: where the previous attempt failed, or
        "". It is avoided first, then brokers with faults (clients.md pitfall 20): if A fails and B is fine,
        the next is B."""
        if not queues:
            return None
        count, fallback = len(queues), None
        for step in range(count):
            queue = queues[(self._next + step) % count]
            if queue.broker_name == last_broker:
                continue
            if self.faults is None or self.faults.is_available(queue.broker_name, now_ms=now_ms):
                self._next += step + 1
                return queue
            if fallback is None or self.faults.due_ms(queue.broker_name) < self.faults.due_ms(
                fallback.broker_name
            ):
                fallback = queue
        chosen = fallback or queues[self._next % count]
        self._next += 1
        return chosen


def queue_of_key(queues: Sequence[MessageQueue], key: str) -> MessageQueue | None:
    """Returns the queue of a key: the same in every process while the topic has the same queues."""
    return queues[zlib.crc32(key.encode()) % len(queues)] if queues else None
