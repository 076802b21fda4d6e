"""Raft members as real processes: kill -9, a frozen leader, and every acknowledged event exactly once."""

import asyncio
import json
import signal
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from tests.unit.raft_group import free_ports

pytestmark = pytest.mark.cluster

WAIT_S = 20.0


class MemberProcess:
    """One process; `active` follows what it says on stdout."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings, self.active = settings, False
        self._waiting: deque[asyncio.Future[Any]] = deque()

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.cluster.raft_process", json.dumps(self.settings)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=2**24,
        )
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            said = json.loads(line)
            if "active" in said:
                self.active = said["active"]
            else:
                self._waiting.popleft().set_result(said["answer"])
        self.active = False
        while self._waiting:
            self._waiting.popleft().set_result("Gone")

    async def ask(self, **question: object) -> Any:
        """The answer, or "Gone" when the process ended before it gave one."""
        assert self.process.stdin is not None
        if self._reading.done():
            return "Gone"
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self.process.stdin.write(json.dumps(question).encode() + b"\n")
        return await future

    async def end(self, sig: signal.Signals) -> None:
        if self.process.returncode is None:
            self.process.send_signal(sig)
        await self.process.wait()
        await self._reading
        assert self.process.stdin is not None
        self.process.stdin.close()


class Processes:
    def __init__(self, root: Path, compaction_entries: int) -> None:
        names = [f"n{i}" for i in range(3)]
        members = {name: ("127.0.0.1", port) for name, port in zip(names, free_ports(3), strict=True)}
        common = {"members": members, "compaction_entries": compaction_entries}
        self.all = [
            MemberProcess({"self_id": name, "directory": str(root / name)} | common) for name in names
        ]

    async def __aenter__(self) -> "Processes":
        for each in self.all:
            await each.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for each in self.all:
            await each.end(signal.SIGKILL)

    async def active(self) -> MemberProcess:
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            for each in self.all:
                if each.active:
                    return each
            await asyncio.sleep(0.005)
        raise AssertionError("no active member")

    async def whole(self) -> None:
        """Every member is up and linked to both others: the next kill leaves a majority that is ready."""
        deadline = time.monotonic() + WAIT_S
        for each in self.all:
            while len((await each.ask(status=True))["connected"]) < 2:
                assert time.monotonic() < deadline, "a member did not come back"
                await asyncio.sleep(0.02)

    async def append(self, text: str) -> int:
        """Repeats with the same id until it is applied; the answer is the event's place."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            result = await (await self.active()).ask(append=text, id=text)
            if isinstance(result, int):
                return result
            await asyncio.sleep(0.01)
        raise AssertionError(f"{text} was never applied")


async def test_kill_9_of_the_leader_again_and_again(tmp_path: Path) -> None:
    async with Processes(tmp_path, compaction_entries=40) as group:
        places, gaps, stop = dict[str, int](), list[float](), asyncio.Event()

        async def client(name: str) -> None:
            count = 0
            while not stop.is_set():
                text = f"{name}-{count}"
                places[text] = await group.append(text)
                count += 1

        clients = [asyncio.create_task(client(name)) for name in "ab"]
        for turn in range(5):
            for step in range(20):
                await group.append(f"step-{turn}-{step}")
            await group.whole()
            leader = await group.active()
            await leader.end(signal.SIGKILL)
            killed = time.monotonic()
            await group.append(f"turn-{turn}")
            gaps.append(time.monotonic() - killed)
            await leader.start()
        stop.set()
        await asyncio.gather(*clients)
        last = await group.append("last")
        for each in group.all:
            deadline = time.monotonic() + WAIT_S
            while len(events := await each.ask(events=True)) < last:
                assert time.monotonic() < deadline, "a member did not catch up"
                await asyncio.sleep(0.05)
            assert len(events) == len(set(events)), "an event was applied twice"
            assert all(events[place - 1] == text for text, place in places.items())
    print(f"kill -9 to the first accepted append: {sorted(round(gap, 3) for gap in gaps)} s")
    assert min(gaps) < 1.0


async def test_a_frozen_leader_is_replaced_and_does_not_come_back(tmp_path: Path) -> None:
    async with Processes(tmp_path, compaction_entries=5_000) as group:
        await group.append("first")
        frozen = await group.active()
        frozen.process.send_signal(signal.SIGSTOP)
        frozen.active = False
        started = time.monotonic()
        assert await group.append("second") == 2
        assert time.monotonic() - started < 5.0
        frozen.process.send_signal(signal.SIGCONT)
        assert await frozen.ask(append="stale", id="stale") in ("NotActive", "Unknown")
        assert await group.append("third") == 3
