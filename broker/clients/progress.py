"""How far the queues of a topic are (202), and how far a group is in them (208).

Rates are not measured here: consumeTps is 0. Source: RocketMQ 5.3.3 AdminBrokerProcessor.
"""

from collections.abc import Iterator
from typing import Any

from broker.clients.core.registry import ClientRegistry
from broker.clients.object_keys import by_queue, with_table
from broker.metadata.service import Metadata
from broker.store.message_store import MessageStore
from broker.store.querying import stored_at
from remoting.codes import ResponseCode
from remoting.operation import Call, CommandError, OperationTable, Reply
from remoting.operations.broker import TopicRequest
from remoting.operations.clients import GET_CONSUME_STATS, GET_TOPIC_STATS_INFO, ConsumeStatsRequest


class Progress:
    def __init__(
        self, metadata: Metadata, store: MessageStore, registry: ClientRegistry, broker_name: str
    ) -> None:
        self._metadata, self._store, self._registry = metadata, store, registry
        self._broker_name = broker_name

    def bind(self, table: OperationTable) -> None:
        table.bind(GET_TOPIC_STATS_INFO, self.get_topic_stats)
        table.bind(GET_CONSUME_STATS, self.get_consume_stats)

    async def get_topic_stats(self, header: TopicRequest, call: Call) -> Reply:
        topic = self._metadata.topics.get(header.topic)
        if topic is None:
            raise CommandError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
        entries = (
            (
                topic.name,
                queue_id,
                {
                    "lastUpdateTimestamp": self._stored_at(topic.name, queue_id, -1),
                    "maxOffset": self._store.max_queue_offset(topic.name, queue_id),
                    "minOffset": self._store.min_queue_offset(topic.name, queue_id),
                },
            )
            for queue_id in range(topic.queue_count)
        )
        return Reply(body=with_table("offsetTable", by_queue(self._broker_name, entries), {}))

    async def get_consume_stats(self, header: ConsumeStatsRequest, call: Call) -> Reply:
        """Of the topics that are named, or else of all in which the group has committed."""
        named = [header.topic] if header.topic else (header.topic_list or "").split(";")
        topics = [topic for topic in named if topic] or self._metadata.offsets.topics_of(
            header.consumer_group
        )
        table = by_queue(self._broker_name, self._of_group(header.consumer_group, topics))
        return Reply(body=with_table("offsetTable", table, {"consumeTps": 0.0}))

    def _of_group(self, group: str, topics: list[str]) -> Iterator[tuple[str, int, dict[str, Any]]]:
        """A topic that a group on line does not subscribe to any more is left out."""
        online = self._registry.consumers.get(group)
        for name in topics:
            topic = self._metadata.topics.get(name)
            if topic is None or (online is not None and name not in online.subscriptions):
                continue
            for queue_id in range(topic.read_queue_nums):
                offset = max(self._metadata.offsets.query(group, name, queue_id), 0)
                value = {
                    "brokerOffset": self._store.max_queue_offset(name, queue_id),
                    "consumerOffset": offset,
                    "lastTimestamp": self._stored_at(name, queue_id, offset - 1) if offset else 0,
                    "pullOffset": offset,
                }
                yield name, queue_id, value

    def _stored_at(self, topic: str, queue_id: int, index: int) -> int:
        """When the message was stored (ms), the last one for -1; 0: there is none."""
        queue = self._store.find_queue(topic, queue_id)
        if queue is None:
            return 0
        index = queue.max_offset - 1 if index < 0 else index
        if not queue.min_offset <= index < queue.max_offset:
            return 0
        return stored_at(self._store.commit_log, queue, index)
