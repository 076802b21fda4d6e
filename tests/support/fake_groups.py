"""A name server, a controller and brokers in one table: groups whose masters move when an election is asked
for, or do not, as a script says."""

from dataclasses import dataclass, field

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, CommandError, Empty, Reply
from keelmq.remoting.operations.broker import (
    GET_BROKER_CONFIG,
    GET_BROKER_HA_STATUS,
    GET_BROKER_RUNTIME_INFO,
    HaConnectionRuntimeInfo,
    HaRuntimeInfo,
)
from keelmq.remoting.operations.container import CONTAINER_STATUS, ContainerStatus, InnerBroker
from keelmq.remoting.operations.controller import (
    ELECT_MASTER,
    GET_METADATA_INFO,
    GET_SYNC_STATE_DATA,
    BrokerReplicasInfo,
    ControllerMetadata,
    ElectMasterRequest,
    ElectMasterResponseBody,
    MasterInfo,
    ReplicaIdentity,
    ReplicasInfo,
)
from keelmq.remoting.operations.route import GET_BROKER_CLUSTER_INFO, BrokerData, ClusterInfo
from tests.support.fake_cluster import Server


@dataclass
class FakeGroup:
    """replicas: broker id -> address. in_sync: ids. on_election: "" elects; "refuse", "lose" (elects without
    an answer), "crash" (the new master alone is in sync, and the old one stays away)."""

    replicas: dict[int, str]
    master: int = 1
    in_sync: set[int] = field(default_factory=set)
    on_election: str = ""
    behind_bytes: int = 0
    not_writable: str = ""


class FakeGroups(Server):
    """Every request of a rebalancing, whoever it is for."""

    def __init__(self, groups: dict[str, FakeGroup], plain: dict[str, str] | None = None) -> None:
        """plain: groups without controllers, name -> address of the master."""
        super().__init__()
        self.groups, self.plain = groups, plain or {}
        self.elected: list[tuple[str, int]] = []
        self.in_container: list[InnerBroker] = []
        for group in groups.values():
            group.in_sync = group.in_sync or set(group.replicas)
        self.table.bind(GET_BROKER_CLUSTER_INFO, self._cluster_info)
        self.table.bind(GET_BROKER_CONFIG, self._config)
        self.table.bind(GET_BROKER_RUNTIME_INFO, self._runtime_info)
        self.table.bind(GET_BROKER_HA_STATUS, self._ha_status)
        self.table.bind(GET_METADATA_INFO, self._metadata)
        self.table.bind(GET_SYNC_STATE_DATA, self._sets)
        self.table.bind(ELECT_MASTER, self._elect)
        self.table.bind(CONTAINER_STATUS, self._status)

    async def _cluster_info(self, _: Empty, __: Call) -> Reply:
        table = {
            name: {0: group.replicas[group.master]}
            | {each: address for each, address in group.replicas.items() if each != group.master}
            for name, group in self.groups.items()
        } | {name: {0: address} for name, address in self.plain.items()}
        return Reply(
            body=ClusterInfo(
                broker_addr_table={
                    name: BrokerData(cluster="C", broker_name=name, broker_addrs=addresses)
                    for name, addresses in table.items()
                },
                cluster_addr_table={"C": sorted(table)},
            )
        )

    async def _config(self, _: Empty, __: Call) -> Reply:
        return Reply(body=f"enableControllerMode=true\ncontrollerAddr={self.address}\n".encode())

    async def _runtime_info(self, _: Empty, __: Call) -> Reply:
        reason = next((each.not_writable for each in self.groups.values() if each.not_writable), "")
        return Reply(body={"table": {"writable": str(not reason).lower(), "notWritable": reason}})

    async def _ha_status(self, _: Empty, __: Call) -> Reply:
        links = [
            HaConnectionRuntimeInfo(broker_id=each, diff=group.behind_bytes)
            for group in self.groups.values()
            for each in group.replicas
            if group.behind_bytes
        ]
        return Reply(body=HaRuntimeInfo(master=True, ha_connection_info=links))

    async def _metadata(self, _: Empty, __: Call) -> ControllerMetadata:
        return ControllerMetadata(group="g", controller_leader_address=self.address, is_leader=True)

    async def _sets(self, _: Empty, call: Call) -> Reply:
        table = {}
        for name in [each for each in call.body if each in self.groups]:
            group = self.groups[name]
            members = {
                each: ReplicaIdentity(broker_name=name, broker_id=each, broker_address=address, alive=True)
                for each, address in group.replicas.items()
            }
            table[name] = ReplicasInfo(
                master_broker_id=group.master or None,
                master_address=group.replicas.get(group.master),
                master_epoch=1,
                in_sync_replicas=[members[each] for each in sorted(group.in_sync)],
                not_in_sync_replicas=[members[each] for each in sorted(members.keys() - group.in_sync)],
            )
        return Reply(body=BrokerReplicasInfo(replicas_info_table=table))

    async def _elect(self, request: ElectMasterRequest, call: Call) -> Reply | None:
        group = self.groups[request.broker_name]
        self.elected.append((request.broker_name, request.broker_id))
        if group.on_election == "refuse":
            raise CommandError(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, "no heartbeat of broker 2")
        group.master = request.broker_id
        if group.on_election == "lose":
            call.peer.close()  # type: ignore[attr-defined]
            return None
        if group.on_election == "crash":
            group.in_sync = {request.broker_id}
        body = ElectMasterResponseBody(sync_state_set=sorted(group.in_sync))
        return Reply(MasterInfo(master_broker_id=group.master), body)

    async def _status(self, _: Empty, __: Call) -> Reply:
        return Reply(body=ContainerStatus(address=self.address, brokers=self.in_container))
