"""Actions with messages: send one as a test, send dead letters again."""

from collections.abc import Sequence
from typing import Final, Literal

from pydantic import ConfigDict, Field

from keelmq.client import Message, Producer, SendError, SendErrorKind
from keelmq.client.admin import AdminError
from keelmq.client.admin.progress import DLQ_PREFIX
from keelmq.client.copies import copy_of_dlq_message, original_topic
from keelmq.client.core.checks import INT32_MAX
from keelmq.client.message import MessageExt, encode_properties
from keelmq.console.actions.action import Acting, Action, Parameters, Preview, ServerOutcome, command_line
from keelmq.console.data.cluster_context import ClusterContext, Missing
from keelmq.console.data.messages import find
from keelmq.remoting.codes import RequestCode
from keelmq.remoting.command import BadRequest
from keelmq.remoting.operation import Role

BODY_CHARS_MAX: Final = 262_144
SEND_TIMEOUT_MS: Final = 5_000
RESENT_MAX: Final = 100
GROUP: Final = "KEELMQ_CONSOLE"
"""Producer group of the console."""
BODY_IN_COMMAND_MAX: Final = 2_000


class SendMessage(Parameters):
    """body: UTF-8 text. keys: separated by blanks. priority: chooses the queue; null: none."""

    model_config = ConfigDict(str_strip_whitespace=False)

    topic: str = Field(min_length=1, max_length=255)
    body: str = Field(min_length=1, max_length=BODY_CHARS_MAX, repr=False)
    tags: str = Field(default="", max_length=256)
    keys: str = Field(default="", max_length=1_024)
    priority: int | None = Field(default=None, ge=0, le=INT32_MAX)


class DlqMessage(Parameters):
    """Where a message is in the dead letter queue (%DLQ%) of its group."""

    broker_name: str = Field(min_length=1, max_length=256)
    queue_id: int = Field(ge=0, le=65_535)
    queue_offset: int = Field(ge=0, le=2**62)

    @property
    def location(self) -> str:
        """As in the answers and as an argument of mqadmin."""
        return f"{self.broker_name}:{self.queue_id}:{self.queue_offset}"


class ResendDeadLetters(Parameters):
    """to: "group" (its retry topic: only this group gets them) or "topic" (their original topic: every group
    gets them)."""

    group: str = Field(min_length=1, max_length=255)
    messages: list[DlqMessage] = Field(min_length=1, max_length=RESENT_MAX)
    to: Literal["group", "topic"] = "group"


def _message(request: SendMessage) -> Message:
    message = Message(
        request.topic,
        request.body.encode(),
        tags=request.tags or None,
        keys=tuple(request.keys.split()),
        priority=request.priority,
    )
    try:
        encode_properties(message, "")
    except ValueError as error:
        raise BadRequest(str(error)) from None
    return message


async def _preview_send(acting: Acting, request: SendMessage) -> Preview:
    message = _message(request)
    warnings, servers, is_possible = [], list[str](), True
    try:
        route = await acting.admin.name_servers.topic_route(acting.name_server_list, request.topic)
        servers = [each.broker_addrs[0] for each in route.broker_datas if 0 in each.broker_addrs]
        if not servers:
            warnings, is_possible = ["no broker of the topic has a master now"], False
    except AdminError as error:
        warnings = [f"{error.remark}; a broker with autoCreateTopicEnable would create the topic"]
    try:
        groups = await acting.admin.brokers.topic_consumers(servers[0], request.topic) if servers else []
    except AdminError:
        groups = []
    if groups:
        warnings.append(f"consumer groups get it: {', '.join(sorted(groups)[:20])}")
    what = f"A message of {len(message.body)} bytes"
    if request.priority is not None:
        what += f" and priority {request.priority}"
    return Preview(
        what=f"{what} is sent to one of the masters of topic {request.topic}.",
        servers=servers,
        warnings=warnings,
        command=_send_command(acting, request),
        is_possible=is_possible,
    )


def _send_command(acting: Acting, request: SendMessage) -> str:
    """Returns mqadmin's line; "": it has no option for a priority."""
    if request.priority is not None:
        return ""
    body = request.body if len(request.body) <= BODY_IN_COMMAND_MAX else "BODY"
    return command_line(
        "mqadmin", "sendMessage", "-n", acting.name_server_list, "-t", request.topic, "-p", body,
        "-k", request.keys, "-c", request.tags,
    )  # fmt: skip


async def _send(acting: Acting, request: SendMessage) -> list[ServerOutcome]:
    message = _message(request)
    async with Producer(acting.name_server_list, GROUP, client=acting.admin.client) as producer:
        return [await _sent(producer, message, f"topic {request.topic}")]


async def _sent(producer: Producer, message: Message, what: str) -> ServerOutcome:
    try:
        result = await producer.send(message, timeout_ms=SEND_TIMEOUT_MS)
    except SendError as error:
        kind = "unknown" if error.kind is SendErrorKind.UNKNOWN else "refused"
        return ServerOutcome(server=what, outcome=kind, remark=error.remark)
    except ValueError as error:
        return ServerOutcome(server=what, outcome="refused", remark=str(error))
    remark = f"{result.status.name}, id {result.msg_id}, {result.broker_name} queue {result.queue_id}"
    return ServerOutcome(server=what, outcome="ok", code=0, remark=f"{remark} offset {result.queue_offset}")


# -- dead letters ------------------------------------------------------------------------------------------


async def _read(acting: Acting, group: str, dlq_message: DlqMessage) -> MessageExt | str:
    """Returns the message, or why it cannot be read."""
    context = ClusterContext(acting.admin, acting.name_server_list)
    try:
        _, found = await find(
            context,
            DLQ_PREFIX + group,
            dlq_message.broker_name,
            dlq_message.queue_id,
            dlq_message.queue_offset,
        )
    except (Missing, AdminError) as error:
        return str(error)
    return found


def _copied(found: MessageExt | str, request: ResendDeadLetters) -> Message | str:
    """Returns the message to send, or why there is none."""
    if isinstance(found, str):
        return found
    try:
        return copy_of_dlq_message(found, request.group, to_topic=request.to == "topic")
    except ValueError as error:
        return str(error)


async def _preview_resend(acting: Acting, request: ResendDeadLetters) -> Preview:
    rows, topics, problems = [], set[str](), list[str]()
    for each in request.messages:
        # One after the other: their bodies may be large.
        found = await _read(acting, request.group, each)
        copy = _copied(found, request)
        topic = "" if isinstance(found, str) else original_topic(found)
        if isinstance(copy, str):
            problems.append(f"{each.location}: {copy}")
        else:
            topics.add(topic)
        rows.append(
            {"message": each.location, "topic": topic, "problem": copy if isinstance(copy, str) else ""}
        )
    count = len(request.messages) - len(problems)
    whom = f"group {request.group} only" if request.to == "group" else "every group that consumes the topic"
    return Preview(
        what=f"{count} of {len(request.messages)} dead letters are sent again, as new messages of "
        f"{', '.join(sorted(topics)) or 'their topic'}, to {whom}. The dead letters stay where they are.",
        warnings=[
            *problems[:20],
            *([f"{len(problems) - 20} more cannot be sent"] if len(problems) > 20 else []),
            "a message that was sent again before is consumed twice: nothing marks it",
        ],
        command=command_line(
            "mqadmin", "resendDeadLetter", "-n", acting.name_server_list, "-g", request.group,
            "-i", _places(request.messages), *(["-d", "topic"] if request.to == "topic" else []),
        ),
        is_possible=count > 0,
        details={"messages": rows},
    )  # fmt: skip


def _places(messages: Sequence[DlqMessage]) -> str:
    return ",".join(each.location for each in messages)


async def _resend(acting: Acting, request: ResendDeadLetters) -> list[ServerOutcome]:
    done = []
    async with Producer(acting.name_server_list, GROUP, client=acting.admin.client) as producer:
        for each in request.messages:
            copy = _copied(await _read(acting, request.group, each), request)
            if isinstance(copy, str):
                done.append(ServerOutcome(server=each.location, outcome="refused", remark=copy))
                continue
            done.append(await _sent(producer, copy, each.location))
    return done


SEND_MESSAGE: Final = Action(
    name="sendMessage",
    title="send a test message",
    description="One message, to one of the masters of a topic.",
    parameters=SendMessage,
    role=Role.OPERATE,
    code=RequestCode.SEND_MESSAGE,
    preview=_preview_send,
    run=_send,
    example={"topic": "orders", "body": "a test", "keys": "k1"},
)
RESEND_DEAD_LETTERS: Final = Action(
    name="resendDeadLetters",
    title="send dead letters again",
    description="Copies of dead letters, to their group or to their topic. The dead letters stay.",
    parameters=ResendDeadLetters,
    role=Role.OPERATE,
    code=RequestCode.SEND_MESSAGE,
    preview=_preview_resend,
    run=_resend,
    example={
        "group": "billing",
        "messages": [{"brokerName": "broker-a", "queueId": 0, "queueOffset": 12}],
        "to": "group",
    },
)
ACTIONS: Final = (SEND_MESSAGE, RESEND_DEAD_LETTERS)
