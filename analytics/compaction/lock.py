"""One compaction at a time per output, and one run of the job.

On a local disk: a file that the operating system unlocks when its owner ends. On an object store each
process writes a claim, a file of its own name, and then lists the claims: if there is another one, it deletes
its own and refuses. A listing has every claim that was written before it (true of S3, GCS and HDFS), so of
two processes that begin together, the one that writes its claim last sees the other's. Both may refuse; both
never run.
"""

import contextlib
import fcntl
import os
import socket
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec

from analytics.compaction.manifest import COMPACTED
from analytics.compaction.storage import LocalStorage, Storage
from analytics.errors import AnalyticsError
from keelmq.runtime.clock import wall_ms

RENEW_MS = 60_000
"""On an object store: how often an owner renews its claim."""
DEAD_MS = 10 * 60_000
"""The owner of a claim that was not renewed for this long counts as dead; clocks of machines differ by
less."""
STALE_MS = 6 * 3_600_000
"""The same limit for a claim of an older release, which does not renew claims."""
CLAIM = ".lock"
"""Prefix of the names of claims; on a local disk, the name of the lock. Older releases had one claim with
exactly this name."""
COMPACTION = "compaction"


class _Owner(msgspec.Struct):
    host: str
    pid: int
    since_ms: int
    renewed_ms: int = 0


@contextlib.contextmanager
def locked(storage: Storage, folder: str = COMPACTED, what: str = COMPACTION) -> Iterator[None]:
    """Holds the lock of a folder of the output. `what`: who holds it, for messages.

    Raises AnalyticsError if another process has it, OSError if it cannot be written.
    """
    if isinstance(storage, LocalStorage):
        with _flock(storage.root / folder / CLAIM, what):
            yield
        return
    _refuse_if_claimed(storage, folder, what, but="")  # so a long-running one does not see claims come and go
    name = f"{CLAIM}-{uuid.uuid4().hex}"
    path = f"{folder}/{name}"
    now = wall_ms()
    owner = _Owner(socket.gethostname(), os.getpid(), now, now)
    storage.replace(path, msgspec.json.encode(owner))
    try:
        _refuse_if_claimed(storage, folder, what, but=name)
        with _renewing(storage, path, owner):
            yield
    finally:
        storage.delete(path)


@contextlib.contextmanager
def _renewing(storage: Storage, path: str, owner: _Owner) -> Iterator[None]:
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(RENEW_MS / 1_000):
            owner.renewed_ms = wall_ms()
            with contextlib.suppress(OSError):  # the next one may succeed, in time
                storage.replace(path, msgspec.json.encode(owner))

    thread = threading.Thread(target=renew, name="claim", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()  # it may be writing the claim that the caller deletes


@contextlib.contextmanager
def _flock(path: Path, what: str) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 100, 0).decode(errors="replace").strip() or "unknown"
            raise AnalyticsError(
                f"{path} is locked: another {what} (process {owner}) writes there; wait until it ends"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _refuse_if_claimed(storage: Storage, folder: str, what: str, *, but: str) -> None:
    """Raises AnalyticsError if there is a claim other than `but`; deletes claims of dead owners."""
    for each in storage.files(folder):
        if not each.name.startswith(CLAIM) or each.name == but:
            continue
        path = f"{folder}/{each.name}"
        try:
            owner = msgspec.json.decode(storage.read(path), type=_Owner)
        except FileNotFoundError:
            continue  # its owner has just ended
        except msgspec.MsgspecError:
            owner = _Owner("an unknown machine", 0, each.modified_ns // 1_000_000)
        now = wall_ms()
        age_ms = now - owner.since_ms
        is_alive = now - owner.renewed_ms < DEAD_MS if owner.renewed_ms else age_ms < STALE_MS
        if is_alive:
            raise AnalyticsError(
                f"{storage.url}/{path}: another {what} (process {owner.pid} on {owner.host}, for "
                f"{max(0, age_ms) // 1000} s) writes there or began at the same moment; start this one again "
                "when it has ended, or delete that file if it is dead"
            )
        storage.delete(path)
