"""Sending (310, 320, 10): the fast path from a decoded header to a record in the log and a reply in bytes.

Nothing here waits. A plain message costs one call of the store and one reply template; the plain messages of
one read, or of one turn of the event loop, are stored together. All other messages go to slow_path_sends.py,
which also finds the reason of a refusal. Plain is decided in four places, for `send` and for
messages_of(): the gate's accepts_all (the whole broker), the topic's open_queue_count (topic and queue),
scan_properties(), and sizes and flags. Source: RocketMQ 5.3.3 SendMessageProcessor.
"""

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, TypeAlias, cast

import msgspec

from broker.admission.fast_path import FastPathPeer
from broker.admission.pending_replies import reply_frame
from broker.admission.send_gate import CUT_OFF, PutRefused
from broker.handlers.batch_sends import COMPRESSED, BatchSends
from broker.handlers.slow_path_sends import SlowPathSends, properties_bytes_max, stored_suffix
from broker.message.property_scan import scan_properties
from broker.message.record_bytes import EncodedRecords, QueueCursor
from broker.metadata.topics import Topic
from broker.put.handler_context import HandlerContext
from broker.put.message_to_store import MessageToStore
from broker.put.message_writer import MessageWriter
from broker.put.plain_sends import (
    SLOW_PATH_BITS,
    UNIQUE_KEY,
    WAITS,
    PlainSend,
    messages_of,
    plain_sends,
)
from broker.put.send_commands import SendCommand, SendCommandV1, SendCommandV2, lenient_v1, lenient_v2
from broker.put.send_replies import refusal, reply_template, reply_texts
from broker.put.success_frames import Answered, key_text, success_frame_list, success_frames
from broker.stats.rpc_latency import ONEWAY, SUCCESS, response_code_of
from broker.store.batched_put import BatchedPut
from broker.store.queue.batch_queue import BatchQueue
from keelmq.remoting.codes import RequestCode, ResponseCode
from keelmq.remoting.command import FLAG_ONEWAY
from keelmq.remoting.dispatch import fast_path_key
from keelmq.remoting.frame import Frame
from keelmq.remoting.operation import Batched, FastPath, FastPathHandler, OperationTable
from keelmq.remoting.turn_requests import ServeTurn, TurnRequests

Stored: TypeAlias = tuple[EncodedRecords, list[Answered], int]
"""The records of the messages, the answer to each, and the number that are not oneway."""


class SendHandler:
    """Serves all codes of sends. `writer`: used by other handlers to put messages; it shares the Tick."""

    def __init__(self, context: HandlerContext, writer: MessageWriter) -> None:
        self._context = context
        self._store, self._gate, self._pending = context.store, context.gate, context.pending
        self._latency = context.pending.latency
        self._topics = context.topics.topics
        self._body_bytes_max = context.message_bytes_max
        self._suffix = stored_suffix(context.cluster_name)
        self._properties_bytes_max = properties_bytes_max(context, self._suffix)
        self._writer = writer
        self._tick = writer.tick
        self._batches = BatchSends(context, writer, self._suffix)
        self._slow_path = SlowPathSends(context, writer, self._batches)
        self._host = self._template = b""
        self._texts = reply_texts(b"")
        self._new_unique_key = context.new_unique_key

    def configure(self) -> None:
        """Reads the settings again, after one has changed."""
        self._body_bytes_max = self._context.message_bytes_max

    def bind(self, table: OperationTable) -> None:
        """Binds 310, 10 and 320."""
        handler, v1 = cast(FastPathHandler, self.send), cast(FastPathHandler, self.send_v1)
        batched: Batched | None = None
        batched_v1: Batched | None = None
        if not self._store.config.append_prop_crc:  # each record would need a separate checksum
            batched = self._batched(
                RequestCode.SEND_MESSAGE_V2, SendCommandV2, self.send_batched, self.send_turn
            )
            batched_v1 = self._batched(
                RequestCode.SEND_MESSAGE, SendCommandV1, self.send_batched_v1, self.send_turn_v1
            )
        table.bind_fast_path(
            RequestCode.SEND_MESSAGE_V2, FastPath(SendCommandV2, lenient_v2, handler, batched)
        )
        table.bind_fast_path(RequestCode.SEND_MESSAGE, FastPath(SendCommandV1, lenient_v1, v1, batched_v1))
        batch = cast(FastPathHandler, self.send_batch)
        table.bind_fast_path(RequestCode.SEND_BATCH_MESSAGE, FastPath(SendCommandV2, lenient_v2, batch))

    def _batched(
        self,
        code: int,
        command_type: Any,
        serve: Callable[[list[PlainSend], Any], tuple[int, bytes]],
        serve_turn: ServeTurn,
    ) -> Batched:
        decode = msgspec.json.Decoder(command_type, strict=False).decode
        has_short_names = command_type is SendCommandV2

        def read(frames: list[Frame], key: bytes) -> list[PlainSend]:
            return plain_sends(frames, key, decode, has_short_names)

        turn = TurnRequests(read, serve_turn, fast_path_key(code), self._context.call_soon)
        self._tick.turns.append(turn)
        return Batched(read, serve, turn)

    def send(self, command: SendCommand, body: bytes, peer: FastPathPeer) -> bytes | None:
        """Returns the reply as a frame. None: oneway, or answered when the message is replicated."""
        ext = command.ext
        gate = self._gate
        topic = self._topics.get(ext.topic)
        properties, is_plain, waits, code, key, keys = scan_properties(ext.properties)
        if (
            topic is None
            or not is_plain
            or not gate.accepts_all
            or not 0 <= ext.queue_id < topic.open_queue_count
            or self._takes_slow_path(ext.sys_flag, len(body), len(properties))
        ):
            return self._timed_slow_path(command, body, properties, peer)
        if ext.batch:
            began = perf_counter()
            return self._timed(began, command, self._send_plain_batch(command, topic, body, properties, peer))
        if not key:
            key = self._new_key()
            properties += UNIQUE_KEY % key
        tick = self._tick
        if not tick.is_due and tick.starts_cut_off():
            refused = PutRefused(ResponseCode.SERVICE_NOT_AVAILABLE, CUT_OFF)
            return self._timed(perf_counter(), command, refusal(command, refused))
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
            return self._timed(perf_counter(), command, refusal(command, self._writer.failed(error)))
        tick.alone += 1
        if not tick.is_due:
            tick.schedule()
        if command.flag & FLAG_ONEWAY:
            return self._timed(perf_counter(), command, None)
        if self._store.store_host is not self._host:
            self._look_at_host()
        if not key.isalnum():
            key = key_text(key)
        reply = reply_frame(self._template % (offset, ext.queue_id, queue_offset, key, command.opaque))
        if gate.wait and waits:
            self._pending.add(end, peer, reply, tick.ms, 1, tick.code)
            return None
        tick.answered += 1
        return reply

    def _timed_slow_path(
        self, command: SendCommand, body: bytes, properties: bytes, peer: FastPathPeer
    ) -> bytes | None:
        began = perf_counter()
        return self._timed(began, command, self._slow_path.send(command, body, properties, peer))

    def _timed(self, began: float, command: SendCommand, reply: bytes | None) -> bytes | None:
        """Counts a reply that the tick does not count, and returns it. None: PendingReplies counts it, or
        the send was oneway."""
        is_oneway = command.flag & FLAG_ONEWAY
        if reply is not None or is_oneway:
            code = ResponseCode.SUCCESS if reply is None else response_code_of(reply)
            elapsed_ms = (perf_counter() - began) * 1_000
            self._latency.observe(self._tick.code, code, elapsed_ms, result=ONEWAY if is_oneway else SUCCESS)
        return reply

    def send_v1(self, command: SendCommand, body: bytes, peer: FastPathPeer) -> bytes | None:
        """Serves 10."""
        with self._v1():
            return self.send(command, body, peer)

    def send_batched_v1(self, sends: list[PlainSend], peer: FastPathPeer) -> tuple[int, bytes]:
        """Serves the messages of one read with code 10."""
        with self._v1():
            return self.send_batched(sends, peer)

    def send_turn_v1(self, sends: list[PlainSend], peers: list[FastPathPeer]) -> list[bytes | None]:
        """Serves the messages of one turn with code 10."""
        with self._v1():
            return self.send_turn(sends, peers)

    @contextmanager
    def _v1(self) -> Iterator[None]:
        tick = self._tick
        answered, tick.code = tick.answered, int(RequestCode.SEND_MESSAGE)
        try:
            yield
        finally:
            tick.answered_v1 += tick.answered - answered
            tick.answered, tick.code = answered, int(RequestCode.SEND_MESSAGE_V2)

    def send_batched(self, sends: list[PlainSend], peer: FastPathPeer) -> tuple[int, bytes]:
        """Stores the messages of one read, up to the first that is refused, or does not wait for replicas as
        the others do, with one call of the store.

        Returns how many, and the replies that are sent now.
        """
        if self._gate.wait:
            del sends[self._pending.room :]
        stored = self._put_together(sends, [peer.address_bytes] * len(sends))
        if stored is None:
            return 0, b""
        written, answered, count = stored
        frames = success_frames(self._texts, written.offsets, written.queue_offsets, answered)
        tick = self._tick
        if count and self._gate.wait and sends[0][WAITS]:
            end = self._store.commit_log.max_offset
            self._pending.add(end, peer, frames, tick.ms, count, tick.code)
            return len(answered), b""
        tick.answered += count
        return len(answered), frames

    def send_turn(self, sends: list[PlainSend], peers: list[FastPathPeer]) -> list[bytes | None]:
        """Stores messages of several connections, as send_batched() does. Returns the present answer to each;
        None: none, or later."""
        if self._gate.wait:
            sends = sends[: self._pending.room]
        stored = self._put_together(sends, [peer.address_bytes for peer in peers])
        if stored is None:
            return []
        written, answered, count = stored
        replies = success_frame_list(self._texts, written.offsets, written.queue_offsets, answered)
        tick, pending = self._tick, self._pending
        if not (self._gate.wait and sends[0][WAITS]):
            tick.answered += count
            return replies
        end = self._store.commit_log.max_offset
        for reply, peer in zip(replies, peers, strict=False):
            if reply is not None:
                pending.add(end, peer, reply, tick.ms, 1, tick.code)
        return [None] * len(replies)

    def _put_together(self, sends: list[PlainSend], born_hosts: list[bytes]) -> Stored | None:
        """Stores the sends that can be stored together, from the first one on. None: there are none."""
        tick = self._tick
        if not self._gate.accepts_all:
            return None
        batched = BatchedPut(self._store)

        def cursor_of(topic_raw: bytes, queue_id: int) -> QueueCursor | None:
            topic = self._open_topic(topic_raw.decode(), queue_id)
            return None if topic is None else batched.cursor(topic, queue_id)

        limits = self._body_bytes_max, self._properties_bytes_max, self._suffix
        messages, answered, count = messages_of(sends, born_hosts, cursor_of, self._new_key, limits)
        if not messages or (not tick.is_due and tick.starts_cut_off()):
            return None
        written = batched.put(messages, tick.wall_ms)
        if written is None:
            return None
        if not tick.is_due:
            tick.schedule()
        if self._store.store_host is not self._host:
            self._look_at_host()
        return written, answered, count

    def _new_key(self) -> bytes:
        return self._new_unique_key().encode()

    def _look_at_host(self) -> None:
        """The store's host is part of every message id. It may be known only after the start."""
        host = self._host = self._store.store_host
        self._template, self._texts = reply_template(host), reply_texts(host)

    def _open_topic(self, name: str, queue_id: int) -> Topic | None:
        """Returns the topic if it exists, clients may send to it, and it has this queue."""
        topic = self._topics.get(name)
        return topic if topic is not None and 0 <= queue_id < topic.open_queue_count else None

    def _takes_slow_path(self, sys_flag: int, body_bytes: int, properties_bytes: int) -> bool:
        return (
            sys_flag & SLOW_PATH_BITS != 0
            or body_bytes > self._body_bytes_max
            or properties_bytes > self._properties_bytes_max
        )

    def send_batch(self, command: SendCommand, body: bytes, peer: FastPathPeer) -> bytes | None:
        """Serves 320: a batch, regardless of its flag."""
        command.ext.batch, tick = True, self._tick
        tick.code = int(RequestCode.SEND_BATCH_MESSAGE)
        try:
            return self.send(command, body, peer)
        finally:
            tick.code = int(RequestCode.SEND_MESSAGE_V2)

    def _send_plain_batch(
        self, command: SendCommand, topic: Topic, body: bytes, properties: bytes, peer: FastPathPeer
    ) -> bytes | None:
        ext = command.ext
        queue = self._store.queues.get(topic.name, ext.queue_id)
        if ext.sys_flag & COMPRESSED or isinstance(queue, BatchQueue):
            return self._slow_path.send(command, body, properties, peer)
        to_store = MessageToStore(
            topic, ext.queue_id, body, b"", ext.flag, ext.sys_flag, ext.born_timestamp, peer.address_bytes,
            ext.reconsume_times,
        )  # fmt: skip
        return self._batches.send(command, to_store, properties, peer)
