"""Socket addresses: as bytes, as records store them and limits count them, and which are local."""

import asyncio
import contextlib
import ipaddress
import socket
import struct

from keelmq.remoting.address_text import host_of


def host_and_port_bytes(host: str, port: int) -> bytes:
    """Returns 4 address bytes, or 16 of IPv6 (IPv4 in IPv6 unwrapped, without a zone), and the port."""
    plain = _plain(host)
    packed = bytes(4)
    with contextlib.suppress(OSError):
        packed = socket.inet_pton(socket.AF_INET6 if ":" in plain else socket.AF_INET, plain)
    return packed + struct.pack(">i", port)


def both_ends_write(transport: asyncio.BaseTransport) -> tuple[str, str]:
    """Returns its own address and its peer's, each as host:port: unless addresses are translated in between,
    what one end calls itself is what the other one calls its peer. Empty: there is none."""
    ends = (transport.get_extra_info(name) for name in ("sockname", "peername"))
    own, peer = (f"{_plain(end[0])}:{end[1]}" if end else "" for end in ends)
    return own, peer


def _plain(host: str) -> str:
    return host.removeprefix("::ffff:").partition("%")[0]


def is_loopback(host: str) -> bool:
    """Returns whether only this machine reaches the host, or is it: localhost, or a loopback address, of IPv4
    also within IPv6. Other names are not resolved."""
    try:
        return ipaddress.ip_address(_plain(host)).is_loopback
    except ValueError:
        return host == "localhost"


def network_of_peer(address: str) -> bytes:
    """Returns network_of() of "host:port", as Peer.address has it."""
    return network_of(host_and_port_bytes(host_of(address), 0))


def network_of(address_bytes: bytes) -> bytes:
    """Returns the key of limits per address, of host_and_port_bytes(): the IPv4 address, or the first 64 bits
    of the IPv6 address."""
    return address_bytes[: 8 if len(address_bytes) > 8 else 4]
