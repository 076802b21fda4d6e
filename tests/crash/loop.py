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
from dataclasses import dataclass, field
from pathlib import Path

from broker.store.message_store import MessageStore, StoreConfig
from broker.store.querying import find_by_key
from broker.store.record import decode
from broker.store.recovery import each_record
from remoting.command import RemotingCommand, encode
from remoting.command import decode as decode_command
from tests.bench.servers import lone_broker

TOPIC = "CrashTopic"
QUEUES = 4
IN_FLIGHT = 256
KILL_AFTER_S = (0.2, 0.8)
BODY_BYTES = 512
KEYS_CHECKED = 200
GIB = 1 << 30
SETTINGS = {
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": str(16 << 20),
    "mappedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "10000",
    "maxIndexNum": "40000",
}


@dataclass(slots=True)
class Round:
    """acked: key -> (queueId, queueOffset), as the broker answered before it was killed."""

    acked: dict[str, tuple[int, int]] = field(default_factory=dict)
    recovery_ms: int = 0
    log_bytes: int = 0
    problems: list[str] = field(default_factory=list)


def send_frame(key: str, queue_id: int, opaque: int) -> bytes:
    ext = {
        "a": "crash", "b": TOPIC, "c": "TBW102", "d": str(QUEUES), "e": str(queue_id), "f": "0",
        "g": "1", "h": "0", "i": f"UNIQ_KEY\x01{key}\x02KEYS\x01k{key}\x02", "j": "0", "m": "false",
    }  # fmt: skip
    return encode(RemotingCommand(310, opaque, 0, None, ext, key.encode().ljust(BODY_BYTES, b".")))


class Writer:
    """One connection with IN_FLIGHT messages on their way, until it breaks."""

    def __init__(self, number: int) -> None:
        self.acked: dict[str, tuple[int, int]] = {}
        self._number = number
        self._count = 0
        self._waiting: dict[int, tuple[str, int]] = {}

    async def run(self, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for _ in range(IN_FLIGHT):
                self._send(writer)
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                answer = decode_command(await reader.readexactly(size))
                key, queue_id = self._waiting.pop(answer.opaque)
                assert answer.code == 0, answer
                self.acked[key] = (queue_id, int(answer.ext_fields["queueOffset"]))
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
        self._waiting[self._count] = (key, queue_id)
        writer.write(send_frame(key, queue_id, self._count))


async def write_until_killed(port: int, pid: int, number: int, after_s: float) -> dict[str, tuple[int, int]]:
    writer = Writer(number)
    task = asyncio.create_task(writer.run(port))
    await asyncio.wait([task], timeout=after_s)
    assert not task.done(), task
    os.kill(pid, signal.SIGKILL)
    await task
    return writer.acked


def recover(root: Path) -> tuple[MessageStore, int]:
    """The store as the next start finds it, and the ms that this took."""
    store = MessageStore(
        StoreConfig(
            root,
            commit_log_file_bytes=int(SETTINGS["mappedFileSizeCommitLog"]),
            consume_queue_file_bytes=int(SETTINGS["mappedFileSizeConsumeQueue"]),
            index_slots=int(SETTINGS["maxHashSlotNum"]),
            index_entries=int(SETTINGS["maxIndexNum"]),
        )
    )
    begin = time.perf_counter()
    store.load()
    took_ms = int((time.perf_counter() - begin) * 1000)
    store.become_master()
    store.set_confirm_offset(store.commit_log.max_offset)
    while store.dispatch(4096):
        pass
    while store.catch_up_index(4096):
        pass
    return store, took_ms


def check(store: MessageStore, acked: dict[str, tuple[int, int]], dice: random.Random) -> list[str]:
    """What is wrong: acknowledged messages that are not where the answer said, offsets given twice or left
    out, queues and index that lack a record."""
    problems = []
    seen: dict[tuple[bytes, int], int] = {}
    for topic, queue_id, queue_offset in each_record(store.commit_log, store.commit_log.min_offset):
        wanted = seen.get((topic, queue_id), 0)
        if queue_offset != wanted:
            problems.append(f"queue {queue_id} has offset {queue_offset} where {wanted} comes next")
        seen[(topic, queue_id)] = queue_offset + 1
    for (topic, queue_id), count in seen.items():
        if store.max_queue_offset(topic.decode(), queue_id) != count:
            problems.append(f"queue {queue_id} ends at {store.max_queue_offset(topic.decode(), queue_id)}")
    for key, (queue_id, queue_offset) in acked.items():
        if queue_offset >= store.max_queue_offset(TOPIC, queue_id):
            problems.append(f"{key} is lost: acknowledged at {queue_id}/{queue_offset}")
            continue
        result = store.get(TOPIC, queue_id, queue_offset, 1, 1 << 20, None)
        record = decode(result.views[0]) if result.views else None
        if record is None or record.body.rstrip(b".") != key.encode():
            problems.append(f"{key} is not at {queue_id}/{queue_offset}")
    for key in dice.sample(sorted(acked), min(KEYS_CHECKED, len(acked))):
        for name in (key, f"k{key}"):
            if len(find_by_key(store, TOPIC, name, 9, 0, 1 << 62)) != 1:
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
    acked: dict[str, tuple[int, int]] = {}
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
    place = Path(tempfile.mkdtemp(prefix="keelmq-crash-"))
    try:
        sys.exit(bool(run(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1, place)))
    finally:
        shutil.rmtree(place)
