"""The controller's part in finding hung masters, on virtual time."""

from pathlib import Path

import pytest

from keelmq.remoting.command import decode
from keelmq.remoting.operations.route import BROKER_HEARTBEAT
from namesrv.plugins.controller.core.elect import LossReason
from namesrv.plugins.controller.core.hang import HEARTBEAT_SILENCE_MIN_MS, SELDOM_SILENCE_MIN_MS
from namesrv.plugins.controller.election.hung_masters import CONFIRM_MS
from tests.support.controller_fakes import CLUSTER, GROUP, Bench, FakePeer, address

TERM = 1


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    """Broker 1 is master of 1, 2 and 3, and has been beating often for a while."""
    bench = Bench(tmp_path)
    await bench.group_of(1, 2, 3)
    await all_ack_heartbeats(bench)
    return bench


async def all_ack_heartbeats(bench: Bench, count: int = 5, *, epoch: int = TERM) -> None:
    for _ in range(count):
        bench.now_ms += 200
        await bench.heartbeat(1, all_ack_in_sync_state_set=True, epoch=epoch)


async def silent(bench: Bench, *slaves: int, epoch: int | None = TERM) -> None:
    for slave in slaves:
        await bench.heartbeat(slave, silent_master_epoch=epoch)


async def inactive(bench: Bench) -> bool:
    """Whether the master is found not active when the confirmation is over."""
    bench.now_ms += CONFIRM_MS
    return bench.liveness.scan_not_active(bench.now_ms) == [bench.broker_set.key(1)]


async def test_another_one_is_elected_when_all_say_that_it_is_silent(bench: Bench) -> None:
    bench.now_ms += HEARTBEAT_SILENCE_MIN_MS
    await silent(bench, 2, 3)
    assert bench.plugin.hung_masters.found == 1
    assert await inactive(bench)
    await bench.elect(-1)
    assert bench.broker_set.master_broker_id in (2, 3)
    assert b"master 1 is not active (hung)" in bench.replicator.events[-1]


async def test_its_next_heartbeat_makes_it_active_again(bench: Bench) -> None:
    bench.now_ms += HEARTBEAT_SILENCE_MIN_MS
    await silent(bench, 2, 3)
    await bench.heartbeat(1, all_ack_in_sync_state_set=True, epoch=TERM)
    assert not await inactive(bench)
    loss = bench.plugin.liveness_view.view(bench.broker_set).lost
    assert loss == {}
    await bench.plugin.hung_masters.stop()


async def test_the_view_says_how_it_was_found(bench: Bench) -> None:
    bench.now_ms += HEARTBEAT_SILENCE_MIN_MS
    await silent(bench, 2, 3)
    assert await inactive(bench)
    assert bench.plugin.liveness_view.view(bench.broker_set).lost[1].reason is LossReason.HUNG


@pytest.mark.parametrize("slaves", [(), (2,)])
async def test_half_of_the_slaves_are_not_enough(bench: Bench, slaves: tuple[int, ...]) -> None:
    bench.now_ms += HEARTBEAT_SILENCE_MIN_MS
    await silent(bench, *slaves)
    assert bench.plugin.hung_masters.found == 0


async def test_a_slave_that_is_not_active_has_no_say(bench: Bench) -> None:
    bench.lose(3)
    await all_ack_heartbeats(bench)
    bench.now_ms += HEARTBEAT_SILENCE_MIN_MS
    await silent(bench, 2)
    assert bench.plugin.hung_masters.found == 1


@pytest.mark.parametrize("epoch", [None, TERM - 1, TERM + 1])
async def test_silence_of_another_term_does_not_count(bench: Bench, epoch: int | None) -> None:
    bench.now_ms += HEARTBEAT_SILENCE_MIN_MS
    await silent(bench, 2, 3, epoch=epoch)
    assert bench.plugin.hung_masters.found == 0


async def test_heartbeats_of_another_term_do_not_count(bench: Bench) -> None:
    await all_ack_heartbeats(bench, epoch=TERM - 1)
    bench.now_ms += HEARTBEAT_SILENCE_MIN_MS
    await silent(bench, 2, 3)
    assert bench.plugin.hung_masters.found == 0


async def test_a_master_whose_heartbeats_arrive_stays(bench: Bench) -> None:
    bench.now_ms += HEARTBEAT_SILENCE_MIN_MS - 1
    await silent(bench, 2, 3)
    assert bench.plugin.hung_masters.found == 0, "not yet"
    await bench.plugin.hung_masters.stop()


async def test_a_master_without_all_ack_has_its_whole_timeout(tmp_path: Path) -> None:
    """Also one of RocketMQ, and one that has just been switched over."""
    bench = Bench(tmp_path)
    await bench.group_of(1, 2, 3)
    await all_ack_heartbeats(bench)
    await bench.heartbeat(1, epoch=TERM)
    bench.now_ms += 2_999
    await silent(bench, 2, 3)
    assert bench.plugin.hung_masters.found == 0
    assert bench.liveness.is_active(bench.broker_set.key(1), bench.now_ms)


async def test_long_gaps_of_the_last_minute_ask_for_a_longer_one(bench: Bench) -> None:
    bench.now_ms += 1_000
    await bench.heartbeat(1, all_ack_in_sync_state_set=True, epoch=TERM)
    bench.now_ms += 1_499
    await silent(bench, 2, 3)
    assert bench.plugin.hung_masters.found == 0
    bench.now_ms += 1
    await silent(bench, 2, 3)
    assert bench.plugin.hung_masters.found == 1


async def test_only_the_active_controller_looks(bench: Bench) -> None:
    bench.replicator.active = False
    bench.now_ms += HEARTBEAT_SILENCE_MIN_MS
    await silent(bench, 2, 3)
    assert bench.plugin.hung_masters.found == 0


async def passive(bench: Bench, *, count: int = 3) -> None:
    """This controller is not active, and gets the master's heartbeats as often as any controller."""
    bench.replicator.active = False
    for _ in range(count):
        bench.now_ms += 1_000
        await bench.heartbeat(1, all_ack_in_sync_state_set=True, epoch=TERM)


def activate(bench: Bench) -> None:
    bench.replicator.active = True
    for changed in bench.replicator.callbacks:
        changed(True)


async def test_a_new_one_finds_the_master_that_was_lost_with_the_leading_controller(bench: Bench) -> None:
    """Their machine, or zone: in the grace window, by what this controller got before it was active."""
    await passive(bench)
    bench.now_ms += SELDOM_SILENCE_MIN_MS
    await silent(bench, 2, 3)
    assert bench.plugin.hung_masters.found == 0, "another controller may hear it"
    activate(bench)
    assert bench.plugin.liveness_view.grace_left_ms() > 0
    assert bench.plugin.hung_masters.found == 1, "the replicas had reported it"
    assert await inactive(bench)
    view = bench.plugin.liveness_view.view(bench.broker_set)
    assert view.presumed == frozenset() and view.lost[1].reason is LossReason.HUNG
    await bench.elect(-1)
    assert bench.broker_set.master_broker_id in (2, 3)
    await bench.plugin.elections.stop()


async def test_a_new_one_waits_for_a_heartbeat_that_may_still_come(bench: Bench) -> None:
    await passive(bench)
    bench.now_ms += SELDOM_SILENCE_MIN_MS - 1
    activate(bench)
    await silent(bench, 2, 3)
    assert bench.plugin.hung_masters.found == 0
    bench.now_ms += 1
    await silent(bench, 2, 3)
    assert bench.plugin.hung_masters.found == 1
    await bench.plugin.elections.stop()
    await bench.plugin.hung_masters.stop()


async def test_a_new_one_does_not_judge_by_a_single_heartbeat(bench: Bench) -> None:
    """The master may send one every ten seconds."""
    await passive(bench, count=1)
    activate(bench)
    bench.now_ms += 2_900
    await silent(bench, 2, 3)
    assert bench.plugin.hung_masters.found == 0
    await bench.plugin.elections.stop()


async def test_heartbeats_that_come_often_again_are_missed_sooner(bench: Bench) -> None:
    await passive(bench)
    activate(bench)
    await all_ack_heartbeats(bench)
    bench.now_ms += HEARTBEAT_SILENCE_MIN_MS
    await silent(bench, 2, 3)
    assert bench.plugin.hung_masters.found == 1
    await bench.plugin.elections.stop()


async def test_it_can_be_switched_off_at_run_time(bench: Bench) -> None:
    await bench.configure("controllerHungMasterDetectionEnable=false")
    bench.now_ms += HEARTBEAT_SILENCE_MIN_MS
    await silent(bench, 2, 3)
    assert bench.plugin.hung_masters.found == 0


async def answer(bench: Bench, **values: object) -> dict[str, str]:
    """The header fields of the answer to a heartbeat."""
    fast_path = bench.plugin.table.fast_path[BROKER_HEARTBEAT.code]
    fields = {
        "clusterName": CLUSTER, "brokerName": GROUP, "brokerId": "1", "brokerAddr": address(1),
        **{key: str(value) for key, value in values.items()},
    }  # fmt: skip
    frame = fast_path.handler(fast_path.lenient(904, 1, 0, fields), b"", FakePeer(77))
    assert frame is not None
    return dict(decode(frame[4:]).ext_fields or {})


async def test_only_a_master_with_all_ack_is_asked_for_heartbeats_often(bench: Bench) -> None:
    """A broker of RocketMQ gets the answer that it always got."""
    assert await answer(bench) == {}
    assert await answer(bench, silentMasterEpoch=1) == {}
    assert await answer(bench, allAckInSyncStateSet="true") == {"findsHungMasters": "true"}
    bench.replicator.active = False
    assert await answer(bench, allAckInSyncStateSet="true") == {}
