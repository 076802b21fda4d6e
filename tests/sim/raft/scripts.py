"""Faults in a fixed order, for what dice seldom bring about."""

import asyncio
from collections.abc import Callable

from namesrv.plugins.controller.raft.api import Committed
from tests.sim.raft.cluster import Script, World
from tests.sim.raft.process import SimProcess

__all__ = [
    "Script",
    "divergent_tail",
    "lost_disk",
    "lost_disk_and_a_stale_leader",
    "members_change",
    "paused_with_old_answers",
    "voter_restarts",
]


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - virtual time
        await asyncio.sleep(0.0005)


def active_one(world: World, *names: str) -> SimProcess | None:
    processes = [world.processes[name] for name in names or world.processes]
    return next((each for each in processes if each.alive and each.replicator.is_active), None)


async def active(world: World, *names: str) -> SimProcess:
    await until(lambda: active_one(world, *names))
    found = active_one(world, *names)
    assert found is not None
    return found


async def joined(world: World) -> None:
    members = world.processes.values()
    await until(lambda: all(each.alive and each.member.joining.is_member for each in members))


async def divergent_tail(world: World) -> None:
    """An isolated leader keeps entries that nobody has, while the others write more than fits one message."""
    for _ in range(3):
        await joined(world)
        leader = (await active(world)).name
        others = sorted(world.processes.keys() - {leader})
        world.checker.trouble(world.loop.time(), world.loop.time() + 6.0)
        for other in others:
            world.network.cut(leader, other)
        await active(world, *others)
        await asyncio.sleep(1.5)
        world.network.heal()
        await asyncio.sleep(1.5)


async def voter_restarts(world: World) -> None:
    """A voter restarts before it has heard of the leader that it elected, and is asked for the same term by
    the old leader, who knows nothing of the election."""
    for _ in range(3):
        await joined(world)
        old = (await active(world)).name
        others = sorted(world.processes.keys() - {old})
        world.checker.trouble(world.loop.time(), world.loop.time() + 6.0)
        for other in others:
            world.network.reset(old, other)
            world.network.cut(old, other)
        await until(lambda others=others: any(world.processes[name].core.leads for name in others))
        voter, new = sorted(others, key=lambda name: bool(world.processes[name].core.leads))
        world.network.cut(new, voter, both=False)
        world.stop(voter, power=False, revive=False)
        world.network.heal()
        for other in (old, voter):
            world.network.cut(new, other)
        world.revive(voter)
        await asyncio.sleep(2.0)
        world.network.heal()
        await asyncio.sleep(1.5)


async def members_change(world: World) -> None:
    """Members come, go and hand over, in the middle of everything else that can happen."""
    end = world.loop.time() + 11.0
    faults = world.loop.create_task(world.nemesis(end - 1.0))
    await joined(world)
    while world.loop.time() < end:
        await asyncio.sleep(world.random.uniform(0.1, 0.5))
        leader = active_one(world)
        if leader is None:
            continue
        members = sorted(leader.replicator.status()["members"])
        others = [name for name in members if name != leader.name]
        if len(members) < 4 and world.random.random() < 0.5:
            await _add_one(world, leader)
        elif len(members) > 3 or (len(members) == 3 and world.random.random() < 0.4):
            await _remove_one(world, leader, world.random.choice(others))
        else:
            await world.ask(leader, leader.replicator.transfer_leadership(world.random.choice(others)))
    await faults
    _addresses_agree(world)


def _addresses_agree(world: World) -> None:
    """What clients are told of the newcomers is what was asked for, the same at all that have the change."""
    told: dict[int, dict[str, tuple[str, int]]] = {}
    for name in sorted(world.processes):
        process = world.processes[name]
        if not process.alive or not 0 < process.replicator.member_list.index <= process.core.commit_index:
            continue
        added, members = process.replicator.added, process.replicator.member_list.members
        newcomers = {each for each in members if int(each[1:]) >= world.conditions.members}
        assert newcomers <= added.keys() <= members.keys(), (name, added, members)
        assert all(address == (each, 2) for each, address in added.items()), (name, added)
        assert told.setdefault(process.replicator.member_list.index, added) == added, name


async def _add_one(world: World, leader: SimProcess) -> None:
    name = next(f"n{number}" for number in range(9) if f"n{number}" not in world.processes)
    world.note(f"add {name}")
    world.join(name)
    for _ in range(20):
        outcome = await world.ask(leader, leader.replicator.add_member(name, (name, 1), (name, 2)))
        if isinstance(outcome, Committed):
            world.note(f"{name} is a member")
            return
        await asyncio.sleep(0.3)
        leader = await active(world)


async def _remove_one(world: World, leader: SimProcess, name: str) -> None:
    world.note(f"remove {name}")
    for _ in range(20):
        outcome = await world.ask(leader, leader.replicator.remove_member(name))
        if isinstance(outcome, Committed):
            world.note(f"{name} is no member")
            world.leave(name)
            return
        await asyncio.sleep(0.3)
        leader = await active(world)
        if leader.name == name:
            return


async def lost_disk(world: World) -> None:
    """What leader and one follower have acknowledged is unknown to the third member; the follower loses its
    disk, the leader dies: the two that are left must not elect anybody."""
    for _ in range(3):
        await joined(world)
        leader = (await active(world)).name
        holder, behind = sorted(world.processes.keys() - {leader})
        world.checker.trouble(world.loop.time(), world.loop.time() + 6.0)
        world.network.cut(leader, behind)
        world.network.cut(holder, behind)
        await asyncio.sleep(0.6)
        world.stop(holder, power=True, revive=False)
        world.disk_of[holder].wipe()
        world.stop(leader, power=False, revive=False)
        world.network.heal()
        world.revive(holder)
        await asyncio.sleep(2.0)
        world.revive(leader)
        await asyncio.sleep(1.0)


async def paused_with_old_answers(world: World) -> None:
    """A leader is paused with the answers to a check in its sockets. The others elect another one, which
    commits; then the paused one goes on, and a read begins there before it learns of the election."""
    for _ in range(3):
        await joined(world)
        old = await active(world)
        others = sorted(world.processes.keys() - {old.name})
        world.checker.trouble(world.loop.time(), world.loop.time() + 6.0)
        await world.read(old)  # the first one finds out who answers checks
        asked = world.loop.create_task(world.read(old))
        await until(lambda old=old, asked=asked: old.member.read_index.waiting or asked.done())
        old.paused = True
        await asyncio.sleep(0.1)
        for name in others:
            world.network.reset(old.name, name)
            world.network.cut(old.name, name)
        new = await active(world, *others)
        await world.append(new, f"new-{world.loop.time()}")
        asked_again = world.loop.create_task(world.read(old))
        await asyncio.sleep(0.001)
        old.resume()
        await asyncio.wait({asked, asked_again})
        world.network.heal()
        await asyncio.sleep(1.5)


async def lost_disk_and_a_stale_leader(world: World) -> None:
    """The follower that elected the new leader loses its disk and meets the old one, who does not know that
    it is deposed: what they agree on must not count."""
    for _ in range(3):
        await joined(world)
        old = await active(world)
        holder, new = sorted(world.processes.keys() - {old.name})
        world.checker.trouble(world.loop.time(), world.loop.time() + 6.0)
        for name in (holder, new):  # broken links: the others elect at once, before the old leader gives up
            world.network.reset(old.name, name)
            world.network.cut(old.name, name)
        new = (await active(world, holder, new)).name
        (holder,) = world.processes.keys() - {old.name, new}
        await asyncio.sleep(0.1)
        world.stop(holder, power=True, revive=False)
        world.disk_of[holder].wipe()
        world.network.heal()
        world.network.cut(old.name, new)
        world.network.cut(holder, new)
        world.revive(holder)
        await asyncio.sleep(1.5)
        world.network.heal()
        await asyncio.sleep(1.5)
