"""Texts of mqadmin about consumer groups, producers and offsets: RocketMQ's layouts, value in, text out.

Source: RocketMQ 5.3.3 ConsumerProgressSubCommand, ConsumerConnectionSubCommand, ConsumerStatusSubCommand,
ProducerConnectionSubCommand, ResetOffsetByTimeCommand.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cli.mqadmin.layouts.broker import time_text
from keelmq.client.admin.groups import QueueProgress
from keelmq.remoting.codes import version_text
from keelmq.remoting.operations.clients import ConnectionBody, ConsumerConnectionBody, ResetRow
from keelmq.remoting.queue_map import QueueKey

_GROUP = "%-64s  %-6s  %-24s %-5s  %-14s  %-7s  %s"
_QUEUE = "%-64s  %-32s  %-4s  %-20s  %-20s  "
_CONNECTION = "%-36s %-22s %-10s %s"
_STATUS = "%-10s %-40s %-20s %s"
_OFFSET = "%-40s  %-40s  %-40s"
TYPES = {"CONSUME_ACTIVELY": "PULL", "CONSUME_PASSIVELY": "PUSH", "CONSUME_POP": "POP"}


class GroupRow(NamedTuple):
    """One group of consumerProgress. members 0: no member is connected."""

    group: str
    members: int
    version: int
    consume_type: str
    message_model: str
    tps: float
    behind: int


def groups(rows: Sequence[GroupRow]) -> str:
    """consumerProgress without -g: a row for each group, OFFLINE if no member is connected."""
    lines = [_GROUP % ("#Group", "#Count", "#Version", "#Type", "#Model", "#TPS", "#Diff Total")]
    for row in rows:
        online = row.members > 0
        version = version_text(row.version) if online else "OFFLINE"
        kind = TYPES.get(row.consume_type, row.consume_type) if online else ""
        model = row.message_model if online else ""
        lines.append(_GROUP % (row.group, row.members, version, kind, model, int(row.tps), row.behind))
    return "\n".join(lines)


def progress(
    queues: Mapping[QueueKey, QueueProgress], tps: float, owners: Mapping[QueueKey, str] | None
) -> str:
    """consumerProgress -g. owners: the client of each queue; None: not asked for."""
    titles = ("#Topic", "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset")
    last = ("%-20s " if owners is not None else "") + "%-20s %-20s%s"
    client = ("#Client IP",) if owners is not None else ()
    lines = [_QUEUE % titles + last % (*client, "#Diff", "#Inflight", "#LastTime")]
    for key in sorted(queues):
        row = queues[key]
        owner = (owners.get(key, "N/A"),) if owners is not None else ()
        when = time_text(row.last_timestamp, millis=False) or "N/A"
        cells = (key.topic, key.broker_name, key.queue_id, row.broker_offset, row.consumer_offset)
        lines.append(_QUEUE % cells + last % (*owner, row.behind, row.in_flight, when))
    behind = sum(row.behind for row in queues.values())
    in_flight = sum(row.in_flight for row in queues.values())
    footer = [
        f"Consume TPS: {tps:.2f}",
        f"Consume Diff Total: {behind}",
        f"Consume Inflight Total: {in_flight}",
    ]
    return "\n".join([*lines, "", *footer])


def consumers(body: ConsumerConnectionBody) -> str:
    """consumerConnection."""
    lines = [_CONNECTION % ("#ClientId", "#ClientAddr", "#Language", "#Version")]
    lines += [_CONNECTION % _connection(each) for each in body.connection_set]
    lines += ["", "Below is subscription:", f"{'#Topic':<20} #SubExpression"]
    for topic, subscription in sorted(body.subscription_table.items()):
        lines.append(f"{topic:<20} {subscription.sub_string}")
    lines += ["", f"ConsumeType: {body.consume_type}", f"MessageModel: {body.message_model}"]
    return "\n".join([*lines, f"ConsumeFromWhere: {body.consume_from_where}"])


def producers(connections: Sequence[ConnectionBody]) -> str:
    """producerConnection."""
    return "\n".join(
        f"{number:04d}  {each.client_id:<32} {each.client_addr:<22} {each.language:<8} "
        f"{version_text(each.version)}"
        for number, each in enumerate(connections, start=1)
    )


def all_producers(table: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """producer."""
    return "\n".join(
        f"producer group ({group}) instances : clientId={each.get('clientId')}, "
        f"remoteIP={each.get('remoteIP')}, language={each.get('language')}, "
        f"version={version_text(int(each.get('version') or 0))}, "
        f"lastUpdateTimestamp={each.get('lastUpdateTimestamp') or 0}"
        for group, members in sorted(table.items())
        for each in members
    )


def consumer_status(rows: Sequence[tuple[str, int, str]], verdicts: Sequence[str]) -> str:
    """consumerStatus: (client id, version, file with its runtime information)"""
    lines = [_STATUS % ("#Index", "#ClientId", "#Version", "#ConsumerRunningInfoFile")]
    for number, (client_id, version, path) in enumerate(rows, start=1):
        lines.append(_STATUS % (number, client_id, version_text(version), path))
    return "\n".join([*lines, "", "", *verdicts])


def running_info(info: Mapping[str, Any]) -> str:
    """consumerStatus -i: one consumer's runtime information."""
    lines = ["#Consumer Properties#"]
    lines += [f"{key:<40}: {value}" for key, value in sorted((info.get("properties") or {}).items())]
    lines += ["", "#Consumer Subscription#"]
    for number, each in enumerate(info.get("subscriptionSet") or [], start=1):
        text = f"Topic: {each.get('topic', ''):<40} ClassFilter: {_bool(each.get('classFilterMode')):<8}"
        lines.append(f"{number:03d} {text} SubExpression: {each.get('subString', '')}")
    titles = ("#Topic", "#Broker Name", "#QID", "#Consumer Offset")
    layout = "%-64s  %-32s  %-4s  %-20s"
    lines += ["", "#Consumer Offset#", layout % titles]
    for queue, state in sorted((info.get("mqTable") or {}).items()):
        offset = state.get("commitOffset", "") if isinstance(state, Mapping) else ""
        lines.append(layout % (queue.topic, queue.broker_name, queue.queue_id, offset))
    layout = "%-64s  %14s %14s %14s %14s %18s %25s"
    titles_rt = ("#Topic", "#Pull RT", "#Pull TPS", "#Consume RT", "#ConsumeOK TPS", "#ConsumeFailed TPS")
    lines += ["", "#Consumer RT&TPS#", layout % (*titles_rt, "#ConsumeFailedMsgsInHour")]
    names = ("pullRT", "pullTPS", "consumeRT", "consumeOKTPS", "consumeFailedTPS")
    for topic, state in sorted((info.get("statusTable") or {}).items()):
        numbers = [f"{float(state.get(name) or 0):.2f}" for name in names]
        lines.append(layout % (topic, *numbers, int(state.get("consumeFailedMsgs") or 0)))
    return "\n".join([*lines, *(["", "#Consumer jstack#", info["jstack"]] if info.get("jstack") else [])])


def monitor_round(rows: Sequence[tuple[str, str, int, int, int]], notices: Sequence[str]) -> str:
    """startMonitoring: (group, topic, undone messages, of the worst queue, delay in ms)"""
    edge = "[MONITOR] " + "=" * 41
    lines = [
        f"[MONITOR] reportUndoneMsgs: UndoneMsgs [consumerGroup={group}, topic={topic}, "
        f"undoneMsgsTotal={total}, undoneMsgsSingleMQ={single}, undoneMsgsDelayTimeMills={delay_ms}]"
        for group, topic, total, single, delay_ms in rows
    ]
    lines += [f"[MONITOR]  [NOTIFY] {text}" for text in notices]
    return "\n".join([f"{edge}beginRound", *lines, f"{edge}endRound"])


def would_reset(rows: Mapping[QueueKey, ResetRow]) -> str:
    """resetOffsetByTime --dry-run, as upstream shows a reset of a group without connected members."""
    titles = (
        "#brokerName",
        "#queueId",
        "#brokerOffset",
        "#consumerOffset",
        "#timestampOffset",
        "#resetOffset",
    )
    layout = "  ".join(["%-20s"] * len(titles))
    lines = [layout % titles]
    for key, row in rows.items():
        consumed = "-" if row.consumer_offset is None else row.consumer_offset
        offsets = (row.broker_offset, consumed, row.timestamp_offset, row.reset_offset)
        lines.append(layout % (key.broker_name, key.queue_id, *offsets))
    return "\n".join(line.rstrip() for line in lines)


def reset_offsets(offsets: Mapping[QueueKey, int]) -> str:
    """resetOffsetByTime: the new offset of each queue."""
    lines = [_OFFSET % ("#brokerName", "#queueId", "#offset")]
    lines += [_OFFSET % (key.broker_name, key.queue_id, offset) for key, offset in sorted(offsets.items())]
    return "\n".join(line.rstrip() for line in lines)


def _connection(each: ConnectionBody) -> tuple[str, str, str, str]:
    return each.client_id, each.client_addr, each.language, version_text(each.version)


def _bool(value: object) -> str:
    return str(bool(value)).lower()
