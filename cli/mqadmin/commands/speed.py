"""mqadmin: how long sends take, and the message rates of topics and groups."""

import time
from collections.abc import Sequence
from typing import Annotated

import typer

from cli.command_line import NamesrvAddr, not_empty
from cli.mqadmin.commands.topic import HIDDEN
from cli.mqadmin.layouts import broker as layouts_broker
from cli.mqadmin.layouts.broker import StatsRow
from cli.mqadmin.shell import Action, Output, command, exit_code_of, explain
from cli.mqadmin.targets import brokers_of, names_of_cluster, route_explained
from keelmq.client import Message, Producer, SendError, SendErrorKind, SendResult
from keelmq.client.admin import AdminClient, AdminError, gather_some
from keelmq.remoting.booleans import is_true
from keelmq.remoting.codes import MASTER_ID, ResponseCode
from keelmq.remoting.operations.broker_admin import BrokerStatsData, StatsItem
from keelmq.remoting.operations.route import TopicRouteData

SEND_TIMEOUT_MS = 3_000
WARM_UP_BYTES = 16
SIZE_MAX = 16_000_000
"""The most that maxMessageSize of a broker can be."""
Amount = Annotated[int, typer.Option("-a", "--amount", min=1, help="Messages")]
Size = Annotated[int, typer.Option("-s", "--size", min=1, max=SIZE_MAX, help="Bytes of each message")]


async def _timed(
    producer: Producer, topic: str, size: int, timeout_ms: int
) -> tuple[SendResult | SendError, float]:
    """Returns the result of one send, and how long it took (ms)."""
    began = time.perf_counter()
    outcome: SendResult | SendError
    try:
        outcome = await producer.send(Message(topic, b"a" * size), timeout_ms=timeout_ms)
    except SendError as error:
        outcome = error
    return outcome, (time.perf_counter() - began) * 1000


async def _check_name_servers(admin: AdminClient, namesrv_addr: str, topic: str) -> None:
    """Raises AdminError if no name server answers. A send would wait for one until its timeout. An unknown
    topic is no error: a broker may create it."""
    try:
        await admin.name_servers.topic_route(namesrv_addr, topic)
    except AdminError as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST:
            raise


@command("checkMsgSendRT")
def check_send_rt(
    namesrv_addr: NamesrvAddr,
    topic: Annotated[str, typer.Option("-t", "--topic", callback=not_empty, help="Topic name")],
    amount: Amount = 100,
    size: Size = 128,
) -> Action:
    """How long sends to a topic take, one after another."""

    async def action(admin: AdminClient) -> Output:
        rows: list[tuple[str, int, bool, float]] = []
        errors: list[SendError] = []
        async with (
            route_explained(admin, namesrv_addr, topic),
            Producer(namesrv_addr, "mqadmin", credentials=admin.credentials) as producer,
        ):
            await _check_name_servers(admin, namesrv_addr, topic)
            for _ in range(amount):
                outcome, ms = await _timed(producer, topic, size, admin.timeout_ms or SEND_TIMEOUT_MS)
                if isinstance(outcome, SendError):
                    if outcome.kind is SendErrorKind.NO_ROUTE and not rows:
                        raise outcome  # every other message would wait as long for a route, and fail
                    rows.append(("", -1, False, ms))
                    errors.append(outcome)
                else:
                    rows.append((outcome.broker_name, outcome.queue_id, True, ms))
        value = [
            {"brokerName": name, "queueId": queue_id, "sendResult": arrived, "rtMs": round(ms, 3)}
            for name, queue_id, arrived, ms in rows
        ]
        problems = tuple(dict.fromkeys(map(explain, errors)))
        code = exit_code_of(*errors) if len(errors) == amount else None
        return Output(value, layouts_broker.send_rts(rows), problems, exit_code=code)

    return action


@command("sendMsgStatus")
def send_msg_status(
    namesrv_addr: NamesrvAddr,
    broker_name: Annotated[
        str, typer.Option("-b", "--brokerName", help="Broker name; the topic of this name is used")
    ],
    size: Annotated[
        int, typer.Option("-s", "--messageSize", min=1, max=SIZE_MAX, help="Bytes of each message")
    ] = 128,
    count: Annotated[int, typer.Option("-c", "--count", min=1, help="Messages")] = 50,
) -> Action:
    """How long sends to a broker take, to the topic named after it."""

    async def action(admin: AdminClient) -> Output:
        timeout_ms = admin.timeout_ms or SEND_TIMEOUT_MS
        lines, value = [], []
        info = await admin.name_servers.cluster_info(namesrv_addr)
        brokers_of(info, [broker_name], namesrv_addr)  # refuses an unknown broker: no topic is created
        async with (
            route_explained(admin, namesrv_addr, broker_name),
            Producer(namesrv_addr, "mqadmin", credentials=admin.credentials) as producer,
        ):
            await _timed(producer, broker_name, WARM_UP_BYTES, timeout_ms)
            for _ in range(count):
                outcome, ms = await _timed(producer, broker_name, size, timeout_ms)
                if isinstance(outcome, SendError):
                    raise outcome
                lines.append(f"rt={ms:.0f}ms, SendResult={outcome.status.name} {outcome.msg_id}")
                value.append(
                    {"rtMs": round(ms, 3), "sendStatus": outcome.status.name, "msgId": outcome.msg_id}
                )
        return Output(value, "\n".join(lines))

    return action


@command("clusterRT", repeats=True)
def cluster_rt(
    namesrv_addr: NamesrvAddr,
    amount: Amount = 100,
    size: Size = 128,
    cluster: Annotated[str | None, typer.Option("-c", "--cluster", help="Only this cluster")] = None,
    print_log: Annotated[
        str, typer.Option("-p", "--print", help="true: log lines, fields separated by |")
    ] = "false",
    room: Annotated[
        str, typer.Option("-m", "--machineRoom", help="Name of the machine room in these lines")
    ] = "noname",
) -> Action:
    """How long sends to every broker take, to the topics named after them. Repeats with -i."""

    async def action(admin: AdminClient) -> Output:
        timeout_ms = admin.timeout_ms or SEND_TIMEOUT_MS
        info = await admin.name_servers.cluster_info(namesrv_addr)
        names = names_of_cluster(info, cluster, namesrv_addr) if cluster else []
        rows = []
        async with Producer(namesrv_addr, "mqadmin", credentials=admin.credentials) as producer:
            for broker in brokers_of(info, names or sorted(info.broker_addr_table), namesrv_addr):
                times: list[float] = []
                failed = 0
                await _timed(producer, broker.broker_name, WARM_UP_BYTES, timeout_ms)
                for _ in range(amount):
                    outcome, ms = await _timed(producer, broker.broker_name, size, timeout_ms)
                    failed += isinstance(outcome, SendError)
                    times.append(ms)
                mean = sum(times) / len(times)
                rows.append((broker.cluster, broker.broker_name, mean, amount - failed, failed))
        keys = ("clusterName", "brokerName", "rtMs", "successCount", "failCount")
        value = [dict(zip(keys, row, strict=True)) for row in rows]
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        log = (f"{now}|{room}|{name}|{broker}|{ms:.0f}" for name, broker, ms, _, _ in rows)
        text = "\n".join(log) if is_true(print_log) else layouts_broker.cluster_rts(rows)
        return Output(value, text)

    return action


@command("statsAll")
def stats_all(
    namesrv_addr: NamesrvAddr,
    active: Annotated[
        bool, typer.Option("-a", "--activeTopic", help="Only topics with messages in the last 24 hours")
    ] = False,
    topic: Annotated[str | None, typer.Option("-t", "--topic", help="Only this topic")] = None,
) -> Action:
    """Messages sent to every topic and consumed by every group, as the masters counted them."""

    async def action(admin: AdminClient) -> Output:
        names = [topic] if topic else await admin.name_servers.topic_list(namesrv_addr)
        shown = [name for name in names if not name.startswith(HIDDEN)]
        found = await gather_some([_rows(admin, namesrv_addr, name) for name in shown])
        rows = [row for each, _ in found for row in each if not active or row.in_24h or row.out_24h]
        problems = dict.fromkeys(problem for _, problems in found for problem in problems)
        value = [
            {
                "topic": row.topic,
                "consumerGroup": row.group,
                "accumulation": row.behind,
                "inTps": row.in_tps,
                "outTps": row.out_tps,
                "inMsg24Hour": row.in_24h,
                "outMsg24Hour": row.out_24h,
            }
            for row in rows
        ]
        return Output(value, layouts_broker.stats_all(rows), tuple(problems))

    return action


async def _rows(admin: AdminClient, namesrv_addr: str, topic: str) -> tuple[list[StatsRow], list[str]]:
    """Returns a row for each group of a topic, or one for a topic without groups; and the problems."""
    try:
        route = await admin.name_servers.topic_route(namesrv_addr, topic)
        masters = _masters(route)
        into = [await counter_of(admin, address, "TOPIC_PUT_NUMS", topic) for address in masters]
        groups = sorted(
            {group for each in masters for group in await admin.brokers.topic_consumers(each, topic)}
        )
        in_tps, in_24h = _sum(into)
        rows = []
        for group in groups:
            out = [await counter_of(admin, each, "GROUP_GET_NUMS", f"{topic}@{group}") for each in masters]
            stats = [await admin.groups.consume_stats(each, group, topic) for each in masters]
            behind = sum(row.behind for each in stats for row in each.queues.values())
            rows.append(StatsRow(topic, group, behind, in_tps, *_sum(out)[:1], in_24h, _sum(out)[1]))
    except AdminError as error:
        return [], [explain(error)]
    return rows or [StatsRow(topic, None, 0, in_tps, 0.0, in_24h, 0)], []


def _masters(route: TopicRouteData) -> list[str]:
    return [each.broker_addrs[MASTER_ID] for each in route.broker_datas if MASTER_ID in each.broker_addrs]


async def counter_of(admin: AdminClient, address: str, name: str, key: str) -> BrokerStatsData:
    """Returns a counter of a broker; zeros if it has never counted this."""
    try:
        return await admin.brokers.view_stats(address, name, key)
    except AdminError as error:
        if error.code is None:
            raise
        return BrokerStatsData(stats_minute=StatsItem(), stats_hour=StatsItem(), stats_day=StatsItem())


def _sum(counters: Sequence[BrokerStatsData]) -> tuple[float, int]:
    """Returns messages per second now, and within a day, or since the start of brokers that run for less."""
    return sum((each.stats_minute.tps for each in counters), 0.0), sum(map(day_sum, counters))


def day_sum(counter: BrokerStatsData) -> int:
    """Returns the messages within a day, or within the longest shorter window that the broker has."""
    return counter.stats_day.sum or counter.stats_hour.sum or counter.stats_minute.sum
