"""Listening sockets of the programs. `::` is all interfaces of both families, as for RocketMQ's servers;
asyncio would bind IPv6 alone."""

import asyncio
import socket
from collections.abc import Callable
from typing import Final

EVERYWHERE: Final = "::"


async def create_server(
    factory: Callable[[], asyncio.BaseProtocol],
    host: str,
    port: int,
    *,
    backlog: int,
    start_serving: bool = True,
) -> asyncio.Server:
    """Returns loop.create_server() of this host and port. Raises OSError, UnicodeError: not available."""
    loop = asyncio.get_running_loop()
    if host != EVERYWHERE:
        return await loop.create_server(factory, host, port, backlog=backlog, start_serving=start_serving)
    sock = bound_socket(socket.AF_INET6, host, port)
    try:
        return await loop.create_server(factory, sock=sock, backlog=backlog, start_serving=start_serving)
    except BaseException:
        sock.close()
        raise


def bound_socket(family: int, host: str, port: int) -> socket.socket:
    """Returns a TCP socket that is bound and does not block. Raises OSError."""
    # With the protocol: asyncio sets TCP_NODELAY on connections of such sockets alone, and without it an
    # answer in two writes waits for the client's delayed acknowledgement, 40 ms.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        accept_both_families(sock, host)
        sock.bind((host, port))
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def accept_both_families(sock: socket.socket, host: str) -> None:
    """Call before bind(). Otherwise net.ipv6.bindv6only of the machine would decide what `::` means."""
    if host == EVERYWHERE:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
