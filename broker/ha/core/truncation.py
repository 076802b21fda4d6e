"""The point where a slave's log diverges from its master's: the truncation algorithm of RIP-44. Pure.

The newest common entry decides. An epoch has one master, and that master's log only grows while the epoch
lasts. So two logs that both hold (epoch, start_offset) agree on everything before start_offset, and inside
the epoch one is a prefix of the other: they agree up to the smaller end. Beyond it they may differ.
"""

import msgspec

from broker.ha.core.epochs import Epochs


class CommonPoint(msgspec.Struct, frozen=True):
    """Both logs have the same bytes below `offset`. epochs: the slave's entries that remain valid."""

    offset: int
    epochs: Epochs


def truncation_point(slave: Epochs, *, slave_max: int, master: Epochs, master_max: int) -> CommonPoint | None:
    """Returns the first byte offset at which the slave's log may differ from the master's, and the epochs
    that stay.

    None: there is no common epoch, and an operator must act. This is not called for a slave with an empty
    log. The common entry itself stays, even when it has no byte below the truncation point: its start is the
    same on both sides (RocketMQ drops it and may never learn it again).
    """
    mine = Epochs.of(slave.pairs, end_offset=slave_max)
    theirs = {entry.epoch: entry for entry in Epochs.of(master.pairs, end_offset=master_max).entries}
    for entry in reversed(mine.entries):
        other = theirs.get(entry.epoch)
        if other is not None and other.start_offset == entry.start_offset:
            offset = min(entry.end_offset, other.end_offset, slave_max)
            if offset < entry.start_offset:
                continue  # the log ends before this epoch begins: the entry proves nothing
            return CommonPoint(offset, slave.drop_from_epoch(entry.epoch + 1))
    return None
