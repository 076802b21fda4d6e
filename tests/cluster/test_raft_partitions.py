"""Real processes on a network that is cut: each member in a namespace of its own.

The simulator cuts worse and more often (tests/sim/raft); here kernels, sockets and clocks are real.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.cluster import netns
from tests.cluster.raft_members import WAIT_S, MemberProcess, Processes

REASON = netns.why_not()
pytestmark = [pytest.mark.cluster, pytest.mark.skipif(REASON is not None, reason=REASON or "")]


@pytest.fixture
def network() -> Iterator[netns.Network]:
    with netns.Network(3) as network:
        yield network


@asynccontextmanager
async def members(network: netns.Network, root: Path, compaction: int = 5_000) -> AsyncIterator[Processes]:
    addresses = {f"n{number}": (network.address(number), 17000) for number in range(3)}
    each = {f"n{number}": {"prefix": network.prefix(number)} for number in range(3)}
    async with Processes(root, compaction, addresses, each) as group:
        await group.append("first")
        await group.whole()
        yield group


def number_of(member: MemberProcess) -> int:
    return int(member.settings["self_id"][1:])


async def term_of(member: MemberProcess) -> int:
    return int((await member.ask(status=True))["term"])


async def until_active(group: Processes, but: MemberProcess) -> float:
    started = time.monotonic()
    await group.active(but)
    return time.monotonic() - started


async def test_an_isolated_leader_promises_nothing(network: netns.Network, tmp_path: Path) -> None:
    """Its proposals are not confirmed, its reads not fresh; and after the healing, although the others have
    compacted their logs past it, nothing of what it had in its log has happened (H1, the worst fault)."""
    async with members(network, tmp_path, compaction=15) as group:
        old = await group.active()
        network.cut(number_of(old))
        pending = [asyncio.create_task(old.ask(append=f"lost-{n}")) for n in range(5)]
        reading = asyncio.create_task(old.ask(barrier=True))
        assert await until_active(group, old) < 5.0
        for count in range(40):
            await group.append(f"kept-{count}", but=old)
        assert set(await asyncio.gather(*pending)) <= {"Unknown", "NotActive"}
        assert await reading in ("Unknown", "NotActive")
        new = await group.active(old)
        term = await term_of(new)
        network.heal()
        events = await group.same_everywhere(41)
        assert [event for event in events if event.startswith("lost")] == []
        assert await term_of(new) == term, "its return elects nobody"
        assert (await group.active()) is new


@pytest.mark.long
async def test_a_cut_between_leader_and_one_follower_changes_nothing(
    network: netns.Network, tmp_path: Path
) -> None:
    async with members(network, tmp_path) as group:
        leader = await group.active()
        term = await term_of(leader)
        follower = next(each for each in group.all if each is not leader)
        network.cut_pair(number_of(leader), number_of(follower))
        ends, count, slowest = time.monotonic() + 8.0, 0, 0.0
        while time.monotonic() < ends:
            started = time.monotonic()
            await group.append(f"{count}")
            slowest, count = max(slowest, time.monotonic() - started), count + 1
        assert (await group.active(), await term_of(leader)) == (leader, term)
        assert slowest < 2.0
        network.heal()
        await group.same_everywhere(count + 1)


@pytest.mark.long
async def test_an_isolated_follower_comes_back_quietly(network: netns.Network, tmp_path: Path) -> None:
    async with members(network, tmp_path) as group:
        leader = await group.active()
        term = await term_of(leader)
        follower = next(each for each in group.all if each is not leader)
        network.cut(number_of(follower))
        ends = time.monotonic() + 6.0
        while time.monotonic() < ends:
            await group.append(f"{time.monotonic()}")
        network.heal()
        await group.whole()
        last = await group.append("last")
        await group.same_everywhere(last)
        assert (await group.active(), await term_of(leader)) == (leader, term)


@pytest.mark.long
async def test_a_leader_that_nobody_hears_is_replaced(network: netns.Network, tmp_path: Path) -> None:
    """It hears everything, so only the silence of the others' acknowledgements tells it."""
    async with members(network, tmp_path) as group:
        old = await group.active()
        network.mute(number_of(old))
        assert await until_active(group, old) < 5.0
        assert await old.ask(append="lost") in ("Unknown", "NotActive")
        last = await group.append("kept", but=old)
        network.heal()
        assert "lost" not in await group.same_everywhere(last)


@pytest.mark.long
@pytest.mark.timeout(180)
async def test_twenty_seconds_of_cuts(network: netns.Network, tmp_path: Path) -> None:
    """Every acknowledged event is there, once, on all members."""
    async with members(network, tmp_path, compaction=40) as group:
        dice, places, stop = random.Random(7), dict[str, int](), asyncio.Event()
        clients = [asyncio.create_task(group.append_until(stop, name, places)) for name in "ab"]
        ends = time.monotonic() + WAIT_S
        while time.monotonic() < ends:
            one, other = dice.sample(range(3), 2)
            match dice.choice(("cut", "pair", "mute")):
                case "cut":
                    network.cut(one)
                case "pair":
                    network.cut_pair(one, other)
                case _:
                    network.mute(one)
            await asyncio.sleep(dice.uniform(0.3, 2.0))
            network.heal()
            await asyncio.sleep(dice.uniform(0.3, 1.5))
        stop.set()
        await asyncio.gather(*clients)
        events = await group.same_everywhere(await group.append("last"))
        assert all(events[place - 1] == text for text, place in places.items())
        assert len(places) > 50
