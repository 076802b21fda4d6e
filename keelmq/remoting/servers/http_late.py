"""The HTTP door of a program whose main door is another: which port it gets, and a start that delays nothing.

The port is bound at once, so that a taken one is a ConfigError like any other, and early requests wait in
its backlog. FastAPI takes longer to import than all the rest together: that happens in a thread, while the
program serves already. Imports nothing of it itself.
"""

import asyncio
import gc
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from remoting.config import ConfigError, why_refused

if TYPE_CHECKING:
    from remoting.doors.http import HttpServer

HTTP_PORT_DISTANCE = 10_000
HTTP_OFF = -1
PORT_MAX = 65_535
BACKLOG = 1_024


def http_listen_port(http_port: int, *, listen_port: int, bound_port: int) -> int | None:
    """The rule of every httpPort key; None: no HTTP.

    `listen_port` as configured, `bound_port` as it came out: beside a port that the system chose (0) HTTP
    takes one of the system's as well, and so it does where the distance leads beyond the last port.
    """
    if http_port == HTTP_OFF:
        return None
    if http_port > 0:
        return http_port
    return (
        bound_port + HTTP_PORT_DISTANCE if listen_port and bound_port + HTTP_PORT_DISTANCE <= PORT_MAX else 0
    )


def listening_socket(host: str, port: int) -> socket.socket:
    """Bound and listening. Raises ConfigError."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        sock = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"http: cannot listen on {host}:{port}: {why_refused(error)}") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise ConfigError(f"http: cannot listen on {host}:{port}: {why_refused(error)}") from error
    return sock


class LateHttp:
    """bind() while the program starts, serve() when it is up, close() at its end."""

    def __init__(self, make_app: Callable[[], Any], *, host: str, port: int) -> None:
        """make_app: called in a thread; imports FastAPI, gives the app."""
        self._make_app, self._host, self._port = make_app, host, port
        self._socket: socket.socket | None = None
        self._address = ("", 0)
        self._server: HttpServer | None = None

    def bind(self) -> None:
        """Raises ConfigError."""
        self._socket = listening_socket(self._host, self._port)
        host, port = self._socket.getsockname()[:2]
        self._address = str(host), int(port)

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) as bound; others may ask for it while we stop."""
        assert self._socket is not None, "not bound"
        return self._address

    async def serve(self) -> None:
        """Requests are answered when it returns. What it made lives for ever: the collector skips it."""
        self._server = await asyncio.to_thread(self._make_server)
        gc.freeze()
        await self._server.start()

    async def close(self) -> None:
        """Safe to repeat, also when serve() was cancelled."""
        if self._server is not None:
            await self._server.close()
        if self._socket is not None:
            self._socket.close()

    def _make_server(self) -> "HttpServer":
        from remoting.doors.http import HttpServer

        return HttpServer(self._make_app(), host=self._host, port=self._port, sock=self._socket)
