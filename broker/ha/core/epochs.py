"""The epochs of a log: which byte range was first written under which masterEpoch. Frozen values, no file.

An Epochs value ascends strictly in epoch, and its start offsets never go back; each entry ends where the next
one starts, the last one is unbounded. Ends are always computed and never stored, so a truncation cannot leave
a stale one behind (RocketMQ's cache can, and then finds no epoch for new data).

An epoch without data is replaced by the next one, except the very first: two logs that diverged at their
first byte have only that entry in common. Source: RIP-44 and RocketMQ's EpochFileCache.
"""

from collections.abc import Iterable
from itertools import pairwise

import msgspec

UNBOUNDED = (1 << 63) - 1
"""end_offset of the last entry, as RocketMQ writes it in admin answers."""


class EpochEntry(msgspec.Struct, frozen=True):
    """Bytes [start_offset, end_offset) were first written by the master of `epoch`."""

    epoch: int
    start_offset: int
    end_offset: int = UNBOUNDED


class Epochs(msgspec.Struct, frozen=True):
    """All epochs of one log. Every change returns a new value."""

    entries: tuple[EpochEntry, ...] = ()

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]], *, end_offset: int = UNBOUNDED) -> "Epochs":
        """Builds the value from (epoch, start offset) pairs in ascending order. Raises ValueError for another
        order.

        end_offset closes the last entry: the log's maxOffset where two logs are compared.
        """
        given = list(pairs)
        for (epoch, start), (next_epoch, next_start) in pairwise(given):
            if next_epoch <= epoch or next_start < start:
                raise ValueError(f"epoch {next_epoch}@{next_start} after {epoch}@{start}")
        ends = [start for _, start in given[1:]] + [end_offset]
        return cls(
            tuple(EpochEntry(epoch, start, end) for (epoch, start), end in zip(given, ends, strict=False))
        )

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """(epoch, start offset) of each entry, ascending."""
        return tuple((entry.epoch, entry.start_offset) for entry in self.entries)

    @property
    def last_epoch(self) -> int:
        """The last epoch; -1 if there is none, as on the wire."""
        return self.entries[-1].epoch if self.entries else -1

    @property
    def last_start_offset(self) -> int:
        """The start offset of the last epoch; -1 if there is none."""
        return self.entries[-1].start_offset if self.entries else -1

    def find(self, offset: int) -> EpochEntry | None:
        """Returns the entry that contains `offset`; None below the first start. Searches from the newest
        entry, where most offsets are."""
        for entry in reversed(self.entries):
            if entry.start_offset <= offset:
                return entry
        return None

    def term_of(self, offset: int) -> tuple[int, int]:
        """Returns where the entry of find() begins and ends; (-1, UNBOUNDED) if there is none."""
        entry = self.find(offset)
        return (-1, UNBOUNDED) if entry is None else (entry.start_offset, entry.end_offset)

    def append(self, epoch: int, start_offset: int) -> "Epochs":
        """Begins a newer epoch. If the last one has no data, the new one replaces it.

        RocketMQ refuses an equal start offset, so it never records a second election without a write, and two
        replicas disagree about the epoch of the same bytes. Raises ValueError if the epoch or the offset goes
        back.
        """
        if epoch <= self.last_epoch or start_offset < self.last_start_offset:
            raise ValueError(f"epoch {epoch}@{start_offset} after {self.last_epoch}@{self.last_start_offset}")
        empty = start_offset == self.last_start_offset and len(self.entries) > 1
        kept = self.pairs[:-1] if empty else self.pairs
        return Epochs.of((*kept, (epoch, start_offset)))

    def drop_from_epoch(self, epoch: int) -> "Epochs":
        """Removes the entries of `epoch` and above."""
        return Epochs.of(pair for pair in self.pairs if pair[0] < epoch)

    def drop_above(self, offset: int) -> "Epochs":
        """Removes the entries that begin behind the log's end, `offset`: a crash came before their bytes."""
        return Epochs.of(pair for pair in self.pairs if pair[1] <= offset)

    def drop_below(self, offset: int) -> "Epochs":
        """Removes the entries whose bytes are all deleted, in a log that begins at `offset`. The last one
        stays."""
        return Epochs.of(
            (entry.epoch, entry.start_offset)
            for entry in self.entries
            if entry.end_offset > offset or entry.start_offset >= offset
        )
