"""What happens to one broker of a container does not happen to the others: they serve throughout, and the
container says which broker it is, and why."""

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from broker.container import bounded_stop, container
from broker.container.host import InnerSetup
from broker.container.local_host import LocalHost
from broker.store import message_store
from keelmq.remoting.operation import CommandError, Failed, Ok
from keelmq.remoting.operations.broker import SEND_MESSAGE_V2, SendMessageRequestV2
from keelmq.remoting.operations.container import BrokerState
from keelmq.runtime.backoff import Backoff
from keelmq.runtime.stop_steps import StopError
from tests.support.client_parts import until
from tests.support.ports import free_port
from tests.support.reach_in import hang_in_stop, inner_broker
from tests.unit.broker.container.parts import broker_file, container_config
from tests.unit.broker.container.test_container_server import Asker, Starter, start

__all__ = ["start"]

SENDS = 20
HEADER = SendMessageRequestV2(a="g", b="T", e=0, g=1)


class Traffic:
    """One message after the other to one broker. Every one must be stored."""

    def __init__(self, asker: Asker, address: str) -> None:
        self._asker, self._address = asker, address
        self.stored = 0

    async def run(self) -> None:
        while True:
            await self._asker.send(self._address, b"x")
            self.stored += 1

    async def goes_on(self, messages: int = SENDS) -> None:
        wanted = self.stored + messages
        await until(lambda: self.stored >= wanted, "more messages are stored")


@contextlib.asynccontextmanager
async def traffic(asker: Asker, name: str = "c1_a_0") -> AsyncIterator[Traffic]:
    found = Traffic(asker, (await asker.brokers())[name].address)
    task = asyncio.create_task(found.run())
    try:
        await found.goes_on()
        yield found
        await found.goes_on()
    finally:
        if task.done():
            task.result()  # what the sender has seen says more
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def two(tmp_path: Path, start: Starter, **changes: object) -> Asker:
    return await start(
        container_config(tmp_path, broker_file(tmp_path, "a"), broker_file(tmp_path, "b", **changes))
    )


async def test_a_disk_fault_closes_one_gate(tmp_path: Path, start: Starter) -> None:
    asker = await two(tmp_path, start)
    await asker.ready("c1_b_0")
    async with traffic(asker):
        inner_broker(asker.server, "b").disk_fault.failed("sync of the log: I/O error")
        b = (await asker.brokers())["c1_b_0"]
        assert not b.is_ready and "I/O error" in b.reason
        outcome = await asker.client.call(b.address, SEND_MESSAGE_V2, HEADER, b"x")
        assert isinstance(outcome, Failed)
    assert (await asker.ready("c1_a_0")).reason == ""


async def test_a_full_disk_refuses_messages_of_one_broker(
    tmp_path: Path, start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    asker = await two(tmp_path, start)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(inner_broker(asker.server, "b").store.commit_log, "append", full)
    async with traffic(asker):
        address = (await asker.brokers())["c1_b_0"].address
        outcome = await asker.client.call(address, SEND_MESSAGE_V2, HEADER, b"x")
        assert isinstance(outcome, Failed), outcome


def garbage_metadata(store: Path) -> None:
    (store / "config").mkdir(parents=True)
    (store / "config" / "topics.json").write_bytes(b"\x00\xff garbage")


def hole_in_the_log(store: Path) -> None:
    (store / "commitlog").mkdir(parents=True)
    for first in (0, 3 * 65_536):
        (store / "commitlog" / f"{first:020d}").write_bytes(bytes(65_536))


def file_for_directory(store: Path) -> None:
    store.write_text("a file")


DAMAGES: list[tuple[Callable[[Path], None], str]] = [
    (garbage_metadata, "topics.json"),
    (hole_in_the_log, "commitlog"),
    (file_for_directory, "store-b"),
]


@pytest.mark.parametrize(("damage", "why"), DAMAGES, ids=[each.__name__ for each, _ in DAMAGES])
async def test_a_damaged_broker_is_quarantined_and_can_be_mended(
    tmp_path: Path, start: Starter, damage: Callable[[Path], None], why: str
) -> None:
    store = tmp_path / "store-b"
    damage(store)
    asker = await two(tmp_path, start)
    async with traffic(asker):
        async with asyncio.timeout(30):  # it may be tried again just now
            while (b := (await asker.brokers())["c1_b_0"]).state is not BrokerState.QUARANTINED:
                pass
        assert why in b.reason, b.reason
        again = await asker.add(tmp_path / "b.conf")
        assert isinstance(again, Failed) and why in again.remark
        store.rename(tmp_path / "damaged")
        assert isinstance(await asker.add(tmp_path / "b.conf"), Ok)
    await asker.ready("c1_b_0")


async def test_a_request_waits_for_the_retry_that_is_under_way(
    tmp_path: Path, start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_for_directory(tmp_path / "store-b")
    monkeypatch.setattr(container, "RETRY", Backoff(first_ms=1, max_ms=1))
    starts, begun, may_go_on = 0, asyncio.Event(), asyncio.Event()
    really_start = LocalHost.start

    async def start_slowly(host: LocalHost, setup: InnerSetup) -> None:
        nonlocal starts
        starts += setup.config_path.name == "b.conf"
        if starts == 2:
            begun.set()
            await may_go_on.wait()
        await really_start(host, setup)

    monkeypatch.setattr(LocalHost, "start", start_slowly)
    asker = await two(tmp_path, start)
    await begun.wait()
    adding = asyncio.create_task(asker.server.container.add(str(tmp_path / "b.conf")))
    await asyncio.sleep(0)  # the request is here, and the retry goes on
    may_go_on.set()
    with pytest.raises(CommandError, match="store-b: not a directory"):
        await adding


async def test_a_store_that_cannot_be_loaded_is_let_go(
    tmp_path: Path, start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    asker = await two(tmp_path, start)
    assert isinstance(await asker.remove("b"), Ok)
    with monkeypatch.context() as patch:

        def broken(*args: object, **_: object) -> None:
            raise RuntimeError("not foreseen")

        patch.setattr("broker.store.dispatching.RecordDispatcher.scan", broken)
        async with traffic(asker):
            outcome = await asker.add(tmp_path / "b.conf")
        assert isinstance(outcome, Failed) and "not foreseen" in outcome.remark
    opened = os.listdir("/proc/self/fd")
    paths = [os.path.realpath(f"/proc/self/fd/{each}") for each in opened]
    assert not [path for path in paths if "store-b" in path]
    assert isinstance(await asker.add(tmp_path / "b.conf"), Ok), "the same store, in the same process"


async def test_a_handler_that_raises(tmp_path: Path, start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    asker = await two(tmp_path, start)

    def broken(*_: object) -> None:
        raise RuntimeError("a bug of this handler")

    monkeypatch.setattr(inner_broker(asker.server, "b").store.commit_log, "append", broken)
    async with traffic(asker):
        address = (await asker.brokers())["c1_b_0"].address
        outcome = await asker.client.call(address, SEND_MESSAGE_V2, HEADER, b"x")
        assert isinstance(outcome, Failed)
        assert (await asker.brokers())["c1_b_0"].state is BrokerState.SERVING


@pytest.mark.parametrize(
    "frame",
    [
        b"\xff" * 64,
        b"\x7f\xff\xff\xff\x00\x00\x00\x10",
        b"\x00\x00\x00\x08\x00\x00\x00\x04{{{{",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["ones", "huge", "not JSON", "HTTP"],
)
async def test_garbage_on_one_port(tmp_path: Path, start: Starter, frame: bytes) -> None:
    asker = await two(tmp_path, start)
    host, port = (await asker.brokers())["c1_b_0"].address.split(":")
    async with traffic(asker):
        for _ in range(20):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(frame)
            writer.write_eof()
            async with asyncio.timeout(10):
                with contextlib.suppress(ConnectionError):
                    await reader.read()
            writer.close()
        await asker.send(f"{host}:{port}", b"still served")


async def test_metrics_of_the_others_stay(
    tmp_path: Path, start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [broker_file(tmp_path, name) for name in "ab"]
    asker = await start(container_config(tmp_path, *files, httpPort=free_port()))

    def broken() -> None:
        raise RuntimeError("no metrics")

    monkeypatch.setattr(inner_broker(asker.server, "b"), "metric_sources", broken)
    assert asker.server.http_address is not None
    host, port = asker.server.http_address
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as http:
        text = (await http.get("/metrics")).text
    roles = [line for line in text.splitlines() if line.startswith("rocketmq_broker_role{")]
    assert len(roles) == 1


@pytest.mark.slow
async def test_a_stop_that_hangs_is_bounded(
    tmp_path: Path, start: Starter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bounded_stop, "STOP_S_MAX", 0.3)
    asker = await two(tmp_path, start)
    hang_in_stop(inner_broker(asker.server, "b"), asyncio.Event().wait)
    async with traffic(asker):
        outcome = await asker.remove("b")
        assert isinstance(outcome, Failed) and "c1_b_0 was not stopped within 0.3 s" in outcome.remark
        b = (await asker.brokers())["c1_b_0"]
        assert b.state is BrokerState.QUARANTINED and "was not stopped" in b.reason
        assert isinstance(await asker.add(tmp_path / "b.conf"), Ok), "the later steps were done"


async def test_the_container_ends_though_brokers_hang(
    tmp_path: Path, start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Enough for the stop of the other broker on a busy machine.
    for name, value in (("STOP_S_MAX", 3.0), ("CANCELLED_S_MAX", 0.1)):
        monkeypatch.setattr(bounded_stop, name, value)
    asker = await two(tmp_path, start)
    free = asyncio.Event()

    async def deaf() -> None:
        while not free.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await free.wait()

    hang_in_stop(inner_broker(asker.server, "b"), deaf)
    try:
        async with asyncio.timeout(60):
            with pytest.raises(StopError, match="the brokers"):
                await start.end(asker)
        assert not (tmp_path / "store-a" / "abort").exists(), "a clean exit"
    finally:
        free.set()
        left = [each for each in asyncio.all_tasks() if each.get_name() == "stop of c1_b_0"]
        await asyncio.gather(*left, return_exceptions=True)  # closes its files


async def test_a_hand_over_that_fails_does_not_end_those_of_others(
    tmp_path: Path, start: Starter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asker = await two(tmp_path, start)
    failed, done = asyncio.Event(), list[str]()

    async def fails() -> None:
        failed.set()
        raise RuntimeError("no slave takes over")

    async def succeeds() -> None:
        await failed.wait()
        for _ in range(3):
            await asyncio.sleep(0)
        done.append("a")

    monkeypatch.setattr(inner_broker(asker.server, "b"), "leave", fails)
    monkeypatch.setattr(inner_broker(asker.server, "a"), "leave", succeeds)
    await asker.server.leave()
    assert done == ["a"]
    assert "c1_b_0: the hand-over failed: RuntimeError('no slave takes over')" in caplog.text
    await start.end(asker)
    assert not (tmp_path / "store-b" / "abort").exists(), "it is stopped all the same"


async def test_a_log_is_not_read_on_the_event_loop(
    tmp_path: Path, start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    asker = await two(tmp_path, start)
    await asker.send((await asker.brokers())["c1_b_0"].address, b"x")
    assert isinstance(await asker.remove("b"), Ok)
    readers = set[int]()
    scan_end = message_store.scan_end

    def seen(*args: Any, **options: Any) -> int:
        readers.add(threading.get_ident())
        return scan_end(*args, **options)

    monkeypatch.setattr(message_store, "scan_end", seen)
    assert isinstance(await asker.add(tmp_path / "b.conf"), Ok)
    assert readers and threading.get_ident() not in readers
