"""Channel: one end of the socket pair between a container's supervisor and a worker, as frames.

It never blocks and never grows without bound: if the other end does not read, the channel ends.
"""

import asyncio
from typing import Protocol, cast

from pydantic import BaseModel

from broker.container.core.frames import FRAME_BYTES_MAX, FrameDecoder, FrameError, encode_frame
from broker.container.workers.messages import MessageError

UNSENT_BYTES_MAX = 2 * FRAME_BYTES_MAX
"""An answer may be this large before any byte of it is read, so a lower bound would refuse correct ones."""


class Receiver(Protocol):
    """Receives the payloads from the other end."""

    def received(self, payload: bytes) -> None:
        """Called with each frame's payload. Raises MessageError, which ends the channel."""

    def lost(self, reason: str) -> None:
        """Called once, when no more frames come."""


class Channel(asyncio.Protocol):
    """Frames both ways. Used by the event loop's thread only."""

    def __init__(self, receiver: Receiver, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._receiver = receiver
        self._bytes_max = bytes_max
        self._decoder = FrameDecoder(bytes_max)
        self._transport: asyncio.Transport | None = None
        self._reason = ""

    def send(self, message: BaseModel) -> None:
        """Queues a message; after the end of the channel, does nothing. Raises FrameError if it is too
        large, and sends nothing then."""
        frame = encode_frame(message.model_dump_json().encode(), self._bytes_max)
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(frame)
        if self._transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            self.abort("it does not read what it is sent")

    def abort(self, reason: str) -> None:
        """Ends the channel; `lost` gets the first reason."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Ends the channel after the queued messages."""
        if self._transport is not None:
            self._transport.close()

    # -- asyncio.Protocol ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self._decoder.receive_data(data)
        try:
            while not self._reason and (payload := self._decoder.next_frame()) is not None:
                self._receiver.received(payload)
        except (FrameError, MessageError) as error:
            self.abort(f"it sent what is no message: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the event loop."""
        cut = self._decoder.stored_bytes
        ended = f"it closed the connection{' in the middle of a message' if cut else ''}"
        if error is not None and not isinstance(error, ConnectionError):  # which only means closed
            ended = f"the connection broke: {error}"
        self._receiver.lost(self._reason or ended)
