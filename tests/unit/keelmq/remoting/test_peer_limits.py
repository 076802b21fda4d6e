"""PeerLimits without sockets: who is refused, who is closed for others, and that every count goes back."""

from random import Random

import pytest

from keelmq.remoting.addresses import host_and_port_bytes, network_of
from keelmq.remoting.large_frames import NoRoomError
from keelmq.remoting.peer_limits import (
    EVICTED,
    FRAME_BYTES,
    PER_ADDRESS,
    SLOW_FRAME,
    TOTAL,
    Limits,
    PeerLimits,
)

A, B = b"\x0a\0\0\1", b"\x0a\0\0\2"


class FakeConnection:
    def __init__(self, limits: PeerLimits, network: bytes = A, *, is_admitted: bool = False) -> None:
        self.limits, self.network, self.is_admitted = limits, network, is_admitted
        self.partial_bytes = self.partial_looks = 0
        self.paused = False
        self.problem: str | None = None

    def enter(self) -> str | None:
        return self.limits.enter(self, self.network)

    def admit(self) -> None:
        self.is_admitted = True
        self.limits.admitted(self)

    def is_paused(self) -> bool:
        return self.paused

    def evict(self, problem: str) -> None:
        self.problem = problem
        self.limits.release(self)
        self.limits.leave(self)


def connections(limits: PeerLimits, count: int, network: bytes = A, **more: bool) -> list[FakeConnection]:
    return [FakeConnection(limits, network, **more) for _ in range(count)]


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.1.2.3", bytes([10, 1, 2, 3])),
        ("::ffff:10.1.2.3", bytes([10, 1, 2, 3])),
        ("2001:db8:1:2:3:4:5:6", bytes.fromhex("20010db800010002")),
        ("fe80::1%eth0", bytes.fromhex("fe80000000000000")),
        ("no address", bytes(4)),
    ],
)
def test_what_counts_as_one_address(host: str, network: bytes) -> None:
    assert network_of(host_and_port_bytes(host, 10_911)) == network


# ---- connections ----


def test_an_address_has_its_own_limit() -> None:
    limits = PeerLimits(Limits(connections_per_address=2))
    first, second, third = connections(limits, 3)
    assert first.enter() is None
    assert second.enter() is None
    assert third.enter() == ("its address has 2 connections already, which is maxConnectionsPerAddress")
    assert FakeConnection(limits, B).enter() is None
    limits.leave(first)
    limits.leave(first)
    assert third.enter() is None
    assert FakeConnection(limits).enter() is not None
    assert limits.closed == {PER_ADDRESS: 2}


def test_at_the_limit_of_all_the_oldest_one_that_is_not_admitted_goes() -> None:
    limits = PeerLimits(Limits(connections=3))
    first, second, third, late, later, latest = connections(limits, 6)
    for each in (first, second, third):
        assert each.enter() is None
    first.admit()
    assert late.enter() is None
    assert (
        second.problem
        == "3 connections are open, which is maxConnections, and this one has not authenticated"
    )
    late.admit()
    assert later.enter() is None
    assert third.problem is not None
    later.admit()
    assert latest.enter() == "3 connections are open, which is maxConnections"
    assert limits.closed == {EVICTED: 2, TOTAL: 1}
    assert limits.connection_count == 3


def test_a_connection_that_is_closed_for_another_is_no_longer_counted() -> None:
    """Whatever it does when it is told: a socket may take its time."""
    limits = PeerLimits(Limits(connections=1))
    first, second = connections(limits, 2)
    first.evict = lambda problem: None  # type: ignore[method-assign]
    assert first.enter() is None
    assert second.enter() is None
    assert limits.connection_count == 1


def test_a_connection_that_is_admitted_from_the_start_is_not_closed_for_others() -> None:
    """Every connection is, where nobody is asked."""
    limits = PeerLimits(Limits(connections=1))
    first, second = connections(limits, 2, is_admitted=True)
    assert first.enter() is None
    assert second.enter() == "1 connections are open, which is maxConnections"
    assert first.problem is None


def test_a_refused_connection_closes_nobody_for_it() -> None:
    limits = PeerLimits(Limits(connections=2, connections_per_address=1))
    first, other, second = FakeConnection(limits, A), FakeConnection(limits, B), FakeConnection(limits, A)
    assert first.enter() is None
    assert other.enter() is None
    assert second.enter() is not None
    assert first.problem is other.problem is None


# ---- requests ----


def test_requests_before_authentication_have_a_rate() -> None:
    limits = PeerLimits(Limits(unauthenticated_requests_per_s=10))
    assert sum(limits.take_request(A, 0) for _ in range(100)) == 20
    assert limits.take_request(B, 0)
    assert limits.refused_requests == 80
    assert sum(limits.take_request(A, 1_000) for _ in range(100)) == 10
    assert all(PeerLimits().take_request(A, 0) for _ in range(10_000)), "off by default"


# ---- unfinished frames ----


def test_unauthenticated_connections_share_the_room_of_their_address() -> None:
    limits = PeerLimits(Limits(unauthenticated_bytes_per_address=100, unauthenticated_bytes=150))
    first, second = connections(limits, 2)
    other = FakeConnection(limits, B)
    limits.hold(first, 60)
    with pytest.raises(
        NoRoomError, match="connections from its address that have not authenticated would hold"
    ):
        limits.hold(second, 41)
    limits.hold(second, 40)
    limits.hold(other, 50)
    member = FakeConnection(limits, A, is_admitted=True)
    limits.hold(member, 1_000_000)
    for each in (first, second, other, member):
        limits.release(each)
        limits.release(each)
    assert (limits.partial_bytes, limits.unauthenticated_bytes) == (0, 0)
    assert limits.remembered == 0, "nothing is kept of addresses that are gone"


def test_the_oldest_frames_of_anonymous_clients_go_for_new_ones() -> None:
    """Some anonymous clients could keep others out with frames that they do not end."""
    limits = PeerLimits(Limits(unauthenticated_bytes=100))
    slow, slower, honest = connections(limits, 3)
    limits.hold(slow, 50)
    limits.hold(slower, 40)
    limits.hold(slow, 5)
    limits.hold(honest, 30)
    assert slow.problem == (
        "unfinished frames of connections that have not authenticated would hold more than 100 bytes, and "
        "its frame is the oldest one"
    )
    assert slower.problem is honest.problem is None
    assert limits.unauthenticated_bytes == limits.partial_bytes == 70
    with pytest.raises(NoRoomError, match="would hold more than 100 bytes"):
        limits.hold(FakeConnection(limits), 101)
    assert limits.closed == {FRAME_BYTES: 3}, "its own problem is counted by the connection"
    limits.hold(FakeConnection(limits, is_admitted=True), 1_000)


def test_the_oldest_frames_go_for_new_ones() -> None:
    limits = PeerLimits(Limits(partial_bytes=100))
    slow, slower, honest = connections(limits, 3, is_admitted=True)
    limits.hold(slow, 50)
    limits.hold(slower, 40)
    limits.hold(slow, 5)
    limits.hold(honest, 30)
    assert slow.problem == "unfinished frames hold 125 of 100 bytes, and its frame is the oldest one"
    assert slower.problem is honest.problem is None
    assert limits.partial_bytes == 70
    with pytest.raises(NoRoomError, match="unfinished frames hold 110 of 100 bytes"):
        limits.hold(FakeConnection(limits, is_admitted=True), 110)
    assert limits.closed == {FRAME_BYTES: 3}, "its own problem is counted by the connection"


def looks(limits: PeerLimits, connection: FakeConnection, count: int) -> None:
    for _ in range(count):
        limits.look({connection}, 5.0)


def test_a_frame_ends_within_the_time_or_keeps_the_rate() -> None:
    limits = PeerLimits(Limits(frame_timeout_s=30, frame_bytes_per_s=1_000))
    slow, fast, other = connections(limits, 3, is_admitted=True)
    for each in (slow, fast):
        limits.hold(each, 8)
    for _ in range(200):
        if slow.problem is None:
            limits.hold(slow, 1)
        limits.hold(fast, 5_000)
        limits.look({slow, fast, other}, 5.0)
    assert slow.problem == "a frame has not ended in 35 s, 16 bytes of it have come"
    assert fast.problem is None, "16 MiB over a slow line take longer than 30 s"
    looks(limits, fast, 6)
    assert fast.problem is None
    looks(limits, fast, 20)
    assert fast.problem is not None
    assert limits.closed == {SLOW_FRAME: 2}


def test_every_frame_has_its_own_time() -> None:
    limits = PeerLimits(Limits(frame_timeout_s=30))
    (busy,) = connections(limits, 1, is_admitted=True)
    for _ in range(100):
        limits.hold(busy, 100)
        looks(limits, busy, 5)
        limits.release(busy)
    assert busy.problem is None


def test_who_is_not_read_from_is_not_late() -> None:
    """While a peer does not read its responses, its requests are not read."""
    limits = PeerLimits(Limits(frame_timeout_s=30))
    (paused,) = connections(limits, 1, is_admitted=True)
    limits.hold(paused, 100)
    paused.paused = True
    looks(limits, paused, 1_000)
    assert paused.problem is None
    paused.paused = False
    looks(limits, paused, 8)
    assert paused.problem is not None


def test_only_the_connections_of_the_port_that_looks_are_seen() -> None:
    """Two ports share the limits; each looks."""
    limits = PeerLimits(Limits(frame_timeout_s=30))
    mine, theirs = connections(limits, 2, is_admitted=True)
    limits.hold(mine, 1)
    limits.hold(theirs, 1)
    looks(limits, mine, 100)
    assert mine.problem is not None
    assert theirs.problem is None


def test_all_counts_go_back() -> None:
    random = Random(5)
    limits = PeerLimits(
        Limits(
            connections=12, connections_per_address=5, unauthenticated_requests_per_s=5,
            unauthenticated_bytes_per_address=500, unauthenticated_bytes=1_500, partial_bytes=1_800,
            frame_timeout_s=5,
        )
    )  # fmt: skip
    inside: list[FakeConnection] = []
    for _ in range(5_000):
        inside = [each for each in inside if each.problem is None]
        each = random.choice(inside) if inside else None
        match random.randrange(16):
            case 0 | 1 | 2 | 3:
                new = FakeConnection(limits, bytes([10, 0, 0, random.randrange(4)]))
                if new.enter() is None:
                    inside.append(new)
            case 4 if each is not None:
                inside.remove(each)
                each.evict("gone")
            case 5 if each is not None and not each.is_admitted:
                each.admit()
            case 6 if each is not None:
                limits.release(each)
            case 7 if random.random() < 0.3:
                limits.look(set(inside), 5.0)
            case _ if each is not None:
                try:
                    limits.hold(each, random.randrange(1, 400))
                except NoRoomError:
                    each.evict("no room")
        assert limits.partial_bytes == sum(each.partial_bytes for each in inside if each.problem is None)
        assert limits.connection_count == sum(each.problem is None for each in inside) <= 12
    for each in inside:
        each.evict("the end")
    assert {PER_ADDRESS, EVICTED, FRAME_BYTES, SLOW_FRAME} <= limits.closed.keys()
    assert (limits.partial_bytes, limits.unauthenticated_bytes, limits.connection_count) == (0, 0, 0)
    assert limits.remembered == 0


def test_changed_limits_hold_for_what_comes() -> None:
    limits = PeerLimits(Limits(connections_per_address=2, unauthenticated_requests_per_s=1))
    first, second, third, fourth = connections(limits, 4)
    assert first.enter() is second.enter() is None
    assert [limits.take_request(A, 0) for _ in range(3)] == [True, True, False]
    limits.change(Limits(connections_per_address=3, unauthenticated_requests_per_s=2))
    assert third.enter() is None and "3 connections already" in str(fourth.enter())
    assert [limits.take_request(A, 0) for _ in range(5)] == [True, True, True, True, False]
    limits.change(Limits(connections_per_address=1))
    assert first.problem is None, "what is connected stays"
    assert limits.take_request(A, 0)
    limits.leave(first)
    limits.leave(second)
    assert "1 connections already" in str(fourth.enter())
