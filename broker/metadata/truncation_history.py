"""config/truncation.json: what a cut of the log meant for consumers, for whoever asks later.

The newest notes; written beside and renamed. A note that cannot be written is logged, nothing more.
"""

import json
import logging
import os
from pathlib import Path

from broker.metadata.files import read_json
from broker.metadata.offsets import Clamped
from remoting.clock import wall_ms

logger = logging.getLogger(__name__)

NOTES_MAX = 100
OFFSETS_MAX = 10_000
"""Per note; the groups are all named."""


class TruncationNotes:
    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, reason: str, beyond: list[Clamped], *, clamped: bool) -> None:
        """clamped: the offsets were set back to the queues' ends; else they are as the master has them."""
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
            notes = [*self._read(), note][-NOTES_MAX:]
            self.path.parent.mkdir(parents=True, exist_ok=True)
            aside = self.path.with_name(self.path.name + ".tmp")
            aside.write_text(json.dumps({"notes": notes}, indent="\t", ensure_ascii=False))
            os.replace(aside, self.path)
        except OSError as error:
            logger.error("cannot write %s: %s", self.path, error)

    def _read(self) -> list[object]:
        try:
            notes = read_json(self.path).get("notes")
        except (FileNotFoundError, ValueError):
            return []
        return list(notes) if isinstance(notes, list) else []
