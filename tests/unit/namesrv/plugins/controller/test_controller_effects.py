"""NotifyBrokerRoleChanged (1008) is pushed for what was applied, whatever the proposal was answered."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from keelmq.remoting.operation import Unknown, UnknownOutcome
from namesrv.plugins.controller.core.events import ElectMaster, encode_event
from namesrv.plugins.controller.core.tally import NEW_MASTER_ELECTED
from namesrv.plugins.controller.election.role_change_notifier import RoleChangeNotifier
from tests.support.controller_fakes import GROUP, Bench, turns


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    await bench.group_of(1, 2)
    return bench


def pushed(bench: Bench, broker_id: int) -> list[tuple[str | None, str | None]]:
    """(masterBrokerId, masterEpoch) of each 1008 since the last look."""
    fields = [each.ext_fields for each in bench.peers[broker_id].pushed()]
    return [(each.get("masterBrokerId"), each.get("masterEpoch")) for each in fields]


async def test_an_election_of_1002_that_was_answered_unknown_is_pushed_once(bench: Bench) -> None:
    bench.replicator.lose_answers = True
    with pytest.raises(UnknownOutcome):
        await bench.elect(2, designate=True)
    assert bench.broker_set.master_broker_id == 2
    assert [pushed(bench, each) for each in (1, 2)] == [[("2", "2")]] * 2
    assert bench.plugin.tally.total(NEW_MASTER_ELECTED) == 2  # the first one made the group's first master


async def test_an_election_of_its_own_that_was_answered_unknown_is_pushed_once(bench: Bench) -> None:
    bench.replicator.lose_answers = True
    async with bench.reconciling():
        await turns()
        bench.lose(1)
        await turns()
        bench.plugin.elections.check_group(GROUP)
        await turns()
    assert bench.broker_set.master_broker_id == 2
    assert pushed(bench, 2) == [("2", "2")]


def election_of(broker_id: int, bench: Bench) -> bytes:
    return encode_event(
        ElectMaster(
            broker_name=GROUP,
            new_master_broker_id=broker_id,
            expected_master_epoch=bench.broker_set.master_epoch,
            expected_sync_state_set_epoch=bench.broker_set.sync_state_set_epoch,
            reason="designated",
        )
    )


async def test_an_election_that_is_applied_after_its_deadline_is_pushed_then(bench: Bench) -> None:
    bench.replicator.next_outcome = Unknown("no majority answered in time")
    with pytest.raises(UnknownOutcome):
        await bench.elect(2, designate=True)
    assert pushed(bench, 2) == []
    bench.replicator.machine.apply(election_of(2, bench))
    assert [pushed(bench, each) for each in (1, 2)] == [[("2", "2")]] * 2


async def test_a_cleared_master_that_was_answered_unknown_is_pushed_and_elected_for(bench: Bench) -> None:
    bench.replicator.lose_answers = True
    async with bench.reconciling():
        await turns()
        with pytest.raises(UnknownOutcome):
            await bench.clean("1", living=True)
        assert pushed(bench, 2) == [(None, "2")]
        bench.replicator.lose_answers = False
        await turns()
    assert pushed(bench, 2) == [("2", "3")]


async def test_a_follower_that_applies_pushes_nothing(bench: Bench) -> None:
    """It pushes what is true when it becomes active: once for each group."""
    bench.replicator.become(False)
    bench.replicator.machine.apply(election_of(2, bench))
    await turns()
    assert [pushed(bench, each) for each in (1, 2)] == [[], []]
    bench.replicator.become(True)
    await turns()
    assert [pushed(bench, each) for each in (1, 2)] == [[("2", "2")]] * 2


async def test_a_new_leader_serves_others_between_the_groups(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = {f"group-{number}": bench.broker_set for number in range(50)}
    state = msgspec.structs.replace(bench.plugin.machine.state, brokers=groups)
    plugin, told = bench.plugin, list[object]()
    notifier = RoleChangeNotifier(lambda: state, plugin.liveness_view, plugin.settings, lambda: None)
    monkeypatch.setattr(notifier, "notify", told.append)
    task = asyncio.create_task(notifier.notify_all())
    await asyncio.sleep(0)
    assert len(told) == 1
    await task
    assert len(told) == 50


async def test_a_leader_that_is_deposed_at_once_pushes_nothing(bench: Bench) -> None:
    bench.replicator.become(False)
    bench.replicator.become(True)
    bench.replicator.become(False)
    await turns()
    assert [pushed(bench, each) for each in (1, 2)] == [[], []]
