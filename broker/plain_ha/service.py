"""Replication of one broker without controllers: the HA port of a master, or a slave's link to its master.

The role is the configuration's and never changes while the process runs. A master accepts slaves, and moves
confirmOffset to the end of its log (with SYNC_FLUSH, of the synced part). A slave's confirmOffset is the end
of the received bytes. Source: RocketMQ 5.3.3 DefaultHAService.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path

from msgspec.structs import replace

from broker.core.confirm_offset import replicated_offset
from broker.ha.busy_poller import BusyPoller
from broker.ha.core.master_link import LinkSettings, MasterLink, MasterLog
from broker.ha.core.slave_link import SlaveSettings
from broker.ha.dispatcher import Dispatcher
from broker.ha.log_epochs import LogEpochs
from broker.ha.master_server import MasterServer
from broker.ha.ports import Clock, HaSettings
from broker.ha.producer_load import ProducerLoad
from broker.ha.security import HaSecurity
from broker.plain_ha.core.copies import CopyRules, CountedLinks
from broker.plain_ha.core.master_link import WHOLE_LOG, PlainMasterLink
from broker.plain_ha.slave_client import LogCheck, PlainSlaveClient
from broker.store.log.group_commit import GroupCommit
from broker.store.message_store import MessageStore
from keelmq.remoting.address_text import host_of
from keelmq.runtime.clock import now_ms
from keelmq.runtime.stop_steps import StopSteps
from keelmq.runtime.tasks import TaskSet

_NO_ACKS: Mapping[int, int] = {}
TICK_MS = 100


class PlainHaService:
    """Owned by the event loop's thread. Call start(), then serve() or follow()."""

    def __init__(
        self,
        store: MessageStore,
        *,
        is_slave: bool,
        host: str,
        port: int,
        settings: HaSettings,
        rules: CopyRules,
        commit: GroupCommit | None,
        one_message_waits: Callable[[], bool],
        on_replicated: Callable[[int], None],
        on_in_sync_changed: Callable[[int], None],
        security: HaSecurity,
        clock: Clock = now_ms,
    ) -> None:
        """host, port: of the HA port, which only a master has. commit: the group commit; None: never
        sync_flush. on_replicated(offset): messages that end there or below have the copies that they need.
        on_in_sync_changed(count): the number of copies in sync, the master's included."""
        self.store, self.is_slave, self.rules = store, is_slave, rules
        self.client: PlainSlaveClient | None = None
        self._settings, self._commit, self._clock, self._security = settings, commit, clock, security
        self._host, self._port = host, port
        self._on_replicated, self._on_in_sync_changed = on_replicated, on_in_sync_changed
        self._numbers = count(1)
        self.server = MasterServer(
            store.commit_log,
            check=store.log_check,
            settings=settings.master_link,
            clock=clock,
            on_ack=lambda link: self._advance(),
            on_links_changed=self._links_changed,
            catch_up_threads=settings.catch_up_threads,
            security=security,
            new_link=self._new_link,
        )
        self.server.state.epochs = WHOLE_LOG
        self._tasks, self._link_tasks = TaskSet(), TaskSet()
        self._producer_load = ProducerLoad()
        self._busy_poller = BusyPoller(one_message_waits, clock) if settings.stay_awake else None
        self._dispatcher = Dispatcher(store, self._dispatched, is_far_behind=self._is_far_behind)
        self._counted = CountedLinks()
        self._replicated, self._in_sync = 0, 1
        self._is_serving = False
        # SlaveProtocol asks for epochs; no packet of this protocol has one, so the file is never used
        self.log_epochs = LogEpochs(Path("epochFileCheckpoint"), lambda epochs: None)

    def _new_link(self, log: MasterLog, settings: LinkSettings, now_ms: int) -> MasterLink:
        return PlainMasterLink(log, settings, number=-next(self._numbers), now_ms=now_ms)

    # -- start and stop ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Binds the HA port of a master. Raises OSError if it is in use."""
        if not self.is_slave:
            await self.server.start(self._host, self._port)
        self._tasks.start("ha tick", self._tick_forever)
        self._dispatcher.start()

    async def stop(self) -> None:
        """Closes the links and the port. Raises StopError if a step failed; the others are done."""
        steps = StopSteps("HA")
        steps.add("the link to the master", self.unfollow)
        steps.add("dispatch", self._dispatcher.stop)
        steps.add("HA tasks", self._tasks.stop)
        steps.add("the HA port", self.server.stop)
        await steps.run()

    @property
    def port(self) -> int:
        """The port on which slaves are served; 0: this broker is a slave, and has none."""
        return 0 if self.is_slave else self.server.address[1]

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            if self._is_serving:
                self._tick_as_master()
            self._dispatcher.wake()

    def _tick_as_master(self) -> None:
        links, now = self.server.links.values(), self._clock()
        log, state = self.store.commit_log, self.server.state
        state.min_offset = log.min_offset
        far = any(link.is_far_behind for link in links)
        self._producer_load.measure(state, max_offset=log.max_offset, has_far_replica=far, now_ms=now)
        for link in links:
            link.read_progress(now)
        self._advance()
        self.server.pump()

    def configure(self, settings: HaSettings, rules: CopyRules) -> None:
        """Applies changed settings. haCatchUpThreads and haStayAwake stay."""
        self._settings, self.rules = settings, rules
        self.server.configure(settings.master_link)
        if self.client is not None:
            self.client.configure(self._slave_settings())
        if rules.waits:
            self._on_replicated(self._replicated)
        self._advance()

    def _slave_settings(self) -> SlaveSettings:
        made = self._settings.slave_link(file_bytes=self.store.commit_log.file_bytes)
        return replace(made, sync_from_last_file=True, async_learner=False)

    # -- a master ----------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Accepts slaves from now on. The store is a master's."""
        assert not self.is_slave
        self._is_serving = True
        self.server.state.min_offset = self.store.commit_log.min_offset
        self.server.accept()
        self._advance()

    def confirm_own(self) -> None:
        """Lets consumers read the log of this master after a start; with SYNC_FLUSH when it is on disk."""
        if self._commit is not None and self._settings.sync_flush:
            self._commit.want()
        else:
            self.store.set_confirm_offset(self.store.commit_log.max_offset)

    def appended(self) -> None:
        """Sends the messages that were stored in this turn of the loop."""
        state = self.server.state
        state.max_offset = state.confirm_offset = self.store.commit_log.max_offset
        self.server.pump()
        self._advance()
        if self._commit is not None:
            self._commit.want()
        if self._busy_poller is not None and self.rules.waits and self.server.links:
            self._busy_poller.begin()

    def flushed(self) -> None:
        """More of the log is on disk."""
        if self._is_serving:
            self._advance()
        elif self.client is not None and self.client.protocol is not None:
            self.client.protocol.flushed()

    def _links_changed(self) -> None:
        links = self.server.links
        hosts = {number: host_of(self.server.address_of(link)) for number, link in links.items()}
        self._counted.update(links, hosts)
        self._advance()

    def _advance(self) -> None:
        """Moves confirmOffset and the replicated offset. Called for every append and report."""
        if not self._is_serving:
            return
        log, state, store = self.store.commit_log, self.server.state, self.store
        end = state.max_offset = state.confirm_offset = log.max_offset
        readable = min(end, log.flushed_offset) if self._settings.sync_flush else end
        links = self.server.links
        acks = self._counted.acks(links) if links else _NO_ACKS
        in_sync = self.rules.in_sync_count(acks.values(), end) if links else 1
        if in_sync != self._in_sync:
            self._in_sync = in_sync
            self._on_in_sync_changed(in_sync)
        if self.rules.waits:
            copies = self.rules.needed(in_sync)
            replicated = replicated_offset(max_offset=end, others=acks, acks=acks, copies=copies)
            if replicated > self._replicated:
                self._replicated = replicated
                self._on_replicated(replicated)
        if readable > store.confirm_offset:
            store.set_confirm_offset(readable)
            self._dispatcher.wake()

    # -- a slave -----------------------------------------------------------------------------------------

    def follow(self, address: tuple[str, int], *, broker_id: int, check_log: LogCheck) -> None:
        """Copies from the master at this HA address, until unfollow(). The store is a slave's."""
        assert self.is_slave and self.client is None
        self.client = client = PlainSlaveClient(
            self.store,
            self,
            broker_id=broker_id,
            address=address,
            settings=self._slave_settings(),
            clock=self._clock,
            commit=self._commit,
            check_log=check_log,
            security=self._security,
        )
        self._link_tasks.start("HA link to the master", client.run)

    async def unfollow(self) -> None:
        """Ends the link. When it returns, no task touches the log any more."""
        if self.client is not None:
            self.client.stop()
        await self._link_tasks.stop()
        self.client = None

    def confirm_offset_received(self, offset: int) -> None:
        """Lets consumers read the bytes that have arrived, up to `offset`."""
        self.store.set_confirm_offset(offset)
        self._dispatcher.wake()

    def _is_far_behind(self) -> bool:
        protocol = self.client.protocol if self.client is not None else None
        return protocol is not None and protocol.is_far_behind

    def _dispatched(self) -> None:
        if self.client is not None and self.client.protocol is not None:
            self.client.protocol.dispatched()

    def confirm_all(self) -> None:
        """Lets consumers read the whole log after a start."""
        self.confirm_offset_received(self.store.commit_log.max_offset)

    def log_truncated(self, before: int, end: int) -> None:
        """Never called: this protocol truncates no log."""
        raise AssertionError("a slave without controllers truncated its log")

    def master_end(self, offset: int) -> None:
        """Records the end of the master's log, as reported by its broker port, for the lag."""
        link = self.client.protocol.link if self.client is not None and self.client.protocol else None
        if link is not None:
            link.master_max_offset = max(link.master_max_offset, offset)

    # -- state -------------------------------------------------------------------------------------------

    @property
    def in_sync_count(self) -> int:
        """Copies that are in sync, the master's included."""
        return self._in_sync

    @property
    def links(self) -> Mapping[int, MasterLink]:
        """The connected slaves; below 0: a slave that has not proved its broker id."""
        return self.server.links

    @property
    def is_connected(self) -> bool:
        """Whether this slave is linked to its master."""
        return self.client is not None and self.client.connected

    @property
    def task_deaths(self) -> Counter[str]:
        """How often each background task ended by an error, by its name."""
        return self._tasks.deaths + self._link_tasks.deaths

    @property
    def fault(self) -> str | None:
        """Why this slave does not copy, and the remedy; None: it copies, or tries to."""
        return self.client.fault if self.client is not None else None

    def now_ms(self) -> int:
        """Returns the monotonic time of the links, in ms."""
        return self._clock()
