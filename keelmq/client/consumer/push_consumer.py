"""PushConsumer: a member of a consumer group that calls a listener with messages as they arrive.

    async def handle(messages):
        for message in messages:
            print(message.topic, message.body)

    async with PushConsumer("127.0.0.1:9876", "billing", handle) as consumer:
        consumer.subscribe("orders", "TagA || TagB")
        await asyncio.Event().wait()

At least once: a message is redelivered when its listener raised, when the process died before its offset was
committed, or when its queue went to another member meanwhile.
"""

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from keelmq.client.cluster.queue_reader import subscription_of
from keelmq.client.consumer.consume_message_service import (
    ConsumeMessageConcurrentlyService,
    ConsumeMessageOrderlyService,
    Listener,
)
from keelmq.client.consumer.group import GroupMember, retry_subscription
from keelmq.client.consumer.send_back import SendBack
from keelmq.client.consumer.settings import ConsumerSettings
from keelmq.client.core.checks import check_callable, check_one_of
from keelmq.client.core.queues import MessageQueue
from keelmq.client.core.subscription import ALL
from keelmq.client.hooks import ClientHook, Hooks
from keelmq.client.lifecycle import Lifecycle
from keelmq.client.message import MessageExt
from keelmq.client.producer.request_reply import REPLY_TIMEOUT_MS, send_reply
from keelmq.client.producer.sender import Sender
from keelmq.remoting.operations.clients import CONSUME_TYPES
from keelmq.runtime.tasks import TaskSet
from keelmq.runtime.tls.contexts import ClientTls, Tls
from keelmq.security.signer import Credentials

INNER_PRODUCER = "CLIENT_INNER_PRODUCER"


class PushConsumer:
    """Calls `listener` with messages. `orderly`: one listener call at a time for each queue, in order,
    across all members of the group (queue locks at the brokers). Broadcasting, filters and limits:
    ConsumerSettings. `tls`: see Producer. `credentials`: all requests are signed with them."""

    def __init__(
        self,
        namesrv_addr: str,
        group: str,
        listener: Listener,
        *,
        orderly: bool = False,
        settings: ConsumerSettings | None = None,
        hooks: Iterable[ClientHook] = (),
        tls: Tls = False,
        credentials: Credentials | None = None,
    ) -> None:
        check_callable("listener", listener)
        check_one_of("orderly", orderly, bool)
        check_one_of("settings", settings, ConsumerSettings, optional=True)
        self.group = group
        self.settings = settings = settings or ConsumerSettings()
        consume_service = ConsumeMessageOrderlyService if orderly else ConsumeMessageConcurrentlyService
        tls = ClientTls.of(tls)
        self._hooks = Hooks(hooks, namesrv_addr, tls, credentials)
        self._sink = consume_service(listener, group, settings, self._hooks, None)
        self._member = GroupMember(
            namesrv_addr,
            group,
            settings,
            self._sink,
            consume_type=CONSUME_TYPES[1],
            orderly=orderly,
            handle=self._sink.handle,
            tls=tls,
            credentials=credentials,
        )
        member = self._member
        self._sender = Sender(member.client, member.routes, member.monitor, INNER_PRODUCER)
        self._tasks, self._lifecycle = TaskSet(), Lifecycle()
        if not self._member.is_broadcasting:
            self._sink.send_back = SendBack(
                self._member.reader, self._sender, group, max_reconsume_times=settings.max_reconsume_times
            )
            self._member.subscribe(retry_subscription(group))

    @property
    def client_id(self) -> str:
        """Returns the id of this client at the brokers."""
        return self._member.client_id

    def subscribe(self, topic: str, tags: str = ALL, *, sql: str | None = None) -> Self:
        """Subscribes before the start or while running. `tags`: "*" or "TagA || TagB"; `sql`: an SQL92
        condition over properties (brokers need enablePropertyFilter). All members of a group must have the
        same subscriptions."""
        self._member.subscribe(subscription_of(topic, tags, sql))
        return self

    def unsubscribe(self, topic: str) -> None:
        """Releases the queues of the topic."""
        self._member.unsubscribe(topic)

    async def __aenter__(self) -> Self:
        """Starts the consumer. PullError: a broker refuses an SQL92 subscription.
        RuntimeError: it was started before."""
        self._lifecycle.open()
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
        """Waits for running listeners (close_timeout_ms), commits and unregisters. May be called twice.
        If the caller is cancelled, the closing goes on in the background."""
        await self._lifecycle.close(self._close)

    async def _close(self) -> None:
        await self._member.stop()
        await self._tasks.stop()
        await self._sender.close()
        await self._hooks.detach()

    def pause(self) -> None:
        """Stops pulling. Messages that were pulled are still consumed, and the queues stay assigned."""
        self._member.running.clear()

    def resume(self) -> None:
        """Pulls again after pause()."""
        self._member.running.set()

    @property
    def damaged_messages(self) -> int:
        """Returns how many damaged messages were skipped since the start (on_damaged=SKIP)."""
        return self._member.damage.skipped

    @property
    def assigned(self) -> list[MessageQueue]:
        """Returns the queues that are assigned to this consumer now."""
        return sorted(self._member.process_queues)

    async def reply(
        self,
        request: MessageExt,
        body: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        timeout_ms: int = REPLY_TIMEOUT_MS,
    ) -> None:
        """Sends the reply to the producer whose request() sent this message; returns when it was delivered.
        ValueError: the message is not a request. SendError: it was not delivered; UNKNOWN: it may have been.
        """
        await send_reply(self._member.reader, self.group, request, body, properties, timeout_ms)

    async def commit(self) -> None:
        """Saves the offsets now, in addition to every persist_interval_ms. PullError: some are not saved."""
        await self._member.commit()
