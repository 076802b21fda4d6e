"""Faults of RocketMQ's controller that have no other home among our tests. Numbers: docs/pitfalls.md."""

import asyncio
from pathlib import Path

import pytest

from keelmq.remoting.operations import controller as wire
from keelmq.remoting.operations.route import BROKER_HEARTBEAT, BrokerHeartbeatRequest
from namesrv.core.liveness import BrokerKey
from tests.support.controller_fakes import CLUSTER, GROUP, Bench, FakePeer, config

GROUPS = ("g1", "g2", "g3")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def container(bench: Bench) -> FakePeer:
    """One broker process with three groups' masters, all over one connection."""
    peer = FakePeer(99)
    for name in GROUPS:
        header = {"cluster_name": CLUSTER, "broker_name": name}
        await bench.ask(wire.APPLY_BROKER_ID, **header, applied_broker_id=1, register_check_code="h:1;1")
        heartbeat = BrokerHeartbeatRequest(
            **header, broker_id=1, broker_addr="h:1", heartbeat_timeout_mills=3_000, min_in_sync_replicas=1
        )
        await bench.ask(BROKER_HEARTBEAT, None, peer, **heartbeat.model_dump())
        await bench.ask(wire.ELECT_MASTER, **header, broker_id=1)
    return peer


async def test_a_container_that_dies_takes_all_its_brokers_24(bench: Bench) -> None:
    peer = await container(bench)
    bench.liveness.connection_closed(peer.connection_id, bench.now_ms)
    bench.now_ms += 51
    lost = bench.liveness.scan_not_active(bench.now_ms)
    assert set(lost) == {BrokerKey(CLUSTER, name, 1) for name in GROUPS}


async def test_one_group_waits_for_no_other_41(bench: Bench) -> None:
    """All elections are proposed before the first of them is applied."""
    peer = await container(bench)
    elections = bench.plugin.elections
    task = asyncio.create_task(elections.run())
    try:
        for _ in range(5):
            await asyncio.sleep(0)
        bench.replicator.before_apply = asyncio.Event()
        bench.liveness.connection_closed(peer.connection_id, bench.now_ms)
        bench.now_ms += 60_000
        bench.liveness.scan_not_active(bench.now_ms)
        for _ in range(2):  # nobody can follow: the masters are cleared at the second look
            elections.check_all_groups()
            for _ in range(20):
                await asyncio.sleep(0)
            bench.now_ms += 60_000
        assert bench.replicator.waiting == len(GROUPS)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await elections.stop()


async def test_a_truncated_replica_is_as_long_as_it_says_39(bench: Bench) -> None:
    """The last heartbeat counts, not the longest: 2 was cut from 900 to 100 within its epoch."""
    await bench.group_of(1, 2, 3)
    await bench.heartbeat(2, epoch=1, max_offset=900)
    await bench.heartbeat(3, epoch=1, max_offset=500)
    await bench.heartbeat(2, epoch=1, max_offset=100)
    bench.lose(1)
    await bench.elect(-1)
    assert bench.broker_set.master_broker_id == 3


def test_loopback_peers_are_warned_about_44(bench: Bench) -> None:
    assert "n0-127.0.0.1, n1-127.0.0.1" in bench.plugin.config.warnings()[0]
    remote = config(
        controllerDLegerPeers="n0-10.0.0.1:9878;n1-10.0.0.2:9878", controllerRaftSecret="x" * 32,
        controllerRaftInsecure=False,
    )  # fmt: skip
    assert remote.warnings() == []


async def test_heartbeats_without_a_usable_timeout_get_the_default(bench: Bench) -> None:
    for timeout_ms in (0, -5):
        await bench.heartbeat(1, heartbeat_timeout_mills=timeout_ms)
        key = BrokerKey(CLUSTER, GROUP, 1)
        assert bench.liveness.is_active(key, bench.now_ms + 10_000)
        assert not bench.liveness.is_active(key, bench.now_ms + 10_001)
