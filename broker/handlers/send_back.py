"""CONSUMER_SEND_MSG_BACK (36): stores a message that a consumer could not process for a later retry, or in
the group's dead-letter topic after the last retry.

The answer waits for replicas like that of a send: after an answer 0 the client commits its offset. Source:
RocketMQ 5.3.3 AbstractSendMessageProcessor.consumerSendMsgBack.
"""

import random
import struct
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from broker.admission.fast_path import FastPathPeer
from broker.admission.send_gate import PutRefused
from broker.message.checked_topic import checked_topic
from broker.message.inner_batch import split
from broker.message.properties import with_properties
from broker.message.record import Record, decode, offset_message_id, property_value
from broker.metadata.core.topic_names import DLQ_PREFIX, RETRY_PREFIX
from broker.metadata.topics import PERM_WRITE, Topic, illegal_name
from broker.put.deferred_reply_peer import DeferredReplyPeer
from broker.put.forward_to_master import ask_master
from broker.put.handler_context import HandlerContext
from broker.put.message_to_store import MessageToStore
from broker.put.message_writer import MessageWriter
from broker.store.querying import record_at
from keelmq.remoting.codes import RequestCode, ResponseCode
from keelmq.remoting.command import response_frame
from keelmq.remoting.operation import Call, CommandError, OperationTable, Reply
from keelmq.remoting.operations.clients import CONSUMER_SEND_MSG_BACK, SendBackRequest

FIRST_RETRY_LEVEL: Final = 3
"""10 s with the default levels; each further retry uses the next level."""
UNTRUSTED_MAXIMUM: Final = "CPP"
"""Clients of this language send a timeout in the field of the maximum (clients pitfall 2)."""


class SendBackHandler:
    def __init__(self, context: HandlerContext, writer: MessageWriter) -> None:
        self._context, self._writer, self._store = context, writer, context.store

    def bind(self, table: OperationTable) -> None:
        """Binds 36 (CONSUMER_SEND_MSG_BACK)."""
        table.bind(CONSUMER_SEND_MSG_BACK, self.send_back)

    async def send_back(self, header: SendBackRequest, call: Call) -> Reply | None:
        """Stores a message that a consumer could not process in the group's retry topic, or in its dead
        letter topic after the last try (36). Raises CommandError if group, topic or record are missing, or
        writes are refused."""
        gate = self._context.gate
        find_record = partial(self._record_at, header.offset, header.origin_msg_id)
        if call.caller.checks_topics:
            record = find_record()
            call.caller.check_topic(checked_topic(record.topic, record.properties))
        if not gate.writable:
            try:
                if await ask_master(self._context, CONSUMER_SEND_MSG_BACK, header):
                    return Reply()
            except CommandError:
                escape_target = self._context.escape_target()
                if escape_target is None or header.forwarded:
                    raise
                return await escape_target.store_retry(find_record, header, call)
        return await self.store_retry(find_record, header, call)

    async def store_retry(
        self, find_record: Callable[[], Record], header: SendBackRequest, call: Call
    ) -> Reply | None:
        """Stores a message in the group's retry topic of this broker, which is master; the message may be
        another broker's. Raises CommandError, as find_record does."""
        gate = self._context.gate
        gate.require_durability()
        group = self._context.find_group(header.group, call.peer)
        if group is None:
            remark = f"subscription group not exist, {header.group}"
            raise CommandError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if not gate.permits_write:
            remark = (
                f"the broker[{self._context.broker_name}] sending message is forbidden (brokerPermission)"
            )
            raise CommandError(ResponseCode.NO_PERMISSION, remark)
        if group.config.retry_queue_nums <= 0:
            return Reply()
        record = find_record()
        level = header.delay_level or FIRST_RETRY_LEVEL + record.reconsume_times
        maximum = group.config.retry_max_times
        if header.max_reconsume_times is not None and header.max_reconsume_times >= 0:
            requested = header.max_reconsume_times
            maximum = min(requested, maximum) if call.language == UNTRUSTED_MAXIMUM else requested
        is_dead = record.reconsume_times >= maximum or level < 0
        if is_dead:
            topic, level = self._topic(DLQ_PREFIX + header.group, 1), 0
        else:
            topic = self._topic(RETRY_PREFIX + header.group, group.config.retry_queue_nums)
            level = min(level, self._store.delay_levels.count)
        stored = self._writer.put(_message(record, topic, level))
        if isinstance(stored, PutRefused) and stored.code == ResponseCode.MESSAGE_ILLEGAL:
            # Its properties have no room for those of a retry: otherwise it would be redelivered endlessly.
            is_dead, topic = True, self._topic(DLQ_PREFIX + header.group, 1)
            stored = self._writer.put(_unchanged(record, topic))
        if isinstance(stored, PutRefused):
            raise CommandError(*stored)
        self._context.reads.count_sent_back(record.topic, header.group)
        if is_dead:
            origin = property_value(record.properties, b"RETRY_TOPIC") or record.topic.encode()
            self._context.reads.count_dead_letter(origin.decode("utf-8", "replace"), header.group)
        if call.is_oneway:
            return Reply()
        if not gate.wait:
            await self._topic_on_disk()
            return Reply()
        reply = response_frame(call.opaque, ResponseCode.SUCCESS)
        peer = cast(FastPathPeer, call.peer)
        if self._context.topics.unwritten:
            peer = DeferredReplyPeer(peer, self._context.topics)
        code = RequestCode.CONSUMER_SEND_MSG_BACK
        self._context.pending.add(stored.end, peer, reply, self._writer.tick.ms, 1, code)
        return None

    async def _topic_on_disk(self) -> None:
        try:
            await self._context.topics.saved()
        except (OSError, ValueError) as error:
            remark = f"the retry is stored, and its topic cannot be written: {error}"
            raise CommandError(ResponseCode.SYSTEM_ERROR, remark) from error

    def _record_at(self, offset: int, unique_key: str | None) -> Record:
        """Returns a message that consumers may have seen; unique_key selects one of an inner batch.

        CommandError: there is none. The client then sends a copy to the retry topic.
        """
        view = record_at(self._store, offset) if offset >= 0 else None
        if view is None:
            raise CommandError(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}")
        try:
            messages = split(decode(view))
        except (ValueError, struct.error) as error:
            raise CommandError(ResponseCode.SYSTEM_ERROR, f"the record at {offset}: {error}") from error
        if len(messages) > 1:
            wanted = (unique_key or "").encode()
            messages = [each for each in messages if property_value(each.properties, b"UNIQ_KEY") == wanted]
        if len(messages) != 1:
            remark = f"the batch at {offset} has no message with the originMsgId {unique_key}"
            raise CommandError(ResponseCode.SYSTEM_ERROR, remark)
        return messages[0]

    def _topic(self, name: str, queue_nums: int) -> Topic:
        problem = illegal_name(name)
        if problem is not None:
            raise CommandError(ResponseCode.SYSTEM_ERROR, f"topic[{name}]: {problem}")
        try:
            topic = self._context.topics.ensure(name, queue_nums)
        except OSError as error:
            remark = f"topic[{name}] cannot be created: {error.strerror or error}"
            raise CommandError(ResponseCode.SYSTEM_ERROR, remark) from error
        if not topic.perm & PERM_WRITE:
            raise CommandError(ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden")
        return topic


def _message(record: Record, topic: Topic, level: int) -> MessageToStore:
    """Returns the retry or dead letter. The client finds the original topic in RETRY_TOPIC. RocketMQ stores
    WAIT=false; it has no effect here."""
    properties = record.properties
    message_id = offset_message_id(record.store_host, record.offset).encode()
    origin = property_value(properties, b"ORIGIN_MESSAGE_ID") or message_id
    changes: dict[bytes, bytes | None] = {
        b"RETRY_TOPIC": property_value(properties, b"RETRY_TOPIC") or record.topic.encode(),
        b"ORIGIN_MESSAGE_ID": origin,
        b"WAIT": b"false",
        b"DELAY": b"%d" % level if level else None,
    }
    if not level:
        changes |= {b"DLQ_ORIGIN_TOPIC": changes[b"RETRY_TOPIC"], b"DLQ_ORIGIN_MESSAGE_ID": origin}
    queue_id = random.randrange(max(topic.write_queue_nums, 1))
    return _to_store(record, topic, queue_id, with_properties(properties, changes), level)


def _unchanged(record: Record, topic: Topic) -> MessageToStore:
    """Returns the dead letter of a message whose properties have no room left."""
    return _to_store(record, topic, 0, record.properties, 0)


def _to_store(record: Record, topic: Topic, queue_id: int, properties: bytes, level: int) -> MessageToStore:
    return MessageToStore(
        topic,
        queue_id,
        record.body,
        properties,
        record.flag,
        record.sys_flag,
        record.born_timestamp,
        record.born_host,
        record.reconsume_times + 1,
        level,
    )
