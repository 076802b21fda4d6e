"""Starts a program's HTTP server without delaying its TCP server.

The port is bound at once: a port that is in use is a ConfigError like any other, and early requests wait in
the backlog. Importing FastAPI takes longer than the rest of the start, so it happens in a thread while the
program already serves; a program that is stopped meanwhile does not wait for it. This module does not
import it.
"""

import gc
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from keelmq.remoting.servers.http_port import listening_socket
from keelmq.remoting.servers.http_settings import HttpPolicy
from keelmq.runtime.daemon_threads import in_daemon_thread
from keelmq.runtime.stop_steps import StopSteps
from keelmq.runtime.tls.contexts import PortTls

if TYPE_CHECKING:
    from keelmq.remoting.servers.http import HttpServer


class LateHttp:
    """Call bind() while the program starts, serve() once it serves, close() at its end."""

    def __init__(
        self,
        make_app: Callable[[], Any],
        *,
        host: str,
        port: int,
        tls: PortTls | None = None,
        policy: HttpPolicy | None = None,
    ) -> None:
        """make_app: called in a thread; imports FastAPI and returns the app. tls and policy: see
        HttpServer."""
        self._make_app, self._host, self._port, self._tls = make_app, host, port, tls
        self.policy = policy if policy is not None else HttpPolicy()
        self._socket: socket.socket | None = None
        self._address = ("", 0)
        self._server: HttpServer | None = None

    def bind(self) -> None:
        """Binds the port and listens. Raises ConfigError."""
        self._socket = listening_socket(self._host, self._port)
        host, port = self._socket.getsockname()[:2]
        self._address = str(host), int(port)

    @property
    def address(self) -> tuple[str, int]:
        """Returns (host, port) as bound; also valid during close()."""
        assert self._socket is not None, "not bound"
        return self._address

    async def serve(self) -> None:
        """Returns when requests are answered. The objects made here live until the end, so they are excluded
        from garbage collection."""
        self._server = await in_daemon_thread(self._make_server, name="HTTP start")
        gc.freeze()
        await self._server.start()

    async def close(self) -> None:
        """Stops the server and closes the port. Safe to repeat, also when serve() was cancelled."""
        steps = StopSteps("HTTP")
        if self._server is not None:
            steps.add("the server", self._server.close)
        if self._socket is not None:
            steps.add("the port", self._socket.close)
        await steps.run()

    def _make_server(self) -> "HttpServer":
        from keelmq.remoting.servers.http import HttpServer

        return HttpServer(
            self._make_app(),
            host=self._host,
            port=self._port,
            sock=self._socket,
            tls=self._tls,
            policy=self.policy,
        )
