"""SlowPathSends: all sends that are not plain, and the reasons of refusals.

First messages of a new topic, scheduled messages, inner batches, consumers' retries. Each check has its own
answer, in RocketMQ's order. The SendGate makes refusals that concern the whole broker. Source: RocketMQ 5.3.3
SendMessageProcessor, AbstractSendMessageProcessor, HookUtils.
"""

import random

from broker.admission.fast_path import FastPathPeer
from broker.admission.send_gate import PutRefused
from broker.handlers.batch_sends import COMPRESSED, BatchSends
from broker.handlers.priority import priority_of, with_queue
from broker.handlers.scheduled_sends import ScheduledSends
from broker.message.inner_batch import INNER_BATCH
from broker.message.prop_crc import PROPERTY_ROOM_BYTES
from broker.message.properties import with_properties
from broker.message.property_scan import waits_for_replicas
from broker.message.record import (
    PROPERTIES_BYTES_MAX,
    TRANSACTION_BITS,
    is_half,
    offset_message_id,
    property_value,
)
from broker.message.timer_properties import TIMER_PROPERTIES, recall_handle
from broker.metadata.core.topic_names import DLQ_PREFIX, RETRY_PREFIX
from broker.metadata.topics import Topic, illegal_name, is_for_broker
from broker.put.deferred_reply_peer import DeferredReplyPeer
from broker.put.handler_context import HandlerContext
from broker.put.message_to_store import MessageToStore, PutMessageResult
from broker.put.message_writer import MessageWriter
from broker.put.send_commands import NO_MAXIMUM, SendCommand
from broker.put.send_replies import ALWAYS, refusal
from broker.store.queue.batch_queue import BatchQueue
from keelmq.remoting.addresses import network_of
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import FLAG_ONEWAY, FLAG_RESPONSE, RemotingCommand, encode


def stored_suffix(cluster_name: str) -> bytes:
    """Returns the properties that the broker adds to every message. CLUSTER leads to the topic of replies
    (broker-ops pitfall 12)."""
    return b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01" + cluster_name.encode()


def properties_bytes_max(context: HandlerContext, suffix: bytes) -> int:
    """Returns the limit of a client's properties: the suffix and, if enabled, a checksum are added."""
    room = PROPERTY_ROOM_BYTES if context.store.config.append_prop_crc else 0
    return PROPERTIES_BYTES_MAX - len(suffix) - room


def _no_topic(name: str) -> PutRefused:
    return PutRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!")


def _check_queue(command: SendCommand, topic: Topic) -> PutRefused | None:
    queue_id, count = command.ext.queue_id, topic.queue_count
    if queue_id < count:
        return None
    remark = f"queueId[{queue_id}] is illegal, topic[{topic.name}] has {count} queues"
    return PutRefused(ResponseCode.INVALID_PARAMETER, remark)


class SlowPathSends:
    def __init__(self, context: HandlerContext, writer: MessageWriter, batches: BatchSends) -> None:
        self._context, self._writer, self._batches = context, writer, batches
        self._scheduled = ScheduledSends(context, writer)
        self._store, self._gate = context.store, context.gate
        self._topics = context.topics
        self._suffix = stored_suffix(context.cluster_name)
        self._properties_bytes_max = properties_bytes_max(context, self._suffix)

    def send(self, command: SendCommand, body: bytes, properties: bytes, peer: FastPathPeer) -> bytes | None:
        """Returns what SendHandler.send() returns. properties: end with a separator, if there are any."""
        gate = self._gate
        if b"POP_CK\x01" in properties:  # of a popped message that its consumer sends with all properties
            properties = with_properties(properties, {b"POP_CK": None})
        hold_or_forward = gate.hold_or_forward
        if (
            hold_or_forward is not None
            and not gate.decides(waits=waits_for_replicas(properties))
            and hold_or_forward(command, body, peer)
        ):
            return None
        refused = self._check(command, body, properties, peer)
        if refused is not None:
            return refusal(command, refused)
        to_store = self._message(command, body, properties, peer)
        if isinstance(to_store, PutRefused):
            return refusal(command, to_store)
        if not self._topics.unwritten:
            return self._put(command, to_store, properties, peer)
        deferred_peer = DeferredReplyPeer(peer, self._topics)
        reply = self._put(command, to_store, properties, deferred_peer)
        if reply is not None:
            deferred_peer.send(reply)
        return None

    def _put(
        self, command: SendCommand, to_store: MessageToStore, properties: bytes, peer: FastPathPeer
    ) -> bytes | None:
        if command.ext.batch:
            return self._send_batch(command, to_store, properties, peer)
        stored = self._scheduled.put(command, to_store, properties)
        if isinstance(stored, PutRefused):
            return refusal(command, stored)
        if to_store.topic.name.startswith(DLQ_PREFIX):
            origin = property_value(properties, b"RETRY_TOPIC") or command.ext.topic.encode()
            group = to_store.topic.name.removeprefix(DLQ_PREFIX)
            self._context.reads.count_dead_letter(origin.decode("utf-8", "replace"), group)
        message_id = offset_message_id(self._store.store_host, stored.offset)
        return self._answer(command, to_store, properties, message_id, stored, peer)

    # -- checks ------------------------------------------------------------------------------------------

    def _check(
        self, command: SendCommand, body: bytes, properties: bytes, peer: FastPathPeer
    ) -> PutRefused | None:
        """Returns the refusal of the first check that fails. A message that passes has a topic and a queue;
        the topic may be created here, and the queue chosen here."""
        ext, topic = command.ext, self._topics.get(command.ext.topic)
        refused = (
            self._gate.refuse_first()
            or self._check_permission(topic)
            or self._check_topic(command, topic)
            or self._check_message(command, body, properties)
            or self._scheduled.refuse(command, properties)
            or self._gate.refuse_last(waits=waits_for_replicas(properties))
        )
        if refused is not None:
            return refused
        if topic is None:  # last: a refused message creates no topic
            if why := self._topics.full():
                remark = f"topic {ext.topic} is not created: {why}"
                return PutRefused(ResponseCode.TOPIC_NOT_EXIST, remark)
            creation, network = self._topics.creation, network_of(peer.address_bytes)
            problem = creation.refuse(ext.topic, len(self._topics.topics), network)
            if problem is not None:
                return PutRefused(ResponseCode.TOPIC_NOT_EXIST, problem)
            topic = self._topics.create_on_send(ext.topic, ext.default_topic, ext.default_topic_queue_nums)
            if topic is None:
                return _no_topic(ext.topic)
            refused = _check_queue(command, topic)
        if ext.queue_id < 0:
            ext.queue_id = random.randrange(max(topic.write_queue_nums, 1))
        return refused

    def _check_permission(self, topic: Topic | None) -> PutRefused | None:
        """Refuses ordered topics without the write bit of brokerPermission. Clients of other topics choose
        another broker, by the routes."""
        if not self._gate.permits_write and topic is not None and topic.config.order:
            remark = (
                f"the broker[{self._context.broker_name}] sending message is forbidden (brokerPermission)"
            )
            return PutRefused(ResponseCode.NO_PERMISSION, remark)
        return None

    def _check_topic(self, command: SendCommand, topic: Topic | None) -> PutRefused | None:
        """Checks the topic, or whether a new one can be created."""
        ext = command.ext
        problem = illegal_name(ext.topic) if topic is None else None
        if problem is not None:
            return PutRefused(ResponseCode.INVALID_PARAMETER, problem)
        if is_for_broker(ext.topic):
            return PutRefused(ResponseCode.NO_PERMISSION, f"sending to topic[{ext.topic}] is forbidden")
        if topic is None:
            is_possible = self._topics.template_of(ext.topic, ext.default_topic) is not None
            return None if is_possible else _no_topic(ext.topic)
        return _check_queue(command, topic)

    def _check_message(self, command: SendCommand, body: bytes, properties: bytes) -> PutRefused | None:
        problem = self._problem(command, body, properties)
        return None if problem is None else PutRefused(ResponseCode.MESSAGE_ILLEGAL, problem)

    def _problem(self, command: SendCommand, body: bytes, properties: bytes) -> str | None:
        """Returns why the message is illegal; None: it is legal."""
        ext = command.ext
        if len(body) > self._context.message_bytes_max:
            return f"body of {len(body)} bytes is above maxMessageSize {self._context.message_bytes_max}"
        if len(properties) > self._properties_bytes_max:
            return f"properties of {len(properties)} bytes are above {self._properties_bytes_max}"
        if b"\0" in properties:  # recovery treats a zero as the end of the log
            return "the properties contain a zero byte"
        if ext.sys_flag & INNER_BATCH and not ext.batch:
            return "sysFlag has the inner batch's bit, and the message is not sent as a batch"
        if ext.sys_flag & TRANSACTION_BITS and not is_half(properties):
            return "sysFlag has transaction bits, and property TRAN_MSG is not true"
        is_retry = ext.topic.startswith(RETRY_PREFIX)
        try:
            delay_level = self._store.delay_levels.level_of(properties)
            priority = None if is_retry else priority_of(properties)
        except ValueError as error:
            return str(error)
        if ext.batch and (delay_level or is_retry or priority is not None):
            return "a batch is neither delayed nor a retry, and has no priority: it has one queue"
        if ext.batch and ext.sys_flag & COMPRESSED:
            return "a batch is not compressed"  # its items could not be distinguished (clients pitfall 5)
        return None

    # -- messages ------------------------------------------------------------------------------------------

    def _message(
        self, command: SendCommand, body: bytes, properties: bytes, peer: FastPathPeer
    ) -> MessageToStore | PutRefused:
        """Returns the message to store. A retry above the maximum goes to its group's dead-letter topic."""
        ext = command.ext
        topic: Topic | None = self._topics.get(ext.topic)
        assert topic is not None, "checked"
        level = self._store.delay_levels.level_of(properties)
        queue_id = ext.queue_id
        if not topic.is_retry:  # a retry keeps its priority, and has a queue already
            properties, queue_id = with_queue(properties, queue_id, topic.write_queue_nums)
        if level:
            properties = with_properties(properties, dict.fromkeys(TIMER_PROPERTIES))  # the level wins
        if topic.is_retry:
            group = ext.topic.removeprefix(RETRY_PREFIX)
            is_dead = self._is_dead(group, ext.reconsume_times, ext.max_reconsume_times, peer)
            if isinstance(is_dead, PutRefused):
                return is_dead
            if is_dead:
                try:
                    topic, queue_id, level = self._topics.ensure(DLQ_PREFIX + group, 1), 0, 0
                except OSError as error:
                    remark = f"topic[{DLQ_PREFIX + group}] cannot be created: {error.strerror or error}"
                    return PutRefused(ResponseCode.SYSTEM_ERROR, remark)
                properties = with_properties(properties, {b"DELAY": None})
        if not ext.batch and not property_value(properties, b"UNIQ_KEY"):
            properties += b"UNIQ_KEY\x01%b\x02" % self._context.new_unique_key().encode()
        return MessageToStore(
            topic, queue_id, body, properties + self._suffix, ext.flag,
            ext.sys_flag & ~(TRANSACTION_BITS | INNER_BATCH), ext.born_timestamp,
            peer.address_bytes, ext.reconsume_times, level,
        )  # fmt: skip

    def _is_dead(
        self, group: str, reconsume_times: int, maximum: int, peer: FastPathPeer
    ) -> bool | PutRefused:
        """Returns whether a retry belongs in the dead-letter topic.

        The client has counted this try already. An orderly consumer retries locally, and sends only messages
        that it gives up (broker-ops pitfalls 1 and 2).
        """
        row = self._context.find_group(group, peer)
        if row is None:
            remark = f"subscription group not exist, {group}"
            return PutRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if self._context.locks.is_ordered(group, now_ms=self._context.now_ms()):
            return True
        return reconsume_times > (row.config.retry_max_times if maximum <= NO_MAXIMUM else maximum)

    # -- batches -----------------------------------------------------------------------------------------

    def _send_batch(
        self, command: SendCommand, to_store: MessageToStore, properties: bytes, peer: FastPathPeer
    ) -> bytes | None:
        queue = self._store.queues.get(to_store.topic.name, to_store.queue_id)
        if isinstance(queue, BatchQueue):
            return self._send_inner_batch(command, to_store, properties, peer, queue)
        return self._batches.send(command, to_store, properties, peer)

    def _send_inner_batch(
        self,
        command: SendCommand,
        to_store: MessageToStore,
        properties: bytes,
        peer: FastPathPeer,
        queue: BatchQueue,
    ) -> bytes | None:
        """Stores a batch as one record, for a topic with queue.type=BatchCQ. The batch has one unique key,
        batchUniqId in the answer."""
        if not property_value(properties, b"UNIQ_KEY"):
            properties += b"UNIQ_KEY\x01%b\x02" % self._context.new_unique_key().encode()
        to_store.properties = properties + self._suffix
        stored = self._writer.put_inner_batch(to_store, queue)
        if isinstance(stored, PutRefused):
            return refusal(command, stored)
        message_id = offset_message_id(self._store.store_host, stored.offset)
        return self._answer(command, to_store, properties, message_id, stored, peer, is_inner=True)

    # -- answers -----------------------------------------------------------------------------------------

    def _answer(
        self,
        command: SendCommand,
        to_store: MessageToStore,
        properties: bytes,
        message_id: str,
        stored: PutMessageResult,
        peer: FastPathPeer,
        *,
        is_inner: bool = False,
    ) -> bytes | None:
        if command.flag & FLAG_ONEWAY:
            return None
        key = property_value(to_store.properties if not command.ext.batch else properties, b"UNIQ_KEY") or b""
        fields = {
            "msgId": message_id,
            "queueId": str(to_store.queue_id),
            "queueOffset": str(stored.queue_offset),
            "transactionId": key.decode("utf-8", "replace"),
            **ALWAYS,
        }
        if is_inner:
            fields["batchUniqId"] = fields["transactionId"]
        if to_store.timer_out_ms and not command.ext.topic.startswith(RETRY_PREFIX):
            fields["recallHandle"] = recall_handle(
                command.ext.topic, self._context.broker_name, to_store.timer_out_ms, fields["transactionId"]
            )
        reply = encode(RemotingCommand(ResponseCode.SUCCESS, command.opaque, FLAG_RESPONSE, None, fields))
        if not waits_for_replicas(to_store.properties):
            return reply
        return self._writer.reply_when_safe(stored, peer, reply)
