"""What the console reads besides the status, when a user opens a group, a server or a container. A missing
answer is null, with the reason."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from pydantic import Field

from keelmq.client.admin import AdminClient
from keelmq.console.core.differences import SettingDifference, differences
from keelmq.console.data.servers import find_group, hosts_of, leader_first, leader_of, servers_of
from keelmq.console.poller import ClusterPoller
from keelmq.health.reach import Silent
from keelmq.health.status import ClusterStatus, ControllerStatus, GroupStatus, ReplicaStatus
from keelmq.remoting.address_text import join_address, split_address
from keelmq.remoting.operation import Wire
from keelmq.remoting.operations.broker import EpochEntryBody, HaRuntimeInfo
from keelmq.remoting.operations.container import ContainerStatus
from keelmq.remoting.operations.controller import (
    ControllerMetadata,
    ElectionExplanation,
    PastElection,
)
from keelmq.remoting.servers.http_answers import NotFound, some_of

CONTAINER_PORT: Final = 10_811
"""listenPort of a container, unless it is configured."""
CONTAINER_HOSTS_MAX: Final = 64
GROUP_ELECTIONS: Final = 20

T = TypeVar("T")


class ReplicaDetail(Wire):
    """epochs: its epoch file (1007), of which the last entry is still written. ha: a master's links to its
    slaves, or a slave's to its master (907)."""

    broker_id: int
    address: str
    epochs: list[EpochEntryBody] | None = None
    max_offset: int | None = None
    ha: HaRuntimeInfo | None = None
    problem: str = ""


class GroupDetail(Wire):
    """A group with everything that its servers tell. elections: newest first, with their reasons; null: the
    controllers keep none. next_election: whom the controllers would elect now (29011), without a change."""

    age_ms: int
    group: GroupStatus
    replicas: list[ReplicaDetail] = Field(default_factory=list)
    differences: list[SettingDifference] = Field(default_factory=list)
    elections: list[PastElection] | None = None
    next_election: ElectionExplanation | None = None
    problems: list[str] = Field(default_factory=list)


class ControllerDetail(Wire):
    """status: as the newest picture has it. settings: as it says (1010), secrets masked."""

    status: ControllerStatus
    metadata: ControllerMetadata | None = None
    settings: dict[str, str] | None = None
    problem: str = ""


class ContainerDetail(Wire):
    """status null: it does not answer, or is no container of KeelMQ."""

    address: str
    status: ContainerStatus | None = None
    problem: str = ""


class Details:
    """Asks as the program. `status`: the newest one."""

    def __init__(self, poller: ClusterPoller) -> None:
        self._asks = poller

    async def group(
        self, status: ClusterStatus, cluster: str, broker_name: str, *, age_ms: int
    ) -> GroupDetail:
        """Raises NotFound."""
        group = find_group(status, cluster, broker_name)
        leader = leader_of(status)
        problems: list[str] = []
        replicas, settings, elections, explained = await asyncio.gather(
            asyncio.gather(*(self._replica(broker_name, each) for each in group.replicas)),
            asyncio.gather(*(self._settings(each.address) for each in group.replicas)),
            self._of_leader(
                group, leader, "past elections", problems,
                lambda admin, at: admin.controllers.elections(at, broker_name, GROUP_ELECTIONS),
            ),
            self._of_leader(
                group, leader, "the next election", problems,
                lambda admin, at: admin.controllers.explain_election(
                    at, cluster_name=cluster, broker_name=broker_name, broker_id=None
                ),
            ),
        )  # fmt: skip
        known = {each.address: found for each, found in zip(group.replicas, settings, strict=True) if found}
        return GroupDetail(
            age_ms=age_ms,
            group=group,
            replicas=list(replicas),
            differences=differences(known),
            elections=elections,
            next_election=explained,
            problems=problems,
        )

    async def elections(self, status: ClusterStatus, count: int) -> list[PastElection]:
        """Returns the newest elections of all groups. Raises NotFound: no controller keeps them."""
        why = "there are no controllers"
        for each in leader_first(status):
            try:
                return await self._asks.ask(
                    each.address, lambda admin, at: admin.controllers.elections(at, "", count)
                )
            except Silent as silent:
                why = f"{each.address}: {silent}"
        raise NotFound(f"no past elections are known: {why}")

    async def controllers(self, status: ClusterStatus) -> list[ControllerDetail]:
        """Returns every controller that the status has."""

        async def one(controller: ControllerStatus) -> ControllerDetail:
            try:
                metadata, settings = await asyncio.gather(
                    self._asks.ask(
                        controller.address, lambda admin, at: admin.controllers.controller_metadata(at)
                    ),
                    self._asks.ask(
                        controller.address, lambda admin, at: admin.controllers.controller_config(at)
                    ),
                )
            except Silent as silent:
                return ControllerDetail(status=controller, problem=str(silent))
            return ControllerDetail(status=controller, metadata=metadata, settings=settings)

        return list(await asyncio.gather(*(one(each) for each in status.controllers)))

    async def settings(self, status: ClusterStatus, server: str) -> tuple[str, dict[str, str]]:
        """Returns (kind, settings) of a server that the status has. Raises NotFound, also if it is silent."""
        kinds = servers_of(status)
        if server not in kinds:
            raise NotFound(f"server {server} is not one of this cluster {some_of(kinds)}")
        kind = kinds[server]

        async def ask(admin: AdminClient, at: str) -> dict[str, str]:
            if kind == "nameServer":
                return await admin.name_servers.namesrv_config(at)
            if kind == "controller":
                return await admin.controllers.controller_config(at)
            return await admin.brokers.broker_config(at)

        try:
            return kind, await self._asks.ask(server, ask)
        except Silent as silent:
            raise NotFound(f"server {server} does not tell its settings: {silent}") from None

    async def containers(self, status: ClusterStatus, addresses: Iterable[str]) -> list[ContainerDetail]:
        """Returns the given containers, and those at the usual port of the cluster's machines. Other
        machines are not asked. Raises NotFound."""
        hosts = hosts_of(status)
        given = list(addresses)
        for each in given:
            try:
                host = split_address(each)[0]
            except ValueError as error:
                raise NotFound(str(error)) from None
            if host not in hosts:
                raise NotFound(f"{host} is no machine of this cluster {some_of(hosts)}")
        guessed = [join_address(host, CONTAINER_PORT) for host in sorted(hosts)[:CONTAINER_HOSTS_MAX]]
        asked = list(dict.fromkeys([*given, *guessed]))
        found = await asyncio.gather(*(self._container(each) for each in asked))
        return [each for each in found if each.status is not None or each.address in given]

    async def _container(self, address: str) -> ContainerDetail:
        try:
            status = await self._asks.ask(address, lambda admin, at: admin.containers.container_status(at))
        except Silent as silent:
            return ContainerDetail(address=address, problem=str(silent))
        return ContainerDetail(address=address, status=status)

    async def _replica(self, broker_name: str, replica: ReplicaStatus) -> ReplicaDetail:
        found = ReplicaDetail(broker_id=replica.broker_id, address=replica.address)
        problems: list[str] = []
        epochs, ha = await asyncio.gather(
            self._or_problem(
                replica.address, problems, lambda admin, at: admin.brokers.broker_epochs(at, broker_name)
            ),
            self._or_problem(replica.address, problems, lambda admin, at: admin.brokers.ha_status(at)),
        )
        changed: dict[str, object] = {"ha": ha, "problem": "; ".join(dict.fromkeys(problems))}
        if epochs is not None:
            changed |= {"epochs": epochs.epoch_list, "max_offset": epochs.max_offset}
        return found.model_copy(update=changed)

    async def _settings(self, address: str) -> dict[str, str] | None:
        """The status says why a broker is silent."""
        return await self._or_problem(address, [], lambda admin, at: admin.brokers.broker_config(at))

    async def _of_leader(
        self,
        group: GroupStatus,
        leader: str | None,
        what: str,
        problems: list[str],
        question: Callable[[AdminClient, str], Awaitable[T]],
    ) -> T | None:
        if not group.has_controllers:
            return None
        if leader is None:
            problems.append(f"{what}: no controller leads")
            return None
        found: list[str] = []
        answer = await self._or_problem(leader, found, question)
        problems += [f"{what}: {each}" for each in found]
        return answer

    async def _or_problem(
        self, address: str, problems: list[str], question: Callable[[AdminClient, str], Awaitable[T]]
    ) -> T | None:
        try:
            return await self._asks.ask(address, question)
        except Silent as silent:
            problems.append(str(silent))
            return None
