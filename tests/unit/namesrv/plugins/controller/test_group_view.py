"""GET /v1/groups: the merged view of a group, and every way in which its sources contradict each other."""

from pathlib import Path
from typing import Any

import fastapi
import httpx
import pytest

from keelmq.remoting.operations.route import BrokerData
from namesrv.plugins.controller.core.elect import LiveInfo
from namesrv.plugins.controller.core.state import BrokerSet, Replica
from namesrv.plugins.controller.http.group_view import (
    ReplicaView,
    groups_router,
    heartbeat_disagreements,
    route_disagreements,
)
from tests.support.controller_fakes import CLUSTER, GROUP, Bench, address
from tests.support.http_parts import app_client

A1, A2, A3 = address(1), address(2), address(3)
ROUTES = {0: A1, 2: A2, 3: A3}


class FakeRoutes:
    """What this name server has of the group; None: nothing."""

    def __init__(self, addrs: dict[int, str] | None, cluster: str = CLUSTER) -> None:
        self.addrs, self.cluster = addrs, cluster

    def broker_data(self, broker_name: str) -> BrokerData | None:
        if self.addrs is None or broker_name != GROUP:
            return None
        return BrokerData(cluster=self.cluster, broker_name=GROUP, broker_addrs=self.addrs)


def client(bench: Bench) -> httpx.AsyncClient:
    app = fastapi.FastAPI()
    app.include_router(groups_router(bench.plugin.group_sources()))
    return app_client(app)


async def view(bench: Bench) -> dict[str, Any]:
    async with client(bench) as http:
        answer = await http.get(f"/v1/groups/{GROUP}")
        assert answer.status_code == 200, answer.text
        whole = (await http.get("/v1/groups")).json()
    found: dict[str, Any] = answer.json()
    assert whole["groups"] == [found] and whole["nextAfter"] is None
    assert (whole["active"], whole["leader"]) == (found["active"], found["leader"])
    return found


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    await made.group_of(1, 2, 3)
    made.plugin.context.routes = FakeRoutes(ROUTES)
    return made


async def test_a_group_with_all_its_numbers(bench: Bench) -> None:
    await bench.heartbeat(1, epoch=1, max_offset=1_000, confirm_offset=900, min_in_sync_replicas=4)
    await bench.heartbeat(2, epoch=1, max_offset=900, confirm_offset=850)
    bench.now_ms += 250
    found = await view(bench)
    replicas = found.pop("replicas")
    last = found.pop("lastElection")
    assert found == {
        "active": True,
        "leader": "n0",
        "cluster": CLUSTER,
        "brokerName": GROUP,
        "masterBrokerId": 1,
        "masterAddress": A1,
        "masterEpoch": 1,
        "syncStateSet": [1, 2, 3],
        "syncStateSetEpoch": 2,
        "routes": {"0": A1, "2": A2, "3": A3},
        "minInSyncReplicas": 4,
        "tooFewInSync": True,
        "disagreements": [],
        "withoutLiveMaster": None,
    }
    assert replicas[1] == {
        "brokerId": 2,
        "address": A2,
        "isMaster": False,
        "inSync": True,
        "alive": True,
        "heartbeatAgeMs": 250,
        "epoch": 1,
        "maxOffset": 900,
        "confirmOffset": 850,
        "lagBytes": 100,
    }
    assert [replica["isMaster"] for replica in replicas] == [True, False, False]
    assert (last["masterBrokerId"], last["masterEpoch"], last["unclean"]) == (1, 1, False)
    assert last["reason"] == "first election" and last["ts"] > 0


async def test_a_group_in_a_fail_over(bench: Bench) -> None:
    """Dead replicas keep their last words; nobody is master, and the view says why."""
    for broker_id in (1, 2, 3):
        bench.lose(broker_id)
    await bench.run_elections()
    found = await view(bench)
    assert found["withoutLiveMaster"] == "no member of the SyncStateSet [1, 2, 3] is alive"
    assert [replica["alive"] for replica in found["replicas"]] == [False] * 3
    assert found["replicas"][0]["heartbeatAgeMs"] >= 51
    assert f"broker 1 at {A1} is in the routes but not alive" in found["disagreements"]


async def test_a_controller_that_does_not_lead_shows_what_it_holds(bench: Bench) -> None:
    bench.replicator.become(False)
    bench.lose(1)
    found = await view(bench)
    assert (found["active"], found["leader"]) == (False, "n1")
    assert found["withoutLiveMaster"] == "master 1 is not alive here"
    assert found["lastElection"]["reason"] == "first election"


async def test_without_routes_there_is_nothing_to_compare(bench: Bench) -> None:
    bench.plugin.context.routes = None
    found = await view(bench)
    assert found["routes"] is None and found["disagreements"] == []


async def test_an_unknown_group_is_404_with_the_known_names(bench: Bench) -> None:
    async with client(bench) as http:
        answer = await http.get("/v1/groups/nobody")
    assert answer.status_code == 404
    assert answer.json()["detail"] == (
        "no group 'nobody' is registered with the controllers (known: broker-a)"
    )


async def test_pages(bench: Bench) -> None:
    state = bench.plugin.machine.state
    for name in ("b", "c", "d"):
        state = state.with_set(BrokerSet(CLUSTER, name))
    bench.plugin.machine.state = state
    async with client(bench) as http:
        first = (await http.get("/v1/groups?limit=3")).json()
        second = (await http.get(f"/v1/groups?limit=3&after={first['nextAfter']}")).json()
        assert (await http.get("/v1/groups?limit=0")).status_code == 422
    assert [group["brokerName"] for group in first["groups"]] == ["b", GROUP, "c"]
    assert [group["brokerName"] for group in second["groups"]] == ["d"] and second["nextAfter"] is None


async def test_openapi_has_the_views(bench: Bench) -> None:
    async with client(bench) as http:
        document = (await http.get("/openapi.json")).json()
    assert {"/v1/groups", "/v1/groups/{brokerName}"} <= set(document["paths"])
    schema = document["components"]["schemas"]["GroupView"]["properties"]
    assert {"disagreements", "syncStateSetEpoch", "replicas", "lastElection"} <= set(schema)


# -- disagreements ---------------------------------------------------------------------------------------


def broker_set(**changes: Any) -> BrokerSet:
    replicas = {each: Replica(address(each), "") for each in (1, 2, 3)}
    values: dict[str, Any] = {
        "next_broker_id": 4,
        "replicas": replicas,
        "master_broker_id": 1,
        "master_epoch": 7,
        "sync_state_set": frozenset({1, 2, 3}),
        **changes,
    }
    return BrokerSet(CLUSTER, GROUP, **values)


def replicas(*alive: int) -> list[ReplicaView]:
    return [
        ReplicaView(
            broker_id=each, address=address(each), is_master=each == 1, in_sync=True, alive=each in alive
        )
        for each in (1, 2, 3)
    ]


def routes(addrs: dict[int, str] = ROUTES, cluster: str = CLUSTER) -> BrokerData:
    return BrokerData(cluster=cluster, broker_name=GROUP, broker_addrs=addrs)


ALL = (1, 2, 3)
CASES: list[tuple[str, tuple[int, ...], BrokerData | None, dict[str, Any], list[str]]] = [
    ("all is well", ALL, routes(), {}, []),
    ("unknown here", ALL, None, {}, ["the routes have no replica of this group, though some are alive"]),
    ("unknown here, and dead", (), None, {}, []),
    (
        "another cluster",
        ALL,
        routes(cluster="C2"),
        {},
        ["the routes say cluster C2, the controllers C1"],
    ),
    (
        "two masters",
        ALL,
        routes({0: A2, 1: A1, 3: A3}),
        {},
        [f"two masters: the routes say {A2}, the controllers broker 1 at {A1}, and both are alive"],
    ),
    (
        "the old master in the routes",
        (2, 3),
        routes({0: A1, 3: A3}),
        {"master_broker_id": 2},
        [
            f"the routes say that {A1} is master, the controllers broker 2 at {A2}",
            f"broker 1 at {A1} is in the routes but not alive",
            f"broker 2 at {A2} is alive but not in the routes",
        ],
    ),
    (
        "an unknown broker as master",
        ALL,
        routes({**ROUTES, 0: "x:1", 1: A1}),
        {},
        [f"the routes say that x:1 is master, the controllers broker 1 at {A1}"],
    ),
    (
        "no master in the routes",
        ALL,
        routes({1: A1, 2: A2, 3: A3}),
        {},
        [f"the routes have no master, the controllers say broker 1 at {A1}"],
    ),
    ("no master anywhere", (2, 3), routes({2: A2, 3: A3}), {}, []),
    (
        "a master only in the routes",
        ALL,
        routes(),
        {"master_broker_id": None},
        [f"the routes say that {A1} is master, the controllers have none"],
    ),
    (
        "a replica is not registered",
        ALL,
        routes({0: A1, 2: A2}),
        {},
        [f"broker 3 at {A3} is alive but not in the routes"],
    ),
    (
        "a dead replica is registered",
        (1, 2),
        routes(),
        {},
        [f"broker 3 at {A3} is in the routes but not alive"],
    ),
    (
        "an id at another address",
        ALL,
        routes({0: A1, 2: A3, 3: A2}),
        {},
        [
            f"the routes have broker 2 at {A3}, the controllers at {A2}",
            f"the routes have broker 3 at {A2}, the controllers at {A3}",
        ],
    ),
    (
        "an id that nobody has",
        ALL,
        routes({**ROUTES, 9: "x:1"}),
        {},
        ["the routes have broker 9 at x:1, an id that no replica has"],
    ),
]


@pytest.mark.parametrize(
    ("alive", "known", "changes", "says"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_routes_against_controllers(
    alive: tuple[int, ...], known: BrokerData | None, changes: dict[str, Any], says: list[str]
) -> None:
    assert sorted(route_disagreements(broker_set(**changes), replicas(*alive), known)) == sorted(says)


def test_the_address_of_a_lost_disk_is_that_of_the_new_replica() -> None:
    """The old id is dead, and the broker with the new one is what the routes have."""
    known = [*replicas(1, 2), replicas(3)[-1].model_copy(update={"broker_id": 4})]
    changed = broker_set(
        replicas={each: Replica(at, "") for each, at in {1: A1, 2: A2, 3: A3, 4: A3}.items()}
    )
    assert list(route_disagreements(changed, known, routes({0: A1, 2: A2, 4: A3}))) == []


@pytest.mark.parametrize(
    ("live", "says"),
    [
        (LiveInfo(A2, epoch=7), None),
        (LiveInfo("x:1", epoch=7), f"broker 2 sends heartbeats as x:1, registered as {A2}"),
        (
            LiveInfo(A2, epoch=8),
            "broker 2 has epoch 8, above masterEpoch 7: was the controllers' store replaced?",
        ),
    ],
)
def test_heartbeats_against_controllers(live: LiveInfo, says: str | None) -> None:
    assert list(heartbeat_disagreements(broker_set(), {2: live})) == ([says] if says else [])
