"""WorkerHost: a BrokerHost whose brokers run in a worker process, which it starts, watches and starts again.

If a worker ends, only its own brokers go down. They are reported as failed; after a pause the process and its
brokers are started again.
"""

import asyncio
import logging
import random
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from broker.container.core.identity import BrokerIdentity
from broker.container.host import CLOSING, BrokerRefused, HostObserver, InnerSetup
from broker.container.workers.kept import KeptBrokers
from broker.container.workers.link import Event, Link
from broker.container.workers.messages import (
    BrokerFailed,
    Brokers,
    Change,
    Close,
    Command,
    DescribeWorker,
    Done,
    Leave,
    ListBrokers,
    MetricsText,
    ReadMetrics,
    Result,
    Start,
    Stop,
    WorkerState,
)
from broker.container.workers.running import Launch, RunningWorker
from keelmq.remoting.operations.container import InnerBroker, Worker
from keelmq.runtime.clock import now_ms
from keelmq.runtime.stop_steps import StopError
from keelmq.runtime.tasks import TaskSet

if TYPE_CHECKING:
    from prometheus_client.core import Metric

logger = logging.getLogger(__name__)

HEALTHY_AFTER_MS: Final = 60_000
"""After a worker ran this long, the next restart uses the first back-off."""

R = TypeVar("R", bound=Result)


class _Attempt(msgspec.Struct, eq=False):
    """A start. link: of the worker that received it. is_alone: no other start ran at the same time."""

    link: Link | None = None
    is_alone: bool = True


class WorkerHost:
    """See BrokerHost. open() comes first."""

    def __init__(self, launch: Launch) -> None:
        self.number = launch.number
        self._launch, self._times = launch, launch.times
        self._tasks = TaskSet()
        self._kept = KeptBrokers()
        self._worker: RunningWorker | None = None
        """None: it is down."""
        self._next: RunningWorker | None = None
        """The next process; it takes over when the present one has ended."""
        self._up, self._gone, self._all_tried = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._gone.set()
        self._restarts = 0
        self._reason = ""
        """Why it ended last."""
        self._is_closing = self._is_planned = False
        self._restarting, self._alone = asyncio.Lock(), asyncio.Lock()
        self._starts: set[_Attempt] = set()
        self._begun: asyncio.Future[str] | None = None
        """Of the present process, or of the next one: why it could not begin, or empty."""

    async def open(self, observer: HostObserver) -> None:
        """Returns when the worker runs, without brokers. Raises BrokerRefused: it cannot be started. Once."""
        self._kept.observer = observer
        begun = self._begun = asyncio.get_running_loop().create_future()
        self._tasks.start(f"worker {self.number}", self._run)
        if reason := await asyncio.shield(begun):
            await self.close()
            raise BrokerRefused(reason)

    # -- BrokerHost ----------------------------------------------------------------------------------------

    async def start(self, setup: InnerSetup) -> None:
        """See BrokerHost. Waits for a worker that is just started again. If it ends in several starts at
        once, as when the container starts, each is tried again alone: only one broker is to blame."""
        attempt = _Attempt()
        self._starts.add(attempt)
        if len(self._starts) > 1:
            for each in self._starts:
                each.is_alone = False
        try:
            await self._try_to_start(setup, attempt)
        except BrokerRefused:
            if attempt.is_alone or attempt.link is None or not attempt.link.has_ended.is_set():
                raise
        else:
            return
        finally:
            self._starts.discard(attempt)
        async with self._alone:
            await self._try_to_start(setup, _Attempt())

    async def _try_to_start(self, setup: InnerSetup, attempt: "_Attempt") -> None:
        purpose = f"starting {setup.identity.canonical_name}"
        with suppress(TimeoutError):
            async with asyncio.timeout(self._times.up / 1000):
                await self._until_up()
        link = attempt.link = self._link(purpose)
        kept = self._kept.get(setup.identity)
        if kept is not None and kept.is_up:
            raise BrokerRefused(f"{purpose}: it runs in {link.name} already, from {kept.setup.config_path}")
        await self._kept.take(setup.identity)
        await self._start_in(link, setup)
        if link.has_ended.is_set():  # after its answer; no other code reports this broker
            raise BrokerRefused(f"{purpose}: {link.name} ended right after it: {link.reason}")
        self._kept.add(setup)

    async def _until_up(self) -> None:
        while True:
            await self._up.wait()
            if self._worker is not None and not self._worker.link.has_ended.is_set():
                return
            await self._gone.wait()  # it has just ended

    async def stop(self, identity: BrokerIdentity, *, hand_over: bool) -> None:
        """See BrokerHost. Whatever the outcome, the broker is not started again."""
        purpose = f"stopping {identity.canonical_name}"
        async with self._restarting:
            await self._kept.take(identity)
        if self._worker is None or self._worker.link.has_ended.is_set():
            await self._gone.wait()  # a worker that hangs has its ports until it is killed
            return
        link = self._worker.link
        try:
            await self._ask(link, Stop(identity=identity, hand_over=hand_over), Done, purpose)
        except BrokerRefused as error:
            if not link.has_ended.is_set():
                raise
            raise BrokerRefused(f"{error}; the broker ended with it, and is not started again") from error

    async def brokers(self) -> list[InnerBroker]:
        """See BrokerHost. Brokers that a worker lost are listed as starting, since they start again."""
        found: list[InnerBroker] = []
        reason = self._reason
        try:
            purpose = "listing its brokers"
            found = (await self._ask(self._link(purpose), ListBrokers(), Brokers, purpose)).brokers
        except BrokerRefused as error:
            reason = reason or str(error)
        listed = {broker.config_path for broker in found}
        lost = (each for each in self._kept if str(each.setup.config_path) not in listed)
        return found + [each.described(self.number, reason) for each in lost]

    async def worker(self) -> Worker:
        """See BrokerHost."""
        ours = {"number": self.number, "restarts": self._restarts, "reason": self._reason}
        try:
            purpose = "its status"
            state = await self._ask(self._link(purpose), DescribeWorker(), WorkerState, purpose)
        except BrokerRefused as error:
            pid = 0 if self._worker is None else self._worker.process.pid
            down = Worker(number=self.number, pid=pid, is_running=pid != 0)
            return down.model_copy(update=ours | {"reason": self._reason or str(error)})
        return state.worker.model_copy(update=ours)

    async def metrics(self) -> "Iterable[Metric]":
        """See BrokerHost. Empty for a worker that does not answer: a scrape shows what is available."""
        from broker.container.workers.metrics_text import to_families

        try:
            answer = await self._ask(self._link("metrics"), ReadMetrics(), MetricsText, "metrics")
        except BrokerRefused as error:
            logger.warning("metrics of the brokers of worker %d are missing: %s", self.number, error)
            return []
        return to_families(answer.text)

    async def leave(self) -> None:
        """See BrokerHost. A worker that cannot is only logged, since close() follows."""
        purpose = "the hand-over"
        try:
            await self._ask(self._link(purpose), Leave(), Done, purpose)
        except BrokerRefused as error:
            logger.warning("%s", error)

    async def change(self, settings: Mapping[str, str]) -> None:
        """See BrokerHost."""
        self._launch.changed.update(settings)
        purpose = "changed settings"
        await self._ask(self._link(purpose), Change(settings=dict(settings)), Done, purpose)
        if self._next is not None:  # a restart is going on, and it has begun already
            await self._ask(self._next.link, Change(settings=dict(settings)), Done, purpose)

    async def restart(self) -> None:
        """See BrokerHost. The new process runs before the old one stops: brokers are not down while it
        imports modules and reads its configuration. Brokers that cannot start again are reported to the
        observer. Raises BrokerRefused, and nothing was stopped: the worker is down, or none can begin."""
        purpose = "the restart"
        async with self._restarting:
            link = self._link(purpose)
            logger.info("%s: restarting on request", link.name)
            try:
                self._next = await RunningWorker.begin(self._launch, self._on_event)
            except OSError as error:
                raise BrokerRefused(f"no process for {purpose}: {error}") from error
            try:
                await self.leave()
                if self._is_closing or link.has_ended.is_set():
                    raise BrokerRefused(f"{link.name} ended before its restart: {link.reason or CLOSING}")
                self._is_planned = True
            finally:
                if not self._is_planned and (self._is_closing or not link.has_ended.is_set()):
                    await self._end_next()  # else _run() handles it
            begun = self._begun = asyncio.get_running_loop().create_future()
            try:
                await self._ask(link, Close(), Done, purpose)
            except BrokerRefused as error:
                logger.warning("%s", error)
                link.give_up(f"it could not stop its brokers: {error}")
            if reason := await asyncio.shield(begun):
                raise BrokerRefused(reason)
            await self._all_tried.wait()

    async def _end_next(self) -> None:
        worker, self._next = self._next, None
        if worker is not None:
            worker.link.give_up("it is not needed")
            await worker.until_end()

    async def close(self) -> None:
        """See BrokerHost. Afterwards there is no process. Cancelled, it kills the process at once."""
        self._is_closing = True
        failed = ""
        try:
            if self._worker is not None:
                await self._ask(self._worker.link, Close(), Done, "its stop")
                async with asyncio.timeout(self._times.exit / 1000):
                    await self._gone.wait()
        except (BrokerRefused, TimeoutError) as error:
            failed = str(error) or "its process did not end"
        except asyncio.CancelledError:
            if self._worker is not None:
                self._worker.link.give_up("it did not stop in time")
            raise
        finally:
            await self._tasks.stop()
            await self._end_next()
            self._set_begun(CLOSING)
        if failed:
            raise StopError(f"worker {self.number}: {failed}")

    # -- the process ---------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Runs one process after the other."""
        failures = 0
        while not self._is_closing:
            begun_ms = now_ms()
            reason = await self._run_process()
            if self._is_closing:
                return
            self._restarts, self._reason = self._restarts + 1, reason
            if self._is_planned:
                self._is_planned, failures, self._reason = False, 0, "it was restarted on request"
                self._kept.all_down()
                continue
            failures = 1 if now_ms() - begun_ms >= HEALTHY_AFTER_MS else failures + 1
            pause_ms = self._times.restart.pause_ms(failures, random.random())
            logger.error("%s; restarting it in %d ms", reason, pause_ms)
            self._kept.all_failed(f"{reason}; both are started again")
            await asyncio.sleep(pause_ms / 1000)

    async def _run_process(self) -> str:
        """Returns why it has ended, or could not begin."""
        self._gone.clear()
        try:
            worker, self._next = self._next, None
            if worker is not None and worker.link.has_ended.is_set():
                logger.error("%s", await worker.until_end())
                worker = None
            if worker is None:
                worker = await RunningWorker.begin(self._launch, self._on_event)
        except (OSError, BrokerRefused) as error:
            self._gone.set()
            reason = f"worker {self.number} cannot start: {error}"
            self._set_begun(reason)
            return reason
        except BaseException:
            self._gone.set()
            raise
        self._worker = worker
        self._all_tried.clear()
        self._up.set()
        self._set_begun("")
        again = asyncio.create_task(self._start_again(worker.link), name=f"brokers of {worker.link.name}")
        try:
            reason = await worker.until_end()
            await again  # it ends with the link, after it has found out which start ended the worker
            return reason
        finally:
            self._up.clear()
            self._worker = None
            again.cancel()
            await asyncio.wait([again])
            self._gone.set()

    async def _start_again(self, link: Link) -> None:
        async def start(setup: InnerSetup) -> None:
            await self._start_in(link, setup)

        try:
            await self._kept.start_again(start, link.has_ended.is_set)
        finally:
            self._all_tried.set()

    def _set_begun(self, reason: str) -> None:
        if self._begun is not None and not self._begun.done():
            self._begun.set_result(reason)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, BrokerFailed):
            self._kept.failed(event.identity, event.reason)
        else:
            self._kept.restarted(event.identity)

    # -- requests ------------------------------------------------------------------------------------------

    def _link(self, purpose: str) -> Link:
        """Raises BrokerRefused: the worker is down."""
        worker = self._worker
        if worker is None or not self._up.is_set() or self._is_closing:
            reason = CLOSING if self._is_closing else self._reason or "it is being started"
            raise BrokerRefused(f"worker {self.number} does not run ({purpose}): {reason}")
        return worker.link

    async def _start_in(self, link: Link, setup: InnerSetup) -> None:
        command = Start(identity=setup.identity, config_path=setup.config_path)
        await self._ask(link, command, Done, f"starting {setup.identity.canonical_name}")

    async def _ask(self, link: Link, command: Command, result: type[R], purpose: str) -> R:
        times = self._times
        deadline_ms = {Start: times.start, Stop: times.stop, Leave: times.stop, Close: times.stop}.get(
            type(command), times.read
        )
        return await link.request(command, result, deadline_ms=deadline_ms, purpose=purpose)
