"""S4: whatever kills a broker with an unconfirmed tail: nobody sees the tail, no queue offset is used twice.

The real store on real files against a list of records: puts, confirmations, flushes, cuts, a master's bytes,
each torn away between two steps or at any operation inside one, by a kill or by a power cut.
"""

import random
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.message.record import decode
from broker.message.record_bytes import Message
from broker.store.batched_put import BatchedPut
from keelmq.runtime.clock import wall_ms
from tests.support.slices import share
from tests.support.store_disk import After, StoreDisk, Torn
from tests.support.store_parts import BORN_HOST, TOPIC, bodies, crash, open_store, put

QUEUES = 2
FOREVER = 1 << 30


class Story:
    """One broker's lives on one disk. `confirmed`: the highest offset that was ever safe to show. `runs`:
    some messages come together, to several queues."""

    def __init__(self, base: Path, dice: random.Random, *, runs: bool) -> None:
        self.base, self.dice, self.runs = base, dice, runs
        self.lives = 0
        self.confirmed = 0
        self.shown: dict[tuple[int, int], bytes] = {}  # (queue, queue offset) -> body, as a consumer saw it
        self.root = base / "0"
        self.store = open_store(self.root)

    def close(self) -> None:
        crash(self.store)

    # -- steps -------------------------------------------------------------------------------------------

    def put(self) -> None:
        body = b"%d " % self.dice.randrange(1 << 30) * self.dice.choice([1, 9, 90])
        queue_id = self.dice.randrange(QUEUES)
        if not self.runs or self.dice.random() < 0.5:
            put(self.store, body, queue_id=queue_id)
            return
        batched = BatchedPut(self.store)
        cursors = [batched.cursor(TOPIC, each % QUEUES) for each in (queue_id, queue_id + 1)]
        messages: list[Message] = [
            (cursors[n % 2], 0, 0, 1, BORN_HOST, 0, body + b"%d" % n, b"", 0, b"", b"")  # type: ignore[misc]
            for n in range(3)
        ]
        if batched.put(messages, wall_ms()) is None:
            put(self.store, body, queue_id=queue_id)  # as the connection does at the end of a file

    def confirm(self) -> None:
        offset = self.dice.randrange(self.store.confirm_offset, self.store.commit_log.max_offset + 1)
        self.confirmed = max(self.confirmed, offset)
        self.store.set_confirm_offset(offset)
        while self.store.dispatcher.dispatch(3):
            pass

    def flush(self) -> None:
        self.store.flush_checkpoint()

    def cut(self) -> None:
        """A new master was elected without our tail; seldom, without confirmed records, too."""
        low = 0 if self.dice.random() < 0.2 else self.store.confirm_offset
        offset = self.dice.randrange(low, self.store.commit_log.max_offset + 1)
        self.store.become_slave()
        self.store.cutter.truncate(offset)
        end = self.store.cutter.truncate_half_message()
        self.confirmed = min(self.confirmed, end)
        self.shown = {place: body for place, body in self.shown.items() if self.is_there(place)}
        self.store.become_master()

    def is_there(self, place: tuple[int, int]) -> bool:
        return place[1] < self.store.max_queue_offset("TopicA", place[0])

    def look(self) -> None:
        """What a consumer gets: only what was confirmed, and always the same."""
        assert self.store.confirm_offset <= self.confirmed
        for queue_id in range(QUEUES):
            for index, body in enumerate(bodies(self.store, queue_id)):
                assert self.shown.setdefault((queue_id, index), body) == body
        assert len(set(self.offsets())) == len(self.offsets()), "a queue offset was given twice"

    def offsets(self) -> list[tuple[int, int]]:
        log, found, at = self.store.commit_log, [], self.store.commit_log.min_offset
        while view := log.view(at, log.file_bytes):
            position = 0
            while position < len(view):
                if (
                    bytes(view[position + 4 : position + 8]) == b"\xcb\xd4\x31\x94"
                ):  # the blank at a file's end
                    position = len(view)
                    continue
                record = decode(view, position)
                found.append((record.queue_id, record.queue_offset))
                position += record.size
            at += position
        return found

    # -- death -------------------------------------------------------------------------------------------

    def torn(self, step: str) -> None:
        """The step, torn away at one of its operations, or right behind it; then the next life."""
        disk = StoreDisk(self.root)
        before = self.store.commit_log.max_offset
        with disk.watched(After(self.dice.choice([0, 1, 2, 3, 5, 8, FOREVER]))):
            try:
                getattr(self, step)()
            except Torn:
                pass
        self.lives += 1
        root = self.base / str(self.lives)
        kill = self.dice.random() < 0.5
        if kill:
            disk.survivors_of_a_kill(root)
        else:
            disk.survivors_of_a_power_cut(root, self.dice)
        crash(self.store)
        shutil.rmtree(self.root)
        self.root, self.store = root, open_store(root, master=False)
        end = self.store.commit_log.max_offset
        assert end >= before or not kill or step == "cut", "a kill takes nothing that was written"
        self.confirmed = min(self.confirmed, end)
        self.shown = {place: body for place, body in self.shown.items() if self.is_there(place)}
        self.look()
        self.store.become_master()


@pytest.mark.slow
@settings(max_examples=share(80), deadline=None)
@given(seed=st.integers(0, 1 << 32), runs=st.booleans())
@example(9992, True)  # a power cut shortens the only file of the log, to an end of zeros
@example(1703, False)  # a cut in the last file, torn away before the checkpoint knew of it
def test_an_unconfirmed_tail_stays_unseen_and_its_queue_offsets_are_its_own(seed: int, runs: bool) -> None:
    """Pitfalls 9 and 10."""
    dice = random.Random(seed)
    base = Path(tempfile.mkdtemp(prefix="tail-"))
    story = Story(base, dice, runs=runs)
    try:
        for _ in range(dice.randrange(5, 40)):
            step = dice.choice(["put"] * 6 + ["confirm"] * 3 + ["flush", "cut"])
            if dice.random() < 0.2:
                story.torn(step)
            else:
                getattr(story, step)()
                story.look()
    finally:
        story.close()
        shutil.rmtree(base)
