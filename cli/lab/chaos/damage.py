"""Damages files of a replica, as a bad disk does, and records the damage.

Only one replica of the group may have damage that is not healed: `Ledger.allowed` says which. Damage of the
log lies where every replica has confirmed the bytes, so that the others have sound copies; it is healed when
the file has its former bytes again, and so are the entries of confirmed records in a ConsumeQueue. Other
files may be rebuilt with other bytes: the check of all files at the end judges them. The identity of a
replica (.broker.meta), the votes of controllers, locks, telemetry and logs of programs are never touched.
"""

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from broker.backup.log_records import HEADER_BYTES, UNIT_BYTES, record_ends, records_in
from cli.lab.chaos.history import Damage

PAGE_BYTES: Final = 4_096
RECORDS_LOOKED_AT: Final = 2_000
PAGE_SHARE: Final = 0.5
LOG = "commitlog"
QUEUES: Final = "consumequeue"
DERIVED: Final = ("consumequeue", "batchconsumequeue", "index", "checkpoint", "epochFileCheckpoint", "config")
"""Files that `lose` and `truncate` may damage, below storePathRootDir, besides (truncate only) files of the
log."""
COVERED: Final = ((0, 12), (28, 36))
"""Bytes of a record's header whose change is recognised: TOTALSIZE, MAGIC, BODYCRC; PHYSICALOFFSET. With the
body, what a checksum or the form of a record covers."""


@dataclass(frozen=True, slots=True)
class Wound:
    """A change of a file of the log, or of a ConsumeQueue. before: the bytes that it had from `start` on."""

    program: str
    path: Path
    start: int
    before: bytes
    kind: str

    @property
    def is_open(self) -> bool:
        """Whether the file differs from what it was. A run deletes no files of the log."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.start)
                return file.read(len(self.before)) != self.before
        except FileNotFoundError:
            return True

    def __str__(self) -> str:
        return f"{self.path.name}: {self.kind} of {len(self.before)} bytes at {self.start} is not healed"


@dataclass(slots=True)
class Ledger:
    """All damage of a run."""

    wounds: list[Wound] = field(default_factory=list)

    def add(self, wound: Wound) -> None:
        """Records new damage. Where the file was damaged already, its former bytes are those before that."""
        before = bytearray(wound.before)
        for older in reversed(self.wounds):
            low = max(wound.start, older.start)
            high = min(wound.start + len(before), older.start + len(older.before))
            if older.path == wound.path and low < high and older.is_open:
                before[low - wound.start : high - wound.start] = older.before[
                    low - older.start : high - older.start
                ]
        self.wounds.append(replace(wound, before=bytes(before)))

    def open_of(self, program: str) -> list[Wound]:
        """Returns the damage of a replica's log and ConsumeQueues that is still there."""
        return [wound for wound in self.wounds if wound.program == program and wound.is_open]

    def allowed(self, programs: Sequence[str]) -> str | None:
        """Returns the replica that may be damaged, because it has unhealed damage; None: any one."""
        return next((name for name in programs if self.open_of(name)), None)


class Surgeon:
    """Damages the store of one replica. end: below it, all replicas have the same confirmed log."""

    def __init__(self, ledger: Ledger, dice: random.Random, *, program: str, store: Path, end: int) -> None:
        self._ledger, self._dice = ledger, dice
        self._program, self._store, self._end = program, store, end

    def strike(self, kind: str) -> Damage | None:
        """Makes the damage `kind`: flip, zero, truncate or lose. None: there is nothing to damage yet."""
        return {
            "flip": self._flip,
            "zero": self._zero,
            "truncate": self._truncate,
            "lose": self._lose,
        }[kind]()

    def _flip(self) -> Damage | None:
        """A random bit, in the body or a covered field of the header, of a random record."""
        path = self._log_file()
        record = None if path is None else self._record(path)
        if path is None or record is None:
            return None
        start, size, body_end = record
        places = [
            *(start + at for span in COVERED for at in range(*span)),
            *range(start + HEADER_BYTES, body_end),
        ]
        assert places[-1] < start + size
        place = self._dice.choice(places)
        (byte,) = _bytes_at(path, place, 1)
        return self._write("flip", path, place, bytes([byte ^ 1 << self._dice.randrange(8)]))

    def _zero(self) -> Damage | None:
        """A page of the log becomes zeros."""
        path = self._log_file()
        if path is None:
            return None
        pages = (min(self._end, int(path.name) + path.stat().st_size) - int(path.name)) // PAGE_BYTES
        used = [page for page in range(pages) if any(_bytes_at(path, page * PAGE_BYTES, PAGE_BYTES))]
        if not used:
            return None
        return self._write("zero", path, self._dice.choice(used) * PAGE_BYTES, bytes(PAGE_BYTES))

    def _truncate(self) -> Damage | None:
        """A file loses its end, half the time where a page begins, as file systems do it. With another file
        of the log than its last one, the start would be refused, and an operator asked."""
        names = [path for path in (self._store / LOG).glob("*") if path.name.isdecimal()]
        logs = [path for path in names if path == max(names) and int(path.name) < self._end]
        path = self._one_of([*self._derived(), *logs])
        if path is None:
            return None
        size = path.stat().st_size
        start = self._dice.randrange(size)
        if self._dice.random() < PAGE_SHARE:
            start -= start % PAGE_BYTES
        if path.parent.name == LOG:
            before = _bytes_at(path, start, max(0, min(size, self._end - int(path.name)) - start))
            self._ledger.add(Wound(self._program, path, start, before, "truncate"))
        self._note_entries("truncate", path, start)
        with same_time(path):
            os.truncate(path, start)
        return self._damage("truncate", path, start, size - start)

    def _lose(self) -> Damage | None:
        """Deletes a file that can be rebuilt from other files or replicas. Never the first of several files
        of a queue: its loss would not be noticed, because retention deletes such files."""
        path = self._one_of([path for path in self._derived() if not self._is_first_of_several(path)])
        if path is None:
            return None
        size = path.stat().st_size
        self._note_entries("lose", path, 0)
        path.unlink()
        return self._damage("lose", path, 0, size)

    def _is_first_of_several(self, path: Path) -> bool:
        if path.relative_to(self._store).parts[0] != QUEUES:
            return False
        files = sorted(path.parent.iterdir())
        return len(files) > 1 and path == files[0]

    def _note_entries(self, kind: str, path: Path, start: int) -> None:
        """The entries that a file of a ConsumeQueue loses from byte `start` on must come back with the bytes
        that they had. One that loses a part is lost as a whole."""
        if path.relative_to(self._store).parts[0] != QUEUES:
            return
        first = start // UNIT_BYTES * UNIT_BYTES
        raw = _bytes_at(path, first, path.stat().st_size - first).rstrip(b"\0")
        raw = raw.ljust(-(-len(raw) // UNIT_BYTES) * UNIT_BYTES, b"\0")
        confirmed = [number for number, end in enumerate(record_ends(raw), 1) if 0 < end <= self._end]
        if confirmed:
            before = raw[: confirmed[-1] * UNIT_BYTES]
            self._ledger.add(Wound(self._program, path, first, before, kind))

    # -- where -------------------------------------------------------------------------------------------

    def _log_file(self) -> Path | None:
        files = [
            path
            for path in sorted((self._store / LOG).glob("*"))
            if path.name.isdecimal() and int(path.name) < self._end
        ]
        return self._dice.choice(files) if files else None

    def _record(self, path: Path) -> tuple[int, int, int] | None:
        """Position, size and end of the body of a random record of the file below `end`."""
        base, raw = int(path.name), path.read_bytes()
        found = list(records_in(raw, base, min(len(raw), self._end - base)))
        return self._dice.choice(found) if found else None

    def _derived(self) -> Iterator[Path]:
        """Files that are not of the log, in a fixed order. None of them is a directory. No .bak: it is needed
        while its file, damaged earlier, was not written again, and a start without both is refused."""
        for name in DERIVED:
            top = self._store / name
            files = (path for path in sorted((top, *top.rglob("*"))) if path.is_file())
            yield from (path for path in files if path.suffix != ".bak")

    def _one_of(self, files: Sequence[Path]) -> Path | None:
        """A random file with content, each kind (its topmost folder, or its name) being equally likely."""
        kinds: dict[str, list[Path]] = {}
        for path in files:
            if path.stat().st_size > 0:
                kinds.setdefault(path.relative_to(self._store).parts[0], []).append(path)
        return self._dice.choice(kinds[self._dice.choice(sorted(kinds))]) if kinds else None

    # -- changes -----------------------------------------------------------------------------------------

    def _write(self, kind: str, path: Path, start: int, after: bytes) -> Damage:
        before = _bytes_at(path, start, len(after))
        self._ledger.add(Wound(self._program, path, start, before, kind))
        with same_time(path), path.open("r+b") as file:
            file.seek(start)
            file.write(after)
        return self._damage(kind, path, start, len(after))

    def _damage(self, kind: str, path: Path, start: int, length: int) -> Damage:
        name = str(path.relative_to(self._store))
        return Damage(t=0, program=self._program, kind=kind, file=name, start=start, length=length)


@contextmanager
def same_time(path: Path) -> Iterator[None]:
    """Inside, the file may be changed: a bad disk does not change the time of the last modification."""
    before = path.stat()
    yield
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _bytes_at(path: Path, start: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(length)
