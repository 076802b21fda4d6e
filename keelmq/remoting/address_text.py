"""Addresses as texts: "host:port" and "host:port;host:port" of settings, options and requests, and listeners:
"external://host:port;vpn://host:port". Pure.

An IPv6 address has brackets before a port. The listener "internal" is never in a text: it is listenPort,
announced as brokerIP1 (docs/adr/0077).
"""

import ipaddress
import re
from collections.abc import Mapping
from typing import Final

PORT_MAX: Final = 65_535
ANY_ADDRESS: Final = ("0.0.0.0", "::", "[::]", "*")
"""Hosts that a port can be bound to, and no client can connect to."""
INTERNAL: Final = "internal"
LISTENERS_MAX: Final = 8
_LISTENER = re.compile(r"([A-Za-z][A-Za-z0-9_-]{0,31})://(.+)")


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


def parse_listeners(text: str) -> dict[str, str]:
    """Returns {"external": "0.0.0.0:10921"} for "external://0.0.0.0:10921"; empty for an empty text.
    ValueError: an entry is malformed, a name is there twice, or there are more than LISTENERS_MAX."""
    found: dict[str, str] = {}
    for entry in split_list(text):
        match = _LISTENER.fullmatch(entry)
        if match is None:
            raise ValueError(f"{entry[:80]!r} is not NAME://HOST:PORT")
        name, address = match.groups()
        if name == INTERNAL:
            raise ValueError(f"{INTERNAL} is listenPort at bindAddress, announced as brokerIP1")
        if name in found:
            raise ValueError(f"{name} is there twice")
        split_address(address)
        found[name] = address
    if len(found) > LISTENERS_MAX:
        raise ValueError(f"{len(found)} listeners; {LISTENERS_MAX} is the limit")
    return found


def listeners_text(listeners: Mapping[str, str]) -> str:
    """Returns the text that parse_listeners() reads."""
    return ";".join(f"{name}://{address}" for name, address in listeners.items())
