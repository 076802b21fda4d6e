"""Administration of groups: reset of offsets (222), subscriptions (300, 343, 345), producers (328), forbidden
topics (353), and the check of a filter (46).

Source: RocketMQ 5.3.3 AdminBrokerProcessor, ClientManageProcessor.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from broker.clients.bodies import subscription_body
from broker.clients.core.registry import ClientRegistry
from broker.config.client_settings import ClientSettings
from broker.filter.core.sql import BadSubscription
from broker.filter.core.subscription import SQL92, parse
from broker.message.record import tag_code
from broker.metadata.groups import FORBIDDEN_READ, Group, refuse_position
from broker.metadata.service import Metadata
from broker.metadata.topics import Topic
from broker.store.message_store import MessageStore
from broker.store.querying import offset_by_time
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, CommandError, Empty, OperationTable, Reply
from keelmq.remoting.operations.broker import QUERY_TOPIC_CONSUME_BY_WHO, GroupList, TopicRequest
from keelmq.remoting.operations.broker_metadata import GroupRequest
from keelmq.remoting.operations.clients import (
    CHECK_CLIENT_CONFIG,
    EXPLAIN_RESET_OFFSET,
    GET_ALL_PRODUCER_INFO,
    INVOKE_BROKER_TO_RESET_OFFSET,
    QUERY_SUBSCRIPTION_BY_CONSUMER,
    QUERY_TOPICS_BY_CONSUMER,
    RESET_TO_END,
    UPDATE_AND_GET_GROUP_FORBIDDEN,
    CheckClientBody,
    GroupForbidden,
    GroupForbiddenRequest,
    GroupTopicRequest,
    ResetOffsetRequest,
    ResetRow,
    TopicNames,
)
from keelmq.remoting.queue_map import QueueKey, dump_queue_map
from keelmq.runtime.clock import now_ms, wall_ms


class ClientAdmin:
    def __init__(
        self,
        metadata: Metadata,
        store: MessageStore,
        registry: ClientRegistry,
        settings: ClientSettings,
        name: str,
    ) -> None:
        """name: brokerName."""
        self._metadata, self._store, self._registry = metadata, store, registry
        self._settings, self._broker_name = settings, name

    def bind(self, table: OperationTable) -> None:
        """Binds 222, 29053, 300, 343, 345, 328, 353 and 46."""
        table.bind(INVOKE_BROKER_TO_RESET_OFFSET, self.reset_offset)
        table.bind(EXPLAIN_RESET_OFFSET, self.explain_reset_offset)
        table.bind(QUERY_TOPIC_CONSUME_BY_WHO, self.query_groups)
        table.bind(QUERY_TOPICS_BY_CONSUMER, self.query_topics)
        table.bind(QUERY_SUBSCRIPTION_BY_CONSUMER, self.query_subscription)
        table.bind(GET_ALL_PRODUCER_INFO, self.get_producers)
        table.bind(UPDATE_AND_GET_GROUP_FORBIDDEN, self.update_forbidden)
        table.bind(CHECK_CLIENT_CONFIG, self.check_client)

    # -- offsets -----------------------------------------------------------------------------------------

    async def reset_offset(self, header: ResetOffsetRequest, call: Call) -> Reply:
        """Sets the offsets of a group. Consumers get them with their next pull; one that is suspended is
        answered now. Answered when replicated."""
        metadata, targets = self._metadata, self._targets(header)
        before = metadata.offsets.row(header.group, header.topic)
        call.changes["offset by queue"] = {queue_id: before.get(queue_id) for queue_id in targets}, targets
        for queue_id, offset in targets.items():
            if not metadata.offsets.commit(header.group, header.topic, queue_id, offset):
                raise CommandError(ResponseCode.SYSTEM_ERROR, "there are too many pairs of topic and group")
            metadata.resets.set(header.group, header.topic, queue_id, offset)
        metadata.commit_staged()
        await metadata.replicated(metadata.offsets, metadata.offsets.table.version)
        metadata.resets.wake_pulls()
        return Reply(body=self._offset_table(header.topic, targets))

    async def explain_reset_offset(self, header: ResetOffsetRequest, call: Call) -> Reply:
        """Returns the queues with the offsets that 222 would set now, and sets none (29053). Raises
        CommandError as 222."""
        offsets = self._metadata.offsets
        rows = {}
        for queue_id, target in self._targets(header).items():
            committed = offsets.query(header.group, header.topic, queue_id)
            row = ResetRow(
                broker_offset=self._store.max_queue_offset(header.topic, queue_id),
                consumer_offset=None if committed < 0 else committed,
                timestamp_offset=self._offset_at(header, queue_id),
                reset_offset=target,
            )
            rows[queue_id] = row.model_dump(by_alias=True, exclude_none=True)
        return Reply(body=self._offset_table(header.topic, rows))

    def _targets(self, header: ResetOffsetRequest) -> dict[int, int]:
        """Returns the new offset of each queue. Raises CommandError: the reset is refused."""
        if not self._metadata.gate.writable:
            raise CommandError(ResponseCode.SYSTEM_ERROR, "can not reset offset in slave broker")
        topic, _ = self._known(header.topic, header.group)
        refuse_position(header.group)
        if header.queue_id >= topic.queue_count:
            count = topic.queue_count
            remark = f"queueId {header.queue_id} does not exist: topic {header.topic} has {count} queues"
            raise CommandError(ResponseCode.SYSTEM_ERROR, remark)
        queue_ids = range(topic.queue_count) if header.queue_id < 0 else [header.queue_id]
        return {queue_id: self._target(header, queue_id) for queue_id in queue_ids}

    def _known(self, topic: str, group: str) -> tuple[Topic, Group]:
        found, row = self._metadata.topics.get(topic), self._metadata.groups.table.rows.get(group)
        if found is None:
            raise CommandError(ResponseCode.TOPIC_NOT_EXIST, f"topic {topic} does not exist")
        if row is None:
            raise CommandError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"group {group} does not exist")
        return found, row

    def _target(self, header: ResetOffsetRequest, queue_id: int) -> int:
        low = self._store.min_queue_offset(header.topic, queue_id)
        high = self._store.max_queue_offset(header.topic, queue_id)
        if header.offset is not None and header.offset >= 0:
            if not low <= header.offset <= high + 1:
                remark = f"offset {header.offset} is not in queue {queue_id} of {header.topic}: {low}..{high}"
                raise CommandError(ResponseCode.SYSTEM_ERROR, remark)
            return header.offset
        if header.timestamp is None:
            raise CommandError(ResponseCode.SYSTEM_ERROR, "header field timestamp is missing")
        offset = self._offset_at(header, queue_id)
        committed = self._metadata.offsets.query(header.group, header.topic, queue_id)
        if committed >= 0 and not header.is_force:
            return min(offset, committed)  # only a reset with isForce skips messages
        return offset

    def _offset_at(self, header: ResetOffsetRequest, queue_id: int) -> int:
        if header.timestamp is None or header.timestamp == RESET_TO_END:
            return self._store.max_queue_offset(header.topic, queue_id)
        return offset_by_time(self._store, header.topic, queue_id, header.timestamp, upper=False)

    def _offset_table(self, topic: str, offsets: Mapping[int, object]) -> bytes:
        queues = (
            (QueueKey(topic, self._broker_name, queue_id), offset)
            for queue_id, offset in sorted(offsets.items())
        )
        return dump_queue_map("offsetTable", queues)

    # -- groups ------------------------------------------------------------------------------------------

    async def query_groups(self, header: TopicRequest, call: Call) -> Reply:
        """Returns the groups that have committed offsets of the topic, or subscribe to it now (300):
        broadcasting groups never commit."""
        offline = self._metadata.offsets.groups_of(header.topic)
        online = self._registry.groups_of(header.topic)
        return Reply(body=GroupList(group_list=sorted({*offline, *online})))

    async def query_topics(self, header: GroupRequest, call: Call) -> Reply:
        """Returns the topics in which the group has committed offsets (343)."""
        return Reply(body=TopicNames(topic_list=self._metadata.offsets.topics_of(header.group)))

    async def query_subscription(self, header: GroupTopicRequest, call: Call) -> Reply:
        """Returns the subscription of an online group to a topic (345); the body has none if the group is
        offline or does not subscribe to it."""
        group = self._registry.consumers.get(header.group)
        found = group.subscriptions.get(header.topic) if group is not None else None
        body: dict[str, object] = {"group": header.group, "topic": header.topic}
        if found is not None:
            body["subscriptionData"] = subscription_body(found)
        return Reply(body=body)

    async def get_producers(self, header: Empty, call: Call) -> Reply:
        """Returns the connected producers by group (328)."""
        wall_of_clock_ms = wall_ms() - now_ms()
        table = {
            name: [
                {
                    "clientId": each.client_id,
                    "language": each.language,
                    "remoteIP": f"/{each.address}",  # a Java SocketAddress as text
                    "version": each.version,
                    "lastUpdateTimestamp": wall_of_clock_ms + self._registry.seen_ms(each.connection_id),
                }
                for each in members.values()
            ]
            for name, members in sorted(self._registry.producers.items())
        }
        return Reply(body={"data": table})

    # -- rules -------------------------------------------------------------------------------------------

    async def update_forbidden(self, header: GroupForbiddenRequest, call: Call) -> Reply:
        """Forbids or permits a group to read a topic; without readable, only returns the state."""
        metadata = self._metadata
        _, row = self._known(header.topic, header.group)
        bits = row.forbidden.get(header.topic, 0)
        if header.readable is not None:
            call.changes["readable"] = not bits & FORBIDDEN_READ, header.readable
            if not metadata.gate.writable:
                raise CommandError(ResponseCode.SYSTEM_ERROR, "only the master changes forbidden topics")
            bits = bits & ~FORBIDDEN_READ if header.readable else bits | FORBIDDEN_READ
            forbidden = {**row.forbidden, header.topic: bits}
            forbidden = {topic: each for topic, each in forbidden.items() if each}
            version = metadata.groups.change({header.group: replace(row, forbidden=forbidden)})
            await metadata.replicated(metadata.groups, version)
        readable = not bits & FORBIDDEN_READ
        return Reply(body=GroupForbidden(group=header.group, topic=header.topic, readable=readable))

    async def check_client(self, header: Empty, call: Call) -> Reply:
        """Checks the filter of a consumer that is about to start; CommandError: it is illegal."""
        body = call.body
        data = body.subscription_data if isinstance(body, CheckClientBody) else None
        if data is None:
            return Reply()
        if data.expression_type == SQL92 and not self._settings.enable_property_filter:
            remark = f"The broker does not support consumer to filter message by {data.expression_type}"
            raise CommandError(ResponseCode.SYSTEM_ERROR, remark)
        try:
            parse(data.sub_string, data.expression_type, tag_code)
        except BadSubscription as error:
            raise CommandError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error
        return Reply()
