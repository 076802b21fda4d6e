"""The broker's metrics, with RocketMQ's names where it has them. The metrics of replication are KeelMQ's.

All values are read at the scrape from the state of the broker, in slices between which other work runs: each
series is of one moment. Only a master counts incoming messages and
consumer lag, so that a sum over all brokers counts nothing twice (stats/messages_in.py).
"""

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

import msgspec

from broker.admin.disk_quota import DiskQuota
from broker.admin.group_metrics import (
    METRICS,
    NORMAL,
    OTHERS,
    SLICE_ROWS,
    add_groups,
    has_topic,
    is_system_topic,
    message_type,
)
from broker.admin.lag_times import LagTimes
from broker.admin.pop_metrics import METRICS as POP_METRICS
from broker.admin.pop_metrics import add_pops
from broker.admin.request_metrics import METRICS as REQUEST_METRICS
from broker.admin.request_metrics import add_requests
from broker.admin.timer_metrics import METRICS as TIMER_METRICS
from broker.admin.timer_metrics import STORAGE, STORAGE_LABELS, TimerTimes, add_timers
from broker.admission.pending_replies import PendingReplies
from broker.clients.core.registry import ClientRegistry
from broker.config.broker_config import BrokerConfig
from broker.controller_mode.service import ControllerMode
from broker.core.readiness import BrokerReadiness
from broker.ha.report import status_of
from broker.healing.service import Healer
from broker.message.record import decode
from broker.metadata.service import Metadata
from broker.plain_ha.report import status_of as plain_status_of
from broker.plain_ha.service import PlainHaService
from broker.pop.consumption import PopConsumption
from broker.stats.messages_in import SIZE_BOUNDS, InCount
from broker.stats.service import BrokerStats
from broker.store.log.commit_log import CommitLog
from broker.store.message_store import MessageStore
from broker.store.scrub import Scrub
from broker.timers.service import TimerService
from broker.transactions.core.state import End
from broker.transactions.service import TransactionService
from keelmq.remoting.peer_limits import PeerLimits
from keelmq.remoting.servers.metrics import (
    OVERFLOW,
    TELEMETRY_METRICS,
    Metric,
    Scrape,
    Table,
    add_limits,
    add_loop,
    add_telemetry,
    add_unsent,
    limit_metrics,
    loop_metrics,
    unsent_metrics,
)
from keelmq.remoting.telemetry import TelemetryWriter
from keelmq.remoting.write_buffers import WriteBuffers
from keelmq.runtime import loop_watch
from keelmq.runtime.clock import wall_ms
from keelmq.runtime.disk_room import disk_room
from keelmq.runtime.slices import Slices, in_slices

ROLE_NUMBERS = {"master": 1, "slave": 0, "none": -1}
RECORD_BYTES_MAX = 17_000_000
NO_ID = -1

TABLE = Table(
    "mqbroker",
    ("cluster", "node_type", "node_id", "broker_name", "broker_id"),
    (
        Metric("rocketmq_broker_permission", "brokerPermission: 2 write, 4 read, 6 both"),
        Metric("rocketmq_topic_number", "topics that this broker knows, system topics included"),
        Metric(
            "rocketmq_message_size_bytes",
            "sizes of the records of the messages that rocketmq_messages_in_total counts; the sum is "
            "rocketmq_throughput_in_total",
            ("topic", "message_type", "is_system"),
            is_histogram=True,
        ),
        Metric(
            "rocketmq_messages_in_total",
            "messages stored as master since the start; topics beyond the limit are one series (others). "
            "message_type: of the topic's attribute message.type; normal without one",
            ("topic", "message_type", "is_system"),
        ),
        *METRICS,
        *REQUEST_METRICS,
        Metric("rocketmq_storage_size_bytes", "used bytes of the disk with the store", STORAGE_LABELS),
        Metric(
            "rocketmq_storage_quota_bytes",
            "bytes that the store may use on its disk (replicasPerDiskPartition); absent without it. files: "
            "all, or log and queues if commitlog is on a disk of its own",
            ("files",),
        ),
        Metric(
            "rocketmq_storage_quota_used_bytes",
            "sizes of the files that count against the quota, also without one: log, queues and index",
            ("files",),
        ),
        Metric(
            "rocketmq_storage_flush_behind_bytes", "bytes of the log that are not durable yet", STORAGE_LABELS
        ),
        Metric(
            "rocketmq_storage_dispatch_behind_bytes",
            "bytes of the log that are in no ConsumeQueue yet",
            STORAGE_LABELS,
        ),
        Metric(
            "rocketmq_storage_message_reserve_time_milliseconds", "age of the oldest message", STORAGE_LABELS
        ),
        Metric(
            "rocketmq_storage_fault",
            "1 while the store cannot write, or its disk is above diskSpaceWarningLevelRatio; else 0",
        ),
        Metric(
            "rocketmq_storage_used_ratio",
            "used part of the disk with the log, or of that with the queues if it is fuller: 0 to 1",
        ),
        Metric(
            "rocketmq_log_damaged_bytes",
            "bytes of the log that failed their checksum, and are neither healed nor marked to be passed",
        ),
        Metric(
            "rocketmq_scrub_position_offset", "offset of the log up to which this round of the scrub has read"
        ),
        Metric("rocketmq_scrub_checked_bytes_total", "bytes that the scrub has read and checked"),
        Metric(
            "rocketmq_scrub_rounds_total", "how often the scrub has read the whole log, also before the start"
        ),
        Metric(
            "rocketmq_scrub_entries_rewritten_total",
            "ConsumeQueue entries that were damaged, and that the scrub has rewritten from their records",
        ),
        Metric("rocketmq_broker_connections", "open connections of clients"),
        *unsent_metrics("rocketmq_broker"),
        *limit_metrics("rocketmq_broker"),
        *loop_metrics("rocketmq_broker"),
        Metric(
            "rocketmq_broker_refused_creations_total",
            "topics and groups that were not created automatically because of autoCreateTopicMax, "
            "autoCreateSubscriptionGroupMax or autoCreatePerMinute",
            ("kind",),
        ),
        Metric("rocketmq_broker_waiting_replies", "replies to producers that wait for replicas or the disk"),
        Metric(
            "rocketmq_broker_forwarded_sends_total",
            "messages of clients with an old route, and of those that send to this slave as an alias "
            "(routeAliasesEnable), forwarded to the master",
        ),
        Metric(
            "rocketmq_background_task_deaths_total",
            "background tasks that failed with an exception and were restarted; the log has the traceback",
            ("task",),
        ),
        Metric("rocketmq_broker_name_servers", "name servers that accepted the last registration"),
        Metric("rocketmq_broker_role", "1 master, 0 slave, -1 none (yet, or during a change)"),
        Metric("rocketmq_broker_epoch", "masterEpoch of the last finished role change; 0: none"),
        Metric("rocketmq_broker_fenced", "1 while a master refuses every message (see /readyz), else 0"),
        Metric(
            "rocketmq_broker_isolated",
            "1 while a master reaches neither the controllers nor its in-sync replicas, else 0",
        ),
        Metric("rocketmq_syncstateset_size", "members of the SyncStateSet; of a master only"),
        Metric("rocketmq_syncstateset_epoch", "syncStateSetEpoch; of a master only"),
        Metric("rocketmq_syncstateset_member", "1 for each member; of a master only", ("replica_id",)),
        Metric("rocketmq_min_in_sync_replicas", "minInSyncReplicas: with fewer members sends are refused"),
        Metric(
            "rocketmq_ha_replica_lag_bytes",
            "bytes of the log that a connected replica has not acknowledged",
            ("replica_id",),
        ),
        Metric(
            "rocketmq_ha_replica_lag_seconds",
            "seconds since a connected replica had the whole log",
            ("replica_id",),
        ),
        Metric(
            "rocketmq_ha_transfer_bytes_total",
            "bytes sent to a replica over its current connection",
            ("replica_id",),
        ),
        Metric(
            "rocketmq_ha_connected", "1 while a slave's link to its master is up, else 0; of a slave only"
        ),
        Metric(
            "rocketmq_ha_replica_bytes_per_second",
            "rate of a connected replica, mean over 10 s",
            ("replica_id",),
        ),
        Metric(
            "rocketmq_ha_replica_eta_seconds",
            "seconds until a connected replica has the whole log, at that rate; absent if it falls behind",
            ("replica_id",),
        ),
        Metric(
            "rocketmq_ha_bytes_behind",
            "bytes that a slave lacks of its master's log, as far as it knows that; of a slave only",
        ),
        Metric(
            "rocketmq_ha_fault",
            "1 while replication is stopped: no common epoch, another file size, or a damaged epoch file "
            "until it is made again from the master's log; else 0",
        ),
        Metric(
            "rocketmq_ha_in_sync_copies",
            "of a master without controllers: copies that are in sync (haMaxGapNotInSync), its own included",
        ),
        Metric(
            "rocketmq_ha_refused_total",
            "connections to the replication port that were refused: no proof of membership, or TLS failed",
            ("reason",),
        ),
        Metric("rocketmq_healed_ranges_total", "damaged ranges of the log that were healed from a replica"),
        Metric("rocketmq_healed_bytes_total", "bytes of the log that were healed from a replica"),
        Metric(
            "rocketmq_heal_failures_total",
            "attempts to heal a damaged range that failed. reason: no_peer, no_answer, not_supported (a "
            "RocketMQ broker), refused, damaged (there, too), checksum, epochs, contradicted, outside, "
            "busy, cut, disk",
            ("reason",),
        ),
        Metric("rocketmq_half_messages", "transactions whose producers have not decided yet; of a master"),
        Metric("rocketmq_commit_messages_total", "transactions that were committed", ("topic",)),
        Metric(
            "rocketmq_finish_message_latency_milliseconds",
            "from a message's birth to the commit of its transaction, in seconds (the name is RocketMQ's)",
            ("topic",),
            is_histogram=True,
        ),
        Metric("rocketmq_rollback_messages_total", "transactions that were rolled back", ("topic",)),
        Metric(
            "rocketmq_given_up_messages_total",
            "transactions that were given up: their message is in TRANS_CHECK_MAX_TIME_TOPIC",
            ("topic",),
        ),
        *TIMER_METRICS,
        *POP_METRICS,
        Metric("rocketmq_confirm_offset", "confirmOffset, bytes of the CommitLog"),
        Metric("rocketmq_max_offset", "end of the CommitLog, bytes"),
        Metric("rocketmq_min_offset", "beginning of the CommitLog, bytes"),
        Metric("rocketmq_flushed_offset", "the CommitLog is durable up to here, bytes"),
        *TELEMETRY_METRICS,
        OVERFLOW,
    ),
)


class MetricSources(msgspec.Struct, frozen=True, kw_only=True):
    """The sources of the metrics. write_buffers, limits: None if several brokers share them, which a sum over
    brokers would count several times. controlled: None without controller mode. plain: the replication
    without controllers; None: there is none. telemetry: None if it is off. task_deaths: how often each
    background task has ended by an error."""

    config: BrokerConfig
    store: MessageStore
    quota: DiskQuota
    scrub: Scrub
    pending: PendingReplies
    metadata: Metadata
    stats: BrokerStats
    registry: ClientRegistry
    lags: LagTimes
    transactions: TransactionService
    timers: TimerService
    timer_times: TimerTimes
    healer: Healer
    pop: PopConsumption
    write_buffers: WriteBuffers | None
    limits: PeerLimits | None
    controlled: ControllerMode | None
    plain: PlainHaService | None
    telemetry: TelemetryWriter | None
    readiness: Callable[[], BrokerReadiness]
    connection_count: Callable[[], int]
    task_deaths: Callable[[], Counter[str]]

    async def measure(self) -> None:
        """Makes the measurements that would block other work during a scrape; called before each scrape."""
        await self.lags.measure()
        await self.timer_times.measure()


async def scrape(sources: MetricSources) -> Scrape:
    """Returns the present values."""
    async with sources.stats.scraping:
        return await in_slices(_scrape(sources))


def _scrape(sources: MetricSources) -> Slices[Scrape]:
    readiness, controlled = sources.readiness(), sources.controlled
    limit = sources.config.metrics_otel_cardinality_limit
    made = Scrape(TABLE, _labels(sources.config, controlled), limit)
    made.add("rocketmq_broker_permission", sources.config.broker_permission)
    made.add("rocketmq_topic_number", len(sources.metadata.topics.topics))
    made.add("rocketmq_broker_connections", sources.connection_count())
    if sources.write_buffers is not None:
        add_unsent(made, "rocketmq_broker", sources.write_buffers)
    if sources.limits is not None:
        add_limits(made, "rocketmq_broker", sources.limits)
        add_loop(made, "rocketmq_broker", loop_watch.running())
    for kind, table in (("topic", sources.metadata.topics), ("group", sources.metadata.groups)):
        made.add("rocketmq_broker_refused_creations_total", table.creation.refused, kind)
    made.add("rocketmq_broker_waiting_replies", len(sources.pending))
    made.add("rocketmq_broker_name_servers", len(readiness.registered))
    for task, deaths in sorted(sources.task_deaths().items()):
        made.add("rocketmq_background_task_deaths_total", deaths, task)
    if controlled is not None:
        made.add("rocketmq_broker_forwarded_sends_total", controlled.forwarder.forwarded)
    counts = yield from sources.stats.messages_in.counts()
    yield from _add_messages(made, sources.stats, counts, sources.metadata)
    yield from add_groups(
        made, sources.stats, counts, sources.metadata, sources.lags, sources.store, sources.registry
    )
    yield from add_requests(made, sources.pending.latency, sources.stats)
    yield from _add_transactions(made, sources.store, sources.transactions, sources.metadata)
    yield from add_timers(made, sources.timers, sources.timer_times, sources.metadata)
    yield from add_pops(made, sources.pop, sources.metadata)
    yield
    _add_storage(made, sources.store, sources.scrub, readiness)
    made.add("rocketmq_healed_ranges_total", sources.healer.healed_ranges)
    made.add("rocketmq_healed_bytes_total", sources.healer.healed_bytes)
    for reason, count in sorted(sources.healer.failures.items()):
        made.add("rocketmq_heal_failures_total", count, reason)
    for partition, quota_bytes in sources.quota.partitions():
        made.add("rocketmq_storage_quota_used_bytes", partition.store_bytes.used, partition.files)
        if quota_bytes:
            made.add("rocketmq_storage_quota_bytes", quota_bytes, partition.files)
    _add_role(made, sources.config, readiness, controlled)
    add_telemetry(made, sources.telemetry)
    if controlled is not None:
        _add_replication(made, status_of(controlled.ha), controlled.ha.server.refused)
    if sources.plain is not None:
        _add_replication(made, plain_status_of(sources.plain), sources.plain.server.refused)
    made.add_left_out()
    return made


def _labels(config: BrokerConfig, controlled: ControllerMode | None) -> tuple[str, ...]:
    """Returns the common labels. broker_id: the permanent one, not the 0 that clients see of a master."""
    broker_id = config.broker_id if controlled is None else controlled.role.broker_id or NO_ID
    return (config.broker_cluster_name, "broker", config.broker_name, config.broker_name, str(broker_id))


def _add_messages(
    made: Scrape, stats: BrokerStats, counts: Mapping[str, InCount], metadata: Metadata
) -> Slices[None]:
    found: dict[str, tuple[int, ...]] = {}
    for number, (topic, (messages, log_bytes)) in enumerate(counts.items()):
        if number % SLICE_ROWS == 0:
            yield
        if has_topic(metadata, topic):
            found[topic] = messages, log_bytes, *stats.messages_in.sizes(topic, messages)
    own, others = yield from stats.shared["rocketmq_messages_in_total"].split(found, made.limit)
    series = [
        ((topic, message_type(metadata, topic), is_system_topic(topic)), values)
        for topic, values in own.items()
    ]
    if others:
        series.append(((OTHERS, NORMAL, "false"), others))
    for number, (labels, (messages, log_bytes, *sizes)) in enumerate(series):
        if number % SLICE_ROWS == 0:
            yield
        made.add("rocketmq_messages_in_total", messages, *labels)
        made.add_buckets("rocketmq_message_size_bytes", SIZE_BOUNDS, sizes, log_bytes, *labels)


_ENDS: Final = {
    End.COMMITTED: "rocketmq_commit_messages_total",
    End.ROLLED_BACK: "rocketmq_rollback_messages_total",
    End.GIVEN_UP: "rocketmq_given_up_messages_total",
}


def _add_transactions(
    made: Scrape, store: MessageStore, ended: TransactionService, known: Metadata
) -> Slices[None]:
    if store.is_master:
        made.add("rocketmq_half_messages", len(ended.state))
    for number, ((how, topic), count) in enumerate(ended.ended.most_common(made.limit)):
        if number % SLICE_ROWS == 0:
            yield
        if has_topic(known, topic):
            made.add(_ENDS[how], count, topic)
    for number, (topic, histogram) in enumerate(list(ended.commit_times.items())):
        if number % SLICE_ROWS == 0:
            yield
        if has_topic(known, topic):
            made.add_histogram("rocketmq_finish_message_latency_milliseconds", histogram, topic)


def _add_storage(made: Scrape, store: MessageStore, scrub: Scrub, readiness: BrokerReadiness) -> None:
    log = store.commit_log
    made.add("rocketmq_storage_size_bytes", disk_room(store.root).used, *STORAGE)
    made.add("rocketmq_storage_flush_behind_bytes", max(log.max_offset - log.flushed_offset, 0), *STORAGE)
    made.add("rocketmq_storage_dispatch_behind_bytes", log.max_offset - store.dispatch_offset, *STORAGE)
    oldest_ms = _oldest_ms(log)
    if oldest_ms is not None:
        age_ms = max(wall_ms() - oldest_ms, 0)
        made.add("rocketmq_storage_message_reserve_time_milliseconds", age_ms, *STORAGE)
    made.add("rocketmq_storage_fault", bool(readiness.disk_fault or readiness.no_room))
    used = max(disk_room(each).used_ratio for each in (store.commit_log.directory, store.root))
    made.add("rocketmq_storage_used_ratio", used)
    made.add("rocketmq_log_damaged_bytes", store.damage.unhealed_bytes)
    made.add("rocketmq_scrub_position_offset", scrub.position)
    made.add("rocketmq_scrub_checked_bytes_total", scrub.checked_bytes)
    made.add("rocketmq_scrub_rounds_total", scrub.rounds)
    made.add("rocketmq_scrub_entries_rewritten_total", scrub.entries.rewritten)
    made.add("rocketmq_confirm_offset", store.confirm_offset)
    made.add("rocketmq_max_offset", log.max_offset)
    made.add("rocketmq_min_offset", log.min_offset)
    made.add("rocketmq_flushed_offset", log.flushed_offset)


def _oldest_ms(log: CommitLog) -> int | None:
    """Returns when the first message of the log was stored, in ms; None: there is none, or it is partial."""
    try:
        return decode(log.view(log.min_offset, RECORD_BYTES_MAX)).store_timestamp
    except (ValueError, IndexError, struct.error):
        return None


def _add_role(
    made: Scrape, config: BrokerConfig, readiness: BrokerReadiness, controlled: ControllerMode | None
) -> None:
    made.add("rocketmq_broker_role", ROLE_NUMBERS[readiness.role])
    made.add("rocketmq_broker_epoch", 0 if controlled is None else controlled.role.epoch)
    made.add("rocketmq_broker_fenced", readiness.role == "master" and bool(readiness.refusal))
    made.add("rocketmq_broker_isolated", controlled is not None and controlled.is_isolated)
    made.add("rocketmq_min_in_sync_replicas", config.min_in_sync_replicas)


def _add_replication(made: Scrape, status: dict[str, object], refused: Mapping[str, int]) -> None:
    """status: status_of(ha), of either kind of replication."""
    for reason, count in sorted(refused.items()):
        made.add("rocketmq_ha_refused_total", count, reason)
    made.add("rocketmq_ha_fault", status["fault"] is not None)
    if status["role"] == "slave":
        made.add("rocketmq_ha_bytes_behind", cast(int, status["bytesBehind"]))
        made.add("rocketmq_ha_connected", bool(status["connected"]))
    if status["role"] != "master":
        return
    if "syncStateSet" in status:
        members = cast(list[int], status["syncStateSet"])
        made.add("rocketmq_syncstateset_size", len(members))
        made.add("rocketmq_syncstateset_epoch", cast(int, status["syncStateSetEpoch"]))
        for member in members:
            made.add("rocketmq_syncstateset_member", 1, str(member))
    else:
        made.add("rocketmq_ha_in_sync_copies", cast(int, status["inSync"]))
    end = cast(int, status["maxOffset"])
    for replica in cast(Iterable[dict[str, Any]], status["replicas"]):
        known = (
            replica["brokerId"] > 0
        )  # else the peer uses RocketMQ's classic protocol, and is identified by its address
        name = str(replica["brokerId"] if known else replica["address"])
        made.add("rocketmq_ha_replica_lag_bytes", max(end - max(replica["ackOffset"], 0), 0), name)
        made.add("rocketmq_ha_replica_lag_seconds", replica["lastCaughtUpTimeMs"] / 1_000, name)
        made.add("rocketmq_ha_transfer_bytes_total", replica["sentBytes"], name)
        made.add("rocketmq_ha_replica_bytes_per_second", replica["bytesPerSecond"], name)
        if replica["etaMs"] is not None:
            made.add("rocketmq_ha_replica_eta_seconds", replica["etaMs"] / 1_000, name)
