"""A SYNC_FLUSH broker under heavy writing is killed with SIGKILL, its store is recovered, and every claim is
checked: no acknowledged message is lost, no queue offset is given twice, every key is found, and how long the
recovery took.

    python -m tests.crash.loop 50        # make crash
"""

import asyncio
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from broker.message.inner_batch import message_count, split
from broker.message.record import decode, parse
from broker.store.log.commit_log import CommitLog
from broker.store.message_store import MessageStore, StoreConfig
from broker.store.offline import offline_store
from broker.store.querying import find_by_key
from keelmq.remoting.command import RemotingCommand, encode
from keelmq.remoting.command import decode as decode_command
from tests.bench.servers import lone_broker
from tests.support.batch_parts import item

TOPIC = "CrashTopic"
BATCHES = "CrashBatches"
"""With queue.type=BatchCQ."""
QUEUES = 4
BATCH_EVERY = 8
ITEMS = 3
IN_FLIGHT = 256
KILL_AFTER_S = (0.2, 0.8)
BODY_BYTES = 512
KEYS_CHECKED = 200
GIB = 1 << 30
SETTINGS = {
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": str(16 << 20),
    "mappedFileSizeConsumeQueue": "60000",
    "mapperFileSizeBatchConsumeQueue": "9200",
    "maxHashSlotNum": "10000",
    "maxIndexNum": "40000",
}


QueuePosition: TypeAlias = tuple[str, int, int]
"""topic, queueId, queueOffset"""


@dataclass(slots=True)
class Round:
    """acked: key -> position, as the broker answered before it was killed."""

    acked: dict[str, QueuePosition] = field(default_factory=dict)
    recovery_ms: int = 0
    log_bytes: int = 0
    problems: list[str] = field(default_factory=list)


def send_frame(key: str, queue_id: int, opaque: int) -> bytes:
    ext = {
        "a": "crash", "b": TOPIC, "c": "TBW102", "d": str(QUEUES), "e": str(queue_id), "f": "0",
        "g": "1", "h": "0", "i": f"UNIQ_KEY\x01{key}\x02KEYS\x01k{key}\x02", "j": "0", "m": "false",
    }  # fmt: skip
    return encode(RemotingCommand(310, opaque, 0, None, ext, key.encode().ljust(BODY_BYTES, b".")))


def batch_frame(key: str, queue_id: int, opaque: int) -> bytes:
    """Each of its messages has the key with its number behind it."""
    names = [f"{key}-{number}" for number in range(ITEMS)]
    body = b"".join(item(name.encode(), f"UNIQ_KEY\x01{name}\x02".encode()) for name in names)
    ext = {
        "a": "crash", "b": BATCHES, "c": "TBW102", "d": str(QUEUES), "e": str(queue_id), "f": "0",
        "g": "1", "h": "0", "i": f"UNIQ_KEY\x01{key}\x02", "j": "0", "m": "true",
    }  # fmt: skip
    return encode(RemotingCommand(320, opaque, 0, None, ext, body))


def topic_frame(opaque: int) -> bytes:
    ext = {
        "topic": BATCHES, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES), "perm": "6",
        "writeQueueNums": str(QUEUES), "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0",
        "order": "false",
        "attributes": "+queue.type=BatchCQ",
    }  # fmt: skip
    return encode(RemotingCommand(17, opaque, 0, None, ext))


class Writer:
    """One connection with IN_FLIGHT messages on their way, until it breaks."""

    def __init__(self, number: int) -> None:
        self.acked: dict[str, QueuePosition] = {}
        self._number = number
        self._count = 0
        self._waiting: dict[int, tuple[str, str, int]] = {}

    async def run(self, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(topic_frame(0))
            made = await _answer(reader)
            assert made.code == 0 or "unchangeable" in str(made.remark), made  # there since an earlier round
            for _ in range(IN_FLIGHT):
                self._send(writer)
            while True:
                answer = await _answer(reader)
                key, topic, queue_id = self._waiting.pop(answer.opaque)
                assert answer.code == 0, answer
                self.acked[key] = (topic, queue_id, int(answer.ext_fields["queueOffset"]))
                self._send(writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    def _send(self, writer: asyncio.StreamWriter) -> None:
        if writer.transport.is_closing():
            raise ConnectionResetError
        self._count += 1
        key, queue_id = f"{self._number:04X}{self._count:012X}", self._count % QUEUES
        is_batch = self._count % BATCH_EVERY == 0
        self._waiting[self._count] = (key, BATCHES if is_batch else TOPIC, queue_id)
        writer.write((batch_frame if is_batch else send_frame)(key, queue_id, self._count))


async def _answer(reader: asyncio.StreamReader) -> RemotingCommand:
    size = int.from_bytes(await reader.readexactly(4), "big")
    return decode_command(await reader.readexactly(size))


async def write_until_killed(port: int, pid: int, number: int, after_s: float) -> dict[str, QueuePosition]:
    writer = Writer(number)
    task = asyncio.create_task(writer.run(port))
    await asyncio.wait([task], timeout=after_s)
    assert not task.done(), task
    os.kill(pid, signal.SIGKILL)
    await task
    return writer.acked


def recover(root: Path) -> tuple[MessageStore, int]:
    """The store as the next start finds it, and the ms that this took."""
    store = offline_store(
        StoreConfig(
            root,
            commit_log_file_bytes=int(SETTINGS["mappedFileSizeCommitLog"]),
            consume_queue_file_bytes=int(SETTINGS["mappedFileSizeConsumeQueue"]),
            batch_queue_file_bytes=int(SETTINGS["mapperFileSizeBatchConsumeQueue"]),
            index_slots=int(SETTINGS["maxHashSlotNum"]),
            index_entries=int(SETTINGS["maxIndexNum"]),
        )
    )
    begin = time.perf_counter()
    store.load()
    took_ms = int((time.perf_counter() - begin) * 1000)
    store.become_master()
    store.set_confirm_offset(store.commit_log.max_offset)
    while store.dispatcher.dispatch(4096):
        pass
    while store.dispatcher.catch_up_index(4096):
        pass
    return store, took_ms


def each_record(log: CommitLog) -> Iterator[tuple[bytes, int, int, int]]:
    """(topic, queueId, queue offset, messages) of every record that a queue has."""
    offset = log.min_offset
    while view := log.view(offset, log.file_bytes):
        parsed = parse(view, 0, len(view), offset=offset)
        if parsed is None:
            return
        size, topic, queue_id, queue_offset, _, _, properties = parsed
        if topic:
            yield topic, queue_id, queue_offset, message_count(properties)
        offset += size


def check(store: MessageStore, acked: dict[str, QueuePosition], dice: random.Random) -> list[str]:
    """What is wrong: acknowledged messages that are not where the answer said, offsets given twice or left
    out, queues and index that lack a record."""
    problems = []
    seen: dict[tuple[bytes, int], int] = {}
    for topic, queue_id, queue_offset, count in each_record(store.commit_log):
        wanted = seen.get((topic, queue_id), 0)
        if queue_offset != wanted:
            problems.append(f"queue {queue_id} has offset {queue_offset} where {wanted} comes next")
        seen[(topic, queue_id)] = queue_offset + count
    for (topic, queue_id), end in seen.items():
        if store.max_queue_offset(topic.decode(), queue_id) != end:
            problems.append(f"queue {queue_id} ends at {store.max_queue_offset(topic.decode(), queue_id)}")
    for key, (topic, queue_id, queue_offset) in acked.items():
        if queue_offset >= store.max_queue_offset(topic, queue_id):
            problems.append(f"{key} is lost: acknowledged at {queue_id}/{queue_offset}")
            continue
        result = store.get(topic, queue_id, queue_offset, 1, 1 << 20, None)
        found = split(decode(result.views[0])) if result.views else []
        names = [f"{key}-{number}" for number in range(ITEMS)] if topic == BATCHES else [key]
        if [each.body.rstrip(b".").decode() for each in found] != names:
            problems.append(f"{key} is not at {queue_id}/{queue_offset}")
    for key in dice.sample(sorted(acked), min(KEYS_CHECKED, len(acked))):
        topic = acked[key][0]
        for name in (key, f"{key}-1" if topic == BATCHES else f"k{key}"):
            if len(find_by_key(store, topic, name, 9, 0, 1 << 62)) != 1:
                problems.append(f"the index does not find {name}")
    return problems


def crash(directory: Path, number: int, dice: random.Random) -> Round:
    with lone_broker(directory, SETTINGS) as server:
        acked = asyncio.run(write_until_killed(server.port, server.pid, number, dice.uniform(*KILL_AFTER_S)))
    store, recovery_ms = recover(directory / "store")
    problems = check(store, acked, dice)
    result = Round(acked, recovery_ms, store.commit_log.max_offset, problems)
    if number % 2:
        store.flush_checkpoint()  # as after a longer life: the next recovery begins there
    store.close(clean=False)
    return result


def run(count: int, seed: int, directory: Path) -> int:
    """The number of problems. Each round goes on with the store of the one before."""
    dice = random.Random(seed)
    problems = 0
    acked: dict[str, QueuePosition] = {}
    for number in range(count):
        done = crash(directory, number, dice)
        problems += len(done.problems)
        acked |= done.acked
        print(
            f"{number + 1:3}/{count}: {len(done.acked):6} acknowledged, "
            f"log {done.log_bytes / 2**20:7.1f} MiB, recovered in {done.recovery_ms:4} ms; "
            + ("; ".join(done.problems[:5]) or "nothing lost, no offset twice, index whole"),
            flush=True,
        )
    store, _ = recover(directory / "store")
    at_the_end = check(store, acked, dice)
    store.close(clean=False)
    print(f"of all rounds: {len(acked)} acknowledged; {'; '.join(at_the_end[:5]) or 'nothing lost'}")
    return problems + len(at_the_end)


if __name__ == "__main__":
    directory = Path(tempfile.mkdtemp(prefix="keelmq-crash-"))
    try:
        sys.exit(bool(run(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1, directory)))
    finally:
        shutil.rmtree(directory)
