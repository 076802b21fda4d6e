"""The demo's clients with `--grpc`: a producer and a simple consumer as RocketMQ 5's clients are, at proxies.

They speak plain gRPC to two proxies. The consumer acknowledges everything; at the end the ack log is compared
with what it has received.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import grpc.aio

from cli.lab.ack_log import AckLog, make_body, read_body
from cli.lab.chaos.grpc_traffic import GrpcClient
from keelmq.runtime.clock import now_ms
from keelmq.runtime.tasks import cancel_all
from proxy.wire import messaging_pb2 as pb

RATE_MAX: Final = 300
"""Messages per second: each is a call of its own (docs/grpc.md)."""
GROUP: Final = "keelmq-demo"
IN_FLIGHT_MAX: Final = 32
ATTEMPTS: Final = 5
RECEIVERS: Final = 2
TICK_S: Final = 0.005
AFTER_ERROR_S: Final = 0.05
DRAIN_S: Final = 60.0
"""For what the consumer lacks at the end, after its last message. Those whose answer was lost when a master
died come again after 10 s."""


class GrpcTraffic:
    """As cli/lab/traffic.py. addresses: of the proxies."""

    def __init__(
        self, addresses: Sequence[str], topic: str, ack_log: AckLog, *, broker_name: str, rate: int
    ) -> None:
        self._resource = pb.Resource(name=topic)
        self._ack_log, self._broker_name, self._rate = ack_log, broker_name, min(rate, RATE_MAX)
        self._producer = GrpcClient("keelmq-demo-producer", addresses)
        self._consumer = GrpcClient("keelmq-demo-consumer", [*reversed(addresses)])
        self._stopping = False
        self._receiving: list[asyncio.Task[None]] = []
        self._sending: asyncio.Task[None] | None = None
        self._in_flight: set[asyncio.Task[None]] = set()
        self._received: set[int] = set()

    async def subscribe(self) -> None:
        """Returns when the consumer's group exists: it receives what is sent from now on. The topic must
        exist."""
        while await self._receive() is None:  # noqa: ASYNC110 - a server is asked
            await asyncio.sleep(AFTER_ERROR_S)

    def start(self) -> None:
        """Starts the sending and the receiving."""
        self._receiving = [asyncio.create_task(self._receive_all()) for _ in range(RECEIVERS)]
        self._sending = asyncio.create_task(self._send_all())

    async def stop(self) -> None:
        """Starts no new sends; returns when those in progress have ended."""
        self._stopping = True
        if self._sending is not None:
            await self._sending
        if self._in_flight:
            await asyncio.wait(self._in_flight)

    async def drain(self, tell: Callable[[str], None]) -> None:
        """Returns when the consumer has every acknowledged message, or none for DRAIN_S: they are lost."""
        lacking, end_ms = -1, 0
        while left := sum(number not in self._received for number in self._ack_log.acknowledged()):
            self.check()
            if left != lacking:
                lacking, end_ms = left, now_ms() + int(1_000 * DRAIN_S)
                tell(f"the consumer waits for {left:,} messages")
            if now_ms() >= end_ms:
                return
            await asyncio.sleep(AFTER_ERROR_S)

    async def close(self) -> None:
        """Ends all calls."""
        tasks = [*self._receiving, *self._in_flight, *filter(None, [self._sending])]
        await cancel_all(tasks)
        await asyncio.gather(self._producer.close(), self._consumer.close())

    def check(self) -> None:
        """Raises the exception that ended the sending or the receiving, if there is one."""
        for task in (*self._receiving, *filter(None, [self._sending])):
            if task.done() and not task.cancelled():
                task.result()

    # -- sending -----------------------------------------------------------------------------------------

    async def _send_all(self) -> None:
        due_ms = float(now_ms())
        while not self._stopping:
            while due_ms <= now_ms() and len(self._in_flight) < IN_FLIGHT_MAX:
                task = asyncio.create_task(self._send(self._ack_log.start()))
                self._in_flight.add(task)
                task.add_done_callback(self._in_flight.discard)
                due_ms = max(due_ms + 1_000 / self._rate, now_ms() - 1_000 * TICK_S)
            await asyncio.sleep(TICK_S)

    async def _send(self, number: int) -> None:
        """As RocketMQ's clients: again at once, with the same message id."""
        started_ms = now_ms()
        system = pb.SystemProperties(message_id=f"01{number:032X}")
        message = pb.Message(topic=self._resource, system_properties=system, body=make_body(number))
        request = pb.SendMessageRequest(messages=[message])
        for attempt in range(1, ATTEMPTS + 1):
            try:
                answer = await self._producer.call("SendMessage", request, pb.SendMessageResponse)
            except grpc.aio.AioRpcError:
                continue
            if answer.status.code == pb.OK:
                self._ack_log.acknowledge(number, started_ms=started_ms, now_ms=now_ms(), attempts=attempt)
                return
        self._ack_log.fail()

    # -- receiving ---------------------------------------------------------------------------------------

    async def _receive_all(self) -> None:
        while True:
            found = await self._receive()
            if found is None:
                await asyncio.sleep(AFTER_ERROR_S)
            elif found:
                await self._acknowledge(found)

    async def _receive(self) -> list[pb.Message] | None:
        """Returns the messages; None: there was no answer."""
        queue = pb.MessageQueue(topic=self._resource, id=-1, broker=pb.Broker(name=self._broker_name))
        request = pb.ReceiveMessageRequest(
            group=pb.Resource(name=GROUP),
            message_queue=queue,
            filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
            batch_size=32,
        )
        request.long_polling_timeout.seconds = 2
        request.invisible_duration.seconds = 10
        try:
            answers = await self._consumer.receive(request)
        except grpc.aio.AioRpcError:
            return None
        if not answers or answers[0].status.code not in (pb.OK, pb.MESSAGE_NOT_FOUND):
            return None
        return [each.message for each in answers if each.HasField("message")]

    async def _acknowledge(self, messages: list[pb.Message]) -> None:
        """A message counts when it is received; if its acknowledgement fails, it comes once more."""
        for each in messages:
            self._ack_log.found(each.body)
            number = read_body(each.body)
            if number is not None:
                self._received.add(number)
        entries = [
            pb.AckMessageEntry(
                message_id=each.system_properties.message_id,
                receipt_handle=each.system_properties.receipt_handle,
            )
            for each in messages
        ]
        request = pb.AckMessageRequest(group=pb.Resource(name=GROUP), topic=self._resource, entries=entries)
        try:
            await self._consumer.call("AckMessage", request, pb.AckMessageResponse)
        except grpc.aio.AioRpcError:
            return
