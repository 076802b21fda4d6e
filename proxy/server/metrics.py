"""The metrics of a proxy: in the program mqproxy, and in a broker with enableProxy.

RocketMQ's proxy has rocketmq_proxy_up; the others are KeelMQ's. No label has a text that a client chose."""

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from time import perf_counter
from typing import Any, Final

from keelmq.remoting.servers.metrics import Metric, Scrape, Table, add_loop, loop_metrics
from keelmq.runtime import loop_watch
from keelmq.runtime.histogram import Histogram
from proxy.wire import messaging_pb2 as pb

CLUSTER, LOCAL = "cluster", "local"
"""RocketMQ's names: a program of its own, and a part of a broker."""
BROKEN: Final = "BROKEN"
"""In place of a status: the call was cancelled, or its stream ended without one."""

TABLE = Table(
    "mqproxy, and mqbroker with enableProxy",
    ("node_type", "node_id", "proxy_mode"),
    (
        Metric("rocketmq_proxy_up", "1"),
        Metric(
            "rocketmq_proxy_clients",
            "clients of gRPC with an open stream (Telemetry) that have sent their settings",
            ("client_type", "language"),
        ),
        Metric("rocketmq_proxy_calls", "calls that are served now, by RPC; ReceiveMessage waits", ("rpc",)),
        Metric(
            "rocketmq_proxy_requests_total",
            "calls that have ended since the start, without streams (Telemetry), by RPC and status; "
            f"{BROKEN}: cancelled by the client, or ended without a status",
            ("rpc", "status"),
        ),
        Metric(
            "rocketmq_proxy_request_latency_seconds",
            "time of calls that wait for no message",
            ("rpc",),
            is_histogram=True,
        ),
        *loop_metrics("rocketmq_proxy"),
    ),
)

Unary = Callable[[bytes, Any], Awaitable[Any]]
Streaming = Callable[[bytes, Any], AsyncIterator[Any]]


class CallCounts:
    """Calls since the start, as plain numbers."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.ended: Counter[tuple[str, str]] = Counter()
        self.latencies: dict[str, Histogram] = {}

    def unary(self, rpc: str, serve: Unary) -> Unary:
        """Returns a handler that counts."""
        latency = self.latencies.setdefault(rpc, Histogram())

        async def counted(data: bytes, context: Any) -> Any:
            started, status = perf_counter(), BROKEN
            self.running[rpc] += 1
            try:
                answer = await serve(data, context)
                status = code_name(answer.status.code)
                return answer
            finally:
                self.running[rpc] -= 1
                self.ended[rpc, status] += 1
                latency.observe(perf_counter() - started)

        return counted

    def streaming(self, rpc: str, serve: Streaming) -> Streaming:
        """As unary(). The status is that of the first answer."""

        async def counted(data: bytes, context: Any) -> AsyncGenerator[Any, None]:
            status = BROKEN
            self.running[rpc] += 1
            try:
                async for answer in serve(data, context):
                    if status is BROKEN:
                        status = code_name(answer.status.code)
                    yield answer
            finally:
                self.running[rpc] -= 1
                self.ended[rpc, status] += 1

        return counted


def code_name(code: int) -> str:
    """Returns the name of a status's code."""
    return pb.Code.Name(code) if code in _CODES else str(code)


_CODES: Final = frozenset(pb.Code.values())


def scrape(node_id: str, mode: str, counts: CallCounts, clients: Counter[tuple[str, str]]) -> Scrape:
    """Returns the present values. node_id: host:port. clients: by type and language."""
    made = Scrape(TABLE, ("proxy", node_id, mode))
    made.add("rocketmq_proxy_up", 1)
    for (kind, language), count in sorted(clients.items()):
        made.add("rocketmq_proxy_clients", count, kind, language)
    for rpc, count in sorted(counts.running.items()):
        made.add("rocketmq_proxy_calls", count, rpc)
    for (rpc, status), count in sorted(counts.ended.items()):
        made.add("rocketmq_proxy_requests_total", count, rpc, status)
    for rpc, latency in sorted(counts.latencies.items()):
        made.add_histogram("rocketmq_proxy_request_latency_seconds", latency, rpc)
    if mode == CLUSTER:  # a broker shows its own
        add_loop(made, "rocketmq_proxy", loop_watch.running())
    return made
