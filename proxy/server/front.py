"""Front: the port that clients of gRPC connect to. It passes the bytes of each connection on to grpcio, after
TLS.

grpcio serves plain connections or TLS on a port, not both. It does not know the limits of connections that
all other ports have, nor certificates that change. So it listens on a Unix socket in a folder of this user,
and TlsPort accepts the connections, as for remoting. Each connection to that socket is bound to a name of its
own, which grpcio gives as the peer of a call. It tells which client it is; other peers are refused."""

import asyncio
import fcntl
import itertools
import logging
import os
import secrets
import shutil
import socket
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final, cast

from keelmq.remoting.address_text import join_address
from keelmq.remoting.addresses import host_and_port_bytes, network_of
from keelmq.remoting.large_frames import NoRoomError
from keelmq.remoting.peer_limits import PeerLimits
from keelmq.remoting.servers.listening import create_server
from keelmq.runtime.clock import now_ms
from keelmq.runtime.config import ConfigError, why_refused
from keelmq.runtime.rate_limited_log import RateLimitedLogger
from keelmq.runtime.tasks import cancel_all
from keelmq.runtime.tls.contexts import PortTls
from keelmq.runtime.tls.port import TlsPort, WaitingConnection

logger = logging.getLogger(__name__)

NAME: Final = "grpcServerPort"
PEER_PREFIX: Final = "unix-abstract:"
"""How grpcio writes the name of a Unix socket that is not in the file system."""
FOLDER_PREFIX, SOCKET = "keelmq-grpc-", "socket"
PATH_BYTES_MAX: Final = 107
FOLDERS_MAX: Final = 10
"""That are made until one is not removed at once by a proxy that starts."""
BACKLOG: Final = 1_024
CLOSE_S: Final = 30.0
"""A client must read what is left for it within this time after the end of its connection."""


class Front:
    """limits: of connections, shared with the other ports of the program. are_admitted: nothing is
    authenticated here."""

    def __init__(self, tls: PortTls, limits: PeerLimits, *, are_admitted: bool) -> None:
        """Raises ConfigError: this machine has no place for the socket."""
        self.limits, self.are_admitted = limits, are_admitted
        self._tls_port = TlsPort(
            tls,
            lambda: Relay(self),
            name=NAME,
            enter=self._waits,
            leave=limits.leave,
            hello=self._says_hello,
        )
        self._token, self._numbers = secrets.token_hex(8), itertools.count()
        self._relays: dict[str, Relay] = {}
        self.closed_peers = RateLimitedLogger(logger)
        self.connecting: set[asyncio.Task[None]] = set()
        remove_left_folders()
        self._folder, lock = _make_folder()
        self._folder_lock: int | None = lock
        self._server: asyncio.Server | None = None

    @property
    def socket_path(self) -> Path:
        """Where grpcio listens."""
        return self._folder / SOCKET

    async def start(self, host: str, port: int) -> int:
        """Returns the port that is bound. Raises ConfigError."""
        try:
            self._server = await create_server(self._tls_port.accepted, host, port, backlog=BACKLOG)
        except (OSError, UnicodeError) as error:
            where = join_address(host, port)
            raise ConfigError(f"{NAME}: cannot listen on {where}: {why_refused(error)}") from None
        return int(self._server.sockets[0].getsockname()[1])

    def client(self, peer: str) -> "Relay | None":
        """Returns the connection that grpcio names as the peer of a call; None: it is none of this port, or
        it has ended."""
        return self._relays.get(peer)

    def open_socket(self, relay: "Relay") -> socket.socket:
        """Returns a connection to grpcio, by whose name the relay is found. OSError."""
        name = f"keelmq-{self._token}-{next(self._numbers)}"
        found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            found.setblocking(False)
            found.bind(f"\0{name}")
            found.connect(str(self.socket_path))
        except OSError:
            found.close()
            raise
        relay.name = PEER_PREFIX + name
        self._relays[relay.name] = relay
        return found

    def ended(self, relay: "Relay") -> None:
        """The client's connection is closed."""
        self._relays.pop(relay.name, None)
        self.limits.leave(relay)
        self.limits.release(relay)

    def stop_listening(self) -> None:
        """No connection is accepted any more."""
        if self._server is not None:
            self._server.close()
        self._tls_port.close()

    async def close(self) -> None:
        """Closes every connection at once. grpcio has ended its own before."""
        self.stop_listening()
        await cancel_all(self.connecting)
        for relay in list(self._relays.values()):
            relay.abort()
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._folder_lock is not None:
            os.close(self._folder_lock)
            self._folder_lock = None

    def _waits(self, connection: WaitingConnection, host: str) -> str | None:
        return self.limits.enter(connection, network_of(host_and_port_bytes(host, 0)))

    def _says_hello(self, host: str) -> str | None:
        if self.limits.take_request(network_of(host_and_port_bytes(host, 0)), now_ms()):
            return None
        return "too many TLS handshakes of its address; try again in 1 s"


def _make_folder() -> tuple[Path, int]:
    """Returns a new folder of mode 0700, and the lock that keeps other proxies from removing it. Raises
    ConfigError."""
    if sys.platform != "linux":
        raise ConfigError(f"{NAME}: the gRPC port needs Linux (abstract names of Unix sockets)")
    parent = Path(tempfile.gettempdir())
    path_bytes = len(os.fsencode(parent / f"{FOLDER_PREFIX}12345678" / SOCKET))
    if path_bytes > PATH_BYTES_MAX:
        raise ConfigError(
            f"{NAME}: a Unix socket in {parent} would have a path of {path_bytes} bytes, above the "
            f"{PATH_BYTES_MAX} that are possible: set TMPDIR to a shorter directory"
        )
    try:
        for _ in range(FOLDERS_MAX):
            folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
            try:
                lock = lock_folder(folder)
            except OSError:
                folder.rmdir()
                raise
            if lock is not None:
                return folder, lock
    except OSError as error:
        raise ConfigError(
            f"{NAME}: cannot make and lock a folder in {parent}: {why_refused(error)}; set TMPDIR to another "
            "directory"
        ) from None
    raise ConfigError(f"{NAME}: another program removes the folders that are made in {parent}")


def lock_folder(folder: Path) -> int | None:
    """Returns an open descriptor that locks the folder until it is closed, or the process ends; None: another
    process has the lock, or has removed the folder. Raises OSError: the folder cannot be locked."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_there = os.fstat(lock).st_nlink > 0
    except OSError as error:
        os.close(lock)
        if isinstance(error, BlockingIOError):
            return None
        raise
    if not is_there:
        os.close(lock)
    return lock if is_there else None


def remove_left_folders() -> None:
    """Removes the folders of proxies that were killed: their locks are free, and their sockets refuse
    connections. The lock alone would be that of an earlier version, which has none; the socket alone that of
    a proxy that starts, because grpcio binds it some time before it listens."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        lock = None
        with suppress(OSError):  # for instance of another user
            lock = lock_folder(folder)
        if lock is None:
            continue
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, suppress(OSError):
            probe.setblocking(False)
            try:
                probe.connect(str(folder / SOCKET))
            except ConnectionRefusedError:
                shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


class Relay(asyncio.Protocol):
    """A client's connection. Bytes that come before grpcio's end is connected wait, of one read. There may be
    thousands, hence the slots."""

    __slots__ = (
        "_closing",
        "_early",
        "_front",
        "_inner",
        "_is_lost",
        "_transport",
        "address",
        "is_admitted",
        "name",
        "network",
        "partial_bytes",
        "partial_looks",
    )

    def __init__(self, front: Front) -> None:
        self._front = front
        self.name = ""
        self.address, self.network = "", b""
        self.is_admitted = front.are_admitted
        self.partial_bytes = self.partial_looks = 0
        """Bytes of a connection none of whose calls had a right signature: they count as one frame that has
        not ended, since grpcio keeps what has come of requests."""
        self._transport: asyncio.Transport | None = None
        self._inner: asyncio.Transport | None = None
        self._early: list[bytes] = []
        self._is_lost = False
        self._closing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        host, port = transport.get_extra_info("peername")[:2]
        self.address = join_address(host, port)
        self.network = network_of(host_and_port_bytes(host, port))
        refusal = self._front.limits.enter(self, self.network)
        if refusal is not None:
            self.evict(refusal)
            return
        self._transport.pause_reading()
        task = asyncio.get_running_loop().create_task(self._connect())
        self._front.connecting.add(task)
        task.add_done_callback(self._front.connecting.discard)

    async def _connect(self) -> None:
        assert self._transport is not None
        try:
            found = self._front.open_socket(self)
            inner, _ = await asyncio.get_running_loop().create_unix_connection(
                lambda: Inner(self), sock=found
            )
        except OSError as error:
            self.evict(f"grpcio does not accept it: {error}")
            return
        if self._is_lost:
            inner.abort()
            return
        self._inner = inner
        inner.writelines(self._early)
        self._early = []
        self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if not self.is_admitted:
            try:
                self._front.limits.hold(self, len(data))
            except NoRoomError as error:
                self.evict(str(error))
                return
        if self._inner is None:
            self._early.append(data)
        else:
            self._inner.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._front.ended(self)
        if self._closing is not None:
            self._closing.cancel()
        if self._inner is not None:
            self._inner.close()

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_reading()

    def resume_writing(self) -> None:
        if self._inner is not None and not self._inner.is_closing():
            self._inner.resume_reading()

    def is_paused(self) -> bool:
        """Returns False: its bytes are limited by number, not by time."""
        return False

    def may_try(self) -> bool:
        """Counts a call of a connection none of whose calls had a right signature. False: there were too many
        of its address."""
        return self.is_admitted or self._front.limits.take_request(self.network, now_ms())

    def admitted(self) -> None:
        """A call of this connection has a right signature."""
        if not self.is_admitted:
            self.is_admitted = True
            self._front.limits.admitted(self)
            self._front.limits.release(self)

    def evict(self, problem: str) -> None:
        """Logs the problem and closes at once."""
        self._front.closed_peers.tell(now_ms(), "%s: closed %s: %s", NAME, self.address, problem)
        self.abort()

    def abort(self) -> None:
        """Closes at once."""
        if self._transport is not None:
            self._transport.abort()

    # -- what Inner calls --------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Sends what grpcio answers."""
        if self._transport is not None:
            self._transport.write(data)

    def set_reading(self, *, on: bool) -> None:
        """off: grpcio does not read now."""
        if self._transport is not None and not self._transport.is_closing():
            (self._transport.resume_reading if on else self._transport.pause_reading)()

    def close(self) -> None:
        """Sends what is left, and closes."""
        if self._transport is not None and not self._is_lost:
            self._transport.close()
            self._closing = asyncio.get_running_loop().call_later(CLOSE_S, self.abort)


class Inner(asyncio.Protocol):
    """The other end of a Relay's bytes: the connection to grpcio."""

    __slots__ = ("_relay",)

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def data_received(self, data: bytes) -> None:
        self._relay.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._relay.close()

    def pause_writing(self) -> None:
        self._relay.set_reading(on=False)

    def resume_writing(self) -> None:
        self._relay.set_reading(on=True)
