"""Raft members as processes, under clients, killed and frozen: python -m tests.cluster.raft_chaos --help

chaos: every acknowledged event is there once, in its place, on all members; no fresh read misses one.
failover: how long the group is without a leader after each kill -9, or SIGSTOP, of the one that leads.
"""

import argparse
import asyncio
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster.raft_members import MemberProcess, Processes
from tests.support.raft_certificates import Authority

CLIENTS = 4
PAUSE_S = (0.3, 2.0)  # between two faults
FROZEN_S = (0.3, 2.5)
PATIENCE_S = 1.0  # of a client that asked a member which may be frozen
APPEND_S = 30.0
FAULTS = ("kill the leader", "kill the leader", "kill the leader", "kill one", "freeze one", "kill all")


def own_settings(root: Path, *, certificates: bool) -> dict[str, dict[str, Any]]:
    """For each member: with certificates its files, else nothing (they have the tests' key)."""
    if not certificates:
        return {}
    ca = Authority(root / "ca")
    made = {name: ca.issue(name) for name in ("n0", "n1", "n2")}
    return {
        name: {"tls": [str(files.certificate), str(files.key), str(files.trust)]}
        for name, files in made.items()
    }


@dataclass
class Seen:
    """What clients saw. Times in s."""

    places: dict[str, int] = field(default_factory=dict)
    appends: list[float] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    fresh_reads: int = 0
    stale_reads: list[str] = field(default_factory=list)

    def line(self) -> str:
        times = sorted(self.appends)
        return (
            f"{len(self.places)} events acknowledged, {self.fresh_reads} fresh reads, "
            f"{len(self.stale_reads)} of them stale; appends p50 {statistics.median(times) * 1e3:.1f} ms, "
            f"p99 {times[int(len(times) * 0.99)] * 1e3:.0f} ms, longest {times[-1] * 1e3:.0f} ms; "
            + ", ".join(f"{count} x {name}" for name, count in sorted(self.faults.items()))
        )


class Chaos:
    def __init__(self, group: Processes, dice: random.Random) -> None:
        self.group, self.dice, self.seen = group, dice, Seen()
        self._stop, self._late = False, set[asyncio.Task[Any]]()

    async def run(self, seconds: float) -> Seen:
        """Raises AssertionError: a promise was broken."""
        clients = [asyncio.create_task(self._client(f"c{number}")) for number in range(CLIENTS)]
        reader = asyncio.create_task(self._reader())
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            await asyncio.sleep(self.dice.uniform(*PAUSE_S))
            await self._fault(self.dice.choice(FAULTS))
        self._stop = True
        await asyncio.gather(*clients, reader)
        await asyncio.gather(*self._late)
        await self._judge()
        return self.seen

    async def _client(self, name: str) -> None:
        """Repeats until it is applied, as a handler's client does."""
        count = 0
        while not self._stop:
            text, began = f"{name}-{count}", time.monotonic()
            self.seen.places[text] = await self._append(text)
            self.seen.appends.append(time.monotonic() - began)
            count += 1

    async def _append(self, text: str) -> int:
        deadline = time.monotonic() + APPEND_S
        while time.monotonic() < deadline:
            for member in [each for each in self.group.all if each.active]:
                found = await self._ask(member, append=text)
                if isinstance(found, int):
                    return found
            await asyncio.sleep(0.01)
        raise AssertionError(f"{text} was not applied within {APPEND_S:.0f} s")

    async def _ask(self, member: MemberProcess, **question: object) -> object:
        """None: no answer yet; it may come, and then nobody waits for it."""
        asked = asyncio.create_task(member.ask(**question))
        self._late.add(asked)
        asked.add_done_callback(self._late.discard)
        await asyncio.wait([asked], timeout=PATIENCE_S)
        return asked.result() if asked.done() else None

    async def _reader(self) -> None:
        while not self._stop:
            member = self.dice.choice(self.group.all)  # also one that only believes that it leads
            floor = max(self.seen.places.values(), default=0)
            found = await self._ask(member, read=True)
            if isinstance(found, int):
                self.seen.fresh_reads += 1
                if found < floor:
                    self.seen.stale_reads.append(f"{found} events, {floor} were acknowledged")
            await asyncio.sleep(0.002)

    async def _fault(self, name: str) -> None:
        leading = [each for each in self.group.all if each.active]
        victim = leading[0] if leading and "leader" in name else self.dice.choice(self.group.all)
        self.seen.faults[name] += 1
        if name == "freeze one":
            victim.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(self.dice.uniform(*FROZEN_S))
            victim.process.send_signal(signal.SIGCONT)
            return
        victims = self.group.all if name == "kill all" else [victim]
        await asyncio.gather(*(each.end(signal.SIGKILL) for each in victims))
        for each in victims:
            await each.start()

    async def _judge(self) -> None:
        events = await self.group.same_everywhere(await self.group.append("last"))
        wrong = [text for text, place in self.seen.places.items() if events[place - 1] != text]
        assert wrong == [], f"acknowledged, and not where it was said to be: {wrong[:5]}"
        assert self.seen.stale_reads == [], f"fresh reads that were not: {self.seen.stale_reads[:5]}"


async def fail_overs(group: Processes, count: int, *, idle_s: float, freeze: bool) -> list[float]:
    """Seconds from each signal to the first accepted append at another member."""
    gaps, kind = list[float](), "freeze" if freeze else "kill"
    for number in range(count):
        await group.append(f"before-{kind}-{number}")
        await group.whole()
        await asyncio.sleep(
            idle_s
        )  # the first vote request after a quiet time is the one that gets lost (H11)
        leader = await group.active()
        gaps.append(await _fail_over(group, leader, f"after-{kind}-{number}", freeze=freeze))
    return gaps


async def _fail_over(group: Processes, leader: MemberProcess, text: str, *, freeze: bool) -> float:
    began = time.monotonic()
    if not freeze:
        await leader.end(signal.SIGKILL)
        await group.append(text)
        gap = time.monotonic() - began
        await leader.start()
        return gap
    leader.process.send_signal(signal.SIGSTOP)
    leader.active = False
    await group.append(text, but=leader)
    gap = time.monotonic() - began
    reading = asyncio.create_task(leader.ask(read=True))
    leader.process.send_signal(signal.SIGCONT)
    assert not isinstance(await reading, int), "the old leader answers a fresh read"
    return gap


async def main(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        each = own_settings(root, certificates=arguments.certificates)
        async with Processes(root, compaction_entries=200, each=each) as group:
            await group.append("first")
            if arguments.what == "chaos":
                seed = (
                    arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(10**6)
                )
                print(f"seed {seed}, {arguments.seconds:.0f} s", flush=True)
                print((await Chaos(group, random.Random(seed)).run(arguments.seconds)).line())
                return
            for freeze in (False, True):
                gaps = await fail_overs(group, arguments.count, idle_s=arguments.idle, freeze=freeze)
                print(
                    f"{'SIGSTOP' if freeze else 'kill -9'} of the leader, {len(gaps)} times, idle for "
                    f"{arguments.idle:.0f} s before: median {statistics.median(gaps) * 1e3:.0f} ms, "
                    f"longest {max(gaps) * 1e3:.0f} ms",
                    flush=True,
                )


def arguments_of(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.raft_chaos")
    parser.add_argument("what", choices=["chaos", "failover"])
    parser.add_argument("--seconds", type=float, default=60.0, help="of chaos")
    parser.add_argument("--seed", type=int, help="of chaos; else it is drawn and told")
    parser.add_argument("--count", type=int, default=20, help="fail-overs of each kind")
    parser.add_argument("--idle", type=float, default=10.0, help="s of silence before each fail-over")
    parser.add_argument("--certificates", action="store_true", help="mutual TLS instead of the key")
    return parser.parse_args(words)


if __name__ == "__main__":
    asyncio.run(main(arguments_of(sys.argv[1:])))
