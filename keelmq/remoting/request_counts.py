"""How many requests came, how they were answered and how long it took: plain numbers that metrics read.

watch() puts a thin coroutine around the handlers of a table, so that every door counts and no door knows.
Data-path (hot) operations have none around them: who serves one counts it, if at all, with an integer.
"""

from collections import Counter
from time import perf_counter

from remoting.codes import ResponseCode
from remoting.histogram import BOUNDS_S, Histogram
from remoting.operation import (
    Call,
    CommandError,
    Handler,
    OperationTable,
    Reply,
    Unknown,
    UnknownOutcome,
    Wire,
)

UNKNOWN = "UNKNOWN"
"""Instead of a response code: nobody knows the outcome, or the handler was cancelled."""
INTERNAL_ERROR = "INTERNAL_ERROR"
"""A handler broke: a bug, answered SYSTEM_ERROR."""
NONE = "NONE"
"""Nothing was answered (yet)."""


class RequestCounts:
    """Since the start. `answers`: (request code, name of the response code) -> how often; `latencies`: by
    request code, in seconds times `scale`, of `bounds`."""

    def __init__(self, bounds: tuple[float, ...] = BOUNDS_S, scale: float = 1.0) -> None:
        self.answers: Counter[tuple[int, str]] = Counter()
        self.latencies: dict[int, Histogram] = {}
        self._bounds, self._scale = bounds, scale

    def watch(self, table: OperationTable) -> None:
        """Call it when everything is bound, and before a door reads the table."""
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
    return _NAMES.get(code) or str(code)


_NAMES: dict[int, str] = {code.value: code.name for code in ResponseCode}
