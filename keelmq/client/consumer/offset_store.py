"""The store of a group's offsets: the brokers (clustering), or a local file (broadcasting)."""

import asyncio
import contextlib
import fcntl
import json
import logging
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Protocol

from keelmq.client.cluster.queue_reader import PullError, PullErrorKind, QueueReader
from keelmq.client.core.queues import MessageQueue

logger = logging.getLogger(__name__)

COMMIT_TIMEOUT_MS = 3_000
AT_ONCE_MAX = 64


class OffsetStore(Protocol):
    """Loads and saves the offsets of one group."""

    async def open(self) -> None:
        """Opens the store. RuntimeError: another member uses it."""

    def close(self) -> None:
        """Releases the store."""

    async def load(self, queue: MessageQueue) -> int | None:
        """Returns the committed offset; None: nothing was ever committed. PullError: it cannot be read
        now."""

    async def save(self, offsets: Mapping[MessageQueue, int]) -> list[PullError]:
        """Saves offsets as far as possible; failures are logged, returned, and saved again with the next
        call."""

    def forget(self, broker_names: Collection[str]) -> None:
        """Makes the next save() write all offsets of these groups of brokers: their new masters may lack
        them."""


class BrokerOffsets:
    """Offsets at the brokers (requests 14 and 15). An unchanged offset is not sent again. `zero_if_young`: a
    group that has committed nothing begins at 0 in a young queue."""

    def __init__(self, reader: QueueReader, *, zero_if_young: bool = True) -> None:
        self._reader, self._zero_if_young = reader, zero_if_young
        self._saved: dict[MessageQueue, int] = {}
        self._gate = asyncio.Semaphore(AT_ONCE_MAX)

    async def open(self) -> None:
        pass

    def close(self) -> None:
        pass

    async def load(self, queue: MessageQueue) -> int | None:
        self._saved.pop(queue, None)
        return await self._reader.committed_offset(queue, zero_if_young=self._zero_if_young)

    async def save(self, offsets: Mapping[MessageQueue, int]) -> list[PullError]:
        changed = [(queue, offset) for queue, offset in offsets.items() if self._saved.get(queue) != offset]
        problems = await asyncio.gather(*(self._save(queue, offset) for queue, offset in changed))
        return [problem for problem in problems if problem is not None]

    async def _save(self, queue: MessageQueue, offset: int) -> PullError | None:
        try:
            async with self._gate:
                await self._reader.commit(queue, offset, timeout_ms=COMMIT_TIMEOUT_MS)
        except PullError as error:
            logger.warning("cannot commit offset %d of %s: %s", offset, queue, error)
            return error
        self._saved[queue] = offset
        return None

    def forget(self, broker_names: Collection[str]) -> None:
        for queue in [each for each in self._saved if each.broker_name in broker_names]:
            del self._saved[queue]


class LocalOffsets:
    """One JSON file, replaced atomically: {"offsetTable": [{"topic", "brokerName", "queueId", "offset"}]}.
    The file beside it with the suffix .lock is locked by the member that uses it: two members would overwrite
    each other's offsets, and a restarted one would miss what only the other has consumed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._table: dict[MessageQueue, int] | None = None
        self._written: dict[MessageQueue, int] = {}
        self._writing = asyncio.Lock()
        self._lock_fd: int | None = None

    async def open(self) -> None:
        """Locks the file. RuntimeError: another member, of this process or another one, has it."""
        path = self._path.with_suffix(".lock")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            logger.warning("cannot lock %s: %s", path, error)  # saving will fail, too, and report it
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise RuntimeError(
                f"another broadcasting member uses {self._path}: give each member on this machine its own "
                "instance_name (or offsets_dir)"
            ) from None
        except OSError as error:  # a file system without locks
            logger.warning("cannot lock %s: %s", path, error)
        self._lock_fd = descriptor

    def close(self) -> None:
        """Unlocks the file: also for a forked child, which has inherited the descriptor."""
        descriptor, self._lock_fd = self._lock_fd, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    async def load(self, queue: MessageQueue) -> int | None:
        return (await self._loaded()).get(queue)

    async def save(self, offsets: Mapping[MessageQueue, int]) -> list[PullError]:
        table = await self._loaded()
        table |= offsets
        async with self._writing:  # queues are released concurrently: one writer at a time, each writes all
            if table == self._written:
                return []
            now = dict(table)
            try:
                await asyncio.to_thread(self._write, now)
            except OSError as error:
                logger.warning("cannot save offsets in %s: %s", self._path, error)
                return [PullError(PullErrorKind.REFUSED, f"cannot save offsets in {self._path}: {error}")]
            self._written = now
        return []

    async def _loaded(self) -> dict[MessageQueue, int]:
        async with self._writing:
            if self._table is None:
                self._table = await asyncio.to_thread(self._read)
                self._written = dict(self._table)
            return self._table

    def forget(self, broker_names: Collection[str]) -> None:
        pass

    def _read(self) -> dict[MessageQueue, int]:
        """Reads the file. A damaged one is renamed for inspection, and the group begins anew."""
        try:
            rows = json.loads(self._path.read_text(encoding="utf-8"))["offsetTable"]
            return {
                MessageQueue(str(row["topic"]), str(row["brokerName"]), int(row["queueId"])): int(
                    row["offset"]
                )
                for row in rows
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            aside = self._path.with_suffix(".damaged")
            logger.error("%s is not an offset file (%s): it was renamed to %s", self._path, error, aside)
            if self._path.is_file():
                os.replace(self._path, aside)
            return {}

    def _write(self, table: dict[MessageQueue, int]) -> None:
        rows = [
            {"topic": q.topic, "brokerName": q.broker_name, "queueId": q.queue_id, "offset": table[q]}
            for q in sorted(table)
        ]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".tmp")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump({"offsetTable": rows}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._path)
