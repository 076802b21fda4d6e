"""Serves records of this broker's log to a replica that heals a damaged range (29047).

It sends only confirmed records that pass their checksums when they are read from the disk. Known damage is
left out. One request is served at a time.
"""

import os
from collections.abc import Callable

import msgspec

from broker.ha.core.epochs import Epochs
from broker.healing.evidence import covering, encode_epochs, sound_end
from broker.message.record import BLANK
from broker.store.log_check import check_file
from broker.store.message_store import MessageStore
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.frame import FRAME_BYTES_MAX
from keelmq.remoting.operation import Call, CommandError, OperationTable, Reply
from keelmq.remoting.operations.store_copies import (
    READ_LOG,
    READ_LOG_BYTES,
    ReadLogRequest,
    ReadLogResponse,
)
from keelmq.runtime.tasks import finished_in_thread

RECORD_BYTES_MAX = FRAME_BYTES_MAX - (64 << 10)
"""A larger record does not fit into a frame with a header, here or for a client. A broker of RocketMQ has
such records if its maxMessageSize was above 16,000,000."""


FOUND_MAX = 32
"""Damaged records that one request may find here."""


class _Read(msgspec.Struct, frozen=True):
    """The sound records from the start of a range on. crosses: the record there is sound, and ends behind the
    range. bad_end: the record there is damaged, and the next good one begins here."""

    data: bytes = b""
    crosses: bool = False
    bad_end: int = 0


class LogReads:
    """epochs: of the log, now. broker_name: of the group; an address may now belong to another group."""

    def __init__(self, store: MessageStore, *, epochs: Callable[[], Epochs], broker_name: str) -> None:
        self._store, self._epochs, self._broker_name = store, epochs, broker_name
        self._is_busy = False

    def bind(self, table: OperationTable) -> None:
        """Binds 29047."""
        table.bind(READ_LOG, self.read_log)

    async def read_log(self, header: ReadLogRequest, call: Call) -> Reply:
        """Returns whole sound records of a range (29047). Raises CommandError: it cannot be read, or its
        bounds are not those of records here."""
        if header.broker_name != self._broker_name:
            raise CommandError(ResponseCode.SYSTEM_ERROR, f"this broker is of group {self._broker_name}")
        if self._is_busy:
            raise CommandError(ResponseCode.SYSTEM_BUSY, "another replica reads the log: repeat it")
        self._is_busy = True
        try:
            return await self._read(header)
        finally:
            self._is_busy = False

    async def _read(self, header: ReadLogRequest) -> Reply:
        store, end, log = self._store, header.end_offset, self._store.commit_log
        if not log.min_offset <= header.start_offset <= end <= store.confirm_offset:
            raise CommandError(
                ResponseCode.SYSTEM_ERROR,
                f"[{header.start_offset}, {end}) is not in the confirmed log, "
                f"[{log.min_offset}, {store.confirm_offset})",
            )
        for _ in range(FOUND_MAX):
            start = self._behind_damage(header.start_offset, end)
            if start >= end:
                return Reply(ReadLogResponse(start_offset=end, end_offset=end))
            found = await self._sound(start, end)
            if found.crosses:
                raise CommandError(
                    ResponseCode.SYSTEM_ERROR,
                    f"the record at {start} ends behind {end}: the range is another one",
                )
            if not found.data:
                self._check_bounds(start, found.bad_end)
                store.damage.add(start, found.bad_end, "a replica asked for it, and its checksum is wrong")
                continue
            behind = start + len(found.data)
            epochs = encode_epochs(covering(self._epochs(), start, behind))
            answer = ReadLogResponse(start_offset=start, end_offset=behind, epochs=epochs)
            return Reply(answer, body=None if header.only_checks else found.data)
        raise CommandError(ResponseCode.SYSTEM_BUSY, "much of the range is damaged here, too: repeat it")

    def _check_bounds(self, start: int, end: int) -> None:
        """Raises CommandError if no damage was found, but the bounds of the range are no record boundaries
        here: the requesting replica may have a different log."""
        around = self._store.log_check.record_around(start)
        if around is not None and around.start < start:
            raise CommandError(
                ResponseCode.SYSTEM_ERROR,
                f"a sound record has [{around.start}, {around.end}) here: the range is another one",
            )
        if end > self._store.dispatch_offset:
            raise CommandError(ResponseCode.SYSTEM_BUSY, f"the log is not read up to {end} yet: repeat it")

    def _behind_damage(self, start: int, end: int) -> int:
        """Returns the first offset from `start` on that is not known to be damaged."""
        while start < end and (known := self._store.damage.overlaps(start, start + 1)) is not None:
            start = known.end
        return start

    async def _sound(self, start: int, end: int) -> _Read:
        """Reads the sound records from `start` on from the disk. Raises CommandError."""
        store, log = self._store, self._store.commit_log
        if start < log.min_offset:
            raise CommandError(ResponseCode.SYSTEM_ERROR, "retention has deleted the range")
        damaged = store.damage.overlaps(start, end)
        stop = end if damaged is None else damaged.start
        base, cut_count, file_bytes = start - start % log.file_bytes, store.cutter.cut_count, log.file_bytes
        file, file_end = log.open_file(start), min(base + file_bytes, store.confirm_offset)
        try:
            found = await finished_in_thread(lambda: _sound(file, base, start, stop, file_end, file_bytes))
        except OSError as error:
            raise CommandError(
                ResponseCode.SYSTEM_ERROR, f"the log cannot be read: {error.strerror or error}"
            ) from None
        finally:
            os.close(file)
        if store.cutter.cut_count != cut_count:
            raise CommandError(ResponseCode.SYSTEM_ERROR, "the log was truncated meanwhile: repeat it")
        return found


def _sound(file: int, base: int, start: int, stop: int, file_end: int, file_bytes: int) -> _Read:
    """Reads the sound records of [start, stop) from one file, called in a thread. A first record that is
    larger than READ_LOG_BYTES is read as a whole."""
    data = os.pread(file, min(stop, file_end, start + READ_LOG_BYTES) - start, start - base)
    end = sound_end(data, start, file_bytes=file_bytes)
    if end > start:
        return _Read(data[: end - start])
    size = BLANK.unpack_from(data.ljust(BLANK.size, b"\0"))[0]
    if len(data) < size <= min(RECORD_BYTES_MAX, file_end - start):
        data = os.pread(file, size, start - base)
        if sound_end(data, start, file_bytes=file_bytes) == start + size:
            return _Read(data) if start + size <= stop else _Read(crosses=True)
    first = next(check_file(file, start, min(stop, file_end), file_bytes))
    if first.fault:
        return _Read(bad_end=first.end)
    if size > RECORD_BYTES_MAX:
        raise CommandError(
            ResponseCode.SYSTEM_ERROR,
            f"the record at {start} has {size} bytes, more than a frame: keelmq repair --resync copies it",
        )
    return _Read(bad_end=start + size)  # BODYCRC is right, the checksum of the whole record is not
