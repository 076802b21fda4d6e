"""Texts of mqadmin about brokers and topics: RocketMQ's layouts, value in, text out.

Source: RocketMQ 5.3.3 BrokerStatusSubCommand, TopicStatusSubCommand, BrokerConsumeStatsSubCommand,
UpdateTopicSubCommand, StatsAllSubCommand.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from keelmq.client.admin.brokers import QueueStats
from keelmq.client.admin.groups import QueueProgress
from keelmq.remoting.operations.broker_metadata import SubscriptionGroupConfig
from keelmq.remoting.operations.route import TopicConfig
from keelmq.remoting.queue_map import QueueKey

_STATUS = "%-32s  %-4s  %-20s  %-20s    %s"
_CONSUME = "%-64s  %-64s  %-32s  %-4s  %-20s  %-20s  %-20s  %s"
_STATS = "%-64s  %-64s %12s %11s %11s %14s %14s"
_RTS = "%-24s  %-24s  %-4s  %-8s  %-8s"


def time_text(wall_ms: int, *, millis: bool = True) -> str:
    """Returns the time in this machine's time zone; "" for 0: there is none."""
    if wall_ms <= 0:
        return ""
    text = datetime.fromtimestamp(wall_ms / 1000).strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]
    return text if millis else text[:-4]


def broker_status(tables: Sequence[tuple[str, Mapping[str, str]]], *, with_address: bool) -> str:
    """brokerStatus: (address, runtime information); `with_address` puts the address before each line."""
    return "\n".join(
        f"{f'{address:<24} ' if with_address else ''}{key:<32}: {value}"
        for address, table in tables
        for key, value in sorted(table.items())
    )


def broker_configs(configs: Iterable[tuple[str, Mapping[str, str]]]) -> str:
    """getBrokerConfig: (title, settings)"""
    lines: list[str] = []
    for title, settings in configs:
        lines.append(f"============{title}============")
        lines += [f"{key:<50}=  {value}" for key, value in sorted(settings.items())]
    return "\n".join(lines)


def topic_status(queues: Mapping[QueueKey, QueueStats], put_tps: float) -> str:
    """topicStatus: a row for each queue, and messages stored per second."""
    lines = [_STATUS % ("#Broker Name", "#QID", "#Min Offset", "#Max Offset", "#Last Updated")]
    for key in sorted(queues):
        row = queues[key]
        cells = (key.broker_name, key.queue_id, row.min_offset, row.max_offset)
        lines.append((_STATUS % (*cells, time_text(row.last_update_timestamp))).rstrip())
    return "\n".join([*lines, "", f"Topic Put TPS: {put_tps}"])


def broker_consume_stats(rows: Sequence[tuple[str, QueueKey, QueueProgress]], total: int) -> str:
    """(group, queue, progress)"""
    titles = ("#Topic", "#Group", "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset", "#Diff")
    lines = [_CONSUME % (*titles, "#LastTime")]
    for group, queue, row in rows:
        cells = (queue.topic, group, queue.broker_name, queue.queue_id)
        numbers = (row.broker_offset, row.consumer_offset, row.behind)
        lines.append(_CONSUME % (*cells, *numbers, time_text(row.last_timestamp)))
    return "\n".join([*lines, "", f"Diff Total: {total}"])


def topic_config(config: TopicConfig, attributes: Mapping[str, str]) -> str:
    """updateTopic: TopicConfig's text form in RocketMQ."""
    return (
        f"TopicConfig [topicName={config.topic_name}, readQueueNums={config.read_queue_nums}, "
        f"writeQueueNums={config.write_queue_nums}, perm={perm_text(config.perm)}, "
        f"topicFilterType={config.topic_filter_type}, topicSysFlag={config.topic_sys_flag}, "
        f"order={str(config.order).lower()}, attributes={_map(attributes)}]"
    )


def perm_text(perm: int) -> str:
    """6 -> "RW-" """
    return "".join(letter if perm & bit else "-" for letter, bit in (("R", 4), ("W", 2), ("X", 1)))


def group_config(config: SubscriptionGroupConfig) -> str:
    """updateSubGroup: SubscriptionGroupConfig's text form in RocketMQ."""
    subscriptions = "null" if config.subscription_data_set is None else config.subscription_data_set
    return (
        f"SubscriptionGroupConfig{{groupName={config.group_name}, "
        f"consumeEnable={_bool(config.consume_enable)}, "
        f"consumeFromMinEnable={_bool(config.consume_from_min_enable)}, "
        f"consumeBroadcastEnable={_bool(config.consume_broadcast_enable)}, "
        f"consumeMessageOrderly={_bool(config.consume_message_orderly)}, "
        f"retryQueueNums={config.retry_queue_nums}, retryMaxTimes={config.retry_max_times}, "
        f"groupRetryPolicy={_retry_policy(config.group_retry_policy)}, "
        f"brokerId={config.broker_id}, "
        f"whichBrokerWhenConsumeSlowly={config.which_broker_when_consume_slowly}, "
        f"notifyConsumerIdsChangedEnable={_bool(config.notify_consumer_ids_changed_enable)}, "
        f"groupSysFlag={config.group_sys_flag}, consumeTimeoutMinute={config.consume_timeout_minute}, "
        f"subscriptionDataSet={subscriptions}, "
        f"attributes={_map(config.attributes)}}}"
    )


def _retry_policy(policy: Mapping[str, Any]) -> str:
    """Returns GroupRetryPolicy's text form in RocketMQ."""
    exponential, customized = policy.get("exponentialRetryPolicy"), policy.get("customizedRetryPolicy")
    texts = ["null", "null"]
    if exponential:
        numbers = ", ".join(f"{key}={exponential.get(key)}" for key in ("initial", "max", "multiplier"))
        texts[0] = f"ExponentialRetryPolicy{{{numbers}}}"
    if customized:
        texts[1] = f"CustomizedRetryPolicy{{next={customized.get('next')}}}"
    return (
        f"GroupRetryPolicy{{type={policy.get('type', 'CUSTOMIZED')}, exponentialRetryPolicy={texts[0]}, "
        f"customizedRetryPolicy={texts[1]}}}"
    )


def group_settings(cluster: str, broker_name: str, settings: Mapping[str, Any]) -> str:
    """getConsumerConfig: the settings at one broker, with values as Java and updateSubGroup write them."""
    line = "=" * 29
    texts = {
        key: json.dumps(value) if value is None or isinstance(value, (bool, list)) else value
        for key, value in settings.items()
    }
    texts["groupRetryPolicy"] = _retry_policy(settings["groupRetryPolicy"])
    texts["attributes"] = _map(settings["attributes"])
    rows = [f"{key:<40}=  {text}" for key, text in texts.items()]
    return "\n".join([f"{line}{cluster}:{broker_name}{line}", *rows])


class StatsRow(NamedTuple):
    """group None: the topic has no consumer group. in_24h, out_24h: messages within a day."""

    topic: str
    group: str | None
    behind: int
    in_tps: float
    out_tps: float
    in_24h: int
    out_24h: int


def stats_all(rows: Sequence[StatsRow]) -> str:
    """statsAll: a row for each topic and group."""
    titles = (
        "#Topic",
        "#Consumer Group",
        "#Accumulation",
        "#InTPS",
        "#OutTPS",
        "#InMsg24Hour",
        "#OutMsg24Hour",
    )
    lines = [_STATS % titles]
    for row in rows:
        if row.group is None:
            cells: tuple[object, ...] = ("", "", f"{row.in_tps:.2f}", "", row.in_24h, "NO_CONSUMER")
        else:
            rates = (f"{row.in_tps:.2f}", f"{row.out_tps:.2f}")
            cells = (row.group, row.behind, *rates, row.in_24h, row.out_24h)
        lines.append(_STATS % (row.topic, *cells))
    return "\n".join(lines)


def send_rts(rows: Sequence[tuple[str, int, bool, float]]) -> str:
    """checkMsgSendRT: (broker name, queue, acknowledged, ms). The first send connects and is not in the
    mean."""
    layout = "%-32s  %-4s  %-20s    %s"
    lines = [layout % ("#Broker Name", "#QID", "#Send Result", "#RT")]
    lines += [layout % (name, queue, str(arrived).lower(), f"{ms:.0f}") for name, queue, arrived, ms in rows]
    rest = [ms for _, _, _, ms in rows[1:]]
    return "\n".join([*lines, f"Avg RT: {sum(rest) / max(len(rest), 1):.2f}"])


def cluster_rts(rows: Sequence[tuple[str, str, float, int, int]]) -> str:
    """clusterRT: (cluster, broker name, mean ms, acknowledged, failed)"""
    lines = [_RTS % ("#Cluster Name", "#Broker Name", "#RT", "#successCount", "#failCount")]
    lines += [_RTS % (cluster, name, f"{ms:.2f}", good, bad) for cluster, name, ms, good, bad in rows]
    return "\n".join(lines)


def _map(values: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{key}={value}" for key, value in values.items()) + "}"


def _bool(value: bool) -> str:
    return str(value).lower()
