"""SYNC_USERS (29006): the master of a broker group and a name server or controller exchange users and ACLs.

The rows have passwords, so they go only from member to member and only over TLS; the sender verifies the
certificate of the server before (broker/metadata/user_exchange.py). One request has at most ROWS_BYTES_MAX of
rows; a larger difference takes several.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, CommandError, OperationTable, Reply
from keelmq.remoting.operations.auth import SYNC_USERS, SyncUsersRequest, UserRows
from keelmq.runtime.clock import wall_ms
from keelmq.security.core.acls import Acl, InvalidAcl, parse_stored_acl
from keelmq.security.core.user_changes import digest_of, times_of
from keelmq.security.core.users import InvalidUser, User, parse_stored_user
from keelmq.security.user_store import UserStore

ROWS_BYTES_MAX: Final = 2_097_152
ROWS_MAX: Final = 20_000
"""Users, tombstones included, and as many ACLs: twice the users that requests can create."""


class SyncUsers:
    """Handler of a program that keeps its users in files."""

    def __init__(self, store: UserStore, *, clock: Callable[[], int] = wall_ms) -> None:
        self._store, self._clock = store, clock

    def bind(self, table: OperationTable) -> None:
        """Binds 29006."""
        table.bind(SYNC_USERS, self.sync_users)

    async def sync_users(self, header: SyncUsersRequest, call: Call) -> Reply:
        """Takes the newer rows of the request, and returns the wanted ones, or the times of all rows
        (29006)."""
        if not call.caller.is_member:
            raise CommandError(ResponseCode.NO_PERMISSION, "only members of the cluster exchange users")
        if not call.peer.is_tls:
            remark = "users are exchanged with passwords, so only over TLS: set tls.enable=true at the broker"
            raise CommandError(ResponseCode.NO_PERMISSION, remark)
        body = call.body if isinstance(call.body, UserRows) else UserRows()
        users, acls = rows_of(body)
        if users or acls:
            refuse_too_many(self._store, users, acls)
            await self._store.merge(users, acls)
        found = requested(self._store, body.wanted_users, body.wanted_acls)
        if header.digest:
            times = times_here(self._store, self._clock())
            if digest_of(*times) != header.digest:
                found = found.model_copy(update={"user_times": times[0], "acl_times": times[1]})
        return Reply(body=found)


def times_here(store: UserStore, now_ms: int) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the times of the users and of the ACLs."""
    return times_of(store.all_users(), now_ms), times_of(store.all_acls(), now_ms)


def rows_of(body: UserRows) -> tuple[list[User], list[Acl]]:
    """Returns the rows of a body. Raises CommandError: one is not valid."""
    try:
        return [parse_stored_user(each) for each in body.users], [
            parse_stored_acl(each) for each in body.acls
        ]
    except (InvalidUser, InvalidAcl) as error:
        raise CommandError(ResponseCode.INVALID_PARAMETER, f"a row of users and ACLs: {error}") from None


def refuse_too_many(store: UserStore, users: Sequence[User], acls: Sequence[Acl]) -> None:
    """Raises CommandError if the tables would have more than ROWS_MAX rows."""
    names = {each.username for each in users} - store.all_users().keys()
    subjects = {each.subject for each in acls} - store.all_acls().keys()
    if len(store.all_users()) + len(names) > ROWS_MAX or len(store.all_acls()) + len(subjects) > ROWS_MAX:
        raise CommandError(ResponseCode.SYSTEM_ERROR, f"there would be more than {ROWS_MAX} users or ACLs")


def requested(store: UserStore, usernames: Iterable[str], subjects: Iterable[str]) -> UserRows:
    """Returns the rows with these keys, as many as ROWS_BYTES_MAX allows, and one at least."""
    found, left = UserRows(), ROWS_BYTES_MAX
    wanted: list[tuple[list[dict[str, Any]], Mapping[str, Any], Iterable[str]]] = [
        (found.users, store.all_users(), usernames),
        (found.acls, store.all_acls(), subjects),
    ]
    for rows, table, keys in wanted:
        for key in keys:
            row = table.get(key)
            if row is None:
                continue
            stored = row.stored()
            left -= len(msgspec.json.encode(stored))
            if left < 0 and (found.users or found.acls):
                return found
            rows.append(stored)
    return found
