"""`keelmq bench failover --load full --features`: what else a new master serves, and what replicas feel.

In the run of failover_full.py, with kills at 2,000 messages a second and at full load in turns, timers, half
messages and popped messages are under way all the time (feature_probes.py). From the kill:

- timer: until a consumer has a timer message that the new master delivered;
- commit: until the new master has answered a commit of a half message that was stored before the kill;
- check: until a consumer has a message that is committed because the new master checked its producer;
- ack: until the new master has answered an acknowledgement of a message that was popped before the kill;
- revive: until a message that was popped before comes again from the new master.

Nothing may be lost: whatever was acknowledged to a producer arrives. Without a fault:

- slave: the age of the first message in each response of a slave to a consumer that waits there for the next
  one, while full load runs;
- neighbour (`--container`): sends and pulls, one at a time, of another group whose master is in the container
  of a slave of the group under full load, against those at 2,000 messages a second.

The clients of slave and neighbour have a process of their own.

Promised: a feature's gap is at most GAP_PROMISED_MS, and RATIO_PROMISED times that at 2,000/s; at a slave,
99 of 100 messages are at most AGE_PROMISED_MS old.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from cli.lab.cluster import ClusterError, Program
from cli.lab.container_cluster import ContainerCluster
from cli.lab.observer import Picture, Watcher
from cli.lab.secure import secured
from keelmq.client.admin import AdminClient
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operations.route import TopicConfig
from tests.bench.failover_full import MESSAGES, ROUNDS, STEP_TIMEOUT_S, load_up
from tests.bench.feature_probes import (
    SETTINGS,
    Pops,
    Probe,
    Timers,
    Transactions,
    first_answer,
    first_of_new_master,
)
from tests.bench.measuring_process import measuring
from tests.bench.native import BenchError
from tests.bench.report import Measurement, Results
from tests.bench.switch import CLUSTER_NAME, NEIGHBOUR, STEADY_S, TOPIC, Group, Load

FEATURES: Final = ("timer", "commit", "check", "ack", "revive")
GAP_PROMISED_MS: Final = 500.0
RATIO_PROMISED: Final = 3.0
AGE_PROMISED_MS: Final = 500.0
NEIGHBOUR_PROMISED_MS: Final = 50.0
FEATURE_TIMEOUT_S: Final = 60.0
"""A gap that is promised to be 0.5 s is measured up to here."""
LOOK_EVERY_S: Final = 0.02
DRAIN_TIMEOUT_S: Final = 60.0
WARM_UP_S: Final = 3.0
"""Longer than a timer, a check and an invisible time: each probe has messages of every age."""
SLAVE_QUEUES: Final = 4
NEIGHBOUR_TOPIC: Final = "KeelBenchNeighbour"

Gaps = dict[str, float]
"""Feature -> ms from the kill."""


@dataclass(slots=True)
class Felt:
    """Durations of a neighbour's sends and pulls, in ms."""

    sends: list[float] = field(default_factory=list)
    pulls: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Found:
    """Kills at both loads; the ages in ms of what a slave served; what the neighbour felt, if there is one.
    lost: feature's topic -> messages."""

    calm: list[Gaps] = field(default_factory=list)
    full: list[Gaps] = field(default_factory=list)
    ages_ms: list[float] = field(default_factory=list)
    lost: dict[str, int] = field(default_factory=dict)
    neighbour: tuple[Felt, Felt] | None = None


def run(
    *, messages: int = MESSAGES, rounds: int = ROUNDS, container: bool = False, secure: bool = False
) -> Results:
    """The parameters are those of failover_full.run()."""
    try:
        found = asyncio.run(measure(messages, rounds, container=container, secure=secure))
    except (ClusterError, ValueError) as error:
        raise BenchError(str(error)) from None
    for topic, count in found.lost.items():
        if count:
            sys.stderr.write(f"{topic}: {count} messages are lost\n")
    return results_of(found)


def results_of(found: Found) -> Results:
    """The figures: of each feature the medians of both loads and their ratio. BenchError: a slave served
    nothing."""
    results: Results = {}
    for name in FEATURES:
        calm, full = (median(gaps[name] for gaps in kills) for kills in (found.calm, found.full))
        ratio = full / calm
        results[f"calm_{name}_gap_ms"] = _ms(calm, GAP_PROMISED_MS)
        results[f"full_{name}_gap_ms"] = _ms(full, GAP_PROMISED_MS)
        results[f"full_{name}_gap_max_ms"] = _ms(max(gaps[name] for gaps in found.full), GAP_PROMISED_MS)
        results[f"{name}_full_vs_calm"] = Measurement(ratio, "x", RATIO_PROMISED, ratio / RATIO_PROMISED)
    results["lost"] = Measurement(sum(found.lost.values()), "messages", 0, sum(found.lost.values()))
    if not found.ages_ms:
        raise BenchError("the slave served no message while full load ran")
    ages = sorted(found.ages_ms)
    results["slave_age_p50_ms"] = _ms(percentile(ages, 0.5), AGE_PROMISED_MS)
    results["slave_age_p99_ms"] = _ms(percentile(ages, 0.99), AGE_PROMISED_MS)
    results["slave_age_max_ms"] = _ms(ages[-1], AGE_PROMISED_MS)
    if found.neighbour is not None:
        results |= _of_neighbour(*found.neighbour)
    return results


def _of_neighbour(calm: Felt, full: Felt) -> Results:
    results: Results = {}
    for name, took in (("calm", calm), ("full", full)):
        for kind, each in (("send", took.sends), ("pull", took.pulls)):
            if not each:
                raise BenchError(f"the neighbour answered no {kind}")
            ascending = sorted(each)
            results[f"{name}_neighbour_{kind}_p50_ms"] = _ms(
                percentile(ascending, 0.5), NEIGHBOUR_PROMISED_MS
            )
            results[f"{name}_neighbour_{kind}_p99_ms"] = _ms(
                percentile(ascending, 0.99), NEIGHBOUR_PROMISED_MS
            )
    return results


def percentile(ascending: Sequence[float], share: float) -> float:
    """Returns the value below which `share` of them are."""
    return ascending[min(int(len(ascending) * share), len(ascending) - 1)]


def _ms(value: float, promised: float) -> Measurement:
    return Measurement(value, "ms", promised, value / promised)


# -- the run -----------------------------------------------------------------------------------------------


async def measure(messages: int, rounds: int, *, container: bool, secure: bool) -> Found:
    """See failover_full.run(). ClusterError: a step took longer than STEP_TIMEOUT_S. BenchError: a probe
    could not go on."""
    found = Found()
    with (
        tempfile.TemporaryDirectory(prefix="keelmq-features-") as place,
        secured(Path(place), CLUSTER_NAME, wanted=secure) as keys,
    ):
        group = Group(Path(place), SETTINGS, keys, container=container, timeout_s=STEP_TIMEOUT_S)
        namesrv = group.cluster.namesrv_addr
        async with group, Load(namesrv, timeout_ms=int(STEP_TIMEOUT_S * 1_000)) as load:
            await asyncio.sleep(STEADY_S)
            if container:
                found.neighbour = await _neighbour(group, messages)
            found.ages_ms = await _ages(group, messages)
            await _create_topics(group)
            probes = Timers(namesrv), Transactions(namesrv), Pops(namesrv, group)
            async with AsyncExitStack() as stack:
                for probe in probes:
                    await stack.enter_async_context(probe)
                for _ in range(rounds):
                    for kills, count in ((found.calm, 0), (found.full, messages)):
                        kills.append(await _kill(group, load, count, probes))
                    sys.stderr.write(f"kills: {found.calm[-1]} and {found.full[-1]}\n")
                await _drain(group, probes, found)
    return found


async def _create_topics(group: Group) -> None:
    master = await group.master()
    for kind in (Timers, Transactions, Pops):
        await _create_topic(master.address, kind.topic)


async def _create_topic(address: str, name: str) -> None:
    client = RemotingClient()
    try:
        config = TopicConfig(topic_name=name, read_queue_nums=1, write_queue_nums=1)
        await AdminClient(client).brokers.update_topic(address, config)
    finally:
        await client.close()


async def _kill(group: Group, load: Load, messages: int, probes: tuple[Timers, Transactions, Pops]) -> Gaps:
    """The gaps of one kill, after so many messages of full load; 0: of the load alone."""
    timers, transactions, pops = probes
    master = await group.master()
    load.sends.clear()
    await asyncio.sleep(WARM_UP_S)
    await load_up(group, messages)
    killed, old = time.monotonic(), master.address
    await group.cluster.kill_and_wait(master)
    looks: dict[str, Callable[[], float | None]] = {
        "timer": lambda: first_of_new_master(timers.arrived, killed, old),
        "commit": lambda: first_answer(transactions.answers, killed),
        "check": lambda: first_of_new_master(transactions.of_checks, killed, old),
        "ack": lambda: first_answer(pops.answers, killed),
        "revive": lambda: first_of_new_master(pops.of_revivals, killed, old),
    }

    gaps: Gaps = {}
    until = killed + FEATURE_TIMEOUT_S
    while len(gaps) < len(looks):
        await asyncio.sleep(LOOK_EVERY_S)
        for probe in probes:
            probe.check()
        gaps = {name: 1_000 * (at - killed) for name, look in looks.items() if (at := look()) is not None}
        if time.monotonic() > until:
            missing = ", ".join(sorted(looks.keys() - gaps.keys()))
            raise BenchError(f"not within {FEATURE_TIMEOUT_S:g} s of the kill: {missing}")
    group.cluster.start_program(master)
    await group.all_in_sync()
    return gaps


async def _drain(group: Group, probes: Sequence[Probe], found: Found) -> None:
    """Counts what has not arrived DRAIN_TIMEOUT_S after the last send."""
    for probe in probes:
        probe.stop()

    async def all_here() -> bool:
        return not any(probe.missing for probe in probes)

    with suppress(ClusterError):  # what is missing is counted
        await group.cluster.until("every message", all_here, timeout_s=DRAIN_TIMEOUT_S)
    found.lost = {probe.topic: len(probe.missing) for probe in probes}


# -- a consumer at a slave -----------------------------------------------------------------------------------


async def _ages(group: Group, messages: int) -> list[float]:
    """Returns the age in ms, at the consumer, of the first message of each response of a slave."""
    master = await group.master()
    slave = next(each for each in group.cluster.brokers if each is not master)
    async with measuring("ages", slave.address, TOPIC, str(SLAVE_QUEUES)) as figures:
        await load_up(group, messages)
    return figures["ages"]


# -- a neighbour in the containers ---------------------------------------------------------------------------


async def _neighbour(group: Group, messages: int) -> tuple[Felt, Felt]:
    """What the neighbour feels at both loads."""
    assert isinstance(group.cluster, ContainerCluster)
    master = await group.master()
    address = await _move_neighbour(group.cluster, away_from=master)
    await _create_topic(address, NEIGHBOUR_TOPIC)
    felt: list[Felt] = []
    for count in (0, messages):
        namesrv_addr = group.cluster.namesrv_addr
        async with measuring("neighbour", namesrv_addr, address, NEIGHBOUR_TOPIC) as figures:
            await load_up(group, count)
        felt.append(Felt(figures["sends"], figures["pulls"]))
    return felt[0], felt[1]


async def _move_neighbour(cluster: ContainerCluster, *, away_from: Program) -> str:
    """Returns the address of the neighbour's master, in another container than `away_from`."""
    neighbours = cluster.group(NEIGHBOUR)
    watcher = Watcher(neighbours)
    wanted = next(each for each in neighbours.brokers if each.container is not away_from)

    async def in_sync() -> Picture | None:
        picture = await watcher.look()
        return picture if picture.all_in_sync(len(neighbours.brokers)) else None

    async def moved() -> bool:
        return (await watcher.look()).master == wanted.name

    try:
        picture = await cluster.until("the neighbour in sync", in_sync, timeout_s=STEP_TIMEOUT_S)
        replica = next(each for each in picture.replicas if each.name == wanted.name)
        if picture.master != wanted.name and replica.broker_id is not None:
            client = RemotingClient()
            try:
                await AdminClient(client).controllers.elect_master(
                    cluster.controller_addr,
                    cluster_name=cluster.cluster_name,
                    broker_name=NEIGHBOUR,
                    broker_id=replica.broker_id,
                )
            finally:
                await client.close()
        await cluster.until("the neighbour's master moved", moved, timeout_s=STEP_TIMEOUT_S)
    finally:
        await watcher.close()
    return wanted.address
