"""Controllers come and go under traffic, by mqadmin, with the brokers' configuration as it was."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.lab.cluster import Cluster, Program
from cli.lab.ports import HOST
from keelmq.client.admin import AdminClient, AdminError
from tests.support.harness import Harness
from tests.support.raft_group import free_ports

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(150)]


async def mqadmin(cluster: Cluster, command: str, *flags: str) -> dict[str, Any]:
    """Asked of the first of all controllers that answers, as an operator would."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli.mqadmin.main", command, "-a", cluster.controller_addr, *flags, "--json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, (command, flags, err.decode())
    answer: dict[str, Any] = json.loads(out)
    return answer


def fourth(cluster: Cluster) -> Program:
    """As docs/controller-log.md says: all members and itself, an empty directory, the key of the others."""
    request, raft, routes = free_ports(3)
    like = cluster.name_servers[0].settings
    settings = {
        **like,
        "listenPort": str(routes),
        "controllerDLegerPeers": f"{like['controllerDLegerPeers']};n3-{HOST}:{request}",
        "controllerRaftPeers": f"{like['controllerRaftPeers']};n3-{HOST}:{raft}",
        "controllerDLegerSelfId": "n3",
        "controllerStorePath": str(cluster.directory / "namesrv-3"),
        "kvConfigPath": str(cluster.directory / "namesrv-3.kvConfig.json"),
    }
    program = Program(
        "namesrv-3", "namesrv", cluster.directory, settings, f"{HOST}:{routes}", f"{HOST}:{request}"
    )
    program.write()
    return program


async def test_every_old_leader_can_be_replaced_while_masters_stay(tmp_path: Path) -> None:
    """The newcomer leads at once, longer than its grace window: it must have heard every broker by then."""
    async with Harness(tmp_path) as running, AdminClient() as admin:
        cluster = running.cluster
        running.produce()
        await running.acked(200)
        before = await running.all_in_sync()
        new = fourth(cluster)
        cluster.start_program(new)
        old = await running.controller_leader()
        old_id = old.settings["controllerDLegerSelfId"]

        async def answers() -> bool:
            try:
                return bool((await admin.controllers.controller_metadata(new.controller_address)).self_id)
            except AdminError:
                return False

        await cluster.until("the newcomer answers", answers, timeout_s=30)
        added = await mqadmin(cluster, "addController", "-id", "n3", "-p", new.controller_address)
        assert added["peers"].endswith(f"n3:{new.controller_address};")
        cluster.name_servers.append(new)
        led = await mqadmin(cluster, "transferLeader", "-id", "n3")
        assert led["controllerLeaderId"] == "n3"
        left = await mqadmin(cluster, "removeController", "-id", old_id)
        assert f"{old_id}:" not in left["peers"] and left["peers"].count(";") == 3
        cluster.name_servers.remove(old)
        cluster.kill(old)
        await running.acked(2_000)  # at 500 a second, longer than controllerGraceMs
        after = await running.all_in_sync()
        assert (after.master, after.master_epoch) == (before.master, before.master_epoch)
        assert after.controller_leader == new.name

        master = await running.fail_over()
        cluster.start_program(master)
        await running.all_in_sync()

        stays = cluster.name_servers[0]
        cluster.kill(stays)
        cluster.start_program(stays)  # with the file that never heard of the newcomer
        led = await mqadmin(
            cluster, "transferLeader", "-id", cluster.name_servers[1].settings["controllerDLegerSelfId"]
        )
        assert led["controllerLeaderAddress"] == cluster.name_servers[1].controller_address
        await running.acked(200)
        for each in cluster.name_servers:
            assert (await admin.controllers.controller_metadata(each.controller_address)).peers == left[
                "peers"
            ]
        report = await running.compare()
        assert report.lost == 0 and report.damaged == 0, report
