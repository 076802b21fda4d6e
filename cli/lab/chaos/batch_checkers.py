"""Checks the full load in a history: batches, and runs of their messages. Pure.

One entry for a batch and one for a run of messages, so that the history of millions of messages stays small.
The rules are those of checkers.py, which calls them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cli.lab.chaos.history import DAMAGED, Batch, BatchRead

BatchKey = tuple[int, int]
"""Sender, and number of its batch."""


@dataclass(frozen=True, slots=True)
class Piece:
    """`count` messages of one batch from `position` on, at consecutive offsets of a queue."""

    queue: int
    offset: int
    position: int
    count: int


@dataclass(slots=True)
class Bursts:
    """`pieces`: of the final reads; `damage`: of all reads, as (queue, offset, how many)."""

    invoked: dict[BatchKey, Batch] = field(default_factory=dict)
    ended: dict[BatchKey, Batch] = field(default_factory=dict)
    pieces: dict[BatchKey, list[Piece]] = field(default_factory=dict)
    damage: list[tuple[int, int, int]] = field(default_factory=list)
    has_final: bool = False

    def put(self, entry: Batch | BatchRead) -> None:
        """Adds an entry, in the order of the history."""
        if isinstance(entry, Batch):
            into = self.invoked if entry.type == "invoke" else self.ended
            into[entry.sender, entry.batch] = entry
            return
        self.has_final |= entry.final
        for offset, sender, batch, position, count in entry.runs:
            if sender == DAMAGED:
                self.damage.append((entry.queue, offset, count))
            elif entry.final:
                piece = Piece(entry.queue, offset, position, count)
                self.pieces.setdefault((sender, batch), []).append(piece)

    @property
    def acked(self) -> Iterator[Batch]:
        """The acknowledged batches, in the order in which they ended."""
        return (batch for batch in self.ended.values() if batch.type == "ok")

    @property
    def acked_messages(self) -> int:
        """Messages of the acknowledged batches."""
        return sum(batch.count for batch in self.acked)

    def lost(self) -> Iterator[str]:
        """Acknowledged, but some of its messages are not where they were acknowledged."""
        for batch in self.acked if self.has_final else ():
            found = self.pieces.get((batch.sender, batch.batch), ())
            there = _covered(
                piece
                for piece in found
                if piece.queue == batch.queue and piece.offset - piece.position == batch.offset
            )
            if there < batch.count:
                missing = f"{batch.count - there} of {batch.count} messages"
                yield f"{_named(batch)}: {missing} are not there at the end"

    def damaged(self) -> Iterator[str]:
        """Read, but never sent, or not read as they were sent."""
        for queue, offset, count in self.damage:
            yield f"{count} damaged messages of full load were read in queue {queue} from offset {offset} on"
        for (sender, number), pieces in self.pieces.items():
            sent = self.invoked.get((sender, number))
            for piece in pieces:
                if sent is None or piece.position + piece.count > sent.count:
                    yield f"batch {number} of sender {sender}, which nobody sent, was read: {piece}"

    def unexplained(self) -> Iterator[str]:
        """More copies than one, although no attempt to send the batch was uncertain."""
        for batch in self.acked:
            stored = sum(piece.count for piece in self.pieces.get((batch.sender, batch.batch), ()))
            if batch.uncertain == 0 and stored > batch.count:
                yield f"{_named(batch)} was sent once, and {stored} messages of it are there"

    def phantom(self) -> Iterator[str]:
        """Stored, although the producer was told that it was certainly not stored."""
        for key, batch in self.ended.items():
            if batch.type == "fail" and key in self.pieces:
                yield f"{_named(batch)} was refused ({batch.remark}), but is there: {self.pieces[key][0]}"

    def reordered(self) -> Iterator[str]:
        """A sender sends its next batch after the acknowledgement of the last one: offsets ascend."""
        last: dict[tuple[int, int], Batch] = {}
        for batch in self.acked:
            before = last.get((batch.sender, batch.queue))
            if before is not None and (before.offset or 0) + before.count > (batch.offset or 0):
                yield f"{_named(before)}, and after it {_named(batch)}"
            last[batch.sender, batch.queue] = batch

    def holes(self) -> Iterator[str]:
        """An offset of a queue is missing between two others in the final reads."""
        queues: dict[int, list[tuple[int, int]]] = {}
        for pieces in self.pieces.values():
            for piece in pieces:
                queues.setdefault(piece.queue, []).append((piece.offset, piece.count))
        for queue, offset, count in self.damage:
            queues.setdefault(queue, []).append((offset, count))
        for queue, ranges in sorted(queues.items()):
            end = min(start for start, _ in ranges)
            for start, count in sorted(ranges):
                if start > end:
                    yield f"queue {queue} of full load has nothing from offset {end} to {start - 1}"
                end = max(end, start + count)


def _covered(pieces: Iterable[Piece]) -> int:
    """Total number of positions in these pieces of one copy."""
    done = covered = 0
    for piece in sorted(pieces, key=lambda piece: piece.position):
        end = piece.position + piece.count
        covered += max(0, end - max(done, piece.position))
        done = max(done, end)
    return covered


def _named(batch: Batch) -> str:
    where = "" if batch.offset is None else f" at queue {batch.queue} offset {batch.offset}"
    return f"batch {batch.batch} of sender {batch.sender} ({batch.type}{where}, t={batch.t / 1e6:.3f} s)"
