"""Metrics of topics, consumer groups and clients: RocketMQ's names and labels, read at the scrape.

Each of the first PAIRS_MAX pairs of topic and group has its own series; all others share one. Counters are
since the start of this broker, lags are those of its own queues.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from broker.clients.core.registry import Client, ClientRegistry
from broker.metadata.core.topic_names import RETRY_PREFIX, SYSTEM_PREFIX
from broker.metadata.groups import BUILT_IN
from broker.metadata.offsets import split_key
from broker.metadata.service import Metadata
from broker.metadata.topics import NOT_FOR_CLIENTS
from broker.stats.service import BrokerStats
from broker.store.message_store import MessageStore
from keelmq.remoting.servers.metrics import Metric, Scrape

PAIRS_MAX: Final = 1_000
OTHERS: Final = "(others)"
MODES: Final = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}
_PAIR = ("topic", "consumer_group", "is_system")

METRICS: Final = (
    Metric("rocketmq_messages_out_total", "messages given to a group since the start", _PAIR),
    Metric("rocketmq_throughput_out_total", "bytes of records given to a group since the start", _PAIR),
    Metric(
        "rocketmq_throughput_in_total",
        "bytes of records that consumers may read, stored as master since the start",
        ("topic", "is_system"),
    ),
    Metric(
        "rocketmq_consumer_group_number", "consumer groups that this broker knows, built-in ones included"
    ),
    Metric(
        "rocketmq_consumer_lag_messages",
        "messages of this broker's queues that a group has not committed; of a master; of the first 1000 "
        "pairs of topic and group",
        ("consumer_group", "topic", "is_retry", "is_system"),
    ),
    Metric("rocketmq_producer_connections", "connections of producers", ("language", "version")),
    Metric(
        "rocketmq_consumer_connections",
        "connections of a group's members; of the first 1000 groups",
        ("consumer_group", "language", "version", "consume_mode", "is_system"),
    ),
)


def add_groups(
    made: Scrape, stats: BrokerStats, metadata: Metadata, store: MessageStore, registry: ClientRegistry
) -> None:
    """Adds the values of METRICS."""
    _add_reads(made, stats)
    _add_bytes_in(made, stats)
    made.add("rocketmq_consumer_group_number", len(metadata.groups.table.rows))
    if store.is_master:  # a slave's offsets and queues are slightly older copies of its master's
        _add_lags(made, metadata, store)
    _add_connections(made, registry)


def is_system_topic(topic: str) -> str:
    """Returns the label is_system: "true" or "false"."""
    return _text(topic.startswith(SYSTEM_PREFIX) or topic in NOT_FOR_CLIENTS)


def _add_reads(made: Scrape, stats: BrokerStats) -> None:
    messages, size = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    for number, ((topic, group), reads) in enumerate(stats.reads.groups.items()):
        labels = (topic, group, is_system_topic(topic)) if number < PAIRS_MAX else (OTHERS, OTHERS, "false")
        messages[labels] += reads.messages
        size[labels] += reads.bytes
    for labels, count in messages.items():
        made.add("rocketmq_messages_out_total", count, *labels)
        made.add("rocketmq_throughput_out_total", size[labels], *labels)


def _add_bytes_in(made: Scrape, stats: BrokerStats) -> None:
    found = Counter[tuple[str, str]]()
    for number, (topic, (_, size)) in enumerate(stats.messages_in.counts().items()):
        labels = (topic, is_system_topic(topic)) if number < PAIRS_MAX else (OTHERS, "false")
        found[labels] += size
    for labels, count in found.items():
        made.add("rocketmq_throughput_in_total", count, *labels)


def _add_lags(made: Scrape, metadata: Metadata, store: MessageStore) -> None:
    for number, (key, row) in enumerate(metadata.offsets.table.rows.items()):
        if number >= PAIRS_MAX:
            break
        topic, group = split_key(key)
        ends = store.queues.of_topic(topic)
        behind = sum(max(queue.max_offset - row.get(each, 0), 0) for each, queue in ends.items())
        retry = _text(topic.startswith(RETRY_PREFIX))
        made.add("rocketmq_consumer_lag_messages", behind, group, topic, retry, _text(group in BUILT_IN))


def _add_connections(made: Scrape, registry: ClientRegistry) -> None:
    for labels, count in _kinds(registry.producers.values()).items():
        made.add("rocketmq_producer_connections", count, *labels)
    for number, (name, group) in enumerate(registry.consumers.items()):
        if number >= PAIRS_MAX:
            break
        mode = MODES.get(group.consume_type, group.consume_type)
        for labels, count in _kinds([group.members]).items():
            made.add("rocketmq_consumer_connections", count, name, *labels, mode, _text(name in BUILT_IN))


def _kinds(groups: Iterable[dict[int, Client]]) -> Counter[tuple[str, str]]:
    """Returns the number of connections by language and version; each connection counts once."""
    members = {number: client for group in groups for number, client in group.items()}
    return Counter((client.language, str(client.version)) for client in members.values())


def _text(value: bool) -> str:
    return "true" if value else "false"
