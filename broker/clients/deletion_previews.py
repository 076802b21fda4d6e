"""Previews of deletions: what deleting a topic (215) or a group (207) would delete here (29051, 29052).

They refuse what broker/metadata/handlers.py would refuse, and count messages and clients, which it lacks.
"""

from collections.abc import Callable

from broker.clients.core.registry import ClientRegistry
from broker.metadata.core.topic_names import DLQ_PREFIX, RETRY_PREFIX
from broker.metadata.handlers import is_topic_deletable, refuse_deletion_of_group
from broker.metadata.service import Metadata
from broker.store.message_store import MessageStore
from keelmq.remoting.operation import Call, OperationTable, Reply
from keelmq.remoting.operations.broker import EXPLAIN_DELETE_TOPIC, TopicDeletion, TopicRequest
from keelmq.remoting.operations.broker_metadata import (
    EXPLAIN_DELETE_GROUP,
    DeleteGroupRequest,
    GroupDeletion,
)


class DeletionPreviews:
    """behind: the number of messages that a group has not consumed yet (ConsumeStats.behind)."""

    def __init__(
        self, metadata: Metadata, store: MessageStore, registry: ClientRegistry, behind: Callable[[str], int]
    ) -> None:
        self._metadata, self._store, self._registry, self._behind = metadata, store, registry, behind

    def bind(self, table: OperationTable) -> None:
        """Binds 29051 and 29052."""
        table.bind(EXPLAIN_DELETE_TOPIC, self.explain_delete_topic)
        table.bind(EXPLAIN_DELETE_GROUP, self.explain_delete_group)

    async def explain_delete_topic(self, header: TopicRequest, call: Call) -> Reply:
        """Returns what 215 would delete, and deletes nothing (29051). Raises CommandError as 215."""
        is_topic_deletable(self._metadata, header.topic)
        topic = self._metadata.topics.get(header.topic)
        count = 0 if topic is None else topic.queue_count
        messages = sum(
            self._store.max_queue_offset(header.topic, queue_id)
            - self._store.min_queue_offset(header.topic, queue_id)
            for queue_id in range(count)
        )
        groups = {*self._metadata.offsets.groups_of(header.topic), *self._registry.groups_of(header.topic)}
        body = TopicDeletion(
            is_known=topic is not None, queues=count, messages=messages, consumer_groups=sorted(groups)
        )
        return Reply(body=body)

    async def explain_delete_group(self, header: DeleteGroupRequest, call: Call) -> Reply:
        """Returns what 207 would delete, and deletes nothing (29052). Raises CommandError as 207."""
        metadata, name = self._metadata, header.group_name
        refuse_deletion_of_group(metadata, name)
        online, topics = self._registry.consumers.get(name), metadata.topics.topics
        body = GroupDeletion(
            is_known=metadata.groups.get(name) is not None,
            behind=self._behind(name),
            members=0 if online is None else len(online.client_ids),
            topics=[each for each in (RETRY_PREFIX + name, DLQ_PREFIX + name) if each in topics],
        )
        return Reply(body=body)
