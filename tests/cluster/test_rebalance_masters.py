"""keelmq rebalance-masters with real processes under traffic: two groups on two hosts, which are two loopback
addresses. All masters begin on one host, as after a restart of the other one."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.keelmq import app
from cli.lab.cluster import Cluster, Program
from keelmq.client.admin import AdminClient, AdminError
from keelmq.remoting.operations.controller import ReplicasInfo
from keelmq.remoting.operations.route import TopicConfig
from tests.bench.switch import TOPIC, Load
from tests.support.ports import free_ports

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

HOSTS = ("127.0.0.1", "127.0.0.2")
GROUPS = ("broker-a", "broker-b")
RATE = 300


def on_host(program: Program, name: str, host: str) -> Program:
    """Returns a copy of a configured broker: another group's, on that address."""
    port, ha_port = free_ports(2)
    program_name = f"{name}-{host}"
    settings = program.settings | {
        "brokerName": name,
        "bindAddress": host,
        "brokerIP1": host,
        "listenPort": str(port),
        "haListenPort": str(ha_port),
        "storePathRootDir": str(program.directory / program_name),
        "allAckInSyncStateSet": "true",
    }
    made = Program(program_name, program.module, program.directory, settings, f"{host}:{port}")
    made.write()
    return made


async def sets(cluster: Cluster) -> dict[str, ReplicasInfo]:
    async with AdminClient() as admin:
        try:
            found = await admin.controllers.sync_state_sets(cluster.controller_addr, GROUPS)
        except AdminError:
            return {}
        return dict(found.replicas_info_table)


@asynccontextmanager
async def lopsided(directory: Path) -> AsyncIterator[Cluster]:
    """Two groups of two replicas, all in sync, both masters on the first host, with a topic."""
    cluster = Cluster(directory, name_servers=1, brokers=1)
    (template,) = cluster.brokers
    cluster.brokers = [on_host(template, name, host) for host in HOSTS for name in GROUPS]

    async def in_sync(count: int) -> bool:
        found = await sets(cluster)
        return len(found) == len(GROUPS) and all(
            each.master_address is not None and len(each.in_sync_replicas) == count for each in found.values()
        )

    async def made(admin: AdminClient) -> bool:
        try:
            route = await admin.name_servers.topic_route(cluster.namesrv_addr, TOPIC)
        except AdminError:
            return False
        return {each.broker_name for each in route.queue_datas} == set(GROUPS)

    with cluster:
        for program in [*cluster.name_servers, *cluster.brokers[:2]]:
            cluster.start_program(program)
        await cluster.until("two masters", lambda: in_sync(1), timeout_s=30)
        for program in cluster.brokers[2:]:
            cluster.start_program(program)
        await cluster.until("two slaves in sync", lambda: in_sync(2), timeout_s=30)
        async with AdminClient() as admin:
            topic = TopicConfig(topic_name=TOPIC, read_queue_nums=4, write_queue_nums=4)
            for each in (await sets(cluster)).values():
                await admin.brokers.update_topic(str(each.master_address), topic)
            await cluster.until("a route to both groups", lambda: made(admin), timeout_s=20)
        yield cluster


async def rebalance(cluster: Cluster, *flags: str) -> Result:
    args = ["rebalance-masters", "-n", cluster.namesrv_addr, *flags]
    result = await asyncio.to_thread(CliRunner().invoke, app, args)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


async def sent(load: Load, cluster: Cluster, more: int) -> None:
    target = len(load.sends) + more

    async def enough() -> bool:
        return len(load.sends) >= target

    await cluster.until(f"{more} more messages", enough, timeout_s=30)


async def test_no_send_fails_while_masters_are_spread(tmp_path: Path) -> None:
    async with lopsided(tmp_path) as cluster, Load(cluster.namesrv_addr, rate=RATE) as load:
        await sent(load, cluster, 100)
        shown = await rebalance(cluster, "--dry-run")
        assert shown.exit_code == 0 and "1 master to move" in shown.stdout, shown.output
        assert {str(each.master_address).split(":")[0] for each in (await sets(cluster)).values()} == {
            HOSTS[0]
        }
        result = await rebalance(cluster, "--yes", "--json")
        await sent(load, cluster, 100)
        assert result.exit_code == 0, result.output
        value = json.loads(result.stdout)
        assert value["before"] == {HOSTS[0]: 2, HOSTS[1]: 0} and value["after"] == {HOSTS[0]: 1, HOSTS[1]: 1}
        assert [(each["state"], each["handedOver"]) for each in value["moves"]] == [("done", True)]
        after = await sets(cluster)
        assert sorted(str(each.master_address).split(":")[0] for each in after.values()) == sorted(HOSTS)
        assert all(len(each.in_sync_replicas) == 2 for each in after.values())
        again = await rebalance(cluster, "--yes")
        assert again.exit_code == 0 and "nothing to move" in again.stdout
    assert load.errors == [] and load.uncertain == 0
