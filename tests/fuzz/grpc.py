"""The fuzzer of the gRPC port: hostile calls to a proxy in a real broker, over real connections.

    keelmq fuzz grpc [--count N] [--seed S]

A round is one seed, one broker, ROUND_INPUTS inputs, AT_ONCE at a time. Of every input must be true: its
answer has a documented code, and an entry for each message or handle; nothing is logged as an error. A
producer and a consumer go on undisturbed. When all connections have closed, nothing is left of them: no task,
stream, waiting pop, or place among the calls that the server permits at once. Over all rounds, neither the
descriptors nor the memory of this process grow.
"""

import asyncio
import gc
import itertools
import logging
import os
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

import grpc
import grpc.aio

from broker.app.broker import Broker
from keelmq.remoting.address_text import split_address
from proxy.server.app import ProxyServer
from proxy.server.producers import Stream
from proxy.server.service import UNIMPLEMENTED
from proxy.wire import messaging_pb2 as pb
from tests.fuzz.frames import Finding, fast_directory, held_bytes
from tests.fuzz.grpc_inputs import TYPES, Given, Input, Maker, class_of, nothing_given
from tests.fuzz.http2 import visit
from tests.fuzz.security import GROWN_BYTES_MAX, Report, shown
from tests.unit.proxy.server.parts import ENDED_MEANWHILE, GrpcClient, handle_of, serving

ROUND_INPUTS: Final = 5_000
AT_ONCE: Final = 48
CALLS_MAX: Final = 200
"""Calls that the server permits at once: what is not given back is noticed."""
CHANNELS: Final = 4
CHANNEL_INPUTS: Final = 500
"""Then the channel is closed, whatever runs on it."""
RAW_EVERY: Final = 50
SAFE_EVERY: Final = 250
TOPICS_MAX: Final = 300
WARM_ROUNDS: Final = 4
FILES_MORE_MAX: Final = 20
ANSWER_S: Final = 120.0
"""Time for an answer, on a machine that has much else to do."""
ABORTED_KEPT: Final = 1
"""grpcio keeps the last call that was aborted, with its handler."""
LEFT_S = 60.0
"""Time until everything has gone with its connection."""
SAFE: Final = pb.Resource(name="Safe")
NEVER: Final = frozenset({pb.CODE_UNSPECIFIED, pb.INTERNAL_ERROR, pb.INTERNAL_SERVER_ERROR})
"""Codes that say that the server is wrong."""
GRPC_CODES: Final = {name: {grpc.StatusCode.UNIMPLEMENTED} for name in (*UNIMPLEMENTED, "strange")} | {
    "Telemetry": {grpc.StatusCode.INVALID_ARGUMENT}
}
"""Errors of gRPC that an answer may be; also those of LATE_CODES."""
LATE_CODES: Final = {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
SETTINGS: Final = {
    "grpcMaxConcurrentCalls": CALLS_MAX,
    "grpcMaxInboundMessageSize": 65_536,
    "grpcClientConsumerMaxLongPollingTimeoutMillis": 20,
    "recallMessageEnable": True,
    "enablePropertyFilter": True,
    "telemetryEnable": False,
    "maxMessageSize": 40_000,
}


class Errors(logging.Handler):
    """What is logged as an error, or with a traceback."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the record, if it is an error."""
        if record.levelno >= logging.ERROR or record.exc_info:
            self.texts.append(f"{record.name}: {logging.Formatter().format(record)}")


@asynccontextmanager
async def watched() -> AsyncGenerator[Errors, None]:
    """What is logged while the block runs; the event loop logs what a task failed with."""
    errors = Errors()
    root = logging.getLogger()
    level = root.level
    root.addHandler(errors)
    root.setLevel(logging.WARNING)
    try:
        yield errors
    finally:
        root.setLevel(level)
        root.removeHandler(errors)


class Round:
    def __init__(self, broker: Broker, safe: GrpcClient, seed: str, report: Report) -> None:
        """safe: the client that is not disturbed."""
        self._broker, self._safe, self._seed, self._report = broker, safe, seed, report
        safe.timeout_s = ANSWER_S
        proxy = broker.listeners.proxy
        assert isinstance(proxy, ProxyServer)
        self._address = f"127.0.0.1:{proxy.port}"
        self._given: Given = nothing_given()
        self._maker = Maker(seed, self._given)
        self._channels: list[tuple[grpc.aio.Channel, int]] = []
        self._sent: list[str] = []
        self._got: set[str] = set()

    async def run(self, count: int) -> None:
        """Makes the inputs, and looks at what they leave. Raises Finding."""
        async with watched() as errors:
            await self._receive_safe()
            await self._safe.send("first", topic=SAFE)
            before = await self._left()
            numbers = iter(range(count))
            async with asyncio.TaskGroup() as group:
                for _ in range(min(AT_ONCE, count)):
                    group.create_task(self._work(numbers, errors))
            await self._end(before, errors)

    async def _work(self, numbers: Iterator[int], errors: Errors) -> None:
        for number in numbers:
            value = self._maker.make(number)
            try:
                outcome = await asyncio.wait_for(self._call(value, number), ANSWER_S)
            except TimeoutError:
                raise Finding(f"input {number}: no answer after {ANSWER_S:g} s\n{shown(value)}") from None
            except Finding as finding:
                raise Finding(f"input {number}: {finding}\n{shown(value)}") from None
            except grpc.aio.BaseError as error:  # of a call that another finding has cancelled
                raise Finding(f"input {number}: {error!r}\n{shown(value)}") from None
            if errors.texts:
                raise Finding(f"about input {number}: {errors.texts[0]}\n{shown(value)}")
            self._report.inputs += 1
            self._report.outcomes[value.method, outcome] += 1
            if number % RAW_EVERY == 0:
                await visit(split_address(self._address), Random(f"{self._seed} raw {number}"))
            if number % SAFE_EVERY == 0:
                await self._send_safe(number)
            if len(self._broker.topics.topics) > TOPICS_MAX:
                self._broker.topics.auto_create = False

    # -- calls -------------------------------------------------------------------------------------------

    def _channel(self, number: int) -> grpc.aio.Channel:
        at = number % CHANNELS
        while len(self._channels) <= at:
            self._channels.append((self._open(), 0))
        channel, used = self._channels[at]
        self._channels[at] = channel, used + 1
        return channel

    def _open(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self._address, options=[("grpc.use_local_subchannel_pool", 1)])

    async def _call(self, value: Input, number: int) -> str:
        channel = self._channel(number)
        try:
            if value.method == "Telemetry":
                return await self._stream(channel, value)
            if value.method in ("ReceiveMessage", "PullMessage"):
                return await self._receive(channel, value)
            return await self._unary(channel, value)
        except grpc.aio.AioRpcError as error:
            return self._grpc_error(value, error)
        except asyncio.CancelledError:  # grpc.aio raises it in a call that the client has cancelled
            if value.leaves != "cancels":
                raise
            return "cancelled"

    def _grpc_error(self, value: Input, error: grpc.aio.AioRpcError) -> str:
        code = error.code()
        size = max(map(len, value.frames), default=0)
        allowed = LATE_CODES | GRPC_CODES.get(value.method, set())
        if size > SETTINGS["grpcMaxInboundMessageSize"]:
            allowed |= {grpc.StatusCode.RESOURCE_EXHAUSTED}
        if code not in allowed:
            raise Finding(f"gRPC error {code.name}: {error.details()}")
        return str(code.name)

    async def _unary(self, channel: grpc.aio.Channel, value: Input) -> str:
        method = channel.unary_unary(f"/{value.path}")
        data = await method(value.frames[0], metadata=value.metadata, timeout=value.timeout_s)
        if value.method not in TYPES:
            raise Finding("a method that does not exist was answered")
        answer = class_of(TYPES[value.method].output_type.name).FromString(data)
        self._judge(answer.status)
        for entry in getattr(answer, "entries", ()):
            self._judge(entry.status)
        if answer.status.code in (pb.OK, pb.MULTIPLE_RESULTS):
            self._learn(value, answer)
        return pb.Code.Name(answer.status.code)

    def _judge(self, status: pb.Status) -> None:
        if status.code not in pb.Code.values() or status.code in NEVER:
            raise Finding(f"the status is {status.code}: {status.message[:300]}")

    def _learn(self, value: Input, answer: Any) -> None:
        """Keeps what the answer gives out. Raises Finding: it has not one entry for each message."""
        request = class_of(TYPES[value.method].input_type.name).FromString(value.frames[0])
        if value.method == "SendMessage":
            if len(answer.entries) != len(request.messages):
                raise Finding(f"{len(answer.entries)} entries for {len(request.messages)} messages")
            topic = request.messages[0].topic.name if request.messages else ""
            for entry in answer.entries:
                if entry.transaction_id:
                    self._given.transactions.append((topic, entry.transaction_id))
                if entry.recall_handle:
                    self._given.recalls.append((topic, entry.recall_handle))
        elif value.method == "AckMessage" and len(answer.entries) != len(request.entries):
            raise Finding(f"{len(answer.entries)} entries for {len(request.entries)} handles")
        elif value.method == "ChangeInvisibleDuration":
            self._given.receipts.append((request.group.name, request.topic.name, answer.receipt_handle))

    async def _receive(self, channel: grpc.aio.Channel, value: Input) -> str:
        method = channel.unary_stream(f"/{value.path}")
        call = method(value.frames[0], metadata=value.metadata, timeout=value.timeout_s)
        if value.leaves == "vanishes":
            await call.read()
            call.cancel()
            return "vanished"
        if value.leaves == "cancels":
            asyncio.get_running_loop().call_soon(call.cancel)
        answer_of = class_of(TYPES[value.method].output_type.name).FromString
        answers = [answer_of(data) async for data in call]
        if not answers or answers[0].WhichOneof("content") != "status":
            raise Finding("the stream does not begin with a status")
        self._judge(answers[0].status)
        messages = [answer.message for answer in answers if answer.WhichOneof("content") == "message"]
        if messages and answers[0].status.code != pb.OK:
            raise Finding(f"messages with the status {answers[0].status.code}")
        if messages and value.method == "ReceiveMessage":
            request = pb.ReceiveMessageRequest.FromString(value.frames[0])
            for message in messages:
                given = request.group.name, request.message_queue.topic.name, handle_of(message)
                self._given.receipts.append(given)
        return pb.Code.Name(answers[0].status.code)

    async def _stream(self, channel: grpc.aio.Channel, value: Input) -> str:
        method = channel.stream_stream(f"/{value.path}")
        call = method(metadata=value.metadata, timeout=None if value.leaves == "cancels" else value.timeout_s)
        try:
            for frame in value.frames:
                await call.write(frame)
            if value.leaves == "cancels":
                call.cancel()
                return "cancelled"
            if value.leaves == "vanishes":  # with the channel, or its deadline
                return "vanished"
            await call.done_writing()
        except (asyncio.InvalidStateError, grpc.aio.InternalError):  # the server has just ended it
            pass
        except grpc.aio.AioRpcError as error:
            if error.details() != ENDED_MEANWHILE:
                raise
            return "ended meanwhile"
        answers = [pb.TelemetryCommand.FromString(data) async for data in call]
        for answer in answers:
            kind = answer.WhichOneof("command")
            if kind == "recover_orphaned_transaction_command":  # of a topic that this producer publishes to
                continue
            if answer.status.code != pb.OK or kind != "settings":
                raise Finding(f"an answer without settings: {answer}")
        return "OK" if answers else "ended"

    # -- the client that is not disturbed ----------------------------------------------------------------

    async def _send_safe(self, number: int) -> None:
        body = f"{len(self._sent)} {number}"
        try:
            answer = await self._safe.send(body, topic=SAFE)
        except grpc.aio.AioRpcError as error:
            raise Finding(f"the undisturbed producer: {error!r}") from None
        if answer.status.code != pb.OK:
            raise Finding(f"the undisturbed producer: {answer.status}")
        self._sent.append(body)

    async def _receive_safe(self) -> None:
        _, messages = await self._safe.receive(topic=SAFE, group=SAFE)
        handles = [handle_of(message) for message in messages]
        if handles:
            entries = [pb.AckMessageEntry(message_id="m", receipt_handle=each) for each in handles]
            request = pb.AckMessageRequest(group=SAFE, topic=SAFE, entries=entries)
            answer = await self._safe.call("AckMessage", request)
            if answer.status.code != pb.OK:
                raise Finding(f"the undisturbed consumer: {answer.status}")
        self._got |= {message.body.decode() for message in messages}

    # -- the end -----------------------------------------------------------------------------------------

    async def _left(self) -> dict[str, int]:
        """Returns what connections could leave behind."""
        gc.collect()
        return {
            "tasks": sum(not _is_of_a_client(task) for task in asyncio.all_tasks()),
            "streams": max(sum(isinstance(each, Stream) for each in gc.get_objects()), ABORTED_KEPT),
            "waiting pops": len(self._broker.services.pop.handlers.polling),
        }

    async def _end(self, before: dict[str, int], errors: Errors) -> None:
        for channel, _ in self._channels:
            await channel.close()
        self._channels.clear()
        left: dict[str, int] = {}
        end = asyncio.get_running_loop().time() + LEFT_S
        while asyncio.get_running_loop().time() < end:
            left = {name: count for name, count in (await self._left()).items() if count > before[name]}
            if not left:
                break
            await asyncio.sleep(0.05)
        if left:
            names = Counter(task.get_name() for task in asyncio.all_tasks())
            raise Finding(f"left behind: {left}, before: {before}; tasks: {names}")
        await self._every_place_is_free()
        for _ in range(100):
            await self._receive_safe()
            if self._got >= set(self._sent):
                break
        if lost := set(self._sent) - self._got:
            raise Finding(f"lost: {sorted(lost)}")
        if errors.texts:
            raise Finding(errors.texts[0])

    async def _every_place_is_free(self) -> None:
        """As many streams as the server permits are open at once."""
        streams = [self._safe.telemetry() for _ in range(CALLS_MAX - 1)]
        settings = pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing())
        try:
            for stream in streams:
                await stream.write(pb.TelemetryCommand(settings=settings))
                await stream.read()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise Finding(f"a stream is refused although no call runs: {error}") from None
        finally:
            for stream in streams:
                stream.cancel()


def _is_of_a_client(task: "asyncio.Task[Any]") -> bool:
    """grpc.aio forgets to end a task of a client's call that was cancelled while it began."""
    return "_AioCall." in getattr(task.get_coro(), "__qualname__", "")


def _files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def run_rounds(seed: int, count: int, report: Report, progress: Callable[[str], None]) -> None:
    """Runs the rounds in this event loop; findings are collected, one per round."""
    begun_bytes, begun_files, left = 0, 0, count
    for number in itertools.count():
        if left <= 0 or len(report.findings) >= 20:
            break
        with tempfile.TemporaryDirectory(prefix="fuzz-", dir=fast_directory()) as directory:
            async with serving(Path(directory), **SETTINGS) as (broker, safe):
                try:
                    await Round(broker, safe, f"grpc {seed + number}", report).run(min(ROUND_INPUTS, left))
                except* AssertionError as group:
                    report.findings.append(f"grpc seed {seed + number}: {group.exceptions[0]}")
                    progress(report.findings[-1])
        left -= ROUND_INPUTS
        progress(report.line())
        if number + 1 == WARM_ROUNDS:
            begun_bytes, begun_files = held_bytes(), _files()
    if number > 2 * WARM_ROUNDS:
        report.grown_bytes = held_bytes() - begun_bytes
        if report.grown_bytes > GROWN_BYTES_MAX:
            report.findings.append(f"memory grew by {report.grown_bytes >> 10} KiB")
        if (files := _files()) > begun_files + FILES_MORE_MAX:
            report.findings.append(f"{files} descriptors are open; {begun_files} at the beginning")


def fuzz(seed: int, count: int, progress: Callable[[str], None] = lambda line: None) -> Report:
    """Returns what `count` inputs in rounds came to."""
    report = Report()
    asyncio.run(run_rounds(seed, count, report, progress))
    return report
