"""Whole clusters on virtual time. Every seed is another weather and another row of faults."""

from functools import cache

import pytest

from broker.core.sync_state_set import SyncStateSetManager
from namesrv.plugins.controller.core.events import AlterSyncStateSet, ApplyBrokerId, encode_event
from tests.sim.checkers import Checker, Violation, check_identities, check_log
from tests.sim.group import Group
from tests.sim.kinds import KINDS, found_seeds
from tests.sim.main import repeat_command, run_one
from tests.support.slices import first

FAST, SLOW = range(12), range(12, 600)


@cache
def run(seed: int) -> Group:
    print(f"seed {seed}")
    group = Group(seed)
    try:
        group.run()
    except AssertionError:
        print("\n".join(group.world.history))
        raise
    return group


@pytest.mark.parametrize("seed", [*FAST, *found_seeds("group")])
def test_nothing_acknowledged_is_lost(seed: int) -> None:
    run(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", SLOW)
def test_nothing_acknowledged_is_lost_in_more_weather(seed: int) -> None:
    run(seed)


def test_the_world_has_faults_in_it() -> None:
    """A quiet simulator proves nothing: masters change, replicas are truncated, controllers change."""
    histories = ["\n".join(run(seed).world.history) for seed in range(6)]
    assert sum("kill b" in history for history in histories) >= 3
    assert any("truncates" in history for history in histories)
    assert any("leads, epoch 2" in history for history in histories)
    assert any("is master, epoch 3" in history for history in histories)


def test_the_operator_gets_something_done() -> None:
    histories = ["\n".join(run(seed).world.history) for seed in range(8)]
    assert any("has an empty disk" in history for history in histories)
    assert any("electMaster" in history and ": SUCCESS" in history for history in histories)


def test_the_same_seed_gives_the_same_run() -> None:
    one, other = run(7), run.__wrapped__(7)
    assert one.world.history == other.world.history
    assert one.controllers.log.entries == other.controllers.log.entries


def fails(seeds: range, **settings: bool) -> bool:
    """Does one of the seeds break a promise?"""
    for seed in seeds:
        try:
            Group(seed, **settings).run()
        except Violation:
            return True
    return False


@pytest.mark.promise("S2")
def test_without_all_ack_messages_are_lost() -> None:
    """S2, protection off: the same runs lose acknowledged records when replies do not wait for the set."""
    assert fails(range(6), all_ack=False)


@pytest.mark.promise("S1")
def test_without_the_union_messages_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1, protection off: acks counted over the agreed set only, while another may be in force."""

    def agreed_only(self: SyncStateSetManager) -> None:
        self.others = self.agreed.members - {self.broker_id}

    monkeypatch.setattr(SyncStateSetManager, "_update_others", agreed_only)
    assert fails(range(60))


@pytest.mark.parametrize("kind", first(2, KINDS))
def test_keelmq_sim_runs_every_kind(kind: str) -> None:
    result = run_one((kind, 3, True))
    assert result.failure is None
    assert result.acknowledged > 0
    assert result.story
    assert repeat_command(kind, 3) == f"./run keelmq sim --kind {kind} --seed 3"


def test_keelmq_sim_tells_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Group, "check", lambda _self: 1 / 0)
    assert "ZeroDivisionError" in (run_one(("group", 3, False)).failure or "")


class TestTheCheckers:
    """Each must reject a history that is wrong in the way it looks for."""

    def test_two_masters_of_one_epoch(self) -> None:
        checker = Checker()
        checker.became_master("b0", 1, b"", 16)
        with pytest.raises(Violation, match="two masters"):
            checker.became_master("b1", 1, b"", 16)

    def test_a_master_that_lacks_an_acknowledged_record(self) -> None:
        checker = Checker()
        checker.acknowledged(b"x" * 16, 16, 1)
        with pytest.raises(Violation, match="lacks record"):
            checker.became_master("b1", 2, b"y" * 32, 16)

    def test_a_record_acknowledged_by_a_stale_master(self) -> None:
        checker = Checker()
        checker.became_master("b1", 2, b"", 16)
        checker.acknowledged(b"x" * 16, 0, 1)
        with pytest.raises(Violation, match="lacks record"):
            checker.final_log("b1", b"", 16)

    def test_one_id_on_two_disks_and_an_id_without_an_owner(self) -> None:
        with pytest.raises(Violation, match="on the disks of"):
            check_identities({1: "a;1"}, {"b0": (1, "a;1"), "b1": (1, "a;1")})
        with pytest.raises(Violation, match="belongs to"):
            check_identities({1: "a;1"}, {"b0": (1, "z;9")})
        with pytest.raises(Violation, match="without a broker"):
            check_identities({1: "a;1", 2: "a;2"}, {"b0": (1, "a;1")})

    def test_a_good_log_passes(self) -> None:
        event = ApplyBrokerId(
            broker_name="g", cluster_name="c", broker_id=1, broker_address="h:1", register_check_code="h:1;1"
        )
        alter = AlterSyncStateSet(
            broker_name="g",
            master_broker_id=1,
            new_sync_state_set=(1,),
            expected_master_epoch=0,
            expected_sync_state_set_epoch=0,
        )
        check_log([encode_event(event), encode_event(alter)])

    def test_epochs_that_go_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The real apply() cannot do it, so a broken one is put in its place."""
        from msgspec.structs import replace

        from namesrv.plugins.controller import machine
        from namesrv.plugins.controller.core.apply import Applied
        from namesrv.plugins.controller.core.state import BrokerSet, State

        def broken(state: State, _event: object) -> Applied:
            group = state.brokers.get("g", BrokerSet("c", "g", master_epoch=5))
            after = replace(group, master_epoch=group.master_epoch - 1, sync_state_set=frozenset())
            return Applied(State({"g": after}), group, None)

        monkeypatch.setattr(machine, "apply", broken)
        event = ApplyBrokerId(
            broker_name="g", cluster_name="c", broker_id=1, broker_address="h:1", register_check_code="h:1;1"
        )
        with pytest.raises(Violation, match="went back"):
            check_log([encode_event(event)] * 2)
