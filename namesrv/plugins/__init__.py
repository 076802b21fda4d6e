"""The interface between the name server and its plugins, and the search for a plugin by name.

A plugin is a class named by an entry point of the group "namesrv.plugins", so a third party can ship one. It
uses the heartbeat table only through Liveness and never imports the name server; the name server never
imports a plugin.
"""

from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec

from keelmq.remoting.config_store import Settings
from keelmq.remoting.operation import Audit, OperationTable
from keelmq.remoting.operations.route import BrokerData
from keelmq.remoting.peer_limits import PeerLimits
from keelmq.runtime.config import Config, ConfigError
from keelmq.runtime.tls.contexts import ClientTls, ServerTls
from keelmq.security.program import ProgramSecurity
from namesrv.core.liveness import BrokerKey, LastSeen, RouteKey

__all__ = [
    "ENTRY_POINT_GROUP",
    "BrokerKey",
    "Liveness",
    "Masters",
    "Plugin",
    "PluginContext",
    "RouteKey",
    "Routes",
    "Settings",
    "load_plugin",
    "reasons_of",
]

ENTRY_POINT_GROUP = "namesrv.plugins"


class Liveness(Protocol):
    """The heartbeat table as plugins may use it; HeartbeatTable documents the methods."""

    def record_heartbeat(
        self,
        key: Hashable,
        *,
        connection_id: int,
        incarnation: str,
        timeout_ms: int,
        now_ms: int,
        info: object,
        grace_ms: int | None = None,
    ) -> bool:
        """Records a heartbeat. True: the key was absent or inactive before."""
        ...

    def touch(self, key: Hashable, now_ms: int) -> bool:
        """Sets only the time of the last heartbeat. False: no such active key."""
        ...

    def connection_closed(self, connection_id: int, now_ms: int) -> list[Hashable]:
        """Returns the keys that lost their last connection and are suspect now."""
        ...

    def suspicion(self, key: Hashable) -> int | None:
        """Returns the number of the close that made the key suspect; None: it is not suspect."""
        ...

    def found_hung(self, key: Hashable, deadline_ms: int) -> bool:
        """Makes an active key inactive at that time, unless a heartbeat arrives until then. False: it is not
        active, or is suspect."""
        ...

    def proved_dead(self, key: Hashable, suspicion: int, now_ms: int) -> bool:
        """Ends the grace of a key whose process is proved dead. False: the proof is of an earlier close."""
        ...

    def is_active(self, key: Hashable, now_ms: int) -> bool:
        """Returns whether the key's last heartbeat and connection are recent enough."""
        ...

    def is_doubtful(self, key: Hashable, now_ms: int) -> bool:
        """Returns whether an active key has no open connection, or was silent for half its timeout."""
        ...

    def info(self, key: Hashable) -> object | None:
        """Returns the `info` of the last heartbeat, even if the key is inactive; None: unknown."""
        ...

    def last_seen(self, key: Hashable) -> LastSeen | None:
        """Returns when the key sent its last heartbeat and when it became inactive; None: unknown."""
        ...

    def forget(self, key: Hashable) -> None:
        """Removes the key and its connections. Safe to repeat."""
        ...

    @property
    def count(self) -> int:
        """Number of known keys, active or not."""
        ...

    def keys(self) -> Iterator[Hashable]:
        """Returns a snapshot of all known keys, active or not."""
        ...


class Routes(Protocol):
    """The route table as plugins may read it."""

    def broker_data(self, broker_name: str) -> BrokerData | None:
        """Returns all addresses of a group by id, 0 is the master; None: none of its brokers is
        registered."""
        ...


class Masters(Protocol):
    """A plugin that elects masters reports them here, before the master registers itself:
    namesrv/core/elected.py."""

    def elect(self, cluster_name: str, broker_name: str, master_addr: str, master_epoch: int) -> bool:
        """Routes show this master, if it is registered in any role, until it registers as master or a newer
        one is reported. False: this one or a newer one is known already."""
        ...

    def forget(self, cluster_name: str, broker_name: str) -> None:
        """The group has no master, or is gone: routes show what is registered. Safe to repeat."""
        ...


class PluginContext(msgspec.Struct):
    """What the name server gives to a plugin. A plugin with its own port reports closed connections with
    liveness.connection_closed() and then calls wake_scan(), so that the scan runs when the grace ends."""

    liveness: Liveness
    clock: Callable[[], int]  # monotonic ms
    on_inactive: Callable[[Callable[[BrokerKey], None]], None]  # subscribe to brokers found inactive
    wake_scan: Callable[[], None]
    config_path: Path | None = None
    environ: Mapping[str, str] = msgspec.field(default_factory=dict)
    overrides: Mapping[str, str] = msgspec.field(default_factory=dict)
    routes: Routes | None = None  # None: this program serves no routes
    masters: Masters | None = None  # None: likewise
    http_address: Callable[[], tuple[str, int] | None] = lambda: None  # of the HTTP port, once it is bound
    tls: ServerTls | None = None  # for a plugin's own port
    client_tls: ClientTls | None = None  # for its connections to others; None: they are plain
    security: ProgramSecurity | None = None  # the check of requests, and the signer of a plugin's own
    bind_users: Callable[[OperationTable], None] | None = None  # requests that change users and ACLs
    audit: Audit | None = None  # for a plugin's tables
    limits: PeerLimits | None = None  # for a plugin's own port, shared with the name server's
    bind_address: str = "0.0.0.0"  # the name server's; `::`: a plugin's ports serve IPv6, too
    # filled by plugins when they are made:
    request_port: int | None = None  # a standalone controller derives its HTTP port from it
    directory: Path | None = None  # of its files; a standalone controller has its audit log there
    settings: list[Settings] = msgspec.field(default_factory=list)
    # filled before or in start(), and used only with an HTTP port:
    # OperationTables, or functions that make an APIRouter
    http: list[Any] = msgspec.field(default_factory=list)
    # Scrapes for /metrics, each time; a long table is read in slices, by a coroutine function
    scrapes: list[Callable[[], Iterable[Any] | Awaitable[Iterable[Any]]]] = msgspec.field(
        default_factory=list
    )


class Plugin(Protocol):
    """Lifecycle: constructor, start() (may raise ConfigError), stop() (even after a failed start)."""

    name: str

    def __init__(self, context: PluginContext, *configs: Config) -> None: ...

    @classmethod
    def config_models(cls) -> tuple[type[Config], ...]:
        """Returns the settings models, read from the name server's file; the constructor gets their
        instances."""
        ...

    async def start(self) -> None:
        """Opens ports and files. Raises ConfigError: it cannot start."""
        ...

    async def stop(self) -> None:
        """Closes everything. Safe to repeat, and after a failed start. Raises StopError: a step failed."""
        ...

    def health(self) -> dict[str, object]:
        """Returns the plugin's part of /v1/health, with keys in camelCase. "ready" false: the process is not
        ready; "reasons" say why, briefly: /readyz shows them to anyone."""
        ...


def load_plugin(name: str) -> type[Plugin]:
    """Returns the plugin class of that name. Raises ConfigError with the installed names."""
    found = entry_points(group=ENTRY_POINT_GROUP)
    for entry_point in found:
        if entry_point.name == name:
            return cast("type[Plugin]", entry_point.load())
    names = ", ".join(sorted(each.name for each in found)) or "none"
    raise ConfigError(f"no name-server plugin {name!r} is installed (installed: {names})")


def reasons_of(health: Mapping[str, object]) -> list[str]:
    """Returns the reasons of a plugin that is not ready; "not ready" if it gives none."""
    reasons = health.get("reasons")
    return [str(each) for each in reasons] if isinstance(reasons, list) and reasons else ["not ready"]
