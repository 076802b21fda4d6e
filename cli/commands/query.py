"""mqadmin: find stored messages by id, key, unique key and offset."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from cli import layouts_message
from cli.admin_shell import Action, NamesrvAddr, Output, command, explain
from cli.commands.message import message_value
from client import MessageQueue, PullConsumer
from client.admin import AdminClient, AdminError, gather_some
from client.message import MessageExt, decode_messages
from client.message_id import decode_offset_message_id
from remoting.codes import ResponseCode
from remoting.operation import Ok
from remoting.operations.broker import (
    QUERY_MESSAGE,
    VIEW_MESSAGE_BY_ID,
    QueryMessageRequest,
    QueryMessageResponse,
    ViewMessageRequest,
)

QUERY_NUMS = 64
UNIQUE_KEY_NUMS = 32
LONG_MAX = 2**63 - 1
BODY_DIRECTORY = Path(tempfile.gettempdir()) / "rocketmq" / "msgbodys"

Topic = Annotated[str, typer.Option("-t", "--topic", help="Topic name")]


@command("queryMsgById")
def query_by_id(
    namesrv_addr: NamesrvAddr,
    topic: Topic,
    msg_id: Annotated[
        str, typer.Option("-i", "--msgId", help="Offset message ids (offsetMsgId of a send), commas between")
    ],
    group: Annotated[
        str | None, typer.Option("-g", "--consumerGroup", help="With -d: let it handle them now")
    ] = None,
    client_id: Annotated[
        str | None, typer.Option("-d", "--clientId", help="The member of the group that should")
    ] = None,
) -> Action:
    """Messages by the id that has the broker's address and the offset in it, asked of that broker; with -g
    and -d a consumer handles them once more."""
    if (group is None) != (client_id is None):
        raise typer.BadParameter("-g/--consumerGroup and -d/--clientId belong together")
    try:
        places = [decode_offset_message_id(each.strip()) for each in msg_id.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"{error}; for a UNIQ_KEY there is queryMsgByUniqueKey") from None

    async def action(admin: AdminClient) -> Output:
        if group is not None and client_id is not None:
            ids = [each.strip() for each in msg_id.split(",")]
            asked = zip(places, ids, strict=True)
            results = [
                {"msgId": each} | await admin.consume_directly(address, group, client_id, each)
                for (address, _), each in asked
            ]
            return Output(results, "\n".join(map(layouts_message.consumed_directly, results)))
        messages = []
        for address, offset in places:
            header = ViewMessageRequest(offset=offset, topic=topic)
            answer = await admin.ask(address, VIEW_MESSAGE_BY_ID, header)
            messages += decode_messages(answer.body or b"")
        return await _shown(admin, namesrv_addr, topic, messages)

    return action


@command("queryMsgByKey")
def query_by_key(
    namesrv_addr: NamesrvAddr,
    topic: Topic,
    key: Annotated[str, typer.Option("-k", "--msgKey", help="One of the message's KEYS, or its UNIQ_KEY")],
    begin_ms: Annotated[int, typer.Option("-b", "--beginTimestamp", help="Stored at or after, ms")] = 0,
    end_ms: Annotated[int, typer.Option("-e", "--endTimestamp", help="Stored at or before, ms")] = LONG_MAX,
    count: Annotated[
        int, typer.Option("-m", "--maxNum", min=1, max=QUERY_NUMS, help="At most that many of each broker")
    ] = QUERY_NUMS,
) -> Action:
    """Messages with a key, of every broker of the topic."""

    async def action(admin: AdminClient) -> Output:
        header = QueryMessageRequest(
            topic=topic, key=key, max_num=count, begin_timestamp=begin_ms, end_timestamp=end_ms
        )
        messages, problems = await _found(admin, namesrv_addr, header)
        return Output([message_value(each) for each in messages], layouts_message.found(messages), problems)

    return action


@command("queryMsgByUniqueKey")
def query_by_unique_key(
    namesrv_addr: NamesrvAddr,
    topic: Topic,
    msg_id: Annotated[str, typer.Option("-i", "--msgId", help="The producer's id (msgId of a send)")],
    show_all: Annotated[
        bool, typer.Option("-a", "--showAll", help="Every message with it: a producer may have sent it twice")
    ] = False,
) -> Action:
    """The message with a producer's id."""

    async def action(admin: AdminClient) -> Output:
        header = QueryMessageRequest(topic=topic, key=msg_id, max_num=UNIQUE_KEY_NUMS, _UNIQUE_KEY_QUERY=True)
        messages, problems = await _found(admin, namesrv_addr, header)
        shown = await _shown(admin, namesrv_addr, topic, messages if show_all else messages[:1])
        return Output(shown.value, shown.text, (*problems, *shown.problems))

    return action


@command("queryMsgByOffset")
def query_by_offset(
    namesrv_addr: NamesrvAddr,
    topic: Topic,
    broker_name: Annotated[str, typer.Option("-b", "--brokerName", help="Broker name")],
    queue_id: Annotated[int, typer.Option("-i", "--queueId", min=0, help="Queue")],
    offset: Annotated[int, typer.Option("-o", "--offset", min=0, help="Offset in the queue")],
) -> Action:
    """The message at an offset of a queue."""

    async def action(admin: AdminClient) -> Output:
        async with PullConsumer(namesrv_addr, "TOOLS_CONSUMER") as consumer:
            result = await consumer.pull(MessageQueue(topic, broker_name, queue_id), offset, 1)
        messages = [message for message in result.messages if message.queue_offset == offset]
        if not messages:
            known = f"{result.min_offset} to {result.max_offset - 1}"
            remark = f"no message at offset {offset}: the queue has {known}"
            raise AdminError("queryMsgByOffset", broker_name, remark, ResponseCode.QUERY_NOT_FOUND)
        return await _shown(admin, namesrv_addr, topic, messages)

    return action


async def _found(
    admin: AdminClient, namesrv_addr: str, header: QueryMessageRequest
) -> tuple[list[MessageExt], tuple[str, ...]]:
    """From each broker of the topic, its master or else another replica; and who could not be asked.
    AdminError 22: they all have nothing."""
    route = await admin.topic_route(namesrv_addr, header.topic)
    addresses = [
        broker.broker_addrs[min(broker.broker_addrs)] for broker in route.broker_datas if broker.broker_addrs
    ]

    async def ask(address: str) -> Ok[QueryMessageResponse] | AdminError:
        try:
            return await admin.ask(address, QUERY_MESSAGE, header)
        except AdminError as error:
            return error

    answers = await gather_some([ask(address) for address in addresses])
    errors = [each for each in answers if isinstance(each, AdminError)]
    problems = [each for each in errors if each.code != ResponseCode.QUERY_NOT_FOUND]
    bodies = [each.body for each in answers if isinstance(each, Ok)]
    messages = [message for body in bodies for message in decode_messages(body or b"")]
    if not messages:
        raise (problems or errors)[0]
    return messages, tuple(explain(error) for error in problems)


async def _shown(admin: AdminClient, namesrv_addr: str, topic: str, messages: list[MessageExt]) -> Output:
    """In RocketMQ's layout, each with its body in a file, and who consumes the topic."""
    groups = await _groups(admin, namesrv_addr, topic)
    texts = []
    for message in messages:
        path = _write_body(message)
        texts.append(layouts_message.details(message, path, groups))
    return Output([message_value(message) for message in messages], "\n\n".join(texts))


async def _groups(admin: AdminClient, namesrv_addr: str, topic: str) -> list[str]:
    """Empty, too, where nobody can tell: it is a hint below a message that was found."""
    try:
        route = await admin.topic_route(namesrv_addr, topic)
        broker = route.broker_datas[0].broker_addrs
        return await admin.topic_consumers(broker[min(broker)], topic)
    except (AdminError, IndexError, ValueError):
        return []


def _write_body(message: MessageExt) -> Path:
    BODY_DIRECTORY.mkdir(parents=True, exist_ok=True)
    path = BODY_DIRECTORY / (message.msg_id if message.msg_id.isalnum() else message.offset_msg_id)
    path.write_bytes(message.body)
    return path
