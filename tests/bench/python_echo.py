"""Yardstick "Python echo": uvloop protocol, typed header decode, templated reply.

What any Python server of these frames must do, and nothing else: no table of handlers, no checks, no store.
Prints its port on the first line.
"""

import asyncio
import struct

import msgspec
import uvloop

UNPACK_PREFIX = struct.Struct(">II").unpack_from
PACK_PREFIX = struct.Struct(">II").pack
REPLY = (
    b'{"code":0,"extFields":{"msgId":"7F00000100002A9F0000000000000000","queueId":"0","queueOffset":"0"},'
    b'"flag":1,"language":"PYTHON","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":479}'
)


class Fields(msgspec.Struct, gc=False):
    """The fields that a send needs."""

    b: str
    e: int
    g: int
    i: str = ""
    h: int = 0
    f: int = 0
    j: int = 0


class Header(msgspec.Struct, gc=False):
    code: int
    opaque: int
    extFields: Fields
    flag: int = 0


decode = msgspec.json.Decoder(Header, strict=False).decode


class Echo(asyncio.Protocol):
    def __init__(self) -> None:
        self.tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self.write = transport.write

    def data_received(self, data: bytes) -> None:
        if self.tail:
            data = self.tail + data
        at, end, replies = 0, len(data), []
        while end - at >= 8:
            length, header_length = UNPACK_PREFIX(data, at)
            after = at + 4 + length
            if after > end:
                break
            body_at = at + 8 + header_length
            header = REPLY % decode(data[at + 8 : body_at]).opaque
            body = data[body_at:after]
            replies.append(PACK_PREFIX(4 + len(header) + len(body), len(header)) + header + body)
            at = after
        self.tail = data[at:]
        if replies:
            self.write(b"".join(replies))


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
