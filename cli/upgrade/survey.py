"""The view of a running cluster: what `keelmq status` asks, and what an upgrade needs besides.

It remembers what it has seen: a server that is not listed any more, because it restarts, is missing.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from cli.command_line import Refused
from cli.upgrade.core.view import Facts, Fault, View, view_of
from keelmq.health.reach import Reach, Silent
from keelmq.health.snapshot import (
    HTTP_PORT_KEY,
    ClusterSnapshot,
    NameServer,
    RunningBroker,
    http_address_of,
    take_snapshot,
)
from keelmq.health.status import ClusterStatus
from keelmq.health.summary import status_of
from keelmq.remoting.address_text import split_address, split_list
from keelmq.remoting.booleans import is_true
from keelmq.remoting.operations.container import ContainerStatus
from keelmq.remoting.operations.controller import ControllerMetadata

ONLY_OURS = "haCatchUpThreads"
"""A setting that every KeelMQ broker reports, and none of RocketMQ's."""

ONLY_TLS = (
    "if they accept only TLS, give --credentials FILE with tls in it, or keelmq --tls-ca FILE upgrade; "
    "otherwise check that the programs run there"
)


class NoAnswer(Exception):
    """No server answers. next_step: what to do about it."""

    def __init__(self, text: str, next_step: str = "check the addresses, and that the programs run there"):
        super().__init__(text)
        self.next_step = next_step


class Survey:
    """Asks again at each look(). name_servers: more are found in the settings of the brokers."""

    def __init__(
        self,
        reach: Reach,
        name_servers: tuple[str, ...],
        controllers: tuple[str, ...] = (),
        containers: tuple[str, ...] = (),
    ) -> None:
        self._reach, self._controllers, self._containers = reach, controllers, containers
        self._name_servers: tuple[str, ...] = ()
        self._given = name_servers
        self._facts = Facts()
        self._seen: dict[str, str] = {}
        self.found = ClusterStatus.model_construct()

    @property
    def name_servers(self) -> str:
        """All of them, host:port;host:port."""
        return ";".join(each.address for each in self.found.name_servers)

    @property
    def controllers(self) -> str:
        """All of them, host:port;host:port."""
        return ";".join(each.address for each in self.found.controllers)

    def broker_addresses(self) -> dict[tuple[str, int], str]:
        """Returns (broker name, broker id) -> host:port."""
        return {
            (group.broker_name, each.broker_id): each.address
            for group in self.found.groups
            for each in group.replicas
        }

    async def look(self) -> View:
        """Returns the cluster as it is now. Raises Refused: a server refuses to answer; NoAnswer."""
        if not self._name_servers:
            self._name_servers = await self._all_name_servers()
        snapshot = await self._snapshot(self._name_servers)
        self._facts = await self._facts_of(snapshot)
        self.found = status_of(snapshot)
        view = view_of(self.found, self._facts)
        there = {each.address: each.label for each in view.servers}
        if not view.faults:
            self._seen |= there
        lost = [each for each in self._seen if each not in there]
        faults = tuple(Fault(self._seen[each], "no server lists it any more") for each in lost)
        return replace(view, faults=view.faults + faults)

    async def _snapshot(self, name_servers: tuple[str, ...]) -> ClusterSnapshot:
        self._reach.begin()
        snapshot = await take_snapshot(
            self._reach, name_servers, self._controllers, {}, containers=self._containers
        )
        answers = [
            *snapshot.name_servers.items(), *snapshot.controllers.items(), *snapshot.brokers.items(),
            *snapshot.containers.items(),
        ]  # fmt: skip
        for address, answer in answers:
            if isinstance(answer, Silent) and answer.is_refusal:
                raise Refused(f"{address}: {answer}: an upgrade needs a user who may read everything")
        if all(isinstance(answer, Silent) for _, answer in answers):
            texts = "; ".join(f"{address}: {answer}" for address, answer in answers)
            if any(isinstance(answer, Silent) and answer.was_plain for _, answer in answers):
                raise NoAnswer(texts, ONLY_TLS)
            raise NoAnswer(texts)
        return snapshot

    async def _all_name_servers(self) -> tuple[str, ...]:
        """Returns those that were given and those in the settings of the brokers, each once."""
        snapshot = await self._snapshot(self._given)
        settings = [each.settings for each in snapshot.brokers.values() if isinstance(each, RunningBroker)]
        listed = {each for one in settings for each in split_list(one.get("namesrvAddr", ""))}
        known = frozenset[str]().union(*[await self._resolved(each) for each in self._given])
        more = [each for each in sorted(listed - set(self._given)) if not await self._resolved(each) & known]
        return *self._given, *more

    async def _resolved(self, address: str) -> frozenset[str]:
        """Returns an address as ip:port. What cannot be resolved stays as it is."""
        with suppress(Silent, ValueError):
            host, port = split_address(address)
            return frozenset(f"{each}:{port}" for each in await self._reach.resolve(host))
        return frozenset({address})

    async def _facts_of(self, snapshot: ClusterSnapshot) -> Facts:
        """What silent servers reported before stays."""
        embedded, faults = await self._embedded(snapshot)
        return Facts(
            registered={
                address: {
                    name: frozenset(broker.broker_addrs.values())
                    for name, broker in server.cluster.broker_addr_table.items()
                }
                for address, server in snapshot.answering.items()
            },
            linked=dict(_linked(snapshot)),
            embedded={**self._facts.embedded, **embedded},
            contained={**self._facts.contained, **dict(_contained(snapshot))},
            learners=frozenset(
                str(plugin.get("address"))
                for _, plugin in snapshot.plugins
                if isinstance(raft := plugin.get("raft"), dict) and raft.get("role") == "learner"
            ),
            rocketmq=self._facts.rocketmq | frozenset(_of_rocketmq(snapshot)),
            faults=faults,
        )

    async def _embedded(self, snapshot: ClusterSnapshot) -> tuple[dict[str, str], tuple[Fault, ...]]:
        """Returns name server -> the controller in its process: the one that its HTTP port serves, else the
        one with its host."""
        served = {at: str(plugin.get("address", "")) for at, plugin in snapshot.plugins}
        hosts = {each: await self._hosts(each) for each in snapshot.controllers}
        found, faults = dict[str, str](), list[Fault]()
        for address, server in snapshot.answering.items():
            if not is_true(server.settings.get("enableControllerInNamesrv", "false")):
                continue
            inside = served.get(http_address_of(address, server.settings) or "", "")
            own = await self._hosts(address)
            near = [inside] if inside in hosts else [each for each in hosts if hosts[each] & own]
            if len(near) == 1:
                found[address] = near[0]
            else:
                which = f"{' and '.join(near)} have its host" if near else "none has its host"
                faults.append(
                    Fault(address, f"which controller runs in this name server is not known: {which}")
                )
        return found, tuple(faults)

    async def _hosts(self, address: str) -> frozenset[str]:
        return frozenset(each.rpartition(":")[0] for each in await self._resolved(address))


def _linked(snapshot: ClusterSnapshot) -> Iterator[tuple[str, frozenset[int]]]:
    """Yields a master and the slaves that copy from it. RocketMQ's masters, and those without controllers, do
    not know whose links they have."""
    for address, broker in snapshot.brokers.items():
        if not isinstance(broker, RunningBroker) or broker.ha is None or not broker.ha.master:
            continue
        ids = [each.broker_id for each in broker.ha.ha_connection_info]
        if ONLY_OURS in broker.settings and None not in ids:
            yield address, frozenset(each for each in ids if each is not None)


def _contained(snapshot: ClusterSnapshot) -> Iterator[tuple[str, str]]:
    for address, status in snapshot.containers.items():
        if isinstance(status, ContainerStatus):
            yield from ((each.address, address) for each in status.brokers if each.address)


def _of_rocketmq(snapshot: ClusterSnapshot) -> Iterator[str]:
    """Yields the servers that are not KeelMQ's."""

    def is_other(settings: Mapping[str, str], key: str) -> bool:
        return bool(settings) and key not in settings

    for address, broker in snapshot.brokers.items():
        if isinstance(broker, RunningBroker) and is_other(broker.settings, ONLY_OURS):
            yield address
    for address, server in snapshot.name_servers.items():
        if isinstance(server, NameServer) and is_other(server.settings, HTTP_PORT_KEY):
            yield address
    for address, view in snapshot.controllers.items():
        if isinstance(view, ControllerMetadata) and view.self_id is None:
            yield address
