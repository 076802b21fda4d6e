"""The name server's metrics: registered brokers and topics, connections, requests. RocketMQ has none.

Imported only when HTTP is enabled: it needs prometheus_client.
"""

import socket
from itertools import islice

from keelmq.remoting.codes import MASTER_ID, RequestCode
from keelmq.remoting.peer_limits import PeerLimits
from keelmq.remoting.servers.metrics import (
    Metric,
    Scrape,
    Table,
    add_limits,
    add_loop,
    add_unsent,
    limit_metrics,
    loop_metrics,
    unsent_metrics,
)
from keelmq.remoting.servers.request_counts import RequestCounts
from keelmq.remoting.write_buffers import WriteBuffers
from keelmq.runtime import loop_watch
from namesrv.core.routes import RouteTable

GROUPS_MAX = 1_000

TABLE = Table(
    "mqnamesrv",
    ("node_type", "node_id"),
    (
        Metric("rocketmq_namesrv_brokers", "registered brokers, slaves included"),
        Metric("rocketmq_namesrv_groups", "broker groups with a registered broker"),
        Metric("rocketmq_namesrv_topics", "topics with a route"),
        Metric(
            "rocketmq_namesrv_group_master",
            "1: the address of each group's master, as in the routes of clients; of the first 1000 groups",
            ("cluster", "broker_name", "address"),
        ),
        Metric("rocketmq_namesrv_connections", "open connections of brokers and clients"),
        *unsent_metrics("rocketmq_namesrv"),
        *limit_metrics("rocketmq_namesrv"),
        *loop_metrics("rocketmq_namesrv"),
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


def scrape(
    *,
    listen_port: int,
    routes: RouteTable,
    connection_count: int,
    write_buffers: WriteBuffers,
    limits: PeerLimits,
    requests: RequestCounts,
) -> Scrape:
    """Returns the current samples of a process that serves routes."""
    made = Scrape(TABLE, ("nameserver", f"{socket.gethostname()}:{listen_port}"))
    for name, count in routes.counts().items():
        made.add(f"rocketmq_namesrv_{name}", count)
    for name in islice(sorted(routes.broker_names()), GROUPS_MAX):
        group = routes.broker_data(name)
        if group is not None and MASTER_ID in group.broker_addrs:
            made.add("rocketmq_namesrv_group_master", 1, group.cluster, name, group.broker_addrs[MASTER_ID])
    made.add("rocketmq_namesrv_connections", connection_count)
    add_unsent(made, "rocketmq_namesrv", write_buffers)
    add_limits(made, "rocketmq_namesrv", limits)
    add_loop(made, "rocketmq_namesrv", loop_watch.running())
    for (code, answer), count in sorted(requests.answers.items()):
        made.add("rocketmq_namesrv_requests_total", count, RequestCode(code).name, answer)
    for code, latency in requests.latencies.items():
        made.add_histogram("rocketmq_namesrv_request_latency_seconds", latency, RequestCode(code).name)
    return made
