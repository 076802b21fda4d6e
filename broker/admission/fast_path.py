"""Types that all fast-path requests (sends and pulls) share: the connection, and the range of an opaque."""

from typing import Annotated, Protocol, TypeAlias

import msgspec

from keelmq.remoting.operation import Peer

Int32: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
"""An opaque in a typed command. A number that is wider than 32 bits is refused: a reply must not carry it."""


class FastPathPeer(Peer, Protocol):
    """A client connection: the methods that the fast path uses in addition to Peer."""

    @property
    def address_bytes(self) -> bytes:
        """Returns the client's address and port as records store them (born host)."""
        ...

    def is_paused(self) -> bool:
        """Returns whether the write buffer is above its high-water mark."""
        ...

    def write_parts(self, parts: list[bytes | memoryview]) -> bool:
        """Writes the parts of one frame without joining them. False: the connection is closing."""
        ...
