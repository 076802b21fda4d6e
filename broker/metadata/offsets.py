"""Consumer offsets (config/consumerOffset.json) and delay offsets (config/delayOffset.json), each with a
journal.

Key of a row of consumer offsets: topic@group, as in the file. Source: RocketMQ 5.3.3 ConsumerOffsetManager,
ScheduleMessageService.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec

from broker.metadata.core.table import Update, Version
from broker.metadata.files import LazyRows
from broker.metadata.store import JournaledStore, data_version
from keelmq.remoting.operations.broker_metadata import ConsumerOffsets, DelayOffsets
from keelmq.remoting.operations.route import DataVersion
from keelmq.runtime.clock import wall_ms

SEPARATOR = "@"
NOT_FOUND = -1
LEVELS_MAX = 1_024
SLICE_ROWS = 1_000
"""Rows that one step of body() encodes, some 2 ms with 8 queues each."""

CHECKED_MAX: Final = 4_096
"""Offsets that one call of check() compares with the ends of their queues: 1 to 2 ms."""

Row = Mapping[int, int]
EndOf = Callable[[str, int], int]
"""(topic, queueId) -> the offset that the queue's next message gets."""


class Clamped(msgspec.Struct, frozen=True):
    """An offset beyond its queue's end. was: the offset; now: the end."""

    group: str
    topic: str
    queue_id: int
    was: int
    now: int


def split_key(key: str) -> tuple[str, str]:
    """Splits topic@group. A topic has no @; a group may not have one either."""
    topic, _, group = key.partition(SEPARATOR)
    return topic, group


class ConsumerOffsetTable(JournaledStore[Row]):
    """Row: queueId -> the offset of the next message that the group wants. Rows are replaced, never changed.

    The table knows which rows may be beyond the ends of their queues: those that changed since check() read
    them. The ends of queues only rise, except by a truncation, which makes all rows doubtful. So a promotion
    compares the rows that changed lately, and not the whole table.
    """

    name: ClassVar[str] = "consumerOffsets"
    what: ClassVar[str] = "the table of consumer offsets"
    rows_max: ClassVar[int] = 200_000

    def __init__(self, path: Path, *, clock: Callable[[], int] = wall_ms) -> None:
        super().__init__(path, clock=clock)
        self._doubtful: dict[str, None] = {}  # a set that keeps its order

    # -- JSON --------------------------------------------------------------------------------------------

    def row_of(self, value: Any) -> Row:
        """Returns the row of {"queueId": offset}."""
        return {int(queue_id): int(offset) for queue_id, offset in value.items()}

    def part_of(self, value: Any) -> Row:
        """Returns the offsets that changed."""
        return self.row_of(value)

    def json_of(self, row: Row) -> Any:
        """Returns {"queueId": offset}, sorted by queueId."""
        return {str(queue_id): row[queue_id] for queue_id in sorted(row)}

    def wire_of(self, row: Row) -> Any:
        """Returns the row: queueIds become texts in JSON."""
        return row

    def read_file(self, value: Mapping[str, Any]) -> tuple[dict[str, Row], dict[str, int]]:
        """Returns the rows of consumerOffset.json; there are no tombstones."""
        return {key: self.row_of(row) for key, row in (value.get("offsetTable") or {}).items()}, {}

    def file_of(self, rows: Mapping[str, Row], gone: Mapping[str, int], version: Version) -> dict[str, Any]:
        """Returns the content of consumerOffset.json."""
        return {"dataVersion": _plain_version(version), "offsetTable": LazyRows(rows, text_of_row)}

    async def body(self, bytes_max: int) -> bytes:
        """Returns the whole table (43), made in slices between which other work runs: each row is of one
        moment, and the version of the first. Keys are quoted, which RocketMQ's reader accepts. Raises
        ValueError: it has more than bytes_max."""
        version, rows, texts, size = self.table.version, self.table.rows, [], 0
        names = list(rows)
        for start in range(0, len(names), SLICE_ROWS):
            if start:
                await asyncio.sleep(0)
            part = {
                name: self.json_of(row)
                for name in names[start : start + SLICE_ROWS]
                if (row := rows.get(name)) is not None
            }
            texts.append(msgspec.json.encode(part)[1:-1])
            size += len(texts[-1]) + 1
            if size > bytes_max:
                raise ValueError(
                    f"the consumer offsets take more than {bytes_max} bytes, the limit of an answer"
                )
        version_text = msgspec.json.encode(_plain_version(version))
        return b'{"dataVersion":%b,"offsetTable":{%b}}' % (version_text, b",".join(filter(None, texts)))

    # -- use ---------------------------------------------------------------------------------------------

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """Returns the offset; NOT_FOUND: the group has never committed in this queue."""
        row = self.table.rows.get(f"{topic}{SEPARATOR}{group}")
        return NOT_FOUND if row is None else row.get(queue_id, NOT_FOUND)

    def row(self, group: str, topic: str) -> Row:
        """Returns a copy of queueId -> offset; empty if there is none."""
        return dict(self.table.rows.get(f"{topic}{SEPARATOR}{group}", {}))

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Stages an offset: visible at once, replicated with the next commit_staged(). Returns False if the
        offset or the queue is negative, or the table is full."""
        if offset < 0 or queue_id < 0:
            return False
        key = f"{topic}{SEPARATOR}{group}"
        row = self.table.rows.get(key)
        if row is None:
            return self.stage(key, {queue_id: offset})
        if row.get(queue_id) != offset:
            changed = dict(row)
            changed[queue_id] = offset
            self.stage_part(key, changed, queue_id)
        return True

    def stage(self, key: str, row: Row) -> bool:
        self._doubtful[key] = None
        return super().stage(key, row)

    def stage_part(self, key: str, row: Row, member: Any) -> None:
        self._doubtful[key] = None
        super().stage_part(key, row, member)

    def applied(self, keys: Iterable[str] | None) -> None:
        if keys is None:
            self.doubt_all()
        else:
            self._doubtful.update(dict.fromkeys(keys))

    def remove_topic(self, topic: str) -> None:
        """Stages the removal of all offsets of the topic."""
        self.stage_removal([key for key in self.table.rows if split_key(key)[0] == topic])

    def remove_group(self, group: str) -> None:
        """Stages the removal of all offsets of the group, which is matched by its whole name (broker-ops
        pitfall 10)."""
        self.stage_removal([key for key in self.table.rows if split_key(key)[1] == group])

    def groups_of(self, topic: str) -> list[str]:
        """Returns the groups that have offsets of the topic, sorted."""
        return sorted({group for at, group in map(split_key, self.table.rows) if at == topic})

    def topics_of(self, group: str) -> list[str]:
        """Returns the topics of which the group has offsets, sorted."""
        return sorted({topic for topic, at in map(split_key, self.table.rows) if at == group})

    # -- offsets beyond the ends of their queues ---------------------------------------------------------

    @property
    def doubtful(self) -> int:
        """How many rows check() has to compare, including those that it found beyond."""
        return len(self._doubtful)

    def doubt_all(self) -> None:
        """Called when the ends of queues may have sunk: after a truncation."""
        self._doubtful = dict.fromkeys(self.table.rows)

    def check(self, end_of: EndOf, rows_max: int | None = None) -> tuple[int, list[Clamped]]:
        """Compares doubtful rows with the ends of their queues, oldest first, until CHECKED_MAX offsets or
        rows_max rows are compared. Rows with an offset beyond its queue's end stay doubtful, as the last
        ones. Returns how many rows were compared, and those offsets.
        """
        found: list[Clamped] = []
        rows = compared = 0
        for key in list(
            islice(self._doubtful, CHECKED_MAX if rows_max is None else min(rows_max, CHECKED_MAX))
        ):
            if compared >= CHECKED_MAX:
                break
            rows += 1
            del self._doubtful[key]
            row = self.table.rows.get(key, {})
            compared += len(row) + 1
            if beyond := beyond_ends(key, row, end_of):
                found += beyond
                self._doubtful[key] = None
        return rows, found

    def beyond(self, end_of: EndOf) -> list[Clamped]:
        """Returns all offsets beyond the ends of their queues, sorted, as check() finds them."""
        found, left = list[Clamped](), self.doubtful
        while left:
            rows, beyond = self.check(end_of, left)
            left -= rows
            found += beyond
        return sorted(found, key=lambda each: (f"{each.topic}{SEPARATOR}{each.group}", each.queue_id))

    def clamp(self, beyond: list[Clamped]) -> None:
        """Stages the queue's end for each of these offsets."""
        for each in beyond:
            self.commit(each.group, each.topic, each.queue_id, each.now)

    # -- a RocketMQ master's table -----------------------------------------------------------------------

    def adopt(self, body: ConsumerOffsets, source_epoch: int) -> str | None:
        """Merges the table of a RocketMQ master, as RocketMQ's slaves do: the version of its offsets never
        changes. Returns why it was refused; None: it was adopted."""
        rows: dict[str, Row] = {}
        for key, theirs in body.offset_table.items():
            mine = self.table.rows.get(key, {})
            if theirs.items() - mine.items():
                rows[key] = {**mine, **theirs}
        return _adopt_rows(self, rows, body.data_version, source_epoch)


class DelayOffsetTable(JournaledStore[int]):
    """Row: the next offset in the queue of a delay level."""

    name: ClassVar[str] = "delayOffsets"
    what: ClassVar[str] = "the table of delay offsets"
    rows_max: ClassVar[int] = LEVELS_MAX

    def row_of(self, value: Any) -> int:
        """Returns the offset."""
        return int(value)

    def json_of(self, row: int) -> Any:
        """Returns the offset."""
        return row

    def read_file(self, value: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
        """Returns the rows of delayOffset.json; there are no tombstones."""
        table = value.get("offsetTable") or {}
        return {str(int(level)): int(offset) for level, offset in table.items()}, {}

    def file_of(self, rows: Mapping[str, int], gone: Mapping[str, int], version: Version) -> dict[str, Any]:
        """Returns the content of delayOffset.json, sorted by level."""
        levels = sorted(rows, key=int)
        return {
            "dataVersion": _plain_version(version),
            "offsetTable": {level: rows[level] for level in levels},
        }

    def body(self) -> dict[str, Any]:
        """Returns the whole table (45)."""
        return self.file_of(self.table.rows, {}, self.table.version)

    def has(self, level: int) -> bool:
        """Returns whether the table knows the level. If not, none of its messages was delivered yet, or the
        table is lost."""
        return str(level) in self.table.rows

    def get(self, level: int) -> int:
        """Returns the next offset; 0: no message of this level was delivered yet."""
        return self.table.rows.get(str(level), 0)

    def advance(self, level: int, offset: int) -> bool:
        """Stages the next offset of a level. Returns False if the table is full."""
        return self.stage(str(level), offset)

    def adopt(self, body: DelayOffsets, source_epoch: int) -> str | None:
        """Merges the table of a RocketMQ master. Returns why it was refused; None: it was adopted."""
        theirs = {str(level): offset for level, offset in body.offset_table.items()}
        rows = {level: offset for level, offset in theirs.items() if self.table.rows.get(level) != offset}
        return _adopt_rows(self, rows, body.data_version, source_epoch)


def _adopt_rows(
    store: JournaledStore[Any], rows: Mapping[str, Any], data: DataVersion, source_epoch: int
) -> str | None:
    """Applies the rows that differ as a change of the master. No row is deleted."""
    if source_epoch < store.table.version.state_version:
        return f"epoch {source_epoch} is below epoch {store.table.version.state_version} of the table"
    if not rows:
        return None
    base = store.table.version
    version = Version(max(source_epoch, data.state_version), base.counter + 1, data.timestamp)
    return store.accept(store.to_wire(Update(version, rows, {}, base)))


def beyond_ends(key: str, row: Row, end_of: EndOf) -> list[Clamped]:
    """Returns the offsets of this row that are beyond the ends of their queues, by queueId."""
    topic, group = split_key(key)
    ends = ((queue_id, offset, end_of(topic, queue_id)) for queue_id, offset in sorted(row.items()))
    return [Clamped(group, topic, queue_id, offset, end) for queue_id, offset, end in ends if offset > end]


def text_of_row(row: Row) -> str:
    """Returns row_text(json_of(row)), in a tenth of the time."""
    if not row:
        return "{}"
    offsets = ",".join([f'\n\t\t\t"{queue_id}": {row[queue_id]}' for queue_id in sorted(row)])
    return f"{{{offsets}\n\t\t}}"


def _plain_version(version: Version) -> dict[str, int]:
    found: dict[str, int] = data_version(version).model_dump(by_alias=True)
    return found
