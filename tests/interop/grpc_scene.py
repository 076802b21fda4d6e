"""Brokers, proxies, and RocketMQ 5's own clients, in Python and for Node."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from cli.lab.cluster import Program
from keelmq.remoting.operations.broker_metadata import SubscriptionGroupConfig
from tests.interop.drivers import GRPC_NODE, GRPC_PYTHON, Client
from tests.interop.stage import Stage, staged
from tests.support.ports import free_port

HOST = "127.0.0.1"
START_S = 60.0
"""On a busy machine; two seconds on an idle one."""
EACH = pytest.mark.parametrize("kind", [GRPC_PYTHON, GRPC_NODE])
OTHER = {GRPC_PYTHON: GRPC_NODE, GRPC_NODE: GRPC_PYTHON}


class Scene:
    """Brokers, and a proxy beside them. in_broker: the address of the first broker's own gRPC server."""

    def __init__(self, stage: Stage, directory: Path, in_broker: str, proxy: Program) -> None:
        self.stage, self.directory, self.proxy, self.in_broker = stage, directory, proxy, in_broker

    def client(self, client: str, kind: str, *, at: str = "", home: str = "", **more: object) -> Client:
        """at: the address; "": the proxy's. home: of a client whose kind and group another one has, too."""
        directory = self.directory / (home or f"{kind}-{more.get('group', '')}")
        directory.mkdir(exist_ok=True)
        options = {"group": "producers", "endpoints": at or self.proxy.address, **more}
        return Client(client, directory, kind=kind, **options)

    async def fifo_group(self, name: str, **more: Any) -> None:
        group = SubscriptionGroupConfig(group_name=name, consume_message_orderly=True, **more)
        await self.stage.group_settings(group)

    async def nothing_comes_again(self, kind: str, topic: str, group: str) -> None:
        """After the group's consumers have ended: every message of the topic is acknowledged. A message that
        is received now, and not acknowledged, comes again; any other one would come before it."""
        marker = "poison marker"
        async with (
            self.client(kind, "producer", topics=[topic], home=f"marks-{group}") as producer,
            self.client(kind, "simple", topic=topic, group=group, home=f"sees-{group}") as consumer,
        ):
            await producer.must_send(topic, marker)
            await consumer.until(lambda: consumer.bodies.count(marker) == 2)
            assert set(consumer.bodies) <= {marker, "next"}, consumer.bodies


@contextlib.asynccontextmanager
async def grpc_scene(
    directory: Path,
    *,
    brokers: int = 1,
    name_servers: int = 1,
    more: Mapping[str, str] | None = None,
    of_proxy: Mapping[str, str] | None = None,
) -> AsyncIterator[Scene]:
    """more: settings of the brokers. of_proxy: of the proxy. One broker has a gRPC server, too."""
    async with AsyncExitStack() as stack:
        broker_port = free_port()
        settings = dict(more or {})
        if brokers == 1:
            settings |= {"enableProxy": "true", "grpcServerPort": str(broker_port)}
        staging = staged(directory, brokers=brokers, name_servers=name_servers, more=settings)
        stage = await stack.enter_async_context(staging)
        proxy = await stack.enter_async_context(proxy_beside(stage, directory, more=of_proxy))
        yield Scene(stage, directory, f"{HOST}:{broker_port}", proxy)


@contextlib.asynccontextmanager
async def proxy_beside(
    stage: Stage, directory: Path, name: str = "proxy", *, more: Mapping[str, str] | None = None
) -> AsyncIterator[Program]:
    """A proxy that is ready, at a port of its own."""
    port = free_port()
    settings = {
        "namesrvAddr": stage.namesrv, "bindAddress": HOST, "grpcServerPort": str(port),
        "allowOpenNetwork": "true", **(more or {}),
    }  # fmt: skip
    proxy = Program(name, "proxy", directory, settings, f"{HOST}:{port}")
    proxy.write()
    stage.running.cluster.start_program(proxy)
    try:
        await ready(stage, proxy)
        yield proxy
    finally:
        stage.running.cluster.kill(proxy)


async def ready(stage: Stage, proxy: Program) -> None:
    async def is_ready() -> bool:
        return "ready: mqproxy" in proxy.log_path.read_text()

    await stage.running.cluster.until(f"{proxy.name} is ready", is_ready, timeout_s=START_S)
