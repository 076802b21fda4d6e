"""ProcessQueue: one queue that is assigned to this consumer; pulls ahead and tracks which messages are
consumed."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from keelmq.client.cluster.queue_reader import PullError, PullResult, PullStatus, QueueReader
from keelmq.client.consumer.damage import DamageReports, QueueDamage
from keelmq.client.consumer.offset_store import OffsetStore
from keelmq.client.consumer.settings import ConsumeFromWhere, ConsumerSettings
from keelmq.client.core.queues import MessageQueue
from keelmq.client.core.subscription import Subscription
from keelmq.client.core.window import Limits, OffsetWindow
from keelmq.client.message import RETRY_TOPIC, DamagedRecord, MessageExt
from keelmq.runtime.backoff import Backoff
from keelmq.runtime.clock import now_ms, wall_ms
from keelmq.runtime.tasks import TaskSet

logger = logging.getLogger(__name__)

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
PULL_AGAIN = Backoff(first_ms=1_000, max_ms=5_000)
NOTHING_PAUSE_MS = 10
"""The pause after an immediate "nothing new" from a broker that does not hold pulls, against a tight loop."""
LOCK_VALID_MS = 30_000
"""A queue lock that was not renewed for this long counts as lost; brokers keep it for 60 s."""
HALF_AN_HOUR_MS = 30 * 60_000

Window = OffsetWindow[MessageExt]


@dataclass(frozen=True, slots=True)
class ProcessQueueContext:
    """The parts that all ProcessQueues of a member share. `running`: cleared while the consumer is paused."""

    reader: QueueReader
    offsets: OffsetStore
    settings: ConsumerSettings
    limits: Limits
    running: asyncio.Event
    arrived: Callable[["ProcessQueue"], None]
    damage: DamageReports


class ProcessQueue:
    """One assigned queue. `window` None: the start offset is not known yet. `needs_lock`: pulls only while
    this consumer holds the broker's queue lock (orderly)."""

    def __init__(
        self, queue: MessageQueue, subscription: Subscription, parts: ProcessQueueContext, *, needs_lock: bool
    ) -> None:
        self.queue, self.subscription = queue, subscription
        self.window: Window | None = None
        self.dropped = False
        self.waits_paused = False
        self.tasks = TaskSet()
        self.positioned = asyncio.Event()
        """Set when the start offset is known: later messages are not missed."""
        self.messages_there = asyncio.Event()
        self.consuming = asyncio.Lock()
        """Held during a listener call that must not overlap with another one of this queue."""
        self.pulled_ms = self.consumed_ms = self.granted_ms = 0
        """The last time (wall-clock ms) that a pull was answered, a message finished, the queue lock
        granted."""
        self._parts, self._needs_lock = parts, needs_lock
        self.damage = QueueDamage(queue, parts.settings, parts.damage)
        self._locked_until_ms = 0
        self._losses = 0  # how often the lock was lost
        self._granted = asyncio.Event()
        self._space = asyncio.Event()
        self._pulling: asyncio.Task[PullResult] | None = None

    def start(self) -> None:
        """Starts pulling in the background."""
        self.tasks.start(f"pulls of {self.queue}", self.run)

    async def run(self) -> None:
        """Pulls until cancelled; repeats pulls that are refused or get no response."""
        failures = 0
        while True:
            window: Window | None = None
            try:
                if self._needs_lock:
                    await self.until_locked()
                if self.window is None:
                    await self._find_position()
                window = self.window
                if window is None:
                    continue
                await self._until_space(window)
                if self.window is not window:
                    continue  # the queue was moved while it waited
                started = time.monotonic()
                result = await self._pull(window)
            except PullError as error:
                if error.damaged is not None and self._passes(window, error.damaged):
                    continue
                logger.warning("pull of %s: %s", self.queue, error)
                failures += 1
                pause_ms = PULL_AGAIN.pause_ms(failures, random.random())
                if error.damaged is not None and not self._parts.settings.stops_at_damaged:
                    pause_ms = min(pause_ms, self.damage.left_ms(now_ms()))
                await asyncio.sleep(pause_ms / 1_000)
                continue
            if result is None:
                continue
            self.pulled_ms = wall_ms()
            if self._received(window, result):
                failures = 0
            else:
                failures += 1
                await asyncio.sleep(PULL_AGAIN.pause_ms(failures, random.random()) / 1_000)
            if result.status is PullStatus.NO_NEW_MSG and time.monotonic() - started < NOTHING_PAUSE_MS / 1e3:
                await asyncio.sleep(NOTHING_PAUSE_MS / 1_000)

    async def _pull(self, window: Window) -> PullResult | None:
        """Returns None if the queue was moved: the pending pull was for the old offset."""
        settings = self._parts.settings
        self._pulling = pull = asyncio.create_task(
            self._parts.reader.pull(
                self.queue,
                window.next_offset,
                settings.pull_batch_size,
                self.subscription,
                suspend_ms=settings.pull_suspend_ms,
            )
        )
        try:
            await asyncio.wait((pull,))
        finally:
            self._pulling = None
            pull.cancel()
            await asyncio.gather(pull, return_exceptions=True)
        return None if pull.cancelled() else pull.result()

    # -- messages ----------------------------------------------------------------------------------------

    def take(self, count: int) -> tuple[Window | None, tuple[MessageExt, ...]]:
        """Returns messages that were not taken yet, and the window to finish them in; (None, ()) before the
        start offset is known or after the queue was released."""
        if self.dropped or self.window is None:
            return None, ()
        return self.window, self.window.take(count)

    def finish(self, window: Window, messages: Sequence[MessageExt]) -> None:
        """Marks messages as consumed, so the commit offset may advance."""
        window.finish(messages)
        self.consumed_ms = wall_ms()
        if not window.is_full(self._parts.limits):
            self._space.set()

    def is_current(self, window: Window) -> bool:
        """Returns False if the queue was released or moved since: its messages no longer count here."""
        return not self.dropped and self.window is window

    def want(self, subscription: Subscription) -> None:
        """Uses the subscription from the next pull on. Cancels a waiting pull that has another expression."""
        before, self.subscription = self.subscription, subscription
        changed = (before.type, before.expression) != (subscription.type, subscription.expression)
        if changed and self._pulling is not None:
            self._pulling.cancel()

    def seek(self, offset: int) -> None:
        """Drops the held messages and continues at `offset`, also if the queue has stopped at a damaged
        one."""
        self.damage.read_on()
        self.window = OffsetWindow(offset)
        self.positioned.set()
        self._moved()

    @property
    def commit_offset(self) -> int | None:
        """Returns the offset to commit; None: the start offset is not known yet."""
        return None if self.window is None else self.window.commit_offset

    def _moved(self) -> None:
        self._space.set()
        if self._pulling is not None:
            self._pulling.cancel()

    def _received(self, window: Window, result: PullResult) -> bool:
        """Takes the messages of a pull. Returns False if the queue stops at a damaged one."""
        if self.window is not window:
            return True  # the queue was moved meanwhile
        if result.status is PullStatus.OFFSET_ILLEGAL:
            self._go_on(window, result)
            return True
        messages, next_offset = result.messages, result.next_begin_offset
        stop = self._first_stop(result.damaged)
        if stop is not None:
            messages = tuple(each for each in messages if each.queue_offset < stop)
            next_offset = stop
        elif not result.damaged:
            self.damage.read_on()
        window.add(map(as_sent, messages), next_offset)
        if messages:
            self.messages_there.set()
        if messages or stop is not None:
            self._parts.arrived(self)
        return stop is None

    def _first_stop(self, damaged: Sequence[DamagedRecord]) -> int | None:
        """Reports what is damaged; returns the queue offset at which the queue stops, None: it goes on."""
        for each in damaged:
            if not self.damage.passes(each, now_ms(), may_heal=False):
                return each.queue_offset
        return None

    def _passes(self, window: Window | None, damaged: DamagedRecord) -> bool:
        """Goes on behind a message that the broker refuses, if the settings say so. Returns whether to pull
        again at once. window: that of the pull."""
        if window is None or self.window is not window:
            return True  # the queue was moved meanwhile
        if self.damage.passes(damaged, now_ms(), may_heal=True):
            window.add((), damaged.end_offset)
            return True
        self._parts.arrived(self)
        return False

    def _go_on(self, window: Window, result: PullResult) -> None:
        """Continues at the broker's next offset: the broker does not have the requested one, or an operator
        reset it. Only an operator may skip messages that were pulled and are not finished."""
        expected_offset, begin = window.next_offset, result.next_begin_offset
        if begin == result.min_offset > expected_offset:
            window.add(
                (), begin
            )  # the held messages are deleted at the broker: only this consumer still has them
        elif begin == result.max_offset < expected_offset:
            begin = min(
                begin, window.commit_offset
            )  # the queue was truncated: other messages may have the held offsets now
            self.seek(begin)
        else:
            self.seek(begin)
        if result.min_offset <= expected_offset <= result.max_offset:
            text = "an operator has reset the offset of %s from %d: reading continues at %d"
        else:
            text = "the broker does not have the offset of %s, %d: reading continues at %d"
        logger.warning(text, self.queue, expected_offset, begin)

    async def _until_space(self, window: Window) -> None:
        await self._until_running()
        while window.is_full(self._parts.limits) and self.window is window:
            self._space.clear()
            await self._space.wait()
            await self._until_running()

    async def _until_running(self) -> None:
        self.waits_paused = True
        try:
            await self._parts.running.wait()
        finally:
            self.waits_paused = False

    # -- start offset ------------------------------------------------------------------------------------

    async def _find_position(self) -> None:
        """Loads the group's offset, unless the queue is moved or its lock is lost meanwhile."""
        losses = self._losses
        offset = await self._start_offset()
        if self.window is None and self._losses == losses:
            self.window = OffsetWindow(offset)
            self.positioned.set()

    async def _start_offset(self) -> int:
        found = await self._parts.offsets.load(self.queue)
        if found is not None and found >= 0:
            return found
        reader, settings = self._parts.reader, self._parts.settings
        if self.queue.topic.startswith(RETRY_PREFIX):
            return 0
        match settings.from_where:
            case ConsumeFromWhere.LAST_OFFSET | ConsumeFromWhere.STRICT_LAST_OFFSET:
                return await reader.max_offset(self.queue)
            case ConsumeFromWhere.FIRST_OFFSET:
                return await reader.min_offset(self.queue)
            case ConsumeFromWhere.TIMESTAMP:
                since_ms = settings.consume_timestamp_ms
                return await reader.offset_at(
                    self.queue, wall_ms() - HALF_AN_HOUR_MS if since_ms is None else since_ms
                )

    # -- the broker's queue lock -------------------------------------------------------------------------

    def grant(self, asked_at_ms: int) -> None:
        """The lock was granted or renewed; its time counts from the request. A lock that had expired may
        have been held by another member, so the offset is loaded again."""
        if asked_at_ms >= self._locked_until_ms:
            self.revoke()
        self._locked_until_ms, self.granted_ms = asked_at_ms + LOCK_VALID_MS, wall_ms()
        self._granted.set()

    def revoke(self) -> None:
        """Another member holds the lock and consumes meanwhile, so the offset is loaded again later."""
        self._losses += 1
        self._locked_until_ms, self.window = 0, None
        self._moved()

    @property
    def is_locked(self) -> bool:
        """Returns whether pulls are allowed: no lock is needed, or this consumer holds it."""
        return not self._needs_lock or now_ms() < self._locked_until_ms

    async def until_locked(self) -> None:
        """Waits until is_locked."""
        while not self.is_locked:
            self._granted.clear()
            await self._granted.wait()


def as_sent(message: MessageExt) -> MessageExt:
    """Returns a retried message, which arrives in %RETRY%group, with its original topic."""
    origin = message.properties.get(RETRY_TOPIC)
    if origin and message.topic.startswith(RETRY_PREFIX):
        return replace(message, topic=origin)
    return message
