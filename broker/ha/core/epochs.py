"""The epochs of a log: which byte range was written under which master. Frozen values, no file.

An Epochs value ascends strictly in epoch and never goes back in start offset; each entry ends where the next
one starts, the last one is unbounded. Ends are always computed, never kept, so a cut cannot leave a stale one
behind (the peer's cache does, and then finds no epoch for new data).

An epoch without data is replaced by the next one, except the very first: two logs that parted at their
first byte have nothing but that entry in common. Source: RIP-44 and RocketMQ's EpochFileCache.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

UNBOUNDED = (1 << 63) - 1
"""end_offset of the last entry, as the peer writes it in admin answers."""


@dataclass(frozen=True, slots=True)
class EpochEntry:
    """Bytes [start_offset, end_offset) were first written by the master of `epoch`."""

    epoch: int
    start_offset: int
    end_offset: int = UNBOUNDED


@dataclass(frozen=True, slots=True)
class Epochs:
    """All epochs of one log. Every change gives a new value."""

    entries: tuple[EpochEntry, ...] = ()

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]], *, end_offset: int = UNBOUNDED) -> "Epochs":
        """From (epoch, start offset) pairs in order. ValueError if they are not.

        end_offset closes the last entry: the log's max offset where two logs are compared.
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
        return tuple((entry.epoch, entry.start_offset) for entry in self.entries)

    @property
    def last_epoch(self) -> int:
        """-1 if there is none, as on the wire."""
        return self.entries[-1].epoch if self.entries else -1

    @property
    def last_start_offset(self) -> int:
        return self.entries[-1].start_offset if self.entries else -1

    def find(self, offset: int) -> EpochEntry | None:
        """The entry that holds `offset`; None below the first start. Newest first: that is where the
        traffic is.
        """
        for entry in reversed(self.entries):
            if entry.start_offset <= offset:
                return entry
        return None

    def append(self, epoch: int, start_offset: int) -> "Epochs":
        """A newer epoch begins. At the start of the last one: that one had no data and is replaced.

        The peer refuses an equal start, so a second election without a write is never recorded and two
        replicas disagree about the epoch of the same bytes. ValueError if the epoch or the offset goes
        back.
        """
        if epoch <= self.last_epoch or start_offset < self.last_start_offset:
            raise ValueError(f"epoch {epoch}@{start_offset} after {self.last_epoch}@{self.last_start_offset}")
        empty = start_offset == self.last_start_offset and len(self.entries) > 1
        kept = self.pairs[:-1] if empty else self.pairs
        return Epochs.of((*kept, (epoch, start_offset)))

    def drop_from_epoch(self, epoch: int) -> "Epochs":
        """Without the entries of `epoch` and above."""
        return Epochs.of(pair for pair in self.pairs if pair[0] < epoch)

    def drop_above(self, offset: int) -> "Epochs":
        """Without the entries that begin beyond a log that ends at `offset`: a crash came before their
        bytes.
        """
        return Epochs.of(pair for pair in self.pairs if pair[1] <= offset)

    def drop_below(self, offset: int) -> "Epochs":
        """Without the entries whose bytes were all deleted: the log begins at `offset`. The last stays."""
        return Epochs.of(
            (entry.epoch, entry.start_offset)
            for entry in self.entries
            if entry.end_offset > offset or entry.start_offset >= offset
        )
