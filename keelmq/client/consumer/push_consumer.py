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

from collections.abc import Iterable

from keelmq.client.consumer.consume_message_service import (
    ConsumeMessageConcurrentlyService,
    ConsumeMessageOrderlyService,
    Listener,
)
from keelmq.client.consumer.group import GroupMember, retry_subscription
from keelmq.client.consumer.group_consumer import GroupConsumer
from keelmq.client.consumer.send_back import SendBack
from keelmq.client.consumer.settings import ConsumerSettings
from keelmq.client.core.checks import check_callable, check_one_of
from keelmq.client.hooks import ClientHook, Hooks
from keelmq.client.producer.sender import Sender
from keelmq.remoting.operations.clients import CONSUME_TYPES
from keelmq.runtime.tasks import TaskSet
from keelmq.runtime.tls.contexts import ClientTls, Tls
from keelmq.security.signer import Credentials

INNER_PRODUCER = "CLIENT_INNER_PRODUCER"


class PushConsumer(GroupConsumer):
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
        super().__init__()
        self.settings = settings = settings or ConsumerSettings()
        consume_service = ConsumeMessageOrderlyService if orderly else ConsumeMessageConcurrentlyService
        tls = ClientTls.of(tls)
        self._hooks = Hooks(hooks, namesrv_addr, tls, credentials)
        self._sink = consume_service(listener, group, settings, self._hooks)
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
        self._tasks = TaskSet()
        if not self._member.is_broadcasting:
            self._sink.send_back = SendBack(
                self._member.reader, self._sender, group, max_reconsume_times=settings.max_reconsume_times
            )
            self._member.subscribe(retry_subscription(group))

    async def close(self) -> None:
        """Waits for running listeners (close_timeout_ms), commits and unregisters. May be called twice.
        If the caller is cancelled, the closing goes on in the background."""
        await super().close()

    async def _start(self) -> None:
        self._sink.start(self._tasks)
        await self._member.start()

    async def _close(self) -> None:
        await self._member.stop()
        await self._tasks.stop()
        await self._sender.close()
        await self._hooks.detach()

    async def commit(self) -> None:
        """Saves the offsets now, in addition to every persist_interval_ms. PullError: some are not saved."""
        await self._member.commit()
