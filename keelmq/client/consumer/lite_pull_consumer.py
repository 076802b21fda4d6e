"""LitePullConsumer: a member of a consumer group that asks for messages when it wants them.

    async with LitePullConsumer("127.0.0.1:9876", "billing").subscribe("orders") as consumer:
        while True:
            for message in await consumer.poll(timeout_ms=1_000):
                print(message.body)

Queues are shared out among the members and pulled ahead within limits, as with PushConsumer; there are no
retries by way of the broker. At least once: what poll() gave counts as consumed with the next poll() or
commit(), or, with auto_commit=False, with commit() alone.
"""

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from client.core.queues import MessageQueue
from client.core.subscription import ALL
from client.group import GroupMember
from client.message import MessageExt
from client.reading import subscription_of
from client.replies import REPLY_TIMEOUT_MS, send_reply
from client.settings import ConsumerSettings
from client.worker import QueueWorker, Window
from remoting.operations.clients import CONSUME_TYPES

POLL_TIMEOUT_MS = 5_000
POLL_MAX = 32


class LitePullConsumer:
    """`auto_commit`: poll() says that what the poll before it gave is done."""

    def __init__(
        self,
        namesrv_addr: str,
        group: str,
        *,
        auto_commit: bool = True,
        settings: ConsumerSettings | None = None,
    ) -> None:
        self.group, self.auto_commit = group, auto_commit
        self._member = GroupMember(
            namesrv_addr, group, settings or ConsumerSettings(), self, consume_type=CONSUME_TYPES[0]
        )
        self._arrived = asyncio.Event()
        self._given: list[tuple[QueueWorker, Window, tuple[MessageExt, ...]]] = []
        self._turn = 0

    @property
    def client_id(self) -> str:
        return self._member.client_id

    def subscribe(self, topic: str, tags: str = ALL, *, sql: str | None = None) -> Self:
        """Before the start or while it runs. `tags`: "*" or "TagA || TagB"; `sql`: an SQL92 condition."""
        self._member.subscribe(subscription_of(topic, tags, sql))
        return self

    def unsubscribe(self, topic: str) -> None:
        self._member.unsubscribe(topic)

    async def __aenter__(self) -> Self:
        """PullError: a broker refuses an SQL92 subscription."""
        try:
            await self._member.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """What the last poll() gave does not count as consumed, unless commit() was called."""
        await self._member.stop()

    async def poll(self, max_nums: int = POLL_MAX, *, timeout_ms: int = POLL_TIMEOUT_MS) -> list[MessageExt]:
        """Up to max_nums messages, as soon as there is one; none after timeout_ms. In the order of offsets
        for each queue, in turn among queues."""
        if self.auto_commit:
            self._finish_given()
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                while True:
                    found = self._take(max_nums)
                    if found:
                        return found
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            return []

    async def reply(
        self,
        request: MessageExt,
        body: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        timeout_ms: int = REPLY_TIMEOUT_MS,
    ) -> None:
        """To who sent this message by Producer.request(); returns when he has it. ValueError: it is no
        request. SendError: nobody took the reply; UNKNOWN: perhaps it arrived."""
        await send_reply(self._member.reader, self.group, request, body, properties, timeout_ms)

    async def commit(self) -> None:
        """All that poll() gave is consumed; saved at the brokers when it returns."""
        self._finish_given()
        await self._member.persist()

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on there. ValueError: the queue is not ours now."""
        worker = self._member.workers.get(queue)
        if worker is None:
            raise ValueError(f"{queue} is not assigned to this consumer")
        worker.seek(offset)

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues that are ours now."""
        return sorted(self._member.workers)

    def pause(self) -> None:
        """Nothing more is pulled; the queues stay ours."""
        self._member.running.clear()

    def resume(self) -> None:
        self._member.running.set()

    # -- the Sink of the member --------------------------------------------------------------------------

    def adopted(self, worker: QueueWorker) -> None:
        pass

    def arrived(self, worker: QueueWorker) -> None:
        self._arrived.set()

    async def released(self, worker: QueueWorker, *, closing: bool) -> None:
        pass

    # -- parts -------------------------------------------------------------------------------------------

    def _take(self, count: int) -> list[MessageExt]:
        found: list[MessageExt] = []
        workers = [self._member.workers[queue] for queue in sorted(self._member.workers)]
        for step in range(len(workers)):
            worker = workers[(self._turn + step) % len(workers)]
            window, messages = worker.take(count - len(found))
            if window is None or not messages:
                continue
            self._given.append((worker, window, messages))
            found += messages
            if len(found) >= count:
                self._turn += step + 1
                break
        return found

    def _finish_given(self) -> None:
        for worker, window, messages in self._given:
            worker.finish(window, messages)
        self._given.clear()
