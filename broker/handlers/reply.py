"""Replies (324, 325): pushes the reply of a consumer to the client that sent the request.

The request names its client in the property REPLY_TO_CLIENT, and the reply has the same property. Source:
RocketMQ 5.3.3 ReplyMessageProcessor.
"""

from typing import Final

from broker.admission.send_gate import PutRefused
from broker.clients.client_requests import ClientRequests
from broker.clients.service import Clients
from broker.handlers.slow_path_sends import stored_suffix
from broker.message.properties import with_properties
from broker.message.record import PROPERTIES_BYTES_MAX, TRANSACTION_BITS, host_text, offset_message_id
from broker.message.record import property_value as value_of
from broker.metadata.core.topic_names import reply_topic
from broker.metadata.topics import Topic, is_for_broker
from broker.put.handler_context import HandlerContext
from broker.put.message_to_store import MessageToStore, PutMessageResult
from broker.put.message_writer import MessageWriter
from keelmq.remoting.codes import RequestCode, ResponseCode
from keelmq.remoting.command import request_command, response_frame
from keelmq.remoting.operation import Call, CommandError, OperationTable, Reply
from keelmq.remoting.operations.broker import SendMessageRequestV2, SendMessageResponse
from keelmq.remoting.operations.replies import (
    PUSH_REPLY_MESSAGE_TO_CLIENT,
    SEND_REPLY_MESSAGE,
    SEND_REPLY_MESSAGE_V2,
    PushReplyRequest,
    SendReplyRequest,
)
from keelmq.runtime.clock import wall_ms

ANSWER_MS_MAX: Final = 2_500
"""Below the timeout of the replying client, 3 s."""
WAITING_MAX: Final = 4_096


class ReplyHandlers:
    def __init__(self, context: HandlerContext, writer: MessageWriter, clients: Clients) -> None:
        self._context, self._writer, self._clients = context, writer, clients
        self._requests = ClientRequests(clients, answer_ms_max=ANSWER_MS_MAX, waiting_max=WAITING_MAX)
        self._suffix = stored_suffix(context.cluster_name)

    def bind(self, table: OperationTable) -> None:
        """Binds 324 and 325 (SEND_REPLY_MESSAGE, V2)."""
        table.bind(SEND_REPLY_MESSAGE, self.reply)
        table.bind(SEND_REPLY_MESSAGE_V2, self.reply)

    async def reply(self, header: SendReplyRequest | SendMessageRequestV2, call: Call) -> Reply | None:
        """Pushes the reply, then stores it. CommandError if the push fails, even if the reply is stored."""
        body, properties = bytes(call.body or b""), (header.properties or "").encode("utf-8", "replace")
        topic = self._topic(header, body, properties, call)
        fault = await self._push(header, body, properties, call)
        stored = self._store(header, topic, body, properties, call)
        answer = SendMessageResponse(msg_id="0", queue_id=max(header.queue_id, 0), queue_offset=0)
        if isinstance(stored, PutMessageResult):
            message_id = offset_message_id(self._context.store.store_host, stored.offset)
            answer = answer.model_copy(update={"msg_id": message_id, "queue_offset": stored.queue_offset})
        if fault:
            raise CommandError(ResponseCode.SYSTEM_ERROR, fault, answer)
        if not isinstance(stored, PutMessageResult) or not self._context.gate.wait or call.is_oneway:
            return Reply(answer)
        frame = response_frame(call.opaque, ResponseCode.SUCCESS, None, answer)
        is_v1 = isinstance(header, SendReplyRequest)
        code = RequestCode.SEND_REPLY_MESSAGE if is_v1 else RequestCode.SEND_REPLY_MESSAGE_V2
        self._context.pending.add(stored.end, call.peer, frame, self._writer.tick.ms, 1, code)
        return None

    def _topic(
        self, header: SendReplyRequest | SendMessageRequestV2, body: bytes, properties: bytes, call: Call
    ) -> Topic:
        """Returns the topic of the reply; CommandError if the reply is illegal."""
        context = self._context
        if is_for_broker(header.topic):
            raise CommandError(ResponseCode.NO_PERMISSION, f"sending to topic[{header.topic}] is forbidden")
        if len(body) > context.message_bytes_max or b"\0" in properties:
            raise CommandError(ResponseCode.MESSAGE_ILLEGAL, "the reply is too long, or has a zero byte")
        if len(properties) + len(self._suffix) >= PROPERTIES_BYTES_MAX:
            raise CommandError(ResponseCode.MESSAGE_ILLEGAL, f"properties of {len(properties)} bytes")
        if call.caller.user and header.topic != reply_topic(context.cluster_name):
            # Users that may answer requests may send to that topic; a right to another one is no right to
            # push.
            remark = f"replies go to {reply_topic(context.cluster_name)}, not to {header.topic}"
            raise CommandError(ResponseCode.NO_PERMISSION, remark)
        topic = context.topics.get(header.topic)
        if topic is None:
            remark = f"topic[{header.topic}] not exist, apply first please!"
            raise CommandError(ResponseCode.TOPIC_NOT_EXIST, remark)
        return topic

    async def _push(
        self, header: SendReplyRequest | SendMessageRequestV2, body: bytes, properties: bytes, call: Call
    ) -> str:
        """Pushes the reply; returns why that failed, or an empty text."""
        client_id = (value_of(properties, b"REPLY_TO_CLIENT") or b"").decode("utf-8", "replace")
        if not client_id:
            return "REPLY_TO_CLIENT is null, can not push reply message"
        connection_id = self._clients.registry.find_producer(client_id)
        peer = None if connection_id is None else self._clients.peer_of(connection_id)
        if peer is None or peer.is_closing():
            return f"push reply message fail, channel of <{client_id}> not found"
        now = wall_ms()
        pushed = with_properties(properties, {b"PUSH_REPLY_TIME": b"%d" % now})
        question = PushReplyRequest(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            properties=pushed.decode("utf-8", "replace"),
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
            born_host=call.peer.address,
            store_host=host_text(self._context.store.store_host),
            store_timestamp=now,
        )
        try:
            answer = await self._requests.ask(
                peer, request_command(PUSH_REPLY_MESSAGE_TO_CLIENT, question, body)
            )
        except CommandError as error:
            return f"push reply message to {client_id} fail: {error.remark}"
        if answer.code != ResponseCode.SUCCESS:
            return f"push reply message to {client_id} fail with code {answer.code}: {answer.remark}"
        return ""

    def _store(
        self,
        header: SendReplyRequest | SendMessageRequestV2,
        topic: Topic,
        body: bytes,
        properties: bytes,
        call: Call,
    ) -> PutMessageResult | PutRefused | None:
        """Stores the reply for later queries. Its push does not depend on that."""
        if not self._context.settings.store_reply_message_enable or not self._context.gate.writable:
            return None
        host = getattr(call.peer, "address_bytes", self._context.store.store_host)
        queue_id = header.queue_id if 0 <= header.queue_id < topic.queue_count else 0
        text = with_properties(properties, {}) + self._suffix
        to_store = MessageToStore(
            topic, queue_id, body, text, header.flag, header.sys_flag & ~TRANSACTION_BITS,
            header.born_timestamp, host, header.reconsume_times or 0,
        )  # fmt: skip
        return self._writer.put(to_store)
