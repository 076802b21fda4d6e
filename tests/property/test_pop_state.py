"""The book of what is out against a plain model: random lives of messages, and a new book from every position
that could have been kept. What is open comes again when its time is over; what was acknowledged never does.
"""

import random

import pytest

from broker.pop.core.state import Checkpoint, Key, PopState
from broker.pop.records import ack_body, ack_of, checkpoint_body, checkpoint_of

QUEUES = 2


class Model:
    """The revive queues as lists of records, and what is open as a dict: (key, offset) -> due."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.pop_state = PopState([0] * QUEUES)
        self.records: list[list[tuple[str, bytes]]] = [[] for _ in range(QUEUES)]
        self.open: dict[tuple[Key, int, int], int] = {}  # key, revive queue, offset -> due
        self.positions: list[list[int]] = [[0] * QUEUES]
        self.now = 1_000
        self.next = 0

    def put(self, checkpoint: Checkpoint) -> None:
        queue = self.records[checkpoint.revive_queue]
        queue.append(("ck", checkpoint_body(checkpoint, "b")))
        self.pop_state.stored(checkpoint, len(queue) - 1)

    def pop(self) -> None:
        count = self.random.randint(1, 5)
        offsets = tuple(sorted(self.random.sample(range(self.next, self.next + 8), count)))
        self.next += 8
        key = Key(self.random.choice("gh"), "T", 0, offsets[0], self.now)
        checkpoint = Checkpoint(
            key, self.random.choice([0, 5, 50, 500]), offsets, offsets[-1] + 1, self.random.randrange(QUEUES)
        )
        self.put(checkpoint)
        for offset in offsets:
            self.open[key, checkpoint.revive_queue, offset] = checkpoint.due_ms

    def end(self, key: Key, queue: int, offsets: list[int]) -> None:
        """As the service does it: a record of those that are open, then the book."""
        assert self.pop_state.find(key, queue) is not None
        _, body = ack_body(key, offsets, "b")
        self.records[queue].append(("ack", body))
        self.pop_state.passed(queue, len(self.records[queue]) - 1)
        for offset in offsets:
            assert self.pop_state.end(key, queue, offset)
            assert not self.pop_state.end(key, queue, offset), "nothing ends twice"
            del self.open[key, queue, offset]

    def ack(self) -> None:
        if not self.open:
            return
        key, queue, _ = self.random.choice(list(self.open))
        mine = [offset for other, _, offset in self.open if other == key]
        self.end(key, queue, self.random.sample(mine, self.random.randint(1, len(mine))))

    def revive(self) -> None:
        self.now += self.random.choice([0, 1, 10, 100])
        due = {place for place, at in self.open.items() if at <= self.now}
        while (checkpoint := self.pop_state.next_due(self.now)) is not None:
            key, queue = checkpoint.key, checkpoint.revive_queue
            mine = {(key, queue, offset) for offset in checkpoint.open_offsets}
            assert mine <= due, "what comes again is due and was not acknowledged"
            due -= mine
            self.end(key, queue, checkpoint.open_offsets)
        assert not due, "what is due comes again"

    def write_again(self) -> None:
        for queue in range(QUEUES):
            while (checkpoint := self.pop_state.holding(queue, 10)) is not None:
                self.put(checkpoint)
            assert self.pop_state.ends[queue] - self.pop_state.position(queue) <= 10 + 2 * len(self.pop_state)

    def mark(self) -> None:
        self.positions.append([self.pop_state.position(queue) for queue in range(QUEUES)])

    def read_again(self, positions: list[int]) -> PopState:
        pop_state = PopState(positions)
        for queue, records in enumerate(self.records):
            for position in range(positions[queue], len(records)):
                kind, body = records[position]
                pop_state.passed(queue, position)
                if kind == "ck":
                    pop_state.stored(checkpoint_of(body, queue), position)
                    continue
                key, offsets = ack_of(body)
                for offset in offsets:
                    pop_state.end(key, queue, offset)
        return pop_state

    def check(self, pop_state: PopState) -> None:
        pop_state.check_invariants()
        seen = {}
        for key, queue, _ in self.open:
            checkpoint = pop_state.find(key, queue)
            assert checkpoint is not None, "what is open is never forgotten"
            seen |= {(key, queue, offset): checkpoint.due_ms for offset in checkpoint.open_offsets}
        assert seen == self.open
        assert len(pop_state) == len({(key, queue) for key, queue, _ in self.open})


@pytest.mark.parametrize("seed", range(150))
def test_every_reading_of_the_log_gives_the_same_book(seed: int) -> None:
    model = Model(seed)
    steps = [model.pop, model.pop, model.ack, model.ack, model.revive, model.write_again, model.mark]
    for _ in range(120):
        model.random.choice(steps)()
        model.check(model.pop_state)
    for positions in (model.positions[0], *model.positions[-4:]):
        model.check(model.read_again(positions))
