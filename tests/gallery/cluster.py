"""A healthy cluster as a snapshot, for faults to be put into: three name servers with controllers, three
brokers of one group, a group of a master and a slave without controllers, and a container."""

import json
from collections.abc import Mapping
from typing import Any

from keelmq.health.reach import HttpAnswer
from keelmq.health.snapshot import ClusterSnapshot, NameServer, RunningBroker
from keelmq.remoting.operations.broker import (
    EpochEntryBody,
    EpochEntryCache,
    HaClientRuntimeInfo,
    HaConnectionRuntimeInfo,
    HaRuntimeInfo,
)
from keelmq.remoting.operations.container import BrokerState, ContainerStatus, InnerBroker, Worker
from keelmq.remoting.operations.controller import ControllerMetadata, ReplicaIdentity, ReplicasInfo
from keelmq.remoting.operations.route import BrokerData, ClusterInfo

NS = ("10.0.0.1:9876", "10.0.0.2:9876", "10.0.0.3:9876")
CONTROLLERS = ("10.0.0.1:9878", "10.0.0.2:9878", "10.0.0.3:9878")
HTTP = ("10.0.0.1:19876", "10.0.0.2:19876", "10.0.0.3:19876")
BROKERS = ("10.0.1.1:10911", "10.0.1.2:10911", "10.0.1.3:10911")
PLAIN = ("10.0.2.1:10911", "10.0.2.2:10911")
CONTAINER = "10.0.3.1:10811"
NAME, PLAIN_NAME, CLUSTER = "broker-a", "broker-p", "C"
PEERS = ";".join(f"n{number}:{address}" for number, address in enumerate(CONTROLLERS)) + ";"
END = 4_096
ROUTES = {
    NAME: {0: BROKERS[0], 2: BROKERS[1], 3: BROKERS[2]},
    PLAIN_NAME: {0: PLAIN[0], 1: PLAIN[1]},
}


def name_server(
    routes: Mapping[str, Mapping[int, str]] = ROUTES, permissions: Mapping[str, int] | None = None
) -> NameServer:
    table = {
        name: BrokerData(cluster=CLUSTER, broker_name=name, broker_addrs=dict(shown))
        for name, shown in routes.items()
    }
    info = ClusterInfo(broker_addr_table=table, cluster_addr_table={CLUSTER: sorted(table)})
    return NameServer(info, {}, frozenset({"T"}), permissions or dict.fromkeys(routes, 6))


def controller(index: int, *, leader: int | None = 0, peers: str = PEERS) -> ControllerMetadata:
    return ControllerMetadata(
        group="g",
        controller_leader_id=None if leader is None else f"n{leader}",
        controller_leader_address=None if leader is None else CONTROLLERS[leader],
        is_leader=index == leader,
        peers=peers,
    )


def links(*, lag_bytes: int = 0, lag_ms: int = 0) -> HaRuntimeInfo:
    """The master's 907: replica 3 lags."""
    return HaRuntimeInfo(
        master=True,
        master_commit_log_max_offset=END,
        in_sync_slave_nums=2,
        ha_connection_info=[
            HaConnectionRuntimeInfo(broker_id=2, in_sync=True, lag_millis=0),
            HaConnectionRuntimeInfo(broker_id=3, in_sync=True, diff=lag_bytes, lag_millis=lag_ms),
        ],
    )


def broker(
    index: int, *, epochs: Mapping[int, int] | None = None, ha: HaRuntimeInfo | None = None, **changes: str
) -> RunningBroker:
    """The broker at BROKERS[index]. changes: keys of 28 if it has them, else settings."""
    is_master = index == 0
    info = {
        "brokerActive": str(is_master).lower(),
        "brokerVersionDesc": "V5_3_3",
        "commitLogDiskRatio": "0.30",
        "commitLogMaxOffset": str(END),
        "confirmOffset": str(END),
        "dispatchBehindBytes": "0",
        "logDamage": "",
        "notWritable": "",
        "putTps": "5.0 5.0 5.0",
        "syncFault": "",
        "subscriptionsDiffer": "",
        "topicsNotConsumed": "",
    }
    settings = {
        "brokerName": NAME,
        "brokerPermission": "6",
        "enableControllerMode": "true",
        "controllerAddr": ";".join(CONTROLLERS),
        "minInSyncReplicas": "2",
        "namesrvAddr": ";".join(NS),
    }
    settings |= {key: value for key, value in changes.items() if key not in info}
    cache = EpochEntryCache(
        cluster_name=CLUSTER,
        broker_name=NAME,
        broker_id=index + 1,
        epoch_list=[
            EpochEntryBody(epoch=epoch, start_offset=start, end_offset=END)
            for epoch, start in (epochs or {1: 0, 3: 1_024}).items()
        ],
        max_offset=END,
    )
    default = links() if is_master else HaRuntimeInfo(master=False)
    changed = {key: value for key, value in changes.items() if key in info}
    return RunningBroker(info | changed, settings, 0, ha or default, cache)


def plain_broker(*, is_master: bool, copies: bool = True) -> RunningBroker:
    """Its master does not know whose link it has."""
    settings = {"brokerName": PLAIN_NAME, "brokerPermission": "6", "namesrvAddr": ";".join(NS)}
    settings["haMaxGapNotInSync"] = "100"
    link = HaClientRuntimeInfo(activated=copies and not is_master)
    info = {"brokerActive": str(is_master).lower(), "commitLogDiskRatio": "0.30", "commitLogMaxOffset": "10"}
    return RunningBroker(info, settings, 0, HaRuntimeInfo(master=is_master, ha_client_runtime_info=link))


def replicas(
    *, dead: tuple[int, ...] = (), out: tuple[int, ...] = (), master: int | None = 1
) -> ReplicasInfo:
    each = [
        ReplicaIdentity(broker_name=NAME, broker_id=number, broker_address=at, alive=number not in dead)
        for number, at in enumerate(BROKERS, start=1)
    ]
    return ReplicasInfo(
        master_broker_id=master,
        master_address=None if master is None else BROKERS[master - 1],
        master_epoch=3,
        sync_state_set_epoch=4,
        in_sync_replicas=[one for one in each if one.broker_id not in out],
        not_in_sync_replicas=[one for one in each if one.broker_id in out],
    )


def heard(**age_of_third: object) -> dict[str, dict[str, Any]]:
    """The leader's /v1/groups. age_of_third: changes of replica 3."""
    views: list[dict[str, Any]] = [
        {"brokerId": number, "address": at, "heartbeatAgeMs": 300, "maxOffset": END, "lagBytes": 0}
        for number, at in enumerate(BROKERS, start=1)
    ]
    views[2] |= age_of_third
    return {NAME: {"brokerName": NAME, "cluster": CLUSTER, "replicas": views}}


def ready(index: int, *, telemetry: object = None, **raft: object) -> HttpAnswer:
    values = {"running": True, "commitIndex": 50, "lastApplied": 50, "connected": ["n1", "n2"], "term": 2}
    plugin = {
        "address": CONTROLLERS[index],
        "active": index == 0,
        "raft": values | raft,
        "telemetry": telemetry,
    }
    body = {"ready": True, "reasons": [], "plugins": {"controller": plugin}}
    return HttpAnswer(200, json.dumps(body).encode(), 0)


def inner(state: BrokerState = BrokerState.SERVING, reason: str = "") -> InnerBroker:
    return InnerBroker(
        broker_cluster_name=CLUSTER,
        broker_name="broker-c",
        broker_id=1,
        canonical_name="C_broker-c_1",
        state=state,
        reason=reason,
        config_path="/etc/keelmq/broker-c.conf",
        worker=1,
    )


def container(broker: InnerBroker | None = None, *, is_running: bool = True) -> ContainerStatus:
    workers = [Worker(number=0, is_running=True), Worker(number=1, is_running=is_running, reason="killed")]
    return ContainerStatus(address=CONTAINER, brokers=[broker or inner()], workers=workers)


def healthy() -> ClusterSnapshot:
    """Nothing is wrong with it."""
    return ClusterSnapshot(
        name_servers={at: name_server() for at in NS},
        controllers={at: controller(index) for index, at in enumerate(CONTROLLERS)},
        brokers={at: broker(index) for index, at in enumerate(BROKERS)}
        | {at: plain_broker(is_master=at == PLAIN[0]) for at in PLAIN},
        health={at: ready(index) for index, at in enumerate(HTTP)},
        sets={NAME: replicas()},
        groups=heard(),
        containers={CONTAINER: container()},
        controller_settings={at: {"enableElectUncleanMaster": "false"} for at in CONTROLLERS},
        resolved={at: frozenset({at}) for at in CONTROLLERS},
        clocks={"10.0.0.1": [0], "10.0.1.1": [400]},
        taken_ms=1_795_487_856_310,
    )
