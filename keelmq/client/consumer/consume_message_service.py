"""Calls the listener with messages: many calls at a time (concurrent), or in order for each queue (orderly).

A listener is a coroutine function that gets a tuple of messages. When it returns, they are consumed. When it
raises, or exceeds its timeout, they are redelivered. `raise ReconsumeLater(delay_level=5)` sets the delay and
how many messages of the tuple are consumed.
"""

import asyncio
import inspect
import logging
import operator
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from keelmq.client.consumer.process_queue import ProcessQueue, Window
from keelmq.client.consumer.send_back import SendBack
from keelmq.client.consumer.settings import ConsumerSettings
from keelmq.client.hooks import ConsumeTrace, Hooks
from keelmq.client.message import MessageExt
from keelmq.runtime.clock import now_ms, wall_ms
from keelmq.runtime.tasks import TaskSet

logger = logging.getLogger(__name__)

KEEP_MS = 5_000
"""A message that no broker accepts back goes to the listener again after this time."""
BEHIND = "group %s: error after a call of the listener, which gets its messages again: %s"

Listener = Callable[[tuple[MessageExt, ...]], Awaitable[None]]


class ReconsumeLater(Exception):
    """Raised by a listener to have its messages redelivered; it is not logged as an error. `delay_level`: 0
    lets the broker choose, longer each time; 1 to 18; below 0: to the dead-letter queue at once (orderly
    listeners ignore it). `done`: this many messages at the start of the tuple are consumed. TypeError: one of
    them is no integer."""

    def __init__(self, remark: str = "", *, delay_level: int = 0, done: int = 0) -> None:
        super().__init__(remark or f"reconsume later (delay level {delay_level})")
        self.delay_level, self.done = operator.index(delay_level), operator.index(done)


class ConsumeMessageService:
    """Calls the listener, with its timeout, hooks and error handling. `send_back` None: broadcasting, where a
    message that failed is not sent back."""

    def __init__(self, listener: Listener, group: str, settings: ConsumerSettings, hooks: Hooks) -> None:
        self._listener, self._group, self._settings, self._hooks = listener, group, settings, hooks
        self._timeout_s = settings.consume_timeout_ms / 1_000
        self.send_back: SendBack | None = None

    async def handle(self, message: MessageExt) -> ReconsumeLater | None:
        """Consumes a message that an operator sent, in addition to those of the queues; no offset changes."""
        return await self._call((message,))

    async def _call(self, messages: tuple[MessageExt, ...]) -> ReconsumeLater | None:
        """Returns None if the messages are consumed. A ReconsumeLater with a cause: the listener failed."""
        started_ms, started_wall_ms = now_ms(), wall_ms()
        problem: BaseException | None = None
        if self._hooks:
            self._hooks.before_consume(self._group, messages)
        try:
            async with asyncio.timeout(self._timeout_s):
                called = self._listener(messages)
                if not inspect.isawaitable(called):
                    raise TypeError(
                        "the listener is no coroutine function (async def), as PushConsumer needs"
                    )
                await called
        except ReconsumeLater as later:
            problem = later
        except TimeoutError as error:
            problem = error
            logger.error(
                "listener of %s did not return within %.0f s: %s",
                self._group,
                self._timeout_s,
                _ids(messages),
            )
        except (Exception, asyncio.CancelledError) as error:
            if _is_cancelled(error):
                raise
            problem = error  # includes the cancellation of something that the listener awaited
            logger.exception("listener of %s failed: %s", self._group, _ids(messages))
        if self._hooks:
            took_ms = now_ms() - started_ms
            self._hooks.after_consume(ConsumeTrace(self._group, messages, started_wall_ms, took_ms, problem))
        if problem is None or isinstance(problem, ReconsumeLater):
            return problem
        again = ReconsumeLater(repr(problem))
        again.__cause__ = problem
        return again


class ConsumeMessageConcurrentlyService(ConsumeMessageService):
    """A Sink that calls the listener concurrently. Broadcasting: a message that failed is dropped."""

    def __init__(self, listener: Listener, group: str, settings: ConsumerSettings, hooks: Hooks) -> None:
        super().__init__(listener, group, settings, hooks)
        self._jobs: asyncio.Queue[tuple[ProcessQueue, Window, tuple[MessageExt, ...]]] = asyncio.Queue()
        self._busy: Counter[ProcessQueue] = Counter()
        self._ended = asyncio.Event()

    def start(self, tasks: TaskSet) -> None:
        """Starts consume_concurrency tasks that call the listener."""
        for index in range(self._settings.consume_concurrency):
            tasks.start(f"listener {index} of {self._group}", self._serve)

    def adopted(self, process_queue: ProcessQueue) -> None:
        """Needs nothing: calls begin when messages arrive."""

    def arrived(self, process_queue: ProcessQueue) -> None:
        """Queues the listener calls; their number is bounded by the ProcessQueues' windows."""
        while True:
            window, messages = process_queue.take(self._settings.consume_batch_size)
            if window is None or not messages:
                return
            self._jobs.put_nowait((process_queue, window, messages))

    async def released(self, process_queue: ProcessQueue, *, closing: bool) -> None:
        """While closing, running listeners may finish, and their messages count. Otherwise the next owner
        begins now, and an offset committed after its first commit would reset its progress."""
        if not closing:
            return
        try:
            async with asyncio.timeout(self._settings.close_timeout_ms / 1_000):
                while self._busy[process_queue]:
                    self._ended.clear()
                    await self._ended.wait()
        except TimeoutError:
            logger.warning("listeners of %s still run: redelivering their messages", process_queue.queue)

    async def _serve(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        while not task.cancelling():  # a listener may suppress the cancellation with which close() ends it
            process_queue, window, messages = await self._jobs.get()
            if not process_queue.is_current(window):
                continue
            self._busy[process_queue] += 1
            try:
                await self._consume(process_queue, window, messages)
            except Exception:
                logger.exception(BEHIND, self._group, _ids(messages))
                self._keep(process_queue, window, messages)
            finally:
                self._busy[process_queue] -= 1
                if not self._busy[process_queue]:
                    del self._busy[process_queue]  # a key would keep the ProcessQueue and its messages alive
                self._ended.set()

    async def _consume(
        self, process_queue: ProcessQueue, window: Window, messages: tuple[MessageExt, ...]
    ) -> None:
        later = await self._call(messages)
        done = len(messages) if later is None else max(0, min(later.done, len(messages)))
        kept: list[MessageExt] = []
        for message in messages[done:]:
            assert later is not None
            if self.send_back is None:
                logger.warning(
                    "message %s of %s failed and is dropped (broadcasting)",
                    message.msg_id,
                    process_queue.queue,
                )
            elif not await self.send_back.back(message, later.delay_level):
                kept.append(message)
        process_queue.finish(window, [message for message in messages if message not in kept])
        if kept:
            self._keep(process_queue, window, kept)

    def _keep(self, process_queue: ProcessQueue, window: Window, messages: Sequence[MessageExt]) -> None:
        asyncio.get_running_loop().call_later(KEEP_MS / 1_000, self._again, process_queue, window, messages)

    def _again(self, process_queue: ProcessQueue, window: Window, messages: Sequence[MessageExt]) -> None:
        if process_queue.is_current(window):
            window.put_back(messages)
            self.arrived(process_queue)


class ConsumeMessageOrderlyService(ConsumeMessageService):
    """A Sink that makes one listener call at a time for each queue, in the order of its offsets. A message
    that fails is retried in place, and blocks its queue."""

    def __init__(self, listener: Listener, group: str, settings: ConsumerSettings, hooks: Hooks) -> None:
        super().__init__(listener, group, settings, hooks)
        self._slots = asyncio.Semaphore(settings.consume_concurrency)

    def start(self, tasks: TaskSet) -> None:
        """Needs nothing: each queue gets a task when it is assigned."""

    def adopted(self, process_queue: ProcessQueue) -> None:
        """Starts the task that calls the listener for this queue."""
        process_queue.tasks.start(f"listener of {process_queue.queue}", lambda: self._serve(process_queue))

    def arrived(self, process_queue: ProcessQueue) -> None:
        pass  # process_queue.messages_there is set

    async def released(self, process_queue: ProcessQueue, *, closing: bool) -> None:
        """Waits for the running listener: the next owner must not begin before it has ended."""
        try:
            async with asyncio.timeout(self._settings.close_timeout_ms / 1_000), process_queue.consuming:
                pass
        except TimeoutError:
            logger.warning("the listener of %s still runs, and is cancelled", process_queue.queue)

    async def _serve(self, process_queue: ProcessQueue) -> None:
        tries: Counter[int] = Counter()
        while not process_queue.dropped:
            await process_queue.messages_there.wait()
            await process_queue.until_locked()
            async with self._slots, process_queue.consuming:
                if not process_queue.is_locked:
                    continue  # the lock ran out while others consumed
                window, messages = process_queue.take(self._settings.consume_batch_size)
                if window is None or not messages:
                    process_queue.messages_there.clear()
                    continue
                try:
                    failed = await self._consume(process_queue, window, messages, tries)
                except Exception:
                    logger.exception(BEHIND, self._group, _ids(messages))
                    window.put_back(messages)
                    failed = True
            if failed:
                await asyncio.sleep(self._settings.orderly_suspend_ms / 1_000)

    async def _consume(
        self,
        process_queue: ProcessQueue,
        window: Window,
        messages: tuple[MessageExt, ...],
        tries: Counter[int],
    ) -> bool:
        """Returns True if some messages are retried, and the queue pauses."""
        shown = tuple(
            replace(each, reconsume_times=each.reconsume_times + tries[each.queue_offset])
            for each in messages
        )
        later = await self._call(shown)
        done = len(messages) if later is None else max(0, min(later.done, len(messages)))
        kept = []
        for message, seen in list(zip(messages, shown, strict=True))[done:]:
            if self._gives_up(seen) and (
                self.send_back is None or await self._to_dead_letter_queue(self.send_back, seen)
            ):
                continue
            tries[message.queue_offset] += 1
            kept.append(message)
        for message in messages:
            if message not in kept:
                tries.pop(message.queue_offset, None)
        process_queue.finish(window, [message for message in messages if message not in kept])
        if kept:
            window.put_back(kept)
        return bool(kept)

    def _gives_up(self, message: MessageExt) -> bool:
        return 0 <= self._settings.max_reconsume_times <= message.reconsume_times

    async def _to_dead_letter_queue(self, send_back: SendBack, message: MessageExt) -> bool:
        """Sends the message to the retry topic with more attempts than allowed, so the broker moves it to
        the dead-letter queue."""
        maximum = self._settings.max_reconsume_times
        return await send_back.copy(message, reconsume_times=maximum + 1, maximum=maximum)


def _is_cancelled(error: BaseException) -> bool:
    """Returns whether this task itself was cancelled, and not only something that it awaited."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def _ids(messages: tuple[MessageExt, ...]) -> str:
    return ", ".join(f"{each.topic} {each.msg_id or each.offset_msg_id}" for each in messages)
