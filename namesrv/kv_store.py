"""KvStore: the KV configuration, the only state of a name server that survives a restart.

All of it is in memory, and on disk in RocketMQ's format: {"configTable":{"namespace":{"key":"value"}}}. A
change becomes visible, and is answered, when it is durable. One writer runs in a thread; changes that arrive
during a write form the next one. The first change locks the file: two name servers with one file would
overwrite each other's changes.
"""

import asyncio
import fcntl
import logging
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.lenient_json import load_lenient
from keelmq.remoting.operation import CommandError
from keelmq.runtime.config import ConfigError
from keelmq.runtime.durable_file import backup_of, replace_file

log = logging.getLogger(__name__)

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
"""Namespace: topic -> "brokerName:queueCount;...", for topics with globally ordered messages."""
DEFAULT_PATH = Path("~/namesrv/kvConfig.json")
FILE_BYTES_MAX = 8 * 1024 * 1024
"""A namespace must fit into one frame (16 MiB)."""
VALUE_BYTES_MAX = 524_288
"""Limit of a change, with namespace and key: the header of requests and responses, 1 MiB, contains them."""
WAITING_MAX = 1_024
"""Maximum number of changes that wait for the disk; more are answered with SYSTEM_BUSY."""

Tables = Mapping[str, Mapping[str, str]]
Change = tuple[str, str, str | None]
"""Namespace, key, and the value or None to delete it."""


class _File(msgspec.Struct, rename="camel"):
    config_table: dict[str, dict[str, str | None]] | None = None


class KvStore:
    """`tables`: namespace -> key -> value; each change replaces it as a whole and raises `version`."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError: the path begins with ~, and the home directory is unknown."""
        try:
            self.path = path.expanduser()
        except RuntimeError as error:
            raise ConfigError(f"{path}: {error}; set kvConfigPath") from error
        self.tables: Tables = {}
        self.version = 0
        self._waiting: list[tuple[Change, asyncio.Future[None]]] = []
        self._bytes = self._waiting_bytes = 0
        self._writer: asyncio.Task[None] | None = None
        self._lock: int | None = None

    def load(self) -> None:
        """Reads the file, if it exists. Raises ConfigError: it cannot be read, or is damaged."""
        self.tables = self._read()
        self._bytes = len(_encode(self.tables))

    def get(self, namespace: str, key: str) -> str | None:
        """Returns the value of a key; None: it is not set."""
        return self.tables.get(namespace, {}).get(key)

    async def change(self, namespace: str, key: str, value: str | None) -> None:
        """Sets a key, or deletes it (value None), durably. Raises CommandError: the change was not stored."""
        bytes_ = len(msgspec.json.encode([namespace, key, value or ""]))
        if bytes_ > VALUE_BYTES_MAX:
            remark = f"namespace, key and value have {bytes_} bytes; {VALUE_BYTES_MAX} is the limit"
            raise CommandError(ResponseCode.SYSTEM_ERROR, remark)
        if value is not None and self._bytes + self._waiting_bytes + bytes_ > FILE_BYTES_MAX:
            remark = f"KV configuration would be larger than {FILE_BYTES_MAX} bytes: delete keys first"
            raise CommandError(ResponseCode.SYSTEM_ERROR, remark)
        if len(self._waiting) >= WAITING_MAX:
            raise CommandError(ResponseCode.SYSTEM_BUSY, f"{WAITING_MAX} KV changes wait for the disk")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(((namespace, key, value), done))
        self._waiting_bytes += bytes_
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_all())
        await done

    async def close(self) -> None:
        """Waits for the current write, and unlocks the file."""
        try:
            if self._writer is not None:
                await asyncio.wait((self._writer,))
        finally:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    async def _write_all(self) -> None:
        while self._waiting:
            batch, self._waiting, self._waiting_bytes = self._waiting, [], 0
            problem: CommandError | None = None
            try:
                self.tables, self._bytes = await asyncio.to_thread(self._store, [each for each, _ in batch])
                self.version += 1
            except OSError as error:
                remark = f"KV configuration cannot be stored in {self.path}: {error.strerror or error}"
                problem = CommandError(ResponseCode.SYSTEM_ERROR, f"{remark}; nothing was changed")
            except ConfigError as error:
                problem = CommandError(ResponseCode.SYSTEM_ERROR, str(error))
            if problem is not None:
                log.error("%s", problem.remark)
            for _, done in batch:
                if done.done():
                    continue  # the caller was cancelled
                if problem is None:
                    done.set_result(None)
                else:
                    done.set_exception(problem)

    # ---- in the writer's thread ----

    def _store(self, changes: list[Change]) -> tuple[Tables, int]:
        before = self.tables
        if self._lock is None:
            lock = _locked(self.path)
            try:
                before = self._read()  # another process may have changed it before the lock
            except ConfigError:
                os.close(lock)
                raise
            self._lock = lock
        after = applied(before, changes)
        data = _encode(after)
        if after != before or not self.path.exists():
            replace_file(self.path, data)
        return after, len(data)

    def _read(self) -> Tables:
        backup = backup_of(self.path)
        try:
            return _decode(self.path.read_bytes())
        except FileNotFoundError:
            pass
        except OSError as error:
            help_ = "let this user read it, or set kvConfigPath to another file"
            raise ConfigError(f"cannot read {self.path}: {error.strerror}; {help_}") from error
        except ValueError as error:
            raise ConfigError(
                f"{self.path} is damaged: {error}. Repair it, or put {backup.name} (the version before the"
                " last change, if it exists) in its place, or move both away to start without them"
            ) from error
        try:  # RocketMQ removes the file before it renames the new one
            tables = _decode(backup.read_bytes())
        except (OSError, ValueError):
            return {}
        log.warning("%s is missing: the KV configuration is read from %s", self.path, backup)
        return tables


def applied(tables: Tables, changes: list[Change]) -> Tables:
    """Returns the tables after the changes. A namespace remains when its last key is deleted."""
    after = {name: dict(table) for name, table in tables.items()}
    for namespace, key, value in changes:
        if value is not None:
            after.setdefault(namespace, {})[key] = value
        elif namespace in after:
            after[namespace].pop(key, None)
    return after


def _encode(tables: Tables) -> bytes:
    return msgspec.json.encode({"configTable": tables}, order="sorted")


def _decode(raw: bytes) -> Tables:
    """Raises ValueError."""
    if not raw.strip():
        raise ValueError("it is empty")
    try:
        file = msgspec.convert(load_lenient(raw), _File)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    return {
        name: {key: value for key, value in table.items() if value is not None}
        for name, table in (file.config_table or {}).items()
    }


def _locked(path: Path) -> int:
    """Returns a descriptor that holds the lock until it is closed. Raises ConfigError: the file is locked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ConfigError(
            f"{path} is used by another name server: give each its own kvConfigPath; nothing was changed"
        ) from None
    except OSError as error:  # a file system without locks
        log.warning("%s is not locked: %s", path, error.strerror)
    return descriptor
