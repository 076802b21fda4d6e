"""Which brokers judge the clients of a proxy that has no users."""

import asyncio
from typing import Any

import pytest

from broker.clients.proxied_requests import Sender
from keelmq.remoting.command import RemotingCommand
from keelmq.remoting.operation import Ok, Unknown
from keelmq.remoting.operations.route import GET_BROKER_CLUSTER_INFO, BrokerData, ClusterInfo
from proxy.server import broker_judge
from proxy.server.broker_judge import BrokerJudge


class FakeClient:
    """masters: what the name server says at each question. Brokers do not answer; `first` waits for
    `go_on`."""

    def __init__(self, *masters: str) -> None:
        self._masters = list(masters)
        self.first, self.asked, self.go_on = masters[0], asyncio.Event(), asyncio.Event()

    async def call(self, address: str, operation: Any, header: Any, body: Any = None, **more: Any) -> Any:
        if operation is GET_BROKER_CLUSTER_INFO:
            data = BrokerData(cluster="c", broker_name="b", broker_addrs={0: self._masters.pop(0)})
            return Ok(None, ClusterInfo(broker_addr_table={"b": data}, cluster_addr_table={}))
        if address == self.first:
            self.asked.set()
            await self.go_on.wait()
        return Unknown(f"no answer of {address}")


async def test_masters_that_change_while_one_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another call has found the new master before the old one is given up."""
    monkeypatch.setattr(broker_judge, "MASTERS_MS", 0)
    client: Any = FakeClient("10.0.0.1:1", "10.0.0.2:1")
    judge, command, sender = BrokerJudge(client, ("ns:1",)), RemotingCommand(35, 1), Sender("10.0.0.9:5")
    earlier = asyncio.create_task(judge.judge(command, sender))
    await client.asked.wait()
    assert await judge.judge(command, sender) == Unknown("no answer of 10.0.0.2:1")
    client.go_on.set()
    assert await earlier == Unknown("no answer of 10.0.0.1:1")
