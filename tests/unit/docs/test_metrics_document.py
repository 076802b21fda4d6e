"""docs/metrics.md names metrics that are declared, and nothing is declared twice."""

import re
from pathlib import Path

from keelmq.remoting.servers.metrics import documented
from tools.metrics_tables import TABLES

PAGE = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text(encoding="utf-8")


def test_every_metric_is_explained_once_per_table() -> None:
    for table in TABLES:
        names = [metric.name for metric in table.metrics]
        assert len(set(names)) == len(names), table.title
        assert all(metric.meaning for metric in table.metrics)
        samples = [name for metric in table.metrics for name in metric.samples()]
        assert len(documented([table])) == len(samples)


def test_the_page_names_metrics_that_exist() -> None:
    prose = re.sub(r"(?m)^\| `\w+\*?` \| (yes|no) \|", "|", PAGE)  # the coverage has a test of its own
    known = documented(TABLES)
    used = set(re.findall(r"rocketmq_\w+", prose))
    assert used and used <= known.keys(), used - known.keys()


def test_the_coverage_of_rocketmqs_names_is_true() -> None:
    names = {metric.name for table in TABLES for metric in table.metrics}
    rows = re.findall(r"(?m)^\| `(\w+\*?)` \| (yes|no) \| (.*) \|$", PAGE)
    assert len(rows) > 50 and len({name for name, _, _ in rows}) == len(rows)
    for name, is_here, why in rows:
        assert (name in names) == (is_here == "yes"), name
        assert why or is_here == "yes", f"{name}: why not?"
