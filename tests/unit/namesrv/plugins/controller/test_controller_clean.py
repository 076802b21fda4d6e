"""1011: what is forgotten, what is refused, and what survives even that: epochs and ids (pitfalls 30-33)."""

import pytest

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operations import controller as wire
from namesrv.plugins.controller.core.apply import apply
from namesrv.plugins.controller.core.events import CleanBrokerData
from namesrv.plugins.controller.core.state import Cleaned
from tests.support.controller_fakes import CLUSTER, GROUP, Bench, refused

CLEAN_REFUSED = ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA


async def next_id(bench: Bench, cluster: str = CLUSTER) -> int:
    reply = await bench.ask(wire.GET_NEXT_BROKER_ID, cluster_name=cluster, broker_name=GROUP)
    assert isinstance(reply.header, wire.GetNextBrokerIdResponse)
    return reply.header.next_broker_id


@pytest.mark.parametrize("ids", ["x", "1;x", "1,2", "0", "-1", "1_0", "٣", "99999999999999999999"])
async def test_a_wrong_id_list_is_2009_16(bench: Bench, ids: str) -> None:
    await bench.group_of(1, 2)
    error = await refused(bench.clean(ids, living=True))
    assert error.code == CLEAN_REFUSED
    assert set(bench.broker_set.replicas) == {1, 2}


async def test_the_living_are_refused(bench: Bench) -> None:
    await bench.group_of(1, 2)
    assert (await refused(bench.clean())).remark == f"Broker {GROUP} is still alive, clean up failure"
    error = await refused(bench.clean("1;2"))
    assert error.code == CLEAN_REFUSED
    assert "[1, 2] is still alive" in error.remark
    bench.lose(2)
    assert "[1] is still alive" in (await refused(bench.clean("1;2"))).remark
    error = await refused(bench.clean(broker_name="b-z"))
    assert error.remark == "Broker b-z is not existed,clean broker data failure."


async def test_a_whole_group_whose_master_was_cleared_but_that_lives_is_refused(bench: Bench) -> None:
    await bench.apply(1)
    await bench.heartbeat(1)
    assert bench.broker_set.master_broker_id is None
    assert "[1] is still alive" in (await refused(bench.clean())).remark


async def test_clean_of_a_dead_slave_lets_its_master_know_30(bench: Bench) -> None:
    """The set epoch grows: the next poll of the master brings it the smaller set."""
    await bench.group_of(1, 2)
    bench.lose(2)
    await bench.clean("2")
    group = bench.broker_set
    assert (set(group.replicas), group.master_broker_id, group.sync_state_set) == ({1}, 1, {1})
    assert (group.master_epoch, group.sync_state_set_epoch) == (1, 3)
    (push,) = bench.peers[1].pushed()
    assert push.ext_fields["syncStateSetEpoch"] == "3"
    error = await refused(bench.alter([1, 2], master=1, epoch=1, set_epoch=2))  # the master's old view
    assert error.code == ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH
    assert (await bench.alter([1], master=1, epoch=1, set_epoch=2)).header == (
        wire.AlterSyncStateSetResponse(new_sync_state_set_epoch=3)
    )


async def test_clean_of_the_master_clears_it_everywhere_30(bench: Bench) -> None:
    await bench.group_of(1, 2)
    bench.lose(1)
    await bench.clean("1")
    group = bench.broker_set
    assert (group.master_broker_id, group.master_address) == (None, None)
    assert (group.sync_state_set, set(group.replicas)) == ({2}, {2})
    assert (group.master_epoch, group.sync_state_set_epoch) == (2, 3)
    await bench.elect(-1)
    assert (bench.broker_set.master_broker_id, bench.broker_set.master_epoch) == (2, 3)
    assert (await bench.register(2)).body == wire.SyncStateSet(sync_state_set=[2], sync_state_set_epoch=4)


async def test_what_only_the_cleaned_had_is_not_given_up_silently_30(bench: Bench) -> None:
    """Upstream drops the record of an empty set and keeps the replicas: everybody gets 2010 for ever."""
    await bench.group_of(1)
    await bench.apply(2)
    await bench.heartbeat(2)
    bench.lose(1)
    error = await refused(bench.clean("1"))
    assert error.code == CLEAN_REFUSED
    assert "enableElectUncleanMaster" in error.remark
    assert bench.broker_set.sync_state_set == {1}


async def test_clean_living_keeps_to_its_ids_31(bench: Bench) -> None:
    await bench.group_of(1, 2, 3)
    await bench.clean("3", living=True)
    assert set(bench.broker_set.replicas) == {1, 2}
    assert bench.broker_set.master_broker_id == 1


async def test_a_repeat_is_a_success_and_a_typo_is_not(bench: Bench) -> None:
    await bench.group_of(1, 2)
    bench.lose(2)
    bench.replicator.lose_answers = True
    assert (await refused(bench.clean("2"))).code == ResponseCode.SYSTEM_ERROR
    bench.replicator.lose_answers = False
    reply = await bench.clean("2")
    assert (reply.code, reply.remark) == (0, f"brokers [2] are no longer in {GROUP}")
    assert "never registered" in (await refused(bench.clean("7"))).remark


async def test_ids_are_never_used_again_33(bench: Bench) -> None:
    await bench.group_of(1, 2)
    bench.lose(2)
    await bench.clean("2")
    assert await next_id(bench) == 3
    for code in ("10.0.0.2:10911;1", "10.0.0.9:10911;9"):  # its owner, and another broker
        error = await refused(bench.apply(2, code))
        assert error.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID
    await bench.apply(3)
    assert (await refused(bench.register(2))).code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED


async def test_epochs_and_ids_survive_the_clean_of_a_whole_group_32(bench: Bench) -> None:
    """A broker that still has masterEpoch 1 takes the next master for newer."""
    await bench.group_of(1, 2)
    await bench.clean(living=True, ids="1;2")
    assert GROUP not in bench.plugin.machine.state.brokers
    assert bench.plugin.machine.state.cleaned[GROUP] == Cleaned(2, 3, 3)
    error = await refused(bench.ask(wire.GET_REPLICA_INFO, broker_name=GROUP))
    assert error.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
    assert await next_id(bench) == 3
    assert (await refused(bench.apply(1))).code == ResponseCode.CONTROLLER_BROKER_ID_INVALID
    await bench.apply(3)
    await bench.heartbeat(3)
    await bench.elect(3)
    group = bench.broker_set
    assert (group.master_broker_id, group.master_epoch, group.sync_state_set_epoch) == (3, 3, 4)
    assert set(group.replicas) == {3}
    assert bench.plugin.machine.state.cleaned == {}


async def test_the_name_is_free_for_another_cluster_afterwards(bench: Bench) -> None:
    await bench.group_of(1)
    assert (await refused(bench.clean(living=True, cluster_name="C2"))).code == 2005  # 48
    await bench.clean(living=True)
    assert await next_id(bench, "C2") == 2


async def test_a_clean_that_was_decided_earlier_is_fenced(bench: Bench) -> None:
    await bench.group_of(1, 2)
    state = bench.plugin.machine.state
    late = CleanBrokerData(
        ts=1, broker_name=GROUP, broker_ids=(1, 2), expected_master_epoch=1, expected_sync_state_set_epoch=2
    )
    await bench.elect(2, designate=True)
    assert apply(bench.plugin.machine.state, late).refused is not None
    cleaned = apply(state, late).state
    assert GROUP not in cleaned.brokers
    again = apply(cleaned, late)
    assert again.refused is not None and again.state.cleaned == cleaned.cleaned


async def test_a_cleaned_group_is_elected_for_no_more(bench: Bench) -> None:
    await bench.group_of(1)
    bench.lose(1)
    await bench.run_elections()
    assert set(bench.plugin.elections.retries) == {GROUP}
    await bench.clean(living=True)
    bench.now_ms += 60_000
    await bench.run_elections()
    assert bench.plugin.elections.retries == {}


async def test_clean_needs_the_leader(bench: Bench) -> None:
    await bench.group_of(1)
    bench.replicator.active = False
    assert (await refused(bench.clean(living=True))).code == ResponseCode.CONTROLLER_NOT_LEADER
