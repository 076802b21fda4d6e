"""`keelmq container move` and `restart` against real containers with worker processes, under traffic, and
brokers that are named by -1."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from cli.lab.container_cluster import ContainerCluster
from cli.lab.two_machines import TwoMachines
from tests.cluster.test_container_workers import is_alive
from tests.support.harness import LONG_GRACE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

GROUPS: Final = ("broker-a", "broker-b")
SPREAD: Final = {"broker-a": 0, "broker-b": 1}
SETTINGS: Final = {
    "allAckInSyncStateSet": "true",
    "minInSyncReplicas": "1",
    "mappedFileSizeCommitLog": str(8 << 20),
    "mappedFileSizeConsumeQueue": "200000",
}


@dataclass(frozen=True, slots=True)
class Ran:
    """What a program ended with."""

    code: int
    out: str
    error: str


async def ran(program: str, *args: str) -> Ran:
    """Runs `keelmq` or `mqadmin` as a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        {"keelmq": "cli.keelmq", "mqadmin": "cli.mqadmin.main"}[program],
        *args,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, error = await process.communicate()
    return Ran(process.returncode or 0, out.decode(), error.decode())


@asynccontextmanager
async def two_machines(
    directory: Path, *, processes: int = 2, namesrv_settings: dict[str, str] | None = None
) -> AsyncIterator[TwoMachines]:
    """Two containers of so many workers each, with a replica of both groups each; producers run."""
    cluster = ContainerCluster(
        directory,
        groups=GROUPS,
        containers=2,
        name_servers=1,
        processes=processes,
        broker_settings=SETTINGS,
        namesrv_settings=namesrv_settings,
    )
    with cluster:
        machines = TwoMachines(cluster, GROUPS, rate=200)
        try:
            await machines.start(SPREAD)
            yield machines
        finally:
            await machines.close()


def address_of(machines: TwoMachines, index: int) -> str:
    own = machines.cluster.containers[index].own
    return f"{own['brokerContainerIP']}:{own['listenPort']}"


async def brokers_of(container: str) -> tuple[dict[str, dict[str, Any]], list[int]]:
    """Returns the brokers by their names, and the process ids of the workers."""
    listed = await ran("keelmq", "container", "list", "-c", container, "--json")
    (found,) = json.loads(listed.out)
    return {each["brokerName"]: each for each in found["brokers"]}, [each["pid"] for each in found["workers"]]


async def test_nothing_is_lost_while_brokers_move_and_workers_restart(tmp_path: Path) -> None:
    async with two_machines(tmp_path) as machines:
        container = address_of(machines, 0)
        before, first = await brokers_of(container)
        master, slave = before["broker-a"], before["broker-b"]
        assert (master["role"], slave["role"]) == ("master", "slave")
        assert {master["worker"], slave["worker"]} == {0, 1}

        target = str(slave["worker"])
        moved = await ran(
            "keelmq", "container", "move", "-c", container, "KeelCluster:broker-a:-1", "--worker", target
        )
        assert moved.code == 0, moved.error
        assert f"is in worker {target} of {container}" in moved.out
        await machines.all_in_sync("after the move of a master")
        after, second = await brokers_of(container)
        assert {name: str(each["worker"]) for name, each in after.items()} == dict.fromkeys(GROUPS, target)
        assert second == first, "no process is started for a move"
        assert after["broker-a"]["brokerId"] == master["brokerId"]
        assert after["broker-a"]["role"] == "slave", "it handed over"

        restarted = await ran("keelmq", "container", "restart", "-c", container, target)
        assert restarted.code == 0, restarted.error
        assert restarted.out == f"worker {target} of {container} restarted\n"
        await machines.all_in_sync("after the restart of both")
        again, third = await brokers_of(container)
        assert all(each["state"] == "serving" for each in again.values())
        assert [old != new for old, new in zip(second, third, strict=True)] == [
            number == int(target) for number in range(2)
        ]
        assert not is_alive(second[int(target)])
        even = await ran("keelmq", "container", "plan", "-c", container, "--even", "--move", "--json")
        assert even.code == 0 and json.loads(even.out)["moved"] == 1, even
        spread, _ = await brokers_of(container)
        assert {each["worker"] for each in spread.values()} == {0, 1}
        machines.check()
        reports = await machines.end()
    for name, report in reports.items():
        assert report.ok, (name, report)


async def test_brokers_are_named_by_minus_one(tmp_path: Path) -> None:
    """903 and 902 in controller mode; a negative id that nobody has is refused."""
    async with two_machines(tmp_path) as machines:
        container = address_of(machines, 1)
        before, _ = await brokers_of(container)
        for wrong in ("KeelCluster:broker-b:-2", "KeelCluster:broker-x:-1", "KeelCluster:broker-b:99"):
            refused = await ran("mqadmin", "removeBroker", "-c", container, "-b", wrong)
            assert refused.code == 1 and "Broker not exist" in refused.error, refused
            assert "Traceback" not in refused.error
        here = "KeelCluster:broker-b:-1"
        for worker in ("2", "-1"):
            refused = await ran("keelmq", "container", "move", "-c", container, here, "--worker", worker)
            assert refused.code in (1, 2) and "Traceback" not in refused.error, refused
        removed = await ran("mqadmin", "removeBroker", "-c", container, "-b", here)
        assert removed.code == 0, removed.error
        left, _ = await brokers_of(container)
        assert set(left) == {"broker-a"}
        path = before["broker-b"]["configPath"]
        added = await ran("mqadmin", "addBroker", "-c", container, "-b", path)
        assert added.code == 0, added.error
        await machines.all_in_sync("after its return")
        back, _ = await brokers_of(container)
        assert back["broker-b"]["brokerId"] == before["broker-b"]["brokerId"]
        reports = await machines.end()
    for name, report in reports.items():
        assert report.ok, (name, report)


async def test_a_killed_machine_is_proved_dead(tmp_path: Path) -> None:
    """One process: with workers, these hand over when they miss the container."""
    async with two_machines(tmp_path, processes=1, namesrv_settings=LONG_GRACE) as machines:
        lost = await machines.kill(machines.cluster.containers[0])
        assert lost == ["broker-a"]
        await machines.gaps()
        log = machines.cluster.name_servers[0].log_path.read_text()
        assert re.search(r"broker-a: master is \d+, .*\(connection_refused\)", log), log[-2_000:]
