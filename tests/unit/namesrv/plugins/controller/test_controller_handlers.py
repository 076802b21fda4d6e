"""The controller's operations against an in-memory log. Numbers are the pitfalls of RocketMQ's controller."""

import asyncio
import functools
from pathlib import Path
from typing import cast

import pytest

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import CommandError, Unknown
from keelmq.remoting.operations import controller as wire
from keelmq.remoting.operations.route import BROKER_HEARTBEAT
from keelmq.runtime.program import installed_version
from namesrv.core.liveness import BrokerKey
from namesrv.plugins.controller.raft.api import Busy, NotActive
from tests.support.controller_fakes import CLUSTER, GROUP, Bench, FakePeer, address, refused, turns


async def test_the_life_of_a_broker_set(bench: Bench) -> None:
    def row() -> tuple[object, ...]:
        group = bench.broker_set
        return (
            group.master_epoch,
            group.sync_state_set_epoch,
            group.master_broker_id,
            set(group.sync_state_set),
            group.next_broker_id,
        )

    await bench.apply(1)
    assert row() == (0, 0, None, set(), 2)
    await bench.apply(2)
    assert row() == (0, 0, None, set(), 3)
    await bench.heartbeat(1)
    await bench.heartbeat(2)
    await bench.elect(1)
    assert row() == (1, 1, 1, {1}, 3)
    await bench.alter([1, 2], master=1, epoch=1, set_epoch=1)
    assert row() == (1, 2, 1, {1, 2}, 3)
    bench.lose(1)
    await bench.elect(-1)
    assert row() == (2, 3, 2, {2}, 3)
    await bench.heartbeat(1)
    await bench.alter([1, 2], master=2, epoch=2, set_epoch=3)
    assert row() == (2, 4, 2, {1, 2}, 3)
    bench.lose(1)
    bench.lose(2)
    error = await refused(bench.elect(-1))
    assert error.code == ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE
    assert row() == (3, 4, None, {1, 2}, 3)
    await bench.heartbeat(1)
    await bench.elect(1)
    assert row() == (4, 5, 1, {1}, 3)


async def test_no_master_does_not_inflate_epochs_27(bench: Bench) -> None:
    await bench.group_of(1)
    bench.lose(1)
    for _ in range(3):
        await refused(bench.elect(-1))
    assert bench.broker_set.master_epoch == 2


@pytest.mark.parametrize("broker_id", [2, 99])
async def test_first_election_validates_the_id_29(bench: Bench, broker_id: int) -> None:
    await bench.apply(1)
    await bench.apply(2)
    await bench.heartbeat(1)
    error = await refused(bench.elect(broker_id))
    assert error.code in (
        ResponseCode.CONTROLLER_ELECT_MASTER_FAILED,
        ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
    )
    assert bench.broker_set.master_epoch == 0


async def test_elect_with_a_live_master_answers_2011_with_header_and_body(bench: Bench) -> None:
    await bench.group_of(1, 2)
    reply = await bench.elect(2)
    assert reply.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
    assert reply.header == wire.MasterInfo(
        master_broker_id=1, master_address=address(1), master_epoch=1, sync_state_set_epoch=2
    )
    assert reply.body == wire.ElectMasterResponseBody(sync_state_set=[1, 2])
    assert bench.broker_set.master_epoch == 1


async def test_designated_election_of_a_large_id_14(bench: Bench) -> None:
    await bench.group_of(1)
    await bench.apply(300)
    await bench.heartbeat(300)
    await bench.alter([1, 300], master=1, epoch=1, set_epoch=1)
    reply = await bench.elect(300, designate=True)
    assert reply.code == 0
    assert isinstance(reply.body, wire.ElectMasterResponseBody)
    assert reply.body.broker_member_group == wire.BrokerMemberGroup(
        cluster=CLUSTER, broker_name=GROUP, broker_addrs={1: address(1), 300: address(300)}
    )
    assert (bench.broker_set.master_broker_id, bench.broker_set.sync_state_set) == (300, {300})
    assert (await bench.ask(wire.GET_NEXT_BROKER_ID, cluster_name=CLUSTER, broker_name=GROUP)).header == (
        wire.GetNextBrokerIdResponse(cluster_name=CLUSTER, broker_name=GROUP, next_broker_id=301)
    )


async def test_designated_outside_the_set_is_refused(bench: Bench) -> None:
    await bench.group_of(1)
    await bench.apply(2)
    await bench.heartbeat(2)
    error = await refused(bench.elect(2, designate=True))
    assert error.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    assert "SyncStateSet" in error.remark


async def test_unclean_election_only_when_enabled(tmp_path: Path) -> None:
    for enabled in (False, True):
        bench = Bench(tmp_path, enableElectUncleanMaster=enabled)
        await bench.group_of(1)
        await bench.apply(2)
        await bench.heartbeat(2)
        bench.lose(1)
        if enabled:
            await bench.elect(-1)
            assert bench.broker_set.master_broker_id == 2
        else:
            await refused(bench.elect(-1))


@pytest.mark.parametrize(
    ("members", "master", "epoch", "set_epoch", "code"),
    [
        ([1], 2, 1, 2, ResponseCode.CONTROLLER_INVALID_MASTER),
        ([1], 1, 0, 2, ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH),
        ([1], 1, 1, 1, ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH),
        ([1, 9], 1, 1, 2, ResponseCode.CONTROLLER_INVALID_REPLICAS),
        ([1, 2, 3], 1, 1, 2, ResponseCode.CONTROLLER_BROKER_NOT_ALIVE),
        ([2], 1, 1, 2, ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
        # the set as it is comes before who asks and in which epochs, unless it is a repeat (pitfall 43)
        ([1, 2], 2, 1, 2, ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
        ([1, 2], 1, 0, 2, ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
        ([1, 2], 1, 1, 3, ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
        # who is dead comes before the missing master
        ([3], 1, 1, 2, ResponseCode.CONTROLLER_BROKER_NOT_ALIVE),
    ],
)
async def test_alter_refusals(
    bench: Bench, members: list[int], master: int, epoch: int, set_epoch: int, code: int
) -> None:
    await bench.group_of(1, 2)
    await bench.apply(3)
    error = await refused(bench.alter(members, master=master, epoch=epoch, set_epoch=set_epoch))
    assert error.code == code
    assert error.header == wire.AlterSyncStateSetResponse(new_sync_state_set_epoch=0)
    assert bench.broker_set.sync_state_set_epoch == 2


async def test_alter_of_nothing(bench: Bench) -> None:
    error = await refused(bench.alter([1], master=1, epoch=1, set_epoch=1))
    assert error.code == ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
    await bench.apply(1)
    error = await refused(bench.alter([1], master=1, epoch=0, set_epoch=0))  # pitfall 1: no master recorded
    assert error.code == ResponseCode.CONTROLLER_INVALID_MASTER


async def test_repeat_of_an_accepted_alter_succeeds_43(bench: Bench) -> None:
    await bench.group_of(1, 2)
    bench.replicator.lose_answers = True
    error = await refused(bench.alter([1], master=1, epoch=1, set_epoch=2))
    assert error.code == ResponseCode.SYSTEM_ERROR
    assert "repeat" in error.remark
    bench.replicator.lose_answers = False
    reply = await bench.alter([1], master=1, epoch=1, set_epoch=2)
    assert reply.header == wire.AlterSyncStateSetResponse(new_sync_state_set_epoch=3)
    assert reply.body == wire.SyncStateSet(sync_state_set=[1], sync_state_set_epoch=3)


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Unknown("no majority"), ResponseCode.SYSTEM_ERROR),  # 22: never a success
        (NotActive("n1"), ResponseCode.CONTROLLER_NOT_LEADER),
        (Busy(), ResponseCode.SYSTEM_BUSY),
    ],
)
@pytest.mark.promise("S6")
async def test_what_is_not_committed_is_not_a_success(
    bench: Bench, outcome: Unknown | NotActive | Busy, code: int
) -> None:
    bench.replicator.next_outcome = outcome
    assert (await refused(bench.apply(1))).code == code


async def test_apply_broker_id(bench: Bench) -> None:
    assert (await refused(bench.apply(2))).code == ResponseCode.CONTROLLER_BROKER_ID_INVALID
    await bench.apply(1, "a:1;100")
    await bench.apply(1, "a:1;100")  # the answer was lost: the same check code is the same broker
    assert len(bench.replicator.events) == 1
    assert (await refused(bench.apply(1, "b:1;100"))).code == ResponseCode.CONTROLLER_BROKER_ID_INVALID
    await bench.apply(3)
    assert bench.broker_set.next_broker_id == 4  # 33
    assert (await refused(bench.apply(4, "no millis"))).code == ResponseCode.CONTROLLER_INVALID_REQUEST


async def test_one_name_in_two_clusters_is_refused_48(bench: Bench) -> None:
    await bench.group_of(1)
    for request in (
        bench.ask(wire.GET_NEXT_BROKER_ID, cluster_name="C2", broker_name=GROUP),
        bench.register(1, cluster_name="C2"),
        bench.ask(wire.ELECT_MASTER, cluster_name="C2", broker_name=GROUP, broker_id=1),
        bench.ask(
            wire.APPLY_BROKER_ID,
            cluster_name="C2",
            broker_name=GROUP,
            applied_broker_id=2,
            register_check_code="a:1;1",
        ),
    ):
        error = await refused(request)
        assert error.code == ResponseCode.CONTROLLER_INVALID_REQUEST
        assert CLUSTER in error.remark


async def test_register(bench: Bench) -> None:
    assert (await refused(bench.register(1))).code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    await bench.group_of(1, 2)
    assert (await refused(bench.register(3))).code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    header = (await bench.register(2)).header
    assert isinstance(header, wire.RegisterBrokerToControllerResponse)
    assert (header.master_broker_id, header.master_address) == (1, address(1))
    bench.lose(1)
    reply = await bench.register(2)
    assert reply.header == wire.RegisterBrokerToControllerResponse(cluster_name=CLUSTER, broker_name=GROUP)
    assert reply.body == wire.SyncStateSet(sync_state_set=[1, 2], sync_state_set_epoch=2)


async def test_a_master_with_a_new_address_is_answered_the_new_one_42(bench: Bench) -> None:
    await bench.group_of(1)
    bench.liveness.connection_closed(bench.peers.pop(1).connection_id, bench.now_ms)
    await bench.register(1, "10.9.9.9:10911")
    await bench.heartbeat(1, broker_addr="10.9.9.9:10911")
    header = (await bench.elect(1)).header
    assert isinstance(header, wire.MasterInfo)
    assert (header.master_address, header.master_epoch) == ("10.9.9.9:10911", 3)


async def test_an_id_from_lost_controllers_is_not_taken_over(bench: Bench) -> None:
    """The broker that has it now may be down: the log of the other one is not its log. S3."""
    await bench.group_of(1)
    code = bench.broker_set.replicas[1].check_code
    bench.lose(1)
    error = await refused(bench.register(1, "10.9.9.9:10911", register_check_code="10.9.9.9:10911;5"))
    assert f"belongs to another broker, registered at {address(1)}" in str(error)
    await bench.register(1, "10.9.9.9:10911", register_check_code=code)
    assert bench.broker_set.replicas[1].address == "10.9.9.9:10911"


async def test_an_id_far_above_the_next_one_is_refused(bench: Bench) -> None:
    """It would use up the ids of the group."""
    await bench.apply(1)
    error = await refused(bench.apply(2**62))
    assert error.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID and "the next id is 2" in str(error)
    await bench.apply(1_002)
    assert bench.broker_set.next_broker_id == 1_003


async def test_a_copy_of_a_broker_that_works_does_not_get_its_id(bench: Bench) -> None:
    """Both would be master of one epoch, and both would acknowledge messages. S3."""
    await bench.group_of(1, 2)
    before = bench.broker_set
    for broker_id in (1, 2):
        with pytest.raises(CommandError, match=f"brokerId {broker_id} is in use at {address(broker_id)}"):
            await bench.register(broker_id, "10.9.9.9:10911")
    assert bench.broker_set == before
    await bench.heartbeat(2, broker_addr="10.9.9.9:10911")  # it moved, and this heartbeat overtook its 1003
    await bench.register(2, "10.9.9.9:10911")
    assert bench.broker_set.replicas[2].address == "10.9.9.9:10911"


async def test_a_copy_that_tells_the_address_of_the_broker_does_not_get_its_id(bench: Bench) -> None:
    """brokerIP1 was copied, too: only the connection tells them apart."""
    await bench.group_of(1)
    before = bench.broker_set
    header = {"cluster_name": CLUSTER, "broker_name": GROUP, "broker_id": 1, "broker_address": address(1)}
    ask = functools.partial(bench.ask, wire.REGISTER_BROKER_TO_CONTROLLER, None, **header)
    error = await refused(ask(FakePeer(99)))
    assert error.code == ResponseCode.CONTROLLER_INVALID_REQUEST and "is in use at" in str(error)
    assert bench.broker_set == before
    await ask(bench.peers[1])
    assert bench.broker_set.master_epoch > before.master_epoch, "the broker itself"
    bench.now_ms += 1_501
    await ask(FakePeer(99))  # its process was restarted, and the former connection has never closed


async def test_a_new_active_controller_waits_for_the_owner_before_it_gives_an_id_away(bench: Bench) -> None:
    """A copy that asks again and again would be there before the next heartbeat of the owner."""
    await bench.group_of(1)
    bench.liveness.forget(bench.broker_set.key(1))
    bench.plugin.liveness_view.became_active(3_000)
    error = await refused(bench.register(1, "10.9.9.9:10911"))
    assert error.code == ResponseCode.SYSTEM_BUSY and f"may be in use at {address(1)}" in str(error)
    await bench.heartbeat(1)
    error = await refused(bench.register(1, "10.9.9.9:10911"))
    assert error.code == ResponseCode.CONTROLLER_INVALID_REQUEST
    bench.liveness.forget(bench.broker_set.key(1))
    bench.now_ms += 3_000
    await bench.register(1, "10.9.9.9:10911")
    assert bench.broker_set.replicas[1].address == "10.9.9.9:10911", "it was not heard in time"


async def test_who_was_replaced_is_told_when_it_asks(bench: Bench) -> None:
    """A process with a copy of its disk took its place while it was paused: it would go on with the id."""
    await bench.group_of(1, 2)
    await bench.heartbeat(2, broker_addr="10.9.9.9:10911")
    await bench.register(2, "10.9.9.9:10911")
    ask = functools.partial(bench.ask, wire.GET_REPLICA_INFO, broker_name=GROUP)
    error = await refused(ask(broker_id=2, broker_address=address(2)))
    assert error.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    assert "brokerId 2 of broker-a is registered at 10.9.9.9:10911 now" in str(error)
    for known in ({"broker_id": 2, "broker_address": "10.9.9.9:10911"}, {}, {"broker_id": 9}):
        assert (await ask(**known)).header.master_broker_id == 1  # type: ignore[union-attr]


async def test_a_process_that_was_replaced_does_not_get_its_id_back_by_its_heartbeats(bench: Bench) -> None:
    """It was paused, and its connections were closed meanwhile: it opens newer ones than the broker that has
    its id now. What that one has acknowledged would be lost with the id. S1."""
    moved = "10.9.9.9:10911"
    await bench.group_of(1)
    bench.peers.pop(1)
    bench.now_ms += 1_501
    await bench.register(1, moved)
    await bench.heartbeat(1, broker_addr=moved)
    present = bench.broker_set
    bench.peers[1] = FakePeer(98)
    error = await refused(bench.heartbeat(1))
    assert error.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    assert f"brokerId 1 of broker-a is registered at {moved} now" in str(error)
    error = await refused(bench.register(1))
    assert f"brokerId 1 is in use at {moved}" in str(error)
    assert bench.broker_set == present
    bench.now_ms += 1_501
    await bench.heartbeat(1)  # the present one is silent
    bench.peers[1] = FakePeer(99)
    await bench.heartbeat(1, broker_addr=moved)
    assert f"brokerId 1 is in use at {moved}" in str(await refused(bench.register(1))), (
        "it was cut off for a moment"
    )


async def test_a_master_at_another_address_begins_a_new_term_whatever_its_disk_says(bench: Bench) -> None:
    """It has an older copy of the disk, without the epoch in which the process before has acknowledged."""
    await bench.group_of(1)
    await bench.heartbeat(1, broker_addr="10.9.9.9:10911")
    await bench.register(1, "10.9.9.9:10911", epoch=0)
    assert bench.broker_set.replicas[1].address == "10.9.9.9:10911"
    assert bench.broker_set.master_epoch > 1


async def test_a_master_that_begins_anew_is_followed_by_another_member(bench: Bench) -> None:
    """Its machine may have lost what was acknowledged; the others of the set have it. S1, S2."""
    await bench.group_of(1, 2)
    header = (await bench.register(1)).header
    assert isinstance(header, wire.RegisterBrokerToControllerResponse)
    assert (header.master_broker_id, header.master_epoch) == (2, 2)
    (push,) = bench.peers[2].pushed()
    assert push.ext_fields["masterBrokerId"] == "2"


async def test_a_master_that_begins_anew_alone_begins_a_new_term(bench: Bench) -> None:
    """What it writes now is not what its replicas got from the process before: another epoch tells."""
    await bench.group_of(1, 2)
    await bench.alter([1], master=1, epoch=1, set_epoch=2)
    reply = await bench.register(1)
    assert reply.header == wire.RegisterBrokerToControllerResponse(cluster_name=CLUSTER, broker_name=GROUP)
    assert (bench.broker_set.master_broker_id, bench.broker_set.master_epoch) == (None, 2)
    await bench.elect(1)
    assert (bench.broker_set.master_broker_id, bench.broker_set.master_epoch) == (1, 3)
    epochs = bench.broker_set
    await bench.register(2)
    assert bench.broker_set == epochs, "a slave changes nothing"


async def test_a_registration_that_comes_twice_or_late_ends_no_term(bench: Bench) -> None:
    """Its sender has been elected meanwhile, and had written nothing in this term when it asked."""
    await bench.group_of(1, 2)
    before = bench.broker_set
    await bench.register(1, epoch=before.master_epoch - 1)
    assert bench.broker_set == before
    await bench.register(1, epoch=before.master_epoch)
    assert bench.broker_set.master_broker_id == 2, "a process that had written in this term has ended"


async def test_reads(bench: Bench) -> None:
    error = await refused(bench.ask(wire.GET_REPLICA_INFO, broker_name=GROUP))
    assert error.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
    await bench.group_of(1, 2)
    await bench.apply(3)
    bench.lose(1)
    reply = await bench.ask(wire.GET_REPLICA_INFO, broker_name=GROUP)
    assert isinstance(reply.header, wire.MasterInfo)
    assert reply.header.master_broker_id == 1  # recorded, alive or not
    reply = await bench.ask(wire.GET_SYNC_STATE_DATA, [GROUP, "unknown"])
    assert isinstance(reply.body, wire.BrokerReplicasInfo)
    info = reply.body.replicas_info_table[GROUP]
    assert [(each.broker_id, each.alive) for each in info.in_sync_replicas] == [(1, False), (2, True)]
    assert [each.broker_id for each in info.not_in_sync_replicas] == [3]  # 18
    assert list(reply.body.replicas_info_table) == [GROUP]
    assert (
        await refused(bench.ask(wire.GET_SYNC_STATE_DATA, None))
    ).code == ResponseCode.CONTROLLER_INVALID_REQUEST


async def test_a_follower_answers_2007_but_says_who_leads(bench: Bench) -> None:
    bench.replicator.active = False
    for request in (
        bench.apply(1),
        bench.register(1),
        bench.elect(1),
        bench.alter([1], master=1, epoch=1, set_epoch=1),
        bench.ask(wire.GET_REPLICA_INFO, broker_name=GROUP),
        bench.ask(wire.GET_SYNC_STATE_DATA, [GROUP]),
        bench.ask(wire.GET_NEXT_BROKER_ID, cluster_name=CLUSTER, broker_name=GROUP),
    ):
        error = await refused(request)
        assert (error.code, error.remark, error.header) == (
            ResponseCode.CONTROLLER_NOT_LEADER, "The controller is not in leader state", None,
        )  # fmt: skip
    reply = await bench.ask(wire.GET_METADATA_INFO)
    assert reply.header.keelmq_version == installed_version() != ""
    assert reply.header == wire.ControllerMetadata(
        group="group1",
        controller_leader_id="n1",
        controller_leader_address="127.0.0.1:9868",
        is_leader=False,
        peers="n0:127.0.0.1:9878;n1:127.0.0.1:9868;",
        self_id="n0",
        raft_address="127.0.0.1:10878",
        keelmq_version=installed_version(),
    )


async def test_heartbeat_without_id_5(bench: Bench) -> None:
    request = {"cluster_name": CLUSTER, "broker_name": GROUP, "broker_addr": "a:1"}
    error = await refused(bench.ask(BROKER_HEARTBEAT, None, FakePeer(1), **request))
    assert error.code == ResponseCode.CONTROLLER_INVALID_REQUEST
    assert list(bench.liveness.keys()) == []


async def found_dead(bench: Bench) -> None:
    for key in bench.liveness.scan_not_active(bench.now_ms):
        for subscriber in bench.subscribers:
            subscriber(cast(BrokerKey, key))
    await turns()


async def test_a_lost_master_is_replaced_at_once_and_everybody_is_told(bench: Bench) -> None:
    await bench.group_of(1, 2, 3)
    await bench.heartbeat(2, epoch=1, max_offset=5)
    await bench.heartbeat(3, epoch=1, max_offset=5 + 2**32)  # 25
    async with bench.reconciling():
        await turns()
        bench.lose(1)
        await turns()
    assert (bench.broker_set.master_broker_id, bench.broker_set.master_epoch) == (3, 2)
    for broker_id in (2, 3):
        (push,) = bench.peers[broker_id].pushed()
        assert (push.code, push.is_oneway) == (1008, True)
        assert push.ext_fields == {
            "masterBrokerId": "3", "masterEpoch": "2", "syncStateSetEpoch": "3",
            "masterAddress": address(3), "brokerName": GROUP,
        }  # fmt: skip
        assert push.body == b'{"syncStateSet":[3],"syncStateSetEpoch":3}'


async def test_a_lost_slave_changes_nothing(bench: Bench) -> None:
    await bench.group_of(1, 2)
    async with bench.reconciling():
        await turns()
        bench.lose(2)
        await turns()
    assert (bench.broker_set.master_epoch, bench.broker_set.sync_state_set) == (1, {1, 2})


async def test_a_group_without_master_elects_when_a_member_comes_28(bench: Bench) -> None:
    await bench.group_of(1)
    async with bench.reconciling():
        await turns()
        bench.lose(1)
        await turns()
        # the outage is short: nobody else may lead, and the master is not cleared at once
        assert (bench.broker_set.master_broker_id, bench.broker_set.master_epoch) == (1, 1)
        assert "no member" in bench.plugin.elections.retries[GROUP].reason
        bench.now_ms += 6_000
        bench.plugin.elections.check_all_groups()
        await turns()
        assert (bench.broker_set.master_broker_id, bench.broker_set.master_epoch) == (None, 2)
        for _ in range(3):
            bench.now_ms += 6_000
            bench.plugin.elections.check_all_groups()
            await turns()
        assert bench.broker_set.master_epoch == 2  # 27
        await bench.heartbeat(1)
        await turns()
    assert (bench.broker_set.master_broker_id, bench.broker_set.master_epoch) == (1, 3)
    assert bench.plugin.elections.retries == {}
    assert bench.peers[1].pushed()[-1].ext_fields["masterEpoch"] == "3"


async def test_a_new_leader_waits_before_it_judges_34(bench: Bench) -> None:
    await bench.group_of(1, 2)
    for key in list(bench.liveness.keys()):
        bench.liveness.forget(key)  # a restarted controller: it never heard anybody
    bench.peers.clear()
    bench.replicator.become(False)
    async with bench.reconciling():
        bench.replicator.become(True)
        await bench.heartbeat(2)  # the first to be heard is not the master
        await turns()
        assert bench.broker_set.master_broker_id == 1
        bench.now_ms += 2_999
        bench.plugin.elections.check_all_groups()
        await bench.heartbeat(2)
        await turns()
        assert bench.broker_set.master_broker_id == 1
        bench.now_ms += 2
        bench.plugin.elections.check_all_groups()
        await turns()
    assert (bench.broker_set.master_broker_id, bench.broker_set.master_epoch) == (2, 2)


async def test_a_new_leader_knows_whom_it_lost_itself(bench: Bench) -> None:
    """A missed event (2): the master died while nobody led. Its loss was heard here, so there is no wait."""
    await bench.group_of(1, 2)
    bench.replicator.become(False)
    async with bench.reconciling():
        bench.lose(1)
        await turns()
        assert bench.broker_set.master_broker_id == 1
        bench.replicator.become(True)
        await turns()
    assert bench.broker_set.master_broker_id == 2


async def test_a_new_leader_presumes_a_master_whose_connection_closed_long_before(bench: Bench) -> None:
    """The leader before it heard that master, or would have elected another; its lease may still run."""
    await bench.group_of(1, 2)
    bench.replicator.become(False)
    async with bench.reconciling():
        bench.lose(1)
        bench.now_ms += 1_001
        await bench.heartbeat(2)
        bench.replicator.become(True)
        await turns()
        assert bench.broker_set.master_broker_id == 1
        bench.now_ms += 2_999
        await bench.heartbeat(2)
        bench.plugin.elections.check_all_groups()
        await turns()
        assert bench.broker_set.master_broker_id == 1
        bench.now_ms += 1
        bench.plugin.elections.check_all_groups()
        await turns()
    assert bench.broker_set.master_broker_id == 2


async def test_a_new_leader_does_not_wait_for_a_member_lost_long_before(bench: Bench) -> None:
    """It never acknowledged anything: a dead master's election would wait for it in vain."""
    await bench.group_of(1, 2, 3)
    bench.replicator.become(False)
    async with bench.reconciling():
        bench.lose(3)
        bench.now_ms += 1_001
        await bench.heartbeat(2)
        bench.lose(1)
        bench.replicator.become(True)
        await turns()
    assert bench.broker_set.master_broker_id == 2


async def test_an_election_whose_outcome_is_unknown_is_tried_again(bench: Bench) -> None:
    await bench.group_of(1, 2)
    async with bench.reconciling():
        await turns()
        bench.replicator.next_outcome = Unknown("no majority")
        bench.lose(1)
        await turns()
        assert bench.broker_set.master_broker_id == 1
        assert "unknown" in bench.plugin.elections.retries[GROUP].reason
        bench.now_ms += 101
        bench.plugin.elections.check_group(GROUP)
        await turns()
    assert bench.broker_set.master_broker_id == 2


async def test_a_late_close_of_an_old_connection_evicts_nobody_23(bench: Bench) -> None:
    await bench.group_of(1, 2)
    old = bench.peers.pop(1)
    await bench.heartbeat(1)  # reconnected
    bench.liveness.connection_closed(old.connection_id, bench.now_ms)
    bench.now_ms += 60
    assert bench.liveness.scan_not_active(bench.now_ms) == []
    assert (await bench.elect(2)).code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST


async def test_who_comes_back_hears_who_is_master(bench: Bench) -> None:
    await bench.group_of(1, 2)
    bench.lose(2)
    await bench.heartbeat(2)
    (push,) = bench.peers[2].pushed()
    assert push.ext_fields["masterBrokerId"] == "1"


async def test_a_dead_follower_elects_nobody(bench: Bench) -> None:
    """#8380: with jRaft, RocketMQ elected when a follower was dead and the master alive."""
    await bench.group_of(1, 2)
    async with bench.reconciling():
        await turns()
        bench.lose(2)
        for _ in range(3):
            bench.now_ms += 6_000
            await bench.heartbeat(1)
            bench.plugin.elections.check_all_groups()
            await turns()
    assert (bench.broker_set.master_broker_id, bench.broker_set.master_epoch) == (1, 1)
    assert bench.plugin.elections.retries == {}


async def test_a_master_that_dies_during_its_election_is_noticed(bench: Bench) -> None:
    await bench.group_of(1, 2)
    async with bench.reconciling():
        await turns()
        bench.replicator.gate = asyncio.Event()
        bench.lose(1)
        await turns()
        assert bench.broker_set.master_broker_id == 2  # applied; its proposer has not heard so yet
        bench.lose(2)
        await bench.heartbeat(1)
        await turns()
        bench.replicator.gate.set()
        await turns()
        assert "SyncStateSet [2]" in bench.plugin.elections.retries[GROUP].reason


async def test_nobody_is_elected_whose_connection_broke_with_the_masters(bench: Bench) -> None:
    """A rack without power for a moment: whoever is back first is master, not whoever was found dead last."""
    await bench.group_of(1, 2, 3)
    async with bench.reconciling():
        await turns()
        for broker_id in (1, 2, 3):
            bench.liveness.connection_closed(bench.peers.pop(broker_id).connection_id, bench.now_ms)
            bench.now_ms += 20
        await found_dead(bench)  # the first one, 9 ms before the second's grace ends
        assert (bench.broker_set.master_broker_id, bench.broker_set.sync_state_set) == (1, {1, 2, 3})
        assert "waiting to hear" in bench.plugin.elections.retries[GROUP].reason
        bench.now_ms += 100
        await found_dead(bench)
        assert "no member" in bench.plugin.elections.retries[GROUP].reason
        await bench.heartbeat(3)
        await turns()
    assert (bench.broker_set.master_broker_id, bench.broker_set.master_epoch) == (3, 2)


async def test_nobody_is_elected_who_fell_silent_with_the_master(bench: Bench) -> None:
    """Without power no connection closes: the last heartbeats are a little apart, and so are the timeouts."""
    await bench.group_of(1, 2)
    async with bench.reconciling():
        await bench.heartbeat(1)
        bench.now_ms += 300
        await bench.heartbeat(2)
        bench.now_ms += 2_701
        await found_dead(bench)
        assert (bench.broker_set.master_broker_id, bench.broker_set.sync_state_set) == (1, {1, 2})
        bench.now_ms += 1
        await bench.heartbeat(2)  # it lives
        bench.now_ms += 100
        bench.plugin.elections.check_group(GROUP)
        await turns()
    assert (bench.broker_set.master_broker_id, bench.broker_set.master_epoch) == (2, 2)


@pytest.mark.parametrize("reconnects", [False, True])
async def test_a_doubted_member_that_sends_heartbeats_again_is_elected_at_once(
    bench: Bench, reconnects: bool
) -> None:
    """The tries become rare while it is waited for; its heartbeat does not wait for the next one."""
    await bench.group_of(1, 2)
    async with bench.reconciling():
        await turns()
        bench.now_ms += 1_600 * (not reconnects)  # over half of its timeout
        if reconnects:
            bench.liveness.connection_closed(bench.peers.pop(2).connection_id, bench.now_ms + 51)
        bench.lose(1)
        await turns()
        for _ in range(4):
            bench.plugin.elections.check_group(GROUP)
            await turns()
        retry = bench.plugin.elections.retries[GROUP]
        assert "waiting to hear" in retry.reason
        assert retry.due_ms - bench.now_ms > 1_000
        assert bench.broker_set.master_broker_id == 1
        await bench.heartbeat(2)
        await turns()
    assert (bench.broker_set.master_broker_id, bench.broker_set.master_epoch) == (2, 2)


async def test_a_heartbeat_after_the_timeout_that_no_scan_has_seen_counts_as_coming_back(
    bench: Bench,
) -> None:
    await bench.group_of(1, 2)
    bench.now_ms += 3_001
    await bench.heartbeat(2)
    (push,) = bench.peers[2].pushed()
    assert push.ext_fields["masterBrokerId"] == "1"
    await bench.heartbeat(2)
    assert not bench.peers[2].pushed()


async def test_an_elected_one_that_dies_at_once_is_elected_again_when_it_is_back(bench: Bench) -> None:
    """It alone may have acknowledged something; the scan goes on asking, and says for whom it waits."""
    await bench.group_of(1, 2, 3)
    async with bench.reconciling():
        await turns()
        bench.lose(1)
        await turns()
        assert bench.broker_set.master_broker_id == 2
        bench.lose(2)
        await turns()
        scan_ms = bench.plugin.config.scan_inactive_master_interval
        for _ in range(3):
            bench.now_ms += scan_ms
            for broker_id in (1, 3):
                await bench.heartbeat(broker_id)
            bench.plugin.elections.check_all_groups()
            await turns()
        assert bench.broker_set.master_broker_id is None
        assert "no member of the SyncStateSet [2] is alive" in bench.plugin.elections.retries[GROUP].reason
        await bench.heartbeat(2)
        await turns()
    assert (bench.broker_set.master_broker_id, bench.broker_set.master_epoch) == (2, 4)


async def test_a_deposed_leader_spreads_nothing_that_it_remembers_38(bench: Bench) -> None:
    await bench.group_of(1, 2)
    bench.replicator.deposed = True
    for request in (
        bench.elect(2),  # would be 2011 with the old master
        bench.register(2),
        bench.register(9),  # would be "register anew"
        bench.apply(1, "b:1;1"),  # would be "taken"
        bench.alter([1, 2], master=1, epoch=1, set_epoch=1),  # would be "done already"
        bench.ask(wire.GET_REPLICA_INFO, broker_name=GROUP),
        bench.ask(wire.GET_NEXT_BROKER_ID, cluster_name=CLUSTER, broker_name=GROUP),
    ):
        assert (await refused(request)).code == ResponseCode.CONTROLLER_NOT_LEADER
