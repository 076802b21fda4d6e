"""PushConsumer: a member of a consumer group whose listener is called with what arrives.

    async def handle(messages):
        for message in messages:
            print(message.topic, message.body)

    async with PushConsumer("127.0.0.1:9876", "billing", handle) as consumer:
        consumer.subscribe("orders", "TagA || TagB")
        await asyncio.Event().wait()

At least once: a message comes again when its listener raised, when the process died before its offset was
committed, or when its queue changed hands meanwhile.
"""

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from client.core.queues import MessageQueue
from client.core.subscription import ALL
from client.delivery import Delivery
from client.group import GroupMember, retry_subscription
from client.hooks import ClientHook, Hooks
from client.listening import ConcurrentListening, Listener, OrderlyListening
from client.message import MessageExt
from client.reading import subscription_of
from client.replies import REPLY_TIMEOUT_MS, send_reply
from client.send_back import SendBack
from client.settings import ConsumerSettings
from remoting.operations.clients import CONSUME_TYPES
from remoting.tasks import TaskSet

INNER_PRODUCER = "CLIENT_INNER_PRODUCER"


class PushConsumer:
    """`orderly`: one listener at a time for each queue, in order; for all members together, too, by queue
    locks at the brokers. Broadcasting groups, filters, limits: ConsumerSettings."""

    def __init__(
        self,
        namesrv_addr: str,
        group: str,
        listener: Listener,
        *,
        orderly: bool = False,
        settings: ConsumerSettings | None = None,
        hooks: Iterable[ClientHook] = (),
    ) -> None:
        self.group = group
        self.settings = settings = settings or ConsumerSettings()
        listening = OrderlyListening if orderly else ConcurrentListening
        self._hooks = Hooks(hooks, namesrv_addr)
        self._sink = listening(listener, group, settings, self._hooks, None)
        self._member = GroupMember(
            namesrv_addr,
            group,
            settings,
            self._sink,
            consume_type=CONSUME_TYPES[1],
            orderly=orderly,
            handle=self._sink.handle,
        )
        self._delivery = Delivery(self._member.client, self._member.routes, INNER_PRODUCER)
        self._tasks = TaskSet()
        if not self._member.is_broadcasting:
            self._sink.send_back = SendBack(
                self._member.reader, self._delivery, group, max_reconsume_times=settings.max_reconsume_times
            )
            self._member.subscribe(retry_subscription(group))

    @property
    def client_id(self) -> str:
        return self._member.client_id

    def subscribe(self, topic: str, tags: str = ALL, *, sql: str | None = None) -> Self:
        """Before the start or while it runs. `tags`: "*" or "TagA || TagB"; `sql`: an SQL92 condition over
        properties (brokers need enablePropertyFilter). All members of a group subscribe to the same."""
        self._member.subscribe(subscription_of(topic, tags, sql))
        return self

    def unsubscribe(self, topic: str) -> None:
        self._member.unsubscribe(topic)

    async def __aenter__(self) -> Self:
        """PullError: a broker refuses an SQL92 subscription."""
        self._sink.start(self._tasks)
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
        """Waits for listeners that run (close_timeout_ms), commits, says farewell. May be called twice."""
        await self._member.stop()
        await self._tasks.stop()
        await self._delivery.close()
        await self._hooks.detach()

    def pause(self) -> None:
        """Nothing more is pulled; what was pulled is still consumed, and the queues stay ours."""
        self._member.running.clear()

    def resume(self) -> None:
        self._member.running.set()

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues that are ours now."""
        return sorted(self._member.workers)

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
        """Save the offsets now; it happens every persist_interval_ms anyway."""
        await self._member.persist()
