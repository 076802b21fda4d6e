"""The progress of timers, which of them are delivered: config/timerProgress.json and its journal.

Replicated like all metadata. RocketMQ keeps it in config/timercheck, which its replicas request as 56 bytes
(60). The first start on RocketMQ's files continues from there. Source: RocketMQ 5.3.3 TimerCheckpoint.
"""

import logging
import struct
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from broker.metadata.core.table import Update, Version
from broker.metadata.store import JournaledStore

logger = logging.getLogger(__name__)

READ_MS: Final = "readMs"
READ_OFFSET: Final = "readOffset"
PHASE_OFFSET: Final = "phaseOffset"
SLOT_MS: Final = "slotMs"
SLOT_OFFSET: Final = "slotOffset"
FIRST_OFFSET: Final = "firstOffset"
_CHECKPOINT = struct.Struct(">7q")
_SHORT_CHECKPOINT = struct.Struct(">4q")
"""lastReadTimeMs | lastTimerLogFlushPos | lastTimerQueueOffset | masterTimerQueueOffset, and in newer
versions stateVersion | timestamp | counter"""


class TimerProgressTable(JournaledStore[int]):
    """Row: one number, under the names above."""

    name: ClassVar[str] = "timerProgress"
    what: ClassVar[str] = "the progress of timers"
    rows_max: ClassVar[int] = 16

    def built_in(self) -> dict[str, int]:
        """Returns the progress of RocketMQ, as long as there is no file of ours: what it has delivered is not
        delivered again."""
        theirs = self.path.with_name("timercheck")
        if self.path.exists() or not theirs.exists():
            return {}
        rows = _rows_of(theirs.read_bytes())
        if rows is None:
            logger.error("%s is too short: timers that RocketMQ has delivered are delivered again", theirs)
            return {}
        logger.info("the progress of timers is that of RocketMQ's %s", theirs)
        return rows

    def row_of(self, value: Any) -> int:
        """Returns the number."""
        return int(value)

    def json_of(self, row: int) -> Any:
        """Returns the number."""
        return row

    def read_file(self, value: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
        """Returns the rows of timerProgress.json; there are no tombstones."""
        return {str(name): int(row) for name, row in (value.get("progress") or {}).items()}, {}

    def file_of(self, rows: Mapping[str, int], gone: Mapping[str, int], version: Version) -> dict[str, Any]:
        """Returns the content of timerProgress.json."""
        return {
            "dataVersion": {
                "counter": version.counter,
                "stateVersion": version.state_version,
                "timestamp": version.timestamp,
            },
            "progress": {name: rows[name] for name in sorted(rows)},
        }

    def get(self, name: str, default: int) -> int:
        """Returns the number; `default` if it was never set."""
        return self.table.rows.get(name, default)

    def advance(self, rows: Mapping[str, int]) -> None:
        """Stages the numbers that changed."""
        for name, value in rows.items():
            if self.table.rows.get(name) != value:
                self.stage(name, value)

    def checkpoint(self, precision_ms: int) -> bytes:
        """Returns the progress as RocketMQ's replicas read it (60): slots before the first number are
        delivered."""
        read_ms, offset, version = self.get(READ_MS, -1), self.get(READ_OFFSET, 0), self.table.version
        next_slot_ms = (read_ms // precision_ms + 1) * precision_ms if read_ms >= 0 else 0
        return _CHECKPOINT.pack(
            next_slot_ms, 0, offset, offset, version.state_version, version.timestamp, version.counter
        )

    def adopt(self, body: bytes, source_epoch: int) -> str | None:
        """Adopts a RocketMQ master's checkpoint. Returns why it was refused; None: it was adopted, or nothing
        is new."""
        rows = _rows_of(body)
        if rows is None:
            return f"a checkpoint of {len(body)} bytes"
        version = self.table.version
        if source_epoch < version.state_version:
            return f"epoch {source_epoch} is below epoch {version.state_version} of the table"
        changed = {name: row for name, row in rows.items() if self.table.rows.get(name, 0) != row}
        if not changed:
            return None
        counted = Version(max(source_epoch, version.state_version), version.counter + 1, version.timestamp)
        return self.accept(self.to_wire(Update(counted, changed, {}, version)))


def _rows_of(checkpoint: bytes) -> dict[str, int] | None:
    """Returns the progress that RocketMQ's checkpoint has; None: it is too short."""
    if len(checkpoint) < _SHORT_CHECKPOINT.size:
        return None
    next_slot_ms, _, offset, _ = _SHORT_CHECKPOINT.unpack_from(checkpoint)
    return {READ_MS: next_slot_ms - 1, READ_OFFSET: offset, PHASE_OFFSET: 0, FIRST_OFFSET: 0}
