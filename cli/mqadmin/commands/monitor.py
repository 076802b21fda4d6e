"""mqadmin startMonitoring: the lag of all groups and their faults, in rounds.

Source: RocketMQ 5.3.3 MonitorService, DefaultMonitorListener, ConsumerRunningInfo.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from cli.command_line import NamesrvAddr
from cli.mqadmin.layouts.group import monitor_round
from cli.mqadmin.shell import Action, Output, command, explain
from keelmq.client.admin import AdminClient, AdminError, gather_some
from keelmq.client.admin.groups import QueueProgress
from keelmq.client.admin.places import ask_brokers
from keelmq.client.admin.progress import NOBODY, RETRY_PREFIX, members_of, progress_of
from keelmq.remoting.booleans import is_true
from keelmq.remoting.operations.route import TopicRouteData
from keelmq.remoting.queue_map import QueueKey
from keelmq.runtime.clock import wall_ms

ROUND_S = 60
BLOCKED_MS = 60_000
"""A queue is blocked if the consumer has messages of it in memory and has consumed none for this long."""
GROUPS_AT_ONCE = 16


@dataclass(frozen=True)
class Undone:
    """Unconsumed messages of a group and topic: in all queues, in the worst one, and how much older (ms) the
    last consumed message is than the newest one."""

    group: str
    topic: str
    total: int
    single: int
    delay_ms: int


@command("startMonitoring", every_s=ROUND_S)
def start_monitoring(namesrv_addr: NamesrvAddr) -> Action:
    """Monitor all groups: unconsumed messages, differing subscriptions, blocked consumers."""

    async def action(admin: AdminClient) -> Output:
        topics = await admin.name_servers.topic_list(namesrv_addr)
        groups = sorted(each.removeprefix(RETRY_PREFIX) for each in topics if each.startswith(RETRY_PREFIX))
        found = await gather_some([_look(admin, namesrv_addr, each) for each in groups], GROUPS_AT_ONCE)
        undone = [each for rows, _, _ in found for each in rows]
        notices = [each for _, texts, _ in found for each in texts]
        problems = tuple(dict.fromkeys(each for _, _, texts in found for each in texts))
        value = {
            "timestamp": wall_ms(),
            "undoneMsgs": [
                {
                    "consumerGroup": each.group,
                    "topic": each.topic,
                    "undoneMsgsTotal": each.total,
                    "undoneMsgsSingleMQ": each.single,
                    "undoneMsgsDelayTimeMills": each.delay_ms,
                }
                for each in undone
            ],
            "notices": notices,
        }
        rows = [(each.group, each.topic, each.total, each.single, each.delay_ms) for each in undone]
        return Output(value, monitor_round(rows, notices), problems)

    return action


async def _look(
    admin: AdminClient, namesrv_addr: str, group: str
) -> tuple[list[Undone], list[str], list[str]]:
    """Returns a group's unconsumed messages, its faults, and the problems of the requests."""
    try:
        route = await admin.name_servers.topic_route(namesrv_addr, RETRY_PREFIX + group)
    except AdminError as error:
        return [], [], [explain(error)]
    progress, errors = await progress_of(admin, route, group, None)
    address, body, unknown = await members_of(admin, route, group)
    problems = [explain(error) for error in (*errors, *unknown) if error.code not in NOBODY]
    newest = await _newest(admin, route, progress.queues)
    undone = undone_of(group, progress.queues, newest)
    notices = []
    if body is not None:
        members = sorted({each.client_id for each in body.connection_set})
        infos = await gather_some([_info(admin, address, group, each) for each in members])
        told = {name: info for name, info in zip(members, infos, strict=True) if info is not None}
        notices = notices_of(group, told, wall_ms())
    elif any(each.total for each in undone):
        behind = sum(each.total for each in undone)
        notices = [f"ConsumerGroup: {group}, no consumer is connected, {behind} messages are waiting"]
    return undone, notices, problems


async def _info(admin: AdminClient, address: str, group: str, client_id: str) -> dict[str, Any] | None:
    """Returns a consumer's runtime information; None: no answer (an old client, or it has just left)."""
    try:
        return await admin.groups.running_info(address, group, client_id)
    except AdminError:
        return None


async def _newest(
    admin: AdminClient, route: TopicRouteData, queues: Mapping[QueueKey, QueueProgress]
) -> dict[QueueKey, int]:
    """Returns when the newest message of each queue was stored (ms); without those of silent brokers."""
    times: dict[QueueKey, int] = {}
    for topic in sorted({queue.topic for queue in queues}):
        told, _ = await ask_brokers(admin, route, partial(admin.brokers.topic_stats, topic=topic))
        for _, stats in told:
            times |= {queue: row.last_update_timestamp for queue, row in stats.queues.items()}
    return times


def undone_of(
    group: str, queues: Mapping[QueueKey, QueueProgress], newest: Mapping[QueueKey, int]
) -> list[Undone]:
    """Returns one entry per topic."""
    found = []
    for topic in sorted({queue.topic for queue in queues}):
        rows = {queue: row for queue, row in queues.items() if queue.topic == topic}
        behind = [max(row.behind, 0) for row in rows.values()]
        delays = [
            newest[queue] - row.last_timestamp
            for queue, row in rows.items()
            if row.last_timestamp > 0 and queue in newest
        ]
        found.append(Undone(group, topic, sum(behind), max(behind), max([*delays, 0])))
    return found


def notices_of(group: str, infos: Mapping[str, Mapping[str, Any]], now_ms: int) -> list[str]:
    """Returns the faults of a group's members, from their runtime information."""
    subscriptions = {
        frozenset((each.get("topic"), each.get("subString")) for each in info.get("subscriptionSet") or [])
        for info in infos.values()
    }
    notices = []
    if len(subscriptions) > 1:
        notices.append(f"reportConsumerRunningInfo: ConsumerGroup: {group}, Subscription different")
    for client_id, info in sorted(infos.items()):
        properties = info.get("properties") or {}
        orderly = is_true(str(properties.get("PROP_CONSUMEORDERLY")))
        if properties.get("PROP_CONSUME_TYPE") == "CONSUME_ACTIVELY":
            continue  # it pulls when the application asks it to
        for text in _stuck(info.get("mqTable") or {}, now_ms, orderly=orderly):
            notices.append(
                f"reportConsumerRunningInfo: ConsumerGroup: {group}, ClientId: {client_id}, {text}"
            )
    return notices


def _stuck(table: Mapping[QueueKey, Any], now_ms: int, *, orderly: bool) -> Sequence[str]:
    texts = []
    for queue, state in sorted(table.items()):
        name = f"{queue.topic} {queue.broker_name}:{queue.queue_id}"
        if orderly and not state.get("locked", True):
            since_ms = now_ms - int(state.get("lastLockTimestamp") or now_ms)
            texts.append(f"{name} can't lock for a while, {since_ms}ms")
        quiet_ms = now_ms - int(state.get("lastConsumeTimestamp") or now_ms)
        if not orderly and int(state.get("cachedMsgCount") or 0) > 0 and quiet_ms > BLOCKED_MS:
            texts.append(f"{name} can't consume for a while, maybe blocked, {quiet_ms}ms")
    return texts
