"""A broker without controllers and slaves: it is always master, and no replica copies from it."""

import asyncio

from broker.admission.send_gate import ROLE
from broker.controller_mode.service import ReplicationParts
from broker.store.recovery import RECORDS_AT_ONCE, Between, nothing

DISPATCH_RECORDS = 128
"""In one turn of the event loop, which other brokers may share: half a millisecond."""


class SingleMaster:
    """The counterpart of ControllerMode: serves as master, and moves confirmOffset."""

    def __init__(self, parts: ReplicationParts) -> None:
        self._gate, self._store, self._commit = parts.gate, parts.store, parts.commit
        self._metadata, self._messages_in = parts.metadata, parts.messages_in

    def recover(self, between: Between = nothing) -> None:
        """Makes all messages of a store that was just loaded visible; any thread. With SYNC_FLUSH, serve()
        makes them visible, after a flush."""
        self._store.become_master()
        if not self._commit.is_on:
            self._store.set_confirm_offset(self._store.commit_log.max_offset)
            while self._store.dispatcher.dispatch(RECORDS_AT_ONCE):
                between()

    async def serve(self) -> None:
        """The broker accepts messages when it returns. Called once, after recover()."""
        self.appended()
        is_behind = True
        while is_behind:
            is_behind = self._store.dispatcher.dispatch(DISPATCH_RECORDS)
            await asyncio.sleep(0)
        await self._metadata.begin_alone()
        self._messages_in.term_begins()
        self._gate.open(ROLE)

    def appended(self) -> None:
        """Called at the end of a tick in which messages were stored."""
        if not self._commit.is_on:
            self._store.set_confirm_offset(self._store.commit_log.max_offset)
        else:
            self._commit.want()  # consumers never see what a power failure could take back

    def flushed(self, offset: int) -> None:
        """The log is on disk up to this offset."""
        self._store.set_confirm_offset(offset)
