"""BrokerUsers: the replicated users and ACLs of a broker as the UserStore of security."""

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from broker.admission.send_forwarder import ForwardToMaster, answer_of_master
from broker.admission.send_gate import SendGate
from broker.metadata.core.table import Version
from broker.metadata.file_store import FileStore
from broker.metadata.service import Metadata
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import CommandError, Ok, Operation, Unknown, UnknownOutcome, Wire
from keelmq.runtime.clock import now_ms as monotonic_ms
from keelmq.runtime.clock import wall_ms
from keelmq.security.core.acls import SUBJECT_PREFIX, Acl, subject_of
from keelmq.security.core.user_changes import (
    changed_now,
    deleted_acl,
    deleted_user,
    is_expired,
    key_of,
    newer,
    present,
)
from keelmq.security.core.users import User
from keelmq.security.user_requests import Change


class BrokerUsers:
    """UserStore of the tables. Owned by the event loop's thread."""

    def __init__(self, metadata: Metadata, *, clock: Callable[[], int] = wall_ms) -> None:
        """clock: wall-clock ms, the time of changes."""
        self._metadata, self._clock = metadata, clock
        self._generation = 0
        for table in (metadata.users, metadata.acls):
            table.watchers.append(self._changed)

    def _changed(self) -> None:
        """Also called for updates from a master, and for a whole table."""
        self._generation += 1

    @property
    def generation(self) -> int:
        return self._generation

    def user(self, username: str) -> User | None:
        found = self.all_users().get(username)
        return None if found is None or found.is_deleted else found

    def acl(self, subject: str) -> Acl | None:
        found = self.all_acls().get(subject)
        return None if found is None or found.is_deleted else found

    def users(self) -> Collection[User]:
        return present(self.all_users().values())

    def acls(self) -> Collection[Acl]:
        return present(self.all_acls().values())

    def all_users(self) -> Mapping[str, User]:
        """Returns the users and the tombstones of deleted ones."""
        return self._metadata.users.table.rows

    def all_acls(self) -> Mapping[str, Acl]:
        """Returns the ACLs and the tombstones of deleted ones."""
        return self._metadata.acls.table.rows

    async def save_user(self, user: User) -> None:
        row = changed_now(user, self.all_users().get(user.username), self._clock())
        await self._change(self._metadata.users, [row])

    async def remove_user(self, username: str) -> None:
        """The ACL goes first: after a crash between the two the user has no rights, instead of a later user
        of that name having these."""
        now_ms, changed = self._clock(), list[tuple[FileStore[Any], Version]]()
        if (acl := self.acl(subject_of(username))) is not None:
            row = deleted_acl(username, acl, now_ms)
            changed.append((self._metadata.acls, self._applied(self._metadata.acls, [row])))
        if (user := self.user(username)) is not None:
            gone = deleted_user(username, secrets.token_hex(), user, now_ms)
            changed.append((self._metadata.users, self._applied(self._metadata.users, [gone])))
        for table, version in changed:
            await self._metadata.replicated(table, version)

    async def save_acl(self, acl: Acl) -> None:
        row = changed_now(acl, self.all_acls().get(acl.subject), self._clock())
        await self._change(self._metadata.acls, [row])

    async def remove_acl(self, subject: str) -> None:
        if (acl := self.acl(subject)) is not None:
            row = deleted_acl(subject.removeprefix(SUBJECT_PREFIX), acl, self._clock())
            await self._change(self._metadata.acls, [row])

    async def merge(self, users: Sequence[User], acls: Sequence[Acl]) -> None:
        """Adopts the rows that are newer than those here, with their times: ACLs of deleted users first."""
        now_ms = self._clock()
        newer_acls = newer(acls, self.all_acls(), now_ms)
        for table, rows in (
            (self._metadata.acls, [each for each in newer_acls if each.is_deleted]),
            (self._metadata.users, newer(users, self.all_users(), now_ms)),
            (self._metadata.acls, [each for each in newer_acls if not each.is_deleted]),
        ):
            if rows:
                await self._change(table, rows)

    async def _change(self, table: FileStore[Any], rows: Sequence[User | Acl]) -> None:
        await self._metadata.replicated(table, self._applied(table, rows))

    def _applied(self, table: FileStore[Any], rows: Sequence[User | Acl]) -> Version:
        """Makes a change, which is effective here at once. Expired tombstones are removed with it. Raises
        CommandError."""
        now_ms = self._clock()
        gone = [key for key, row in table.table.rows.items() if is_expired(row, now_ms)]
        gate = self._metadata.gate
        if not gate.writable:
            raise _not_master(gate)
        few = gate.refuse_few_replicas()
        if few is not None:
            raise CommandError(*few)
        try:
            return table.change({key_of(row): row for row in rows}, dict.fromkeys(gone, 0))
        except OSError as error:
            remark = f"cannot write {error.filename or table.path}: {error.strerror or error}"
            raise CommandError(ResponseCode.SYSTEM_ERROR, remark) from error


class ChangesAtMaster:
    """Forward of UserRequests: RocketMQ's tools send a change to every broker of a group, in any order."""

    def __init__(self, gate: SendGate, forward_to_master: ForwardToMaster) -> None:
        self._gate, self._forward_to_master = gate, forward_to_master

    async def forward(self, operation: Operation[Any, Any], header: Change, body: Wire | None) -> bool:
        """Returns whether the master has carried it out. Raises CommandError: it has not; UnknownOutcome."""
        if self._gate.writable:
            return False
        if header.forwarded:
            raise _not_master(self._gate)
        marked = header.model_copy(update={"forwarded": True})
        outcome = await answer_of_master(
            self._gate, self._forward_to_master, operation, marked, body, clock=monotonic_ms
        )
        if outcome is None or isinstance(outcome, Ok):
            return outcome is not None
        if isinstance(outcome, Unknown):
            raise UnknownOutcome(ResponseCode.SYSTEM_ERROR, f"forwarded to the master: {outcome.remark}")
        kind = UnknownOutcome if outcome.code == ResponseCode.FLUSH_SLAVE_TIMEOUT else CommandError
        raise kind(outcome.code, outcome.remark or self._gate.unavailable)


def _not_master(gate: SendGate) -> CommandError:
    remark = f"users and ACLs are changed at the master, and this broker is not: {gate.remark or 'no role'}"
    return CommandError(ResponseCode.SERVICE_NOT_AVAILABLE, remark)
