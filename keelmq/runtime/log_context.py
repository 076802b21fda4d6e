"""Which broker a log line is about, where a process has several: a value of the context, not the logger.

Tasks, their callbacks, asyncio.to_thread() and the sockets that are opened in a context inherit it. Threads
of a pool do not, hence ContextThreadPool and in_context(). RocketMQ has a value per thread for this
(BrokerIdentity.getIdentifier(), `#CLUSTER_NAME_ID#` in front of the thread's name).
"""

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

import msgspec

from keelmq.runtime.printable import printable, printable_json

P = ParamSpec("P")
R = TypeVar("R")

LOG_FORMAT: Final = "%(asctime)s.%(msecs)03d %(levelname)s %(log_context)s%(name)s %(message)s"
"""log_context is empty outside of a context, else `#NAME# `."""
LOG_TIME_FORMAT: Final = "%Y-%m-%d %H:%M:%S"


class LogContext:
    """`name` is shown in each line; it may change, as a broker's id does. `sink` also gets the lines, without
    the name (isolated_log.py); None: they are on stderr only. It never waits and never raises."""

    __slots__ = ("name", "sink")

    def __init__(self, name: str) -> None:
        self.name = name
        self.sink: Callable[[str], None] | None = None


_current: ContextVar[LogContext | None] = ContextVar("log_context", default=None)


def current_log_context() -> LogContext | None:
    """Returns the context that this code runs in; None: it is about the whole process."""
    return _current.get()


@contextmanager
def log_context(which: str | LogContext) -> Iterator[LogContext]:
    """Everything that is started in the block logs with this name, also after the end of the block. A context
    may be entered any number of times."""
    context = LogContext(which) if isinstance(which, str) else which
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


def in_context(function: Callable[P, R]) -> Callable[P, R]:
    """Returns `function` for one call in another thread, in the present context."""
    return partial(copy_context().run, function)


class ContextThreadPool(ThreadPoolExecutor):
    """Each call runs in the context in which it was submitted."""

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """As that of ThreadPoolExecutor."""
        return super().submit(copy_context().run, partial(fn, *args, **kwargs))


class ContextFormatter(logging.Formatter):
    """LOG_FORMAT. For handlers that format in the thread and context of the line."""

    def __init__(self) -> None:
        super().__init__(LOG_FORMAT, LOG_TIME_FORMAT, defaults={"log_context": ""})

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line and its traceback; control characters are escaped."""
        return printable(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Returns the line, without a traceback."""
        context = _current.get()
        record.log_context = "" if context is None else f"#{context.name}# "
        return super().formatMessage(record)


OWN_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "log_context",
    "color_message",  # uvicorn's, the message again
}


class JsonFormatter(logging.Formatter):
    """One JSON object for each line: ts (ISO 8601, UTC, ms), level, logger, message; context, if the line is
    about one broker of several; error, the traceback; and what the code gave as `extra`, such as brokerName,
    masterEpoch, syncStateSet."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the object, without a line feed in it."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry: dict[str, Any] = {
            "ts": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (context := _current.get()) is not None:
            entry["context"] = context.name
        entry |= {name: value for name, value in vars(record).items() if name not in OWN_FIELDS}
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        try:
            return printable_json(msgspec.json.encode(entry, enc_hook=str).decode())
        except UnicodeEncodeError:  # half a character, from bytes that a peer sent
            return printable_json(msgspec.json.encode(_encodable(entry)).decode())


def _encodable(entry: dict[str, Any]) -> dict[str, str]:
    return {name: str(value).encode(errors="replace").decode() for name, value in entry.items()}


def is_log_json() -> bool:
    """Returns whether the log of this process is JSON (`--log-format json`)."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


class PlainFormatter(logging.Formatter):
    """LOG_FORMAT without the context, for a file whose name shows it."""

    def __init__(self) -> None:
        super().__init__(LOG_FORMAT.replace("%(log_context)s", ""), LOG_TIME_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line and its traceback; control characters are escaped."""
        return printable(super().format(record))
