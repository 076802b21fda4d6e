"""Sender: delivers a message, with repeated attempts and fresh routes, while brokers fail over.

After a failed attempt (connection lost, no master yet, a code of RETRY_CODES) the sender refreshes the route
and sends the message again, until its deadline. While sends to a broker fail, one message at a time tries it
(cluster/broker_recovery.py), and messages that may go to any queue go to other brokers. The BrokerMonitor
finds unresponsive brokers: no message waits for such a broker while there is another one.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from keelmq.client.cluster.broker_monitor import BrokerMonitor
from keelmq.client.cluster.broker_recovery import Key, Recovery
from keelmq.client.cluster.routes import RouteCache, RouteError, TopicRoute
from keelmq.client.core.checks import check_callable, check_one_of, check_text, wrong_type
from keelmq.client.core.queue_choice import FaultTable, QueueChooser, queue_of_key
from keelmq.client.core.queues import MessageQueue
from keelmq.client.core.send_result import SendErrorKind, SendResult, SendStatus
from keelmq.client.core.traces import DEFAULT_REGION
from keelmq.client.producer.send_attempt import STORED_CODES, PendingSend
from keelmq.client.producer.send_gap_log import SendGapLog
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Failed, LocalProtocolError, Ok, Outcome, Unknown
from keelmq.remoting.operations.broker import SEND_MESSAGE_V2, SendMessageRequestV2, SendMessageResponse
from keelmq.runtime.clock import now_ms, wall_ms
from keelmq.runtime.tasks import wait_for_event

ATTEMPT_TIMEOUT_MS = 3_000
GIVE_UP_MS = 1_000
"""How long close() waits for the sends that it has just ended."""
CHOOSERS_MIN = 64
"""The number of topics whose choosers are always kept."""

Choice = MessageQueue | Callable[[Sequence[MessageQueue]], MessageQueue | None] | None
"""The queue of a message: this one, the one that a function returns from all queues of the topic, or any."""


def choice_of(queue: Choice, key: str | None) -> Choice:
    """Returns the queue choice for a key, or `queue`. ValueError: both are given. TypeError: of another
    type."""
    check_text("key", key, optional=True)
    if queue is not None and not isinstance(queue, MessageQueue) and not callable(queue):
        raise wrong_type("queue", queue, "a MessageQueue, a function or None")
    if not isinstance(queue, MessageQueue):
        check_callable("queue", queue, plain=True, optional=True)
    if queue is not None and key is not None:
        raise ValueError("a message goes to a queue or by a key, not both")
    return partial(queue_of_key, key=key) if key is not None else queue


class Sender:
    """Sends the messages of one producer group. Owns neither the client, nor the routes, nor the monitor."""

    def __init__(
        self,
        client: RemotingClient,
        routes: RouteCache,
        monitor: BrokerMonitor,
        group: str,
        *,
        faults: FaultTable | None = None,
        gaps: SendGapLog | None = None,
    ) -> None:
        """`gaps`: where gaps in the acknowledgements are written; None: nowhere. close() closes it."""
        self._client, self._routes, self._group, self._faults = client, routes, group, faults
        self._monitor, self._recoveries = monitor, monitor.recoveries
        self._gaps = gaps
        self._choosers: dict[str, QueueChooser] = {}
        self._choosers_max = CHOOSERS_MIN
        self._under_way: dict[asyncio.Timeout, PendingSend] = {}
        self._idle = asyncio.Event()
        self._closed = False

    async def close(self, drain_ms: int = 0) -> None:
        """Waits `drain_ms` for pending sends; those that are still pending then end with a SendError."""
        self._closed = True
        try:
            await self._until_idle(drain_ms)
        finally:
            self._give_up()
        await self._until_idle(GIVE_UP_MS)
        if self._gaps is not None:
            await self._gaps.close()

    async def _until_idle(self, timeout_ms: int) -> None:
        if self._under_way and timeout_ms > 0:
            self._idle.clear()
            await wait_for_event(self._idle, timeout_ms)

    def _give_up(self) -> None:
        now = asyncio.get_running_loop().time()
        for limit, pending_send in self._under_way.items():
            pending_send.fail(SendErrorKind.CLOSED, "the producer was closed before a broker acknowledged it")
            if not limit.expired():
                limit.reschedule(now)

    async def deliver(self, pending_send: PendingSend, choice: Choice) -> SendResult:
        """Returns when a broker acknowledged the message. SendError: pending_send.deadline_ms passed, or a
        refusal was final. No attempt begins after the deadline."""
        if self._closed:
            pending_send.fail(SendErrorKind.CLOSED, "the producer is closed")
            raise pending_send.error()
        limit = _until(pending_send.deadline_ms)
        try:
            async with limit:
                self._under_way[limit] = pending_send
                return await self._until_acknowledged(pending_send, choice)
        except TimeoutError:
            raise pending_send.error() from None
        finally:
            self._under_way.pop(limit, None)
            if self._closed and not self._under_way:
                self._idle.set()

    async def oneway(self, pending_send: PendingSend, choice: Choice) -> None:
        """Makes one attempt without a response. SendError: the message was certainly not sent."""
        try:
            async with _until(pending_send.deadline_ms):
                queue, address = await self._target(pending_send, choice)
                if queue is None or address is None:
                    raise pending_send.error()
                _check_time(pending_send)
                pending_send.attempts += 1
                is_sent = await self._client.oneway(
                    address, SEND_MESSAGE_V2, self._header(pending_send, queue), pending_send.body
                )
        except LocalProtocolError as error:
            raise ValueError(f"the message cannot be sent: {error}") from None
        except TimeoutError:
            if pending_send.attempts:
                pending_send.fail(SendErrorKind.REFUSED, f"{address}: no connection in time", answered=False)
            raise pending_send.error() from None
        if not is_sent:
            self._note_failure(queue)
            self._monitor.unreachable(queue, sends_again=False)
            pending_send.fail(SendErrorKind.REFUSED, f"{address} cannot be reached", answered=False)
            raise pending_send.error()

    # -- attempts ----------------------------------------------------------------------------------------

    async def _until_acknowledged(self, pending_send: PendingSend, choice: Choice) -> SendResult:
        """Repeats attempts; the caller's timeout ends it."""
        while True:
            queue, address = await self._target(pending_send, choice)
            found = None
            if queue is None or address is None:
                name = queue.broker_name if queue is not None else ""
                found = self._monitor.no_master(name, pending_send.topic)
            elif self._recoveries:
                found = self._recoveries.find(queue.broker_name, pending_send.topic, now_ms=now_ms())
            if queue is not None and address is not None and (found is None or not found[1].failures):
                result = await self._request(pending_send, queue, address)
            else:
                assert found is not None
                result = await self._in_turn(pending_send, choice, *found)
            if result is not None:
                return result

    async def _in_turn(
        self, pending_send: PendingSend, choice: Choice, key: Key, recovery: Recovery
    ) -> SendResult | None:
        """Waits for its turn and makes one attempt. None: choose a queue again."""
        if not await recovery.turn():
            return None
        try:
            if not self._recoveries.holds(key, recovery) or not await recovery.until_due(now_ms()):
                return None
            await self._refresh(pending_send)
            result = await self._probe(pending_send, choice, key)
            if result is None:
                self._recoveries.failed_again(recovery, now_ms=now_ms())
            return result
        finally:
            recovery.end_turn()
            if not key[0] and recovery.is_unused and self._recoveries.holds(key, recovery):
                self._recoveries.forget(key)  # no message uses this topic without a route now

    async def _probe(self, pending_send: PendingSend, choice: Choice, key: Key) -> SendResult | None:
        broker_name, _ = key
        queue, address = await self._target(pending_send, choice, only=broker_name)
        if queue is None:
            if broker_name and choice is None:
                self._recoveries.forget(key)  # the topic no longer has a queue there
            return None
        if not broker_name:
            self._recoveries.forget(key)  # there is a route now
        elif queue.broker_name == broker_name and address is not None:
            return await self._request(pending_send, queue, address)
        return None

    async def _refresh(self, pending_send: PendingSend) -> None:
        try:
            await self._monitor.route(pending_send.topic, fresh=True, of_send=True)
        except RouteError as error:
            pending_send.fail(SendErrorKind.NO_ROUTE, error.remark, answered=error.code is not None)
            if error.code == ResponseCode.NO_PERMISSION:
                raise pending_send.error() from None

    async def _target(
        self, pending_send: PendingSend, choice: Choice, *, only: str = ""
    ) -> tuple[MessageQueue | None, str | None]:
        """Returns the queue and its master's address; None for a missing one. `only`: choose a queue of this
        broker name, if the choice is free."""
        try:
            route = await self._routes.find(pending_send.topic, borrow=True)
        except RouteError as error:
            pending_send.fail(SendErrorKind.NO_ROUTE, error.remark, answered=error.code is not None)
            if error.code == ResponseCode.NO_PERMISSION:
                raise pending_send.error() from None
            return None, None
        if choice is None:
            queue = self._any_queue(route, pending_send, only)
        else:
            queue = choice if isinstance(choice, MessageQueue) else choice(route.ordered_queues)
            check_one_of("what the function of `queue` returned", queue, MessageQueue, optional=True)
        address = route.master(queue.broker_name) if queue else None
        if address is None:
            name = queue.broker_name if queue else None
            if self._gaps is not None and name is not None:
                self._gaps.failed(name, now_ms())
            remark = route.why_not_writable(name)
            if choice is not None and name is None and route.ordered_queues:
                remark = f"the function of `queue` chose none of {len(route.ordered_queues)} queues"
            pending_send.fail(SendErrorKind.NO_ROUTE, remark)
        return queue, address

    def _any_queue(self, route: TopicRoute, pending_send: PendingSend, only: str) -> MessageQueue | None:
        """Chooses among brokers at which sends do not fail; if they fail at all of them, the one to be tried
        next."""
        queues: Sequence[MessageQueue] = route.write_queues or route.ordered_queues
        now, recoveries = now_ms(), self._recoveries
        if recoveries and not only and queues:
            names = {queue.broker_name for queue in queues}
            good = {name for name in names if recoveries.may_try(name, pending_send.topic, now_ms=now)}
            if not good:
                only = recoveries.least_bad(sorted(names), pending_send.topic, now_ms=now)
            elif len(good) < len(names):
                queues = [queue for queue in queues if queue.broker_name in good]
        if only:
            queues = [queue for queue in queues if queue.broker_name == only]
        chooser = self._choosers.get(pending_send.topic) or self._new_chooser(pending_send.topic)
        return chooser.choose(queues, pending_send.last_broker, now_ms=now)

    def _new_chooser(self, topic: str) -> QueueChooser:
        """Removes the choosers of topics whose routes were removed."""
        if len(self._choosers) >= self._choosers_max:
            self._choosers = {
                name: each for name, each in self._choosers.items() if self._routes.knows((name,))
            }
            self._choosers_max = max(2 * len(self._choosers), CHOOSERS_MIN)
        chooser = self._choosers[topic] = QueueChooser(self._faults)
        return chooser

    def _header(self, pending_send: PendingSend, queue: MessageQueue) -> SendMessageRequestV2:
        return SendMessageRequestV2(  # the wire has one-letter names
            a=self._group,
            b=pending_send.topic,
            e=queue.queue_id,
            f=pending_send.sys_flag,
            g=wall_ms(),
            h=pending_send.flag,
            i=pending_send.properties,
            j=pending_send.reconsume_times,
            l=pending_send.max_reconsume_times,
            m=pending_send.batch,
            n=queue.broker_name,
        )

    async def _request(
        self, pending_send: PendingSend, queue: MessageQueue, address: str
    ) -> SendResult | None:
        """Makes one attempt. None: it failed, and another attempt may succeed; pending_send.remark has the
        reason."""
        started_ms = now_ms()
        outcome = await self._attempt(pending_send, queue, address, started_ms)
        pending_send.in_doubt = False
        match outcome:
            case Ok(header=answer):
                self._monitor.accepted(
                    address,
                    queue.broker_name,
                    pending_send.topic,
                    started_ms,
                    forwarded=answer.master_address is not None,
                )
                if self._gaps is not None:
                    self._gaps.acknowledged(queue, started_ms)
                if self._faults is not None:
                    now = now_ms()
                    self._faults.answered(queue.broker_name, now - started_ms, now_ms=now)
                return SendResult(
                    status=SendStatus.SEND_OK,
                    msg_id=pending_send.unique_key,
                    offset_msg_id=answer.msg_id,
                    topic=pending_send.topic,
                    broker_name=queue.broker_name,
                    queue_id=answer.queue_id,
                    queue_offset=answer.queue_offset,
                    attempts=pending_send.attempts,
                    uncertain_attempts=pending_send.uncertain,
                    transaction_id=answer.transaction_id or "",
                    region_id=answer.region_id or DEFAULT_REGION,
                    trace_on=answer.trace_on != "false",
                )
            case Failed(code=code, remark=remark):
                if self._gaps is not None:
                    self._gaps.failed(queue.broker_name, started_ms, code)
                pending_send.uncertain += code in STORED_CODES
                if code == ResponseCode.RPC_SEND_TO_CHANNEL_FAILED:
                    pending_send.fail(SendErrorKind.REFUSED, remark, answered=False)
                    self._monitor.unreachable(queue, sends_again=True)
                else:
                    pending_send.fail(SendErrorKind.REFUSED, f"{address} answered {code} {remark}".rstrip())
                    again = pending_send.sends_again(code)
                    name, topic = queue.broker_name, pending_send.topic
                    self._monitor.refused(address, name, topic, started_ms, code, sends_again=again)
                    if not again:
                        raise pending_send.error()
            case Unknown(remark=remark):
                if self._gaps is not None:
                    self._gaps.failed(queue.broker_name, started_ms)
                pending_send.uncertain += 1
                pending_send.fail(SendErrorKind.UNKNOWN, f"{address}: {remark}", answered=False)
                self._monitor.unreachable(queue, sends_again=True)
        self._note_failure(queue)
        return None

    async def _attempt(
        self, pending_send: PendingSend, queue: MessageQueue, address: str, started_ms: int
    ) -> Outcome[SendMessageResponse]:
        """Returns what the broker answered. ValueError: no frame can carry the message. TimeoutError: the
        deadline has passed, and nothing was sent."""
        header = self._header(pending_send, queue)
        _check_time(pending_send)
        pending_send.attempts += 1
        pending_send.last_broker, pending_send.last_address = queue.broker_name, address
        pending_send.in_doubt = True
        timeout_ms = min(ATTEMPT_TIMEOUT_MS, pending_send.deadline_ms - started_ms)
        token = self._monitor.expect_answer(address, queue, started_ms)
        try:
            return await self._client.call(
                address, SEND_MESSAGE_V2, header, pending_send.body, timeout_ms=timeout_ms
            )
        except LocalProtocolError as error:
            pending_send.in_doubt = False
            raise ValueError(f"the message cannot be sent: {error}") from None
        finally:
            self._monitor.settled(token)

    def _note_failure(self, queue: MessageQueue) -> None:
        if self._faults is not None:
            self._faults.failed(queue.broker_name, now_ms=now_ms())


def _until(deadline_ms: int) -> asyncio.Timeout:
    """Returns the time limit of a block: `deadline_ms` of now_ms()."""
    return asyncio.timeout((deadline_ms - now_ms()) / 1_000)


def _check_time(pending_send: PendingSend) -> None:
    """TimeoutError: the deadline has passed. The event loop may have been busy, and the limit of the block
    takes effect at the next suspension only: an attempt without time left would store a copy that no caller
    waits for."""
    if now_ms() >= pending_send.deadline_ms:
        raise TimeoutError
