"""Recovery at a start: finds where the log ends, and from where it must be scanned.

Changes no file; MessageStore.load() acts on the results. The first bad record ends the log. Source: RocketMQ
5.3.3 CommitLog.recoverNormally, recoverAbnormally.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Final

from broker.message.prop_crc import RecordParser
from broker.message.record import Parsed, parse, store_timestamp
from broker.store.damage import DamagedRanges
from broker.store.last_exit import LastExit
from broker.store.log.checkpoint import StoreCheckpoint
from broker.store.log.commit_log import CommitLog
from broker.store.log_check import past_damage, why_bad
from broker.store.queue.consume_queue import ConsumeQueue

_HEADER_BYTES_MIN = 88


RECORDS_AT_ONCE: Final = 256
"""Less than a millisecond of work, after which Between is called."""

Between = Callable[[], None]
"""Called during a long start, in its thread. An exception ends the start."""


def nothing() -> None:
    """The Between of a start that is not interrupted."""


def scan_end(
    log: CommitLog,
    start: int,
    parser: RecordParser,
    between: Between = nothing,
    *,
    damage: DamagedRanges | None = None,
    durable_end: int = 0,
) -> int:
    """Follows the chain of good records from `start`. Returns the end of the last one. Bad ones in front of
    durable_end, where the log was whole once, are added to `damage` and skipped if good ones follow."""
    offset, left = start, RECORDS_AT_ONCE
    while view := log.view(offset, log.file_bytes):
        pos, end = 0, len(view)
        while pos < end:
            parsed = parser(view, pos, end, offset=offset + pos)
            if parsed is None and damage is not None:
                parsed = damaged_at(
                    view, pos, min(end, durable_end - offset), offset + pos, log, damage, may_be_cut=False
                )
            if parsed is None:
                return offset + pos
            pos += parsed[0]
            left -= 1
            if not left:
                between()
                left = RECORDS_AT_ONCE
        offset += pos
    return offset


def damaged_at(
    view: memoryview,
    pos: int,
    end: int,
    offset: int,
    log: CommitLog,
    damage: DamagedRanges,
    *,
    may_be_cut: bool,
) -> Parsed | None:
    """Calls past_damage(), and adds the range to `damage`."""
    parsed = past_damage(log, view, pos, end, offset, may_be_cut=may_be_cut)
    if parsed is not None:
        damage.add(offset, offset + parsed[0], why_bad(view[pos:], offset))
    return parsed


def queued_end(log: CommitLog, queues: Iterable[ConsumeQueue]) -> int:
    """Returns the end of the newest record that a queue points to, if that record is whole in the log;
    otherwise the log's min_offset."""
    newest = max(queues, key=lambda queue: queue.log_end_offset(), default=None)
    end = 0 if newest is None else newest.log_end_offset()
    if newest is not None and log.min_offset < end <= log.max_offset:
        offset, size, _ = newest.unit(newest.max_offset - 1)
        view = log.view(offset, size)
        parsed = parse(view, 0, len(view), offset=offset)
        if parsed is not None and parsed[0] == size:
            return end
    return log.min_offset


def written_end(
    log: CommitLog, confirm_offset: int, queues: Iterable[ConsumeQueue], last_exit: LastExit
) -> int:
    """Returns the offset up to which confirmed records were certainly in the files of the log: if they are
    missing, it is damage. confirm_offset: of the checkpoint.

    A queue entry is made of a confirmed record, and no power failure has separated the two in the same boot.
    An entry that no log with one more file could have is damaged itself.
    """
    end = confirm_offset if last_exit.is_checkpoint_durable else 0
    if not last_exit.same_boot:
        return end
    last_start = max(log.file_starts(), default=log.min_offset)
    possible = last_start + 2 * log.file_bytes
    return max([end, *(at for queue in queues if (at := queue.log_end_offset()) <= possible)])


def scan_start(
    log: CommitLog,
    checkpoint: StoreCheckpoint,
    queues: Collection[ConsumeQueue],
    *,
    abnormal: bool,
    own_abort: bool,
    is_end_lost: bool = False,
) -> int:
    """Returns a record boundary below which log and queues are known to be whole.

    abnormal: after a crash. own_abort: our own process crashed, so everything that the checkpoint counts is
    durable (see flush_checkpoint()), unless is_end_lost. After a crash of another program, it is the start of
    the newest file that began before the checkpoint's time. Neither holds if all queues end in front of it,
    for then queue files are lost. A queue that ends behind the log is no such sign: after a power cut its
    last units may exist without their records.
    """
    if not abnormal:
        return queued_end(log, queues)
    queues_end = max((queue.log_end_offset() for queue in queues), default=0)
    confirm = checkpoint.confirm_offset
    if own_abort and not is_end_lost and queues_end >= confirm > 0 and _is_boundary(log, confirm):
        return confirm
    trusted = checkpoint.min_timestamp()
    for start in reversed(log.file_starts()):
        view = log.view(start, _HEADER_BYTES_MIN)
        stored = store_timestamp(view) if len(view) == _HEADER_BYTES_MIN else 0
        if own_abort and start > confirm > 0:
            continue  # not counted as durable: it looks older only because the clock was set back
        if 0 < stored <= trusted and queues_end >= start and _is_boundary(log, start):
            return start
    return log.min_offset


def boundary_at(log: CommitLog, offset: int) -> int:
    """Returns the offset if it is a record boundary, otherwise the log's min_offset."""
    return offset if log.is_record_start(offset) else log.min_offset


def _is_boundary(log: CommitLog, offset: int) -> bool:
    """Whether a good record, or the end that was never written, is at `offset`."""
    if not log.min_offset <= offset <= log.max_offset:
        return False
    view = log.view(offset, log.file_bytes)
    return parse(view, 0, len(view), offset=offset) is not None or not any(view[:8])
