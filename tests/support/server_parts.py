"""What the tests of the TCP door and of the client share: a table, a raw socket, a wait with a deadline."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from keelmq.remoting.command import RemotingCommand, decode, encode, response_frame
from keelmq.remoting.operation import Call, CommandError, FastPath, OperationTable, Peer, Reply
from keelmq.remoting.operations.controller import (
    GET_NEXT_BROKER_ID,
    GET_REPLICA_INFO,
    BrokerNameRequest,
    BrokerSetRequest,
    GetNextBrokerIdResponse,
    MasterInfo,
)
from keelmq.remoting.servers.tcp import TcpServer

FAST_PATH_CODE = 310


class FastPathFields(msgspec.Struct, gc=False):
    """extFields of the data-path command of these tests."""

    e: int
    b: str = ""


class FastPathCommand(msgspec.Struct, gc=False):
    """The JSON header of it."""

    code: int
    opaque: int
    extFields: FastPathFields
    flag: int = 0


def lenient_fast_path(code: int, opaque: int, flag: int, fields: Any) -> FastPathCommand:
    return FastPathCommand(code, opaque, FastPathFields(int(fields["e"]), fields.get("b", "")), flag)


def fast_path_handler(command: FastPathCommand, body: bytes, peer: Peer) -> bytes | None:
    """Echoes. e: 1 refuses, 2 breaks, 3 answers later through the peer."""
    if command.extFields.e == 1:
        raise CommandError(13, "illegal")
    if command.extFields.e == 2:
        raise ZeroDivisionError("bug")
    if command.flag & 2:
        return None
    reply = response_frame(command.opaque, 0, command.extFields.b, body=body)
    if command.extFields.e == 3:
        assert peer.send(reply)
        return None
    return reply


async def next_broker_id(request: BrokerSetRequest, _: Call) -> GetNextBrokerIdResponse:
    """The broker name says what to do: wait, break, refuse."""
    if request.broker_name == "wait":
        await asyncio.Event().wait()
    if request.broker_name == "break":
        raise ZeroDivisionError("bug")
    if request.broker_name == "refuse":
        raise CommandError(2010, "register first", MasterInfo(master_epoch=3))
    return GetNextBrokerIdResponse(
        cluster_name=request.cluster_name, broker_name=request.broker_name, next_broker_id=3
    )


async def replica_info(request: BrokerNameRequest, call: Call) -> Reply:
    return Reply(MasterInfo(master_address=call.peer.address))


def table() -> OperationTable:
    made = OperationTable()
    made.bind(GET_NEXT_BROKER_ID, next_broker_id)
    made.bind(GET_REPLICA_INFO, replica_info)
    made.bind_fast_path(FAST_PATH_CODE, FastPath(FastPathCommand, lenient_fast_path, fast_path_handler))
    return made


@asynccontextmanager
async def server(of: OperationTable | None = None, **options: Any) -> AsyncIterator[TcpServer]:
    made = TcpServer(of or table(), host="127.0.0.1", port=0, name="test", **options)
    await made.start()
    try:
        yield made
    finally:
        await made.close()


def address_of(of: TcpServer) -> str:
    return "{}:{}".format(*of.address)


class RawPeer:
    """A peer without manners: bytes out, frames in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def write(self, *commands: RemotingCommand) -> None:
        self.writer.write(b"".join(encode(command) for command in commands))

    async def read(self) -> RemotingCommand:
        async with asyncio.timeout(5):
            (length,) = struct.unpack(">i", await self.reader.readexactly(4))
            return decode(await self.reader.readexactly(length))

    async def ask(self, command: RemotingCommand) -> RemotingCommand:
        self.write(command)
        return await self.read()

    async def at_end(self) -> bool:
        """Waits for the other side to close. False: it sent something."""
        async with asyncio.timeout(5):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True


@asynccontextmanager
async def raw_peer(of: TcpServer) -> AsyncIterator[RawPeer]:
    reader, writer = await asyncio.open_connection(*of.address, limit=2**25)
    try:
        yield RawPeer(reader, writer)
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except ConnectionError:
            pass


async def until(condition: Callable[[], bool], what: str = "condition") -> None:
    """Lets the loop turn until the condition holds; fails after 5 s."""
    try:
        async with asyncio.timeout(5):
            while not condition():  # noqa: ASYNC110 - the condition belongs to code that signals nothing
                await asyncio.sleep(0.001)
    except TimeoutError:
        raise AssertionError(f"{what} does not hold") from None
