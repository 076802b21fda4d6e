"""The real library with our guard, journal, pre-vote, claims and joining: no seed may break a promise.

tests/cluster shows the same with real processes; here the faults are worse, and every run can be repeated.
"""

from unittest import mock

import pytest

from namesrv.plugins.controller.raft.read_index import ReadIndex
from tests.sim.raft import scripts
from tests.sim.raft.checkers import CALM_AFTER_S, Checker, Violation
from tests.sim.raft.cluster import run_seed
from tests.sim.raft.mutants import CALM, CROWD, MUTANTS, STORMY
from tests.support.slices import first

FAST, SLOW = range(1, 4), range(4, 240)
SCRIPTS = [getattr(scripts, name) for name in scripts.__all__ if name != "Script"]


@pytest.mark.parametrize("seed", FAST)
def test_no_seed_breaks_a_promise(seed: int) -> None:
    run_seed(seed, faults_s=8.0)


@pytest.mark.long
@pytest.mark.parametrize("seed", SLOW)
def test_no_seed_of_many_breaks_a_promise(seed: int) -> None:
    run_seed(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1040))
@pytest.mark.parametrize(
    "conditions",
    [
        {"members": 5, "compaction_entries": 12} | STORMY | CROWD,
        {"members": 5, "duplicates": 0.1, "append_bytes": 100},
        {"compaction_entries": 12, "append_bytes": 200, "duplicates": 0.05} | CROWD,
        {"blackouts": 6, "power_cuts": 6, "compaction_entries": 12} | CROWD,
        {"wipes": 8, "compaction_entries": 12},
        {"wipes": 8, "members": 5} | CROWD,
    ],
    ids=["five", "five with small batches", "duplicates", "power", "wipes", "five with wipes"],
)
def test_certain_weather(conditions: dict[str, object], seed: int) -> None:
    run_seed(seed, **conditions)


def test_a_snapshot_that_comes_again_costs_nothing() -> None:
    """Found by an earlier seed 19: a follower forgot what it had acknowledged after the snapshot (rule 8)."""
    run_seed(6, compaction_entries=12, delay_max_s=0.06, cuts=8, **CROWD)


@pytest.mark.parametrize("script", first(3, SCRIPTS), ids=lambda script: script.__name__)
def test_faults_in_a_certain_order_cost_nothing(script: scripts.Script) -> None:
    world = run_seed(1, script, members=3)
    assert sum("is active" in note for note in world.notes) >= 3


def test_reads_are_fresh_where_members_of_an_older_release_answer_no_checks() -> None:
    with mock.patch.object(ReadIndex, "verified", lambda *_: None):
        assert run_seed(3, faults_s=8.0).checker.fresh_reads > 5


def test_the_same_seed_gives_the_same_run() -> None:
    one, other = run_seed(5), run_seed(5)
    assert one.network.trace.digest() == other.network.trace.digest()
    assert one.notes == other.notes


@pytest.mark.slow
def test_the_world_has_faults_in_it() -> None:
    worlds = [run_seed(seed) for seed in (1, 3, 5)]
    story = "\n".join(note for world in worlds for note in world.notes)
    for fault in ("kill -9", "power cut", "cut n", "one way", "pause", "epoch 2"):
        assert fault in story
    assert sum(world.checker.outcomes.get("unknown", 0) for world in worlds) > 0
    assert all(world.checker.fresh_reads > 5 for world in worlds)


@pytest.mark.slow
def test_in_calm_weather_everything_is_applied_at_once() -> None:
    """No Unknown, one leader, and nothing refused once it is there."""
    world = run_seed(19, **CALM)
    assert world.network.frames < 12 * len(world.checker.acknowledged)  # the library can flood (H16)
    assert set(world.checker.outcomes) <= {"applied", "refused"}
    assert len(world.checker.owners) == 1


@pytest.mark.parametrize("name", first(1, MUTANTS))
def test_without_a_protection_the_checkers_complain_fast(name: str) -> None:
    assert noticed(name, 12)


def noticed(name: str, seeds: int) -> bool:
    mutant = MUTANTS[name]
    with mutant.installed():
        for seed in range(mutant.first_seed, mutant.first_seed + seeds):
            try:
                run_seed(seed, mutant.script, **mutant.conditions)
            except Violation:
                return True
    return False


class TestTheCheckers:
    """Each must reject a history that is wrong in the way it looks for."""

    def checker(self) -> Checker:
        checker = Checker()
        for count in range(1, 4):
            checker.applied("n0", [f"e{each}" for each in range(1, count + 1)])
        checker.acknowledge("e3", 3)
        assert checker.violations == []
        return checker

    def test_a_good_history_passes(self) -> None:
        checker = self.checker()
        checker.applied("n1", ["e1"])
        checker.restored("n2", ["e1", "e2"])
        checker.active("n0", 1, 3)
        checker.read("n0", checker.floor(), ["e1", "e2", "e3"])
        checker.refuse("e9")
        checker.final({"n0": ["e1", "e2", "e3"]})
        assert checker.violations == []

    def test_another_event_at_the_same_place(self) -> None:
        checker = self.checker()
        checker.applied("n1", ["e2"])
        assert "applied e2 at 1, others e1" in checker.violations[0]

    def test_an_event_twice(self) -> None:
        checker = self.checker()
        checker.applied("n0", ["e1", "e2", "e3", "e1"])
        assert "applied twice" in checker.violations[0]

    def test_another_entry_at_the_same_index(self) -> None:
        checker = self.checker()
        checker.batch("n0", 7, b"a")
        checker.batch("n1", 7, b"b")
        assert "index 7" in checker.violations[0]

    def test_a_restored_state_that_is_no_prefix(self) -> None:
        checker = self.checker()
        checker.restored("n1", ["e2"])
        assert "no prefix" in checker.violations[0]

    def test_two_owners_of_an_epoch_and_an_epoch_that_goes_back(self) -> None:
        checker = self.checker()
        checker.active("n0", 2, 3)
        checker.active("n1", 2, 3)
        checker.active("n1", 1, 3)
        assert "were active in epoch 2" in checker.violations[0]
        assert "in epoch 1 after 2" in checker.violations[1]

    def test_active_before_it_has_everything(self) -> None:
        checker = self.checker()
        checker.active("n1", 2, 2)
        assert "3 were acknowledged" in checker.violations[0]

    def test_events_of_a_fenced_epoch(self) -> None:
        checker = self.checker()
        checker.took_effect("n0", epoch=1, claimed=2)
        assert "after the claim of 2" in checker.violations[0]

    def test_two_leaders_of_a_term(self) -> None:
        checker = self.checker()
        checker.leads("n0", 4)
        checker.leads("n1", 4)
        assert "in term 4" in checker.violations[0]

    def test_a_stale_read(self) -> None:
        checker = self.checker()
        checker.read("n1", checker.floor(), ["e1"])
        assert "saw 1 events, 3 were known before" in checker.violations[0]

    def test_a_read_that_sees_less_than_an_earlier_one(self) -> None:
        checker = self.checker()
        checker.applied("n0", ["e1", "e2", "e3", "e4"])
        checker.read("n0", checker.floor(), ["e1", "e2", "e3", "e4"])
        checker.read("n1", checker.floor(), ["e1", "e2", "e3"])
        assert "saw 3 events, 4 were known before" in checker.violations[0]

    def test_an_acknowledged_event_that_is_not_there(self) -> None:
        checker = self.checker()
        checker.acknowledge("e9", 2)
        assert "where it is not" in checker.violations[0]

    def test_lost_differing_and_refused_events_at_the_end(self) -> None:
        checker = self.checker()
        checker.refuse("e1")
        checker.history.pop()
        checker.final({"n0": ["e1", "e2"], "n1": ["e1"]})
        assert [text.split()[0] for text in checker.violations] == ["n1", "e3", "e1"]

    def test_unknown_without_a_reason(self) -> None:
        checker = self.checker()
        checker.trouble(10.0, 11.0)
        checker.unknown(12.0, 13.0)
        assert checker.violations == []
        checker.unknown(11.0 + CALM_AFTER_S + 0.1, 20.0)
        assert "calm weather" in checker.violations[0]
