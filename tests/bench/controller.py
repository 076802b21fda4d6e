"""Suite controller: the control plane of a large cluster; three controllers on loopback, fdatasync, a key.

A large group has 3,000 broker groups with 10,000 brokers, each with its own connection to the leader: what
their heartbeats cost, a snapshot meanwhile, 1,000 masters lost at once, events with many in flight. A small
group (controller_leader.py) shows one event after the other against etcd, and the end of its leaders.

Yardsticks are the promises, but for etcd's own rate and J. Rates by the clock need a machine with nothing
else to do, so events have rows per CPU second, too: of the leader, which makes them up as well, and of all
members, which share the cores of this machine.
"""

import tempfile
import time
from pathlib import Path

from keelmq.runtime.program import raise_open_files_limit
from tests.bench import controller_leader
from tests.bench.controllers import Controller, controllers, leader_of, until
from tests.bench.groups import groups_of
from tests.bench.heartbeats import Heartbeats
from tests.bench.native import BenchError
from tests.bench.report import Measurement, Results, median
from tests.bench.units import in_j

GROUPS, BROKERS = 3_000, 10_000
CORE_SHARE_MAX = 0.35
RATE_MIN = 0.8
WATCHED_S, WATCHES = 4.0, 3
SNAPSHOT_S_MAX = 1.0
LOST_MASTERS, ELECTED_S_MAX = 1_000, 5.0
IN_FLIGHT, EVENTS_PER_S_MIN, EVENT_ROUNDS, EVENTS_MS = 2_000, 20_000.0, 5, 2_000
EVENTS_CPU_MS_MAX = 100.0
"""Of all members, per 1,000 events: with more, two cores cannot do 20,000 a second."""
SETTINGS = {"controllerGraceMs": "600000", "maxConnectionsPerAddress": "0"}
"""While groups are made no broker sends heartbeats, and nobody is to be elected for that reason. All brokers
are at one address."""
PROBE_S = 0.1


def run() -> Results:
    raise_open_files_limit()
    with tempfile.TemporaryDirectory(prefix="keelmq-bench-") as name:
        return {**large(Path(name) / "large"), **controller_leader.run(Path(name) / "small")}


def large(directory: Path) -> Results:
    with controllers(directory, SETTINGS) as members:
        leader = leader_of(members)
        made = leader.do("populate", groups=GROUPS, brokers=BROKERS)
        if (made["groups"], made["brokers"]) != (GROUPS, BROKERS):
            raise BenchError(f"{made} instead of {GROUPS} groups with {BROKERS} brokers")
        results = events(leader, members)
        with Heartbeats(groups_of(GROUPS, BROKERS), [leader.address]) as sender:
            until(lambda: _active(leader) == BROKERS, "every broker is active", 60, PROBE_S)
            results |= heartbeats(leader, sender)
            results |= snapshot(leader, sender)
            results |= losses(leader, sender)
    return results


def events(leader: Controller, members: list[Controller]) -> Results:
    """alterSyncStateSet in 2,000 groups at once, from proposal to answer, in the leader's own process."""
    rounds, costs_ms = [], []
    for _ in range(EVENT_ROUNDS):
        before = sum(member.cpu_seconds() for member in members)
        rounds.append(leader.do("propose", groups=IN_FLIGHT, ms=EVENTS_MS))
        spent = sum(member.cpu_seconds() for member in members) - before
        costs_ms.append(spent / rounds[-1]["accepted"] * 1e6)
    rate = median(each["accepted"] / each["seconds"] for each in rounds)
    per_cpu = median(each["accepted"] / each["cpu_seconds"] for each in rounds)
    return {
        "events_per_s": _at_least(rate, "events/s", EVENTS_PER_S_MIN),
        "events_per_leader_cpu_s": _at_least(per_cpu, "events/CPU-s", EVENTS_PER_S_MIN),
        "events_1000_cpu_ms": _at_most(median(costs_ms), "CPU-ms", EVENTS_CPU_MS_MAX),
    }


def heartbeats(leader: Controller, sender: Heartbeats) -> Results:
    """The share is that of 10,000 a second, also if this busy machine sent fewer."""
    costs_us = []
    for _ in range(WATCHES):
        begin, cpu, sent = time.perf_counter(), leader.cpu_seconds(), sender.sent
        time.sleep(WATCHED_S)
        seconds, cpu, sent = time.perf_counter() - begin, leader.cpu_seconds() - cpu, sender.sent - sent
        if sent < RATE_MIN * BROKERS * seconds:
            raise BenchError(f"{sent / seconds:.0f} heartbeats a second were sent: the machine is too busy")
        costs_us.append(cpu / sent * 1e6)
    _check_heard(leader, sender)
    j_us, _ = in_j()
    cost_us = median(costs_us)
    return {
        "heartbeats_per_s": _at_least(1e6 / cost_us, "per CPU-s", BROKERS / CORE_SHARE_MAX),
        "heartbeats_core_share": _at_most(cost_us * BROKERS / 1e6, "of a core", CORE_SHARE_MAX),
        "heartbeat_j": Measurement(cost_us / j_us, "J", j_us, cost_us / j_us),
    }


def snapshot(leader: Controller, sender: Heartbeats) -> Results:
    """Of the whole state, while all heartbeats go on."""
    done = leader.do("snapshot")
    _check_heard(leader, sender)
    return {
        "snapshot_s": _at_most(done["seconds"], "s", SNAPSHOT_S_MAX),
        "snapshot_loop_lag_ms": _at_most(done["lag_ms"], "ms", SNAPSHOT_S_MAX * 1_000),
    }


def losses(leader: Controller, sender: Heartbeats) -> Results:
    """From the first closed connection until the survivors of the last group know their new master."""
    masters = [broker for broker in sender.brokers if broker.broker_id == 1][:LOST_MASTERS]
    names = {broker.broker_name for broker in masters}
    before = len(sender.told)
    begin = sender.kill(masters)

    def elected() -> dict[str, float]:
        """When each group was told, the first time."""
        told = [each for each in sender.told[before:] if each.master_broker_id not in (None, 1)]
        return {each.broker_name: each.at for each in reversed(told) if each.broker_name in names}

    until(lambda: len(elected()) == LOST_MASTERS, f"{LOST_MASTERS} masters are elected", 60, PROBE_S)
    seconds = max(elected().values()) - begin
    if _active(leader) != BROKERS - LOST_MASTERS:
        raise BenchError(f"{_active(leader)} brokers are active after {LOST_MASTERS} of {BROKERS} were lost")
    return {"lost_masters_s": _at_most(seconds, "s", ELECTED_S_MAX)}


def _active(leader: Controller) -> int:
    return int(leader.do("heartbeats")["active"])


def _check_heard(leader: Controller, sender: Heartbeats) -> None:
    """Nobody's last heartbeat is missing: none is older than a turn and a second."""
    heard = leader.do("heartbeats")
    if heard["active"] != BROKERS or heard["oldest_ms"] > (sender.turn_s + 1) * 1_000:
        raise BenchError(f"heartbeats were missed: {heard}")


def _at_least(value: float, unit: str, goal: float) -> Measurement:
    return Measurement(value, unit, goal, value / goal)


_at_most = _at_least  # the ratio's good side is below 1
