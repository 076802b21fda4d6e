"""HeartbeatTable: which brokers are alive, by last heartbeat and by connection. Pure: time is an argument.

One instance per process holds two kinds of keys: routes (name server) and brokers (controller plugin). A key
is *active* while its last heartbeat is younger than its timeout and a connection that carried its heartbeats
is open. When the last such connection closes, the key is *suspect* for its grace, and then inactive. A proof
that its process is dead ends the grace at once. Any heartbeat makes it active.

A late close of an older connection never evicts a newer registration (promise S7). Connections are bound to
an incarnation (one run of one process); connection ids ascend, so a heartbeat of another incarnation over an
older connection than the bound ones is outdated and ignored, while the key is active. Within an incarnation a
new connection takes the place of the older ones, until they carry a heartbeat again. Once a key is inactive,
any incarnation that still sends heartbeats is alive: otherwise an old process that came back for a moment,
over a new connection, would shut out the present one until it connects again.

The cost of a scan depends on what it finds: suspects are in a heap by deadline, and no entry is read before
the earliest time at which one could have timed out.

Invariants: check_invariants().
"""

import heapq
from collections.abc import Hashable, Iterator
from typing import NamedTuple

import msgspec

CONNECTION_LOSS_GRACE_MS = 50


class BrokerKey(NamedTuple):
    """A broker as the controller identifies it; the key of heartbeats (904) with a broker id."""

    cluster_name: str
    broker_name: str
    broker_id: int


class LastSeen(NamedTuple):
    """inactive_ms: when a scan found it inactive; None: it is active, or no scan ran since. hung: inactive by
    silence, not because its connection closed. proved: its process was proved dead. found_early: hung, and
    found so before its heartbeat timeout."""

    last_heartbeat_ms: int
    inactive_ms: int | None
    hung: bool = False
    proved: bool = False
    found_early: bool = False


class RouteKey(NamedTuple):
    """A registration (103): by address, not by id, like RocketMQ's brokerLiveTable."""

    kind: str
    cluster_name: str
    broker_addr: str


def route_key(cluster_name: str, broker_addr: str) -> RouteKey:
    """Returns the key of a registration (103)."""
    return RouteKey("route", cluster_name, broker_addr)


class _Entry(msgspec.Struct):
    incarnation: str
    last_ms: int
    timeout_ms: int
    grace_ms: int
    info: object
    active: bool = True
    suspect_deadline_ms: int | None = None
    suspicion: int = 0
    inactive_ms: int | None = None
    hung: bool = False
    proved: bool = False
    found_early: bool = False
    connections: set[int] = msgspec.field(default_factory=set)
    newest_connection_id: int = 0


class HeartbeatTable(msgspec.Struct):
    """Times of one clock, in ms. Event loop only."""

    grace_ms: int = CONNECTION_LOSS_GRACE_MS
    _entries: dict[Hashable, _Entry] = msgspec.field(default_factory=dict)
    _keys_of_connection: dict[int, dict[Hashable, None]] = msgspec.field(default_factory=dict)
    _suspects: dict[Hashable, int] = msgspec.field(default_factory=dict)
    _deadlines: list[tuple[int, int, Hashable]] = msgspec.field(default_factory=list)
    """Heap of (deadline, number, key); entries of keys that are no longer suspect are skipped."""
    _suspected: int = 0
    _sweep_after_ms: int | None = None
    """No key times out before this time; None: no key is active."""

    def record_heartbeat(
        self,
        key: Hashable,
        *,
        connection_id: int,
        incarnation: str,
        timeout_ms: int,
        now_ms: int,
        info: object,
        grace_ms: int | None = None,
    ) -> bool:
        """Records a heartbeat. True: the key was absent or inactive before.

        `info` replaces the stored one. `connection_id` 0: bound to no connection (HTTP), so only the timeout
        counts. `grace_ms`: how long the key stays active without a connection; None: the table's grace_ms.
        """
        entry = self._entries.get(key)
        if entry is None:
            entry = _Entry(incarnation, now_ms, timeout_ms, 0, info, active=False)
            self._entries[key] = entry
        elif entry.incarnation != incarnation:
            if entry.active and 0 < connection_id < entry.newest_connection_id:
                return False
            self._unbind_all(key, entry)
            entry.incarnation = incarnation
        was_active = entry.active
        entry.last_ms, entry.timeout_ms, entry.info, entry.active = now_ms, timeout_ms, info, True
        entry.inactive_ms, entry.hung, entry.proved, entry.found_early = None, False, False, False
        entry.grace_ms = self.grace_ms if grace_ms is None else grace_ms
        if self._sweep_after_ms is None or now_ms + timeout_ms < self._sweep_after_ms:
            self._sweep_after_ms = now_ms + timeout_ms
        if entry.suspect_deadline_ms is not None:
            entry.suspect_deadline_ms = None
            del self._suspects[key]
        if connection_id > 0 and connection_id not in entry.connections:
            if connection_id > entry.newest_connection_id:
                self._unbind_all(key, entry)  # those of a lost host never close; a live one binds again
            entry.connections.add(connection_id)
            entry.newest_connection_id = max(entry.newest_connection_id, connection_id)
            self._keys_of_connection.setdefault(connection_id, {})[key] = None
        return not was_active

    def touch(self, key: Hashable, now_ms: int) -> bool:
        """Sets only the time of the last heartbeat of an active key. False: no such active key."""
        entry = self._entries.get(key)
        if entry is None or not entry.active:
            return False
        entry.last_ms = now_ms
        return True

    def connection_closed(self, connection_id: int, now_ms: int) -> list[Hashable]:
        """Returns the keys that lost their last connection and are suspect now. Safe to repeat."""
        suspects: list[Hashable] = []
        for key in self._keys_of_connection.pop(connection_id, {}):
            entry = self._entries[key]
            entry.connections.discard(connection_id)
            if entry.connections or not entry.active:
                continue
            self._suspect(key, entry, now_ms + entry.grace_ms)
            suspects.append(key)
        return suspects

    def found_hung(self, key: Hashable, deadline_ms: int) -> bool:
        """Makes an active key inactive at `deadline_ms`, before its timeout, unless a heartbeat arrives until
        then. False, without effect: it is not active, or is suspect already."""
        entry = self._entries.get(key)
        if entry is None or not entry.active or entry.suspect_deadline_ms is not None:
            return False
        self._unbind_all(key, entry)
        self._suspect(key, entry, deadline_ms)
        entry.hung = entry.found_early = True
        return True

    def _suspect(self, key: Hashable, entry: _Entry, deadline_ms: int) -> None:
        entry.suspect_deadline_ms = self._suspects[key] = deadline_ms
        self._suspected += 1
        entry.suspicion = self._suspected
        heapq.heappush(self._deadlines, (deadline_ms, self._suspected, key))

    def suspicion(self, key: Hashable) -> int | None:
        """Returns the number of the close that made the key suspect (each close has its own); None: the key
        is not suspect."""
        entry = self._entries.get(key)
        return None if entry is None or entry.suspect_deadline_ms is None else entry.suspicion

    def proved_dead(self, key: Hashable, suspicion: int, now_ms: int) -> bool:
        """Ends the grace of a suspect key at once: its process is proved dead. False, without effect: the
        proof is of an earlier close, and a heartbeat has arrived since, or the grace is over already."""
        if self.suspicion(key) != suspicion:
            return False
        entry = self._entries[key]
        entry.proved = True
        entry.suspect_deadline_ms = self._suspects[key] = now_ms
        heapq.heappush(self._deadlines, (now_ms, suspicion, key))
        return True

    def is_outdated(self, key: Hashable, connection_id: int) -> bool:
        """Returns whether the key's heartbeats now arrive over newer connections than this one."""
        entry = self._entries.get(key)
        if entry is None or connection_id <= 0 or connection_id in entry.connections:
            return False
        return connection_id < entry.newest_connection_id

    def scan_not_active(self, now_ms: int) -> list[Hashable]:
        """Returns the keys that became inactive since the last scan; their info stays until forget()."""
        expired: list[Hashable] = []
        while (deadline := self.next_deadline_ms()) is not None and deadline <= now_ms:
            key = heapq.heappop(self._deadlines)[2]
            del self._suspects[key]
            self._entries[key].active = False
            expired.append(key)
        if self._sweep_after_ms is not None and self._sweep_after_ms < now_ms:
            expired += self._sweep(now_ms)
        for key in expired:
            entry = self._entries[key]
            entry.active, entry.suspect_deadline_ms, entry.inactive_ms = False, None, now_ms
            self._suspects.pop(key, None)
            self._unbind_all(key, entry)
        return expired

    def is_active(self, key: Hashable, now_ms: int) -> bool:
        """Returns whether the key is active at `now_ms`, without waiting for the next scan."""
        entry = self._entries.get(key)
        return entry is not None and entry.active and _alive(entry, now_ms)

    def is_doubtful(self, key: Hashable, now_ms: int) -> bool:
        """Returns whether the key is active, but has no connection, or was silent for half its timeout."""
        entry = self._entries.get(key)
        if entry is None or not self.is_active(key, now_ms):
            return False
        return entry.suspect_deadline_ms is not None or now_ms - entry.last_ms > entry.timeout_ms // 2

    def info(self, key: Hashable) -> object | None:
        """Returns the `info` of the last heartbeat, even if the key is inactive; None: the key is unknown."""
        entry = self._entries.get(key)
        return None if entry is None else entry.info

    def last_seen(self, key: Hashable) -> LastSeen | None:
        """None: the key is unknown, or was forgotten."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        return LastSeen(entry.last_ms, entry.inactive_ms, entry.hung, entry.proved, entry.found_early)

    def forget(self, key: Hashable) -> None:
        """Removes the key and its connections. Safe to repeat."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._suspects.pop(key, None)
            self._unbind_all(key, entry)

    @property
    def count(self) -> int:
        """The number of known keys, active or not."""
        return len(self._entries)

    def keys(self) -> Iterator[Hashable]:
        """Returns a snapshot of all known keys, active or not."""
        return iter(list(self._entries))

    def next_deadline_ms(self) -> int | None:
        """Returns the earliest end of a grace, when a scan is due; None: no key is suspect."""
        while self._deadlines and self._suspects.get(self._deadlines[0][2]) != self._deadlines[0][0]:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def next_timeout_ms(self) -> int | None:
        """Returns the earliest possible timeout, when a scan is due; None: no key is active."""
        return None if self._sweep_after_ms is None else self._sweep_after_ms + 1

    def check_invariants(self) -> None:
        """Raises AssertionError if entries, connections and suspects are inconsistent."""
        for key, entry in self._entries.items():
            assert (entry.suspect_deadline_ms is not None) == (key in self._suspects), key
            assert entry.active or not entry.connections, f"{key} is inactive and bound"
            assert not (entry.connections and key in self._suspects), f"{key} is suspect and bound"
            for connection_id in entry.connections:
                assert key in self._keys_of_connection[connection_id], key
        bound = {(key, each) for each, keys in self._keys_of_connection.items() for key in keys}
        assert bound == {(key, each) for key, entry in self._entries.items() for each in entry.connections}
        assert set(self._suspects) <= set(self._entries)
        assert set(self._suspects.items()) <= {(key, deadline) for deadline, _, key in self._deadlines}
        for entry in self._entries.values():
            assert not entry.active or (self._sweep_after_ms or 0) <= entry.last_ms + entry.timeout_ms
        assert self._sweep_after_ms is not None or not any(each.active for each in self._entries.values())

    def _sweep(self, now_ms: int) -> list[Hashable]:
        """Reads every entry: returns the timed out keys, and computes the next possible timeout."""
        expired: list[Hashable] = []
        self._sweep_after_ms = None
        for key, entry in self._entries.items():
            if not entry.active:
                continue
            ends_ms = entry.last_ms + entry.timeout_ms
            if ends_ms < now_ms:
                entry.hung = True
                expired.append(key)
            elif self._sweep_after_ms is None or ends_ms < self._sweep_after_ms:
                self._sweep_after_ms = ends_ms
        return expired

    def _unbind_all(self, key: Hashable, entry: _Entry) -> None:
        for connection_id in entry.connections:
            keys = self._keys_of_connection[connection_id]
            del keys[key]
            if not keys:
                del self._keys_of_connection[connection_id]
        entry.connections.clear()


def _alive(entry: _Entry, now_ms: int) -> bool:
    if entry.last_ms + entry.timeout_ms < now_ms:
        return False
    return entry.suspect_deadline_ms is None or now_ms < entry.suspect_deadline_ms
