"""Who is in the set, whose acks count, and what a lost answer may and may not change."""

from dataclasses import dataclass

import pytest

from broker.core.confirm_offset import confirm_offset, replicated_offset
from broker.core.sync_state_set import (
    HOLD_BYTES_MAX,
    HOLD_MS,
    HOLD_PAUSE_MS,
    JOIN_PAUSE_FIRST_MS,
    SETTLE_MS,
    Proposal,
    SyncStateSet,
    SyncStateSetManager,
)

MAX_LAG_MS = 15_000


@dataclass
class Slave:
    ack_offset: int
    learner: bool = False
    caught_up: int = 0

    def caught_up_ms(self, now_ms: int) -> int:
        return self.caught_up


def manager_of(*members: int, all_ack: bool = True, now: int = 0) -> SyncStateSetManager:
    agreed = SyncStateSet(frozenset(members), 5)
    return SyncStateSetManager(1, agreed, all_ack=all_ack, max_lag_ms=MAX_LAG_MS, now_ms=now)


def look(
    manager: SyncStateSetManager,
    slaves: dict[int, Slave],
    *,
    confirm: int = 100,
    epoch_start: int = 0,
    now: int = 0,
) -> Proposal | None:
    return manager.next_proposal(slaves, confirm_offset=confirm, epoch_start_offset=epoch_start, now_ms=now)


def agreed(*members: int, epoch: int = 6) -> SyncStateSet:
    return SyncStateSet(frozenset(members), epoch)


# -- joining ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slave", "confirm", "epoch_start", "joins"),
    [
        (Slave(100), 100, 0, True),
        (Slave(100), 100, 101, False),  # not yet in this master's epoch
        (Slave(100), 100, 100, True),
        (Slave(0), 0, 0, True),  # a group without a message
        (Slave(-1), 0, 0, False),  # no ack yet
        (Slave(99), 100, 0, False),
        (Slave(100, learner=True), 100, 0, False),
    ],
)
def test_who_joins(slave: Slave, confirm: int, epoch_start: int, joins: bool) -> None:
    proposal = look(manager_of(1), {2: slave}, confirm=confirm, epoch_start=epoch_start)
    assert proposal == (Proposal(frozenset({1, 2}), 5) if joins else None)


def test_a_candidate_counts_from_the_moment_it_is_proposed() -> None:
    """Pitfall 6: the controller may use the new set before we hear of it."""
    manager = manager_of(1)
    assert manager.others == set()
    look(manager, {2: Slave(100)})
    assert manager.others == {2}
    assert manager.agreed_others == set()
    assert manager.answered(agreed(1, 2), now_ms=1)
    assert manager.others == manager.agreed_others == {2}
    assert not manager.must_read


def test_one_proposal_at_a_time() -> None:
    manager = manager_of(1)
    assert look(manager, {2: Slave(100)}) is not None
    assert look(manager, {2: Slave(100), 3: Slave(100)}) is None
    manager.answered(agreed(1, 2), now_ms=1)
    assert look(manager, {2: Slave(100), 3: Slave(100)}) == Proposal(frozenset({1, 2, 3}), 6)


def test_a_close_follower_is_waited_for_shortly() -> None:
    manager = manager_of(1)
    near = Slave(90, caught_up=0)
    for now in (10, 10 + HOLD_MS):
        assert look(manager, {2: near}, now=now) is None
        assert manager.others == {2}, "confirmOffset waits for it"
    near.ack_offset = 100
    assert look(manager, {2: near}, now=10 + HOLD_MS) == Proposal(frozenset({1, 2}), 5)


def test_a_follower_that_is_far_behind_is_not_waited_for() -> None:
    """confirmOffset would stand still for it again and again."""
    manager = manager_of(1)
    for behind, waits in ((HOLD_BYTES_MAX + 1, False), (HOLD_BYTES_MAX, True)):
        look(manager, {2: Slave(100, caught_up=0)}, confirm=100 + behind, now=10)
        assert manager.others == ({2} if waits else set())


def test_waiting_for_a_follower_ends() -> None:
    manager = manager_of(1)
    near = Slave(90)
    look(manager, {2: near}, now=10)
    look(manager, {2: near}, now=11 + HOLD_MS)
    assert manager.others == set(), "it did not arrive"
    near.caught_up = 1_000
    look(manager, {2: near}, now=1_000)
    assert manager.others == set(), "and is not waited for again at once"
    near.caught_up = HOLD_PAUSE_MS + 1_000
    look(manager, {2: near}, now=HOLD_PAUSE_MS + 1_000)
    assert manager.others == {2}
    look(manager, {}, now=HOLD_PAUSE_MS + 1_001)
    assert manager.others == set(), "a lost link holds nothing"


# -- leaving ---------------------------------------------------------------------------------------------


def test_a_lost_link_leaves_at_once() -> None:
    manager = manager_of(1, 2)
    assert look(manager, {2: Slave(100)}) is None
    assert look(manager, {}) == Proposal(frozenset({1}), 5)
    assert manager.others == {2}, "until the controller agrees its ack is waited for"
    manager.answered(agreed(1), now_ms=1)
    assert manager.others == set()


def test_a_member_that_never_came_has_time() -> None:
    manager = manager_of(1, 2)
    assert look(manager, {}, now=MAX_LAG_MS) is None
    assert look(manager, {}, now=MAX_LAG_MS + 1) == Proposal(frozenset({1}), 5)


def test_the_time_of_a_member_begins_with_the_term() -> None:
    """Its link has just come, or is of the term before: what it lacked until now does not count."""
    began = 1_000_000
    for links in ({}, {2: Slave(50, caught_up=began - 5_000)}):
        manager = manager_of(1, 2, now=began)
        assert look(manager, links, now=began + MAX_LAG_MS) is None
        assert look(manager, links, now=began + MAX_LAG_MS + 1) == Proposal(frozenset({1}), 5)


def test_lag_leaves_after_the_limit() -> None:
    manager = manager_of(1, 2)
    slave = Slave(50, caught_up=1_000)
    assert look(manager, {2: slave}, now=1_000 + MAX_LAG_MS) is None
    assert look(manager, {2: slave}, now=1_001 + MAX_LAG_MS) == Proposal(frozenset({1}), 5)


def test_a_member_that_comes_back_as_a_learner_leaves_at_once() -> None:
    """Its acks do not count: with all-ack nothing would be confirmed for as long as it is in the set."""
    manager = manager_of(1, 2, 3)
    followers = {2: Slave(100, learner=True), 3: Slave(100)}
    assert look(manager, followers) == Proposal(frozenset({1, 3}), 5)
    manager.answered(agreed(1, 3), now_ms=1)
    assert manager.others == {3}
    assert look(manager, followers, now=2) is None, "and it does not join again"


def test_self_is_in_every_proposal() -> None:
    manager = manager_of(2)  # a set that should never come
    proposal = look(manager, {2: Slave(100)})
    assert proposal == Proposal(frozenset({1, 2}), 5)


# -- doubt -----------------------------------------------------------------------------------------------


def in_doubt() -> SyncStateSetManager:
    manager = manager_of(1)
    look(manager, {2: Slave(100)}, now=1_000)
    manager.answered(None, now_ms=4_000)
    return manager


def test_no_answer_keeps_the_union() -> None:
    manager = in_doubt()
    assert manager.must_read
    assert not manager.in_flight
    assert manager.others == {2}


def test_a_higher_set_epoch_settles_the_doubt() -> None:
    manager = in_doubt()
    assert manager.read(agreed(1, 3), begun_ms=4_001)
    assert not manager.must_read
    assert manager.others == {3}, "our proposal is refused from now on"


def test_the_same_set_epoch_settles_only_when_the_request_must_be_dead() -> None:
    manager = in_doubt()
    manager.read(agreed(1, epoch=5), begun_ms=4_001)
    assert manager.others == {2}, "the request may still be on its way"
    manager.read(None, begun_ms=4_000 + SETTLE_MS)
    assert manager.others == {2}, "no reading proves nothing"
    manager.read(agreed(1, epoch=4), begun_ms=4_000 + SETTLE_MS)
    assert manager.others == {2}, "nor does that of a controller which is behind"
    manager.read(agreed(1, epoch=5), begun_ms=4_000 + SETTLE_MS)
    assert manager.others == set()
    assert not manager.must_read


def test_the_same_proposal_goes_out_again() -> None:
    manager = in_doubt()
    again = look(manager, {2: Slave(100)}, now=5_000)
    assert again == Proposal(frozenset({1, 2}), 5)
    assert manager.answered(agreed(1, 2), now_ms=5_001)
    assert manager.others == {2}


def test_two_unknown_proposals_both_count() -> None:
    manager = in_doubt()
    assert look(manager, {3: Slave(100)}, now=5_000) == Proposal(frozenset({1, 3}), 5)
    manager.answered(None, now_ms=6_000)
    assert manager.others == {2, 3}


def test_who_is_refused_keeps_nobody_in_the_set() -> None:
    """To the controllers 2 is dead, though its link is alive; 3 leaves all the same, by its own proposal."""
    manager = manager_of(1, 3)
    followers = {2: Slave(100), 3: Slave(100)}
    assert look(manager, followers, now=10) == Proposal(frozenset({1, 2, 3}), 5)
    manager.answered(None, now_ms=11)
    manager.read(agreed(1, 3, epoch=6), begun_ms=12)
    assert look(manager, {2: Slave(100)}, now=13) == Proposal(frozenset({1}), 6)
    manager.answered(agreed(1, epoch=7), now_ms=14)
    assert look(manager, {2: Slave(100)}, now=10 + JOIN_PAUSE_FIRST_MS) is None
    assert look(manager, {2: Slave(100)}, now=11 + JOIN_PAUSE_FIRST_MS) == Proposal(frozenset({1, 2}), 7)


def test_a_refused_candidate_asks_less_and_less_often() -> None:
    manager, followers, asked, now = manager_of(1), {2: Slave(100)}, list[int](), 0
    for now in range(0, 10_000, 10):
        if look(manager, followers, now=now) is not None:
            asked.append(now)
            manager.answered(None, now_ms=now)
            manager.read(agreed(1, epoch=6 + len(asked)), begun_ms=now)
    assert asked[:5] == [0, 200, 600, 1_400, 3_000]
    assert len(asked) == 9, "then once in JOIN_PAUSE_MAX_MS"
    look(manager, {}, now=now)
    assert look(manager, followers, now=now) is not None, "a new link is a new try"


def test_a_set_from_a_poll_overtakes_the_answer() -> None:
    manager = manager_of(1)
    look(manager, {2: Slave(100)})
    assert manager.adopt(agreed(1, 2))
    assert manager.in_flight
    assert not manager.answered(agreed(1, 2), now_ms=9)
    assert not manager.in_flight
    assert not manager.must_read


def test_a_proposal_that_a_newer_set_overtook_is_no_refusal_of_its_candidates() -> None:
    manager = manager_of(1)
    look(manager, {2: Slave(100)})
    assert manager.adopt(agreed(1, 3))
    assert not manager.answered(None, now_ms=9), "the controllers refuse what is of an older set"
    assert not manager.must_read
    assert look(manager, {2: Slave(100), 3: Slave(100)}, now=9) == Proposal(frozenset({1, 2, 3}), 6)


@pytest.mark.parametrize("epoch", [4, 5])
def test_an_older_set_is_not_believed(epoch: int) -> None:
    manager = manager_of(1, 2)
    assert not manager.adopt(agreed(1, epoch=epoch))
    assert manager.agreed.members == {1, 2}


# -- offsets ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("current", "others", "acks", "expected"),
    [
        (10, [], {}, 100),  # alone
        (10, [2], {2: 60}, 60),
        (10, [2, 3], {2: 60, 3: 40}, 40),
        (10, [2], {}, 10),  # pitfall 7: a member without a link holds
        (10, [2, 3], {2: 60, 3: 0}, 10),  # pitfall 38: a fresh link holds
        (10, [2, 3], {2: 60, 3: -1}, 10),
        (50, [2], {2: 40}, 50),  # never back
        (10, [2, 3], {2: 60, 3: 10}, 10),
        (10, [2], {2: 500}, 100),  # never past the log
        (10, [2], {2: 60, 9: 20}, 60),  # others' acks do not count
    ],
)
def test_confirm_offset(current: int, others: list[int], acks: dict[int, int], expected: int) -> None:
    assert confirm_offset(current, max_offset=100, others=others, acks=acks, all_ack=True) == expected
    assert confirm_offset(current, max_offset=100, others=others, acks=acks, all_ack=False) == 100


@pytest.mark.parametrize(
    ("copies", "others", "acks", "expected"),
    [
        (0, [], {}, 100),
        (1, [2], {}, 100),
        (2, [2, 3], {2: 60, 3: 40}, 60),
        (3, [2, 3], {2: 60, 3: 40}, 40),
        (3, [2], {2: 60, 3: 40}, 0),  # too few members
        (2, [2], {9: 100}, 0),  # pitfall 53: not a member
        (2, [2], {2: 500}, 100),
        (2, [2], {2: -1}, 0),
    ],
)
def test_replicated_offset(copies: int, others: list[int], acks: dict[int, int], expected: int) -> None:
    assert replicated_offset(max_offset=100, others=others, acks=acks, copies=copies) == expected
