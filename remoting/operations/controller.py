"""Controller operations. Source: RocketMQ 5.3.3 controller headers and bodies (RIP-44, 1001-1013)."""

from pydantic import Field

from remoting.operation import Empty, Operation, Wire


class SyncStateSet(Wire):
    """Ids of the replicas that are in sync, master included, and the epoch of the set."""

    sync_state_set: list[int] = Field(default_factory=list)
    sync_state_set_epoch: int = 0


class AlterSyncStateSetRequest(Wire):
    broker_name: str
    master_broker_id: int
    master_epoch: int
    invoke_time: int = 0


class AlterSyncStateSetResponse(Wire):
    new_sync_state_set_epoch: int = 0


class ElectMasterRequest(Wire):
    """broker_id -1: the controller itself asks. designate_elect: an operator names the master."""

    cluster_name: str = ""
    broker_name: str = ""
    broker_id: int = -1
    designate_elect: bool = False
    invoke_time: int = 0


class MasterInfo(Wire):
    """Who is master, as 1002, 1003 and 1004 answer it; every field absent when there is none."""

    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: int | None = None
    sync_state_set_epoch: int | None = None


class BrokerMemberGroup(Wire):
    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[int, str] = Field(default_factory=dict)


class ElectMasterResponseBody(Wire):
    broker_member_group: BrokerMemberGroup | None = None
    sync_state_set: list[int] = Field(default_factory=list)


class RegisterBrokerToControllerRequest(Wire):
    cluster_name: str
    broker_name: str
    broker_id: int
    broker_address: str
    invoke_time: int = 0


class RegisterBrokerToControllerResponse(MasterInfo):
    cluster_name: str | None = None
    broker_name: str | None = None


class BrokerNameRequest(Wire):
    broker_name: str


class ControllerMetadata(Wire):
    """1005: answered by every controller from its own view. `isLeader` is spelled so on the wire."""

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str | None = None


class ReplicaIdentity(Wire):
    broker_name: str
    broker_id: int
    broker_address: str
    alive: bool = False


class ReplicasInfo(Wire):
    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: int = 0
    sync_state_set_epoch: int = 0
    in_sync_replicas: list[ReplicaIdentity] = Field(default_factory=list)
    not_in_sync_replicas: list[ReplicaIdentity] = Field(default_factory=list)


class BrokerReplicasInfo(Wire):
    replicas_info_table: dict[str, ReplicasInfo] = Field(default_factory=dict)


class BrokerSetRequest(Wire):
    cluster_name: str
    broker_name: str


class GetNextBrokerIdResponse(Wire):
    cluster_name: str
    broker_name: str
    next_broker_id: int


class ApplyBrokerIdRequest(Wire):
    """register_check_code: "<brokerAddr>;<millis>", the proof of ownership that makes 1013 repeatable."""

    cluster_name: str
    broker_name: str
    applied_broker_id: int
    register_check_code: str


class ApplyBrokerIdResponse(Wire):
    cluster_name: str | None = None
    broker_name: str | None = None


class NotifyBrokerRoleChangedRequest(Wire):
    """1008, controller to broker, oneway. broker_name is ours (a shared connection may serve several)."""

    master_address: str | None = None
    master_epoch: int
    sync_state_set_epoch: int = 0
    master_broker_id: int | None = None
    broker_name: str | None = None


ALTER_SYNC_STATE_SET = Operation(
    1001,
    "alterSyncStateSet",
    AlterSyncStateSetRequest,
    AlterSyncStateSetResponse,
    request_body=SyncStateSet,
    response_body=SyncStateSet,
)
ELECT_MASTER = Operation(
    1002, "electMaster", ElectMasterRequest, MasterInfo, response_body=ElectMasterResponseBody
)
REGISTER_BROKER_TO_CONTROLLER = Operation(
    1003,
    "registerBrokerToController",
    RegisterBrokerToControllerRequest,
    RegisterBrokerToControllerResponse,
    response_body=SyncStateSet,
)
GET_REPLICA_INFO = Operation(
    1004, "getReplicaInfo", BrokerNameRequest, MasterInfo, response_body=SyncStateSet
)
GET_METADATA_INFO = Operation(1005, "getControllerMetaData", Empty, ControllerMetadata)
GET_SYNC_STATE_DATA = Operation(
    1006, "getSyncStateSet", Empty, Empty, request_body=list[str], response_body=BrokerReplicasInfo
)
NOTIFY_BROKER_ROLE_CHANGED = Operation(
    1008,
    "notifyBrokerRoleChanged",
    NotifyBrokerRoleChangedRequest,
    Empty,
    request_body=SyncStateSet,
    oneway=True,
)
GET_NEXT_BROKER_ID = Operation(1012, "getNextBrokerId", BrokerSetRequest, GetNextBrokerIdResponse)
APPLY_BROKER_ID = Operation(1013, "applyBrokerId", ApplyBrokerIdRequest, ApplyBrokerIdResponse)
