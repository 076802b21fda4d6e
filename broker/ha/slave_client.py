"""The slave's side of replication: connects to the master, and connects again when a link has ended."""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable

from broker.core.report_lease import PROMISE_MS, ReportPromise
from broker.ha.core.master_watch import MasterWatch
from broker.ha.core.slave_link import Close, SlaveLink, SlaveSettings
from broker.ha.log_truncation import truncate_partial_record
from broker.ha.ports import Clock
from broker.ha.security import HaSecurity, slave_hello
from broker.ha.slave_protocol import HelloFactory, SlaveOwner, SlaveProtocol
from broker.store.log.group_commit import GroupCommit
from broker.store.message_store import MessageStore
from keelmq.remoting.operations.health import CANNOT_WRITE
from keelmq.runtime.backoff import Backoff
from keelmq.runtime.tls.contexts import ClientTls
from keelmq.runtime.tls.dial import open_tls
from keelmq.runtime.tls.transport import PLAIN_BYTES, TlsError

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_MS = 1_000
TLS_TIMEOUT_MS = 5_000
"""Of connection and TLS handshake together."""
RECONNECT = Backoff(first_ms=20, max_ms=300)
"""The pause between two attempts to connect. RocketMQ waits 5 s."""

TICK_MS = 100

MasterCheck = Callable[[], Awaitable[str | None]]
"""Returns why the broker that now listens at the master's address must not be followed; None: it may be."""


class SlaveClient:
    """Follows the master at one address until stopped. `fault`: why it gave up; None: it did not."""

    def __init__(
        self,
        store: MessageStore,
        owner: SlaveOwner,
        *,
        broker_id: int,
        address: tuple[str, int],
        settings: SlaveSettings,
        clock: Clock,
        commit: GroupCommit | None,
        check_master: MasterCheck,
        security: HaSecurity,
        watch: MasterWatch | None,
        promise: ReportPromise | None = None,
    ) -> None:
        """commit: the group commit; None without sync_flush. check_master: called before every connection but
        the first, whose address the caller has just checked. watch: of this master and those before; None:
        not needed. promise: by the reports to this master and those before; None: their master has no
        lease."""
        self.address = address
        self.broker_id = broker_id
        self.fault: str | None = None
        self.protocol: SlaveProtocol | None = None
        self.last_reason = ""
        self._logged: deque[str] = deque(maxlen=2)
        self._store, self._owner = store, owner
        self._settings, self._clock = settings, clock
        self._commit = commit
        self._check_master = check_master
        self._security = security
        self._watch = watch
        self._promise = promise
        self._speaks_plain = False  # to the next master; only with haPlainMaster
        self._ciphertext = memoryview(bytearray(PLAIN_BYTES if security.client_tls is not None else 0))
        self._stopped = False

    def configure(self, settings: SlaveSettings) -> None:
        """Applies changed settings, also to an open connection."""
        self._settings = settings
        if self.protocol is not None:
            self.protocol.configure(settings)

    @property
    def connected(self) -> bool:
        """The handshake is done and the master sends its log."""
        return self.protocol is not None and self.protocol.link.transferring

    def follows(self, address: tuple[str, int], broker_id: int) -> bool:
        """Returns whether it copies, or tries to, as this replica from this master."""
        return not self._stopped and (self.address, self.broker_id, self.fault) == (address, broker_id, None)

    async def run(self) -> None:
        """Connects, receives, and connects again. Returns after a fatal close: an operator must act."""
        failures = 0
        refused = await self._prepare()
        refusal: str | None = None
        while not self._stopped:
            if fault := self._store.commit_log.sync_fault.text:
                self.give_up(f"{CANNOT_WRITE}: {fault}")
                return
            refusal = refused or refusal
            close, received = (Close(refusal), False) if refusal else await self._one_connection()
            if self._stopped:
                return
            if close.reason not in self._logged:  # not with every attempt; with haPlainMaster two take turns
                logger.warning("HA link to %s:%d: %s", *self.address, close.reason)
                self._logged.append(close.reason)
            self.last_reason = close.reason
            if close.fatal:
                self.give_up(close.reason)
                return
            failures = 1 if received else failures + 1
            await asyncio.sleep(RECONNECT.pause_ms(failures, random.random()) / 1000)
            refused = await self._prepare()
            refusal = None if refused else await self._check_master()

    def give_up(self, reason: str) -> None:
        """Stops copying from this master permanently. Called instead of run(), or at its end."""
        self.fault = self.last_reason = reason
        logger.error("HA link to %s:%d stopped: %s", *self.address, reason)

    async def _one_connection(self) -> tuple[Close, bool]:
        """Returns why the connection ended, and whether it brought bytes of the log."""
        try:
            protocol = await self._connect()
        except TlsError as error:
            self.protocol = None
            return Close(_tls_problem(error, self._security.client_tls)), False
        except (OSError, UnicodeError, TimeoutError) as error:
            self.protocol = None
            return Close(f"cannot connect: {error or 'timeout'}"), False
        try:
            while not protocol.ended.done():
                await asyncio.wait([protocol.ended], timeout=TICK_MS / 1000)
                if not protocol.ended.done():
                    protocol.tick()
                    self._look(protocol.heard_ms)
            return protocol.ended.result(), protocol.link.received_bytes > 0
        finally:
            protocol.close("the client stops")
            self._keep_promise(protocol)
            self.protocol = None
            self._look(None)
            if self._security.plain_master and not protocol.link.transferring:
                self._speaks_plain = not self._speaks_plain  # finds out what this master supports

    def _keep_promise(self, protocol: SlaveProtocol) -> None:
        if self._promise is not None and protocol.is_connected and not protocol.closed_by_master:
            self._promise.reported(protocol.link.sent_ms)

    async def end_reports(self) -> None:
        """Ends the reports. Returns when this broker may begin a term as master with respect to the reports
        of this client (broker/core/report_lease.py); stop() must follow."""
        self._stopped = True
        protocol, promise = self.protocol, self._promise
        if protocol is None or promise is None:
            return
        protocol.end_reports()
        if protocol.is_connected and not protocol.ended.done():
            sent_ms, now_ms = protocol.link.sent_ms, self._clock()
            left_ms = max(0, sent_ms + PROMISE_MS - now_ms)
            await asyncio.wait([protocol.ended], timeout=left_ms / 1000)
        self._keep_promise(protocol)

    def _look(self, heard_ms: int | None) -> None:
        if self._watch is not None:
            self._watch.tick(self._clock(), heard_ms)

    async def _connect(self) -> SlaveProtocol:
        """Returns the protocol of a new connection. Raises TlsError, OSError, UnicodeError, TimeoutError."""
        tls = self._security.client_tls
        async with asyncio.timeout((CONNECT_TIMEOUT_MS if tls is None else TLS_TIMEOUT_MS) / 1000):
            if tls is None:
                loop = asyncio.get_running_loop()
                _, protocol = await loop.create_connection(self._new_protocol, *self.address)
                return protocol
            transport = await open_tls(tls, self._new_protocol, *self.address, self._ciphertext)
        made = transport.protocol
        assert isinstance(made, SlaveProtocol)
        return made

    async def _prepare(self) -> str | None:
        """Before every connection: cuts off a partial record, and drops epochs that begin behind the log's
        end or belong to deleted files. Returns why this is impossible; None: it is done."""
        try:
            end = await truncate_partial_record(self._store)
            await self._drop_epochs(end)
        except OSError as error:
            return f"cannot write here: {error}"
        return None

    async def _drop_epochs(self, end: int) -> None:
        log_epochs = self._owner.log_epochs
        epochs = log_epochs.now.drop_above(end).drop_below(self._store.commit_log.min_offset)
        if epochs != log_epochs.now:
            await log_epochs.save(epochs)

    def _new_link(self) -> SlaveLink:
        log = self._store.commit_log
        return SlaveLink(
            self.broker_id,
            self._settings,
            epochs=self._owner.log_epochs.now,
            min_offset=log.min_offset,
            max_offset=log.max_offset,
            now_ms=self._clock(),
        )

    def _new_protocol(self) -> SlaveProtocol:
        link = self._new_link()
        # kept at once: a round of the group commit may end before create_connection() returns
        self.protocol = protocol = SlaveProtocol(
            link, self._store, self._owner, self._clock, self._commit, self._hello_factory()
        )
        if self._stopped:  # during the TLS handshake
            protocol.close("the client stops")
        return protocol

    def _hello_factory(self) -> HelloFactory | None:
        group = self._security.group
        if group is None or self._speaks_plain:
            return None
        return lambda transport, now_ms: slave_hello(group, self.broker_id, transport, now_ms)

    def stop(self) -> None:
        """Closes the connection. No byte is written to the log after this call."""
        self._stopped = True
        if self.protocol is not None:
            self.protocol.close("the role changes")


def _tls_problem(error: TlsError, tls: ClientTls | None) -> str:
    if error.__cause__ is None or tls is None:  # no error of OpenSSL: the connection was closed
        return f"TLS handshake failed: {error} (is its haTlsMode disabled? haTlsEnable is set here)"
    return tls.explain(str(error))
