"""Sends that are no plain ones: refused, first of their topic, batches, delayed, or of consumers' retries.

Each check has its answer, in the peer's order. Source: RocketMQ 5.3.3 SendMessageProcessor,
AbstractSendMessageProcessor, HookUtils.
"""

import random

from broker.handlers.batch_sends import COMPRESSED, BatchSends
from broker.handlers.laid_by import LaidBySends
from broker.handlers.parts import BrokerParts
from broker.handlers.property_text import with_properties
from broker.handlers.send_commands import NO_MAXIMUM, SendCommand
from broker.handlers.send_replies import ALWAYS, refusal
from broker.handlers.writer import Letter, Refused, Stored, Writer, not_available
from broker.pending import HotPeer
from broker.store.batch_queue import BatchQueue
from broker.store.inner_batch import INNER_BATCH
from broker.store.record import (
    PROPERTIES_BYTES_MAX,
    TRANSACTION_BITS,
    offset_message_id,
    property_value,
)
from broker.store.record_crc import PROPERTY_ROOM_BYTES
from broker.timers.times import TIMER_PROPERTIES, recall_handle
from broker.topics import DLQ_PREFIX, PERM_WRITE, RETRY_PREFIX, Topic, illegal_name, is_for_broker
from broker.transactions.messages import is_half
from remoting.clock import wall_ms
from remoting.codes import ResponseCode
from remoting.command import FLAG_ONEWAY, FLAG_RESPONSE, RemotingCommand, encode


def stored_suffix(cluster_name: str) -> bytes:
    """What the broker adds to every message. CLUSTER names the reply topic (broker-ops pitfall 12)."""
    return b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01" + cluster_name.encode()


def properties_bytes_max(parts: BrokerParts, suffix: bytes) -> int:
    """Of a client's message: the suffix, and a checksum if there is one, come behind its properties."""
    room = PROPERTY_ROOM_BYTES if parts.store.config.append_prop_crc else 0
    return PROPERTIES_BYTES_MAX - len(suffix) - room


def _no_topic(name: str) -> Refused:
    return Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!")


def _check_queue(command: SendCommand, topic: Topic) -> Refused | None:
    queue_id, count = command.ext.queue_id, topic.queue_count
    if queue_id < count:
        return None
    remark = f"queueId[{queue_id}] is illegal, topic[{topic.name}] has {count} queues"
    return Refused(ResponseCode.INVALID_PARAMETER, remark)


class UnusualSends:
    def __init__(self, parts: BrokerParts, writer: Writer, batches: BatchSends) -> None:
        self._batches = batches
        self._parts, self._writer, self._laid_by = parts, writer, LaidBySends(parts, writer)
        self._store, self._gate, self._pending = parts.store, parts.gate, parts.pending
        self._topics = parts.topics
        self._suffix = stored_suffix(parts.cluster_name)
        self._properties_bytes_max = properties_bytes_max(parts, self._suffix)

    def send(self, command: SendCommand, body: bytes, properties: bytes, peer: HotPeer) -> bytes | None:
        """properties end with a separator, if there are any. As the plain send answers."""
        gate = self._gate
        if b"POP_CK\x01" in properties:  # of a message that was popped, and is sent on with its properties
            properties = with_properties(properties, {b"POP_CK": None})
        if not gate.writable and gate.detour is not None and gate.detour(command, body, peer):
            return None
        refused = self._check(command, body, properties)
        if refused is not None:
            return refusal(command, refused)
        letter = self._letter(command, body, properties, peer)
        if isinstance(letter, Refused):
            return refusal(command, letter)
        if command.ext.batch:
            return self._send_batch(command, letter, properties, peer)
        stored = self._laid_by.put(command, letter, properties)
        if isinstance(stored, Refused):
            return refusal(command, stored)
        message_id = offset_message_id(self._store.store_host, stored.offset)
        return self._answer(command, letter, properties, message_id, stored, peer)

    # -- checks ------------------------------------------------------------------------------------------

    def _check(self, command: SendCommand, body: bytes, properties: bytes) -> Refused | None:
        """The first check that fails. May create the topic or choose the queue, and then lets it pass."""
        ext, gate = command.ext, self._gate
        if not gate.writable:
            return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, not_available(gate))
        topic = self._topics.get(ext.topic)
        refused = (
            self._check_broker(topic)
            or self._check_topic(command, topic)
            or self._check_message(command, body, properties)
            or self._laid_by.refuse(command, properties)
            or self._check_load(properties)
        )
        if refused is not None:
            return refused
        if topic is None:  # a message that is refused has created nothing
            topic = self._topics.create_on_send(ext.topic, ext.default_topic, ext.default_topic_queue_nums)
            if topic is None:
                return _no_topic(ext.topic)
            refused = _check_queue(command, topic)
        if ext.queue_id < 0:
            ext.queue_id = random.randrange(max(topic.write_queue_nums, 1))
        return refused

    def _check_broker(self, topic: Topic | None) -> Refused | None:
        """Does this broker take messages now, and of this topic?"""
        begins_ms = self._parts.settings.start_accept_send_request_time_stamp
        if begins_ms and wall_ms() < begins_ms:
            remark = f"broker unable to service, until {begins_ms} (startAcceptSendRequestTimeStamp)"
            return Refused(ResponseCode.SYSTEM_ERROR, remark)
        if not self._parts.permits_write and topic is not None and topic.config.order:
            remark = f"the broker[{self._parts.broker_name}] sending message is forbidden (brokerPermission)"
            return Refused(ResponseCode.NO_PERMISSION, remark)
        return None

    def _check_topic(self, command: SendCommand, topic: Topic | None) -> Refused | None:
        """Of a topic that is to be created: whether it can be."""
        ext = command.ext
        problem = illegal_name(ext.topic) if topic is None else None
        if problem is not None:
            return Refused(ResponseCode.INVALID_PARAMETER, problem)
        if is_for_broker(ext.topic):
            return Refused(ResponseCode.NO_PERMISSION, f"sending to topic[{ext.topic}] is forbidden")
        if topic is None:
            is_possible = self._topics.template_of(ext.topic, ext.default_topic) is not None
            return None if is_possible else _no_topic(ext.topic)
        if not topic.perm & PERM_WRITE:
            return Refused(ResponseCode.NO_PERMISSION, f"the topic[{ext.topic}] is not writable")
        return _check_queue(command, topic)

    def _check_load(self, properties: bytes) -> Refused | None:
        gate = self._gate
        if gate.in_sync < gate.min_in_sync and property_value(properties, b"WAIT") != b"false":
            remark = f"in-sync replicas not enough: {gate.in_sync} of at least {gate.min_in_sync}"
            return Refused(ResponseCode.SYSTEM_ERROR, remark)
        if gate.wait and self._pending.is_full:
            remark = f"[OVERLOAD]broker busy: {len(self._pending)} messages wait for replicas or the disk"
            return Refused(ResponseCode.SYSTEM_BUSY, remark)
        return None

    def _check_message(self, command: SendCommand, body: bytes, properties: bytes) -> Refused | None:
        problem = self._problem(command, body, properties)
        return None if problem is None else Refused(ResponseCode.MESSAGE_ILLEGAL, problem)

    def _problem(self, command: SendCommand, body: bytes, properties: bytes) -> str | None:
        """Why this message is none; None: it is one."""
        ext = command.ext
        if len(body) > self._parts.message_bytes_max:
            return f"body of {len(body)} bytes is above maxMessageSize {self._parts.message_bytes_max}"
        if len(properties) > self._properties_bytes_max:
            return f"properties of {len(properties)} bytes are above {self._properties_bytes_max}"
        if b"\0" in properties:  # recovery takes a zero for what a crash has torn off
            return "the properties contain a zero byte"
        if ext.sys_flag & INNER_BATCH and not ext.batch:
            return "sysFlag has the inner batch's bit, and the message is not sent as a batch"
        if ext.sys_flag & TRANSACTION_BITS and not is_half(properties):
            return "sysFlag has transaction bits, and property TRAN_MSG is not true"
        try:
            delay_level = self._store.delay_levels.level_of(properties)
        except ValueError as error:
            return str(error)
        if ext.batch and (delay_level or ext.topic.startswith(RETRY_PREFIX)):
            return "a batch is neither delayed nor a retry"
        if ext.batch and ext.sys_flag & COMPRESSED:
            return "a batch is not compressed"  # its items could not be told apart (clients pitfall 5)
        return None

    # -- letters -----------------------------------------------------------------------------------------

    def _letter(
        self, command: SendCommand, body: bytes, properties: bytes, peer: HotPeer
    ) -> Letter | Refused:
        """A retry that has had its chances goes to the group's dead letters."""
        ext = command.ext
        topic: Topic | None = self._topics.get(ext.topic)
        assert topic is not None, "checked"
        level = self._store.delay_levels.level_of(properties)
        queue_id = ext.queue_id
        if level:
            properties = with_properties(properties, dict.fromkeys(TIMER_PROPERTIES))  # the level wins
        if topic.is_retry:
            group = ext.topic.removeprefix(RETRY_PREFIX)
            is_dead = self._is_dead(group, ext.reconsume_times, ext.max_reconsume_times)
            if isinstance(is_dead, Refused):
                return is_dead
            if is_dead:
                topic, queue_id, level = self._topics.ensure(DLQ_PREFIX + group, 1), 0, 0
                properties = with_properties(properties, {b"DELAY": None})
        if not ext.batch and not property_value(properties, b"UNIQ_KEY"):
            properties += b"UNIQ_KEY\x01%b\x02" % self._parts.new_unique_key().encode()
        return Letter(
            topic, queue_id, body, properties + self._suffix, ext.flag,
            ext.sys_flag & ~(TRANSACTION_BITS | INNER_BATCH), ext.born_timestamp,
            peer.address_bytes, ext.reconsume_times, level,
        )  # fmt: skip

    def _is_dead(self, group: str, reconsume_times: int, maximum: int) -> bool | Refused:
        """The client has counted this try already; who consumes in order retries at home, and sends only what
        it gives up (broker-ops pitfalls 1 and 2)."""
        row = self._parts.find_group(group)
        if row is None:
            remark = f"subscription group not exist, {group}"
            return Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if self._parts.locks.is_ordered(group, now_ms=self._parts.now_ms()):
            return True
        return reconsume_times > (row.config.retry_max_times if maximum <= NO_MAXIMUM else maximum)

    # -- batches -----------------------------------------------------------------------------------------

    def _send_batch(
        self, command: SendCommand, letter: Letter, properties: bytes, peer: HotPeer
    ) -> bytes | None:
        queue = self._store.queues.get(letter.topic.name, letter.queue_id)
        if isinstance(queue, BatchQueue):
            return self._send_inner_batch(command, letter, properties, peer, queue)
        return self._batches.send(command, letter, properties, peer)

    def _send_inner_batch(
        self, command: SendCommand, letter: Letter, properties: bytes, peer: HotPeer, queue: BatchQueue
    ) -> bytes | None:
        """To a topic with queue.type=BatchCQ. The whole batch has a unique key, and the answer says so."""
        if not property_value(properties, b"UNIQ_KEY"):
            properties += b"UNIQ_KEY\x01%b\x02" % self._parts.new_unique_key().encode()
        letter.properties = properties + self._suffix
        stored = self._writer.put_inner_batch(letter, queue)
        if isinstance(stored, Refused):
            return refusal(command, stored)
        message_id = offset_message_id(self._store.store_host, stored.offset)
        return self._answer(command, letter, properties, message_id, stored, peer, is_inner=True)

    # -- answers -----------------------------------------------------------------------------------------

    def _answer(
        self,
        command: SendCommand,
        letter: Letter,
        properties: bytes,
        message_id: str,
        stored: Stored,
        peer: HotPeer,
        *,
        is_inner: bool = False,
    ) -> bytes | None:
        if command.flag & FLAG_ONEWAY:
            return None
        key = property_value(letter.properties if not command.ext.batch else properties, b"UNIQ_KEY") or b""
        fields = {
            "msgId": message_id,
            "queueId": str(letter.queue_id),
            "queueOffset": str(stored.queue_offset),
            "transactionId": key.decode("utf-8", "replace"),
            **ALWAYS,
        }
        if is_inner:
            fields["batchUniqId"] = fields["transactionId"]
        if letter.timer_out_ms and not command.ext.topic.startswith(RETRY_PREFIX):
            fields["recallHandle"] = recall_handle(
                command.ext.topic, self._parts.broker_name, letter.timer_out_ms, fields["transactionId"]
            )
        reply = encode(RemotingCommand(ResponseCode.SUCCESS, command.opaque, FLAG_RESPONSE, None, fields))
        if property_value(letter.properties, b"WAIT") == b"false":
            return reply
        return self._writer.reply_when_safe(stored, peer, reply, command.opaque)
