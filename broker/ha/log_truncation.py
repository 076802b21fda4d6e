"""Truncation of a replica's log without blocking the event loop: a thread does the disk part.

Truncating takes three steps of the store: begin_cut() in memory, write_cut() in a thread, and end_cut() on
the loop. The store takes no bytes in between.
"""

import asyncio

from broker.ha.ports import ReplicatedStore


def begin_truncation(store: ReplicatedStore, offset: int) -> int:
    """Truncates the log in memory at `offset`, or at the end of the last whole record before it. Returns that
    end.

    The caller runs write_cut() in a thread and then end_cut().
    """
    store.begin_cut(offset)
    end = store.whole_records_end()
    if end < store.commit_log.max_offset:
        store.begin_cut(end)
    return end


async def truncate_partial_record(store: ReplicatedStore) -> int:
    """Removes a partial record at the end, and finishes a truncation that was interrupted. Returns the log's
    end.

    Raises OSError if the truncation is not on disk; nothing may be written before another call has succeeded.
    """
    end = store.whole_records_end()
    if end < store.commit_log.max_offset or store.is_cutting:
        begin_truncation(store, end)
        await asyncio.to_thread(store.write_cut)
        store.end_cut()
    return store.commit_log.max_offset
