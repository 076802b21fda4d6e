"""The name server's metrics: how much it knows, what it is asked. Upstream has none. Imported late:
prometheus_client."""

import socket
from typing import TYPE_CHECKING

from remoting.codes import RequestCode
from remoting.doors.metrics import Metric, Scrape, Table

if TYPE_CHECKING:
    from namesrv.app import Namesrv

TABLE = Table(
    "mqnamesrv",
    ("node_type", "node_id"),
    (
        Metric("rocketmq_namesrv_brokers", "registered brokers, slaves included"),
        Metric("rocketmq_namesrv_groups", "broker groups with a registered broker"),
        Metric("rocketmq_namesrv_topics", "topics with a route"),
        Metric("rocketmq_namesrv_connections", "open connections of brokers and clients"),
        Metric(
            "rocketmq_namesrv_requests_total",
            "requests since the start, over TCP and HTTP, by RocketMQ's names of request and answer",
            ("request_code", "response_code"),
        ),
        Metric(
            "rocketmq_namesrv_request_latency_seconds",
            "from a request's handler to its answer",
            ("request_code",),
            is_histogram=True,
        ),
    ),
)


def scrape(server: "Namesrv") -> Scrape:
    """Only with a route service."""
    made = Scrape(TABLE, ("nameserver", f"{socket.gethostname()}:{server.address[1]}"))
    for name, count in server.routes.counts().items():
        made.add(f"rocketmq_namesrv_{name}", count)
    made.add("rocketmq_namesrv_connections", server.connection_count)
    for (code, answer), count in sorted(server.requests.answers.items()):
        made.add("rocketmq_namesrv_requests_total", count, RequestCode(code).name, answer)
    for code, latency in server.requests.latencies.items():
        made.add_histogram("rocketmq_namesrv_request_latency_seconds", latency, RequestCode(code).name)
    return made
