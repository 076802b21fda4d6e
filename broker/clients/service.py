"""Clients of this broker: heartbeats (34, 35), members of groups (38, 203, 204), queue locks (41, 42), and
the notification of a group's members that starts a rebalance (40).

The registry is neither stored nor replicated: clients send a heartbeat to every broker, every 30 s. Source:
RocketMQ 5.3.3 ClientManageProcessor, ConsumerManageProcessor, DefaultConsumerIdsChangeListener.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, TypeVar

from broker.admission.send_forwarder import ForwardToMaster, answer_of_master
from broker.clients.bodies import (
    client_of,
    connection_bodies,
    consumer_of,
    queues_of,
    subscription_body,
)
from broker.clients.core.locks import Queue, QueueLocks
from broker.clients.core.registry import (
    REGISTRATIONS_MAX,
    SUBSCRIPTION_CHARS_MAX,
    Client,
    ClientRegistry,
    Consumer,
)
from broker.clients.proxied_requests import is_proxied
from broker.config.client_settings import ClientSettings
from broker.metadata.core.topic_names import RETRY_PREFIX
from broker.metadata.service import Metadata
from broker.metadata.topics import illegal_name
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import encode, request_command
from keelmq.remoting.operation import (
    Call,
    CommandError,
    Empty,
    Ok,
    Operation,
    OperationTable,
    Outcome,
    Peer,
    Reply,
    Wire,
)
from keelmq.remoting.operations.broker_metadata import SubscriptionGroupConfig
from keelmq.remoting.operations.clients import (
    GET_CONSUMER_CONNECTION_LIST,
    GET_CONSUMER_LIST_BY_GROUP,
    GET_PRODUCER_CONNECTION_LIST,
    HEART_BEAT,
    LOCK_BATCH_MQ,
    NOTIFY_CONSUMER_IDS_CHANGED,
    UNLOCK_BATCH_MQ,
    UNREGISTER_CLIENT,
    ConsumerConnectionBody,
    ConsumerData,
    ConsumerGroupRequest,
    ConsumerIdList,
    HeartbeatData,
    HeartbeatResponse,
    LockBatchBody,
    LockedQueues,
    ProducerConnectionBody,
    ProducerGroupRequest,
    UnregisterClientRequest,
)
from keelmq.remoting.operations.route import TopicConfig
from keelmq.runtime.clock import now_ms
from keelmq.runtime.rate_limited_log import RateLimitedLogger

logger = logging.getLogger(__name__)

UNIT_SUB_FLAG: Final = 2  # bit of topicSysFlag: groups of a unit subscribe to the topic
SCAN_PERIOD_MS: Final = 10_000
PROXIED_MAX: Final = 50_000
PROXIED_CHARS_MAX: Final = 2_097_152
START_UP_MS: Final = 1_500
"""A new member of a group gets no 40 for that group until this time after its first heartbeat. Java clients
merge the rebalance of an early 40 with the one of their start. They then find the retry topic and their own
subscriptions only 20 s later: first retries come after 18 s, and pulls are answered 25."""

Body = TypeVar("Body", bound=Wire)


class Clients:
    """Owned by the event loop's thread. Pulls read `registry`, sends read `locks`."""

    def __init__(
        self,
        metadata: Metadata,
        settings: ClientSettings,
        *,
        forward_to_master: ForwardToMaster,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        """forward_to_master: for queue locks, which only a master grants. clock: ms, monotonic."""
        self.registry = ClientRegistry()
        self.proxied = ClientRegistry(registrations_max=PROXIED_MAX, subscription_chars_max=PROXIED_CHARS_MAX)
        """Clients of gRPC, for 203 and 204 only: they take no queues of a group, and nothing is pushed to
        them."""
        self.locks = QueueLocks()
        self._metadata, self._settings, self._clock = metadata, settings, clock
        self._forward_to_master = forward_to_master
        self._peers: dict[int, Peer] = {}
        self._opaque = self._turn = 0
        self._too_many = RateLimitedLogger(logger)
        self._locks_epoch = 0
        self._starting: dict[tuple[int, str], int] = {}  # connection id and group -> when its 40 is due, ms
        self._next_scan_ms = clock() + SCAN_PERIOD_MS

    def bind(self, table: OperationTable) -> None:
        """Binds 34, 35, 38, 203, 204, 41 and 42."""
        table.bind(HEART_BEAT, self.heart_beat)
        table.bind(UNREGISTER_CLIENT, self.unregister_client)
        table.bind(GET_CONSUMER_LIST_BY_GROUP, self.get_consumer_list)
        table.bind(GET_CONSUMER_CONNECTION_LIST, self.get_consumer_connections)
        table.bind(GET_PRODUCER_CONNECTION_LIST, self.get_producer_connections)
        table.bind(LOCK_BATCH_MQ, self.lock_batch)
        table.bind(UNLOCK_BATCH_MQ, self.unlock_batch)

    # -- heartbeats ----------------------------------------------------------------------------------------

    async def heart_beat(self, header: Empty, call: Call) -> HeartbeatResponse:
        """Registers the client before the answer: the client asks for the members of its group right
        after."""
        data = _body_of(call, HeartbeatData)
        client = client_of(data, call)
        consumers = []
        for consumer in data.consumer_data_set:
            config = self._group(consumer, call.peer)
            if config is not None:  # an unknown group does not hinder the others (broker-ops pitfall 8)
                consumers.append(consumer_of(consumer, without_sub=data.without_sub))
        producers = [producer.group_name for producer in data.producer_data_set if producer.group_name]
        if is_proxied(call.peer):
            proxied = replace(client, connection_id=_number_of(client.client_id, client.caller.user))
            self.proxied.heartbeat(proxied, consumers, producers, now_ms=self._clock())
            return HeartbeatResponse()
        if producers:
            self._check_owner(client)
        if not call.peer.is_closing():
            self._peers[client.connection_id] = call.peer
            self._register(client, consumers, producers)
        return HeartbeatResponse()

    def _check_owner(self, client: Client) -> None:
        """Raises CommandError if another user's producer has this client id: replies to that one would be
        pushed here."""
        owner = self.registry.user_of_producer(client.client_id)
        if owner and owner != client.caller.user:
            self.registry.contest(client.client_id)
            remark = f"the client id {client.client_id} is in use by a producer of another user"
            raise CommandError(ResponseCode.NO_PERMISSION, remark)

    def _register(self, client: Client, consumers: list[Consumer], producers: list[str]) -> None:
        """Tells the other members of each group that changed at once, and a new member START_UP_MS later."""
        now, connection_id = self._clock(), client.connection_id
        refused, forgotten = self.registry.refused, self.registry.forgotten
        joins = {each.group for each in consumers if not self.registry.is_member(each.group, connection_id)}
        changed = self.registry.heartbeat(client, consumers, producers, now_ms=now)
        if self.registry.refused != refused:
            text = "more than %d memberships of clients in groups: %s, or others to its benefit, lost some"
            self._too_many.tell(now, text, REGISTRATIONS_MAX, client.owner)
        if self.registry.forgotten != forgotten:
            text = "more than %d characters of subscriptions: those of the largest groups are forgotten"
            self._too_many.tell(now, text, SUBSCRIPTION_CHARS_MAX)
        for name in changed:
            if name in joins:
                self._starting[connection_id, name] = now + START_UP_MS
        self._notify(changed)

    def _group(self, consumer: ConsumerData, peer: Peer) -> SubscriptionGroupConfig | None:
        """Returns the group's settings. Creates the group and its retry topic for the first member."""
        try:
            group = self._metadata.find_group(consumer.group_name, peer)
        except CommandError:  # pulls of this group are answered with the reason
            return None
        if group is None:
            return None
        if self._metadata.gate.writable:
            try:
                self._keep_retry_topic(group.config, unit=consumer.unit_mode)
            except OSError as error:
                logger.error("cannot write the retry topic of %s: %s", consumer.group_name, error)
        return group.config

    def _keep_retry_topic(self, config: SubscriptionGroupConfig, *, unit: bool) -> None:
        """Creates the retry topic if it does not exist, and sets its unit flag as the newest heartbeat says.
        The flag is cleared, too, when the group leaves its unit (broker-ops pitfall 13)."""
        name, topics = RETRY_PREFIX + config.group_name, self._metadata.topics
        flag, known = UNIT_SUB_FLAG if unit else 0, topics.topics.get(name)
        if known is not None:
            others = known.config.topic_sys_flag & ~UNIT_SUB_FLAG
            if known.config.topic_sys_flag != others | flag:
                topics.update(known.config.model_copy(update={"topic_sys_flag": others | flag}))
        elif len(topics.topics) >= topics.creation.count_max:
            return  # it is created when a message has to go there
        elif config.retry_queue_nums > 0 and illegal_name(name) is None:
            count = config.retry_queue_nums
            topics.update(
                TopicConfig(
                    topic_name=name, read_queue_nums=count, write_queue_nums=count, topic_sys_flag=flag
                )
            )

    async def unregister_client(self, header: UnregisterClientRequest, call: Call) -> Reply:
        """Removes the client from the groups in the header."""
        if is_proxied(call.peer):
            self.proxied.unregister(
                _number_of(header.client_id, call.caller.user),
                header.client_id,
                producer_group=header.producer_group or "",
                consumer_group=header.consumer_group or "",
            )
            return Reply()
        changed = self.registry.unregister(
            call.peer.connection_id,
            header.client_id,
            producer_group=header.producer_group or "",
            consumer_group=header.consumer_group or "",
        )
        member = (call.peer.connection_id, header.consumer_group or "")
        if member in self._starting and not self.registry.is_member(member[1], member[0]):
            del self._starting[member]  # START_UP_MS starts again when it joins again
        self._notify(changed)
        return Reply()

    def connection_closed(self, connection_id: int) -> None:
        """Removes the connection from all groups, and notifies the other members."""
        if self._peers.pop(connection_id, None) is not None:
            self._notify(self.registry.closed(connection_id))

    def peer_of(self, connection_id: int) -> Peer | None:
        """Returns the connection of a client; None: it is closed."""
        return self._peers.get(connection_id)

    def next_opaque(self) -> int:
        """Returns the opaque for a request to a client."""
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        return self._opaque

    def expire(self, now: int) -> None:
        """Notifies new members whose START_UP_MS is over, and expires clients and locks. now: ms, monotonic.

        Called at any interval; START_UP_MS is as exact as that interval.
        """
        self._notify_started(now)
        if now < self._next_scan_ms:
            return
        timeout_ms = self._settings.channel_expired_timeout
        left, has_more = self.registry.expire(now_ms=now, timeout_ms=timeout_ms)
        _, has_more_proxied = self.proxied.expire(now_ms=now, timeout_ms=timeout_ms)
        self._next_scan_ms = now if has_more or has_more_proxied else now + SCAN_PERIOD_MS
        self._notify(left)
        self.locks.expire(now_ms=now)

    def find_producer(self, group: str, topic: str) -> Peer | None:
        """Returns an open connection of this producer group, in turn (broker-ops pitfall 6), whose user may
        send to the topic: producer groups are no resource, so any client may name any. None: there is
        none."""
        members = list(self.registry.producers.get(group, {}).values())
        self._turn += 1
        for step in range(len(members)):
            member = members[(self._turn + step) % len(members)]
            peer = self._peers.get(member.connection_id)
            if peer is not None and not peer.is_closing() and member.caller.may_publish(topic):
                return peer
        return None

    def _notify(self, groups: Iterable[str]) -> None:
        """Sends 40 to every member of these groups whose START_UP_MS is over."""
        for name in groups:
            group = self.registry.consumers.get(name)
            if group is not None:
                self._push(name, [each for each in group.members if (each, name) not in self._starting])

    def _notify_started(self, now: int) -> None:
        """Sends 40 to new members whose START_UP_MS is over. `_starting` ascends by time."""
        while self._starting:
            (connection_id, name), due_ms = next(iter(self._starting.items()))
            if due_ms > now:
                return
            del self._starting[connection_id, name]
            if self.registry.is_member(name, connection_id):
                self._push(name, [connection_id])

    def _push(self, name: str, connection_ids: list[int]) -> None:
        """Sends 40 on these connections. A connection whose peer does not read is closed."""
        config = self._metadata.groups.get(name)
        group_allows = config is None or config.notify_consumer_ids_changed_enable
        if not (connection_ids and group_allows and self._settings.notify_consumer_ids_changed_enable):
            return
        command = request_command(NOTIFY_CONSUMER_IDS_CHANGED, ConsumerGroupRequest(consumer_group=name))
        command.opaque = self.next_opaque()
        frame = encode(command)
        for connection_id in connection_ids:
            peer = self._peers.get(connection_id)
            if peer is not None:
                peer.send(frame)

    # -- members -------------------------------------------------------------------------------------------

    async def get_consumer_list(self, header: ConsumerGroupRequest, call: Call) -> Reply:
        """Returns the client ids of a consumer group (38). Raises CommandError if it has no member."""
        group = self.registry.consumers.get(header.consumer_group)
        if group is None:
            remark = f"no consumer for this group, {header.consumer_group}"
            raise CommandError(ResponseCode.SYSTEM_ERROR, remark)
        return Reply(body=ConsumerIdList(consumer_id_list=group.client_ids))

    async def get_consumer_connections(self, header: ConsumerGroupRequest, call: Call) -> Reply:
        """Returns members (of gRPC, too), subscriptions and settings of a group (203). Raises CommandError if
        it has no member."""
        name = header.consumer_group
        found = [each.consumers[name] for each in (self.registry, self.proxied) if name in each.consumers]
        if not found:
            remark = f"the consumer group[{header.consumer_group}] not online"
            raise CommandError(ResponseCode.CONSUMER_NOT_ONLINE, remark)
        return Reply(
            body=ConsumerConnectionBody(
                connection_set=connection_bodies(
                    member for group in found for member in group.members.values()
                ),
                subscription_table={
                    topic: subscription_body(each)
                    for group in reversed(found)
                    for topic, each in sorted(group.subscriptions.items())
                },
                consume_type=found[0].consume_type,
                message_model=found[0].message_model,
                consume_from_where=found[0].consume_from_where,
            )
        )

    async def get_producer_connections(self, header: ProducerGroupRequest, call: Call) -> Reply:
        """Returns the members of a producer group (204). Raises CommandError if it has none. The producers of
        gRPC that send to a topic are a group with the topic's name."""
        name = header.producer_group
        found = [each.producers.get(name, {}) for each in (self.registry, self.proxied)]
        members = [member for table in found for member in table.values()]
        if not members:
            remark = f"the producer group[{header.producer_group}] not exist"
            raise CommandError(ResponseCode.SYSTEM_ERROR, remark)
        return Reply(body=ProducerConnectionBody(connection_set=connection_bodies(members)))

    # -- queue locks -------------------------------------------------------------------------------------

    async def lock_batch(self, header: Empty, call: Call) -> Reply:
        """Locks queues for a consumer. Only a master grants locks: with two brokers, a queue could be locked
        twice. A replica forwards the request, for clients with an old route."""
        body = _body_of(call, LockBatchBody)
        if not self._metadata.gate.writable:
            outcome = await self._by_master(LOCK_BATCH_MQ, body)
            if isinstance(outcome, Ok):
                return Reply(body=outcome.body)
        requested, mine = queues_of(body), set[Queue]()
        if self._metadata.epoch != self._locks_epoch:  # another master has granted locks since
            self.locks.clear()
            self._locks_epoch = self._metadata.epoch
        if self._metadata.gate.writable:
            queues = self._existing(body.consumer_group, requested)
            mine = set(self.locks.lock(body.consumer_group, body.client_id, queues, now_ms=self._clock()))
        locked = [queue for queue, each in zip(body.mq_set, requested, strict=True) if each in mine]
        return Reply(body=LockedQueues(lockOKMQSet=locked))

    def _existing(self, group: str, queues: list[Queue]) -> list[Queue]:
        """Returns the queues that exist, of a group that exists: invented names of a client could displace
        all others."""
        if self._metadata.groups.get(group) is None:
            return []
        configs = {queue.topic: self._metadata.topics.get(queue.topic) for queue in queues}
        counts = {
            name: max(found.config.read_queue_nums, found.config.write_queue_nums)
            for name, found in configs.items()
            if found is not None
        }
        return [queue for queue in queues if 0 <= queue.queue_id < counts.get(queue.topic, 0)]

    async def unlock_batch(self, header: Empty, call: Call) -> Reply:
        """Unlocks queues that this client holds (42). A replica forwards the request to the master."""
        body = _body_of(call, LockBatchBody)
        if not self._metadata.gate.writable:
            await self._by_master(UNLOCK_BATCH_MQ, body)
        self.locks.unlock(body.consumer_group, body.client_id, queues_of(body))
        return Reply()

    async def _by_master(self, operation: Operation[Any, Any], body: LockBatchBody) -> Outcome[Any] | None:
        """Forwards a lock request. One with onlyThisBroker comes from another broker, and is refused: that
        broker repeats it while this one becomes master."""
        if body.only_this_broker:
            remark = f"service not available now: {self._metadata.gate.remark}"
            raise CommandError(ResponseCode.SERVICE_NOT_AVAILABLE, remark)
        marked = body.model_copy(update={"only_this_broker": True})
        return await answer_of_master(
            self._metadata.gate, self._forward_to_master, operation, Empty(), marked
        )


def _number_of(client_id: str, user: str) -> int:
    """Returns what stands for the connection of a client of gRPC: it may use several, to several proxies."""
    digest = hashlib.blake2b(f"{user}\0{client_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest)


def _body_of(call: Call, kind: type[Body]) -> Body:
    if not isinstance(call.body, kind):
        raise CommandError(ResponseCode.SYSTEM_ERROR, "the request has no body")
    return call.body
