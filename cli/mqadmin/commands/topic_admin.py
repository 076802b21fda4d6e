"""mqadmin: create and change topics, and show the offsets of their queues."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.command_line import NamesrvAddr
from cli.mqadmin.commands.namesrv import delete_existing
from cli.mqadmin.commands.topic import Topic
from cli.mqadmin.json_rows import read_rows
from cli.mqadmin.layouts import broker as layouts_broker
from cli.mqadmin.shell import Action, Output, command, per_server
from cli.mqadmin.targets import (
    BrokerAddr,
    Cluster,
    Where,
    at_brokers,
    brokers_of_cluster,
    change_at,
    changed,
    on_each,
    shown,
)
from keelmq.client.admin import AdminClient, AdminError, changes
from keelmq.client.admin.places import ask_brokers
from keelmq.remoting.booleans import parse_boolean
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Empty
from keelmq.remoting.operations.broker_admin import UPDATE_AND_CREATE_TOPIC_LIST, TopicConfigs
from keelmq.remoting.operations.namesrv_admin import GET_KV_CONFIG, KVConfigKey
from keelmq.remoting.operations.route import QueueData, TopicConfig

UNIT, UNIT_SUB = 1, 2
PERM_MAX = 7
"""Read, write and inherit."""


def true_or_false(text: str, name: str) -> bool:
    """Returns the boolean of a flag's text. BadParameter names the flag."""
    try:
        return parse_boolean(text)
    except ValueError:
        raise typer.BadParameter(f"{name} is true or false, not {text!r}") from None


@command("updateTopic")
@at_brokers
def update_topic(
    *,
    topic: Topic,
    where: Where,
    read_queues: Annotated[int, typer.Option("-r", "--readQueueNums", min=0, help="Read queues")] = 8,
    write_queues: Annotated[int, typer.Option("-w", "--writeQueueNums", min=0, help="Write queues")] = 8,
    perm: Annotated[int, typer.Option("-p", "--perm", help="2 write, 4 read, 6 both")] = 6,
    order: Annotated[str, typer.Option("-o", "--order", help="true: an ordered topic")] = "false",
    unit: Annotated[str, typer.Option("-u", "--unit", help="true: a unit topic")] = "false",
    unit_sub: Annotated[
        str, typer.Option("-s", "--hasUnitSub", help="true: it has unit subscribers")
    ] = "false",
    attributes: Annotated[
        str | None, typer.Option("-a", "--attributes", help="Attribute changes, +key=value,-key")
    ] = None,
) -> Action:
    """Create or change a topic at a master (-b), or at every master of a cluster (-c)."""
    if not 0 <= perm <= PERM_MAX:
        raise typer.BadParameter(f"-p/--perm is 2 (write), 4 (read) or 6 (both), not {perm}")
    flags = UNIT * true_or_false(unit, "-u/--unit") + UNIT_SUB * true_or_false(unit_sub, "-s/--hasUnitSub")
    config = TopicConfig(
        topic_name=topic,
        read_queue_nums=read_queues,
        write_queue_nums=write_queues,
        perm=perm,
        order=true_or_false(order, "-o/--order"),
        topic_sys_flag=flags,
    )

    async def action(admin: AdminClient) -> Output:
        target = await where.find(admin)
        results = await on_each(
            admin, target, lambda each: admin.brokers.update_topic(each, config, attributes)
        )
        footer = layouts_broker.topic_config(config, named_attributes(attributes))
        notes: tuple[str, ...] = ()
        if config.order and where.cluster_name is not None and not any(each.error for each in results):
            notes = (await _set_order(admin, str(where.namesrv_addr), where.cluster_name, config),)
        output = changed(results, target, lambda each: f"create topic to {each} success.", footer=footer)
        return Output(output.value, output.text, output.problems, (*output.notes, *notes), output.exit_code)

    return action


def named_attributes(attributes: str | None) -> dict[str, str]:
    """Returns the changes of --attributes: +key=value,-key."""
    pairs = (part.partition("=") for part in (attributes or "").split(",") if part)
    return {key: value for key, _, value in pairs}


async def _set_order(admin: AdminClient, namesrv_addr: str, cluster_name: str, config: TopicConfig) -> str:
    """Writes the queues of an ordered topic to the KV configuration of all name servers. Returns the note."""
    brokers = await brokers_of_cluster(admin, cluster_name, namesrv_addr)
    conf, results = await changes.set_order_conf(
        admin, namesrv_addr, config.topic_name, brokers, config.write_queue_nums
    )
    failed = [each.address for each in results if each.error is not None]
    kept = f"; not at {', '.join(failed)}: repeat it with updateOrderConf" if failed else ""
    return f"set cluster orderConf. isOrder=true, orderConf=[{conf}]{kept}"


@command("updateTopicList")
@at_brokers
def update_topic_list(
    *,
    filename: Annotated[Path, typer.Option("-f", "--filename", help="JSON array of topic configurations")],
    where: Where,
) -> Action:
    """Create or change many topics at once, from a file."""
    configs = read_rows(filename, TopicConfig, "topic configurations")
    body = TopicConfigs(topic_config_list=configs)
    return change_at(
        where,
        lambda admin, each: admin.ask(each, UPDATE_AND_CREATE_TOPIC_LIST, Empty(), body),
        lambda each: f"submit batch of topic config to {each} success, {len(configs)} topics.",
    )


@command("updateTopicPerm")
def update_topic_perm(
    namesrv_addr: NamesrvAddr,
    topic: Topic,
    perm: Annotated[int, typer.Option("-p", "--perm", help="2 write, 4 read, 6 both")],
    broker_addr: BrokerAddr = None,
    cluster_name: Cluster = None,
) -> Action:
    """Change the permission of a topic, at a master (-b) or in a cluster (-c)."""
    where = Where(broker_addr, cluster_name, namesrv_addr)
    where.check()
    if perm not in (2, 4, 6):
        raise typer.BadParameter("-p/--perm is 2 (write), 4 (read) or 6 (both)")

    async def action(admin: AdminClient) -> Output:
        async def ask(address: str) -> tuple[int, TopicConfig]:
            now = (await admin.brokers.topics(address)).get(topic)
            if now is None:
                remark = f"topic {topic} is not at this broker"
                raise AdminError("updateTopicPerm", address, remark, ResponseCode.TOPIC_NOT_EXIST)
            config = now.model_copy(update={"perm": perm})
            if now.perm != perm:
                await admin.brokers.update_topic(address, config)
            return now.perm, config

        target = await where.find(admin)
        results = await on_each(admin, target, ask)
        before = {each.address: each.answer for each in results if each.answer is not None}

        def line(address: str) -> str:
            old, config = before[address]
            text = f"update topic perm from {old} to {perm} in {address} success."
            return f"{text}\n{layouts_broker.topic_config(config, config.attributes)}"

        return changed(results, target, line)

    return action


@command("topicStatus")
def topic_status(
    namesrv_addr: NamesrvAddr,
    topic: Topic,
    cluster: Annotated[
        str | None, typer.Option("-c", "--cluster", help="Cluster or topic whose route is used")
    ] = None,
) -> Action:
    """The offsets of a topic's queues."""

    async def action(admin: AdminClient) -> Output:
        route = await admin.name_servers.topic_route(namesrv_addr, cluster or topic)
        told, errors = await ask_brokers(admin, route, lambda each: admin.brokers.topic_stats(each, topic))
        queues = {queue: row for _, stats in told for queue, row in stats.queues.items()}
        tps = sum((stats.put_tps for _, stats in told), 0.0)
        value = [
            {
                "brokerName": queue.broker_name,
                "queueId": queue.queue_id,
                "minOffset": row.min_offset,
                "maxOffset": row.max_offset,
                "lastUpdateTimestamp": row.last_update_timestamp,
            }
            for queue, row in sorted(queues.items())
        ]
        text = layouts_broker.topic_status(queues, tps)
        return shown({"offsetTable": value, "topicPutTps": tps}, text, errors, found=bool(told))

    return action


@command("topicClusterList")
def topic_cluster_list(namesrv_addr: NamesrvAddr, topic: Topic) -> Action:
    """The clusters that have a topic."""

    async def action(admin: AdminClient) -> Output:
        route = await admin.name_servers.topic_route(namesrv_addr, topic)
        clusters = sorted({broker.cluster for broker in route.broker_datas})
        return Output(clusters, "\n".join(clusters))

    return action


@command("allocateMQ")
def allocate_queues(
    namesrv_addr: NamesrvAddr,
    topic: Topic,
    ip_list: Annotated[str, typer.Option("-i", "--ipList", help="Consumers' addresses, a,b,c")],
) -> Action:
    """How the queues of a topic would be assigned to these consumers."""

    async def action(admin: AdminClient) -> Output:
        route = await admin.name_servers.topic_route(namesrv_addr, topic)
        members = [member.strip() for member in ip_list.split(",") if member.strip()]
        value = {"result": shares(route.queue_datas, topic, members)}
        return Output(value, json.dumps(value, separators=(",", ":")))

    return action


def shares(
    queues: Sequence[QueueData], topic: str, members: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    """Returns member -> its queues: consecutive ones; the first members get one more when the division has a
    remainder."""
    every = [
        {"brokerName": each.broker_name, "queueId": number, "topic": topic}
        for each in sorted(queues, key=lambda each: each.broker_name)
        for number in range(each.read_queue_nums)
    ]
    share, more = divmod(len(every), max(len(members), 1))
    found, begin = {}, 0
    for number, member in enumerate(members):
        end = begin + share + (number < more)
        found[member], begin = every[begin:end], end
    return found


@command("updateOrderConf")
def update_order_conf(
    namesrv_addr: NamesrvAddr,
    topic: Topic,
    method: Annotated[str, typer.Option("-m", "--method", help="put, get or delete")],
    order_conf: Annotated[
        str | None, typer.Option("-v", "--orderConf", help="broker:queues;broker:queues, to put")
    ] = None,
) -> Action:
    """Put, get or delete the queues of an ordered topic, at every name server."""
    if method not in ("put", "get", "delete"):
        raise typer.BadParameter("-m/--method is put, get or delete")
    if method == "put" and not order_conf:
        raise typer.BadParameter("-m put needs -v/--orderConf")

    async def ask(admin: AdminClient, address: str) -> str:
        if method == "put":
            await admin.name_servers.put_kv_config(address, changes.ORDER_NAMESPACE, topic, str(order_conf))
        elif method == "delete":
            await delete_existing(admin, address, changes.ORDER_NAMESPACE, topic)
        else:
            key = KVConfigKey(namespace=changes.ORDER_NAMESPACE, key=topic)
            return (await admin.ask(address, GET_KV_CONFIG, key)).header.value or ""
        return ""

    async def action(admin: AdminClient) -> Output:
        results = await admin.each(namesrv_addr, lambda address: ask(admin, address))
        good = [each for each in results if each.error is None]
        conf = order_conf if method == "put" else good[0].answer if good else ""
        text = f"{method} orderConf success. topic=[{topic}], orderConf=[{conf or ''}]" if good else ""
        output = per_server(results, text, lambda each: {"orderConf": each.answer}, done=f"{method}")
        return Output(output.value, output.text, output.problems, (), output.exit_code)

    return action
