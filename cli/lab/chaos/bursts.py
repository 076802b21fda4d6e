"""Full load in bursts: between calm phases, one sender for each queue sends batches as fast as they are
acknowledged; and a reader reads and checks messages at random places.

Batches and runs of messages are recorded, not messages. The messages of all bursts together are limited: they
are read back at the end, and the disks of a run are small.
"""

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from cli.lab.chaos.history import DAMAGED, Batch, BatchRead
from cli.lab.chaos.traffic import Recorder, final_pulls
from cli.lab.full_load import BatchProducer
from cli.lab.numbered_batches import BatchTemplate, read_numbered
from keelmq.client import (
    MessageExt,
    MessageQueue,
    PullConsumer,
    PullError,
    SendError,
)

TOPIC: Final = "KeelChaosBursts"
BATCH_MESSAGES: Final = 500
SEND_TIMEOUT_MS: Final = 15_000
AFTER_ERROR_S: Final = 0.05
CALM_S: Final = (4.0, 12.0)
BURST_S: Final = (1.0, 5.0)
READ_NUMS: Final = 64
READ_TIMEOUT_MS: Final = 2_000
READ_EVERY_S: Final = 0.05
FINAL_NUMS: Final = 1_000

Run = tuple[int, int, int, int, int]


class _Running:
    """A task that runs until it is stopped."""

    _task: asyncio.Task[None] | None = None

    def check(self) -> None:
        """Raises the exception that has ended it, if there is one."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            self._task.result()

    async def _ended(self) -> None:
        if self._task is not None:
            await self._task

    async def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class BurstSenders(_Running):
    """`messages`: of all bursts together. Bursts are spread over `minutes`."""

    def __init__(
        self, namesrv_addr: str, recorder: Recorder, *, messages: int, minutes: float, seed: int
    ) -> None:
        self._producer = BatchProducer(namesrv_addr, "keelmq-chaos-bursts")
        self._recorder, self._left = recorder, messages
        bursts = max(1.0, minutes * 60 / (sum(CALM_S) / 2 + sum(BURST_S) / 2))
        self._share = max(BATCH_MESSAGES, int(messages / bursts))
        self._dice = random.Random(f"{seed} bursts")
        self._batches: dict[int, int] = {}
        self._stopping = asyncio.Event()

    def start(self, queues: Sequence[MessageQueue]) -> None:
        """Begins with a calm phase."""
        self._task = asyncio.create_task(self._run(queues))

    async def stop(self) -> None:
        """Sends no new batch; returns when those in flight have ended."""
        self._stopping.set()
        await self._ended()

    async def cancel(self) -> None:
        """Ends the bursts at once; batches in flight are not waited for."""
        await self._cancel()
        await self._producer.close()

    async def _run(self, queues: Sequence[MessageQueue]) -> None:
        while not self._stopping.is_set() and self._left > 0:
            await self._wait(self._dice.uniform(*CALM_S))
            until = self._recorder.clock() + int(self._dice.uniform(*BURST_S) * 1e6)
            budget = [min(self._share, self._left)]
            self._left -= budget[0]
            async with asyncio.TaskGroup() as senders:
                for sender, queue in enumerate(queues):
                    senders.create_task(self._burst(sender, queue, until, budget))
            self._left += max(0, budget[0])

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _burst(self, sender: int, queue: MessageQueue, until: int, budget: list[int]) -> None:
        """budget: of all senders of this burst, in messages; each takes its batch from it."""
        template = BatchTemplate(sender, BATCH_MESSAGES)
        while self._recorder.clock() < until and budget[0] > 0 and not self._stopping.is_set():
            budget[0] -= BATCH_MESSAGES
            number = self._batches[sender] = self._batches.get(sender, 0) + 1
            if not await self._send(template, number, queue):
                await asyncio.sleep(AFTER_ERROR_S)

    async def _send(self, template: BatchTemplate, number: int, queue: MessageQueue) -> bool:
        recorder = self._recorder
        invoked = Batch(
            t=recorder.clock(),
            type="invoke",
            sender=template.sender,
            batch=number,
            count=template.count,
            queue=queue.queue_id,
        )
        recorder.put(invoked)
        body, key = template.encode(number), template.key(number)
        try:
            result = await self._producer.send_encoded(
                TOPIC, body, key, queue=queue, timeout_ms=SEND_TIMEOUT_MS
            )
        except SendError as error:
            recorder.send_failed(invoked, error)
            return False
        recorder.send_ended(invoked, result)
        return True


class BurstReader(_Running):
    """Reads at random places of the bursts' queues until it is stopped, and records damaged messages."""

    def __init__(self, namesrv_addr: str, recorder: Recorder, *, seed: int) -> None:
        self._pull = PullConsumer(namesrv_addr, "keelmq-chaos-burst-reader")
        self._recorder, self._dice = recorder, random.Random(f"{seed} burst reader")
        self._stopping = False

    def start(self, queues: Sequence[MessageQueue]) -> None:
        """Begins to read."""
        self._task = asyncio.create_task(self._run(queues))

    async def stop(self) -> None:
        """Returns when the read in progress has ended."""
        self._stopping = True
        await self._ended()

    async def close(self) -> None:
        """Cancels the reading and closes the connections."""
        await self._cancel()
        await self._pull.close()

    async def _run(self, queues: Sequence[MessageQueue]) -> None:
        while not self._stopping:
            queue = self._dice.choice(queues)
            try:
                end = await self._pull.max_offset(queue)
                start = self._dice.randrange(end) if end else 0
                result = await self._pull.pull(queue, start, READ_NUMS, timeout_ms=READ_TIMEOUT_MS)
            except PullError:
                await asyncio.sleep(AFTER_ERROR_S)
                continue
            if result.messages:
                bad = tuple(run for run in runs_of(result.messages) if run[1] == DAMAGED)
                self._recorder.counts.read += len(result.messages)
                if bad:
                    self._put(queue, len(result.messages), bad)
            await asyncio.sleep(READ_EVERY_S)

    def _put(self, queue: MessageQueue, read: int, bad: tuple[Run, ...]) -> None:
        t = self._recorder.clock()
        self._recorder.put(BatchRead(t=t, by="burst-reader", queue=queue.queue_id, read=read, runs=bad))


def runs_of(messages: Sequence[MessageExt]) -> list[Run]:
    """Returns BatchRead.runs of these messages of one queue, in their order."""
    runs: list[Run] = []
    for message in messages:
        payload = read_numbered(message.body)
        offset = message.queue_offset
        now = (DAMAGED, 0, 0) if payload is None else (payload.sender, payload.batch, payload.position)
        if runs:
            first, sender, batch, position, count = runs[-1]
            follows = (sender, batch, position + (0 if sender == DAMAGED else count))
            if first + count == offset and follows == now:
                runs[-1] = (first, sender, batch, position, count + 1)
                continue
        runs.append((offset, *now, 1))
    return runs


async def read_bursts(
    namesrv_addr: str, queues: Sequence[MessageQueue], recorder: Recorder
) -> list[BatchRead]:
    """Returns the final reads: every queue from its first message to its end. PullError: a read failed."""
    return [
        BatchRead(
            t=recorder.clock(),
            by="final",
            queue=queue.queue_id,
            read=len(result.messages),
            runs=tuple(runs_of(result.messages)),
            final=True,
        )
        async for queue, _, result in final_pulls(namesrv_addr, queues, FINAL_NUMS)
    ]
