"""Handlers of statistics (315), system topics (305), queue entries (321), retention on demand (306, 316, 329)
and the read mode of the log (2004).

Source: RocketMQ 5.3.3 AdminBrokerProcessor.
"""

import json
from typing import Final

from broker.admin.retention_service import RetentionService
from broker.clients.bodies import subscription_body
from broker.clients.core.registry import ClientRegistry, Subscription
from broker.filter.core.subscription import MATCH_ALL, SQL92, MessageFilter
from broker.message.record import decode, parse_properties
from broker.metadata.topics import TopicTable
from broker.stats.core.stats_items import StatsSnapshot
from broker.stats.service import BrokerStats
from broker.store.message_store import MessageStore
from broker.store.querying import record_at
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, CommandError, Empty, OperationTable, Reply
from keelmq.remoting.operations.broker import GET_BROKER_HA_STATUS, HaRuntimeInfo
from keelmq.remoting.operations.broker_admin import (
    CLEAN_EXPIRED_CONSUMEQUEUE,
    CLEAN_UNUSED_TOPIC,
    DELETE_EXPIRED_COMMITLOG,
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    QUERY_CONSUME_QUEUE,
    SET_COMMITLOG_READ_MODE,
    VIEW_BROKER_STATS_DATA,
    BrokerStatsData,
    ConsumeQueueEntries,
    ConsumeQueueEntry,
    ConsumeQueueRequest,
    ReadAheadRequest,
    StatsItem,
    ViewStatsRequest,
)
from keelmq.remoting.operations.route import TopicList
from keelmq.runtime.slices import in_slices

ENTRIES_MAX: Final = 1_000
READ_NORMAL: Final = 0
READ_RANDOM: Final = 1


class StatisticsHandlers:
    """Reads store, topics and statistics; changes only the read mode of the log."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicTable,
        stats: BrokerStats,
        retention: RetentionService,
        registry: ClientRegistry,
    ) -> None:
        self._store, self._topics, self._stats, self._retention = store, topics, stats, retention
        self._registry = registry

    def bind(self, table: OperationTable) -> None:
        """Binds 315, 305, 321, 2004, 306, 316 and 329."""
        table.bind(VIEW_BROKER_STATS_DATA, self.view_stats)
        table.bind(GET_SYSTEM_TOPIC_LIST_FROM_BROKER, self.get_system_topics)
        table.bind(QUERY_CONSUME_QUEUE, self.query_consume_queue)
        table.bind(SET_COMMITLOG_READ_MODE, self.set_read_mode)
        for operation in (CLEAN_EXPIRED_CONSUMEQUEUE, CLEAN_UNUSED_TOPIC, DELETE_EXPIRED_COMMITLOG):
            table.bind(operation, self.clean)

    def bind_alone(self, table: OperationTable) -> None:
        """Binds the HA status (907) of a broker without controllers, which has no replicas."""
        table.bind(GET_BROKER_HA_STATUS, self.get_ha_status)

    async def get_ha_status(self, header: Empty, call: Call) -> Reply:
        """Returns the HA status of a master without replicas (907)."""
        end = self._store.commit_log.max_offset
        return Reply(body=HaRuntimeInfo(master=True, master_commit_log_max_offset=end))

    async def view_stats(self, header: ViewStatsRequest, call: Call) -> Reply:
        """Returns sum, rate per second and average of a counter, for the last minute, hour and day (315).
        Raises CommandError if there is no such counter."""
        found = self._stats.snapshot(header.stats_name, header.stats_key)
        if found is None:
            known = ", ".join(self._stats.names)
            remark = f"The stats <{header.stats_name}> <{header.stats_key}> not exist (kinds: {known})"
            raise CommandError(ResponseCode.SYSTEM_ERROR, remark)
        minute, hour, day = map(_item, found)
        return Reply(body=BrokerStatsData(stats_minute=minute, stats_hour=hour, stats_day=day))

    async def get_system_topics(self, header: Empty, call: Call) -> Reply:
        """Returns the names of the system topics, sorted (305)."""
        return Reply(body=TopicList(topic_list=sorted(await in_slices(self._topics.system_topics()))))

    async def query_consume_queue(self, header: ConsumeQueueRequest, call: Call) -> Reply:
        """Returns up to ENTRIES_MAX units of a consume queue from `index` on, and the queue's bounds (321).
        With a group: also its subscription, and which messages match it; RocketMQ reports a match only for
        entries with a filter bit map. Raises CommandError if there is no such queue."""
        queue = self._store.find_queue(header.topic, header.queue_id)
        if queue is None:
            remark = f"{header.queue_id}@{header.topic} is not exist!"
            raise CommandError(ResponseCode.SYSTEM_ERROR, remark)
        begin = max(header.index, queue.min_offset)
        end = min(begin + min(max(header.count, 0), ENTRIES_MAX), queue.max_offset)
        body = ConsumeQueueEntries(max_queue_index=queue.max_offset, min_queue_index=queue.min_offset)
        wanted: MessageFilter | None = MATCH_ALL
        if header.consumer_group is not None:
            group = self._registry.consumers.get(header.consumer_group)
            found = group.subscriptions.get(header.topic) if group is not None else None
            wanted = MATCH_ALL if found is None else found.message_filter
            body = body.model_copy(
                update={
                    "subscription_data": None if found is None else subscription_body(found),
                    "filter_data": _filter_data(header.consumer_group, header.topic, found),
                }
            )
        entries = [
            ConsumeQueueEntry(
                physic_offset=offset, physic_size=size, tags_code=tags_code,
                eval=self._matches(wanted, offset, tags_code),
            )
            for offset, size, tags_code in map(queue.unit, range(begin, end))
        ]  # fmt: skip
        return Reply(body=body.model_copy(update={"queue_data": entries}))

    def _matches(self, wanted: MessageFilter | None, offset: int, tags_code: int) -> bool:
        """wanted None: the expression is illegal, and matches nothing."""
        if wanted is None or wanted.sql is None:
            return wanted is not None and (wanted.tag_codes is None or tags_code in wanted.tag_codes)
        record = record_at(self._store, offset)
        return record is not None and wanted.sql.matches(parse_properties(decode(record).properties))

    async def clean(self, header: Empty, call: Call) -> Reply:
        """Starts a round of retention at once, at any hour of the day (306, 316, 329). Queues of deleted
        topics are deleted with their messages; an empty queue stays, because it holds the topic's next
        offset."""
        self._retention.requested = True
        call.changes["retention"] = "waits for its hour", "starts at once"
        return Reply()

    async def set_read_mode(self, header: ReadAheadRequest, call: Call) -> Reply:
        """Sets the read mode of the log until the broker stops (2004)."""
        if header.mode not in (READ_NORMAL, READ_RANDOM):
            remark = "set commitlog readahead mode param value error"
            raise CommandError(ResponseCode.SYSTEM_ERROR, f"{remark}: it is 0 (normal) or 1 (random)")
        self._store.commit_log.read_ahead(header.mode == READ_NORMAL)
        call.changes["readMode"] = None, "normal" if header.mode == READ_NORMAL else "random"
        return Reply(remark=f"set commitlog readahead mode success, mode: {header.mode}")


def _filter_data(group: str, topic: str, found: Subscription | None) -> str:
    """Returns RocketMQ's description of a group's filter, JSON text if the group is online. The members of
    its ConsumerFilterData that KeelMQ does not have are left out."""
    if found is None:
        return f"{group}@{topic} is not online!"
    if found.expression_type != SQL92:
        return "null"
    data = {
        "consumerGroup": group,
        "topic": topic,
        "expression": found.sub_string,
        "expressionType": found.expression_type,
        "clientVersion": found.version,
    }
    return json.dumps(data, indent=2, ensure_ascii=False)


def _item(snapshot: StatsSnapshot) -> StatsItem:
    return StatsItem(sum=snapshot.sum, tps=round(snapshot.tps, 4), avgpt=round(snapshot.per_time, 4))
