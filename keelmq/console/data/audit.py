"""The audit log of this program, the newest lines first. A page reads a bounded part of the files.

Reads files: call it in a thread.
"""

import heapq
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from pydantic import Field

from keelmq.remoting.operation import Wire
from keelmq.security.audit.reader import AuditFilter, AuditReadError, parsed, series_of

BLOCK_BYTES: Final = 262_144
READ_BYTES_MAX: Final = 32 << 20
LINE_BYTES_MAX: Final = 131_072
COMMAND: Final = "keelmq audit"


class AuditView(Wire):
    """entries: lines of the audit log, see `keelmq audit --json`. where: its directory, null: this program
    keeps none. cut: why older lines are not shown. next: `before` of the next page; null: this is the
    last."""

    where: str | None
    command: str
    entries: list[dict[str, Any]]
    next: str | None = None
    cut: str = ""
    problem: str = ""
    unreadable_lines: int = 0
    note: str = Field(
        default="This is the audit log of the program that serves this page. Brokers and controllers keep "
        "their own, in files on their hosts: run `keelmq audit` there."
    )


class _Budget(msgspec.Struct):
    bytes_left: int = READ_BYTES_MAX
    unreadable: int = 0


def read(directory: Path | None, audit_filter: AuditFilter, limit: int) -> AuditView:
    """Returns the newest matching lines."""
    if directory is None:
        problem = "this program keeps no audit log (auditEnable), or this page cannot find it"
        return AuditView(where=None, command=COMMAND, entries=[], problem=problem)
    command = f"{COMMAND} --dir {directory}"
    budget = _Budget()
    entries: list[dict[str, Any]] = []
    is_more = False
    try:
        series = series_of([directory])
        newest_first = heapq.merge(
            *(_entries([newest, *reversed(older)], budget) for newest, older in series.items()),
            key=lambda entry: str(entry.get("ts", "")),
            reverse=True,
        )
        for entry in newest_first:
            if not audit_filter.matches(entry):
                continue
            if len(entries) == limit:
                is_more = True
                break
            entries.append(entry)
    except AuditReadError as error:
        return AuditView(where=str(directory), command=command, entries=[], problem=str(error))
    except OSError as error:
        problem = f"cannot read {error.filename or directory}: {error.strerror}"
        return AuditView(where=str(directory), command=command, entries=[], problem=problem)
    is_cut = budget.bytes_left <= 0
    return AuditView(
        where=str(directory),
        command=command,
        entries=entries,
        next=str(entries[-1].get("ts", "")) if is_more and entries else None,
        cut=f"{READ_BYTES_MAX >> 20} MiB were read; older lines: {command}" if is_cut else "",
        unreadable_lines=budget.unreadable,
    )


def _entries(files: Sequence[Path], budget: _Budget) -> Iterator[dict[str, Any]]:
    """Yields the lines of a series from its end. A file that was rotated away meanwhile is left out."""
    for path in files:
        for line in _lines(path, budget):
            if (entry := parsed(line)) is not None:
                yield entry
            elif line.strip():
                budget.unreadable += 1


def _lines(path: Path, budget: _Budget) -> Iterator[bytes]:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        position = file.seek(0, 2)
        rest, is_end = b"", True
        while position > 0 and budget.bytes_left > 0:
            size = min(BLOCK_BYTES, position)
            position = file.seek(position - size)
            data = file.read(size) + rest
            budget.bytes_left -= size
            first, *lines = data.split(b"\n")
            if is_end and lines:
                lines.pop()  # what is after the last line end is not written yet
                is_end = False
            yield from reversed(lines)
            rest = first if len(first) <= LINE_BYTES_MAX else b""
        if position == 0 and rest and not is_end:
            yield rest
