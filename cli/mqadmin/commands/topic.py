"""mqadmin: topics as the name servers know them."""

from typing import Annotated

import typer

from cli.command_line import NamesrvAddr
from cli.mqadmin.confirmation import asks_first
from cli.mqadmin.layouts import cluster as layouts
from cli.mqadmin.shell import IN_PART, Action, Output, command, dump, explain, per_server
from cli.mqadmin.targets import brokers_of, names_of_cluster
from keelmq.client.admin import AdminClient, AdminError, changes, gather_some
from keelmq.remoting.codes import MASTER_ID, ResponseCode
from keelmq.remoting.operations.route import BrokerData, TopicRouteData

HIDDEN = ("%RETRY%", "%DLQ%")
"""Prefixes of topics that topicList -c leaves out."""

Topic = Annotated[str, typer.Option("-t", "--topic", help="Topic name")]


@command("topicRoute")
def topic_route(
    namesrv_addr: NamesrvAddr,
    topic: Topic,
    as_list: Annotated[bool, typer.Option("-l", "--list", help="A table instead of JSON")] = False,
) -> Action:
    """The brokers and queues of a topic."""

    async def action(admin: AdminClient) -> Output:
        route = await admin.name_servers.topic_route(namesrv_addr, topic)
        text = layouts.topic_route_list(route) if as_list else layouts.topic_route(route)
        return Output(dump(route), text)

    return action


@command("topicList")
def topic_list(
    namesrv_addr: NamesrvAddr,
    cluster_model: Annotated[
        bool, typer.Option("-c", "--clusterModel", help="With clusters and consumer groups")
    ] = False,
) -> Action:
    """All topics; with -c their clusters and groups, without retry and dead-letter topics."""

    async def action(admin: AdminClient) -> Output:
        topics = await admin.name_servers.topic_list(namesrv_addr)
        if not cluster_model:
            return Output([{"topic": topic} for topic in topics], "\n".join(topics))
        shown = [topic for topic in topics if not topic.startswith(HIDDEN)]
        rows = await gather_some(_topic_row(admin, namesrv_addr, topic) for topic in shown)
        value = [
            {"clusterName": cluster, "topic": topic, "consumerGroups": groups, "error": problem or None}
            for cluster, topic, groups, problem in rows
        ]
        text = layouts.topic_list([(cluster, topic, groups) for cluster, topic, groups, _ in rows])
        return Output(value, text, tuple(dict.fromkeys(problem for *_, problem in rows if problem)))

    return action


async def _topic_row(admin: AdminClient, namesrv_addr: str, topic: str) -> tuple[str, str, list[str], str]:
    """Returns cluster, topic, consumer groups and the problem, "" if there is none."""
    try:
        route = await admin.name_servers.topic_route(namesrv_addr, topic)
    except AdminError as error:
        return "", topic, [], explain(error)
    cluster = route.broker_datas[0].cluster if route.broker_datas else ""
    groups, problem = await _consumers(admin, route, topic)
    return cluster, topic, groups, problem


async def _consumers(admin: AdminClient, route: TopicRouteData, topic: str) -> tuple[list[str], str]:
    """Returns the consumer groups as the first broker that answers knows them, and the problem if none does.
    A broker that does not support the request has no consumer groups."""
    problem = ""
    for broker in route.broker_datas:
        for _, address in sorted(broker.broker_addrs.items()):
            try:
                return await admin.brokers.topic_consumers(address, topic), ""
            except AdminError as error:
                if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    return [], ""
                problem = explain(error)
    return [], problem


@command("deleteTopic")
@asks_first
def delete_topic(
    namesrv_addr: NamesrvAddr,
    topic: Topic,
    cluster_name: Annotated[str, typer.Option("-c", "--clusterName", help="Delete it in this cluster")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing: show its messages and consumer groups")
    ] = False,
) -> Action:
    """Delete a topic: first at every broker of the cluster, then at every name server."""

    async def action(admin: AdminClient) -> Output:
        info = await admin.name_servers.cluster_info(namesrv_addr)
        brokers = brokers_of(info, names_of_cluster(info, cluster_name, namesrv_addr), namesrv_addr)
        await _must_exist(admin, namesrv_addr, brokers, topic, cluster_name)
        if dry_run:
            return await _would_delete(admin, namesrv_addr, brokers, topic)
        at_brokers, at_servers = await changes.delete_topic(admin, namesrv_addr, topic, cluster_name, brokers)
        errors = [each.error for each in at_brokers if each.error is not None]
        if errors and not at_servers:
            raise errors[0]
        kept = _kept(topic, errors)
        lines = [] if kept else [f"delete topic [{topic}] from cluster [{cluster_name}] success."]
        lines += [layouts.if_any(at_servers, f"delete topic [{topic}] from NameServer success.")]
        text = "\n".join(filter(None, lines))
        brokers_said, servers_said = per_server(at_brokers, ""), per_server(at_servers, text, done="deleted")
        value = {"brokers": brokers_said.value, "nameServers": servers_said.value}
        code = IN_PART if kept else servers_said.exit_code
        return Output(value, text, (*kept, *servers_said.problems), exit_code=code)

    return action


async def _must_exist(
    admin: AdminClient, namesrv_addr: str, brokers: list[BrokerData], topic: str, cluster_name: str
) -> None:
    """Raises AdminError if neither the name servers nor any master of the cluster knows the topic. Brokers
    and name servers answer a deletion of nothing with success, as RocketMQ's do."""
    try:
        route = await admin.name_servers.topic_route(namesrv_addr, topic)
    except AdminError as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
    else:
        if any(each.cluster == cluster_name for each in route.broker_datas):
            return
    masters = [each.broker_addrs[MASTER_ID] for each in brokers if MASTER_ID in each.broker_addrs]
    results = await admin.each(";".join(masters), admin.brokers.topics) if masters else []
    if masters and all(each.answer is not None and topic not in each.answer for each in results):
        remark = f"topic {topic} is not in cluster {cluster_name}: nothing was deleted"
        raise AdminError("deleteTopic", namesrv_addr, remark, ResponseCode.TOPIC_NOT_EXIST)


async def _would_delete(
    admin: AdminClient, namesrv_addr: str, brokers: list[BrokerData], topic: str
) -> Output:
    """Returns what the masters would delete. Raises AdminError if all of them would refuse, as the deletion
    does, or cannot answer."""
    masters = [each.broker_addrs[MASTER_ID] for each in brokers if MASTER_ID in each.broker_addrs]
    results = await admin.each(
        ";".join(masters), lambda each: admin.brokers.explain_delete_topic(each, topic)
    )
    errors = [each.error for each in results if each.error is not None]
    told = [(each.address, each.answer) for each in results if each.answer is not None]
    if errors and not told and all(error.code is not None for error in errors):
        raise errors[0]
    value = [
        {
            "brokerAddr": address,
            "queues": found.queues,
            "messages": found.messages,
            "consumerGroups": found.consumer_groups,
        }
        for address, found in told
    ]
    lines = [
        f"would delete topic [{topic}] at {address}: {found.queues} queues, {found.messages} messages, "
        f"consumed by {', '.join(found.consumer_groups) or 'nobody'}"
        for address, found in told
        if found.is_known
    ]
    lines.append(f"would delete topic [{topic}] from its routes at {namesrv_addr}")
    return Output(value, "\n".join(lines), tuple(explain(error) for error in errors))


def _kept(topic: str, errors: list[AdminError]) -> list[str]:
    """Returns why brokers still have the topic. (Namesrv pitfall 16: they register it again.)"""
    lines = [explain(error) for error in errors if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED]
    unable = [each.address for each in errors if each.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED]
    if unable:
        lines.append(f"{', '.join(unable)}: a broker of this version cannot delete topics (215)")
    if errors:
        lines.append(f"a broker that keeps topic {topic} registers it again when its topics change")
    return lines
