"""The end of a container: brokers that are starting, and brokers that hang, one or all of them."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.container import bounded_stop
from broker.store import message_store
from broker.store.dispatching import RecordDispatcher
from keelmq.remoting.operation import Failed, Ok
from keelmq.runtime.stop_steps import StopError
from tests.support.client_parts import until
from tests.support.reach_in import hang_in_stop, inner_broker
from tests.unit.broker.container.parts import broker_file, container_config
from tests.unit.broker.container.test_container_server import Asker, Starter, start

__all__ = ["start"]

NAMES = "abcd"


async def several(tmp_path: Path, start: Starter, names: str = NAMES) -> Asker:
    return await start(container_config(tmp_path, *(broker_file(tmp_path, name) for name in names)))


def open_paths(directory: Path) -> list[str]:
    """The open files of this process below a directory."""
    paths = [os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")]
    return [path for path in paths if path.startswith(f"{directory}/")]


class HeldStart:
    """The thread that opens a store waits in the middle, until go()."""

    def __init__(self, real: Callable[..., int]) -> None:
        self._real = real
        self._begun, self._may_go = threading.Event(), threading.Event()

    def __call__(self, *args: object, **options: object) -> int:
        self._begun.set()
        assert self._may_go.wait(60)
        return self._real(*args, **options)

    async def begun(self) -> None:
        await until(self._begun.is_set, "the store is being opened")

    def go(self) -> None:
        self._may_go.set()


@contextmanager
def held_start(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldStart]:
    with monkeypatch.context() as patch:
        held = HeldStart(message_store.scan_end)
        patch.setattr(message_store, "scan_end", held)
        try:
            yield held
        finally:
            held.go()


async def test_a_broker_that_is_being_added_is_stopped(
    tmp_path: Path, start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    asker = await several(tmp_path, start, "a")
    with held_start(monkeypatch) as held:
        adding = asyncio.create_task(asker.server.container.add(str(broker_file(tmp_path, "b"))))
        await held.begun()
        closing = asyncio.create_task(start.end(asker))
        await until(lambda: not asker.server.health().ready, "the container closes")
        await asyncio.sleep(0)
        assert not closing.done(), "it waits for the thread, which has the store open"
        held.go()
        async with asyncio.timeout(30):
            await closing
            (outcome,) = await asyncio.gather(adding, return_exceptions=True)
    assert "the container stops" in str(getattr(outcome, "remark", outcome)), outcome
    assert not open_paths(tmp_path / "store-b")
    assert not [each.get_name() for each in asyncio.all_tasks() if "b" in each.get_name().split("_")]


async def test_the_answer_to_who_adds_a_broker_when_the_container_closes(
    tmp_path: Path, start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    asker = await several(tmp_path, start, "a")
    with held_start(monkeypatch) as held:
        adding = asyncio.create_task(asker.add(broker_file(tmp_path, "b")))
        await held.begun()
        closing = asyncio.create_task(asker.server.__aexit__(None, None, None))
        await until(lambda: not asker.server.health().ready, "the container closes")
        late = asyncio.create_task(asker.add(broker_file(tmp_path, "c")))
        outcome = await late
        assert isinstance(outcome, Failed) and "the container stops" in outcome.remark
        assert isinstance(await asker.remove("a"), Failed)
        held.go()
        outcome = await adding
        assert isinstance(outcome, Failed) and "the container stops" in outcome.remark
        await closing
    start.open.remove(asker)
    await asker.client.close()
    again = await several(tmp_path, start, "ab")
    assert {"c1_a_0", "c1_b_0"} == set(await again.brokers()), "a was not removed, and b was not added twice"


async def test_a_long_recovery_is_given_up(
    tmp_path: Path, start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would go on for minutes; the next start does it again."""
    asker = await several(tmp_path, start, "ab")
    for _ in range(3):
        await asker.send((await asker.brokers())["c1_b_0"].address, b"x")
    assert isinstance(await asker.remove("b"), Ok)
    begun = threading.Event()
    scan = RecordDispatcher.scan

    def endless(dispatcher: RecordDispatcher, records_max: int) -> bool:
        begun.set()
        scan(dispatcher, records_max)
        return True

    monkeypatch.setattr(RecordDispatcher, "scan", endless)
    adding = asyncio.create_task(asker.server.container.add(str(tmp_path / "b.conf")))
    await until(begun.is_set, "the log is being read")
    async with asyncio.timeout(30):
        await start.end(asker)
        (outcome,) = await asyncio.gather(adding, return_exceptions=True)
    assert "the container stops" in str(getattr(outcome, "remark", outcome)), outcome
    assert not open_paths(tmp_path / "store-b")
    monkeypatch.setattr(RecordDispatcher, "scan", scan)
    again = await several(tmp_path, start, "ab")
    assert set(await again.brokers()) == {"c1_a_0"}, "b was removed"
    assert isinstance(await again.add(tmp_path / "b.conf"), Ok)


async def test_brokers_stop_at_the_same_time(tmp_path: Path, start: Starter) -> None:
    """Each waits for all others, so stops one after the other would never end."""
    asker = await several(tmp_path, start)
    all_stop = asyncio.Barrier(len(NAMES))
    for name in NAMES:
        hang_in_stop(inner_broker(asker.server, name), all_stop.wait)
    async with asyncio.timeout(15):
        await start.end(asker)


async def test_brokers_that_hang_have_one_deadline_and_are_named(
    tmp_path: Path, start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("STOP_S_MAX", 0.3), ("CANCELLED_S_MAX", 0.1)):
        monkeypatch.setattr(bounded_stop, name, value)
    asker = await several(tmp_path, start)
    hanging, given_up = list[str](), list[int]()

    def hang(name: str) -> Callable[[], object]:
        async def wait() -> None:
            hanging.append(name)
            try:
                await asyncio.Event().wait()
            finally:
                given_up.append(len(hanging))

        return wait

    for name in NAMES[:3]:
        hang_in_stop(inner_broker(asker.server, name), hang(name))  # type: ignore[arg-type]
    with pytest.raises(StopError) as error:
        await start.end(asker)
    assert all(f"c1_{name}_0" in str(error.value) for name in NAMES[:3])
    assert "c1_d_0" not in str(error.value)
    assert given_up[0] == 3, "none was given up before all had begun to stop"
    assert not (tmp_path / "store-d" / "abort").exists(), "a clean exit"


async def test_hung_threads_of_brokers_leave_threads_for_the_others(
    tmp_path: Path, start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers of a dead disk hang in threads, more than Python has for a loop by default."""
    monkeypatch.setattr(bounded_stop, "STOP_S_MAX", 5.0)
    names = "abcdefghijklmnop"[: min(16, (os.cpu_count() or 1) + 5)]
    asker = await several(tmp_path, start, names)
    free = threading.Event()
    for name in names[:-1]:
        hang_in_stop(inner_broker(asker.server, name), lambda: asyncio.to_thread(free.wait, 60))
    closing = asyncio.create_task(start.end(asker))
    try:
        last = tmp_path / f"store-{names[-1]}" / "abort"
        await until(lambda: not last.exists(), "the one that does not hang is stopped")
        assert not closing.done()
    finally:
        free.set()
        await closing
