"""Lets a stopped broker build all its ConsumeQueues anew from its log (keelmq repair --rebuild-queues).

A start without queues dispatches the whole log. But it ends the log at the first bad record, and a queue
without a message in the log would count from 0 again. So the log must be whole, which is checked first, and
those queues get a filler that keeps their numbering. The start itself builds the queues, since their entries
depend on the broker's settings (messageDelayLevel). Nothing is deleted: the old queues are moved aside.

A crash leaves a store that can be repaired again, or started: from the first change on its checkpoint vouches
for no queue. Only after a crash between the two renames does the numbering come from config/queueEnds.json.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker.admin.repair import (
    QUEUE_FILE_BYTES_DEFAULT,
    RepairError,
    StoreReport,
    new_directory,
    queue_file_bytes,
    refuse_running,
)
from broker.backup.manifest import BackupError
from broker.backup.offline_check import StoreCheck, check_stopped
from broker.store.log.checkpoint import read_checkpoint, write_checkpoint
from broker.store.log.mapped_file import StoreError, sync_directory, write_mark
from broker.store.queue.batch_queue import BATCH_FILE_BYTES, BatchQueue
from broker.store.queue.consume_queue import FILLER_SIZE, ConsumeQueue

DIRECTORIES: Final = {
    "batchconsumequeue": (BatchQueue, BATCH_FILE_BYTES),
    "consumequeue": (ConsumeQueue, QUEUE_FILE_BYTES_DEFAULT),
}
ABORT_TEXT: Final = "the queues are rebuilt"
"""Not that of our broker: after it, a start goes by the checkpoint's times, which are zero then."""


@dataclass(frozen=True)
class Prepared:
    """aside: the directory that has the old queues. records, queues: what the next start finds in the log.
    emptied: queues without a record in the log, which keep their numbering."""

    aside: Path
    records: int
    queues: int
    emptied: int


class QueueRebuild:
    """check() first, to its end; then prepare(). The broker's next start builds the queues."""

    def __init__(self, found: StoreReport) -> None:
        self._found = found
        self._log = StoreCheck(found.root)

    def check(self) -> Iterator[tuple[int, int]]:
        """Reads every record with its checksum; yields (bytes of the log read, bytes of all) now and then.
        Raises RepairError if a broker works in the store, or a record is bad. Changes nothing."""
        found, log = self._found, self._log
        refuse_running(found)
        try:
            yield from check_stopped(found.root, log, found.epoch_path)
        except BackupError as error:
            raise RepairError(str(error)) from error
        bad = log.first_bad_offset
        if bad is None and found.max_offset < read_checkpoint(found.root / "checkpoint").confirm_offset:
            bad = found.max_offset
        if bad is not None:
            raise RepairError(
                f"the log has a bad record at offset {bad}, and a rebuild would end it there: use --resync if"
                " another replica has these messages, otherwise restore a backup"
            )

    def prepare(self) -> Prepared:
        """Moves the queues aside. Raises RepairError if a broker works in the store; OSError if the disk is
        full: the same call goes on later."""
        root = self._found.root
        refuse_running(self._found)
        checkpoint = read_checkpoint(root / "checkpoint")
        checkpoint.physic_msg_timestamp = checkpoint.logics_msg_timestamp = 0
        write_checkpoint(root / "checkpoint", checkpoint)
        write_mark(root / "abort", ABORT_TEXT)
        aside, emptied = new_directory(self._found, "before-rebuild"), 0
        kept = aside / "new"
        kept.mkdir()
        for name, (kind, file_bytes) in DIRECTORIES.items():
            if (root / name).is_dir():
                emptied += self._keep_numbering(name, kind, queue_file_bytes(root / name, file_bytes), kept)
                os.rename(root / name, aside / name)
                try:
                    os.rename(kept / name, root / name)
                except OSError:
                    os.rename(aside / name, root / name)  # the next call needs it for the numbering
                    raise
        kept.rmdir()
        sync_directory(aside)
        sync_directory(root)
        return Prepared(aside, self._log.records, len(self._log.queues), emptied)

    def _keep_numbering(self, name: str, kind: type[ConsumeQueue], file_bytes: int, kept: Path) -> int:
        """Makes the directory of queues that have a filler in place of their deleted messages. Returns their
        number."""
        (kept / name).mkdir()
        emptied = 0
        for path in sorted((self._found.root / name).glob("*/*")):
            topic, queue_id = path.parent.name, path.name
            if not queue_id.isdecimal() or (os.fsencode(topic), int(queue_id)) in self._log.queues:
                continue
            end = _end_of(kind(path, topic, int(queue_id), file_bytes))
            if end > 0:
                queue = kind(kept / name / topic / queue_id, topic, int(queue_id), file_bytes)
                queue.append(end - 1, 0, FILLER_SIZE, 0)
                queue.sync()
                queue.close()
                emptied += 1
        sync_directory(kept / name)
        return emptied


def _end_of(queue: ConsumeQueue) -> int:
    """Returns the queue offset behind its last message; 0: it has none, or a file of a wrong size, and only
    config/queueEnds.json knows it."""
    with suppress(StoreError):
        queue.load(log_min_offset=0)
    end = queue.max_offset
    queue.close()
    return end
