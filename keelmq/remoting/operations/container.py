"""Requests to a broker container: to add and remove its brokers, and KeelMQ's own to list and plan them.

Source: RocketMQ 5.3.3 BrokerContainerProcessor and its headers (902, 903).
"""

from enum import StrEnum

from pydantic import Field

from keelmq.remoting.codes import RequestCode
from keelmq.remoting.operation import Operation, Wire


class BrokerState(StrEnum):
    """Where a broker of a container is in its life."""

    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"
    QUARANTINED = "quarantined"
    """It could not start, or failed; `reason` says why. The container goes on, and tries it again on
    request."""


class AddBrokerRequest(Wire):
    """Header of 902. config_path: the broker's file, on the container's host."""

    config_path: str | None = None


class RemoveBrokerRequest(Wire):
    """Header of 903. broker_id: as configured or as applied; -1 is the only replica of that group here."""

    broker_cluster_name: str
    broker_name: str
    broker_id: int


class MoveBrokerRequest(RemoveBrokerRequest):
    """Header of 29033. worker: the number of the process that takes the broker over."""

    worker: int


class RestartWorkerRequest(Wire):
    """Header of 29034. worker: its number, from 0 on."""

    worker: int


class InnerBroker(Wire):
    """One broker of a container. broker_id: as applied, of a master its permanent id in controller mode, else
    0; -1: none yet. state: see BrokerState; reason: why it is quarantined or not ready, else empty. role:
    "master", "slave" or "none". not_ready: the short reasons of `reason`, of a broker that serves. worker:
    number of its process, 0 if there is only one. The addresses are host:port, empty if the port is not open.
    Bytes: of the whole store (log, queues, index), and what it may use of its disk; 0: no quota."""

    broker_cluster_name: str
    broker_name: str
    broker_id: int
    canonical_name: str
    state: BrokerState
    reason: str = ""
    role: str = "none"
    master_epoch: int = 0
    address: str = ""
    fast_address: str = ""
    ha_address: str = ""
    http_address: str = ""
    config_path: str = ""
    store_path: str = ""
    worker: int = 0
    store_bytes: int = 0
    quota_bytes: int = 0
    connections: int = 0
    is_ready: bool = False
    not_ready: list[str] = Field(default_factory=list)


class Worker(Wire):
    """One process of a container. restarts: since the container started. cpu_millis: CPU time used since its
    start. resident_bytes: its memory."""

    number: int
    pid: int = 0
    is_running: bool = False
    restarts: int = 0
    reason: str = ""
    cpu_millis: int = 0
    resident_bytes: int = 0


class ContainerStatus(Wire):
    """Response body of 29031. address: host:port of the container's own port."""

    address: str
    brokers: list[InnerBroker] = Field(default_factory=list)
    workers: list[Worker] = Field(default_factory=list)


class PlannedBroker(Wire):
    """One file in the response body of 29032. problems: why the container refuses it; empty: it does not.
    notes: keys that have no effect in a container, with the reason. ports: all that it opens; worker: the
    process that would take it."""

    config_path: str
    canonical_name: str = ""
    ports: list[int] = Field(default_factory=list)
    store_path: str = ""
    worker: int = 0
    problems: list[str] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)


class PlanRequest(Wire):
    """Request body of 29032: files on the container's host, as for 902, checked together and not added."""

    config_paths: list[str] = Field(default_factory=list)


class ContainerPlan(Wire):
    """Response body of 29032."""

    brokers: list[PlannedBroker] = Field(default_factory=list)


ADD_BROKER = Operation(RequestCode.ADD_BROKER, "addBroker", AddBrokerRequest)
REMOVE_BROKER = Operation(RequestCode.REMOVE_BROKER, "removeBroker", RemoveBrokerRequest)
EXPLAIN_REMOVE_BROKER = Operation(
    RequestCode.KEELMQ_EXPLAIN_REMOVE_BROKER,
    "explainRemoveBroker",
    RemoveBrokerRequest,
    response_body=InnerBroker,
)
CONTAINER_STATUS = Operation(
    RequestCode.KEELMQ_CONTAINER_STATUS, "containerStatus", response_body=ContainerStatus
)
CONTAINER_PLAN = Operation(
    RequestCode.KEELMQ_CONTAINER_PLAN, "containerPlan", request_body=PlanRequest, response_body=ContainerPlan
)
MOVE_BROKER = Operation(RequestCode.KEELMQ_MOVE_BROKER, "moveBroker", MoveBrokerRequest)
RESTART_WORKER = Operation(RequestCode.KEELMQ_RESTART_WORKER, "restartWorker", RestartWorkerRequest)
