"""Requests of pop consumption (200050..200055, 200151), assignment and message request modes (400..402).

Source: RocketMQ 5.5 PopMessageRequestHeader, AckMessageRequestHeader, BatchAckMessageRequestBody,
ChangeInvisibleTimeRequestHeader, NotificationRequestHeader, QueryAssignmentRequestBody. A field whose type is
primitive there (int, long) is 0 where it is absent; Java's gRPC proxy sends no bornTime, or bornTime=0.
"""

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field

from keelmq.remoting.codes import RequestCode
from keelmq.remoting.operation import Operation, Wire
from keelmq.remoting.operations.clients import MessageQueueBody

MessageRequestMode = Annotated[
    Literal["PULL", "POP"], BeforeValidator(lambda value: str(value).upper() if value is not None else value)
]


class PopMessageRequest(Wire):
    """Header of 200050. queue_id below 0: any. Times in ms; born_time: when the client sent it, 0: just now.
    init_mode of a new group: 0 begins at the first message, 1 at the last one. owner (ours): the client of
    gRPC for which a proxy renews the messages (29061)."""

    consumer_group: str
    topic: str
    queue_id: int = 0
    max_msg_nums: int = 0
    invisible_time: int = Field(default=0, ge=0)
    poll_time: int = 0
    born_time: int = 0
    init_mode: int = 0
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None
    owner: str | None = None


class PopMessageResponse(Wire):
    """Response header of 200050 and 200052. The *_info texts carry what clients need for receipt handles."""

    pop_time: int = 0
    invisible_time: int = 0
    revive_qid: int = 0
    rest_num: int = 0
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckMessageRequest(Wire):
    """Header of 200051. extra_info: the receipt handle. forwarded (ours): set by a broker that received the
    request but is no longer master."""

    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: int
    forwarded: bool | None = None


class BatchAck(Wire):
    """Acknowledgements in the body of 200151. bits: base64, the lowest bit first; bit i: the message at
    start_offset + i. retry: the handle's retry flag."""

    group: str = Field(alias="c")
    topic: str = Field(alias="t")
    retry: str = Field("0", alias="r")
    start_offset: int = Field(alias="so")
    queue_id: int = Field(alias="q")
    revive_queue: int = Field(alias="rq")
    pop_ms: int = Field(alias="pt")
    invisible_ms: int = Field(0, alias="it")
    bits: str = Field("", alias="b")


class BatchAckBody(Wire):
    """Body of 200151."""

    broker_name: str | None = None
    acks: list[BatchAck] = Field(default_factory=list)


class ChangeInvisibleTimeRequest(Wire):
    """Header of 200053. extra_info: the receipt handle. suspend (RocketMQ 5.5): the next delivery is no
    further attempt; None: it is one."""

    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: int
    invisible_time: int = Field(ge=0)
    suspend: bool | None = None


class ChangeInvisibleTimeResponse(Wire):
    """Response header of 200053: the parts of the new receipt handle."""

    pop_time: int
    invisible_time: int
    revive_qid: int


DELIVERED_MAX: Final = 256
"""Pops that one 29061 names as delivered."""


class RenewPoppedRequest(Wire):
    """Header of 29061 (ours): keeps what `owner` has received from the topic and its retry topics invisible
    for invisible_time (ms) from now. The receipt handles stay valid. delivered: times of pops, with commas,
    whose messages the client has received; those of other pops are renewed if an earlier request named
    theirs. ended: the owner has ended, so what it has not acknowledged is visible after that time, or sooner,
    and is not renewed any more; one call gives back a limited number; with visible_in there are more."""

    consumer_group: str
    topic: str
    owner: str
    invisible_time: int = Field(ge=0)
    delivered: str | None = None
    ended: bool | None = None


class RenewPoppedResponse(Wire):
    """Response header of 29061. visible_in: ms until the first of these messages is visible; None: none is
    left."""

    visible_in: int | None = None


class NotificationRequest(Wire):
    """Header of 200054: waits up to poll_time (ms) for a message to pop. born_time: not used. exp_type, exp
    (RocketMQ 5.5): the filter of that pop; without exp every message counts."""

    consumer_group: str
    topic: str
    queue_id: int = 0
    poll_time: int = 0
    born_time: int = 0
    order: bool = False
    attempt_id: str | None = None
    exp_type: str | None = None
    exp: str | None = None


class NotificationResponse(Wire):
    """Response header of 200054. polling_full: too many requests wait already."""

    has_msg: bool
    polling_full: bool = False


class PeekMessageRequest(Wire):
    """Header of 200052."""

    consumer_group: str
    topic: str
    queue_id: int = 0
    max_msg_nums: int = 0


class PollingInfoRequest(Wire):
    """Header of 200055."""

    consumer_group: str
    topic: str
    queue_id: int = 0


class PollingInfoResponse(Wire):
    """Response header of 200055: the number of waiting requests."""

    polling_num: int


class QueryAssignmentBody(Wire):
    """Body of 400."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str = "AVG"
    message_model: str = "CLUSTERING"


class MessageQueueAssignment(Wire):
    """One queue in the response body of 400."""

    message_queue: MessageQueueBody
    mode: str = "PULL"
    attachments: dict[str, str] | None = None


class MessageQueueAssignments(Wire):
    """Response body of 400."""

    message_queue_assignments: list[MessageQueueAssignment] = Field(default_factory=list)


class RequestModeRequest(Wire):
    """Header of 401; RocketMQ's has no fields. forwarded (ours): set by a broker that received the request
    but is not master."""

    forwarded: bool | None = None


class RequestModeBody(Wire):
    """Body of 401. pop_share_queue_num 0 or -1: every member pops from every queue."""

    topic: str
    consumer_group: str
    mode: MessageRequestMode = "PULL"
    pop_share_queue_num: int = 0


class RequestModes(Wire):
    """Response body of 402: topic -> group -> mode."""

    message_request_mode_map: dict[str, dict[str, RequestModeBody]] = Field(default_factory=dict)


POP_MESSAGE = Operation(
    RequestCode.POP_MESSAGE, "popMessage", PopMessageRequest, PopMessageResponse, response_body=bytes
)
ACK_MESSAGE = Operation(RequestCode.ACK_MESSAGE, "ackMessage", AckMessageRequest)
BATCH_ACK_MESSAGE = Operation(RequestCode.BATCH_ACK_MESSAGE, "batchAckMessage", request_body=BatchAckBody)
CHANGE_MESSAGE_INVISIBLETIME = Operation(
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    "changeMessageInvisibleTime",
    ChangeInvisibleTimeRequest,
    ChangeInvisibleTimeResponse,
)
RENEW_POPPED = Operation(
    RequestCode.KEELMQ_RENEW_POPPED, "renewPopped", RenewPoppedRequest, RenewPoppedResponse
)
NOTIFICATION = Operation(RequestCode.NOTIFICATION, "notification", NotificationRequest, NotificationResponse)
PEEK_MESSAGE = Operation(
    RequestCode.PEEK_MESSAGE, "peekMessage", PeekMessageRequest, PopMessageResponse, response_body=bytes
)
POLLING_INFO = Operation(RequestCode.POLLING_INFO, "pollingInfo", PollingInfoRequest, PollingInfoResponse)
QUERY_ASSIGNMENT = Operation(
    RequestCode.QUERY_ASSIGNMENT,
    "queryAssignment",
    request_body=QueryAssignmentBody,
    response_body=MessageQueueAssignments,
)
SET_MESSAGE_REQUEST_MODE = Operation(
    RequestCode.SET_MESSAGE_REQUEST_MODE,
    "setMessageRequestMode",
    RequestModeRequest,
    request_body=RequestModeBody,
)
GET_ALL_MESSAGE_REQUEST_MODE = Operation(
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, "getAllMessageRequestMode", response_body=RequestModes
)
