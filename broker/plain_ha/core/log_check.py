"""Whether a slave's log is the beginning of its master's. Pure.

Without controllers the HA stream does not show that: a Java master continues at any requested offset. So a
slave compares the ends of both logs, and its last whole record with the master's bytes at the same offset. A
record names its offset, its store timestamp and its broker, so two histories share no record behind the point
where they diverge: equal records mean equal logs below them.
"""

import msgspec


class LogBounds(msgspec.Struct, frozen=True):
    """A log from its first byte to its end."""

    min_offset: int
    max_offset: int


class LastRecord(msgspec.Struct, frozen=True):
    """The last whole record of the slave's log."""

    offset: int
    data: bytes


KEPT = (
    "Nothing was changed, and nothing is copied. If the master is the right one, empty storePathRootDir of "
    "this slave (keep a copy: messages that only this slave has are lost); if this broker has the right log, "
    "make it the master"
)


def is_empty(mine: LogBounds) -> bool:
    """Whether the log has no byte, so that it can follow any master."""
    return mine.min_offset >= mine.max_offset


def ends_refusal(mine: LogBounds, master: LogBounds) -> str | None:
    """Returns why the ends of the two logs do not fit; None: they do. `mine` is not empty."""
    if mine.max_offset > master.max_offset:
        return (
            f"this slave's log ends at {mine.max_offset}, behind its master's, {master.max_offset}: it has"
            f" bytes that the master does not have. {KEPT}"
        )
    if mine.max_offset < master.min_offset:
        return (
            f"this slave's log ends at {mine.max_offset}, and its master's begins at {master.min_offset}:"
            f" what is between them is deleted. {KEPT}"
        )
    return None


def record_refusal(last: LastRecord, masters: bytes) -> str | None:
    """Returns why the logs differ; None: the master has this record, too. masters: the record at
    the same offset of the master's log; empty: there is none."""
    if last.data == masters:
        return None
    return f"this slave's log differs from its master's: the record at {last.offset} is another one. {KEPT}"
