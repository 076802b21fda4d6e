"""Errors after which a member must not go on: it says why in one line and ends with a code of its own.

A raft member that limps on after a failed write or a half applied event is worse than one that is gone.
"""

import logging
import os
from collections.abc import Callable
from typing import NoReturn

logger = logging.getLogger(__name__)

EXIT_JOURNAL = 70  # journal or vote file could not be written: what is on the disk is not known any more
EXIT_TRUNCATION = 71  # somebody asked to remove committed entries
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
    """Log, flush, leave at once: no handler, no other thread may act on a state that is not to be trusted."""
    logger.critical("FATAL (exit code %d): %s", code, text)
    logging.shutdown()
    os._exit(code)
