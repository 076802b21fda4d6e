"""Worker processes of a container, real ones: what dies with what."""

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker.container.app import ContainerServer
from broker.container.workers.host import WorkerHost
from broker.container.workers.running import Launch, WorkerTimes
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.config_store import ConfigSources
from keelmq.remoting.operation import Empty, Failed, Ok, Outcome
from keelmq.remoting.operations.broker_admin import UPDATE_BROKER_CONFIG
from keelmq.remoting.operations.container import BrokerState, ContainerStatus
from keelmq.runtime.backoff import Backoff
from tests.support.ports import free_ports
from tests.support.worker_parts import COMMAND, Observed, identity, setup, until
from tests.unit.broker.container.parts import broker_file, container_config

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

QUICK = WorkerTimes(restart=Backoff(first_ms=1, max_ms=10))


def is_alive(pid: int) -> bool:
    """A zombie is, too: it was not reaped."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def open_files() -> set[str]:
    """Of this process, but for the one that lists them."""
    return {f"{each.name} {os.readlink(each)}" for each in Path("/proc/self/fd").iterdir() if each.exists()}


async def connects(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


@asynccontextmanager
async def container(tmp_path: Path, ports: Sequence[int]) -> AsyncIterator[ContainerServer]:
    """Two workers with a real broker each, configured by a file as `-c` does."""
    files = [
        broker_file(tmp_path, f"b{number}", listenPort=port, brokerId=0) for number, port in enumerate(ports)
    ]
    config = container_config(tmp_path, *files, containerProcesses=2)
    given = tmp_path / "container.conf"
    keys = config.model_dump(by_alias=True, include=set(config.model_fields_set))
    given.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    async with ContainerServer(config, ConfigSources(given, {}, {})) as server:
        yield server


def shown(status: ContainerStatus) -> Mapping[str, tuple[int, BrokerState]]:
    return {each.broker_name: (each.worker, each.state) for each in status.brokers}


async def test_a_killed_worker_takes_only_its_brokers_down(tmp_path: Path) -> None:
    first, second = free_ports(2)
    async with container(tmp_path, [first, second]) as server:
        before = await server.container.status()
        assert shown(before) == {"b0": (0, BrokerState.SERVING), "b1": (1, BrokerState.SERVING)}
        assert await connects(first)
        _, writer = await asyncio.open_connection("127.0.0.1", second)
        os.kill(before.workers[0].pid, signal.SIGKILL)
        await until(lambda: server.container.states() == {"quarantined": 1, "serving": 1})
        assert not await connects(first)
        assert "was killed by SIGKILL" in (await server.container.status()).brokers[0].reason
        await until(lambda: server.container.states() == {"serving": 2}, timeout_s=60)
        after = await server.container.status()
        assert shown(after) == shown(before)
        assert await connects(first)
        assert not writer.is_closing()  # the other one was not touched
        assert [each.restarts for each in after.workers] == [1, 0]
        assert after.workers[1].pid == before.workers[1].pid
        writer.close()
        await writer.wait_closed()

        await server.container.restart(1)
        await server.container.move("c1", "b0", 0, 1)
        moved = await server.container.status()
        assert shown(moved) == {"b0": (1, BrokerState.SERVING), "b1": (1, BrokerState.SERVING)}
        assert await connects(first) and await connects(second)
    assert not any(is_alive(each.pid) for each in (*before.workers, *after.workers, *moved.workers))


async def admitted(port: int, count: int) -> int:
    """Returns how many of so many connections from here stay open, as the peer's limits have it."""
    async with contextlib.AsyncExitStack() as stack:
        opened = []
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.push_async_callback(writer.wait_closed)
            stack.callback(writer.close)
            opened.append(reader)
        ends = [asyncio.create_task(each.read(1)) for each in opened]
        done, open_ = await asyncio.wait(ends, timeout=1.0)
        for each in open_:
            each.cancel()
        return count - len(done)


async def test_changed_limits_reach_the_workers(tmp_path: Path) -> None:
    """The running ones, and one that is started again. Keys that are read at the start only are refused."""
    first, second = free_ports(2)
    admin = RemotingClient()
    async with container(tmp_path, [first, second]) as server:

        async def change(text: str) -> Outcome[Empty]:
            return await admin.call(server.address, UPDATE_BROKER_CONFIG, Empty(), text.encode())

        assert await admitted(first, 4) == 4
        changed = await change("maxConnectionsPerAddress=2")
        assert isinstance(changed, Ok) and not changed.remark, changed
        assert [await admitted(port, 4) for port in (first, second)] == [2, 2]
        assert "maxConnectionsPerAddress=2\n" in (tmp_path / "container.conf").read_text()

        for line in ("namesrvAddr=127.0.0.1:1", "tls.server.mode=enforcing", "containerProcesses=3"):
            refused = await change(line)
            assert isinstance(refused, Failed), line
            assert refused.remark.startswith(f"{line.partition('=')[0]} is read at start only: change it")
        wrong = await change("maxConnectionsPerAddress=-1")
        assert isinstance(wrong, Failed) and "maxConnectionsPerAddress" in wrong.remark, wrong

        before = await server.container.status()
        os.kill(before.workers[0].pid, signal.SIGKILL)
        await until(lambda: server.container.states() == {"quarantined": 1, "serving": 1})
        late = await change("maxConnectionsPerAddress=3")
        assert isinstance(late, Ok)
        if late.remark:  # unless the worker was there again
            assert "it takes the change over when it starts again" in late.remark
        await until(lambda: server.container.states() == {"serving": 2}, timeout_s=60)
        assert [await admitted(port, 4) for port in (first, second)] == [3, 3]
    await admin.close()


SUPERVISOR = """
import asyncio, sys
from broker.container.workers.host import WorkerHost
from broker.container.workers.running import Launch
from keelmq.remoting.config_store import ConfigSources
from keelmq.runtime.program import runner
from tests.support.worker_parts import COMMAND, Observed, setup

async def main():
    hosts = [WorkerHost(Launch(number, ConfigSources(), COMMAND)) for number in range(2)]
    for host, file in zip(hosts, sys.argv[1:]):
        await host.open(Observed())
        await host.start(setup("a", file))
    while True:
        print(*[(await host.worker()).pid for host in hosts], flush=True)
        await asyncio.to_thread(sys.stdin.readline)

with runner() as runs:  # on uvloop where it is installed, as the program
    runs.run(main())
"""


def test_workers_end_with_their_supervisor(tmp_path: Path) -> None:
    """Killed, it cannot tell them: they read the end of the stream. A signal to the whole group, as of a
    terminal, ends none of them before."""
    files = []
    for number, port in enumerate(free_ports(2)):
        files.append(tmp_path / f"{number}.conf")
        files[-1].write_text(str(port))
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, *map(str, files)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as supervisor:
        try:
            assert supervisor.stdin is not None and supervisor.stdout is not None
            workers = [int(pid) for pid in supervisor.stdout.readline().split()]
            assert len(workers) == 2
            for pid in workers:
                for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
                    os.kill(pid, number)
            supervisor.stdin.write(b"\n")
            supervisor.stdin.flush()
            assert [int(pid) for pid in supervisor.stdout.readline().split()] == workers
            assert all(map(is_alive, workers))
        finally:
            supervisor.kill()

    async def all_gone() -> None:
        await until(lambda: not any(map(is_alive, workers)))
        for file in files:
            assert not await connects(int(file.read_text()))

    asyncio.run(all_gone())


async def test_nothing_leaks_over_100_cycles(tmp_path: Path) -> None:
    """Of brokers in a worker, and of workers that are killed."""
    (port,) = free_ports(1)
    file = tmp_path / "a.conf"
    file.write_text(str(port))
    observed = Observed()
    host = WorkerHost(Launch(0, ConfigSources(), COMMAND, QUICK))
    await host.open(observed)
    worker = await host.worker()

    def files_of_worker() -> int:
        return len(list(Path(f"/proc/{worker.pid}/fd").iterdir()))

    try:
        before, before_of_worker = open_files(), files_of_worker()
        for _ in range(100):
            await host.start(setup("a", file))
            await host.stop(identity("a"), hand_over=False)
        assert open_files() == before
        assert files_of_worker() == before_of_worker
        await host.start(setup("a", file))
        pids = []
        for number in range(1, 4):
            pids.append((await host.worker()).pid)
            os.kill(pids[-1], signal.SIGKILL)
            await until(lambda number=number: len(observed.restarted) == number, timeout_s=60)
        gc.collect()
        assert len(open_files()) == len(before)
        assert not any(map(is_alive, pids))  # nor is one a zombie
    finally:
        await host.close()
    assert len(observed.failed) == 3
