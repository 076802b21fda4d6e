"""The book of transactions against plain lists: random lives, and a new book from every mark that could have
been kept. What is open is never forgotten, and what has ended is never asked about again.
"""

import random

import pytest

from broker.transactions.core import state as core
from broker.transactions.core.state import End, Half, TransactionState
from tests.support.items import items_held


class Model:
    """The two queues as lists, and what is open as a set; op records may name a copy or the root."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.transaction_state = TransactionState()
        self.halves: list[Half] = []
        self.ops: list[list[int]] = []
        self.open: dict[int, Half] = {}
        self.ended: dict[int, End] = {}
        self.marks: list[tuple[int, int]] = [(0, 0)]
        self.now = 0

    def put(self, root: int | None = None, checks: int = 0) -> None:
        at = len(self.halves)
        due = self.now + self.random.choice([0, 1, 6, 30])
        half = Half(at, at if root is None else root, 100 * at, 100, due, checks)
        self.halves.append(half)
        self.open[half.root] = half
        self.transaction_state.stored(half)

    def end(self, how: End) -> None:
        if not self.open or self.random.random() < 0.1:  # one that is not open
            root = self.random.randrange(len(self.halves) + 1)
            if root not in self.open:
                assert self.transaction_state.end(root, how) is None
                assert self.transaction_state.end_of(root) is self.ended.get(root)
            return
        root = self.random.choice(list(self.open))
        half = self.transaction_state.end(root, how)
        assert half is self.open.pop(root)
        self.ended[root] = how
        assert half is not None
        self.ops.append([half.queue_offset])
        self.transaction_state.op_stored(len(self.ops) - 1, half.queue_offset)

    def ask(self) -> None:
        self.now += self.random.choice([0, 1, 10, 40])
        due = {half.root for half in self.open.values() if half.due_ms <= self.now}
        for _ in range(self.random.randrange(5)):
            half = self.transaction_state.next_due(self.now)
            assert (half is None) == (not due), "somebody is asked exactly when somebody is due"
            if half is None:
                return
            assert half is self.open[half.root] and half.root in due
            due.discard(half.root)
            if self.random.random() < 0.2:
                self.transaction_state.put_off(half.root, self.now + 5)
                found = self.transaction_state.find(half.root)
                assert found is not None
                self.open[half.root] = found
            else:
                self.put(half.root, half.checks + 1)
                if self.open[half.root].due_ms <= self.now:
                    due.add(half.root)

    def check(self) -> None:
        transaction_state = self.transaction_state
        transaction_state.check_invariants()
        assert len(transaction_state) == len(self.open) and all(
            transaction_state.find(root) is half for root, half in self.open.items()
        )
        self.marks.append((transaction_state.half_position, transaction_state.op_position))

    def again(self, mark: tuple[int, int]) -> TransactionState:
        """As a new master makes it, that knows this mark."""
        half_at, op_at = mark
        transaction_state = TransactionState(half_at, op_at)
        for at, ended in enumerate(self.ops[op_at:], op_at):
            transaction_state.replay_op(at, ended)
        for half in self.halves[half_at:]:
            transaction_state.replay_half(half)
        transaction_state.replayed()
        return transaction_state

    def run(self, steps: int) -> None:
        for _ in range(steps):
            step = self.random.choice([self.put, self.put, self.ask, lambda: self.end(End.COMMITTED),
                                       lambda: self.end(End.ROLLED_BACK), self.check])  # fmt: skip
            step()
        self.check()


@pytest.mark.parametrize("seed", range(150))
def test_a_new_master_has_the_same_book(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPS_MAX", "STALE_MAX"):
        monkeypatch.setattr(core, name, random.Random(seed).choice([2, 5, 1_000]))
    model = Model(seed)
    model.run(200)
    for mark in model.marks:
        transaction_state = model.again(mark)
        transaction_state.check_invariants()
        assert {root: half.queue_offset for root in model.open if (half := transaction_state.find(root))} == {
            root: half.queue_offset for root, half in model.open.items()
        }
        assert len(transaction_state) == len(model.open), f"from {mark}: what has ended is open again"
        assert (transaction_state.half_end, transaction_state.op_end) == (len(model.halves), len(model.ops))
    assert [mark[0] for mark in model.marks] == sorted(mark[0] for mark in model.marks)
    assert [mark[1] for mark in model.marks] == sorted(mark[1] for mark in model.marks)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One transaction that stays open, and thousands that come and go behind it."""
    monkeypatch.setattr(core, "OPS_MAX", 64)
    monkeypatch.setattr(core, "ENDED_MAX", 100)
    transaction_state = TransactionState()
    for at in range(5_000):
        transaction_state.stored(Half(at, at, 0, 1, 10**9))
        if at:
            transaction_state.end(at, End.COMMITTED)
            transaction_state.op_stored(at - 1, at)
    transaction_state.check_invariants()
    assert (transaction_state.half_position, transaction_state.op_position) == (0, 0)
    assert transaction_state.next_due(0) is None
    assert items_held(transaction_state) <= 64 + 100 + core.STALE_MAX + 3 + 10, (
        "operations, ended, stale, open"
    )
    transaction_state.end(0, End.ROLLED_BACK)
    transaction_state.op_stored(4_999, 0)
    assert (transaction_state.half_position, transaction_state.op_position) == (5_000, 5_000)


def test_ops_of_rocketmq_name_any_copy() -> None:
    """Its decisions that cross a question end the copy that they name: the others are of the same message."""
    for named in (0, 1):
        transaction_state = TransactionState(half_end=named)
        transaction_state.replay_op(0, [named])
        for at in range(named, 3):
            transaction_state.replay_half(Half(at, 0, 0, 1, 0, at))
        transaction_state.replayed()
        assert len(transaction_state) == 0 and transaction_state.half_position == 3
