"""Elections: the reconcile loop, which elects a master for every group without a live master.

Each group that needs an election gets a task, so that no group waits for another. A failed election is
repeated with back-off, and its reason is stored. The loop wakes when a broker becomes active or inactive,
when this controller becomes active, when its grace window ends, and periodically.
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine

from keelmq.remoting.operation import CommandError
from keelmq.runtime.tasks import cancel_all, wait_for_event
from namesrv.core.liveness import BrokerKey
from namesrv.plugins.controller.core.apply import Applied
from namesrv.plugins.controller.core.decide import elect_event
from namesrv.plugins.controller.core.elect import Election, LiveView, Verdict
from namesrv.plugins.controller.core.events import AnyEvent, CleanBrokerData, ElectMaster
from namesrv.plugins.controller.core.reconcile import (
    Retry,
    needs_election,
    next_due_ms,
    next_retry,
    try_election,
)
from namesrv.plugins.controller.core.state import BrokerSet
from namesrv.plugins.controller.core.tally import NEW_MASTER_ELECTED, NO_MASTER_ELECTED, ElectionTally
from namesrv.plugins.controller.election.liveness_view import LivenessView
from namesrv.plugins.controller.election.role_change_notifier import RoleChangeNotifier
from namesrv.plugins.controller.proposer import Proposer
from namesrv.plugins.controller.settings import LiveConfig

logger = logging.getLogger(__name__)

GROUPS_AT_ONCE = 500
"""Groups that one step checks: 2 ms."""


class Elections:
    """Event loop only. `clock`: monotonic ms. `tally`: counts the results. `retries`: the groups whose last
    election failed."""

    def __init__(
        self,
        proposer: Proposer,
        liveness_view: LivenessView,
        config: LiveConfig,
        clock: Callable[[], int],
        notifier: RoleChangeNotifier,
        tally: ElectionTally,
    ) -> None:
        self._proposer, self._liveness_view, self._config = proposer, liveness_view, config
        self._clock, self._notifier, self.tally = clock, notifier, tally
        self._wake = asyncio.Event()
        self._names: set[str] = set()
        self._running: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._notifying: asyncio.Task[None] | None = None
        self._next_pass_ms = 0
        self._grace_is_over = True
        self.retries: dict[str, Retry] = {}

    def check_group(self, broker_name: str) -> None:
        """Checks at once whether this group needs an election."""
        self._names.add(broker_name)
        self._wake.set()

    def check_all_groups(self) -> None:
        """Checks at once which groups need an election."""
        self._next_pass_ms = 0
        self._wake.set()

    def active_changed(self, is_active: bool) -> None:
        """Called when this controller becomes active, and when it no longer is."""
        self.retries.clear()
        if self._notifying is not None:
            self._notifying.cancel()
        if is_active:
            self._liveness_view.became_active(self._config.current.controller_grace_ms)
            self._grace_is_over = False
            # the previous leader may have died before it sent the 1008s
            self._notifying = self._start(self._notifier.notify_all(), "notify all brokers")
        self.check_all_groups()

    def broker_became_active(self, key: BrokerKey) -> None:
        """Checks the group, and sends the broker the 1008 that it may have missed. Active controller only."""
        if not self._proposer.is_active:
            return
        broker_set = self._proposer.state.brokers.get(key.broker_name)
        if broker_set is None or key.broker_id not in broker_set.replicas:
            return
        if broker_set.master_broker_id is not None:
            self._notifier.notify(broker_set, only=key.broker_id)
        self.check_group(key.broker_name)

    def broker_became_inactive(self, key: BrokerKey) -> None:
        """Checks the group of the broker. Active controller only."""
        if not self._proposer.is_active:
            return
        broker_set = self._proposer.state.brokers.get(key.broker_name)
        if broker_set is not None and broker_set.cluster_name == key.cluster_name:
            self.check_group(key.broker_name)

    async def run(self) -> None:
        """Runs the loop until it is cancelled. Does nothing while this controller is not active."""
        while True:
            if self._proposer.is_active:
                await self.start_due(self._clock())
            await wait_for_event(self._wake, self._sleep_ms(self._clock()))

    async def stop(self) -> None:
        """Cancels the elections in progress and waits for them."""
        await cancel_all(self._tasks)

    def applied(self, event: AnyEvent, applied: Applied) -> None:
        """Implements EventHook: raft thread, at every controller and during replay.

        So brokers are notified even of an election whose proposal was Unknown and which was applied later.
        """
        if not isinstance(event, ElectMaster | CleanBrokerData) or applied.after is applied.before:
            return  # refused: the group has not changed
        self._proposer.call_in_loop(functools.partial(self._take_effect, event, applied))

    def _take_effect(self, event: ElectMaster | CleanBrokerData, applied: Applied) -> None:
        """Does nothing unless this controller is active: when it becomes so, notify_all() covers the events
        that were applied before."""
        if not self._proposer.is_active:
            return
        after = applied.after
        if after is None or after.master_broker_id is None:
            if after is not None:
                self._notifier.notify(after)
            if (
                event.broker_name not in self._running
            ):  # an election of this loop that failed has its own retry
                self.check_group(event.broker_name)
        elif isinstance(event, ElectMaster):
            self._elected(after, event.reason)
        else:
            self._notifier.notify(after)

    def _elected(self, broker_set: BrokerSet, reason: str) -> None:
        self.tally.count(broker_set, NEW_MASTER_ELECTED, reason)
        self.retries.pop(broker_set.broker_name, None)
        logger.info(
            "%s: master is %s, masterEpoch %d, SyncStateSet %s (%s)",
            broker_set.broker_name, broker_set.master_broker_id, broker_set.master_epoch,
            sorted(broker_set.sync_state_set), reason,
            extra={
                "brokerName": broker_set.broker_name,
                "masterBrokerId": broker_set.master_broker_id,
                "masterEpoch": broker_set.master_epoch,
                "syncStateSet": sorted(broker_set.sync_state_set),
                "reason": reason,
            },
        )  # fmt: skip
        self._notifier.notify(broker_set)

    async def start_due(self, now_ms: int) -> None:
        """With thousands of groups, other requests are served after every GROUPS_AT_ONCE groups."""
        names, self._names = self._names, set()
        names.update(name for name, retry in self.retries.items() if retry.due_ms <= now_ms)
        if not self._grace_is_over and self._liveness_view.grace_left_ms() == 0:
            self._grace_is_over, self._next_pass_ms = True, 0
        if now_ms >= self._next_pass_ms:
            self._next_pass_ms = now_ms + self._config.current.scan_inactive_master_interval
            names.update(self._proposer.state.brokers)
        for number, name in enumerate(sorted(names), 1):
            if number % GROUPS_AT_ONCE == 0:
                await asyncio.sleep(0)
                if not self._proposer.is_active:
                    return
            if name in self._running:
                self._names.add(name)  # checked again after its election
                continue
            broker_set = self._proposer.state.brokers.get(name)
            if broker_set is None or not needs_election(broker_set, self._liveness_view.view(broker_set)):
                self.retries.pop(name, None)
                continue
            self._running.add(name)
            self._start(self._elect(name), f"elect {name}")

    def _start(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _sleep_ms(self, now_ms: int) -> int:
        deadlines = [self._next_pass_ms]
        if not self._grace_is_over:
            deadlines.append(now_ms + self._liveness_view.grace_left_ms())
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
            return  # it was cleaned in the meantime
        view = self._liveness_view.view(broker_set)
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
            self._failed(name, applied.refused.remark)  # an unchanged group would be refused again at once
        elif applied.refused is not None:
            self.check_group(name)  # fenced: the group has changed, perhaps by a broker's own 1002
        elif applied.after is not None and applied.after.master_broker_id is None:
            self._failed(name, f"{election.reason}; the master is cleared")
            if election.verdict is Verdict.REFUSED:
                self.check_group(name)  # a member of the restored SyncStateSet may be alive

    def _failed(self, name: str, reason: str) -> None:
        broker_set = self._proposer.state.brokers.get(name)
        if broker_set is None:
            return  # it was cleaned in the meantime
        self.tally.count(broker_set, NO_MASTER_ELECTED, reason)
        before = self.retries.get(name)
        if before is None or before.reason != reason:
            logger.warning("%s has no live master: %s; the election is repeated", name, reason)
        self.retries[name] = next_retry(
            before,
            now_ms=self._clock(),
            reason=reason,
            retry_max_ms=self._config.current.scan_inactive_master_interval,
        )
