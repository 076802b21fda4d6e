"""docs/metrics.md names metrics that are declared, and nothing is declared twice."""

import re
from pathlib import Path

from keelmq.remoting.servers.metrics import documented
from keelmq.upstream.wire import reasons, wire_verdicts
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
    verdicts = wire_verdicts()
    known = documented(TABLES)
    prose = "".join((PAGE, *verdicts.metric_note.values(), *reasons(verdicts.metric).values()))
    used = set(re.findall(r"rocketmq_\w+", prose))
    assert used and used <= known.keys(), used - known.keys()
