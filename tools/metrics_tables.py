"""Rewrites the tables of docs/metrics.md from the metrics' declarations: python tools/metrics_tables.py"""

import re
from pathlib import Path

import broker.admin.exporter_metrics
import broker.admin.metrics
import broker.container.metrics
import keelmq.security.metrics
import namesrv.http.metrics
import namesrv.plugins.controller.http.metrics
from keelmq.remoting.servers.health import HEALTH_TABLE, LIBRARY_TABLE
from keelmq.remoting.servers.metrics import Table

DOCUMENT = Path(__file__).parent.parent / "docs" / "metrics.md"
BEGIN, END = "<!-- tables -->", "<!-- end of the tables -->"
TABLES = (
    broker.admin.metrics.TABLE,
    broker.admin.exporter_metrics.TABLE,
    broker.container.metrics.TABLE,
    namesrv.http.metrics.TABLE,
    namesrv.plugins.controller.http.metrics.OURS,
    namesrv.plugins.controller.http.metrics.UPSTREAM,
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


def rewritten(document: str) -> str:
    """The document with everything between the markers replaced by the tables of today."""
    new = "\n\n".join([BEGIN, *map(section, TABLES), END])
    pattern = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    assert pattern.search(document), f"{DOCUMENT} lacks its markers"
    return pattern.sub(new.replace("\\", r"\\"), document)


if __name__ == "__main__":
    DOCUMENT.write_text(rewritten(DOCUMENT.read_text()))
