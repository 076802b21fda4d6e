"""Counts requests, their response codes and latencies, as plain numbers that metrics read.

watch() wraps the coroutine handlers of a table, so requests of all servers are counted. Fast-path operations
are not wrapped: their handlers count with an integer, if at all.
"""

from collections import Counter
from time import perf_counter

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import (
    Call,
    CommandError,
    Handler,
    OperationTable,
    Reply,
    Unknown,
    UnknownOutcome,
    Wire,
)
from keelmq.runtime.histogram import BOUNDS_S, Histogram

UNKNOWN = "UNKNOWN"
"""In place of a response code: the outcome is unknown, or the handler was cancelled."""
INTERNAL_ERROR = "INTERNAL_ERROR"
"""In place of a response code: the handler raised an unexpected exception, answered SYSTEM_ERROR."""
NONE = "NONE"
"""In place of a response code: there is no response (yet)."""


class RequestCounts:
    """Counts since the start. `answers`: (request code, name of the response code) -> count; `latencies`:
    request code -> histogram with `bounds`, in seconds times `scale`."""

    def __init__(self, bounds: tuple[float, ...] = BOUNDS_S, scale: float = 1.0) -> None:
        self.answers: Counter[tuple[int, str]] = Counter()
        self.latencies: dict[int, Histogram] = {}
        self._bounds, self._scale = bounds, scale

    def watch(self, table: OperationTable) -> None:
        """Wraps the handlers of a table. Call it after everything is bound, and before a server reads the
        table."""
        for code, (operation, handler) in table.handlers.items():
            latency = self.latencies.setdefault(code, Histogram(self._bounds))
            table.handlers[code] = (operation, self._counted(code, handler, latency))

    def _counted(self, code: int, handler: Handler, latency: Histogram) -> Handler:
        answers, scale = self.answers, self._scale

        async def counted(request: object, call: Call) -> Reply | Wire | None:
            started = perf_counter()
            name = UNKNOWN
            try:
                result = await handler(request, call)
                name = _answer_name(result)
                return result
            except UnknownOutcome:
                raise
            except CommandError as error:
                name = code_name(error.code)
                raise
            except Exception:
                name = INTERNAL_ERROR
                raise
            finally:
                answers[code, name] += 1
                latency.observe((perf_counter() - started) * scale)

        return counted


def _answer_name(result: object) -> str:
    if isinstance(result, Reply):
        return code_name(result.code)
    if isinstance(result, Unknown):
        return UNKNOWN
    return NONE if result is None else ResponseCode.SUCCESS.name


def code_name(code: int) -> str:
    """Returns RocketMQ's name of a response code, or the number as text."""
    return _NAMES.get(code) or str(code)


_NAMES: dict[int, str] = {code.value: code.name for code in ResponseCode}
