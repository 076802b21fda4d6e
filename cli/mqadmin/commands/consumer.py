"""mqadmin: consumers and producers, and the progress of consumer groups."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.command_line import NamesrvAddr, OptionalNamesrvAddr
from cli.mqadmin.layouts import group as layouts_group
from cli.mqadmin.layouts.group import GroupRow
from cli.mqadmin.shell import Action, Output, command, dump, explain
from cli.mqadmin.targets import shown
from keelmq.client.admin import AdminClient, AdminError, gather_some
from keelmq.client.admin.groups import QueueProgress
from keelmq.client.admin.places import ask_brokers
from keelmq.client.admin.progress import NOBODY, RETRY_PREFIX, members_of, owners_of, progress_of
from keelmq.health.findings import plural
from keelmq.remoting.booleans import is_true
from keelmq.remoting.codes import MASTER_ID, PERM_READ, ResponseCode, version_text
from keelmq.remoting.operations.clients import ConnectionBody, ConsumerConnectionBody
from keelmq.remoting.operations.route import TopicRouteData
from keelmq.remoting.queue_map import QueueKey, queue_json

BROADCASTING = "BROADCASTING"
REBALANCED = "Rebalance OK"
QUEUES_SHOWN = 10
ConsumerGroup = Annotated[str, typer.Option("-g", "--consumerGroup", help="Consumer group")]
Broker = Annotated[
    str | None, typer.Option("-b", "--brokerAddr", help="Send the request to this broker, host:port")
]


@command("consumerProgress")
def consumer_progress(
    namesrv_addr: NamesrvAddr,
    group: Annotated[
        str | None, typer.Option("-g", "--groupName", help="Consumer group (default: all)")
    ] = None,
    topic: Annotated[
        str | None, typer.Option("-t", "--topicName", help="Only this topic of the group")
    ] = None,
    show_client: Annotated[
        str, typer.Option("-s", "--showClientIP", help="true: show which client has each queue")
    ] = "false",
    cluster: Annotated[
        str | None, typer.Option("-c", "--cluster", help="Cluster or topic whose route is used")
    ] = None,
) -> Action:
    """Progress of a consumer group in each queue (-g), or the lag of every group."""

    async def action(admin: AdminClient) -> Output:
        if group is None:
            return await _all_groups(admin, namesrv_addr)
        route = await _route_of_group(admin, namesrv_addr, group, cluster or topic)
        progress, errors = await progress_of(admin, route, group, topic)
        if not progress.queues and not errors:
            remark = f"group {group} has consumed nothing yet; it is known after its first commit"
            raise AdminError("consumerProgress", namesrv_addr, remark, ResponseCode.CONSUMER_NOT_ONLINE)
        wanted = is_true(show_client)
        owners = await owners_of(admin, route, group) if wanted else None
        text = layouts_group.progress(progress.queues, progress.tps, owners)
        value = {"consumeTps": progress.tps, "queues": _rows(progress.queues, owners)}
        return shown(value, text, errors, found=bool(progress.queues))

    return action


def _rows(
    queues: Mapping[QueueKey, QueueProgress], owners: Mapping[QueueKey, str] | None
) -> list[dict[str, Any]]:
    return [
        queue_json(key)
        | {
            "brokerOffset": row.broker_offset,
            "consumerOffset": row.consumer_offset,
            "diff": row.behind,
            "inflight": row.in_flight,
            "lastTimestamp": row.last_timestamp,
            **({"clientId": owners.get(key)} if owners is not None else {}),
        }
        for key, row in sorted(queues.items())
    ]


async def _route_of_group(
    admin: AdminClient, namesrv_addr: str, group: str, place: str | None
) -> TopicRouteData:
    """Returns the route of the given topic or cluster, else of the group's retry topic, which all its brokers
    have."""
    return await admin.name_servers.topic_route(namesrv_addr, place or RETRY_PREFIX + group)


async def _all_groups(admin: AdminClient, namesrv_addr: str) -> Output:
    topics = await admin.name_servers.topic_list(namesrv_addr)
    names = sorted(each.removeprefix(RETRY_PREFIX) for each in topics if each.startswith(RETRY_PREFIX))
    found = await gather_some([_group_row(admin, namesrv_addr, name) for name in names])
    rows = sorted((row for row, _ in found), key=lambda row: (-row.behind, row.group))
    value = [
        {
            "consumerGroup": row.group,
            "count": row.members,
            "version": version_text(row.version) if row.members else "OFFLINE",
            "consumeType": row.consume_type,
            "messageModel": row.message_model,
            "consumeTps": row.tps,
            "diffTotal": row.behind,
        }
        for row in rows
    ]
    problems = [problem for _, problems in found for problem in problems]
    return Output(value, layouts_group.groups(rows), tuple(dict.fromkeys(problems)))


async def _group_row(admin: AdminClient, namesrv_addr: str, group: str) -> tuple[GroupRow, list[str]]:
    try:
        route = await admin.name_servers.topic_route(namesrv_addr, RETRY_PREFIX + group)
    except AdminError as error:
        return GroupRow(group, 0, 0, "", "", 0.0, 0), [explain(error)]
    progress, errors = await progress_of(admin, route, group, None)
    _, body, unknown = await members_of(admin, route, group)
    behind = sum(row.behind for row in progress.queues.values())
    problems = [explain(error) for error in (*errors, *unknown) if error.code not in NOBODY]
    if body is None:
        return GroupRow(group, 0, 0, "", "", progress.tps, behind), problems
    members = body.connection_set
    version = min((each.version for each in members), default=0)
    row = GroupRow(group, len(members), version, body.consume_type, body.message_model, progress.tps, behind)
    return row, problems


@command("consumerConnection")
def consumer_connection(
    group: ConsumerGroup, broker_addr: Broker = None, namesrv_addr: OptionalNamesrvAddr = None
) -> Action:
    """The members of a consumer group, and its subscriptions."""
    _needs_one(broker_addr, namesrv_addr)

    async def action(admin: AdminClient) -> Output:
        _, body = await _find_members(admin, namesrv_addr, broker_addr, group)
        return Output(dump(body), layouts_group.consumers(body))

    return action


def _needs_one(broker_addr: str | None, namesrv_addr: str | None) -> None:
    if broker_addr is None and namesrv_addr is None:
        raise typer.BadParameter("give -b BROKERADDR, or -n NAMESRVADDR (or NAMESRV_ADDR)")


async def _find_members(
    admin: AdminClient, namesrv_addr: str | None, broker_addr: str | None, group: str
) -> tuple[str, ConsumerConnectionBody]:
    if broker_addr is not None:
        return broker_addr, await admin.groups.consumer_connections(broker_addr, group)
    route = await admin.name_servers.topic_route(str(namesrv_addr), RETRY_PREFIX + group)
    address, body, errors = await members_of(admin, route, group)
    if body is None:
        raise (
            errors[0]
            if errors
            else AdminError("consumerConnection", str(namesrv_addr), "no broker of the group is registered")
        )
    return address, body


@command("consumerStatus")
def consumer_status(
    group: ConsumerGroup,
    client_id: Annotated[str | None, typer.Option("-i", "--clientId", help="Only this client")] = None,
    broker_addr: Broker = None,
    jstack: Annotated[
        bool, typer.Option("-s", "--jstack", help="Include the stacks of the members' threads")
    ] = False,
    namesrv_addr: OptionalNamesrvAddr = None,
) -> Action:
    """Runtime information of one member of a group (-i), or of all of them, in a file each."""
    _needs_one(broker_addr, namesrv_addr)

    async def action(admin: AdminClient) -> Output:
        address, body = await _find_members(admin, namesrv_addr, broker_addr, group)
        if client_id is not None:
            info = await admin.groups.running_info(address, group, client_id, jstack=jstack)
            return Output(_plain(info), layouts_group.running_info(info))
        output, infos = await _write_all(admin, address, group, body.connection_set, jstack=jstack)
        if namesrv_addr is None or output.problems or body.message_model == BROADCASTING:
            return output
        left = await unassigned(admin, namesrv_addr, infos)
        text = output.text.removesuffix(f"\n{REBALANCED}") if left else output.text
        return replace(output, text="\n".join([text, *map(_unassigned_line, sorted(left.items()))]))

    return action


async def unassigned(
    admin: AdminClient, namesrv_addr: str, infos: Sequence[Mapping[str, Any]]
) -> dict[str, list[str]]:
    """Returns topic -> "broker:queue" that no member has, of the topics that a member subscribes to. Members
    that pop have no queues, so a group with one is left out."""
    if any(info.get("mqPopTable") for info in infos):
        return {}
    topics = {str(each.get("topic")) for info in infos for each in info.get("subscriptionSet") or []}
    owned = {key for info in infos for key in info["mqTable"]}
    found: dict[str, list[str]] = {}
    for topic in sorted(each for each in topics if not each.startswith(RETRY_PREFIX)):
        try:
            route = await admin.name_servers.topic_route(namesrv_addr, topic)
        except AdminError:
            continue  # it was deleted, or is not there yet
        masters = {each.broker_name for each in route.broker_datas if MASTER_ID in each.broker_addrs}
        found[topic] = [
            f"{each.broker_name}:{queue_id}"
            for each in route.queue_datas
            if each.perm & PERM_READ and each.broker_name in masters
            for queue_id in range(each.read_queue_nums)
            if QueueKey(topic, each.broker_name, queue_id) not in owned
        ]
    return {topic: queues for topic, queues in found.items() if queues}


def _unassigned_line(row: tuple[str, list[str]]) -> str:
    topic, queues = row
    more = f" and {len(queues) - QUEUES_SHOWN} more" if len(queues) > QUEUES_SHOWN else ""
    shown = ", ".join(queues[:QUEUES_SHOWN]) + more
    return f"WARN: no consumer of {plural(len(queues), 'queue')} of {topic}: {shown}"


async def _write_all(
    admin: AdminClient, address: str, group: str, members: Sequence[ConnectionBody], *, jstack: bool
) -> tuple[Output, list[Mapping[str, Any]]]:
    directory = Path(str(int(time.time() * 1000)))
    rows, value, problems = [], [], []
    infos: list[Mapping[str, Any]] = []
    for member in members:
        try:
            info = await admin.groups.running_info(address, group, member.client_id, jstack=jstack)
        except AdminError as error:
            problems.append(explain(error))
            continue
        path = directory / member.client_id.replace("/", "_")
        try:
            path.parent.mkdir(exist_ok=True)
            path.write_text(layouts_group.running_info(info), encoding="utf-8")
        except OSError as error:
            remark = f"cannot write {path}: {error.strerror}; use another directory, or -i"
            raise AdminError("consumerStatus", address, remark, ResponseCode.SYSTEM_ERROR) from None
        rows.append((member.client_id, member.version, str(path)))
        value.append({"clientId": member.client_id, "version": member.version, "runningInfo": _plain(info)})
        infos.append(info)
    text = layouts_group.consumer_status(rows, verdicts(infos))
    return Output(value, text, tuple(problems)), infos


def verdicts(infos: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the lines about a group as a whole: subscriptions that differ, queues with two owners."""
    subscriptions = {
        frozenset((each.get("topic"), each.get("subString")) for each in info.get("subscriptionSet") or [])
        for info in infos
    }
    same = "Same subscription in the same group of consumer"
    different = "WARN: Different subscription in the same group of consumer!!!"
    owned = [key for info in infos for key in info["mqTable"]]
    doubled = len(owned) - len(set(owned))
    rebalance = REBALANCED if not doubled else f"WARN: {doubled} queues have more than one consumer"
    return [same if len(subscriptions) <= 1 else different, "", rebalance]


def _plain(info: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the JSON form: the queues are a list."""
    table = [{"queue": queue_json(key), "state": state} for key, state in sorted(info["mqTable"].items())]
    return {**info, "mqTable": table}


@command("producerConnection")
def producer_connection(
    namesrv_addr: NamesrvAddr,
    group: Annotated[str, typer.Option("-g", "--producerGroup", help="Producer group")],
    topic: Annotated[str, typer.Option("-t", "--topic", help="A topic that the group sends to")],
) -> Action:
    """The members of a producer group."""

    async def action(admin: AdminClient) -> Output:
        route = await admin.name_servers.topic_route(namesrv_addr, topic)
        told, errors = await ask_brokers(
            admin, route, lambda each: admin.groups.producer_connections(each, group)
        )
        members = {each.client_id: each for _, body in told for each in body.connection_set}
        if not members and errors:
            raise errors[0]
        found = [members[client_id] for client_id in sorted(members)]
        problems = tuple(explain(error) for error in errors if error.code not in NOBODY)
        return Output([dump(each) for each in found], layouts_group.producers(found), problems)

    return action


@command("producer")
def producer(
    broker_addr: Annotated[str, typer.Option("-b", "--broker", help="Broker, host:port")],
) -> Action:
    """Every producer that is connected to a broker."""

    async def action(admin: AdminClient) -> Output:
        table = await admin.groups.producers(broker_addr)
        return Output(table, layouts_group.all_producers(table))

    return action
