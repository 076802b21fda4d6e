"""Elections looked at: what one would do (dry run), what the past ones did, and two at the same moment."""

import asyncio
from pathlib import Path

import pytest

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Reply
from keelmq.remoting.operations import controller as wire
from namesrv.plugins.controller.core.apply import apply
from namesrv.plugins.controller.core.events import ElectMaster
from namesrv.plugins.controller.core.history import (
    ELECTIONS_MAX,
    ELECTIONS_PER_GROUP_MAX,
    append_election,
    past_elections,
)
from namesrv.plugins.controller.core.state import PastElection, State
from namesrv.plugins.controller.core.state_codec import state_from_json, state_to_json
from tests.support.controller_fakes import CLUSTER, GROUP, Bench, refused


def explanation(reply: Reply) -> wire.ElectionExplanation:
    assert isinstance(reply.body, wire.ElectMasterResponseBody)
    assert reply.body.explanation is not None
    return reply.body.explanation


async def explain(bench: Bench, broker_id: int = -1, designate: bool = False) -> wire.ElectionExplanation:
    return explanation(await bench.elect(broker_id, designate, dry_run=True))


async def test_a_dry_run_changes_nothing_and_says_what_would_happen(bench: Bench) -> None:
    await bench.group_of(1, 2, 3)
    await bench.heartbeat(2, epoch=1, max_offset=70)
    await bench.heartbeat(3, epoch=1, max_offset=100)
    count = len(bench.replicator.events)
    kept = await explain(bench, 2)
    assert (kept.code, kept.verdict, kept.is_change) == (2011, "keep", False)
    assert [each.why for each in kept.candidates] == ["stays master: it is alive", "electable", "electable"]
    bench.lose(1)
    reply = await bench.elect(-1, dry_run=True)
    assert reply.remark == "dry run: nothing was changed"
    assert isinstance(reply.header, wire.MasterInfo) and reply.header.master_broker_id == 1
    found = explanation(reply)
    assert (found.code, found.is_change, found.new_master_broker_id, found.unclean) == (0, True, 3, False)
    assert found.remark == "master 1 is not active (connection_closed)"
    assert [each.why for each in found.candidates] == [
        "not active", "maxOffset 70 is below 100", "wins: master 1 is not active (connection_closed)",
    ]  # fmt: skip
    assert [each.behind_bytes for each in found.candidates] == [None, 30, 0]
    assert [each.wins for each in found.candidates] == [False, False, True]
    assert len(bench.replicator.events) == count
    assert bench.broker_set.master_epoch == 1
    await bench.elect(-1)
    assert bench.broker_set.master_broker_id == found.new_master_broker_id


async def test_the_operation_of_its_own_says_the_same(bench: Bench) -> None:
    """For tools: a Java controller does not know it, while it would carry out the 1002 of a dry run."""
    await bench.group_of(1, 2)
    reply = await bench.ask(wire.EXPLAIN_ELECTION, broker_name=GROUP, broker_id=2, designate_elect=True)
    assert explanation(reply) == await explain(bench, 2, designate=True)


async def test_a_designated_hand_over_is_explained(bench: Bench) -> None:
    await bench.group_of(1, 2, 3)
    found = await explain(bench, 2, designate=True)
    assert (found.code, found.new_master_broker_id) == (0, 2)
    assert found.candidates[2].why == "equal to broker 2, whose id is smaller"
    assert found.candidates[0].why == "electable, but another replica was designated"


async def test_why_a_replica_outside_the_set_does_not_win(tmp_path: Path) -> None:
    for unclean in (False, True):
        bench = Bench(tmp_path, enableElectUncleanMaster=unclean)
        await bench.group_of(1)
        await bench.apply(2)
        await bench.heartbeat(2)
        bench.lose(1)
        found = await explain(bench, 2, designate=True)
        assert (found.code, found.unclean) == ((0, True) if unclean else (2012, False))
        assert "acknowledged messages" in found.candidates[1].why
        assert found.candidates[1].wins is unclean


async def test_one_that_may_have_died_with_the_master_is_explained(bench: Bench) -> None:
    await bench.group_of(1, 2, 3)
    bench.lose(1)
    bench.liveness.connection_closed(bench.peers[2].connection_id, bench.now_ms)
    found = await explain(bench)
    perhaps_dead = "perhaps dead: its connection has closed, or it has sent no heartbeat for half its timeout"
    assert [each.why for each in found.candidates[1:]] == [
        perhaps_dead,
        "wins: master 1 is not active (connection_closed)",
    ]
    bench.liveness.connection_closed(bench.peers[3].connection_id, bench.now_ms)
    found = await explain(bench)
    assert (found.verdict, found.is_change) == ("wait", False)
    assert [each.why for each in found.candidates[1:]] == [perhaps_dead, perhaps_dead]
    assert "waiting to hear from the SyncStateSet [1, 2, 3]" in found.remark


async def test_priorities_and_unheard_replicas_are_explained(bench: Bench) -> None:
    await bench.group_of(1, 2, 3)
    await bench.heartbeat(2, epoch=1, max_offset=5, election_priority=9)
    await bench.heartbeat(3, epoch=1, max_offset=5, election_priority=1)
    bench.lose(1)
    assert (await explain(bench)).candidates[1].why == "electionPriority 9 is above 1"
    await bench.heartbeat(2, epoch=0, max_offset=500)
    assert (await explain(bench)).candidates[1].why == "epoch 0 is below 1"
    for key in list(bench.liveness.keys()):
        bench.liveness.forget(key)
    bench.replicator.become(True)
    young = await explain(bench)
    assert (young.code, young.verdict) == (2011, "keep")
    bench.now_ms += 60_000
    assert (await explain(bench)).code == ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ({"broker_name": "b-z", "broker_id": 1}, 2010),
        ({"broker_name": GROUP, "broker_id": 9, "designate_elect": True}, 2012),
        ({"broker_name": GROUP, "broker_id": 1, "cluster_name": "C2"}, 2005),
        ({"broker_name": GROUP, "designate_elect": True}, 2005),
    ],
)
async def test_what_cannot_be_held_cannot_be_explained(
    bench: Bench, header: dict[str, object], code: int
) -> None:
    """The dry run refuses what the real one refuses, in the same words."""
    await bench.group_of(1)
    dry = await refused(bench.ask(wire.ELECT_MASTER, dry_run=True, **header))
    real = await refused(bench.ask(wire.ELECT_MASTER, **header))
    assert (dry.code, dry.remark) == (real.code, real.remark)
    assert dry.code == code


async def test_only_the_leader_explains(bench: Bench) -> None:
    await bench.group_of(1)
    bench.replicator.active = False
    assert (await refused(bench.elect(1, dry_run=True))).code == ResponseCode.CONTROLLER_NOT_LEADER


async def test_two_elections_at_once_answer_2011_with_the_master(bench: Bench) -> None:
    """Both are decided on the same state; the second one's event is fenced, and it is decided again."""
    await bench.group_of(1, 2, 3)
    bench.lose(1)
    bench.replicator.before_apply = asyncio.Event()
    tasks = [asyncio.create_task(bench.elect(each)) for each in (2, 3)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert bench.replicator.waiting == 2
    bench.replicator.before_apply.set()
    first, second = await asyncio.gather(*tasks)
    assert first.code == 0
    assert second.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
    assert second.header == first.header
    assert bench.broker_set.master_epoch == 2


async def test_the_history_tells_who_was_master_and_why(bench: Bench) -> None:
    await bench.group_of(1, 2)
    await bench.elect(2, designate=True)
    await bench.alter([1, 2], master=2, epoch=2, set_epoch=3)
    bench.lose(2)
    await bench.elect(-1)
    await bench.clean("2")
    bench.lose(1)
    await refused(bench.elect(-1))
    reply = await bench.ask(wire.GET_ELECTIONS)
    assert isinstance(reply.body, wire.Elections)
    told = [
        (each.old_master_broker_id, each.new_master_broker_id, each.master_epoch, each.reason)
        for each in reply.body.elections
    ]
    assert told == [
        (1, None, 4, "no member of the SyncStateSet [1] is alive"),
        (2, 1, 3, "master 2 is not active (connection_closed)"),
        (1, 2, 2, "designated"),
        (None, 1, 1, "first election"),
    ]
    lost = reply.body.elections[1]
    assert lost.detected_ts is not None and lost.last_heartbeat_ts is not None
    assert lost.last_heartbeat_ts <= lost.detected_ts
    assert [each.event_id for each in reply.body.elections] == sorted(
        (each.event_id for each in reply.body.elections), reverse=True
    )
    few = (await bench.ask(wire.GET_ELECTIONS, broker_name=GROUP, count=2)).body
    assert few == wire.Elections(elections=reply.body.elections[:2])
    assert (await bench.ask(wire.GET_ELECTIONS, broker_name="b-z")).body == wire.Elections()


async def test_a_cleaned_master_is_in_the_history(bench: Bench) -> None:
    await bench.group_of(1, 2)
    await bench.clean("1", living=True)
    await bench.elect(2)
    await bench.clean(living=True)
    newest, before, *_ = past_elections(bench.plugin.machine.state)
    assert (newest.new_master_broker_id, newest.reason) == (None, "master 2 was cleaned")
    assert before.new_master_broker_id == 2


async def test_every_controller_tells_the_same_after_a_restart(bench: Bench) -> None:
    await bench.group_of(1, 2)
    bench.lose(1)
    await bench.elect(-1)
    state = bench.plugin.machine.state
    assert len(state.elections) == 2
    assert state_from_json(state_to_json(state)).elections == state.elections
    bench.replicator.active = False
    reply = await bench.ask(wire.GET_ELECTIONS)
    assert isinstance(reply.body, wire.Elections) and len(reply.body.elections) == 2


def past(number: int, name: str) -> PastElection:
    return PastElection(
        event_id=number,
        ts=1,
        cluster_name=CLUSTER,
        broker_name=name,
        old_master_broker_id=None,
        new_master_broker_id=1,
        master_epoch=1,
        sync_state_set_epoch=1,
        reason="",
    )


def test_the_history_is_bounded_and_a_flapping_group_pushes_nobody_out() -> None:
    elections: tuple[PastElection, ...] = (past(0, "quiet"),)
    for number in range(1, 3 * ELECTIONS_PER_GROUP_MAX):
        elections = append_election(elections, past(number, "flaps"))
    assert len(elections) == 1 + ELECTIONS_PER_GROUP_MAX
    assert elections[0].broker_name == "quiet"
    for number in range(2 * ELECTIONS_MAX):
        elections = append_election(elections, past(1_000 + number, f"g{number}"))
    assert len(elections) == ELECTIONS_MAX
    assert elections[-1].broker_name == f"g{2 * ELECTIONS_MAX - 1}"


def test_elections_of_an_older_log_are_not_remembered() -> None:
    """Without `ts`: other members may know them from a snapshot only, which has no history."""
    state = State()
    for ts in (0, 5):
        event = ElectMaster(
            ts=ts, broker_name=GROUP, new_master_broker_id=None, expected_master_epoch=0,
            expected_sync_state_set_epoch=0,
        )  # fmt: skip
        assert apply(state, event).state.elections == ()
