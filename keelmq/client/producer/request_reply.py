"""Request-reply messages through the broker.

    reply = await producer.request(Message("prices", b"apple"), timeout_ms=1_000)

    async def handle(messages):  # of a PushConsumer that subscribed to "prices"
        for message in messages:
            await consumer.reply(message, b"1.20")

A request is a message with three more properties: CORRELATION_ID, REPLY_TO_CLIENT and TTL. The reply goes
(325) to the broker that stored the request. That broker knows the requester by its heartbeats, and pushes the
reply to it (326). At least once: a request may be consumed twice; the first reply counts.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from keelmq.client.cluster.queue_reader import PullError, PullErrorKind, QueueReader
from keelmq.client.core.checks import check_body, check_int, check_one_of, check_pairs
from keelmq.client.core.queues import MessageQueue
from keelmq.client.core.send_result import SendError, SendErrorKind, SendResult
from keelmq.client.message import (
    BODY_BYTES_MAX,
    Message,
    MessageExt,
    decode_properties,
    encode_properties,
    inflated_body,
    unique_keys,
)
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.messages.inflate import InflateError
from keelmq.remoting.operation import Call, CommandError, OperationTable
from keelmq.remoting.operations.broker import SendMessageRequestV2
from keelmq.remoting.operations.replies import (
    PUSH_REPLY_MESSAGE_TO_CLIENT,
    SEND_REPLY_MESSAGE_V2,
    PushReplyRequest,
    PushReplyResponse,
)
from keelmq.runtime.clock import wall_ms

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_MS = 3_000
REPLY_TIMEOUT_MS = 3_000
CLOCK_SKEW_MS = 60_000
"""The assumed difference between the clocks of two machines. A request whose TTL expired longer ago has no
waiting requester."""

CORRELATION_ID, REPLY_TO_CLIENT, TTL = "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL"
MSG_TYPE, REPLY, CLUSTER = "MSG_TYPE", "reply", "CLUSTER"

_unique_keys = unique_keys()


@dataclass(frozen=True, slots=True)
class ReplyMessage:
    """A received reply. Timestamps are wall-clock ms of the replier and of the broker; hosts are
    "address:port"."""

    body: bytes
    properties: Mapping[str, str]
    flag: int
    born_timestamp: int
    born_host: str
    store_timestamp: int
    store_host: str

    @property
    def correlation_id(self) -> str:
        """Returns the property CORRELATION_ID, "" if not set."""
        return self.properties.get(CORRELATION_ID, "")


class NoReply(Exception):
    """The request is stored (`sent`) and may be consumed, but no reply came in time."""

    def __init__(self, remark: str, sent: SendResult) -> None:
        super().__init__(f"request {sent.msg_id} to {sent.topic}: {remark}")
        self.remark, self.sent = remark, sent


class Requests:
    """The requests of one client that wait for a reply. Binds `table` to serve the brokers' pushes (326)."""

    def __init__(self, table: OperationTable) -> None:
        self._waiting: dict[str, asyncio.Future[ReplyMessage | None]] = {}
        table.bind(PUSH_REPLY_MESSAGE_TO_CLIENT, self._received)

    def __len__(self) -> int:
        return len(self._waiting)

    @contextlib.contextmanager
    def waiting(self, correlation_id: str) -> Iterator["asyncio.Future[ReplyMessage | None]"]:
        """Yields the future of the reply; its result is None if the client was closed meanwhile."""
        future = self._waiting[correlation_id] = asyncio.get_running_loop().create_future()
        try:
            yield future
        finally:
            del self._waiting[correlation_id]

    def close(self) -> None:
        """Ends all waits, without a reply."""
        for future in self._waiting.values():
            if not future.done():
                future.set_result(None)

    async def _received(self, header: PushReplyRequest, call: Call) -> PushReplyResponse:
        """Serves 326. Also accepts a reply without a waiting request: a refusal would not help the
        replier."""
        properties = decode_properties(header.properties or "")
        future = self._waiting.get(properties.get(CORRELATION_ID, ""))
        if future is None or future.done():
            logger.debug("reply %s: no request waits for it", properties.get(CORRELATION_ID))
            return PushReplyResponse()
        try:
            body = inflated_body(bytes(call.body or b""), header.sys_flag, BODY_BYTES_MAX)
        except InflateError as error:
            remark = f"the reply's body cannot be inflated: {error}"
            raise CommandError(ResponseCode.SYSTEM_ERROR, remark) from None
        future.set_result(
            ReplyMessage(
                body=body,
                properties=properties,
                flag=header.flag,
                born_timestamp=header.born_timestamp,
                born_host=header.born_host,
                store_timestamp=header.store_timestamp,
                store_host=header.store_host,
            )
        )
        return PushReplyResponse()


def as_request(message: Message, *, correlation_id: str, client_id: str, timeout_ms: int) -> dict[str, str]:
    """Returns the properties of the message as a request. ValueError: the message is delayed."""
    if message.delay_level:
        raise ValueError("a request cannot be delayed: the requester waits for its reply")
    return {
        **message.properties,
        CORRELATION_ID: correlation_id,
        REPLY_TO_CLIENT: client_id,
        TTL: str(timeout_ms),
    }


async def send_reply(
    reader: QueueReader,
    group: str,
    request: MessageExt,
    body: bytes,
    properties: Mapping[str, str] | None,
    timeout_ms: int,
) -> None:
    """Sends a reply and returns when the requester has it. ValueError: `request` is not a request. SendError:
    the reply was not delivered; UNKNOWN: it may have been."""
    check_one_of("request", request, MessageExt)
    check_body("the body of a reply", body)
    check_pairs("properties", properties or {})
    check_int("timeout_ms", timeout_ms, least=1)
    found = request.properties
    missing = [name for name in (CLUSTER, CORRELATION_ID, REPLY_TO_CLIENT) if not found.get(name)]
    if missing:
        raise ValueError(f"message {request.msg_id} is not a request: it has no {' and no '.join(missing)}")
    if _is_expired(request):
        raise SendError(
            SendErrorKind.REFUSED,
            f"the request expired after {found[TTL]} ms: no requester waits for a reply",
            0,
        )
    reply = Message(
        topic=f"{found[CLUSTER]}_REPLY_TOPIC",
        body=body,
        properties={
            **(properties or {}),
            MSG_TYPE: REPLY,
            **{name: found[name] for name in (CORRELATION_ID, REPLY_TO_CLIENT, TTL) if name in found},
        },
    )
    header = SendMessageRequestV2(  # the wire has one-letter names
        a=group,
        b=reply.topic,
        e=0,
        f=0,
        g=wall_ms(),
        h=0,
        i=encode_properties(reply, next(_unique_keys)),
        j=0,
        n=request.broker_name,
    )
    queue = MessageQueue(request.topic, request.broker_name, request.queue_id)
    try:
        await reader.ask(queue, SEND_REPLY_MESSAGE_V2, header, body, timeout_ms=timeout_ms, master_only=True)
    except PullError as error:
        raise SendError(_KINDS[error.kind], error.remark, 1) from None


_KINDS = {
    PullErrorKind.NO_ROUTE: SendErrorKind.NO_ROUTE,
    PullErrorKind.REFUSED: SendErrorKind.REFUSED,
    PullErrorKind.UNREACHABLE: SendErrorKind.UNKNOWN,
}


def _is_expired(request: MessageExt) -> bool:
    ttl = request.properties.get(TTL, "")
    return ttl.isdecimal() and wall_ms() > request.born_timestamp + int(ttl) + CLOCK_SKEW_MS
