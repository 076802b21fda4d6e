"""mqadmin: send a message, read messages."""

from typing import Annotated

import typer

from cli.command_line import NamesrvAddr, not_empty
from cli.mqadmin.commands.topic_admin import true_or_false
from cli.mqadmin.layouts import cluster as layouts
from cli.mqadmin.shell import REFUSED, Action, BrokerName, Output, command, explain
from cli.mqadmin.targets import route_explained
from keelmq.client import (
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PullError,
    PullStatus,
    SendError,
    TraceHook,
)
from keelmq.client.admin import AdminClient, AdminError
from keelmq.client.admin.progress import DLQ_PREFIX
from keelmq.client.copies import copy_of_dlq_message
from keelmq.client.message import MessageExt, encode_properties
from keelmq.remoting.codes import ResponseCode

CONSUME_DEFAULT_NUMS = 128
SEND_TIMEOUT_MS = 3_000


@command("sendMessage")
def send_message(
    namesrv_addr: NamesrvAddr,
    topic: Annotated[str, typer.Option("-t", "--topic", callback=not_empty, help="Topic name")],
    body: Annotated[str, typer.Option("-p", "--body", help="UTF-8 text of the message")],
    key: Annotated[str | None, typer.Option("-k", "--key", "--keys", help="Index key")] = None,
    tags: Annotated[str | None, typer.Option("-c", "--tags", help="Tag")] = None,
    broker: Annotated[str | None, typer.Option("-b", "--broker", help="Send to this broker name")] = None,
    queue_id: Annotated[int | None, typer.Option("-i", "--qid", min=0, help="...and this queue")] = None,
    trace: Annotated[
        str, typer.Option("-m", "--msgTraceEnable", help="true: trace it, for queryMsgTraceById")
    ] = "false",
) -> Action:
    """Send one message; returns when the master has acknowledged it."""
    if (queue_id is None) != (broker is None):
        raise typer.BadParameter("-b/--broker and -i/--qid belong together")
    traced = true_or_false(trace, "-m/--msgTraceEnable")
    queue = MessageQueue(topic, broker, queue_id) if broker is not None and queue_id is not None else None

    message = Message(topic, body.encode(), tags=tags, keys=(key,) if key else ())
    try:
        encode_properties(message, "")
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None

    async def action(admin: AdminClient) -> Output:
        timeout_ms = admin.timeout_ms or SEND_TIMEOUT_MS
        hook = TraceHook()
        async with (
            route_explained(admin, namesrv_addr, topic),
            Producer(
                namesrv_addr, "mqadmin", hooks=[hook] if traced else [], credentials=admin.credentials
            ) as producer,
        ):
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
        lost = hook.failed + hook.dropped if traced else 0
        notes = ("it is stored, but its trace is not: see traceTopicEnable of the brokers",) if lost else ()
        return Output(value, layouts.sent(result), notes=notes)

    return action


@command("resendDeadLetter")
def resend_dead_letter(
    namesrv_addr: NamesrvAddr,
    group: Annotated[str, typer.Option("-g", "--group", help="Consumer group of the dead letters")],
    messages: Annotated[
        str,
        typer.Option("-i", "--messages", help="brokerName:queueId:queueOffset in %DLQ%GROUP, with commas"),
    ],
    destination: Annotated[
        str,
        typer.Option(
            "-d", "--destination", help="group: only this group gets them; topic: every group of their topic"
        ),
    ] = "group",
) -> Action:
    """Send dead letters again, as new messages. The dead letters stay where they are."""
    if destination not in ("group", "topic"):
        raise typer.BadParameter(f"-d/--destination is group or topic, not {destination!r}")
    places = [_place_of(each.strip()) for each in messages.split(",") if each.strip()]
    if not places:
        raise typer.BadParameter("-i/--messages names no message: brokerName:queueId:queueOffset")

    async def action(admin: AdminClient) -> Output:
        timeout_ms, topic = admin.timeout_ms or SEND_TIMEOUT_MS, DLQ_PREFIX + group
        value, problems, errors = list[dict[str, object]](), list[str](), list[PullError | SendError]()
        async with (
            route_explained(admin, namesrv_addr, topic),
            PullConsumer(namesrv_addr, credentials=admin.credentials) as consumer,
            Producer(namesrv_addr, "mqadmin", credentials=admin.credentials) as producer,
        ):
            for broker, queue_id, offset in places:
                place = f"{broker}:{queue_id}:{offset}"
                try:
                    pulled = await consumer.pull(MessageQueue(topic, broker, queue_id), offset, 1)
                    found = next((each for each in pulled.messages if each.queue_offset == offset), None)
                    if found is None:
                        raise ValueError("there is no such dead letter")
                    copy = copy_of_dlq_message(found, group, to_topic=destination == "topic")
                    result = await producer.send(copy, timeout_ms=timeout_ms)
                except ValueError as error:
                    problems.append(f"{place}: {error}")
                except (PullError, SendError) as error:  # the others' results are shown all the same
                    problems.append(f"{place}: {explain(error)}")
                    errors.append(error)
                else:
                    sent = {"msgId": result.msg_id, "sendStatus": result.status.name}
                    value.append({"message": place, **sent})
            if len(errors) == len(places):
                raise errors[0]
        text = "\n".join(f"resent {each['message']} as {each['msgId']}" for each in value)
        return Output(value, text, tuple(problems), exit_code=None if value else REFUSED)

    return action


def _place_of(text: str) -> tuple[str, int, int]:
    broker, queue_id, offset = ["", "", *text.rsplit(":", 2)][-3:]
    if not broker or not queue_id.isdecimal() or not offset.isdecimal():
        raise typer.BadParameter(f"{text!r} is not brokerName:queueId:queueOffset")
    return broker, int(queue_id), int(offset)


@command("consumeMessage")
def consume_message(
    namesrv_addr: NamesrvAddr,
    topic: Annotated[str, typer.Option("-t", "--topic", help="Topic name")],
    broker_name: BrokerName = None,
    queue_id: Annotated[
        int | None, typer.Option("-i", "--queueId", min=0, help="One queue; needs -b")
    ] = None,
    offset: Annotated[
        int | None, typer.Option("-o", "--offset", min=0, help="Begin at this offset; needs -i")
    ] = None,
    group: Annotated[str, typer.Option("-g", "--consumerGroup", help="Group name")] = "TOOLS_CONSUMER",
    begin_ms: Annotated[
        int | None, typer.Option("-s", "--beginTimestamp", help="Stored at or after, ms")
    ] = None,
    end_ms: Annotated[
        int | None, typer.Option("-e", "--endTimestamp", help="Stored at or before, ms")
    ] = None,
    count: Annotated[
        int, typer.Option("-c", "--MessageNumber", min=1, help="At most this many messages")
    ] = CONSUME_DEFAULT_NUMS,
) -> Action:
    """Print the messages of a topic, oldest first in each queue. Changes no consumer offset."""
    if queue_id is not None and broker_name is None:
        raise typer.BadParameter("-i/--queueId needs -b/--brokerName")
    if offset is not None and queue_id is None:
        raise typer.BadParameter("-o/--offset needs -i/--queueId")

    async def action(admin: AdminClient) -> Output:
        messages: list[MessageExt] = []
        notes: list[str] = []
        async with (
            route_explained(admin, namesrv_addr, topic),
            PullConsumer(namesrv_addr, group, credentials=admin.credentials) as consumer,
        ):
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
        return Output([message_value(message) for message in messages], "\n".join(lines + notes))

    return action


async def _drain(
    consumer: PullConsumer,
    queue: MessageQueue,
    offset: int | None,
    count: int,
    messages: list[MessageExt],
    begin_ms: int | None,
    end_ms: int | None,
) -> int:
    """Appends at most `count` messages of the queue. Returns the offset after the last message read."""
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


def message_value(message: MessageExt) -> dict[str, object]:
    """Returns the JSON form of a message. The body is text; bytes that are not UTF-8 are replaced. body null:
    it cannot be inflated; bodyError says why."""
    error = {"bodyError": message.body_error} if message.body_error else {}
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
        "body": None if message.body_error else message.body.decode(errors="replace"),
        **error,
    }
