"""The gauges of RocketMQ's stand-alone exporter, for dashboards made for it (metricsExporterCompat=true).

Values are those of the runtime information (28) and of the broker's statistics. Gauges about single clients,
which the exporter asks the clients for, are left out. Source: rocketmq-exporter, RMQMetricsCollector.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from broker.admin.group_metrics import SLICE_ROWS
from broker.admin.lag_times import LagTimes
from broker.clients.core.registry import ClientRegistry
from broker.metadata.core.topic_names import DLQ_PREFIX, RETRY_PREFIX
from broker.metadata.offsets import split_key
from broker.metadata.service import Metadata
from broker.stats.service import BrokerStats
from broker.store.message_store import MessageStore
from keelmq.remoting.servers.metrics import Metric, Scrape, Table
from keelmq.runtime.disk_room import disk_room
from keelmq.runtime.slices import Slices, in_slices

_BROKER = ("cluster", "brokerIP", "broker")
_TOPIC = ("cluster", "broker", "topic")
_GROUP = ("cluster", "broker", "topic", "group")
_LAG = ("group", "topic", "countOfOnlineConsumers", "msgModel")
_RUNTIME = ("cluster", "brokerIP", "brokerHost", "des", "boottime", "broker_version")
RUNTIME: Final = "rocketmq_brokeruntime_"

BANDS: Final = (
    "pmdt_0ms", "pmdt_0to10ms", "pmdt_10to50ms", "pmdt_50to100ms", "pmdt_100to200ms", "pmdt_200to500ms",
    "pmdt_500to1s", "pmdt_1to2s", "pmdt_2to3s", "pmdt_3to4s", "pmdt_4to5s", "pmdt_5to10s", "pmdt_10stomore",
)  # fmt: skip
"""Of putMessageDistributeTime, in its order."""
KEYS: Final[Mapping[str, str]] = {
    "msg_put_total_today_now": "msgPutTotalTodayNow",
    "msg_gettotal_today_now": "msgGetTotalTodayNow",
    "msg_puttotal_todaymorning": "msgPutTotalTodayMorning",
    "msg_puttotal_yesterdaymorning": "msgPutTotalYesterdayMorning",
    "msg_gettotal_todaymorning": "msgGetTotalTodayMorning",
    "msg_gettotal_yesterdaymorning": "msgGetTotalYesterdayMorning",
    "dispatch_behind_bytes": "dispatchBehindBytes",
    "dispatch_maxbuffer": "dispatchMaxBuffer",
    "put_message_size_total": "putMessageSizeTotal",
    "put_message_average_size": "putMessageAverageSize",
    "putmessage_entire_time_max": "putMessageEntireTimeMax",
    "putmessage_times_total": "putMessageTimesTotal",
    "getmessage_entire_time_max": "getMessageEntireTimeMax",
    "pagecache_lock_time_mills": "pageCacheLockTimeMills",
    "commitlog_disk_ratio": "commitLogDiskRatio",
    "consumequeue_disk_ratio": "consumeQueueDiskRatio",
    "commitlog_minoffset": "commitLogMinOffset",
    "commitlog_maxoffset": "commitLogMaxOffset",
    "send_threadpool_queue_size": "sendThreadPoolQueueSize",
    "send_threadpoolqueue_capacity": "sendThreadPoolQueueCapacity",
    "pull_threadpoolqueue_size": "pullThreadPoolQueueSize",
    "pull_threadpoolqueue_capacity": "pullThreadPoolQueueCapacity",
    "query_threadpoolqueue_size": "queryThreadPoolQueueSize",
    "query_threadpool_queue_capacity": "queryThreadPoolQueueCapacity",
    "send_threadpoolqueue_headwait_timemills": "sendThreadPoolQueueHeadWaitTimeMills",
    "pull_threadpoolqueue_headwait_timemills": "pullThreadPoolQueueHeadWaitTimeMills",
    "query_threadpoolqueue_headwait_timemills": "queryThreadPoolQueueHeadWaitTimeMills",
    "remain_transientstore_buffer_numbs": "remainTransientStoreBufferNumbs",
    "earliest_message_timestamp": "earliestMessageTimeStamp",
    "start_accept_sendrequest_time": "startAcceptSendRequestTimeStamp",
    "put_latency_99": "putLatency99",
    "put_latency_999": "putLatency999",
}
"""Metric -> key of 28."""
RATES: Final[Mapping[str, str]] = {
    "getfound_tps": "getFoundTps",
    "gettotal_tps": "getTotalTps",
    "gettransfered_tps": "getTransferredTps",
    "getmiss_tps": "getMissTps",
    "put_tps": "putTps",
}
"""Metric without its time -> key of 28, which has three numbers."""
SECONDS: Final = ("10", "60", "600")
SIZES: Final = ("remain_howmanydata_toflush", "commitlogdir_capacity_free", "commitlogdir_capacity_total")

TABLE = Table(
    "mqbroker with metricsExporterCompat: the stand-alone exporter's names",
    (),
    (
        Metric("rocketmq_broker_tps", "messages stored per second, mean over a minute", _BROKER),
        Metric(
            "rocketmq_broker_qps", "messages delivered to consumers per second, mean over a minute", _BROKER
        ),
        Metric("rocketmq_producer_tps", "messages of a topic per second, mean over a minute", _TOPIC),
        Metric("rocketmq_producer_message_size", "bytes of a topic per second, mean over a minute", _TOPIC),
        Metric("rocketmq_producer_offset", "end offsets of a topic's queues, summed up", _TOPIC),
        Metric("rocketmq_topic_retry_offset", "the same of a retry topic", _TOPIC),
        Metric(
            "rocketmq_topic_dlq_offset", "the same of a dead-letter topic", ("cluster", "broker", "group")
        ),
        Metric("rocketmq_producer_count", "connections of a producer group", ("cluster", "broker", "group")),
        Metric("rocketmq_consumer_tps", "messages delivered to a group per second", _GROUP),
        Metric("rocketmq_group_consume_tps", "the same as rocketmq_consumer_tps", _GROUP),
        Metric("rocketmq_consumer_message_size", "bytes delivered to a group per second", _GROUP),
        Metric("rocketmq_send_back_nums", "messages that a group sent back per second", _GROUP),
        Metric("rocketmq_consumer_offset", "committed offsets of a group, summed up", _GROUP),
        Metric("rocketmq_group_consume_total_offset", "the same as rocketmq_consumer_offset", _GROUP),
        Metric(
            "rocketmq_group_get_latency_by_storetime",
            "ms: age of the oldest message that is not committed",
            _GROUP,
        ),
        Metric("rocketmq_group_diff", "messages that a group has not committed", _LAG),
        Metric("rocketmq_group_retrydiff", "the same of its retry topic", _LAG),
        Metric("rocketmq_group_dlqdiff", "messages in its dead-letter topic", _LAG),
        Metric("rocketmq_group_count", "connections of a group's members", ("cluster", "broker", "group")),
        *(Metric(RUNTIME + name, f"{key} of 28", _RUNTIME) for name, key in KEYS.items()),
        *(Metric(RUNTIME + name, "sends of putMessageDistributeTime", _RUNTIME) for name in BANDS),
        *(Metric(RUNTIME + name, "bytes", _RUNTIME) for name in SIZES),
        *(
            Metric(f"{RUNTIME}{name}{seconds}", f"{key}, mean over {seconds} s", _RUNTIME)
            for name, key in RATES.items()
            for seconds in SECONDS
        ),
    ),
)


async def exporter_scrape(
    *,
    names: tuple[str, str, str],
    runtime: Mapping[str, str],
    store: MessageStore,
    metadata: Metadata,
    stats: BrokerStats,
    registry: ClientRegistry,
    lags: LagTimes,
    limit: int,
) -> Scrape:
    """Returns the present values, read in slices between which other work runs. names: cluster, brokerName
    and address. runtime: the table of 28. Topics and groups are those of a master only, as in the other
    metrics."""
    cluster, broker, address = names
    made = Scrape(TABLE, (), limit)
    made.add("rocketmq_broker_tps", stats.tps("BROKER_PUT_NUMS", cluster), cluster, address, broker)
    made.add("rocketmq_broker_qps", stats.tps("BROKER_GET_NUMS", cluster), cluster, address, broker)
    boot, version = runtime["bootTimestamp"], runtime["brokerVersion"]
    labels = cluster, address, broker, runtime["brokerVersionDesc"], boot, version
    for name, value in _runtime(runtime, store):
        made.add(RUNTIME + name, value, *labels)
    if store.is_master:
        await in_slices(_add_topics(made, (cluster, broker), store, stats))
        await in_slices(_add_groups(made, (cluster, broker), store, metadata, stats, registry, lags))
    await in_slices(_add_producers(made, (cluster, broker), registry))
    return made


def _add_producers(made: Scrape, at: tuple[str, str], registry: ClientRegistry) -> Slices[None]:
    for number, (group, members) in enumerate(list(registry.producers.items())):
        if number % SLICE_ROWS == 0:
            yield
        made.add("rocketmq_producer_count", len(members), *at, group)


def _runtime(table: Mapping[str, str], store: MessageStore) -> Iterator[tuple[str, float]]:
    for name, key in KEYS.items():
        yield name, float(table[key])
    bands = table["putMessageDistributeTime"].split()
    for name, band in zip(BANDS, bands, strict=True):
        yield name, float(band.rpartition(":")[2])
    for name, key in RATES.items():
        for seconds, rate in zip(SECONDS, table[key].split(), strict=True):
            yield name + seconds, float(rate)
    log = store.commit_log
    disk = disk_room(log.directory)
    yield from zip(SIZES, (max(log.max_offset - log.flushed_offset, 0), disk.free, disk.total), strict=True)


def _add_topics(made: Scrape, at: tuple[str, str], store: MessageStore, stats: BrokerStats) -> Slices[None]:
    for number, (topic, queues) in enumerate(list(store.queues.topics())):
        if number % SLICE_ROWS == 0:
            yield
        end = sum(queue.max_offset for queue in queues.values())
        if topic.startswith(DLQ_PREFIX):
            made.add("rocketmq_topic_dlq_offset", end, *at, topic.removeprefix(DLQ_PREFIX))
            continue
        if topic.startswith(RETRY_PREFIX):
            made.add("rocketmq_topic_retry_offset", end, *at, topic)
            continue
        made.add("rocketmq_producer_offset", end, *at, topic)
        made.add("rocketmq_producer_tps", stats.tps("TOPIC_PUT_NUMS", topic), *at, topic)
        made.add("rocketmq_producer_message_size", stats.tps("TOPIC_PUT_SIZE", topic), *at, topic)


def _add_groups(
    made: Scrape,
    at: tuple[str, str],
    store: MessageStore,
    metadata: Metadata,
    stats: BrokerStats,
    registry: ClientRegistry,
    lags: LagTimes,
) -> Slices[None]:
    for number, (topic, group) in enumerate(list(stats.reads.groups)):
        if number % SLICE_ROWS == 0:
            yield
        key = f"{topic}@{group}"
        tps = stats.tps("GROUP_GET_NUMS", key)
        made.add("rocketmq_consumer_tps", tps, *at, topic, group)
        made.add("rocketmq_group_consume_tps", tps, *at, topic, group)
        made.add("rocketmq_consumer_message_size", stats.tps("GROUP_GET_SIZE", key), *at, topic, group)
        made.add("rocketmq_send_back_nums", stats.tps("SNDBCK_PUT_NUMS", key), *at, topic, group)
    for number, (key, row) in enumerate(list(metadata.offsets.table.rows.items())[: made.limit]):
        if number % SLICE_ROWS == 0:
            yield
        topic, group = split_key(key)
        for name in ("rocketmq_consumer_offset", "rocketmq_group_consume_total_offset"):
            made.add(name, sum(row.values()), *at, topic, group)
    for number, lag in enumerate((yield from lags.counts())):
        if number % SLICE_ROWS == 0:
            yield
        members = registry.consumers.get(lag.group)
        online = 0 if members is None else len(members.members)
        model = "" if members is None else members.message_model
        is_retry = lag.topic.startswith(RETRY_PREFIX)
        name = "rocketmq_group_retrydiff" if is_retry else "rocketmq_group_diff"
        made.add(name, lag.messages, lag.group, lag.topic, str(online), model)
    for number, lag in enumerate(lags.found):
        if number % SLICE_ROWS == 0:
            yield
        made.add("rocketmq_group_get_latency_by_storetime", lag.latency_ms, *at, lag.topic, lag.group)
    for number, (group, found) in enumerate(list(registry.consumers.items())):
        if number % SLICE_ROWS == 0:
            yield
        made.add("rocketmq_group_count", len(found.members), *at, group)
        dead = store.queues.of_topic(DLQ_PREFIX + group)
        if dead:
            count = sum(queue.max_offset - queue.min_offset for queue in dead.values())
            labels = group, DLQ_PREFIX + group, str(len(found.members)), found.message_model
            made.add("rocketmq_group_dlqdiff", count, *labels)
