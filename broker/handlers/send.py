"""Sending (310, 320, 10): the data path from a decoded header to a record in the log and a reply in bytes.

Nothing here waits. A plain message costs one call into the store and one reply template; whatever is unusual
goes another way (unusual_sends.py). Source: RocketMQ 5.3.3 SendMessageProcessor.
"""

import struct
from typing import Final, cast

from broker.handlers.batch_sends import COMPRESSED, BatchSends
from broker.handlers.parts import BrokerParts
from broker.handlers.send_commands import SendCommand, SendCommandV1, SendCommandV2, lenient_v1, lenient_v2
from broker.handlers.send_replies import key_text, of_one, refusal
from broker.handlers.unusual_sends import UnusualSends, properties_bytes_max, stored_suffix
from broker.handlers.writer import CUT_OFF, Letter, Refused, Writer
from broker.pending import HotPeer, reply_frame
from broker.store.batch_queue import BatchQueue
from broker.store.inner_batch import INNER_BATCH
from broker.store.property_scan import look
from broker.store.record import TRANSACTION_BITS
from broker.topics import Topic
from remoting.codes import RequestCode, ResponseCode
from remoting.command import FLAG_ONEWAY
from remoting.operation import Hot, HotHandler, OperationTable

_UNUSUAL_BITS: Final = TRANSACTION_BITS | INNER_BATCH


class SendHandler:
    """One for both codes. Once per loop iteration in which something is put, parts.end_of_tick is called."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        self._store, self._gate, self._pending = parts.store, parts.gate, parts.pending
        self._topics = parts.topics.topics
        self._body_bytes_max = parts.message_bytes_max
        self._suffix = stored_suffix(parts.cluster_name)
        self._properties_bytes_max = properties_bytes_max(parts, self._suffix)
        self.writer = Writer(parts)
        self._tick = self.writer.tick
        self._batches = BatchSends(parts, self.writer, self._suffix)
        self._unusual = UnusualSends(parts, self.writer, self._batches)
        self._host = b""
        self._template = b""
        self._new_unique_key = parts.new_unique_key
        self._is_restricted = False
        self.configure()

    def configure(self) -> None:
        """At first, and when a setting has changed."""
        parts = self._parts
        self._body_bytes_max = parts.message_bytes_max
        self._is_restricted = (
            not parts.permits_write or parts.settings.start_accept_send_request_time_stamp > 0
        )

    def bind(self, table: OperationTable) -> None:
        handler = cast(HotHandler, self.send)
        table.bind_hot(RequestCode.SEND_MESSAGE_V2, Hot(SendCommandV2, lenient_v2, handler))
        table.bind_hot(RequestCode.SEND_MESSAGE, Hot(SendCommandV1, lenient_v1, handler))
        batch = cast(HotHandler, self.send_batch)
        table.bind_hot(RequestCode.SEND_BATCH_MESSAGE, Hot(SendCommandV2, lenient_v2, batch))

    def send(self, command: SendCommand, body: bytes, peer: HotPeer) -> bytes | None:
        """A whole reply frame; None: oneway, or answered when the message is replicated."""
        ext = command.ext
        gate = self._gate
        topic = self._topics.get(ext.topic)
        properties, is_plain, waits, code, key, keys = look(ext.properties)
        if (
            topic is None
            or self._is_restricted
            or not gate.writable
            or gate.in_sync < gate.min_in_sync
            or not 0 <= ext.queue_id < topic.open_queue_count
            or len(body) > self._body_bytes_max
            or len(properties) > self._properties_bytes_max
            or ext.sys_flag & _UNUSUAL_BITS
            or not is_plain
            or topic.is_retry
            or (gate.wait and self._pending.is_full)
        ):
            return self._unusual.send(command, body, properties, peer)
        if ext.batch:
            return self._send_plain_batch(command, topic, body, properties, peer)
        if not key:
            key = self._new_unique_key().encode()
            properties += b"UNIQ_KEY\x01%b\x02" % key
        tick, store = self._tick, self._store
        if not tick.is_due and tick.starts_cut_off():
            return refusal(command, Refused(ResponseCode.SERVICE_NOT_AVAILABLE, CUT_OFF))
        try:
            offset, end, queue_offset = store.put(
                topic,
                ext.queue_id,
                body,
                properties + self._suffix,
                ext.flag,
                ext.sys_flag,
                ext.born_timestamp,
                peer.address_bytes,
                ext.reconsume_times,
                code,
                tick.wall_ms,
                key,
                keys,
            )
        except (struct.error, ValueError, OSError) as error:
            return refusal(command, self.writer.failed(error))
        if not tick.is_due:
            tick.schedule()
        if command.flag & FLAG_ONEWAY:
            return None
        if store.store_host is not self._host:
            self._host = store.store_host
            self._template = of_one(self._host)
        if not key.isalnum():
            key = key_text(key)
        reply = reply_frame(self._template % (offset, ext.queue_id, queue_offset, key, command.opaque))
        if gate.wait and waits:
            self._pending.add(end, peer, reply, tick.ms, command.opaque)
            return None
        return reply

    def send_batch(self, command: SendCommand, body: bytes, peer: HotPeer) -> bytes | None:
        """320: a batch whatever its flag says."""
        command.ext.batch = True
        return self.send(command, body, peer)

    def _send_plain_batch(
        self, command: SendCommand, topic: Topic, body: bytes, properties: bytes, peer: HotPeer
    ) -> bytes | None:
        ext = command.ext
        queue = self._store.queues.get(topic.name, ext.queue_id)
        if ext.sys_flag & COMPRESSED or isinstance(queue, BatchQueue):
            return self._unusual.send(command, body, properties, peer)
        letter = Letter(
            topic, ext.queue_id, body, b"", ext.flag, ext.sys_flag, ext.born_timestamp, peer.address_bytes,
            ext.reconsume_times,
        )  # fmt: skip
        return self._batches.send(command, letter, properties, peer)
