"""Failed authentications of an address are limited."""

from keelmq.security.core.throttle import FailureThrottle


def test_a_burst_then_one_at_a_time() -> None:
    throttle = FailureThrottle(failures_max=3, refill_ms=100)
    for _ in range(3):
        assert throttle.wait_ms("10.0.0.1", 1_000) == 0
        throttle.failed("10.0.0.1", 1_000)
    assert throttle.wait_ms("10.0.0.1", 1_000) == 100
    assert throttle.wait_ms("10.0.0.1", 1_100) == 0
    throttle.failed("10.0.0.1", 1_100)
    assert throttle.wait_ms("10.0.0.1", 1_100) == 100
    assert throttle.wait_ms("10.0.0.2", 1_100) == 0


def test_more_failures_do_not_make_it_wait_longer() -> None:
    throttle = FailureThrottle(failures_max=3, refill_ms=100)
    for _ in range(1_000):
        throttle.failed("10.0.0.1", 0)
    assert throttle.wait_ms("10.0.0.1", 0) == 100
    assert throttle.wait_ms("10.0.0.1", 300) == 0


def test_ipv6_counts_by_its_network() -> None:
    throttle = FailureThrottle(failures_max=1, refill_ms=100)
    throttle.failed("2001:db8::1", 0)
    assert throttle.wait_ms("2001:db8::2:1", 0) == 100
    assert throttle.wait_ms("2001:db8:0:1::1", 0) == 0
    throttle.failed("::ffff:10.0.0.1", 0)
    assert throttle.wait_ms("10.0.0.1", 0) == 100


def test_the_table_is_bounded() -> None:
    throttle = FailureThrottle(failures_max=1, refill_ms=100, addresses_max=10)
    for number in range(100):
        throttle.failed(f"10.0.0.{number}", 0)
    assert 5 <= len(throttle) <= 10
    assert throttle.wait_ms("10.0.0.99", 0) == 100
    assert throttle.wait_ms("10.0.0.0", 0) == 0


def test_failures_with_many_other_names_do_not_make_it_forget_a_guesser() -> None:
    throttle = FailureThrottle(failures_max=3, refill_ms=100, addresses_max=10)
    for _ in range(3):
        throttle.failed("10.0.0.1", 0, "admin")
    for number in range(1_000):
        throttle.failed("10.0.0.1", 0, f"nobody {number}")
    assert throttle.wait_ms("10.0.0.1", 0, "admin") == 100
    assert len(throttle) <= 10


def test_failures_of_a_clock_that_was_ahead_are_forgotten_first() -> None:
    throttle = FailureThrottle(failures_max=3, refill_ms=100, addresses_max=4)
    for number in range(3):
        throttle.failed("10.0.0.1", 1_000_000, f"nobody {number}")
    for _ in range(3):
        throttle.failed("10.0.0.1", 0, "admin")
    throttle.failed("10.0.0.1", 0, "nobody 3")
    assert throttle.wait_ms("10.0.0.1", 0, "admin") == 100


def test_kinds_are_counted_apart() -> None:
    throttle = FailureThrottle(failures_max=1, refill_ms=100)
    throttle.failed("10.0.0.1", 0)
    assert throttle.wait_ms("10.0.0.1", 0) == 100
    assert throttle.wait_ms("10.0.0.1", 0, "member ") == 0
    throttle.failed("10.0.0.1", 50, "member ")
    assert throttle.wait_ms("10.0.0.1", 50, "member ") == 100


def test_a_clock_that_goes_back_throttles_nobody_for_so_long() -> None:
    throttle = FailureThrottle(failures_max=1, refill_ms=100)
    throttle.failed("10.0.0.1", 1_000_000)
    assert throttle.wait_ms("10.0.0.1", 1_000) == 0
    throttle.failed("10.0.0.1", 1_000)
    assert throttle.wait_ms("10.0.0.1", 1_000) == 100


def test_long_names_share_their_beginning() -> None:
    """A name has the size of a frame at most, and ten thousand of them are remembered."""
    throttle = FailureThrottle(failures_max=1, refill_ms=100)
    throttle.failed("10.0.0.1", 0, "a" * 64 + "b")
    assert throttle.wait_ms("10.0.0.1", 0, "a" * 64 + "c") == 100
    assert throttle.wait_ms("10.0.0.1", 0, "a" * 63 + "c") == 0
