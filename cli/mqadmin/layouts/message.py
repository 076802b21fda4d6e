"""Texts of mqadmin about stored messages: RocketMQ's layouts, value in, text out.

Source: RocketMQ 5.3.3 QueryMsgByIdSubCommand, QueryMsgByKeySubCommand, PrintMessageSubCommand,
PrintMessageByQueueCommand, QueryMsgTraceByIdSubCommand.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from keelmq.client import MessageExt, MessageQueue
from keelmq.client.core.trace_rows import TraceRow

_FOUND_TITLES = "%-50s %4s %40s"
_FOUND = "%-50s %4d %40d"
_LINE = "%-20s %s"
_TRACE = "%-10s %-20s %-20s %-20s %-10s %-10s"
RULE = "-" * 56
"""Printed after each queue of printMsg."""


def found(messages: Sequence[MessageExt]) -> str:
    """queryMsgByKey: id, queue and queue offset of each message."""
    lines = [_FOUND_TITLES % ("#Message ID", "#QID", "#Offset")]
    lines += [
        _FOUND % (each.msg_id or each.offset_msg_id, each.queue_id, each.queue_offset) for each in messages
    ]
    return "\n".join(lines)


class Track(NamedTuple):
    """A message's state at a consumer group. kind: one of RocketMQ's TrackType; problem: why it is not
    known."""

    group: str
    kind: str
    problem: str = "null"


def details(message: MessageExt, body: Path | None, tracks: Sequence[Track], text: str | None = None) -> str:
    """queryMsgById: one message, the file of its body (None: there is none), the body as text, and what its
    topic's consumer groups did with it."""
    properties = ", ".join(f"{key}={value}" for key, value in message.properties.items())
    lines = [
        _LINE % pair
        for pair in (
            ("OffsetID:", message.offset_msg_id),
            ("Topic:", message.topic),
            ("Tags:", f"[{message.tags or 'null'}]"),
            ("Keys:", f"[{message.keys or 'null'}]"),
            ("Queue ID:", message.queue_id),
            ("Queue Offset:", message.queue_offset),
            ("CommitLog Offset:", message.physical_offset),
            ("Reconsume Times:", message.reconsume_times),
            ("Born Timestamp:", _time(message.born_timestamp)),
            ("Store Timestamp:", _time(message.store_timestamp)),
            ("Born Host:", message.born_host),
            ("Store Host:", message.store_host),
            ("System Flag:", message.sys_flag),
            ("Properties:", f"{{{properties}}}"),
            ("Message Body Path:", body or "none"),
        )
    ]
    lines += [_LINE % ("Message Body:", text)] if text is not None else []
    rows = [
        f"MessageTrack [consumerGroup={group}, trackType={kind}, exceptionDesc={problem}]"
        for group, kind, problem in tracks
    ]
    return "\n".join([*lines, "", *(rows or ["WARN: No Consumer"])])


def queue_text(queue: MessageQueue) -> str:
    """Returns MessageQueue's text form in RocketMQ."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def span(queue: MessageQueue, first: int, end: int) -> str:
    """printMsg: the offsets that are read of a queue."""
    return f"minOffset={first}, maxOffset={end}, {queue_text(queue)}"


def tag_counts(tags: Mapping[str, int]) -> list[str]:
    """printMsgByQueue -f: the most frequent first."""
    ranked = sorted(tags.items(), key=lambda pair: (-pair[1], pair[0]))
    return [f"Tag: {tag:<30} Count: {count}" for tag, count in ranked]


def traces(rows: Sequence[TraceRow]) -> str:
    """queryMsgTraceById: sends one by one, then consumers by group. The cost of an unfinished consumption is
    unknown. Ends of transactions are shown by KeelMQ only."""
    parts = []
    for row in rows:
        if row.kind == "Pub":
            parts.append([_trace_title("#ProducerGroup", "#SendTime"), _trace("Pub", row)])
        elif row.kind == "EndTransaction":
            parts.append([_trace_title("#ProducerGroup", "#EndTime"), _trace("End", row)])
    consumers = [row for row in rows if row.kind.startswith("Sub")]
    for group in sorted({row.group for row in consumers}):
        lines = [_trace("Sub", row) for row in consumers if row.group == group]
        parts.append([_trace_title("#ConsumerGroup", "#ConsumerTime"), *lines])
    return "\n\n".join("\n".join(part) for part in parts)


def _trace_title(group: str, time: str) -> str:
    return (_TRACE % ("#Type", group, "#ClientHost", time, "#CostTimes", "#Status")).rstrip()


def _trace(kind: str, row: TraceRow) -> str:
    cost = "-" if row.kind in ("SubBefore", "EndTransaction") else f"{row.cost_ms}ms"
    when = _time(row.time_ms)[:19] if row.time_ms else "-"
    return (_TRACE % (kind, row.group, row.client_host, when, cost, row.status)).rstrip()


def consumed_directly(result: Mapping[str, Any]) -> str:
    """queryMsgById -g -d: the result of a message that a consumer consumed again."""
    names = ("order", "autoCommit", "consumeResult", "remark", "spentTimeMills")
    values = ", ".join(f"{name}={_java(result.get(name))}" for name in names)
    return f"{result.get('msgId')} ConsumeMessageDirectlyResult [{values}]"


def _java(value: object) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000).strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]
