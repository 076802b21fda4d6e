"""OffsetWindow: the messages of one queue that a consumer holds, and the offset that it may commit.

Messages finish in any order. The committed offset is the lowest unfinished one, so after a crash messages are
repeated but never skipped. Messages that the broker filtered out leave gaps between the offsets, which count
as finished.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from keelmq.client.core.checks import check_int


class HeldMessage(Protocol):
    """A message that the window can hold."""

    @property
    def queue_offset(self) -> int:
        """Returns the message's offset in its queue."""

    @property
    def held_bytes(self) -> int:
        """Returns about how much memory it takes."""


M = TypeVar("M", bound=HeldMessage)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one queue. While any of them is reached, nothing more is pulled."""

    messages_max: int = 1_000
    bytes_max: int = 100 * 1024 * 1024
    span_max: int | None = 2_000
    """Offsets between the lowest unfinished message and the highest: while one message hangs, the others
    must not get so far ahead that a crash repeats them all. None: no limit (orderly consumers have no such
    gap)."""

    def __post_init__(self) -> None:
        check_int("messages_max", self.messages_max, least=1)
        check_int("bytes_max", self.bytes_max, least=1)
        check_int("span_max", self.span_max, least=1, optional=True)


@dataclass(slots=True)
class OffsetWindow(Generic[M]):
    """Messages of one queue. `next_offset`: where the next pull begins. If the queue is moved or released,
    the whole window is replaced, so messages that finish in it afterwards change nothing."""

    next_offset: int
    held_bytes: int = 0
    _held: dict[int, M] = field(default_factory=dict)  # by offset, ascending: pulls come in order
    _ready: deque[int] = field(default_factory=deque)
    _top: int = -1

    def __len__(self) -> int:
        """Returns the number of unfinished messages."""
        return len(self._held)

    @property
    def commit_offset(self) -> int:
        """Returns the lowest unfinished offset, or next_offset if everything is finished."""
        return next(iter(self._held), self.next_offset)

    @property
    def span(self) -> int:
        """Returns the distance between the lowest unfinished offset and the highest one; 0 if nothing is
        held."""
        return self._top - self.commit_offset if self._held else 0

    def is_full(self, limits: Limits) -> bool:
        """Returns whether a limit is reached, so nothing more may be pulled."""
        return (
            len(self._held) >= limits.messages_max
            or self.held_bytes >= limits.bytes_max
            or (limits.span_max is not None and self.span > limits.span_max)
        )

    def add(self, messages: Iterable[M], next_offset: int) -> None:
        """Adds the messages of one pull, in ascending order. Offsets below next_offset without a message were
        filtered out. A message below the current next_offset is not added again."""
        for message in messages:
            offset = message.queue_offset
            if self._top < offset and self.next_offset <= offset:
                self._held[offset] = message
                self.held_bytes += message.held_bytes
                self._ready.append(offset)
                self._top = offset
        self.next_offset = max(self.next_offset, next_offset, self._top + 1)

    def take(self, count: int) -> tuple[M, ...]:
        """Returns up to `count` messages that were not taken yet, in order. They are held until finish()."""
        taken: list[M] = []
        while self._ready and len(taken) < count:
            taken.append(self._held[self._ready.popleft()])
        return tuple(taken)

    def finish(self, messages: Sequence[M]) -> None:
        """Marks messages as consumed or sent back. Safe to repeat."""
        for message in messages:
            if self._held.pop(message.queue_offset, None) is not None:
                self.held_bytes -= message.held_bytes

    def put_back(self, messages: Sequence[M]) -> None:
        """Makes messages available to take() again, before later ones."""
        again = {m.queue_offset for m in messages if m.queue_offset in self._held} - set(self._ready)
        self._ready = deque(sorted(again | set(self._ready)))

    def check_invariants(self) -> None:
        """Raises AssertionError if the window is inconsistent; for tests."""
        offsets = list(self._held)
        assert offsets == sorted(offsets), "held messages are in order"
        assert all(offset < self.next_offset for offset in offsets), "nothing is held that was not pulled"
        assert set(self._ready) <= set(offsets), "only held messages are ready"
        assert list(self._ready) == sorted(self._ready), "in order"
        assert self.held_bytes == sum(message.held_bytes for message in self._held.values())
