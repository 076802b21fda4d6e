"""mqadmin: change the offsets of consumer groups."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Annotated, NamedTuple, TypeVar

import typer

from cli.command_line import NamesrvAddr
from cli.mqadmin.commands.topic_admin import true_or_false
from cli.mqadmin.confirmation import asks_first
from cli.mqadmin.layouts import group as layouts_group
from cli.mqadmin.shell import Action, Output, command, dump, explain
from cli.mqadmin.targets import shown
from keelmq.client.admin import AdminClient, AdminError
from keelmq.client.admin.places import ask_brokers, masters_of
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operations.clients import RESET_TO_END, ResetOffsetRequest
from keelmq.remoting.queue_map import QueueKey, queue_json
from keelmq.runtime.clock import wall_ms

T = TypeVar("T")
Group = Annotated[str, typer.Option("-g", "--group", help="Consumer group")]
Topic = Annotated[str, typer.Option("-t", "--topic", help="Topic name")]
Force = Annotated[
    str, typer.Option("-f", "--force", help="true: also move offsets forward, past unconsumed messages")
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Change nothing: show the group's offsets and what they would become"),
]
ClusterOption = Annotated[
    str | None, typer.Option("-c", "--cluster", help="Cluster or topic whose route is used")
]


def wall_time(text: str) -> int:
    """Returns ms since 1970 for "now", a number of ms, or yyyy-MM-dd#HH:mm:ss:SSS in local time.
    BadParameter: none of these."""
    if text.lower() == "now":
        return wall_ms()
    if text.lstrip("-").isdecimal():
        return int(text)
    try:
        return int(datetime.strptime(text, "%Y-%m-%d#%H:%M:%S:%f").timestamp() * 1000)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not now, ms, or yyyy-MM-dd#HH:mm:ss:SSS") from None


@command("resetOffsetByTime")
@asks_first
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
    cluster: ClusterOption = None,
    dry_run: DryRun = False,
) -> Action:
    """Reset a group to the first message stored at a time or later. Members need not be connected."""
    if queue_id is not None and broker is None:
        raise typer.BadParameter("-q/--queue needs -b/--broker")
    if offset is not None and queue_id is None:
        raise typer.BadParameter("-o/--offset needs -b/--broker and -q/--queue")
    at_ms, forced = wall_time(timestamp), true_or_false(force, "-f")
    wanted = ResetOffsetRequest(
        topic=topic,
        group=group,
        queue_id=-1 if queue_id is None else queue_id,
        offset=offset,
        timestamp=at_ms,
        is_force=forced,
    )

    async def action(admin: AdminClient) -> Output:
        place = ResetBrokers(namesrv_addr, broker, cluster or topic)
        if dry_run:
            rows, errors = await _at_masters(
                admin, place, lambda each: admin.groups.explain_reset_offset(each, wanted)
            )
            found = [queue_json(key) | dump(row) for key, row in rows.items()]
            return shown(found, layouts_group.would_reset(rows), errors, found=bool(rows))

        async def reset(address: str) -> dict[QueueKey, int]:
            return await admin.groups.reset_offset(
                address,
                group,
                topic,
                timestamp=at_ms,
                queue_id=wanted.queue_id,
                offset=offset,
                force=forced,
            )

        offsets, errors = await _at_masters(admin, place, reset)
        title = (
            f"rollback consumer offset by specified group[{group}], topic[{topic}], force[{force}], "
            f"timestamp(string)[{timestamp}], timestamp(long)[{at_ms}]"
        )
        value = [queue_json(key) | {"offset": each} for key, each in sorted(offsets.items())]
        text = f"{title}\n{layouts_group.reset_offsets(offsets)}"
        return shown(value, text, errors, found=bool(offsets) or not errors)

    return action


class ResetBrokers(NamedTuple):
    """The brokers of a reset: `broker`, or the masters of a topic's or cluster's route."""

    namesrv_addr: str
    broker: str | None
    topic: str


async def _at_masters(
    admin: AdminClient, where: ResetBrokers, ask: Callable[[str], Awaitable[Mapping[QueueKey, T]]]
) -> tuple[dict[QueueKey, T], list[AdminError]]:
    """Returns the answers by queue, and the errors of brokers. AdminError: of the only broker."""
    if where.broker is not None:
        return dict(await ask(where.broker)), []
    route = masters_of(await admin.name_servers.topic_route(where.namesrv_addr, where.topic))
    told, errors = await ask_brokers(admin, route, ask)
    return {key: row for _, table in told for key, row in sorted(table.items())}, errors


@command("skipAccumulatedMessage")
@asks_first
def skip_accumulated(
    namesrv_addr: NamesrvAddr,
    group: Group,
    topic: Topic,
    force: Force = "true",
    cluster: ClusterOption = None,
    dry_run: DryRun = False,
) -> Action:
    """Skip what a group has not consumed yet: it continues with the next message."""
    end = str(RESET_TO_END)
    return reset_offset_by_time(
        namesrv_addr, group, topic, end, None, None, None, force, cluster, dry_run, yes=True
    )


@command("cloneGroupOffset")
def clone_group_offset(
    namesrv_addr: NamesrvAddr,
    source: Annotated[str, typer.Option("-s", "--srcGroup", help="Group whose offsets are copied")],
    target: Annotated[str, typer.Option("-d", "--destGroup", help="Group that gets these offsets")],
    topic: Topic,
    offline: Annotated[
        str,
        typer.Option(
            "-o", "--offline", help="false: only if the source group is connected and subscribes to the topic"
        ),
    ] = "true",
) -> Action:
    """Set the offsets of a group to those of another group."""
    is_offline = true_or_false(offline, "-o")

    async def action(admin: AdminClient) -> Output:
        route = masters_of(await admin.name_servers.topic_route(namesrv_addr, topic))

        async def ask(address: str) -> bool:
            await _check_source(admin, address, source, topic)
            await admin.groups.clone_offset(address, source, target, topic, offline=is_offline)
            return True

        told, errors = await ask_brokers(admin, route, ask)
        text = f"clone group offset success. srcGroup[{source}], destGroup=[{target}], topic[{topic}]"
        value = {"brokers": [address for address, _ in told], "errors": [explain(error) for error in errors]}
        return shown(value, text, errors, found=bool(told))

    return action


async def _check_source(admin: AdminClient, address: str, source: str, topic: str) -> None:
    """Raises AdminError if a group has no offset of the topic at a broker: the broker would clone nothing and
    answer with success. consume_stats() does not show this: it has offset 0 for a queue without an offset."""
    for queue in (await admin.brokers.topic_stats(address, topic)).queues:
        if await admin.messages.committed_offset(address, source, queue) is not None:
            return
    if source in await admin.groups.list_groups(address):
        remark = f"group {source} has consumed nothing of topic {topic}: nothing was cloned"
        raise AdminError("cloneGroupOffset", address, remark, ResponseCode.CONSUMER_NOT_ONLINE)
    remark = f"group {source} does not exist: nothing was cloned"
    raise AdminError("cloneGroupOffset", address, remark, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
