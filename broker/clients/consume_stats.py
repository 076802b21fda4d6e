"""Offsets of queues (202) and of the groups that consume them (208, 303, 308, 317); a copy of a group's
offsets (314).

Source: RocketMQ 5.3.3 AdminBrokerProcessor, ConsumerOffsetManager.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from broker.clients.core.registry import ClientRegistry
from broker.metadata.groups import illegal_group
from broker.metadata.offsets import NOT_FOUND
from broker.metadata.service import Metadata
from broker.store.message_store import MessageStore
from broker.store.querying import earliest_time, stored_at
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, CommandError, OperationTable, Reply
from keelmq.remoting.operations.broker import TopicRequest
from keelmq.remoting.operations.broker_admin import (
    CLONE_GROUP_OFFSET,
    GET_BROKER_CONSUME_STATS,
    QUERY_CONSUME_TIME_SPAN,
    QUERY_CORRECTION_OFFSET,
    BrokerConsumeStatsRequest,
    CloneOffsetRequest,
    ConsumeTimeSpan,
    ConsumeTimeSpans,
    CorrectionOffsetRequest,
    CorrectionOffsets,
)
from keelmq.remoting.operations.clients import (
    GET_CONSUME_STATS,
    GET_TOPIC_STATS_INFO,
    ConsumeStatsRequest,
    GroupTopicRequest,
    MessageQueueBody,
)
from keelmq.remoting.queue_map import QueueKey, dump_queue_map
from keelmq.runtime.clock import wall_ms

BEYOND: Final = 2**63 - 1
"""Correction offset of a group that is ahead of the others."""
Row = dict[str, int]


class ConsumeStats:
    """tps: the rate of a counter in the last minute (BrokerStats.tps). address: of this broker, host:port."""

    def __init__(
        self,
        metadata: Metadata,
        store: MessageStore,
        registry: ClientRegistry,
        broker_name: str,
        *,
        tps: Callable[[str, str], float],
        address: Callable[[], str],
        clock: Callable[[], int] = wall_ms,
    ) -> None:
        self._metadata, self._store, self._registry = metadata, store, registry
        self._broker_name, self._tps, self._address, self._clock = broker_name, tps, address, clock

    def bind(self, table: OperationTable) -> None:
        """Binds 202, 208, 317, 303, 308 and 314."""
        table.bind(GET_TOPIC_STATS_INFO, self.get_topic_stats)
        table.bind(GET_CONSUME_STATS, self.get_consume_stats)
        table.bind(GET_BROKER_CONSUME_STATS, self.get_broker_consume_stats)
        table.bind(QUERY_CONSUME_TIME_SPAN, self.query_time_span)
        table.bind(QUERY_CORRECTION_OFFSET, self.query_correction)
        table.bind(CLONE_GROUP_OFFSET, self.clone_offsets)

    # -- topics ------------------------------------------------------------------------------------------

    async def get_topic_stats(self, header: TopicRequest, call: Call) -> Reply:
        """Returns offsets and last store timestamp (ms) of each queue, and the topic's messages per second
        (202). Raises CommandError if there is no such topic."""
        topic = self._metadata.topics.get(header.topic)
        if topic is None:
            raise CommandError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
        rows = (
            (
                QueueKey(topic.name, self._broker_name, queue_id),
                {
                    "lastUpdateTimestamp": self._stored_at(topic.name, queue_id, -1),
                    "maxOffset": self._store.max_queue_offset(topic.name, queue_id),
                    "minOffset": self._store.min_queue_offset(topic.name, queue_id),
                },
            )
            for queue_id in range(topic.queue_count)
        )
        tps = self._tps("TOPIC_PUT_NUMS", topic.name)
        return Reply(body=dump_queue_map("offsetTable", rows, topicPutTps=tps))

    # -- groups ------------------------------------------------------------------------------------------

    def behind(self, group: str) -> int:
        """Returns the number of messages that the group has not consumed yet."""
        return self._stats_of(group, self._topics_of(group))[1]

    async def get_consume_stats(self, header: ConsumeStatsRequest, call: Call) -> Reply:
        """Returns the offsets of a group in the named topics, or in all in which it has committed."""
        named = [header.topic] if header.topic else (header.topic_list or "").split(";")
        topics = [topic for topic in named if topic] or self._topics_of(header.consumer_group)
        return Reply(body=self._stats_of(header.consumer_group, topics)[0])

    async def get_broker_consume_stats(self, header: BrokerConsumeStatsRequest, call: Call) -> Reply:
        """Returns those of every group: a list of {group: [stats of a topic, ...]}."""
        groups, total = [], 0
        for group in sorted(self._metadata.groups.table.rows):
            stats = []
            for name in self._topics_of(group):
                topic = self._metadata.topics.get(name)
                if topic is not None and (topic.config.order or not header.is_order):
                    body, behind = self._stats_of(group, [name])
                    stats.append(body)
                    total += behind
            if stats:
                key = json.dumps(group).encode()
                groups.append(b"{" + key + b":[" + b",".join(stats) + b"]}")
        address = json.dumps(self._address()).encode()
        body = (
            b'{"brokerAddr":%b,"consumeStatsList":[%b],"totalDiff":%d,"totalInflightDiff":0}'
            % (address, b",".join(groups), total)
        )  # fmt: skip
        return Reply(body=body)

    def _topics_of(self, group: str) -> list[str]:
        return self._metadata.offsets.topics_of(group)

    def _stats_of(self, group: str, topics: Iterable[str]) -> tuple[bytes, int]:
        """Returns the body of a 208, and the number of messages that the group has not consumed yet."""
        rows = list(self._rows_of(group, topics))
        names = {queue.topic for queue, _ in rows}
        tps = sum((self._tps("GROUP_GET_NUMS", f"{topic}@{group}") for topic in sorted(names)), 0.0)
        behind = sum(max(row["brokerOffset"] - row["consumerOffset"], 0) for _, row in rows)
        return dump_queue_map("offsetTable", rows, consumeTps=tps), behind

    def _rows_of(self, group: str, topics: Iterable[str]) -> Iterator[tuple[QueueKey, Row]]:
        """Leaves out topics that an online group does not subscribe to any more."""
        for name in topics:
            topic = self._metadata.topics.get(name)
            if topic is None or self._is_unsubscribed(group, name):
                continue
            for queue_id in range(topic.read_queue_nums):
                offset = max(self._metadata.offsets.query(group, name, queue_id), 0)
                row = {
                    "brokerOffset": self._store.max_queue_offset(name, queue_id),
                    "consumerOffset": offset,
                    "lastTimestamp": self._stored_at(name, queue_id, offset - 1) if offset else 0,
                    "pullOffset": offset,
                }
                yield QueueKey(name, self._broker_name, queue_id), row

    def _is_unsubscribed(self, group: str, topic: str) -> bool:
        online = self._registry.consumers.get(group)
        return online is not None and topic not in online.subscriptions

    async def query_time_span(self, header: GroupTopicRequest, call: Call) -> Reply:
        """Returns for each queue when its oldest, its newest and the group's last consumed message were
        stored, in ms (303). Raises CommandError if there is no such topic."""
        topic = self._metadata.topics.get(header.topic)
        if topic is None:
            raise CommandError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
        spans = [self._span(header.group, topic.name, number) for number in range(topic.write_queue_nums)]
        return Reply(body=ConsumeTimeSpans(consume_time_span_set=spans))

    def _span(self, group: str, topic: str, queue_id: int) -> ConsumeTimeSpan:
        offset = max(self._metadata.offsets.query(group, topic, queue_id), 0)
        oldest = earliest_time(self._store, topic, queue_id)
        waiting = self._stored_at(topic, queue_id, offset)
        return ConsumeTimeSpan(
            message_queue=MessageQueueBody(topic=topic, broker_name=self._broker_name, queue_id=queue_id),
            min_time_stamp=oldest,
            max_time_stamp=self._stored_at(topic, queue_id, -1),
            consume_time_stamp=self._stored_at(topic, queue_id, offset - 1) if offset else oldest,
            delay_time=max(self._clock() - waiting, 0) if waiting else 0,
        )

    # -- offsets of several groups -----------------------------------------------------------------------

    async def query_correction(self, header: CorrectionOffsetRequest, call: Call) -> Reply:
        """Returns the lowest offset of all groups in each queue."""
        left_out = {group.strip() for group in (header.filter_groups or "").split(",")}
        offsets, lowest = self._metadata.offsets, dict[int, int]()
        for group in offsets.groups_of(header.topic):
            if group not in left_out:
                for queue_id, offset in offsets.row(group, header.topic).items():
                    lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
        compared = offsets.row(header.compare_group or "", header.topic)
        corrected = {
            queue_id: BEYOND if compared.get(queue_id, NOT_FOUND) > offset else offset
            for queue_id, offset in lowest.items()
        }
        return Reply(body=CorrectionOffsets(correction_offsets=corrected))

    async def clone_offsets(self, header: CloneOffsetRequest, call: Call) -> Reply:
        """Copies the offsets of a group to another one. Answered when replicated. A group that does not exist
        and is not created automatically (autoCreateSubscriptionGroup) begins there when it is created, as in
        RocketMQ. Raises CommandError for a name that no group can have."""
        metadata = self._metadata
        if not metadata.gate.writable:
            raise CommandError(ResponseCode.SYSTEM_ERROR, "only the master clones offsets")
        problem = illegal_group(header.dest_group)
        if problem is not None:
            raise CommandError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, problem)
        metadata.find_group(header.dest_group, call.peer)  # creates it, if that is allowed
        topics = [header.topic] if header.topic else self._topics_of(header.src_group)
        for topic in topics:
            if metadata.topics.get(topic) is None:
                continue
            if not header.offline and self._is_unsubscribed(header.src_group, topic):
                continue
            offsets = metadata.offsets.row(header.src_group, topic)
            before = metadata.offsets.row(header.dest_group, topic)
            if offsets:
                call.changes[f"offset by queue of topic {topic}"] = before, {**before, **offsets}
            for queue_id, offset in offsets.items():
                if not metadata.offsets.commit(header.dest_group, topic, queue_id, offset):
                    remark = "there are too many pairs of topic and group"
                    raise CommandError(ResponseCode.SYSTEM_ERROR, remark)
        metadata.commit_staged()
        await metadata.replicated(metadata.groups, metadata.groups.table.version)
        await metadata.replicated(metadata.offsets, metadata.offsets.table.version)
        return Reply()

    def _stored_at(self, topic: str, queue_id: int, index: int) -> int:
        """Returns when a message was stored (ms since 1970), the last one for -1; 0: there is none."""
        queue = self._store.find_queue(topic, queue_id)
        if queue is None:
            return 0
        index = queue.max_offset - 1 if index < 0 else index
        if not queue.min_offset <= index < queue.max_offset:
            return 0
        return stored_at(self._store.commit_log, queue, index)
