"""keelmq analytics upload: copies a node's telemetry to a directory or an object store, and keeps it current.

It runs beside a broker or controller: a sidecar, or a unit of systemd. A file that grows is written again as
a whole, up to its last whole line; readers drop lines that they have already. Nothing is deleted at the
source, and at the target only the ".open" of a file that was closed since.
"""

import random
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from analytics.compaction.columns import KINDS
from analytics.compaction.scan import OPEN
from analytics.compaction.storage import Storage
from analytics.errors import AnalyticsError
from analytics.live.files import CLOSED, last_line_end
from keelmq.runtime.backoff import Backoff
from keelmq.runtime.clock import wall_ms

CHUNK_BYTES = 4 << 20
BACKOFF = Backoff(2_000, 60_000)
SCRATCH = ".keelmq-upload-"
"""How the names of folders for copies that are not complete begin."""
DEAD_MS = 3_600_000
"""A folder of this age was left by a process that was killed."""


@dataclass(slots=True)
class Uploaded:
    """Files and bytes of one look at the source; `files_there`: were there already."""

    files: int = 0
    size_bytes: int = 0
    files_there: int = 0

    def __str__(self) -> str:
        return f"{self.files} files, {self.size_bytes / 1e6:.1f} MB copied; {self.files_there} were there"


class Copy(Protocol):
    """What keep_up() repeats."""

    def once(self) -> Uploaded:
        """Copies new data. Raises OSError or AnalyticsError."""


class Upload:
    """From a telemetry directory (with record folders in it) to `target`."""

    def __init__(self, source: Path, target: Storage) -> None:
        self._source, self._target = source, target
        self._sent: dict[str, int] = {}

    def once(self) -> Uploaded:
        """Copies files that are new or have grown. Raises OSError; files copied until then are complete.
        Raises AnalyticsError if the source has no record folder."""
        if not any((self._source / kind).is_dir() for kind in KINDS):
            folders = ", ".join(f"{kind}/" for kind in KINDS)
            raise AnalyticsError(
                f"{self._source} is not a telemetry directory: it has none of {folders}; give "
                "<storePathRootDir>/telemetry of a broker or <controllerStorePath>/telemetry of a controller"
            )
        if not self._sent:
            self._tidy()
        done = Uploaded()
        there: dict[str, dict[str, int]] = {}
        names = set()
        for name, path in self._files():
            names.add(name)
            folder = name.rpartition("/")[0]
            if folder not in there and name not in self._sent:
                there[folder] = {each.name: each.size_bytes for each in self._target.files(folder)}
            size = _size(path)
            known = self._sent.get(name, there.get(folder, {}).get(path.name))
            if size is None or size == known:
                done.files_there += 1
            elif (copied := self._copy(path, name)) is not None:
                done.size_bytes += copied
                done.files += 1
            if size is not None:
                self._sent[name] = size
            if path.name.endswith(CLOSED):
                self._forget_open(name, there.get(folder, {}))
        for gone in self._sent.keys() - names:
            del self._sent[gone]
        return done

    def _tidy(self) -> None:
        """Deletes what processes that were killed have left at the target."""
        folder = self._target.work_folder()
        for old in folder.glob(f"{SCRATCH}*") if folder is not None else ():
            if old.stat().st_mtime * 1_000 < wall_ms() - DEAD_MS:
                shutil.rmtree(old, ignore_errors=True)

    def _forget_open(self, name: str, there: dict[str, int]) -> None:
        still_open = name + OPEN
        if self._sent.pop(still_open, None) is not None or still_open.rpartition("/")[2] in there:
            self._target.delete(still_open)

    def _copy(self, path: Path, name: str) -> int | None:
        """Returns the bytes; None: the file was renamed or deleted since it was listed."""
        folder = self._target.work_folder()
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=folder) as scratch:
            copy = Path(scratch, path.name)
            with copy.open("w+b") as target:
                try:
                    with path.open("rb") as source:
                        shutil.copyfileobj(source, target, CHUNK_BYTES)
                except FileNotFoundError:
                    return None
                if path.name.endswith(OPEN):
                    target.truncate(last_line_end(target, 0, target.tell()))
            size = copy.stat().st_size
            self._target.move_in(copy, name)
        return size

    def _files(self) -> Iterator[tuple[str, Path]]:
        for kind in KINDS:
            for path in sorted((self._source / kind).glob("dt=*/hour=*/*.jsonl*")):
                if path.name.endswith((CLOSED, CLOSED + OPEN)):
                    yield str(path.relative_to(self._source)), path


def keep_up(copy: Copy, *, every_ms: int, stopped: threading.Event, progress: Callable[[str], None]) -> None:
    """Looks at the source every `every_ms` until `stopped`, and once more then.

    An error is reported, and the copy tried again after a pause: a broker that starts has no telemetry yet.
    Raises AnalyticsError if the last look fails.
    """
    failures = 0
    while True:
        last = stopped.is_set()
        try:
            done = copy.once()
        except (OSError, AnalyticsError) as error:
            if last:
                raise AnalyticsError(f"not everything was copied: {error}") from error
            failures += 1
            pause_ms = BACKOFF.pause_ms(failures, random.random())
            progress(f"cannot copy: {error}; the next attempt is in {pause_ms / 1000:.1f} s")
        else:
            failures, pause_ms = 0, every_ms
            if done.files:
                progress(str(done))
        if last:
            return
        stopped.wait(pause_ms / 1000)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None  # renamed or deleted since it was listed
