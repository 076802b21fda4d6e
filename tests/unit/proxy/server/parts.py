"""A broker with a gRPC server in this process, and a client of it that speaks plain gRPC."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc.aio

from broker.app.broker import Broker
from broker.clients.proxied_requests import NO_ADDRESS, ClientPeer, Sender
from broker.config.broker_config import BrokerConfig
from keelmq.remoting.operation import Call
from keelmq.remoting.operations.broker_metadata import UPDATE_AND_CREATE_TOPIC, CreateTopicRequest
from proxy.core.times import duration
from proxy.server.grpc_server import SERVICE
from proxy.wire import messaging_pb2 as pb

HOST = "127.0.0.1"
METADATA = (("x-mq-client-id", "tester"), ("x-mq-language", "JAVA"))
TOPIC, GROUP = pb.Resource(name="T"), pb.Resource(name="g")
ENDED_MEANWHILE: Final = "Internal error from Core"
"""What grpc.aio makes of a write to a stream that the server has just ended."""


class Pulled(NamedTuple):
    """The answers to a pull."""

    status: pb.Status
    messages: list[pb.Message]
    next_offset: int | None

    @property
    def bodies(self) -> list[str]:
        return [each.body.decode() for each in self.messages]


class GrpcClient:
    """`await client.call("QueryRoute", pb.QueryRouteRequest(...))`."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self.timeout_s = 10.0

    def unary(
        self, name: str, request: Any, *, metadata: Any = METADATA, timeout: float | None = None
    ) -> Any:
        response = _types(name)[1]
        method = self._channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response.FromString,
        )
        return method(request, metadata=metadata, timeout=timeout or self.timeout_s)

    async def call(self, name: str, request: Any, **more: Any) -> Any:
        return await self.unary(name, request, **more)

    def streaming(
        self, name: str, request: Any, *, metadata: Any = METADATA, timeout: float | None = None
    ) -> Any:
        """The answers of a stream, to iterate over or to cancel."""
        method = self._channel.unary_stream(
            f"/{SERVICE}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=_types(name)[1].FromString,
        )
        return method(request, metadata=metadata, timeout=timeout or self.timeout_s)

    def receiving(self, request: Any, **more: Any) -> Any:
        """The stream of a ReceiveMessage."""
        return self.streaming("ReceiveMessage", request, **more)

    async def pull(self, offset: int = 0, *, metadata: Any = METADATA, **more: Any) -> "Pulled":
        """A pull of TOPIC's queue 0."""
        request = pull_request(offset, **more)
        stream = self.streaming("PullMessage", request, metadata=metadata)
        answers = [each async for each in stream]
        ends = [each.next_offset for each in answers if each.HasField("next_offset")]
        messages = [each.message for each in answers if each.HasField("message")]
        return Pulled(answers[0].status, messages, ends[-1] if ends else None)

    def telemetry(self, *, metadata: Any = METADATA) -> Any:
        method = self._channel.stream_stream(
            f"/{SERVICE}/Telemetry",
            request_serializer=pb.TelemetryCommand.SerializeToString,
            response_deserializer=pb.TelemetryCommand.FromString,
        )
        return method(metadata=metadata)

    async def send(self, *bodies: str, topic: pb.Resource = TOPIC, **system: Any) -> pb.SendMessageResponse:
        messages = [
            pb.Message(
                topic=topic,
                body=body.encode(),
                system_properties=pb.SystemProperties(message_id=f"01{body}", **system),
            )
            for body in bodies
        ]
        found: pb.SendMessageResponse = await self.call(
            "SendMessage", pb.SendMessageRequest(messages=messages)
        )
        return found

    async def receive(self, **more: Any) -> tuple[pb.Status, list[pb.Message]]:
        """The status, and the messages."""
        answers = [each async for each in self.receiving(receive_request(**more))]
        assert answers[-1].WhichOneof("content") in ("delivery_timestamp", "status")
        return answers[0].status, [each.message for each in answers if each.HasField("message")]

    async def ack(self, *handles: str, group: pb.Resource = GROUP) -> pb.AckMessageResponse:
        entries = [pb.AckMessageEntry(message_id="m", receipt_handle=each) for each in handles]
        request = pb.AckMessageRequest(group=group, topic=TOPIC, entries=entries)
        found: pb.AckMessageResponse = await self.call("AckMessage", request)
        return found


def receive_request(**more: Any) -> pb.ReceiveMessageRequest:
    queue = pb.MessageQueue(topic=more.pop("topic", TOPIC), id=-1, broker=pb.Broker(name="broker-a"))
    known = {
        "group": GROUP,
        "message_queue": queue,
        "batch_size": 32,
        "invisible_duration": duration(30_000),
        "long_polling_timeout": duration(0),
    }
    return pb.ReceiveMessageRequest(**(known | more))


def queue_of(broker_name: str = "broker-a", *, id: int = 0, topic: pb.Resource = TOPIC) -> pb.MessageQueue:
    return pb.MessageQueue(topic=topic, id=id, broker=pb.Broker(name=broker_name))


def pull_request(offset: int, **more: Any) -> pb.PullMessageRequest:
    known = {"group": GROUP, "message_queue": queue_of(), "batch_size": 32}
    return pb.PullMessageRequest(offset=offset, **(known | more))


def handle_of(message: pb.Message) -> str:
    return message.system_properties.receipt_handle


def _types(name: str) -> tuple[Any, Any]:
    method = pb.DESCRIPTOR.services_by_name["MessagingService"].methods_by_name[name]
    return getattr(pb, method.input_type.name), getattr(pb, method.output_type.name)


@contextlib.asynccontextmanager
async def serving(path: Path, **settings: Any) -> AsyncIterator[tuple[Broker, GrpcClient]]:
    """A stand-alone broker that polls shortly."""
    known = {
        "storePathRootDir": path, "brokerName": "broker-a", "bindAddress": HOST, "listenPort": 0,
        "fastListenPort": -1, "httpPort": -1, "grpcServerPort": 0, "enableProxy": True,
        "mappedFileSizeCommitLog": 1 << 24, "grpcClientConsumerMinLongPollingTimeoutMillis": 0,
    }  # fmt: skip
    async with Broker(BrokerConfig.model_validate(known | settings)) as broker:
        assert broker.listeners.proxy is not None
        async with grpc.aio.insecure_channel(f"{HOST}:{broker.listeners.proxy.port}") as channel:
            yield broker, GrpcClient(channel)


async def as_operator(broker: Broker, operation: Any, header: Any, body: Any = None) -> None:
    _, handler = broker.operations.handlers[operation.code]
    await handler(header, Call(ClientPeer(Sender(NO_ADDRESS), bool, bool), body))


async def create(broker: Broker, topic: str = "T", queues: int = 1, message_type: str = "") -> None:
    header = CreateTopicRequest(
        topic=topic, read_queue_nums=queues, write_queue_nums=queues, perm=6,
        attributes=f"+message.type={message_type}" if message_type else None,
    )  # fmt: skip
    await as_operator(broker, UPDATE_AND_CREATE_TOPIC, header)
