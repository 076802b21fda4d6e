"""Which of two versions of a user or an ACL is the newer one, so that servers can exchange them.

Every row has the wall-clock time of its last change (`changed_ms`; 0: created by a configuration file, or by
a release without these times). The newer version counts everywhere. A deleted row stays as a tombstone for
TOMBSTONE_MS, so that a server that missed the deletion does not bring the row back. Older releases read a
tombstone as a disabled user, or as an ACL that denies everything.
"""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from keelmq.security.core.acls import (
    Acl,
    Action,
    Decision,
    Pattern,
    Policy,
    PolicyEntry,
    PolicyType,
    Resource,
    ResourceType,
    subject_of,
)
from keelmq.security.core.users import User, UserStatus

TOMBSTONE_MS: Final = 90 * 24 * 3_600_000

Row = TypeVar("Row", User, Acl)
Times = Mapping[str, int]
"""Key of a row (user name or subject) -> changed_ms."""


class Difference(NamedTuple):
    """Keys of rows of which this server, or the other one, has the newer version. Sorted."""

    newer_here: list[str]
    newer_there: list[str]


def changed_now(row: Row, before: Row | None, now_ms: int) -> Row:
    """Returns the row with the time of its change: later than that of the version before, whatever the
    clock says."""
    at_ms = max(now_ms, 1 if before is None else before.changed_ms + 1)
    return _replaced(row, changed_ms=at_ms)


def deleted_user(username: str, password: str, before: User | None, now_ms: int) -> User:
    """Returns the tombstone of a user. password: a new random one, which is never disclosed."""
    row = User(username, password, status=UserStatus.DISABLE, is_deleted=True)
    return changed_now(row, before, now_ms)


def deleted_acl(username: str, before: Acl | None, now_ms: int) -> Acl:
    """Returns the tombstone of a user's ACL."""
    everything = Resource(ResourceType.ANY, "", Pattern.ANY)
    entry = PolicyEntry(everything, frozenset({Action.ALL}), Decision.DENY)
    row = Acl(subject_of(username), (Policy(PolicyType.CUSTOM, (entry,)),), is_deleted=True)
    return changed_now(row, before, now_ms)


def present(rows: Iterable[Row]) -> list[Row]:
    """Returns the rows that are no tombstones."""
    return [row for row in rows if not row.is_deleted]


def is_expired(row: User | Acl, now_ms: int) -> bool:
    """Returns whether it is a tombstone that is no longer needed."""
    return row.is_deleted and row.changed_ms < now_ms - TOMBSTONE_MS


def times_of(rows: Mapping[str, User] | Mapping[str, Acl], now_ms: int) -> dict[str, int]:
    """Returns the times of all rows except expired tombstones."""
    return {key: row.changed_ms for key, row in rows.items() if not is_expired(row, now_ms)}


def digest_of(*tables: Times) -> str:
    """Returns the same text for servers with the same versions of all rows."""
    digest = hashlib.sha256()
    for times in tables:
        digest.update(msgspec.json.encode(sorted(times.items())) + b"\n")
    return digest.hexdigest()


def difference(here: Times, there: Times) -> Difference:
    """Compares the tables of two servers. Rows that were changed at the same time are taken for equal."""
    newer_here = [key for key, at_ms in here.items() if at_ms > there.get(key, -1)]
    newer_there = [key for key, at_ms in there.items() if at_ms > here.get(key, -1)]
    return Difference(sorted(newer_here), sorted(newer_there))


def newer(received: Iterable[Row], here: Mapping[str, Row], now_ms: int) -> list[Row]:
    """Returns the received rows that replace those of this server. Expired tombstones do not."""
    return [
        row
        for row in received
        if not is_expired(row, now_ms)
        and ((known := here.get(key_of(row))) is None or row.changed_ms > known.changed_ms)
    ]


def key_of(row: User | Acl) -> str:
    """Returns the key of its table."""
    return row.username if isinstance(row, User) else row.subject


def edited(read: Mapping[str, Row], before: Mapping[str, Row], now_ms: int) -> dict[str, Row]:
    """Returns the table after an administrator has edited or replaced its file. What the file adds or changes
    counts, with the time of the edit. Rows that it lacks, and older versions of rows, do not: a copy of an
    old file deletes no user and restores no old password."""
    after = dict(before)
    for key, row in read.items():
        known = before.get(key)
        if known is None:
            after[key] = row if row.changed_ms else changed_now(row, None, now_ms)
        elif row.changed_ms == known.changed_ms and row != known:
            after[key] = changed_now(row, known, now_ms)
        elif row.changed_ms > known.changed_ms:
            after[key] = row
    return after


def _replaced(row: Row, **fields: Any) -> Row:
    if isinstance(row, User):
        return dataclasses.replace(row, **fields)
    return msgspec.structs.replace(row, **fields)
