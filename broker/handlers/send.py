"""Sending (310, 320, 10): the data path from a decoded header to a record in the log and a reply in bytes.

Nothing here waits. A plain message costs one call into the store and one reply template, and so do many
together that came in one read; whatever is unusual goes another way (unusual_sends.py). Source: RocketMQ
5.3.3 SendMessageProcessor.
"""

import struct
import sys
from typing import Final, cast

from broker.handlers.batch_sends import COMPRESSED, BatchSends
from broker.handlers.parts import BrokerParts
from broker.handlers.send_commands import SendCommand, SendCommandV1, SendCommandV2, lenient_v1, lenient_v2
from broker.handlers.send_replies import key_text, of_many, of_one, refusal
from broker.handlers.success_frames import success_frames
from broker.handlers.unusual_sends import UnusualSends, properties_bytes_max, stored_suffix
from broker.handlers.writer import CUT_OFF, Letter, Refused, Writer
from broker.pending import HotPeer, reply_frame
from broker.store.batch_queue import BatchQueue
from broker.store.inner_batch import INNER_BATCH
from broker.store.property_scan import look
from broker.store.record import TRANSACTION_BITS
from broker.store.record_bytes import Message, Place
from broker.store.together import Together
from broker.topics import Topic
from remoting.codes import RequestCode, ResponseCode
from remoting.command import FLAG_ONEWAY
from remoting.operation import Hot, HotHandler, OperationTable, TogetherHandler

_UNUSUAL_BITS: Final = TRANSACTION_BITS | INNER_BATCH
_UNIQUE_KEY: Final = b"UNIQ_KEY\x01%b\x02"


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
        self._host = self._template = b""
        self._texts = of_many(b"")
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
        is_sealed = self._store.config.append_prop_crc  # each record has a checksum of its own
        together = None if is_sealed else cast(TogetherHandler, self.send_together)
        table.bind_hot(RequestCode.SEND_MESSAGE_V2, Hot(SendCommandV2, lenient_v2, handler, together))
        table.bind_hot(RequestCode.SEND_MESSAGE, Hot(SendCommandV1, lenient_v1, handler, together))
        batch = cast(HotHandler, self.send_batch)
        table.bind_hot(RequestCode.SEND_BATCH_MESSAGE, Hot(SendCommandV2, lenient_v2, batch))

    def send(self, command: SendCommand, body: bytes, peer: HotPeer) -> bytes | None:
        """A whole reply frame; None: oneway, or answered when the message is replicated."""
        ext = command.ext
        gate = self._gate
        topic = self._topics.get(ext.topic)
        properties, is_plain, waits, code, key, keys = look(ext.properties)
        if (  # _room(), _open_topic() and _is_unusual(), without three calls
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
            properties += _UNIQUE_KEY % key
        tick = self._tick
        if not tick.is_due and tick.starts_cut_off():
            return refusal(command, Refused(ResponseCode.SERVICE_NOT_AVAILABLE, CUT_OFF))
        try:
            offset, end, queue_offset = self._store.put(
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
        if self._store.store_host is not self._host:
            self._look_at_host()
        if not key.isalnum():
            key = key_text(key)
        reply = reply_frame(self._template % (offset, ext.queue_id, queue_offset, key, command.opaque))
        if gate.wait and waits:
            self._pending.add(end, peer, reply, tick.ms)
            return None
        return reply

    def send_together(
        self, commands: list[SendCommand], bodies: list[bytes], peer: HotPeer
    ) -> tuple[int, bytes]:
        """Of what one read brought, up to the first that is no plain message: stored and answered at once.
        How many, and the replies that leave now."""
        together, tick = Together(self._store), self._tick
        places: dict[tuple[str, int], Place] = {}
        messages: list[Message] = []
        reply_keys: list[bytes] = []
        suffix, all_wait = self._suffix, True
        for _, command, body in zip(range(self._room()), commands, bodies, strict=False):
            ext = command.ext
            properties, is_plain, waits, code, key, keys = look(ext.properties)
            if not is_plain or ext.batch or self._is_unusual(ext.sys_flag, len(body), len(properties)):
                break
            if waits is not all_wait:
                if messages:
                    break
                all_wait = waits
            key_of_place = ext.topic, ext.queue_id
            place = places.get(key_of_place)
            if place is None:
                topic = self._open_topic(*key_of_place)
                place = None if topic is None else together.place(topic, ext.queue_id)
                if place is None:
                    break
                places[key_of_place] = place
            if not key:
                key = self._new_unique_key().encode()
                properties += _UNIQUE_KEY % key
            message = (
                place, ext.flag, ext.sys_flag, ext.born_timestamp, ext.reconsume_times, body,
                properties + suffix, code, key, keys,
            )  # fmt: skip
            messages.append(message)
            reply_keys.append(key if key.isalnum() else key_text(key))
        if not messages or (not tick.is_due and tick.starts_cut_off()):
            return 0, b""
        written = together.put(messages, peer.address_bytes, tick.wall_ms)
        if written is None:
            return 0, b""
        if not tick.is_due:
            tick.schedule()
        found = zip(written.offsets, written.queue_offsets, reply_keys, commands, strict=False)
        answers = [
            (offset, command.ext.queue_id, queue_offset, key, command.opaque)
            for offset, queue_offset, key, command in found
            if not command.flag & FLAG_ONEWAY
        ]
        if self._store.store_host is not self._host:
            self._look_at_host()
        frames = success_frames(self._texts, answers)
        if all_wait and answers and self._gate.wait:
            self._pending.add(self._store.commit_log.max_offset, peer, frames, tick.ms, len(answers))
            return len(messages), b""
        return len(messages), frames

    def _room(self) -> int:
        """So many plain messages are taken now."""
        gate = self._gate
        if self._is_restricted or not gate.writable or gate.in_sync < gate.min_in_sync:
            return 0
        return self._pending.room if gate.wait else sys.maxsize

    def _look_at_host(self) -> None:
        """It stands in every message id, and may be known late."""
        host = self._host = self._store.store_host
        self._template, self._texts = of_one(host), of_many(host)

    def _open_topic(self, name: str, queue_id: int) -> Topic | None:
        """That clients may send to, and that has this queue."""
        topic = self._topics.get(name)
        if topic is None or topic.is_retry or not 0 <= queue_id < topic.open_queue_count:
            return None
        return topic

    def _is_unusual(self, sys_flag: int, body_bytes: int, properties_bytes: int) -> bool:
        return (
            sys_flag & _UNUSUAL_BITS != 0
            or body_bytes > self._body_bytes_max
            or properties_bytes > self._properties_bytes_max
        )

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
