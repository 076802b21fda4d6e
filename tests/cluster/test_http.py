"""The HTTP doors of a real cluster: readiness comes and goes, and a fail-over is seen in the metrics."""

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from broker.admin.exporter_metrics import TABLE as EXPORTER
from cli.lab.cluster import Cluster, Program
from tests.support.harness import LONG_GRACE, SAFE, START_TIMEOUT_S, TOPIC, Harness
from tests.support.http_parts import Samples, samples, shapes, value
from tools.metrics_tables import TABLES

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


class HttpServers:
    """The HTTP ports of a harness' programs."""

    def __init__(self, running: Harness) -> None:
        self.cluster = running.cluster
        self._http = httpx.AsyncClient(timeout=5)

    async def close(self) -> None:
        await self._http.aclose()

    async def get(self, program: Program, path: str) -> httpx.Response | None:
        """None: nobody answers there."""
        try:
            return await self._http.get(f"http://{program.http_address}{path}")
        except httpx.TransportError:
            return None

    async def text(self, program: Program) -> str:
        answer = await self.get(program, "/metrics")
        assert answer is not None and answer.status_code == 200, program.name
        return answer.text

    async def scraped(self, program: Program) -> Samples:
        return samples(await self.text(program))

    async def ready(self, program: Program, status: int) -> Any:
        """Its answer, once it has this status."""

        async def look() -> Any:
            answer = await self.get(program, "/readyz")
            return answer.json() if answer is not None and answer.status_code == status else None

        return await self.cluster.until(f"{program.name} {status}", look, timeout_s=START_TIMEOUT_S)


async def test_a_fail_over_seen_over_http(tmp_path: Path) -> None:
    """Every door answers, all that is documented is scraped, the heir shows its role, and the old master
    comes back as a slave that is ready."""
    async with Harness(tmp_path, http=True, namesrv_settings=LONG_GRACE) as running:
        servers = HttpServers(running)
        for program in running.cluster.programs:
            await servers.ready(program, 200)
        running.produce()
        await running.acked(200)
        master = await running.master()
        await roles(servers, master)
        before = await servers.scraped(master)
        assert value(before, "rocketmq_broker_role") == 1
        assert value(before, "rocketmq_syncstateset_size") == 3
        assert len(before["rocketmq_ha_replica_lag_bytes"]) == 2
        assert value(before, "rocketmq_messages_in_total", topic=TOPIC) > 0
        await running.cluster.kill_and_wait(master)
        assert await servers.get(master, "/livez") is None
        transfer_target = await running.new_master(master)
        await running.acked(200)
        after = await servers.scraped(transfer_target)
        assert value(after, "rocketmq_broker_role") == 1
        assert value(after, "rocketmq_broker_epoch") > value(before, "rocketmq_broker_epoch")
        await agreed(servers, transfer_target)
        await roles(servers, transfer_target)
        running.cluster.start_program(master)
        await ready_when_in_sync(servers, master, transfer_target)
        await roles(servers, transfer_target)
        back = await servers.get(master, "/v1/health")
        assert back is not None and back.json()["role"] == "slave" and not back.json()["writable"]
        await running.all_in_sync()
        assert value(await servers.scraped(master), "rocketmq_broker_role") == 0
        await everything_documented(servers)
        await servers.close()


async def roles(servers: HttpServers, master: Program) -> None:
    """Of the brokers that run, /master answers 200 at this one alone, and /slave at the others."""
    brokers = [each for each in servers.cluster.brokers if each.is_running]

    async def statuses(path: str) -> list[int]:
        return [answer.status_code for each in brokers if (answer := await servers.get(each, path))]

    wanted = tuple(
        [200 if (each is master) == is_master else 503 for each in brokers] for is_master in (True, False)
    )

    async def look() -> bool | None:
        return (await statuses("/master"), await statuses("/slave")) == wanted or None

    await servers.cluster.until(f"{master.name} alone is master", look, timeout_s=START_TIMEOUT_S)
    told = await servers.get(master, "/master")
    assert told is not None and told.json().keys() == {"role", "brokerName", "brokerId", "masterEpoch"}


async def ready_when_in_sync(servers: HttpServers, back: Program, master: Program) -> None:
    """The moment when this broker is ready, the master counts it among the SyncStateSet."""
    await servers.ready(back, 200)
    told, state = await servers.get(back, "/v1/health"), await servers.get(master, "/v1/haStatus")
    assert told is not None and state is not None
    members = [each["brokerId"] for each in state.json()["haConnectionInfo"] if each["inSync"]]
    assert told.json()["brokerId"] in members


async def agreed(servers: HttpServers, transfer_target: Program) -> None:
    """On the leading controller: the election is counted, and nobody contradicts anybody."""
    leader, view = await servers.cluster.until(
        "a view without disagreements", lambda: settled_view(servers), timeout_s=START_TIMEOUT_S
    )
    assert view["masterAddress"] == transfer_target.address and view["routes"]["0"] == transfer_target.address
    assert view["lastElection"]["reason"].endswith("is not active (connection_refused)")
    found = await servers.scraped(leader)
    labels = {"result": "new_master_elected", "reason": "connection_refused"}
    assert value(found, "rocketmq_controller_elections_total", **labels) == 1
    assert value(found, "active_broker_num") == 2


async def settled_view(servers: HttpServers) -> tuple[Program, dict[str, Any]] | None:
    for program in servers.cluster.name_servers:
        answer = await servers.get(program, f"/v1/groups/{servers.cluster.broker_name}")
        if answer is not None and answer.status_code == 200:
            view: dict[str, Any] = answer.json()
            alive = sum(replica["alive"] for replica in view["replicas"])
            if view["active"] and not view["disagreements"] and alive == 2:
                return program, view
    return None


WITH_WHAT_THEY_COUNT = {
    "rocketmq_access_refusals_total",
    "rocketmq_background_task_deaths_total",
    "rocketmq_broker_unread_connections_total",
    "rocketmq_commit_messages_total",
    "rocketmq_consumer_connections",
    "rocketmq_consumer_group_create_execution_time_milliseconds",
    "rocketmq_controller_raft_certificate_end_seconds",
    "rocketmq_controller_raft_guard_drops_total",
    "rocketmq_controller_raft_refused_connections_total",
    "rocketmq_controller_unread_connections_total",
    "rocketmq_delay_message_latency_seconds",
    "rocketmq_finish_message_latency_milliseconds",
    "rocketmq_given_up_messages_total",
    "rocketmq_ha_in_sync_copies",
    "rocketmq_ha_refused_total",
    "rocketmq_ha_replica_eta_seconds",
    "rocketmq_messages_out_total",
    "rocketmq_heal_failures_total",
    "rocketmq_metrics_overflow_series",
    "rocketmq_namesrv_unread_connections_total",
    "rocketmq_pop_revive_in_message_total",
    "rocketmq_pop_revive_out_message_total",
    "rocketmq_pop_revive_retry_messages_total",
    "rocketmq_rollback_messages_total",
    "rocketmq_send_to_dlq_messages_total",
    "rocketmq_storage_quota_bytes",
    "rocketmq_storage_quota_used_bytes",
    "rocketmq_throughput_out_total",
    "rocketmq_timer_dequeue_total",
    "rocketmq_tls_certificate_end_seconds",
    "rocketmq_tls_connections_total",
    "rocketmq_tls_fault",
    "rocketmq_topic_create_execution_time_milliseconds",
}
"""One sample per task that died, per consumer group, per reason, per replica that comes nearer...: there may
be none of these here."""


async def everything_documented(servers: HttpServers) -> None:
    """All that is scraped anywhere is documented, and all that is documented is scraped somewhere."""
    documented = {metric.name for table in TABLES for metric in table.metrics}
    texts = await asyncio.gather(*(servers.text(program) for program in servers.cluster.programs))
    found = {family(name, kind) for text in texts for name, (kind, _) in shapes(text).items()}
    assert found <= documented
    elsewhere = {name for name in documented if name.startswith(("rocketmq_container_", "rocketmq_proxy_"))}
    elsewhere |= {metric.name for metric in EXPORTER.metrics}  # metricsExporterCompat
    assert documented - found - elsewhere <= WITH_WHAT_THEY_COUNT


def family(name: str, kind: str) -> str:
    """A histogram is documented once, and scraped as three."""
    return re.sub(r"_(bucket|sum|count)$", "", name) if kind == "histogram" else name


async def test_a_broker_is_ready_when_it_has_a_role_and_a_name_server(tmp_path: Path) -> None:
    """It starts first and alone: 503 with reasons, alive; then its controllers and name servers come."""
    alone_is_enough = SAFE | {"minInSyncReplicas": "1"}
    cluster = Cluster(tmp_path, name_servers=1, brokers=1, broker_settings=alone_is_enough, http=True)
    with cluster:
        (broker,), (server,) = cluster.brokers, cluster.name_servers
        cluster.start_program(broker)
        async with httpx.AsyncClient(timeout=5) as http:

            async def answer(status: int) -> Any:
                async def look() -> Any:
                    try:
                        got = await http.get(f"http://{broker.http_address}/readyz")
                    except httpx.TransportError:
                        return None
                    return got.json() if got.status_code == status else None

                return await cluster.until(f"/readyz {status}", look, timeout_s=START_TIMEOUT_S)

            alone = await answer(503)
            assert alone["reasons"] == ["no role yet", "not registered with any name server"]
            assert (await http.get(f"http://{broker.http_address}/livez")).status_code == 200
            cluster.start_program(server)
            assert await answer(200) == {"ready": True, "reasons": []}
            told = (await http.get(f"http://{broker.http_address}/v1/health")).json()
            assert told["role"] == "master" and told["registeredWith"] == [server.address]
            cluster.kill(server)
            lost = await answer(503)
            assert [reason.partition(" ")[0] for reason in lost["reasons"]] == ["not"]
