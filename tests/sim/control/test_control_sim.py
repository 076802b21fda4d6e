"""Whole controllers in the virtual world (`keelmq sim` runs thousands of seeds), and tests of checkers."""

from functools import cache

import pytest
from msgspec.structs import replace

from namesrv.plugins.controller.core.events import ElectMaster, encode_event
from namesrv.plugins.controller.core.state import BrokerSet, Replica, State
from tests.sim.checkers import Violation
from tests.sim.control import raft_world, world
from tests.sim.control.mutants import MUTANTS
from tests.sim.control.truth import Truth, View
from tests.sim.kinds import found_seeds
from tests.support.slices import first

FAST, SLOW = range(15), range(15, 400)
RAFT_FAST, RAFT_SLOW = range(3), range(3, 100)
ran = cache(world.run_seed)
"""For tests that look at the same seeds."""


@pytest.mark.parametrize("seed", [*FAST, *found_seeds("controllers")])
def test_controllers_keep_their_promises(seed: int) -> None:
    ran(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", SLOW)
def test_controllers_keep_their_promises_in_more_weather(seed: int) -> None:
    world.run_seed(seed)


@pytest.mark.parametrize("seed", [*RAFT_FAST, *found_seeds("raft")])
def test_controllers_over_the_real_raft_keep_them_too(seed: int) -> None:
    raft_world.run_seed(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", RAFT_SLOW)
def test_controllers_over_the_real_raft_in_more_weather(seed: int) -> None:
    raft_world.run_seed(seed)


@pytest.mark.parametrize("module", first(1, [world, raft_world]))
def test_the_same_seed_gives_the_same_run(module: object) -> None:
    one, other = (module.run_seed(11) for _ in range(2))  # type: ignore[attr-defined]
    assert one.notes == other.notes
    assert one.truth.history == other.truth.history
    assert one.air.messages == other.air.messages


def test_the_world_has_faults_in_it() -> None:
    """A quiet simulator proves nothing."""
    worlds = [ran(seed) for seed in range(12)]
    faults = {kind for each in worlds for kind in each.faults}
    assert faults >= {"crash", "restart", "partition", "kill", "copy", "cut", "wipe", "lead"}
    assert any(each.conditions.quiet_brokers for each in worlds)
    assert sum(each.truth.acknowledged for each in worlds) > 500
    assert sum(each.truth.pushed for each in worlds) > 100
    assert {type(b"".join(each.truth.history)) for each in worlds} == {bytes}
    history = b"".join(event for each in worlds for event in each.truth.history)
    for kind in (b"applyBrokerId", b"alterSyncStateSet", b"electMaster", b"cleanBrokerData", b"updateConfig"):
        assert kind in history, kind


@pytest.mark.parametrize("name", first(1, MUTANTS))
def test_without_this_protection_a_promise_is_broken(name: str) -> None:
    mutant = MUTANTS[name]
    with mutant.installed(), pytest.raises(Violation, match=mutant.found):
        for seed in mutant.seeds:
            world.run_seed(seed, **mutant.conditions)


class TestTheJudge:
    """Each must reject a history that is wrong in the way it looks for."""

    EVENT = encode_event(
        ElectMaster(
            broker_name="g", new_master_broker_id=1, expected_master_epoch=0, expected_sync_state_set_epoch=0
        )
    )
    GROUP = BrokerSet(
        "C",
        "g",
        next_broker_id=3,
        replicas={1: Replica("a", "a;1"), 2: Replica("b", "b;1")},
        master_broker_id=1,
        master_epoch=1,
        sync_state_set=frozenset({1}),
        sync_state_set_epoch=1,
    )

    def after(self, *groups: BrokerSet) -> Truth:
        """A history in which the group became one of these after the other."""
        truth = Truth()
        for number, group in enumerate(groups, 1):
            truth.applied("n0", self.EVENT, State(brokers={"g": group}, event_count=number))
        return truth

    def test_a_good_history_passes(self) -> None:
        truth = self.after(self.GROUP, replace(self.GROUP, sync_state_set=frozenset({1}), master_epoch=1))
        truth.applied("n1", self.EVENT, truth.states[1])
        truth.answered("1004", "g", View(1, 1, frozenset({1}), 1), 0)
        truth.owns("g", 1, "a;1")
        truth.notified("g", View(1, 1))
        truth.final({"n0": truth.states[-1]})
        assert truth.violations == []
        assert truth.healed("g", [1]) is None

    @pytest.mark.parametrize(
        ("changes", "found"),
        [
            (
                {"master_broker_id": 2, "sync_state_set": frozenset({2}), "sync_state_set_epoch": 2},
                "masters 1 and 2",
            ),
            ({"master_epoch": 0}, "went back"),
            ({"sync_state_set_epoch": 0}, "went back"),
            ({"replicas": {1: Replica("a", "z;9"), 2: Replica("b", "b;1")}}, "another owner"),
            ({"sync_state_set": frozenset({1, 7}), "sync_state_set_epoch": 2}, "unknown brokers"),
            ({"sync_state_set": frozenset({1, 2})}, "in the same epoch"),
            (
                {
                    "master_broker_id": 2,
                    "master_epoch": 2,
                    "sync_state_set": frozenset({2}),
                    "sync_state_set_epoch": 2,
                },
                "outside the SyncStateSet",
            ),
        ],
    )
    def test_a_group_that_must_not_be(self, changes: dict[str, object], found: str) -> None:
        truth = self.after(self.GROUP, replace(self.GROUP, **changes))  # type: ignore[arg-type]
        assert any(found in each for each in truth.violations), truth.violations

    RESTORED = ElectMaster(
        v=4, broker_name="g", new_master_broker_id=None, kept=(1, 2),
        expected_master_epoch=1, expected_sync_state_set_epoch=1,
    )  # fmt: skip

    def refused(self, members: set[int], *, begun: tuple[int, ...] = ()) -> Truth:
        """Broker 1 is elected out of 1 and 2, and then there is no master and this SyncStateSet."""
        before = replace(self.GROUP, master_broker_id=None, master_epoch=0, sync_state_set=frozenset({1, 2}))
        before = replace(before, sync_state_set_epoch=0)
        truth = self.after(before, self.GROUP)
        for epoch in begun:
            truth.term_begun("g", epoch)
        third = replace(self.GROUP.replicas[1], check_code="c;1")
        after = replace(
            self.GROUP, master_broker_id=None, master_epoch=2, sync_state_set=frozenset(members),
            sync_state_set_epoch=2, next_broker_id=4, replicas={**self.GROUP.replicas, 3: third},
        )  # fmt: skip
        truth.applied("n0", encode_event(self.RESTORED), State(brokers={"g": after}, event_count=3))
        return truth

    def test_a_term_that_is_refused(self) -> None:
        truth = self.refused({1, 2})
        truth.term_begun("g", 2)
        assert not truth.violations
        truth.term_begun("g", 1)
        assert truth.violations == ["broker 1 has refused epoch 1, and begins it"]
        assert "has begun, and is refused" in self.refused({1, 2}, begun=(1,)).violations[0]
        assert "members that it had not before" in self.refused({1, 2, 3}).violations[0]

    def test_controllers_that_differ(self) -> None:
        truth = self.after(self.GROUP)
        truth.applied("n1", self.EVENT + b" ", truth.states[1])
        truth.applied("n1", self.EVENT, replace(truth.states[1], settings={"a": "b"}))
        truth.applied("n1", self.EVENT, replace(truth.states[1], event_count=9))
        truth.restored("n1", State(event_count=1))
        truth.final({"n0": State()})
        found = ["others", "another state", "1 are known", "restored", "ends with 0 events, 1 were"]
        assert len(truth.violations) == len(found)
        for violation, text in zip(truth.violations, found, strict=True):
            assert text in violation

    def test_answers_that_are_not_true(self) -> None:
        newer = replace(self.GROUP, master_broker_id=None, master_epoch=2)
        truth = self.after(self.GROUP, newer)
        truth.answered("1004", "g", View(2, 1), 0)  # never so
        truth.answered("1004", "g", View(1, 1), 2)  # it was so, before what is acknowledged
        truth.owns("g", 1, "b;1")
        truth.notified("g", View(2, 5))
        found = ["never applied", "was acknowledged", "belongs to a;1", "a notification of"]
        assert [text in each for each, text in zip(truth.violations, found, strict=True)] == [True] * 4

    def test_an_acknowledgement_that_is_forgotten(self) -> None:
        """The answer to one question is the floor of the next."""
        truth = self.after(self.GROUP, replace(self.GROUP, master_broker_id=None, master_epoch=2))
        truth.answered("1002", "g", View(None, 2), 0)
        assert truth.floor("g") == 2
        truth.answered("1004", "g", View(1, 1), truth.floor("g"))
        assert len(truth.violations) == 1

    def test_a_group_without_a_master_that_could_have_one(self) -> None:
        truth = self.after(replace(self.GROUP, master_broker_id=None))
        assert "no live master" in (truth.healed("g", [1]) or "")
        assert truth.healed("g", [2]) is None, "2 is not in the set"
