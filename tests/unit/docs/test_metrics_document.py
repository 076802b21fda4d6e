"""docs/metrics.md says what is declared, and nothing is declared twice."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

from keelmq.remoting.servers.metrics import documented

ROOT = Path(__file__).parents[3]


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("metrics_tables", ROOT / "tools" / "metrics_tables.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_the_tables_are_those_of_the_declarations() -> None:
    tables = tool()
    text = tables.DOCUMENT.read_text()
    assert tables.rewritten(text) == text, "run: .venv/bin/python tools/metrics_tables.py"


def test_every_metric_is_explained_once_per_table() -> None:
    tables = tool()
    for table in tables.TABLES:
        names = [metric.name for metric in table.metrics]
        assert len(set(names)) == len(names), table.title
        assert all(metric.meaning for metric in table.metrics)
        samples = [name for metric in table.metrics for name in metric.samples()]
        assert len(documented([table])) == len(samples)


def test_the_alerts_use_metrics_that_exist() -> None:
    tables = tool()
    prose = tables.DOCUMENT.read_text().partition(tables.BEGIN)[0]
    prose = re.sub(r"(?m)^\| `\w+\*?` \| (yes|no) \|", "|", prose)  # the coverage has a test of its own
    known = documented(tables.TABLES)
    used = set(re.findall(r"rocketmq_\w+", prose))
    assert used and used <= known.keys(), used - known.keys()


def test_the_coverage_of_rocketmqs_names_is_true() -> None:
    tables = tool()
    names = {metric.name for table in tables.TABLES for metric in table.metrics}
    rows = re.findall(r"(?m)^\| `(\w+\*?)` \| (yes|no) \| (.*) \|$", tables.DOCUMENT.read_text())
    assert len(rows) > 50 and len({name for name, _, _ in rows}) == len(rows)
    for name, is_here, why in rows:
        assert (name in names) == (is_here == "yes"), name
        assert why or is_here == "yes", f"{name}: why not?"
