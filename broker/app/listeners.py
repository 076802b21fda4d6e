"""The ports that a broker serves its operations on: listenPort and those of further listeners
(docs/adr/0077) for clients and tools, and for each its fast port (naming/vip_port.py) for clients with the
"VIP channel". With enableProxy also grpcServerPort (app/proxy.py).
"""

from collections.abc import Callable
from typing import NamedTuple

from broker.app.proxy import Proxy, ProxyParts, start_proxy
from broker.clients.proxied_requests import ProxiedRequests
from broker.config.broker_config import BrokerConfig
from broker.naming.vip_port import NAME, open_fast_port
from keelmq.remoting.operation import Access, OperationTable
from keelmq.remoting.peer_limits import PeerLimits
from keelmq.remoting.servers.tcp import TcpServer
from keelmq.remoting.write_buffers import WriteBuffers
from keelmq.runtime.tls.contexts import PortTls, ServerTls


class _Port(NamedTuple):
    """What to bind. port 0: any free one."""

    name: str
    host: str
    port: int
    tls: PortTls


class Listeners:
    """start() binds the ports, close_connections() closes the clients' connections."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        host: str,
        on_closed: Callable[[int], None],
        write_buffers: WriteBuffers,
        limits: PeerLimits,
        tls: ServerTls,
    ) -> None:
        """host: as announced to clients. on_closed(connection id). write_buffers, limits: of all
        connections together."""
        self._config, self._host = config, host
        self._on_closed, self._limits, self._tls = on_closed, limits, tls
        self._write_buffers = write_buffers
        self.servers: list[TcpServer] = []
        """Those of remoting that are open."""
        self.fast_address: tuple[str, int] | None = None
        """Of the fast port of listenPort, as bound; None: there is none."""
        self.proxy: Proxy | None = None
        """The server of gRPC; None: enableProxy=false, or not open."""
        self._proxied: ProxiedRequests | None = None
        self._port: int | None = None

    async def start(self, table: OperationTable, further: Access | None) -> None:
        """further: the check at listeners other than `internal`. ConfigError: a configured port is not
        available."""
        config, outside = self._config, table.with_access(further)
        self._proxied = ProxiedRequests(table)
        self._proxied.bind()
        internal = _Port("listenPort", config.bind_address, config.listen_port, self._tls)
        ports = [
            _Port(f"listener {name}", host, port, self._tls.listeners)
            for name, (host, port) in config.further_listeners.items()
        ]
        self._port = await self._open(table, internal)
        for each in ports:
            await self._open(outside, each)
        fast = config.fast_listen_port
        self.fast_address = await self._open_fast(table, internal._replace(name=NAME), fast)
        for each in ports:
            await self._open_fast(outside, each._replace(name=f"fast port of {each.name}"), min(fast, 0))
        if config.enable_proxy:
            self.proxy = await start_proxy(
                ProxyParts(config, table, self._proxied, self.address, self._tls, self._limits)
            )

    async def _open(self, table: OperationTable, of: _Port) -> int:
        """Returns the port, as bound."""
        server = TcpServer(
            table,
            host=of.host,
            port=of.port,
            name=of.name,
            on_closed=self._on_closed,
            write_buffers=self._write_buffers,
            limits=self._limits,
            tls=of.tls,
        )
        self.servers.append(server)
        await server.start()
        return server.address[1]

    async def _open_fast(self, table: OperationTable, of: _Port, configured: int) -> tuple[str, int] | None:
        """Returns the address of a port's fast port, as bound; None: the broker works without it."""
        server = await open_fast_port(
            table,
            host=of.host,
            configured=configured,
            listen_port=of.port,
            name=of.name,
            on_closed=self._on_closed,
            write_buffers=self._write_buffers,
            limits=self._limits,
            tls=of.tls,
        )
        if server is None:
            return None
        self.servers.append(server)
        return server.address

    @property
    def all(self) -> list[TcpServer | Proxy | ProxiedRequests]:
        """Those that are open, in the order in which they are closed."""
        others = (each for each in (self.proxy, self._proxied) if each is not None)
        return [*others, *self.servers]

    @property
    def is_listening(self) -> bool:
        """Whether the broker has an address. It keeps its address when the ports are closed."""
        return self._port is not None

    @property
    def port(self) -> int:
        """listenPort, or the port that the system chose for 0."""
        assert self._port is not None, "not started"
        return self._port

    @property
    def address(self) -> str:
        """host:port that is announced to clients."""
        return f"{self._host}:{self.port}"

    @property
    def connection_count(self) -> int:
        """Open connections of clients."""
        return sum(server.connection_count for server in self.servers)

    def close_connections(self) -> None:
        """Closes all of them; the ports stay open. Our clients read the route again then."""
        for server in self.servers:
            server.close_connections()
