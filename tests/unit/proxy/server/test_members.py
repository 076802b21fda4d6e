"""Clients of gRPC as members of groups, as mqadmin and the console see them (203, 204)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from broker.app.broker import Broker
from broker.clients.proxied_requests import Sender
from keelmq.client.admin import AdminClient, AdminError
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Empty, Failed, Ok, Operation
from keelmq.remoting.operations.clients import (
    GET_CONSUMER_LIST_BY_GROUP,
    HEART_BEAT,
    UNREGISTER_CLIENT,
    ConnectionBody,
    ConsumerConnectionBody,
    ConsumerGroupRequest,
)
from keelmq.runtime.clock import now_ms
from keelmq.security.core.signature import Credential
from proxy.core.names import Client
from proxy.server.cluster import Call
from proxy.server.members import Members
from proxy.wire import messaging_pb2 as pb
from tests.support.server_parts import until
from tests.unit.proxy.server.parts import (
    GROUP,
    TOPIC,
    GrpcClient,
    create,
    pull_request,
    receive_request,
    serving,
)
from tests.unit.proxy.server.test_security import ALICE, INNER, MALLORY, proxied, secured

V_5_1_2 = 437
"""The ordinal of RocketMQ 5.1.2."""


def metadata_of(client_id: str, language: str = "PYTHON", version: str = "5.1.2") -> Any:
    return (
        ("x-mq-client-id", client_id), ("x-mq-language", language), ("x-mq-client-version", version),
    )  # fmt: skip


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[Broker, GrpcClient]]:
    async with serving(tmp_path) as found:
        await create(found[0])
        yield found


async def consumers(broker: Broker, group: str = "g") -> ConsumerConnectionBody | None:
    """None: the group is not online."""
    async with AdminClient() as admin:
        try:
            return await admin.groups.consumer_connections(broker.address, group)
        except AdminError:
            return None


async def producers(broker: Broker, topic: str = "T") -> list[ConnectionBody]:
    async with AdminClient() as admin:
        try:
            return (await admin.groups.producer_connections(broker.address, topic)).connection_set
        except AdminError:
            return []


async def receive(client: GrpcClient, metadata: Any, **more: Any) -> None:
    async for _ in client.receiving(receive_request(**more), metadata=metadata):
        pass


def is_in(broker: Broker, count: int) -> bool:
    found = broker.clients.proxied.consumers.get("g")
    return (0 if found is None else len(found.members)) == count


async def test_a_consumer_is_shown_with_its_language_and_version(served: tuple[Broker, GrpcClient]) -> None:
    broker, client = served
    wanted = pb.FilterExpression(type=pb.TAG, expression="a || b")
    await receive(client, metadata_of("p"), filter_expression=wanted, auto_renew=True)
    await until(lambda: is_in(broker, 1))
    found = await consumers(broker)
    assert found is not None
    [member] = found.connection_set
    assert (member.client_id, member.language, member.version) == ("p", "PYTHON", V_5_1_2)
    assert member.client_addr.startswith("127.0.0.1:")
    assert found.consume_type == "CONSUME_PASSIVELY"
    assert [(each.topic, each.sub_string) for each in found.subscription_table.values()] == [("T", "a || b")]


async def test_other_languages_and_kinds(served: tuple[Broker, GrpcClient]) -> None:
    broker, client = served
    await receive(client, metadata_of("node", "HTTP", "1.0.8"))
    async for _ in client.streaming(
        "PullMessage", pull_request(0), metadata=metadata_of("k", "KLINGON", "x")
    ):
        pass
    await until(lambda: is_in(broker, 2))
    found = await consumers(broker)
    assert found is not None and found.consume_type == "CONSUME_ACTIVELY"
    shown = {each.client_id: (each.language, each.version) for each in found.connection_set}
    assert shown == {"node": ("NODE_JS", 0), "k": ("OTHER", 0)}


async def test_a_member_goes_with_its_termination(served: tuple[Broker, GrpcClient]) -> None:
    broker, client = served
    for _ in range(3):
        await receive(client, metadata_of("p"))
    await receive(client, metadata_of("q"))
    await client.send("one")
    await until(lambda: is_in(broker, 2) and "T" in broker.clients.proxied.producers)
    request = pb.NotifyClientTerminationRequest(group=GROUP)
    await client.call("NotifyClientTermination", request, metadata=metadata_of("p"))
    await until(lambda: is_in(broker, 1))
    found = await consumers(broker)
    assert found is not None and [each.client_id for each in found.connection_set] == ["q"]
    await client.call("NotifyClientTermination", request)
    await until(lambda: not broker.clients.proxied.producers)
    assert await producers(broker) == []


class Recording:
    """A cluster that carries out every request of Members. requests: each code, and whose it is."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, str]] = []

    async def route(self, topic: str) -> None: ...

    async def once(
        self, _route: None, _broker: str, operation: Operation[Any, Any], *_: object, call: Call, **__: object
    ) -> Ok[Empty]:
        self.requests.append((operation.code, call.sender.access_key))
        return Ok(Empty())


async def test_another_user_does_not_end_a_member() -> None:
    """Client ids are no secret. The proxy would not tell brokers of the client again."""
    cluster = Recording()
    members, now = Members(cast(Any, cluster)), now_ms()
    owner, other = (
        Call(Client("c"), Sender("10.0.0.1:1", Credential(name, "", b"")), now + 3_000)
        for name in ("alice", "bob")
    )
    members.produces(owner, "T", "broker-a")
    await until(lambda: cluster.requests == [(HEART_BEAT.code, "alice")])
    members.ended(other)
    members.ended(owner)
    await until(lambda: len(cluster.requests) == 2)
    assert cluster.requests[1] == (UNREGISTER_CLIENT.code, "alice")
    await members.close()


async def test_a_member_that_is_silent_goes(served: tuple[Broker, GrpcClient]) -> None:
    broker, client = served
    await receive(client, metadata_of("p"))
    await until(lambda: is_in(broker, 1))
    broker.clients.expire(now_ms() + 120_001)
    assert is_in(broker, 0) and await consumers(broker) is None


async def test_a_producer_is_shown_by_its_topic(served: tuple[Broker, GrpcClient]) -> None:
    """From its settings on, and without settings from its first message on."""
    broker, client = served
    settings = pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[TOPIC]))
    stream = client.telemetry(metadata=metadata_of("p"))
    await stream.write(pb.TelemetryCommand(settings=settings))
    await stream.read()
    await client.send("one")
    await until(lambda: len(broker.clients.proxied.producers.get("T", {})) == 2)
    shown = {each.client_id: (each.language, each.version) for each in await producers(broker)}
    # The third one is the proxy itself, which is asked about half messages.
    assert shown.items() >= {"p": ("PYTHON", V_5_1_2), "tester": ("JAVA", 0)}.items() and len(shown) == 3
    stream.cancel()


async def test_a_member_takes_no_queue_of_its_group(served: tuple[Broker, GrpcClient]) -> None:
    """Consumers of remoting divide the queues among those that 38 shows."""
    broker, client = served
    await receive(client, metadata_of("p"))
    await until(lambda: is_in(broker, 1))
    remoting = RemotingClient()
    header = ConsumerGroupRequest(consumer_group="g")
    outcome = await remoting.call(broker.address, GET_CONSUMER_LIST_BY_GROUP, header)
    await remoting.close()
    assert isinstance(outcome, Failed) and "no consumer for this group" in outcome.remark


async def test_members_of_mqproxy(tmp_path: Path) -> None:
    """With its clients' signatures, which the broker judges; the group of another user is not joined."""
    async with secured(tmp_path) as (broker, _), proxied(broker, **INNER) as client:
        await receive(client, ALICE)
        await until(lambda: is_in(broker, 1))
        await receive(client, (("x-mq-client-id", "m"), *MALLORY[1:]))
        await receive(client, (("x-mq-client-id", "a"), *ALICE[1:]))
        await until(lambda: is_in(broker, 2))
        shown = {each.client_id for each in broker.clients.proxied.consumers["g"].members.values()}
        assert shown == {"tester", "a"}


async def test_members_of_mqproxy_without_security(served: tuple[Broker, GrpcClient]) -> None:
    """The proxy's connection is no member: the broker would push to it."""
    broker, _ = served
    async with proxied(broker, authenticationEnabled=False) as client:
        await asyncio.gather(receive(client, metadata_of("p")), receive(client, metadata_of("q")))
        await until(lambda: is_in(broker, 2))
    assert broker.clients.registry.consumers == {}
