"""Sends of client batches (320): each message of the batch becomes a separate record."""

from typing import Final

from broker.admission.fast_path import FastPathPeer
from broker.admission.pending_replies import reply_frame
from broker.admission.send_gate import PutRefused
from broker.message.properties import with_properties
from broker.message.property_scan import waits_for_replicas
from broker.message.record import property_value
from broker.put.handler_context import HandlerContext
from broker.put.message_to_store import MessageToStore
from broker.put.message_writer import MessageWriter
from broker.put.send_commands import SendCommand
from broker.put.send_replies import BATCH_REPLY, message_ids, refusal
from broker.put.success_frames import key_text
from keelmq.remoting.command import FLAG_ONEWAY

COMPRESSED: Final = 1
"""Bit of sysFlag: the body is compressed."""
_NO_KEY: Final[dict[bytes, bytes | None]] = {b"UNIQ_KEY": None}


class BatchSends:
    """suffix: the properties that the broker adds to every message."""

    def __init__(self, context: HandlerContext, writer: MessageWriter, suffix: bytes) -> None:
        self._store, self._gate, self._pending = context.store, context.gate, context.pending
        self._writer, self._suffix = writer, suffix

    def send(
        self, command: SendCommand, to_store: MessageToStore, properties: bytes, peer: FastPathPeer
    ) -> bytes | None:
        """Stores a batch that has passed all checks; returns what SendHandler.send() returns.

        to_store: its body is the batch; its properties are not used. properties: those of the request, which
        all messages of the batch get, except for UNIQ_KEY.
        """
        shared = with_properties(properties, _NO_KEY) + self._suffix
        stored = self._writer.put_batch(to_store, shared)
        if isinstance(stored, PutRefused):
            return refusal(command, stored)
        if command.flag & FLAG_ONEWAY:
            return None
        ids = message_ids(self._store.store_host, stored.offsets)
        key = key_text(property_value(properties, b"UNIQ_KEY") or b"")
        values = ids, to_store.queue_id, stored.queue_offset, key, command.opaque
        reply = reply_frame(BATCH_REPLY % values)
        if not self._gate.wait or not waits_for_replicas(stored.properties + shared):
            return reply
        tick = self._writer.tick
        self._pending.add(stored.end, peer, reply, tick.ms, 1, tick.code)
        return None
