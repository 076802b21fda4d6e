"""Addresses of sockets: as records store them, and as both ends of a connection write them."""

import contextlib
import socket
import struct


def host_and_port_bytes(host: str, port: int) -> bytes:
    """Returns 4 address bytes, or 16 of IPv6 (IPv4 in IPv6 unwrapped, without a zone), and the port."""
    plain = _plain(host)
    packed = bytes(4)
    with contextlib.suppress(OSError):
        packed = socket.inet_pton(socket.AF_INET6 if ":" in plain else socket.AF_INET, plain)
    return packed + struct.pack(">i", port)


def both_ends_write(address: tuple[str, int] | None) -> str:
    """Returns host:port of a socket's own or peer's address: unless somebody translates addresses in between,
    what one end calls itself is what the other one calls its peer. Empty for None."""
    return f"{_plain(address[0])}:{address[1]}" if address else ""


def _plain(host: str) -> str:
    return host.removeprefix("::ffff:").partition("%")[0]
