"""One term of a master: the versions of each replica, and since when it is behind. Pure.

A replica acknowledges the versions that it names in its next request. Only versions that the master's own
tables had in this term count: version (epoch, 9) of an earlier run in the same epoch is a different one.
"""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from broker.metadata.core.table import Table, Version

REPLICAS_MAX = 1_000
"""Replicas that are tracked; more than any group has."""


class _Replica(msgspec.Struct):
    versions: dict[str, Version] = msgspec.field(default_factory=dict)
    behind_since_ms: int | None = 0


class Term:
    """One term. tables: by the names of their stores."""

    def __init__(self, epoch: int, tables: Mapping[str, Table[Any]], *, now_ms: int) -> None:
        self.epoch = epoch
        self._tables = tables
        self._began_ms = now_ms
        self._replicas: dict[int, _Replica] = {}

    def heard(self, replica: int, versions: Mapping[str, Version], *, now_ms: int) -> bool:
        """Records the versions that a replica reports. Returns True if it has everything. Unknown tables are
        ignored and the number of replicas is bounded, because a request may name any."""
        entry = self._replicas.get(replica)
        if entry is None:
            if len(self._replicas) >= REPLICAS_MAX:
                return False
            entry = self._replicas[replica] = _Replica(behind_since_ms=self._began_ms)
        entry.versions = {name: versions[name] for name in self._tables if name in versions}
        if self._has_all(entry):
            entry.behind_since_ms = None
        elif entry.behind_since_ms is None:
            entry.behind_since_ms = now_ms
        return entry.behind_since_ms is None

    def changed(self, *, now_ms: int) -> None:
        """Called when a table has a new version, which no replica has yet."""
        for entry in self._replicas.values():
            if entry.behind_since_ms is None:
                entry.behind_since_ms = now_ms

    def lag_ms(self, replica: int, *, now_ms: int) -> int:
        """Returns for how many ms the replica has been behind, at least 1; 0: it has everything."""
        entry = self._replicas.get(replica)
        since_ms = self._began_ms if entry is None else entry.behind_since_ms
        return 0 if since_ms is None else max(1, now_ms - since_ms)

    def has(self, replica: int, table: str, version: Version) -> bool:
        """Returns whether the replica has this version of the table, or a later one of this term."""
        entry = self._replicas.get(replica)
        acked = entry.versions.get(table) if entry is not None else None
        if acked is None:
            return False
        place, wanted = self._tables[table].place(acked), self._tables[table].place(version)
        return place is not None and (
            wanted is None or place >= wanted
        )  # wanted None: it is too old for the history

    def everywhere(self, members: Collection[int], table: str, version: Version) -> bool:
        """Returns whether all these replicas have the version."""
        return all(self.has(member, table, version) for member in members)

    def _has_all(self, entry: _Replica) -> bool:
        return all(entry.versions.get(name) == table.version for name, table in self._tables.items())
