"""DataDirectory: the data directory of one member, locked by one process, with the name of its owner in
it."""

import fcntl
import os
from pathlib import Path

import msgspec

from keelmq.runtime.config import ConfigError
from namesrv.plugins.controller.raft.storage.files import sync_directory


class _Owner(msgspec.Struct, frozen=True):
    cluster_id: str
    member_id: str


class DataDirectory:
    """Paths of the member's files. Call open() before anything is read, and close() last."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal, self.snapshot = path / "raft.journal", path / "raft.snapshot"
        self.vote_eligibility = path / "raft.standing"
        self._restoring = path / "raft.restoring"
        self._lock = -1

    def open(self, cluster_id: str, member_id: str) -> None:
        """Locks the directory. Raises ConfigError: it is in use, belongs to another member or cluster, or was
        not restored to the end."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / "raft.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"{self.path}: {os.strerror(error.errno or 0)}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._check_owner(_Owner(cluster_id, member_id))
            if self._restoring.exists():
                raise ConfigError(
                    f"{self.path}: an earlier restore into it is incomplete; move it away, and restore again"
                )
        except BlockingIOError:
            self.close()
            raise ConfigError(f"{self.path}: in use by another process") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Unlocks the directory. Safe to repeat."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def begin_restore(self) -> None:
        """From now on no process opens the directory, even if this one ends. Raises OSError."""
        self._restoring.touch(mode=0o600)
        sync_directory(self.path)

    def end_restore(self) -> None:
        """Everything is written: the member may start. Raises OSError."""
        self._restoring.unlink()
        sync_directory(self.path)

    def _check_owner(self, expected: _Owner) -> None:
        content = os.pread(self._lock, 4096, 0)
        if not content:
            self._mark(expected)
            return
        try:
            found = msgspec.json.decode(content, type=_Owner)
        except msgspec.MsgspecError as error:
            if self._is_unused():
                return self._mark(expected)
            raise ConfigError(f"{self.path / 'raft.lock'}: {error}") from None
        if found != expected:
            raise ConfigError(
                f"{self.path} belongs to member {found.member_id!r} of cluster {found.cluster_id!r}, "
                f"not to {expected.member_id!r} of {expected.cluster_id!r}"
            )

    def _is_unused(self) -> bool:
        """Returns whether there is only the lock file: a first start ended early, perhaps in _mark()."""
        return not (self.journal.exists() or self.vote_eligibility.exists() or self.snapshot.exists())

    def _mark(self, owner: _Owner) -> None:
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, msgspec.json.encode(owner) + b"\n", 0)
        os.fsync(self._lock)
        sync_directory(self.path)
