"""Where a slave's log leaves the history of its master: the truncation point of RIP-44. Pure.

Why the newest common entry decides: an epoch has one master, and that master's log only grows while it
lasts. So two logs that both hold (epoch, start_offset) agree on everything before start_offset, and inside
the epoch one is a prefix of the other: they agree up to the smaller end. Beyond it they may differ.
"""

from dataclasses import dataclass

from broker.ha.core.epochs import Epochs


@dataclass(frozen=True, slots=True)
class CommonPoint:
    """Both logs hold the same bytes below `offset`; `epochs` are the slave's entries that stay true."""

    offset: int
    epochs: Epochs


def truncation_point(slave: Epochs, *, slave_max: int, master: Epochs, master_max: int) -> CommonPoint | None:
    """First byte offset at which the slave's log may differ from the master's.

    None: no common epoch, an operator must act. A slave whose log is empty has nothing to compare and is
    not asked. The common entry itself stays, even when it has no byte below the cut: its start is the same
    on both sides (the peer drops it and may never learn it again).
    """
    mine = Epochs.of(slave.pairs, end_offset=slave_max)
    theirs = {entry.epoch: entry for entry in Epochs.of(master.pairs, end_offset=master_max).entries}
    for entry in reversed(mine.entries):
        other = theirs.get(entry.epoch)
        if other is not None and other.start_offset == entry.start_offset:
            offset = min(entry.end_offset, other.end_offset, slave_max)
            if offset < entry.start_offset:
                continue  # a log that ends before its last epoch begins: that entry says nothing
            return CommonPoint(offset, slave.drop_from_epoch(entry.epoch + 1))
    return None
