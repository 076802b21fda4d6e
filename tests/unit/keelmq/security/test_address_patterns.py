"""Address patterns of plain_acl.yml, and source IPs of ACL 2.0."""

import pytest

from keelmq.security.core.address_patterns import (
    BadAddressPattern,
    is_in_any,
    parse_pattern,
    parse_source_ip,
    peer_address,
)


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("*", ["1.2.3.4", "fe80::1", "http"], []),
        ("*.*.*.*", ["1.2.3.4"], []),
        ("*:*:*:*:*:*:*:*", ["fe80::1"], []),
        ("", [], ["1.2.3.4", "fe80::1", ""]),
        ("10.0.0.1", ["10.0.0.1", "::ffff:10.0.0.1"], ["10.0.0.10", "10.0.0.2", "http"]),
        ("192.168.1.{1,2,3}", ["192.168.1.1", "192.168.1.3"], ["192.168.1.4", "192.168.2.1"]),
        ("10.0.0.1,10.0.0.2", ["10.0.0.1", "10.0.0.2"], ["10.0.0.3"]),
        ("192.168.*", ["192.168.0.1", "192.168.255.255"], ["192.169.0.1"]),
        ("192.168.*.*", ["192.168.0.1"], ["192.169.0.1"]),
        ("192.168.1.*", ["192.168.1.200"], ["192.168.10.1"]),
        ("192.168.1-10.*", ["192.168.1.1", "192.168.10.9"], ["192.168.11.1", "192.168.0.1"]),
        ("10.0.0.1-20", ["10.0.0.1", "10.0.0.20"], ["10.0.0.21", "10.0.0.0"]),
        ("2001:db8::1", ["2001:DB8:0:0:0:0:0:1"], ["2001:db8::2"]),
        ("2001:db8:*", ["2001:db8::1", "2001:db8:ffff::"], ["2001:db9::1"]),
        ("2001:db8::1-f", ["2001:db8::1", "2001:db8::f"], ["2001:db8::10"]),
        ("2001:db8::{1,2}", ["2001:db8::2"], ["2001:db8::3"]),
        ("fe80::1%eth0", ["fe80::1"], ["fe80::2"]),
    ],
)
def test_patterns(pattern: str, inside: list[str], outside: list[str]) -> None:
    parsed = parse_pattern(pattern)
    assert [each for each in inside if not parsed.matches(each)] == []
    assert [each for each in outside if parsed.matches(each)] == []


@pytest.mark.parametrize(
    "pattern",
    [
        "10.0.0",
        "10.0.0.256",
        "10.0.0.1.2",
        "10.*.0.1",
        "10.0.0.9-1",
        "10.0.0.x",
        "10.0.0.{1,x}",
        "10.0.{1,2}.1",
        "10.0.0.{}",
        "10.0.0.{1",
        "10.0.0.1/8",
        "a,b",
        "10.0.0.1,",
        "-",
        "10.0.0.-",
        "1-2-3.0.0.0",
        "::g",
        "1:2",
        "1:2:3:4:5:6:7:8:9",
        "٣.0.0.1",
        "10.0.0." + "9" * 5_000,
    ],
)
def test_patterns_that_are_refused(pattern: str) -> None:
    with pytest.raises(BadAddressPattern):
        parse_pattern(pattern)


def test_source_ips() -> None:
    networks = [parse_source_ip("10.1.2.3/8"), parse_source_ip(" 192.168.0.1 "), parse_source_ip("fe80::/10")]
    inside = ["10.9.9.9", "192.168.0.1", "fe80::1", "::ffff:10.0.0.1"]
    assert [each for each in inside if not is_in_any(peer_address(each), networks)] == []
    assert not is_in_any(peer_address("192.168.0.2"), networks)
    assert not is_in_any(peer_address("nobody"), networks)
    for bad in ("", "10.0.0.0/33", "10.0.*", "localhost"):
        with pytest.raises(BadAddressPattern):
            parse_source_ip(bad)
