"""Links: one authenticated connection to each other member, in the raft thread, on the library's poller.

Listens on the configured address, or on any address if the member has a name. The greater id dials. Passes
frames to LinkEvents without interpreting them. Until HELLO is accepted, data of a peer reaches only the
channel and the check of HELLO.
"""

import contextlib
import hashlib
import logging
import os
import socket
from collections import Counter
from collections.abc import Mapping
from typing import Protocol

from keelmq.remoting.servers.listening import accept_both_families
from keelmq.runtime.config import ConfigError
from namesrv.plugins.controller.raft.codec import Hello, Ping, decode_message, encode
from namesrv.plugins.controller.raft.transport.channel import ChannelError
from namesrv.plugins.controller.raft.transport.link import ERROR, READ, Link, LinkSettings, Poller

logger = logging.getLogger(__name__)

HELLO_VERSION = 1
PENDING_MAX = 64  # connections without HELLO; above it the oldest is closed
HANDSHAKE_S = 2.0
ACCEPTS_PER_TURN = 16
DIAL_ANYWAY_S = 2.0
LISTEN_PAUSE_S = 0.2  # after a failed accept, which leaves the connection in the queue


class LinkEvents(Protocol):
    """Receives connections and frames. Raft thread."""

    def link_up(self, member: str) -> None:
        """A link is open: both HELLOs were accepted."""
        ...

    def link_down(self, member: str) -> None:
        """The link to this member is closed."""
        ...

    def link_frame(self, member: str, frame: bytes) -> None:
        """A frame of this member, still encoded."""
        ...

    def frames_end(self) -> None:
        """Every frame of one read was passed on."""
        ...


def members_hash(members: frozenset[str]) -> str:
    """Returns 16 hex digits; equal for equal member lists."""
    return hashlib.sha256("\n".join(sorted(members)).encode()).hexdigest()[:16]


class Links:
    """All connections. `refused`: counts by reason. `differing_lists`: members with another member list."""

    def __init__(self, settings: LinkSettings, poller: Poller, events: LinkEvents) -> None:
        self.settings, self.poller, self._events = settings, poller, events
        self._links: dict[str, Link] = {}
        self._pending: set[Link] = set()
        self._retry_at: dict[str, float] = {}
        self._missing_since: dict[str, float] = {}
        self._listener: socket.socket | None = None
        self._listen_again_at: float | None = None  # when the listener is resumed; None: it is not paused
        self._ping = encode(Ping())
        self.members = settings.members
        self.refused: Counter[str] = Counter()
        self.differing_lists: set[str] = set()
        self._logged_at: dict[str, float] = {}

    def listen(self) -> None:
        """Opens the raft port. Raises ConfigError with the address and the reason."""
        family, address = self.settings.listen
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setblocking(False)
            accept_both_families(listener, address[0])
            listener.bind(address)
            listener.listen(PENDING_MAX)
        except OSError as error:
            listener.close()
            reason = os.strerror(error.errno or 0)
            raise ConfigError(f"cannot listen for raft on {address[0]}:{address[1]}: {reason}") from None
        self._listener = listener
        self.poller.subscribe(listener.fileno(), self._on_accept, READ | ERROR)

    def set_members(self, members: Mapping[str, tuple[str, int]]) -> None:
        """Connects to these members, and closes the links to all others."""
        self.members = frozenset(members)
        for member, address in members.items():
            self.settings.learn(member, address)
        for member in sorted(self._links.keys() - self.members):
            self._links[member].close("not a member any more")

    def _is_ours_to_dial(self, member: str, now: float) -> bool:
        """Returns whether to dial. The greater id does; after DIAL_ANYWAY_S both do: one may not know the
        other."""
        missing_since = self._missing_since.setdefault(member, now)
        return member < self.settings.self_id or now - missing_since > DIAL_ANYWAY_S

    def drop(self, member: str, reason: str) -> None:
        """Closes the link to this member, if there is one."""
        link = self._links.get(member)
        if link is not None:
            link.close(reason)

    def send(self, member: str, frame: bytes) -> bool:
        link = self._links.get(member)
        return link is not None and link.send(frame)

    def connected(self) -> list[str]:
        """Returns the members with an open link, sorted."""
        return sorted(self._links)

    def tick(self) -> None:
        """Handles timeouts, pings and dialing. Call it in each tick of the raft thread."""
        now, timeout = self.settings.now(), self.settings.connection_timeout_s
        self._resume_listener(now)
        for link in [link for link in self._pending if now - link.opened_at > HANDSHAKE_S]:
            link.close("handshake took too long")
        for link in list(self._links.values()):
            if now - link.heard_at > timeout:
                link.close("silent for too long")
            elif now - link.sent_at > timeout / 4:
                link.send(self._ping)
        dialing = {link.member for link in self._pending if link.dialed}
        for member in sorted(self.members):
            if member in self._links or member in dialing or member == self.settings.self_id:
                self._missing_since.pop(member, None)
            elif self._is_ours_to_dial(member, now):
                self._dial(member, now)

    def close(self) -> None:
        """Closes every link and the listener."""
        for link in [*self._links.values(), *self._pending]:
            link.close("stopping")
        if self._listener is not None:
            if self._listen_again_at is None:
                self.poller.unsubscribe(self._listener.fileno())
            self._listener.close()
            self._listener = None

    # ------------------------------------------------------------------ called by Link
    def hello(self, receiver: str) -> bytes:
        """LinkOwner: returns the HELLO frame for this member."""
        settings = self.settings
        return encode(
            Hello(HELLO_VERSION, settings.cluster_id, settings.self_id, receiver, members_hash(self.members))
        )

    def frame(self, link: Link, frame: bytes) -> None:
        """LinkOwner: checks HELLO, the first frame; later ones go to LinkEvents. Raises ChannelError."""
        if link.up and link.member is not None:
            self._events.link_frame(link.member, frame)
        else:
            self._on_hello(link, decode_message(frame))

    def frames_end(self) -> None:
        """LinkOwner: passes it on."""
        self._events.frames_end()

    def closed(self, link: Link, reason: str, detail: str) -> None:
        """LinkOwner: counts and logs the end of a link."""
        self._pending.discard(link)
        if not link.up:
            self.refused[reason] += 1
            self._log_refused(link, reason, detail)
        elif link.member is not None and self._links.get(link.member) is link:
            del self._links[link.member]
            self._retry_at[link.member] = 0.0
            logger.info("raft link to %s is down: %s", link.member, f"{reason} {detail}".strip())
            self._events.link_down(link.member)

    def _on_hello(self, link: Link, hello: object) -> None:
        mine = self.settings
        if not isinstance(hello, Hello) or hello.version != HELLO_VERSION:
            raise ChannelError("no HELLO of our version")
        if hello.cluster_id != mine.cluster_id:
            raise ChannelError("HELLO for another cluster", repr(hello.cluster_id))
        if hello.receiver != mine.self_id or hello.sender == mine.self_id:
            raise ChannelError("HELLO for another member", f"{hello.sender!r} to {hello.receiver!r}")
        if link.dialed and hello.sender != link.member:
            raise ChannelError("HELLO of another member than dialed", repr(hello.sender))
        if not link.may_be(hello.sender):
            raise ChannelError(
                "certificate of another member", f"than {hello.sender!r}, who HELLO says it is"
            )
        if hello.sender not in self.members and not mine.accept_unlisted:
            raise ChannelError("HELLO of an unknown member", repr(hello.sender))
        self.differing_lists.discard(hello.sender)
        if hello.members_hash != members_hash(self.members):
            self.differing_lists.add(hello.sender)
            logger.warning("member list of %s differs from ours (a change in progress?)", hello.sender)
        self._pending.discard(link)
        old = self._links.get(hello.sender)
        if old is not None:
            old.close("replaced by a newer connection")  # drops its unread frames: late ones could do harm
        link.member = hello.sender
        link.accept_frames()
        self._links[hello.sender] = link
        if not link.dialed:
            link.send(self.hello(hello.sender))
        if link.alive:
            self._events.link_up(hello.sender)

    def _log_refused(self, link: Link, reason: str, detail: str) -> None:
        now, peer = self.settings.now(), link.member or "an unverified peer"
        if now - self._logged_at.get(f"{peer} {reason}", float("-inf")) > 60:  # once a minute each
            self._logged_at[f"{peer} {reason}"] = now
            is_down = link.dialed and not link.is_foreign  # it is normal that a member is down
            level = logging.INFO if is_down else logging.WARNING
            logger.log(level, "raft connection with %s ended before HELLO: %s %s", peer, reason, detail)

    def _on_accept(self, _: int, __: int) -> None:
        for _attempt in range(ACCEPTS_PER_TURN):
            try:
                sock, _address = self._listener.accept()  # type: ignore[union-attr]
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:  # no free descriptor: pause, to avoid a busy loop
                self.refused[os.strerror(error.errno or 0)] += 1
                self._pause_listener()
                return
            if len(self._pending) >= PENDING_MAX:
                min(self._pending, key=lambda link: link.opened_at).close("too many without HELLO")
            try:
                self._add_pending(Link(self, sock, member=None))
            except OSError:
                sock.close()

    def _dial(self, member: str, now: float) -> None:
        if now < self._retry_at.get(member, 0.0):
            return
        target = self.settings.lookup(member)
        if target is None:
            return
        self._retry_at[member] = now + self.settings.retry_s
        try:
            sock = socket.socket(target[0], socket.SOCK_STREAM)
        except OSError as error:
            self.refused[os.strerror(error.errno or 0)] += 1
            return
        sock.setblocking(False)
        try:
            with contextlib.suppress(BlockingIOError):
                sock.connect(target[1])
            self._add_pending(Link(self, sock, member=member))
        except OSError as error:
            sock.close()
            self.refused[os.strerror(error.errno or 0)] += 1

    def _add_pending(self, link: Link) -> None:
        if link.alive:  # otherwise its first write has failed
            self._pending.add(link)

    def _pause_listener(self) -> None:
        if self._listener is not None and self._listen_again_at is None:
            self.poller.unsubscribe(self._listener.fileno())
            self._listen_again_at = self.settings.now() + LISTEN_PAUSE_S

    def _resume_listener(self, now: float) -> None:
        if self._listener is not None and self._listen_again_at is not None and now >= self._listen_again_at:
            self._listen_again_at = None
            self.poller.subscribe(self._listener.fileno(), self._on_accept, READ | ERROR)
