"""The HA port: accepts slaves and moves packets between their MasterLinks and their sockets.

One packet per slave and loop turn, and never more than about one packet in a transport's buffer: bulk
catch-up must not delay the producers that share the loop. Log bytes go from the mapped file to the socket
without a copy (uvloop). A slave that is far behind is served by a thread (catch_up.py): while `_run` is set,
it alone writes to the socket. A broker that is not master closes whoever connects.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from broker.ha.catch_up import CatchUp, Run
from broker.ha.core.master_link import Close, LinkSettings, MasterLink, MasterLog
from broker.ha.ports import Clock, ReplicatedLog

logger = logging.getLogger(__name__)

LINKS_MAX = 256
"""Connections, members or not; a broker group has a handful."""


class MasterProtocol(asyncio.Protocol):
    """One accepted connection."""

    def __init__(self, server: "MasterServer") -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._scheduled = False
        self._run: Run | None = None
        self._fd = -1  # for threads; -1: there is no socket that they could write to
        self._high_bytes = server.settings.batch_bytes
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

    def data_received(self, data: bytes) -> None:
        link = self.link
        if link is None or self.closed:
            return
        before = link.slave_id
        link.receive_data(data, self._server.clock())
        if link.slave_id != before:
            self._server.introduced(self, link)
        if not link.is_settled:
            self.pump()
        if not self.closed:
            self._server.on_ack(link)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._run is not None:
            self._run.abort()
        self._server.lost(
            self, self.link.close_reason or str(exc or "closed by the slave") if self.link else ""
        )

    def close(self, reason: str) -> None:
        """At once, with whatever is in the buffer lost; connection_lost() follows."""
        if self.link is not None:
            self.link.close(reason)
        if not self.closed and self._transport is not None:
            self.closed = True
            if self._run is not None:
                self._run.abort()
            self._transport.abort()

    def pump(self) -> None:
        """At most one packet now, the next one in the next turn of the loop; or a run for a thread."""
        if self.closed or self.link is None:
            return
        transport, now_ms = self._transport, self._server.clock()
        assert transport is not None
        self._server.state.min_offset = self._server.log.min_offset  # retention does not wait for a tick
        if self._scheduled or self._paused or self._run is not None:
            if (close := self.link.check(now_ms)) is not None:
                self.close(close.reason)
            return
        if transport.is_closing() or (self.link.is_far and self._catches_up(transport, self.link, now_ms)):
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
            transport.writelines((effect.header, body))
        else:
            transport.write(effect.header)
        if self.link.has_more or effect.body_bytes == 0:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._pump_again)

    def _catches_up(self, transport: asyncio.Transport, link: MasterLink, now_ms: int) -> bool:
        """A thread sends what comes next, or will when what the loop wrote is gone. False: the loop does."""
        if self._fd < 0 or self._server.catch_up.is_full:
            return False
        if transport.get_write_buffer_size():
            self._limit(transport, 0)  # resume_writing() comes when nothing is left
            return self._paused
        packets = link.next_run(now_ms)
        if not packets:
            return False
        try:
            self._run = Run(self._server.log, self._fd, packets)
        except OSError as error:
            self.close(f"cannot read the log: {error}")
            return True
        self._server.catch_up.start(self._run, self._run_ended)
        return True

    def _run_ended(self, error: OSError | None) -> None:
        self._run = None
        if error is not None:
            self.close(f"the slave is gone: {error}")
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
    """The listener and the links of this broker; `state` is what the links know of the log."""

    def __init__(
        self,
        log: ReplicatedLog,
        *,
        settings: LinkSettings,
        clock: Clock,
        on_ack: Callable[[MasterLink], None],
        on_links_changed: Callable[[], None],
        catch_up_threads: int = 0,
    ) -> None:
        self.log = log
        self.settings = settings
        self.clock = clock
        self.on_ack = on_ack
        self.state = MasterLog(log.file_bytes)
        self.catch_up = CatchUp(catch_up_threads)
        self.links: dict[int, MasterLink] = {}
        """Live links that have introduced themselves: one per slave id, the newest."""
        self._on_links_changed = on_links_changed
        self._protocols: dict[MasterLink, MasterProtocol] = {}
        self._listener: asyncio.Server | None = None
        self._open = False

    async def start(self, host: str, port: int) -> None:
        """OSError: the port is taken."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: MasterProtocol(self), host, port, backlog=LINKS_MAX)

    @property
    def address(self) -> tuple[str, int]:
        assert self._listener is not None
        host, port = self._listener.sockets[0].getsockname()[:2]
        return str(host), int(port)

    async def stop(self) -> None:
        self.refuse("the broker stops")
        await self.catch_up.close()
        if self._listener is not None:
            self._listener.close()
            await self._listener.wait_closed()

    def accept(self) -> None:
        """This broker is master from now on."""
        self._open = True

    def refuse(self, reason: str) -> None:
        """This broker is not master: close every link, without a word to the keeper of the set."""
        self._open = False
        self.links.clear()
        for protocol in list(self._protocols.values()):
            protocol.close(reason)
        self._protocols.clear()

    def accepted(self, protocol: MasterProtocol) -> MasterLink | None:
        if not self._open:
            logger.info("HA connection from %s refused: this broker is not master", protocol.address)
            return None
        if len(self._protocols) >= LINKS_MAX and not self._made_room():
            logger.warning("HA connection from %s refused: %d slaves already", protocol.address, LINKS_MAX)
            return None
        link = MasterLink(self.state, self.settings, now_ms=self.clock())
        self._protocols[link] = protocol
        return link

    def _made_room(self) -> bool:
        """Strangers, who have not said which slave they are, never keep a slave out."""
        strangers = (link for link in self._protocols if link.slave_id is None)
        if (longest_here := next(strangers, None)) is None:
            return False
        self._protocols.pop(longest_here).close(f"more than {LINKS_MAX} connections")
        return True

    def introduced(self, protocol: MasterProtocol, link: MasterLink) -> None:
        """The newest connection of a slave is the slave; the end of the older one means nothing."""
        assert link.slave_id is not None
        older = self.links.get(link.slave_id)
        self.links[link.slave_id] = link
        if older is not None and (old_protocol := self._protocols.get(older)) is not None:
            old_protocol.close(f"slave {link.slave_id} connected again from {protocol.address}")
        logger.info("slave %d connected from %s", link.slave_id, protocol.address)
        self._on_links_changed()

    def lost(self, protocol: MasterProtocol, reason: str) -> None:
        link = protocol.link
        if link is None or self._protocols.pop(link, None) is None:
            return
        who = "a stranger" if link.slave_id is None else f"slave {link.slave_id}"
        logger.info("HA link of %s (%s) ended: %s", who, protocol.address, reason)
        if link.slave_id is not None and self.links.get(link.slave_id) is link:
            del self.links[link.slave_id]
            self._on_links_changed()

    def pump(self) -> None:
        """New bytes, a newer confirmOffset, or time has passed."""
        for protocol in list(self._protocols.values()):
            protocol.pump()

    def address_of(self, link: MasterLink) -> str:
        protocol = self._protocols.get(link)
        return protocol.address if protocol is not None else ""
