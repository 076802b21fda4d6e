"""config/truncation.json: which consumer offsets each truncation of the log affected, for operators.

Holds the newest NOTES_MAX entries. If an entry cannot be written, that is logged.
"""

import asyncio
import json
import logging
import threading
from pathlib import Path

from broker.metadata.files import read_json
from broker.metadata.offsets import Clamped
from keelmq.runtime.clock import wall_ms
from keelmq.runtime.durable_file import replace_file
from keelmq.runtime.log_context import in_context

logger = logging.getLogger(__name__)

NOTES_MAX = 100
OFFSETS_MAX = 10_000
"""Offsets per entry; all groups are named."""


class TruncationHistory:
    """The file at one path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def add(self, reason: str, beyond: list[Clamped], *, clamped: bool) -> None:
        """Appends an entry; on a running event loop, in a thread. clamped: the offsets were set back to the
        ends of their queues; else they are the master's."""
        note = {
            "timestamp": wall_ms(),
            "reason": reason,
            "clamped": clamped,
            "groups": sorted({each.group for each in beyond}),
            "offsets": [
                {"group": o.group, "topic": o.topic, "queueId": o.queue_id, "was": o.was, "queueEnd": o.now}
                for o in beyond[:OFFSETS_MAX]
            ],
        }
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # a tool, or a test
            self._append(note)
        else:
            loop.run_in_executor(None, in_context(self._append), note)

    def _append(self, note: object) -> None:
        try:
            with self._lock:
                notes = [*self._read(), note][-NOTES_MAX:]
                content = json.dumps({"notes": notes}, indent="\t", ensure_ascii=False)
                replace_file(self.path, content.encode(), keep_backup=False, durable=False)
        except OSError as error:
            logger.error("cannot write %s: %s", self.path, error)

    def _read(self) -> list[object]:
        try:
            notes = read_json(self.path).get("notes")
        except (FileNotFoundError, ValueError):
            return []
        return list(notes) if isinstance(notes, list) else []
