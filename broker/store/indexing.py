"""Extracts the keys of records for the message index: when a record is dispatched, or later, for many records
that the index has missed."""

from broker.message.indexed_keys import Keyed
from broker.message.inner_batch import keys_of
from broker.message.record import Buffer, Parsed, index_keys, java_hash, parse
from broker.store.damage import DamagedRanges
from broker.store.index.message_index import MessageIndex
from broker.store.log.commit_log import CommitLog
from broker.store.queue.batch_queue import BatchQueue
from broker.store.queue.consume_queue import ConsumeQueue
from broker.store.queue.queue_table import QueueTable


def keyed(queue: ConsumeQueue | None, offset: int, parsed: Parsed, buffer: Buffer, pos: int) -> list[Keyed]:
    """The keys of the record at this CommitLog offset, which is at buffer[pos]: its own, then those of the
    messages of an inner batch. queue: the record's queue, None if it has none."""
    size, topic, _, _, _, timestamp, properties = parsed
    if queue is None:
        prefix_hash = java_hash(f"{topic.decode('utf-8', 'replace')}#")
    else:
        prefix_hash = queue.key_prefix_hash
    own = (prefix_hash, offset, timestamp, *index_keys(properties))
    if not isinstance(queue, BatchQueue):
        return [own]
    inner = keys_of(buffer[pos : pos + size])
    return [own, *((prefix_hash, offset, timestamp, *keys) for keys in inner)]


def catch_up_index(
    index: MessageIndex,
    queues: QueueTable,
    log: CommitLog,
    end: int,
    records_max: int,
    damage: DamagedRanges,
) -> bool:
    """Indexes up to records_max records in front of the CommitLog offset `end`, without those that are
    damaged. True: there are more."""
    index.write_pending()
    if index.offset >= end:
        return False
    begin = max(index.offset, log.min_offset)
    view = log.view(begin, log.file_bytes, end=end)
    pos, count, index.offset, keys_found = 0, 0, begin, list[Keyed]()
    while pos < len(view) and count < records_max:
        parsed = parse(view, pos, len(view), offset=begin + pos)
        if parsed is None and (known := damage.overlaps(begin + pos, begin + pos + 1)) is not None:
            pos = min(known.end - begin, len(view))
            continue
        if parsed is None:
            break
        if parsed[1]:
            queue = queues.find(parsed[1].decode("utf-8", "replace"), parsed[2])
            keys_found += keyed(queue, begin + pos, parsed, view, pos)
        pos += parsed[0]
        count += 1
    index.add(keys_found, begin + pos)
    index.write_pending()
    return pos > 0 and not index.fault and index.offset < end
