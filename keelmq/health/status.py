"""ClusterStatus: the state of a cluster on one screen, as `keelmq status`, the console and scripts show it.

Bytes are offsets in the CommitLog or differences of two; times are wall-clock ms, durations ms. None: unknown
(a server did not answer, or is older), never zero instead.
"""

from enum import StrEnum

from pydantic import Field

from keelmq.remoting.operation import Wire


class Verdict(StrEnum):
    """Of a cluster, a group or a server: the worst of its findings."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


class Problem(Wire):
    """A finding that is not OK, and what to do. check: a key of findings.CHECKS. command: a line to paste
    into a terminal; empty if there is none."""

    level: Verdict
    check: str
    subject: str
    text: str
    next_step: str
    command: str = ""


class NameServerStatus(Wire):
    """problem: why it does not answer; empty if it does."""

    address: str
    is_up: bool
    problem: str = ""
    brokers: int | None = None
    groups: int | None = None
    topics: int | None = None
    keelmq_version: str = ""


class ControllerStatus(Wire):
    """member: its id, such as n0. role: "leader", "follower" or "silent". Index and term: of the raft log."""

    address: str
    member: str
    role: str
    problem: str = ""
    term: int | None = None
    commit_index: int | None = None
    last_applied: int | None = None
    keelmq_version: str = ""


class ReplicaStatus(Wire):
    """One broker of a group. role: "master", "slave" or "silent". is_alive: as the controllers say, of a
    group without controllers whether it answers. lag_bytes: how far its log is behind the master's end;
    lag_ms: for how long it has lacked the oldest byte that it lacks. epoch: of the last entry of its epoch
    file. grpc_port, grpc_clients: None without enableProxy."""

    broker_id: int
    address: str
    role: str
    is_alive: bool
    is_in_sync: bool
    problem: str = ""
    max_offset: int | None = None
    confirm_offset: int | None = None
    lag_bytes: int | None = None
    lag_ms: int | None = None
    epoch: int | None = None
    messages_in_per_s: float | None = None
    messages_out_per_s: float | None = None
    disk_used: float | None = Field(default=None, description="share of the store's disk, 0 to 1")
    grpc_port: int | None = None
    grpc_clients: int | None = Field(default=None, description="clients of gRPC with an open stream")
    version: str = Field(default="", description="of RocketMQ, whose requests it serves")
    keelmq_version: str = ""
    started_ms: int | None = None


class LastElection(Wire):
    """reason: as the controllers recorded it. broker_id -1: nobody could be elected. without_master_ms: from
    the end of the lost master's connection, or from its last heartbeat if it hung, to this election."""

    event_id: int | None = None
    time_ms: int
    reason: str
    broker_id: int
    before: int | None = None
    master_epoch: int
    without_master_ms: int | None = None


class GroupStatus(Wire):
    """min_in_sync: minInSyncReplicas. disagreements: what name servers or brokers say that the controllers do
    not."""

    cluster: str
    broker_name: str
    verdict: Verdict
    has_controllers: bool
    master_id: int | None = None
    master_address: str = ""
    master_epoch: int | None = None
    sync_state_set: list[int] = Field(default_factory=list)
    sync_state_set_epoch: int | None = None
    min_in_sync: int | None = None
    confirm_offset: int | None = None
    max_offset: int | None = None
    replicas: list[ReplicaStatus] = Field(default_factory=list)
    last_election: LastElection | None = None
    disagreements: list[str] = Field(default_factory=list)
    problems: list[Problem] = Field(default_factory=list)


class ClusterStatus(Wire):
    """taken_ms: when the questions were asked; took_ms: until the last answer. problems: of the whole
    cluster, the worst first, those of groups included."""

    taken_ms: int
    took_ms: int
    verdict: Verdict
    name_servers: list[NameServerStatus] = Field(default_factory=list)
    controllers: list[ControllerStatus] = Field(default_factory=list)
    groups: list[GroupStatus] = Field(default_factory=list)
    problems: list[Problem] = Field(default_factory=list)
    brokers_not_asked: int = 0
