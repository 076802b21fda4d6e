"""Suite grpc: the CPU time of a broker per message for RocketMQ 5's own clients, beside remoting.

The yardstick of a message is the same message over remoting, in turns at the same broker. The client's CPU
time is not counted. streams: the memory of clients that have opened a stream, sent their settings, and wait,
each on a connection of its own. remoting_beside: remoting sends at a broker with a gRPC server that has
nothing to do, against a broker without one.
"""

import asyncio
import base64
import itertools
import os
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc.aio

from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Empty, Ok, Operation, Wire
from keelmq.remoting.operations.broker import SEND_MESSAGE_V2, SendMessageRequestV2
from keelmq.remoting.operations.pop import (
    BATCH_ACK_MESSAGE,
    POP_MESSAGE,
    BatchAck,
    BatchAckBody,
    PopMessageRequest,
)
from proxy.core.times import duration
from proxy.wire import messaging_pb2 as pb
from tests.bench.frames import BATCH_ITEMS, EXT_FIELDS, batch_body
from tests.bench.idle import allow_open_files
from tests.bench.native import BenchError
from tests.bench.report import Measurement, Results, alternate
from tests.bench.resident import own_kib
from tests.bench.send_tls import cpu_s
from tests.bench.servers import LOAD_CPU, Server, Shape, load, lone_broker, per_cpu_second
from tests.support.ports import free_port
from tests.unit.proxy.server.parts import GrpcClient, handle_of

BODY: Final = b"x" * 128
SINGLES, SINGLES_AT_ONCE = 2_000, 64
BATCHES, BATCHES_AT_ONCE = 200, 8
STREAMS, FIRST_STREAMS, STREAMS_AT_ONCE = 2_000, 50, 50
SENDS_GOAL, RECEIVED_GOAL = 6_000, 8_000
"""Messages for each second of the broker's CPU time."""
STREAMS_MIB_GOAL: Final = 100.0
BESIDE_GOAL, BESIDE_SHAPE, BESIDE_ROUNDS = 0.95, Shape(1, 64), 7
INVISIBLE_MS, TIMEOUT_S = 60_000, 30.0
GROUP: Final = "benchmark_consumer"
SETTINGS: Final = pb.Settings(
    client_type=pb.PUSH_CONSUMER,
    subscription=pb.Subscription(
        group=pb.Resource(name=GROUP),
        subscriptions=[
            pb.SubscriptionEntry(
                topic=pb.Resource(name="OverGrpc"),
                expression=pb.FilterExpression(type=pb.TAG, expression="*"),
            )
        ],
    ),
    user_agent=pb.UA(language=pb.PYTHON, version="5.1.2", platform="Linux", hostname="127.0.0.1"),
)

_numbers = itertools.count()


class OverGrpc:
    """A client of gRPC with one connection."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._client = GrpcClient(channel)
        self._topic, self._group = pb.Resource(name="OverGrpc"), pb.Resource(name=GROUP)

    async def send(self, count: int) -> None:
        """Sends one request with this number of messages."""
        messages = [
            pb.Message(
                topic=self._topic,
                body=BODY,
                system_properties=pb.SystemProperties(
                    message_id=f"017F0000010D2E1B6D0586{next(_numbers):012X}",
                    tag="TagA",
                    born_host="127.0.0.1",
                    message_type=pb.NORMAL,
                ),
            )
            for _ in range(count)
        ]
        answer = await self._client.call("SendMessage", pb.SendMessageRequest(messages=messages))
        if answer.status.code != pb.OK:
            raise BenchError(f"refused: {answer.status}")

    async def receive(self) -> int:
        """Receives and acknowledges one batch; returns its size."""
        queue = pb.MessageQueue(topic=self._topic, id=-1, broker=pb.Broker(name="broker-a"))
        request = pb.ReceiveMessageRequest(
            group=self._group,
            message_queue=queue,
            batch_size=BATCH_ITEMS,
            invisible_duration=duration(INVISIBLE_MS),
        )
        answers = [each async for each in self._client.receiving(request, timeout=TIMEOUT_S)]
        handles = [handle_of(each.message) for each in answers if each.HasField("message")]
        if handles:
            entries = [pb.AckMessageEntry(message_id="m", receipt_handle=each) for each in handles]
            acks = pb.AckMessageRequest(group=self._group, topic=self._topic, entries=entries)
            answer = await self._client.call("AckMessage", acks)
            if answer.status.code != pb.OK:
                raise BenchError(f"refused: {answer.status}")
        return len(handles)


class OverRemoting:
    """The same with one connection of remoting."""

    def __init__(self, client: RemotingClient, address: str) -> None:
        self._client, self._address, self._topic = client, address, "OverRemoting"
        self._batch = batch_body(len(BODY))

    async def send(self, count: int) -> None:
        """Sends one request with one message or BATCH_ITEMS messages."""
        fields = EXT_FIELDS | {"b": self._topic, "m": str(count > 1).lower()}
        if count > 1:
            fields["i"] = ""
        await self._ok(
            SEND_MESSAGE_V2, SendMessageRequestV2.model_validate(fields), self._batch if count > 1 else BODY
        )

    async def receive(self) -> int:
        """Pops and acknowledges one batch; returns its size."""
        pop = PopMessageRequest(
            consumer_group=GROUP,
            topic=self._topic,
            queue_id=-1,
            max_msg_nums=BATCH_ITEMS,
            invisible_time=INVISIBLE_MS,
            init_mode=1,
        )
        outcome = await self._client.call(self._address, POP_MESSAGE, pop)
        if not isinstance(outcome, Ok):
            return 0
        header, acks, count = outcome.header, list[BatchAck](), 0
        for entry in filter(None, header.msg_offset_info.split(";")):
            retry, queue_id, offsets = entry.split(" ")
            found = [int(each) for each in offsets.split(",")]
            bits = sum(1 << (each - found[0]) for each in found)
            acks.append(
                BatchAck(
                    c=GROUP,
                    t=self._topic,
                    r=retry,
                    so=found[0],
                    q=int(queue_id),
                    rq=header.revive_qid,
                    pt=header.pop_time,
                    it=header.invisible_time,
                    b=base64.b64encode(bits.to_bytes(BATCH_ITEMS // 8, "little")).decode(),
                )
            )
            count += len(found)
        await self._ok(BATCH_ACK_MESSAGE, Empty(), BatchAckBody(broker_name="broker-a", acks=acks))
        return count

    async def _ok(self, operation: Operation[Any, Any], header: Wire, body: object) -> None:
        outcome = await self._client.call(self._address, operation, header, body)
        if not isinstance(outcome, Ok):
            raise BenchError(f"refused: {outcome}")


Side = OverGrpc | OverRemoting
Work = Callable[[Side], Coroutine[Any, Any, int]]
"""Returns how many messages it has moved."""


async def send_singles(side: Side) -> int:
    """Sends requests with one message each."""
    await _at_once(SINGLES_AT_ONCE, partial(side.send, 1), SINGLES)
    return SINGLES


async def send_batches(side: Side) -> int:
    """Sends requests with BATCH_ITEMS messages each."""
    await _at_once(BATCHES_AT_ONCE, partial(side.send, BATCH_ITEMS), BATCHES)
    return BATCHES * BATCH_ITEMS


async def receive_all(side: Side) -> int:
    """Receives and acknowledges what there is."""
    counts = list[int]()

    async def some() -> None:
        while count := await side.receive():
            counts.append(count)

    await asyncio.gather(*(some() for _ in range(BATCHES_AT_ONCE)))
    return sum(counts)


async def _at_once(workers: int, work: Callable[[], Awaitable[object]], count: int) -> None:
    left = iter(range(count))

    async def some() -> None:
        for _ in left:
            await work()

    await asyncio.gather(*(some() for _ in range(workers)))


class Turns:
    """Measures a client of gRPC and one of remoting in turns at one broker."""

    def __init__(self, runner: asyncio.Runner, broker: Server, sides: tuple[Side, Side]) -> None:
        self._runner, self._pid, self._sides = runner, broker.pid, sides

    def costs_us(self, work: Work, prepare: Work | None = None) -> tuple[float, float]:
        """Returns the CPU microseconds of a message for both. prepare: what is not measured."""
        over_grpc, over_remoting = alternate(
            *(partial(self._cost_us, work, prepare, each) for each in self._sides)
        )
        return over_grpc, over_remoting

    def _cost_us(self, work: Work, prepare: Work | None, side: Side) -> float:
        if prepare is not None:
            self._runner.run(prepare(side))
        before = cpu_s(self._pid)
        count = self._runner.run(work(side))
        return (cpu_s(self._pid) - before) / count * 1e6


def messages(directory: Path) -> Results:
    """The CPU time of messages, and how many a second of it moves."""
    port, found = free_port(), Results()
    with lone_broker(directory, serving_at(port)) as broker, asyncio.Runner() as runner:
        channel, client = runner.run(_channel(port)), RemotingClient()
        sides = OverGrpc(channel), OverRemoting(client, f"127.0.0.1:{broker.port}")
        turns = Turns(runner, broker, sides)
        for each in sides:  # a new group begins at the end
            runner.run(send_batches(each))
            runner.run(receive_all(each))
        for name, work, prepare, goal in (
            ("send", send_singles, None, None),
            ("send_batch", send_batches, None, SENDS_GOAL),
            ("receive_and_ack", receive_all, send_batches, RECEIVED_GOAL),
        ):
            cost, of_remoting = turns.costs_us(work, prepare)
            found[name] = Measurement(cost, "us/message", of_remoting, cost / of_remoting)
            if goal is not None:
                found[f"{name}_rate"] = Measurement(1e6 / cost, "msg/CPU-s", goal, 1e6 / cost / goal)
        runner.run(channel.close())
        runner.run(client.close())
    return found


def streams(directory: Path) -> Results:
    """The memory of STREAMS clients."""
    port = free_port()
    allow_open_files(STREAMS + FIRST_STREAMS)
    with lone_broker(directory, serving_at(port)) as broker:
        used = asyncio.run(_streams_mib(broker, port))
    return {"idle_streams": Measurement(used, "MiB", STREAMS_MIB_GOAL, used / STREAMS_MIB_GOAL)}


async def _streams_mib(broker: Server, port: int) -> float:
    async with AsyncExitStack() as stack:
        await _open_streams(stack, port, FIRST_STREAMS)
        before = own_kib(broker.pid)
        await _open_streams(stack, port, STREAMS)
        return (own_kib(broker.pid) - before) / 1_024


async def _channel(port: int) -> grpc.aio.Channel:
    """Returns a channel with a connection of its own. A coroutine: it belongs to the running event loop."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)


async def _open_streams(stack: AsyncExitStack, port: int, count: int) -> None:
    """Each has sent its settings, and has its answer."""
    channels = [await stack.enter_async_context(await _channel(port)) for _ in range(count)]
    numbers = iter(range(count))

    async def some() -> None:
        for number in numbers:
            stream = GrpcClient(channels[number]).telemetry()
            await stream.write(pb.TelemetryCommand(settings=SETTINGS))
            answer = await stream.read()
            if answer.status.code != pb.OK:
                raise BenchError(f"refused: {answer.status}")
            stack.callback(stream.cancel)

    await asyncio.gather(*(some() for _ in range(STREAMS_AT_ONCE)))


def beside(directory: Path) -> Results:
    """Remoting sends at a broker with a gRPC server that has nothing to do."""
    with (
        lone_broker(directory / "with", serving_at(free_port())) as served,
        lone_broker(directory / "without") as plain,
    ):
        value, yardstick = alternate(
            lambda: per_cpu_second(load(served, BESIDE_SHAPE, awake=True)),
            lambda: per_cpu_second(load(plain, BESIDE_SHAPE, awake=True)),
            rounds=BESIDE_ROUNDS,
        )
    return {"remoting_beside": Measurement(value, "msg/CPU-s", yardstick, value / yardstick)}


def serving_at(port: int) -> dict[str, str]:
    """Returns settings of a broker with a gRPC server that answers a receive without messages at once."""
    return {
        "enableProxy": "true",
        "grpcServerPort": str(port),
        "maxConnectionsPerAddress": "0",
        "grpcClientConsumerMinLongPollingTimeoutMillis": "0",
        "brokerName": "broker-a",
    }


def run() -> Results:
    """Needs two cores."""
    os.sched_setaffinity(0, {LOAD_CPU})
    with tempfile.TemporaryDirectory(prefix="keelmq-bench-") as place:
        directory = Path(place)
        return messages(directory / "messages") | streams(directory / "streams") | beside(directory)


def faults(results: Results) -> list[str]:
    """The goals that are missed."""
    found = [
        f"{name}: {results[name].value:,.0f} of {results[name].yardstick:,.0f} messages a second of CPU time"
        for name in ("send_batch_rate", "receive_and_ack_rate")
        if results[name].ratio < 1
    ]
    if results["idle_streams"].ratio > 1:
        found.append(f"{STREAMS:,} idle streams take {results['idle_streams'].value:.0f} MiB")
    if results["remoting_beside"].ratio < BESIDE_GOAL:
        found.append(f"remoting sends are at {results['remoting_beside'].ratio:.0%} beside a gRPC server")
    return found
