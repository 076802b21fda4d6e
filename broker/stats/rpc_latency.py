"""RpcLatency: how long requests take from their arrival to their answer (RocketMQ's rocketmq_rpc_latency).

Requests with coroutine handlers are timed one by one. The data path adds its answers in groups: those of one
turn of the event loop, or those that one acknowledgement of replicas releases, share one observation, so a
plain send costs one addition. Times of the data path are whole milliseconds of a clock, without bias in the
sum. Source: RocketMQ 5.3.3 NettyRemotingAbstract, RemotingMetricsManager.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Final, NamedTuple, cast

from msgspec.structs import replace

from keelmq.remoting.codes import RequestCode, ResponseCode
from keelmq.remoting.dispatch import answer_of
from keelmq.remoting.operation import (
    Call,
    Handler,
    OperationTable,
    Peer,
    Reply,
    Unknown,
    UnknownOutcome,
    Wire,
)
from keelmq.runtime.histogram import Histogram

BOUNDS_MS: Final = (1, 3, 5, 10, 100, 1_000, 2_000, 3_000)
SUCCESS, ONEWAY, CANCELLED, FAILED = "success", "oneway", "cancelled", "process_request_failed"
"""RocketMQ's values of the label `result`, as far as they can be seen here."""
_LONG_POLLING: Final = frozenset({RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION})
_CODE_AT: Final = 8 + len(b'{"code":')

Watcher = Callable[[object, bool, float], None]
"""Gets a request's header, whether it succeeded, and ms."""


class Answers(NamedTuple):
    """The answers that one histogram counts."""

    request_code: int
    response_code: int
    is_long_polling: bool
    result: str


TIMED: Final = 0
"""In place of a request code: the reply goes to a TimedPeer, which counts it."""


class TimedPeer:
    """Replaces the connection of a request that may wait for messages, and times the reply."""

    def __init__(self, peer: Peer, latency: "RpcLatency", code: int) -> None:
        self._peer, self._latency, self._code, self._began = peer, latency, code, perf_counter()
        self.is_long_polling = False
        self.connection_id, self.address = peer.connection_id, peer.address
        self.address_bytes = getattr(peer, "address_bytes", b"")
        self.is_tls, self.certificate_names = peer.is_tls, peer.certificate_names

    def is_closing(self) -> bool:
        """Returns whether the connection can no longer send."""
        return self._peer.is_closing()

    def send(self, frame: bytes) -> bool:
        """Sends the reply."""
        elapsed_ms = (perf_counter() - self._began) * 1_000
        response = response_code_of(frame)
        self._latency.observe(self._code, response, elapsed_ms, is_long_polling=self.is_long_polling)
        return self._peer.send(frame)


class RpcLatency:
    """Owned by the event loop's thread. The number of histograms is bounded by the codes of the table."""

    def __init__(self) -> None:
        self.histograms: dict[Answers, Histogram] = {}
        self._by_fields = cast(dict[tuple[int, int, bool, str], Histogram], self.histograms)
        """The same histograms: a tuple is equal to its Answers as a key, and cheaper."""
        self.running = Counter[int]()
        """Requests whose coroutine handlers run now, by request code."""

    def observe(
        self,
        request_code: int,
        response_code: int,
        elapsed_ms: float,
        count: int = 1,
        *,
        is_long_polling: bool = False,
        result: str = SUCCESS,
    ) -> None:
        """Counts `count` answers that took elapsed_ms each."""
        if request_code == TIMED:
            return
        histogram = self._by_fields.get((request_code, response_code, is_long_polling, result))
        if histogram is None:
            histogram = self.of(Answers(request_code, response_code, is_long_polling, result))
        histogram.observe(elapsed_ms, count)

    def of(self, answers: Answers) -> Histogram:
        """Returns the histogram of these answers."""
        histogram = self.histograms.get(answers)
        if histogram is None:
            histogram = self.histograms[answers] = Histogram(BOUNDS_MS)
        return histogram

    def watch(self, table: OperationTable, watchers: Mapping[int, Watcher] | None = None) -> None:
        """Wraps the coroutine handlers of a table. Call it after all operations are bound. watchers: by
        request code, are notified of each request as well."""
        for code, (operation, handler) in table.handlers.items():
            watcher = (watchers or {}).get(code, _no_op)
            table.handlers[code] = (operation, self._timed(code, handler, watcher))

    def _timed(self, code: int, handler: Handler, watcher: Watcher) -> Handler:
        observe, running = self.observe, self.running

        async def timed(request: object, call: Call) -> Reply | Wire | None:
            began = perf_counter()
            running[code] += 1
            is_answered, response, result = True, int(ResponseCode.SUCCESS), SUCCESS
            if code in _LONG_POLLING:
                call = replace(call, peer=TimedPeer(call.peer, self, code))
            try:
                outcome = await handler(request, call)
                if isinstance(outcome, Unknown):
                    response, result = ResponseCode.SYSTEM_ERROR, CANCELLED
                elif isinstance(outcome, Reply):
                    response = int(outcome.code)
                elif outcome is None:  # answered later: PendingReplies and long polling count it
                    is_answered = call.is_oneway
                return outcome
            except (UnknownOutcome, asyncio.CancelledError):
                response, result = ResponseCode.SYSTEM_ERROR, CANCELLED
                raise
            except Exception as error:
                response, _ = answer_of(error, ResponseCode.SYSTEM_ERROR)
                result = FAILED if response == ResponseCode.SYSTEM_ERROR else SUCCESS
                raise
            finally:
                running[code] -= 1
                elapsed_ms = (perf_counter() - began) * 1_000
                if call.is_oneway and result == SUCCESS:
                    result = ONEWAY
                if is_answered:
                    observe(code, response, elapsed_ms, result=result)
                watcher(request, response == ResponseCode.SUCCESS, elapsed_ms)

        return timed

    def labelled(self) -> Iterator[tuple[tuple[str, str, str, str], Histogram]]:
        """Yields ((request_code, response_code, is_long_polling, result), histogram), with RocketMQ's names
        in lower case, as it writes them."""
        for key, histogram in self.histograms.items():
            names = _name(RequestCode, key.request_code), _name(ResponseCode, key.response_code)
            yield (*names, str(key.is_long_polling).lower(), key.result), histogram


def response_code_of(frame: bytes) -> int:
    """Returns the response code of a frame that this program has made: a JSON header, with the code first."""
    return int(frame[_CODE_AT : frame.index(b",", _CODE_AT)])


def _name(codes: type[RequestCode] | type[ResponseCode], code: int) -> str:
    try:
        return codes(code).name.lower()
    except ValueError:
        return str(code)


def _no_op(request: object, is_success: bool, elapsed_ms: float) -> None:
    """Watcher of requests without a watcher."""
