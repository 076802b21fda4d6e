"""Truncation of a replica's log without blocking the event loop: a thread does the disk part.

Truncating takes three steps of the store: begin_cut() in memory, write_cut() in a thread, and end_cut() on
the loop. The store accepts no bytes in between. Before, plan_cut() finds the queues to cut, in slices.
"""

import asyncio

from broker.store.message_store import MessageStore
from keelmq.runtime.slices import in_slices

SCAN_RECORDS = 2_048
"""Records that are scanned in one turn of the event loop: some milliseconds, interpreted."""


async def scan_to_end(store: MessageStore) -> None:
    """Reads the records that arrived after the last scan of the dispatcher."""
    is_behind = True
    while is_behind:
        is_behind = store.dispatcher.scan(SCAN_RECORDS)
        await asyncio.sleep(0)


async def truncate_partial_record(store: MessageStore) -> int:
    """Removes a partial record at the end, and finishes a truncation that was interrupted. Returns the log's
    end; then every record of the log is whole, and the next offset of every queue is known.

    Damaged confirmed records at the end stay, with all bytes behind them: without them this replica might be
    elected with less than was acknowledged. They are damaged ranges then, which are healed.

    Reads only records that arrived after the last scan of the dispatcher. Raises OSError if the truncation is
    not on disk; no byte may be written before another call has succeeded.
    """
    while True:
        if store.cutter.is_cutting:
            await asyncio.to_thread(store.cutter.write_cut)
            store.cutter.end_cut()
        await scan_to_end(store)
        end, log_end = store.dispatcher.scanned_offset, store.commit_log.max_offset
        if end == log_end or store.dispatcher.name_tail_damage():
            return log_end
        plan = await in_slices(store.cutter.plan_cut(end))
        if not store.cutter.is_cutting and (end, log_end) == (
            store.dispatcher.scanned_offset,
            store.commit_log.max_offset,
        ):
            store.cutter.begin_cut(end, plan)


async def cut_at(store: MessageStore, offset: int) -> None:
    """Cuts the log at a record boundary; durable when it returns. Raises OSError."""
    if offset < store.commit_log.max_offset:
        store.cutter.begin_cut(offset, await in_slices(store.cutter.plan_cut(offset)))
    await truncate_partial_record(store)
