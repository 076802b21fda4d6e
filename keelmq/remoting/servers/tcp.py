"""Serves an OperationTable over TCP, as RocketMQ peers expect."""

import asyncio
import logging
from collections.abc import Callable

from keelmq.remoting.addresses import host_and_port_bytes, network_of
from keelmq.remoting.close_all import close_all
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.connection import SCRATCH_BYTES, Connection
from keelmq.remoting.dispatch import Dispatcher
from keelmq.remoting.large_frames import LargeFrames
from keelmq.remoting.operation import OperationTable
from keelmq.remoting.peer_limits import Limits, PeerLimits
from keelmq.remoting.servers.listening import create_server
from keelmq.remoting.write_buffers import STALLED_LOOKS, WriteBuffers
from keelmq.runtime.clock import now_ms
from keelmq.runtime.config import ConfigError, why_refused
from keelmq.runtime.stop_steps import StopSteps
from keelmq.runtime.tls.contexts import PortTls
from keelmq.runtime.tls.port import TlsPort, WaitingConnection

logger = logging.getLogger(__name__)

BACKLOG = 1024
CONNECTIONS_MAX = 50_000
"""Each broker has one to each controller and name server, so 10,000 brokers and their clients fit."""
LARGE_BYTES_MAX = 201_326_592
"""Bytes of all unfinished large frames: 12 of the largest (16 MiB), 48 of RocketMQ's largest messages.
The two TCP servers of a name server with a controller fit into the 512 MiB that deploy/k8s gives it."""
UNSENT_BYTES_MAX = 134_217_728
"""Bytes that the peers of all connections have not read yet: two connections at their own limit."""
SMALL_UNSENT_BYTES_MAX = 33_554_432
"""The same for name servers and controllers, whose responses are small: two of the largest frames."""
STALLED_MS = 30_000
"""A connection whose peer reads none of its unsent bytes for this long is aborted."""
IDLE_MS = 120_000
"""A connection without a byte in either direction for this long is closed."""
IDLE_SWEEPS = 4


class TcpServer:
    """Listens at host:port (0: the system chooses) from start() to close(). `on_closed` gets the connection
    id, once per connection. `name` is for log lines and errors. `write_buffers`: shared by the ports of one
    program; None: the server has its own, with UNSENT_BYTES_MAX. `limits`: shared like these; None: its own,
    with `connections_max` only. `tls`: None is "disabled"."""

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
        stalled_ms: int = STALLED_MS,
        connections_max: int = CONNECTIONS_MAX,
        large_bytes_max: int = LARGE_BYTES_MAX,
        write_buffers: WriteBuffers | None = None,
        limits: PeerLimits | None = None,
        tls: PortTls | None = None,
    ) -> None:
        self.name = name
        self._host, self._port = host, port
        self._dispatcher = Dispatcher(table, name=name, bad_request_code=bad_request_code)
        self._on_closed = on_closed
        self._idle_ms = idle_ms
        self._look_s = stalled_ms / STALLED_LOOKS / 1000
        self.write_buffers = write_buffers if write_buffers is not None else WriteBuffers(UNSENT_BYTES_MAX)
        self.limits = limits if limits is not None else PeerLimits(Limits(connections=connections_max))
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.large_frames = LargeFrames(large_bytes_max)
        self._connections: set[Connection] = set()
        self.tls_port: TlsPort | None = None
        """None: every connection is plain from its first byte on, without a look at it."""
        if tls is not None and tls.mode != "disabled":
            self.tls_port = TlsPort(
                tls,
                self._connection,
                name=name,
                scratch=self._scratch,
                enter=self._waits,
                leave=self.limits.leave,
                hello=self._says_hello,
            )
        self._server: asyncio.Server | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._look_timer: asyncio.TimerHandle | None = None
        self._idle: dict[Connection, tuple[int, int]] = {}  # activity seen, sweeps since it changed

    async def start(self) -> None:
        """Binds and listens. Raises ConfigError."""
        loop = asyncio.get_running_loop()
        accepted = self._connection if self.tls_port is None else self.tls_port.accepted
        try:
            self._server = await create_server(accepted, self._host, self._port, backlog=BACKLOG)
        except (OSError, UnicodeError) as error:
            where = f"{self._host}:{self._port}"
            raise ConfigError(f"{self.name}: cannot listen on {where}: {why_refused(error)}") from error
        self._sweep_timer = loop.call_later(self._idle_ms / IDLE_SWEEPS / 1000, self._sweep)
        self._look_timer = loop.call_later(self._look_s, self._look)

    @property
    def address(self) -> tuple[str, int]:
        """Returns (host, port) as bound. Only after start()."""
        assert self._server is not None, "not started"
        host, port = self._server.sockets[0].getsockname()[:2]
        return str(host), int(port)

    @property
    def connections(self) -> frozenset[Connection]:
        """The connections that are open now."""
        return frozenset(self._connections)

    @property
    def connection_count(self) -> int:
        """Returns the number of open connections."""
        return len(self._connections)

    def close_connections(self) -> None:
        """Closes all connections after sending what is queued; clients may reconnect at once."""
        for connection in list(self._connections):
            connection.close()

    async def close(self) -> None:
        """Stops listening, cancels running handlers, closes every connection. May be called twice."""
        for timer in (self._sweep_timer, self._look_timer):
            if timer is not None:
                timer.cancel()
        steps = StopSteps(self.name)
        if self._server is not None:
            steps.add("the listener", self._server.close)
        if self.tls_port is not None:
            steps.add("handshakes", self.tls_port.close)
        steps.add("running handlers", self._dispatcher.close)
        steps.add("connections", lambda: close_all(self._connections))
        if self._server is not None:
            steps.add("the listener's connections", self._server.wait_closed)
        await steps.run()

    def _connection(self) -> Connection:
        return Connection(
            self._dispatcher,
            self._scratch,
            on_made=self._made,
            on_lost=self._lost,
            large_frames=self.large_frames,
            write_buffers=self.write_buffers,
            limits=self.limits,
        )

    def _waits(self, connection: WaitingConnection, host: str) -> str | None:
        """A connection counts before it is known whether it speaks TLS."""
        return self.limits.enter(connection, network_of(host_and_port_bytes(host, 0)))

    def _says_hello(self, host: str) -> str | None:
        """A handshake costs fifteen times as much as a connection, and a peer that repeats a captured hello
        pays none of it."""
        if self.limits.take_request(network_of(host_and_port_bytes(host, 0)), now_ms()):
            return None
        return "too many TLS handshakes of its address; try again in 1 s"

    def _made(self, connection: Connection) -> None:
        refusal = self.limits.enter(connection, connection.network)
        if refusal is None:
            self._connections.add(connection)
        else:
            connection.evict(refusal)

    def _lost(self, connection: Connection) -> None:
        self.limits.leave(connection)
        self._idle.pop(connection, None)
        if connection not in self._connections:
            return
        self._connections.discard(connection)
        if self._on_closed is not None:
            self._on_closed(connection.connection_id)

    def _sweep(self) -> None:
        """Closes connections without traffic during IDLE_SWEEPS sweeps; one timer for all connections."""
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

    def _look(self) -> None:
        self.write_buffers.look(self._connections, self._look_s)
        self.limits.look(self._connections, self._look_s)
        self._look_timer = asyncio.get_running_loop().call_later(self._look_s, self._look)
