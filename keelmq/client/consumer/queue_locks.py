"""The brokers' queue locks of an orderly group (41, 42): who holds one consumes that queue, and nobody else.

A lock lives 60 s at the master and is renewed every 20 s; after 30 s without a renewal it is taken for lost
here. Masters do not tell their replicas of locks: after a fail-over they are asked for again, at once.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from client.core.queues import MessageQueue
from client.reading import PullError, QueueReader
from client.worker import QueueWorker
from remoting.clock import now_ms
from remoting.operation import Empty
from remoting.operations.clients import LOCK_BATCH_MQ, UNLOCK_BATCH_MQ, LockBatchBody, MessageQueueBody
from remoting.tasks import wait_for_event

logger = logging.getLogger(__name__)

RENEW_MS = 20_000
AGAIN_MS = 1_000
LOCK_TIMEOUT_MS = 1_000


class LockHolder:
    def __init__(self, reader: QueueReader, group: str, client_id: str) -> None:
        self._reader, self._group, self._client_id = reader, group, client_id
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """A master may have changed."""
        self._wake.set()

    async def run(self, workers: Callable[[], Iterable[QueueWorker]]) -> None:
        """For ever."""
        while True:
            await self.renew(list(workers()))
            all_ours = all(worker.is_locked for worker in workers())
            await wait_for_event(self._wake, RENEW_MS if all_ours else AGAIN_MS)

    async def renew(self, workers: Iterable[QueueWorker]) -> None:
        """Ask for the locks of these queues, one request for each broker."""
        by_broker: dict[str, list[QueueWorker]] = {}
        for worker in workers:
            by_broker.setdefault(worker.queue.broker_name, []).append(worker)
        await asyncio.gather(*(self._renew(group) for group in by_broker.values()))

    async def _renew(self, workers: list[QueueWorker]) -> None:
        """All of one broker. An unanswered question changes nothing: the locks run out by themselves."""
        asked_at_ms = now_ms()
        try:
            answer = await self._reader.ask(
                workers[0].queue,
                LOCK_BATCH_MQ,
                Empty(),
                self._body(worker.queue for worker in workers),
                timeout_ms=LOCK_TIMEOUT_MS,
                master_only=True,
            )
        except PullError as error:
            logger.warning("queue locks of %s: %s", workers[0].queue.broker_name, error)
            return
        locked = {(each.topic, each.broker_name, each.queue_id) for each in answer.body.lock_ok_mq_set}
        for worker in workers:
            queue = worker.queue
            if (queue.topic, queue.broker_name, queue.queue_id) in locked:
                worker.grant(asked_at_ms)
            else:
                worker.revoke()

    async def unlock(self, worker: QueueWorker) -> None:
        """After the last listener: the next owner may begin. If it fails the lock runs out after a minute."""
        try:
            await self._reader.ask(
                worker.queue,
                UNLOCK_BATCH_MQ,
                Empty(),
                self._body([worker.queue]),
                timeout_ms=LOCK_TIMEOUT_MS,
                master_only=True,
            )
        except PullError as error:
            logger.warning("%s stays locked for up to a minute: %s", worker.queue, error)

    def _body(self, queues: Iterable[MessageQueue]) -> LockBatchBody:
        return LockBatchBody(
            consumer_group=self._group,
            client_id=self._client_id,
            mq_set=[
                MessageQueueBody(topic=q.topic, broker_name=q.broker_name, queue_id=q.queue_id)
                for q in queues
            ],
        )
