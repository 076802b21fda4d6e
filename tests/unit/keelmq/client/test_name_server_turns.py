"""Which name server a route is asked of: one that is lost without a sign costs a whole timeout, once."""

from collections.abc import Collection
from typing import Any

import pytest

from keelmq.client.cluster import routes
from keelmq.client.cluster.routes import AVOIDED_MS, RouteCache, RouteError
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Failed, Ok, Outcome, Unknown
from keelmq.remoting.operations.route import TopicRouteData

A, B, C = NAME_SERVERS = ("10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1")
SILENT = Unknown("no answer")
UNREACHABLE = Failed(ResponseCode.RPC_SEND_TO_CHANNEL_FAILED, "no route to host")


class NameServers(RemotingClient):
    """All answer, but for those in `away`."""

    def __init__(self, away: dict[str, Outcome[Any]]) -> None:
        super().__init__()
        self.away, self.asked = away, list[str]()

    async def call(
        self,
        address: str,
        operation: Any,
        header: Any,
        body: object = None,
        *,
        timeout_ms: int = 3_000,
        good: Collection[int] = (),
    ) -> Outcome[Any]:
        self.asked.append(address)
        return self.away.get(address) or Ok(None, TopicRouteData())


class Scene:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, **away: Outcome[Any]) -> None:
        self.now_ms = 1_000_000
        monkeypatch.setattr(routes, "now_ms", lambda: self.now_ms)
        self.client = NameServers({NAME_SERVERS["abc".index(name)]: each for name, each in away.items()})
        self.cache = RouteCache(self.client, ";".join(NAME_SERVERS))

    async def asked(self, *, rotate: bool = False) -> list[str]:
        self.client.asked.clear()
        await self.cache.refresh("T", rotate=rotate)
        return list(self.client.asked)


@pytest.mark.parametrize("answer", [SILENT, UNREACHABLE])
async def test_one_that_did_not_answer_is_not_asked_while_another_one_does(
    monkeypatch: pytest.MonkeyPatch, answer: Outcome[Any]
) -> None:
    scene = Scene(monkeypatch, a=answer)
    assert await scene.asked() == [A, B]
    assert await scene.asked() == [B]
    assert await scene.asked(rotate=True) == [C]
    assert await scene.asked(rotate=True) == [B], "A's turn"
    scene.now_ms += AVOIDED_MS
    assert await scene.asked(rotate=True) == [C]
    scene.client.away.clear()
    assert await scene.asked(rotate=True) == [A]


async def test_all_are_asked_before_there_is_no_route(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, a=SILENT, b=SILENT, c=SILENT)
    for _ in range(2):
        with pytest.raises(RouteError, match="no name server answered"):
            await scene.asked()
        assert sorted(scene.client.asked) == list(NAME_SERVERS)
    del scene.client.away[C]
    assert C in await scene.asked()
    assert await scene.asked() == [C]
