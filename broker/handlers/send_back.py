"""CONSUMER_SEND_MSG_BACK (36): a message that a consumer could not handle comes again later, or goes to the
group's dead letters when it has come often enough.

The answer waits for replicas like that of a send: a client that is told 0 moves its offset on. Source:
RocketMQ 5.3.3 AbstractSendMessageProcessor.consumerSendMsgBack.
"""

import random
import struct
from typing import Final

from broker.handlers.elsewhere import ask_master
from broker.handlers.parts import BrokerParts
from broker.handlers.property_text import with_properties
from broker.handlers.writer import Letter, Refused, Writer
from broker.store.inner_batch import split
from broker.store.querying import record_at
from broker.store.record import Record, decode, offset_message_id, property_value
from broker.topics import DLQ_PREFIX, PERM_WRITE, RETRY_PREFIX, Topic, illegal_name
from remoting.codes import ResponseCode
from remoting.command import response_frame
from remoting.operation import Call, CommandError, OperationTable, Reply
from remoting.operations.clients import CONSUMER_SEND_MSG_BACK, SendBackRequest

FIRST_RETRY_LEVEL: Final = 3
"""10 s with the default levels; each further retry takes the next one."""
UNTRUSTED_MAXIMUM: Final = "CPP"
"""Clients of this language put a timeout where the maximum belongs (clients pitfall 2)."""


class SendBackHandler:
    def __init__(self, parts: BrokerParts, writer: Writer) -> None:
        self._parts, self._writer, self._store = parts, writer, parts.store

    def bind(self, table: OperationTable) -> None:
        table.bind(CONSUMER_SEND_MSG_BACK, self.send_back)

    async def send_back(self, header: SendBackRequest, call: Call) -> Reply | None:
        gate = self._parts.gate
        if not gate.writable and await ask_master(self._parts, CONSUMER_SEND_MSG_BACK, header):
            return Reply()
        if gate.in_sync < gate.min_in_sync or (gate.wait and self._parts.pending.is_full):
            raise CommandError(ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough, or too many wait")
        group = self._parts.find_group(header.group)
        if group is None:
            remark = f"subscription group not exist, {header.group}"
            raise CommandError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if not self._parts.permits_write:
            remark = f"the broker[{self._parts.broker_name}] sending message is forbidden (brokerPermission)"
            raise CommandError(ResponseCode.NO_PERMISSION, remark)
        if group.config.retry_queue_nums <= 0:
            return Reply()
        record = self._record_at(header.offset, header.origin_msg_id)
        level = header.delay_level or FIRST_RETRY_LEVEL + record.reconsume_times
        maximum = group.config.retry_max_times
        if header.max_reconsume_times is not None and header.max_reconsume_times >= 0:
            asked = header.max_reconsume_times
            maximum = min(asked, maximum) if call.language == UNTRUSTED_MAXIMUM else asked
        is_dead = record.reconsume_times >= maximum or level < 0
        if is_dead:
            topic, level = self._topic(DLQ_PREFIX + header.group, 1), 0
        else:
            topic = self._topic(RETRY_PREFIX + header.group, group.config.retry_queue_nums)
            level = min(level, self._store.delay_levels.count)
        stored = self._writer.put(_letter(record, topic, level))
        if isinstance(stored, Refused):
            raise CommandError(*stored)
        self._parts.reads.came_back(record.topic, header.group)
        if not gate.wait or call.is_oneway:
            return Reply()
        reply = response_frame(call.opaque, ResponseCode.SUCCESS)
        self._parts.pending.add(stored.end, call.peer, reply, self._writer.tick.ms)
        return None

    def _record_at(self, offset: int, unique_key: str | None) -> Record:
        """A message that consumers can have seen; unique_key tells which one of an inner batch. A client that
        is refused sends a copy to the retry topic."""
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
            topic = self._parts.topics.ensure(name, queue_nums)
        except OSError as error:
            remark = f"topic[{name}] cannot be created: {error.strerror or error}"
            raise CommandError(ResponseCode.SYSTEM_ERROR, remark) from error
        if not topic.perm & PERM_WRITE:
            raise CommandError(ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden")
        return topic


def _letter(record: Record, topic: Topic, level: int) -> Letter:
    """The client finds the original topic in RETRY_TOPIC. WAIT=false is what the peer stores; it promises
    nothing here."""
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
    return Letter(
        topic,
        random.randrange(max(topic.write_queue_nums, 1)),
        record.body,
        with_properties(properties, changes),
        record.flag,
        record.sys_flag,
        record.born_timestamp,
        record.born_host,
        record.reconsume_times + 1,
        level,
    )
