"""mqadmin: print the messages of a topic, or count those of a queue by tag. Changes no consumer offset."""

import codecs
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Annotated

import typer

from cli.command_line import NamesrvAddr
from cli.mqadmin.commands.message import message_value
from cli.mqadmin.commands.offset import wall_time
from cli.mqadmin.commands.topic_admin import true_or_false
from cli.mqadmin.layouts import cluster as layouts
from cli.mqadmin.layouts import message as layouts_message
from cli.mqadmin.shell import Action, Output, command
from cli.mqadmin.targets import route_explained
from keelmq.client import MessageQueue, PullConsumer, PullStatus
from keelmq.client.admin import AdminClient, AdminError
from keelmq.client.message import MessageExt
from keelmq.remoting.codes import ResponseCode

TOOLS_GROUP = "TOOLS_CONSUMER"
PRINT_MAX = 10_000
STUCK_MAX = 3
"""Reading a queue ends after this many answers that do not advance the offset."""

Topic = Annotated[str, typer.Option("-t", "--topic", help="Topic name")]
Charset = Annotated[str, typer.Option("-c", "--charsetName", help="Charset of the bodies: UTF-8, GBK, ...")]
Expression = Annotated[str, typer.Option("-s", "--subExpression", help="Only these tags, TagA || TagB")]
Begin = Annotated[
    str | None,
    typer.Option("-b", "--beginTimestamp", help="Stored at or after: now, ms, or yyyy-MM-dd#HH:mm:ss:SSS"),
]
End = Annotated[
    str | None,
    typer.Option("-e", "--endTimestamp", help="Stored before: now, ms, or yyyy-MM-dd#HH:mm:ss:SSS"),
]
Limit = Annotated[int, typer.Option("--limit", min=1, help="At most this many messages")]


@dataclass(frozen=True)
class MessageSelection:
    """Which messages of each queue: tags, and when they were stored (ms)."""

    expression: str
    begin_ms: int | None
    end_ms: int | None


@dataclass
class QueueRead:
    """The messages in [first, end) of a queue. `why`: a line for each pull that returned none."""

    queue: MessageQueue
    first: int = 0
    end: int = 0
    messages: list[MessageExt] = field(default_factory=list)
    why: list[str] = field(default_factory=list)
    is_cut: bool = False  # there are more than the limit


def checked_charset(name: str, flag: str = "-c") -> str:
    """Returns Python's name of the charset. BadParameter: there is no such charset."""
    try:
        return codecs.lookup(name).name
    except LookupError:
        raise typer.BadParameter(f"{flag}: there is no charset {name!r}") from None


def _time(text: str | None) -> int | None:
    return None if text is None else wall_time(text)


@command("printMsg")
def print_messages(
    namesrv_addr: NamesrvAddr,
    topic: Topic,
    charset: Charset = "UTF-8",
    expression: Expression = "*",
    begin: Begin = None,
    end: End = None,
    print_body: Annotated[str, typer.Option("-d", "--printBody", help="false: without bodies")] = "true",
    limit: Limit = PRINT_MAX,
) -> Action:
    """Print the messages of every queue of a topic."""
    codec, with_body = checked_charset(charset), true_or_false(print_body, "-d")
    selection = MessageSelection(expression, _time(begin), _time(end))

    async def action(admin: AdminClient) -> Output:
        reads: list[QueueRead] = []
        async with (
            route_explained(admin, namesrv_addr, topic),
            PullConsumer(namesrv_addr, TOOLS_GROUP, credentials=admin.credentials) as consumer,
        ):
            for queue in sorted(await consumer.fetch_queues(topic)):
                room = limit - sum(len(each.messages) for each in reads)
                reads.append(await _read(consumer, queue, selection, room))
        if not reads:
            remark = f"topic {topic} has no readable queue; topicRoute shows its permissions"
            raise AdminError("printMsg", namesrv_addr, remark, ResponseCode.NO_PERMISSION)
        lines: list[str] = []
        for each in reads:
            lines.append(layouts_message.span(each.queue, each.first, each.end))
            lines += [_text(message, codec if with_body else None) for message in each.messages]
            lines += [*each.why, layouts_message.RULE]
        value = [_value(message, codec if with_body else None) for each in reads for message in each.messages]
        return Output(value, "\n".join(lines), notes=_cut(reads, limit))

    return action


@command("printMsgByQueue")
def print_messages_of_queue(
    namesrv_addr: NamesrvAddr,
    topic: Topic,
    broker_name: Annotated[str, typer.Option("-a", "--brokerName", help="Broker name")],
    queue_id: Annotated[int, typer.Option("-i", "--queueId", min=0, help="Queue")],
    charset: Charset = "UTF-8",
    expression: Expression = "*",
    begin: Begin = None,
    end: End = None,
    print_messages: Annotated[str, typer.Option("-p", "--print", help="true: print the messages")] = "false",
    print_body: Annotated[str, typer.Option("-d", "--printBody", help="true: with their bodies")] = "false",
    calculate: Annotated[
        str, typer.Option("-f", "--calculate", help="true: count the messages of each tag")
    ] = "false",
    limit: Limit = PRINT_MAX,
) -> Action:
    """Print the messages of one queue (-p true), or count them by tag (-f true)."""
    codec = checked_charset(charset) if true_or_false(print_body, "-d") else None
    with_messages, with_tags = true_or_false(print_messages, "-p"), true_or_false(calculate, "-f")
    selection = MessageSelection(expression, _time(begin), _time(end))

    async def action(admin: AdminClient) -> Output:
        tags: Counter[str] = Counter()
        async with (
            route_explained(admin, namesrv_addr, topic),
            PullConsumer(namesrv_addr, TOOLS_GROUP, credentials=admin.credentials) as consumer,
        ):
            queue = await _queue(consumer, namesrv_addr, topic, broker_name, queue_id)
            read = await _read(consumer, queue, selection, limit)
        tags.update(each.tags for each in read.messages if each.tags)
        lines = [_text(each, codec) for each in read.messages] if with_messages else []
        lines += layouts_message.tag_counts(tags) if with_tags else []
        value = {
            "minOffset": read.first,
            "maxOffset": read.end,
            "messages": [_value(each, codec) for each in read.messages] if with_messages else None,
            "tags": dict(tags) if with_tags else None,
        }
        notes = list(_cut([read], limit))
        if not with_messages and not with_tags:
            notes.append(f"{len(read.messages)} messages: -p true prints them, -f true counts them by tag")
        return Output(value, "\n".join(lines), notes=tuple(notes))

    return action


async def _queue(
    consumer: PullConsumer, namesrv_addr: str, topic: str, broker_name: str, queue_id: int
) -> MessageQueue:
    queues = await consumer.fetch_queues(topic)
    queue = MessageQueue(topic, broker_name, queue_id)
    if queue not in queues:
        known = ", ".join(f"{each.broker_name}:{each.queue_id}" for each in sorted(queues))
        remark = f"topic {topic} has no queue {broker_name}:{queue_id} (known: {known or 'none'})"
        raise AdminError("printMsgByQueue", namesrv_addr, remark, ResponseCode.INVALID_PARAMETER)
    return queue


async def _read(
    consumer: PullConsumer, queue: MessageQueue, selection: MessageSelection, room: int
) -> QueueRead:
    """Reads at most `room` messages."""
    read = QueueRead(queue)
    begin_ms, end_ms = selection.begin_ms, selection.end_ms
    whole = await consumer.min_offset(queue), await consumer.max_offset(queue)
    read.first = whole[0] if begin_ms is None else await consumer.offset_at(queue, begin_ms)
    read.end = whole[1] if end_ms is None else await consumer.offset_at(queue, end_ms)
    async for messages in _pulls(consumer, read, selection.expression):
        fitting = [each for each in messages if each.queue_offset < read.end][:room]
        read.messages += fitting
        room -= len(fitting)
        if room <= 0:
            last = read.messages[-1].queue_offset if read.messages else read.first - 1
            read.is_cut = last + 1 < read.end
            break
    return read


async def _pulls(consumer: PullConsumer, read: QueueRead, expression: str) -> AsyncIterator[list[MessageExt]]:
    offset, name, stuck = read.first, layouts_message.queue_text(read.queue), 0
    while offset < read.end and stuck < STUCK_MAX:
        result = await consumer.pull(read.queue, offset, subscription=expression)
        stuck = stuck + 1 if result.next_begin_offset <= offset else 0
        offset = max(result.next_begin_offset, offset)
        if result.status is PullStatus.FOUND:
            yield list(result.messages)
        elif result.status is PullStatus.NO_MATCHED_MSG:
            read.why.append(f"{name} no matched msg. status={result.status.name}, offset={offset}")
        else:
            read.why.append(f"{name} print msg finished. status={result.status.name}, offset={offset}")
            return


def _text(message: MessageExt, codec: str | None) -> str:
    body = "NOT PRINT BODY" if codec is None else layouts.body_text(message, codec)
    return layouts.consumed(message, body)


def _value(message: MessageExt, codec: str | None) -> dict[str, object]:
    body = None if codec is None or message.body_error else layouts.body_text(message, codec)
    return message_value(message) | {"body": body}


def _cut(reads: list[QueueRead], limit: int) -> tuple[str, ...]:
    if not any(each.is_cut for each in reads):
        return ()
    return (f"stopped after {limit} messages: narrow it with -b and -e, or raise --limit",)
