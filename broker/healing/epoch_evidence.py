"""Determines the epochs of a log whose epoch file is damaged or lost, from those of its master. Pure.

Equal bytes at equal offsets are the same history, even without the epoch file. So the log is compared with
the master's: as far as both are equal, the master's epochs are those of this log, too. The rest is cut off,
as by a truncation by epochs, unless the master may lack a part of it: then the log waits, or an operator
decides.
"""

import msgspec

from broker.ha.core.epochs import Epochs
from broker.ha.ports import FoundEpochs
from broker.healing.evidence import Pairs

REPAIR = "see keelmq verify, then keelmq repair"


class LogHere(msgspec.Struct, frozen=True):
    """The log without epochs: CommitLog offsets. end: of its last whole record."""

    min_offset: int
    end: int
    confirm_offset: int

    @property
    def is_empty(self) -> bool:
        """Whether the log has no record to compare, and never had a confirmed one."""
        return self.end <= self.min_offset and not self.confirm_offset


class MasterLog(msgspec.Struct, frozen=True):
    """The master's log. is_damaged: a part of it is known to be damaged."""

    is_master: bool
    min_offset: int
    max_offset: int
    confirm_offset: int
    epochs: Pairs
    is_damaged: bool = False


def compared_range(here: LogHere, master: MasterLog, *, epoch: int) -> tuple[int, int] | str:
    """Returns which bytes of the two logs are to be compared, or why they cannot be. epoch: of the master, as
    the controllers know it."""
    last = master.epochs[-1][0] if master.epochs else -1
    if not master.is_master or last < epoch:
        return f"the master does not serve masterEpoch {epoch} yet"
    if master.is_damaged:
        return "the master's log is damaged, too"
    if master.confirm_offset < here.confirm_offset:
        return (
            f"the master has confirmed {master.confirm_offset}, and {here.confirm_offset} was confirmed "
            f"here: {REPAIR}"
        )
    end = min(here.end, master.max_offset)
    if master.confirm_offset < end:
        return f"the master has not confirmed its log up to {end} yet"
    start = max(here.min_offset, master.min_offset)
    if start > end:
        return f"this log ends at {here.end}, and the master's begins at {master.min_offset}: {REPAIR}"
    return start, end


def found_epochs(here: LogHere, master: MasterLog, *, same_end: int) -> FoundEpochs | str:
    """Returns the epochs of this log, which equals the master's up to same_end, a record boundary; or why
    they are not known."""
    if same_end < here.confirm_offset:
        return (
            f"the log differs from the master's at {same_end}, and was confirmed up to "
            f"{here.confirm_offset}: {REPAIR}"
        )
    epochs = Epochs.of(master.epochs).drop_above(same_end).drop_below(here.min_offset)
    return FoundEpochs(epochs, same_end)
