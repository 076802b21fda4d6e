"""Who knocks at a raft port: one scripted side of the handshake, over a real socket; members' credentials."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from namesrv.plugins.controller.raft.api import TlsFiles
from namesrv.plugins.controller.raft.transport.certificates import Certificates
from namesrv.plugins.controller.raft.transport.channel import Channel, ChannelError, KeyChannel
from namesrv.plugins.controller.raft.transport.tls import TlsChannel
from tests.support.raft_certificates import Authority
from tests.support.raft_group import SECRET, Group

CLUSTER = "group"
END_S = 5.0


class KeyOutfit:
    """How members of a group with a shared key prove themselves."""

    kind = "key"

    def __init__(self, root: Path) -> None:
        self.root = root

    def group(self) -> Group:
        return Group(self.root / "group")

    def channel(self, member: str, *, dialed: bool = True) -> Channel:
        return KeyChannel(SECRET, CLUSTER, dialed=dialed)


class TlsOutfit:
    """The same with a certificate for each."""

    kind = "tls"

    def __init__(self, root: Path) -> None:
        self.root, self.ca = root, Authority(root / "ca")

    def files(self, member: str) -> TlsFiles:
        return self.ca.issue(member)

    def group(self) -> Group:
        group = Group(self.root / "group", secret=None)
        for name in group.members:
            group.own[name] = {"tls": self.files(name)}
        return group

    def channel(self, member: str, *, dialed: bool = True) -> Channel:
        return Certificates(self.files(member), member).channel(dialed)


Outfit = KeyOutfit | TlsOutfit


def tls_client(files: TlsFiles | None, trust: Path, **changes: Any) -> TlsChannel:
    """A client with any certificate, or none; `changes`: attributes of its context."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(trust)
    if files is not None:
        context.load_cert_chain(files.certificate, files.key)
    for name, value in changes.items():
        setattr(context, name, value)
    return TlsChannel(context, dialed=True)


class Talk:
    """One connection to a raft port, from the other side. `sent`, `received`: all bytes of it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.sent = bytearray()
        self.received = bytearray()
        self.frames: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.sent += data
        self._writer.write(data)

    async def read(self) -> bytes:
        """b"" when they have closed."""
        try:
            data = await asyncio.wait_for(self._reader.read(64 * 1024), END_S)
        except ConnectionError:
            return b""
        self.received += data
        return data

    async def open(self, channel: Channel) -> bool:
        """Shakes hands. False: they closed before that was done, or we do not accept them."""
        self.write(channel.start())
        while not channel.is_open:
            data = await self.read()
            if not data:
                return False
            try:
                channel.receive_data(data)
            except ChannelError:
                return False
            self.write(channel.data_to_send())
        return True

    async def say(self, channel: Channel, *frames: bytes) -> None:
        for frame in frames:
            self.write(channel.encode_frame(frame))

    async def until_closed(self, channel: Channel | None = None) -> list[bytes]:
        """The frames that they sent before they closed."""
        frames: list[bytes] = []
        with contextlib.suppress(ChannelError):  # their farewell
            while data := await self.read():
                if channel is not None:
                    channel.receive_data(data)
                    while (frame := channel.next_frame()) is not None:
                        frames.append(frame)
        return frames


@contextlib.asynccontextmanager
async def talk_to(address: tuple[str, int]) -> AsyncIterator[Talk]:
    reader, writer = await asyncio.open_connection(*address)
    try:
        yield Talk(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


class Touch:
    """Its pickle makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)
