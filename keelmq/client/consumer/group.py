"""GroupMember: a member of a consumer group, with heartbeats, rebalancing and its ProcessQueues.

Every member computes its assignment itself (keelmq/client/core/rebalance.py) from the brokers' list of
members: at the start, when a broker notifies it of a change (40), soon after a failure, and every 20 s. After
a failure the assignment stays as it was. A Sink consumes the messages.
"""

import asyncio
import contextlib
import logging
import math
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from keelmq.client.cluster.broker_monitor import BrokerMonitor
from keelmq.client.cluster.heartbeats import Membership, make_client_id
from keelmq.client.cluster.known_masters import KnownMasters
from keelmq.client.cluster.queue_reader import ATTEMPT_TIMEOUT_MS, PullError, PullErrorKind, QueueReader
from keelmq.client.cluster.routes import RouteCache, RouteError, TopicRoute
from keelmq.client.consumer.damage import DamageReports
from keelmq.client.consumer.inspection import Handle, Inspection
from keelmq.client.consumer.offset_store import BrokerOffsets, LocalOffsets, OffsetStore
from keelmq.client.consumer.process_queue import RETRY_PREFIX, ProcessQueue, ProcessQueueContext
from keelmq.client.consumer.queue_locks import LockHolder
from keelmq.client.consumer.settings import ConsumeFromWhere, ConsumerSettings, MessageModel
from keelmq.client.consumer.unassigned_topics import UnassignedTopics
from keelmq.client.core.checks import check_one_of, check_text
from keelmq.client.core.names import check_group
from keelmq.client.core.queues import MessageQueue
from keelmq.client.core.rebalance import allocate_averagely, changes
from keelmq.client.core.subscription import ExpressionType, Subscription, java_hash
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, Empty, Failed, Ok, OperationTable
from keelmq.remoting.operations.clients import (
    CHECK_CLIENT_CONFIG,
    GET_CONSUMER_LIST_BY_GROUP,
    NOTIFY_CONSUMER_IDS_CHANGED,
    CheckClientBody,
    ConsumerData,
    ConsumerGroupRequest,
    HeartbeatData,
    SubscriptionData,
)
from keelmq.runtime.backoff import Backoff
from keelmq.runtime.clock import now_ms, wall_ms
from keelmq.runtime.tasks import TaskSet, wait_for_event
from keelmq.runtime.tls.contexts import Tls
from keelmq.security.signer import Credentials, optional_signer

logger = logging.getLogger(__name__)

AGAIN = Backoff(first_ms=50, max_ms=2_000)
"""The pause before a failed rebalancing is repeated. Short at first, since the first heartbeat creates the
group's retry topic, and its route takes a moment."""
LIST_TIMEOUT_MS = 3_000
LAST_COMMITS_MS = 1_000
"""How long close() may take for commits after close_timeout_ms, the time of the listeners."""
START_WAIT_MS = 3_000
"""How long start() waits for the start offsets."""


class Sink(Protocol):
    """Consumes the messages of a GroupMember. All calls come from the event loop."""

    def adopted(self, process_queue: ProcessQueue) -> None:
        """A queue was assigned to this consumer; its pulls begin now."""

    def arrived(self, process_queue: ProcessQueue) -> None:
        """process_queue.take() has messages."""

    async def released(self, process_queue: ProcessQueue, *, closing: bool) -> None:
        """A queue is no longer assigned (process_queue.dropped): waits for everything that must not overlap
        with its next owner. `closing`: there is no next owner yet, so messages that still finish count."""


class GroupMember:
    """Owns the connections, the routes, the broker monitor and the ProcessQueues of one consumer."""

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
        tls: Tls = False,
        credentials: Credentials | None = None,
    ) -> None:
        """`handle`: the listener, for messages that an operator sends; None: the consumer polls."""
        check_one_of("settings", settings, ConsumerSettings)
        self.group, self.settings = check_group(group), settings
        self.client_id = make_client_id(settings.instance_name)
        self.is_broadcasting = settings.model is MessageModel.BROADCASTING
        table = OperationTable()
        table.bind(NOTIFY_CONSUMER_IDS_CHANGED, self._ids_changed)
        Inspection(self, namesrv_addr, handle, orderly=orderly).bind(table)
        self.client = RemotingClient(
            table,
            on_closed=self._connection_lost,
            drop_silent_ms=ATTEMPT_TIMEOUT_MS,
            tls=tls,
            signer=optional_signer(credentials),
        )
        self.routes = RouteCache(self.client, namesrv_addr, on_change=self._route_changed)
        self.monitor = BrokerMonitor(
            self.client, self.routes, cuts_replaced=True, probe_interval_ms=settings.probe_interval_ms
        )
        self.reader = QueueReader(self.client, self.monitor, group, body_bytes_max=settings.body_bytes_max)
        self.offsets = self._offset_store()
        self._masters = KnownMasters()
        self.process_queues: dict[MessageQueue, ProcessQueue] = {}
        self.running = asyncio.Event()
        self.running.set()
        self._sink, self.consume_type = sink, consume_type
        self._needs_locks = orderly and not self.is_broadcasting
        limits = replace(settings.limits, span_max=None) if orderly else settings.limits
        self.damage = DamageReports(settings)
        self._parts = ProcessQueueContext(
            self.reader,
            self.offsets,
            settings,
            limits,
            self.running,
            arrived=sink.arrived,
            damage=self.damage,
        )
        self._subscriptions: dict[str, Subscription] = {}
        self._membership = Membership(
            self.client,
            self.monitor,
            data=self._heartbeat,
            addresses=self.routes.addresses,
            interval_ms=settings.heartbeat_interval_ms,
        )
        self._unassigned = UnassignedTopics(group)
        self._locks = LockHolder(self.reader, group, self.client_id)
        self._tasks, self._upkeep = TaskSet(), TaskSet()
        self._releasing: dict[MessageQueue, asyncio.Task[None]] = {}
        self._still_locked: dict[MessageQueue, ProcessQueue] = {}  # released; a listener call may still run
        self._wake = asyncio.Event()
        self._tell = False
        self._started = False

    # -- start and stop ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Registers at the brokers and, if they respond, gets its queues. PullError: a broker refuses an
        SQL92 subscription. RuntimeError: another broadcasting member uses the same offset file. Other
        failures are not fatal: they are retried with a back-off."""
        await self.offsets.open()
        await self._read_routes()
        await self._check_sql()
        self._started = True
        await self._membership.send_to_all()
        balanced = await self._rebalance()
        await self._until_positioned()
        self._upkeep.start("heartbeats", self._membership.run)
        self._tasks.start("rebalance", lambda: self._rebalance_for_ever(balanced))
        self._tasks.start("offsets", self._persist_for_ever)
        if self._needs_locks:
            self._upkeep.start("queue locks", lambda: self._locks.run(self._own_process_queues))

    async def stop(self) -> None:
        """Saves offsets, releases the queues, unregisters and closes. May be called twice."""
        await self._tasks.stop()
        if self._started:
            self._started = False
            released = list(self.process_queues.values())
            for queue in list(self.process_queues):
                self._release(queue)
            try:
                await self._until_released(released)
            finally:  # not before: a listener may run longer than brokers keep a lock (60 s)
                await self._upkeep.stop()
            await self._membership.leave(consumer_group=self.group)
        self.offsets.close()
        await self.monitor.close()
        await self.routes.close()
        await self.client.close()

    async def _until_released(self, process_queues: Iterable[ProcessQueue]) -> None:
        """Waits until the queues are released: listeners end within close_timeout_ms; commits of many queues,
        or at brokers that do not answer, would take longer."""
        limit_ms = self.settings.close_timeout_ms + LAST_COMMITS_MS
        tasks = list(self._releasing.values())
        _, late = await asyncio.wait(tasks, timeout=limit_ms / 1_000) if tasks else ((), ())
        for task in late:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        if late:
            logger.warning(
                "group %s: the offsets of %d queues are not saved after %d ms: their last messages are "
                "redelivered", self.group, len(late), limit_ms,
            )  # fmt: skip
            await asyncio.gather(*(each.tasks.stop() for each in process_queues))
        for result in results:
            if isinstance(result, Exception):
                raise result

    # -- subscriptions -----------------------------------------------------------------------------------

    @property
    def subscriptions(self) -> dict[str, Subscription]:
        """Returns the subscriptions by topic."""
        return dict(self._subscriptions)

    def subscribe(self, subscription: Subscription) -> None:
        """Subscribes, at once while running. Replaces the previous subscription to the topic."""
        self._subscriptions[subscription.topic] = replace(subscription, version=wall_ms())
        for queue, process_queue in self.process_queues.items():
            if queue.topic == subscription.topic:
                process_queue.want(self._subscriptions[queue.topic])
        self.rebalance_soon(tell=True)

    def unsubscribe(self, topic: str) -> None:
        """Ends the subscription and releases the topic's queues."""
        check_text("topic", topic)
        self._subscriptions.pop(topic, None)
        self.rebalance_soon(tell=True)

    def rebalance_soon(self, *, tell: bool = False) -> None:
        """Rebalances now. `tell`: after another heartbeat to the brokers."""
        self._tell |= tell
        self._wake.set()

    def wire_subscriptions(self) -> list[SubscriptionData]:
        """Returns the subscriptions as heartbeats have them."""
        return [_wire(each) for _, each in sorted(self._subscriptions.items())]

    def _own_process_queues(self) -> Iterable[ProcessQueue]:
        return (*self.process_queues.values(), *self._still_locked.values())

    def _heartbeat(self) -> HeartbeatData:
        consumer = ConsumerData(
            group_name=self.group,
            consume_type=self.consume_type,
            message_model=self.settings.model.value,
            consume_from_where=self.settings.from_where.wire,
            subscription_data_set=self.wire_subscriptions(),
        )
        return HeartbeatData(clientID=self.client_id, consumer_data_set=[consumer])

    async def _until_positioned(self) -> None:
        """Waits for the start offsets, so a LAST_OFFSET consumer misses no message that is sent right after
        the start."""
        waits = [process_queue.positioned.wait() for process_queue in self.process_queues.values()]
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
        """Raises PullError for a refused SQL92 subscription at the start, instead of at every pull (46)."""
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

    # -- rebalancing ------------------------------------------------------------------------------------

    async def _rebalance_for_ever(self, balanced: bool) -> None:
        failures = 0
        while True:
            every_ms = self.settings.rebalance_interval_ms
            failures = 0 if balanced else failures + 1
            pause_ms = math.ceil(AGAIN.pause_ms(failures, random.random()))
            woken = await wait_for_event(self._wake, every_ms if balanced else min(pause_ms, every_ms))
            failures = 0 if woken else failures
            if woken:
                await self.persist()  # the next owner of a queue begins at its offset
                await self._read_routes()
            if self._tell:
                self._tell = False
                await self._membership.send_to_all()
            balanced = await self._rebalance(fresh=not woken)

    async def _rebalance(self, *, fresh: bool = False) -> bool:
        """Returns True if every wanted queue is assigned and locked. `fresh`: refresh the routes first."""
        balanced = True
        problems: dict[str, Exception] = {}
        for queue in [queue for queue in self.process_queues if queue.topic not in self._subscriptions]:
            self._release(queue)
        for topic, subscription in sorted(self._subscriptions.items()):
            try:
                allocated = await self._wanted(topic, fresh=fresh)
            except (PullError, RouteError) as error:
                logger.info("group %s keeps its queues of %s: %s", self.group, topic, error)
                problems[topic] = error
                balanced = False
            else:
                if not allocated and not (await self.routes.find(topic)).read_queues:
                    problems[topic] = RouteError("no queue of it may be read (its perm or readQueueNums)")
                balanced &= await self._assign(topic, subscription, allocated)
        subscribed = any(not topic.startswith(RETRY_PREFIX) for topic in self._subscriptions)
        self._unassigned.rebalanced(problems, now_ms(), subscribed=subscribed)
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
                f"{address}: {'this client is not listed' if isinstance(outcome, Ok) else outcome.remark}"
            )
        self._membership.wake()
        raise PullError(PullErrorKind.REFUSED, "no broker lists the group's members: " + "; ".join(remarks))

    async def _assign(
        self, topic: str, subscription: Subscription, allocated: tuple[MessageQueue, ...]
    ) -> bool:
        mine = [queue for queue in self.process_queues if queue.topic == topic]
        found = changes(mine, allocated)
        for queue in found.removed:
            self._release(queue)
        added = [queue for queue in found.added if queue not in self._releasing]
        process_queues = [
            ProcessQueue(queue, subscription, self._parts, needs_lock=self._needs_locks) for queue in added
        ]
        if self._needs_locks and process_queues:
            await self._locks.renew(process_queues)
        for process_queue in process_queues:
            process_queue.subscription = self._subscriptions.get(
                topic, subscription
            )  # it may have changed meanwhile
            self.process_queues[process_queue.queue] = process_queue
            self._sink.adopted(process_queue)
            process_queue.start()
        if found.added or found.removed:
            logger.info("group %s has %d queues of %s", self.group, len(allocated), topic)
        return len(added) == len(found.added) and all(
            process_queue.is_locked for process_queue in process_queues
        )

    def _release(self, queue: MessageQueue) -> None:
        process_queue = self.process_queues.pop(queue)
        process_queue.dropped = True
        self._still_locked[queue] = process_queue
        task = asyncio.create_task(self._give_back(process_queue), name=f"give {queue} back")
        self._releasing[queue] = task
        task.add_done_callback(lambda _: self._releasing.pop(queue, None))

    async def _give_back(self, process_queue: ProcessQueue) -> None:
        try:
            await self._sink.released(process_queue, closing=not self._started)
            await process_queue.tasks.stop()
        finally:
            del self._still_locked[process_queue.queue]
        offset = process_queue.commit_offset
        if offset is not None:
            await self.offsets.save({process_queue.queue: offset})
        if self._needs_locks:
            await self._locks.unlock(process_queue)

    # -- offsets -----------------------------------------------------------------------------------------

    async def persist(self) -> list[PullError]:
        """Saves the offsets of all assigned queues. Returns the failures, which are logged."""
        offsets = {queue: process_queue.commit_offset for queue, process_queue in self.process_queues.items()}
        return await self.offsets.save(
            {queue: offset for queue, offset in offsets.items() if offset is not None}
        )

    async def commit(self) -> None:
        """Saves the offsets of all assigned queues. PullError: some are not saved."""
        problems = await self.persist()
        if problems:
            remark = (
                f"the offsets of {len(problems)} queues are not saved, and will be tried again every "
                f"{self.settings.persist_interval_ms} ms: {problems[0].remark}"
            )
            raise PullError(problems[0].kind, remark, problems[0].code)

    async def _persist_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self.settings.persist_interval_ms / 1_000)
            await self.persist()

    def _offset_store(self) -> OffsetStore:
        if not self.is_broadcasting:
            is_strict = self.settings.from_where is ConsumeFromWhere.STRICT_LAST_OFFSET
            return BrokerOffsets(self.reader, zero_if_young=not is_strict)
        directory = self.settings.offsets_dir or Path.home() / ".keelmq_offsets"
        return LocalOffsets(directory / self.group / f"{self.settings.instance_name or 'DEFAULT'}.json")

    # -- notifications ----------------------------------------------------------------------------------

    async def _ids_changed(self, header: ConsumerGroupRequest, _: Call) -> None:
        if header.consumer_group == self.group:
            self._wake.set()

    def _connection_lost(self, address: str) -> None:
        self.monitor.connection_lost(address)
        self._locks.wake()

    def _route_changed(self, route: TopicRoute) -> None:
        """Handles new queues of the topic, or another master, which may know fewer offsets than the old
        one."""
        self.monitor.route_changed(route)
        if replaced := self._masters.replaced(route):
            self.offsets.forget(replaced)
        self._locks.wake()
        self._membership.wake()
        if self._started:
            self._tell = True
            self._wake.set()


def retry_subscription(group: str) -> Subscription:
    """Returns the subscription to the group's retry topic."""
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
