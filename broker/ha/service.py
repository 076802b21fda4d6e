"""Replication of one broker: the HA port, the link to a master, the epochs, and the change between both
roles.

Both role changes are restartable: whatever step failed, the same call again ends in the same state, because
each step looks at what is there (epochs on disk, the log's tail) and not at what an earlier call
remembered. Invariant: at most one of `mastership` and `client` exists, and only its owner moves
confirmOffset.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from broker.group_commit import GroupCommit
from broker.ha.catch_up import BUSY_US, demand_us
from broker.ha.core.epochs import EpochEntry, Epochs
from broker.ha.core.master_link import LinkSettings, MasterLink
from broker.ha.core.progress import Growth
from broker.ha.core.slave_link import STOPPED, SlaveSettings
from broker.ha.master_server import MasterServer
from broker.ha.mastership import Mastership, from_body
from broker.ha.ports import Clock, EpochPassed, HaEvents, HaSettings, ReplicatedStore
from broker.ha.report import status_of
from broker.ha.slave_client import SlaveClient, Stranger, nobody_knows
from broker.ha.vigil import Vigil
from broker.store.epoch_file import EpochFile, EpochFileError
from remoting.clock import now_ms
from remoting.operation import LocalProtocolError
from remoting.operations.controller import SyncStateSet
from remoting.records import ReplicaSample
from remoting.tasks import TaskSet

logger = logging.getLogger(__name__)

TICK_MS = 100
DISPATCH_RECORDS_MAX = 128
"""Per turn of the loop: a replica's dispatch must not delay its acks."""


class HaService:
    """Owned by the event loop's thread; every method is called there."""

    def __init__(
        self,
        store: ReplicatedStore,
        *,
        epoch_path: Path,
        host: str,
        port: int,
        settings: HaSettings,
        events: HaEvents,
        clock: Clock = now_ms,
        commit: GroupCommit | None = None,
        metadata_lag_ms: Callable[[int, int], int] = lambda slave_id, epoch: 0,
        one_waits: Callable[[], bool] = lambda: False,
    ) -> None:
        """commit: with sync_flush. metadata_lag_ms(slave_id, masterEpoch): 0 if it has all metadata.
        one_waits: one message waits for replicas, and no more."""
        self.store = store
        self._commit = commit
        self._metadata_lag_ms = metadata_lag_ms
        self.on_cut: Callable[[int, int], None] = lambda before, end: None
        """A slave's log was cut: its end before, and now."""
        self.stranger: Stranger = nobody_knows
        self.mastership: Mastership | None = None
        self.client: SlaveClient | None = None
        self.epoch_list = Epochs()
        self.truncated_bytes = 0
        """Half a message that the last change to master cut off the log."""
        self._settings, self._events, self._clock = settings, events, clock
        self._epoch_file = EpochFile(epoch_path)
        self._host, self._port = host, port
        self._server = MasterServer(
            store.commit_log,
            settings=LinkSettings(
                settings.batch_bytes,
                settings.send_heartbeat_interval_ms,
                settings.housekeeping_interval_ms,
                settings.bytes_per_second,
                settings.far_bytes_per_second,
            ),
            clock=clock,
            on_ack=self._acked,
            on_links_changed=self._links_changed,
            catch_up_threads=settings.catch_up_threads,
        )
        self._tasks = TaskSet()
        self._role_tasks = TaskSet()
        self._growth, self._demand = Growth(), Growth()
        self._vigil = Vigil(one_waits, clock) if settings.stay_awake else None
        self._dispatching = False
        self._running = False
        self._epoch_fault: str | None = None

    # -- life --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """OSError: the port is taken."""
        self._load_epochs()
        await self._server.start(self._host, self._port)
        self._running = True
        self._tasks.start("ha tick", self._tick_forever)
        self._dispatch_soon()

    async def stop(self) -> None:
        await self._leave_role("the broker stops")
        self._running = False
        await self._tasks.stop()
        await self._server.stop()

    @property
    def address(self) -> tuple[str, int]:
        return self._server.address

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            self._forget_old_epochs()
            if self.mastership is not None:
                self._server.state.min_offset = self.store.commit_log.min_offset
                self._look_at_producers()
                for link in self._server.links.values():
                    link.read_progress(self._clock())
                self.mastership.advance()
                self._server.pump()
            self._dispatch_soon()

    def _look_at_producers(self) -> None:
        """What they write, and, while it matters, whether they could write more."""
        state, now_ms = self._server.state, self._clock()
        state.growth = self._growth.read(now_ms, self.store.commit_log.max_offset)
        if any(link.is_far for link in self._server.links.values()):
            state.busy = self._demand.read(now_ms, demand_us()) >= BUSY_US

    # -- epochs ------------------------------------------------------------------------------------------

    @property
    def epochs(self) -> tuple[EpochEntry, ...]:
        return self.epoch_list.entries

    @property
    def last_epoch(self) -> int:
        """-1: none yet."""
        return self.epoch_list.last_epoch

    def _load_epochs(self) -> None:
        """Without them nothing is known of the log's bytes: it is neither copied to nor served as master."""
        try:
            self.epoch_list = self._epoch_file.load()
        except EpochFileError as error:
            self._epoch_fault = str(error)
            logger.error("replication is stopped: %s", error)

    def _forget_old_epochs(self) -> None:
        """Of files that were deleted."""
        kept = self.epoch_list.drop_below(self.store.commit_log.min_offset)
        if len(kept.entries) < len(self.epoch_list.entries) and self.client is None:
            self.save_epochs(kept)

    def save_epochs(self, epochs: Epochs) -> None:
        """Durable when it returns; only then the new value counts."""
        self._epoch_file.save(epochs)
        self.epoch_list = epochs
        self._server.state.epochs = epochs

    # -- roles -------------------------------------------------------------------------------------------

    async def become_master(self, *, broker_id: int, epoch: int, sync_state_set: SyncStateSet) -> None:
        """The caller has fenced the broker. EpochPassed: the epoch is below one that we have seen;
        LocalProtocolError: it is not known which those are."""
        if self._epoch_fault is not None:
            raise LocalProtocolError(self._epoch_fault)
        if epoch < self.last_epoch:
            raise EpochPassed(epoch, self.last_epoch)
        stays = self.mastership is not None and self.mastership.broker_id == broker_id
        # a missed epoch may have been another's: our slaves followed that one, their acks are of an old log
        keep_links = stays and epoch <= self.last_epoch + 1
        await self._leave_role("the role changes", keep_links=keep_links)
        before = self.store.commit_log.max_offset
        if not stays:
            self.store.truncate_half_message()
        end = self.store.commit_log.max_offset
        self.truncated_bytes = before - end
        epochs = self.epoch_list.drop_above(end).drop_below(self.store.commit_log.min_offset)
        if epoch > epochs.last_epoch:
            epochs = epochs.append(epoch, end)
        if epochs != self.epoch_list:
            self.save_epochs(epochs)
        if not stays:
            self.store.become_master()
        self._begin_term(broker_id, epoch, sync_state_set)

    def _begin_term(self, broker_id: int, epoch: int, sync_state_set: SyncStateSet) -> None:
        log, state = self.store.commit_log, self._server.state
        state.epochs, state.min_offset, state.max_offset = self.epoch_list, log.min_offset, log.max_offset
        self.mastership = mastership = Mastership(
            self.store,
            self._server,
            self._events,
            self._settings,
            self._clock,
            broker_id=broker_id,
            epoch=epoch,
            sync_state_set=from_body(sync_state_set),
            on_confirm=self._confirm_moved,
            metadata_lag_ms=self._metadata_lag_ms,
        )
        mastership.set_changed()
        self._server.accept()
        self._server.pump()
        self._role_tasks.start("SyncStateSet", mastership.keep_set)
        self._dispatch_soon()

    async def become_slave(
        self, *, broker_id: int, epoch: int, master_ha_address: str, master_file_bytes: int | None = None
    ) -> None:
        """Follow the master at "host:port". The same call again changes nothing while the link is alive. With
        files of another size than master_file_bytes it is a slave that copies nothing, and says so.
        EpochPassed: the epoch is below one that we have seen."""
        if epoch < self.last_epoch:
            raise EpochPassed(epoch, self.last_epoch)
        host, _, port = master_ha_address.rpartition(":")
        address = (host, int(port))
        client, fits = self.client, master_file_bytes in (None, self.store.commit_log.file_bytes)
        if (
            fits
            and client is not None
            and (client.address, client.broker_id, client.fault)
            == (
                address,
                broker_id,
                None,
            )
        ):
            return
        await self._leave_role("this broker is a slave now")
        self.store.become_slave()
        if self._epoch_fault is not None:
            return
        self.client = client = SlaveClient(
            self.store,
            self,
            broker_id=broker_id,
            address=address,
            settings=SlaveSettings(
                file_bytes=self.store.commit_log.file_bytes,
                send_heartbeat_interval_ms=self._settings.send_heartbeat_interval_ms,
                housekeeping_interval_ms=self._settings.housekeeping_interval_ms,
                sync_from_last_file=self._settings.sync_from_last_file,
                async_learner=self._settings.async_learner,
                sync_flush=self._commit is not None,
                pulls_metadata=True,
            ),
            clock=self._clock,
            commit=self._commit,
            stranger=self.stranger,
        )
        if fits:
            self._role_tasks.start(f"HA link to {master_ha_address}", client.run)
        else:
            client.give_up(
                f"mappedFileSizeCommitLog is {self.store.commit_log.file_bytes} here and {master_file_bytes}"
                f" at the master {master_ha_address}; files are copied with their ends. {STOPPED}"
            )

    async def _leave_role(self, reason: str, *, keep_links: bool = False) -> None:
        """Nothing of the old role touches the log after this."""
        if self.mastership is not None:
            self.mastership.stop()
        if self.client is not None:
            self.client.stop()
        if not keep_links:
            self._server.refuse(reason)
            await self._server.catch_up.quiet()
        await self._role_tasks.stop()
        self.mastership = self.client = None

    def adopt_sync_state_set(self, sync_state_set: SyncStateSet) -> None:
        """The controller's set, from a poll or a notification; only a newer one counts."""
        if self.mastership is not None:
            self.mastership.adopt(from_body(sync_state_set))

    # -- data --------------------------------------------------------------------------------------------

    def appended(self) -> None:
        """End of a tick in which messages were stored: push them, then see what is confirmed."""
        if self.mastership is None:
            return
        self._server.state.max_offset = self.store.commit_log.max_offset
        self._server.pump()
        self.mastership.appended()
        if self._commit is not None:
            self._commit.want()
        if self._vigil is not None and self._server.links:
            self._vigil.begin()

    def flushed(self) -> None:
        """More of the log is on disk."""
        if self.mastership is not None:
            self.mastership.advance()

    def _acked(self, link: MasterLink) -> None:
        if self.mastership is not None and link.slave_id is not None:
            self.mastership.acked(link)

    def _links_changed(self) -> None:
        if self.mastership is not None:
            self.mastership.links_changed()

    def cut(self, before: int, end: int) -> None:
        self.on_cut(before, end)

    def confirmed(self, offset: int) -> None:
        """The master's confirmOffset arrived at this slave."""
        if offset > self.store.confirm_offset:
            self.store.set_confirm_offset(offset)
            self._confirm_moved(offset)

    def _confirm_moved(self, offset: int) -> None:
        self._events.on_confirm(offset)
        self._dispatch_soon()

    def _dispatch_soon(self) -> None:
        if not self._dispatching and self.store.dispatch_behind:
            self._dispatching = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._dispatching = False
        if self._running and self.store.dispatch(DISPATCH_RECORDS_MAX):
            self._dispatching = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    # -- metadata ----------------------------------------------------------------------------------------

    def metadata_members(self, epoch: int) -> Collection[int] | None:
        """Whose copies of metadata count in this broker's term of `epoch`; None: that is over."""
        if self.mastership is None or self.mastership.epoch != epoch:
            return None
        return self.mastership.metadata_members()

    def metadata_heard(self, slave_id: int) -> None:
        if self.mastership is not None:
            self.mastership.metadata_heard(slave_id)

    # -- state -------------------------------------------------------------------------------------------

    @property
    def confirm_offset(self) -> int:
        return self.store.confirm_offset

    @property
    def in_sync_count(self) -> int:
        """Members that the controller has agreed to (minInSyncReplicas); 0 when not master."""
        return len(self.mastership.keeper.agreed.members) if self.mastership is not None else 0

    @property
    def heirs(self) -> Collection[int]:
        """Who could be elected instead of us: the others of the SyncStateSet, in force or proposed."""
        return self.mastership.keeper.others if self.mastership is not None else ()

    @property
    def task_deaths(self) -> Counter[str]:
        return self._tasks.deaths + self._role_tasks.deaths

    @property
    def links(self) -> Mapping[int, MasterLink]:
        """The connected slaves by their ids; as master."""
        return self._server.links

    @property
    def fault(self) -> str | None:
        """Why this replica copies nothing, and what to do. None: it copies, or tries to."""
        return self._epoch_fault or (self.client.fault if self.client is not None else None)

    def status(self) -> dict[str, object]:
        """For people and metrics; see report.py."""
        return status_of(self)

    def address_of(self, link: MasterLink) -> str:
        return self._server.address_of(link)

    def now_ms(self) -> int:
        return self._clock()

    def replica_samples(self) -> tuple[ReplicaSample, ...]:
        """For telemetry: the connected slaves as their master sees them; empty when not master."""
        if self.mastership is None:
            return ()
        now, members = self._clock(), self.mastership.keeper.agreed.members
        return tuple(
            ReplicaSample(
                broker_id=slave_id,
                ack_offset=link.ack_offset,
                lag_ms=now - link.caught_up_ms(now),
                in_sync=slave_id in members,
            )
            for slave_id, link in sorted(self._server.links.items())
        )
