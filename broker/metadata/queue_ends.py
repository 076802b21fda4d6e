"""End offsets of queues all of whose messages retention has deleted: config/queueEnds.json.

A replica that begins where its master's log begins has no record of such a queue, and as master it would
assign its offsets from 0 again. So a master records the end before it deletes the last message, and a replica
has it before it may join the SyncStateSet. RocketMQ has no such table. Key of a row: topic.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from broker.metadata.core.table import Version
from broker.metadata.file_store import FileStore
from broker.metadata.store import data_version

Row = dict[int, int]
Ends = Mapping[tuple[str, int], int]
"""(topic, queueId) -> the offset that the queue's next message gets."""


class QueueEndTable(FileStore[Row]):
    """Row: queueId -> end offset."""

    name: ClassVar[str] = "queueEnds"
    what: ClassVar[str] = "the table of emptied queues"

    def row_of(self, value: Any) -> Row:
        """Returns the row of {"queueId": end}."""
        return {int(queue_id): int(end) for queue_id, end in value.items()}

    def json_of(self, row: Row) -> Any:
        """Returns {"queueId": end}, sorted by queueId."""
        return {str(queue_id): row[queue_id] for queue_id in sorted(row)}

    def read_file(self, value: Mapping[str, Any]) -> tuple[dict[str, Row], dict[str, int]]:
        """Returns the rows of queueEnds.json; there are no tombstones."""
        return {topic: self.row_of(row) for topic, row in (value.get("queueEnds") or {}).items()}, {}

    def file_of(self, rows: Mapping[str, Row], gone: Mapping[str, int], version: Version) -> dict[str, Any]:
        """Returns the content of queueEnds.json."""
        return {
            "dataVersion": data_version(version).model_dump(by_alias=True),
            "queueEnds": {topic: self.json_of(rows[topic]) for topic in sorted(rows)},
        }

    def each(self) -> Iterator[tuple[str, int, int]]:
        """Yields (topic, queueId, end) of every present entry."""
        for topic, row in list(self.table.rows.items()):  # other code may add one between two entries
            for queue_id, end in row.items():
                yield topic, queue_id, end

    def remember(self, ends: Ends) -> None:
        """Records the ends that are higher than the known ones."""
        rows: dict[str, Row] = {}
        for (topic, queue_id), end in ends.items():
            row = rows.get(topic, self.table.rows.get(topic, {}))
            if row.get(queue_id, 0) < end:
                rows[topic] = row | {queue_id: end}
        if rows:
            self.change(rows)
