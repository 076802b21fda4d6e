"""KeptBrokers: the brokers that a worker should have. They are restarted after the worker was restarted.

They start one after the other, to find a broker that ends the whole process in its start: after BLAMED_MAX
times it is not started again, so the others can run. A blamed broker starts after the others.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import msgspec

from broker.container.core.identity import BrokerIdentity
from broker.container.host import BrokerRefused, HostObserver, InnerSetup
from keelmq.remoting.operations.container import BrokerState, InnerBroker

logger = logging.getLogger(__name__)

BLAMED_MAX: Final = 3
"""After the worker ended in this many consecutive starts of a broker, the broker is not started any more."""


class Kept(msgspec.Struct):
    """A broker that was started once. is_reported: the observer knows that it failed. blamed: starts in which
    the worker ended, in a row."""

    setup: InnerSetup
    is_up: bool = True
    is_reported: bool = False
    blamed: int = 0

    def described(self, worker: int, reason: str) -> InnerBroker:
        """Returns the broker while its worker is down."""
        cluster, name, broker_id = self.setup.identity
        return InnerBroker(
            broker_cluster_name=cluster,
            broker_name=name,
            broker_id=broker_id,
            canonical_name=self.setup.identity.canonical_name,
            state=BrokerState.STARTING,
            reason=reason,
            config_path=str(self.setup.config_path),
            worker=worker,
        )


class KeptBrokers:
    """By identity. `observer`, if there is one, receives the events of brokers that no request caused."""

    def __init__(self, observer: HostObserver | None = None) -> None:
        self.observer = observer
        self._kept: dict[BrokerIdentity, Kept] = {}
        self._starting: tuple[BrokerIdentity, asyncio.Task[None]] | None = None

    def __iter__(self) -> Iterator[Kept]:
        return iter(self._kept.values())

    def get(self, identity: BrokerIdentity) -> Kept | None:
        """None: it is not kept."""
        return self._kept.get(identity)

    def add(self, setup: InnerSetup) -> None:
        """Keeps a broker that serves."""
        self._kept[setup.identity] = Kept(setup)

    async def take(self, identity: BrokerIdentity) -> None:
        """Forgets a broker, because a request starts or stops it; ends a start that is going on."""
        self._kept.pop(identity, None)
        if self._starting is not None and self._starting[0] == identity:
            task = self._starting[1]
            task.cancel()
            await asyncio.wait([task])

    def all_down(self) -> None:
        """The worker was stopped on purpose: there is nothing to report."""
        for kept in self:
            kept.is_up = False

    def all_failed(self, reason: str) -> None:
        """The worker ended: reports the brokers that were up."""
        for kept in list(self):
            self.failed(kept.setup.identity, reason)

    def failed(self, identity: BrokerIdentity, reason: str) -> None:
        """Reports a broker once until it serves again."""
        kept = self._kept.get(identity)
        if kept is not None:
            kept.is_up = False
            if not kept.is_reported:
                kept.is_reported = True
                self._tell_failed(identity, reason)

    def restarted(self, identity: BrokerIdentity) -> None:
        """Reports a broker that had failed and serves again."""
        kept = self._kept.get(identity)
        if kept is not None:
            kept.is_up, kept.blamed = True, 0
            if kept.is_reported:
                kept.is_reported = False
                if self.observer is not None:
                    self.observer.broker_restarted(identity)

    async def start_again(
        self, start: Callable[[InnerSetup], Awaitable[None]], has_ended: Callable[[], bool]
    ) -> None:
        """Starts all brokers that are not up, with start(), until the worker has ended. A refusal is
        reported, and the broker forgotten: its next start is up to the caller of the first one."""
        for kept in sorted(self, key=lambda kept: kept.blamed):
            identity = kept.setup.identity
            if has_ended():
                return
            if kept.is_up or self._kept.get(identity) is not kept:
                continue  # a request was faster
            refusal = await self._start(kept, start)
            if self._kept.get(identity) is not kept:
                continue
            if refusal is None:
                self.restarted(identity)
            elif has_ended():
                self._blame(kept, refusal)
                return
            else:
                self._drop(kept, refusal)

    async def _start(self, kept: Kept, start: Callable[[InnerSetup], Awaitable[None]]) -> str | None:
        """Returns the refusal; None: it serves, or a request handles it."""

        async def started() -> None:
            await start(kept.setup)

        task = asyncio.create_task(started(), name=f"restart of {kept.setup.identity.canonical_name}")
        self._starting = kept.setup.identity, task
        try:
            await asyncio.wait([task])
        finally:
            self._starting = None
            task.cancel()
        try:
            return None if task.cancelled() else task.result()
        except BrokerRefused as error:
            return str(error)

    def _blame(self, kept: Kept, refusal: str) -> None:
        kept.blamed += 1
        logger.error(
            "%s: start %d of %d in which the worker ended: %s",
            kept.setup.identity.canonical_name,
            kept.blamed,
            BLAMED_MAX,
            refusal,
        )
        if kept.blamed >= BLAMED_MAX:
            self._drop(
                kept,
                f"the worker ended {kept.blamed} times while it started, so it stays out: {refusal}; read "
                "the log, repair its store or its file, and add it again",
            )

    def _drop(self, kept: Kept, reason: str) -> None:
        """Reported in any case: the reason differs from that of the worker's end."""
        del self._kept[kept.setup.identity]
        self._tell_failed(kept.setup.identity, reason)

    def _tell_failed(self, identity: BrokerIdentity, reason: str) -> None:
        if self.observer is not None:
            self.observer.broker_failed(identity, reason)
