"""The console as a separate program: for any cluster of KeelMQ or RocketMQ, on any machine.

With credentials it shows what they may read, so all users must log in first, with a user of the cluster.
Without them the cluster is open, or shows nothing, and no log-in is needed.
"""

from collections.abc import Sequence

import msgspec

from keelmq.console.sources import POLL_MS, ConsoleSources
from keelmq.remoting.servers.http_hosts import AllowedHosts
from keelmq.remoting.servers.http_late import LateHttp
from keelmq.remoting.servers.http_settings import HttpPolicy
from keelmq.runtime.stop_steps import StopSteps
from keelmq.runtime.tls.contexts import Tls
from keelmq.security.signer import Credentials

PORT = 8082


class StandaloneOptions(msgspec.Struct, frozen=True):
    """`hosts`: names of this console besides those of its machine, behind a reverse proxy."""

    name_servers: Sequence[str]
    controllers: Sequence[str] = ()
    bind: str = "127.0.0.1"
    port: int = PORT
    credentials: Credentials | None = None
    tls: Tls = False
    read_only: bool = False
    poll_ms: int = POLL_MS
    hosts: Sequence[str] = ()


class StandaloneConsole:
    """Call start() and stop() in the event loop. start() raises ConfigError: the port is in use."""

    def __init__(self, options: StandaloneOptions) -> None:
        from keelmq.console.service import ConsoleService, standalone_app
        from keelmq.console.verifiers import ClusterVerifier, SessionsOnly

        names, members = tuple(options.name_servers), tuple(options.controllers)
        sources = ConsoleSources(
            name_servers=lambda: names,
            controllers=lambda: members,
            credentials=options.credentials,
            tls=options.tls,
            poll_ms=options.poll_ms,
            read_only=options.read_only,
        )
        is_required = options.credentials is not None
        verifier = ClusterVerifier(self._brokers, is_required=is_required, tls=options.tls)
        self.service = ConsoleService(sources, verifier)
        access = SessionsOnly(self.service.access.user_of) if is_required else None
        policy = HttpPolicy(hosts=AllowedHosts((options.bind, *options.hosts)), access=access)
        self._http = LateHttp(
            lambda: standalone_app(self.service), host=options.bind, port=options.port, policy=policy
        )

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, once started."""
        return self._http.address

    async def start(self) -> None:
        self._http.bind()
        await self._http.serve()

    async def stop(self) -> None:
        """Safe to repeat. Raises StopError."""
        steps = StopSteps("console")
        steps.add("the cluster's connections", self.service.stop)
        steps.add("HTTP", self._http.close)
        await steps.run()

    async def _brokers(self) -> list[str]:
        return await self.service.brokers()
