"""One table of metadata with its versions: the state machine of each store, on masters and replicas. Pure.

A master plans an Update, makes it durable and applies it. A replica receives the Update, makes it durable and
applies it. Versions are RocketMQ's DataVersion. Each epoch has one writing master, which persists before it
publishes, so two tables of one version are equal.

Invariants: the version never goes to a lower stateVersion; `gone` and `rows` share no key; the versions in
the history were this table's versions, in that order.
"""

from collections import deque
from collections.abc import Collection, Container, Mapping
from typing import Any, Generic, NamedTuple, TypeVar, cast

import msgspec

HISTORY_MAX = 1_024
"""A replica that is at most this many changes behind receives only the changed rows."""
CHANGES_MAX = 4_096
"""A replica that lacks more rows than this receives the whole table; the master then copies a mapping."""
GONE_MAX = 10_000
"""Limit of the tombstones; those with the lowest log offsets are dropped first."""

Row = TypeVar("Row")
Parts = Mapping[str, Mapping[Any, Any]]
"""Key -> the members of its row that changed. Only of rows that are mappings and lose no member."""


class Version(NamedTuple):
    """stateVersion is the masterEpoch. Versions compare in this order, as in RocketMQ; timestamp in ms."""

    state_version: int = 0
    counter: int = 0
    timestamp: int = 0


class Update(msgspec.Struct, Generic[Row], frozen=True):
    """The change from `base` to `version`; base None: rows and gone are the whole table. gone: key -> log
    offset of its deletion, or 0. parts: of rows that `base` has already; no key is in `rows` as well."""

    version: Version
    rows: Mapping[str, Row] = msgspec.field(default_factory=dict)
    gone: Mapping[str, int] = msgspec.field(default_factory=dict)
    base: Version | None = None
    parts: Parts = msgspec.field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether it is the whole table."""
        return self.base is None

    @property
    def only_version(self) -> bool:
        """Whether it changes nothing but the version."""
        return not self.whole and not self.rows and not self.gone and not self.parts


class Table(Generic[Row]):
    """Rows, tombstones and version, with a history of changes."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.gone: dict[str, int] = {}
        self.version = Version()
        self._history: deque[_Change] = deque()
        self._places: dict[Version, int] = {self.version: 0}
        self._next_place = 1

    # -- plans -------------------------------------------------------------------------------------------

    def plan(
        self, rows: Mapping[str, Row], gone: Mapping[str, int], *, now_ms: int, parts: Parts | None = None
    ) -> Update[Row]:
        """Returns the next change of this epoch, without applying it."""
        return Update(self._next(self.version.state_version, now_ms), rows, gone, self.version, parts or {})

    def plan_term(self, epoch: int, rows: Mapping[str, Row], *, now_ms: int) -> Update[Row]:
        """Returns the first version of a master's term. rows: those that so far only this replica has."""
        return Update(self._next(max(epoch, self.version.state_version), now_ms), rows, {}, self.version)

    def _next(self, state_version: int, now_ms: int) -> Version:
        return Version(state_version, self.version.counter + 1, now_ms)

    # -- changes -----------------------------------------------------------------------------------------

    def refusal(self, update: Update[Row]) -> str | None:
        """Returns why a master's update must not be applied; None: it may."""
        mine, theirs = self.version.state_version, update.version.state_version
        if theirs < mine:
            return f"epoch {theirs} is below epoch {mine} of the table"
        if update.base is not None and update.base != self.version:
            return f"it continues {tuple(update.base)}, the table is at {tuple(self.version)}"
        return None

    def after(self, update: Update[Row]) -> tuple[dict[str, Row], dict[str, int]]:
        """Returns rows and tombstones after the update: the content of the file that is written before
        apply()."""
        if update.whole:
            return dict(update.rows), dict(update.gone)
        rows = {key: row for key, row in self.rows.items() if key not in update.gone} | dict(update.rows)
        for key, part in update.parts.items():
            rows[key] = _merged(rows.get(key), part)
        gone = {key: at for key, at in self.gone.items() if key not in update.rows} | dict(update.gone)
        return rows, {key: at for key, at in gone.items() if at}

    def apply(self, update: Update[Row]) -> None:
        """Applies an update that is durable and was not refused."""
        if update.whole:
            self.load(update.version, update.rows, update.gone)
            return
        for key in update.gone:
            self.rows.pop(key, None)
        self.rows.update(update.rows)
        for key, part in update.parts.items():
            self.rows[key] = _merged(self.rows.get(key), part)
        for key in update.rows:
            self.gone.pop(key, None)
        self.gone.update((key, at) for key, at in update.gone.items() if at)
        self._bound_gone()
        keys = frozenset(update.rows) | frozenset(update.gone)
        self._remember(
            _Change(update.version, keys, {key: tuple(part) for key, part in update.parts.items()})
        )

    def load(self, version: Version, rows: Mapping[str, Row], gone: Mapping[str, int]) -> None:
        """Replaces the whole table, from a file or from a master. The history starts again."""
        self.rows.clear()
        self.rows.update(rows)
        self.gone = {key: at for key, at in gone.items() if at and key not in rows}
        self._bound_gone()
        self._history.clear()
        self._places.clear()
        self.version = version
        self._places[version] = self._next_place
        self._next_place += 1

    def _bound_gone(self) -> None:
        if len(self.gone) > GONE_MAX:
            newest = sorted(self.gone.items(), key=lambda item: item[1])[-GONE_MAX:]
            self.gone = dict(newest)

    def _remember(self, change: "_Change") -> None:
        self.version = change.version
        self._history.append(change)
        self._places[change.version] = self._next_place
        self._next_place += 1
        if len(self._history) > HISTORY_MAX:
            del self._places[next(iter(self._places))]  # in the order of their insertion: the oldest
            self._history.popleft()

    # -- history -----------------------------------------------------------------------------------------

    def place(self, version: Version) -> int | None:
        """Returns the position of a version in this table's history; None: it is unknown, or too old."""
        return self._places.get(version)

    def _whole(self) -> Update[Row]:
        return Update(self.version, dict(self.rows), dict(self.gone))

    def since(self, version: Version, *, takes_parts: bool = False) -> Update[Row] | None:
        """Returns the update for a replica at `version`; None: it has everything. takes_parts: it may contain
        parts of rows."""
        if version == self.version:
            return None
        place = self._places.get(version)
        if place is None:
            return self._whole()
        keys: set[str] = set()
        members: dict[str, set[Any]] = {}
        for change in reversed(self._history):
            if self._places[change.version] <= place:
                break
            keys |= change.keys
            for key, of_part in change.parts.items():
                members.setdefault(key, set()).update(of_part)
            if len(keys) + len(members) > CHANGES_MAX:
                return self._whole()
        keys |= {key for key in members if not (takes_parts and self._has_members(key, members[key]))}
        return Update(
            self.version,
            {key: self.rows[key] for key in sorted(keys) if key in self.rows},
            {key: self.gone.get(key, 0) for key in sorted(keys) if key not in self.rows},
            version,
            {key: self._part(key, members[key]) for key in sorted(members.keys() - keys)},
        )

    def _part(self, key: str, members: set[Any]) -> Mapping[Any, Any]:
        row = cast(Mapping[Any, Any], self.rows[key])  # checked by _has_members()
        return {member: row[member] for member in sorted(members)}

    def _has_members(self, key: str, members: set[Any]) -> bool:
        """Whether the row has them all. Rows change before they have a version (JournaledStore.stage)."""
        row = self.rows.get(key)
        return row is not None and all(member in cast(Mapping[Any, Any], row) for member in members)


class _Change(NamedTuple):
    """The changes of a version: whole rows or tombstones, and members of rows."""

    version: Version
    keys: frozenset[str]
    parts: Mapping[str, tuple[Any, ...]]


def _merged(row: Any, part: Mapping[Any, Any]) -> Any:
    """Returns the row with these members; the row itself if it has them. Rows are replaced, never changed."""
    if row is None:
        return dict(part)
    if all(member in row and row[member] == value for member, value in part.items()):
        return row
    merged = row.copy()
    merged.update(part)
    return merged


def drops_too_much(before: Collection[str], after: Container[str]) -> int:
    """Returns how many keys a whole table removes, if they are at least half of them and MASS_DELETE_MIN;
    else 0."""
    lost = sum(key not in after for key in before)
    return lost if lost >= MASS_DELETE_MIN and 2 * lost >= len(before) else 0


MASS_DELETE_MIN = 8
