"""The isolation lease when controllerHeartBeatTimeoutMills changes: it never outlives what a controller
knows."""

from broker.core.lease import Lease, ReplicaLeases

LEASES = ReplicaLeases(keelmq_ms=3_000, foreign_ms=3_000)


def lease_at(timeout_ms: int) -> Lease:
    """Confirmed and heard at 10 000 ms."""
    lease = Lease(timeout_ms=timeout_ms, replica_leases=LEASES)
    lease.heartbeat_answered("c", 9_000, 9_000)
    lease.confirmed("c", 10_000)
    lease.heartbeat_answered("c", 10_000, 10_000)
    return lease


def test_a_shorter_timeout_counts_at_once() -> None:
    lease = lease_at(3_000)
    assert lease.controllers_end_ms() == 12_700
    lease.configure(timeout_ms=1_000, replica_leases=LEASES, since_ms=10_100)
    assert lease.controllers_end_ms() == 10_900


def test_a_longer_timeout_revives_no_lease() -> None:
    """The last heartbeat had the old timeout: when it has passed, a controller may have deposed us, although
    the new timeout has not."""
    lease = lease_at(1_000)
    assert lease.controllers_end_ms() == 10_900
    lease.configure(timeout_ms=3_000, replica_leases=LEASES, since_ms=10_100)
    assert lease.controllers_end_ms() == 0
    lease.heartbeat_answered("c", 10_050, 11_200)  # it was sent with the old timeout
    lease.confirmed("c", 11_250)
    assert lease.controllers_end_ms() == 0
    lease.heartbeat_answered("c", 11_210, 11_210)
    assert lease.controllers_end_ms() == 11_210 + 2_700


def test_a_longer_timeout_keeps_what_was_heard_with_it() -> None:
    lease = lease_at(1_000)
    lease.heartbeat_answered("c", 10_500, 10_500)
    lease.confirmed("c", 10_600)
    lease.configure(timeout_ms=2_000, replica_leases=LEASES, since_ms=10_100)
    assert lease.controllers_end_ms() == 10_500 + 1_800
