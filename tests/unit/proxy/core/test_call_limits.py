"""The calls of one address, and the bytes of their requests."""

from proxy.core.call_limits import CallLimits


def test_calls_of_one_address_and_bytes_of_requests() -> None:
    limits = CallLimits(2, connection_bytes_max=10, bytes_max=15)
    assert limits.enter(b"a", "1", 10) is None
    assert "10 bytes" in (limits.enter(b"a", "1", 1) or "")
    assert "all connections" in (limits.enter(b"a", "2", 6) or "")
    assert limits.enter(b"a", "2", 5) is None
    assert "grpcMaxConcurrentCallsPerAddress" in (limits.enter(b"a", "3", 0) or "")
    assert limits.enter(b"b", "3", 0) is None
    limits.leave(b"a", "1", 10)
    assert limits.enter(b"a", "1", 10) is None
    for network, connection, count in ((b"a", "1", 10), (b"a", "2", 5), (b"b", "3", 0)):
        limits.leave(network, connection, count)
    assert len(limits) == 0
