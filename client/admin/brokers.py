"""What AdminClient asks of one broker: how it is, its settings, its topics."""

from client.admin.asking import ADMIN_TIMEOUT_MS, Asking, body_of, properties_of
from remoting.operation import Empty
from remoting.operations.broker import (
    DELETE_TOPIC_IN_BROKER,
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
    TopicRequest,
)


class BrokerQuestions(Asking):
    """One broker each."""

    # brokers

    async def broker_epochs(self, broker_addr: str, broker_name: str) -> EpochEntryCache:
        header = BrokerNameOptionalRequest(broker_name=broker_name)
        answer = await self.ask(broker_addr, GET_BROKER_EPOCH_CACHE, header)
        return body_of(answer, EpochEntryCache, GET_BROKER_EPOCH_CACHE, broker_addr)

    async def ha_status(self, broker_addr: str) -> HaRuntimeInfo:
        """What a master tells of its slaves, or a slave of its link."""
        answer = await self.ask(broker_addr, GET_BROKER_HA_STATUS, Empty())
        return body_of(answer, HaRuntimeInfo, GET_BROKER_HA_STATUS, broker_addr)

    async def runtime_info(self, broker_addr: str, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> dict[str, str]:
        answer = await self.ask(broker_addr, GET_BROKER_RUNTIME_INFO, Empty(), timeout_ms=timeout_ms)
        return dict(body_of(answer, CommitLogOffsets, GET_BROKER_RUNTIME_INFO, broker_addr).table)

    async def broker_config(self, broker_addr: str, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> dict[str, str]:
        return properties_of(await self.ask(broker_addr, GET_BROKER_CONFIG, Empty(), timeout_ms=timeout_ms))

    async def delete_topic_in_broker(self, broker_addr: str, topic: str) -> None:
        await self.ask(broker_addr, DELETE_TOPIC_IN_BROKER, TopicRequest(topic=topic))

    async def topic_consumers(self, broker_addr: str, topic: str) -> list[str]:
        """The consumer groups of the topic."""
        answer = await self.ask(broker_addr, QUERY_TOPIC_CONSUME_BY_WHO, TopicRequest(topic=topic))
        return list(body_of(answer, GroupList, QUERY_TOPIC_CONSUME_BY_WHO, broker_addr).group_list)
