"""Which sends are repeated when their answer is lost."""

from pathlib import Path
from typing import Any

import pytest

from broker.clients.proxied_requests import NO_ADDRESS, ProxiedRequests, Sender
from keelmq.client.cluster.routes import TopicRoute
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Outcome, Unknown
from keelmq.remoting.operations.broker import SEND_MESSAGE_V2
from keelmq.runtime.clock import now_ms
from proxy.core.limits import Limits
from proxy.core.names import Client
from proxy.server.app import OwnRoutes
from proxy.server.cluster import Call, Cluster
from proxy.server.guard import Guard
from proxy.server.masters import BrokerRequest, InProcessMaster, TcpMasters
from proxy.server.sending import Sending
from proxy.wire import messaging_pb2 as pb
from tests.unit.proxy.server.parts import TOPIC, serving


class LosesFirstAnswer:
    """The broker carries the first send out, and its answer does not arrive."""

    def __init__(self, master: InProcessMaster) -> None:
        self._master = master
        self.sends = 0

    async def call(self, route: TopicRoute, broker_name: str, request: BrokerRequest) -> Outcome[Any]:
        outcome = await self._master.call(route, broker_name, request)
        if request.operation is not SEND_MESSAGE_V2:
            return outcome
        self.sends += 1
        return Unknown("the connection is lost") if self.sends == 1 else outcome


@pytest.mark.parametrize(
    ("kind", "sends", "code"),
    [
        (pb.NORMAL, 2, pb.OK),
        # A second half message would be checked, and committed as well.
        (pb.TRANSACTION, 1, pb.PROXY_TIMEOUT),
    ],
)
async def test_an_answer_that_is_lost(
    tmp_path: Path, kind: pb.MessageType, sends: int, code: pb.Code
) -> None:
    async with serving(tmp_path) as (broker, _):
        client = RemotingClient()
        master = InProcessMaster(ProxiedRequests(broker.operations), broker.address, TcpMasters(client))
        masters = LosesFirstAnswer(master)
        guard = Guard()
        cluster = Cluster(OwnRoutes(master, broker.config, broker.address), masters, guard)
        try:
            system = pb.SystemProperties(message_id="01", message_type=kind)
            message = pb.Message(topic=TOPIC, body=b"one", system_properties=system)
            call = Call(Client("tester"), Sender(NO_ADDRESS), now_ms() + 5_000)
            request = pb.SendMessageRequest(messages=[message])
            answer = await Sending(cluster, guard, Limits()).send_message(request, call)
        finally:
            await cluster.close()
            await master.close()
            await client.close()
        assert (masters.sends, answer.status.code) == (sends, code)
