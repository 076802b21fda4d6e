"""How long a silent leader is waited for: short in quiet groups, long where pauses are usual."""

from namesrv.plugins.controller.raft.election_wait import BUCKET_S, BUCKETS, FAST_ROUNDS_MAX, ElectionWait


def beats(wait: ElectionWait, begin: float, seconds: float, every: float = 0.1, term: int = 1) -> float:
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
    beats(wait, 0.0, 2 * BUCKET_S)
    assert wait.silence_s == 0.4


def test_pauses_lengthen_the_wait_at_once_and_for_minutes() -> None:
    wait = make()
    now = beats(wait, 0.0, 2 * BUCKET_S)
    now = beats(wait, now + 0.1, 0.3)
    assert 0.49 < wait.silence_s < 0.51, "2.5 x the gap of 0.2 s"
    now = beats(wait, now + 0.4, BUCKET_S * (BUCKETS - 2))
    assert wait.silence_s == 0.8
    beats(wait, now, BUCKET_S * 4)
    assert wait.silence_s == 0.4, "forgotten after BUCKETS"


def test_the_gap_between_two_leaders_is_not_one_of_a_leader() -> None:
    wait = make()
    now = beats(wait, 0.0, 2 * BUCKET_S)
    beats(wait, now + 60.0, BUCKET_S, term=2)
    assert wait.silence_s == 0.4


def test_rounds_come_soon_after_the_link_broke_until_a_leader_is_heard() -> None:
    wait = make()
    assert wait.next_round_s() >= 0.4
    wait.link_lost()
    assert all(wait.next_round_s() <= 0.03 for _ in range(FAST_ROUNDS_MAX))
    assert wait.next_round_s() >= 0.4
    wait.link_lost()
    wait.appended(2, 1.0)
    assert wait.next_round_s() >= 0.4


def test_no_fast_election_if_it_is_switched_off() -> None:
    wait = ElectionWait(0.4, fast_s=0.0)
    wait.link_lost()
    assert 0.4 <= wait.next_round_s() <= 0.6
