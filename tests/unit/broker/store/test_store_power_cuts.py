"""One power cut after the other, at any operation on the files, also while a store still recovers."""

import contextlib
from pathlib import Path
from random import Random

import pytest

from broker.store.message_store import MessageStore
from tests.support.slices import first
from tests.support.store_disk import After, StoreDisk, Torn
from tests.support.store_parts import bodies, crash, new_store, put

QUEUES = 3
ROUNDS = 4
OPERATIONS_MAX = 60
SIZES = {"commit_log_file_bytes": 32_768, "consume_queue_file_bytes": 4_000}
"""So that no two files of a kind begin between two flushes."""


class Life:
    """promised: messages of each queue that a checkpoint has made durable, and that nothing may change."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.promised: list[list[bytes]] = [[] for _ in range(QUEUES)]
        self._sent = 0

    def goes_on(self, store: MessageStore) -> None:
        self.check(store)
        for _ in range(self._random.randint(0, 6)):
            self._put(store)
            step = self._random.random()
            if step < 0.3:
                store.flush()
            elif step < 0.6:
                promised = [bodies(store, queue_id) for queue_id in range(QUEUES)]
                store.flush_checkpoint()
                self.promised = promised

    def check(self, store: MessageStore) -> None:
        store.load()
        store.become_master()
        store.set_confirm_offset(store.commit_log.max_offset)
        while store.dispatcher.dispatch(7):
            pass
        assert not store.dispatcher.dispatch_behind
        for queue_id, promised in enumerate(self.promised):
            found = bodies(store, queue_id)
            assert found[: len(promised)] == promised, f"queue {queue_id}"
            assert store.queues.get("TopicA", queue_id).next_offset >= len(found)

    def _put(self, store: MessageStore) -> None:
        queue_ids = self._random.sample(range(QUEUES), self._random.randint(1, QUEUES))
        for _ in range(self._random.randint(1, 30)):
            self._sent += 1
            put(store, b"message %d" % self._sent, queue_id=self._random.choice(queue_ids))
        store.set_confirm_offset(store.commit_log.max_offset)


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", first(2, range(0, 120, 20)))
def test_what_a_checkpoint_promised_is_there_after_any_power_cuts(tmp_path: Path, first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 20):
        random = Random(seed)
        life, root = Life(random), tmp_path / f"{seed}-0"
        for number in range(ROUNDS):
            disk = StoreDisk(root)
            hook = After(random.randint(0, OPERATIONS_MAX))
            if random.random() < 0.3 and (root / "abort").exists():
                (root / "abort").write_text("4711")  # RocketMQ's: its checkpoint promises less
            store = new_store(root, **SIZES)
            with disk.watched(hook), contextlib.suppress(Torn):
                life.goes_on(store)
            root = disk.survivors_of_a_power_cut(tmp_path / f"{seed}-{number + 1}", random, journal=True)
            crash(store)
        store = new_store(root, **SIZES)
        life.check(store)
        store.close()
