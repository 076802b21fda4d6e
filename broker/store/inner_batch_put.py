"""Stores records in a BatchQueue: a client's batch as one record, or a message that was sent alone.

A record becomes visible as every other one, by the DispatchRequest that add_dispatch_request() gets. See
broker/message/inner_batch.py for the properties that such a record has. Source: RocketMQ 5.3.3
SendMessageProcessor.sendBatchMessage, BatchConsumeQueue.assignQueueOffset.
"""

from typing import NamedTuple, Protocol

from broker.message.indexed_keys import Keyed
from broker.message.inner_batch import (
    INNER_BATCH,
    INNER_BITS,
    MESSAGES_MAX,
    NEED_UNWRAP,
    items_of,
    with_inner_batch,
)
from broker.message.record import HOST_V6_BITS, host_bits, index_keys, tags_code
from broker.store.index.message_index import MessageIndex
from broker.store.log.commit_log import CommitLog
from broker.store.queue.batch_queue import BatchQueue, BatchUnit
from broker.store.queue.dispatch_request import DispatchRequest, QueueUnits
from broker.store.settings import TopicLike


class BatchQueueStore(Protocol):
    """What these functions use of a MessageStore."""

    commit_log: CommitLog
    index: MessageIndex | None
    store_host: bytes

    @property
    def is_master(self) -> bool:
        """Whether put() is allowed."""

    def add_dispatch_request(self, request: DispatchRequest) -> None:
        """Queues a stored record for its consume queue."""


class InnerMessage(NamedTuple):
    """The fields of a record of a BatchQueue as the client sent them; timestamps in ms."""

    topic_raw: bytes
    body: bytes
    properties: bytes
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    reconsume_times: int
    tags_code: int
    store_timestamp: int
    prepared_offset: int = 0


def put_inner_batch(
    store: BatchQueueStore,
    queue: BatchQueue,
    topic: TopicLike,
    body: bytes,
    properties: bytes,
    flag: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    reconsume_times: int,
    store_timestamp: int,
) -> tuple[int, int, int]:
    """Stores a client's batch as one record; master only. Returns (physical offset, end offset, queue offset
    of the first message). ValueError, struct.error: it is no batch, has too many messages, or its properties
    are too long."""
    items = items_of(body)
    if not 1 <= len(items) <= MESSAGES_MAX:
        raise ValueError(f"a batch of {len(items)} items; 1 to {MESSAGES_MAX} are taken")
    keys = [index_keys(item.properties) for item in items] if store.index is not None else []
    message = InnerMessage(
        topic.topic_raw, body, properties, flag, sys_flag | INNER_BITS, born_timestamp, born_host,
        reconsume_times, tags_code(properties), store_timestamp,
    )  # fmt: skip
    return _put(store, queue, message, len(items), keys)


def put_single(store: BatchQueueStore, queue: BatchQueue, message: InnerMessage) -> tuple[int, int, int]:
    """Stores a message that was sent alone; arguments and result as of MessageStore.put()."""
    message = message._replace(sys_flag=message.sys_flag & ~NEED_UNWRAP | INNER_BATCH)
    return _put(store, queue, message, 1, [])


def _put(
    store: BatchQueueStore,
    queue: BatchQueue,
    message: InnerMessage,
    messages: int,
    keys: list[tuple[bytes, bytes]],
) -> tuple[int, int, int]:
    assert store.is_master, "put on a store that is not master"
    topic_raw, body, properties, flag, sys_flag, born, born_host, times, tag, now, prepared = message
    base, store_host, log = queue.next_offset, store.store_host, store.commit_log
    properties = with_inner_batch(properties, messages, base)
    sys_flag = host_bits(sys_flag & ~HOST_V6_BITS, born_host, store_host)
    offset = log.append(
        topic_raw, queue.queue_id, base, flag, sys_flag, born, born_host, store_host, now, times, body,
        properties, prepared,
    )  # fmt: skip
    end = log.max_offset
    unit = BatchUnit(offset, end - offset, tag, now, base, messages)
    found: list[Keyed] = []
    if store.index is not None:
        prefix = queue.key_prefix_hash
        found = [(prefix, offset, now, *each) for each in (index_keys(properties), *keys)]
    part = QueueUnits(queue, base, messages, unit.packed(), end - offset)
    store.add_dispatch_request(DispatchRequest(end, [part], now, found))
    return offset, end, base
