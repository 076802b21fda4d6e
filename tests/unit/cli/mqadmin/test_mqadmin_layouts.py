"""mqadmin's texts against the captured output of RocketMQ's own tool, byte for byte."""

from pathlib import Path

import pytest

from cli.mqadmin.layouts import cluster as layouts
from keelmq.remoting.operations.broker import EpochEntryBody, EpochEntryCache
from keelmq.remoting.operations.controller import (
    BrokerMemberGroup,
    BrokerReplicasInfo,
    ControllerMetadata,
    ElectMasterResponseBody,
    MasterInfo,
    ReplicaIdentity,
    ReplicasInfo,
)
from keelmq.remoting.operations.route import BrokerData, QueueData, TopicRouteData

FIXTURES = Path(__file__).parents[3] / "fixtures" / "mqadmin"
ADDRESS_1, ADDRESS_2 = "127.0.0.1:18811", "127.0.0.1:18821"


def captured(name: str) -> str:
    return (FIXTURES / f"{name}.txt").read_text().rstrip("\n")


def replica(broker_id: int, address: str) -> ReplicaIdentity:
    return ReplicaIdentity(broker_name="broker-a", broker_id=broker_id, broker_address=address, alive=True)


def test_controller_metadata() -> None:
    metadata = ControllerMetadata(
        group="group1",
        controller_leader_id="n0",
        controller_leader_address="127.0.0.1:18778",
        is_leader=True,
        peers="n0:127.0.0.1:18778;",
    )
    assert layouts.controller_metadata(metadata) == captured("getControllerMetaData")


def test_sync_state_set() -> None:
    info = ReplicasInfo(
        master_broker_id=1,
        master_address=ADDRESS_1,
        master_epoch=1,
        sync_state_set_epoch=2,
        in_sync_replicas=[replica(1, ADDRESS_1), replica(2, ADDRESS_2)],
    )
    text = layouts.sync_state_sets(BrokerReplicasInfo(replicas_info_table={"broker-a": info}))
    assert text == captured("getSyncStateSet")


def test_sync_state_set_without_master() -> None:
    info = ReplicasInfo(master_epoch=3, sync_state_set_epoch=4, not_in_sync_replicas=[replica(1, ADDRESS_1)])
    text = layouts.sync_state_sets(BrokerReplicasInfo(replicas_info_table={"b": info}))
    assert "#MasterBrokerId\tnull\n#MasterAddr\tnull\n" in text
    assert "\n\nNotInSyncReplica:\tReplicaIdentity{" in text


def test_broker_epoch() -> None:
    def cache(broker_id: int) -> EpochEntryCache:
        first = EpochEntryBody(epoch=1, start_offset=0, end_offset=87716)
        last = EpochEntryBody(epoch=2, start_offset=87716, end_offset=2**63 - 1)
        return EpochEntryCache(
            cluster_name="FxCluster",
            broker_name="broker-a",
            broker_id=broker_id,
            epoch_list=[first, last],
            max_offset=88002,
        )

    text = layouts.broker_epochs([(ADDRESS_2, cache(0)), (ADDRESS_1, cache(1))])
    assert text == captured("getBrokerEpoch-afterElect")


def test_elect_master() -> None:
    master = MasterInfo(master_broker_id=2, master_address=ADDRESS_2, master_epoch=2, sync_state_set_epoch=3)
    bare = layouts.elected("FxCluster", "broker-a", master, ElectMasterResponseBody())
    assert bare == captured("electMaster")
    group = BrokerMemberGroup(broker_addrs={2: ADDRESS_2, 1: ADDRESS_1})
    full = layouts.elected(
        "FxCluster", "broker-a", master, ElectMasterResponseBody(broker_member_group=group)
    )
    assert full == bare + f"\n\t#Broker\t1\t{ADDRESS_1}\n\t#Broker\t2\t{ADDRESS_2}"


def row(broker_id: int, address: str, *, out: str, behind: str, active: str) -> layouts.BrokerRow:
    table = {
        "brokerVersionDesc": "V5_1_4",
        "putTps": "0.0998402555910543 1.0159216574512024 ",
        "getTransferredTps": out,
        "timerReadBehind": behind,
        "earliestMessageTimeStamp": "1",
        "commitLogDiskRatio": "0.47",
        "brokerActive": active,
        "msgPutTotalTodayNow": "53" if active == "true" else "0",
        "msgGetTotalTodayNow": "53" if active == "true" else "0",
    }
    return layouts.BrokerRow("FxCluster", "broker-a", broker_id, address, table)


ROWS = [
    row(0, ADDRESS_1, out="0.0998 0.89", behind="0", active="true"),
    row(2, ADDRESS_2, out="0.0", behind="3", active="false"),
]


def test_cluster_list() -> None:
    assert layouts.cluster_list(ROWS, now_ms=1 + 36_000) == captured("clusterList")


def test_cluster_list_more() -> None:
    assert layouts.cluster_totals(ROWS) == captured("clusterList-m")


def test_cluster_list_shows_a_silent_replica_without_numbers() -> None:
    silent = layouts.BrokerRow("c", "b", 2, ADDRESS_2, problem="timeout")
    assert layouts.cluster_list([silent], now_ms=1).splitlines()[1].split() == ["c", "b", "2", ADDRESS_2]


@pytest.fixture
def route() -> TopicRouteData:
    broker = BrokerData(
        cluster="FxCluster", broker_name="broker-a", broker_addrs={2: ADDRESS_2, 0: ADDRESS_1}
    )
    queue = QueueData(broker_name="broker-a", read_queue_nums=4, write_queue_nums=4, perm=6)
    return TopicRouteData(broker_datas=[broker], queue_datas=[queue])


def test_topic_route(route: TopicRouteData) -> None:
    assert layouts.topic_route(route) == captured("topicRoute")


def test_topic_route_list(route: TopicRouteData) -> None:
    head, line, rule, total = layouts.topic_route_list(route).splitlines()
    assert head.split() == [
        "#ClusterName",
        "#BrokerName",
        "#BrokerAddrs",
        "#ReadQueue",
        "#WriteQueue",
        "#Perm",
    ]
    assert line.startswith("FxCluster") and f"{{0={ADDRESS_1}, 2={ADDRESS_2}}}" in line
    assert rule == "-" * 158 and total.split() == ["Total:", "1", "4", "4"]
