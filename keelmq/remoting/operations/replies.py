"""Request-reply messages: a consumer's reply to the broker (324, 325), and its push to the requester (326).

Source: RocketMQ 5.3.3 SendMessageRequestHeader, ReplyMessageRequestHeader.
"""

from keelmq.remoting.codes import RequestCode
from keelmq.remoting.operation import Operation, Wire
from keelmq.remoting.operations.broker import SendMessageRequestV2, SendMessageResponse


class SendReplyRequest(Wire):
    """Header of 324, like SEND_MESSAGE; 325 has the one-letter names of SEND_MESSAGE_V2."""

    producer_group: str = ""
    topic: str
    default_topic: str = ""
    default_topic_queue_nums: int = 4
    queue_id: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    flag: int = 0
    properties: str | None = None
    reconsume_times: int | None = 0
    unit_mode: bool | None = False


class PushReplyRequest(SendReplyRequest):
    """Header of 326, broker to requester. Hosts: "ip:port"."""

    born_host: str
    store_host: str
    store_timestamp: int


class PushReplyResponse(Wire):
    """Response header of 326: empty, only the response code matters."""


SEND_REPLY_MESSAGE = Operation(
    RequestCode.SEND_REPLY_MESSAGE,
    "sendReplyMessage",
    SendReplyRequest,
    SendMessageResponse,
    request_body=bytes,
)
SEND_REPLY_MESSAGE_V2 = Operation(
    RequestCode.SEND_REPLY_MESSAGE_V2,
    "sendReplyMessageV2",
    SendMessageRequestV2,
    SendMessageResponse,
    request_body=bytes,
)
PUSH_REPLY_MESSAGE_TO_CLIENT = Operation(
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
    "pushReplyMessageToClient",
    PushReplyRequest,
    PushReplyResponse,
    request_body=bytes,
)
