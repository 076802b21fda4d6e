"""Many brokers as their controllers see them: one connection each per controller, a heartbeat each second.

One thread; sends are spread evenly over the second. What controllers push (1008) is read and noted.
"""

import contextlib
import itertools
import select
import socket
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from keelmq.remoting.command import decode
from tests.bench.groups import Group, heartbeat

PERIOD_S = 1.0
SLICES = 100
NOTIFY_BROKER_ROLE_CHANGED = 1008
Address = tuple[str, int]


@dataclass(slots=True, eq=False)
class Broker:
    """One broker's connection to one controller."""

    broker_name: str
    broker_id: int
    controller: Address
    frame: bytes
    sock: socket.socket | None = None
    received: bytearray = field(default_factory=bytearray)
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Told:
    """A 1008 that arrived."""

    at: float  # time.perf_counter()
    broker_name: str
    master_broker_id: int | None
    master_epoch: int


class Heartbeats:
    """`with Heartbeats(...) as sender`: sends heartbeats from then on, reconnecting, until the block ends."""

    def __init__(self, groups: Iterable[Group], controllers: Iterable[Address]) -> None:
        controllers = list(controllers)
        self.brokers = [
            Broker(group.broker_name, broker_id, controller, heartbeat(group, broker_id))
            for group in groups
            for broker_id in group.addresses
            for controller in controllers
        ]
        self.sent = 0
        self.turn_s = (
            PERIOD_S  # the slowest turn so far in which everybody was connected: the machine's doing
        )
        self.told: list[Told] = []
        self._by_file: dict[int, Broker] = {}
        self._poll = select.epoll()
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)

    def __enter__(self) -> "Heartbeats":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        for broker in self.brokers:
            self._close(broker)
        self._poll.close()

    def kill(self, brokers: Iterable[Broker]) -> float:
        """As if these processes had been killed: no heartbeat any more, connections closed. When it began."""
        with self._lock:
            begin = time.perf_counter()
            for broker in brokers:
                broker.gone = True
                self._close(broker)
        return begin

    def _run(self) -> None:
        """Late slices are not caught up: brokers do not do that either."""
        due, slice_s = time.perf_counter(), PERIOD_S / SLICES
        began, connected = due, 0
        for at in itertools.cycle(range(SLICES)):
            if at == 0:
                now = time.perf_counter()
                if connected == len(self._by_file):
                    self.turn_s = max(self.turn_s, now - began)
                began, connected = now, len(self._by_file)
            with self._lock:
                for broker in self.brokers[at::SLICES]:
                    self._heartbeat(broker)
            due = max(due + slice_s, time.perf_counter())
            self._receive(due)
            if self._ending.is_set():
                return

    def _heartbeat(self, broker: Broker) -> None:
        if broker.gone:
            return
        if broker.sock is None:
            self._connect(broker)
        if broker.sock is not None:
            try:
                broker.sock.send(broker.frame)
                self.sent += 1
            except BlockingIOError:
                pass  # a controller that is stopped does not read
            except OSError:
                self._close(broker)

    def _connect(self, broker: Broker) -> None:
        sock = socket.socket()
        sock.settimeout(1)
        try:
            sock.connect(broker.controller)
        except OSError:
            sock.close()
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        broker.sock = sock
        self._by_file[sock.fileno()] = broker
        self._poll.register(sock, select.EPOLLIN)

    def _close(self, broker: Broker) -> None:
        if broker.sock is not None:
            del self._by_file[broker.sock.fileno()]
            broker.sock.close()
            broker.sock = None
            broker.received.clear()

    def _receive(self, until: float) -> None:
        """Until the next slice is due; at least once."""
        while True:
            for file, _events in self._poll.poll(max(0.0, until - time.perf_counter()), 1_024):
                with self._lock:
                    self._read(file)
            if time.perf_counter() >= until or self._ending.is_set():
                return

    def _read(self, file: int) -> None:
        broker = self._by_file.get(file)
        if broker is None or broker.sock is None:
            return
        data = b""
        with contextlib.suppress(OSError):
            data = broker.sock.recv(65_536)
        if not data:
            return self._close(broker)
        now, received = time.perf_counter(), broker.received
        received += data
        while len(received) >= 4 and len(received) >= 4 + (size := int.from_bytes(received[:4], "big")):
            command = decode(bytes(received[4 : 4 + size]))
            del received[: 4 + size]
            if command.code == NOTIFY_BROKER_ROLE_CHANGED:
                fields = command.ext_fields
                master = fields.get("masterBrokerId")
                self.told.append(
                    Told(
                        now,
                        fields["brokerName"],
                        None if master is None else int(master),
                        int(fields["masterEpoch"]),
                    )
                )
