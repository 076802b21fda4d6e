"""From a letter to an acknowledgement: attempts, fresh routes, and who waits while a broker group fails over.

A failed attempt (connection lost, no master yet, a code of RETRY_CODES) refreshes the route at once and the
message is sent again, until its deadline. While the sends of a topic fail, one message at a time probes the
cluster and the others wait for its success: a fail-over costs a few dozen requests, not thousands, on the
very machines that elect.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from client.core.queue_choice import FaultTable
from client.core.queues import MessageQueue
from client.core.traces import DEFAULT_REGION
from client.route import RouteCache, RouteError, TopicRoute
from client.sending import (
    RETRY_CODES,
    STORED_CODES,
    Letter,
    Recovery,
    SendErrorKind,
    SendResult,
    SendStatus,
)
from remoting.client import RemotingClient
from remoting.clock import now_ms, wall_ms
from remoting.codes import ResponseCode
from remoting.operation import Failed, Ok, Unknown
from remoting.operations.broker import SEND_MESSAGE_V2, SendMessageRequestV2

ATTEMPT_TIMEOUT_MS = 3_000
SILENT_MS = 500
"""So long an answer is out until the route is asked again: the broker may hang, and be master no more."""
WATCH_MS = 100

Choice = MessageQueue | Callable[[Sequence[MessageQueue]], MessageQueue | None] | None
"""Which queue: this one, the one that a function picks of all queues of the topic, or any."""


class Delivery:
    """Of one producer group. Owns neither the client nor the routes."""

    def __init__(
        self, client: RemotingClient, routes: RouteCache, group: str, *, faults: FaultTable | None = None
    ) -> None:
        self._client, self._routes, self._group, self._faults = client, routes, group, faults
        self._recoveries: dict[str, Recovery] = {}
        self._waiting: dict[int, tuple[int, str, str, str]] = {}  # since when, topic, broker name, address
        self._watcher: asyncio.Task[None] | None = None

    async def close(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)

    async def deliver(self, letter: Letter, choice: Choice, timeout_ms: int) -> SendResult:
        """SendError: the deadline passed, or a refusal that would repeat."""
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                return await self._until_acknowledged(letter, self._recovery(letter.topic), choice)
        except TimeoutError:
            raise letter.error() from None

    async def oneway(self, letter: Letter, choice: Choice) -> None:
        """One attempt that nobody answers. SendError: it surely did not leave."""
        recovery = self._recovery(letter.topic)
        target = await self._target(letter, recovery, choice)
        if target is None:
            recovery.failing = False  # nobody probes for a letter that is not repeated
            raise letter.error()
        queue, address = target
        letter.attempts += 1
        if not await self._client.oneway(address, SEND_MESSAGE_V2, self._header(letter, queue), letter.body):
            self._note_failure(queue)
            letter.fail(SendErrorKind.REFUSED, f"{address} cannot be reached")
            self._routes.refresh_soon(letter.topic)
            raise letter.error()

    # -- attempts ----------------------------------------------------------------------------------------

    def _recovery(self, topic: str) -> Recovery:
        recovery = self._recoveries.get(topic)
        if recovery is None:
            recovery = self._recoveries[topic] = Recovery.of(self._faults)
        return recovery

    async def _until_acknowledged(self, letter: Letter, recovery: Recovery, choice: Choice) -> SendResult:
        """The caller's timeout ends it."""
        while True:
            if not recovery.failing:
                result = await self._attempt(letter, recovery, choice)
            else:
                async with recovery.probe:
                    if not recovery.failing:
                        continue  # somebody else's probe succeeded while this one waited
                    await asyncio.sleep(recovery.next_pause_ms() / 1_000)
                    await self._refresh(letter)
                    result = await self._attempt(letter, recovery, choice)
            if result is not None:
                return result

    async def _refresh(self, letter: Letter) -> None:
        try:
            await self._routes.refresh(letter.topic, borrow=True, rotate=True)
        except RouteError as error:
            letter.fail(SendErrorKind.NO_ROUTE, error.remark)

    async def _attempt(self, letter: Letter, recovery: Recovery, choice: Choice) -> SendResult | None:
        """None: failed in a way that another attempt may mend; letter.remark says how."""
        target = await self._target(letter, recovery, choice)
        if target is None:
            recovery.failed()
            return None
        return await self._request(letter, recovery, *target)

    async def _target(
        self, letter: Letter, recovery: Recovery, choice: Choice
    ) -> tuple[MessageQueue, str] | None:
        """The queue, and the address of its master."""
        try:
            route = await self._routes.find(letter.topic, borrow=True)
        except RouteError as error:
            letter.fail(SendErrorKind.NO_ROUTE, error.remark)
            return None
        queue = _choose(choice, route, recovery, letter)
        address = route.master(queue.broker_name) if queue else None
        if queue is None or address is None:
            letter.fail(SendErrorKind.NO_ROUTE, f"no broker of topic {letter.topic} has a master now")
            return None
        return queue, address

    def _header(self, letter: Letter, queue: MessageQueue) -> SendMessageRequestV2:
        return SendMessageRequestV2(  # one-letter names: the wire's own
            a=self._group,
            b=letter.topic,
            e=queue.queue_id,
            f=letter.sys_flag,
            g=wall_ms(),
            h=letter.flag,
            i=letter.properties,
            j=letter.reconsume_times,
            l=letter.max_reconsume_times,
            m=letter.batch,
            n=queue.broker_name,
        )

    async def _request(
        self, letter: Letter, recovery: Recovery, queue: MessageQueue, address: str
    ) -> SendResult | None:
        header = self._header(letter, queue)
        letter.attempts += 1
        letter.last_broker, letter.last_address = queue.broker_name, address
        letter.in_doubt = True
        started_ms = now_ms()
        timeout_ms = max(1, min(ATTEMPT_TIMEOUT_MS, letter.deadline_ms - started_ms))
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch(), name="producer's watch for hung masters")
        self._waiting[id(letter)] = (started_ms, letter.topic, queue.broker_name, address)
        try:
            outcome = await self._client.call(
                address, SEND_MESSAGE_V2, header, letter.body, timeout_ms=timeout_ms
            )
        finally:
            del self._waiting[id(letter)]
        letter.in_doubt = False
        match outcome:
            case Ok(header=answer):
                recovery.succeeded()
                if self._faults is not None:
                    now = now_ms()
                    self._faults.answered(queue.broker_name, now - started_ms, now_ms=now)
                if answer.master_address is not None:
                    self._routes.refresh_soon(letter.topic)
                return SendResult(
                    status=SendStatus.SEND_OK,
                    msg_id=letter.unique_key,
                    offset_msg_id=answer.msg_id,
                    topic=letter.topic,
                    broker_name=queue.broker_name,
                    queue_id=answer.queue_id,
                    queue_offset=answer.queue_offset,
                    attempts=letter.attempts,
                    uncertain_attempts=letter.uncertain,
                    transaction_id=answer.transaction_id or "",
                    region_id=answer.region_id or DEFAULT_REGION,
                    trace_on=answer.trace_on != "false",
                )
            case Failed(code=code, remark=remark):
                letter.uncertain += code in STORED_CODES
                letter.fail(SendErrorKind.REFUSED, f"{address} answered {code} {remark}".rstrip())
                if code not in RETRY_CODES:
                    raise letter.error()
                if code == ResponseCode.RPC_SEND_TO_CHANNEL_FAILED:
                    letter.fail(SendErrorKind.REFUSED, remark)
            case Unknown(remark=remark):
                letter.uncertain += 1
                letter.fail(SendErrorKind.UNKNOWN, f"{address}: {remark}")
        self._note_failure(queue)
        recovery.failed()
        return None

    def _note_failure(self, queue: MessageQueue) -> None:
        if self._faults is not None:
            self._faults.failed(queue.broker_name, now_ms=now_ms())

    async def _watch(self) -> None:
        """A master that hangs keeps its connections: who waits for it goes on as soon as there is another."""
        while True:
            await asyncio.sleep(WATCH_MS / 1_000)
            oldest = next(iter(self._waiting.values()), None)
            if oldest is None or now_ms() - oldest[0] < SILENT_MS:
                continue
            _, topic, broker_name, address = oldest
            with contextlib.suppress(RouteError):
                route = await self._routes.refresh(topic, borrow=True)
                if route.master(broker_name) not in (None, address):
                    self._client.drop(address)


def _choose(choice: Choice, route: TopicRoute, recovery: Recovery, letter: Letter) -> MessageQueue | None:
    if choice is None:
        return recovery.chooser.choose(route.write_queues, letter.last_broker, now_ms=now_ms())
    return choice if isinstance(choice, MessageQueue) else choice(route.ordered_queues)
