"""Replies (324, 325): what a consumer answers to a request goes to the client that asked.

The request named its client in the property REPLY_TO_CLIENT, and the replier sends it back. Source: RocketMQ
5.3.3 ReplyMessageProcessor.
"""

from typing import Final

from broker.clients.exchange import Exchange
from broker.clients.service import Clients
from broker.handlers.parts import BrokerParts
from broker.handlers.property_text import with_properties
from broker.handlers.unusual_sends import stored_suffix
from broker.handlers.writer import Letter, Refused, Stored, Writer
from broker.store.record import PROPERTIES_BYTES_MAX, TRANSACTION_BITS, host_text, offset_message_id
from broker.store.record import property_value as value_of
from broker.topics import Topic, is_for_broker
from remoting.clock import wall_ms
from remoting.codes import ResponseCode
from remoting.command import request_command, response_frame
from remoting.operation import Call, CommandError, OperationTable, Reply
from remoting.operations.broker import SendMessageRequestV2, SendMessageResponse
from remoting.operations.replies import (
    PUSH_REPLY_MESSAGE_TO_CLIENT,
    SEND_REPLY_MESSAGE,
    SEND_REPLY_MESSAGE_V2,
    PushReplyRequest,
    SendReplyRequest,
)

ANSWER_MS_MAX: Final = 2_500
"""Below the three seconds that the replier waits."""
WAITING_MAX: Final = 4_096


class ReplyHandlers:
    def __init__(self, parts: BrokerParts, writer: Writer, clients: Clients) -> None:
        self._parts, self._writer, self._clients = parts, writer, clients
        self._exchange = Exchange(clients, answer_ms_max=ANSWER_MS_MAX, waiting_max=WAITING_MAX)
        self._suffix = stored_suffix(parts.cluster_name)

    def bind(self, table: OperationTable) -> None:
        table.bind(SEND_REPLY_MESSAGE, self.reply)
        table.bind(SEND_REPLY_MESSAGE_V2, self.reply)

    async def reply(self, header: SendReplyRequest | SendMessageRequestV2, call: Call) -> Reply | None:
        """Pushed first: who asked waits. It is an error if that fails, whatever is stored."""
        body, properties = bytes(call.body or b""), (header.properties or "").encode("utf-8", "replace")
        topic = self._topic(header, body, properties)
        fault = await self._push(header, body, properties, call)
        stored = self._store(header, topic, body, properties, call)
        answer = SendMessageResponse(msg_id="0", queue_id=max(header.queue_id, 0), queue_offset=0)
        if isinstance(stored, Stored):
            message_id = offset_message_id(self._parts.store.store_host, stored.offset)
            answer = answer.model_copy(update={"msg_id": message_id, "queue_offset": stored.queue_offset})
        if fault:
            raise CommandError(ResponseCode.SYSTEM_ERROR, fault, answer)
        if not isinstance(stored, Stored) or not self._parts.gate.wait or call.is_oneway:
            return Reply(answer)
        frame = response_frame(call.opaque, ResponseCode.SUCCESS, None, answer)
        self._parts.pending.add(stored.end, call.peer, frame, self._writer.tick.ms)
        return None

    def _topic(
        self, header: SendReplyRequest | SendMessageRequestV2, body: bytes, properties: bytes
    ) -> Topic:
        """CommandError: this is no reply."""
        parts = self._parts
        if is_for_broker(header.topic):
            raise CommandError(ResponseCode.NO_PERMISSION, f"sending to topic[{header.topic}] is forbidden")
        if len(body) > parts.message_bytes_max or b"\0" in properties:
            raise CommandError(ResponseCode.MESSAGE_ILLEGAL, "the reply is too long, or has a zero byte")
        if len(properties) + len(self._suffix) >= PROPERTIES_BYTES_MAX:
            raise CommandError(ResponseCode.MESSAGE_ILLEGAL, f"properties of {len(properties)} bytes")
        topic = parts.topics.get(header.topic)
        if topic is None:
            remark = f"topic[{header.topic}] not exist, apply first please!"
            raise CommandError(ResponseCode.TOPIC_NOT_EXIST, remark)
        return topic

    async def _push(
        self, header: SendReplyRequest | SendMessageRequestV2, body: bytes, properties: bytes, call: Call
    ) -> str:
        """Why the client that asked has it not; empty: it has."""
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
            store_host=host_text(self._parts.store.store_host),
            store_timestamp=now,
        )
        try:
            answer = await self._exchange.ask(
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
    ) -> Stored | Refused | None:
        """It is there for whoever looks for it later; the reply does not depend on it."""
        if not self._parts.settings.store_reply_message_enable or not self._parts.gate.writable:
            return None
        host = getattr(call.peer, "address_bytes", self._parts.store.store_host)
        queue_id = header.queue_id if 0 <= header.queue_id < topic.queue_count else 0
        text = with_properties(properties, {}) + self._suffix
        letter = Letter(
            topic, queue_id, body, text, header.flag, header.sys_flag & ~TRANSACTION_BITS,
            header.born_timestamp, host, header.reconsume_times or 0,
        )  # fmt: skip
        return self._writer.put(letter)
