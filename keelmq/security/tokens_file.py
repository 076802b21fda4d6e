"""TokensFile: the tokens of httpTokensFile, read again when the file changes.

A missing file has no tokens. One that cannot be read, or is wrong, leaves the last good ones."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from keelmq.runtime.clock import now_ms
from keelmq.runtime.config import ConfigError
from keelmq.security.core.tokens import InvalidTokens, Token, find_token, parse_tokens
from keelmq.security.private_file import read_private

FILE_BYTES_MAX: Final = 1_048_576
CHECK_MS: Final = 500
"""How long a removed token may still work."""

log = logging.getLogger(__name__)


class TokensFile:
    """The constructor raises ConfigError. `clock`: monotonic ms."""

    def __init__(self, path: Path, *, clock: Callable[[], int] = now_ms) -> None:
        self.path, self._clock = path, clock
        self._checked_ms = clock()
        self._seen = _state_of(path)
        self.problem: str | None = None
        """Why the file as it is now does not count; None: it does."""
        try:
            self._tokens = self._read()
        except OSError as error:
            raise ConfigError(f"httpTokensFile: cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"httpTokensFile: {path}: {error}") from None

    def find(self, given: str) -> Token | None:
        """Returns the token with this text."""
        now = self._clock()
        if now - self._checked_ms >= CHECK_MS:
            self._checked_ms = now
            self._poll()
        return find_token(self._tokens, given)

    def _poll(self) -> None:
        seen = _state_of(self.path)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._tokens = self._read()
        except FileNotFoundError:
            self._tokens = ()
        except (OSError, ValueError) as error:
            self.problem = str(error)
            log.error("httpTokensFile: %s is not read again, the last good one stays: %s", self.path, error)
            return
        self.problem = None
        log.info("httpTokensFile: %s has %d tokens now", self.path, len(self._tokens))

    def _read(self) -> tuple[Token, ...]:
        try:
            return parse_tokens(read_private(self.path, FILE_BYTES_MAX).decode())
        except UnicodeDecodeError:
            raise InvalidTokens("is not UTF-8 text") from None


def _state_of(path: Path) -> tuple[int, ...] | None:
    """Changes with the file; None: there is none. A link that an orchestrator turns to another file has the
    other one's numbers."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_mode
