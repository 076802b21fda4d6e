"""gRPC clients of a run (`--grpc`): producers and consumers that use the proxies as RocketMQ 5's clients do.

A producer repeats a failed send at once, twice, with the same message id; every fourth message is a half
message that it commits. Each consumer has a group of its own; it receives every message of the topic, from
producers of remoting too, and acknowledges it. Now and then it forgets what it has received, as if it had
been killed.
"""

import asyncio
import random
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Final, Literal

import grpc.aio
from google.protobuf.duration_pb2 import Duration
from msgspec.structs import replace

from cli.lab.ack_log import make_body, read_body
from cli.lab.chaos.history import (
    DAMAGED,
    Acknowledge,
    Receive,
    Send,
    Subscribe,
    make_number,
)
from cli.lab.chaos.traffic import AFTER_ERROR_S, TOPIC, Recorder, key_of
from keelmq.runtime.tasks import cancel_all
from proxy.wire import messaging_pb2 as pb

SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
ATTEMPTS: Final = 3
CALL_S, RECEIVE_S, POLL_S = 3.0, 5.0, 2
INVISIBLE_S: Final = 10
BATCH: Final = 32
FIRST_SENDER: Final = 500_000
"""Numbers of gRPC senders, above those of remoting."""
SENDERS, RECEIVERS = 3, 2
TRANSACTIONS: Final = 0.25
FORGOTTEN: Final = 0.03
"""Share of the receives of a simple consumer that are not acknowledged. What a push consumer holds is renewed
while it lives."""
START_S, DRAIN_S = 60.0, 120.0
LOOK_S: Final = 0.25
RECONNECT_MS_MAX: Final = 2_000
CERTAIN: Final = (pb.OK, pb.INVALID_RECEIPT_HANDLE)
"""Codes of an acknowledgement that say whether the broker has carried it out."""

NAMED: Final = pb.Resource(name=TOPIC)


class GrpcClient:
    """The connection of one client to all proxies. addresses: host:port, in the order of preference."""

    def __init__(self, name: str, addresses: Sequence[str]) -> None:
        self._metadata = (("x-mq-client-id", name), ("x-mq-language", "PYTHON"))
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_reconnect_backoff_ms", RECONNECT_MS_MAX),
        ]
        self._channel = grpc.aio.insecure_channel(f"ipv4:{','.join(addresses)}", options=options)

    async def call(self, name: str, request: Any, answer: Any) -> Any:
        """Returns the answer. grpc.aio.AioRpcError: there is none."""
        method: Any = self._channel.unary_unary(f"{SERVICE}{name}", None, answer.FromString)
        return await method(request.SerializeToString(), metadata=self._metadata, timeout=CALL_S)

    async def receive(self, request: pb.ReceiveMessageRequest) -> list[pb.ReceiveMessageResponse]:
        """Returns the whole stream. grpc.aio.AioRpcError: it broke."""
        method: Any = self._channel.unary_stream(
            f"{SERVICE}ReceiveMessage", None, pb.ReceiveMessageResponse.FromString
        )
        data = request.SerializeToString()
        return [each async for each in method(data, metadata=self._metadata, timeout=RECEIVE_S)]

    async def close(self) -> None:
        """Ends the calls that run."""
        await self._channel.close()


class GrpcSenders:
    """One client and its senders. `rate`: messages per second, of all senders."""

    def __init__(self, index: int, addresses: Sequence[str], recorder: Recorder, *, rate: float, seed: int):
        self._name = f"grpc-producer-{index}"
        self._client = GrpcClient(self._name, addresses)
        self._recorder, self._wait_s = recorder, SENDERS / rate
        self._first = FIRST_SENDER + index * 1_000
        self._dice = random.Random(f"{seed} grpc {index}")
        self._stopping = False

    def stop(self) -> None:
        """Starts no new sends."""
        self._stopping = True

    def work(self) -> list[Coroutine[Any, Any, None]]:
        """Returns what each sender does."""
        return [self._send_all(self._first + index) for index in range(SENDERS)]

    async def close(self) -> None:
        """Closes the connection."""
        await self._client.close()

    async def _send_all(self, sender: int) -> None:
        count = 0
        while not self._stopping:
            accepted = await self._send(make_number(sender, count), f"{self._name}.{sender}")
            count += 1
            await asyncio.sleep(self._wait_s * self._dice.uniform(0.5, 1.5) if accepted else AFTER_ERROR_S)

    async def _send(self, number: int, by: str) -> bool:
        recorder, counts, begun = self._recorder, self._recorder.counts, self._recorder.clock()
        invoked = Send(t=begun, by=by, type="invoke", number=number)
        recorder.put(invoked)
        counts.sent += 1
        is_half = self._dice.random() < TRANSACTIONS
        entry, attempts, remark = await self._attempts(number, is_half)
        if entry is not None and is_half:
            remark = await self._commit(number, entry.transaction_id)
        ended = replace(invoked, t=recorder.clock(), attempts=attempts, uncertain=1, remark=remark)
        if entry is None or remark:
            counts.errors += 1
            recorder.put(replace(ended, type="info"))
            return False
        counts.acked += 1
        counts.grpc_ok_begun = max(counts.grpc_ok_begun or 0, begun)
        recorder.put(replace(ended, type="ok"))
        return True

    async def _attempts(self, number: int, is_half: bool) -> tuple[pb.SendResultEntry | None, int, str]:
        """Returns the entry, the number of attempts and the last error. A half message is sent once, as by
        RocketMQ's clients."""
        system = pb.SystemProperties(message_id=f"01{number:032X}", keys=[key_of(number)])
        if is_half:
            system.message_type = pb.TRANSACTION
        message = pb.Message(topic=NAMED, system_properties=system, body=make_body(number))
        request, remark = pb.SendMessageRequest(messages=[message]), ""
        most = 1 if is_half else ATTEMPTS
        for attempt in range(1, most + 1):
            try:
                answer = await self._client.call("SendMessage", request, pb.SendMessageResponse)
            except grpc.aio.AioRpcError as error:
                remark = f"{error.code().name}: {error.details()}"
                continue
            if answer.status.code == pb.OK:
                return answer.entries[0], attempt, ""
            remark = f"{answer.status.code}: {answer.status.message}"
        return None, most, remark

    async def _commit(self, number: int, transaction_id: str) -> str:
        """Returns why the commit has failed; "": it has not. The broker asks nobody: it is unknown then."""
        request = pb.EndTransactionRequest(
            topic=NAMED,
            message_id=f"01{number:032X}",
            transaction_id=transaction_id,
            resolution=pb.COMMIT,
        )
        try:
            answer = await self._client.call("EndTransaction", request, pb.EndTransactionResponse)
        except grpc.aio.AioRpcError as error:
            return f"commit: {error.code().name}: {error.details()}"
        return "" if answer.status.code == pb.OK else f"commit: {answer.status.code}: {answer.status.message}"


class GrpcConsumer:
    """A group with one member. is_push: the server renews the invisibility, and each message is acknowledged
    on its own; else the client says it, and acknowledges all that it has received at once."""

    def __init__(
        self, index: int, addresses: Sequence[str], recorder: Recorder, *, broker_name: str, seed: int
    ) -> None:
        self.group, self._is_push = f"grpc-consumer-{index}", index == 0
        self._client = GrpcClient(self.group, addresses)
        self._recorder, self._broker_name = recorder, broker_name
        self._dice = random.Random(f"{seed} grpc consumer {index}")
        self._settled: set[int] = set()
        self._forgotten = 0.0 if self._is_push else FORGOTTEN

    async def subscribe(self) -> None:
        """Returns when the group exists, at the end of every queue: a receive has found nothing."""
        while await self._receive() != []:  # noqa: ASYNC110 - a server is asked
            await asyncio.sleep(AFTER_ERROR_S)
        self._recorder.put(Subscribe(t=self._recorder.clock(), group=self.group))

    def work(self) -> list[Coroutine[Any, Any, None]]:
        """Returns what each receiver does, until it is cancelled."""
        return [self._receive_all() for _ in range(RECEIVERS)]

    def lacks(self, numbers: Collection[int]) -> int:
        """Returns how many of the messages are not acknowledged yet. From now on none is forgotten."""
        self._forgotten = 0.0
        return len(set(numbers) - self._settled)

    async def close(self) -> None:
        """Closes the connection."""
        await self._client.close()

    async def _receive_all(self) -> None:
        while True:
            found = await self._receive()
            if found is None:
                await asyncio.sleep(AFTER_ERROR_S)
            elif found and self._dice.random() >= self._forgotten:
                await self._acknowledge(found)

    async def _receive(self) -> list[pb.Message] | None:
        """Returns the messages; None: there was no answer."""
        queue = pb.MessageQueue(topic=NAMED, id=-1, broker=pb.Broker(name=self._broker_name))
        request = pb.ReceiveMessageRequest(
            group=pb.Resource(name=self.group),
            message_queue=queue,
            filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
            batch_size=BATCH,
            auto_renew=self._is_push,
            long_polling_timeout=Duration(seconds=POLL_S),
        )
        if not self._is_push:
            request.invisible_duration.seconds = INVISIBLE_S
        try:
            answers = await self._client.receive(request)
        except grpc.aio.AioRpcError:
            return None
        if not answers or answers[0].status.code not in (pb.OK, pb.MESSAGE_NOT_FOUND):
            return None
        messages = [each.message for each in answers if each.WhichOneof("content") == "message"]
        if messages:
            numbers = tuple(map(number_of, messages))
            self._recorder.put(Receive(t=self._recorder.clock(), group=self.group, numbers=numbers))
            self._recorder.counts.read += len(numbers)
        return messages

    async def _acknowledge(self, messages: Sequence[pb.Message]) -> None:
        parts = [[each] for each in messages] if self._is_push else [messages]
        for part in parts:
            entries = [
                pb.AckMessageEntry(
                    message_id=each.system_properties.message_id,
                    receipt_handle=each.system_properties.receipt_handle,
                )
                for each in part
            ]
            request = pb.AckMessageRequest(group=pb.Resource(name=self.group), topic=NAMED, entries=entries)
            numbers = [number_of(each) for each in part]
            try:
                answer = await self._client.call("AckMessage", request, pb.AckMessageResponse)
            except grpc.aio.AioRpcError:
                self._ended("info", numbers)
                continue
            codes = [entry.status.code for entry in answer.entries] or [answer.status.code] * len(part)
            found = list(zip(numbers, codes, strict=True))
            self._ended("ok", [number for number, code in found if code == pb.OK])
            self._ended("info", [number for number, code in found if code not in CERTAIN])

    def _ended(self, end: Literal["ok", "info"], numbers: Sequence[int]) -> None:
        if numbers:
            self._settled.update(numbers)
            t = self._recorder.clock()
            self._recorder.put(Acknowledge(t=t, type=end, group=self.group, numbers=tuple(numbers)))


def number_of(message: pb.Message) -> int:
    """Returns the message's number; DAMAGED: not one of ours, or its body and key do not match."""
    number = read_body(message.body)
    keys = list(message.system_properties.keys)
    return number if number is not None and keys == [key_of(number)] else DAMAGED


class GrpcTraffic:
    """All gRPC clients of a run."""

    def __init__(
        self, addresses: Sequence[str], recorder: Recorder, *, broker_name: str, rate: float, seed: int
    ) -> None:
        orders = [addresses, [*reversed(addresses)]]
        self._recorder = recorder
        self._senders = [
            GrpcSenders(index, order, recorder, rate=rate / len(orders), seed=seed)
            for index, order in enumerate(orders)
        ]
        self._consumers = [
            GrpcConsumer(index, order, recorder, broker_name=broker_name, seed=seed)
            for index, order in enumerate(orders)
        ]
        self._sending: list[asyncio.Task[None]] = []
        self._receiving: list[asyncio.Task[None]] = []

    async def subscribe(self) -> None:
        """Returns when all groups exist: messages that are sent from now on must reach them. TimeoutError."""
        async with asyncio.timeout(START_S):
            await asyncio.gather(*(each.subscribe() for each in self._consumers))

    def start(self) -> None:
        """Starts the senders and the receivers."""
        self._recorder.counts.grpc_ok_begun = 0
        self._receiving = _tasks(self._consumers)
        self._sending = _tasks(self._senders)

    def check(self) -> None:
        """Raises the exception of a task that has ended with one."""
        for task in (*self._sending, *self._receiving):
            if task.done():
                task.result()

    async def stop(self) -> None:
        """Starts no new sends; returns when those in progress have ended. The consumers go on."""
        for each in self._senders:
            each.stop()
        await asyncio.gather(*self._sending)

    async def drain(self, numbers: Collection[int], tell: Callable[[str], None]) -> None:
        """Returns when the groups have acknowledged these messages, or none for DRAIN_S: the checkers then
        find those that did not come."""
        clock, before = asyncio.get_running_loop().time, -1
        end = clock() + DRAIN_S
        while clock() < end:
            self.check()
            left = sum(each.lacks(numbers) for each in self._consumers)
            if not left:
                tell(f"the gRPC consumers have acknowledged {len(numbers):,} messages")
                return
            if left != before:
                before, end = left, clock() + DRAIN_S
            await asyncio.sleep(LOOK_S)
        lacking = {each.group: each.lacks(numbers) for each in self._consumers}
        tell(f"the gRPC consumers acknowledge nothing more after {DRAIN_S:g} s: {lacking} are missing")

    async def close(self) -> None:
        """Ends all tasks, and closes the connections."""
        await cancel_all([*self._sending, *self._receiving])
        await asyncio.gather(*(each.close() for each in self._senders))
        await asyncio.gather(*(each.close() for each in self._consumers))


def _tasks(workers: Sequence[GrpcSenders] | Sequence[GrpcConsumer]) -> list["asyncio.Task[None]"]:
    return [asyncio.create_task(work) for each in workers for work in each.work()]
