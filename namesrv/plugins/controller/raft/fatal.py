"""Fatal errors of the raft log: the process logs the reason in one line and exits with a specific code.

A member that continued after a failed write or a partly applied event could lose acknowledged changes.
"""

import logging
import os
from collections.abc import Callable
from typing import NoReturn

logger = logging.getLogger(__name__)

EXIT_JOURNAL = 70  # the journal or the vote file could not be written: the disk content is unknown
EXIT_TRUNCATION = 71  # a message asked to remove committed entries
EXIT_SNAPSHOT = 72  # a snapshot could not be written or read
EXIT_STATE_MACHINE = 73  # an event made the state machine raise
EXIT_RAFT = 74  # anything else in the raft thread

Fatal = Callable[[int, str], NoReturn]


class FatalRaftError(Exception):
    """Raised instead of ending the process when RaftSettings.on_fatal is set (tests)."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code, self.text = code, text


def end_process(code: int, text: str) -> NoReturn:
    """Logs, flushes and exits at once, so that no handler or other thread acts on a state that may be
    wrong."""
    logger.critical("FATAL (exit code %d): %s", code, text)
    logging.shutdown()
    os._exit(code)
