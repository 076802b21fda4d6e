"""One term as master: confirmOffset, and the one task that talks to the controller about the SyncStateSet."""

import asyncio
import logging
from collections.abc import Callable

from broker.core.confirm_offset import confirm_offset, replicated_offset
from broker.core.sync_state_set import JOIN_PAUSE_FIRST_MS, SyncStateSet, SyncStateSetKeeper
from broker.ha.core.master_link import MasterLink
from broker.ha.master_server import MasterServer
from broker.ha.ports import Clock, HaEvents, HaSettings, ReplicatedStore
from remoting.operations.controller import SyncStateSet as SyncStateSetBody
from remoting.tasks import wait_for_event

logger = logging.getLogger(__name__)

RETRY_FIRST_MS = JOIN_PAUSE_FIRST_MS // 2
RETRY_MAX_MS = 1_000
JOIN_CHECK_MS = 100
"""How often the task looks by itself; acks and lost links wake it at once."""


def from_body(body: SyncStateSetBody) -> SyncStateSet:
    return SyncStateSet(frozenset(body.sync_state_set), body.sync_state_set_epoch)


class Mastership:
    """Ends when the service drops it: stop() first, then nothing here touches store or events any more."""

    def __init__(
        self,
        store: ReplicatedStore,
        server: MasterServer,
        events: HaEvents,
        settings: HaSettings,
        clock: Clock,
        *,
        broker_id: int,
        epoch: int,
        sync_state_set: SyncStateSet,
        on_confirm: Callable[[int], None],
        metadata_lag_ms: Callable[[int, int], int],
    ) -> None:
        self.broker_id = broker_id
        self.epoch = epoch
        self.keeper = SyncStateSetKeeper(
            broker_id,
            sync_state_set,
            all_ack=settings.all_ack,
            max_lag_ms=settings.max_time_slave_not_catchup_ms,
            now_ms=clock(),
        )
        self._store, self._server, self._events = store, server, events
        self._settings, self._clock = settings, clock
        self._on_confirm = on_confirm
        self._metadata_lag_ms = metadata_lag_ms
        self._replicated = store.confirm_offset
        self._told = -1
        self._count = -1
        self._wake = asyncio.Event()
        self._over = False

    def stop(self) -> None:
        self._over = True
        self._wake.set()

    # -- offsets -----------------------------------------------------------------------------------------

    def appended(self) -> None:
        """The log grew. With allAckInSyncStateSet that confirms nothing, unless this broker is the set."""
        if not self._settings.all_ack or not self.keeper.others:
            self.advance()

    def advance(self) -> None:
        """Something grew or changed: the log, an ack, the set. Cheap; called for every ack."""
        state, keeper, settings = self._server.state, self.keeper, self._settings
        log = self._store.commit_log
        end = state.max_offset = log.max_offset
        acks = {
            slave_id: link.ack_offset for slave_id, link in self._server.links.items() if not link.learner
        }
        if settings.all_ack:
            replicated = confirm_offset(
                self._replicated, max_offset=end, others=keeper.others, acks=acks, all_ack=True
            )
            readable = replicated
        else:
            replicated = replicated_offset(
                max_offset=end, others=keeper.agreed_others, acks=acks, copies=settings.in_sync_replicas
            )
            readable = end
        if settings.sync_flush:
            readable = min(readable, log.flushed_offset)  # what a power cut takes back is not shown
        self._replicated = max(replicated, self._replicated)
        if replicated > self._told:  # first: a producer waits for it, and nobody for the consumers' part
            self._told = replicated
            self._events.on_replicated(replicated)
        self._confirm(max(readable, self._store.confirm_offset))

    def _confirm(self, offset: int) -> None:
        self._server.state.confirm_offset = offset
        if offset > self._store.confirm_offset:
            self._store.set_confirm_offset(offset)
            self._on_confirm(offset)

    def acked(self, link: MasterLink) -> None:
        self.advance()
        if link.slave_id not in self.keeper.agreed.members and not link.learner and not self.keeper.in_flight:
            self._wake.set()

    def links_changed(self) -> None:
        self._wake.set()

    # -- metadata ----------------------------------------------------------------------------------------

    def metadata_heard(self, slave_id: int) -> None:
        """This slave has all metadata now: it may join."""
        if slave_id not in self.keeper.agreed.members and not self.keeper.in_flight:
            self._wake.set()

    def metadata_members(self) -> set[int]:
        """Whose metadata must be as ours: the members, and who may be one, but for RocketMQ's replicas."""
        links = self._server.links
        return {each for each in self.keeper.others if each not in links or links[each].pulls_metadata}

    def _metadata_lags(self) -> dict[int, int]:
        return {
            slave_id: self._metadata_lag_ms(slave_id, self.epoch)
            for slave_id, link in self._server.links.items()
            if link.pulls_metadata
        }

    # -- the set -----------------------------------------------------------------------------------------

    def adopt(self, news: SyncStateSet) -> None:
        """The controller told a set by another way than an answer."""
        if self.keeper.adopt(news):
            self.set_changed()

    def set_changed(self) -> None:
        count = len(self.keeper.agreed.members)
        if count != self._count:
            self._count = count
            self._events.on_in_sync_changed(count)
        self.advance()

    async def keep_set(self) -> None:
        """Propose what should be; until the fate of a proposal is known, ask and propose again."""
        retry_ms = RETRY_FIRST_MS
        while not self._over:
            if await self._settled():
                retry_ms = RETRY_FIRST_MS
                await wait_for_event(self._wake, JOIN_CHECK_MS)
            else:
                await asyncio.sleep(retry_ms / 1000)
                retry_ms = min(retry_ms * 2, RETRY_MAX_MS)

    async def _settled(self) -> bool:
        """One look, at most one proposal and one reading. True: nothing is open, and nothing was refused."""
        keeper = self.keeper
        proposal = keeper.next_proposal(
            self._server.links,
            # with SYNC_FLUSH more counts as replicated than is confirmed: the newcomer must have that, too
            confirm_offset=max(self._replicated, self._store.confirm_offset),
            epoch_start_offset=self._server.state.epochs.last_start_offset,
            now_ms=self._clock(),
            metadata_lag_ms=self._metadata_lags(),
        )
        changed = False
        answer: SyncStateSetBody | None = None
        if proposal is not None:
            try:
                answer = await self._events.alter_sync_state_set(proposal.members, proposal.base_epoch)
            finally:
                changed = keeper.answered(from_body(answer) if answer else None, now_ms=self._clock())
        if keeper.must_read and not self._over:
            begun_ms = self._clock()
            reading = await self._events.read_sync_state_set(keeper.agreed.epoch)
            changed |= keeper.read(from_body(reading) if reading else None, begun_ms=begun_ms)
        if not self._over:
            if changed:
                logger.info("SyncStateSet %s at epoch %d", sorted(keeper.agreed.members), keeper.agreed.epoch)
            self.set_changed()
        refused = proposal is not None and answer is None and proposal.members != keeper.agreed.members
        return not keeper.must_read and not refused
