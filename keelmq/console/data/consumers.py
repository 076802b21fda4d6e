"""Consumer groups: the list with their lag, and one group with its queues, members and settings."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import Field

from keelmq.client.admin import AdminError, gather_some
from keelmq.client.admin.groups import GroupProgress
from keelmq.client.admin.progress import NOBODY, RETRY_PREFIX, owners_of
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
from keelmq.remoting.operations.broker_metadata import SubscriptionGroupConfig
from keelmq.remoting.operations.clients import ConsumerConnectionBody
from keelmq.remoting.queue_map import queue_json
from keelmq.runtime.clock import wall_ms

STATS_TIMEOUT_MS: Final = 8_000
"""Time limit for the progress of every group of a broker."""
MEMBERS_ASKED_MAX: Final = 3
"""Brokers of a group that are asked for its members: members are known at every broker of their topics."""
QUEUES_MAX: Final = 4_096
MEMBERS_MAX: Final = 500
SYSTEM_GROUPS: Final = frozenset(
    (
        "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "__MONITOR_CONSUMER", "CLIENT_INNER_PRODUCER",
        "SELF_TEST_P_GROUP", "SELF_TEST_C_GROUP", "CID_ONSAPI_OWNER", "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_PULL", "CID_RMQ_SYS_TRANS", "CID_ONS-HTTP-PROXY",
        "CID_DefaultHeartBeatSyncerTopic",
    )
)  # fmt: skip


class GroupRow(Wire):
    """A consumer group. kind: normal, fifo or system. lag, tps null: no broker has told it. members null:
    not asked, or unknown. unknownAt: brokers that have the group's settings, but did not tell its lag, so
    lag is not complete."""

    name: str
    kind: str
    brokers: int
    members: int | None = None
    consume_type: str = ""
    message_model: str = ""
    lag: int | None = None
    tps: float | None = None
    topics: int | None = None
    unknown_at: int = 0


class GroupsView(Page):
    """A page of groups."""

    groups: list[GroupRow]


class QueueLag(Wire):
    """A queue of a group. clientId "": no member says it has it, or nobody was asked. lastMs: when its last
    consumed message was stored."""

    topic: str
    broker_name: str
    queue_id: int
    broker_offset: int
    consumer_offset: int
    lag: int
    in_flight: int
    last_ms: int | None = None
    client_id: str = ""


class MemberRow(Wire):
    """A connected consumer."""

    client_id: str
    address: str
    language: str
    version: int


class SubscriptionRow(Wire):
    """expression: tags, or an SQL92 condition."""

    topic: str
    expression: str
    type: str


class GroupAtBroker(BrokerRow):
    """The settings of a group at a broker."""

    settings: SubscriptionGroupConfig


class GroupView(Wire):
    """One consumer group. differ: its settings are not the same at all brokers."""

    taken_ms: int
    name: str
    kind: str
    lag: int
    tps: float
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""
    members: list[MemberRow]
    subscriptions: list[SubscriptionRow]
    queues: list[QueueLag]
    brokers: list[GroupAtBroker]
    differ: bool = False
    cut: int = 0
    problems: list[ServerProblem] = Field(default_factory=list)


class RunningInfoView(Wire):
    """What a member says of itself: ConsumerRunningInfo, with mqTable as a list."""

    client_id: str
    info: dict[str, Any]


class AllGroups(Every[GroupRow]):
    """broker_addresses: group -> addresses of brokers that may know members."""

    broker_addresses: dict[str, list[str]]


async def all_groups(context: ClusterContext) -> AllGroups:
    """Returns every group that a broker knows. AdminError: no name server answers."""
    server_problems = ServerProblems()
    info = await context.admin.name_servers.cluster_info(context.name_servers)
    brokers = brokers_in(info)
    tables = await ask_each(server_problems, brokers, context.admin.groups.list_groups)
    progress = dict(
        await ask_each(
            server_problems,
            brokers,
            lambda at: context.admin.groups.broker_consume_stats(at, timeout_ms=STATS_TIMEOUT_MS),
            at_once=4,
        )
    )
    await asyncio.sleep(0)
    configs: dict[str, dict[BrokerReplica, SubscriptionGroupConfig]] = {}
    for broker, table in tables:
        for name, config in table.items():
            configs.setdefault(name, {})[broker] = config
    for lags in progress.values():
        for name in lags:
            configs.setdefault(name, {})
    rows, broker_addresses = [], {}
    for name in sorted(configs):
        rows.append(_row(name, configs[name], progress))
        known = [each for each in progress if progress[each].get(name)] or list(configs[name])
        broker_addresses[name] = [each.address for each in known[:MEMBERS_ASKED_MAX]]
    return AllGroups(
        taken_ms=wall_ms(),
        rows=rows,
        broker_addresses=broker_addresses,
        problems=server_problems.listed,
        not_asked=server_problems.not_asked,
    )


def _row(
    name: str,
    configs: Mapping[BrokerReplica, SubscriptionGroupConfig],
    progress: Mapping[BrokerReplica, Mapping[str, list[GroupProgress]]],
) -> GroupRow:
    lags = [each for table in progress.values() for each in table.get(name, [])]
    is_known = any(each in progress for each in configs) or bool(lags)
    return GroupRow(
        name=name,
        kind=kind_of(name, configs.values()),
        brokers=len(configs),
        lag=sum(row.behind for each in lags for row in each.queues.values()) if is_known else None,
        tps=sum((each.tps for each in lags), 0.0) if is_known else None,
        topics=len({key.topic for each in lags for key in each.queues if not key.topic.startswith("%")})
        if is_known
        else None,
        unknown_at=sum(each not in progress for each in configs),
    )


def kind_of(name: str, configs: Iterable[SubscriptionGroupConfig]) -> str:
    """Returns normal, fifo (members consume in order) or system."""
    if name in SYSTEM_GROUPS or name.startswith(("CID_RMQ_SYS_", "%SYS%")):
        return "system"
    return "fifo" if any(each.consume_message_orderly for each in configs) else "normal"


async def page_of(
    context: ClusterContext, every: AllGroups, *, words: str, kind: str, sort: str, offset: int, limit: int
) -> GroupsView:
    """Returns a page of groups, with the members of those that are shown. sort: "lag" (largest first) or
    "name"."""
    found = [row for row in every.found(words, lambda row: row.name) if not kind or row.kind == kind]
    if sort == "lag":
        found.sort(key=lambda row: -1 if row.lag is None else row.lag, reverse=True)
    server_problems = ServerProblems()
    page = await gather_some(
        (
            _with_members(context, row, every.broker_addresses[row.name], server_problems)
            for row in found[offset : offset + limit]
        ),
        16,
    )
    problems = {each.server: each for each in (*server_problems.listed, *every.problems)}
    listed = [problems[each] for each in sorted(problems)]
    return GroupsView(**{**every.page(len(found)), "problems": listed}, groups=page)


async def _with_members(
    context: ClusterContext, row: GroupRow, addresses: list[str], server_problems: ServerProblems
) -> GroupRow:
    is_told = False
    for address in addresses:
        try:
            body = await context.admin.groups.consumer_connections(address, row.name)
        except AdminError as error:
            is_told = is_told or error.code in NOBODY
            server_problems.add(error, unless=NOBODY)
            continue
        changed = {
            "members": len(body.connection_set),
            "consume_type": body.consume_type,
            "message_model": body.message_model,
        }
        return row.model_copy(update=changed)
    return row.model_copy(update={"members": 0}) if is_told else row


async def group(context: ClusterContext, name: str, *, with_clients: bool) -> GroupView:
    """Returns one group. with_clients: members are asked which queues they have. Raises Missing."""
    server_problems = ServerProblems()
    info = await context.admin.name_servers.cluster_info(context.name_servers)
    configs = [
        (broker, config)
        for broker, config in await ask_each(
            server_problems, brokers_in(info), lambda at: _config(context, at, name)
        )
        if config is not None
    ]
    try:
        route = await route_of(context, RETRY_PREFIX + name)
        brokers = brokers_of(route)
    except Missing:
        route, brokers = None, [broker for broker, _ in configs]
    if not configs and route is None and not server_problems.by_server:
        raise Missing(f"no broker has a consumer group {name}")
    progress = await ask_each(
        server_problems, brokers, lambda at: context.admin.groups.consume_stats(at, name)
    )
    members, member_errors = await _members(context, brokers, name)
    for error in member_errors:
        server_problems.add(error, unless=NOBODY)
    owners = await owners_of(context.admin, route, name) if with_clients and members and route else {}
    queues = [
        QueueLag(
            topic=key.topic,
            broker_name=key.broker_name,
            queue_id=key.queue_id,
            broker_offset=row.broker_offset,
            consumer_offset=row.consumer_offset,
            lag=row.behind,
            in_flight=row.in_flight,
            last_ms=row.last_timestamp or None,
            client_id=owners.get(key, ""),
        )
        for _, each in progress
        for key, row in sorted(each.queues.items())
    ]
    return GroupView(
        taken_ms=wall_ms(),
        name=name,
        kind=kind_of(name, [config for _, config in configs]),
        lag=sum(each.lag for each in queues),
        tps=sum((each.tps for _, each in progress), 0.0),
        consume_type=members.consume_type if members else "",
        message_model=members.message_model if members else "",
        consume_from_where=members.consume_from_where if members else "",
        members=_member_rows(members),
        subscriptions=_subscription_rows(members),
        queues=sorted(queues, key=lambda each: (each.topic, each.broker_name, each.queue_id))[:QUEUES_MAX],
        brokers=[GroupAtBroker(**row_of(broker), settings=config) for broker, config in configs],
        differ=any(config != configs[0][1] for _, config in configs),
        cut=max(0, len(queues) - QUEUES_MAX),
        problems=server_problems.listed,
    )


async def _config(context: ClusterContext, address: str, name: str) -> SubscriptionGroupConfig | None:
    return (await context.admin.groups.list_groups(address)).get(name)


async def _members(
    context: ClusterContext, brokers: list[BrokerReplica], name: str
) -> tuple[ConsumerConnectionBody | None, list[AdminError]]:
    errors: list[AdminError] = []
    for broker in brokers[:MEMBERS_ASKED_MAX]:
        try:
            return await context.admin.groups.consumer_connections(broker.address, name), errors
        except AdminError as error:
            errors.append(error)
    return None, errors


def _member_rows(members: ConsumerConnectionBody | None) -> list[MemberRow]:
    found = sorted(members.connection_set, key=lambda each: each.client_id) if members else []
    return [
        MemberRow(
            client_id=each.client_id, address=each.client_addr, language=each.language, version=each.version
        )
        for each in found[:MEMBERS_MAX]
    ]


def _subscription_rows(members: ConsumerConnectionBody | None) -> list[SubscriptionRow]:
    table = members.subscription_table if members else {}
    return [
        SubscriptionRow(topic=each.topic, expression=each.sub_string, type=each.expression_type)
        for _, each in sorted(table.items())
    ]


async def running_info(
    context: ClusterContext, name: str, client_id: str, *, threads: bool
) -> RunningInfoView:
    """Returns what a member reports about itself; threads: with its stack traces. Raises Missing."""
    brokers = brokers_of(await route_of(context, RETRY_PREFIX + name))
    problem: AdminError | None = None
    for broker in brokers[:MEMBERS_ASKED_MAX]:
        try:
            info = await context.admin.groups.running_info(broker.address, name, client_id, jstack=threads)
        except AdminError as error:
            problem = error
            continue
        table = [{"queue": queue_json(key), "state": state} for key, state in sorted(info["mqTable"].items())]
        return RunningInfoView(client_id=client_id, info={**info, "mqTable": table})
    if problem is None or problem.code == ResponseCode.CONSUMER_NOT_ONLINE:
        raise Missing(f"no member {client_id} of group {name} is connected")
    raise problem
