"""A client batch: every item its own record, all of them behind each other in one file, or none at all.

What is the same for all items is made once, and the log grows once, after the last item: so an item that
cannot be stored leaves nothing behind. Source: RocketMQ 5.3.3 MessageExtEncoder, CommitLog.asyncPutMessages.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from broker.store.message_store import MessageStore
from broker.store.record import HOST_V6_BITS, HOSTS_V4_BYTES, host_bits, index_keys, tags_code
from broker.store.settings import TopicLike

Item: TypeAlias = tuple[int, bytes, bytes]
"""(flag, body, its own properties, which end with a separator if there are any)"""


class StoredBatch(NamedTuple):
    """CommitLog offset of each item, where the last one ends, and the queue offset of the first."""

    offsets: list[int]
    end: int
    queue_offset: int


def put_batch(
    store: MessageStore,
    topic: TopicLike,
    queue_id: int,
    items: Sequence[Item],
    shared: bytes,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    reconsume_times: int,
    store_timestamp: int,
) -> StoredBatch:
    """Master only; shared: properties that all items get. ValueError: more than a file takes; struct.error,
    OSError: as MessageStore.put()."""
    assert store.is_master, "put_batch() on a store that is not master"
    queue = store.queues.get(topic.name, queue_id)
    store_host = store.store_host
    if sys_flag & HOST_V6_BITS or len(born_host) + len(store_host) != HOSTS_V4_BYTES:
        sys_flag = host_bits(sys_flag, born_host, store_host)
    first = queue.next_offset
    whole = [(flag, body, own + shared) for flag, body, own in items]
    # fmt: off
    places = store.commit_log.append_batch(topic.topic_raw, queue_id, first, sys_flag, born_timestamp,
                                           born_host, store_host, store_timestamp, reconsume_times, whole)
    # fmt: on
    queue.next_offset = first + len(items)
    store.put_units(
        (offset + size, queue, number, offset, size, tags_code(text), store_timestamp, *index_keys(text))
        for number, ((offset, size), (_, _, text)) in enumerate(zip(places, whole, strict=True), first)
    )
    return StoredBatch([offset for offset, _ in places], store.commit_log.max_offset, first)
