"""How messages reach a listener: many at a time (concurrent), or one by one for each queue (orderly).

A listener is a coroutine function that gets a tuple of messages. It returns: they are consumed. It raises, or
takes too long: they come again. `raise ReconsumeLater(delay_level=5)` says when, and how many were done.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

from client.hooks import ConsumeTrace, Hooks
from client.message import MessageExt
from client.send_back import SendBack
from client.settings import ConsumerSettings
from client.worker import QueueWorker, Window
from remoting.clock import now_ms, wall_ms
from remoting.tasks import TaskSet

logger = logging.getLogger(__name__)

KEEP_MS = 5_000
"""What no broker takes back is given to the listener again after so long."""

Listener = Callable[[tuple[MessageExt, ...]], Awaitable[None]]


class ReconsumeLater(Exception):
    """Raised by a listener: not an error, but not consumed. `delay_level`: 0 the broker's choice, longer each
    time; 1 to 18; below 0: to the dead letters at once (orderly listeners: ignored). `done`: the first so
    many messages of the batch are consumed."""

    def __init__(self, remark: str = "", *, delay_level: int = 0, done: int = 0) -> None:
        super().__init__(remark or f"again later (delay level {delay_level})")
        self.delay_level, self.done = delay_level, done


class _Calls:
    """One call of the listener, with its time limit, its traces and its faults."""

    def __init__(self, listener: Listener, group: str, settings: ConsumerSettings, hooks: Hooks) -> None:
        self._listener, self._group, self._hooks = listener, group, hooks
        self._timeout_s = settings.consume_timeout_ms / 1_000

    async def call(self, messages: tuple[MessageExt, ...]) -> ReconsumeLater | None:
        """None: consumed. Its cause, if it has one: how the listener failed."""
        started_ms, started_wall_ms = now_ms(), wall_ms()
        problem: BaseException | None = None
        if self._hooks:
            self._hooks.before_consume(self._group, messages)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._listener(messages)
        except ReconsumeLater as later:
            problem = later
        except TimeoutError as error:
            problem = error
            logger.error(
                "listener of %s: no end after %.0f s: %s", self._group, self._timeout_s, _ids(messages)
            )
        except (Exception, asyncio.CancelledError) as error:
            if _is_cancelled(error):
                raise
            problem = error  # also of something that the listener waited for, and that was cancelled
            logger.exception("listener of %s failed: %s", self._group, _ids(messages))
        if self._hooks:
            took_ms = now_ms() - started_ms
            self._hooks.after_consume(ConsumeTrace(self._group, messages, started_wall_ms, took_ms, problem))
        if problem is None or isinstance(problem, ReconsumeLater):
            return problem
        again = ReconsumeLater(repr(problem))
        again.__cause__ = problem
        return again


class ConcurrentListening:
    """A Sink. `send_back` None: broadcasting, where a message that failed is dropped."""

    def __init__(
        self,
        listener: Listener,
        group: str,
        settings: ConsumerSettings,
        hooks: Hooks,
        send_back: SendBack | None,
    ) -> None:
        self._calls = _Calls(listener, group, settings, hooks)
        self._settings, self._group = settings, group
        self.send_back = send_back
        self._jobs: asyncio.Queue[tuple[QueueWorker, Window, tuple[MessageExt, ...]]] = asyncio.Queue()
        self._busy: Counter[QueueWorker] = Counter()
        self._ended = asyncio.Event()

    def start(self, tasks: TaskSet) -> None:
        for index in range(self._settings.consume_concurrency):
            tasks.start(f"listener {index} of {self._group}", self._serve)

    async def handle(self, message: MessageExt) -> ReconsumeLater | None:
        """For an operator: beside the messages of the queues, and no offset moves."""
        return await self._calls.call((message,))

    def adopted(self, worker: QueueWorker) -> None:
        pass

    def arrived(self, worker: QueueWorker) -> None:
        """Bounded by the workers' windows."""
        while True:
            window, messages = worker.take(self._settings.consume_batch_size)
            if window is None or not messages:
                return
            self._jobs.put_nowait((worker, window, messages))

    async def released(self, worker: QueueWorker, *, closing: bool) -> None:
        """When we close, listeners that run may finish, and count. Else the next owner begins now: an offset
        that we commit later than he does would throw him back."""
        if not closing:
            return
        try:
            async with asyncio.timeout(self._settings.close_timeout_ms / 1_000):
                while self._busy[worker]:
                    self._ended.clear()
                    await self._ended.wait()
        except TimeoutError:
            logger.warning("listeners of %s still run: their messages come again", worker.queue)

    async def _serve(self) -> None:
        while True:
            worker, window, messages = await self._jobs.get()
            if not worker.is_current(window):
                continue
            self._busy[worker] += 1
            try:
                await self._consume(worker, window, messages)
            finally:
                self._busy[worker] -= 1
                if not self._busy[worker]:
                    del self._busy[worker]  # a key would keep the worker, and what it holds
                self._ended.set()

    async def _consume(self, worker: QueueWorker, window: Window, messages: tuple[MessageExt, ...]) -> None:
        later = await self._calls.call(messages)
        done = len(messages) if later is None else max(0, min(later.done, len(messages)))
        kept: list[MessageExt] = []
        for message in messages[done:]:
            assert later is not None
            if self.send_back is None:
                logger.warning(
                    "message %s of %s failed, and is dropped: broadcasting", message.msg_id, worker.queue
                )
            elif not await self.send_back.back(message, later.delay_level):
                kept.append(message)
        worker.finish(window, [message for message in messages if message not in kept])
        if kept:
            asyncio.get_running_loop().call_later(KEEP_MS / 1_000, self._again, worker, window, kept)

    def _again(self, worker: QueueWorker, window: Window, messages: list[MessageExt]) -> None:
        if worker.is_current(window):
            window.put_back(messages)
            self.arrived(worker)


class OrderlyListening:
    """A Sink. One listener at a time for each queue, in the order of its offsets; a message that fails is
    tried again where it is, and blocks its queue. `send_back` None: broadcasting."""

    def __init__(
        self,
        listener: Listener,
        group: str,
        settings: ConsumerSettings,
        hooks: Hooks,
        send_back: SendBack | None,
    ) -> None:
        self._calls = _Calls(listener, group, settings, hooks)
        self._settings, self._group = settings, group
        self.send_back = send_back
        self._slots = asyncio.Semaphore(settings.consume_concurrency)

    def start(self, tasks: TaskSet) -> None:
        pass

    async def handle(self, message: MessageExt) -> ReconsumeLater | None:
        """For an operator: beside the messages of the queues, and no offset moves."""
        return await self._calls.call((message,))

    def adopted(self, worker: QueueWorker) -> None:
        worker.tasks.start(f"listener of {worker.queue}", lambda: self._serve(worker))

    def arrived(self, worker: QueueWorker) -> None:
        pass  # worker.messages_there is set

    async def released(self, worker: QueueWorker, *, closing: bool) -> None:
        """The next owner must not begin before our listener has ended."""
        try:
            async with asyncio.timeout(self._settings.close_timeout_ms / 1_000), worker.consuming:
                pass
        except TimeoutError:
            logger.warning("the listener of %s still runs, and is cancelled", worker.queue)

    async def _serve(self, worker: QueueWorker) -> None:
        tries: Counter[int] = Counter()
        while not worker.dropped:
            await worker.messages_there.wait()
            await worker.until_locked()
            async with self._slots, worker.consuming:
                if not worker.is_locked:
                    continue  # the lock ran out while others consumed
                window, messages = worker.take(self._settings.consume_batch_size)
                if window is None or not messages:
                    worker.messages_there.clear()
                    continue
                failed = await self._consume(worker, window, messages, tries)
            if failed:
                await asyncio.sleep(self._settings.orderly_suspend_ms / 1_000)

    async def _consume(
        self, worker: QueueWorker, window: Window, messages: tuple[MessageExt, ...], tries: Counter[int]
    ) -> bool:
        """True: some come again, the queue rests."""
        shown = tuple(
            replace(each, reconsume_times=each.reconsume_times + tries[each.queue_offset])
            for each in messages
        )
        later = await self._calls.call(shown)
        done = len(messages) if later is None else max(0, min(later.done, len(messages)))
        kept = []
        for message, seen in list(zip(messages, shown, strict=True))[done:]:
            if self._gives_up(seen) and (
                self.send_back is None or await self._to_dead_letters(self.send_back, seen)
            ):
                continue
            tries[message.queue_offset] += 1
            kept.append(message)
        for message in messages:
            if message not in kept:
                tries.pop(message.queue_offset, None)
        worker.finish(window, [message for message in messages if message not in kept])
        if kept:
            window.put_back(kept)
        return bool(kept)

    def _gives_up(self, message: MessageExt) -> bool:
        return 0 <= self._settings.max_reconsume_times <= message.reconsume_times

    async def _to_dead_letters(self, send_back: SendBack, message: MessageExt) -> bool:
        """By way of the retry topic, with more tries than allowed: so the broker knows what it is."""
        maximum = self._settings.max_reconsume_times
        return await send_back.copy(message, reconsume_times=maximum + 1, maximum=maximum)


def _is_cancelled(error: BaseException) -> bool:
    """We are, and not only what we waited for."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def _ids(messages: tuple[MessageExt, ...]) -> str:
    return ", ".join(f"{each.topic} {each.msg_id or each.offset_msg_id}" for each in messages)
