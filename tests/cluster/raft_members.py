"""Raft members as real processes, for tests that break them: killed, frozen, cut off, without disk space."""

import asyncio
import json
import signal
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from tests.support.raft_group import free_ports

WAIT_S = 20.0


class MemberProcess:
    """One process; `active` follows what it says on stdout."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings, self.active = settings, False
        self._waiting: deque[asyncio.Future[Any]] = deque()

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *self.settings.get(
                "prefix", ()
            ),  # a program that runs the rest elsewhere: ip netns exec, unshare
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
    """`members`: addresses, else three on loopback. `each`: more settings for one of them."""

    def __init__(
        self,
        root: Path,
        compaction_entries: int,
        members: dict[str, tuple[str, int]] | None = None,
        each: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        if members is None:
            members = {f"n{i}": ("127.0.0.1", port) for i, port in enumerate(free_ports(3))}
        common = {"members": members, "compaction_entries": compaction_entries}
        self.all = [
            MemberProcess(
                {"self_id": name, "directory": str(root / name)} | common | (each or {}).get(name, {})
            )
            for name in members
        ]

    async def __aenter__(self) -> "Processes":
        for each in self.all:
            await each.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for each in self.all:
            await each.end(signal.SIGKILL)

    async def active(self, but: MemberProcess | None = None) -> MemberProcess:
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            for each in self.all:
                if each.active and each is not but:
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

    async def append_until(self, stop: asyncio.Event, name: str, places: dict[str, int]) -> None:
        """A client: appends one text after the other. places: text -> index."""
        count = 0
        while not stop.is_set():
            text = f"{name}-{count}"
            places[text] = await self.append(text)
            count += 1

    async def append(self, text: str, but: MemberProcess | None = None) -> int:
        """Repeats with the same id until it is applied; the answer is the event's place."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            result = await (await self.active(but)).ask(append=text)
            if isinstance(result, int):
                return result
            await asyncio.sleep(0.01)
        raise AssertionError(f"{text} was never applied")

    async def same_everywhere(self, last: int) -> list[str]:
        """Waits until all have `last` events; every event once, in one order. The events."""
        first: list[str] | None = None
        for each in self.all:
            deadline = time.monotonic() + WAIT_S
            while len(events := await each.ask(events=True)) < last:
                assert time.monotonic() < deadline, "a member did not catch up"
                await asyncio.sleep(0.05)
            assert len(events) == len(set(events)), "an event was applied twice"
            assert first is None or events[:last] == first[:last]
            first = first or events
        return first or []
