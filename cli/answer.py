"""Standard output that cannot be written: a full disk, or a closed descriptor. The command continues, because
its changes matter more, and its exit code shows that the answer is missing."""

import errno
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn, cast

NOT_WRITTEN = 5
"""Exit code: the command was carried out, and its answer could not be written."""


class _Answer:
    """A stream that keeps its first error instead of raising it; a closed reader still ends the command."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, step: Callable[[], object]) -> None:
        try:
            step()
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            self.error = self.error or error


def run_answering(program: str, command: Callable[[], object]) -> NoReturn:
    """Runs a command line, which ends with SystemExit, and exits with its code; with NOT_WRITTEN if that is 0
    and standard output could not be written. One line on standard error reports this."""
    if sys.stdout is None:  # closed: each write fails, and no socket gets its number
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    answer = _Answer(sys.stdout)
    sys.stdout = cast(Any, answer)
    code: Any = 0
    try:
        command()
    except SystemExit as end:
        code = end.code
    try:
        answer.flush()
    except BrokenPipeError:
        _give_up(answer)
        code = code or 1
    if answer.error is not None:
        _give_up(answer)
        done = "" if code else "; the command itself was carried out"
        print(f"{program}: the answer could not be written: {answer.error.strerror}{done}", file=sys.stderr)
        code = code or NOT_WRITTEN
    sys.exit(code)


def _give_up(answer: _Answer) -> None:
    """At exit, Python writes the rest of the stream, and would report the error again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), answer.fileno())
