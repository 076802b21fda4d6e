"""What a member of a consumer group does at a damaged record: it reports the record, and passes it or stops
there.

A record that the broker refuses because it is damaged may be healed soon, so the queue waits for it
(damaged_wait_ms) before the record is skipped. A record that arrives damaged comes from a broker that does
not know of it, and is skipped at once.
"""

import logging
from collections.abc import Callable
from typing import Protocol

from keelmq.client.core.queues import MessageQueue
from keelmq.client.message import DamagedRecord

logger = logging.getLogger(__name__)


class DamagedMessageError(Exception):
    """A queue does not go on at a damaged message (DamagedPolicy.STOP). `queue`, `record`: which one."""

    def __init__(self, queue: MessageQueue, record: DamagedRecord) -> None:
        super().__init__(f"{describe(queue, record)}; the queue is not read further (on_damaged=STOP)")
        self.queue, self.record = queue, record


DamagedListener = Callable[[MessageQueue, DamagedRecord], None]


class DamageSettings(Protocol):
    """The members of ConsumerSettings that count here."""

    @property
    def stops_at_damaged(self) -> bool:
        """Returns whether a queue stops at a damaged message."""

    @property
    def damaged_wait_ms(self) -> int:
        """Returns how long a queue waits for a damaged message to be healed."""

    @property
    def damaged_listener(self) -> DamagedListener | None:
        """Returns what is called with each damaged message."""


class DamageReports:
    """Of one member. `skipped`: messages that were passed without being consumed."""

    def __init__(self, settings: DamageSettings) -> None:
        self._settings = settings
        self.skipped = 0

    def skip(self, queue: MessageQueue, record: DamagedRecord) -> None:
        """Reports messages that are not consumed."""
        self.skipped += record.end_offset - record.queue_offset
        logger.error("%s: skipped, it is not consumed", describe(queue, record))
        self._tell(queue, record)

    def stop(self, queue: MessageQueue, record: DamagedRecord) -> None:
        """Reports a message at which its queue stops."""
        logger.error("%s: the queue stops here until it is healed (on_damaged=STOP)", describe(queue, record))
        self._tell(queue, record)

    def wait(self, queue: MessageQueue, record: DamagedRecord) -> None:
        """Reports that a queue waits for a damaged message."""
        wait_ms = self._settings.damaged_wait_ms
        logger.error("%s: it may be healed, and is skipped in %d ms if not", describe(queue, record), wait_ms)

    def _tell(self, queue: MessageQueue, record: DamagedRecord) -> None:
        listener = self._settings.damaged_listener
        if listener is None:
            return
        try:
            listener(queue, record)
        except Exception:
            logger.exception("damaged_listener failed at offset %d of %s", record.queue_offset, queue)


class QueueDamage:
    """The damaged message at which one queue waits, if there is one."""

    def __init__(self, queue: MessageQueue, settings: DamageSettings, reports: DamageReports) -> None:
        self._queue, self._settings, self._reports = queue, settings, reports
        self.stopped_at: DamagedRecord | None = None
        self._waits_for: DamagedRecord | None = None
        self._since_ms = 0

    def passes(self, record: DamagedRecord, now_ms: int, *, may_heal: bool) -> bool:
        """Whether the queue goes on behind the record. may_heal: the broker knows of the damage. The queue
        waits once for a part of the log with several records."""
        if self._settings.stops_at_damaged:
            if self.stopped_at is None or self.stopped_at.queue_offset != record.queue_offset:
                self._reports.stop(self._queue, record)
            self.stopped_at = record
            return False
        if may_heal:
            before = self._waits_for
            is_known = before is not None and before.physical_offset == record.physical_offset
            if not is_known:
                self._since_ms = now_ms
                self._reports.wait(self._queue, record)
            self._waits_for = record
            if now_ms - self._since_ms < self._settings.damaged_wait_ms:
                return False
        self._reports.skip(self._queue, record)
        return True

    def left_ms(self, now_ms: int) -> int:
        """Returns how long the queue still waits for a damaged message before it is skipped."""
        return max(self._since_ms + self._settings.damaged_wait_ms - now_ms, 0)

    def read_on(self) -> None:
        """The record was delivered, or the queue was moved."""
        self.stopped_at = self._waits_for = None

    def check(self) -> None:
        """Raises DamagedMessageError if the queue has stopped."""
        if self.stopped_at is not None:
            raise DamagedMessageError(self._queue, self.stopped_at)


def describe(queue: MessageQueue, record: DamagedRecord) -> str:
    """Returns which message is damaged, and why."""
    last = record.end_offset - 1
    offsets = f"offset {last}" if record.queue_offset == last else f"offsets {record.queue_offset} to {last}"
    at = "" if record.physical_offset is None else f", CommitLog offset {record.physical_offset}"
    where = f"topic {queue.topic}, broker {queue.broker_name}, queue {queue.queue_id}, {offsets}{at}"
    return f"damaged message: {where}: {record.reason}"
