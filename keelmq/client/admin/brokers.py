"""AdminClient's requests to one broker: status, settings and topics."""

from dataclasses import dataclass

from keelmq.client.admin.transport import ADMIN_TIMEOUT_MS, AdminError, AdminTransport, body_of, properties_of
from keelmq.remoting.operation import Empty
from keelmq.remoting.operations.broker import (
    DELETE_TOPIC_IN_BROKER,
    EXPLAIN_DELETE_TOPIC,
    GET_ALL_TOPIC_CONFIG,
    GET_BROKER_CONFIG,
    GET_BROKER_EPOCH_CACHE,
    GET_BROKER_HA_STATUS,
    GET_BROKER_RUNTIME_INFO,
    QUERY_TOPIC_CONSUME_BY_WHO,
    BrokerNameOptionalRequest,
    CommitLogOffsets,
    EpochEntryCache,
    GroupList,
    HaRuntimeInfo,
    TopicDeletion,
    TopicRequest,
)
from keelmq.remoting.operations.broker_admin import (
    UPDATE_BROKER_CONFIG,
    VIEW_BROKER_STATS_DATA,
    BrokerStatsData,
    ViewStatsRequest,
)
from keelmq.remoting.operations.broker_metadata import UPDATE_AND_CREATE_TOPIC, CreateTopicRequest
from keelmq.remoting.operations.clients import GET_TOPIC_STATS_INFO
from keelmq.remoting.operations.route import TopicConfig, TopicConfigSerializeWrapper, TopicPageRequest
from keelmq.remoting.paged_table import PAGE_ROWS, PagedTable
from keelmq.remoting.queue_map import QueueKey, load_queue_map

TEMPLATE_TOPIC = "TBW102"


@dataclass(frozen=True)
class QueueStats:
    """Offsets of one queue. last_update_timestamp: when its newest message was stored (ms), 0 if it has
    none."""

    min_offset: int
    max_offset: int
    last_update_timestamp: int


@dataclass(frozen=True)
class TopicStats:
    """Statistics of one topic at one broker. put_tps: messages per second, mean of the last minute."""

    queues: dict[QueueKey, QueueStats]
    put_tps: float


class BrokerAdmin(AdminTransport):
    """Requests to one broker: status, settings, statistics and topics. All methods raise AdminError."""

    # brokers

    async def broker_epochs(self, broker_addr: str, broker_name: str) -> EpochEntryCache:
        """Returns the broker's epoch file: masterEpochs with their CommitLog offsets (GET_BROKER_EPOCH_CACHE,
        1007)."""
        header = BrokerNameOptionalRequest(broker_name=broker_name)
        answer = await self.ask(broker_addr, GET_BROKER_EPOCH_CACHE, header)
        return body_of(answer, EpochEntryCache, GET_BROKER_EPOCH_CACHE, broker_addr)

    async def ha_status(self, broker_addr: str) -> HaRuntimeInfo:
        """Returns a master's view of its slaves, or a slave's view of its HA connection
        (GET_BROKER_HA_STATUS, 907)."""
        answer = await self.ask(broker_addr, GET_BROKER_HA_STATUS, Empty())
        return body_of(answer, HaRuntimeInfo, GET_BROKER_HA_STATUS, broker_addr)

    async def runtime_info(self, broker_addr: str, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> dict[str, str]:
        """Returns the broker's runtime statistics as text by name (GET_BROKER_RUNTIME_INFO, 28)."""
        answer = await self.ask(broker_addr, GET_BROKER_RUNTIME_INFO, Empty(), timeout_ms=timeout_ms)
        return dict(body_of(answer, CommitLogOffsets, GET_BROKER_RUNTIME_INFO, broker_addr).table)

    async def broker_config(self, broker_addr: str, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> dict[str, str]:
        """Returns the broker's settings as text by key (GET_BROKER_CONFIG, 26)."""
        return properties_of(await self.ask(broker_addr, GET_BROKER_CONFIG, Empty(), timeout_ms=timeout_ms))

    async def update_broker_config(self, broker_addr: str, key: str, value: str) -> str:
        """Changes one setting (UPDATE_BROKER_CONFIG, 25). Returns the broker's remark, usually empty."""
        body = f"{key}={value}\n".encode()
        return (await self.ask(broker_addr, UPDATE_BROKER_CONFIG, Empty(), body)).remark

    async def view_stats(self, broker_addr: str, name: str, key: str) -> BrokerStatsData:
        """Returns a counter, e.g. TOPIC_PUT_NUMS of a topic, over the last minute, hour and day
        (VIEW_BROKER_STATS_DATA, 315). AdminError 1: the broker has no such counter."""
        header = ViewStatsRequest(stats_name=name, stats_key=key)
        answer = await self.ask(broker_addr, VIEW_BROKER_STATS_DATA, header)
        return body_of(answer, BrokerStatsData, VIEW_BROKER_STATS_DATA, broker_addr)

    # -- topics ------------------------------------------------------------------------------------------

    async def topics(self, broker_addr: str) -> dict[str, TopicConfig]:
        """Returns the configuration of every topic of the broker, by name (GET_ALL_TOPIC_CONFIG, 21)."""
        table = PagedTable[TopicConfig]()
        while True:
            header = TopicPageRequest(
                topic_seq=table.seq, max_topic_num=PAGE_ROWS, data_version=table.version_text
            )
            answer = await self.ask(broker_addr, GET_ALL_TOPIC_CONFIG, header)
            body = body_of(answer, TopicConfigSerializeWrapper, GET_ALL_TOPIC_CONFIG, broker_addr)
            try:
                if table.take(body.topic_config_table, body.data_version, answer.header.total_topic_num):
                    return table.rows
            except ValueError as error:
                raise AdminError(GET_ALL_TOPIC_CONFIG.name, broker_addr, str(error), 0) from error

    async def update_topic(
        self, broker_addr: str, config: TopicConfig, attributes: str | None = None
    ) -> None:
        """Creates or changes a topic (UPDATE_AND_CREATE_TOPIC, 17). `attributes`: changes, "+key=value,-key";
        config.attributes are ignored."""
        header = CreateTopicRequest(
            topic=config.topic_name,
            default_topic=TEMPLATE_TOPIC,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_filter_type=config.topic_filter_type,
            topic_sys_flag=config.topic_sys_flag,
            order=config.order,
            attributes=attributes,
        )
        await self.ask(broker_addr, UPDATE_AND_CREATE_TOPIC, header)

    async def topic_stats(self, broker_addr: str, topic: str) -> TopicStats:
        """Returns the offsets of each queue and the put rate of the topic (GET_TOPIC_STATS_INFO, 202)."""
        answer = await self.ask(broker_addr, GET_TOPIC_STATS_INFO, TopicRequest(topic=topic))
        try:
            table, members = load_queue_map(bytes(answer.body or b"{}"), "offsetTable")
            queues = {
                queue: QueueStats(row["minOffset"], row["maxOffset"], row["lastUpdateTimestamp"])
                for queue, row in table.items()
            }
        except (ValueError, KeyError, TypeError) as error:
            raise AdminError(GET_TOPIC_STATS_INFO.name, broker_addr, f"unreadable: {error}", 0) from error
        return TopicStats(queues, float(members.get("topicPutTps") or 0))

    async def delete_topic_in_broker(self, broker_addr: str, topic: str) -> None:
        """Deletes the topic at this broker (DELETE_TOPIC_IN_BROKER, 215)."""
        await self.ask(broker_addr, DELETE_TOPIC_IN_BROKER, TopicRequest(topic=topic))

    async def explain_delete_topic(self, broker_addr: str, topic: str) -> TopicDeletion:
        """Returns what the broker would delete with the topic (EXPLAIN_DELETE_TOPIC, 29051). Raises as
        explain()."""
        answer = await self.explain(broker_addr, EXPLAIN_DELETE_TOPIC, TopicRequest(topic=topic))
        return body_of(answer, TopicDeletion, EXPLAIN_DELETE_TOPIC, broker_addr)

    async def topic_consumers(self, broker_addr: str, topic: str) -> list[str]:
        """Returns the consumer groups that consume the topic (QUERY_TOPIC_CONSUME_BY_WHO, 300)."""
        answer = await self.ask(broker_addr, QUERY_TOPIC_CONSUME_BY_WHO, TopicRequest(topic=topic))
        return list(body_of(answer, GroupList, QUERY_TOPIC_CONSUME_BY_WHO, broker_addr).group_list)
