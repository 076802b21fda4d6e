"""The slave's side of replication without controllers: it compares the logs before each connection."""

from collections.abc import Awaitable, Callable

import msgspec

from broker.ha.core.slave_link import SlaveLink, SlaveSettings
from broker.ha.log_truncation import truncate_partial_record
from broker.ha.ports import Clock
from broker.ha.security import HaSecurity
from broker.ha.slave_client import SlaveClient
from broker.ha.slave_protocol import SlaveOwner
from broker.plain_ha.core.slave_link import PlainSlaveLink
from broker.store.log.group_commit import GroupCommit
from broker.store.message_store import MessageStore


class Refusal(msgspec.Struct, frozen=True):
    """Why the master is not followed now. is_fault: an operator must act; otherwise the master may answer
    later."""

    reason: str
    is_fault: bool = False


LogCheck = Callable[[], Awaitable[Refusal | None]]
"""Compares this log, which has whole records only, with the master's. None: the master may be followed."""


class PlainSlaveClient(SlaveClient):
    """Follows the master at one address until stopped. A fault that the comparison found ends when the logs
    fit again; each attempt compares them anew."""

    def __init__(
        self,
        store: MessageStore,
        owner: SlaveOwner,
        *,
        broker_id: int,
        address: tuple[str, int],
        settings: SlaveSettings,
        clock: Clock,
        commit: GroupCommit | None,
        check_log: LogCheck,
        security: HaSecurity,
    ) -> None:
        """As SlaveClient. check_log: called before every connection."""
        super().__init__(
            store,
            owner,
            broker_id=broker_id,
            address=address,
            settings=settings,
            clock=clock,
            commit=commit,
            check_master=_checked_already,
            security=security,
            watch=None,
        )
        self._check_log = check_log

    async def _prepare(self) -> str | None:
        try:
            await truncate_partial_record(self._store)
        except OSError as error:
            return f"cannot write here: {error}"
        refusal = await self._check_log()
        self.fault = refusal.reason if refusal is not None and refusal.is_fault else None
        return None if refusal is None else refusal.reason

    def _new_link(self) -> SlaveLink:
        log = self._store.commit_log
        return PlainSlaveLink(
            self._settings, min_offset=log.min_offset, max_offset=log.max_offset, now_ms=self._clock()
        )


async def _checked_already() -> str | None:
    return None
