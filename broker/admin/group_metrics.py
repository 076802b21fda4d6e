"""Metrics of topics, consumer groups and clients: RocketMQ's names and labels, read at the scrape.

Each of the first metricsOtelCardinalityLimit pairs of topic and group has its own series; all others share
one. Counters begin at the start of this broker; lags are those of its queues.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from broker.admin.lag_times import Lag, LagTimes
from broker.clients.core.registry import Client, ClientRegistry
from broker.metadata.core.topic_names import RETRY_PREFIX, SYSTEM_PREFIX
from broker.metadata.groups import BUILT_IN
from broker.metadata.service import Metadata
from broker.metadata.topics import NOT_FOR_CLIENTS
from broker.stats.messages_in import InCount
from broker.stats.service import BrokerStats
from broker.store.message_store import MessageStore
from keelmq.remoting.servers.metrics import Metric, Scrape
from keelmq.runtime.slices import Slices

OTHERS: Final = "(others)"
NORMAL: Final = "normal"
PROTOCOL: Final = "remoting"
SLICE_ROWS: Final = 250
"""Series that one slice of a scrape makes or checks: 1 to 2 ms."""
SLICE_MEMBERS: Final = 2_000
MODES: Final = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}
_PAIR = ("topic", "consumer_group", "is_system")
_OF_LAGS = ("consumer_group", "topic", "is_retry", "is_system")

METRICS: Final = (
    Metric("rocketmq_messages_out_total", "messages given to a group since the start", _PAIR),
    Metric("rocketmq_throughput_out_total", "bytes of records given to a group since the start", _PAIR),
    Metric(
        "rocketmq_throughput_in_total",
        "bytes of records that consumers may read, stored as master since the start",
        ("topic", "message_type", "is_system"),
    ),
    Metric(
        "rocketmq_consumer_group_number", "consumer groups that this broker knows, built-in ones included"
    ),
    Metric(
        "rocketmq_consumer_lag_messages",
        "messages of this broker's queues that a group has not committed; of a master",
        _OF_LAGS,
    ),
    Metric(
        "rocketmq_consumer_inflight_messages",
        "messages that a group was given, by this process, and has not committed; of a master",
        _OF_LAGS,
    ),
    Metric(
        "rocketmq_consumer_ready_messages", "messages that a group was not given yet; of a master", _OF_LAGS
    ),
    Metric(
        "rocketmq_consumer_lag_latency_milliseconds",
        "age of the oldest message that a group has not committed, 0 without one; of a master",
        _OF_LAGS,
    ),
    Metric(
        "rocketmq_consumer_queueing_latency_milliseconds",
        "age of the oldest message that was not delivered to a group yet, 0 without one; of a master",
        _OF_LAGS,
    ),
    Metric(
        "rocketmq_producer_connections", "connections of producers", ("language", "version", "protocol_type")
    ),
    Metric(
        "rocketmq_consumer_connections",
        "connections of a group's members",
        ("consumer_group", "language", "version", "consume_mode", "is_system", "protocol_type"),
    ),
)


def add_groups(
    made: Scrape,
    stats: BrokerStats,
    counts: Mapping[str, InCount],
    metadata: Metadata,
    lags: LagTimes,
    store: MessageStore,
    registry: ClientRegistry,
) -> Slices[None]:
    """Adds the values of METRICS. counts: of messages_in."""
    yield from add_reads(made, stats, metadata)
    yield from _add_bytes_in(made, stats, counts, metadata)
    made.add("rocketmq_consumer_group_number", len(metadata.groups.table.rows))
    if store.is_master:  # a slave's offsets and queues are slightly older copies of its master's
        yield from _add_lags(made, metadata, lags)
    yield from _add_connections(made, registry)


def is_system_topic(topic: str) -> str:
    """Returns the label is_system: "true" or "false"."""
    return _text(topic.startswith(SYSTEM_PREFIX) or topic in NOT_FOR_CLIENTS)


def has_topic(metadata: Metadata, topic: str) -> bool:
    """Returns whether a topic has series: it was not deleted. Some system topics are in no table."""
    return topic in metadata.topics.topics or is_system_topic(topic) == "true"


def message_type(metadata: Metadata, topic: str) -> str:
    """Returns the label message_type: what the topic's attribute message.type declares, in lower case."""
    config = metadata.topics.topics.get(topic)
    declared = "" if config is None else config.config.attributes.get("message.type", "")
    return NORMAL if declared in ("", "UNSPECIFIED") else declared.lower()


def add_reads(made: Scrape, stats: BrokerStats, metadata: Metadata) -> Slices[None]:
    """Adds the counts of messages that groups received."""
    groups = metadata.groups.table.rows
    found: dict[tuple[str, str], tuple[int, ...]] = {}
    for number, ((topic, group), reads) in enumerate(list(stats.reads.groups.items())):
        if number % SLICE_ROWS == 0:
            yield
        if group in groups and has_topic(metadata, topic):
            found[topic, group] = reads.messages, reads.bytes
    own, others = yield from stats.shared["rocketmq_messages_out_total"].split(found, made.limit)
    series = [((*key, is_system_topic(key[0])), counts) for key, counts in own.items()]
    if others:
        series.append(((OTHERS, OTHERS, "false"), others))
    for number, (labels, (messages, size)) in enumerate(series):
        if number % SLICE_ROWS == 0:
            yield
        made.add("rocketmq_messages_out_total", messages, *labels)
        made.add("rocketmq_throughput_out_total", size, *labels)


def _add_bytes_in(
    made: Scrape, stats: BrokerStats, counts: Mapping[str, InCount], metadata: Metadata
) -> Slices[None]:
    found: dict[str, tuple[int, ...]] = {}
    for number, (topic, (_, size)) in enumerate(counts.items()):
        if number % SLICE_ROWS == 0:
            yield
        if has_topic(metadata, topic):
            found[topic] = (size,)
    own, others = yield from stats.shared["rocketmq_throughput_in_total"].split(found, made.limit)
    for number, (topic, (size,)) in enumerate(own.items()):
        if number % SLICE_ROWS == 0:
            yield
        labels = topic, message_type(metadata, topic), is_system_topic(topic)
        made.add("rocketmq_throughput_in_total", size, *labels)
    if others:
        made.add("rocketmq_throughput_in_total", others[0], OTHERS, NORMAL, "false")


def _add_lags(made: Scrape, metadata: Metadata, lags: LagTimes) -> Slices[None]:
    for number, lag in enumerate((yield from lags.counts())):
        if number % SLICE_ROWS == 0:
            yield
        labels = _lag_labels(lag)
        made.add("rocketmq_consumer_lag_messages", lag.messages, *labels)
        made.add("rocketmq_consumer_inflight_messages", lag.inflight, *labels)
        made.add("rocketmq_consumer_ready_messages", lag.ready, *labels)
    for number, lag in enumerate(lags.found):
        if number % SLICE_ROWS == 0:
            yield
        labels = _lag_labels(lag)
        made.add("rocketmq_consumer_lag_latency_milliseconds", lag.latency_ms, *labels)
        made.add("rocketmq_consumer_queueing_latency_milliseconds", lag.queueing_ms, *labels)
    if (left_out := len(metadata.offsets.table.rows) - made.limit) > 0:
        made.left_out["rocketmq_consumer_lag_messages"] = left_out


def _lag_labels(lag: Lag) -> tuple[str, str, str, str]:
    retry, system = lag.topic.startswith(RETRY_PREFIX), lag.group in BUILT_IN
    return lag.group, lag.topic, _text(retry), _text(system)


def _add_connections(made: Scrape, registry: ClientRegistry) -> Slices[None]:
    for labels, count in (yield from _kinds(list(registry.producers.values()))).items():
        made.add("rocketmq_producer_connections", count, *labels, PROTOCOL)
    for number, (name, group) in enumerate(list(registry.consumers.items())):
        if number % SLICE_ROWS == 0:
            yield
        if number >= made.limit:
            made.left_out["rocketmq_consumer_connections"] = len(registry.consumers) - made.limit
            break
        mode = MODES.get(group.consume_type, group.consume_type)
        for labels, count in (yield from _kinds([group.members])).items():
            system = _text(name in BUILT_IN)
            made.add("rocketmq_consumer_connections", count, name, *labels, mode, system, PROTOCOL)


def _kinds(groups: Iterable[dict[int, Client]]) -> Slices[Counter[tuple[str, str]]]:
    """Returns the number of connections by language and version; each connection counts once."""
    seen, found, looked = set[int](), Counter[tuple[str, str]](), 0
    for group in groups:
        for number, client in list(group.items()):
            looked += 1
            if looked % SLICE_MEMBERS == 0:
                yield
            if number not in seen:
                seen.add(number)
                found[client.language, str(client.version)] += 1
    return found


def _text(value: bool) -> str:
    return "true" if value else "false"
