"""Clients of gRPC that cannot be had here: test clients that behave as they do at the start, after a broken
stream, and when a proxy was killed and started again."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc.aio
import pytest
import pytest_asyncio

from proxy.wire import messaging_pb2 as pb
from tests.interop.grpc_clients import CLIENTS, OtherClient, fixture, settings_of
from tests.interop.grpc_scene import proxy_beside
from tests.interop.stage import Stage, staged

pytestmark = pytest.mark.timeout(180)
EACH = pytest.mark.parametrize("name", CLIENTS)
WAIT_S = 40.0


class Relay:
    """Passes connections on to an address. cut() breaks all of them; new ones are accepted."""

    def __init__(self, address: str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._writers: set[asyncio.StreamWriter] = set()
        self.address = ""

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator["Relay"]:
        server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            self.cut()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(OSError):
            back, forth = await asyncio.open_connection(self._host, self._port)
            self._writers.add(forth)
            await asyncio.gather(self._copy(reader, forth), self._copy(back, writer))
        writer.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with staged(tmp_path_factory.mktemp("others")) as found:
        yield found


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Errors of gRPC are answers that a client repeats."""
    async with asyncio.timeout(WAIT_S):
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                if await condition():
                    return
            await asyncio.sleep(0.1)


async def received(consumer: OtherClient, *wanted: str) -> list[pb.Message]:
    found: dict[str, pb.Message] = {}

    async def all_came() -> bool:
        found.update({message.body.decode(): message for message in await consumer.receive()})
        return set(wanted) <= set(found)

    await until(all_came)
    return [found[body] for body in wanted]


async def acknowledged(consumer: OtherClient, message: pb.Message) -> None:
    """Push consumers repeat an acknowledgement that had no answer."""

    async def is_ok() -> bool:
        return await consumer.acknowledge(message) == pb.OK

    await until(is_ok)


@pytest.mark.cluster
@pytest.mark.asyncio(loop_scope="module")
@EACH
async def test_it_goes_on(stage: Stage, tmp_path: Path, name: str) -> None:
    """It starts, sends, receives and acknowledges; after a broken stream; and after a proxy that was killed
    and started again, with the handle of before."""
    topic, group, cluster = f"Others-{name}", f"others-{name}", stage.running.cluster
    await stage.create(topic)
    async with (
        proxy_beside(stage, tmp_path, f"proxy-{name}") as proxy,
        Relay(proxy.address).serving() as relay,
        OtherClient(name, relay.address, "consumer", topic=topic, group=group) as consumer,
        OtherClient(name, relay.address, "producer", topic=topic, group=group) as producer,
    ):
        await consumer.receive()  # the group exists now
        assert await producer.send("a", "b")
        for message in await received(consumer, "a", "b"):
            await acknowledged(consumer, message)
        await consumer.heartbeat()
        await producer.heartbeat()

        relay.cut()
        await until(lambda: producer.send("c"))
        (kept,) = await received(consumer, "c")

        await cluster.kill_and_wait(proxy)
        cluster.start_program(proxy)
        await until(lambda: producer.send("d"))
        await acknowledged(consumer, kept)
        (last,) = await received(consumer, "d")
        await acknowledged(consumer, last)

        async def has_its_streams() -> bool:
            wanted = {"never": 1, "with settings": 2, "empty heartbeat": 2}[fixture(name)["reopens"]]
            return all(each.streams >= wanted for each in (consumer, producer))

        if "Telemetry" in fixture(name)["start"]:
            await until(has_its_streams)


@EACH
def test_its_first_frames(name: str) -> None:
    """They are messages of the protocol, and name a language that it knows."""
    frames = fixture(name)
    for kind in ("producer", "consumer"):
        settings = settings_of(frames, kind, "T", "g")
        assert settings.user_agent.language != pb.LANGUAGE_UNSPECIFIED
        assert settings.WhichOneof("pub_sub") == ("publishing" if kind == "producer" else "subscription")
    assert dict(frames["metadata"])["x-mq-client-id"]
