"""A Table with its file: the base of topics, groups and offsets.

Persist, then apply, then notify: an OSError leaves file, memory and replicas as they were. FileStore writes
the whole file durably with every change (topics, groups: rare changes that must not be lost); JournaledStore
appends to a journal and writes the file every few seconds (offsets: frequent changes).
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

from pydantic import ValidationError

from broker.metadata.core.table import Parts, Table, Update, Version, drops_too_much
from broker.metadata.files import GO_BACK, JOURNAL_BYTES_MAX, Journal, MetadataFile
from broker.metadata.wire import encode_update, update_of_line
from broker.store.log.mapped_file import StoreError
from keelmq.remoting.operations.broker_metadata import MetadataUpdate
from keelmq.remoting.operations.route import DataVersion
from keelmq.runtime.clock import wall_ms
from keelmq.runtime.long_work import LongWork
from keelmq.runtime.tasks import finished_in_thread

logger = logging.getLogger(__name__)

Row = TypeVar("Row")
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, ValidationError)
"""The exceptions of from_wire()."""


def version_of(data: DataVersion) -> Version:
    """Returns the Version of RocketMQ's DataVersion."""
    return Version(data.state_version, data.counter, data.timestamp)


def data_version(version: Version) -> DataVersion:
    """Returns RocketMQ's DataVersion of a Version."""
    return DataVersion(
        state_version=version.state_version, counter=version.counter, timestamp=version.timestamp
    )


class MetadataStore(ABC, Generic[Row]):
    """Owned by the event loop's thread. Subclasses define the JSON of a row and of the whole file. `name`: on
    the wire; `what`: in logs and errors."""

    name: ClassVar[str]
    what: ClassVar[str]
    rows_max: ClassVar[int] = 100_000
    is_private: ClassVar[bool] = False
    """Whether the rows contain secrets: then only this user may open the file."""

    def __init__(self, path: Path, *, clock: Callable[[], int] = wall_ms) -> None:
        self.table: Table[Row] = Table()
        self.file = MetadataFile(path, self.what, private=self.is_private)
        self.watchers: list[Callable[[], None]] = []
        """Called after every new version."""
        self._clock = clock

    @property
    def path(self) -> Path:
        """The file's path."""
        return self.file.path

    @property
    def data_version(self) -> DataVersion:
        """The present version as RocketMQ's DataVersion."""
        return data_version(self.table.version)

    # -- defined by subclasses ---------------------------------------------------------------------------

    @abstractmethod
    def row_of(self, value: Any) -> Row:
        """Returns the row of a JSON value from a file, a journal or a master. Raises ValueError or
        TypeError."""

    @abstractmethod
    def json_of(self, row: Row) -> Any:
        """Returns the row as a JSON value."""
        ...

    def part_of(self, value: Any) -> Mapping[Any, Any]:
        """Returns the changed members of a row. Raises ValueError or TypeError: rows of this table have
        none."""
        raise ValueError(f"{self.what} has no parts of rows")

    def wire_of(self, row: Row) -> Any:
        """Returns the row as replicas receive it: a JSON value, or a value that is converted to one."""
        return self.json_of(row)

    @abstractmethod
    def read_file(self, value: Mapping[str, Any]) -> tuple[dict[str, Row], dict[str, int]]:
        """Returns rows and tombstones. Raises ValueError, TypeError, KeyError or AttributeError."""

    @abstractmethod
    def file_of(self, rows: Mapping[str, Row], gone: Mapping[str, int], version: Version) -> dict[str, Any]:
        """Returns the content of the whole file."""
        ...

    def built_in(self) -> dict[str, Row]:
        """Returns the rows that every broker has, regardless of its master."""
        return {}

    def applied(self, keys: Iterable[str] | None) -> None:
        """Called after these rows changed; None: all of them."""

    # -- file --------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Reads the file. Raises StoreError with the remedy if it is damaged."""
        value = self.file.load()
        if value is not None:
            try:
                rows, gone = self.read_file(value)
                version = version_of(DataVersion.model_validate(value.get("dataVersion") or {}))
            except (ValueError, TypeError, KeyError, AttributeError, ValidationError) as error:
                raise StoreError(f"{self.what} {self.path} is damaged: {error}") from error
            self.table.load(version, rows, gone)
        for key, row in self.built_in().items():
            self.table.rows.setdefault(key, row)
        self.applied(None)

    @abstractmethod
    def _persist(self, update: Update[Row]) -> None:
        """Makes the update as durable as this store guarantees. Raises OSError."""

    def _save(self, update: Update[Row]) -> None:
        rows, gone = self.table.after(update)
        self.file.save(self.file_of(rows, gone, update.version), self.file.next_turn())

    def flush(self) -> None:
        """Called at a clean stop: writes the changes to the file that only the journal has."""

    # -- the master's side -------------------------------------------------------------------------------

    def change(
        self, rows: Mapping[str, Row], gone: Mapping[str, int] | None = None, parts: Parts | None = None
    ) -> Version:
        """Makes the next version, persists it and returns it. Raises OSError; nothing changed then."""
        update = self.table.plan(rows, gone or {}, now_ms=self._clock(), parts=parts)
        self._persist(update)
        self._apply(update)
        return self.table.version

    def begin_term(self, epoch: int) -> None:
        """Begins a master's term: its versions rank above those of all earlier epochs.

        The file is not written: after a crash, the same epoch begins with another timestamp, so with another
        version.
        """
        if epoch > 0:
            self._apply(self.table.plan_term(epoch, self._unversioned(), now_ms=self._clock()))

    def _unversioned(self) -> dict[str, Row]:
        """Returns rows that exist here without a version, for a master to publish."""
        return {}

    def updates_since(self, data: DataVersion | None) -> MetadataUpdate | None:
        """Returns the update for a replica at this version; None: it has everything. data None: it has no
        table."""
        update = self.changes_since(data)
        return None if update is None else self.to_wire(update)

    def changes_since(self, data: DataVersion | None, *, takes_parts: bool = False) -> Update[Row] | None:
        """As updates_since(), for to_wire(), which a thread may call: rows are replaced, never changed.
        takes_parts: as in Table.since()."""
        version = version_of(data) if data is not None else Version(-1)
        return self.table.since(version, takes_parts=takes_parts)

    # -- the replica's side ------------------------------------------------------------------------------

    def accept(self, received: MetadataUpdate) -> str | None:
        """Handles a master's update. Returns None when it is persisted and applied, else why it was refused.
        Raises OSError."""
        try:
            update = self.from_wire(received)
        except UNREADABLE as error:
            return f"its rows cannot be read: {error}"
        refusal = self.table.refusal(update)
        if refusal is not None:
            return refusal
        if update.whole:
            update = self._whole(update)
        if not update.only_version:
            self._persist(update)
        self._apply(update)
        return None

    async def accept_large(self, received: MetadataUpdate) -> str | None:
        """As accept(), for an update with many rows: a thread converts them, and makes the required writes. A
        cancellation is raised when both memory and disk have the update, or neither."""
        try:
            update = await finished_in_thread(partial(self._reader(), received))
        except UNREADABLE as error:
            return f"its rows cannot be read: {error}"
        refusal = self.table.refusal(update)
        if refusal is not None:
            return refusal
        if update.whole:
            update = self._whole(update)
        await self._persist_large(update)
        return None

    def _reader(self) -> Callable[[MetadataUpdate], Update[Row]]:
        """Returns from_wire() for a thread, which may also prepare the data for applied()."""
        return self.from_wire

    async def _persist_large(self, update: Update[Row]) -> None:
        """Makes the update durable, and applies it."""
        if not update.only_version:
            self._persist(update)
        self._apply(update)

    async def settled(self) -> None:
        """Waits until no accept_large() is writing. To be awaited before this broker becomes master."""

    def _whole(self, update: Update[Row]) -> Update[Row]:
        """Keeps built-in rows in a whole table, and a copy of the file if many rows are about to vanish."""
        kept = {key: row for key, row in self.built_in().items() if key not in update.rows}
        lost = drops_too_much([key for key in self.table.rows if key not in kept], update.rows)
        if lost:
            self.flush()
            copy = self.file.keep_copy(f"before-{update.version.state_version}")
            logger.error(
                "%s of the master (epoch %d) lacks %d of our %d entries: our file is kept as %s; if that "
                "master is wrong, stop it, and replace %s by the copy before this broker becomes master",
                self.what, update.version.state_version, lost, len(self.table.rows), copy, self.path,
            )  # fmt: skip
        return Update(update.version, {**update.rows, **kept} if kept else update.rows, update.gone)

    def _apply(self, update: Update[Row]) -> None:
        self.table.apply(update)
        self.applied(None if update.whole else [*update.rows, *update.gone, *update.parts])
        for watcher in self.watchers:
            watcher()

    # -- JSON --------------------------------------------------------------------------------------------

    def to_wire(self, update: Update[Row]) -> MetadataUpdate:
        """Returns the update as replicas receive it."""
        return MetadataUpdate.model_construct(  # the rows of a whole table are not checked once more
            store=self.name,
            version=data_version(update.version),
            base=None if update.base is None else data_version(update.base),
            rows={key: self.wire_of(row) for key, row in update.rows.items()},
            gone=dict(update.gone),
            parts=dict(update.parts),
        )

    def from_wire(self, received: MetadataUpdate) -> Update[Row]:
        """Parses an update. Raises ValueError, TypeError, KeyError or AttributeError."""
        return Update(
            version_of(received.version),
            {key: self.row_of(value) for key, value in received.rows.items()},
            dict(received.gone),
            None if received.base is None else version_of(received.base),
            {key: self.part_of(value) for key, value in received.parts.items()},
        )


def _continues(update: Update[Any], version: Version) -> bool:
    """Whether a line of the journal is the next change of a table at `version`. The file already has older
    lines. The line of a version that changed no row may begin before the file's: the file was written by a
    thread while a term began."""
    if update.base is None or not update.only_version:
        return update.base == version
    return update.base <= version < update.version


class JournaledStore(MetadataStore[Row]):
    """Rows change in memory at once (stage) and get one version together (commit_staged), which is
    journaled."""

    def __init__(self, path: Path, *, clock: Callable[[], int] = wall_ms) -> None:
        super().__init__(path, clock=clock)
        self.journal = Journal(path.with_name(path.name + ".journal"))
        self._staged: set[str] = set()
        self._staged_parts: dict[str, set[Any]] = {}  # members of rows that are not in _staged
        self._removed: set[str] = set()
        self._written_version = Version()  # of file and journal; later versions changed no row
        self._is_free = asyncio.Event()  # no accept_large() writes
        self._is_free.set()

    @property
    def is_staged(self) -> bool:
        """Whether changes are staged, which have no version yet."""
        return bool(self._staged or self._removed or self._staged_parts)

    def load(self) -> None:
        super().load()
        for value in self.journal.load():
            try:
                update = self.from_wire(update_of_line(value))
            except (ValueError, TypeError, KeyError, AttributeError, ValidationError) as error:
                raise StoreError(
                    f"{self.journal.path} is damaged: {error}; remove it to go back to {self.path.name}, "
                    "which is some seconds older"
                ) from error
            if _continues(update, self.table.version):
                self.table.apply(update)
            elif update.version > self.table.version and not self.journal.is_lost:
                self.journal.is_lost = True
                logger.error(
                    "%s: the change from %s to %s does not continue version %s of the table and is lost; %s",
                    self.journal.path, update.base, update.version, self.table.version, GO_BACK,
                )  # fmt: skip
        self._written_version = self.table.version
        self.applied(None)

    def stage(self, key: str, row: Row) -> bool:
        """Sets a row, visible at once. Returns False if the table is full."""
        rows = self.table.rows
        if key not in rows and len(rows) >= self.rows_max:
            return False
        rows[key] = row
        self._staged.add(key)
        self._staged_parts.pop(key, None)
        self._removed.discard(key)
        return True

    def stage_part(self, key: str, row: Row, member: Any) -> None:
        """As stage(), for a row that exists and of which only this member has changed or is new."""
        self.table.rows[key] = row
        if key not in self._staged:
            self._staged_parts.setdefault(key, set()).add(member)

    def stage_removal(self, keys: Iterable[str]) -> None:
        """Removes rows, visible at once. Unknown keys are ignored."""
        for key in keys:
            if self.table.rows.pop(key, None) is not None:
                self._removed.add(key)
                self._staged.discard(key)
                self._staged_parts.pop(key, None)

    def commit_staged(self) -> Version:
        """Commits all staged changes as one version and returns it; the present version if there are none.
        Raises OSError; the changes stay staged then."""
        if not self.is_staged:
            return self.table.version
        rows = {key: self.table.rows[key] for key in sorted(self._staged)}
        parts = {key: self._part(key) for key in sorted(self._staged_parts)}
        version = self.change(rows, dict.fromkeys(sorted(self._removed), 0), parts)
        self._forget_staged()
        return version

    def _part(self, key: str) -> Mapping[Any, Any]:
        row = cast(Mapping[Any, Any], self.table.rows[key])
        return {member: row[member] for member in sorted(self._staged_parts[key])}

    def _forget_staged(self) -> None:
        self._staged.clear()
        self._staged_parts.clear()
        self._removed.clear()

    def _persist(self, update: Update[Row]) -> None:
        if update.whole:
            self._save(update)  # a renamed file that is not on disk may be empty after a power failure
            self.journal.drop(self.journal.size)
        else:
            lines = [encode_update(self.to_wire(update))]
            if (
                update.base != self._written_version
            ):  # a term begins without a line: the next line links to it
                bridge: Update[Row] = Update(update.base or Version(), base=self._written_version)
                lines.insert(0, encode_update(self.to_wire(bridge)))
            self.journal.append(b"\n".join(lines))
        self._written_version = update.version

    async def _persist_large(self, update: Update[Row]) -> None:
        if not update.whole:
            await super()._persist_large(update)
            return
        version, is_saved = self.table.version, False
        turn, work = self.file.next_turn(), LongWork(is_shared=True)

        def write() -> None:
            nonlocal is_saved
            is_saved = self.file.save(self.file_of(update.rows, update.gone, update.version), turn, work)

        self._is_free.clear()
        try:
            await finished_in_thread(write, on_cancel=work.give_up)
        finally:
            self._is_free.set()
            if is_saved:
                assert version == self.table.version, "a term has begun without settled()"
                self.journal.drop(self.journal.size)
                self._written_version = update.version
                self._apply(update)

    async def settled(self) -> None:
        await self._is_free.wait()

    def _apply(self, update: Update[Row]) -> None:
        if update.whole:  # of a master: rows that were staged here in another role are dropped
            self._forget_staged()
        super()._apply(update)

    def accept(self, received: MetadataUpdate) -> str | None:
        return self._accepted(super().accept(received))

    async def accept_large(self, received: MetadataUpdate) -> str | None:
        return self._accepted(await super().accept_large(received))

    def _accepted(self, refusal: str | None) -> str | None:
        if refusal is None:  # the table is the master's, even if rows were lost here
            self.journal.is_lost = False
        return refusal

    # -- writing the file --------------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        """Whether the file lacks changes that the journal has. Not while a thread writes a master's table."""
        return self.journal.size > 0 and self._is_free.is_set()

    @property
    def is_long(self) -> bool:
        """Whether the journal is so large that the file should be written now."""
        return self.journal.size >= JOURNAL_BYTES_MAX

    def snapshot(self) -> Callable[[], Callable[[], None]]:
        """Writes the file in three steps: this call runs on the loop's thread, the function that it returns
        writes, in any thread, and the function that this one returns runs on the loop's thread again."""
        turn, size, version = self.file.next_turn(), self.journal.size, self.table.version
        rows, gone = dict(self.table.rows), dict(self.table.gone)  # rows are replaced, never changed

        def write() -> Callable[[], None]:
            saved = self.file.save(self.file_of(rows, gone, version), turn)
            return (lambda: self._in_file(turn, size, version)) if saved else (lambda: None)

        return write

    def _in_file(self, turn: int, size: int, version: Version) -> None:
        if self.file.is_latest(turn):
            self.journal.drop(size)
            if not self.journal.size:
                self._written_version = version

    def flush(self) -> None:
        if self.is_staged:
            self.commit_staged()
        if self.is_behind:
            self.snapshot()()()
