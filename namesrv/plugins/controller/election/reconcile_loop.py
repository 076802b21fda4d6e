"""The reconcile loop: while a group has no live master, elect, retry with back-off, and say why it does not
work.

One task per group that needs an election, so that no group waits for another. Woken by a master that became
inactive, by a broker that became active, by becoming active, by the end of the grace window, and by the
period.
"""

import asyncio
import logging
from collections.abc import Callable

from namesrv.core.liveness import BrokerKey
from namesrv.plugins.controller.core.decide import elect_event
from namesrv.plugins.controller.core.elect import Election, LiveView, Verdict
from namesrv.plugins.controller.core.reconcile import (
    Retry,
    needs_election,
    next_due_ms,
    next_retry,
    try_election,
)
from namesrv.plugins.controller.core.state import BrokerSet
from namesrv.plugins.controller.core.tally import ELECTED, NOBODY, ElectionTally
from namesrv.plugins.controller.proposer import Proposer
from namesrv.plugins.controller.settings import LiveConfig
from namesrv.plugins.controller.watch import Watch
from remoting.command import encode, request_command
from remoting.operation import CommandError
from remoting.operations.controller import (
    NOTIFY_BROKER_ROLE_CHANGED,
    NotifyBrokerRoleChangedRequest,
    SyncStateSet,
)
from remoting.tasks import wait_for_event

logger = logging.getLogger(__name__)


class Elections:
    """Lives in the event loop. `tally`: what became of them, for metrics and people."""

    def __init__(
        self,
        proposer: Proposer,
        watch: Watch,
        config: LiveConfig,
        clock: Callable[[], int],
        tally: ElectionTally | None = None,
    ) -> None:
        self._proposer, self._watch, self._config, self._clock = proposer, watch, config, clock
        self.tally = tally or ElectionTally()
        self._wake = asyncio.Event()
        self._names: set[str] = set()
        self._running: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._next_pass_ms = 0
        self._judged = True
        self.retries: dict[str, Retry] = {}
        self.controllers: Callable[[], str | None] = lambda: None  # that brokers should be told of

    def look_at(self, broker_name: str) -> None:
        """This group may need an election now."""
        self._names.add(broker_name)
        self._wake.set()

    def look_at_all(self) -> None:
        self._next_pass_ms = 0
        self._wake.set()

    def active_changed(self, is_active: bool) -> None:
        self.retries.clear()
        if is_active:
            self._watch.became_active(self._config.current.controller_grace_ms)
            self._judged = False
            self.notify_all()  # the one before us may have died between its election and its notifications
        self.look_at_all()

    def became_inactive(self, key: BrokerKey) -> None:
        broker_set = self._proposer.state.brokers.get(key.broker_name)
        if broker_set is not None and broker_set.cluster_name == key.cluster_name:
            self.look_at(key.broker_name)

    async def run(self) -> None:
        while True:
            if self._proposer.is_active:
                self._start_due(self._clock())
            await wait_for_event(self._wake, self._sleep_ms(self._clock()))

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def notify_all(self) -> None:
        for broker_set in self._proposer.state.brokers.values():
            if broker_set.master_broker_id is not None:
                self.notify(broker_set)

    def notify(self, broker_set: BrokerSet, only: int | None = None) -> None:
        """Push 1008 over the connections that the live replicas opened to us; polling is their safety net."""
        if not self._config.current.notify_broker_role_changed:
            return
        header = NotifyBrokerRoleChangedRequest(
            master_address=broker_set.master_address,
            master_epoch=broker_set.master_epoch,
            sync_state_set_epoch=broker_set.sync_state_set_epoch,
            master_broker_id=broker_set.master_broker_id,
            broker_name=broker_set.broker_name,
            controllers=self.controllers(),
        )
        body = SyncStateSet(
            sync_state_set=sorted(broker_set.sync_state_set),
            sync_state_set_epoch=broker_set.sync_state_set_epoch,
        )
        frame = encode(request_command(NOTIFY_BROKER_ROLE_CHANGED, header, body, oneway=True))
        for broker_id in sorted(broker_set.replicas) if only is None else [only]:
            heard = self._watch.heard(broker_set.key(broker_id))
            if heard is not None:
                heard.peer.send(frame)

    def elected(self, broker_set: BrokerSet, reason: str) -> None:
        """After an applied election, asked for or our own."""
        self.tally.count(broker_set, ELECTED, reason)
        self.retries.pop(broker_set.broker_name, None)
        logger.info(
            "%s: master is %s, masterEpoch %d, SyncStateSet %s (%s)",
            broker_set.broker_name, broker_set.master_broker_id, broker_set.master_epoch,
            sorted(broker_set.sync_state_set), reason,
        )  # fmt: skip
        self.notify(broker_set)

    def _start_due(self, now_ms: int) -> None:
        names, self._names = self._names, set()
        names.update(name for name, retry in self.retries.items() if retry.due_ms <= now_ms)
        if not self._judged and self._watch.judges_in_ms() == 0:
            self._judged, self._next_pass_ms = True, 0
        if now_ms >= self._next_pass_ms:
            self._next_pass_ms = now_ms + self._config.current.scan_inactive_master_interval
            names.update(self._proposer.state.brokers)
        self._names |= names & self._running  # what happened during an election is looked at after it
        for name in sorted(names - self._running):
            broker_set = self._proposer.state.brokers.get(name)
            if broker_set is None or not needs_election(broker_set, self._watch.view(broker_set)):
                self.retries.pop(name, None)
                continue
            self._running.add(name)
            task = asyncio.create_task(self._elect(name), name=f"elect {name}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _sleep_ms(self, now_ms: int) -> int:
        deadlines = [self._next_pass_ms]
        if not self._judged:
            deadlines.append(now_ms + self._watch.judges_in_ms())
        due_ms = next_due_ms(
            {each: retry for each, retry in self.retries.items() if each not in self._running}
        )
        if due_ms is not None:
            deadlines.append(due_ms)
        if not self._proposer.is_active:
            return self._config.current.scan_inactive_master_interval
        return max(1, min(deadlines) - now_ms)

    async def _elect(self, name: str) -> None:
        try:
            await self._elect_once(name)
        finally:
            self._running.discard(name)
            self._wake.set()

    async def _elect_once(self, name: str) -> None:
        broker_set = self._proposer.state.brokers.get(name)
        if broker_set is None:
            return  # cleaned meanwhile
        view = self._watch.view(broker_set)
        election = try_election(
            broker_set,
            view,
            self.retries.get(name),
            now_ms=self._clock(),
            unclean=self._config.current.enable_elect_unclean_master,
            clear_after_ms=self._config.current.scan_inactive_master_interval,
        )
        if election is None:
            self.retries.pop(name, None)
            return
        if election.verdict is Verdict.WAIT:
            self._failed(name, election.reason)
            return
        await self._propose(broker_set, election, view)

    async def _propose(self, broker_set: BrokerSet, election: Election, view: LiveView) -> None:
        name = broker_set.broker_name
        try:
            applied = await self._proposer.propose(elect_event(broker_set, election, view))
        except CommandError as error:
            self._failed(name, error.remark)
            return
        if applied.refused is not None and applied.before == broker_set:
            self._failed(name, applied.refused.remark)  # nothing changed: at once it would be refused again
        elif applied.refused is not None:
            self.look_at(name)  # fenced: it changed since we looked, perhaps by a broker's own 1002
        elif applied.after is not None and applied.after.master_broker_id is not None:
            self.elected(applied.after, election.reason)
        elif applied.after is not None:
            self._failed(name, f"{election.reason}; the master is cleared")
            self.notify(applied.after)

    def _failed(self, name: str, reason: str) -> None:
        broker_set = self._proposer.state.brokers.get(name)
        if broker_set is None:
            return  # cleaned meanwhile
        self.tally.count(broker_set, NOBODY, reason)
        before = self.retries.get(name)
        if before is None or before.reason != reason:
            logger.warning("%s has no live master: %s; it is tried again", name, reason)
        self.retries[name] = next_retry(
            before,
            now_ms=self._clock(),
            reason=reason,
            retry_max_ms=self._config.current.scan_inactive_master_interval,
        )
