"""The last step of a broker's stop: closes the store, as clean or as after a crash."""

from collections.abc import Collection
from typing import Final

from broker.admission.disk_fault import DiskFault
from broker.app.assembly import close_store
from broker.store.message_store import MessageStore

TASKS: Final = "background tasks"
REPLICATION: Final = "replication"
GROUP_COMMIT: Final = "group commit"
WRITERS: Final = frozenset({TASKS, REPLICATION, GROUP_COMMIT})
"""Steps of a stop after which nobody writes to the store any more."""


async def end_store(store: MessageStore, disk_fault: DiskFault, failed: Collection[str]) -> None:
    """Closes the store, and marks it clean unless its disk had a fault, or a writer may still be running.
    failed: names of the steps of the stop that failed."""
    await close_store(store, is_trusted=not disk_fault.text and WRITERS.isdisjoint(failed))
