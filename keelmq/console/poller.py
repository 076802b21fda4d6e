"""ClusterPoller: takes the status of the cluster, over connections that stay open between polls."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from typing import Final, TypeVar

from keelmq.client.admin import AdminClient
from keelmq.console.cpu_clock import CpuClock
from keelmq.console.data.servers import leader_of
from keelmq.console.sources import ConsoleSources
from keelmq.health.memory import Memory
from keelmq.health.reach import Reach, Silent
from keelmq.health.snapshot import take_snapshot
from keelmq.health.status import ClusterStatus
from keelmq.health.summary import status_of
from keelmq.remoting.address_text import parse_addresses, split_address

LOOK_AROUND_S: Final = 60.0
"""How often a broker is asked which name servers it knows."""
BROKERS_ASKED: Final = 3
AT_ONCE_MAX: Final = 32
"""Questions of a page's details that are asked concurrently."""

T = TypeVar("T")


class ClusterPoller:
    """The Poller of a console. Asks as the program, which is for reading only. `cpu`: what it spends."""

    def __init__(self, sources: ConsoleSources, cpu: CpuClock | None = None) -> None:
        self._sources, self._cpu = sources, cpu or CpuClock()
        self._reach: Reach | None = None
        self._pulse_reach: Reach | None = None
        self._memory = Memory()
        self._status: ClusterStatus | None = None
        self._others: tuple[str, ...] = ()
        self._looked_at_s = -LOOK_AROUND_S
        self._gate = asyncio.Semaphore(AT_ONCE_MAX)

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The name servers to query: the given ones, or those that brokers list."""
        return self._others or self._sources.name_servers()

    async def take(self) -> ClusterStatus:
        if self._reach is None:
            sources = self._sources
            self._reach = Reach(sources.timeout_ms, sources.credentials, tls=sources.tls)
        self._reach.begin()
        seen = await take_snapshot(
            self._reach,
            self.name_servers,
            self._sources.controllers(),
            self._sources.http,
            self._memory,
        )
        # Judging a thousand groups takes longer than this loop may be blocked.
        self._status = await self._cpu.in_thread(status_of, seen)
        await self._look_around(self._reach)
        return self._status

    async def pulse(self) -> object:
        leader = None if self._status is None else leader_of(self._status)
        if leader is None:
            return None
        try:
            newest = await self.ask(leader, lambda admin, at: admin.controllers.elections(at, "", 1))
        except Silent:
            return None
        return newest[0].event_id if newest else 0

    async def ask(self, address: str, question: Callable[[AdminClient, str], Awaitable[T]]) -> T:
        """Asks one server for something besides the status. Raises Silent."""
        if self._pulse_reach is None:
            sources = self._sources
            self._pulse_reach = Reach(sources.timeout_ms, sources.credentials, tls=sources.tls)
        async with self._gate:
            self._pulse_reach.begin()
            return await self._pulse_reach.ask(address, question)

    async def close(self) -> None:
        for reach in (self._reach, self._pulse_reach):
            if reach is not None:
                await reach.__aexit__(None, None, None)

    async def _look_around(self, reach: Reach) -> None:
        """Learns which name servers there are from brokers."""
        now_s = asyncio.get_running_loop().time()
        status = self._status
        if not self._sources.finds_others or status is None or now_s < self._looked_at_s + LOOK_AROUND_S:
            return
        self._looked_at_s = now_s
        brokers = [
            each.address for group in status.groups for each in group.replicas if each.role != "silent"
        ]
        if not brokers:
            self._looked_at_s = -LOOK_AROUND_S
        listed: dict[str, None] = {}
        for address in brokers[:BROKERS_ASKED]:
            try:
                settings = await reach.ask(address, lambda admin, at: admin.brokers.broker_config(at))
                listed |= dict.fromkeys(parse_addresses(settings.get("namesrvAddr", "")))
            except (Silent, ValueError):
                continue
        own = self._sources.name_servers()
        is_own = await asyncio.to_thread(_which_are_here, list(listed), own)
        self._others = tuple(listed) if any(is_own) else tuple(dict.fromkeys((*own, *listed)))


def _which_are_here(listed: Sequence[str], own: Sequence[str]) -> list[bool]:
    """Returns for each address whether it is this program: one of our own ports, at an address of this
    machine. A name server that is listed by its own address need not be asked over the loopback as well."""
    ports = {split_address(each)[1] for each in own}
    found = []
    for address in listed:
        host, port = split_address(address)
        found.append(address in own or (port in ports and _is_here(host)))
    return found


def _is_here(host: str) -> bool:
    """Returns whether a socket of this machine can have this address."""
    try:
        for family, kind, _, _, place in socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM):
            with closing(socket.socket(family, kind)) as probe:
                probe.bind(place)
                return True
    except (OSError, UnicodeError):
        return False
    return False
