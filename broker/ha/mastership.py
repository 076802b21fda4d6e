"""One term as master: it moves confirmOffset, and its one task maintains the SyncStateSet with the
controller.

advance_confirm_offset() is the only place where a master's confirmOffset moves; the rule is in
broker/core/confirm_offset.py. maintain_sync_state_set() proposes every change of the set; the rule that
shrinks or expands it is in broker/core/sync_state_set.py.
"""

import asyncio
import logging
import random
from collections.abc import Callable

from broker.core.confirm_offset import confirm_offset, replicated_offset
from broker.core.sync_state_set import JOIN_PAUSE_FIRST_MS, SyncStateSet, SyncStateSetManager
from broker.ha.core.master_link import MasterLink
from broker.ha.master_server import MasterServer
from broker.ha.ports import Clock, HaSettings, SyncStateSetController
from broker.store.message_store import MessageStore
from keelmq.remoting.operations.controller import SyncStateSet as SyncStateSetBody
from keelmq.runtime.backoff import Backoff
from keelmq.runtime.tasks import wait_for_event

logger = logging.getLogger(__name__)

RETRY = Backoff(first_ms=JOIN_PAUSE_FIRST_MS // 2, max_ms=1_000)
CHECK_PERIOD_MS = 100
"""The task checks the set this often; acks and lost links wake it at once."""


def from_body(body: SyncStateSetBody) -> SyncStateSet:
    """Returns the set of the wire's SyncStateSet."""
    return SyncStateSet(frozenset(body.sync_state_set), body.sync_state_set_epoch)


class Mastership:
    """One term. After stop() it neither touches the store nor calls back."""

    def __init__(
        self,
        store: MessageStore,
        server: MasterServer,
        controller: SyncStateSetController,
        settings: HaSettings,
        clock: Clock,
        *,
        broker_id: int,
        epoch: int,
        sync_state_set: SyncStateSet,
        on_replicated: Callable[[int], None],
        on_in_sync_changed: Callable[[int], None],
        on_confirm_offset: Callable[[], None],
        metadata_lag_ms: Callable[[int, int], int],
    ) -> None:
        self.broker_id = broker_id
        self.epoch = epoch
        self.sync_state_set_manager = SyncStateSetManager(
            broker_id,
            sync_state_set,
            all_ack=settings.all_ack,
            max_lag_ms=settings.max_time_slave_not_catchup_ms,
            now_ms=clock(),
        )
        self._store, self._server, self._controller = store, server, controller
        self._settings, self._clock = settings, clock
        self._on_replicated, self._on_in_sync_changed = on_replicated, on_in_sync_changed
        self._on_confirm_offset = on_confirm_offset
        self._metadata_lag_ms = metadata_lag_ms
        self._replicated = store.confirm_offset
        self._told_offset = -1
        self._told_count = -1
        self._wake = asyncio.Event()
        self._is_over = False

    def configure(self, settings: HaSettings) -> None:
        """Applies changed settings. Confirmed bytes stay confirmed, even if the new settings require more."""
        self._settings = settings
        self.sync_state_set_manager.configure(
            all_ack=settings.all_ack, max_lag_ms=settings.max_time_slave_not_catchup_ms
        )
        self._wake.set()
        self.advance_confirm_offset()

    def stop(self) -> None:
        """Ends the term. The task returns at its next step."""
        self._is_over = True
        self._wake.set()

    # -- offsets -----------------------------------------------------------------------------------------

    def appended(self) -> None:
        """The log grew. With allAckInSyncStateSet this confirms nothing, unless the master is the only
        member."""
        if not self._settings.all_ack or not self.sync_state_set_manager.others:
            self.advance_confirm_offset()

    def advance_confirm_offset(self) -> None:
        """Moves confirmOffset and the replicated offset as far as the log, the acks and the set allow.

        Called for every append, ack and change of the set, so it must be cheap.
        """
        state, manager, settings = self._server.state, self.sync_state_set_manager, self._settings
        log = self._store.commit_log
        end = state.max_offset = log.max_offset
        acks = {
            slave_id: link.ack_offset for slave_id, link in self._server.links.items() if not link.learner
        }
        if settings.all_ack:
            replicated = confirm_offset(
                self._replicated, max_offset=end, others=manager.others, acks=acks, all_ack=True
            )
            readable = replicated
        else:
            replicated = replicated_offset(
                max_offset=end, others=manager.agreed_others, acks=acks, copies=settings.in_sync_replicas
            )
            readable = end
        if settings.sync_flush:
            readable = min(readable, log.flushed_offset)  # a power failure could remove the rest
        self._replicated = max(replicated, self._replicated)
        if replicated > self._told_offset:  # first: producers wait for it; no request waits for confirmOffset
            self._told_offset = replicated
            self._on_replicated(replicated)
        self._confirm(max(readable, self._store.confirm_offset))

    def _confirm(self, offset: int) -> None:
        self._server.state.confirm_offset = offset
        if offset > self._store.confirm_offset:
            self._store.set_confirm_offset(offset)
            self._on_confirm_offset()

    def acked(self, link: MasterLink) -> None:
        """Called for every ack. A slave outside of the set may join now, so the task is woken."""
        self.advance_confirm_offset()
        if (
            link.slave_id not in self.sync_state_set_manager.agreed.members
            and not link.learner
            and not self.sync_state_set_manager.in_flight
        ):
            self._wake.set()

    def links_changed(self) -> None:
        """Called when a slave connects or is lost."""
        self._wake.set()

    # -- metadata ----------------------------------------------------------------------------------------

    def metadata_caught_up(self, slave_id: int) -> None:
        """Called when this slave has all metadata: it may join."""
        if (
            slave_id not in self.sync_state_set_manager.agreed.members
            and not self.sync_state_set_manager.in_flight
        ):
            self._wake.set()

    def metadata_members(self) -> set[int]:
        """Returns the replicas that must have all metadata: the other members, agreed or proposed, without
        RocketMQ's replicas, which cannot report their versions."""
        links = self._server.links
        return {
            each
            for each in self.sync_state_set_manager.others
            if each not in links or links[each].pulls_metadata
        }

    def _metadata_lags(self) -> dict[int, int]:
        return {
            slave_id: self._metadata_lag_ms(slave_id, self.epoch)
            for slave_id, link in self._server.links.items()
            if link.pulls_metadata
        }

    # -- the set -----------------------------------------------------------------------------------------

    def adopt(self, sync_state_set: SyncStateSet) -> None:
        """Handles a set that the controller sent without a request of this task. An older one is ignored."""
        if self.sync_state_set_manager.adopt(sync_state_set):
            self.sync_state_set_changed()

    def sync_state_set_changed(self) -> None:
        """Reports the number of members if it changed, and advances confirmOffset."""
        count = len(self.sync_state_set_manager.agreed.members)
        if count != self._told_count:
            self._told_count = count
            self._on_in_sync_changed(count)
        self.advance_confirm_offset()

    async def maintain_sync_state_set(self) -> None:
        """Proposes changes of the set to the controller until the term ends.

        Retries with a growing pause while the outcome of a proposal is unknown.
        """
        failures = 0
        while not self._is_over:
            if await self._propose_once():
                failures = 0
                await wait_for_event(self._wake, CHECK_PERIOD_MS)
            else:
                failures += 1
                await asyncio.sleep(RETRY.pause_ms(failures, random.random()) / 1000)

    async def _propose_once(self) -> bool:
        """Makes at most one proposal and one read. Returns True if no proposal is in doubt and none was
        refused."""
        manager = self.sync_state_set_manager
        proposal = manager.next_proposal(
            self._server.links,
            # with SYNC_FLUSH more is replicated than confirmed: a new member must have that, too
            confirm_offset=max(self._replicated, self._store.confirm_offset),
            epoch_start_offset=self._server.state.epochs.last_start_offset,
            now_ms=self._clock(),
            metadata_lag_ms=self._metadata_lags(),
        )
        changed = False
        answer: SyncStateSetBody | None = None
        if proposal is not None:
            try:
                answer = await self._controller.alter_sync_state_set(proposal.members, proposal.base_epoch)
            finally:
                changed = manager.answered(from_body(answer) if answer else None, now_ms=self._clock())
        if manager.must_read and not self._is_over:
            begun_ms = self._clock()
            reading = await self._controller.read_sync_state_set(manager.agreed.epoch)
            changed |= manager.read(from_body(reading) if reading else None, begun_ms=begun_ms)
        if not self._is_over:
            if changed:
                logger.info(
                    "SyncStateSet %s at epoch %d",
                    sorted(manager.agreed.members),
                    manager.agreed.epoch,
                    extra={
                        "syncStateSet": sorted(manager.agreed.members),
                        "syncStateSetEpoch": manager.agreed.epoch,
                    },
                )
            self.sync_state_set_changed()
        refused = proposal is not None and answer is None and proposal.members != manager.agreed.members
        return not manager.must_read and not refused
