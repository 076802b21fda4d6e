"""UserExchange: the master of a group sends its users and ACLs to the name servers and controllers, and
adopts theirs, so that a server that is new, or was down, gets the same rows as all others.

No row is sent over a connection without TLS and a verified certificate: the rows contain passwords.
keelmq/security/core/user_changes.py decides which version of a row counts.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from broker.metadata.service import Metadata
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import CommandError, Failed, Ok
from keelmq.remoting.operations.auth import SYNC_USERS, SyncUsersRequest, UserRows
from keelmq.runtime.clock import wall_ms
from keelmq.runtime.tasks import wait_for_event
from keelmq.security.core.user_changes import Difference, difference, digest_of
from keelmq.security.user_store import UserStore
from keelmq.security.user_sync import refuse_too_many, requested, rows_of, times_here

PERIOD_MS: Final = 5_000
TIMEOUT_MS: Final = 3_000
STEPS_MAX: Final = 1_000
"""Limit of requests for one difference."""
NAMES_SHOWN_MAX: Final = 5

NO_EXCHANGE: Final = (ResponseCode.RPC_SEND_TO_CHANNEL_FAILED, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
"""No answer; or the server keeps no users, or is of an earlier release."""

log = logging.getLogger(__name__)


class UserExchange:
    """Owned by the event loop's thread."""

    def __init__(
        self,
        client: RemotingClient,
        metadata: Metadata,
        store: UserStore,
        servers: Iterable[str],
        *,
        verifies: bool,
        clock: Callable[[], int] = wall_ms,
    ) -> None:
        """servers: addresses of name servers and controllers. verifies: the client uses TLS and verifies
        their certificates."""
        self._client, self._metadata, self._store, self._clock = client, metadata, store, clock
        self._servers, self._verifies = tuple(dict.fromkeys(servers)), verifies
        self._changed = asyncio.Event()
        self.problems: dict[str, str] = {}
        """Address -> why the last exchange failed; without those that do not answer."""
        for table in (metadata.users, metadata.acls):
            table.watchers.append(self._changed.set)

    async def run(self) -> None:
        """Exchanges the rows with every server after each change, and every PERIOD_MS. Returns at once if
        this is not allowed."""
        if not self._servers:
            return
        if not self._verifies:
            log.info(
                "users and ACLs are not exchanged with name servers: their certificates are not verified "
                "(tls.enable, tls.client.trustCertPath); `mqadmin createUser -c` changes each of them"
            )
            return
        while True:
            if self._metadata.gate.writable:
                self._changed.clear()
                await asyncio.gather(*(self._with(address) for address in self._servers))
            await wait_for_event(self._changed, PERIOD_MS)  # a slave's rows are changed by its master

    async def _with(self, address: str) -> None:
        try:
            problem = await self.exchange(address)
        except CommandError as error:
            problem = error.remark
        if problem and problem != self.problems.get(address):
            log.warning("users and ACLs are not exchanged with %s: %s", address, problem)
        elif not problem and address in self.problems:
            log.info("users and ACLs are exchanged with %s again", address)
        self.problems.pop(address, None)
        if problem:
            self.problems[address] = problem

    async def exchange(self, address: str) -> str:
        """Exchanges the rows with one server until both have the same. Returns why it was refused; "": it was
        not, or the server does not answer, or it keeps no users. Raises CommandError: this broker cannot
        change its tables."""
        times = times_here(self._store, self._clock())
        digest = await asyncio.to_thread(digest_of, *times)
        answer, problem = await self._ask(address, digest, UserRows())
        if answer is None or answer.user_times is None or answer.acl_times is None:
            return problem
        users, acls = difference(times[0], answer.user_times), difference(times[1], answer.acl_times)
        return await self._even_out(address, users, acls)

    async def _even_out(self, address: str, users: Difference, acls: Difference) -> str:
        send, want = [users.newer_here, acls.newer_here], [users.newer_there, acls.newer_there]
        if any(send):
            log.info("users and ACLs sent to %s: %s", address, _names([*send[0], *send[1]]))
        if any(want):
            log.info("users and ACLs taken from %s: %s", address, _names([*want[0], *want[1]]))
        for _ in range(STEPS_MAX):
            if not any((*send, *want)):
                break
            wanted = {"wanted_users": want[0], "wanted_acls": want[1]}
            body = requested(self._store, *send).model_copy(update=wanted)
            answer, problem = await self._ask(address, "", body)
            if answer is None:
                return problem
            taken_users, taken_acls = rows_of(answer)
            if taken_users or taken_acls:
                refuse_too_many(self._store, taken_users, taken_acls)
                await self._store.merge(taken_users, taken_acls)
            elif not body.users and not body.acls:
                break  # the remaining rows were deleted meanwhile
            send = [_without(send[0], body.users, "username"), _without(send[1], body.acls, "subject")]
            want = [_without(want[0], answer.users, "username"), _without(want[1], answer.acls, "subject")]
        return ""

    async def _ask(self, address: str, digest: str, body: UserRows) -> tuple[UserRows | None, str]:
        outcome = await self._client.call(
            address, SYNC_USERS, SyncUsersRequest(digest=digest), body, timeout_ms=TIMEOUT_MS
        )
        if isinstance(outcome, Ok):
            found = outcome.body
            return (found, "") if isinstance(found, UserRows) else (None, "its answer has no body")
        if isinstance(outcome, Failed) and outcome.code not in NO_EXCHANGE:
            return None, outcome.remark or f"code {outcome.code}"
        return None, ""


def _without(keys: Sequence[str], rows: Iterable[dict[str, Any]], name: str) -> list[str]:
    done = {each.get(name) for each in rows}
    return [key for key in keys if key not in done]


def _names(keys: Sequence[str]) -> str:
    more = len(keys) - NAMES_SHOWN_MAX
    return ", ".join(keys[:NAMES_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
