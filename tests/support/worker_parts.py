"""A worker of a container around brokers that do nothing but listen, in this process or in one of its own.

`python -m tests.support.worker_parts` is a worker with such brokers, for tests of processes.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from broker.container.core.identity import BrokerIdentity
from broker.container.host import BrokerHost, BrokerRefused, HostObserver, InnerSetup
from broker.container.workers.link import Link
from broker.container.workers.messages import Begin, Done
from broker.container.workers.server import WorkerServer
from broker.container.workers.worker import run
from keelmq.remoting.operations.container import BrokerState, InnerBroker, Worker
from keelmq.runtime.config import ConfigError
from keelmq.runtime.stop_steps import StopError

if TYPE_CHECKING:
    from prometheus_client.core import Metric

COMMAND = (sys.executable, "-m", "tests.support.worker_parts")


def identity(name: str, broker_id: int = 0) -> BrokerIdentity:
    return BrokerIdentity("c", name, broker_id)


def setup(name: str, does: Path | str = "") -> InnerSetup:
    """does: what the broker does at its start, as the name of its file, or in it: see FakeHost."""
    return InnerSetup(identity(name), Path(does) if does else Path("/nothing"))


async def until(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    """Fails with a TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - states of processes and hosts, which have no event
            await asyncio.sleep(0.002)


@dataclass
class Observed:
    """A HostObserver that keeps what it is told."""

    failed: list[tuple[BrokerIdentity, str]] = field(default_factory=list)
    restarted: list[BrokerIdentity] = field(default_factory=list)

    def broker_failed(self, identity: BrokerIdentity, reason: str) -> None:
        self.failed.append((identity, reason))

    def broker_restarted(self, identity: BrokerIdentity) -> None:
        self.restarted.append(identity)


class FakeHost:
    """A BrokerHost. What a start does stands in the broker's file: "" (serves), "refuse", "hang", "bug",
    "die", or a port to listen on. `calls`: what it was asked."""

    def __init__(self, number: int, observer: HostObserver) -> None:
        self.number, self.observer = number, observer
        self.calls: list[str] = []
        self.ports: dict[BrokerIdentity, socket.socket | None] = {}
        self.paths: dict[BrokerIdentity, Path] = {}
        self.may_leave, self.is_leaving = asyncio.Event(), asyncio.Event()
        self.may_leave.set()
        self.families: list[Metric] = []
        self.refuses_to_close = False
        self.may_close = asyncio.Event()
        self.may_close.set()
        self.die: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGKILL)

    async def start(self, setup: InnerSetup) -> None:
        self.calls.append(f"start {setup.identity.name}")
        path = setup.config_path
        does = path.read_text().strip() if path.is_file() else path.name
        if does == "refuse":
            raise BrokerRefused(f"{setup.identity.name}: the port is in use")
        if does == "bug":
            raise KeyError("a bug")
        if does == "die":
            self.die()
            await asyncio.Event().wait()
        if does == "hang":
            try:
                await asyncio.Event().wait()
            finally:
                self.calls.append(f"gave up {setup.identity.name}")
        port = None
        if does.isdigit():
            try:
                port = socket.create_server(("127.0.0.1", int(does)))
            except OSError as error:
                raise BrokerRefused(str(error)) from error
        self.ports[setup.identity], self.paths[setup.identity] = port, path

    async def stop(self, identity: BrokerIdentity, *, hand_over: bool) -> None:
        self.calls.append(f"stop {identity.name}{' hand over' if hand_over else ''}")
        if identity.name == "sticks":
            raise BrokerRefused("its store does not close")
        if identity.name == "hangs":
            await asyncio.Event().wait()
        self._drop(identity)

    def _drop(self, identity: BrokerIdentity) -> None:
        if port := self.ports.pop(identity, None):
            port.close()
        self.paths.pop(identity, None)

    async def brokers(self) -> list[InnerBroker]:
        return [
            InnerBroker(
                broker_cluster_name=each.cluster,
                broker_name=each.name,
                broker_id=each.broker_id,
                canonical_name=each.canonical_name,
                state=BrokerState.SERVING,
                config_path=str(self.paths[each]),
                worker=self.number,
            )
            for each in self.ports
        ]

    async def worker(self) -> Worker:
        return Worker(
            number=self.number, pid=os.getpid(), is_running=True, cpu_millis=7, resident_bytes=4_096
        )

    async def metrics(self) -> "Iterable[Metric]":
        return self.families

    async def change(self, settings: Mapping[str, str]) -> None:
        self.calls.append("change " + " ".join(f"{key}={value}" for key, value in settings.items()))
        if settings.get("maxConnections") == "13":
            raise BrokerRefused("not 13")

    async def restart(self) -> None:
        raise BrokerRefused("not a process of its own")

    async def leave(self) -> None:
        self.calls.append("leave")
        self.is_leaving.set()
        await self.may_leave.wait()

    async def close(self) -> None:
        self.calls.append("close")
        await self.may_close.wait()
        for each in list(self.ports):
            self.calls.append(f"stop {each.name}")
            self._drop(each)
        if self.refuses_to_close:
            raise StopError("the container: could not stop c_a_0")


@asynccontextmanager
async def fake_host(begin: Begin, observer: HostObserver) -> AsyncIterator[BrokerHost]:
    if begin.overrides.get("bad"):
        raise ConfigError(begin.overrides["bad"])
    yield FakeHost(begin.number, observer)


class InProcess:
    """A link to a worker on this event loop: `async with InProcess() as pair:`."""

    def __init__(self, *, bytes_max: int = 1 << 20, signal_grace_s: float = 60.0) -> None:
        self.observed = Observed()
        self.events: list[object] = []
        self._bytes_max, self._grace_s = bytes_max, signal_grace_s

    async def __aenter__(self) -> "InProcess":
        @asynccontextmanager
        async def make(begin: Begin, observer: HostObserver) -> AsyncIterator[BrokerHost]:
            async with fake_host(begin, observer) as host:
                assert isinstance(host, FakeHost)
                self.host = host
                yield host

        ours, theirs = socket.socketpair()
        for each in (ours, theirs):
            each.setblocking(False)
        self.server = WorkerServer(make, bytes_max=self._bytes_max, signal_grace_s=self._grace_s)
        self.serving = asyncio.create_task(self.server.serve(theirs))
        self.link = Link("worker 1", self.events.append, self._bytes_max)
        await asyncio.get_running_loop().create_unix_connection(lambda: self.link.channel, sock=ours)
        return self

    async def begin(self, **overrides: str) -> None:
        command = Begin(number=1, config_path=None, overrides=overrides)
        await self.link.request(command, Done, deadline_ms=5_000, purpose="begin")

    async def __aexit__(self, *_: object) -> None:
        self.link.channel.close()
        async with asyncio.timeout(10):
            await asyncio.wait([self.serving])
            await self.link.has_ended.wait()


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], fake_host))
