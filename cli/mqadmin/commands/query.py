"""mqadmin: find stored messages by id, key, unique key and offset."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from cli.command_line import NamesrvAddr
from cli.mqadmin.commands.message import message_value
from cli.mqadmin.commands.printing import checked_charset
from cli.mqadmin.commands.topic_admin import true_or_false
from cli.mqadmin.layouts import cluster as layouts
from cli.mqadmin.layouts import message as layouts_message
from cli.mqadmin.shell import Action, Output, command, explain
from cli.mqadmin.targets import route_explained
from keelmq.client import MessageQueue, Producer, PullConsumer
from keelmq.client.admin import AdminClient, AdminError, gather_some
from keelmq.client.admin.messages import LONG_MAX, QUERY_NUMS
from keelmq.client.admin.progress import NOBODY, members_of, progress_of
from keelmq.client.copies import copy_of
from keelmq.client.message import MessageExt, decode_messages
from keelmq.client.message_id import decode_offset_message_id
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Ok
from keelmq.remoting.operations.broker import (
    QUERY_MESSAGE,
    VIEW_MESSAGE_BY_ID,
    QueryMessageRequest,
    QueryMessageResponse,
    ViewMessageRequest,
)
from keelmq.remoting.operations.route import TopicRouteData

UNIQUE_KEY_NUMS = 32
RESEND_GROUP = "ReSendMsgById"
RESEND_TIMEOUT_MS = 3_000
BODY_DIRECTORY = Path(tempfile.gettempdir()) / "rocketmq" / "msgbodys"

Topic = Annotated[str, typer.Option("-t", "--topic", help="Topic name")]
Group = Annotated[
    str | None,
    typer.Option("-g", "--consumerGroup", help="With -d: a member of this group consumes them again"),
]
ClientId = Annotated[str | None, typer.Option("-d", "--clientId", help="The member that consumes them")]
ClusterOption = Annotated[
    str | None, typer.Option("-c", "--cluster", help="Cluster or topic whose route is used")
]
BodyFormat = Annotated[
    str | None,
    typer.Option("-f", "--bodyFormat", help="Also show the body, in this charset: UTF-8, GBK, ..."),
]


@command("queryMsgById")
def query_by_id(
    namesrv_addr: NamesrvAddr,
    topic: Topic,
    msg_id: Annotated[
        str,
        typer.Option("-i", "--msgId", help="Offset message ids (offsetMsgId of a send), separated by commas"),
    ],
    group: Group = None,
    client_id: ClientId = None,
    resend: Annotated[
        str, typer.Option("-s", "--sendMessage", help="true: send each again, as a new message")
    ] = "false",
    body_format: BodyFormat = None,
    cluster: ClusterOption = None,
) -> Action:
    """Messages by offset message id, which contains the broker's address and the offset; with -g and -d one
    consumer consumes them again, with -s true they are sent again."""
    _belong_together(group, client_id)
    again, codec = true_or_false(resend, "-s/--sendMessage"), _codec(body_format)
    if again and group is not None:
        raise typer.BadParameter("-s true sends to all groups, -g and -d to one consumer: give one of them")
    try:
        places = [decode_offset_message_id(each.strip()) for each in msg_id.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"{error}; for a UNIQ_KEY there is queryMsgByUniqueKey") from None

    async def action(admin: AdminClient) -> Output:
        if group is not None and client_id is not None:
            ids = [each.strip() for each in msg_id.split(",")]
            message_ids = [(address, each) for (address, _), each in zip(places, ids, strict=True)]
            return await _consumed_directly(admin, group, client_id, message_ids)
        messages = []
        for address, offset in places:
            header = ViewMessageRequest(offset=offset, topic=topic)
            answer = await admin.ask(address, VIEW_MESSAGE_BY_ID, header)
            messages += decode_messages(answer.body or b"")
        if again:
            return await _sent_again(admin, namesrv_addr, messages)
        return await _shown(admin, namesrv_addr, cluster or topic, messages, codec)

    return action


def _belong_together(group: str | None, client_id: str | None) -> None:
    if (group is None) != (client_id is None):
        raise typer.BadParameter("-g/--consumerGroup and -d/--clientId belong together")


def _codec(body_format: str | None) -> str | None:
    return None if body_format is None else checked_charset(body_format, "-f")


async def _consumed_directly(
    admin: AdminClient, group: str, client_id: str, message_ids: Sequence[tuple[str, str]]
) -> Output:
    """Has one consumer consume messages again. `message_ids`: (broker address, offset message id)."""
    results = [
        {"msgId": each} | await admin.groups.consume_directly(address, group, client_id, each)
        for address, each in message_ids
    ]
    return Output(results, "\n".join(map(layouts_message.consumed_directly, results)))


async def _sent_again(admin: AdminClient, namesrv_addr: str, messages: Sequence[MessageExt]) -> Output:
    """Sends copies of the messages, see copy_of(). One whose body cannot be inflated is a separate
    problem."""
    value, lines, problems = [], list[str](), list[str]()
    timeout_ms = admin.timeout_ms or RESEND_TIMEOUT_MS
    async with Producer(namesrv_addr, RESEND_GROUP, credentials=admin.credentials) as producer:
        for old in messages:
            try:
                copy = copy_of(old)
            except ValueError as error:
                problems.append(f"{old.offset_msg_id} was not sent again: {error}")
                continue
            result = await producer.send(copy, timeout_ms=timeout_ms)
            sent = {
                "msgId": result.msg_id,
                "sendStatus": result.status.name,
                "brokerName": result.broker_name,
            }
            value.append({"originalMsgId": old.offset_msg_id} | sent | {"queueId": result.queue_id})
            lines.append(
                f"prepare resend msg. originalMsgId={old.offset_msg_id} SendResult "
                f"[sendStatus={result.status.name}, msgId={result.msg_id}, "
                f"brokerName={result.broker_name}, queueId={result.queue_id}]"
            )
    return Output(value, "\n".join(lines), tuple(problems))


@command("queryMsgByKey")
def query_by_key(
    namesrv_addr: NamesrvAddr,
    topic: Topic,
    key: Annotated[str, typer.Option("-k", "--msgKey", help="One of the message's KEYS, or its UNIQ_KEY")],
    begin_ms: Annotated[int, typer.Option("-b", "--beginTimestamp", help="Stored at or after, ms")] = 0,
    end_ms: Annotated[int, typer.Option("-e", "--endTimestamp", help="Stored at or before, ms")] = LONG_MAX,
    count: Annotated[
        int, typer.Option("-m", "--maxNum", min=1, max=QUERY_NUMS, help="At most this many from each broker")
    ] = QUERY_NUMS,
    cluster: ClusterOption = None,
) -> Action:
    """Messages with a key, from every broker of the topic."""

    async def action(admin: AdminClient) -> Output:
        header = QueryMessageRequest(
            topic=topic, key=key, max_num=count, begin_timestamp=begin_ms, end_timestamp=end_ms
        )
        messages, problems = await found_messages(admin, namesrv_addr, header, cluster)
        return Output([message_value(each) for each in messages], layouts_message.found(messages), problems)

    return action


@command("queryMsgByUniqueKey")
def query_by_unique_key(
    namesrv_addr: NamesrvAddr,
    topic: Topic,
    msg_id: Annotated[str, typer.Option("-i", "--msgId", help="The producer's id (msgId of a send)")],
    show_all: Annotated[
        bool,
        typer.Option("-a", "--showAll", help="All messages with this id: a producer may have sent it twice"),
    ] = False,
    group: Group = None,
    client_id: ClientId = None,
    cluster: ClusterOption = None,
) -> Action:
    """The message with a producer's id; with -g and -d a consumer consumes it again."""
    _belong_together(group, client_id)

    async def action(admin: AdminClient) -> Output:
        header = QueryMessageRequest(topic=topic, key=msg_id, max_num=UNIQUE_KEY_NUMS, _UNIQUE_KEY_QUERY=True)
        found, problems = await found_messages(admin, namesrv_addr, header, cluster)
        messages = found if show_all else found[:1]
        if group is not None and client_id is not None:
            message_ids = [(each.store_host, each.offset_msg_id) for each in messages]
            shown = await _consumed_directly(admin, group, client_id, message_ids)
        else:
            shown = await _shown(admin, namesrv_addr, cluster or topic, messages)
        return Output(shown.value, shown.text, (*problems, *shown.problems))

    return action


@command("queryMsgByOffset")
def query_by_offset(
    namesrv_addr: NamesrvAddr,
    topic: Topic,
    broker_name: Annotated[str, typer.Option("-b", "--brokerName", help="Broker name")],
    queue_id: Annotated[int, typer.Option("-i", "--queueId", min=0, help="Queue")],
    offset: Annotated[int, typer.Option("-o", "--offset", min=0, help="Offset in the queue")],
    body_format: BodyFormat = None,
) -> Action:
    """The message at an offset of a queue."""
    codec = _codec(body_format)

    async def action(admin: AdminClient) -> Output:
        await admin.name_servers.topic_route(
            namesrv_addr, topic
        )  # a consumer would look for a route until its timeout
        async with (
            route_explained(admin, namesrv_addr, topic),
            PullConsumer(namesrv_addr, "TOOLS_CONSUMER", credentials=admin.credentials) as consumer,
        ):
            result = await consumer.pull(MessageQueue(topic, broker_name, queue_id), offset, 1)
        messages = [message for message in result.messages if message.queue_offset == offset]
        if not messages and result.damaged and result.damaged[0].queue_offset <= offset:
            raise AdminError(
                "queryMsgByOffset", broker_name, result.damaged[0].reason, ResponseCode.SYSTEM_ERROR
            )
        if not messages:
            known = f"{result.min_offset} to {result.max_offset - 1}"
            remark = f"no message at offset {offset}: the queue has {known}"
            raise AdminError("queryMsgByOffset", broker_name, remark, ResponseCode.QUERY_NOT_FOUND)
        return await _shown(admin, namesrv_addr, topic, messages, codec)

    return action


async def found_messages(
    admin: AdminClient, namesrv_addr: str, header: QueryMessageRequest, place: str | None = None
) -> tuple[list[MessageExt], tuple[str, ...]]:
    """Returns the messages of each broker of the topic (or of `place`), from its master or else another
    replica, and a line for each that failed. AdminError 22: no broker has such a message."""
    route = await admin.name_servers.topic_route(namesrv_addr, place or header.topic)
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


async def _shown(
    admin: AdminClient,
    namesrv_addr: str,
    topic: str,
    messages: Sequence[MessageExt],
    codec: str | None = None,
) -> Output:
    """Returns the messages in RocketMQ's layout, with what the consumer groups of the topic did with each.
    Writes each body to a file."""
    route, groups = await _groups(admin, namesrv_addr, topic)
    texts = []
    for message in messages:
        path = _write_body(message)
        body = None if codec is None and path is not None else layouts.body_text(message, codec or "utf-8")
        tracks = await gather_some([_track(admin, route, group, message) for group in groups])
        texts.append(layouts_message.details(message, path, tracks, body))
    return Output([message_value(message) for message in messages], "\n\n".join(texts))


async def _groups(admin: AdminClient, namesrv_addr: str, topic: str) -> tuple[TopicRouteData, list[str]]:
    """Returns the route of a topic and its consumer groups; nothing if no broker answers."""
    try:
        route = await admin.name_servers.topic_route(namesrv_addr, topic)
        broker = route.broker_datas[0].broker_addrs
        return route, await admin.brokers.topic_consumers(broker[min(broker)], topic)
    except (AdminError, IndexError, ValueError):
        return TopicRouteData(), []


async def _track(
    admin: AdminClient, route: TopicRouteData, group: str, message: MessageExt
) -> layouts_message.Track:
    """Returns what a group did with a message, by RocketMQ's rules: a group that is not connected is
    NOT_ONLINE, although its offset may be beyond the message."""
    _, members, errors = await members_of(admin, route, group)
    if members is None:
        problem = next((error for error in errors if error.code not in NOBODY), None)
        if problem is not None:
            return layouts_message.Track(group, "UNKNOWN", explain(problem))
        return layouts_message.Track(group, "NOT_ONLINE", "no member is connected")
    if members.message_model == "BROADCASTING":
        return layouts_message.Track(group, "CONSUME_BROADCASTING")
    if members.consume_type == "CONSUME_ACTIVELY":
        return layouts_message.Track(group, "PULL")
    progress, _ = await progress_of(admin, route, group, message.topic)
    for queue, row in progress.queues.items():
        if queue.queue_id == message.queue_id and _has_stored(route, queue.broker_name, message):
            if row.consumer_offset <= message.queue_offset:
                return layouts_message.Track(group, "NOT_CONSUME_YET")
            subscription = members.subscription_table.get(message.topic)
            tags = [] if subscription is None else subscription.tags_set
            is_wanted = not tags or "*" in tags or message.tags in tags
            return layouts_message.Track(group, "CONSUMED" if is_wanted else "CONSUMED_BUT_FILTERED")
    return layouts_message.Track(group, "UNKNOWN", "the group has no offset in its queue")


def _has_stored(route: TopicRouteData, broker_name: str, message: MessageExt) -> bool:
    """Returns whether the queue of the message is this broker's. The address that stored it may be gone."""
    names = [
        broker.broker_name
        for broker in route.broker_datas
        if message.store_host in broker.broker_addrs.values()
    ]
    return broker_name in names or (not names and len(route.broker_datas) == 1)


def _write_body(message: MessageExt) -> Path | None:
    """Returns the file; None: the body cannot be inflated, and nothing is written."""
    if message.body_error:
        return None
    BODY_DIRECTORY.mkdir(parents=True, exist_ok=True)
    path = BODY_DIRECTORY / (message.msg_id if message.msg_id.isalnum() else message.offset_msg_id)
    path.write_bytes(message.body)
    return path
