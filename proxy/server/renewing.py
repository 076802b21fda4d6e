"""Renewing: the messages of push consumers that live stay invisible (29061). See proxy/core/renewals.py."""

import asyncio
import logging
from collections import Counter
from typing import Final

from broker.clients.proxied_requests import Sender
from keelmq.remoting.operation import Failed, Ok, Outcome
from keelmq.remoting.operations.pop import RENEW_POPPED, RenewPoppedRequest, RenewPoppedResponse
from keelmq.runtime.clock import now_ms
from keelmq.runtime.rate_limited_log import RateLimitedLogger
from keelmq.runtime.tasks import cancel_all
from proxy.core.names import Client
from proxy.core.renewals import Place, Renewal, Renewals
from proxy.core.statuses import Refused
from proxy.server.cluster import CALL_MS, Call, Cluster

logger = logging.getLogger(__name__)

TICK_S: Final = 0.5
BACK_MS: Final = 1_000
"""A message that its client did not get, or had when it ended, is visible again after this time."""
GIVE_BACK_MS: Final = 1_000
"""So long an end of a client waits for brokers."""
IN_FLIGHT_MAX: Final = 8
"""Requests at once to a group of brokers. Those to a group that does not answer delay no others."""


class Renewing:
    def __init__(self, cluster: Cluster, invisible_ms: int) -> None:
        """invisible_ms: of pops for push consumers."""
        self.invisible_ms = invisible_ms
        self._cluster, self._renewals = cluster, Renewals[Sender](invisible_ms)
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight: Counter[str] = Counter()  # by the name of the group of brokers
        self._failures = RateLimitedLogger(logger, level=logging.WARNING)

    def heard(self, call: Call) -> None:
        """A push consumer has sent something."""
        self._renewals.heard(call.client.client_id, now_ms())

    def receives(self, call: Call, place: Place) -> None:
        """A push consumer receives from a place. The broker must be one of the topic's."""
        if not self._renewals.receives(call.client.client_id, place, call.sender, now_ms()):
            self._has_no_room(call, place)

    def answered_pop(self, call: Call, place: Place, pop_ms: int) -> None:
        """The answer to a push consumer's pop, with messages, was written."""
        if not self._renewals.answered_pop(call.client.client_id, place, pop_ms, call.sender, now_ms()):
            self._has_no_room(call, place)

    def _has_no_room(self, call: Call, place: Place) -> None:
        text = "messages of %s for %s are not renewed: too many clients or topics"
        self._failures.tell(now_ms(), text, place.topic, call.client.client_id)

    async def ended(self, call: Call) -> None:
        """A client says that it ends. What it has not acknowledged is visible BACK_MS later. Where a broker
        does not answer within GIVE_BACK_MS, and at places that this proxy does not know, it is visible after
        its invisible time."""
        client_id = call.client.client_id
        known = self._renewals.sender_of(client_id)
        if known is None or not known.is_same_user(call.sender):
            return
        places = self._renewals.ended(client_id)
        deadline_ms = min(call.deadline_ms, now_ms() + GIVE_BACK_MS)
        by_broker: dict[str, list[Place]] = {}
        for place in places:
            by_broker.setdefault(place.broker_name, []).append(place)
        again = Call(call.client, call.sender, deadline_ms)
        await asyncio.gather(*(self._give_back(each, again) for each in by_broker.values()))

    async def _give_back(self, places: list[Place], call: Call) -> None:
        """Gives back what the client has at one broker."""
        for place in places:
            header = RenewPoppedRequest(
                consumer_group=place.group,
                topic=place.topic,
                owner=call.client.client_id,
                invisible_time=BACK_MS,
                ended=True,
            )
            has_more = True
            while has_more:
                outcome = await self._send(place, header, call)
                has_more = isinstance(outcome, Ok) and outcome.header.visible_in is not None
            if not isinstance(outcome, Ok):
                text = "messages of %s that %s had at its end are not given back: %s"
                self._failures.tell(now_ms(), text, place.topic, call.client.client_id, outcome.remark)
                return

    async def run(self) -> None:
        """Makes the requests, until it is cancelled."""
        try:
            while True:
                self._start_due()
                await asyncio.sleep(TICK_S)
        finally:
            await cancel_all(self._tasks)

    def _start_due(self) -> None:
        while (renewal := self._renewals.next_due(now_ms())) is not None:
            broker_name = renewal.place.broker_name
            if self._in_flight[broker_name] >= IN_FLIGHT_MAX:
                self._renewals.failed(renewal, now_ms())
                continue
            self._in_flight[broker_name] += 1
            task = asyncio.ensure_future(self._renew(renewal))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _renew(self, renewal: Renewal[Sender]) -> None:
        try:
            await self._answered(renewal)
        finally:
            self._in_flight[renewal.place.broker_name] -= 1

    async def _answered(self, renewal: Renewal[Sender]) -> None:
        place = renewal.place
        header = RenewPoppedRequest(
            consumer_group=place.group,
            topic=place.topic,
            owner=renewal.client_id,
            invisible_time=renewal.invisible_ms,
            delivered=",".join(map(str, renewal.delivered)) or None,
        )
        call = Call(Client(renewal.client_id), renewal.sender, now_ms() + CALL_MS)
        outcome = await self._send(place, header, call)
        if isinstance(outcome, Ok):
            self._renewals.answered(renewal, outcome.header.visible_in, now_ms())
        else:
            self._renewals.failed(renewal, now_ms())
            text = "messages of %s that %s has received cannot be renewed: %s"
            self._failures.tell(now_ms(), text, place.topic, renewal.client_id, outcome.remark)

    async def _send(
        self, place: Place, header: RenewPoppedRequest, call: Call
    ) -> Outcome[RenewPoppedResponse]:
        try:
            return await self._cluster.call(place.topic, place.broker_name, RENEW_POPPED, header, call=call)
        except Refused as refused:
            return Failed(0, str(refused))
