"""Queues of batches against a dumb list of messages: crashes, cuts, role changes, retention, any pull."""

import random
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.message.inner_batch import split
from broker.message.record import decode
from broker.store.log.mapped_file import file_name
from broker.store.message_store import MessageStore
from broker.store.querying import find_by_key, offset_by_time
from broker.store.queue.batch_queue import BATCH_UNIT_BYTES
from broker.store.queue.reading import GetStatus
from tests.support.batch_parts import item
from tests.support.slices import share
from tests.support.store_disk import boot_again
from tests.support.store_parts import BORN_HOST, FILE_BYTES, crash
from tests.support.store_parts import TOPIC as OTHER
from tests.unit.broker.store.test_inner_batch import open_batches, put_alone, put_items

TOPIC = "Batches"


@dataclass(frozen=True)
class PutMessageResult:
    """One record of the queue, as it was put."""

    offset: int
    end: int
    base: int
    bodies: tuple[bytes, ...]
    at_ms: int


@dataclass
class Model:
    records: list[PutMessageResult] = field(default_factory=list)
    end: int = 0  # of the log, with records of other topics
    count: int = 0  # of messages ever, for their names
    clock: int = 1_000

    def shown(self, store: MessageStore) -> list[PutMessageResult]:
        """What a consumer may read."""
        low, high = store.commit_log.min_offset, store.confirm_offset
        return [each for each in self.records if each.offset >= low and each.end <= high]

    @property
    def next_offset(self) -> int:
        return self.records[-1].base + len(self.records[-1].bodies) if self.records else 0

    def cut(self, offset: int) -> None:
        self.records = [each for each in self.records if each.end <= offset]
        self.end = min(self.end, offset)


def put_one(store: MessageStore, model: Model, dice: random.Random, properties: bytes = b"") -> None:
    model.clock += dice.choice([0, 0, 1, 50])
    count = dice.choice([1, 1, 2, 3, 7])
    bodies = tuple(b"%d" % (model.count + number) + b"." * dice.choice([0, 90]) for number in range(count))
    model.count += count
    if count == 1 and dice.random() < 0.5:
        keys = b"KEYS\x01" + bodies[0].rstrip(b".") + b"\x02"
        stored = put_alone(store, bodies[0], keys + properties, model.clock)
    else:
        batch = b"".join(item(body, b"UNIQ_KEY\x01" + body.rstrip(b".")) for body in bodies)
        stored = put_items(store, batch, properties, model.clock)
    offset, end, base = stored
    assert base == model.next_offset  # contiguous, never given twice
    model.records.append(PutMessageResult(offset, end, base, bodies, model.clock))
    model.end = end


def check(store: MessageStore, model: Model, dice: random.Random) -> None:
    """A consumer that begins anywhere, limits of any size, times, keys, minimum and maximum."""
    shown = model.shown(store)
    messages = {each.base + number: body for each in shown for number, body in enumerate(each.bodies)}
    low, high = store.min_queue_offset(TOPIC, 0), store.max_queue_offset(TOPIC, 0)
    if not messages:
        assert low == high
        return
    assert (low, high) == (min(messages), max(messages) + 1)
    assert len(messages) == high - low
    offset, nums = dice.randrange(low, high), dice.choice([1, 3, 32])
    start = offset
    while offset < high:
        result = store.get(TOPIC, 0, offset, nums, 4_000, None)
        assert result.status is GetStatus.FOUND
        found = [each for view in result.views for each in taken_apart(view)]
        assert [body for _, body in found] == [messages[at] for at, _ in found]
        assert found[0][0] <= offset < result.next_begin_offset == found[-1][0] + 1
        assert [at for at, _ in found] == list(range(found[0][0], result.next_begin_offset))
        assert result.message_count == len(found)
        offset = result.next_begin_offset
    time = dice.choice(shown).at_ms + dice.choice([-1, 0, 1])
    times = [(each.base + number, each.at_ms) for each in shown for number in range(len(each.bodies))]
    assert offset_by_time(store, TOPIC, 0, time, upper=False) == next(
        (o for o, at in times if at >= time), high
    )
    assert offset_by_time(store, TOPIC, 0, time, upper=True) == max(
        (o for o, at in times if at <= time), default=low
    )
    key = messages[start].rstrip(b".").decode()
    (view,) = find_by_key(store, TOPIC, key, 9, 0, 1 << 60)
    assert (decode(view).queue_offset, decode(view).body) == (start, messages[start])


def taken_apart(view: memoryview) -> list[tuple[int, bytes]]:
    found, at = [], 0
    while at < len(view):
        record = decode(view, at)
        found += [(each.queue_offset, each.body) for each in split(record)]
        at += record.size
    return found


def lose_units(root: Path, model: Model, durable: int, dice: random.Random) -> None:
    """Pages that no checkpoint has promised may not be on the disk: one unit of those is zero."""
    numbers = [number for number, each in enumerate(model.records) if each.end > durable]
    files = sorted((root / "batchconsumequeue" / TOPIC / "0").glob("*"))
    if not numbers or not files or dice.random() < 0.5:
        return
    for path in files:
        raw = path.read_bytes()
        for at in range(0, len(raw), BATCH_UNIT_BYTES):
            if int.from_bytes(raw[at : at + 8], "big") >= durable and dice.random() < 0.5:
                path.write_bytes(raw[:at] + bytes(BATCH_UNIT_BYTES) + raw[at + BATCH_UNIT_BYTES :])
                return


class History:
    """Of one store."""

    def __init__(self, root: Path, dice: random.Random, *, prop_crc: bool) -> None:
        self.root, self.dice, self.model = root, dice, Model()
        self.settings: dict[str, int] = {"append_prop_crc": prop_crc, "verify_prop_crc": prop_crc}
        self.store = open_batches(root, **self.settings)

    @property
    def durable(self) -> int:
        """Log and queues are whole below it: the last checkpoint's promise."""
        return self.store._flusher.checkpoint.confirm_offset

    def step(self) -> None:
        actions = ["put"] * 14 + ["other"] * 2 + ["confirm"] * 5
        actions += ["checkpoint", "truncate", "crash", "clean", "switch", "expire"]
        getattr(self, self.dice.choice(actions))()

    def put(self) -> None:
        put_one(self.store, self.model, self.dice)

    def other(self) -> None:
        """A record of another topic, with the same clock."""
        body = b"x" * self.dice.choice([0, 500])
        self.model.end = self.store.put(OTHER, 0, body, b"", 0, 0, 7, BORN_HOST, 0, 0, self.model.clock)[1]

    def confirm(self) -> None:
        log, store = self.store.commit_log, self.store
        store.set_confirm_offset(self.dice.randrange(store.confirm_offset, log.max_offset + 1))
        self.drain()

    def drain(self) -> None:
        while self.store.dispatcher.dispatch(2):
            pass
        while self.store.dispatcher.catch_up_index(2):
            pass
        if (
            self.store.dispatch_offset >= self.store.confirm_offset
            or not self.store.dispatcher.dispatch_behind
        ):
            check(self.store, self.model, self.dice)

    def checkpoint(self) -> None:
        self.store.flush_checkpoint()

    def truncate(self) -> None:
        """A demoted master; not below what retention has left, for which a replica begins anew."""
        log = self.store.commit_log
        offset = self.dice.randrange(
            max(log.min_offset, self.model.end - 2 * FILE_BYTES, 0), log.max_offset + 1
        )
        self.store.become_slave()
        self.store.cutter.truncate(offset)
        self.model.cut(offset)
        self.store.become_master()
        self.drain()

    def switch(self) -> None:
        self.store.become_slave()
        self.store.become_master()

    def expire(self) -> None:
        store = self.store
        limit = min(store.dispatch_offset, store.confirm_offset)
        if not store.commit_log.oldest_files(limit):
            return
        store.flush_checkpoint()
        store.commit_log.take_oldest().delete()
        for queue in store.queues.each():
            for file in queue.expire(store.commit_log.min_offset):
                file.delete()
        self.drain()

    def clean(self) -> None:
        self.store.close()
        self.again()

    def crash(self) -> None:
        crash(self.store)
        lose_units(self.root, self.model, self.durable, self.dice)
        if self.dice.random() < 0.5:
            self.tear()
        self.again()

    def tear(self) -> None:
        """A power cut: from a byte on that nobody has promised, the log's last file is zeros."""
        if self.model.end <= self.durable:
            return
        boot_again(self.root)
        at = self.dice.randrange(max(self.durable, self.model.end - FILE_BYTES // 2), self.model.end)
        for start in range(at - at % FILE_BYTES, self.model.end, FILE_BYTES):
            path = self.root / "commitlog" / file_name(start)
            raw = path.read_bytes() if path.exists() else b""
            begin = max(at - start, 0)
            path.write_bytes(raw[:begin] + bytes(FILE_BYTES - begin))

    def again(self) -> None:
        self.store = open_batches(self.root, master=False, **self.settings)
        self.model.cut(self.store.commit_log.max_offset)
        self.store.become_master()
        self.store.set_confirm_offset(self.store.commit_log.max_offset)
        self.drain()


@settings(max_examples=share(60), deadline=None)
@given(seed=st.integers(0, 1 << 32), steps=st.integers(1, 120), prop_crc=st.booleans())
def test_any_history_of_batches(seed: int, steps: int, prop_crc: bool) -> None:
    root = Path(tempfile.mkdtemp(prefix="batches-"))
    history = History(root, random.Random(seed), prop_crc=prop_crc)
    try:
        for _ in range(steps):
            history.step()
        history.store.set_confirm_offset(history.store.commit_log.max_offset)
        history.drain()
    finally:
        history.store.close(clean=False)
        shutil.rmtree(root)
