"""DiskFault: after a failed disk sync, a broker no longer accepts or acknowledges messages."""

import asyncio
from collections.abc import Callable
from typing import Final

from broker.admission.pending_replies import PendingReplies
from broker.admission.send_gate import DISK, SendGate
from broker.store.message_store import MessageStore
from keelmq.remoting.codes import ResponseCode

STORED: Final = "the disk of this broker failed: the message is stored, but may be lost with this broker"


class DiskFault:
    """A fault lasts until the process ends."""

    def __init__(
        self, store: MessageStore, gate: SendGate, pending: PendingReplies, *, on_fault: Callable[[], None]
    ) -> None:
        """on_fault: called once, in the event loop's thread, after the gate is closed."""
        self._store, self._gate, self._pending = store, gate, pending
        self._first = ""
        self._on_fault = on_fault
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def text(self) -> str:
        """What failed; empty: nothing. Set before the gate is closed."""
        return self._store.sync_fault.text or self._first

    def watch(self) -> None:
        """Called by the start, in the thread of the event loop, before the store is loaded."""
        self._loop = asyncio.get_running_loop()

    def found(self, fault: str) -> None:
        """Reads the store's sync fault, which any thread may set."""
        assert self._loop is not None, "the store is not loaded before the start"
        self._loop.call_soon_threadsafe(self.failed, fault)

    def failed(self, fault: str) -> None:
        """Closes the gate, and answers waiting replies with code 10: their messages cannot become as safe as
        the settings require. Later calls have no effect."""
        if self._first:
            return
        self._first = fault
        self._gate.close(DISK, fault)
        if self._store.sync_fault.text:
            self._store.commit_log.refuse()
        self._pending.fail_all(ResponseCode.FLUSH_DISK_TIMEOUT, STORED)
        self._on_fault()
