"""What a controller shows and does over HTTP: elections, itself, its state. On virtual time, without raft."""

import hashlib
import json
from pathlib import Path
from typing import Any

import fastapi
import httpx
import pytest
from fastapi.exceptions import RequestValidationError

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Unknown
from keelmq.remoting.servers.http_answers import input_refused
from keelmq.remoting.servers.http_app import new_app
from keelmq.remoting.servers.http_settings import HttpConfig
from keelmq.runtime.clock import wall_ms
from keelmq.security.http_access import program_policy
from namesrv.plugins.controller.core.state import PastElection
from namesrv.plugins.controller.http.views import controller_routers
from tests.support.controller_fakes import GROUP, Bench, address
from tests.support.http_parts import app_client, served


def client(bench: Bench) -> httpx.AsyncClient:
    app = fastapi.FastAPI(exception_handlers={RequestValidationError: input_refused})
    app.include_router(controller_routers(bench.plugin.group_sources(), bench.plugin.table))
    return app_client(app)


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    """Broker 1 is master, all three are in sync."""
    made = Bench(tmp_path)
    await made.group_of(1, 2, 3)
    return made


async def elect(bench: Bench, name: str = GROUP, **request: Any) -> httpx.Response:
    async with client(bench) as http:
        return await http.post(f"/v1/groups/{name}/elect", json=request)


TOKENS = {name: f"{name}-token-of-the-controllers" for name in ("read", "administer")}


async def test_who_may_elect_export_and_import(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "http.tokens"
    path.touch(mode=0o600)
    hashes = {role: hashlib.sha256(token.encode()).hexdigest() for role, token in TOKENS.items()}
    path.write_text("".join(f"{role} {role} sha256:{digest}\n" for role, digest in hashes.items()))
    app = new_app("test")
    app.include_router(controller_routers(bench.plugin.group_sources(), bench.plugin.table))
    policy = program_policy(HttpConfig(http_tokens_file=path), None)
    designated = {"brokerId": 2, "designate": True}
    got = {}
    async with served(app, policy) as http:
        for role, token in {"nobody": "x", **TOKENS}.items():
            http.headers["authorization"] = f"Bearer {token}"
            got[role] = [
                (await http.get("/v1/groups")).status_code,
                (await http.get("/v1/controller/state")).status_code,
                (await http.post("/v1/controller/state", content=b"{}")).status_code,
                (
                    await http.post(f"/v1/groups/{GROUP}/elect", json={**designated, "dryRun": True})
                ).status_code,
                (await http.post(f"/v1/groups/{GROUP}/elect", json=designated)).status_code,
            ]
            assert bench.broker_set.master_broker_id == (2 if role == "administer" else 1)
    assert got == {
        "nobody": [401] * 5,
        "read": [200, 403, 403, 200, 403],
        "administer": [200, 200, 409, 200, 200],
    }


# -- elect -----------------------------------------------------------------------------------------------


async def test_a_dry_run_changes_nothing_and_explains(bench: Bench) -> None:
    events = len(bench.replicator.events)
    answer = await elect(bench, brokerId=2, designate=True, dryRun=True)
    found = answer.json()
    assert answer.status_code == 200
    assert (found["dryRun"], found["changed"], found["code"]) == (True, True, 0)
    assert found["masterBrokerId"] == 1 and found["syncStateSet"] == [1, 2, 3]
    assert found["explain"][0] == "elected: designated"
    assert f"broker 2 at {address(2)}: wins: designated" in found["explain"]
    assert [each["wins"] for each in found["candidates"]] == [False, True, False]
    assert len(bench.replicator.events) == events


async def test_an_election_says_who_is_master_and_why(bench: Bench) -> None:
    found = (await elect(bench, brokerId=2, designate=True)).json()
    assert (found["dryRun"], found["changed"], found["code"]) == (False, True, 0)
    assert (found["masterBrokerId"], found["masterAddress"], found["masterEpoch"]) == (2, address(2), 2)
    assert found["syncStateSet"] == [2]
    assert f"broker 2 at {address(2)}: wins: designated" in found["explain"]
    assert bench.broker_set.master_broker_id == 2


async def test_a_live_master_stays_unless_another_is_designated(bench: Bench) -> None:
    for dry_run in (True, False):
        answer = await elect(bench, dryRun=dry_run)
        found = answer.json()
        assert answer.status_code == 200
        assert (found["changed"], found["code"]) == (False, ResponseCode.CONTROLLER_MASTER_STILL_EXIST)
        assert f"broker 1 at {address(1)}: stays master: it is alive" in found["explain"]
    assert bench.broker_set.master_epoch == 1


async def test_a_refused_election_explains_too(bench: Bench) -> None:
    bench.lose(3)
    answer = await elect(bench, brokerId=3, designate=True)
    found = answer.json()
    assert answer.status_code == 409
    assert found["code"] == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    assert f"broker 3 at {address(3)}: not active" in found["explain"]
    assert bench.broker_set.master_broker_id == 1
    dry = await elect(bench, brokerId=3, designate=True, dryRun=True)
    assert (dry.status_code, dry.json()["code"], dry.json()["changed"]) == (200, found["code"], False)


@pytest.mark.parametrize("dry_run", [True, False])
async def test_an_unknown_group_is_refused_as_the_request_is(bench: Bench, dry_run: bool) -> None:
    answer = await elect(bench, "nobody", dryRun=dry_run)
    assert answer.status_code == 409
    assert answer.json()["code"] == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED


@pytest.mark.parametrize(
    "request_",
    [
        {"designate": True},
        {"brokerId": 0},
        {"brokerId": "two"},
        {"brokerId": 10**30},
        {"dryrun": True},
        {"brokerId": 2, "desginate": True},
    ],
    ids=repr,
)
async def test_a_request_with_an_error_elects_nobody(bench: Bench, request_: dict[str, Any]) -> None:
    """Also one with a misspelled dryRun, which would be carried out if it were skipped."""
    answer = await elect(bench, **request_)
    assert answer.status_code == 422, answer.text
    assert bench.broker_set.master_epoch == 1


@pytest.mark.parametrize("dry_run", [True, False])
async def test_a_follower_says_where_the_leader_is(
    bench: Bench, dry_run: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def http_address() -> str:
        return "127.0.0.1:19868"

    monkeypatch.setattr(bench.plugin.admin, "leader_http_address", http_address)
    bench.replicator.become(False)
    answer = await elect(bench, brokerId=2, dryRun=dry_run)
    assert answer.status_code == 409
    assert answer.json() == {
        "title": "Conflict",
        "status": 409,
        "code": ResponseCode.CONTROLLER_NOT_LEADER,
        "detail": "controller n0 does not lead: ask n1 at 127.0.0.1:19868",
        "explain": [],
        "leader": "n1",
        "leaderAddress": "127.0.0.1:9868",
        "leaderHttpAddress": "127.0.0.1:19868",
    }


async def test_without_a_leader_nobody_is_named(bench: Bench) -> None:
    bench.replicator.become(False)
    bench.replicator.no_leader = True
    found = (await elect(bench, brokerId=2)).json()
    assert found["detail"] == "controller n0 does not lead: no controller is known to lead, repeat later"
    assert (found["leader"], found["leaderAddress"], found["leaderHttpAddress"]) == (None, None, None)


async def test_a_deposed_leader_does_not_pretend(bench: Bench) -> None:
    bench.replicator.deposed = True
    answer = await elect(bench, brokerId=2, designate=True, dryRun=True)
    assert (answer.status_code, answer.json()["code"]) == (409, ResponseCode.CONTROLLER_NOT_LEADER)


async def test_an_election_without_a_known_outcome_is_504(bench: Bench) -> None:
    bench.replicator.next_outcome = Unknown("no majority")
    answer = await elect(bench, brokerId=2, designate=True)
    assert answer.status_code == 504
    assert answer.json()["detail"] == "outcome unknown (no majority): it may have happened, repeat"


# -- history ---------------------------------------------------------------------------------------------


def past(event_id: int, ts: int, name: str = GROUP) -> PastElection:
    return PastElection(
        event_id=event_id,
        ts=ts,
        cluster_name="C1",
        broker_name=name,
        old_master_broker_id=None,
        new_master_broker_id=1,
        master_epoch=event_id,
        sync_state_set_epoch=event_id,
        reason="first election",
    )


async def ids(bench: Bench, path: str) -> tuple[list[int], int | None]:
    async with client(bench) as http:
        answer = await http.get(path)
    assert answer.status_code == 200, answer.text
    return [each["eventId"] for each in answer.json()["elections"]], answer.json()["nextBefore"]


async def test_past_elections_have_reasons_and_ages(bench: Bench) -> None:
    await bench.elect(2, designate=True)
    bench.replicator.become(False)  # every controller has them
    async with client(bench) as http:
        found = (await http.get("/v1/elections")).json()
    assert (found["active"], found["leader"]) == (False, "n1")
    newest, first = found["elections"]
    assert (newest["oldMasterBrokerId"], newest["newMasterBrokerId"]) == (1, 2)
    assert newest["reason"] == "designated" and newest["unclean"] is False
    assert first["oldMasterBrokerId"] is None and first["reason"] == "first election"
    assert abs(wall_ms() - newest["ts"] - newest["ageMs"]) < 5_000


async def test_elections_by_group_time_and_page(bench: Bench) -> None:
    state = bench.plugin.machine.state
    history = (past(1, 0), past(2, 200), past(3, 300, "b"), past(4, 400), past(5, 500, "b"))
    bench.plugin.machine.state = type(state)(brokers=state.brokers, elections=history)
    assert await ids(bench, "/v1/elections") == ([5, 4, 3, 2, 1], None)
    assert await ids(bench, "/v1/elections?group=b") == ([5, 3], None)
    assert await ids(bench, "/v1/elections?group=nobody") == ([], None)
    assert await ids(bench, "/v1/elections?since=300") == ([5, 4, 3], None)
    assert await ids(bench, "/v1/elections?limit=2") == ([5, 4], 4)
    assert await ids(bench, "/v1/elections?limit=2&before=4") == ([3, 2], 2)
    assert await ids(bench, "/v1/elections?limit=2&before=2") == ([1], None)
    assert await ids(bench, f"/v1/groups/{GROUP}/elections?limit=3") == ([4, 2, 1], None)
    # After a restore the events are counted from the beginning, and the elections before it stay.
    restored = (past(40, 100), past(41, 200, "b"), past(2, 300), past(41, 400))
    bench.plugin.machine.state = type(state)(brokers=state.brokers, elections=restored)
    assert await ids(bench, "/v1/elections?limit=1") == ([41], 43)
    assert await ids(bench, "/v1/elections?limit=1&before=43") == ([2], 42)
    assert await ids(bench, "/v1/elections?limit=1&before=42") == ([41], 41)
    assert await ids(bench, "/v1/elections?limit=1&before=41") == ([40], None)
    bench.plugin.machine.state = type(state)(brokers=state.brokers, elections=history)
    assert await ids(bench, "/v1/groups/b/elections") == ([5, 3], None)  # gone, and not forgotten
    async with client(bench) as http:
        assert (await http.get("/v1/elections")).json()["elections"][-1]["ageMs"] is None
        missing = await http.get("/v1/groups/nobody/elections")
        for wrong in ("limit=0", "limit=501", "since=-1", "before=x"):
            assert (await http.get(f"/v1/elections?{wrong}")).status_code == 422
    assert missing.status_code == 404
    assert (
        missing.json()["detail"] == f"no group 'nobody' is registered with the controllers (known: {GROUP})"
    )


# -- controller and state --------------------------------------------------------------------------------

STATUS = {
    "role": "leader",
    "standing": "member",
    "waitsFor": [],
    "term": 4,
    "commitIndex": 12,
    "lastApplied": 12,
    "logEntries": 9,
    "journalBytes": 900,
    "snapshotBytes": 0,
    "waiting": 0,
    "members": {"n0": "127.0.0.1:10878", "n1": "127.0.0.1:10868", "n2": "127.0.0.1:10858"},
    "membersSinceIndex": 3,
    "connected": ["n2"],
    "otherMemberLists": ["n2"],
    "certificateFault": "n0.key: no private key in PEM form",
}


async def test_the_controller_and_what_is_wrong(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.replicator, "status", lambda: STATUS)
    for broker_id in (1, 2, 3):
        bench.lose(broker_id)
    await bench.run_elections()
    async with client(bench) as http:
        found = (await http.get("/v1/controller")).json()
    assert (found["selfId"], found["active"], found["leader"]) == ("n0", True, "n0")
    assert (found["leaderAddress"], found["term"], found["role"]) == ("127.0.0.1:9878", 4, "leader")
    assert (found["groups"], found["events"]) == (1, bench.plugin.machine.state.event_count)
    assert [(each["id"], each["isSelf"], each["connected"]) for each in found["members"]] == [
        ("n0", True, True),
        ("n1", False, False),
        ("n2", False, True),
    ]
    assert found["members"][2]["requestAddress"] is None
    assert found["problems"] == [
        "member n1 at 127.0.0.1:10868 is not connected to this one",
        "controllerDLegerPeers of this controller does not name member n2: add it before the next restart",
        "members with another list of members: n2",
        "the raft port's newer certificate is not in use: n0.key: no private key in PEM form",
        f"{GROUP} has no live master: no member of the SyncStateSet [1, 2, 3] is alive",
    ]


async def test_a_file_that_names_a_removed_controller(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    status = {"members": {"n0": "127.0.0.1:10878"}, "role": "leader"}
    monkeypatch.setattr(bench.replicator, "status", lambda: status)
    async with client(bench) as http:
        assert (await http.get("/v1/controller")).json()["problems"] == [
            "controllerDLegerPeers of this controller names n1, which is not a member: "
            "remove it before the next restart"
        ]


async def test_a_controller_that_does_not_run_yet(bench: Bench) -> None:
    bench.replicator.become(False)
    bench.replicator.no_leader = True
    async with client(bench) as http:
        answer = await http.get("/v1/controller")
    assert answer.status_code == 200
    assert answer.json()["members"] == [] and answer.json()["role"] is None
    assert answer.json()["problems"] == ["no controller leads: is a majority of them up and connected?"]


async def test_a_state_moves_to_another_cluster(bench: Bench, tmp_path: Path) -> None:
    bench.replicator.become(False)  # also one that does not lead exports
    async with client(bench) as http:
        exported = await http.get("/v1/controller/state")
    other = Bench(tmp_path / "other")
    async with client(other) as http:
        imported = await http.post("/v1/controller/state", content=exported.content)
        again = await http.post("/v1/controller/state", content=exported.content)
        back = await http.get("/v1/controller/state")
    assert (imported.status_code, imported.json()) == (200, {"groups": 1})
    assert again.status_code == 200  # an import that broke off is repeated
    assert back.json()["brokers"] == exported.json()["brokers"]


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 409), (b"{}", 409), (b"[]", 422), (b"no JSON", 422), (b'{"v": 99}', 409), (b"\xff", 422)],
)
async def test_what_is_no_state_is_not_imported(tmp_path: Path, body: bytes, status: int) -> None:
    bench = Bench(tmp_path)
    async with client(bench) as http:
        answer = await http.post("/v1/controller/state", content=body)
    assert answer.status_code == status, answer.text
    assert bench.replicator.events == []


async def test_a_state_is_not_imported_over_another(bench: Bench) -> None:
    async with client(bench) as http:
        state = (await http.get("/v1/controller/state")).json()
        state["brokers"][0]["broker_name"] = "other"
        answer = await http.post("/v1/controller/state", content=json.dumps(state))
    assert answer.status_code == 409 and "nothing is imported" in answer.json()["detail"]
