"""A member of a consumer group: tells brokers what it wants, and shares the queues out with the others.

Every member computes the assignment for itself (client/core/rebalance.py) from the brokers' list of members:
at start, when a broker says that the list changed (40), when something failed a second ago, and every 20 s.
Whatever fails leaves the assignment as it was. What is done with the messages is the business of a Sink.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from client.core.queues import MessageQueue
from client.core.rebalance import allocate_averagely, changes
from client.core.subscription import ExpressionType, Subscription, java_hash
from client.inspection import Handle, Inspection
from client.membership import Membership, make_client_id
from client.offsets import BrokerOffsets, LocalOffsets, OffsetStore
from client.queue_locks import LockHolder
from client.reading import ATTEMPT_TIMEOUT_MS, PullError, PullErrorKind, QueueReader
from client.route import RouteCache, RouteError, TopicRoute
from client.settings import ConsumerSettings, MessageModel
from client.worker import RETRY_PREFIX, QueueWorker, WorkerParts
from remoting.client import RemotingClient
from remoting.clock import wall_ms
from remoting.codes import ResponseCode
from remoting.operation import Call, Empty, Failed, Ok, OperationTable
from remoting.operations.clients import (
    CHECK_CLIENT_CONFIG,
    GET_CONSUMER_LIST_BY_GROUP,
    NOTIFY_CONSUMER_IDS_CHANGED,
    CheckClientBody,
    ConsumerData,
    ConsumerGroupRequest,
    HeartbeatData,
    SubscriptionData,
)
from remoting.tasks import TaskSet, wait_for_event

logger = logging.getLogger(__name__)

AGAIN_MIN_MS = 50
AGAIN_MAX_MS = 1_000
"""What could not be balanced is tried again after so long; soon at first: a group's retry topic is made by
its first heartbeat, and a route needs a moment."""
LIST_TIMEOUT_MS = 3_000
START_WAIT_MS = 3_000
"""So long the start waits for brokers to say where the queues are read from."""


class Sink(Protocol):
    """Who consumes. All calls come from the event loop."""

    def adopted(self, worker: QueueWorker) -> None:
        """A queue is ours; its pulls begin now."""

    def arrived(self, worker: QueueWorker) -> None:
        """worker.take() has something."""

    async def released(self, worker: QueueWorker, *, closing: bool) -> None:
        """A queue is ours no longer (worker.dropped): wait for what must not overlap with its next owner.
        `closing`: there is no next owner yet, what still ends counts."""


class GroupMember:
    """Owns the connections, the routes and the workers of one consumer."""

    def __init__(
        self,
        namesrv_addr: str,
        group: str,
        settings: ConsumerSettings,
        sink: Sink,
        *,
        consume_type: str,
        orderly: bool = False,
        handle: Handle | None = None,
    ) -> None:
        """`handle`: the listener, for messages that an operator gives it."""
        self.group, self.settings = group, settings
        self.client_id = make_client_id(settings.instance_name)
        self.is_broadcasting = settings.model is MessageModel.BROADCASTING
        table = OperationTable()
        table.bind(NOTIFY_CONSUMER_IDS_CHANGED, self._ids_changed)
        Inspection(self, namesrv_addr, handle, orderly=orderly).bind(table)
        self.client = RemotingClient(
            table, on_closed=self._connection_lost, drop_silent_ms=ATTEMPT_TIMEOUT_MS
        )
        self.routes = RouteCache(self.client, namesrv_addr, on_change=self._route_changed)
        self.reader = QueueReader(
            self.client, self.routes, group, probe_interval_ms=settings.probe_interval_ms
        )
        self.offsets = self._offset_store()
        self.workers: dict[MessageQueue, QueueWorker] = {}
        self.running = asyncio.Event()
        self.running.set()
        self._sink, self.consume_type = sink, consume_type
        self._needs_locks = orderly and not self.is_broadcasting
        limits = replace(settings.limits, span_max=None) if orderly else settings.limits
        self._parts = WorkerParts(
            self.reader, self.offsets, settings, limits, self.running, arrived=sink.arrived
        )
        self._subscriptions: dict[str, Subscription] = {}
        self._membership = Membership(
            self.client,
            data=self._heartbeat,
            addresses=self.routes.addresses,
            interval_ms=settings.heartbeat_interval_ms,
        )
        self._locks = LockHolder(self.reader, group, self.client_id)
        self._tasks = TaskSet()
        self._releasing: dict[MessageQueue, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._tell = False
        self._masters: dict[str, str] = {}
        self._started = False

    # -- life --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Registered and, if the brokers answer, with its queues. PullError: a broker refuses an SQL92
        subscription. Nothing else is fatal: what is missing is looked for again, every second."""
        await self._read_routes()
        await self._check_sql()
        self._started = True
        await self._membership.beat()
        balanced = await self._rebalance()
        await self._until_positioned()
        self._tasks.start("heartbeats", self._membership.run)
        self._tasks.start("rebalance", lambda: self._rebalance_for_ever(balanced))
        self._tasks.start("offsets", self._persist_for_ever)
        if self._needs_locks:
            self._tasks.start("queue locks", lambda: self._locks.run(self._own_workers))

    async def stop(self) -> None:
        """Gives the queues back (their offsets first), says farewell, closes. May be called twice."""
        await self._tasks.stop()
        if self._started:
            self._started = False
            for queue in list(self.workers):
                self._release(queue)
            await asyncio.gather(*self._releasing.values())
            await self._membership.leave(consumer_group=self.group)
        await self.reader.close()
        await self.routes.close()
        await self.client.close()

    # -- subscriptions -----------------------------------------------------------------------------------

    @property
    def subscriptions(self) -> dict[str, Subscription]:
        return dict(self._subscriptions)

    def subscribe(self, subscription: Subscription) -> None:
        """Takes effect at once if it is running. Replaces what was said of the topic before."""
        self._subscriptions[subscription.topic] = replace(subscription, version=wall_ms())
        for queue, worker in self.workers.items():
            if queue.topic == subscription.topic:
                worker.want(self._subscriptions[queue.topic])
        self.rebalance_soon(tell=True)

    def unsubscribe(self, topic: str) -> None:
        self._subscriptions.pop(topic, None)
        self.rebalance_soon(tell=True)

    def rebalance_soon(self, *, tell: bool = False) -> None:
        """`tell`: the brokers need another heartbeat first."""
        self._tell |= tell
        self._wake.set()

    def wire_subscriptions(self) -> list[SubscriptionData]:
        return [_wire(each) for _, each in sorted(self._subscriptions.items())]

    def _own_workers(self) -> Iterable[QueueWorker]:
        return self.workers.values()

    def _heartbeat(self) -> HeartbeatData:
        consumer = ConsumerData(
            group_name=self.group,
            consume_type=self.consume_type,
            message_model=self.settings.model.value,
            consume_from_where=self.settings.from_where.value,
            subscription_data_set=self.wire_subscriptions(),
        )
        return HeartbeatData(clientID=self.client_id, consumer_data_set=[consumer])

    async def _until_positioned(self) -> None:
        """Who begins with what comes from now on misses nothing that is sent right after the start."""
        waits = [worker.positioned.wait() for worker in self.workers.values()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_WAIT_MS / 1_000):
                await asyncio.gather(*waits)

    async def _read_routes(self) -> None:
        for topic in sorted(self._subscriptions):
            try:
                await self.routes.find(topic)
            except RouteError as error:
                logger.info("group %s: %s", self.group, error.remark)

    async def _check_sql(self) -> None:
        """46: better told now than at every pull."""
        for subscription in self._subscriptions.values():
            if subscription.type is ExpressionType.TAG:
                continue
            body = CheckClientBody(
                client_id=self.client_id, group=self.group, subscription_data=_wire(subscription)
            )
            for address in sorted(self.routes.addresses()):
                outcome = await self.client.call(address, CHECK_CLIENT_CONFIG, Empty(), body)
                refused = (ResponseCode.SYSTEM_ERROR, ResponseCode.SUBSCRIPTION_PARSE_FAILED)
                if isinstance(outcome, Failed) and outcome.code in refused:
                    remark = (
                        f"{address}: {subscription.expression!r} of {subscription.topic}: {outcome.remark}"
                    )
                    raise PullError(PullErrorKind.REFUSED, remark, outcome.code)

    # -- sharing out -------------------------------------------------------------------------------------

    async def _rebalance_for_ever(self, balanced: bool) -> None:
        again_ms = AGAIN_MIN_MS
        while True:
            every_ms = self.settings.rebalance_interval_ms
            woken = await wait_for_event(self._wake, every_ms if balanced else min(again_ms, every_ms))
            again_ms = AGAIN_MIN_MS if balanced or woken else min(2 * again_ms, AGAIN_MAX_MS)
            if woken:
                await self.persist()  # whoever gets a queue of ours begins where we are
                await self._read_routes()
            if self._tell:
                self._tell = False
                await self._membership.beat()
            balanced = await self._rebalance(fresh=not woken)

    async def _rebalance(self, *, fresh: bool = False) -> bool:
        """True: everything is as it should be. `fresh`: ask for the routes, whatever is known."""
        balanced = True
        for queue in [queue for queue in self.workers if queue.topic not in self._subscriptions]:
            self._release(queue)
        for topic, subscription in sorted(self._subscriptions.items()):
            try:
                wanted = await self._wanted(topic, fresh=fresh)
            except (PullError, RouteError) as error:
                logger.info("group %s keeps its queues of %s: %s", self.group, topic, error)
                balanced = False
            else:
                balanced &= await self._assign(topic, subscription, wanted)
        return balanced

    async def _wanted(self, topic: str, *, fresh: bool) -> tuple[MessageQueue, ...]:
        route = await (self.routes.refresh(topic) if fresh else self.routes.find(topic))
        if self.is_broadcasting:
            return route.read_queues
        addresses = sorted({address for table in route.addresses.values() for address in table.values()})
        random.shuffle(addresses)
        remarks = []
        for address in addresses:
            outcome = await self.client.call(
                address,
                GET_CONSUMER_LIST_BY_GROUP,
                ConsumerGroupRequest(consumer_group=self.group),
                timeout_ms=LIST_TIMEOUT_MS,
            )
            if isinstance(outcome, Ok) and self.client_id in outcome.body.consumer_id_list:
                return allocate_averagely(self.client_id, outcome.body.consumer_id_list, route.read_queues)
            remarks.append(
                f"{address}: {'we are not in its list' if isinstance(outcome, Ok) else outcome.remark}"
            )
        self._membership.wake()
        raise PullError(PullErrorKind.REFUSED, "no broker names the group's members: " + "; ".join(remarks))

    async def _assign(self, topic: str, subscription: Subscription, wanted: tuple[MessageQueue, ...]) -> bool:
        mine = [queue for queue in self.workers if queue.topic == topic]
        found = changes(mine, wanted)
        for queue in found.removed:
            self._release(queue)
        added = [queue for queue in found.added if queue not in self._releasing]
        workers = [
            QueueWorker(queue, subscription, self._parts, needs_lock=self._needs_locks) for queue in added
        ]
        if self._needs_locks and workers:
            await self._locks.renew(workers)
        for worker in workers:
            worker.subscription = self._subscriptions.get(topic, subscription)  # it may be another one by now
            self.workers[worker.queue] = worker
            self._sink.adopted(worker)
            worker.start()
        if found.added or found.removed:
            logger.info("group %s has %d queues of %s", self.group, len(wanted), topic)
        return len(added) == len(found.added) and all(worker.is_locked for worker in workers)

    def _release(self, queue: MessageQueue) -> None:
        worker = self.workers.pop(queue)
        worker.dropped = True
        task = asyncio.create_task(self._give_back(worker), name=f"give {queue} back")
        self._releasing[queue] = task
        task.add_done_callback(lambda _: self._releasing.pop(queue, None))

    async def _give_back(self, worker: QueueWorker) -> None:
        await self._sink.released(worker, closing=not self._started)
        await worker.tasks.stop()
        offset = worker.commit_offset
        if offset is not None:
            await self.offsets.save({worker.queue: offset})
        if self._needs_locks:
            await self._locks.unlock(worker)

    # -- offsets -----------------------------------------------------------------------------------------

    async def persist(self) -> None:
        offsets = {queue: worker.commit_offset for queue, worker in self.workers.items()}
        await self.offsets.save({queue: offset for queue, offset in offsets.items() if offset is not None})

    async def _persist_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self.settings.persist_interval_ms / 1_000)
            await self.persist()

    def _offset_store(self) -> OffsetStore:
        if not self.is_broadcasting:
            return BrokerOffsets(self.reader)
        directory = self.settings.offsets_dir or Path.home() / ".keelmq_offsets"
        return LocalOffsets(directory / self.group / f"{self.settings.instance_name or 'DEFAULT'}.json")

    # -- what comes from outside -------------------------------------------------------------------------

    async def _ids_changed(self, header: ConsumerGroupRequest, _: Call) -> None:
        if header.consumer_group == self.group:
            self._wake.set()

    def _connection_lost(self, address: str) -> None:
        self._membership.lost(address)
        self._locks.wake()

    def _route_changed(self, route: TopicRoute) -> None:
        """Other queues, or another master: which may know less than the old one. An old one that hangs keeps
        its connection; the pulls that wait there go on at once without it."""
        for name in route.addresses:
            master = route.master(name)
            if master is not None and self._masters.setdefault(name, master) != master:
                self.client.drop(self._masters[name])
                self._masters[name] = master
        self.offsets.forget()
        self._locks.wake()
        self._membership.wake()
        if self._started:
            self._tell = True
            self._wake.set()


def retry_subscription(group: str) -> Subscription:
    return Subscription(RETRY_PREFIX + group)


def _wire(subscription: Subscription) -> SubscriptionData:
    return SubscriptionData(
        topic=subscription.topic,
        sub_string=subscription.expression,
        sub_version=subscription.version,
        expression_type=subscription.type.value,
        tags_set=sorted(subscription.tags),
        code_set=sorted({java_hash(tag) for tag in subscription.tags}),
    )
