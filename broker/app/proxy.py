"""The gRPC server in a broker (enableProxy). It is found by entry point, since it is above the broker."""

from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import entry_points
from typing import Final, Protocol

import msgspec

from broker.clients.proxied_requests import ProxiedRequests
from broker.config.broker_config import BrokerConfig
from keelmq.remoting.operation import OperationTable
from keelmq.remoting.peer_limits import PeerLimits
from keelmq.remoting.servers.metrics import Scrape
from keelmq.runtime.config import ConfigError
from keelmq.runtime.tls.contexts import ServerTls

ENTRY_POINTS: Final = "broker.proxies"
NAME: Final = "grpc"


class ProxyParts(msgspec.Struct, frozen=True):
    """The parts of a broker that a proxy in it works with. requests: serves the table to clients of gRPC.
    address: host:port of remoting, as announced. tls, limits: of all ports of the process."""

    config: BrokerConfig
    table: OperationTable
    requests: ProxiedRequests
    address: str
    tls: ServerTls
    limits: PeerLimits


class Proxy(Protocol):
    """A server in a broker that is open."""

    @property
    def name(self) -> str:
        """The key of its port."""
        ...

    @property
    def port(self) -> int:
        """The port that it has bound."""
        ...

    def clients(self) -> Mapping[tuple[str, str], int]:
        """Returns how many clients have an open stream, by type and language."""
        ...

    def scrape(self) -> Scrape:
        """Returns the present values of its metrics."""
        ...

    async def close(self) -> None:
        """Ends all calls, and closes the port."""
        ...


Start = Callable[[ProxyParts], Awaitable[Proxy]]


async def start_proxy(parts: ProxyParts) -> Proxy:
    """Returns the proxy, which serves. Raises ConfigError: it is not installed, or cannot serve."""
    for entry in entry_points(group=ENTRY_POINTS, name=NAME):
        try:
            start: Start = entry.load()
        except ImportError as error:
            raise ConfigError(
                f"enableProxy needs the package {error.name}: install keelmq[grpc], or set enableProxy=false"
            ) from error
        return await start(parts)
    raise ConfigError(f"enableProxy: no entry point {NAME!r} of {ENTRY_POINTS} is installed")
