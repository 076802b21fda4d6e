"""`keelmq bench failover --load full`: the same fail-overs at 2,000 messages a second and at full load.

Full load is four senders in a process of their own, each with a batch of 2,000 messages in flight, until
`messages` are acknowledged; the replicas are in sync meanwhile. It ends at the moment of the fault, and a
producer of 2,000 single messages a second, which runs all the time, measures both loads alike:

- gap: from the kill to the first acknowledgement of a message whose send began later;
- consumable: from the kill until the new master serves that message's queue beyond it;
- stall: the longest time that the new master left a request for a queue's end unanswered, from the kill until
  that message was consumable. Clients and brokers share the machine: what it keeps from them counts.

Promised: a gap of 150 ms (median) and 300 ms (most), 300 ms until the message is consumable, no stall above
50 ms, at most 3 x the gap at 2,000/s; a planned switch fails no send, and 99 of 100 take at most 50 ms.
"""

import asyncio
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from cli.lab.cluster import ClusterError, Program
from cli.lab.full_load import Sent, parse_line
from cli.lab.secure import secured
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Ok
from keelmq.remoting.operations.broker import GET_MAX_OFFSET, QueueRequest
from keelmq.runtime.tasks import cancel_all
from tests.bench.large_tables import write_tables
from tests.bench.native import BenchError
from tests.bench.report import Measurement, Results
from tests.bench.servers import ROOT
from tests.bench.switch import (
    BROKER_NAME,
    CLUSTER_NAME,
    HEARTBEAT_TIMEOUT_MS,
    HUNG_RATE,
    RATE,
    STEADY_S,
    TOPIC,
    Group,
    Load,
    Stored,
)

MESSAGES: Final = 800_000
ROUNDS: Final = 5
PLANNED, HUNG = 2, 1
MEDIAN_PROMISED_MS, MOST_PROMISED_MS, CONSUMABLE_PROMISED_MS = 150.0, 300.0, 300.0
STALL_PROMISED_MS, PLANNED_P99_PROMISED_MS, HUNG_PROMISED_MS = 50.0, 50.0, 1_200.0
RATIO_PROMISED: Final = 3.0
PLANNED_WINDOW_S: Final = 10.0
STEP_TIMEOUT_S: Final = 300.0
"""For what a promise says takes milliseconds: longer waits are measured, not cut off."""
ASK_EVERY_S: Final = 0.005
ASK_TIMEOUT_MS: Final = 240_000


@dataclass(slots=True)
class Kill:
    """One kill, in ms; rate: messages a second before it."""

    gap_ms: float
    consumable_ms: float
    stall_ms: float
    rate: float


@dataclass(slots=True)
class Found:
    """Kills at both loads, in turns; the durations of sends during planned switches in ms, ascending."""

    calm: list[Kill] = field(default_factory=list)
    full: list[Kill] = field(default_factory=list)
    planned_ms: list[float] = field(default_factory=list)
    planned_failed: int = 0
    errors: list[str] = field(default_factory=list)
    hung_ms: list[float] = field(default_factory=list)


def run(
    *,
    messages: int = MESSAGES,
    rounds: int = ROUNDS,
    offsets: int = 0,
    topics: int = 0,
    container: bool = False,
    secure: bool = False,
) -> Results:
    """messages: acknowledged at full load before each fault. rounds: kills at each load. offsets, topics:
    rows of these tables. container: each broker is in a container, beside one of another group."""
    try:
        found = asyncio.run(measure(messages, rounds, offsets, topics, container=container, secure=secure))
    except (ClusterError, ValueError) as error:
        raise BenchError(str(error)) from None
    if found.errors:
        sys.stderr.write(f"failed sends, the first: {found.errors[0]}\n")
    return results_of(found)


def results_of(found: Found) -> Results:
    """The figures: at both loads, and their ratio."""
    calm, full = found.calm, found.full
    calm_gap, full_gap = (median(each.gap_ms for each in kills) for kills in (calm, full))
    return {
        "calm_kill_gap_ms": _ms(calm_gap, MEDIAN_PROMISED_MS),
        "calm_kill_gap_max_ms": _ms(max(each.gap_ms for each in calm), MOST_PROMISED_MS),
        "full_kill_gap_ms": _ms(full_gap, MEDIAN_PROMISED_MS),
        "full_kill_gap_max_ms": _ms(max(each.gap_ms for each in full), MOST_PROMISED_MS),
        "full_vs_calm": Measurement(
            full_gap / calm_gap, "x", RATIO_PROMISED, full_gap / calm_gap / RATIO_PROMISED
        ),
        "calm_consumable_ms": _ms(median(each.consumable_ms for each in calm), CONSUMABLE_PROMISED_MS),
        "full_consumable_ms": _ms(median(each.consumable_ms for each in full), CONSUMABLE_PROMISED_MS),
        "calm_loop_stall_ms": _ms(max(each.stall_ms for each in calm), STALL_PROMISED_MS),
        "full_loop_stall_ms": _ms(max(each.stall_ms for each in full), STALL_PROMISED_MS),
        "full_load": Measurement(median(each.rate for each in full), "messages/s", RATE, 0.0),
        "full_planned_failed": Measurement(found.planned_failed, "sends", 0, found.planned_failed),
        "full_planned_p99_ms": _ms(_p99(found.planned_ms), PLANNED_P99_PROMISED_MS),
        "full_planned_max_ms": _ms(found.planned_ms[-1], MOST_PROMISED_MS),
        "full_hung_gap_ms": _ms(max(found.hung_ms), HUNG_PROMISED_MS),
    }


def _p99(ascending: Sequence[float]) -> float:
    return ascending[int(len(ascending) * 0.99)]


def _ms(value: float, promised: float) -> Measurement:
    return Measurement(value, "ms", promised, value / promised)


# -- the run -----------------------------------------------------------------------------------------------


async def measure(
    messages: int, rounds: int, offsets: int, topics: int, *, container: bool, secure: bool
) -> Found:
    """See run(). ClusterError: a step took longer than STEP_TIMEOUT_S."""
    found = Found()
    with (
        tempfile.TemporaryDirectory(prefix="keelmq-failover-") as place,
        secured(Path(place), CLUSTER_NAME, wanted=secure) as keys,
    ):
        group = Group(Path(place), of_all=keys, container=container, timeout_s=STEP_TIMEOUT_S)
        stores = [Path(each.settings["storePathRootDir"]) for each in group.cluster.brokers]
        if topics or offsets:
            write_tables(
                stores,
                topics=topics,
                offsets=offsets,
                topic=TOPIC,
                cluster_name=CLUSTER_NAME,
                broker_name=BROKER_NAME,
            )
        async with group, Load(group.cluster.namesrv_addr, timeout_ms=int(STEP_TIMEOUT_S * 1_000)) as load:
            await asyncio.sleep(STEADY_S)
            for number in range(rounds):
                found.calm.append(await _kill(group, load, 0))
                found.full.append(await _kill(group, load, messages))
                _tell(f"kill {number + 1} of {rounds}: {found.calm[-1]} and {found.full[-1]}")
            load.timeout_ms = 3_000
            for number in range(PLANNED):
                await _planned(group, load, messages, found, by_signal=not number % 2)
            load.timeout_ms = 5 * HEARTBEAT_TIMEOUT_MS  # nobody promises that a hung master fails no send
            load.rate = HUNG_RATE  # what piles up meanwhile would be measured instead
            for _ in range(HUNG):
                found.hung_ms.append(await _hang(group, load, messages))
    found.planned_ms.sort()
    return found


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")


async def _kill(group: Group, load: Load, messages: int) -> Kill:
    """Kills the master after so many messages of full load; 0: after STEADY_S of the load alone."""
    master = await group.master()
    load.sends.clear()
    rate = await load_up(group, messages)
    async with _watched(group) as asked:
        killed = time.monotonic()
        await group.cluster.kill_and_wait(master)
        first = await _first_stored(group, load, killed)
        new_master, consumable = await _consumable(group, first)
    group.cluster.start_program(master)
    await group.all_in_sync()
    return Kill(
        gap_ms=1_000 * (first.began + first.took - killed),
        consumable_ms=1_000 * (consumable - killed),
        stall_ms=1_000 * longest_wait(asked[new_master], killed, consumable),
        rate=rate,
    )


async def load_up(group: Group, messages: int) -> float:
    """Returns when full load has ended, or, with 0 messages, after STEADY_S; messages per second. The
    replicas are in sync all the time."""
    if not messages:
        await asyncio.sleep(STEADY_S)
        return float(RATE)
    with full_load(group.cluster.namesrv_addr, messages) as process:
        output, _ = await asyncio.to_thread(process.communicate)
    sent = _result(output, process.returncode)
    if sent.acked < messages:
        raise BenchError(f"{messages} messages were to be sent at full load, and {sent.acked} were")
    return sent.rate


@contextmanager
def full_load(namesrv_addr: str, messages: int) -> Iterator["subprocess.Popen[str]"]:
    """The process of cli/lab/full_load.py; killed if it has not ended by itself."""
    command = [sys.executable, "-m", "cli.lab.full_load", namesrv_addr, TOPIC, str(messages)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def _result(output: str, code: int | None) -> Sent:
    lines = output.strip().splitlines()
    try:
        return parse_line(lines[-1] if lines else "")
    except ValueError as error:
        raise BenchError(f"the process of full load ended with exit code {code}: {error}") from None


async def _first_stored(group: Group, load: Load, moment: float) -> Stored:
    async def stored() -> Stored | None:
        return load.first_begun_after(moment)

    return await group.cluster.until("a message stored after the fault", stored, timeout_s=STEP_TIMEOUT_S)


async def _consumable(group: Group, sent: Stored) -> tuple[str, float]:
    """The new master's name, and when it served the queue beyond the message."""
    client = RemotingClient()
    try:

        async def served() -> tuple[str, float] | None:
            name = (await group.look()).master
            program = next((each for each in group.cluster.brokers if each.name == name), None)
            if program is None:
                return None
            end = await _queue_end(client, program, sent.queue_id)
            return (name, time.monotonic()) if end is not None and end > sent.queue_offset else None

        return await group.cluster.until("that message consumable", served, timeout_s=STEP_TIMEOUT_S)
    finally:
        await client.close()


async def _queue_end(client: RemotingClient, program: Program, queue_id: int) -> int | None:
    asked = QueueRequest(topic=TOPIC, queue_id=queue_id)
    outcome = await client.call(program.address, GET_MAX_OFFSET, asked, timeout_ms=ASK_TIMEOUT_MS)
    return outcome.header.offset if isinstance(outcome, Ok) else None


Waits = list[tuple[float, float]]
"""When a request was sent, and when it was answered or had failed; monotonic seconds, ascending."""


@asynccontextmanager
async def _watched(group: Group) -> AsyncIterator[dict[str, Waits]]:
    """Asks every broker for the end of a queue, one request after the other; yields name -> Waits."""
    client = RemotingClient()
    waits: dict[str, Waits] = {program.name: [] for program in group.cluster.brokers}

    async def ask(program: Program) -> None:
        while True:
            began = time.monotonic()
            await _queue_end(client, program, 0)
            waits[program.name].append((began, time.monotonic()))
            await asyncio.sleep(ASK_EVERY_S)

    tasks = [asyncio.create_task(ask(program)) for program in group.cluster.brokers]
    try:
        await asyncio.sleep(10 * ASK_EVERY_S)  # connections are open before the fault
        yield waits
    finally:
        await cancel_all(tasks)
        await client.close()


def longest_wait(waits: Waits, begin: float, end: float) -> float:
    """The longest wait, in seconds, of those that were not over at `begin` and had begun by `end`.
    ValueError: nobody asked meanwhile, so there is no figure."""
    during = [answered - asked for asked, answered in waits if answered >= begin and asked <= end]
    if not during:
        raise ValueError("the new master was not asked between the fault and its recovery")
    return max(during)


async def _planned(group: Group, load: Load, messages: int, found: Found, *, by_signal: bool) -> None:
    """A planned switch right after full load; the sends that begin within PLANNED_WINDOW_S count."""
    master = await group.master()
    await load_up(group, messages)
    load.sends.clear()
    failed = len(load.errors)
    began = time.monotonic()
    if by_signal:
        assert master.process is not None
        master.process.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(master.process.wait, STEP_TIMEOUT_S)
        if code != 0:
            raise ClusterError(f"{master.name} ended with exit code {code} after SIGTERM")
        group.cluster.start_program(master)
    else:
        await group.elect_another()
    await asyncio.sleep(max(PLANNED_WINDOW_S - (time.monotonic() - began), 0))
    await group.all_in_sync()
    found.planned_ms += [1_000 * took for took in load.within(began, began + PLANNED_WINDOW_S)]
    found.planned_failed += len(load.errors) - failed
    found.errors += load.errors[failed:]


async def _hang(group: Group, load: Load, messages: int) -> float:
    """ms from SIGSTOP right after full load to the first answer to a later send."""
    master = await group.master()
    await load_up(group, messages)
    load.sends.clear()
    group.cluster.pause(master)
    began = time.monotonic()
    try:
        first = await _first_stored(group, load, began)
    finally:
        group.cluster.resume(master)
    await group.all_in_sync()
    return 1_000 * (first.began + first.took - began)
