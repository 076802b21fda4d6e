"""The tables of docs/reference/metrics.md, from the declared metrics and the rules of the alerts."""

import broker.admin.exporter_metrics
import broker.admin.metrics
import broker.container.metrics
import keelmq.security.metrics
import namesrv.http.metrics
import namesrv.plugins.controller.http.metrics
import proxy.server.metrics
from keelmq.remoting.servers.health import HEALTH_TABLE, LIBRARY_TABLE
from keelmq.remoting.servers.metrics import Table
from keelmq.upstream.keys import names
from keelmq.upstream.wire import reasons, wire_verdicts
from tools.monitoring import alert_table

TABLES = (
    broker.admin.metrics.TABLE,
    broker.admin.exporter_metrics.TABLE,
    broker.container.metrics.TABLE,
    namesrv.http.metrics.TABLE,
    namesrv.plugins.controller.http.metrics.OURS,
    namesrv.plugins.controller.http.metrics.UPSTREAM,
    proxy.server.metrics.TABLE,
    keelmq.security.metrics.TABLE,
    HEALTH_TABLE,
    LIBRARY_TABLE,
)


def section(table: Table) -> str:
    labels = ", ".join(f"`{label}`" for label in table.labels)
    rows = [f"## {table.title}", ""]
    if labels:
        rows += [f"Labels of all: {labels}.", ""]
    rows += ["| name | type | more labels | meaning |", "|---|---|---|---|"]
    for metric in table.metrics:
        more = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append(f"| `{metric.name}` | {metric.kind} | {more} | {metric.meaning} |")
    return "\n".join(rows)


def rocketmq_table() -> str:
    """Returns RocketMQ's metrics, whether each is exported under its name, and how it differs or why not."""
    ours = {metric.name for each in TABLES for metric in each.metrics}
    notes = wire_verdicts().metric_note | reasons(wire_verdicts().metric)
    rows = ["| name | here | |", "|---|---|---|"]
    for name in names().metrics:
        rows.append(f"| `{name}` | {'yes' if name in ours else 'no'} | {notes.get(name, '')} |")
    return "\n".join(rows)


def tables() -> dict[str, str]:
    """Returns each part of the page with the name of its marker."""
    return {
        "alerts": alert_table(),
        "RocketMQ's metrics": rocketmq_table(),
        "tables": "\n\n".join(map(section, TABLES)),
    }
