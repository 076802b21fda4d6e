"""Clients that behave as those of RocketMQ for Java, C++, C#, Go, Rust and PHP, which are not to be had here:
their first frames are in tests/fixtures/grpc."""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

import grpc
import grpc.aio
from google.protobuf.json_format import ParseDict

from proxy.core.times import duration
from proxy.wire import messaging_pb2 as pb
from tests.support.imports import ROOT

FIXTURES: Final = ROOT / "tests" / "fixtures" / "grpc"
CLIENTS: Final = sorted(path.stem for path in FIXTURES.glob("*.json"))
SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
REQUEST_S: Final = 3.0
POLL_MS: Final = 5_000
REOPEN_S: Final = 1.0
RECONNECT_MS_MAX: Final = 2_000
"""A busy machine takes long to start a proxy, and the pauses between attempts grow meanwhile."""
STREAM_S: Final = 30.0
ATTEMPTS: Final = 3
"""Of a producer that has no settings."""


def fixture(name: str) -> dict[str, Any]:
    """Returns what the client sends first."""
    found: dict[str, Any] = json.loads((FIXTURES / f"{name}.json").read_text())
    return found


def settings_of(frames: Mapping[str, Any], kind: str, topic: str, group: str) -> pb.Settings:
    """Returns the client's settings for this topic and group. kind: producer or consumer."""
    settings: pb.Settings = ParseDict(frames[f"{kind}Settings"], pb.Settings())
    if kind == "producer":
        settings.publishing.topics[0].name = topic
    else:
        settings.subscription.group.name = group
        settings.subscription.subscriptions[0].topic.name = topic
    return settings


class OtherClient:
    """`async with OtherClient("go", "127.0.0.1:8081", "producer", topic="T", group="g")`: it has started.
    streams: how many it has opened. settings: the last ones that it was told."""

    def __init__(self, name: str, address: str, kind: str, *, topic: str, group: str) -> None:
        self._frames, self._kind = fixture(name), kind
        self._settings = settings_of(self._frames, kind, topic, group)
        self._topic, self._group = pb.Resource(name=topic), pb.Resource(name=group)
        host, _, port = address.rpartition(":")
        self._endpoints = pb.Endpoints(
            scheme=pb.IPv4, addresses=[pb.Address(host=host, port=int(port))] * self._frames["addresses"]
        )
        target = f"ipv4:{','.join([address] * self._frames['addresses'])}"
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_reconnect_backoff_ms", RECONNECT_MS_MAX),
        ]
        self._channel = grpc.aio.insecure_channel(target, options=options)
        self._metadata = [tuple(each) for each in self._frames["metadata"]]
        self._told = asyncio.Event()
        self._stream: asyncio.Task[None] | None = None
        self._count = 0
        self.streams = 0
        self.settings: pb.Settings | None = None

    async def __aenter__(self) -> Self:
        steps = {"QueryRoute": self._query_route, "Telemetry": self._open}
        for step in self._frames["start"]:
            await steps[step]()
        waits_s = self._frames["waitsForSettingsS"]
        if "Telemetry" in self._frames["start"] and waits_s != 0:
            await asyncio.wait_for(self._told.wait(), waits_s or STREAM_S)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            request = pb.NotifyClientTerminationRequest(group=self._named_group())
            await self._call("NotifyClientTermination", request, pb.NotifyClientTerminationResponse)
        if self._stream is not None:
            self._stream.cancel()
            await asyncio.gather(self._stream, return_exceptions=True)
        await self._channel.close()

    def _named_group(self) -> pb.Resource | None:
        return self._group if self._kind == "consumer" else None

    async def _call(self, name: str, request: Any, answer: Any) -> Any:
        method: Any = self._channel.unary_unary(f"{SERVICE}{name}", None, answer.FromString)
        data = request.SerializeToString()
        return await method(data, metadata=self._metadata, timeout=REQUEST_S)

    async def _query_route(self) -> None:
        request = pb.QueryRouteRequest(topic=self._topic, endpoints=self._endpoints)
        found = await self._call("QueryRoute", request, pb.QueryRouteResponse)
        assert found.status.code == pb.OK and found.message_queues, found
        assert all(each.broker.id == 0 and each.broker.endpoints.addresses for each in found.message_queues)

    # -- the stream --------------------------------------------------------------------------------------

    async def _open(self) -> None:
        """The first stream: the client goes on when its settings are written."""
        written = asyncio.Event()
        self._stream = asyncio.create_task(self._follow(written))
        await asyncio.wait_for(written.wait(), REQUEST_S)

    async def _follow(self, written: asyncio.Event) -> None:
        """One stream after the other, as the client opens them."""
        says_settings, reopens = True, self._frames["reopens"]
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await self._one_stream(written, says_settings=says_settings)
            if reopens == "never":
                return
            await asyncio.sleep(REOPEN_S)
            says_settings = reopens == "with settings"

    async def _one_stream(self, written: asyncio.Event, *, says_settings: bool) -> None:
        method: Any = self._channel.stream_stream(f"{SERVICE}Telemetry", None, pb.TelemetryCommand.FromString)
        stream = method(metadata=self._metadata)
        try:
            if says_settings:
                await stream.write(pb.TelemetryCommand(settings=self._settings).SerializeToString())
                written.set()
            else:  # Go drops the stream unless the answer is OK
                found = await self._call("Heartbeat", pb.HeartbeatRequest(), pb.HeartbeatResponse)
                assert found.status.code == pb.OK, found
            self.streams += 1
            while (command := await stream.read()) is not grpc.aio.EOF:
                if command.HasField("settings"):
                    assert command.status.code == pb.OK, command
                    self._take(command.settings)
        finally:
            stream.cancel()

    def _take(self, settings: pb.Settings) -> None:
        """Go ends a push consumer without a strategy; others refuse messages, or poll without a pause."""
        policy = settings.backoff_policy
        assert policy.max_attempts > 0 and policy.WhichOneof("strategy"), settings
        if self._kind == "producer":
            assert settings.publishing.max_body_size > 0, settings
        else:
            assert settings.subscription.long_polling_timeout.seconds > 0, settings
            assert settings.subscription.receive_batch_size > 0, settings
        self.settings = settings
        self._told.set()

    # -- what it does ------------------------------------------------------------------------------------

    async def heartbeat(self) -> None:
        """As every 10 s, or 30 s; PHP sends none."""
        if self._frames["heartbeat"] == "none":
            return
        request = pb.HeartbeatRequest(client_type=self._settings.client_type, group=self._named_group())
        found = await self._call("Heartbeat", request, pb.HeartbeatResponse)
        assert found.status.code == pb.OK, found

    async def send(self, *bodies: str) -> bool:
        """Sends the messages, in batches if the client has them; a failed attempt is repeated at once.
        Returns whether all are stored."""
        most = ATTEMPTS if self.settings is None else self.settings.backoff_policy.max_attempts
        size = self._frames["batch"]
        groups = [bodies[at : at + size] for at in range(0, len(bodies), size)]
        return all([await self._attempts(group, most) for group in groups])

    async def _attempts(self, bodies: tuple[str, ...], most: int) -> bool:
        messages = []
        for body in bodies:
            self._count += 1
            system = pb.SystemProperties(
                message_id=f"01{self._count:032X}",
                body_encoding=pb.IDENTITY,
                message_type=pb.NORMAL,
                born_host="host",
            )
            messages.append(pb.Message(topic=self._topic, system_properties=system, body=body.encode()))
        for _ in range(most):
            try:
                found = await self._call(
                    "SendMessage", pb.SendMessageRequest(messages=messages), pb.SendMessageResponse
                )
            except grpc.aio.AioRpcError:
                continue
            if found.status.code == pb.OK:
                assert len(found.entries) == len(messages)
                return True
        return False

    async def receive(self) -> list[pb.Message]:
        """Asks for its assignments, and receives from the first one."""
        request = pb.QueryAssignmentRequest(topic=self._topic, group=self._group, endpoints=self._endpoints)
        found = await self._call("QueryAssignment", request, pb.QueryAssignmentResponse)
        assert found.status.code == pb.OK, found
        poll = pb.ReceiveMessageRequest(
            group=self._group,
            message_queue=found.assignments[0].message_queue,
            filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
            batch_size=32,
            auto_renew=True,
            long_polling_timeout=duration(POLL_MS),
        )
        method: Any = self._channel.unary_stream(
            f"{SERVICE}ReceiveMessage", None, pb.ReceiveMessageResponse.FromString
        )
        timeout = POLL_MS / 1_000 + REQUEST_S
        data = poll.SerializeToString()
        answers = [each async for each in method(data, metadata=self._metadata, timeout=timeout)]
        return [each.message for each in answers if each.WhichOneof("content") == "message"]

    async def acknowledge(self, message: pb.Message) -> pb.Code:
        """Returns the code of the answer."""
        system = message.system_properties
        entry = pb.AckMessageEntry(message_id=system.message_id, receipt_handle=system.receipt_handle)
        request = pb.AckMessageRequest(group=self._group, topic=self._topic, entries=[entry])
        found: pb.AckMessageResponse = await self._call("AckMessage", request, pb.AckMessageResponse)
        return found.entries[0].status.code
