"""Compares a slave's log with its master's, over the master's broker port: the shell of core/log_check.py.

Asks 28 for the ends of the master's log, 33 for the record at one offset; RocketMQ's masters answer both.
"""

import asyncio
from collections.abc import Awaitable, Callable

from broker.ha.ports import MasterHaAddress
from broker.plain_ha.core.log_check import (
    KEPT,
    LastRecord,
    LogBounds,
    ends_refusal,
    is_empty,
    record_refusal,
)
from broker.plain_ha.slave_client import Refusal
from broker.store.message_store import MessageStore
from broker.store.querying import last_record
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Empty, Failed, Ok, in_short
from keelmq.remoting.operations.broker import (
    GET_BROKER_RUNTIME_INFO,
    VIEW_MESSAGE_BY_ID,
    ViewMessageRequest,
)

CALL_TIMEOUT_MS = 1_000
CHECK_AGAIN_MS = 3_000
"""How long a detected fault is kept before the logs are compared again."""


class MasterCheck:
    """check() is the LogCheck of a PlainSlaveClient."""

    def __init__(
        self,
        client: RemotingClient,
        store: MessageStore,
        *,
        master: Callable[[], str | None],
        find_master: Callable[[str], Awaitable[MasterHaAddress | None]],
        unverified_peer: Callable[[], Awaitable[str | None]],
    ) -> None:
        """master: the address of the master's broker port; None: not known. find_master(address): the data
        that the broker there reports. unverified_peer: why that broker is not of this group; None: it is."""
        self._client, self._store, self._master = client, store, master
        self._find_master, self._unverified_peer = find_master, unverified_peer
        self._fault: Refusal | None = None
        self._fault_of: tuple[str | None, float] = (None, 0.0)  # the master, and the loop's time

    async def check(self) -> Refusal | None:
        """Returns why this log must not continue the master's now; None: it is its beginning, or is empty."""
        master, now = self._master(), asyncio.get_running_loop().time()
        address, found_at = self._fault_of
        if self._fault is not None and address == master and now - found_at < CHECK_AGAIN_MS / 1000:
            return self._fault
        refusal = await self._compare(master)
        self._fault = refusal if refusal is not None and refusal.is_fault else None
        self._fault_of = master, now
        return refusal

    async def _compare(self, master: str | None) -> Refusal | None:
        log = self._store.commit_log
        mine = LogBounds(log.min_offset, log.max_offset)
        if master is None:
            if is_empty(mine):
                return None
            return Refusal("no name server has told the master's address: the logs cannot be compared yet")
        if (refusal := await self._check_peer(master)) is not None or is_empty(mine):
            return refusal
        bounds = await self.bounds(master)
        if isinstance(bounds, Refusal):
            return bounds
        masters, confirmed = bounds
        if (differs := ends_refusal(mine, masters)) is not None:
            return Refusal(differs, is_fault=True)
        found = last_record(self._store)
        if found is None:
            return Refusal(
                f"this log has no message that its master's could be asked for. {KEPT}", is_fault=True
            )
        last = LastRecord(*found)
        if last.offset < masters.min_offset:
            return Refusal(
                f"the master has deleted this log's last message, at {last.offset}. {KEPT}", is_fault=True
            )
        if last.offset + len(last.data) > confirmed:
            return Refusal(
                f"the master has confirmed {confirmed}, and this log's last message ends behind it"
            )
        return await self._compare_record(master, last)

    async def _check_peer(self, master: str) -> Refusal | None:
        master_address = await self._find_master(master)
        if master_address is None:
            unverified = await self._unverified_peer()
            if unverified is not None:
                return Refusal(unverified, is_fault=True)
            return Refusal(f"the master {master} does not say where it serves slaves")
        ours = self._store.commit_log.file_bytes
        if master_address.file_bytes not in (None, ours):
            return Refusal(
                f"mappedFileSizeCommitLog must be the same on all replicas: it is {ours} here and"
                f" {master_address.file_bytes} at the master {master}. {KEPT}",
                is_fault=True,
            )
        return None

    async def bounds(self, master: str) -> tuple[LogBounds, int] | Refusal:
        """Returns the master's log, and the end of its readable messages; or why they are not known."""
        outcome = await self._client.call(
            master, GET_BROKER_RUNTIME_INFO, Empty(), timeout_ms=CALL_TIMEOUT_MS
        )
        if not isinstance(outcome, Ok):
            return Refusal(f"the master {master} does not tell its log's end: {in_short(outcome)}")
        table = outcome.body.table
        try:
            low, high = int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])
            return LogBounds(low, high), int(table.get("confirmOffset", high))
        except (KeyError, ValueError) as error:
            return Refusal(f"the master {master} does not tell its log's end: {error!r}")

    async def _compare_record(self, master: str, last: LastRecord) -> Refusal | None:
        outcome = await self._client.call(
            master, VIEW_MESSAGE_BY_ID, ViewMessageRequest(offset=last.offset), timeout_ms=CALL_TIMEOUT_MS
        )
        if isinstance(outcome, Ok):
            theirs = bytes(outcome.body or b"")
        elif isinstance(outcome, Failed) and outcome.code == ResponseCode.SYSTEM_ERROR:
            theirs = b""  # no record begins there
        else:
            return Refusal(f"the master {master} does not show its message: {in_short(outcome)}")
        differs = record_refusal(last, theirs)
        return None if differs is None else Refusal(differs, is_fault=True)
