"""Consumer offsets (config/consumerOffset.json) and delay offsets (config/delayOffset.json), each with a
journal.

Key of a row of consumer offsets: topic@group, as in the file. Source: RocketMQ 5.3.3 ConsumerOffsetManager,
ScheduleMessageService.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import msgspec

from broker.metadata.core.table import Update, Version
from broker.metadata.store import JournaledStore, data_version
from keelmq.remoting.operations.broker_metadata import ConsumerOffsets, DelayOffsets
from keelmq.remoting.operations.route import DataVersion

SEPARATOR = "@"
NOT_FOUND = -1
LEVELS_MAX = 1_024

Row = dict[int, int]


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
    """Row: queueId -> the offset of the next message that the group wants."""

    name: ClassVar[str] = "consumerOffsets"
    what: ClassVar[str] = "the table of consumer offsets"
    rows_max: ClassVar[int] = 200_000

    # -- JSON --------------------------------------------------------------------------------------------

    def row_of(self, value: Any) -> Row:
        """Returns the row of {"queueId": offset}."""
        return {int(queue_id): int(offset) for queue_id, offset in value.items()}

    def json_of(self, row: Row) -> Any:
        """Returns {"queueId": offset}, sorted by queueId."""
        return {str(queue_id): row[queue_id] for queue_id in sorted(row)}

    def read_file(self, value: Mapping[str, Any]) -> tuple[dict[str, Row], dict[str, int]]:
        """Returns the rows of consumerOffset.json; there are no tombstones."""
        return {key: self.row_of(row) for key, row in (value.get("offsetTable") or {}).items()}, {}

    def file_of(self, rows: Mapping[str, Row], gone: Mapping[str, int], version: Version) -> dict[str, Any]:
        """Returns the content of consumerOffset.json."""
        return {
            "dataVersion": _plain_version(version),
            "offsetTable": {key: self.json_of(rows[key]) for key in sorted(rows)},
        }

    def body(self) -> dict[str, Any]:
        """Returns the whole table (43). Keys are quoted, which RocketMQ's reader accepts."""
        return self.file_of(self.table.rows, {}, self.table.version)

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
            row[queue_id] = offset
            self.stage(key, row)
        return True

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

    def beyond(self, end_of: Callable[[str, int], int]) -> list[Clamped]:
        """Returns the offsets beyond the ends of their queues. end_of(topic, queue_id): the queue's end."""
        found = []
        for key in sorted(self.table.rows):
            topic, group = split_key(key)
            for queue_id, offset in sorted(self.table.rows[key].items()):
                end = end_of(topic, queue_id)
                if offset > end:
                    found.append(Clamped(group, topic, queue_id, offset, end))
        return found

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
                rows[key] = mine | theirs
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

    def get(self, level: int) -> int:
        """Returns the next offset; 0: nothing of this level was delivered yet."""
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
    """Applies the rows that differ as a change in the master's name. Nothing is deleted."""
    if source_epoch < store.table.version.state_version:
        return f"epoch {source_epoch} is below epoch {store.table.version.state_version} of the table"
    if not rows:
        return None
    base = store.table.version
    version = Version(max(source_epoch, data.state_version), base.counter + 1, data.timestamp)
    return store.accept(store.to_wire(Update(version, rows, {}, base)))


def _plain_version(version: Version) -> dict[str, int]:
    found: dict[str, int] = data_version(version).model_dump(by_alias=True)
    return found
