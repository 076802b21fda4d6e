"""mqadmin haStatus: RocketMQ's layout with our columns behind it, masters of a cluster, and who is silent."""

import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from cli.mqadmin.layouts import ha as layouts_ha
from keelmq.remoting.operation import Call, Empty, Reply
from keelmq.remoting.operations.broker import (
    GET_BROKER_HA_STATUS,
    HaClientRuntimeInfo,
    HaConnectionRuntimeInfo,
    HaRuntimeInfo,
)
from keelmq.remoting.operations.route import GET_BROKER_CLUSTER_INFO, BrokerData, ClusterInfo
from tests.support.admin_parts import DEAD, InThread, mqadmin
from tests.support.fake_cluster import FakeBroker, FakeNameServer

MASTER = HaRuntimeInfo(
    master=True,
    master_commit_log_max_offset=4000,
    in_sync_slave_nums=1,
    ha_connection_info=[
        HaConnectionRuntimeInfo(
            addr="10.0.0.2:40001", slave_ack_offset=4000, in_sync=True, broker_id=2, eta_millis=0
        ),
        HaConnectionRuntimeInfo(
            addr="10.0.0.3:40002",
            slave_ack_offset=2000,
            diff=2000,
            transferred_byte_in_second=1536,
            transfer_from_where=2500,
            began_at_offset=1000,
            broker_id=3,
            eta_millis=61_001,
        ),
        HaConnectionRuntimeInfo(addr="10.0.0.4:40003", slave_ack_offset=10, diff=3990),
    ],
)
SLAVE = HaRuntimeInfo(
    master=False,
    ha_client_runtime_info=HaClientRuntimeInfo(
        master_addr="10.0.0.1:10912",
        transferred_byte_in_second=2048,
        max_offset=77,
        last_read_timestamp=1_700_000_000_123,
        last_write_timestamp=0,
        master_flush_offset=99,
        activated=True,
    ),
    fault="no epoch\nin common",
)


class World(InThread):
    """A name server that knows a group with a master and one without; a master and a slave."""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        self.name_server, self.master, self.slave = FakeNameServer(), FakeBroker(), FakeBroker()
        self.name_server.table.bind(GET_BROKER_CLUSTER_INFO, self._cluster_info)
        for broker, status in ((self.master, MASTER), (self.slave, SLAVE)):

            async def tell(_: Empty, __: Call, status: HaRuntimeInfo = status) -> Reply:
                return Reply(body=status)

            broker.table.bind(GET_BROKER_HA_STATUS, tell)
        async with self.name_server, self.master, self.slave:
            yield

    async def _cluster_info(self, _: Empty, __: Call) -> Reply:
        both = {0: self.master.address, 2: self.slave.address}
        whole = BrokerData(cluster="c", broker_name="broker-a", broker_addrs=both)
        headless = BrokerData(cluster="d", broker_name="broker-b", broker_addrs={2: self.slave.address})
        table = {"broker-a": whole, "broker-b": headless}
        clusters = {"c": ["broker-a"], "both": ["broker-a", "broker-b"], "d": ["broker-b"]}
        return Reply(body=ClusterInfo(broker_addr_table=table, cluster_addr_table=clusters))


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World().running() as world:
        yield world


def test_the_layout_of_a_master(world: World) -> None:
    """The first six columns are RocketMQ's, width by width."""
    result = mqadmin("haStatus", "-b", world.master.address)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "",
        f"#MasterAddr\t{world.master.address}",
        "#MasterCommitLogMaxOffset\t4000",
        "#SlaveNum\t3",
        "#InSyncSlaveNum\t1",
        "#SlaveAddr                        #SlaveAckOffset             #Diff #TransferSpeed(KB/s)"
        "          #Status #TransferFromWhere  #BrokerId  #Progress  #ETA",
        "10.0.0.2:40001                    4000                            0             0.00"
        "               OK                0  2             100.0%  0s",
        "10.0.0.3:40002                    2000                         2000             1.50"
        "      Fall Behind             2500  3              33.3%  1m 02s",
        "10.0.0.4:40003                    10                           3990             0.00"
        "      Fall Behind                0  -                  -  -",
    ]


def test_the_layout_of_a_slave(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    try:
        lines = mqadmin("haStatus", "-b", world.slave.address).stdout.splitlines()
    finally:
        monkeypatch.undo()
        time.tzset()
    assert lines == [
        "",
        "#MasterAddr\t10.0.0.1:10912",
        "#CommitLogMaxOffset\t77",
        "#TransferSpeed(KB/s)\t2.00",
        "#LastReadTime\t2023-11-14 22:13:20,123",
        "#LastWriteTime\t-",
        "#MasterFlushOffset\t99",
        "#Activated\ttrue",
        "#ETA\tnot nearer",
        "#Fault\tno epoch in common",
    ]


def test_the_masters_of_a_cluster(world: World) -> None:
    flags = ("-n", world.name_server.address, "--json")
    shown = mqadmin("hastatus", "-c", "c", *flags)
    assert shown.exit_code == 0
    (only,) = json.loads(shown.stdout)
    assert (only["brokerAddr"], only["error"], only["master"]) == (world.master.address, None, True)
    assert only["haConnectionInfo"][1]["etaMillis"] == 61_001
    part = mqadmin("haStatus", "-c", "both", *flags)
    assert (
        part.exit_code == 4
        and "the name servers list no master of broker-b" in part.stderr
        and len(json.loads(part.stdout)) == 1
    )
    none = mqadmin("haStatus", "-c", "d", *flags)
    assert none.exit_code == 1 and json.loads(none.stdout) == []


def test_who_does_not_answer(world: World) -> None:
    some = mqadmin("haStatus", "-b", f"{DEAD};{world.master.address}")
    assert some.exit_code == 4 and DEAD in some.stderr and "#SlaveNum\t3" in some.stdout
    assert mqadmin("haStatus", "-b", DEAD).exit_code == 3


def test_usage(world: World) -> None:
    for args in ((), ("-c", "c"), ("-b", "nonsense")):
        assert mqadmin("haStatus", *args).exit_code == 2, args


@pytest.mark.parametrize(
    ("eta_ms", "text"),
    [(None, "not nearer"), (0, "0s"), (1, "1s"), (60_000, "1m 00s"), (3_723_000, "1h 02m 03s")],
)
def test_eta(eta_ms: int | None, text: str) -> None:
    assert layouts_ha.eta_text(eta_ms) == text


def test_all_is_said_when_it_is_there() -> None:
    """Rounded down, and a link that began at the end (or a log that was cut) divides by nothing."""
    assert layouts_ha.progress_text(0, 99_999, 100_000) == "99.9%"
    assert layouts_ha.progress_text(100, 100, 100) == "100.0%"
    assert layouts_ha.progress_text(200, 100, 150) == "0.0%"
