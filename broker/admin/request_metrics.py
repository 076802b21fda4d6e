"""Metrics of requests: their durations, and the outcome of messages whose consumers fail."""

from typing import Final

from broker.admin.group_metrics import OTHERS, PROTOCOL, SLICE_ROWS, is_system_topic
from broker.stats.rpc_latency import RpcLatency
from broker.stats.service import BrokerStats
from keelmq.remoting.servers.metrics import Metric, Scrape
from keelmq.runtime.slices import Slices

METRICS: Final = (
    Metric(
        "rocketmq_rpc_latency_milliseconds",
        "from a request's arrival to its answer, in whole milliseconds for sends: those that wait for "
        "replicas or the disk as long as they do, pulls and pops that wait for messages with "
        "is_long_polling=true. result: success (answered, also with a refusal), oneway, cancelled, "
        "process_request_failed. Sends that are forwarded to the master are counted there",
        ("protocol_type", "request_code", "response_code", "is_long_polling", "result"),
        is_histogram=True,
    ),
    Metric(
        "rocketmq_topic_create_execution_time_milliseconds",
        "how long tools wait for topics that they create or change",
        ("invocation_status", "is_system"),
        is_histogram=True,
    ),
    Metric(
        "rocketmq_consumer_group_create_execution_time_milliseconds",
        "how long tools wait for groups that they create or change",
        ("invocation_status",),
        is_histogram=True,
    ),
    Metric(
        "rocketmq_send_to_dlq_messages_total",
        "messages that went to a group's dead-letter topic; topic: their original topic",
        ("consumer_group", "topic", "is_system"),
    ),
)


def add_requests(made: Scrape, latency: RpcLatency, stats: BrokerStats) -> Slices[None]:
    """Adds the values of METRICS."""
    for labels, histogram in latency.labelled():
        made.add_histogram("rocketmq_rpc_latency_milliseconds", histogram, PROTOCOL, *labels)
    for status, histogram in stats.creations.topics.items():
        made.add_histogram("rocketmq_topic_create_execution_time_milliseconds", histogram, *status)
    for created, histogram in stats.creations.groups.items():
        made.add_histogram("rocketmq_consumer_group_create_execution_time_milliseconds", histogram, *created)
    found = {pair: (count,) for pair, count in stats.reads.dead_letters.items()}
    yield
    own, others = yield from stats.shared["rocketmq_send_to_dlq_messages_total"].split(found, made.limit)
    for number, ((topic, group), (count,)) in enumerate(own.items()):
        if number % SLICE_ROWS == 0:
            yield
        made.add("rocketmq_send_to_dlq_messages_total", count, group, topic, is_system_topic(topic))
    if others:
        made.add("rocketmq_send_to_dlq_messages_total", others[0], OTHERS, OTHERS, "false")
