"""Cluster: routes, facts about topics and groups, and requests that survive a fail-over.

What is cached here is a copy of what brokers know, for seconds. A request is sent again, by a fresh route,
while its group of brokers has no master: a killed master is a pause for the client, and no error. A master
that is lost without a sign leaves its connections open, so a request without an answer is overdue after
OVERDUE_MS: routes are asked for, and once they name another master, the request goes there."""

import asyncio
import random
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final, Protocol

import msgspec

from broker.admission.send_forwarder import is_too_early
from broker.clients.proxied_requests import Sender
from keelmq.client.cluster.routes import RouteError, TopicRoute
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Failed, Ok, Operation, Outcome, Unknown, Wire
from keelmq.remoting.operations.broker import TopicRequest
from keelmq.remoting.operations.broker_metadata import (
    GET_SUBSCRIPTIONGROUP_CONFIG,
    GET_TOPIC_CONFIG,
    GroupRequest,
    SubscriptionGroupConfig,
)
from keelmq.remoting.operations.route import TopicConfig
from keelmq.runtime.backoff import Backoff
from keelmq.runtime.clock import now_ms
from keelmq.runtime.tasks import cancel_all
from proxy.core.names import Client
from proxy.core.statuses import Refused
from proxy.server.guard import Guard
from proxy.server.masters import ATTEMPT_MS, DONE, BrokerRequest, Identity, Masters
from proxy.wire import messaging_pb2 as pb

AGAIN: Final = Backoff(first_ms=20, max_ms=300)
ANSWER_MS: Final = 100
"""An answer leaves this long before the deadline of the call."""
CALL_MS: Final = 3_000
"""Time for a call without a deadline."""
OVERDUE_MS: Final = 500
"""Below it an answer is slow; then routes are asked for this often."""
FACTS_KEPT_MS: Final = 5_000
FACTS_MAX: Final = 10_000
FACTS_TIMEOUT_MS: Final = 500


class Call(msgspec.Struct, frozen=True):
    """One call of a client. deadline_ms: of now_ms(), when its answer must leave."""

    client: Client
    sender: Sender
    deadline_ms: int

    @property
    def left_ms(self) -> int:
        """Time until the answer must leave; not below 0."""
        return max(self.deadline_ms - now_ms(), 0)


class Routes(Protocol):
    """The routes of topics; RouteCache is one. RouteError: there is none."""

    async def find(self, topic: str, *, borrow: bool = False) -> TopicRoute: ...

    async def refresh(self, topic: str, *, borrow: bool = False, rotate: bool = False) -> TopicRoute: ...

    def refresh_soon(self, topic: str) -> None: ...

    async def close(self) -> None: ...


class _Facts(msgspec.Struct):
    until_ms: int
    value: Any


class Cluster:
    """Owns the routes, and no connection."""

    def __init__(self, routes: Routes, masters: Masters, guard: Guard) -> None:
        self._routes, self._masters, self._guard = routes, masters, guard
        self._facts: dict[tuple[str, str], _Facts] = {}

    async def close(self) -> None:
        """Ends the refreshes of routes."""
        await self._routes.close()

    async def route(self, topic: str, call: Call | None = None) -> TopicRoute:
        """Returns the topic's route, or that of a topic that a first message creates. Raises Refused, to
        clients (call) without a right to the topic as if it existed. call: None: this server asks for
        itself."""
        try:
            return await self._routes.find(topic, borrow=True)
        except RouteError as error:
            if call is not None:
                await self._guard.may_find(topic, call.sender)
            raise _refused(error) from error

    async def call(
        self,
        topic: str,
        broker_name: str,
        operation: Operation[Any, Any],
        header: Wire,
        body: object = None,
        *,
        call: Call,
    ) -> Outcome[Any]:
        """Sends a request to the group's master, again while it has none, until the call's deadline. For
        requests that may be repeated. Raises Refused: there is no route."""

        async def attempt(route: TopicRoute) -> Outcome[Any]:
            return await self.once(route, broker_name, operation, header, body, call=call)

        return await self.repeat(topic, attempt, call, asked=lambda: broker_name)

    def forwarded(self, topic: str) -> None:
        """A broker that is no longer the master has handed a request on: the route is old."""
        self._routes.refresh_soon(topic)

    async def once(
        self,
        route: TopicRoute,
        broker_name: str,
        operation: Operation[Any, Any],
        header: Wire,
        body: object = None,
        *,
        call: Call,
        timeout_ms: int = ATTEMPT_MS,
        good: Collection[int] = DONE,
        identity: Identity | None = None,
    ) -> Outcome[Any]:
        """Sends a request to the group's master once."""
        request = BrokerRequest(
            operation, header, body, min(timeout_ms, call.left_ms), call.sender, good, identity
        )
        return await self._masters.call(route, broker_name, request)

    async def repeat(
        self,
        topic: str,
        attempt: Callable[[TopicRoute], Coroutine[Any, Any, Outcome[Any]]],
        call: Call,
        *,
        may_repeat: bool = True,
        asked: Callable[[], str] | None = None,
    ) -> Outcome[Any]:
        """Makes attempts, each with a newer route, until one has an outcome that does not pass, or the call's
        deadline. may_repeat: also after an attempt that may have been carried out. asked(): the broker name
        of the attempt under way, which is overdue after OVERDUE_MS; None: an answer may take its time. Raises
        Refused: there is no route."""
        route, failures = await self.route(topic, call), 0
        while True:
            if asked is None or not may_repeat:
                outcome = await attempt(route)
            else:
                outcome = await self._unless_replaced(topic, route, attempt(route), asked)
            if not _passes(outcome, may_repeat=may_repeat):
                return outcome
            failures += 1
            pause_ms = AGAIN.pause_ms(failures, random.random())
            if call.left_ms <= pause_ms:
                self._routes.refresh_soon(topic)  # for the next call
                return outcome
            await asyncio.sleep(pause_ms / 1_000)
            try:
                async with asyncio.timeout(call.left_ms / 1_000):
                    route = await self._routes.refresh(topic, borrow=True, rotate=failures > 1)
            except (RouteError, TimeoutError):
                continue

    async def _unless_replaced(
        self,
        topic: str,
        route: TopicRoute,
        attempt: Coroutine[Any, Any, Outcome[Any]],
        asked: Callable[[], str],
    ) -> Outcome[Any]:
        """Returns the outcome of an attempt. Unknown: it is overdue, and its brokers have another master
        now."""
        under_way = asyncio.create_task(attempt)
        looking: asyncio.Task[TopicRoute] | None = None
        try:
            while not under_way.done():
                await asyncio.wait((under_way,), timeout=OVERDUE_MS / 1_000)
                if under_way.done():
                    break
                looking = asyncio.create_task(self._routes.refresh(topic, rotate=looking is not None))
                await asyncio.wait((under_way, looking), return_when=asyncio.FIRST_COMPLETED)
                if under_way.done() or looking.exception() is not None:
                    continue
                before, now = route.master(asked()), looking.result().master(asked())
                if now not in (None, before):
                    return Unknown(f"no answer from {before}, and {now} is master now")
            return under_way.result()
        finally:
            await cancel_all(each for each in (under_way, looking) if each is not None)

    async def lacks(self, topic: str, broker_name: str) -> bool:
        """Returns whether name servers have answered that the topic has no such group of brokers now."""
        try:
            route = await self._routes.find(topic)
        except RouteError as error:
            return error.code == ResponseCode.TOPIC_NOT_EXIST
        return broker_name not in route.addresses

    # -- facts -------------------------------------------------------------------------------------------

    async def topic_config(self, topic: str, route: TopicRoute) -> TopicConfig | None:
        """Returns the topic's settings, as of some seconds ago; None: no broker has it, or none answers."""
        found = await self._fact("topic", topic, route, GET_TOPIC_CONFIG, TopicRequest(topic=topic))
        return found if isinstance(found, TopicConfig) else None

    async def group_config(self, group: str, route: TopicRoute) -> SubscriptionGroupConfig | None:
        """Returns the group's settings, as topic_config()."""
        request = GroupRequest(group=group)
        found = await self._fact("group", group, route, GET_SUBSCRIPTIONGROUP_CONFIG, request)
        return found if isinstance(found, SubscriptionGroupConfig) else None

    async def _fact(
        self, kind: str, name: str, route: TopicRoute, operation: Operation[Any, Any], header: Wire
    ) -> object:
        """Asks the brokers of a route in turn. Without an answer the last one counts."""
        known = self._facts.get((kind, name))
        if known is not None and now_ms() < known.until_ms:
            return known.value
        request = BrokerRequest(operation, header, timeout_ms=FACTS_TIMEOUT_MS)
        for broker_name in route.addresses:
            outcome = await self._masters.call(route, broker_name, request)
            if isinstance(outcome, Ok):
                self._remember((kind, name), outcome.body)
                return outcome.body
        return None if known is None else known.value

    def _remember(self, key: tuple[str, str], value: object) -> None:
        if len(self._facts) >= FACTS_MAX:
            self._facts.clear()
        self._facts[key] = _Facts(now_ms() + FACTS_KEPT_MS, value)


def _passes(outcome: Outcome[Any], *, may_repeat: bool) -> bool:
    """Whether the group of brokers may carry the request out in a moment."""
    if isinstance(outcome, Failed):
        return is_too_early(outcome) or outcome.code == ResponseCode.GO_AWAY
    return may_repeat and isinstance(outcome, Unknown)


def _refused(error: RouteError) -> Refused:
    if error.code == ResponseCode.TOPIC_NOT_EXIST:
        return Refused(pb.TOPIC_NOT_FOUND, error.remark)
    if error.code == ResponseCode.NO_PERMISSION:
        return Refused(pb.FORBIDDEN, error.remark)
    return Refused(pb.PROXY_TIMEOUT, error.remark)
