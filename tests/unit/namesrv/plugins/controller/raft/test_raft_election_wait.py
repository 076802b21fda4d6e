"""How long a silent leader is waited for: short in quiet groups, long where pauses are usual."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from namesrv.plugins.controller.raft.api import RaftSettings
from namesrv.plugins.controller.raft.election_wait import (
    BUCKET_S,
    BUCKETS,
    FAST_RANK_S,
    FAST_ROUNDS_MAX,
    LONGEST_S,
    RANK_S,
    SPREAD,
    ElectionWait,
)
from namesrv.plugins.controller.raft.membership.member_list import MemberList
from namesrv.plugins.controller.raft.membership.voters import Voters


def heartbeats(wait: ElectionWait, begin: float, seconds: float, every: float = 0.1, term: int = 1) -> float:
    now = begin
    while now < begin + seconds:
        wait.appended(term, now)
        now += every
    return now


def make() -> ElectionWait:
    return ElectionWait(0.4, fast_s=0.03)


def test_a_quiet_group_waits_the_shortest_time() -> None:
    wait = make()
    assert wait.silence_s == 0.4
    heartbeats(wait, 0.0, 2 * BUCKET_S)
    assert wait.silence_s == 0.4


def test_pauses_lengthen_the_wait_at_once_and_for_minutes() -> None:
    wait = make()
    now = heartbeats(wait, 0.0, 2 * BUCKET_S)
    now = heartbeats(wait, now + 0.1, 0.3)
    assert 0.59 < wait.silence_s < 0.61, "3 x the gap of 0.2 s"
    now = heartbeats(wait, now + 0.4, BUCKET_S * (BUCKETS - 2))
    assert wait.silence_s == LONGEST_S
    heartbeats(wait, now, BUCKET_S * 4)
    assert wait.silence_s == 0.4, "forgotten after BUCKETS"


def test_the_gap_between_two_leaders_is_not_one_of_a_leader() -> None:
    wait = make()
    now = heartbeats(wait, 0.0, 2 * BUCKET_S)
    heartbeats(wait, now + 60.0, BUCKET_S, term=2)
    assert wait.silence_s == 0.4


def test_followers_take_turns_and_none_asks_before_the_others_would_grant() -> None:
    wait = make()
    first, second = wait.timeout_s(0), wait.timeout_s(1)
    assert wait.silence_s < first < wait.silence_s + RANK_S
    assert second == pytest.approx(first + RANK_S)
    assert wait.link_lost(1) == pytest.approx(wait.link_lost(0) + FAST_RANK_S)
    assert wait.link_lost(9) == 0.03, "not later than fast_s"


def test_rounds_come_soon_after_the_link_broke_until_a_leader_is_heard() -> None:
    wait = make()
    assert wait.link_lost(0) < 0.005
    assert all(wait.next_round_s() <= 0.03 for _ in range(FAST_ROUNDS_MAX))
    wait.link_lost(0)
    wait.appended(2, 1.0)
    wait.next_round_s()
    assert wait.next_round_s() >= 0.03, "of a silent leader again"


def test_a_refused_round_is_repeated_soon_and_then_ever_later() -> None:
    wait = make()
    rounds = [wait.next_round_s() for _ in range(2_000)]
    assert rounds[0] <= 0.03
    assert all(later <= 4 * earlier for earlier, later in itertools.pairwise(rounds))
    assert all(0.3 <= each <= 0.4 * SPREAD for each in rounds[10:])
    wait.appended(2, 1.0)
    assert wait.next_round_s() <= 0.03


def test_no_fast_election_if_it_is_switched_off() -> None:
    wait = ElectionWait(0.4, fast_s=0.0)
    assert wait.link_lost(0) >= 0.4


@pytest.mark.parametrize(
    ("own", "leader", "rank"),
    [("n1", "n0", 0), ("n2", "n0", 1), ("n0", "n1", 0), ("n2", "n1", 1), ("n2", None, 2)],
)
def test_the_smallest_id_beside_the_leader_asks_first(own: str, leader: str | None, rank: int) -> None:
    members = dict.fromkeys(("n0", "n1", "n2"), ("127.0.0.1", 1))
    core: Any = SimpleNamespace(leader_id=leader)
    joining: Any = None
    settings = RaftSettings(own, members, Path(), "group", insecure=True)
    voters = Voters(settings, core, joining, MemberList(members), lambda: None)
    voters.others = sorted(members.keys() - {own})
    assert voters.rank == rank
