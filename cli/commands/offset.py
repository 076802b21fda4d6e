"""mqadmin: set consumer groups back or forward."""

from datetime import datetime
from typing import Annotated

import typer

from cli import layouts_group
from cli.admin_shell import Action, NamesrvAddr, Output, command, explain
from cli.commands.topic_admin import true_or_false
from cli.targets import ask_brokers, shown
from client.admin import AdminClient, AdminError
from remoting.clock import wall_ms
from remoting.codes import MASTER_ID, ResponseCode
from remoting.operations.route import TopicRouteData
from remoting.queue_map import QueueKey, queue_json

LATEST = -1

Group = Annotated[str, typer.Option("-g", "--group", help="Consumer group")]
Topic = Annotated[str, typer.Option("-t", "--topic", help="Topic name")]
Force = Annotated[
    str, typer.Option("-f", "--force", help="true: also forward, over messages not consumed yet")
]
Place = Annotated[str | None, typer.Option("-c", "--cluster", help="Cluster or topic whose route is taken")]


def wall_time(text: str) -> int:
    """now, ms since 1970, or yyyy-MM-dd#HH:mm:ss:SSS of this machine's time zone. BadParameter."""
    if text.lower() == "now":
        return wall_ms()
    if text.lstrip("-").isdecimal():
        return int(text)
    try:
        return int(datetime.strptime(text, "%Y-%m-%d#%H:%M:%S:%f").timestamp() * 1000)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not now, ms, or yyyy-MM-dd#HH:mm:ss:SSS") from None


@command("resetOffsetByTime")
def reset_offset_by_time(
    namesrv_addr: NamesrvAddr,
    group: Group,
    topic: Topic,
    timestamp: Annotated[
        str,
        typer.Option("-s", "--timestamp", help="now, ms since 1970, or yyyy-MM-dd#HH:mm:ss:SSS; -1: the end"),
    ],
    broker: Annotated[str | None, typer.Option("-b", "--broker", help="Only this broker, host:port")] = None,
    queue_id: Annotated[
        int | None, typer.Option("-q", "--queue", min=0, help="Only this queue; needs -b")
    ] = None,
    offset: Annotated[
        int | None, typer.Option("-o", "--offset", min=0, help="To this offset; needs -b and -q")
    ] = None,
    force: Force = "true",
    cluster: Place = None,
) -> Action:
    """Set a group back (or forward) to the first message stored at a time. Members need not be connected."""
    if queue_id is not None and broker is None:
        raise typer.BadParameter("-q/--queue needs -b/--broker")
    if offset is not None and queue_id is None:
        raise typer.BadParameter("-o/--offset needs -b/--broker and -q/--queue")
    at_ms, forced = wall_time(timestamp), true_or_false(force, "-f")

    async def action(admin: AdminClient) -> Output:
        async def ask(address: str) -> dict[QueueKey, int]:
            return await admin.reset_offset(
                address,
                group,
                topic,
                timestamp=at_ms,
                queue_id=LATEST if queue_id is None else queue_id,
                offset=offset,
                force=forced,
            )

        if broker is not None:
            told, errors = [(broker, await ask(broker))], list[AdminError]()
        else:
            route = masters_of(await admin.topic_route(namesrv_addr, cluster or topic))
            told, errors = await ask_brokers(admin, route, ask)
        offsets = {key: value for _, table in told for key, value in table.items()}
        title = (
            f"rollback consumer offset by specified group[{group}], topic[{topic}], force[{force}], "
            f"timestamp(string)[{timestamp}], timestamp(long)[{at_ms}]"
        )
        value = [queue_json(key) | {"offset": each} for key, each in sorted(offsets.items())]
        text = f"{title}\n{layouts_group.reset_offsets(offsets)}"
        return shown(value, text, errors, found=bool(told))

    return action


def masters_of(route: TopicRouteData) -> TopicRouteData:
    """Only they change offsets."""
    brokers = [
        each.model_copy(update={"broker_addrs": {MASTER_ID: each.broker_addrs[MASTER_ID]}})
        for each in route.broker_datas
        if MASTER_ID in each.broker_addrs
    ]
    return route.model_copy(update={"broker_datas": brokers})


@command("skipAccumulatedMessage")
def skip_accumulated(
    namesrv_addr: NamesrvAddr, group: Group, topic: Topic, force: Force = "true", cluster: Place = None
) -> Action:
    """Forget what a group has not consumed yet: it goes on with the next message."""
    return reset_offset_by_time(namesrv_addr, group, topic, str(LATEST), None, None, None, force, cluster)


@command("cloneGroupOffset")
def clone_group_offset(
    namesrv_addr: NamesrvAddr,
    source: Annotated[str, typer.Option("-s", "--srcGroup", help="The group that is there")],
    target: Annotated[str, typer.Option("-d", "--destGroup", help="The group that begins where it is")],
    topic: Topic,
    offline: Annotated[
        str, typer.Option("-o", "--offline", help="false: only if the group is connected and subscribes it")
    ] = "true",
) -> Action:
    """Let a group begin where another one is."""
    is_offline = true_or_false(offline, "-o")

    async def action(admin: AdminClient) -> Output:
        route = masters_of(await admin.topic_route(namesrv_addr, topic))

        async def ask(address: str) -> bool:
            if not (await admin.consume_stats(address, source, topic)).queues:
                remark = f"group {source} has consumed nothing of topic {topic} here"
                raise AdminError("cloneGroupOffset", address, remark, ResponseCode.CONSUMER_NOT_ONLINE)
            await admin.clone_offset(address, source, target, topic, offline=is_offline)
            return True

        told, errors = await ask_brokers(admin, route, ask)
        text = f"clone group offset success. srcGroup[{source}], destGroup=[{target}], topic[{topic}]"
        value = {"brokers": [address for address, _ in told], "errors": [explain(error) for error in errors]}
        return shown(value, text, errors, found=bool(told))

    return action
