"""mqadmin: RocketMQ's subcommands, flags and layouts, with --json and exit codes that a script can use.

Exit codes: 0 done; 1 refused, failed or nobody answered (one line on standard error: what, where, what
next); 2 usage.
"""

from typing import Annotated

import typer

from cli import layouts
from cli.admin_shell import (
    AsJson,
    BrokerName,
    ClusterName,
    ControllerAddress,
    Interval,
    NamesrvAddr,
    OptionalNamesrvAddr,
    Output,
    app,
    dump,
    explain,
    run,
)
from client import Message, MessageQueue, Producer, PullConsumer, PullStatus
from client.admin import AdminClient, AdminError
from client.message import MessageExt
from remoting.clock import wall_ms
from remoting.codes import ResponseCode
from remoting.operations.controller import BrokerReplicasInfo
from remoting.operations.route import BrokerData, ClusterInfo

CONSUME_DEFAULT_NUMS = 128
RUNTIME_INFO_TIMEOUT_MS = 3_000


@app.command("getControllerMetaData")
def get_controller_metadata(controller_addr: ControllerAddress, as_json: AsJson = False) -> None:
    """Which controllers there are and which one leads."""

    async def action(admin: AdminClient) -> Output:
        metadata = await admin.controller_metadata(controller_addr)
        return Output(dump(metadata), layouts.controller_metadata(metadata))

    run(action, as_json=as_json)


@app.command("getSyncStateSet")
def get_sync_state_set(
    controller_addr: ControllerAddress,
    cluster_name: ClusterName = None,
    broker_name: BrokerName = None,
    namesrv_addr: OptionalNamesrvAddr = None,
    interval: Interval = None,
    as_json: AsJson = False,
) -> None:
    """Master, epochs and SyncStateSet of a broker name (-b), or of all of a cluster (-c, needs -n)."""
    if broker_name is None and (cluster_name is None or namesrv_addr is None):
        raise typer.BadParameter("give -b BROKERNAME, or -c CLUSTERNAME with -n NAMESRVADDR")

    async def action(admin: AdminClient) -> Output:
        if broker_name is not None:
            names = [broker_name]
        else:
            info = await admin.cluster_info(str(namesrv_addr))
            names = _names_of_cluster(info, str(cluster_name), str(namesrv_addr))
        sets = await admin.sync_state_sets(controller_addr, names)
        unknown = [name for name in names if name not in sets.replicas_info_table]
        if unknown and not sets.replicas_info_table:
            remark = f"the controller knows no broker named {', '.join(unknown)}"
            code = ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
            raise AdminError("getSyncStateSet", controller_addr, remark, code)
        problems = tuple(f"the controller knows no broker named {name}" for name in unknown)
        return Output(_sets_value(sets), layouts.sync_state_sets(sets), problems)

    run(action, as_json=as_json, interval_s=interval)


def _sets_value(sets: BrokerReplicasInfo) -> object:
    return dump(sets)["replicasInfoTable"]


@app.command("getBrokerEpoch")
def get_broker_epoch(
    namesrv_addr: NamesrvAddr,
    cluster_name: ClusterName = None,
    broker_name: BrokerName = None,
    interval: Interval = None,
    as_json: AsJson = False,
) -> None:
    """The epochs of every replica of a broker name (-b) or of a cluster (-c)."""
    if broker_name is None and cluster_name is None:
        raise typer.BadParameter("give -b BROKERNAME or -c CLUSTERNAME")

    async def action(admin: AdminClient) -> Output:
        info = await admin.cluster_info(namesrv_addr)
        names = [broker_name] if broker_name else _names_of_cluster(info, str(cluster_name), namesrv_addr)
        entries, problems = [], []
        for broker in _brokers(info, names, namesrv_addr):
            for address in broker.broker_addrs.values():
                try:
                    entries.append((address, await admin.broker_epochs(address, broker.broker_name)))
                except AdminError as error:
                    problems.append(explain(error))
        value = [{"brokerAddr": address, **dump(cache)} for address, cache in entries]
        return Output(value, layouts.broker_epochs(entries), tuple(problems))

    run(action, as_json=as_json, interval_s=interval)


@app.command("electMaster")
def elect_master(
    controller_addr: ControllerAddress,
    broker_id: Annotated[
        int, typer.Option("-b", "--brokerId", min=1, help="Id of the replica to make master")
    ],
    broker_name: Annotated[str, typer.Option("-bn", "--brokerName", help="Its broker name")],
    cluster_name: Annotated[str, typer.Option("-c", "--clusterName", help="Its cluster")],
    as_json: AsJson = False,
) -> None:
    """Make a replica the master. It must be alive and in the SyncStateSet."""

    async def action(admin: AdminClient) -> Output:
        master, body = await admin.elect_master(
            controller_addr, cluster_name=cluster_name, broker_name=broker_name, broker_id=broker_id
        )
        value = {**dump(master), **dump(body)}
        return Output(value, layouts.elected(cluster_name, broker_name, master, body))

    run(action, as_json=as_json)


@app.command("clusterList")
def cluster_list(
    namesrv_addr: NamesrvAddr,
    more_stats: Annotated[bool, typer.Option("-m", "--moreStats", help="Message totals instead")] = False,
    cluster_name: ClusterName = None,
    interval: Interval = None,
    as_json: AsJson = False,
) -> None:
    """Every broker of the clusters, with its load."""

    async def action(admin: AdminClient) -> Output:
        info = await admin.cluster_info(namesrv_addr)
        if cluster_name is not None:
            _names_of_cluster(info, cluster_name, namesrv_addr)  # refuses an unknown cluster
        rows = [
            await _row(admin, cluster, broker.broker_name, broker_id, address)
            for cluster in sorted(info.cluster_addr_table)
            if cluster_name in (None, cluster)
            for broker in _brokers(info, sorted(info.cluster_addr_table[cluster]), namesrv_addr)
            for broker_id, address in sorted(broker.broker_addrs.items())
        ]
        text = layouts.cluster_totals(rows) if more_stats else layouts.cluster_list(rows, wall_ms())
        value = [
            {
                "clusterName": row.cluster,
                "brokerName": row.broker_name,
                "brokerId": row.broker_id,
                "brokerAddr": row.address,
                "runtimeInfo": dict(row.table),
            }
            for row in rows
        ]
        return Output(value, text, tuple(row.problem for row in rows if row.problem))

    run(action, as_json=as_json, interval_s=interval)


async def _row(
    admin: AdminClient, cluster: str, broker_name: str, broker_id: int, address: str
) -> layouts.BrokerRow:
    try:
        table = await admin.runtime_info(address, timeout_ms=RUNTIME_INFO_TIMEOUT_MS)
    except AdminError as error:
        return layouts.BrokerRow(cluster, broker_name, broker_id, address, problem=explain(error))
    return layouts.BrokerRow(cluster, broker_name, broker_id, address, table)


@app.command("topicRoute")
def topic_route(
    namesrv_addr: NamesrvAddr,
    topic: Annotated[str, typer.Option("-t", "--topic", help="Topic name")],
    as_list: Annotated[bool, typer.Option("-l", "--list", help="A table instead of JSON")] = False,
    as_json: AsJson = False,
) -> None:
    """The brokers and queues of a topic."""

    async def action(admin: AdminClient) -> Output:
        route = await admin.topic_route(namesrv_addr, topic)
        text = layouts.topic_route_list(route) if as_list else layouts.topic_route(route)
        return Output(dump(route), text)

    run(action, as_json=as_json)


@app.command("sendMessage")
def send_message(
    namesrv_addr: NamesrvAddr,
    topic: Annotated[str, typer.Option("-t", "--topic", help="Topic name")],
    body: Annotated[str, typer.Option("-p", "--body", help="UTF-8 text of the message")],
    key: Annotated[str | None, typer.Option("-k", "--key", "--keys", help="Index key")] = None,
    tags: Annotated[str | None, typer.Option("-c", "--tags", help="Tag")] = None,
    broker: Annotated[str | None, typer.Option("-b", "--broker", help="Send to this broker name")] = None,
    queue_id: Annotated[int | None, typer.Option("-i", "--qid", min=0, help="...and this queue")] = None,
    timeout_ms: Annotated[int, typer.Option("--timeout", min=1, help="Deadline in ms")] = 3_000,
    as_json: AsJson = False,
) -> None:
    """Send one message; done when the master acknowledged it."""
    if (queue_id is None) != (broker is None):
        raise typer.BadParameter("-b/--broker and -i/--qid belong together")
    queue = MessageQueue(topic, broker, queue_id) if broker is not None and queue_id is not None else None

    async def action(_: AdminClient) -> Output:
        message = Message(topic, body.encode(), tags=tags, keys=(key,) if key else ())
        async with Producer(namesrv_addr, "mqadmin") as producer:
            result = await producer.send(message, queue=queue, timeout_ms=timeout_ms)
        value = {
            "brokerName": result.broker_name,
            "queueId": result.queue_id,
            "sendStatus": result.status.name,
            "msgId": result.msg_id,
            "offsetMsgId": result.offset_msg_id,
            "queueOffset": result.queue_offset,
            "attempts": result.attempts,
        }
        return Output(value, layouts.sent(result))

    run(action, as_json=as_json)


@app.command("consumeMessage")
def consume_message(
    namesrv_addr: NamesrvAddr,
    topic: Annotated[str, typer.Option("-t", "--topic", help="Topic name")],
    broker_name: BrokerName = None,
    queue_id: Annotated[
        int | None, typer.Option("-i", "--queueId", min=0, help="One queue; needs -b")
    ] = None,
    offset: Annotated[int | None, typer.Option("-o", "--offset", min=0, help="Begin there; needs -i")] = None,
    group: Annotated[str, typer.Option("-g", "--consumerGroup", help="Group name")] = "TOOLS_CONSUMER",
    begin_ms: Annotated[
        int | None, typer.Option("-s", "--beginTimestamp", help="Stored at or after, ms")
    ] = None,
    end_ms: Annotated[
        int | None, typer.Option("-e", "--endTimestamp", help="Stored at or before, ms")
    ] = None,
    count: Annotated[
        int, typer.Option("-c", "--MessageNumber", min=1, help="At most that many messages")
    ] = CONSUME_DEFAULT_NUMS,
    as_json: AsJson = False,
) -> None:
    """Print the messages of a topic, oldest first in each queue. Moves no consumer offset."""
    if queue_id is not None and broker_name is None:
        raise typer.BadParameter("-i/--queueId needs -b/--brokerName")
    if offset is not None and queue_id is None:
        raise typer.BadParameter("-o/--offset needs -i/--queueId")

    async def action(_: AdminClient) -> Output:
        messages: list[MessageExt] = []
        notes: list[str] = []
        async with PullConsumer(namesrv_addr, group) as consumer:
            queues = await consumer.fetch_queues(topic)
            wanted = [queue for queue in queues if broker_name in (None, queue.broker_name)]
            for queue in (queue for queue in wanted if queue_id in (None, queue.queue_id)):
                if len(messages) < count:
                    end = await _drain(
                        consumer, queue, offset, count - len(messages), messages, begin_ms, end_ms
                    )
                    notes.append(
                        f"MessageQueue [topic={topic}, brokerName={queue.broker_name}, "
                        f"queueId={queue.queue_id}] print msg finished. offset={end}"
                    )
        if not notes:
            remark = f"topic {topic} has no such queue; see topicRoute"
            raise AdminError("consumeMessage", namesrv_addr, remark, ResponseCode.INVALID_PARAMETER)
        lines = ["Consume ok", *map(layouts.consumed, messages)] if messages else []
        return Output([_message_value(message) for message in messages], "\n".join(lines + notes))

    run(action, as_json=as_json)


async def _drain(
    consumer: PullConsumer,
    queue: MessageQueue,
    offset: int | None,
    count: int,
    messages: list[MessageExt],
    begin_ms: int | None,
    end_ms: int | None,
) -> int:
    """Append at most `count` messages of the queue; the offset behind the last one looked at."""
    position = await consumer.min_offset(queue) if offset is None else offset
    end = await consumer.max_offset(queue)
    while position < end and count > 0:
        result = await consumer.pull(queue, position)
        if result.status in (PullStatus.NO_NEW_MSG, PullStatus.OFFSET_ILLEGAL):
            return result.next_begin_offset
        for message in result.messages:
            if count > 0 and (begin_ms or 0) <= message.store_timestamp <= (end_ms or 1 << 62):
                messages.append(message)
                count -= 1
        position = max(position + 1, result.next_begin_offset)
    return position


def _message_value(message: MessageExt) -> dict[str, object]:
    return {
        "msgId": message.msg_id,
        "topic": message.topic,
        "brokerName": message.broker_name,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.physical_offset,
        "storeTimestamp": message.store_timestamp,
        "bornTimestamp": message.born_timestamp,
        "properties": dict(message.properties),
        "body": message.body.decode(errors="replace"),
    }


def _names_of_cluster(info: ClusterInfo, cluster_name: str, namesrv_addr: str) -> list[str]:
    if cluster_name not in info.cluster_addr_table:
        known = ", ".join(sorted(info.cluster_addr_table)) or "none"
        remark = f"no cluster named {cluster_name} (known: {known})"
        raise AdminError("getBrokerClusterInfo", namesrv_addr, remark, ResponseCode.INVALID_PARAMETER)
    return sorted(info.cluster_addr_table[cluster_name])


def _brokers(info: ClusterInfo, names: list[str], namesrv_addr: str) -> list[BrokerData]:
    brokers = [info.broker_addr_table[name] for name in names if name in info.broker_addr_table]
    if not brokers and names:
        known = ", ".join(sorted(info.broker_addr_table)) or "none"
        remark = f"no broker named {', '.join(names)} (known: {known})"
        raise AdminError("getBrokerClusterInfo", namesrv_addr, remark, ResponseCode.BROKER_NOT_EXIST)
    return brokers


def main() -> None:
    app(prog_name="mqadmin")


if __name__ == "__main__":
    main()
