"""Serves records of this broker's log to a replica that heals a damaged range (29047).

Only what is confirmed, and passes its checksum when it is read from the disk, is sent. What is known to be
damaged here is left out. One request is served at a time.
"""

import os
from collections.abc import Callable

import msgspec

from broker.ha.core.epochs import Epochs
from broker.healing.evidence import covering, encode_epochs, sound_end
from broker.message.record import BLANK
from broker.store.message_store import MessageStore
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, CommandError, OperationTable, Reply
from keelmq.remoting.operations.store_copies import (
    READ_LOG,
    READ_LOG_BYTES,
    ReadLogRequest,
    ReadLogResponse,
)
from keelmq.runtime.tasks import finished_in_thread

RECORD_BYTES_MAX = 12 << 20
"""A larger record does not fit into a frame, with its header. RocketMQ's maxMessageSize is 4 MiB."""


class _Read(msgspec.Struct, frozen=True):
    """What is sound from the begin of a range on. crosses: the record there is sound, and ends behind the
    range."""

    data: bytes
    crosses: bool = False


class LogReads:
    """epochs: of the log, now. broker_name: of the group; an address may belong to another one by now.
    on_damage: called with a range that begins with a damaged record, which nobody has found yet."""

    def __init__(
        self,
        store: MessageStore,
        *,
        epochs: Callable[[], Epochs],
        broker_name: str,
        on_damage: Callable[[int, int], None],
    ) -> None:
        self._store, self._epochs, self._broker_name = store, epochs, broker_name
        self._on_damage = on_damage
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
        store, end = self._store, header.end_offset
        start = self._behind_damage(header.start_offset, end)
        log = store.commit_log
        if not log.min_offset <= header.start_offset < end <= store.confirm_offset:
            raise CommandError(
                ResponseCode.SYSTEM_ERROR,
                f"[{header.start_offset}, {end}) is not in the confirmed log, "
                f"[{log.min_offset}, {store.confirm_offset})",
            )
        if start >= end:
            return Reply(ReadLogResponse(start_offset=end, end_offset=end))
        damaged = store.damage.overlaps(start, end)
        stop = end if damaged is None else damaged.start
        base, cut_count, file_bytes = start - start % log.file_bytes, store.cut_count, log.file_bytes
        file, file_end = log.open_file(start), min(base + file_bytes, store.confirm_offset)
        try:
            found = await finished_in_thread(lambda: _sound(file, base, start, stop, file_end, file_bytes))
        except OSError as error:
            raise CommandError(
                ResponseCode.SYSTEM_ERROR, f"the log cannot be read: {error.strerror or error}"
            ) from None
        finally:
            os.close(file)
        if store.cut_count != cut_count:
            raise CommandError(ResponseCode.SYSTEM_ERROR, "the log was truncated meanwhile: repeat it")
        if found.crosses:
            raise CommandError(
                ResponseCode.SYSTEM_ERROR,
                f"the record at {start} ends behind {end}: the range is another one",
            )
        if not found.data:
            self._on_damage(start, stop)
            raise CommandError(
                ResponseCode.SYSTEM_BUSY, f"the record at {start} is damaged here, too: it is being checked"
            )
        behind = start + len(found.data)
        epochs = encode_epochs(covering(self._epochs(), start, behind))
        answer = ReadLogResponse(start_offset=start, end_offset=behind, epochs=epochs)
        return Reply(answer, body=None if header.only_checks else found.data)

    def _behind_damage(self, start: int, end: int) -> int:
        """Returns the first offset from `start` on that is not known to be damaged."""
        while (known := self._store.damage.overlaps(start, min(start + 1, end))) is not None:
            start = known.end
        return start


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
            return _Read(data) if start + size <= stop else _Read(b"", crosses=True)
    return _Read(b"")
