"""Queue locks of an orderly group at the brokers (41, 42): only the holder of a lock consumes that queue.

A lock lives 60 s at the master and is renewed every 20 s; after 30 s without a renewal the client considers
it lost. Masters do not replicate locks: after a fail-over the client requests them again, at once.
"""

import asyncio
import logging
import math
import random
from collections.abc import Callable, Iterable

from keelmq.client.cluster.queue_reader import PullError, QueueReader
from keelmq.client.consumer.process_queue import ProcessQueue
from keelmq.client.core.queues import MessageQueue
from keelmq.remoting.operation import Empty
from keelmq.remoting.operations.clients import LOCK_BATCH_MQ, UNLOCK_BATCH_MQ, LockBatchBody, MessageQueueBody
from keelmq.runtime.backoff import Backoff
from keelmq.runtime.clock import now_ms
from keelmq.runtime.tasks import wait_for_event

logger = logging.getLogger(__name__)

RENEW_MS = 20_000
AGAIN = Backoff(first_ms=1_000, max_ms=4_000)
LOCK_TIMEOUT_MS = 1_000


class LockHolder:
    """Requests, renews and releases the queue locks of one member."""

    def __init__(self, reader: QueueReader, group: str, client_id: str) -> None:
        self._reader, self._group, self._client_id = reader, group, client_id
        self._wake = asyncio.Event()
        self._renewing = asyncio.Lock()

    def wake(self) -> None:
        """Renews the locks now: a master may have changed."""
        self._wake.set()

    async def run(self, process_queues: Callable[[], Iterable[ProcessQueue]]) -> None:
        """Renews the locks until cancelled."""
        failures = 0
        while True:
            await self.renew(list(process_queues()))
            failures = (
                0 if all(process_queue.is_locked for process_queue in process_queues()) else failures + 1
            )
            pause_ms = math.ceil(AGAIN.pause_ms(failures, random.random()))
            if await wait_for_event(self._wake, pause_ms if failures else RENEW_MS):
                failures = 0

    async def renew(self, process_queues: Iterable[ProcessQueue]) -> None:
        """Requests the locks of these queues, with one request per broker (LOCK_BATCH_MQ, 41)."""
        by_broker: dict[str, list[ProcessQueue]] = {}
        for process_queue in process_queues:
            by_broker.setdefault(process_queue.queue.broker_name, []).append(process_queue)
        async with self._renewing:
            await asyncio.gather(*(self._renew(group) for group in by_broker.values()))

    async def _renew(self, process_queues: list[ProcessQueue]) -> None:
        """Renews the locks at one broker. Without a response nothing changes: the locks expire."""
        asked_at_ms = now_ms()
        try:
            answer = await self._reader.ask(
                process_queues[0].queue,
                LOCK_BATCH_MQ,
                Empty(),
                self._body(process_queue.queue for process_queue in process_queues),
                timeout_ms=LOCK_TIMEOUT_MS,
                master_only=True,
            )
        except PullError as error:
            logger.warning("queue locks of %s: %s", process_queues[0].queue.broker_name, error)
            return
        locked = {(each.topic, each.broker_name, each.queue_id) for each in answer.body.lock_ok_mq_set}
        for process_queue in process_queues:
            queue = process_queue.queue
            if (queue.topic, queue.broker_name, queue.queue_id) in locked:
                process_queue.grant(asked_at_ms)
            else:
                process_queue.revoke()

    async def unlock(self, process_queue: ProcessQueue) -> None:
        """Releases the lock after the last listener call, so the next owner can begin (UNLOCK_BATCH_MQ, 42).
        If that fails, the lock expires after a minute. The caller renews this lock no longer."""
        async with self._renewing:
            pass  # a renewal that is on its way must not lock the queue again
        try:
            await self._reader.ask(
                process_queue.queue,
                UNLOCK_BATCH_MQ,
                Empty(),
                self._body([process_queue.queue]),
                timeout_ms=LOCK_TIMEOUT_MS,
                master_only=True,
            )
        except PullError as error:
            logger.warning("%s stays locked for up to a minute: %s", process_queue.queue, error)

    def _body(self, queues: Iterable[MessageQueue]) -> LockBatchBody:
        return LockBatchBody(
            consumer_group=self._group,
            client_id=self._client_id,
            mq_set=[
                MessageQueueBody(topic=q.topic, broker_name=q.broker_name, queue_id=q.queue_id)
                for q in queues
            ],
        )
