"""Texts of mqadmin about stored messages: RocketMQ's layouts, value in, text out.

Source: RocketMQ 5.3.3 QueryMsgByIdSubCommand, QueryMsgByKeySubCommand, PrintMessageSubCommand,
PrintMessageByQueueCommand.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from client import MessageExt, MessageQueue

_FOUND_TITLES = "%-50s %4s %40s"
_FOUND = "%-50s %4d %40d"
_LINE = "%-20s %s"
RULE = "-" * 56
"""Behind each queue of printMsg."""


def found(messages: Sequence[MessageExt]) -> str:
    lines = [_FOUND_TITLES % ("#Message ID", "#QID", "#Offset")]
    lines += [
        _FOUND % (each.msg_id or each.offset_msg_id, each.queue_id, each.queue_offset) for each in messages
    ]
    return "\n".join(lines)


def details(message: MessageExt, body: Path, groups: Sequence[str], text: str | None = None) -> str:
    """One message, where its body was written to (and the body as text), and the consumer groups of its
    topic."""
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
            ("Message Body Path:", body),
        )
    ]
    lines += [_LINE % ("Message Body:", text)] if text is not None else []
    tracks = [
        f"MessageTrack [consumerGroup={group}, trackType=UNKNOWN, exceptionDesc=null]" for group in groups
    ]
    return "\n".join([*lines, "", *(tracks or ["WARN: No Consumer"])])


def queue_text(queue: MessageQueue) -> str:
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def span(queue: MessageQueue, first: int, end: int) -> str:
    """printMsg: what is looked at of a queue."""
    return f"minOffset={first}, maxOffset={end}, {queue_text(queue)}"


def tag_counts(tags: Mapping[str, int]) -> list[str]:
    """printMsgByQueue -f: the most frequent first."""
    ranked = sorted(tags.items(), key=lambda pair: (-pair[1], pair[0]))
    return [f"Tag: {tag:<30} Count: {count}" for tag, count in ranked]


def consumed_directly(result: Mapping[str, Any]) -> str:
    """queryMsgById -g -d: what became of a message that a consumer was given once more."""
    names = ("order", "autoCommit", "consumeResult", "remark", "spentTimeMills")
    values = ", ".join(f"{name}={_java(result.get(name))}" for name in names)
    return f"{result.get('msgId')} ConsumeMessageDirectlyResult [{values}]"


def _java(value: object) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000).strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]
