"""Members: brokers are told which clients of gRPC their groups have. See proxy/core/memberships.py.

A membership is the heartbeat of remoting (34) that the client would send, with its own signature, language
and version. It goes to the master as a request of the client (29007), so nothing is pushed to it there, and
it takes no queue of a group (broker/clients/service.py). It is for display only: what fails is tried again
30 s later.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

from broker.clients.proxied_requests import Sender
from keelmq.client.core.subscription import Subscription
from keelmq.remoting.codes import LanguageCode, version_ordinal
from keelmq.remoting.operation import Empty, Ok, Operation, Wire
from keelmq.remoting.operations.clients import (
    HEART_BEAT,
    UNREGISTER_CLIENT,
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
    UnregisterClientRequest,
)
from keelmq.runtime.clock import now_ms
from keelmq.runtime.rate_limited_log import RateLimitedLogger
from keelmq.runtime.tasks import cancel_all
from proxy.core.memberships import Membership, Memberships, Told
from proxy.core.names import NODE, Client
from proxy.core.statuses import Refused
from proxy.server.cluster import CALL_MS, Call, Cluster
from proxy.server.masters import Identity

logger = logging.getLogger(__name__)

AT_ONCE_MAX: Final = 64
"""Requests. What is beyond them is sent with a later call of the client."""
LANGUAGES: Final = {NODE: LanguageCode.NODE_JS.name}
ACTIVELY, PASSIVELY = "CONSUME_ACTIVELY", "CONSUME_PASSIVELY"
"""As RocketMQ's proxy shows simple and pulling consumers, and push consumers."""


class Members:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._memberships = cluster, Memberships[Sender]()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures = RateLimitedLogger(logger, level=logging.WARNING)

    async def close(self) -> None:
        """Ends the requests."""
        await cancel_all(self._tasks)

    def consumes(
        self, call: Call, group: str, broker_name: str, subscription: Subscription, *, is_push: bool
    ) -> None:
        """A client receives or pulls from a topic."""
        membership, wanted = (
            Membership(group, broker_name),
            (subscription.expression, subscription.type.value),
        )
        told = self._memberships.joins(
            call.client.client_id, call.sender, membership, subscription.topic, wanted, now_ms=now_ms()
        )
        if told is not None:
            told.is_push = is_push
            self._start(self._tell(call, membership, told))

    def produces(self, call: Call, topic: str, broker_name: str) -> None:
        """A client sends to a topic."""
        membership = Membership(topic, broker_name, is_consumer=False)
        told = self._memberships.joins(call.client.client_id, call.sender, membership, topic, now_ms=now_ms())
        if told is not None:
            self._start(self._tell(call, membership, told))

    def heard(self, call: Call) -> None:
        """A client has sent a heartbeat."""
        for membership, told in self._memberships.heard(call.client.client_id, now_ms()):
            self._start(self._tell(call, membership, told))

    def ended(self, call: Call) -> None:
        """A client says that it ends."""
        known = self._memberships.signs(call.client.client_id)
        if known is None or not known.is_same_user(call.sender):
            return
        for membership, told in self._memberships.ended(call.client.client_id):
            group = membership.group
            header = UnregisterClientRequest(
                clientID=call.client.client_id,
                consumer_group=group if membership.is_consumer else None,
                producer_group=None if membership.is_consumer else group,
            )
            self._start(self._send(call, membership, told, UNREGISTER_CLIENT, header))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        if len(self._tasks) >= AT_ONCE_MAX:
            work.close()
            return
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self, call: Call, membership: Membership, told: Told) -> None:
        body = HeartbeatData(clientID=call.client.client_id)
        if membership.is_consumer:
            subscribed = [
                SubscriptionData(topic=topic, sub_string=expression, expression_type=kind)
                for topic, (expression, kind) in told.topics.items()
            ]
            consumer = ConsumerData(
                group_name=membership.group,
                consume_type=PASSIVELY if told.is_push else ACTIVELY,
                subscription_data_set=subscribed,
            )
            body.consumer_data_set.append(consumer)
        else:
            body.producer_data_set.append(ProducerData(group_name=membership.group))
        await self._send(call, membership, told, HEART_BEAT, Empty(), body)

    async def _send(
        self,
        call: Call,
        membership: Membership,
        told: Told,
        operation: Operation[Any, Any],
        header: Wire,
        body: object = None,
    ) -> None:
        again = Call(call.client, call.sender, now_ms() + CALL_MS)
        topic = next(iter(told.topics), membership.group)
        try:
            route = await self._cluster.route(topic)
            outcome = await self._cluster.once(
                route,
                membership.broker_name,
                operation,
                header,
                body,
                call=again,
                identity=_identity(call.client),
            )
        except Refused as refused:
            remark = str(refused)
        else:
            if isinstance(outcome, Ok):
                return
            remark = outcome.remark
        text = "%s does not show %s as a member of %s: %s"
        self._failures.tell(
            now_ms(), text, membership.broker_name, call.client.client_id, membership.group, remark
        )


def _identity(client: Client) -> Identity:
    """Returns the language by its name in RocketMQ, and the version."""
    language = LANGUAGES.get(client.language, client.language)
    known = language if language in LanguageCode.__members__ else LanguageCode.OTHER.name
    return Identity(known, version_ordinal(client.version))
