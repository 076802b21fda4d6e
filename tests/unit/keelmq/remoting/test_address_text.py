"""host:port and lists of it, as settings, options, clients and servers read and write them."""

from typing import Any

import pytest

from keelmq.remoting.address_text import (
    host_of,
    is_ip,
    join_address,
    parse_addresses,
    split_address,
    split_list,
)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("10.0.0.1:9876", ("10.0.0.1", 9876)),
        ("[fe80::1%eth0]:1", ("fe80::1%eth0", 1)),
        ("h:65535", ("h", 65_535)),
    ],
)
def test_an_address_has_a_host_and_a_port(text: str, parts: tuple[str, int]) -> None:
    assert split_address(text) == parts
    assert join_address(*parts) == text
    assert host_of(text) == parts[0]


def test_an_ipv6_address_without_brackets_ends_at_its_last_colon() -> None:
    assert split_address("fe80::1:9876") == ("fe80::1", 9876)
    assert join_address("[fe80::1]", 9876) == "[fe80::1]:9876", "brackets are not doubled"
    assert host_of("no-port") == "no-port"


@pytest.mark.parametrize(
    "text",
    [
        "h",
        "9876",
        "h:",
        "h:x",
        ":9876",
        "h:0",
        "h:65536",
        "h:²",
        "h:+1",
        "h:" + "9" * 5_000,
        "h:1;h",
        "",
        " ; ",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not host:port|no address given"):
        parse_addresses(text)


def test_lists_forgive_commas_and_blanks() -> None:
    assert split_list(" a:1 ; b,[::1]:3;") == ["a:1", "b", "[::1]:3"]
    assert parse_addresses("h:1; [::1]:2,k:65535") == ["h:1", "[::1]:2", "k:65535"]


def test_a_list_of_addresses_is_refused() -> None:
    """It said that a list has no attribute 'replace'."""
    addresses: Any = ["h:1", "h:2"]
    with pytest.raises(
        TypeError, match=r"addresses are one text, 'host:port;host:port', not \['h:1', 'h:2'\]"
    ):
        parse_addresses(addresses)


@pytest.mark.parametrize(
    ("host", "is_one"),
    [("10.0.0.1", True), ("[::1]", True), ("fe80::1%eth0", True), ("n0", False), ("", False)],
)
def test_an_ip_address_is_no_name(host: str, is_one: bool) -> None:
    assert is_ip(host) is is_one
