"""mqadmin: one broker or those of a cluster: state, settings, consumers, clean-up."""

from dataclasses import replace
from typing import Annotated, Any

import typer

from cli.command_line import OptionalNamesrvAddr, checked_addresses
from cli.mqadmin.layouts import broker as layouts_broker
from cli.mqadmin.replica_settings import (
    Replicas,
    change_in_order,
    compared_names,
    difference_text,
    differences,
    find_replicas,
    replicas_of,
)
from cli.mqadmin.shell import REFUSED, Action, Output, command, explain
from cli.mqadmin.targets import (
    BrokerAddr,
    Cluster,
    Target,
    Where,
    at_brokers,
    brokers_of_cluster,
    change_at,
    changed,
    on_each,
    shown,
)
from keelmq.client.admin import AdminClient, AdminError, ServerResult
from keelmq.client.admin.groups import CONSUME_STATS_TIMEOUT_MS
from keelmq.remoting.address_text import parse_addresses
from keelmq.remoting.booleans import is_true
from keelmq.remoting.operation import Empty, Operation
from keelmq.remoting.operations.broker_admin import (
    CLEAN_EXPIRED_CONSUMEQUEUE,
    CLEAN_UNUSED_TOPIC,
    DELETE_EXPIRED_COMMITLOG,
    QUERY_CONSUME_QUEUE,
    RESET_MASTER_FLUSH_OFFSET,
    SET_COMMITLOG_READ_MODE,
    ConsumeQueueEntries,
    ConsumeQueueRequest,
    FlushOffsetRequest,
    ReadAheadRequest,
)

Group = Annotated[
    str | None,
    typer.Option("--group", help="Every replica of this broker name: slaves first, then the master"),
]


@command("brokerStatus")
@at_brokers
def broker_status(where: Where) -> Action:
    """Runtime information of a broker (-b), or of every broker of a cluster, including slaves (-c)."""

    async def action(admin: AdminClient) -> Output:
        target = await where.find(admin, slaves=True)
        results = await on_each(admin, target, admin.brokers.runtime_info)
        tables = [(each.address, each.answer) for each in results if each.answer is not None]
        text = layouts_broker.broker_status(tables, with_address=where.cluster_name is not None)
        return _answers(results, "runtimeInfo", text)

    return action


def _answers(results: list[ServerResult[dict[str, str]]], name: str, text: str) -> Output:
    value = [
        {"brokerAddr": each.address, "error": explain(each.error) if each.error else None, name: each.answer}
        for each in results
    ]
    errors = [each.error for each in results if each.error is not None]
    return shown(value, text, errors, found=len(errors) < len(results))


@command("getBrokerConfig")
def get_broker_config(
    broker_addr: BrokerAddr = None,
    cluster_name: Cluster = None,
    group: Group = None,
    diff: Annotated[
        bool,
        typer.Option(
            "--diff",
            help="With -c or --group: only keys whose values differ between the replicas of a broker name",
        ),
    ] = False,
    namesrv_addr: OptionalNamesrvAddr = None,
) -> Action:
    """The effective settings of a broker (-b), or at every broker of a cluster (-c).

    With --diff, exit code 1: settings differ, or no broker name has two replicas that answer.
    """
    if group is not None or diff:
        check_group(broker_addr, group or cluster_name, namesrv_addr)
        return _of_replicas(str(namesrv_addr), group, cluster_name, diff=diff)
    Where(broker_addr, cluster_name, namesrv_addr).check()

    async def action(admin: AdminClient) -> Output:
        if broker_addr is not None:
            titles = {address: address for address in parse_addresses(broker_addr)}
        else:
            titles = await _titles(admin, str(cluster_name), str(namesrv_addr))
        results = await admin.each(";".join(titles), admin.brokers.broker_config)
        found = [(titles[each.address], each.answer) for each in results if each.answer is not None]
        return _answers(results, "config", layouts_broker.broker_configs(found))

    return action


def check_group(broker_addr: str | None, name: str | None, namesrv_addr: str | None) -> None:
    """Raises BadParameter unless name servers, and no broker's address, are given."""
    if broker_addr is not None or name is None:
        raise typer.BadParameter("--group and --diff go with -n NAMESRVADDR, and not with -b")
    if namesrv_addr is None:
        raise typer.BadParameter("--group and --diff need -n NAMESRVADDR (or NAMESRV_ADDR)")


def _of_replicas(namesrv_addr: str, group: str | None, cluster_name: str | None, *, diff: bool) -> Action:
    async def action(admin: AdminClient) -> Output:
        replicas = await find_replicas(admin, namesrv_addr, group=group, cluster_name=cluster_name)
        results = await admin.each(";".join(replicas.all), admin.brokers.broker_config)
        settings = {each.address: each.answer for each in results if each.answer is not None}
        if not diff:
            titled = [(replicas.title(address), table) for address, table in settings.items()]
            return _answers(results, "config", layouts_broker.broker_configs(titled))
        found = differences(replicas, settings)
        value = [{"brokerName": each.broker_name, "key": each.key, "values": each.values} for each in found]
        errors = [each.error for each in results if each.error is not None]
        text = difference_text(found, replicas, settings)
        output = shown(value, text, errors, found=bool(settings))
        is_same = compared_names(replicas, settings) and not found
        return output if is_same or output.exit_code is not None else replace(output, exit_code=REFUSED)

    return action


async def _titles(admin: AdminClient, cluster_name: str, namesrv_addr: str) -> dict[str, str]:
    """Returns address -> the heading of its settings: master, or slave of which master."""
    found = replicas_of(await brokers_of_cluster(admin, cluster_name, namesrv_addr))
    return {address: found.title(address) for address in found.names}


@command("updateBrokerConfig")
def update_broker_config(
    key: Annotated[str, typer.Option("-k", "--key", help="Key, as getBrokerConfig shows it")],
    value: Annotated[str, typer.Option("-v", "--value", help="Value")],
    broker_addr: BrokerAddr = None,
    cluster_name: Cluster = None,
    all_brokers: Annotated[
        str | None,
        typer.Option("-a", "--updateAllBroker", help="With any value: also the slaves of the cluster"),
    ] = None,
    group: Group = None,
    namesrv_addr: OptionalNamesrvAddr = None,
) -> Action:
    """Change a setting of running brokers. KeelMQ writes it to the -c file, or says why it cannot change."""
    where = Where(broker_addr, cluster_name, namesrv_addr)
    if group is not None:
        check_group(broker_addr, group, namesrv_addr)
    else:
        where.check()

    async def action(admin: AdminClient) -> Output:
        missing: tuple[str, ...] = ()
        if group is not None or (cluster_name is not None and all_brokers is not None):
            replicas = await find_replicas(admin, str(namesrv_addr), group=group, cluster_name=cluster_name)
        else:
            target = await where.find(admin)
            replicas, missing = Replicas((), target.addresses), target.missing
        known = await admin.each(";".join(replicas.all), admin.brokers.broker_config)
        before = {each.address: (each.answer or {}).get(key) for each in known}
        results, left = await change_in_order(
            admin, replicas, lambda each: admin.brokers.update_broker_config(each, key, value)
        )
        target = Target(replicas.all, missing)
        output = changed(results, target, lambda address: f"update broker config success, {address}")
        output = replace(output, problems=(*output.problems, *left))
        was = [
            f"{each.address}: {key} was {before[each.address]}, is {value}"
            for each in results
            if each.error is None and before[each.address] is not None
        ]
        return replace(output, notes=(*output.notes, *was))

    return action


@command("brokerConsumeStats")
def broker_consume_stats(
    broker_addr: Annotated[str, typer.Option("-b", "--brokerAddr", help="Broker, host:port")],
    timeout: Annotated[
        int, typer.Option("-t", "--timeoutMillis", min=1, help="ms to wait for the response")
    ] = CONSUME_STATS_TIMEOUT_MS,
    level: Annotated[
        int, typer.Option("-l", "--level", help="Only queues that are at least this many messages behind")
    ] = 0,
    order: Annotated[
        str | None, typer.Option("-o", "--order", help="true: only topics that are consumed in order")
    ] = None,
) -> Action:
    """Progress of every group in the queues of a broker."""

    async def action(admin: AdminClient) -> Output:
        is_order = is_true(order)
        stats = await admin.groups.broker_consume_stats(broker_addr, is_order=is_order, timeout_ms=timeout)
        rows = [
            (group, queue, row)
            for group, of_topics in sorted(stats.items())
            for progress in of_topics
            for queue, row in sorted(progress.queues.items())
            if row.last_timestamp > 0 and row.behind >= level
        ]
        total = sum(row.behind for _, _, row in rows)
        value = [
            {
                "topic": queue.topic,
                "consumerGroup": group,
                "brokerName": queue.broker_name,
                "queueId": queue.queue_id,
                "brokerOffset": row.broker_offset,
                "consumerOffset": row.consumer_offset,
                "diff": row.behind,
                "lastTimestamp": row.last_timestamp,
            }
            for group, queue, row in rows
        ]
        return Output(value, layouts_broker.broker_consume_stats(rows, total))

    return action


def _clean(name: str, operation: Operation[Any, Any], doc: str) -> None:
    """Registers a command that makes brokers clean up now."""

    def clean(
        broker_addr: BrokerAddr = None,
        cluster_name: Annotated[
            str | None, typer.Option("-c", "--cluster", help="The masters of this cluster")
        ] = None,
        namesrv_addr: OptionalNamesrvAddr = None,
    ) -> Action:
        where = Where(broker_addr, cluster_name, namesrv_addr)
        where.check()
        return change_at(
            where,
            lambda admin, each: admin.ask(each, operation, Empty()),
            lambda address: f"success {address}",
        )

    clean.__doc__ = doc
    command(name)(clean)


_clean(
    "cleanExpiredCQ",
    CLEAN_EXPIRED_CONSUMEQUEUE,
    "Delete the parts of consume queues whose messages are deleted.",
)
_clean(
    "deleteExpiredCommitLog", DELETE_EXPIRED_COMMITLOG, "Delete log files older than fileReservedTime, now."
)
_clean("cleanUnusedTopic", CLEAN_UNUSED_TOPIC, "Delete the remains of deleted topics.")


@command("setCommitLogReadAheadMode")
@at_brokers
def set_read_ahead(
    *,
    mode: Annotated[
        int,
        typer.Option(
            "-m", "--commitLogReadAheadMode", min=0, max=1, help="0: the system reads ahead; 1: random access"
        ),
    ],
    where: Where,
) -> Action:
    """Set how the log is read from disk: 1 helps brokers with many consumers that are far behind at different
    offsets."""
    header = ReadAheadRequest(READ_AHEAD_MODE=mode)
    return change_at(
        where,
        lambda admin, each: admin.ask(each, SET_COMMITLOG_READ_MODE, header),
        lambda address: f"{address} set commitlog readahead mode success, mode: {mode}",
        slaves=True,
    )


@command("resetMasterFlushOffset")
def reset_master_flush_offset(
    broker_addr: Annotated[
        str, typer.Option("-b", "--brokerAddr", callback=checked_addresses, help="The slave, host:port")
    ],
    offset: Annotated[int, typer.Option("-o", "--offset", min=0, help="Offset in the master's log")],
) -> Action:
    """Set the master's flushed offset as a slave of RocketMQ knows it. KeelMQ's replicas have none."""
    header = FlushOffsetRequest(master_flush_offset=offset)
    return change_at(
        Where(broker_addr),
        lambda admin, each: admin.ask(each, RESET_MASTER_FLUSH_OFFSET, header),
        lambda address: f"reset master flush offset to {offset} success, {address}",
    )


@command("queryCq")
def query_consume_queue(
    topic: Annotated[str, typer.Option("-t", "--topic", help="Topic name")],
    queue_id: Annotated[int, typer.Option("-q", "--queue", min=0, help="Queue")],
    index: Annotated[int, typer.Option("-i", "--index", min=0, help="Offset of the first entry")],
    count: Annotated[int, typer.Option("-c", "--count", min=1, help="Entries")] = 10,
    broker_addr: Annotated[str | None, typer.Option("-b", "--broker", help="Broker, host:port")] = None,
    group: Annotated[str | None, typer.Option("-g", "--consumer", help="Consumer group")] = None,
    namesrv_addr: OptionalNamesrvAddr = None,
) -> Action:
    """Entries of a consume queue: the positions of its messages in the log."""
    if broker_addr is None and namesrv_addr is None:
        raise typer.BadParameter("give -b BROKER, or -n NAMESRVADDR to find one")

    async def action(admin: AdminClient) -> Output:
        address = broker_addr or await _any_broker(admin, str(namesrv_addr), topic)
        header = ConsumeQueueRequest(
            topic=topic, queue_id=queue_id, index=index, count=count, consumer_group=group
        )
        body = (await admin.ask(address, QUERY_CONSUME_QUEUE, header)).body
        assert isinstance(body, ConsumeQueueEntries)
        lines = [f"Index: {body.min_queue_index}-{body.max_queue_index}"]
        if body.subscription_data is not None:
            data = body.subscription_data
            lines.append(f"Subscription: {data.expression_type} {data.sub_string}")
        elif body.filter_data is not None:  # a group that is not online
            lines.append(f"Subscription: {body.filter_data}")
        lines.append("Data:")
        first = max(index, body.min_queue_index)
        for number, entry in enumerate(body.queue_data, start=first):
            where = f"offset={entry.physic_offset}, size={entry.physic_size}"
            verdict = "" if entry.eval or body.subscription_data is None else ", not matched"
            lines.append(f"{number}: {where}, tagsCode={entry.tags_code}{verdict}")
        return Output(body.model_dump(mode="json", by_alias=True), "\n".join(lines))

    return action


async def _any_broker(admin: AdminClient, namesrv_addr: str, topic: str) -> str:
    route = await admin.name_servers.topic_route(namesrv_addr, topic)
    for broker in route.broker_datas:
        if broker.broker_addrs:
            return broker.broker_addrs[min(broker.broker_addrs)]
    raise AdminError("queryCq", namesrv_addr, f"no broker of topic {topic} is registered")
