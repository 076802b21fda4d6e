"""Requests to another master have this broker's own signature, so they are judged before they are sent."""

from typing import Any

import pytest

from keelmq.client.cluster.routes import make_route
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Caller, CommandError, Empty, Failed, Ok, OperationTable, Outcome
from keelmq.remoting.operations.clients import UNREGISTER_CLIENT, UnregisterClientRequest
from keelmq.remoting.operations.route import TopicRouteData
from proxy.server.guard import Guard
from proxy.server.masters import InProcessMaster
from proxy.server.senders import NO_ADDRESS, Sender

ROUTE = make_route("T", TopicRouteData(queue_datas=[], broker_datas=[]))
CLIENT = Sender(NO_ADDRESS)


class Judge:
    """An Access with one verdict."""

    def __init__(self, verdict: Caller | CommandError) -> None:
        self.verdict = verdict

    def is_open(self, code: int) -> bool:
        return False

    def admit(self, request: Any, peer: Any) -> Caller:
        if isinstance(self.verdict, CommandError):
            raise self.verdict
        return self.verdict


class Others:
    async def call(self, *request: Any, **more: Any) -> Outcome[Any]:
        return Ok(Empty())


async def forwarded(verdict: Caller | CommandError, sender: Sender | None = CLIENT) -> Outcome[Any]:
    table = OperationTable()
    table.access = Judge(verdict)  # type: ignore[assignment]
    master = InProcessMaster(table, "127.0.0.1:10911", Others(), Guard(table))
    header = UnregisterClientRequest(clientID="c")
    return await master.call(ROUTE, "broker-b", UNREGISTER_CLIENT, header, timeout_ms=100, sender=sender)


@pytest.mark.parametrize("sender", [CLIENT, None])
async def test_what_is_admitted_is_forwarded(sender: Sender | None) -> None:
    assert isinstance(await forwarded(Caller(), sender), Ok)


async def test_what_is_refused_is_not_forwarded() -> None:
    assert await forwarded(CommandError(16, "no right")) == Failed(16, "no right")


async def test_what_only_the_other_master_can_judge_is_not_forwarded() -> None:
    caller = Caller()
    caller.checks_topics = True
    found = await forwarded(caller)
    assert isinstance(found, Failed) and found.code == ResponseCode.NO_PERMISSION
