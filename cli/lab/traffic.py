"""The demo's producer and its reader: numbered sends, recorded in an AckLog, and the check that reads
everything back."""

import asyncio
from functools import partial

from cli.lab.ack_log import AckLog, make_body
from keelmq.client import Message, MessageQueue, Producer, PullConsumer, PullStatus, SendError, SendResult
from keelmq.runtime.clock import now_ms
from keelmq.runtime.tls.contexts import Tls
from keelmq.security.signer import Credentials

IN_FLIGHT_MAX = 32
SEND_TIMEOUT_MS = 15_000
"""Longer than any fail-over should take: a send that still fails is in the report."""
TICK_MS = 5
READ_NUMS = 256


class Traffic:
    """`rate`: messages started per second while the cluster answers. It is never exceeded to catch up.
    `credentials`: of a user who may send. `tls`: False: as other clients of this process."""

    def __init__(
        self,
        namesrv_addr: str,
        topic: str,
        ack_log: AckLog,
        *,
        rate: int,
        credentials: Credentials | None = None,
        tls: Tls = False,
    ) -> None:
        self._producer = Producer(
            namesrv_addr, "keelmq-demo", in_flight_max=IN_FLIGHT_MAX, credentials=credentials, tls=tls
        )
        self._topic, self._ack_log, self._rate = topic, ack_log, rate
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self._in_flight: set[asyncio.Task[SendResult]] = set()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="traffic")

    async def stop(self) -> None:
        """Starts no new sends; returns when those in progress have ended."""
        self._stopping = True
        if self._task is not None:
            await self._task
        if self._in_flight:
            await asyncio.wait(self._in_flight)

    async def close(self) -> None:
        """Cancels the sending and closes the producer. For an orderly end call stop() first."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._producer.close()

    def check(self) -> None:
        """Raises the exception that ended the sending, if there is one."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            self._task.result()

    async def _run(self) -> None:
        due_ms = float(now_ms())
        while not self._stopping:
            while due_ms <= now_ms() and not self._stopping:
                await self._send_one()
                due_ms = max(due_ms + 1_000 / self._rate, now_ms() - TICK_MS)
            await asyncio.sleep(TICK_MS / 1_000)

    async def _send_one(self) -> None:
        number = self._ack_log.start()
        message = Message(self._topic, make_body(number))
        task = await self._producer.send_async(message, timeout_ms=SEND_TIMEOUT_MS)
        started_ms = now_ms()
        self._in_flight.add(task)
        task.add_done_callback(partial(self._done, number, started_ms))

    def _done(self, number: int, started_ms: int, task: "asyncio.Task[SendResult]") -> None:
        self._in_flight.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            attempts = task.result().attempts
            self._ack_log.acknowledge(number, started_ms=started_ms, now_ms=now_ms(), attempts=attempts)
        elif isinstance(error, SendError):
            self._ack_log.fail()
        else:
            raise error


async def read_back(
    namesrv_addr: str, topic: str, ack_log: AckLog, credentials: Credentials | None = None
) -> None:
    """Reads every message of the topic from its master into the ack log. Raises PullError."""
    async with PullConsumer(namesrv_addr, "keelmq-demo-reader", credentials=credentials) as consumer:
        queues = await consumer.fetch_queues(topic)
        await asyncio.gather(*(_read_queue(consumer, queue, ack_log) for queue in queues))


async def _read_queue(consumer: PullConsumer, queue: MessageQueue, ack_log: AckLog) -> None:
    position, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
    while position < end:
        result = await consumer.pull(queue, position, READ_NUMS)
        for message in result.messages:
            ack_log.found(message.body)
        if result.next_begin_offset <= position or result.status is PullStatus.NO_NEW_MSG:
            return  # the queue ends earlier than its master said: missing messages will count as lost
        position = result.next_begin_offset
