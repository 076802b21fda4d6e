"""RunningWorker: one worker process with its link, from start to end."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Self

import msgspec

from broker.container.host import BrokerRefused
from broker.container.workers.link import Event, Link
from broker.container.workers.messages import Begin, Change, Done
from broker.container.workers.process import COMMAND, Process, Spawn, end, how_it_ended, spawn
from keelmq.remoting.config_store import ConfigSources
from keelmq.runtime.backoff import Backoff

logger = logging.getLogger(__name__)

RESTART: Final = Backoff(first_ms=500, max_ms=30_000)


class WorkerTimes(msgspec.Struct, frozen=True):
    """Milliseconds. begin: until a new process answers. start: with the recovery of a large store. stop: with
    a hand-over. read: for a status or a scrape. up: how long a start waits for a worker that is down. exit:
    from the end of its connection to the end of the process. ping: between two pings; silent_pings: in a row
    without any message of the worker, after which it hangs."""

    begin: int = 60_000
    start: int = 600_000
    stop: int = 120_000
    read: int = 5_000
    up: int = 15_000
    exit: int = 5_000
    ping: int = 1_000
    silent_pings: int = 30
    restart: Backoff = RESTART


class Launch(msgspec.Struct, frozen=True):
    """How a worker is started. number: its own in the container. config_sources: of the container. spawn: as
    in process.py. changed: keys that requests have changed since the container started; they may be in no
    file."""

    number: int
    config_sources: ConfigSources
    command: tuple[str, ...] = COMMAND
    times: WorkerTimes = WorkerTimes()
    spawn: Spawn = spawn
    changed: dict[str, str] = msgspec.field(default_factory=dict)


class RunningWorker(msgspec.Struct, frozen=True):
    """begin() makes one; it ends in until_end()."""

    link: Link
    process: Process
    times: WorkerTimes

    @classmethod
    async def begin(cls, launch: Launch, on_event: Callable[[Event], None]) -> Self:
        """Returns when the process has read its configuration and answers. Raises OSError or BrokerRefused,
        and leaves no process behind then."""
        process, ours = await launch.spawn(
            launch.number, command=launch.command, environ=launch.config_sources.environ
        )
        link = Link(f"worker {launch.number} (pid {process.pid})", on_event)
        config_sources, times = launch.config_sources, launch.times
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: link.channel, sock=ours)
            command = Begin(
                number=launch.number,
                config_path=config_sources.path,
                overrides=dict(config_sources.overrides),
            )
            await link.request(command, Done, deadline_ms=times.begin, purpose="its start")
            told: dict[str, str] = {}
            while told != launch.changed:  # a request may change more of them meanwhile
                told = dict(launch.changed)
                change = Change(settings=told)
                await link.request(change, Done, deadline_ms=times.begin, purpose="changed settings")
        except BaseException as error:
            patience_ms = times.exit if link.has_ended.is_set() else 0
            is_killed = await end(process, patience_ms)
            link.channel.close()
            if isinstance(error, BrokerRefused) and link.has_ended.is_set() and not is_killed:
                how = how_it_ended(process.returncode or 0)
                raise BrokerRefused(f"{link.name} {how}; the log has its last words") from None
            raise
        return cls(link, process, times)

    async def until_end(self) -> str:
        """Returns why the process has ended, as a sentence. It is reaped then. Cancellation kills it."""
        link = self.link
        is_killed = True
        pings = asyncio.create_task(self._ping(), name=f"pings of {link.name}")
        try:
            await link.has_ended.wait()
        finally:
            pings.cancel()
            is_killed = await end(self.process, self.times.exit if not link.is_given_up else 0)
            link.channel.close()
        why = f"was killed: {link.reason}" if is_killed else how_it_ended(self.process.returncode or 0)
        return f"{link.name} {why}"

    async def _ping(self) -> None:
        """Ends the link if no message arrives for silent_pings in a row. Pings are counted instead of time,
        so that after a pause of the supervisor itself the worker still has its whole timeout."""
        heard, silent = self.link.heard, 0
        while silent < self.times.silent_pings:
            self.link.ping()
            await asyncio.sleep(self.times.ping / 1000)
            silent = 0 if self.link.heard != heard else silent + 1
            heard = self.link.heard
        seconds = self.times.silent_pings * self.times.ping / 1000
        self.link.give_up(f"it did not answer for {seconds:g} s")
