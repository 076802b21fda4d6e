"""Topics: the list with their kinds, and one topic with its queues at each broker."""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import Final

from pydantic import Field

from keelmq.client.admin import AdminError
from keelmq.client.admin.progress import DLQ_PREFIX, RETRY_PREFIX
from keelmq.console.data.cluster_context import (
    BrokerReplica,
    BrokerRow,
    ClusterContext,
    Every,
    Missing,
    Page,
    ServerProblem,
    ServerProblems,
    ask_each,
    brokers_in,
    brokers_of,
    route_of,
    row_of,
)
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Wire
from keelmq.remoting.operations.broker import TopicRequest
from keelmq.remoting.operations.broker_metadata import GET_TOPIC_CONFIG
from keelmq.remoting.operations.route import TopicConfig
from keelmq.runtime.clock import wall_ms

MESSAGE_TYPE: Final = "message.type"
SYSTEM_TOPICS: Final = frozenset(
    (
        "TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT",
        "TRANS_CHECK_MAX_TIME_TOPIC", "DefaultHeartBeatSyncerTopic",
    )
)  # fmt: skip
SYSTEM_PREFIXES: Final = ("RMQ_SYS_", "rmq_sys_", "CID_RMQ_SYS_", "%SYS%", "SYNC_BROKER_MEMBER_")
QUEUES_MAX: Final = 4_096
"""Queues of one topic that a page shows."""


class TopicKind(StrEnum):
    """What a topic is for: its message type, or who made it."""

    NORMAL = "normal"
    FIFO = "fifo"
    DELAY = "delay"
    TRANSACTION = "transaction"
    MIXED = "mixed"
    RETRY = "retry"
    DLQ = "dlq"
    SYSTEM = "system"


class TopicRow(Wire):
    """A topic over all brokers. readQueues, writeQueues: of all of them together. perm null: brokers differ,
    or none answered."""

    name: str
    kind: TopicKind
    clusters: list[str] = Field(default_factory=list)
    brokers: int = 0
    read_queues: int | None = None
    write_queues: int | None = None
    perm: int | None = None
    order: bool = False


class TopicsView(Page):
    """A page of topics. counts: of all topics, by kind."""

    counts: dict[str, int]
    topics: list[TopicRow]


class QueueRow(Wire):
    """A queue. lastUpdateMs: when its newest message was stored, null: it has none."""

    broker_name: str
    queue_id: int
    min_offset: int
    max_offset: int
    last_update_ms: int | None = None


class TopicAtBroker(BrokerRow):
    """A topic at one broker. putTps null: the broker did not say."""

    read_queues: int
    write_queues: int
    perm: int
    order: bool | None = None
    attributes: dict[str, str] = Field(default_factory=dict)
    put_tps: float | None = None
    messages: int | None = None


class TopicView(Wire):
    """One topic. putTps: of the brokers that answered. cut: queues that are not shown."""

    taken_ms: int
    name: str
    kind: TopicKind
    brokers: list[TopicAtBroker]
    queues: list[QueueRow]
    consumers: list[str]
    put_tps: float
    messages: int
    cut: int = 0
    problems: list[ServerProblem] = Field(default_factory=list)


def kind_of(name: str, configs: Iterable[TopicConfig], reserved: Collection[str] = ()) -> TopicKind:
    """Returns the kind. reserved: names of clusters and brokers, which have topics of their own."""
    if name.startswith(RETRY_PREFIX):
        return TopicKind.RETRY
    if name.startswith(DLQ_PREFIX):
        return TopicKind.DLQ
    if name in SYSTEM_TOPICS or name.startswith(SYSTEM_PREFIXES) or name in reserved:
        return TopicKind.SYSTEM
    for config in configs:
        kind = config.attributes.get(MESSAGE_TYPE, "").lower()
        if kind in set(TopicKind) and kind != TopicKind.NORMAL:
            return TopicKind(kind)
        if config.order:
            return TopicKind.FIFO
    return TopicKind.NORMAL


async def all_topics(context: ClusterContext) -> Every[TopicRow]:
    """Returns every topic that a name server or a broker knows. AdminError: no name server answers."""
    server_problems = ServerProblems()
    info = await context.admin.name_servers.cluster_info(context.name_servers)
    answers = await ask_each(server_problems, brokers_in(info), context.admin.brokers.topics)
    tables: dict[str, list[tuple[BrokerReplica, TopicConfig]]] = {}
    for broker, table in answers:
        for name, config in table.items():
            tables.setdefault(name, []).append((broker, config))
        await asyncio.sleep(0)  # a thousand brokers with thousands of topics must not block the loop
    try:
        for name in await context.admin.name_servers.topic_list(context.name_servers):
            tables.setdefault(name, [])
    except AdminError as error:
        server_problems.add(error)
    clusters = set(info.cluster_addr_table)
    replies = {f"{each}_REPLY_TOPIC" for each in clusters}
    reserved = clusters | replies | set(info.broker_addr_table)
    rows = [_row(name, tables[name], reserved) for name in sorted(tables)]
    return Every(
        taken_ms=wall_ms(), rows=rows, problems=server_problems.listed, not_asked=server_problems.not_asked
    )


def _row(name: str, found: list[tuple[BrokerReplica, TopicConfig]], reserved: Collection[str]) -> TopicRow:
    configs = [config for _, config in found]
    perms = {config.perm for config in configs}
    return TopicRow(
        name=name,
        kind=kind_of(name, configs, reserved),
        clusters=sorted({broker.cluster for broker, _ in found}),
        brokers=len(found),
        read_queues=sum(each.read_queue_nums for each in configs) if configs else None,
        write_queues=sum(each.write_queue_nums for each in configs) if configs else None,
        perm=perms.pop() if len(perms) == 1 else None,
        order=any(each.order for each in configs),
    )


def page_of(
    every: Every[TopicRow], *, words: str, kinds: Collection[str], offset: int, limit: int
) -> TopicsView:
    """Returns a page of the topics whose names have every word, of these kinds (empty: all)."""
    found = [row for row in every.found(words, lambda row: row.name) if not kinds or row.kind in kinds]
    return TopicsView(
        **every.page(len(found)),
        counts=dict(sorted(Counter(str(row.kind) for row in every.rows).items())),
        topics=found[offset : offset + limit],
    )


async def topic(context: ClusterContext, name: str) -> TopicView:
    """Returns one topic at all its brokers. Raises Missing, or AdminError: no name server answers."""
    server_problems = ServerProblems()
    route = await route_of(context, name)
    brokers = brokers_of(route)
    if not brokers:
        raise Missing(f"topic {name} has no broker")
    configs = dict(await ask_each(server_problems, brokers, lambda at: _config(context, at, name)))
    stats = dict(
        await ask_each(server_problems, brokers, lambda at: context.admin.brokers.topic_stats(at, name))
    )
    groups = await ask_each(
        server_problems,
        brokers,
        lambda at: context.admin.brokers.topic_consumers(at, name),
        unless=(ResponseCode.REQUEST_CODE_NOT_SUPPORTED,),
    )
    queue_datas = {each.broker_name: each for each in route.queue_datas}
    rows = []
    for each in brokers:
        config, stat, queues = configs.get(each), stats.get(each), queue_datas.get(each.name)
        rows.append(
            TopicAtBroker(
                **row_of(each),
                read_queues=queues.read_queue_nums if queues else 0,
                write_queues=queues.write_queue_nums if queues else 0,
                perm=queues.perm if queues else 0,
                order=None if config is None else config.order,
                attributes={} if config is None else config.attributes,
                put_tps=None if stat is None else stat.put_tps,
                messages=None
                if stat is None
                else sum(row.max_offset - row.min_offset for row in stat.queues.values()),
            )
        )
    every = [
        QueueRow(
            broker_name=key.broker_name,
            queue_id=key.queue_id,
            min_offset=row.min_offset,
            max_offset=row.max_offset,
            last_update_ms=row.last_update_timestamp or None,
        )
        for stat in stats.values()
        for key, row in sorted(stat.queues.items())
    ]
    return TopicView(
        taken_ms=wall_ms(),
        name=name,
        kind=kind_of(name, [each for each in configs.values() if each is not None]),
        brokers=rows,
        queues=every[:QUEUES_MAX],
        consumers=sorted({group for _, found in groups for group in found}),
        put_tps=sum((each.put_tps for each in stats.values()), 0.0),
        messages=sum(each.messages or 0 for each in rows),
        cut=max(0, len(every) - QUEUES_MAX),
        problems=server_problems.listed,
    )


async def _config(context: ClusterContext, address: str, name: str) -> TopicConfig | None:
    try:
        answer = await context.admin.ask(address, GET_TOPIC_CONFIG, TopicRequest(topic=name))
    except AdminError as error:
        if error.code in (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.TOPIC_NOT_EXIST):
            return None  # an old broker, or a topic that waits in the route only
        raise
    return answer.body if isinstance(answer.body, TopicConfig) else None
