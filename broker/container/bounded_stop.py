"""Bounds the stops of brokers, so that a broker that hangs does not block the stops of the others."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

from broker.container.host import BrokerHost
from keelmq.runtime.stop_steps import StopError

STOP_S_MAX: Final = 20.0
"""A stop needs less than a second; its longest step writes unwritten data to the disk."""
CANCELS_MAX: Final = 3
CANCELLED_S_MAX: Final = 2.0
"""A cancellation ends the step that hangs, and the stop continues with the next one (StopSteps)."""
HEAD_START_S: Final = 2.0
"""How long masters wait for the stop of slaves: several times what a slave that does not hang needs."""

CLOSE_S_MAX: Final = 40.0
"""For all processes of a container together. Each needs STOP_S_MAX and three cancellations at most."""
KILLED_S_MAX: Final = 5.0
"""How long the kill of a process may take."""

Stop = Callable[[], Awaitable[None]]


async def bounded_stop(name: str, stop: Stop, *, more_s: float = 0) -> None:
    """Runs the stop of the broker `name`. more_s: what its hand-over may take besides. Raises StopError: a
    step failed, hung and was cancelled, or hung in a thread and was left behind."""
    failed = await bounded_stops({name: stop}, {}, more_s=more_s)
    if failed:
        raise failed[name]


async def bounded_stops(
    slaves: Mapping[str, Stop], masters: Mapping[str, Stop], *, more_s: float = 0
) -> dict[str, StopError]:
    """Runs the stops of brokers, given by their names, at the same time and with one deadline for all; those
    of masters begin when the slaves are stopped, or a little later if these hang. Returns why some were not
    stopped: see bounded_stop()."""
    seconds = STOP_S_MAX + more_s
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + seconds
    tasks = _begin(slaves)
    hung: set[asyncio.Task[None]] = set()
    try:
        await _wait(tasks.values(), HEAD_START_S)
        tasks |= _begin(masters)
        pending = await _wait(tasks.values(), deadline_s - loop.time())
        for _ in range(CANCELS_MAX):
            hung |= pending
            for task in pending:
                task.cancel()
            pending = await _wait(pending, CANCELLED_S_MAX)
    except BaseException:
        for task in tasks.values():
            task.cancel()
        raise
    found = {name: _failure(name, task, task in hung, seconds) for name, task in tasks.items()}
    return {name: failure for name, failure in found.items() if failure is not None}


async def close_hosts(hosts: Collection[BrokerHost], failures: list[str]) -> None:
    """Closes all at the same time and with one deadline; a process that is not done then is killed. Adds
    their errors to `failures`, and raises StopError then."""
    tasks = [asyncio.create_task(host.close(), name=f"close of host {at}") for at, host in enumerate(hosts)]
    try:
        late = await _wait(tasks, CLOSE_S_MAX)
        for task in late:
            task.cancel()
        await _wait(late, KILLED_S_MAX)
    except BaseException:
        for task in tasks:
            task.cancel()
        raise
    for number, task in enumerate(tasks):
        failure = _failure(f"process {number}", task, task in late, CLOSE_S_MAX)
        if failure is not None:
            failures.append(str(failure))
    if failures:
        raise StopError("; ".join(failures))


def _begin(stops: Mapping[str, Stop]) -> dict[str, asyncio.Task[None]]:
    async def run(stop: Stop) -> None:
        await stop()

    return {name: asyncio.create_task(run(stop), name=f"stop of {name}") for name, stop in stops.items()}


async def _wait(tasks: Collection[asyncio.Task[None]], seconds: float) -> set[asyncio.Task[None]]:
    """Returns the stops that are not done after `seconds`."""
    if not tasks:
        return set()
    _, pending = await asyncio.wait(tasks, timeout=max(0.0, seconds))
    return pending


def _failure(name: str, task: asyncio.Task[None], has_hung: bool, seconds: float) -> StopError | None:
    if not task.done():
        return StopError(f"{name} hangs and was left as it is: end the process to free its files")
    error = None if task.cancelled() else task.exception()  # retrieved, else asyncio logs it
    if has_hung:
        why = error if isinstance(error, StopError) else "a step that hung was cancelled"
        return StopError(f"{name} was not stopped within {seconds:g} s: {why}")
    if error is None or isinstance(error, StopError):
        return error
    return StopError(f"{name} was not stopped: {type(error).__name__}: {error}")
