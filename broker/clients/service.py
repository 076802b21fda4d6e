"""Clients of this broker: heartbeats (34), farewells (35), members (38, 203, 204), queue locks (41, 42), and
the push that tells a group's members to share out the queues again (40).

The registry is of one broker and of one run: clients tell every broker, and tell it again every 30 s.
Source: RocketMQ 5.3.3 ClientManageProcessor, ConsumerManageProcessor, DefaultConsumerIdsChangeListener.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from broker.client_settings import ClientSettings
from broker.clients.core.locks import Queue, QueueLocks
from broker.clients.core.registry import Client, ClientRegistry, Consumer, Subscription
from broker.filter.core.sql import BadSubscription
from broker.filter.core.subscription import EVERYTHING, Wanted, parse, tags_of
from broker.metadata.service import Metadata
from broker.store.record import tag_code
from broker.topics import RETRY_PREFIX, illegal_name
from remoting.clock import now_ms
from remoting.codes import ResponseCode
from remoting.command import encode, request_command
from remoting.operation import Call, CommandError, Empty, OperationTable, Peer, Reply, Wire
from remoting.operations.broker_metadata import SubscriptionGroupConfig
from remoting.operations.clients import (
    GET_CONSUMER_CONNECTION_LIST,
    GET_CONSUMER_LIST_BY_GROUP,
    GET_PRODUCER_CONNECTION_LIST,
    HEART_BEAT,
    LOCK_BATCH_MQ,
    NOTIFY_CONSUMER_IDS_CHANGED,
    UNLOCK_BATCH_MQ,
    UNREGISTER_CLIENT,
    ConnectionBody,
    ConsumerConnectionBody,
    ConsumerData,
    ConsumerGroupRequest,
    ConsumerIdList,
    HeartbeatData,
    HeartbeatResponse,
    LockBatchBody,
    LockedQueues,
    MessageQueueBody,
    ProducerConnectionBody,
    ProducerGroupRequest,
    SubscriptionData,
    UnregisterClientRequest,
)
from remoting.operations.route import TopicConfig

logger = logging.getLogger(__name__)

UNIT_SUB_FLAG: Final = 2  # of a topic's topicSysFlag: groups of a unit subscribe to it
SCAN_PERIOD_MS: Final = 10_000

Body = TypeVar("Body", bound=Wire)


class Clients:
    """Owned by the event loop's thread. `registry` is read by pulls, `locks` by sends."""

    def __init__(
        self, metadata: Metadata, settings: ClientSettings, *, clock: Callable[[], int] = now_ms
    ) -> None:
        self.registry = ClientRegistry()
        self.locks = QueueLocks()
        self._metadata, self._settings, self._clock = metadata, settings, clock
        self._peers: dict[int, Peer] = {}
        self._opaque = self._turn = 0
        self._locks_epoch = 0
        self._next_scan_ms = clock() + SCAN_PERIOD_MS

    def bind(self, table: OperationTable) -> None:
        table.bind(HEART_BEAT, self.heart_beat)
        table.bind(UNREGISTER_CLIENT, self.unregister_client)
        table.bind(GET_CONSUMER_LIST_BY_GROUP, self.get_consumer_list)
        table.bind(GET_CONSUMER_CONNECTION_LIST, self.get_consumer_connections)
        table.bind(GET_PRODUCER_CONNECTION_LIST, self.get_producer_connections)
        table.bind(LOCK_BATCH_MQ, self.lock_batch)
        table.bind(UNLOCK_BATCH_MQ, self.unlock_batch)

    # -- coming and going --------------------------------------------------------------------------------

    async def heart_beat(self, header: Empty, call: Call) -> HeartbeatResponse:
        """Registered when it is answered: the client asks for the members of its group right after it."""
        data = _body_of(call, HeartbeatData)
        client = Client(
            call.peer.connection_id, data.client_id, call.peer.address, call.language, call.version
        )
        consumers = []
        for consumer in data.consumer_data_set:
            config = self._group(consumer)
            if config is not None:  # an unknown group is passed over, the others count (broker-ops pitfall 8)
                consumers.append(_consumer(consumer, without_sub=data.without_sub))
        producers = [producer.group_name for producer in data.producer_data_set if producer.group_name]
        if not call.peer.is_closing():
            self._peers[client.connection_id] = call.peer
            self._notify(self.registry.heartbeat(client, consumers, producers, now_ms=self._clock()))
        return HeartbeatResponse()

    def _group(self, consumer: ConsumerData) -> SubscriptionGroupConfig | None:
        """The group's settings; the group and its retry topic are created by its first member."""
        group = self._metadata.find_group(consumer.group_name)
        if group is None:
            return None
        if self._metadata.gate.writable:
            try:
                self._keep_retry_topic(group.config, unit=consumer.unit_mode)
            except OSError as error:
                logger.error("cannot write the retry topic of %s: %s", consumer.group_name, error)
        return group.config

    def _keep_retry_topic(self, config: SubscriptionGroupConfig, *, unit: bool) -> None:
        """Created if it is not there. Its flag is as the newest heartbeat says: it goes, too, when the group
        is of no unit any more (broker-ops pitfall 13)."""
        name, topics = RETRY_PREFIX + config.group_name, self._metadata.topics
        flag, known = UNIT_SUB_FLAG if unit else 0, topics.topics.get(name)
        if known is not None:
            others = known.config.topic_sys_flag & ~UNIT_SUB_FLAG
            if known.config.topic_sys_flag != others | flag:
                topics.update(known.config.model_copy(update={"topic_sys_flag": others | flag}))
        elif config.retry_queue_nums > 0 and illegal_name(name) is None:
            count = config.retry_queue_nums
            topics.update(
                TopicConfig(
                    topic_name=name, read_queue_nums=count, write_queue_nums=count, topic_sys_flag=flag
                )
            )

    async def unregister_client(self, header: UnregisterClientRequest, call: Call) -> Reply:
        changed = self.registry.unregister(
            call.peer.connection_id,
            header.client_id,
            producer_group=header.producer_group or "",
            consumer_group=header.consumer_group or "",
        )
        self._notify(changed)
        return Reply()

    def connection_closed(self, connection_id: int) -> None:
        if self._peers.pop(connection_id, None) is not None:
            self._notify(self.registry.closed(connection_id))

    def peer_of(self, connection_id: int) -> Peer | None:
        return self._peers.get(connection_id)

    def next_opaque(self) -> int:
        """Of a request to a client."""
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        return self._opaque

    def expire(self, now: int) -> None:
        """As often as the caller likes."""
        if now < self._next_scan_ms:
            return
        self._next_scan_ms = now + SCAN_PERIOD_MS
        self._notify(self.registry.expire(now_ms=now, timeout_ms=self._settings.channel_expired_timeout))
        self.locks.expire(now_ms=now)

    def find_producer(self, group: str) -> Peer | None:
        """A connection of this producer group, another one each time, and none that closes (broker-ops
        pitfall 6). None: nobody is there."""
        members = list(self.registry.producers.get(group, ()))
        self._turn += 1
        for step in range(len(members)):
            peer = self._peers.get(members[(self._turn + step) % len(members)])
            if peer is not None and not peer.is_closing():
                return peer
        return None

    def _notify(self, groups: Iterable[str]) -> None:
        """40 to every member. Bounded by who is there: a member that does not read is cut off by its own
        connection."""
        for name in groups if self._settings.notify_consumer_ids_changed_enable else ():
            group, config = self.registry.consumers.get(name), self._metadata.groups.get(name)
            if group is None or (config is not None and not config.notify_consumer_ids_changed_enable):
                continue
            command = request_command(NOTIFY_CONSUMER_IDS_CHANGED, ConsumerGroupRequest(consumer_group=name))
            command.opaque = self.next_opaque()
            frame = encode(command)
            for connection_id in group.members:
                peer = self._peers.get(connection_id)
                if peer is not None:
                    peer.send(frame)

    # -- who is there ------------------------------------------------------------------------------------

    async def get_consumer_list(self, header: ConsumerGroupRequest, call: Call) -> Reply:
        group = self.registry.consumers.get(header.consumer_group)
        if group is None:
            remark = f"no consumer for this group, {header.consumer_group}"
            raise CommandError(ResponseCode.SYSTEM_ERROR, remark)
        return Reply(body=ConsumerIdList(consumer_id_list=group.client_ids))

    async def get_consumer_connections(self, header: ConsumerGroupRequest, call: Call) -> Reply:
        group = self.registry.consumers.get(header.consumer_group)
        if group is None:
            remark = f"the consumer group[{header.consumer_group}] not online"
            raise CommandError(ResponseCode.CONSUMER_NOT_ONLINE, remark)
        return Reply(
            body=ConsumerConnectionBody(
                connection_set=_connections(group.members.values()),
                subscription_table={
                    topic: subscription_body(each) for topic, each in sorted(group.subscriptions.items())
                },
                consume_type=group.consume_type,
                message_model=group.message_model,
                consume_from_where=group.consume_from_where,
            )
        )

    async def get_producer_connections(self, header: ProducerGroupRequest, call: Call) -> Reply:
        members = self.registry.producers.get(header.producer_group)
        if members is None:
            remark = f"the producer group[{header.producer_group}] not exist"
            raise CommandError(ResponseCode.SYSTEM_ERROR, remark)
        return Reply(body=ProducerConnectionBody(connection_set=_connections(members.values())))

    # -- queue locks -------------------------------------------------------------------------------------

    async def lock_batch(self, header: Empty, call: Call) -> Reply:
        """Only a master gives locks: two brokers that do would give each queue twice."""
        body = _body_of(call, LockBatchBody)
        mine: list[Queue] = []
        if self._metadata.epoch != self._locks_epoch:  # another master has given locks since those here
            self.locks.clear()
            self._locks_epoch = self._metadata.epoch
        if self._metadata.gate.writable:
            queues = [_queue(each) for each in body.mq_set]
            mine = self.locks.lock(body.consumer_group, body.client_id, queues, now_ms=self._clock())
        return Reply(body=LockedQueues(lockOKMQSet=[_queue_body(queue) for queue in mine]))

    async def unlock_batch(self, header: Empty, call: Call) -> Reply:
        body = _body_of(call, LockBatchBody)
        self.locks.unlock(body.consumer_group, body.client_id, [_queue(each) for each in body.mq_set])
        return Reply()


def _body_of(call: Call, kind: type[Body]) -> Body:
    if not isinstance(call.body, kind):
        raise CommandError(ResponseCode.SYSTEM_ERROR, "the request has no body")
    return call.body


def _consumer(data: ConsumerData, *, without_sub: bool) -> Consumer:
    subscriptions = tuple(_subscription(each) for each in data.subscription_data_set)
    return Consumer(
        data.group_name,
        data.consume_type,
        data.message_model,
        data.consume_from_where,
        None if without_sub else subscriptions,
    )


def _subscription(data: SubscriptionData) -> Subscription:
    """An expression that is none is kept as text: the pulls that use it are told (23)."""
    wanted: Wanted | None = EVERYTHING
    if not data.class_filter_mode:
        try:
            wanted = parse(data.sub_string, data.expression_type, tag_code)
        except BadSubscription as error:
            logger.warning("subscription of %s: %s", data.topic, error)
            wanted = None
    return Subscription(data.topic, data.sub_string, data.expression_type, data.sub_version, wanted)


def subscription_body(subscription: Subscription) -> SubscriptionData:
    tags = tags_of(subscription.sub_string) if subscription.expression_type in ("TAG", "") else []
    return SubscriptionData(
        topic=subscription.topic,
        sub_string=subscription.sub_string,
        sub_version=subscription.version,
        expression_type=subscription.expression_type or "TAG",
        code_set=sorted({tag_code(tag) for tag in tags}),
        tags_set=sorted(set(tags)),
    )


def _connections(clients: Iterable[Client]) -> list[ConnectionBody]:
    return [
        ConnectionBody(
            client_addr=each.address, client_id=each.client_id, language=each.language, version=each.version
        )
        for each in clients
    ]


def _queue(body: MessageQueueBody) -> Queue:
    return Queue(body.topic, body.broker_name, body.queue_id)


def _queue_body(queue: Queue) -> MessageQueueBody:
    return MessageQueueBody(topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.queue_id)
