"""Addresses as texts: "host:port" and "host:port;host:port" of settings, options and requests. Pure.

An IPv6 address has brackets before a port.
"""

import ipaddress
from typing import Final

PORT_MAX: Final = 65_535


def split_address(address: str) -> tuple[str, int]:
    """Returns the host, without brackets, and the port, split at the last colon. ValueError: it has none, or
    no port from 1 to PORT_MAX."""
    host, _, port = address.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) <= PORT_MAX):
        raise ValueError(f"{address!r} is not host:port")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    """Returns host:port, with brackets around an IPv6 address."""
    return f"{bracketed(host)}:{port}"


def bracketed(host: str) -> str:
    """Returns the host as a URL or an address has it: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def host_of(address: str) -> str:
    """Returns the host of an address without brackets; a text without a port as it is. Checks nothing."""
    host, colon, _ = address.rpartition(":")
    return host.strip("[]") if colon else address


def split_list(text: str) -> list[str]:
    """Returns the entries of "a:1;b:2", unchecked; commas separate as well, and blanks around them do not
    count."""
    return [part.strip() for part in text.replace(",", ";").split(";") if part.strip()]


def parse_addresses(text: str) -> list[str]:
    """Returns ["a:1", "b:2"] for "a:1;b:2". ValueError: an entry has no valid port, or there is no entry.
    TypeError: it is not one text."""
    if not isinstance(text, str):
        raise TypeError(f"addresses are one text, 'host:port;host:port', not {text!r}")
    addresses = split_list(text)
    for address in addresses:
        split_address(address)
    if not addresses:
        raise ValueError("no address given")
    return addresses


def is_ip(host: str) -> bool:
    """Returns whether the host is an IP address, with or without brackets or a zone, and no name."""
    try:
        ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return False
    return True
