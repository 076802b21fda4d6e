"""Replication of one broker: the HA port, the link to a master, the epochs of the log, and the role changes.

A role change can be repeated: after a failure at any step, the same call ends in the same state, because each
step reads the present state (the epochs on disk, the end of the log) and not the memory of an earlier call.
Invariant: at most one of `mastership` and `client` exists, and only that one moves confirmOffset:
Mastership.advance_confirm_offset() on a master, HaService.confirm_offset_received() on a slave.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from broker.core.report_lease import ReportPromise
from broker.ha.busy_poller import BusyPoller
from broker.ha.core.epochs import EpochEntry, Epochs
from broker.ha.core.master_link import MasterLink
from broker.ha.core.master_watch import MasterWatch
from broker.ha.core.slave_link import STOPPED, SlaveSettings
from broker.ha.dispatcher import Dispatcher
from broker.ha.log_epochs import LogEpochs
from broker.ha.log_truncation import cut_at, scan_to_end, truncate_partial_record
from broker.ha.master_server import MasterServer
from broker.ha.mastership import Mastership, from_body
from broker.ha.ports import (
    Clock,
    EpochPassed,
    FindEpochs,
    FoundEpochs,
    HaSettings,
    SyncStateSetController,
)
from broker.ha.producer_load import ProducerLoad
from broker.ha.security import HaSecurity
from broker.ha.slave_client import MasterCheck, SlaveClient
from broker.store.log.group_commit import GroupCommit
from broker.store.message_store import MessageStore
from keelmq.remoting.address_text import split_address
from keelmq.remoting.operation import LocalProtocolError
from keelmq.remoting.operations.controller import SyncStateSet
from keelmq.runtime.clock import now_ms
from keelmq.runtime.stop_steps import StopSteps
from keelmq.runtime.tasks import TaskSet

logger = logging.getLogger(__name__)

TICK_MS = 100
FIND_EPOCHS_MS = 1_000
"""Pause between two attempts to recover the epochs of the log."""


class HaService:
    """Owned by the event loop's thread; every method is called there."""

    def __init__(
        self,
        store: MessageStore,
        *,
        epoch_path: Path,
        host: str,
        port: int,
        settings: HaSettings,
        on_replicated: Callable[[int], None],
        on_in_sync_changed: Callable[[int], None],
        commit: GroupCommit | None,
        metadata_lag_ms: Callable[[int, int], int],
        one_message_waits: Callable[[], bool],
        on_truncated: Callable[[int, int], None],
        check_master: MasterCheck,
        security: HaSecurity,
        watch: MasterWatch,
        find_epochs: FindEpochs,
        clock: Clock = now_ms,
    ) -> None:
        """`epoch_path`: the file epochFileCheckpoint. `commit`: the group commit; None: never sync_flush.

        on_replicated(offset): enough replicas have the bytes below it, so replies to messages that end there
        or below may be sent. on_in_sync_changed(count): the number of members of the agreed SyncStateSet.

        metadata_lag_ms(slave_id, master_epoch): how long that slave has lacked a metadata change; 0: it has
        all. one_message_waits(): exactly one message waits for replicas. on_truncated(before, end): this
        slave's log was truncated from `before` to `end`. check_master(): called before each reconnect.
        watch: of each master that this broker follows. find_epochs: called while the epoch file is damaged.
        """
        self.store = store
        self._commit = commit
        self._metadata_lag_ms = metadata_lag_ms
        self._on_truncated = on_truncated
        self.check_master, self._find_epochs = check_master, find_epochs
        self.mastership: Mastership | None = None
        self.client: SlaveClient | None = None
        self.truncated_bytes = 0
        """Length of the partial record that the last promotion removed from the log."""
        self._settings, self._clock = settings, clock
        self._on_replicated, self._on_in_sync_changed = on_replicated, on_in_sync_changed
        self._security = security
        self.watch = watch
        self._promise = ReportPromise()
        self._host, self._port = host, port
        self.server = MasterServer(
            store.commit_log,
            check=store.log_check,
            settings=settings.master_link,
            clock=clock,
            on_ack=self._acked,
            on_links_changed=self._links_changed,
            catch_up_threads=settings.catch_up_threads,
            security=security,
        )
        self._tasks, self._role_tasks = TaskSet(), TaskSet()
        self._producer_load = ProducerLoad()
        self._busy_poller = BusyPoller(one_message_waits, clock) if settings.stay_awake else None
        self._dispatcher = Dispatcher(store, self._dispatched, is_far_behind=self._is_far_behind)
        self.log_epochs = LogEpochs(epoch_path, self._use_epochs)

    # -- start and stop ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Loads the epochs and binds the HA port. Raises OSError if the port is in use."""
        await asyncio.to_thread(self.log_epochs.load)
        self.store.numbers.term_of = lambda offset: self.log_epochs.now.term_of(offset)
        await self.server.start(self._host, self._port)
        self._tasks.start("ha tick", self._tick_forever)
        self._tasks.start("epoch file", self.log_epochs.finish_forever)
        self._tasks.start("epochs of deleted files", self._drop_epochs_of_deleted_files)
        self._dispatcher.start()

    async def stop(self) -> None:
        """Leaves the role and closes the port. Raises StopError if a step failed; the others are done."""
        steps = StopSteps("HA")
        steps.add("the role", lambda: self.leave_role("the broker stops"))
        steps.add("role tasks", self._role_tasks.stop)
        steps.add("dispatch", self._dispatcher.stop)
        steps.add("HA tasks", self._tasks.stop)
        steps.add("the HA port", self.server.stop)
        steps.add("the epoch file", self.log_epochs.close)
        await steps.run()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port on which slaves are served."""
        return self.server.address

    def configure(self, settings: HaSettings) -> None:
        """Applies changed settings in any role. haCatchUpThreads and haStayAwake stay."""
        self._settings = settings
        self.server.configure(settings.master_link)
        if self.mastership is not None:
            self.mastership.configure(settings)
        if self.client is not None:
            self.client.configure(self._slave_settings())

    def _slave_settings(self) -> SlaveSettings:
        return self._settings.slave_link(file_bytes=self.store.commit_log.file_bytes)

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            self.server.pauses.tick(self._clock())
            if self.mastership is not None:
                self._tick_as_master(self.mastership)
            self._dispatcher.wake()

    def _tick_as_master(self, mastership: Mastership) -> None:
        links, now_ms = self.server.links.values(), self._clock()
        self.server.state.min_offset = self.store.commit_log.min_offset
        self._producer_load.measure(
            self.server.state,
            max_offset=self.store.commit_log.max_offset,
            has_far_replica=any(link.is_far_behind for link in links),
            now_ms=now_ms,
        )
        for link in links:
            link.read_progress(now_ms)
        mastership.advance_confirm_offset()
        self.server.pump()

    # -- epochs ------------------------------------------------------------------------------------------

    @property
    def epochs(self) -> tuple[EpochEntry, ...]:
        """The epochs of the log, ascending."""
        return self.log_epochs.now.entries

    @property
    def last_epoch(self) -> int:
        """The masterEpoch of the newest bytes; -1: there is none yet."""
        return self.log_epochs.now.last_epoch

    def _use_epochs(self, epochs: Epochs) -> None:
        self.server.state.epochs = epochs

    async def _drop_epochs_of_deleted_files(self) -> None:
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            if self.client is None:
                await self.log_epochs.drop_below(self.store.commit_log.min_offset)

    # -- roles -------------------------------------------------------------------------------------------

    async def become_master(
        self, *, broker_id: int, epoch: int, sync_state_set: SyncStateSet, controller: SyncStateSetController
    ) -> None:
        """Begins a term as master. The caller has closed the gate for sends.

        Raises EpochPassed if `epoch` is below one of the log, LocalProtocolError if the epochs of the log
        cannot be read, a sync of the log has failed, or a confirmed record is damaged.
        """
        if self.log_epochs.fault is not None:
            raise LocalProtocolError(self.log_epochs.fault)
        if fault := self.store.commit_log.sync_fault.text:
            raise LocalProtocolError(fault)
        if epoch < self.last_epoch:
            raise EpochPassed(epoch, self.last_epoch)
        stays = self.mastership is not None and self.mastership.broker_id == broker_id
        # a missed epoch may have had another master, which our slaves followed: their acks are of another log
        keep_links = stays and epoch <= self.last_epoch + 1
        if not stays:
            await self._end_reports()
        await self.leave_role("the role changes", keep_links=keep_links)
        before = self.store.commit_log.max_offset
        if not stays:
            await scan_to_end(self.store)
            if fault := self.store.dispatcher.tail_fault():
                raise LocalProtocolError(fault)
            await truncate_partial_record(self.store)
        end = self.store.commit_log.max_offset
        self.truncated_bytes = before - end
        epochs = self.log_epochs.now.drop_above(end).drop_below(self.store.commit_log.min_offset)
        if epoch > epochs.last_epoch:
            # what a master without controllers wrote is of the first epoch, or no replica could copy it
            start = end if epochs.entries else self.store.commit_log.min_offset
            epochs = epochs.append(epoch, start)
        while epochs != self.log_epochs.now:  # again if a version that was requested meanwhile is active
            await self.log_epochs.save(epochs)
        if not stays:
            self.store.become_master()
        self._begin_term(broker_id, epoch, sync_state_set, controller)

    async def _end_reports(self) -> None:
        """Waits until no earlier master counts a report of this broker for its isolation lease. With all-ack
        no master may acknowledge without this broker anyway, and without leases no master counts reports."""
        if self._settings.all_ack or not self._settings.has_lease:
            return
        began_ms = self._clock()
        if self.client is not None:
            await self.client.end_reports()
        await asyncio.sleep(self._promise.left_ms(self._clock()) / 1000)
        if (took_ms := self._clock() - began_ms) > TICK_MS:
            logger.info("waited %d ms until the master before has no isolation lease any more", took_ms)

    def _begin_term(
        self, broker_id: int, epoch: int, sync_state_set: SyncStateSet, controller: SyncStateSetController
    ) -> None:
        log, state, epochs = self.store.commit_log, self.server.state, self.log_epochs.now
        state.epochs, state.min_offset, state.max_offset = epochs, log.min_offset, log.max_offset
        self.mastership = mastership = Mastership(
            self.store,
            self.server,
            controller,
            self._settings,
            self._clock,
            broker_id=broker_id,
            epoch=epoch,
            sync_state_set=from_body(sync_state_set),
            on_replicated=self._on_replicated,
            on_in_sync_changed=self._on_in_sync_changed,
            on_confirm_offset=self._dispatcher.wake,
            metadata_lag_ms=self._metadata_lag_ms,
        )
        mastership.sync_state_set_changed()
        self.server.accept(producers_first=self._settings.acknowledges_alone)
        self.server.pump()
        self._role_tasks.start("SyncStateSet", mastership.maintain_sync_state_set)
        self._dispatcher.wake()

    async def become_slave(
        self, *, broker_id: int, epoch: int, master_ha_address: str, master_file_bytes: int | None = None
    ) -> None:
        """Follows the master at "host:port". While that link is alive, the same call again changes nothing.

        `master_file_bytes`: the master's mappedFileSizeCommitLog; None: unknown. If it differs from ours,
        this slave does not copy: see `fault`. Raises EpochPassed if `epoch` is below one of the log.
        """
        if epoch < self.last_epoch:
            raise EpochPassed(epoch, self.last_epoch)
        address = split_address(master_ha_address)
        same_file_size = master_file_bytes in (None, self.store.commit_log.file_bytes)
        if same_file_size and self.client is not None and self.client.follows(address, broker_id):
            return
        await self.leave_role("this broker is a slave now")
        self.store.become_slave()
        if self.log_epochs.fault is None:
            self._follow(address, broker_id, master_file_bytes)
        elif same_file_size:
            self._role_tasks.start(
                "epochs of the log", lambda: self._recover_epochs(epoch, address, broker_id)
            )

    async def _recover_epochs(self, epoch: int, address: tuple[str, int], broker_id: int) -> None:
        """Repeats until the epochs of the log are known by comparison with the master's; then follows it."""
        while self.log_epochs.fault is not None:
            found = await self._find_epochs(epoch)
            if isinstance(found, FoundEpochs):
                try:
                    await self._use_found(found)
                except OSError as error:
                    found = f"cannot write here: {error}"
            if isinstance(found, str):
                self.log_epochs.not_found(found)
                await asyncio.sleep(FIND_EPOCHS_MS / 1000)
        self._follow(address, broker_id, None)

    async def _use_found(self, found: FoundEpochs) -> None:
        before = self.store.commit_log.max_offset
        await cut_at(self.store, found.end)
        if found.end < before:
            logger.warning("log truncated from %d to %d: the master's differs", before, found.end)
            self.log_truncated(before, found.end)
        await self.log_epochs.replace_lost(found.epochs)

    def _follow(self, address: tuple[str, int], broker_id: int, master_file_bytes: int | None) -> None:
        self.client = client = self._new_client(address, broker_id)
        host, port = address
        if master_file_bytes in (None, self.store.commit_log.file_bytes):
            self._role_tasks.start(f"HA link to {host}:{port}", client.run)
        else:
            client.give_up(
                f"mappedFileSizeCommitLog is {self.store.commit_log.file_bytes} here and {master_file_bytes}"
                f" at the master {host}:{port}; files are copied with their ends. {STOPPED}"
            )

    def _new_client(self, address: tuple[str, int], broker_id: int) -> SlaveClient:
        return SlaveClient(
            self.store,
            self,
            broker_id=broker_id,
            address=address,
            settings=self._slave_settings(),
            clock=self._clock,
            commit=self._commit,
            check_master=self.check_master,
            security=self._security,
            watch=self.watch,
            promise=self._promise,
        )

    async def leave_role(self, reason: str, *, keep_links: bool = False) -> None:
        """Ends the role. When it returns, no task, link or thread of the old role touches the log."""
        if self.mastership is not None:
            self.mastership.stop()
        if self.client is not None:
            self.client.stop()
        if not keep_links:
            self.server.refuse(reason)
            await self.server.catch_up.wait_until_idle()
        await self._role_tasks.stop()
        self.mastership = self.client = None

    def adopt_sync_state_set(self, sync_state_set: SyncStateSet) -> None:
        """Handles the controller's set, from a poll or a notification. An older one is ignored."""
        if self.mastership is not None:
            self.mastership.adopt(from_body(sync_state_set))

    # -- data --------------------------------------------------------------------------------------------

    def appended(self) -> None:
        """Sends the messages that were stored in this turn of the loop, then advances confirmOffset."""
        if self.mastership is None:
            return
        self.server.state.max_offset = self.store.commit_log.max_offset
        self.server.pump()
        self.mastership.appended()
        if self._commit is not None:
            self._commit.want()
        if self._busy_poller is not None and self.server.links:
            self._busy_poller.begin()

    def flushed(self) -> None:
        """Called when more of the log is on disk: a master's confirmOffset advances, and a slave acks."""
        if self.mastership is not None:
            self.mastership.advance_confirm_offset()
        if self.client is not None and self.client.protocol is not None:
            self.client.protocol.flushed()

    def _acked(self, link: MasterLink) -> None:
        if self.mastership is not None and link.slave_id is not None:
            self.mastership.acked(link)

    def _links_changed(self) -> None:
        if self.mastership is not None:
            self.mastership.links_changed()

    def log_truncated(self, before: int, end: int) -> None:
        """Called by the SlaveClient when the log, which ended at `before`, ends at `end`."""
        self._on_truncated(before, end)

    def confirm_offset_received(self, offset: int) -> None:
        """Moves this slave's confirmOffset to the one that its master sent. It never goes back."""
        if offset > self.store.confirm_offset:
            self.store.set_confirm_offset(offset)
            self._dispatcher.wake()

    def _is_far_behind(self) -> bool:
        protocol = self.client.protocol if self.client is not None else None
        return protocol is not None and protocol.is_far_behind

    def _dispatched(self) -> None:
        if self.client is not None and self.client.protocol is not None:
            self.client.protocol.dispatched()

    # -- metadata ----------------------------------------------------------------------------------------

    def metadata_members(self, epoch: int) -> Collection[int] | None:
        """Returns the replicas whose copies of metadata count in the term of `epoch`; None: it is over."""
        if self.mastership is None or self.mastership.epoch != epoch:
            return None
        return self.mastership.metadata_members()

    def metadata_caught_up(self, slave_id: int) -> None:
        """Called when this slave has all metadata: it may join the SyncStateSet."""
        if self.mastership is not None:
            self.mastership.metadata_caught_up(slave_id)

    # -- state -------------------------------------------------------------------------------------------

    @property
    def confirm_offset(self) -> int:
        """Consumers may read records that end at or below it."""
        return self.store.confirm_offset

    @property
    def in_sync_count(self) -> int:
        """Members that the controller has agreed to, for minInSyncReplicas; 0 when not master."""
        if self.mastership is None:
            return 0
        return len(self.mastership.sync_state_set_manager.agreed.members)

    @property
    def transfer_targets(self) -> Collection[int]:
        """Replicas that could be elected instead of this one: the other members of the SyncStateSet, agreed
        or proposed. Empty when not master."""
        return self.mastership.sync_state_set_manager.others if self.mastership is not None else ()

    @property
    def task_deaths(self) -> Counter[str]:
        """How often each background task ended by an error, by its name."""
        return self._tasks.deaths + self._role_tasks.deaths

    @property
    def links(self) -> Mapping[int, MasterLink]:
        """The connected slaves by broker id; empty when not master."""
        return self.server.links

    @property
    def fault(self) -> str | None:
        """Why this replica does not copy, and the remedy; None: it copies, or tries to."""
        return self.log_epochs.fault or (self.client.fault if self.client is not None else None)

    def now_ms(self) -> int:
        """Returns the monotonic time of the links, in ms."""
        return self._clock()
