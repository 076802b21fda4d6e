"""GrpcServer: MessagingService on a port, with grpc.aio.

gRPC sends no message names, so the service is registered under RocketMQ's path from
the descriptor of messaging.proto. A business error is a status in the answer; only a broken stream is an
error of gRPC."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

import grpc
import grpc.aio
import msgspec
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError
from grpc._cython import cygrpc

from broker.clients.proxied_requests import Sender
from keelmq.remoting.dispatch import RUNNING_BYTES_MAX, RUNNING_BYTES_OF_CONNECTION_MAX
from keelmq.runtime.clock import now_ms
from keelmq.runtime.config import ConfigError
from keelmq.runtime.rate_limited_log import RateLimitedLogger
from proxy.core.authorization import credential_of, unauthorized
from proxy.core.call_limits import CallLimits
from proxy.core.names import client_of
from proxy.core.statuses import Refused
from proxy.server.accepting import AcceptingServer
from proxy.server.cluster import ANSWER_MS, CALL_MS, Call
from proxy.server.front import Front, Relay
from proxy.server.guard import Guard
from proxy.server.metrics import CallCounts
from proxy.server.service import ADMIN, UNIMPLEMENTED, MessagingService, Streaming, Unary
from proxy.wire import messaging_pb2 as pb

logger = logging.getLogger(__name__)

SERVICE: Final = "apache.rocketmq.v2.MessagingService"
ADMIN_SERVICE: Final = "apache.rocketmq.v2.Admin"
ADMIN_METHODS: Final = (
    "ChangeLogLevel", "DescribeTopicStatus", "ListSubscription", "DescribeSubscription", "DeleteSubscription",
    "DescribeGroupAccumulation", "ListConsumerConnection", "ResetGroupOffset", "QueryMessage",
    "PrintThreadStackTrace", "VerifyMessage", "AdminSendMessage", "GetConsumerRunningInfo", "GetTopicRoute",
    "QueryTimeSpan", "GetProxyRuntimeStats",
)  # fmt: skip
"""RocketMQ's service for administrators, which its coming Studio calls."""
IDLE_MS: Final = 120_000
PING_MS_MIN: Final = 5_000
"""C++ sends a ping every minute, without a call: grpcio's default answers with GOAWAY."""
STOP_S: Final = 1.0
GRPCIO, ASYNCIO = "grpc._cython.cygrpc", "asyncio"
"""Loggers that tell what failed in grpcio."""
GRPCIO_TASK: Final = "<coroutine without __name__>"
"""How asyncio names a task of grpcio."""


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the server needs to know. port: 0: any free one. calls_max: at once, of all connections;
    calls_per_address: of one address."""

    bind_address: str
    port: int
    message_bytes_max: int
    calls_per_connection: int
    calls_per_address: int
    calls_max: int

    def options(self) -> list[tuple[str, int]]:
        """Returns grpcio's options."""
        return [
            ("grpc.max_receive_message_length", self.message_bytes_max),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_concurrent_streams", self.calls_per_connection),
            ("grpc.max_connection_idle_ms", IDLE_MS),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", PING_MS_MIN),
        ]


class GrpcioLog(logging.Filter):
    """grpcio logs a traceback for each header and each path that is no UTF-8, and for each client that goes
    at the moment of its answer: clients could fill the disk. This makes of the first a warning now and then,
    and nothing of the second."""

    def __init__(self) -> None:
        super().__init__()
        self._bad_headers = RateLimitedLogger(logger, level=logging.WARNING)

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether the record is logged as it is."""
        if record.name == ASYNCIO and GRPCIO_TASK not in record.getMessage():
            return True
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, UnicodeDecodeError) or isinstance(record.msg, UnicodeDecodeError):
            self._bad_headers.tell(now_ms(), "a client has sent a header or a path that is no UTF-8")
            return False
        return not isinstance(error, cygrpc.ExecuteBatchError)


_grpcio_log: Final = GrpcioLog()
logging.getLogger(GRPCIO).addFilter(_grpcio_log)
logging.getLogger(ASYNCIO).addFilter(_grpcio_log)


class GrpcServer:
    def __init__(
        self, service: MessagingService, settings: ServerSettings, guard: Guard, front: Front
    ) -> None:
        self._service, self._settings, self._guard, self._front = service, settings, guard, front
        self._limits = CallLimits(
            settings.calls_per_address,
            connection_bytes_max=RUNNING_BYTES_OF_CONNECTION_MAX,
            bytes_max=RUNNING_BYTES_MAX,
        )
        self._server: AcceptingServer | None = None
        self._failures = RateLimitedLogger(logger, level=logging.ERROR)
        self.counts = CallCounts()
        self.port = 0

    async def start(self) -> None:
        """Binds the port and serves. Raises ConfigError: it cannot be bound."""
        settings = self._settings
        server = AcceptingServer(settings.options(), settings.calls_max)
        server.add_registered_method_handlers(SERVICE, self._handlers())
        refusal = _unimplemented(ADMIN, streams=False)
        server.add_registered_method_handlers(ADMIN_SERVICE, dict.fromkeys(ADMIN_METHODS, refusal))
        path = f"unix:{self._front.socket_path}"
        try:
            server.add_insecure_port(path)
            await server.start()
            self.port = await self._front.start(settings.bind_address, settings.port)
        except (RuntimeError, ConfigError) as error:
            await server.stop(None)
            await self._front.close()
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"grpcServerPort: cannot listen on {path}: {error}") from None
        self._server = server

    async def close(self) -> None:
        """Ends all calls, those that wait for messages too."""
        self._front.stop_listening()
        if self._server is not None:
            await self._server.stop(STOP_S)
            self._server = None
        await self._front.close()
        await self._service.close()

    # -- handlers ----------------------------------------------------------------------------------------

    def _handlers(self) -> dict[str, "grpc.RpcMethodHandler[Any, Any]"]:
        methods = pb.DESCRIPTOR.services_by_name["MessagingService"].methods
        return {method.name: self._handler(method) for method in methods}

    def _handler(self, method: MethodDescriptor) -> "grpc.RpcMethodHandler[Any, Any]":
        response = _class_of(method.output_type.name)
        codec = {"response_serializer": response.SerializeToString}  # handlers parse: grpcio logs a traceback
        if method.name == "Telemetry":
            return grpc.stream_stream_rpc_method_handler(self._telemetry, **codec)
        stream = self._service.streaming.get(method.name)
        if stream is not None:
            yields = self.counts.streaming(method.name, self._streaming(method, stream, response))
            return grpc.unary_stream_rpc_method_handler(yields, **codec)
        serve = self._service.unary.get(method.name)
        if serve is not None:
            handle = self.counts.unary(method.name, self._unary(method, serve, response))
            return grpc.unary_unary_rpc_method_handler(handle, **codec)
        return _unimplemented(UNIMPLEMENTED[method.name], streams=method.server_streaming)

    def _unary(
        self, method: MethodDescriptor, serve: Unary, response: Any
    ) -> Callable[[bytes, Any], Awaitable[Any]]:
        request = _class_of(method.input_type.name)

        async def handle(data: bytes, context: Any) -> Any:
            try:
                async with self._call(context, len(data)) as call:
                    return await serve(_parsed(request, data), call)
            except Refused as refused:
                return response(status=refused.status)
            except Exception as error:  # noqa: BLE001 - answered, and logged with its traceback
                return response(status=self._failed(method.name, error))

        return handle

    def _streaming(
        self, method: MethodDescriptor, serve: Streaming, response: Any
    ) -> Callable[[bytes, Any], AsyncGenerator[Any, None]]:
        request = _class_of(method.input_type.name)

        async def handle(data: bytes, context: Any) -> AsyncGenerator[Any, None]:
            try:
                async with (
                    self._call(context, len(data)) as call,
                    aclosing(serve(_parsed(request, data), call)) as answers,
                ):
                    async for each in answers:
                        yield each
            except Refused as refused:
                yield response(status=refused.status)
            except Exception as error:  # noqa: BLE001 - answered, and logged with its traceback
                yield response(status=self._failed(method.name, error))

        return handle

    async def _telemetry(
        self, frames: AsyncIterator[bytes], context: Any
    ) -> AsyncGenerator[pb.TelemetryCommand, None]:
        received = aiter(frames)
        commands = (_parsed(pb.TelemetryCommand, frame) async for frame in received)
        try:
            async with (
                self._call(context, 0) as call,
                aclosing(self._service.telemetry(commands, call)) as answers,
            ):
                async for each in answers:
                    yield each
                    del each  # see MessagingService.telemetry()
        except Refused as refused:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(refused))
        finally:  # else grpcio's generator ends with the garbage collector, perhaps after the event loop
            await commands.aclose()
            await received.aclose()  # type: ignore[attr-defined]

    @asynccontextmanager
    async def _call(self, context: Any, count: int) -> AsyncGenerator[Call, None]:
        """Yields the call, while it is counted. count: bytes of its request. Raises Refused."""
        peer = context.peer()
        relay = self._front.client(peer)
        if relay is None:
            raise unauthorized("the call did not come through grpcServerPort")
        refused = self._limits.enter(relay.network, peer, count)
        if refused is not None:
            raise Refused(pb.TOO_MANY_REQUESTS, refused)
        try:
            yield await self._call_of(context, relay)
        finally:
            self._limits.leave(relay.network, peer, count)

    async def _call_of(self, context: Any, relay: Relay) -> Call:
        """Raises Refused: the call does not say which client sends it, or does not prove whose it is."""
        metadata = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
        left_s = context.time_remaining()
        left_ms = CALL_MS if left_s is None else int(left_s * 1_000) - ANSWER_MS
        client, sender = client_of(metadata), Sender(relay.address)
        if self._guard.is_on:
            if not relay.may_try():
                raise Refused(pb.TOO_MANY_REQUESTS, "too many calls of an address without a right signature")
            sender = Sender(relay.address, credential_of(metadata))
            await self._guard.authenticate(sender, client.client_id)
            relay.admitted()
        return Call(client, sender, now_ms() + max(left_ms, 0))

    def _failed(self, name: str, error: Exception) -> pb.Status:
        self._failures.tell(now_ms(), "%s failed: %s: %s", name, type(error).__name__, error)
        logger.debug("%s failed", name, exc_info=error)
        return pb.Status(code=pb.INTERNAL_SERVER_ERROR, message=f"internal error: {type(error).__name__}")


def _unimplemented(why: str, *, streams: bool) -> "grpc.RpcMethodHandler[Any, Any]":
    async def refuse(request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, why)

    async def refuse_stream(request: Any, context: Any) -> AsyncGenerator[Any, None]:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, why)
        yield

    if streams:
        return grpc.unary_stream_rpc_method_handler(refuse_stream)
    return grpc.unary_unary_rpc_method_handler(refuse)


def _parsed(kind: Any, data: bytes) -> Any:
    """Raises Refused: the bytes are no message of this kind."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise Refused(pb.BAD_REQUEST, f"{len(data)} bytes are no {kind.DESCRIPTOR.name}") from None


def _class_of(name: str) -> Any:
    return getattr(pb, name)
