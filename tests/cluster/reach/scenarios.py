"""What happens to the pods of a cluster under traffic. Each scenario ends when all pods are ready again."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from cli.lab.cluster import Program
from tests.cluster.reach.pods import Pods

SETTLED_S: Final = 35.0
"""How long a master is master before its zone is cut off: all clients have read the route since. One of
RocketMQ's that has an older route sends to the old master and to one alias, and has no time for a third
attempt."""


async def upgrade(pods: Pods) -> None:
    """A rolling update of each kind, as a StatefulSet makes it: from the last pod to the first one, the next
    one when the last one is ready."""
    for kind in pods.kinds:
        for program in reversed(kind):
            await replace(pods, program)


async def replace(pods: Pods, program: Program, zone: str = "") -> None:
    """SIGTERM, then a new pod with another address; returns when it is ready."""
    took_s = await pods.stop(program)
    await pods.start(program, zone)
    await pods.until_ready([program], "again")
    print(f"  {program.name} took {took_s:.1f} s to stop", flush=True)


async def drain(pods: Pods) -> None:
    """The node of the master, then those of the others: its pods are evicted one after the other and start on
    the empty node. A broker is in one zone alone, so the next node is drained when its pods are ready."""
    first = pods.zones[(await pods.master()).name]
    occupied = [first, *(each for each in sorted(set(pods.zones.values())) if each != first)]
    for zone in occupied:
        empty = pods.empty_zone()
        for program in pods.in_zone(zone):
            await replace(pods, program, empty)


async def lose_zone(pods: Pods) -> None:
    """kill -9 of every process in the zone of the master and the leading controller. They stay dead for
    away_s, and then start on another node, with other addresses."""
    zone = await gather_leaders(pods)
    lost = pods.in_zone(zone)
    await pods.kill(lost)
    await asyncio.sleep(pods.away_s)
    empty = pods.empty_zone()
    for program in lost:
        await pods.remove(program)
        await pods.start(program, empty)


async def cut_zone(pods: Pods) -> None:
    """The same zone's link is cut: no connection is closed, and inside of it all programs run on. It comes
    back as it was."""
    await cut(pods, await gather_leaders(pods))


async def cut_other_zone(pods: Pods) -> None:
    """The zone of the leading controller and a slave: the master must remove the slave from the SyncStateSet,
    and the controller that it would ask is lost as well."""
    leading = await gather_leaders(pods)
    await pods.make_master(next(each for each in pods.cluster.brokers if pods.zones[each.name] != leading))
    await cut(pods, leading)


async def cut(pods: Pods, zone: str) -> None:
    """Cuts the zone off for away_s."""
    await asyncio.sleep(SETTLED_S)
    pods.network.cut(zone)
    await asyncio.sleep(pods.away_s)
    pods.network.heal(zone)


async def gather_leaders(pods: Pods) -> str:
    """Makes the broker beside the leading controller master. Returns their zone."""

    async def led() -> str | None:
        return (await pods.picture()).controller_leader or None

    await pods.all_ready("before a zone is lost")
    leader = await pods.cluster.until("a controller leads", led, timeout_s=30.0)
    zone = pods.zones[leader]
    await pods.make_master(next(each for each in pods.in_zone(zone) if each in pods.cluster.brokers))
    return zone


async def readdress(pods: Pods) -> None:
    """Every pod restarts with another address in turn, regardless of its kind: a node at a time."""
    for zone in sorted(set(pods.zones.values())):
        for program in pods.in_zone(zone):
            await replace(pods, program)


SCENARIOS: Final[dict[str, Callable[[Pods], Awaitable[None]]]] = {
    "rolling upgrade": upgrade,
    "node drain": drain,
    "zone killed": lose_zone,
    "zone cut off": cut_zone,
    "slave zone cut off": cut_other_zone,
    "new addresses": readdress,
}
