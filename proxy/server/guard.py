"""Guard: who sends a call, and whether they may, for what does not go through the broker's own table.

The rules are those of remoting: each check is the request of remoting that means the same, judged by the
Access of the broker in this process. A request that goes into its table is judged there."""

from typing import Any, Final

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import RemotingCommand, request_command
from keelmq.remoting.dispatch import record
from keelmq.remoting.operation import (
    ANYBODY,
    Caller,
    CommandError,
    Empty,
    Failed,
    Operation,
    OperationTable,
    Wire,
)
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
from proxy.server.senders import InProcessPeer, Sender

NOT_HERE: Final = "only the master that has the message can check this request: send it to that broker"


class Guard:
    """table: of the broker in this process; None, or one without Access: nothing is checked."""

    def __init__(self, table: OperationTable | None) -> None:
        self._table = table if table is not None and table.access is not None else None

    @property
    def is_on(self) -> bool:
        """Whether anything is checked."""
        return self._table is not None

    def authenticate(self, sender: Sender, client_id: str) -> None:
        """A client that leaves needs no right, so a refusal is one of its signature. Raises Refused."""
        header = UnregisterClientRequest(clientID=client_id)
        try:
            self._admit(request_command(UNREGISTER_CLIENT, header), sender)
        except CommandError as error:
            raise unauthorized(error.remark) from None

    def may_find(self, topic: str, sender: Sender) -> None:
        """Raises Refused unless the sender may read the topic's route."""
        self._check(GET_ROUTEINFO_BY_TOPIC, RouteRequest(topic=topic), None, sender)

    def may_be_assigned(self, topic: str, group: str, client_id: str, sender: Sender) -> None:
        """Raises Refused unless the sender may consume the topic with the group."""
        body = QueryAssignmentBody(topic=topic, consumer_group=group, client_id=client_id)
        self._check(QUERY_ASSIGNMENT, Empty(), body, sender)

    def may_consume(self, group: str, topics: list[str], client_id: str, sender: Sender) -> None:
        """Raises Refused unless the sender may be a client of the group that subscribes to these topics."""
        subscribed = [SubscriptionData(topic=topic) for topic in topics]
        consumer = ConsumerData(group_name=group, subscription_data_set=subscribed)
        body = HeartbeatData(clientID=client_id, consumer_data_set=[consumer])
        self._check(HEART_BEAT, Empty(), body, sender)

    def may_publish(self, topic: str, client_id: str, sender: Sender) -> bool:
        """Whether the sender may send to the topic now. Raises Refused: who is it?"""
        header = UnregisterClientRequest(clientID=client_id)
        return self._check(UNREGISTER_CLIENT, header, None, sender).may_publish(topic)

    def why_not_forwarded(self, command: RemotingCommand, sender: Sender) -> Failed | None:
        """A forwarded request has this server's own signature, so it is judged before. None: it may go."""
        try:
            caller = self._admit(command, sender)
        except CommandError as error:
            return Failed(error.code, error.remark)
        return Failed(ResponseCode.NO_PERMISSION, NOT_HERE) if caller.checks_topics else None

    def _check(self, operation: Operation[Any, Any], header: Wire, body: object, sender: Sender) -> Caller:
        try:
            return self._admit(request_command(operation, header, body), sender)
        except CommandError as error:
            raise Refused(status_of(Failed(error.code, error.remark)).code, error.remark) from None

    def _admit(self, command: RemotingCommand, sender: Sender) -> Caller:
        """Raises CommandError, which is in the audit log then, as that of a request of remoting."""
        if self._table is None or self._table.access is None:
            return ANYBODY
        peer = InProcessPeer(sender)
        try:
            return self._table.access.admit(command, peer)
        except CommandError as error:
            record(self._table, command, peer, ANYBODY, error.code, error.remark, {})
            raise
