"""BrokerUsers: the replicated users and ACLs of a broker as the UserStore of security."""

from collections.abc import Collection, Mapping
from typing import Any

from broker.admission.send_forwarder import ForwardToMaster, answer_of_master
from broker.admission.send_gate import SendGate
from broker.metadata.core.table import Version
from broker.metadata.file_store import FileStore
from broker.metadata.service import Metadata
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import CommandError, Ok, Operation, Unknown, UnknownOutcome, Wire
from keelmq.runtime.clock import now_ms
from keelmq.security.core.acls import Acl, subject_of
from keelmq.security.core.users import User
from keelmq.security.user_requests import Change


class BrokerUsers:
    """UserStore of the tables. Owned by the event loop's thread."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._generation = 0
        for table in (metadata.users, metadata.acls):
            table.watchers.append(self._changed)

    def _changed(self) -> None:
        """Also for what a master sends, and for a whole table."""
        self._generation += 1

    @property
    def generation(self) -> int:
        return self._generation

    def user(self, username: str) -> User | None:
        return self._metadata.users.table.rows.get(username)

    def acl(self, subject: str) -> Acl | None:
        return self._metadata.acls.table.rows.get(subject)

    def users(self) -> Collection[User]:
        return self._metadata.users.table.rows.values()

    def acls(self) -> Collection[Acl]:
        return self._metadata.acls.table.rows.values()

    async def save_user(self, user: User) -> None:
        await self._change(self._metadata.users, {user.username: user}, [])

    async def remove_user(self, username: str) -> None:
        """The ACL goes first: after a crash between the two the user has no rights, instead of a later user
        of that name having these."""
        acls, users, subject = self._metadata.acls, self._metadata.users, subject_of(username)
        changed: list[tuple[FileStore[Any], Version]] = []
        if self.acl(subject) is not None:
            changed.append((acls, self._applied(acls, {}, [subject])))
        if self.user(username) is not None:
            changed.append((users, self._applied(users, {}, [username])))
        for table, version in changed:
            await self._metadata.replicated(table, version)

    async def save_acl(self, acl: Acl) -> None:
        await self._change(self._metadata.acls, {acl.subject: acl}, [])

    async def remove_acl(self, subject: str) -> None:
        if self.acl(subject) is not None:
            await self._change(self._metadata.acls, {}, [subject])

    async def _change(self, table: FileStore[Any], rows: Mapping[str, Any], gone: list[str]) -> None:
        await self._metadata.replicated(table, self._applied(table, rows, gone))

    def _applied(self, table: FileStore[Any], rows: Mapping[str, Any], gone: list[str]) -> Version:
        """Makes a change, which counts here at once. Raises CommandError."""
        gate = self._metadata.gate
        if not gate.writable:
            raise _not_master(gate)
        few = gate.refuse_few_replicas()
        if few is not None:
            raise CommandError(*few)
        try:
            return table.change(rows, dict.fromkeys(gone, 0))
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
            self._gate, self._forward_to_master, operation, marked, body, clock=now_ms
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
