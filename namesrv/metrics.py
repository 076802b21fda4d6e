"""The name server's metrics: how much it knows. Upstream has none. Imported late: prometheus_client."""

import socket
from typing import TYPE_CHECKING

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
    ),
)


def scrape(server: "Namesrv") -> Scrape:
    """Only with a route service."""
    made = Scrape(TABLE, ("nameserver", f"{socket.gethostname()}:{server.address[1]}"))
    for name, count in server.routes.counts().items():
        made.add(f"rocketmq_namesrv_{name}", count)
    made.add("rocketmq_namesrv_connections", server.connection_count)
    return made
