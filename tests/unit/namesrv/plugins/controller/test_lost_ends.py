"""Elections among replicas of which one has lost the end of its log, and refuses to be master."""

from pathlib import Path

import msgspec
import pytest

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import CommandError
from keelmq.remoting.operations import controller as wire
from namesrv.plugins.controller.core.apply import apply
from namesrv.plugins.controller.core.elect import LiveInfo, LiveView, Verdict, elect, rank, refused_term
from namesrv.plugins.controller.core.events import ElectMaster, decode_event
from namesrv.plugins.controller.core.restored import restored_state
from namesrv.plugins.controller.core.state import BrokerSet, Replica, State, Term
from namesrv.plugins.controller.core.state_codec import state_from_json, state_to_json
from tests.support.controller_fakes import GROUP, Bench

LOST = "it has lost the end of its log: that ends at 60, and was confirmed up to 90"


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    """Broker 1 is master at masterEpoch 1; 1, 2 and 3 are in the SyncStateSet."""
    made = Bench(tmp_path)
    await made.group_of(1, 2, 3)
    for broker_id in (1, 2, 3):
        await made.heartbeat(broker_id, epoch=1, max_offset=100, confirm_offset=90)
    return made


async def heartbeat_unfit(bench: Bench, broker_id: int, refused: int | None = None, **values: object) -> None:
    """A heartbeat of a broker whose log ends at 60, and was confirmed up to 90."""
    header = {"epoch": 1, "max_offset": 60, "confirm_offset": 90, "refused_master_epoch": refused, **values}
    await bench.heartbeat(broker_id, **{**header, "broker_id": None, "unfit_broker_id": broker_id})


async def explained(bench: Bench, broker_id: int = -1, **values: object) -> wire.ElectionExplanation:
    reply = await bench.elect(broker_id, dry_run=True, **values)
    assert isinstance(reply.body, wire.ElectMasterResponseBody) and reply.body.explanation is not None
    return reply.body.explanation


def group(bench: Bench) -> BrokerSet:
    return bench.plugin.proposer.state.brokers[GROUP]


async def lose_all_but(bench: Bench, broker_id: int) -> None:
    """The others are dead, and this one is elected by what its earlier process said."""
    for other in {1, 2, 3} - {broker_id}:
        bench.lose(other)
    await bench.run_elections()


async def test_another_member_wins_and_the_preview_says_why(bench: Bench) -> None:
    await heartbeat_unfit(bench, 2)
    bench.lose(1)
    found = await explained(bench)
    assert found.new_master_broker_id == 3
    assert {each.broker_id: each.why for each in found.candidates}[2] == LOST
    await bench.run_elections()
    assert group(bench).master_broker_id == 3


async def test_nobody_is_elected_until_its_log_is_whole_or_another_member_is_alive(bench: Bench) -> None:
    await heartbeat_unfit(bench, 2)
    bench.lose(1)
    bench.lose(3)
    found = await explained(bench)
    assert found.new_master_broker_id is None
    why = f"broker 2 is not elected: {LOST}; no other member of the SyncStateSet [1, 2, 3] is alive"
    assert found.remark == why
    await bench.run_elections()
    assert bench.plugin.elections.retries[GROUP].reason == why
    assert group(bench).sync_state_set == {1, 2, 3}
    await bench.heartbeat(2, epoch=1, max_offset=90, confirm_offset=90)  # an operator, or its log is back
    await bench.run_elections()
    assert group(bench).master_broker_id == 2


async def test_it_is_not_elected_uncleanly_nor_designated(tmp_path: Path) -> None:
    bench = Bench(tmp_path, enableElectUncleanMaster=True)
    await bench.group_of(1, 2)
    await heartbeat_unfit(bench, 2)
    with pytest.raises(CommandError, match=f"broker 2 is not elected: {LOST}"):
        await bench.elect(2, designate=True)
    bench.lose(1)
    assert (await explained(bench)).new_master_broker_id is None


async def test_the_first_master_of_a_group_is_none_that_has_lost_its_end(tmp_path: Path) -> None:
    """The controllers are new, and the replicas are not."""
    bench = Bench(tmp_path)
    for broker_id in (1, 2):
        await bench.apply(broker_id)
        await bench.register(broker_id)
    await heartbeat_unfit(bench, 1)
    await bench.heartbeat(2)
    with pytest.raises(CommandError, match=LOST):
        await bench.elect(1)
    await bench.run_elections()
    assert group(bench).master_broker_id == 2


async def test_a_master_that_restarts_without_its_end_is_succeeded(bench: Bench) -> None:
    """Its heartbeat is there before its registration ends its term, or without it."""
    await heartbeat_unfit(bench, 1)
    await bench.run_elections()
    assert group(bench).master_broker_id in (2, 3)


async def test_a_refused_term_goes_to_a_member_of_before(bench: Bench) -> None:
    await lose_all_but(bench, 2)
    assert (group(bench).master_broker_id, group(bench).sync_state_set) == (2, {2})
    epoch = group(bench).master_epoch
    await heartbeat_unfit(bench, 2)  # the new process has not heard of its election
    await bench.run_elections()
    assert group(bench).sync_state_set == {2}
    await heartbeat_unfit(bench, 2, refused=epoch)
    found = await explained(bench)
    assert found.verdict == "refused" and found.is_change and found.new_master_broker_id is None
    assert found.code == ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE
    assert found.remark == f"broker 2 has refused its term ({LOST}): the SyncStateSet is [1, 2, 3] again"
    await bench.run_elections()
    assert (group(bench).master_broker_id, group(bench).sync_state_set) == (None, {1, 2, 3})
    assert group(bench).master_epoch == epoch + 1
    assert bench.plugin.proposer.state.elections[-1].reason == found.remark
    assert decode_event(bench.replicator.events[-1]).v == 4  # an older controller stops there
    await bench.heartbeat(3, epoch=1, max_offset=100, confirm_offset=90)
    await bench.run_elections()
    assert (group(bench).master_broker_id, group(bench).sync_state_set) == (3, {3})


async def test_the_next_member_is_elected_at_once_if_it_is_alive(bench: Bench) -> None:
    await lose_all_but(bench, 2)
    await bench.heartbeat(3, epoch=1, max_offset=100, confirm_offset=90)
    await heartbeat_unfit(bench, 2, refused=group(bench).master_epoch)
    await bench.run_elections()
    assert group(bench).master_broker_id == 3


async def test_a_refusal_counts_after_the_master_was_cleared(bench: Bench) -> None:
    """It was dead for so long that its election has ended."""
    await lose_all_but(bench, 2)
    bench.lose(2)
    await bench.run_elections()
    bench.now_ms += bench.plugin.config.scan_inactive_master_interval
    await bench.run_elections()
    assert (group(bench).master_broker_id, group(bench).sync_state_set) == (None, {2})
    await heartbeat_unfit(bench, 2, refused=group(bench).master_epoch)
    await bench.run_elections()
    assert group(bench).sync_state_set == {1, 2, 3}


async def test_a_registration_of_a_process_that_refuses_nothing_ends_the_refused_term(bench: Bench) -> None:
    """An operator has removed damagedRanges: what the process before said about this term no longer holds."""
    await lose_all_but(bench, 2)
    epoch = group(bench).master_epoch
    await heartbeat_unfit(bench, 2, refused=epoch)
    await bench.register(2, epoch=1)
    assert (group(bench).master_broker_id, group(bench).master_epoch) == (None, epoch + 1)


async def test_a_kept_member_takes_over_from_a_master_that_refuses(bench: Bench) -> None:
    """After a hand-over the SyncStateSet has other members, and nothing has to be restored."""
    event = ElectMaster(
        v=2, ts=1, broker_name=GROUP, new_master_broker_id=2, kept=(3,),
        expected_master_epoch=1, expected_sync_state_set_epoch=2,
    )  # fmt: skip
    await bench.replicator.append(msgspec.json.encode(event))
    await heartbeat_unfit(bench, 2, refused=2)
    await bench.run_elections()
    assert group(bench).master_broker_id in (1, 3)


# -- the pure core ---------------------------------------------------------------------------------------


def elected(**changes: object) -> BrokerSet:
    """Broker 2 was elected at masterEpoch 5, out of 1, 2 and 3."""
    replicas = {each: Replica(f"b{each}:1", f"b{each}:1;0") for each in (1, 2, 3)}
    made = BrokerSet("C1", "b", 4, replicas, 2, 5, frozenset({2}), 9, term=Term(2, 5, frozenset({1, 2, 3})))
    return msgspec.structs.replace(made, **changes)


def says(**changes: object) -> LiveView:
    live = LiveInfo("b2:1", 4, 60, 90, is_unfit=True, refused_epoch=5)
    return LiveView({2: msgspec.structs.replace(live, **changes)})


def test_what_proves_that_nobody_has_begun_a_term() -> None:
    assert refused_term(elected(), says()) is not None
    for broker_set, view in (
        (elected(), says(epoch=5)),  # an earlier process of it has begun the term
        (elected(), says(refused_epoch=4)),  # it has not heard of the term, and may begin it
        (elected(), says(refused_epoch=-1)),  # it has lost its epochs
        (elected(), says(is_unfit=False)),
        (elected(), LiveView()),
        (elected(master_epoch=6), says()),  # it was elected again
        (elected(master_broker_id=3, sync_state_set=frozenset({2, 3})), says()),
        (elected(term=None), says()),  # it has changed the SyncStateSet
        (elected(term=Term(2, 5, frozenset({2}))), says()),  # there was no other member
    ):
        assert refused_term(broker_set, view) is None
    assert refused_term(elected(master_broker_id=None, master_epoch=6), says(refused_epoch=6)) is not None


def test_a_master_elected_again_is_still_in_its_first_term() -> None:
    """It may have begun the first one only, so its epoch is compared with that one."""
    before = elected(master_broker_id=None, master_epoch=6)
    event = ElectMaster(
        ts=1,
        broker_name="b",
        new_master_broker_id=2,
        expected_master_epoch=6,
        expected_sync_state_set_epoch=9,
    )
    after = apply(State(brokers={"b": before}), event).after
    assert after is not None and after.term == before.term
    assert refused_term(after, says(refused_epoch=7)) == before.term
    assert refused_term(after, says(refused_epoch=7, epoch=5)) is None


async def test_a_master_that_changes_the_sync_state_set_has_begun_its_term(bench: Bench) -> None:
    await bench.elect(2, designate=True)
    assert group(bench).term == Term(2, 2, frozenset({1, 2, 3}))
    await bench.alter([2, 3], master=2, epoch=2, set_epoch=3)
    assert group(bench).term is None


def test_a_master_that_has_begun_and_is_unfit_is_no_master_any_more() -> None:
    election = elect(elected(), says(epoch=5))
    assert election.verdict is Verdict.NONE and "lost the end" in election.reason


def test_what_an_unfit_replica_confirmed_is_no_measure_for_the_others() -> None:
    """A damaged entry may claim too much."""
    view = LiveView(
        {
            1: LiveInfo("a", 4, 100, 90, damaged_bytes=8),
            2: LiveInfo("b", 4, 60, 10**9, is_unfit=True),
            3: LiveInfo("c", 4, 95, 90),
        }
    )
    assert rank(3, view) > rank(1, view)


def test_a_term_is_part_of_the_state_and_not_of_a_restored_one() -> None:
    state = State(brokers={"b": elected()}, broker_count=3)
    assert state_from_json(state_to_json(state)) == state
    older = state_to_json(state).replace(
        b',"term":{"broker_id":2,"master_epoch":5,"sync_state_set":[1,2,3]}', b""
    )
    assert state_from_json(older).brokers["b"] == elected(term=None)
    restored = restored_state(state, brokers_max=100)
    assert isinstance(restored, State) and restored.brokers["b"].term is None


def test_a_cleaned_replica_does_not_come_back() -> None:
    without = {each: replica for each, replica in elected().replicas.items() if each != 3}
    event = ElectMaster(
        v=4, ts=1, broker_name="b", new_master_broker_id=None, kept=(1, 2, 3),
        expected_master_epoch=5, expected_sync_state_set_epoch=9,
    )  # fmt: skip
    after = apply(State(brokers={"b": elected(replicas=without)}), event).after
    assert after is not None and after.sync_state_set == {1, 2}
    assert not list(after.problems())
    late = apply(State(brokers={"b": elected(sync_state_set_epoch=10)}), event)
    assert late.refused is not None and late.after == elected(sync_state_set_epoch=10)
