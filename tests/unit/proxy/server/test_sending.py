"""Which sends are repeated when their answer is lost, or says that there is no master yet."""

from pathlib import Path
from typing import Any

import pytest

from broker.clients.proxied_requests import NO_ADDRESS, ProxiedRequests, Sender
from keelmq.client.cluster.routes import TopicRoute
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Failed, Outcome, Unknown
from keelmq.remoting.operations.broker import SEND_MESSAGE_V2
from keelmq.runtime.clock import now_ms
from proxy.core.limits import Limits
from proxy.core.names import Client
from proxy.server.app import OwnRoutes
from proxy.server.cluster import Call, Cluster
from proxy.server.guard import Guard
from proxy.server.masters import BrokerRequest, InProcessMaster, TcpMasters
from proxy.server.members import Members
from proxy.server.sending import Sending
from proxy.wire import messaging_pb2 as pb
from tests.unit.proxy.server.parts import TOPIC, serving

LOST = Unknown("the connection is lost")
TOO_FEW = Failed(ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough: 1 of at least 2")
BROKEN = Failed(ResponseCode.SYSTEM_ERROR, "internal error: ZeroDivisionError")


class FirstAnswer:
    """Replaces the answer to the first send, which the broker carries out."""

    def __init__(self, master: InProcessMaster, answer: Outcome[Any]) -> None:
        self._master, self._answer = master, answer
        self.sends = 0

    async def call(self, route: TopicRoute, broker_name: str, request: BrokerRequest) -> Outcome[Any]:
        outcome = await self._master.call(route, broker_name, request)
        if request.operation is not SEND_MESSAGE_V2:
            return outcome
        self.sends += 1
        return self._answer if self.sends == 1 else outcome


@pytest.mark.parametrize(
    ("first", "kind", "sends", "code"),
    [
        (LOST, pb.NORMAL, 2, pb.OK),
        # A second half message would be checked, and committed as well.
        (LOST, pb.TRANSACTION, 1, pb.PROXY_TIMEOUT),
        # After a fail-over, until a replica is in sync: nothing was stored.
        (TOO_FEW, pb.NORMAL, 2, pb.OK),
        (TOO_FEW, pb.TRANSACTION, 2, pb.OK),
        (BROKEN, pb.NORMAL, 1, pb.INTERNAL_SERVER_ERROR),
    ],
)
async def test_which_answers_are_followed_by_another_attempt(
    tmp_path: Path, first: Outcome[Any], kind: pb.MessageType, sends: int, code: pb.Code
) -> None:
    async with serving(tmp_path) as (broker, _):
        client = RemotingClient()
        master = InProcessMaster(ProxiedRequests(broker.operations), broker.address, TcpMasters(client))
        masters = FirstAnswer(master, first)
        guard = Guard()
        cluster = Cluster(OwnRoutes(master, broker.config, broker.address), masters, guard)
        try:
            system = pb.SystemProperties(message_id="01", message_type=kind)
            message = pb.Message(topic=TOPIC, body=b"one", system_properties=system)
            call = Call(Client("tester"), Sender(NO_ADDRESS), now_ms() + 5_000)
            request = pb.SendMessageRequest(messages=[message])
            answer = await Sending(cluster, guard, Members(cluster), Limits()).send_message(request, call)
        finally:
            await cluster.close()
            await master.close()
            await client.close()
        assert (masters.sends, answer.status.code) == (sends, code)
