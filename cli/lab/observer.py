"""The state of a cluster, as its programs answer, for the demo and the chaos runs.

Controllers answer who leads (1005) and who is master and in sync (1006); brokers answer offsets (28).
A program that does not answer is shown as down; the watcher itself never fails.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cli.lab.cluster import Program
from keelmq.client.admin import AdminClient, AdminError
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operations.controller import ReplicasInfo
from keelmq.security.signer import Credentials, optional_signer

RUNTIME_INFO_TIMEOUT_MS = 500
CONNECT_TIMEOUT_MS = 500


@dataclass(frozen=True, slots=True)
class Replica:
    """`role`: "master", "slave" or "down". Offsets: CommitLog bytes, None when unknown."""

    name: str
    address: str
    role: str
    broker_id: int | None = None
    in_sync: bool = False
    max_offset: int | None = None
    confirm_offset: int | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    controller_leader: str = ""  # program name
    master: str = ""  # program name
    master_epoch: int = 0
    sync_state_set: tuple[int, ...] = ()
    sync_state_set_epoch: int = 0
    replicas: tuple[Replica, ...] = field(default=())

    def all_in_sync(self, count: int) -> bool:
        """Returns whether a master is alive, and all `count` replicas answer and are in its SyncStateSet."""
        up = [replica for replica in self.replicas if replica.role != "down" and replica.in_sync]
        return bool(self.master) and len(up) == len(self.sync_state_set) == count


class Watched(Protocol):
    """The parts of a broker group that a Watcher needs: a Cluster, or a group of a ContainerCluster."""

    @property
    def broker_name(self) -> str: ...

    @property
    def brokers(self) -> Sequence["Watchable"]: ...

    @property
    def name_servers(self) -> list[Program]: ...

    def controller_at(self, address: str) -> Program: ...


class Watchable(Protocol):
    """One replica."""

    @property
    def name(self) -> str: ...

    @property
    def address(self) -> str: ...

    @property
    def is_running(self) -> bool: ...


class Watcher:
    """`credentials`: of an administrator, where requests must be signed."""

    def __init__(self, cluster: Watched, credentials: Credentials | None = None) -> None:
        self._cluster = cluster
        self._client = RemotingClient(
            connect_timeout_ms=CONNECT_TIMEOUT_MS, signer=optional_signer(credentials, proof=True)
        )
        self._admin = AdminClient(self._client)

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()

    async def controller_leader(self) -> str | None:
        """Returns the leader's request address, None if no controller leads."""
        try:
            return await self._admin.controllers.controller_leader(self._live_controllers())
        except (AdminError, ValueError):
            return None

    async def other_leader(self, address: str) -> str | None:
        """Returns another leader than `address`, if it reports that it leads itself: followers name a dead
        leader for a while."""
        leader = await self.controller_leader()
        if leader is None or leader == address:
            return None
        try:
            return leader if (await self._admin.controllers.controller_metadata(leader)).is_leader else None
        except AdminError:
            return None

    async def answers(self, controller_address: str) -> bool:
        """Returns whether this controller answers and knows a leader."""
        try:
            return bool(
                (
                    await self._admin.controllers.controller_metadata(controller_address)
                ).controller_leader_address
            )
        except AdminError:
            return False

    async def look(self) -> Picture:
        """Returns the cluster's current picture. Never raises: a program that does not answer is down."""
        leader = await self.controller_leader()
        info = await self._replicas(leader) if leader else None
        tables = await asyncio.gather(*(self._table(program) for program in self._cluster.brokers))
        replicas = tuple(
            _replica(program.name, program.address, info, table)
            for program, table in zip(self._cluster.brokers, tables, strict=True)
        )
        leader_name = self._cluster.controller_at(leader).name if leader else ""
        if info is None:
            return Picture(controller_leader=leader_name, replicas=replicas)
        return Picture(
            controller_leader=leader_name,
            master=next((replica.name for replica in replicas if replica.role == "master"), ""),
            master_epoch=info.master_epoch,
            sync_state_set=tuple(sorted(member.broker_id for member in info.in_sync_replicas)),
            sync_state_set_epoch=info.sync_state_set_epoch,
            replicas=replicas,
        )

    def _live_controllers(self) -> str:
        return ";".join(
            program.controller_address for program in self._cluster.name_servers if program.is_running
        )

    async def _replicas(self, leader: str) -> ReplicasInfo | None:
        name = self._cluster.broker_name
        try:
            return (await self._admin.controllers.sync_state_sets(leader, [name])).replicas_info_table.get(
                name
            )
        except AdminError:
            return None

    async def _table(self, program: Watchable) -> Mapping[str, str] | None:
        if not program.is_running:
            return None
        try:
            return await self._admin.brokers.runtime_info(program.address, timeout_ms=RUNTIME_INFO_TIMEOUT_MS)
        except AdminError:
            return None


def _replica(name: str, address: str, info: ReplicasInfo | None, table: Mapping[str, str] | None) -> Replica:
    members = [*info.in_sync_replicas, *info.not_in_sync_replicas] if info else []
    member = next((member for member in members if member.broker_address == address), None)
    leads = info is not None and info.master_address == address
    role = "down" if table is None else "master" if leads else "slave"
    return Replica(
        name=name,
        address=address,
        role=role,
        broker_id=member.broker_id if member else None,
        in_sync=bool(info and member in info.in_sync_replicas),
        max_offset=_number(table, "commitLogMaxOffset"),
        confirm_offset=_number(table, "confirmOffset"),
    )


def _number(table: Mapping[str, str] | None, key: str) -> int | None:
    text = table.get(key, "") if table else ""
    return int(text) if text.lstrip("-").isdigit() else None
