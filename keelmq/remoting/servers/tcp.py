"""An OperationTable served over TCP, the way RocketMQ peers expect it."""

import asyncio
import logging
from collections.abc import Callable

from remoting.codes import ResponseCode
from remoting.config import ConfigError, why_refused
from remoting.connection import SCRATCH_BYTES, Connection, LargeFrames, close_all
from remoting.dispatch import Dispatcher
from remoting.operation import OperationTable

logger = logging.getLogger(__name__)

BACKLOG = 1024
CONNECTIONS_MAX = 50_000
"""Each broker has one to each controller and name server, so 10,000 brokers and their clients fit."""
LARGE_BYTES_MAX = 201_326_592
"""What unfinished large frames hold together: 12 of the largest (16 MiB), 48 of RocketMQ's largest messages.
The two doors of a name server with a controller fit into the 512 MiB that deploy/k8s gives it."""
IDLE_MS = 120_000
"""A connection without a byte in either direction for so long is closed."""
IDLE_SWEEPS = 4


class TcpDoor:
    """Listens at host:port (0: the system chooses) from start() to close(). `on_closed` gets the
    connection id, once per connection. `name` is for log lines and errors."""

    def __init__(
        self,
        table: OperationTable,
        *,
        host: str,
        port: int,
        name: str,
        on_closed: Callable[[int], None] | None = None,
        bad_request_code: int = ResponseCode.SYSTEM_ERROR,
        idle_ms: int = IDLE_MS,
        connections_max: int = CONNECTIONS_MAX,
        large_bytes_max: int = LARGE_BYTES_MAX,
    ) -> None:
        self.name = name
        self._host, self._port = host, port
        self._dispatcher = Dispatcher(table, name=name, bad_request_code=bad_request_code)
        self._on_closed = on_closed
        self._idle_ms, self._connections_max = idle_ms, connections_max
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._large_frames = LargeFrames(large_bytes_max)
        self._connections: set[Connection] = set()
        self._refusing = False
        self._server: asyncio.Server | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._idle: dict[Connection, tuple[int, int]] = {}  # activity seen, sweeps since it moved

    async def start(self) -> None:
        """Binds and listens. Raises ConfigError."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._connection, self._host, self._port, backlog=BACKLOG)
        except (OSError, UnicodeError) as error:
            where = f"{self._host}:{self._port}"
            raise ConfigError(f"{self.name}: cannot listen on {where}: {why_refused(error)}") from error
        self._sweep_timer = loop.call_later(self._idle_ms / IDLE_SWEEPS / 1000, self._sweep)

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) as bound. Only after start()."""
        assert self._server is not None, "not started"
        host, port = self._server.sockets[0].getsockname()[:2]
        return str(host), int(port)

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def close_connections(self) -> None:
        """Sends every client away after what is queued for it; it may come back at once."""
        for connection in list(self._connections):
            connection.close()

    async def close(self) -> None:
        """Stops listening, cancels running handlers, closes every connection. May be called twice."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        if self._server is not None:
            self._server.close()
        await self._dispatcher.close()
        await close_all(self._connections)
        if self._server is not None:
            await self._server.wait_closed()

    def _connection(self) -> Connection:
        return Connection(
            self._dispatcher,
            self._scratch,
            on_made=self._made,
            on_lost=self._lost,
            large_frames=self._large_frames,
        )

    def _made(self, connection: Connection) -> None:
        if len(self._connections) < self._connections_max:
            self._connections.add(connection)
            return
        if not self._refusing:
            logger.warning("%s: %d connections: new ones are refused", self.name, self._connections_max)
        self._refusing = True
        connection.abort()

    def _lost(self, connection: Connection) -> None:
        self._idle.pop(connection, None)
        if connection not in self._connections:
            return
        self._connections.discard(connection)
        self._refusing = False
        if self._on_closed is not None:
            self._on_closed(connection.connection_id)

    def _sweep(self) -> None:
        """One timer for all connections: closes those that did nothing during IDLE_SWEEPS sweeps."""
        for connection in list(self._connections):
            seen, sweeps = self._idle.get(connection, (-1, 0))
            if connection.activity != seen or connection.in_flight:
                self._idle[connection] = (connection.activity, 0)
            elif sweeps + 1 < IDLE_SWEEPS:
                self._idle[connection] = (seen, sweeps + 1)
            else:
                logger.info("%s: closed %s: idle", self.name, connection.address)
                connection.close()
        loop = asyncio.get_running_loop()
        self._sweep_timer = loop.call_later(self._idle_ms / IDLE_SWEEPS / 1000, self._sweep)
