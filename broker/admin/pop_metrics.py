"""Metrics of pop consumption, with RocketMQ's names.

Each master counts its own operations, and only masters have gauges, so a sum over all brokers counts nothing
twice. Source: RocketMQ 5.3.3 PopMetricsManager.
"""

from typing import Final

from broker.admin.group_metrics import SLICE_ROWS, has_topic
from broker.metadata.service import Metadata
from broker.pop.consumption import PopConsumption
from keelmq.remoting.servers.metrics import Metric, Scrape
from keelmq.runtime.slices import Slices

METRICS: Final = (
    Metric("rocketmq_pop_checkpoint_buffer_size", "pops with unacknowledged messages; of a master"),
    Metric(
        "rocketmq_pop_revive_in_message_total",
        "checkpoints (CK) and acknowledgements (ACK) that were put into the revive topic, or refused. topic: "
        "the popped one. put_status: PUT_OK, SERVICE_NOT_AVAILABLE, MESSAGE_ILLEGAL, UNKNOWN_ERROR",
        ("consumer_group", "topic", "revive_message_type", "put_status"),
    ),
    Metric(
        "rocketmq_pop_revive_out_message_total",
        "records of the revive topic that a master has applied: its own at once, those of earlier masters "
        "when its term begins. queue_id: of the revive topic",
        ("consumer_group", "topic", "queue_id", "revive_message_type"),
    ),
    Metric(
        "rocketmq_pop_revive_retry_messages_total",
        "popped messages that were not acknowledged in time, and were put into the retry topic or the "
        "dead-letter topic, or refused. topic: the popped one",
        ("consumer_group", "topic", "put_status"),
    ),
    Metric(
        "rocketmq_pop_revive_lag",
        "records of the revive topic from the oldest open checkpoint on, which a new master would read; of a "
        "master",
        ("queue_id",),
    ),
    Metric(
        "rocketmq_pop_revive_latency_milliseconds",
        "for how long a checkpoint has been overdue without being revived, 0: none is; of a master",
        ("queue_id",),
    ),
    Metric("rocketmq_pop_waiting_consumers", "pops and notifications that wait for a message"),
)


def add_pops(made: Scrape, consumption: PopConsumption, metadata: Metadata) -> Slices[None]:
    """Adds the values of METRICS."""
    pop, groups = consumption.pop, metadata.groups.table.rows
    if pop.has_term:
        made.add("rocketmq_pop_checkpoint_buffer_size", len(pop.state))
        for queue_id, (lag, late_ms) in enumerate(zip(pop.lags(), pop.late_ms(), strict=True)):
            made.add("rocketmq_pop_revive_lag", lag, str(queue_id))
            made.add("rocketmq_pop_revive_latency_milliseconds", late_ms, str(queue_id))
    made.add("rocketmq_pop_waiting_consumers", len(consumption.handlers.polling))
    for number, ((group, topic, kind, status), count) in enumerate(list(pop.counts.written.items())):
        if number % SLICE_ROWS == 0:
            yield
        if group in groups and has_topic(metadata, topic):
            made.add("rocketmq_pop_revive_in_message_total", count, group, topic, kind, status)
    for number, ((group, topic, queue_id, kind), count) in enumerate(list(pop.counts.applied.items())):
        if number % SLICE_ROWS == 0:
            yield
        if group in groups and has_topic(metadata, topic):
            made.add("rocketmq_pop_revive_out_message_total", count, group, topic, str(queue_id), kind)
    for number, ((group, topic, status), count) in enumerate(list(pop.counts.retried.items())):
        if number % SLICE_ROWS == 0:
            yield
        if group in groups and has_topic(metadata, topic):
            made.add("rocketmq_pop_revive_retry_messages_total", count, group, topic, status)
