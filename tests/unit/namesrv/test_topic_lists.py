"""Lists of topics that a name server makes in slices, and what it keeps of a broker with many topics."""

import asyncio
import json
from pathlib import Path

from keelmq.runtime.slices import Slices
from namesrv.core import topics as topic_table
from namesrv.handlers.queries import EncodedAnswers
from tests.unit.namesrv.test_namesrv_app import Wire, connect, until
from tests.unit.namesrv.test_namesrv_requests import A, B, announce, body_of, serving

MANY: dict[str, dict[str, int]] = {f"topic{number}": {} for number in range(5_000)}
assert len(MANY) > topic_table.SLICE_TOPICS


class Table:
    """A table of one list that is made in three slices."""

    def __init__(self) -> None:
        self.version, self.made = 0, 0

    def slices(self) -> Slices[bytes]:
        self.made += 1
        version = self.version
        for _ in range(3):
            yield
        return b"version %d" % version


async def test_a_list_is_made_once_for_all_that_ask_and_kept_until_a_change() -> None:
    table = Table()
    answers = EncodedAnswers(lambda: table.version)
    asked = [asyncio.create_task(answers.made("list", table.slices)) for _ in range(5)]
    assert {await each for each in asked} == {b"version 0"} and table.made == 1
    assert await answers.made("list", table.slices) == b"version 0" and table.made == 1
    table.version += 1
    assert await answers.made("list", table.slices) == b"version 1" and table.made == 2


async def test_a_list_that_became_old_while_it_was_made_is_not_kept() -> None:
    table = Table()
    answers = EncodedAnswers(lambda: table.version)
    first = asyncio.create_task(answers.made("list", table.slices))
    await asyncio.sleep(0)
    table.version += 1
    assert await first == b"version 0", "it was asked for before the change"
    assert await answers.made("list", table.slices) == b"version 1" and table.made == 2


async def listed(wire: Wire, code: int = 206, **header: object) -> list[str]:
    names: list[str] = json.loads((await wire.ask(code, header)).body)["topicList"]
    return names


async def test_an_unregistered_broker_leaves_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, wire):
        await announce(wire, A, body=body_of({**MANY, "T1": {}}))
        await announce(wire, B, name="broker-b", body=body_of({"T1": {}}))
        assert await listed(wire) == await listed(wire, 224, cluster="FxCluster") == sorted([*MANY, "T1"])
        header = {"clusterName": "FxCluster", "brokerName": "broker-a", "brokerId": 0, "brokerAddr": A}
        assert (await wire.ask(104, header)).code == 0
        assert server.routes.counts() == {"topics": 1, "groups": 1, "brokers": 1}
        assert await listed(wire) == await listed(wire, 224, cluster="FxCluster") == ["T1"]
        assert await listed(wire, 224, cluster="unknown") == await listed(wire, 311) == []


async def test_a_broker_whose_connection_is_lost_leaves_nothing(tmp_path: Path) -> None:
    """All of its routes end at the same moment."""
    async with serving(tmp_path) as (server, wire):
        other = await connect(server)
        for start in range(0, 20_000, 5_000):
            await announce(other, A, body=body_of({f"{start}{name}": {} for name in MANY}))
        some, counts = [f"{start}topic{number}" for start in (0, 15_000) for number in range(50)], set[int]()
        await other.close()

        def is_gone() -> bool:
            counts.add(sum(server.routes.pick_up_route(topic) is not None for topic in some))
            return server.routes.counts()["topics"] == 0

        await until(is_gone)
        assert counts <= {0, len(some)} and await listed(wire) == []
