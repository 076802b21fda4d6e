"""WorkerHost around workers of this event loop: their life, and what is told to whom. Real processes are in
tests/cluster/test_container_workers.py."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace as with_changes
from prometheus_client.core import GaugeMetricFamily

from broker.container import bounded_stop
from broker.container.core.frames import encode_frame
from broker.container.host import BrokerHost, BrokerRefused, HostObserver
from broker.container.workers.host import WorkerHost
from broker.container.workers.messages import Answer, Begin, Done
from broker.container.workers.running import Launch, WorkerTimes
from broker.container.workers.server import WorkerServer
from keelmq.remoting.config_store import ConfigSources
from keelmq.remoting.operations.container import BrokerState
from keelmq.runtime.backoff import Backoff
from keelmq.runtime.stop_steps import StopError
from tests.support.worker_parts import FakeHost, Observed, fake_host, identity, setup, until

TIMES = WorkerTimes(ping=5, silent_pings=40, exit=2_000, up=5_000, restart=Backoff(first_ms=1, max_ms=5))


class FakeProcess:
    """A process that is a task around one end of the socket pair. Its ways: "works", "fails" at its begin,
    "hangs" after it, "sticks" when its brokers stop, "stays" when it shall stop them."""

    def __init__(self, pid: int, end: socket.socket, way: str) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.was_killed = False
        self._end, self._over = end, asyncio.Event()
        self._task = asyncio.create_task(self._hang() if way == "hangs" else self._serve(way))
        if way == "fails":
            self.die(1)

    async def _serve(self, way: str) -> None:
        @asynccontextmanager
        async def make(begin: Begin, observer: HostObserver) -> AsyncIterator[BrokerHost]:
            async with fake_host(begin, observer) as host:
                assert isinstance(host, FakeHost)
                self.host, host.die, host.refuses_to_close = host, self.die, way == "sticks"
                if way == "stays":
                    host.may_close.clear()
                yield host

        try:
            await WorkerServer(make).serve(self._end)
        except StopError:
            self._exit(1)
        self._exit(0)

    async def _hang(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_recv(self._end, 1)
        begun = Answer(id=1, result=Done()).model_dump_json().encode()
        await loop.sock_sendall(self._end, encode_frame(begun))
        await self._over.wait()

    def _exit(self, code: int) -> None:
        if self.returncode is None:
            self.returncode = code
            self._over.set()

    def die(self, code: int = -signal.SIGSEGV) -> None:
        """As by a signal: the supervisor reads the end of the stream."""
        self._exit(code)
        with suppress(OSError):  # the task may have closed it
            self._end.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        self.was_killed = True
        self.die(-signal.SIGKILL)
        if hasattr(self, "host"):
            self.host.may_close.set()

    async def wait(self) -> int:
        await self._over.wait()
        assert self.returncode is not None
        return self.returncode

    async def clean_up(self) -> None:
        async with asyncio.timeout(10):
            await asyncio.wait([self._task])
        self._end.close()


@dataclass
class Stage:
    """A host, and every process that it has started. ways: of the next ones."""

    ways: list[str] = field(default_factory=list)
    processes: list[FakeProcess] = field(default_factory=list)
    observed: Observed = field(default_factory=Observed)

    async def spawn(
        self, number: int, *, command: Sequence[str], environ: Mapping[str, str]
    ) -> tuple[FakeProcess, socket.socket]:
        way = self.ways.pop(0) if self.ways else "works"
        if way == "no process":
            raise OSError(11, "Resource temporarily unavailable")
        ours, theirs = socket.socketpair()
        for each in (ours, theirs):
            each.setblocking(False)
        self.processes.append(FakeProcess(1_000 + len(self.processes), theirs, way))
        return self.processes[-1], ours

    def host(self, times: WorkerTimes = TIMES, **overrides: str) -> WorkerHost:
        launch = Launch(1, ConfigSources(None, {}, overrides), times=times, spawn=self.spawn)
        return WorkerHost(launch)

    @property
    def calls(self) -> list[list[str]]:
        """Of each process."""
        return [process.host.calls for process in self.processes if hasattr(process, "host")]

    @property
    def failed(self) -> list[str]:
        return [each.name for each, _ in self.observed.failed]

    @property
    def restarted(self) -> list[str]:
        return [each.name for each in self.observed.restarted]


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    yield stage
    for process in stage.processes:
        await process.clean_up()
    assert not [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]


@asynccontextmanager
async def opened(stage: Stage, *names: str) -> AsyncIterator[WorkerHost]:
    host = stage.host()
    await host.open(stage.observed)
    try:
        for name in names:
            await host.start(setup(name))
        yield host
    finally:
        await host.close()


async def test_a_worker_serves_as_a_host_does(stage: Stage) -> None:
    async with opened(stage, "a", "b") as host:
        listed = await host.brokers()
        assert [(each.canonical_name, each.worker, each.state) for each in listed] == [
            ("c_a_0", 1, BrokerState.SERVING),
            ("c_b_0", 1, BrokerState.SERVING),
        ]
        worker = await host.worker()
        assert (worker.number, worker.is_running, worker.restarts, worker.cpu_millis) == (1, True, 0, 7)
        stage.processes[0].host.families = [GaugeMetricFamily("lag", "lag", value=3)]
        assert list(await host.metrics()) == stage.processes[0].host.families
        await host.leave()
        await host.stop(identity("a"), hand_over=True)
    assert stage.calls == [["start a", "start b", "leave", "stop a hand over", "close", "stop b"]]
    assert stage.processes[0].returncode == 0
    assert stage.observed == Observed()


async def test_the_brokers_of_a_worker_that_dies_fail_and_start_again(stage: Stage) -> None:
    async with opened(stage, "a", "b") as host:
        stage.processes[0].die()
        await until(lambda: len(stage.restarted) == 2)
        assert stage.failed == ["a", "b"]
        reason = stage.observed.failed[0][1]
        assert reason == "worker 1 (pid 1000) was killed by SIGSEGV; both are started again"
        assert len(await host.brokers()) == 2
        worker = await host.worker()
        assert (worker.restarts, worker.reason) == (1, "worker 1 (pid 1000) was killed by SIGSEGV")
    assert stage.calls[1] == ["start a", "start b", "close", "stop a", "stop b"]


async def test_a_refusal_after_the_death_is_reported(stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "b.conf"
    file.write_text("")
    async with opened(stage, "a") as host:
        await host.start(setup("b", file))
        await host.start(setup("d"))
        file.write_text("refuse")
        stage.processes[0].die()
        await until(lambda: stage.restarted == ["a", "d"])
        assert stage.observed.failed[3:] == [(identity("b"), "b: the port is in use")]
        file.write_text("")
        await host.start(setup("b", file))  # on request, as an operator does
        assert len(await host.brokers()) == 3


async def test_a_broker_that_ends_each_worker_stays_out(stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "b.conf"
    file.write_text("")
    async with opened(stage) as host:
        await host.start(setup("b", file))
        await host.start(setup("a"))
        file.write_text("die")
        stage.processes[0].die()
        await until(lambda: len(stage.processes) == 5 and stage.restarted[-1:] == ["a"])
        assert "3 times while it started" in next(
            why for who, why in reversed(stage.observed.failed) if who == identity("b")
        )
        assert [each.broker_name for each in await host.brokers()] == ["a"]
        assert stage.restarted.count("b") == 0


async def test_a_worker_that_dies_during_a_request_fails_it(stage: Stage) -> None:
    async with opened(stage, "a") as host:
        with pytest.raises(BrokerRefused, match=r"worker 1 \(pid 1000\) ended before it had answered"):
            await host.start(setup("b", "die"))
        await until(lambda: stage.restarted == ["a"])
        assert stage.failed == ["a"]  # who asked for b has the refusal
        leaving = asyncio.create_task(host.leave())
        stage.processes[1].host.may_leave.clear()
        await stage.processes[1].host.is_leaving.wait()
        stage.processes[1].die()
        await leaving  # only logged: close() comes next


async def test_a_worker_that_ends_in_many_starts_at_once(stage: Stage) -> None:
    """As at the start of a container: the one that ends it is refused, and the others serve."""
    async with opened(stage) as host:
        wanted = [setup("a"), setup("b", "die"), setup("d"), setup("e")]
        outcomes = await asyncio.gather(*map(host.start, wanted), return_exceptions=True)
        assert [type(each) for each in outcomes] == [type(None), BrokerRefused, type(None), type(None)]
        await until(lambda: len(stage.processes) == 3)
        await until(lambda: stage.calls[-1].count("start a") == 1)
        await host.start(setup("f"))
        assert sorted(each.broker_name for each in await host.brokers()) == ["a", "d", "e", "f"]
        assert "b" not in stage.failed


async def test_a_stop_that_the_worker_does_not_survive(stage: Stage) -> None:
    async with opened(stage, "a", "hangs") as host:
        stopping = asyncio.create_task(host.stop(identity("hangs"), hand_over=False))
        await until(lambda: "stop hangs" in stage.processes[0].host.calls)
        stage.processes[0].die()
        with pytest.raises(BrokerRefused, match="the broker ended with it, and is not started again"):
            await stopping
        await until(lambda: stage.restarted == ["a"])
        assert stage.calls[1] == ["start a"]


async def test_a_worker_that_hangs_is_killed(stage: Stage) -> None:
    stage.ways = ["hangs"]
    async with opened(stage) as host:
        await until(lambda: len(stage.processes) == 2)
        assert stage.processes[0].was_killed
        await host.start(setup("a"))
        worker = await host.worker()
        assert worker.reason == "worker 1 (pid 1000) was killed: it did not answer for 0.2 s"


async def test_a_worker_that_cannot_begin(stage: Stage) -> None:
    stage.ways = ["fails"]
    with pytest.raises(BrokerRefused, match=r"cannot start: worker 1 \(pid 1000\) exited with code 1"):
        await stage.host().open(stage.observed)
    stage.ways = ["no process"]
    with pytest.raises(BrokerRefused, match="Resource temporarily unavailable"):
        await stage.host().open(stage.observed)
    with pytest.raises(BrokerRefused, match="cannot start: a bad key"):
        await stage.host(bad="a bad key").open(stage.observed)
    assert [process.returncode for process in stage.processes] == [1, 0]


async def test_a_worker_that_cannot_begin_again_is_tried_again(stage: Stage) -> None:
    stage.ways = ["works", "fails", "no process", "fails"]
    async with opened(stage, "a") as host:
        stage.processes[0].die()
        await until(lambda: stage.restarted == ["a"])
        assert stage.failed == ["a"]  # once
        assert (await host.worker()).restarts == 4


async def test_while_a_worker_is_down(stage: Stage) -> None:
    """Its brokers are listed, can be removed, and a start waits for the worker."""
    stage.ways = ["works", "no process"]
    times = with_changes(TIMES, up=1, restart=Backoff(first_ms=60_000, max_ms=60_000))
    host = stage.host(times)
    await host.open(stage.observed)
    for name in "ab":
        await host.start(setup(name))
    stage.processes[0].die()
    await until(lambda: len(stage.failed) == 2)
    await host.stop(identity("b"), hand_over=True)
    (left,) = await host.brokers()
    assert (left.canonical_name, left.state) == ("c_a_0", BrokerState.STARTING)
    assert "SIGSEGV" in left.reason
    with pytest.raises(BrokerRefused, match=r"worker 1 does not run \(starting c_d_0\): .*SIGSEGV"):
        await host.start(setup("d"))
    with pytest.raises(BrokerRefused, match="does not run"):
        await host.restart()
    assert list(await host.metrics()) == []
    worker = await host.worker()
    assert (worker.is_running, worker.pid, worker.restarts) == (False, 0, 1)
    await host.close()


async def test_a_start_while_it_is_started_again_takes_over(stage: Stage, tmp_path: Path) -> None:
    """An operator who adds a broker that just failed."""
    file = tmp_path / "a.conf"
    file.write_text("")
    async with opened(stage) as host:
        await host.start(setup("a", file))
        file.write_text("hang")
        stage.processes[0].die()
        await until(lambda: stage.calls[1:] == [["start a"]])
        file.write_text("")
        await host.start(setup("a", file))
        assert stage.calls[1] == ["start a", "gave up a", "start a"]
        assert len(await host.brokers()) == 1
        with pytest.raises(BrokerRefused, match=r"runs in worker 1 .* already"):
            await host.start(setup("a", file))
        file.write_text("hang")
        stage.processes[1].die()
        await until(lambda: stage.calls[2:] == [["start a"]])
        await host.stop(identity("a"), hand_over=True)
        assert stage.calls[2] == ["start a", "gave up a", "stop a hand over"]
        assert await host.brokers() == []


async def test_a_restart_on_request(stage: Stage, tmp_path: Path) -> None:
    """Hand-over, stop in order, a new process; nothing of that is a failure. A refusal is."""
    file = tmp_path / "b.conf"
    file.write_text("")
    async with opened(stage, "a") as host:
        await host.start(setup("b", file))
        file.write_text("refuse")
        await host.restart()
        assert stage.calls[0][2:] == ["leave", "close", "stop a", "stop b"]
        assert stage.calls[1] == ["start a", "start b"]
        assert stage.observed.failed == [(identity("b"), "b: the port is in use")]
        assert stage.restarted == []
        assert not stage.processes[0].was_killed
        worker = await host.worker()
        assert (worker.restarts, worker.reason) == (1, "it was restarted on request")


async def test_a_restart_without_a_new_process_stops_nothing(stage: Stage) -> None:
    stage.ways = ["works", "fails", "no process"]
    async with opened(stage, "a") as host:
        with pytest.raises(BrokerRefused, match="exited with code 1"):
            await host.restart()
        with pytest.raises(BrokerRefused, match="no process for the restart"):
            await host.restart()
        assert stage.calls == [["start a"]]
        assert [each.broker_name for each in await host.brokers()] == ["a"]


async def test_a_restart_of_a_worker_that_cannot_stop(stage: Stage) -> None:
    """It is killed; the new process has its brokers then."""
    stage.ways = ["sticks"]
    async with opened(stage, "a") as host:
        await host.restart()
        assert stage.processes[0].returncode is not None
        assert stage.calls[1] == ["start a"]
        assert stage.observed == Observed()


async def test_the_new_process_of_a_restart_dies_before_its_turn(stage: Stage) -> None:
    async with opened(stage, "a") as host:
        stage.processes[0].host.may_leave.clear()
        restarting = asyncio.create_task(host.restart())
        await stage.processes[0].host.is_leaving.wait()
        stage.processes[1].die()
        stage.processes[0].host.may_leave.set()
        await restarting
        assert stage.calls[2:] == [["start a"]]
        assert stage.observed == Observed()


async def test_a_worker_that_dies_before_its_restart_uses_the_new_process(stage: Stage) -> None:
    async with opened(stage, "a") as host:
        stage.processes[0].host.may_leave.clear()
        restarting = asyncio.create_task(host.restart())
        await stage.processes[0].host.is_leaving.wait()
        stage.processes[0].die()
        with pytest.raises(BrokerRefused, match="ended before its restart"):
            await restarting
        await until(lambda: stage.restarted == ["a"])
        assert (stage.failed, len(stage.processes)) == (["a"], 2)


async def test_a_close_during_a_restart(stage: Stage) -> None:
    host = stage.host()
    await host.open(stage.observed)
    await host.start(setup("a"))
    stage.processes[0].host.may_leave.clear()
    restarting = asyncio.create_task(host.restart())
    await stage.processes[0].host.is_leaving.wait()
    await host.close()
    with pytest.raises(BrokerRefused):
        await restarting
    assert [process.returncode is not None for process in stage.processes] == [True, True]


async def test_a_restart_that_is_given_up_in_time_stops_nothing(stage: Stage) -> None:
    async with opened(stage, "a") as host:
        stage.processes[0].host.may_leave.clear()
        restarting = asyncio.create_task(host.restart())
        await stage.processes[0].host.is_leaving.wait()
        restarting.cancel()
        await asyncio.wait([restarting])
        await host.start(setup("b"))
        assert [each.broker_name for each in await host.brokers()] == ["a", "b"]
        assert stage.processes[1].returncode is not None


async def test_what_a_host_says_on_its_own_goes_on(stage: Stage) -> None:
    async with opened(stage, "a") as host:
        observer = stage.processes[0].host.observer
        observer.broker_failed(identity("a"), "its disk is gone")
        await until(lambda: stage.failed == ["a"])
        observer.broker_restarted(identity("a"))
        await until(lambda: stage.restarted == ["a"])
        assert await host.brokers()


async def test_a_stop_that_failed_is_told(stage: Stage) -> None:
    stage.ways = ["sticks"]
    host = stage.host()
    await host.open(stage.observed)
    with pytest.raises(StopError, match=r"worker 1: .*could not stop c_a_0"):
        await host.close()
    assert stage.processes[0].returncode is not None


@pytest.mark.slow
async def test_a_close_in_the_middle_of_everything(stage: Stage) -> None:
    """No process is left, and no request hangs."""
    host = stage.host()
    await host.open(stage.observed)
    await host.start(setup("a"))
    starting = asyncio.create_task(host.start(setup("b", "hang")))
    await until(lambda: "start b" in stage.calls[0])
    await host.close()
    with pytest.raises(BrokerRefused):
        await starting
    assert stage.processes[0].returncode == 0
    assert stage.failed == []
    with pytest.raises(BrokerRefused, match="the container stops"):
        await host.start(setup("d"))


async def test_a_close_that_is_cancelled_leaves_no_process(stage: Stage) -> None:
    stage.ways = ["hangs"]
    host = stage.host(with_changes(TIMES, silent_pings=100_000))
    await host.open(stage.observed)
    closing = asyncio.create_task(host.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert stage.processes[0].was_killed


async def test_changed_settings_reach_this_process_and_the_next_ones(stage: Stage) -> None:
    """Before their brokers start; a process that is down gets them when it begins."""
    async with opened(stage, "a") as host:
        await host.change({"maxConnections": "7"})
        await host.restart()
        await host.change({"maxConnections": "9", "frameTimeoutMillis": "5"})
        with pytest.raises(BrokerRefused, match="not 13"):
            await host.change({"maxConnections": "13"})
        await host.change({"maxConnections": "8"})
        stage.processes[1].die()
        await until(lambda: "a" in stage.restarted[-1:])
    assert stage.calls[0][1] == "change maxConnections=7"
    assert stage.calls[1][:2] == ["change maxConnections=7", "start a"]
    assert stage.calls[2][:2] == ["change maxConnections=8 frameTimeoutMillis=5", "start a"]


async def test_a_change_while_the_worker_is_down_is_not_lost(stage: Stage) -> None:
    stage.ways = ["works", "no process"]
    async with opened(stage, "a") as host:
        stage.processes[0].die()
        await until(lambda: stage.failed == ["a"])
        with pytest.raises(BrokerRefused, match="worker 1 does not run"):
            await host.change({"maxConnections": "7"})
        await until(lambda: stage.restarted == ["a"])
    assert stage.calls[1][:2] == ["change maxConnections=7", "start a"]


async def test_a_change_during_a_restart_reaches_both_processes(stage: Stage) -> None:
    async with opened(stage, "a") as host:
        first = stage.processes[0].host
        first.may_leave.clear()
        restart = asyncio.create_task(host.restart())
        await first.is_leaving.wait()
        await host.change({"maxConnections": "7"})
        first.may_leave.set()
        await restart
    assert "change maxConnections=7" in stage.calls[0]
    assert stage.calls[1][:2] == ["change maxConnections=7", "start a"]


async def test_processes_that_hang_have_one_deadline(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are told at the same time, and killed at the same time; the one that does not hang ends well."""
    monkeypatch.setattr(bounded_stop, "CLOSE_S_MAX", 0.3)
    stage.ways = ["stays", "works", "stays"]
    hosts = [stage.host() for _ in stage.ways]
    for host in hosts:
        await host.open(stage.observed)
    failures = list[str]()
    with pytest.raises(StopError, match=r"process 0 .*process 2 "):
        await bounded_stop.close_hosts(hosts, failures)
    assert len(failures) == 2
    assert [process.was_killed for process in stage.processes] == [True, False, True]
    assert all(calls[-1] == "close" for calls in stage.calls)
