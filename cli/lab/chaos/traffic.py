"""The clients of a run: senders and consumers, which record every operation in the history.

An ordered sender has one queue and one send in progress at a time; unordered ones send to any queue, many at
once. A consumer reads every queue from its start and commits its offsets. Now and then it acts as if it had
been restarted: it queries its committed offsets and reads from there.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from msgspec.structs import replace

from cli.lab.ack_log import make_body, read_body
from cli.lab.chaos.history import (
    DAMAGED,
    AnyEntry,
    Batch,
    Commit,
    End,
    Fetch,
    Read,
    Send,
    make_number,
    sender_of,
)
from keelmq.client import (
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    PullError,
    PullResult,
    PullStatus,
    SendError,
    SendErrorKind,
    SendResult,
)
from keelmq.client.cluster.routes import RouteCache, RouteError
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Failed, Ok, Operation, Outcome, Wire
from keelmq.remoting.operations.broker_metadata import (
    QUERY_CONSUMER_OFFSET,
    UPDATE_CONSUMER_OFFSET,
    ConsumerOffsetRequest,
    UpdateConsumerOffsetRequest,
)
from keelmq.runtime.tasks import cancel_all

TOPIC = "KeelChaos"
SEND_TIMEOUTS_MS = (1_500, 5_000, 15_000)
"""Short and long time-outs: the meaning of an error is checked as well."""
AFTER_ERROR_S = 0.05
READ_NUMS = 64
READ_TIMEOUT_MS = 2_000
POLL_MS = 1_000
OFFSET_TIMEOUT_MS = 2_000
COMMIT_PERIOD_US = 500_000
FINAL_NUMS = 256
COME_BACK_S = (5.0, 15.0)

Resp = TypeVar("Resp", bound=Wire)


@dataclass(slots=True)
class Counts:
    """Counts for the screen; the checkers do not use them."""

    sent: int = 0
    acked: int = 0
    retried: int = 0
    errors: int = 0
    read: int = 0
    gaps_ms: list[int] = field(default_factory=list)
    is_waiting: bool = False
    last_ok_begun: int = -1  # when the newest acknowledged send was started
    grpc_ok_begun: int | None = None  # the same of gRPC producers; None: there are none

    def accepted_since(self, t: int) -> bool:
        """Returns whether a send that was started then, or later, was acknowledged: by each protocol."""
        return self.last_ok_begun >= t and (self.grpc_ok_begun is None or self.grpc_ok_begun >= t)


@dataclass(slots=True)
class Recorder:
    """Records operations; `clock` returns t, `put` stores entries."""

    clock: Callable[[], int]
    put: Callable[[AnyEntry], None]
    counts: Counts = field(default_factory=Counts)

    def send_failed(self, invoked: Send | Batch, error: SendError) -> None:
        """Records the end of a send that was not acknowledged."""
        end: End = "info" if error.kind is SendErrorKind.UNKNOWN else "fail"
        self.put(replace(invoked, t=self.clock(), type=end, attempts=error.attempts, remark=str(error)))

    def send_ended(self, invoked: Send | Batch, result: SendResult) -> None:
        """Records the end of a send that was acknowledged."""
        self.put(
            replace(
                invoked,
                t=self.clock(),
                type="ok",
                queue=result.queue_id,
                offset=result.queue_offset,
                attempts=result.attempts,
                uncertain=result.uncertain_attempts,
            )
        )


class Senders:
    """One Producer (its connections, its route) and its senders. `rate`: sends per second, of all senders."""

    def __init__(self, index: int, namesrv_addr: str, recorder: Recorder, *, rate: float, seed: int) -> None:
        self._name, self._first = f"producer-{index}", index * 1_000
        self._producer = Producer(namesrv_addr, "keelmq-chaos")
        self._recorder, self._rate = recorder, rate
        self._dice = random.Random(f"{seed} {index}")
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    def start(self, queues: list[MessageQueue], unordered: int) -> None:
        """Starts one ordered sender per queue, and this many unordered ones."""
        places = [*queues, *[None] * unordered]
        for index, queue in enumerate(places):
            wait_s = len(places) / self._rate
            self._tasks.append(asyncio.create_task(self._send_all(self._first + index, queue, wait_s)))

    async def stop(self) -> None:
        """Starts no new sends; returns when those in progress have ended."""
        self._stopping = True
        await asyncio.gather(*self._tasks)
        await self._producer.close()

    def check(self) -> None:
        """Raises the exception of a sender that has ended with one."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def cancel(self) -> None:
        """Ends the senders at once; sends in progress are not waited for."""
        await cancel_all(self._tasks)
        await self._producer.close()

    async def _send_all(self, sender: int, queue: MessageQueue | None, wait_s: float) -> None:
        count = 0
        while not self._stopping:
            accepted = await self._send(make_number(sender, count), f"{self._name}.{sender}", queue)
            count += 1
            await asyncio.sleep(wait_s * self._dice.uniform(0.5, 1.5) if accepted else AFTER_ERROR_S)

    async def _send(self, number: int, by: str, queue: MessageQueue | None) -> bool:
        recorder, counts, begun = self._recorder, self._recorder.counts, self._recorder.clock()
        invoked = Send(
            t=begun,
            by=by,
            type="invoke",
            number=number,
            ordered=queue is not None,
            queue=queue.queue_id if queue else None,
        )
        recorder.put(invoked)
        counts.sent += 1
        message = Message(TOPIC, make_body(number), keys=(key_of(number),))
        timeout_ms = self._dice.choice(SEND_TIMEOUTS_MS)
        try:
            result = await self._producer.send(message, queue=queue, timeout_ms=timeout_ms)
        except SendError as error:
            counts.errors += 1
            recorder.send_failed(invoked, error)
            return False
        counts.acked += 1
        counts.retried += result.attempts > 1
        counts.last_ok_begun = max(counts.last_ok_begun, begun)
        recorder.send_ended(invoked, result)
        return True


def key_of(number: int) -> str:
    """Returns the key that a message of this number carries: its sender's."""
    return f"sender-{sender_of(number)}"


def number_of(message: MessageExt) -> int:
    """Returns the message's number; DAMAGED: not one of ours, or its body and key do not match."""
    number = read_body(message.body)
    return number if number is not None and message.keys == key_of(number) else DAMAGED


class Offsets:
    """Commits and queries consumer offsets at the master of the route."""

    def __init__(self, namesrv_addr: str) -> None:
        self._client = RemotingClient(drop_silent_ms=OFFSET_TIMEOUT_MS)
        self._routes = RouteCache(self._client, namesrv_addr)

    async def close(self) -> None:
        """Closes the routes and the connections."""
        await self._routes.close()
        await self._client.close()

    async def commit(self, group: str, queue: MessageQueue, offset: int) -> tuple[End, str]:
        """Returns the end of a commit and its remark. fail: certainly not committed; info: unknown."""
        header = UpdateConsumerOffsetRequest(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        outcome = await self._ask(queue, UPDATE_CONSUMER_OFFSET, header)
        if isinstance(outcome, Ok):
            return "ok", ""
        unsent = isinstance(outcome, Failed) and outcome.code == ResponseCode.RPC_SEND_TO_CHANNEL_FAILED
        return ("fail" if unsent else "info"), outcome.remark

    async def fetch(self, group: str, queue: MessageQueue) -> tuple[End, int | None, str]:
        """Returns the end of a query, the committed offset (None: there is none, or no answer) and its
        remark."""
        header = ConsumerOffsetRequest(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=False,
        )
        outcome = await self._ask(queue, QUERY_CONSUMER_OFFSET, header)
        if isinstance(outcome, Ok):
            return "ok", outcome.header.offset, ""
        if isinstance(outcome, Failed) and outcome.code == ResponseCode.QUERY_NOT_FOUND:
            return "ok", None, ""
        return "fail", None, outcome.remark

    async def _ask(self, queue: MessageQueue, operation: Operation[Any, Resp], header: Wire) -> Outcome[Resp]:
        """Sends one request to the master that the name servers know now."""
        try:
            route = await self._routes.refresh(queue.topic, rotate=True)
        except RouteError as error:
            return Failed(ResponseCode.RPC_SEND_TO_CHANNEL_FAILED, error.remark)
        address = route.master(queue.broker_name)
        if address is None:
            return Failed(ResponseCode.RPC_SEND_TO_CHANNEL_FAILED, "no master")
        return await self._client.call(address, operation, header, timeout_ms=OFFSET_TIMEOUT_MS)


@dataclass(slots=True)
class _Reader:
    """Progress of one queue; times in t."""

    position: int = 0
    committed: int = 0
    commit_at: int = 0
    come_back_at: int = 0


class Consumer:
    """One group with one member. `eager`: long polling at the end of each queue; else a pull now and then."""

    def __init__(self, index: int, namesrv_addr: str, recorder: Recorder, *, eager: bool, seed: int) -> None:
        self.group = f"consumer-{index}"
        self._pull = PullConsumer(namesrv_addr, self.group)
        self._offsets = Offsets(namesrv_addr)
        self._recorder, self._eager = recorder, eager
        self._dice = random.Random(f"{seed} consumer {index}")
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    def start(self, queues: list[MessageQueue]) -> None:
        self._tasks = [asyncio.create_task(self._follow(queue)) for queue in queues]

    def check(self) -> None:
        """Raises the exception of a task that has ended with one."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def stop(self) -> None:
        """Starts no new reads; returns when those in progress have ended."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        """Cancels the reads and closes the connections."""
        await cancel_all(self._tasks)
        await self._pull.close()
        await self._offsets.close()

    async def last_fetch(self, queues: list[MessageQueue]) -> bool:
        """Queries the final committed offsets. Returns whether there was an answer for every queue."""
        return all([await self._fetch(queue) is not None for queue in queues])

    async def _follow(self, queue: MessageQueue) -> None:
        clock = self._recorder.clock
        reader = _Reader(come_back_at=self._next_return(clock()))
        while not self._stopping:
            found = await self._read(queue, reader)
            if reader.position > reader.committed and clock() >= reader.commit_at:
                await self._commit(queue, reader)
            if clock() >= reader.come_back_at:
                reader.come_back_at = self._next_return(clock())
                committed = await self._fetch(queue)
                reader.position = reader.position if committed is None else committed
            elif not (self._eager and found):
                await asyncio.sleep(AFTER_ERROR_S if self._eager else self._dice.uniform(0.1, 0.4))

    def _next_return(self, now: int) -> int:
        return now + int(self._dice.uniform(*COME_BACK_S) * 1e6)

    async def _read(self, queue: MessageQueue, reader: _Reader) -> bool:
        """Pulls once; returns whether that succeeded."""
        start, put, clock = reader.position, self._recorder.put, self._recorder.clock
        invoked = Read(t=clock(), by=self.group, type="invoke", queue=queue.queue_id, start=start)
        put(invoked)
        suspend_ms = POLL_MS if self._eager else 0
        try:
            result = await self._pull.pull(
                queue, start, READ_NUMS, suspend_ms=suspend_ms, timeout_ms=READ_TIMEOUT_MS
            )
        except PullError as error:
            put(replace(invoked, t=clock(), type="fail", remark=str(error)))
            return False
        put(read_entry(clock(), self.group, start, queue, result))
        self._recorder.counts.read += len(result.messages)
        reader.position = result.next_begin_offset
        return True

    async def _commit(self, queue: MessageQueue, reader: _Reader) -> None:
        recorder, offset = self._recorder, reader.position
        invoked = Commit(
            t=recorder.clock(),
            by=self.group,
            type="invoke",
            group=self.group,
            queue=queue.queue_id,
            offset=offset,
        )
        recorder.put(invoked)
        end, remark = await self._offsets.commit(self.group, queue, offset)
        recorder.put(replace(invoked, t=recorder.clock(), type=end, remark=remark))
        if end == "ok":
            reader.committed = offset
        reader.commit_at = recorder.clock() + COMMIT_PERIOD_US

    async def _fetch(self, queue: MessageQueue) -> int | None:
        """Returns the committed offset; None: no answer, or nothing committed."""
        recorder, group = self._recorder, self.group
        invoked = Fetch(t=recorder.clock(), by=group, group=group, type="invoke", queue=queue.queue_id)
        recorder.put(invoked)
        end, offset, remark = await self._offsets.fetch(group, queue)
        recorder.put(replace(invoked, t=recorder.clock(), type=end, offset=offset, remark=remark))
        return offset


def read_entry(
    t: int, by: str, start: int, queue: MessageQueue, result: PullResult, *, final: bool = False
) -> Read:
    """Returns the history's entry for a successful pull that began at offset `start`."""
    return Read(
        t=t,
        by=by,
        type="ok",
        queue=queue.queue_id,
        start=start,
        messages=tuple((message.queue_offset, number_of(message)) for message in result.messages),
        final=final,
        remark="" if result.status is PullStatus.FOUND else result.status.name,
    )


async def read_all(namesrv_addr: str, queues: list[MessageQueue], recorder: Recorder) -> list[Read]:
    """Returns the final reads: every queue from its first message to its end. PullError: a read failed."""
    return [
        read_entry(recorder.clock(), "final", position, queue, result, final=True)
        async for queue, position, result in final_pulls(namesrv_addr, queues, FINAL_NUMS)
    ]


async def final_pulls(
    namesrv_addr: str, queues: Sequence[MessageQueue], max_nums: int
) -> AsyncIterator[tuple[MessageQueue, int, PullResult]]:
    """Yields (queue, start offset, result) of pulls from the first message of each queue to its end.
    PullError: a pull failed."""
    async with PullConsumer(namesrv_addr, "keelmq-chaos-final") as consumer:
        for queue in queues:
            position, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            while position < end:
                result = await consumer.pull(queue, position, max_nums)
                yield queue, position, result
                if result.next_begin_offset <= position or result.status is PullStatus.NO_NEW_MSG:
                    break  # it ends earlier than its master said: missing messages count as lost
                position = result.next_begin_offset
