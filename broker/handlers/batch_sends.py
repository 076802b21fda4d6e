"""Sends of client batches whose items become records of their own."""

from typing import Final

from broker.handlers.parts import BrokerParts
from broker.handlers.property_text import with_properties
from broker.handlers.send_commands import SendCommand
from broker.handlers.send_replies import OF_A_BATCH, key_text, message_ids, refusal
from broker.handlers.writer import Letter, Refused, Writer
from broker.pending import HotPeer, reply_frame
from broker.store.record import property_value
from remoting.command import FLAG_ONEWAY

COMPRESSED: Final = 1
"""A bit of sysFlag."""
_NO_KEY: Final[dict[bytes, bytes | None]] = {b"UNIQ_KEY": None}


class BatchSends:
    """suffix: properties that the broker adds to every message."""

    def __init__(self, parts: BrokerParts, writer: Writer, suffix: bytes) -> None:
        self._store, self._gate, self._pending = parts.store, parts.gate, parts.pending
        self._writer, self._suffix = writer, suffix

    def send(self, command: SendCommand, letter: Letter, properties: bytes, peer: HotPeer) -> bytes | None:
        """Of a request that is checked. letter: its body is the batch, and its properties do not count:
        `properties`, the request's, are all items', but for the key. As the plain send answers."""
        shared = with_properties(properties, _NO_KEY) + self._suffix
        stored = self._writer.put_batch(letter, shared)
        if isinstance(stored, Refused):
            return refusal(command, stored)
        if command.flag & FLAG_ONEWAY:
            return None
        ids = message_ids(self._store.store_host, stored.offsets)
        key = key_text(property_value(properties, b"UNIQ_KEY") or b"")
        values = ids, letter.queue_id, stored.queue_offset, key, command.opaque
        reply = reply_frame(OF_A_BATCH % values)
        if not self._gate.wait or property_value(stored.properties + shared, b"WAIT") == b"false":
            return reply
        self._pending.add(stored.end, peer, reply, self._writer.tick.ms)
        return None
