"""The RPCs of MessagingService, by name: what is served, and why the rest is not.

Every call works without an earlier one: no settings, no heartbeat and no stream of its client have to be
known."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from keelmq.remoting.codes import PERM_READ
from keelmq.remoting.operation import Ok
from keelmq.remoting.operations.broker_metadata import SubscriptionGroupConfig
from keelmq.remoting.operations.transactions import END_TRANSACTION
from keelmq.runtime.tasks import cancel_all
from proxy.core.limits import Limits
from proxy.core.names import group_name, topic_name
from proxy.core.renewals import Place
from proxy.core.routes import assignments_of, endpoints_for, queues_of, types_of
from proxy.core.settings import check_settings, completed, kind_of
from proxy.core.statuses import NO_LITE, OK, Refused, status_of_transaction
from proxy.core.transactions import half_message_of
from proxy.server.cluster import Call, Cluster
from proxy.server.guard import Guard
from proxy.server.members import Members
from proxy.server.producers import Producers, Stream
from proxy.server.pulling import Pulling
from proxy.server.receiving import Receiving
from proxy.server.renewing import Renewing
from proxy.server.sending import Sending
from proxy.wire import messaging_pb2 as pb

SETTINGS_S: Final = 0.5
"""Time to find a group's settings for a client: Java and C++ wait 3 s for theirs, Python's start 10 s."""

Unary = Callable[[Any, Call], Awaitable[Any]]
Streaming = Callable[[Any, Call], AsyncGenerator[Any, None]]

UNIMPLEMENTED: Final[Mapping[str, str]] = {
    "SyncLiteSubscription": NO_LITE,
}
"""Why an RPC is not served."""
ADMIN: Final = "use mqadmin or the HTTP API: KeelMQ has no gRPC service for administrators"


class MessagingService:
    def __init__(
        self,
        cluster: Cluster,
        guard: Guard,
        producers: Producers,
        renewing: Renewing,
        members: Members,
        limits: Limits,
        own_address: Callable[[], str],
    ) -> None:
        """own_address: host:port of this proxy, for a client that does not say which endpoints it uses."""
        self._cluster, self._guard, self._producers = cluster, guard, producers
        self._renewing, self._members = renewing, members
        self._limits, self._own_address = limits, own_address
        self._receiving = Receiving(cluster, renewing, members, limits)
        sending, pulling = Sending(cluster, guard, members, limits), Pulling(cluster, members, limits)
        self.unary: Mapping[str, Unary] = {
            "QueryRoute": self.query_route,
            "Heartbeat": self.heartbeat,
            "SendMessage": sending.send_message,
            "QueryAssignment": self.query_assignment,
            "AckMessage": self._receiving.ack_message,
            "ForwardMessageToDeadLetterQueue": self._receiving.forward_message_to_dead_letter_queue,
            "RecallMessage": sending.recall_message,
            "EndTransaction": self.end_transaction,
            "NotifyClientTermination": self.notify_client_termination,
            "ChangeInvisibleDuration": self._receiving.change_invisible_duration,
            "QueryOffset": pulling.query_offset,
            "GetOffset": pulling.get_offset,
            "UpdateOffset": pulling.update_offset,
        }
        self.streaming: Mapping[str, Streaming] = {
            "ReceiveMessage": self._receiving.receive_message,
            "PullMessage": pulling.pull_message,
        }
        self._streams: dict[str, list[Stream]] = {}  # by client id

    async def close(self) -> None:
        """Ends what runs for clients that are gone."""
        await self._receiving.close()
        await self._members.close()

    def clients(self) -> Counter[tuple[str, str]]:
        """Returns how many clients have a stream and have sent their settings, by type and language."""
        streams = (each for streams in self._streams.values() for each in streams)
        return Counter(each.kind for each in streams if each.kind is not None)

    async def query_route(self, request: pb.QueryRouteRequest, call: Call) -> pb.QueryRouteResponse:
        """Returns the queues of a topic. Raises Refused."""
        endpoints = endpoints_for(request.endpoints, call.client, self._own_address())
        topic = topic_name(request.topic, call.client)
        await self._guard.may_find(topic, call.sender)
        route = await self._cluster.route(topic, call)
        config = await self._cluster.topic_config(topic, route)
        types = types_of({} if config is None else config.attributes)
        queues = queues_of(route.ordered_queues, route.read_queues, request.topic, endpoints, types)
        return pb.QueryRouteResponse(status=OK, message_queues=queues)

    async def query_assignment(
        self, request: pb.QueryAssignmentRequest, call: Call
    ) -> pb.QueryAssignmentResponse:
        """Returns from which queues a push consumer receives. Raises Refused."""
        endpoints = endpoints_for(request.endpoints, call.client, self._own_address())
        topic, group = topic_name(request.topic, call.client), group_name(request.group, call.client)
        await self._guard.may_be_assigned(topic, group, call.client.client_id, call.sender)
        route = await self._cluster.route(topic, call)
        if not route.read_queues:
            remark = f"topic {topic} has no queue that permits reading (perm without {PERM_READ})"
            raise Refused(pb.FORBIDDEN, remark)
        config = await self._cluster.group_config(group, route)
        for broker_name in route.addresses:
            self._renewing.receives(call, Place(group, topic, broker_name))
        is_fifo = config is not None and config.consume_message_orderly
        assignments = assignments_of(route.read_queues, request.topic, endpoints, is_fifo=is_fifo)
        return pb.QueryAssignmentResponse(status=OK, assignments=assignments)

    async def heartbeat(self, request: pb.HeartbeatRequest, call: Call) -> pb.HeartbeatResponse:
        """Answers OK, also to an empty heartbeat: Go drops its stream after any other answer. Raises
        Refused: no right to the group."""
        if request.group.name:
            group = group_name(request.group, call.client)
            await self._guard.may_consume(group, [], call.client.client_id, call.sender)
        self._renewing.heard(call)
        self._members.heard(call)
        return pb.HeartbeatResponse(status=OK)

    async def notify_client_termination(
        self, request: pb.NotifyClientTerminationRequest, call: Call
    ) -> pb.NotifyClientTerminationResponse:
        """Gives back what the client has not acknowledged, and forgets it. Only its own user can end it."""
        for stream in self._streams.get(call.client.client_id, ()):
            if stream.sender.is_same_user(call.sender):
                stream.kind = None
                self._producers.ended(stream)
        self._members.ended(call)
        await self._renewing.ended(call)
        return pb.NotifyClientTerminationResponse(status=OK)

    async def end_transaction(
        self, request: pb.EndTransactionRequest, call: Call
    ) -> pb.EndTransactionResponse:
        """Commits or rolls back a half message. Raises Refused."""
        topic = topic_name(request.topic, call.client)
        half = half_message_of(request.transaction_id)
        header = half.end(topic, request.resolution, request.source)
        outcome = await self._cluster.call(topic, half.broker_name, END_TRANSACTION, header, call=call)
        return pb.EndTransactionResponse(
            status=OK if isinstance(outcome, Ok) else status_of_transaction(outcome)
        )

    async def telemetry(
        self, commands: AsyncIterator[pb.TelemetryCommand], call: Call
    ) -> AsyncGenerator[pb.TelemetryCommand, None]:
        """Yields an answer to each settings of a client, and what brokers ask its producers. Raises Refused:
        the stream ends. Most streams are idle, so none keeps its last message."""
        stream = Stream(call.client, call.sender)
        self._streams.setdefault(call.client.client_id, []).append(stream)
        reading = asyncio.ensure_future(self._read(commands, stream, call))
        try:
            while (command := await stream.next()) is not None:
                yield command
                del command
                stream.written()
            await reading
        finally:
            self._producers.ended(stream)
            self._left(stream)
            await cancel_all([reading])

    def _left(self, stream: Stream) -> None:
        streams = self._streams[stream.client.client_id]
        streams.remove(stream)
        if not streams:
            del self._streams[stream.client.client_id]

    async def _read(self, commands: AsyncIterator[pb.TelemetryCommand], stream: Stream, call: Call) -> None:
        """Answers what the client sends. Raises Refused, also if the client does not read the answers."""
        try:
            async for command in commands:
                if command.WhichOneof("command") == "settings":
                    await self._answer(command.settings, stream, call)
                    await stream.all_written()  # the next settings are read when these are written
                del command
        finally:
            stream.end()

    async def _answer(self, settings: pb.Settings, stream: Stream, call: Call) -> None:
        answer = pb.TelemetryCommand(status=OK, settings=await self._completed(settings, stream, call))
        if not stream.send(answer):
            raise Refused(pb.TOO_MANY_REQUESTS, "the client does not read its answers")

    async def _completed(self, settings: pb.Settings, stream: Stream, call: Call) -> pb.Settings:
        check_settings(settings)
        await self._check_rights(settings, call)
        stream.kind = kind_of(settings)
        if settings.WhichOneof("pub_sub") == "publishing":
            self._producers.publishes(stream, settings.publishing)
            await self._shown(stream, call)
        group: SubscriptionGroupConfig | None = None
        if settings.WhichOneof("pub_sub") == "subscription":
            try:
                async with asyncio.timeout(SETTINGS_S):
                    group = await self._group_of(settings.subscription, call)
            except TimeoutError:
                group = None
        return completed(settings, call.client, self._limits, group)

    async def _shown(self, stream: Stream, call: Call) -> None:
        """The brokers of its topics show a producer. Topics that do not exist yet have none."""
        for topic in stream.topics:
            with suppress(Refused):
                for broker_name in (await self._cluster.route(topic, call)).addresses:
                    self._members.produces(call, topic, broker_name)

    async def _check_rights(self, settings: pb.Settings, call: Call) -> None:
        """Settings are the heartbeat of remoting, and a producer is asked about half messages of its topics.
        Raises Refused."""
        client = call.client
        if settings.WhichOneof("pub_sub") == "publishing":
            for each in settings.publishing.topics:
                await self._guard.may_publish(topic_name(each, client), call.sender)
        elif settings.subscription.group.name:
            topics = [topic_name(each.topic, client) for each in settings.subscription.subscriptions]
            group = group_name(settings.subscription.group, client)
            await self._guard.may_consume(group, topics, client.client_id, call.sender)

    async def _group_of(self, subscription: pb.Subscription, call: Call) -> SubscriptionGroupConfig | None:
        """The group's settings, from a broker of a topic that it subscribes to."""
        group = group_name(subscription.group, call.client)
        for entry in subscription.subscriptions:
            try:
                route = await self._cluster.route(topic_name(entry.topic, call.client), call)
            except Refused:
                continue
            return await self._cluster.group_config(group, route)
        return None
