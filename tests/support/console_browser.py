"""The console with an invented cluster, and a browser that looks at it."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from keelmq.console.console import Console
from keelmq.console.pages import is_built
from keelmq.console.service import ConsoleService, standalone_app
from keelmq.console.sources import ConsoleSources
from keelmq.console.standalone import StandaloneConsole, StandaloneOptions
from keelmq.console.verifiers import SessionsOnly
from keelmq.health.status import (
    ClusterStatus,
    ControllerStatus,
    GroupStatus,
    LastElection,
    NameServerStatus,
    Problem,
    ReplicaStatus,
    Verdict,
)
from keelmq.remoting.operation import Peer
from keelmq.remoting.servers.http_access import Unauthenticated
from keelmq.remoting.servers.http_hosts import AllowedHosts
from keelmq.remoting.servers.http_late import LateHttp
from keelmq.remoting.servers.http_settings import HttpPolicy
from keelmq.runtime.clock import wall_ms

FRONTEND = Path(__file__).parents[2] / "keelmq" / "web" / "frontend"
DRIVER = FRONTEND / "test" / "browser" / "drive.mjs"
CHROMIUM = shutil.which(os.environ.get("CHROMIUM", "chromium"))
DEADLINE_S = 240.0
"""axe needs seconds for a page on a busy machine."""
CLUSTER = "KeelCluster"


def why_not() -> str:
    """Returns why there can be no browser test here; "": there can be."""
    if CHROMIUM is None:
        return (
            "no chromium here; on Debian: apt-get install --no-install-recommends chromium fonts-dejavu-core"
        )
    if shutil.which("node") is None or not (FRONTEND / "node_modules" / "playwright-core").is_dir():
        return "no browser driver here: cd keelmq/web/frontend && npm ci"
    return "" if is_built() else "the console is not built: cd keelmq/web/frontend && npm run build"


async def drive(command: str, address: str, *args: str) -> list[Any]:
    """Runs a command of drive.mjs and returns the values that it printed."""
    return [json.loads(line) async for line in driving(command, address, *args)]


async def driving(command: str, address: str, *args: str) -> AsyncGenerator[str]:
    """Yields what the command prints, while it prints it. Raises AssertionError with its errors."""
    process = await asyncio.create_subprocess_exec(
        "node", DRIVER, command, str(CHROMIUM), address, *args,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, limit=1 << 24,
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    errors = asyncio.create_task(process.stderr.read())
    try:
        async with asyncio.timeout(DEADLINE_S):
            async for line in process.stdout:
                yield line.decode()
            assert await process.wait() == 0, (await errors).decode()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
        await errors


class GivenPoller:
    """A Poller whose cluster is a value."""

    def __init__(self, status: ClusterStatus) -> None:
        self.status = status

    async def take(self) -> ClusterStatus:
        return self.status.model_copy(update={"taken_ms": wall_ms()})

    async def pulse(self) -> object:
        return None

    async def close(self) -> None:
        pass


class OneUser:
    """A Verifier that knows one password."""

    def __init__(self, user: str, password: str) -> None:
        self._known = user, password

    async def verify(self, user: str, password: str, peer: Peer) -> None:
        if (user, password) != self._known:
            raise Unauthenticated("wrong name or password", [])

    async def is_still_right(self, user: str, password: str) -> bool:
        return (user, password) == self._known

    @property
    def is_required(self) -> bool:
        return True


@asynccontextmanager
async def console_of(
    status: ClusterStatus, *, only: OneUser | None = None, port: int = 0
) -> AsyncIterator[str]:
    """Yields the address of a console that shows a status; to everybody, or after a log-in."""
    sources = ConsoleSources(name_servers=lambda: ("127.0.0.1:1",))
    service = ConsoleService(sources, only)
    service.console = Console(sources, GivenPoller(status))
    access = None if only is None else SessionsOnly(service.access.user_of)
    policy = HttpPolicy(hosts=AllowedHosts(("127.0.0.1",)), access=access)
    http = LateHttp(lambda: standalone_app(service), host="127.0.0.1", port=port, policy=policy)
    http.bind()
    await http.serve()
    try:
        yield f"http://127.0.0.1:{http.address[1]}/console/"
    finally:
        await service.stop()
        await http.close()


@asynccontextmanager
async def console_for(namesrv_addr: str) -> AsyncIterator[str]:
    """Yields the address of a console that runs alone, as `keelmq console -n namesrv_addr` does."""
    alone = StandaloneConsole(StandaloneOptions(name_servers=namesrv_addr.split(";"), port=0))
    await alone.start()
    host, port = alone.address
    try:
        yield f"http://{host}:{port}/console/"
    finally:
        await alone.stop()


def fleet(groups: int, *, ill: Sequence[int] = ()) -> ClusterStatus:
    """Returns a cluster of groups with three replicas; those in `ill` have lost a replica, the first of them
    its master."""
    found = [_group(index, is_ill=index in ill, has_master=index not in ill[:1]) for index in range(groups)]
    problems = [problem for group in found for problem in group.problems]
    return ClusterStatus(
        taken_ms=wall_ms(),
        took_ms=31,
        verdict=_worst([group.verdict for group in found]),
        name_servers=[
            NameServerStatus(
                address="10.0.0.1:9876", is_up=True, brokers=groups * 3, groups=groups, topics=40
            ),
            NameServerStatus(address="10.0.0.2:9876", is_up=not ill, problem="no connection" if ill else ""),
        ],
        controllers=[
            ControllerStatus(
                address=f"10.0.0.{index + 1}:9878",
                member=f"n{index}",
                role="leader" if index == 1 else "follower",
                term=7,
                commit_index=90_000,
                last_applied=90_000 - index,
            )
            for index in range(3)
        ],
        groups=found,
        problems=sorted(problems, key=lambda each: each.level != Verdict.FAILED),
    )


def _worst(verdicts: Sequence[Verdict]) -> Verdict:
    return max(verdicts, key=list(Verdict).index, default=Verdict.OK)


def _group(index: int, *, is_ill: bool, has_master: bool) -> GroupStatus:
    name = f"broker-{index:04}"
    end = 40_000_000 + index * 977
    replicas = [
        ReplicaStatus(
            broker_id=each,
            address=f"10.{index >> 8}.{index & 255}.{each}:10911",
            role="silent"
            if is_ill and each == 1
            else "master"
            if each == 1 + is_ill and has_master
            else "slave",
            is_alive=not (is_ill and each == 1),
            is_in_sync=not (is_ill and each == 1),
            problem="no connection" if is_ill and each == 1 else "",
            max_offset=end,
            confirm_offset=end,
            lag_bytes=0 if each < 3 else index % 5 * 4_096,
            lag_ms=0 if each < 3 else index % 5 * 12,
            epoch=4 + is_ill,
            messages_in_per_s=1_200.0 + index % 7,
            messages_out_per_s=800.0 if each == 1 else 0.0,
            disk_used=0.41,
            version="V5_3_3",
            started_ms=1_795_250_000_000,
        )
        for each in (1, 2, 3)
    ]
    in_sync = [each.broker_id for each in replicas if each.is_in_sync]
    master = (1 + is_ill) if has_master else None
    return GroupStatus(
        cluster=CLUSTER,
        broker_name=name,
        verdict=Verdict.FAILED if not has_master else Verdict.WARNING if is_ill else Verdict.OK,
        has_controllers=True,
        master_id=master,
        master_address="" if master is None else replicas[master - 1].address,
        master_epoch=4 + is_ill,
        sync_state_set=in_sync,
        sync_state_set_epoch=9,
        min_in_sync=2,
        confirm_offset=end,
        max_offset=end,
        replicas=replicas,
        last_election=LastElection(
            event_id=index,
            time_ms=wall_ms() - index * 61_000,
            reason="master 1 is not active",
            broker_id=master or -1,
            before=1,
            master_epoch=4 + is_ill,
            without_master_ms=85,
        ),
        problems=_problems(name, has_master=has_master) if is_ill else [],
    )


def _problems(name: str, *, has_master: bool) -> list[Problem]:
    if not has_master:
        return [
            Problem(
                level=Verdict.FAILED,
                check="group.master",
                subject=name,
                text="no master: no replica of the SyncStateSet is alive",
                next_step="start a broker that was in the SyncStateSet; only then nothing is lost",
                command=f"mqadmin getSyncStateSet -a 10.0.0.1:9878 -b {name}",
            )
        ]
    return [
        Problem(
            level=Verdict.WARNING,
            check="group.in-sync",
            subject=name,
            text="2 of 3 replicas are in the SyncStateSet; broker 1 does not answer",
            next_step="start mqbroker there",
        )
    ]
