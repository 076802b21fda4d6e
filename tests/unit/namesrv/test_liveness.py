"""HeartbeatTable on virtual time: timeouts, connection loss, incarnations."""

import pytest

from namesrv.core.liveness import BrokerKey, HeartbeatTable, LastSeen, route_key

A = BrokerKey("C1", "broker-a", 1)
B = BrokerKey("C1", "broker-a", 2)


def heartbeat(
    table: HeartbeatTable, key: object = A, *, connection: int = 1, now: int = 0, run: str = "r1"
) -> bool:
    is_new = table.record_heartbeat(
        key, connection_id=connection, incarnation=run, timeout_ms=1_000, now_ms=now, info=(run, connection)
    )
    table.check_invariants()
    return is_new


def test_a_heartbeat_says_whether_the_key_was_inactive() -> None:
    table = HeartbeatTable()
    assert heartbeat(table, now=0)
    assert not heartbeat(table, now=10)
    assert table.scan_not_active(2_000) == [A]
    assert heartbeat(table, now=2_001)


def test_a_key_lives_through_its_whole_timeout_and_not_longer() -> None:
    table = HeartbeatTable()
    heartbeat(table, now=100)
    assert table.is_active(A, 1_100) and table.scan_not_active(1_100) == []
    assert not table.is_active(A, 1_101), "is_active does not wait for a scan"
    assert table.scan_not_active(1_101) == [A]
    assert table.scan_not_active(1_102) == [], "told once"
    assert table.info(A) == ("r1", 1), "the last info stays"
    table.check_invariants()


def test_a_closed_connection_makes_suspect_and_after_the_grace_inactive() -> None:
    table = HeartbeatTable(grace_ms=50)
    heartbeat(table, now=0)
    assert table.connection_closed(1, 10) == [A]
    assert table.next_deadline_ms() == 60
    assert table.is_active(A, 59) and table.scan_not_active(59) == []
    assert not table.is_active(A, 60)
    assert table.scan_not_active(60) == [A]
    assert table.next_deadline_ms() is None
    table.check_invariants()


def test_who_may_be_dead_is_doubtful_until_it_is_known() -> None:
    table = HeartbeatTable(grace_ms=50)
    assert not table.is_doubtful(A, 0), "never heard"
    heartbeat(table, now=0)
    assert not table.is_doubtful(A, 500)
    assert table.is_doubtful(A, 501), "silent for half of its 1,000 ms"
    heartbeat(table, now=600)
    assert not table.is_doubtful(A, 601)
    table.connection_closed(1, 610)
    assert table.is_doubtful(A, 611), "its connection is gone"
    assert table.scan_not_active(661) == [A]
    assert not table.is_doubtful(A, 661) and not table.is_doubtful(A, 5_000), "dead, and known to be"


def test_a_proof_ends_the_grace_at_once() -> None:
    table = HeartbeatTable(grace_ms=50)
    heartbeat(table, now=0)
    assert table.suspicion(A) is None and table.suspicion(B) is None, "nobody is suspect"
    table.connection_closed(1, 10)
    suspicion = table.suspicion(A)
    assert suspicion is not None
    assert table.proved_dead(A, suspicion, 12)
    table.check_invariants()
    assert table.next_deadline_ms() == 12 and not table.is_active(A, 12)
    assert table.scan_not_active(12) == [A]
    assert table.last_seen(A) == LastSeen(0, 12, proved=True)
    assert not table.proved_dead(A, suspicion, 13), "it is inactive already"
    table.check_invariants()
    assert table.scan_not_active(60) == [], "told once"
    heartbeat(table, now=70, connection=2)
    assert table.last_seen(A) == LastSeen(70, None), "another process, or a heartbeat that was on its way"


def test_a_proof_at_the_end_of_the_grace_tells_once() -> None:
    table = HeartbeatTable(grace_ms=50)
    heartbeat(table, now=0)
    table.connection_closed(1, 10)
    assert table.proved_dead(A, table.suspicion(A) or 0, 60)
    assert table.scan_not_active(60) == [A] and table.scan_not_active(60) == []
    table.check_invariants()


@pytest.mark.promise("S7")
def test_a_proof_of_an_earlier_close_evicts_nobody() -> None:
    """The broker restarted, or connected again, before the proof was there; perhaps it was lost again."""
    table = HeartbeatTable(grace_ms=50)
    heartbeat(table, connection=1)
    table.connection_closed(1, 10)
    old = table.suspicion(A)
    assert old is not None
    heartbeat(table, connection=2, now=11)
    assert not table.proved_dead(A, old, 12)
    assert table.is_active(A, 12) and table.scan_not_active(500) == []
    table.connection_closed(2, 510)
    assert table.suspicion(A) not in (None, old)
    assert not table.proved_dead(A, old, 511), "the proof is of the first close"
    assert table.is_active(A, 511) and table.next_deadline_ms() == 560
    table.forget(A)
    assert not table.proved_dead(A, old, 512)
    table.check_invariants()


def test_close_and_exception_of_one_connection_come_in_pairs() -> None:
    table = HeartbeatTable()
    heartbeat(table)
    assert table.connection_closed(1, 10) == [A]
    assert table.connection_closed(1, 11) == []
    assert table.next_deadline_ms() == 60
    assert table.connection_closed(99, 12) == []


def test_a_heartbeat_over_another_connection_within_the_grace_saves_the_key() -> None:
    table = HeartbeatTable()
    heartbeat(table, connection=1)
    table.connection_closed(1, 10)
    assert not heartbeat(table, connection=2, now=20), "it never was inactive"
    assert table.next_deadline_ms() is None
    assert table.scan_not_active(500) == []


@pytest.mark.promise("S7")
def test_a_late_close_of_an_older_connection_evicts_nobody() -> None:
    table = HeartbeatTable()
    heartbeat(table, connection=1, run="r1")
    heartbeat(table, connection=7, run="r2", now=10)  # restarted; the old socket is still open here
    assert table.connection_closed(1, 20) == []
    assert table.scan_not_active(900) == []
    assert table.connection_closed(7, 901) == [A], "the newer connection's own close counts"


def test_a_late_heartbeat_of_an_older_incarnation_is_ignored() -> None:
    table = HeartbeatTable()
    heartbeat(table, connection=1, run="r1")
    heartbeat(table, connection=7, run="r2", now=10)
    assert not heartbeat(table, connection=1, run="r1", now=999)
    assert table.info(A) == ("r2", 7)
    assert table.connection_closed(7, 1_000) == [A]


def test_an_older_incarnation_that_came_back_for_a_moment_keeps_nobody_out() -> None:
    """A heartbeat of the old process, held up on its way or sent after a pause, over a newer connection."""
    table = HeartbeatTable(grace_ms=50)
    heartbeat(table, connection=5, run="new", now=0)
    assert not heartbeat(table, connection=9, run="old", now=10)
    assert not heartbeat(table, connection=5, run="new", now=20), "the other one is active"
    assert table.info(A) == ("old", 9)
    assert table.connection_closed(9, 30) == [A]
    assert table.scan_not_active(80) == [A]
    assert heartbeat(table, connection=5, run="new", now=90)
    assert table.is_active(A, 90) and table.info(A) == ("new", 5)
    assert table.connection_closed(5, 100) == [A]


@pytest.mark.parametrize(("first", "last"), [(1, 2), (2, 1)])
def test_two_live_connections_of_one_incarnation_must_both_close(first: int, last: int) -> None:
    """A broker that has a controller under two names in its configuration."""
    table = HeartbeatTable()
    heartbeat(table, connection=1)
    heartbeat(table, connection=2)
    heartbeat(table, connection=1)
    assert table.connection_closed(first, 10) == []
    assert table.connection_closed(last, 20) == [A]


def test_only_a_connection_that_was_replaced_is_outdated() -> None:
    """What arrives over it was sent before the broker connected again: an unregister, for example."""
    table = HeartbeatTable()
    assert not table.is_outdated(A, 1), "unknown"
    heartbeat(table, connection=5)
    heartbeat(table, connection=7, now=10)
    assert table.is_outdated(A, 5)
    assert not table.is_outdated(A, 7)
    assert not table.is_outdated(A, 9), "newer: its first heartbeat is on its way"
    assert not table.is_outdated(A, 0), "HTTP"
    heartbeat(table, connection=5, now=20)
    assert not table.is_outdated(A, 5), "both are in use"


def test_a_new_incarnation_over_the_newest_connection_has_only_that_one() -> None:
    """A broker whose address has changed. What remains of the older connection says nothing about it."""
    table = HeartbeatTable()
    for connection in (1, 2, 1):
        heartbeat(table, connection=connection, run="r1")
    assert not heartbeat(table, connection=2, run="r2", now=10)
    assert table.info(A) == ("r2", 2)
    assert table.connection_closed(2, 20) == [A]


def test_a_new_incarnation_without_a_connection_is_bound_to_none() -> None:
    """Its heartbeats come over HTTP."""
    table = HeartbeatTable()
    heartbeat(table, connection=7, run="r1")
    assert not heartbeat(table, connection=0, run="r2", now=10)
    assert table.info(A) == ("r2", 0)
    assert table.connection_closed(7, 20) == []
    assert table.is_active(A, 1_010) and not table.is_active(A, 1_011)


def test_a_connection_whose_host_was_lost_does_not_hide_the_end_of_a_newer_one() -> None:
    """It never closes. The broker runs again at the same address, and dies again."""
    table = HeartbeatTable()
    heartbeat(table, connection=1)
    heartbeat(table, connection=2, now=300)
    assert table.connection_closed(2, 400) == [A]
    assert table.scan_not_active(450) == [A]
    assert table.connection_closed(1, 500) == []
    table.check_invariants()


def test_one_connection_of_a_container_carries_many_brokers() -> None:
    table = HeartbeatTable()
    heartbeat(table, A, connection=5)
    heartbeat(table, B, connection=5)
    assert table.connection_closed(5, 10) == [A, B]
    assert table.scan_not_active(60) == [A, B]


def test_a_broker_that_leaves_a_shared_connection_leaves_the_others_bound() -> None:
    table = HeartbeatTable()
    heartbeat(table, A, connection=5)
    heartbeat(table, B, connection=5)
    heartbeat(table, A, connection=6)
    assert table.connection_closed(5, 10) == [B]
    assert table.connection_closed(6, 20) == [A]


def test_who_lost_its_connection_did_not_hang_however_late_the_scan_is() -> None:
    table = HeartbeatTable(grace_ms=50)
    heartbeat(table, now=0)
    table.connection_closed(1, 900)
    assert table.scan_not_active(1_500) == [A], "told once, although its timeout is over as well"
    assert table.last_seen(A) == LastSeen(0, 1_500)
    table.check_invariants()


def test_a_scan_tells_whose_timeout_is_over_and_finds_the_next_one() -> None:
    table = HeartbeatTable()
    other = BrokerKey("C1", "broker-a", 3)
    heartbeat(table, A, connection=0, now=0)
    heartbeat(table, B, connection=0, now=500)
    heartbeat(table, other, connection=0, now=900)
    assert table.scan_not_active(1_500) == [A], "the whole timeout of B is over in the next ms"
    assert table.next_timeout_ms() == 1_501
    assert table.scan_not_active(1_501) == [B] and table.scan_not_active(1_901) == [other]


def test_a_timeout_within_the_grace_is_told_once() -> None:
    table = HeartbeatTable(grace_ms=500)
    heartbeat(table, now=0)
    table.connection_closed(1, 900)
    assert table.scan_not_active(1_001) == [A]
    table.check_invariants()
    assert table.next_deadline_ms() is None and table.scan_not_active(1_400) == []


def test_the_grace_is_per_key_and_a_route_has_none() -> None:
    table = HeartbeatTable(grace_ms=50)
    route = route_key("C1", "10.0.0.1:10911")
    table.record_heartbeat(
        route, connection_id=3, incarnation="", timeout_ms=120_000, now_ms=0, info=None, grace_ms=0
    )
    heartbeat(table, A, connection=3)
    table.connection_closed(3, 10)
    assert table.next_deadline_ms() == 10
    assert table.scan_not_active(10) == [route]
    assert table.is_active(A, 10)


def test_connection_zero_binds_nothing() -> None:
    table = HeartbeatTable()
    heartbeat(table, connection=0)
    assert table.connection_closed(0, 10) == []
    assert table.is_active(A, 1_000)


def test_touch_refreshes_only_active_keys() -> None:
    table = HeartbeatTable()
    assert not table.touch(A, 0)
    heartbeat(table, now=0)
    assert table.touch(A, 900)
    assert table.scan_not_active(1_800) == []
    assert table.scan_not_active(1_901) == [A]
    assert not table.touch(A, 1_902), "inactive: only a heartbeat brings it back"


def test_forget_leaves_nothing_behind() -> None:
    table = HeartbeatTable()
    heartbeat(table)
    table.connection_closed(1, 10)
    table.forget(A)
    table.forget(A)
    assert list(table.keys()) == [] and table.info(A) is None and table.next_deadline_ms() is None
    table.check_invariants()
    heartbeat(table, connection=4)
    table.forget(A)
    assert table.connection_closed(4, 20) == []


def test_when_a_key_was_last_seen_and_found_missing() -> None:
    table = HeartbeatTable()
    assert table.last_seen(A) is None
    heartbeat(table, now=100)
    assert table.last_seen(A) == LastSeen(100, None)
    assert not table.is_active(A, 1_200)
    assert table.last_seen(A) == LastSeen(100, None), "nobody has looked yet"
    table.scan_not_active(1_300)
    table.scan_not_active(1_400)
    assert table.last_seen(A) == LastSeen(100, 1_300, hung=True)
    heartbeat(table, now=2_000)
    assert table.last_seen(A) == LastSeen(2_000, None)
    table.connection_closed(1, 2_100)
    table.scan_not_active(2_200)
    assert table.last_seen(A) == LastSeen(2_000, 2_200), "its connection closed: it did not hang"


def test_who_hangs_is_looked_for_when_it_can_be_found_first() -> None:
    """Not at the next second: a hung master costs its group the timeout, and no more."""
    table = HeartbeatTable()
    assert table.next_timeout_ms() is None
    heartbeat(table, A, connection=1, now=1_000)
    heartbeat(table, B, connection=2, now=1_500)
    assert table.next_timeout_ms() == 2_001
    heartbeat(table, A, connection=1, now=1_900)
    assert table.scan_not_active(2_001) == []
    assert table.next_timeout_ms() == 2_501
    assert table.scan_not_active(2_501) == [B]
    assert table.next_timeout_ms() == 2_901


def test_a_key_that_was_found_hung_is_inactive_at_the_deadline_without_a_heartbeat() -> None:
    table = HeartbeatTable(grace_ms=50)
    assert not table.found_hung(A, 10), "unknown"
    heartbeat(table, now=0)
    assert table.found_hung(A, 210) and not table.found_hung(A, 210)
    table.check_invariants()
    assert table.is_active(A, 209) and table.is_doubtful(A, 209)
    assert table.connection_closed(1, 205) == [], "that no longer matters"
    assert table.scan_not_active(209) == []
    assert table.scan_not_active(210) == [A]
    assert table.last_seen(A) == LastSeen(0, 210, hung=True, proved=False, found_early=True)
    assert not table.found_hung(A, 300), "inactive"
    assert heartbeat(table, now=300, connection=1)
    assert table.last_seen(A) == LastSeen(300, None)

    assert table.found_hung(A, 400)
    assert not heartbeat(table, now=390, connection=1), "it was active all the time"
    assert table.scan_not_active(400) == []
    assert table.connection_closed(1, 410) == [A], "it is bound again"
    assert not table.found_hung(A, 420), "suspect: the grace decides"
    table.check_invariants()
