"""The HA port of a broker: accepts slaves, and moves packets between their MasterLinks and their sockets.

The event loop sends one packet per slave and turn, and keeps at most about one packet in a transport's
buffer: bulk catch-up must not delay the producers that share the loop. Log bytes go from the mapped file to
the socket without a copy (uvloop). A slave that is far behind is served by a thread (catch_up.py): while
`_batch` is set, only that thread writes to the socket. Sendfile cannot encrypt, so the loop serves all slaves
that use TLS. A broker that is not master serves no slave (held_connections.py).

A link gets no byte of a peer that has not proved its membership (core/hello.py), so such a peer gets no
answer, changes no SyncStateSet, and ends no link.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import cast

from broker.core.pauses import PauseDetector
from broker.ha.catch_up import CatchUpThreads, CheckBatch, SendfileBatch
from broker.ha.core.hello import DEADLINE_MS, Admitted, HelloRefused, MasterHello
from broker.ha.core.master_link import NEVER, SENDFILE_BYTES, Close, LinkSettings, MasterLink, MasterLog
from broker.ha.held_connections import PRODUCERS_FIRST_MS, HeldConnections
from broker.ha.ports import Clock
from broker.ha.security import HaSecurity
from broker.store.log.commit_log import CommitLog
from broker.store.log_check import LogCheck
from keelmq.remoting.servers.listening import create_server
from keelmq.remoting.write_buffers import WriteBuffers
from keelmq.runtime.rate_limited_log import RateLimitedLogger
from keelmq.runtime.stop_steps import StopSteps
from keelmq.runtime.tasks import TaskSet
from keelmq.runtime.tls.port import HANDSHAKES, TlsPort

logger = logging.getLogger(__name__)

LINKS_MAX = 256  # open connections; a broker group has only a few slaves


class MasterProtocol(asyncio.Protocol):
    """One accepted connection of a slave."""

    def __init__(self, server: "MasterServer") -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._scheduled = False
        self._batch: SendfileBatch | CheckBatch | None = None
        self._fd = -1  # for threads; -1: they cannot write to this connection
        self._high_bytes = server.settings.batch_bytes
        self._hello: MasterHello | None = None  # until the peer has proved its membership
        self.link: MasterLink | None = None
        self.address = ""
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        writer = cast(asyncio.Transport, transport)  # uvloop's class is not a subclass of it
        self._transport = writer
        peer = writer.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if peer else "?"
        writer.set_write_buffer_limits(high=self._high_bytes)
        connected = writer.get_extra_info("socket")
        if connected is not None and writer.get_extra_info("sslcontext") is None:
            self._fd = connected.fileno()
        self.link = self._server.accepted(self)
        if self.link is None:
            self.closed = True
            writer.abort()
            return
        self._hello = self._server.security.master_hello(writer, self._server.clock())

    def data_received(self, data: bytes) -> None:
        link = self.link
        if link is None or self.closed:
            return
        if self._hello is not None:
            data = self._admit(self._hello, link, data)
            if not data:
                return
        before, now_ms = link.slave_id, self._server.clock()
        link.receive_data(data, now_ms)
        link.heard_ms = self._server.pauses.sent_ms(now_ms)
        if link.slave_id != before:
            self._server.identified(self, link)
        if not link.is_settled:
            self.pump()
        if not self.closed:
            self._server.on_ack(link)

    def _admit(self, hello: MasterHello, link: MasterLink, data: bytes) -> bytes:
        """Returns the bytes for the link; empty: the peer is not admitted yet, or refused."""
        try:
            step = hello.receive_data(data)
        except HelloRefused as refused:
            self._server.peer_refused(self, refused)
            return b""
        if isinstance(step, Admitted):
            self._hello = None
            link.proven_id = step.broker_id
            return step.rest
        if step is not None and self._transport is not None:
            self._transport.write(step)
        return b""

    @property
    def is_tls(self) -> bool:
        """Returns whether the connection is encrypted."""
        return self._transport is not None and self._transport.get_extra_info("sslcontext") is not None

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._batch is not None:
            self._batch.abort()
        self._server.lost(
            self, self.link.close_reason or str(exc or "closed by the slave") if self.link else ""
        )

    def close(self, reason: str) -> None:
        """Aborts the connection and drops its buffer. connection_lost() follows."""
        if self.link is not None:
            self.link.close(reason)
        if not self.closed and self._transport is not None:
            self.closed = True
            if self._batch is not None:
                self._batch.abort()
            self._transport.abort()

    def pump(self) -> None:
        """Sends at most one packet and schedules the next one, or passes a batch to a thread."""
        if self.closed or self.link is None:
            return
        transport, now_ms = self._transport, self._server.clock()
        assert transport is not None
        if self._hello is not None:
            self._check_hello(self._hello, now_ms)
            return
        self._server.state.min_offset = self._server.log.min_offset  # retention does not wait for a tick
        if self._scheduled or self._paused or self._batch is not None:
            if (close := self.link.check(now_ms)) is not None:
                self.close(close.reason)
            return
        if self._server.check.is_all_whole:
            self.link.sendable_end = NEVER
        elif self._checks(self.link):
            return
        if transport.is_closing() or (
            self.link.is_far_behind and self._send_by_thread(transport, self.link, now_ms)
        ):
            return
        self._limit(transport, self._server.settings.batch_bytes)
        effect = self.link.next_effect(now_ms)
        if effect is None:
            return
        if isinstance(effect, Close):
            self.close(effect.reason)
            return
        if effect.body_bytes:
            body = self._server.log.view(effect.offset, effect.body_bytes)
            assert len(body) == effect.body_bytes, "the log ends before its max offset"
            WriteBuffers.write_pieces(transport, (effect.header, body))
        else:
            transport.write(effect.header)
        if self.link.has_more or effect.body_bytes == 0:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._pump_again)

    def _checks(self, link: MasterLink) -> bool:
        """Sets how far the link may send: damage is not sent, and bytes that this process found on its disk
        are checked first. Returns True if a thread checks them; it calls pump()."""
        check, position = self._server.check, link.position
        if position < 0:
            return False
        link.sendable_end = end = check.known_end(position)
        if end == position < self._server.log.max_offset and check.needs_check(position):
            check.check_some(position)
            link.sendable_end = end = check.known_end(position)
        ahead = link.is_far_behind and end - position < SENDFILE_BYTES and check.needs_check(end)
        if not ahead or self._fd < 0 or self._server.catch_up.is_full:
            return False
        try:
            self._batch = batch = CheckBatch(self._server.log, end)
        except OSError as error:
            self.close(f"cannot read the log: {error}")
            return True
        self._server.catch_up.start(batch, partial(self._checked, batch))
        return True

    def _checked(self, batch: CheckBatch, error: OSError | None) -> None:
        self._batch = None
        if error is not None:
            self.close(f"cannot read the log: {error}")
        elif not self.closed:  # else the log may have been cut meanwhile
            for piece in batch.pieces:
                self._server.check.found(piece)
            self.pump()

    def _check_hello(self, hello: MasterHello, now_ms: int) -> None:
        try:
            hello.check(now_ms)
        except HelloRefused as refused:
            self._server.peer_refused(self, refused)

    def _send_by_thread(self, transport: asyncio.Transport, link: MasterLink, now_ms: int) -> bool:
        """Returns True if a thread sends the next bytes, or will when the transport's buffer is empty; False:
        the loop must."""
        if self._fd < 0 or self._server.catch_up.is_full:
            return False
        if transport.get_write_buffer_size():
            self._limit(transport, 0)  # resume_writing() is called when the buffer is empty
            return self._paused
        packets = link.next_sendfile_batch(now_ms)
        if not packets:
            return False
        try:
            self._batch = SendfileBatch(self._server.log, self._fd, packets)
        except OSError as error:
            self.close(f"cannot read the log: {error}")
            return True
        self._server.catch_up.start(self._batch, self._batch_sent)
        return True

    def _batch_sent(self, error: OSError | None) -> None:
        self._batch = None
        if error is not None:
            self.close(f"cannot send to the slave: {error}")
        else:
            self.pump()

    def _limit(self, transport: asyncio.Transport, high_bytes: int) -> None:
        if high_bytes != self._high_bytes:
            self._high_bytes = high_bytes
            transport.set_write_buffer_limits(high=high_bytes)

    def _pump_again(self) -> None:
        self._scheduled = False
        self.pump()


class MasterServer:
    """The listener and the links of this broker. `state`: the log as the links see it; the HA service updates
    it."""

    def __init__(
        self,
        log: CommitLog,
        *,
        check: LogCheck,
        settings: LinkSettings,
        clock: Clock,
        on_ack: Callable[[MasterLink], None],
        on_links_changed: Callable[[], None],
        catch_up_threads: int,
        security: HaSecurity,
        new_link: Callable[[MasterLog, LinkSettings, int], MasterLink] | None = None,
    ) -> None:
        """new_link: makes the link of a connection at a time in ms; None: one of controller mode."""
        self.log, self.check = log, check
        self._new_link = new_link or (lambda log, settings, ms: MasterLink(log, settings, now_ms=ms))
        self.security = security
        self.settings = settings
        self.clock = clock
        self.on_ack = on_ack
        self.state = MasterLog(log.file_bytes)
        self.pauses = PauseDetector(clock())  # ticked by the owner
        self.catch_up = CatchUpThreads(catch_up_threads)
        self.links: dict[int, MasterLink] = {}
        """The live links of slaves that have identified themselves, by broker id; the newest one of each."""
        self._on_links_changed = on_links_changed
        self._protocols: dict[MasterLink, MasterProtocol] = {}
        self._refused: Counter[str] = Counter()
        self._refused_log = RateLimitedLogger(logger)
        self._unidentified_log = RateLimitedLogger(logger, level=logging.INFO)
        self._listener: asyncio.Server | None = None
        self._tasks = TaskSet()
        self._tls_port: TlsPort | None = None
        if security.tls is not None:
            self._tls_port = TlsPort(
                security.tls,
                self._new_protocol,
                name="HA port",
                first_byte_ms=DEADLINE_MS,
                handshake_ms=DEADLINE_MS,
                waiting_max=LINKS_MAX,
            )
        factory = self._new_protocol if self._tls_port is None else self._tls_port.accepted
        self._connections = HeldConnections(
            cast(Callable[[], asyncio.Protocol], factory),
            on_refused=partial(self._tell, self._unidentified_log),
            waiting_max=LINKS_MAX,
        )

    async def start(self, host: str, port: int) -> None:
        """Binds the port. Raises OSError if it is in use."""
        self._listener = await create_server(self._connections.accepted, host, port, backlog=LINKS_MAX)
        if self.security.tls is not None:
            self._tasks.start("certificates of the HA port", self.security.tls.run)

    def _new_protocol(self) -> MasterProtocol:
        return MasterProtocol(self)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; if 0 was configured, the port that the OS chose."""
        assert self._listener is not None
        host, port = self._listener.sockets[0].getsockname()[:2]
        return str(host), int(port)

    @property
    def connection_count(self) -> int:
        """Returns the number of open HA connections, also those without a handshake."""
        return len(self._protocols) + len(self._connections)

    @property
    def refused(self) -> Counter[str]:
        """Returns how many peers did not prove their membership, by the kinds of core/hello.py, or failed in
        TLS, by "tls_" and the kinds of TlsPort."""
        port = self._tls_port
        in_tls = {} if port is None else {f"tls_{kind}": n for kind, n in port.counts.items()}
        in_tls.pop(f"tls_{HANDSHAKES}", None)
        return self._refused + Counter(in_tls)

    async def stop(self) -> None:
        """Closes all links and the port. Raises StopError if a step failed; the others are done."""
        steps = StopSteps("the HA port")
        if self._listener is not None:
            steps.add("the listener", self._listener.close)
        if self._tls_port is not None:
            steps.add("TLS handshakes", self._tls_port.close)
        steps.add("connections that wait", self._connections.close)
        steps.add("the links", lambda: self.refuse("the broker stops"))
        steps.add("catch-up threads", self.catch_up.close)
        steps.add("certificates", self._tasks.stop)
        if self._listener is not None:
            steps.add("the listener's connections", self._listener.wait_closed)
        await steps.run()

    def configure(self, settings: LinkSettings) -> None:
        """Applies changed settings, also to open links."""
        self.settings, now_ms = settings, self.clock()
        for link in self._protocols:
            link.configure(settings, now_ms)

    def accept(self, *, producers_first: bool = False) -> None:
        """Accepts slaves from now on, or after PRODUCERS_FIRST_MS: this broker is master."""
        self._connections.serve(PRODUCERS_FIRST_MS if producers_first else 0)

    def refuse(self, reason: str) -> None:
        """Closes every link and serves none from now on: this broker is not master. New connections wait a
        moment. on_links_changed is not called."""
        self._connections.hold()
        self.links.clear()
        for protocol in list(self._protocols.values()):
            protocol.close(reason)
        self._protocols.clear()

    def accepted(self, protocol: MasterProtocol) -> MasterLink | None:
        """Returns the link of a new connection; None: it is refused."""
        if not self._connections.are_served:
            self._tell(self._unidentified_log, protocol.address, "this broker is not master")
            return None
        if len(self._protocols) >= LINKS_MAX and not self._make_room():
            self._tell(self._refused_log, protocol.address, f"{LINKS_MAX} are open")
            return None
        link = self._new_link(self.state, self.settings, self.clock())
        self._protocols[link] = protocol
        return link

    def _make_room(self) -> bool:
        """Closes the oldest connection that has not sent its handshake, so that such peers cannot lock a
        slave out. Returns False if there is none."""
        unidentified = (link for link in self._protocols if link.slave_id is None)
        if (oldest := next(unidentified, None)) is None:
            return False
        self._protocols.pop(oldest).close(f"more than {LINKS_MAX} connections")
        return True

    def peer_refused(self, protocol: MasterProtocol, refused: HelloRefused) -> None:
        """Closes the connection of a peer that has not proved its membership."""
        self._refused[refused.kind] += 1
        self._tell(self._refused_log, protocol.address, str(refused))
        if self.security.audit is not None:
            self.security.audit.refused(
                "HA_LINK", address=protocol.address, is_tls=protocol.is_tls, remark=str(refused)
            )
        if protocol.link is not None:
            self._protocols.pop(protocol.link, None)
        protocol.close(str(refused))

    def _tell(self, log: RateLimitedLogger, address: str, why: str) -> None:
        log.tell(self.clock(), "HA connection from %s refused: %s", address, why)

    def identified(self, protocol: MasterProtocol, link: MasterLink) -> None:
        """Makes this connection the slave's only one. Closing the older one does not change the
        SyncStateSet. One without a proof does not end one with a proof."""
        assert link.slave_id is not None
        older = self.links.get(link.slave_id)
        if older is not None and older.proven_id is not None and link.proven_id is None:
            link.close(f"slave {link.slave_id} is connected, and has proved its membership")
            return
        self.links[link.slave_id] = link
        if older is not None and (old_protocol := self._protocols.get(older)) is not None:
            old_protocol.close(f"slave {link.slave_id} connected again from {protocol.address}")
        logger.info("slave %d connected from %s", link.slave_id, protocol.address)
        self._on_links_changed()

    def lost(self, protocol: MasterProtocol, reason: str) -> None:
        """Removes a connection that was closed."""
        link = protocol.link
        if link is None or self._protocols.pop(link, None) is None:
            return
        if link.slave_id is None:
            self._unidentified_log.tell(
                self.clock(), "HA link of an unidentified peer (%s) ended: %s", protocol.address, reason
            )
            return
        logger.info("HA link of slave %d (%s) ended: %s", link.slave_id, protocol.address, reason)
        if self.links.get(link.slave_id) is link:
            del self.links[link.slave_id]
            self._on_links_changed()

    def pump(self) -> None:
        """Sends to every slave. Called for new bytes, for a newer confirmOffset, and at each tick."""
        for protocol in list(self._protocols.values()) if self._protocols else ():
            protocol.pump()

    def address_of(self, link: MasterLink) -> str:
        """Returns "host:port" of the slave's connection; empty if it is closed."""
        protocol = self._protocols.get(link)
        return protocol.address if protocol is not None else ""
