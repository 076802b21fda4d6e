"""The open transactions, when their producers are asked, and the offsets to read them again from. Pure.

A transaction is identified by its root: the queue offset of its half message. Each check of the producer
appends the half message again, as a copy that names the root; an op record names the copies that have ended.
So reading the half queue from half_position and the op queue from op_position rebuilds this state.
Source: RocketMQ 5.3.3 TransactionalMessageServiceImpl.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterable
from enum import Enum
from typing import Final

import msgspec
from msgspec.structs import replace

OPEN_MAX: Final = 500_000
ENDED_MAX: Final = 65_536
"""Ended transactions that are remembered: a repeated request gets the same answer."""
OPS_MAX: Final = 8_192
STALE_MAX: Final = 1_024


class End(Enum):
    """How a transaction ended."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    GIVEN_UP = "given up"


class Half(msgspec.Struct, frozen=True):
    """The newest copy of a half message. due_ms: when its producer is asked next; checks: how often it was
    asked; stored_ms: when this copy was put."""

    queue_offset: int
    root: int
    log_offset: int
    size: int
    due_ms: int
    checks: int = 0
    stored_ms: int = 0


class TransactionState:
    """half_end, op_end: the next offset of either queue that is not applied here."""

    def __init__(self, half_end: int = 0, op_end: int = 0) -> None:
        self.half_end, self.op_end = half_end, op_end
        self._open: OrderedDict[int, Half] = OrderedDict()  # by root, in the order of the newest copies
        self._due: list[tuple[int, int, int]] = []  # heap of (due_ms, copy's offset, root); some are stale
        self._ended: OrderedDict[int, End] = OrderedDict()
        self._ops: deque[tuple[int, int]] = deque()  # (op record's offset, the last half that it ends)
        self._replayed_ends: set[int] = set()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def is_full(self) -> bool:
        """Whether no further transaction can begin."""
        return len(self._open) >= OPEN_MAX

    # -- reading the queues again ------------------------------------------------------------------------

    def replay_op(self, op_offset: int, half_offsets: Iterable[int]) -> None:
        """Applies an op record; all op records come before the half messages. An offset may name any copy, or
        the root."""
        ended = list(half_offsets)
        self._replayed_ends.update(ended)
        self._note_op(op_offset, max(ended, default=-1))

    def replay_half(self, half: Half) -> None:
        """Applies a half message, unless an op record ends it."""
        self.half_end = max(self.half_end, half.queue_offset + 1)
        if half.queue_offset in self._replayed_ends or half.root in self._replayed_ends:
            self._replayed_ends.add(half.root)  # a later copy may be in no op record
            self._open.pop(half.root, None)
        else:
            self._put(half)

    def replayed(self) -> None:
        """Called when both queues have been read to their ends."""
        self._replayed_ends.clear()

    # -- while master ------------------------------------------------------------------------------------

    def stored(self, half: Half) -> None:
        """Adds a half message, or the next copy of one, that was appended to the queue."""
        self.half_end = max(self.half_end, half.queue_offset + 1)
        self._put(half)

    def find(self, root: int) -> Half | None:
        """Returns the newest copy of the half message; None: the transaction is not open."""
        return self._open.get(root)

    def end_of(self, root: int) -> End | None:
        """Returns how a transaction ended; None: it is open, or that is no longer known."""
        return self._ended.get(root)

    def end(self, root: int, how: End) -> Half | None:
        """Ends a transaction. Returns the copy that the op record must name; None: it is not open."""
        half = self._open.pop(root, None)
        if half is not None:
            self._ended[root] = how
            if len(self._ended) > ENDED_MAX:
                self._ended.popitem(last=False)
        return half

    def op_stored(self, op_offset: int, half_offset: int) -> None:
        """Adds an op record that was stored. half_offset: the highest that it names."""
        self._note_op(op_offset, half_offset)

    def next_due(self, now_ms: int) -> Half | None:
        """Returns a half message whose producer is to be asked; it stays the next one until it ends, is
        stored again or is put off. None: none is due."""
        self._drop_stale()
        while self._due and self._due[0][0] <= now_ms:
            due_ms, queue_offset, root = self._due[0]
            half = self._open.get(root)
            if half is not None and (half.due_ms, half.queue_offset) == (due_ms, queue_offset):
                return half
            heapq.heappop(self._due)
        return None

    def put_off(self, root: int, due_ms: int) -> None:
        """Sets when the producer of an open transaction is asked next."""
        half = self._open[root]
        self._open[root] = half = replace(half, due_ms=due_ms)
        heapq.heappush(self._due, (due_ms, half.queue_offset, root))

    # -- positions ---------------------------------------------------------------------------------------

    @property
    def half_position(self) -> int:
        """Every half message before this offset has ended, or has a copy behind it."""
        return next(iter(self._open.values())).queue_offset if self._open else self.half_end

    def holding(self, records_max: int) -> Half | None:
        """Returns the oldest open half message if more than records_max ended ones follow it: it must be
        copied to the end of the queue. The open ones and one copy of each do not count."""
        if self.half_end - self.half_position <= records_max + 2 * len(self._open):
            return None
        return next(iter(self._open.values()))

    @property
    def op_position(self) -> int:
        """Op records before it end no half message at or behind half_position."""
        half_position = self.half_position
        while self._ops and self._ops[0][1] < half_position:
            self._ops.popleft()
        return self._ops[0][0] if self._ops else self.op_end

    # -- inside ------------------------------------------------------------------------------------------

    def _put(self, half: Half) -> None:
        known = self._open.get(half.root)
        if known is not None and known.queue_offset >= half.queue_offset:
            return
        self._open[half.root] = half
        self._open.move_to_end(half.root)
        heapq.heappush(self._due, (half.due_ms, half.queue_offset, half.root))

    def _note_op(self, op_offset: int, half_offset: int) -> None:
        self.op_end = max(self.op_end, op_offset + 1)
        self._ops.append((op_offset, half_offset))
        if len(self._ops) > OPS_MAX:  # merges pairs: an entry stays for as long as either record must
            pairs = list(self._ops)
            self._ops = deque(
                (left[0], max(left[1], right[1]))
                for left, right in zip(pairs[::2], [*pairs[1::2], (0, -1)], strict=False)
            )

    def _drop_stale(self) -> None:
        if len(self._due) > 2 * len(self._open) + STALE_MAX:
            self._due = [(half.due_ms, half.queue_offset, root) for root, half in self._open.items()]
            heapq.heapify(self._due)

    def check_invariants(self) -> None:
        """Asserts the invariants, which hold between any two calls."""
        offsets = [half.queue_offset for half in self._open.values()]
        assert offsets == sorted(set(offsets)), "copies are in the order of their queue"
        assert all(offset < self.half_end for offset in offsets), "a copy behind the end of its queue"
        assert all(root <= half.queue_offset for root, half in self._open.items()), "a copy before its root"
        live = {(half.due_ms, half.queue_offset, root) for root, half in self._open.items()}
        assert live <= set(self._due), "an open transaction that is never checked"
        assert self.half_position <= self.half_end and self.op_position <= self.op_end
        assert not self._open.keys() & self._ended.keys(), "open, and ended"
