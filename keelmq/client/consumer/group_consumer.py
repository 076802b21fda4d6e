"""GroupConsumer: what PushConsumer and LitePullConsumer share as members of a consumer group."""

from collections.abc import Mapping
from typing import Self

from keelmq.client.cluster.queue_reader import subscription_of
from keelmq.client.consumer.group import GroupMember
from keelmq.client.core.queues import MessageQueue
from keelmq.client.core.subscription import ALL
from keelmq.client.lifecycle import Lifecycle
from keelmq.client.message import MessageExt
from keelmq.client.producer.request_reply import REPLY_TIMEOUT_MS, send_reply


class GroupConsumer(Lifecycle):
    """A client around a GroupMember. Opening it raises PullError if a broker refuses an SQL92
    subscription."""

    _member: GroupMember

    @property
    def group(self) -> str:
        """Returns the consumer group."""
        return self._member.group

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

    @property
    def damaged_messages(self) -> int:
        """Returns how many damaged messages were skipped since the start (on_damaged=SKIP)."""
        return self._member.damage.skipped

    @property
    def assigned(self) -> list[MessageQueue]:
        """Returns the queues that are assigned to this consumer now."""
        return sorted(self._member.process_queues)

    def pause(self) -> None:
        """Stops pulling. Messages that were pulled are still delivered, and the queues stay assigned."""
        self._member.running.clear()

    def resume(self) -> None:
        """Pulls again after pause()."""
        self._member.running.set()
