"""Guard: who sends a call, and whether they may, for what does not go to a broker.

The rules are those of remoting: each check is the request of remoting that means the same, and a broker
judges it by its users and ACLs. A request that goes to a broker is judged there."""

from collections.abc import Awaitable, Callable
from typing import Any

from broker.clients.proxied_requests import ProxiedRequests, Sender
from keelmq.remoting.codes import RequestCode
from keelmq.remoting.command import RemotingCommand, request_command
from keelmq.remoting.operation import CommandError, Empty, Failed, Ok, Outcome
from keelmq.remoting.operations.clients import (
    HEART_BEAT,
    UNREGISTER_CLIENT,
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
    UnregisterClientRequest,
)
from keelmq.remoting.operations.pop import QUERY_ASSIGNMENT, QueryAssignmentBody
from keelmq.remoting.operations.route import GET_ROUTEINFO_BY_TOPIC, RouteRequest
from proxy.core.authorization import unauthorized
from proxy.core.statuses import Refused, status_of
from proxy.wire import messaging_pb2 as pb

Judge = Callable[[RemotingCommand, Sender], Awaitable[Outcome[Any]]]
"""Ok: the client may send this request."""


def judge_of(requests: ProxiedRequests) -> Judge | None:
    """Returns the judge of the broker in this process; None: it checks nothing."""

    async def judge(command: RemotingCommand, sender: Sender) -> Outcome[Any]:
        try:
            requests.judge(command, sender)
        except CommandError as error:
            return Failed(error.code, error.remark)
        return Ok(Empty())

    return judge if requests.checks_access else None


class Guard:
    """judge: None: nothing is checked."""

    def __init__(self, judge: Judge | None = None) -> None:
        self._judged_by = judge

    @property
    def is_on(self) -> bool:
        """Whether anything is checked."""
        return self._judged_by is not None

    async def authenticate(self, sender: Sender, client_id: str) -> None:
        """A client that leaves needs no right, so a refusal is one of its signature. Raises Refused."""
        command = request_command(UNREGISTER_CLIENT, UnregisterClientRequest(clientID=client_id))
        try:
            await self._check(command, sender)
        except Refused as refused:
            if refused.status.code == pb.FORBIDDEN:
                raise unauthorized(refused.status.message) from None
            raise

    async def may_find(self, topic: str, sender: Sender) -> None:
        """Raises Refused unless the sender may read the topic's route."""
        await self._check(request_command(GET_ROUTEINFO_BY_TOPIC, RouteRequest(topic=topic)), sender)

    async def may_be_assigned(self, topic: str, group: str, client_id: str, sender: Sender) -> None:
        """Raises Refused unless the sender may consume the topic with the group."""
        body = QueryAssignmentBody(topic=topic, consumer_group=group, client_id=client_id)
        await self._check(request_command(QUERY_ASSIGNMENT, Empty(), body), sender)

    async def may_consume(self, group: str, topics: list[str], client_id: str, sender: Sender) -> None:
        """Raises Refused unless the sender may be a client of the group that subscribes to these topics."""
        subscribed = [SubscriptionData(topic=topic) for topic in topics]
        consumer = ConsumerData(group_name=group, subscription_data_set=subscribed)
        body = HeartbeatData(clientID=client_id, consumer_data_set=[consumer])
        await self._check(request_command(HEART_BEAT, Empty(), body), sender)

    async def may_publish(self, topic: str, sender: Sender) -> None:
        """Raises Refused unless the sender may send to the topic now."""
        await self._check(RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext_fields={"b": topic}), sender)

    async def _check(self, command: RemotingCommand, sender: Sender) -> None:
        if self._judged_by is None:
            return
        outcome = await self._judged_by(command, sender)
        if not isinstance(outcome, Ok):
            raise Refused(status_of(outcome).code, outcome.remark)
