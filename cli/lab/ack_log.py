"""The demo's record of acknowledged messages, compared with the messages that are read back.

Pure; times are ms of one monotonic clock. A message body is its number, a CRC-32 and a filler made from the
number, so that a damaged or foreign message is recognised. The log has one byte per message: 1.2 MB for 20
minutes at 1,000/s.
"""

import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

BODY_BYTES = 128
_NUMBER = struct.Struct(">QI")
_FILLER = bytes(range(33, 33 + 64)) * 4

ACKNOWLEDGED = 1
FOUND = 2
FOUND_AGAIN = 4


def make_body(number: int) -> bytes:
    """Returns the body of message `number`, BODY_BYTES long."""
    filler = _FILLER[number % 64 :][: BODY_BYTES - _NUMBER.size]
    return _NUMBER.pack(number, _crc(number, filler)) + filler


def read_body(body: bytes) -> int | None:
    """Returns the message's number; None: not one of ours, or damaged."""
    if len(body) != BODY_BYTES:
        return None
    number, crc = _NUMBER.unpack_from(body)
    return int(number) if _crc(number, body[_NUMBER.size :]) == crc else None


def _crc(number: int, filler: bytes) -> int:
    return zlib.crc32(filler, zlib.crc32(number.to_bytes(8, "big")))


@dataclass(frozen=True, slots=True)
class Report:
    """`gaps_ms`: per kill of a master, from SIGKILL to the first acknowledged send that was started after it.
    `duplicated`: surplus copies read back. `unacknowledged`: sends that ended in an error."""

    sent: int
    acked: int
    lost: int
    duplicated: int
    damaged: int
    unacknowledged: int
    retried: int
    kills: int
    gaps_ms: tuple[int, ...]
    lost_numbers: tuple[int, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing was lost or damaged, and something was acknowledged."""
        return self.lost == 0 and self.damaged == 0 and self.acked > 0

    def result_line(self) -> str:
        """Returns the RESULT line that scripts parse: counts, and percentiles of gaps_ms."""
        gaps = sorted(self.gaps_ms) or [0]
        p95 = gaps[math.ceil(len(gaps) * 0.95) - 1]
        return (
            f"RESULT sent={self.sent} acked={self.acked} lost={self.lost} duplicated={self.duplicated} "
            f"kills={self.kills} gap_ms_p50={round(median(gaps))} gap_ms_p95={p95} gap_ms_max={gaps[-1]}"
        )


class AckLog:
    """Numbers start at 0 and have no holes."""

    LOST_NUMBERS_MAX = 10

    def __init__(self) -> None:
        self._marks = bytearray()
        self.acked = self.unacknowledged = self.retried = self.duplicated = self.damaged = 0
        self.read = 0  # messages read back, copies and foreign ones included
        self.gaps_ms: list[int] = []
        self.slowest_ms = 0  # longest wait for one acknowledgement since reset_slowest()
        self._kill_ms: int | None = None
        self._first_after_kill = 0

    @property
    def sent(self) -> int:
        """How many messages were started."""
        return len(self._marks)

    def start(self) -> int:
        """Returns the number of the next message, which counts as started."""
        self._marks.append(0)
        return len(self._marks) - 1

    def acknowledge(self, number: int, *, started_ms: int, now_ms: int, attempts: int) -> None:
        """Records an acknowledged send. It closes the gap of a kill if the send was started after it."""
        self._marks[number] |= ACKNOWLEDGED
        self.acked += 1
        self.retried += attempts > 1
        self.slowest_ms = max(self.slowest_ms, now_ms - started_ms)
        if self._kill_ms is not None and number >= self._first_after_kill:
            self.gaps_ms.append(now_ms - self._kill_ms)
            self._kill_ms = None

    def fail(self) -> None:
        """Counts a send that ended in an error."""
        self.unacknowledged += 1

    def killed(self, kill_ms: int) -> None:
        """Opens the gap of a master that was killed at kill_ms: a message started from now on closes it."""
        assert self._kill_ms is None, "the gap before is not over"
        self._kill_ms, self._first_after_kill = kill_ms, self.sent

    @property
    def is_waiting(self) -> bool:
        """Whether a gap is open."""
        return self._kill_ms is not None

    def reset_slowest(self) -> None:
        """Sets slowest_ms to 0: a new measurement begins."""
        self.slowest_ms = 0

    def found(self, body: bytes) -> None:
        """Records one message that was read back."""
        self.read += 1
        number = read_body(body)
        if number is None or number >= len(self._marks):
            self.damaged += 1
        elif self._marks[number] & FOUND:
            self._marks[number] |= FOUND_AGAIN
            self.duplicated += 1
        else:
            self._marks[number] |= FOUND

    def acknowledged(self) -> Iterator[int]:
        """Yields the numbers of all acknowledged messages."""
        return (number for number, mark in enumerate(self._marks) if mark & ACKNOWLEDGED)

    def report(self) -> Report:
        """Returns the comparison. Call it after everything was read back."""
        lost = [number for number in self.acknowledged() if not self._marks[number] & FOUND]
        return Report(
            sent=self.sent,
            acked=self.acked,
            lost=len(lost),
            duplicated=self.duplicated,
            damaged=self.damaged,
            unacknowledged=self.unacknowledged,
            retried=self.retried,
            kills=len(self.gaps_ms),
            gaps_ms=tuple(self.gaps_ms),
            lost_numbers=tuple(lost[: self.LOST_NUMBERS_MAX]),
        )
