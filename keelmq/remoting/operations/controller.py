"""Controller operations. Source: RocketMQ 5.3.3 controller headers and bodies (RIP-44, 1001-1013).

Our additions are optional fields, which RocketMQ's programs ignore, and codes from 29000 on, which they
answer with "not supported".
"""

from typing import Any

from pydantic import Field

from keelmq.remoting.operation import Operation, Wire


class SyncStateSet(Wire):
    """Ids of the in-sync replicas, master included, and the epoch of the set: body of 1001 and 1008, response
    body of 1001, 1003 and 1004."""

    sync_state_set: list[int] = Field(default_factory=list)
    sync_state_set_epoch: int = 0


class AlterSyncStateSetRequest(Wire):
    """Header of 1001, master to controller."""

    broker_name: str
    master_broker_id: int
    master_epoch: int
    invoke_time: int = 0


class AlterSyncStateSetResponse(Wire):
    """Response header of 1001."""

    new_sync_state_set_epoch: int = 0


class ElectMasterRequest(Wire):
    """Header of 1002 and 29011. broker_id -1: the controller itself elects. designate_elect: an operator
    names the master.

    dry_run (ours): changes nothing, and the response body explains the decision. RocketMQ's controllers would
    ignore it and elect, so EXPLAIN_ELECTION (29011), which they refuse, carries it.

    The other fields (ours) are of a master that hands over: its id, its epochs, and equal_replicas, "1;3",
    which have every byte of its log now that it accepts no more messages. They stay in the SyncStateSet.
    needs_room: refused if the disk of broker_id is full.
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
    needs_room: bool = False


class MasterInfo(Wire):
    """The present master, in the response headers of 1002, 1003, 1004 and 29011; every field is absent if
    there is none.

    controllers (ours): "host:port;host:port" of controllers that were added at run time, which no broker has
    in its configuration; absent if there are none.
    """

    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: int | None = None
    sync_state_set_epoch: int | None = None
    controllers: str | None = None


class BrokerMemberGroup(Wire):
    """A broker group in the response body of 1002."""

    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[int, str] = Field(default_factory=dict)


class ElectionCandidate(Wire):
    """A replica in the explanation of 29011; the numbers are from its last heartbeat, absent if it is not
    active."""

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
    """The decision that 1002 would make, in the response body of 29011. code, remark: the response;
    is_change: the group would change."""

    code: int
    remark: str
    verdict: str
    is_change: bool
    new_master_broker_id: int | None = None
    unclean: bool = False
    candidates: list[ElectionCandidate] = Field(default_factory=list)


class ElectMasterResponseBody(Wire):
    """Response body of 1002 and 29011. explanation (ours): only of a dry run; the set is then the present
    one."""

    broker_member_group: BrokerMemberGroup | None = None
    sync_state_set: list[int] = Field(default_factory=list)
    explanation: ElectionExplanation | None = None


class RegisterBrokerToControllerRequest(Wire):
    """Header of 1003."""

    cluster_name: str
    broker_name: str
    broker_id: int
    broker_address: str
    invoke_time: int = 0
    epoch: int | None = None
    """Ours: the last epoch of the broker's log when it sent this. None: not known (all of RocketMQ's
    brokers)."""
    register_check_code: str | None = None
    """Ours: of the 1013 by which the broker got its id. None: not told (all of RocketMQ's brokers)."""


class RegisterBrokerToControllerResponse(MasterInfo):
    """Response header of 1003."""

    cluster_name: str | None = None
    broker_name: str | None = None


class BrokerNameRequest(Wire):
    """Base of ReplicaInfoRequest (1004): the broker group's name."""

    broker_name: str


class ReplicaInfoRequest(BrokerNameRequest):
    """Header of 1004. The other fields (ours) are from a master that does not know the outcome of its 1001:
    if its set still has that epoch, the controller raises it, so a 1001 that arrives later is refused.
    broker_id, broker_address: of the sender (ours); refused (2010) if that id is registered at another
    address now."""

    broker_id: int | None = None
    broker_address: str | None = None
    master_broker_id: int | None = None
    master_epoch: int | None = None
    fence_sync_state_set_epoch: int | None = None


class ControllerMetadata(Wire):
    """Response header of 1005, and of 29021 to 29024; every controller answers from its own view. `isLeader`
    is RocketMQ's spelling. peers: includes controllers that were added at run time.

    Ours, of the answering controller: http_address; self_id; raft_address, to which other controllers
    connect; keelmq_version, of the program.
    """

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str | None = None
    http_address: str | None = None
    self_id: str | None = None
    raft_address: str | None = None
    keelmq_version: str | None = None


class ReplicaIdentity(Wire):
    """One replica in the response body of 1006."""

    broker_name: str
    broker_id: int
    broker_address: str
    alive: bool = False


class ReplicasInfo(Wire):
    """One broker group in the response body of 1006."""

    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: int = 0
    sync_state_set_epoch: int = 0
    in_sync_replicas: list[ReplicaIdentity] = Field(default_factory=list)
    not_in_sync_replicas: list[ReplicaIdentity] = Field(default_factory=list)


class BrokerReplicasInfo(Wire):
    """Response body of 1006: brokerName -> its master and replicas."""

    replicas_info_table: dict[str, ReplicasInfo] = Field(default_factory=dict)


class BrokerSetRequest(Wire):
    """Header of 1012."""

    cluster_name: str
    broker_name: str


class GetNextBrokerIdResponse(Wire):
    """Response header of 1012."""

    cluster_name: str
    broker_name: str
    next_broker_id: int


class ApplyBrokerIdRequest(Wire):
    """Header of 1013. register_check_code: "<brokerAddr>;<millis>", proves that a repeated 1013 comes from
    the same broker."""

    cluster_name: str
    broker_name: str
    applied_broker_id: int
    register_check_code: str


class ApplyBrokerIdResponse(Wire):
    """Response header of 1013."""

    cluster_name: str | None = None
    broker_name: str | None = None


class NotifyBrokerRoleChangedRequest(Wire):
    """Header of 1008, controller to broker, oneway. Ours: broker_name (a shared connection may serve several
    brokers) and controllers, see MasterInfo."""

    master_address: str | None = None
    master_epoch: int
    sync_state_set_epoch: int = 0
    master_broker_id: int | None = None
    broker_name: str | None = None
    controllers: str | None = None


class HandOverRequest(Wire):
    """Header of 29005, controller to master, oneway: broker_id shall be the next master. The master drains,
    then requests the election."""

    broker_name: str
    master_epoch: int
    broker_id: int


class UpdateConfigRequest(Wire):
    """Header of 1009. forwarded (ours): set by a controller that forwards the request to the leader; it is
    forwarded only once."""

    forwarded: bool = False


class CleanBrokerDataRequest(Wire):
    """Header of 1011 and 29015. broker_controller_ids_to_clean: "1;2"; blank: the whole group."""

    cluster_name: str = ""
    broker_name: str
    broker_controller_ids_to_clean: str = ""
    is_clean_living_broker: bool = False
    invoke_time: int = 0


class CleanExplanation(Wire):
    """Response body of 29015: what 1011 would remove. replicas: empty if all were removed before. is_whole:
    the group would not exist any more. master_broker_id: the master, if it is one of them."""

    replicas: list[ReplicaIdentity] = Field(default_factory=list)
    is_whole: bool = False
    master_broker_id: int | None = None


class ElectionsRequest(Wire):
    """Header of 29012. broker_name "": all groups."""

    broker_name: str = ""
    count: int = Field(default=100, ge=1)


class PastElection(Wire):
    """One election in the response body of 29012 that changed the master; new_master_broker_id absent: the
    group has had no master since. Times: wall-clock ms; detected_ts and last_heartbeat_ts are of the lost
    master."""

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
    """Response body of 29012, newest first."""

    elections: list[PastElection] = Field(default_factory=list)


class ControllerIdRequest(Wire):
    """Header of 29022, 29023 and 29024."""

    controller_id: str = Field(min_length=1)


class AddControllerRequest(ControllerIdRequest):
    """Header of 29021. controller_address: host:port for requests; the controller there supplies the other
    data."""

    controller_address: str = Field(min_length=1)


class ImportStateResponse(Wire):
    """Response header of 29014: the number of imported groups."""

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
GET_METADATA_INFO = Operation(1005, "getControllerMetaData", response=ControllerMetadata)
GET_SYNC_STATE_DATA = Operation(
    1006, "getSyncStateSet", request_body=list[str], response_body=BrokerReplicasInfo
)
NOTIFY_BROKER_ROLE_CHANGED = Operation(
    1008, "notifyBrokerRoleChanged", NotifyBrokerRoleChangedRequest, request_body=SyncStateSet, oneway=True
)
HAND_OVER = Operation(29005, "handOver", HandOverRequest, oneway=True)
UPDATE_CONTROLLER_CONFIG = Operation(1009, "updateControllerConfig", UpdateConfigRequest, request_body=bytes)
GET_CONTROLLER_CONFIG = Operation(1010, "getControllerConfig", response_body=bytes)
CLEAN_BROKER_DATA = Operation(1011, "cleanBrokerData", CleanBrokerDataRequest)
GET_NEXT_BROKER_ID = Operation(1012, "getNextBrokerId", BrokerSetRequest, GetNextBrokerIdResponse)
APPLY_BROKER_ID = Operation(1013, "applyBrokerId", ApplyBrokerIdRequest, ApplyBrokerIdResponse)
EXPLAIN_ELECTION = Operation(
    29011, "explainElection", ElectMasterRequest, MasterInfo, response_body=ElectMasterResponseBody
)
GET_ELECTIONS = Operation(29012, "getElections", ElectionsRequest, response_body=Elections)
EXPLAIN_CLEAN_BROKER_DATA = Operation(
    29015, "explainCleanBrokerData", CleanBrokerDataRequest, response_body=CleanExplanation
)
EXPORT_STATE = Operation(29013, "exportState", response_body=dict[str, Any])
IMPORT_STATE = Operation(29014, "importState", response=ImportStateResponse, request_body=dict[str, Any])
ADD_CONTROLLER = Operation(29021, "addController", AddControllerRequest, ControllerMetadata)
REMOVE_CONTROLLER = Operation(29022, "removeController", ControllerIdRequest, ControllerMetadata)
TRANSFER_LEADER = Operation(29023, "transferLeader", ControllerIdRequest, ControllerMetadata)
EXPLAIN_REMOVE_CONTROLLER = Operation(
    29024, "explainRemoveController", ControllerIdRequest, ControllerMetadata
)
