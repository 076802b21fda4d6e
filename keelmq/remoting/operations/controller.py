"""Controller operations. Source: RocketMQ 5.3.3 controller headers and bodies (RIP-44, 1001-1013).

Our additions are optional fields, which RocketMQ's programs skip, and codes from 29000 on, which they answer
with "not supported".
"""

from typing import Any

from pydantic import Field

from keelmq.remoting.operation import Empty, Operation, Wire


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
    """broker_id -1: the controller itself asks. designate_elect: an operator names the master.

    dry_run (ours): nothing is changed, and the body explains. RocketMQ's controllers do not know it and would
    elect: EXPLAIN_ELECTION asks the same in a way that they refuse.

    The other fields (ours) are of a master that hands over: who it is, in which epochs, and "1;3", the
    replicas that have every byte that it has, now that it takes no more. They stay in the SyncStateSet.
    """

    cluster_name: str = ""
    broker_name: str = ""
    broker_id: int = -1
    designate_elect: bool = False
    invoke_time: int = 0
    dry_run: bool = False
    master_broker_id: int | None = None
    master_epoch: int | None = None
    sync_state_set_epoch: int | None = None
    equal_replicas: str = ""


class MasterInfo(Wire):
    """Who is master, as 1002, 1003 and 1004 answer it; every field absent when there is none.

    controllers (ours): "host:port;host:port" of those that came at run time, and are in no configuration of a
    broker; absent: there are none."""

    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: int | None = None
    sync_state_set_epoch: int | None = None
    controllers: str | None = None


class BrokerMemberGroup(Wire):
    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[int, str] = Field(default_factory=dict)


class ElectionCandidate(Wire):
    """A replica in the eyes of an election; numbers of its last heartbeat, absent if it is not active."""

    broker_id: int
    broker_address: str
    in_sync: bool
    alive: bool
    wins: bool
    why: str
    epoch: int | None = None
    max_offset: int | None = None
    confirm_offset: int | None = None
    election_priority: int | None = None
    behind_bytes: int | None = None


class ElectionExplanation(Wire):
    """What a 1002 would come to. code, remark: its answer; is_change: the group would be another."""

    code: int
    remark: str
    verdict: str
    is_change: bool
    new_master_broker_id: int | None = None
    unclean: bool = False
    candidates: list[ElectionCandidate] = Field(default_factory=list)


class ElectMasterResponseBody(Wire):
    """explanation (ours): only of a dry run, and then the set is as it is."""

    broker_member_group: BrokerMemberGroup | None = None
    sync_state_set: list[int] = Field(default_factory=list)
    explanation: ElectionExplanation | None = None


class RegisterBrokerToControllerRequest(Wire):
    cluster_name: str
    broker_name: str
    broker_id: int
    broker_address: str
    invoke_time: int = 0
    epoch: int | None = None
    """Ours: the last epoch of the log when this was sent. None: not known (all of RocketMQ's brokers)."""


class RegisterBrokerToControllerResponse(MasterInfo):
    cluster_name: str | None = None
    broker_name: str | None = None


class BrokerNameRequest(Wire):
    broker_name: str


class ReplicaInfoRequest(BrokerNameRequest):
    """The other fields (ours) are from a master that does not know what became of its 1001: if its set still
    has that epoch, the controller raises it, and a 1001 that arrives later is refused."""

    master_broker_id: int | None = None
    master_epoch: int | None = None
    fence_sync_state_set_epoch: int | None = None


class ControllerMetadata(Wire):
    """1005: answered by every controller from its own view. `isLeader` is spelled so on the wire.

    Our additions, of the answering controller: http_address; self_id; raft_address, where other controllers
    link to it. peers: also those that came at run time."""

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str | None = None
    http_address: str | None = None
    self_id: str | None = None
    raft_address: str | None = None


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
    """1008, controller to broker, oneway. broker_name is ours (a shared connection may serve several), and so
    is controllers, see MasterInfo."""

    master_address: str | None = None
    master_epoch: int
    sync_state_set_epoch: int = 0
    master_broker_id: int | None = None
    broker_name: str | None = None
    controllers: str | None = None


class HandOverRequest(Wire):
    """Controller to a master, oneway: broker_id shall follow it. It drains, and asks for the election."""

    broker_name: str
    master_epoch: int
    broker_id: int


class UpdateConfigRequest(Wire):
    """forwarded (ours): by the controller that was asked to the one that leads, and never again."""

    forwarded: bool = False


class CleanBrokerDataRequest(Wire):
    """broker_controller_ids_to_clean: "1;2"; blank: the whole group."""

    cluster_name: str = ""
    broker_name: str
    broker_controller_ids_to_clean: str = ""
    is_clean_living_broker: bool = False
    invoke_time: int = 0


class ElectionsRequest(Wire):
    """broker_name "": of all groups."""

    broker_name: str = ""
    count: int = Field(default=100, ge=1)


class PastElection(Wire):
    """An election that changed the master; new_master_broker_id absent: it was cleared. Times: wall-clock ms;
    detected_ts and last_heartbeat_ts are of the master that was lost."""

    event_id: int
    ts: int
    cluster_name: str
    broker_name: str
    old_master_broker_id: int | None = None
    new_master_broker_id: int | None = None
    master_epoch: int
    sync_state_set_epoch: int
    reason: str
    unclean: bool = False
    last_heartbeat_ts: int | None = None
    detected_ts: int | None = None


class Elections(Wire):
    """Newest first."""

    elections: list[PastElection] = Field(default_factory=list)


class ControllerIdRequest(Wire):
    controller_id: str = Field(min_length=1)


class AddControllerRequest(ControllerIdRequest):
    """controller_address: host:port of its requests; the rest is asked there."""

    controller_address: str = Field(min_length=1)


class ImportStateResponse(Wire):
    groups: int


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
    1004, "getReplicaInfo", ReplicaInfoRequest, MasterInfo, response_body=SyncStateSet
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
HAND_OVER = Operation(29005, "handOver", HandOverRequest, Empty, oneway=True)
UPDATE_CONTROLLER_CONFIG = Operation(
    1009, "updateControllerConfig", UpdateConfigRequest, Empty, request_body=bytes
)
GET_CONTROLLER_CONFIG = Operation(1010, "getControllerConfig", Empty, Empty, response_body=bytes)
CLEAN_BROKER_DATA = Operation(1011, "cleanBrokerData", CleanBrokerDataRequest, Empty)
GET_NEXT_BROKER_ID = Operation(1012, "getNextBrokerId", BrokerSetRequest, GetNextBrokerIdResponse)
APPLY_BROKER_ID = Operation(1013, "applyBrokerId", ApplyBrokerIdRequest, ApplyBrokerIdResponse)
EXPLAIN_ELECTION = Operation(
    29011, "explainElection", ElectMasterRequest, MasterInfo, response_body=ElectMasterResponseBody
)
GET_ELECTIONS = Operation(29012, "getElections", ElectionsRequest, Empty, response_body=Elections)
EXPORT_STATE = Operation(29013, "exportState", Empty, Empty, response_body=dict[str, Any])
IMPORT_STATE = Operation(29014, "importState", Empty, ImportStateResponse, request_body=dict[str, Any])
ADD_CONTROLLER = Operation(29021, "addController", AddControllerRequest, ControllerMetadata)
REMOVE_CONTROLLER = Operation(29022, "removeController", ControllerIdRequest, ControllerMetadata)
TRANSFER_LEADER = Operation(29023, "transferLeader", ControllerIdRequest, ControllerMetadata)
