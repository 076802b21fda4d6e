"""What tests do to objects behind their public names, because nobody but a test may do it.

A peer that hangs is a link whose buffers fill up: only its transport can be told to read no more, and no
program has a use for that.
"""

import asyncio
from collections.abc import Callable

from broker.ha.service import HaService
from broker.store.log.group_commit import GroupCommit


def link_of(slave: HaService) -> asyncio.Transport:
    """The transport of the slave's link to its master; pause_reading() makes it a slave that hangs."""
    assert slave.client is not None and slave.client.protocol is not None
    transport = slave.client.protocol._transport
    assert transport is not None
    return transport


def sync_by(commit: GroupCommit, sync: Callable[[], int]) -> None:
    """Makes a running broker's group commit sync in this way: a disk that hangs."""
    commit._sync = sync
