"""The store against a dumb list of messages, through crashes, torn tails, cuts and role changes."""

import random
import shutil
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.store.log.checkpoint import read_checkpoint
from broker.store.log.mapped_file import file_name
from broker.store.message_store import MessageStore
from broker.store.queue.consume_queue import UNIT_BYTES
from tests.support.slices import share
from tests.support.store_disk import boot_again
from tests.support.store_parts import FILE_BYTES, bodies, crash, open_store, put

QUEUES = 3


class Model:
    """What was put: (offset, end, queue, queue offset, body), and how far it is durable."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int, int, int, bytes]] = []
        self.durable = 0  # bytes of the log
        self.checkpointed = 0  # dispatched up to here when the queues were last flushed

    @property
    def end(self) -> int:
        return self.records[-1][1] if self.records else 0

    def cut(self, offset: int) -> None:
        """To whole records below `offset`."""
        self.records = [record for record in self.records if record[1] <= offset]
        self.durable, self.checkpointed = min(self.durable, offset), min(self.checkpointed, offset)

    def bodies(self, queue_id: int, up_to: int) -> list[bytes]:
        return [record[4] for record in self.records if record[2] == queue_id and record[1] <= up_to]


def put_one(store: MessageStore, model: Model, dice: random.Random) -> None:
    queue_id = dice.randrange(QUEUES)
    body = b"%d " % len(model.records) + b"x" * dice.choice([0, 1, 64, 700, FILE_BYTES - 300])
    offset, end, queue_offset = put(store, body, queue_id=queue_id)
    assert queue_offset == sum(record[2] == queue_id for record in model.records)  # contiguous, never reused
    model.records.append((offset, end, queue_id, queue_offset, body))


def damage(root: Path, model: Model, dice: random.Random) -> int:
    """A power failure: from a byte on that was not known to be durable, the log is lost. Which byte."""
    if model.end <= model.durable:
        return model.end
    at = dice.randrange(model.durable, model.end)
    kind = dice.choice(["zeros", "garbage", "nothing"])
    if kind == "nothing":
        return model.end
    boot_again(root)
    path = root / "commitlog" / file_name(at - at % FILE_BYTES)
    raw = path.read_bytes()
    begin = at % FILE_BYTES
    size = FILE_BYTES - begin
    path.write_bytes(raw[:begin] + (bytes(size) if kind == "zeros" else dice.randbytes(size)))
    for name in range(at - at % FILE_BYTES + FILE_BYTES, model.end + FILE_BYTES, FILE_BYTES):
        (root / "commitlog" / file_name(name)).unlink(missing_ok=True)
    model.durable = min(model.durable, at)
    for path in (root / "consumequeue").glob(
        "TopicA/*/*"
    ):  # newer pages than the checkpoint's may be missing
        queue_id, first = int(path.parent.name), int(path.name) // UNIT_BYTES
        whole = (
            sum(record[2] == queue_id and record[1] <= model.checkpointed for record in model.records) - first
        )
        units = path.read_bytes()
        count = len(units) // UNIT_BYTES
        if whole < count and dice.random() < 0.5:
            lost = dice.randrange(max(whole, 0), count) * UNIT_BYTES
            path.write_bytes(units[:lost] + bytes(UNIT_BYTES) + units[lost + UNIT_BYTES :])
    return at


def restart(
    root: Path, store: MessageStore, model: Model, dice: random.Random, *, clean: bool
) -> MessageStore:
    if clean:
        model.checkpointed = store.dispatch_offset
        store.close()
        model.durable = intact = model.end
    else:
        crash(store)
        intact = damage(root, model, dice)
    again = open_store(root, master=False)
    assert all(record[1] <= again.commit_log.max_offset for record in model.records if record[1] <= intact)
    model.cut(again.commit_log.max_offset)  # a record is whole, too, when only zeros of it were lost
    assert again.confirm_offset <= again.commit_log.max_offset
    shown = [record for record in model.records if record[1] <= model.checkpointed]
    assert not shown or shown[-1][1] <= again.confirm_offset  # what was flushed stays visible
    check(again, model)
    flushed = read_checkpoint(root / "checkpoint").confirm_offset  # a start may flush what it has rebuilt
    model.durable, model.checkpointed = max(model.durable, flushed), max(model.checkpointed, flushed)
    again.become_master()
    return again


def check(store: MessageStore, model: Model) -> None:
    for queue_id in range(QUEUES):
        assert bodies(store, queue_id) == model.bodies(queue_id, store.confirm_offset)


def step(root: Path, store: MessageStore, model: Model, dice: random.Random) -> MessageStore:
    action = dice.choice(
        ["put"] * 12 + ["confirm"] * 4 + ["checkpoint", "truncate", "crash", "clean", "switch"]
    )
    if action == "put":
        put_one(store, model, dice)
    elif action == "confirm":
        store.set_confirm_offset(dice.randrange(store.confirm_offset, store.commit_log.max_offset + 1))
        while store.dispatcher.dispatch(2):
            pass
        check(store, model)
    elif action == "checkpoint":
        store.flush_checkpoint()
        model.durable, model.checkpointed = model.end, store.dispatch_offset
    elif action == "truncate":
        offset = dice.randrange(store.commit_log.max_offset + 1)
        store.become_slave()
        store.cutter.truncate(offset)
        store.become_master()
        model.cut(offset)
        model.durable, model.checkpointed = model.end, store.dispatch_offset
        assert store.commit_log.max_offset >= model.end
        check(store, model)
    elif action == "switch":
        store.become_slave()
        store.become_master()
    else:
        return restart(root, store, model, dice, clean=action == "clean")
    return store


@settings(max_examples=share(60), deadline=None)
@given(seed=st.integers(0, 1 << 32), steps=st.integers(1, 120))
def test_any_history_of_crashes_and_cuts(seed: int, steps: int) -> None:
    dice = random.Random(seed)
    root = Path(tempfile.mkdtemp(prefix="store-"))
    store = open_store(root)
    try:
        model = Model()
        for _ in range(steps):
            store = step(root, store, model, dice)
        store.set_confirm_offset(store.commit_log.max_offset)
        while store.dispatcher.dispatch(50):
            pass
        check(store, model)
    finally:
        store.close(clean=False)
        shutil.rmtree(root)
