"""Settings of a whole group: a name server, a master and its slave, each with a file of its own."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.app.broker import Broker
from cli.mqadmin.replica_settings import (
    Replicas,
    change_in_order,
    compared_names,
    difference_text,
    replicas_of,
)
from keelmq.client.admin import AdminClient, AdminError, ServerResult
from keelmq.remoting.config_store import ConfigSources
from keelmq.remoting.operations.route import BrokerData
from namesrv.app import Namesrv
from namesrv.config import NamesrvConfig
from tests.support.admin_parts import InThread
from tests.unit.broker.app.test_broker_app import config
from tests.unit.cli.mqadmin.test_mqadmin_broker import ran, usage, value


class Pair(InThread):
    """broker-a: a master and a slave without controllers."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _broker(self, name: str, **more: object) -> Broker:
        path = self.path / f"{name}.conf"
        path.write_text("# kept\n")
        settings = config(self.path / name, namesrvAddr=self.namesrv, broker_name="broker-a", **more)
        return Broker(settings, ConfigSources(path))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        names = NamesrvConfig(
            bind_address="127.0.0.1", listen_port=0, http_port=-1, kv_config_path=self.path / "kv.json"
        )
        async with Namesrv(names) as namesrv:
            self.namesrv = ":".join(map(str, namesrv.address))
            async with self._broker("master", broker_role="ASYNC_MASTER", ha_listen_port=0) as master:
                more = {"broker_role": "SLAVE", "broker_id": 1, "ha_master_address": master.status.ha_address}
                async with self._broker("slave", **more) as slave:
                    self.master, self.slave = master.address, slave.address
                    await until(
                        lambda: master.status.readiness.registered and slave.status.readiness.registered
                    )
                    yield


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("pair")).running() as pair:
        yield pair


def test_a_change_of_the_group_is_everywhere_and_kept(pair: Pair) -> None:
    group = ("--group", "broker-a", "-n", pair.namesrv)
    done = ran("updateBrokerConfig", *group, "-k", "fileReservedTime", "-v", "48")
    assert done.stdout.splitlines() == [
        f"update broker config success, {each}" for each in (pair.slave, pair.master)
    ]
    assert f"{pair.slave}: fileReservedTime was 72, is 48" in done.stderr
    for name in ("master", "slave"):
        assert (pair.path / f"{name}.conf").read_text() == "# kept\nfileReservedTime=48\n"
    assert "all replicas have the same settings" in ran("getBrokerConfig", *group, "--diff").stdout


def test_a_difference_is_shown(pair: Pair) -> None:
    ran("updateBrokerConfig", "-b", pair.master, "-k", "deleteWhen", "-v", "05")
    cluster = ("-c", "DefaultCluster", "-n", pair.namesrv)
    as_json = ran("getBrokerConfig", *cluster, "--diff", "--json", code=1).stdout
    assert json.loads(as_json) == [
        {"brokerName": "broker-a", "key": "deleteWhen", "values": {pair.slave: "04", pair.master: "05"}}
    ]
    text = ran("getBrokerConfig", *cluster, "--diff", code=1).stdout.splitlines()
    assert text == [
        "broker-a: deleteWhen",
        f"    {pair.slave:<24} slave   04",
        f"    {pair.master:<24} master  05",
    ]
    ran("updateBrokerConfig", *cluster, "-a", "true", "-k", "deleteWhen", "-v", "04")
    assert value("getBrokerConfig", *cluster, "--diff") == []


def replicas(*names: str) -> Replicas:
    """The master and the slave of each broker name, at "NAME:0" and "NAME:1"."""
    return replicas_of(
        [
            BrokerData(cluster="C", broker_name=each, broker_addrs={0: f"{each}:0", 1: f"{each}:1"})
            for each in names
        ]
    )


def test_a_comparison_of_nothing_is_not_called_equal() -> None:
    both, alone = replicas("a", "b"), {"a:0": {"k": "1"}, "a:1": {"k": "1"}, "b:0": {"k": "2"}}
    assert compared_names(both, alone) == ["a"]
    assert difference_text([], both, alone).splitlines() == [
        "the replicas that answer have the same settings",
        "b: nothing to compare: fewer than two replicas answer",
    ]
    assert compared_names(replicas("a"), {"a:0": {}}) == []
    assert "same settings" not in difference_text([], replicas("a"), {"a:0": {}})


def test_the_headings_are_those_of_rocketmq(pair: Pair) -> None:
    lines = ran("getBrokerConfig", "--group", "broker-a", "-n", pair.namesrv).stdout.splitlines()
    titles = [line for line in lines if line.startswith("====")]
    assert titles == [
        f"============My Master: {pair.master}=====Slave: {pair.slave}============",
        f"============Master: {pair.master}============",
    ]


def test_a_refused_value_reaches_no_master(pair: Pair) -> None:
    refused = ran(
        "updateBrokerConfig",
        "--group",
        "broker-a",
        "-n",
        pair.namesrv,
        "-k",
        "deleteWhen",
        "-v",
        "25",
        code=1,
    )
    assert "25" in refused.stderr and f"{pair.master}: not asked" in refused.stderr
    assert value("getBrokerConfig", "-b", pair.master)[0]["config"]["deleteWhen"] == "04"


def test_usage(pair: Pair) -> None:
    assert "not with -b" in usage("getBrokerConfig", "--diff", "-b", pair.master)
    assert "need -n" in usage("getBrokerConfig", "--diff", "-c", "DefaultCluster")
    unknown = ran(
        "updateBrokerConfig", "--group", "x", "-n", pair.namesrv, "-k", "deleteWhen", "-v", "5", code=1
    )
    assert "no broker named x" in unknown.stderr


async def test_slaves_are_changed_before_their_master() -> None:
    asked: list[str] = []

    class Admin(AdminClient):
        async def each(self, addresses: str, ask: Any) -> list[ServerResult[Any]]:
            asked.append(addresses)
            return [
                ServerResult(each, error=AdminError("x", each, "refused", 1) if each == "a:3" else None)
                for each in addresses.split(";")
            ]

    async def change(address: str) -> str:
        return ""

    good = BrokerData(cluster="c", broker_name="b", broker_addrs={0: "a:1", 2: "a:2"})
    bad = BrokerData(cluster="c", broker_name="d", broker_addrs={0: "a:4", 2: "a:3"})
    said, left = await change_in_order(Admin(), replicas_of([good]), change)
    assert (asked, len(said), left) == (["a:2", "a:1"], 2, [])
    asked.clear()
    said, left = await change_in_order(Admin(), replicas_of([good, bad]), change)
    assert asked == ["a:2;a:3"] and [line[:3] for line in left] == ["a:1", "a:4"]
