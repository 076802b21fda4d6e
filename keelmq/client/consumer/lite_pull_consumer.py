"""LitePullConsumer, also called Consumer: a member of a consumer group that polls for its messages.

    async with Consumer("127.0.0.1:9876", "billing").subscribe("orders") as consumer:
        async for message in consumer:
            print(message.body)

poll() returns many messages at a time. The members of a group share the queues, and pull ahead within limits,
as a PushConsumer does; messages are not retried through the broker. At least once: messages count as consumed
at the next poll, or at commit(); with auto_commit=False only at commit().
"""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, Self

from keelmq.client.consumer.group import GroupMember
from keelmq.client.consumer.group_consumer import GroupConsumer
from keelmq.client.consumer.process_queue import ProcessQueue, Window
from keelmq.client.consumer.settings import ConsumerSettings
from keelmq.client.core.checks import check_int, check_one_of
from keelmq.client.core.queues import MessageQueue
from keelmq.client.message import MessageExt
from keelmq.remoting.operations.clients import CONSUME_TYPES
from keelmq.runtime.tls.contexts import Tls
from keelmq.security.signer import Credentials

POLL_TIMEOUT_MS = 5_000
POLL_MAX = 32


class LitePullConsumer(GroupConsumer):
    """Polls for messages, in one task or thread. `auto_commit`: each poll marks the messages that were
    returned before as consumed. False: only commit() does; several tasks may then poll. `credentials`: all
    requests are signed with them."""

    def __init__(
        self,
        namesrv_addr: str,
        group: str,
        *,
        auto_commit: bool = True,
        settings: ConsumerSettings | None = None,
        tls: Tls = False,
        credentials: Credentials | None = None,
    ) -> None:
        check_one_of("auto_commit", auto_commit, bool)
        check_one_of("settings", settings, ConsumerSettings, optional=True)
        super().__init__()
        self.auto_commit = auto_commit
        self._member = GroupMember(
            namesrv_addr,
            group,
            settings or ConsumerSettings(),
            self,
            consume_type=CONSUME_TYPES[0],
            tls=tls,
            credentials=credentials,
        )
        self._arrived = asyncio.Event()
        self._given: list[tuple[ProcessQueue, Window, tuple[MessageExt, ...]]] = []
        self._turn = self._waits = 0
        self._reader: asyncio.Task[Any] | None = None  # the last task that read

    async def close(self) -> None:
        """Releases the queues. The messages that were returned last do not count as consumed, unless commit()
        was called. Ends an `async for` and a poll() of another task. May be called twice.
        If the caller is cancelled, the closing goes on in the background."""
        await super().close()

    async def _start(self) -> None:
        await self._member.start()

    async def _close(self) -> None:
        self._arrived.set()
        await self._member.stop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MessageExt:
        """Returns the next message, however long it takes. It counts as consumed when the loop requests the
        one after it (auto_commit=False: at commit()), so after `break`, or an error in the loop's body, it is
        redelivered. RuntimeError: the consumer was not opened, or another task reads it.
        DamagedMessageError: a queue has stopped at a damaged message (on_damaged=STOP), and no other message
        is left."""
        if not self._is_closed:
            self._check_open()
        with self._reading():
            while not self._is_closed:
                found = self._take(1)
                if found:
                    return found[0]
                self._arrived.clear()
                await self._arrived.wait()
        raise StopAsyncIteration

    async def poll(self, max_nums: int = POLL_MAX, *, timeout_ms: int = POLL_TIMEOUT_MS) -> list[MessageExt]:
        """Returns up to max_nums messages as soon as there is one, or none after timeout_ms. Messages of one
        queue are in order of their offsets; queues take turns. RuntimeError: the consumer is not open, or
        another task reads it.
        DamagedMessageError: a queue has stopped at a damaged message (on_damaged=STOP), and no other message
        is left."""
        self._check_open()
        check_int("max_nums", max_nums, least=1)
        check_int("timeout_ms", timeout_ms)
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                with self._reading():
                    while not self._is_closed:
                        found = self._take(max_nums)
                        if found:
                            return found
                        self._arrived.clear()
                        await self._arrived.wait()
        except TimeoutError:
            pass
        return []

    async def commit(self) -> None:
        """Marks all returned messages as consumed, and saves the offsets at the brokers. PullError: some are
        not saved; they will be tried again. RuntimeError: the consumer is not open."""
        self._check_open()
        self._finish_given()
        await self._member.commit()

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continues reading the queue at `offset`. ValueError: the queue is not assigned to this consumer."""
        check_one_of("queue", queue, MessageQueue)
        check_int("offset", offset)
        process_queue = self._member.process_queues.get(queue)
        if process_queue is None:
            raise ValueError(f"{queue} is not assigned to this consumer")
        process_queue.seek(offset)

    # -- the Sink of the member --------------------------------------------------------------------------

    def adopted(self, process_queue: ProcessQueue) -> None:
        """Needs nothing: poll() finds the messages of all queues."""

    def arrived(self, process_queue: ProcessQueue) -> None:
        """Wakes poll()."""
        self._arrived.set()

    async def released(self, process_queue: ProcessQueue, *, closing: bool) -> None:
        pass

    # -- parts -------------------------------------------------------------------------------------------

    def _take(self, count: int) -> list[MessageExt]:
        found: list[MessageExt] = []
        process_queues = [self._member.process_queues[queue] for queue in sorted(self._member.process_queues)]
        for step in range(len(process_queues)):
            process_queue = process_queues[(self._turn + step) % len(process_queues)]
            window, messages = process_queue.take(count - len(found))
            if window is None or not messages:
                continue
            self._given.append((process_queue, window, messages))
            found += messages
            if len(found) >= count:
                self._turn += step + 1
                break
        if not found:
            for process_queue in process_queues:
                process_queue.damage.check()
        return found

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """The block of a task that takes messages. With auto_commit it marks those that were returned before
        as consumed. RuntimeError: another task still works on them, or waits for more."""
        task, other = asyncio.current_task(), self._reader
        if self.auto_commit:
            if other is not None and other is not task and not other.done() and (self._given or self._waits):
                raise RuntimeError(
                    f"{other.get_name()} reads this consumer already, and this call would commit its "
                    "messages: use a consumer for each task, or call commit() before another task reads, "
                    "or use auto_commit=False"
                )
            self._finish_given()
        self._reader = task
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1

    def _finish_given(self) -> None:
        for process_queue, window, messages in self._given:
            process_queue.finish(window, messages)
        self._given.clear()
