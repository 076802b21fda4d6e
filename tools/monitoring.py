"""Rewrites what is made from rules.yaml and dashboards.yaml of deploy: python tools/monitoring.py

That is the PrometheusRule for Kubernetes, the dashboards in deploy/grafana, and the table of alerts in
docs/metrics.md.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tools.dashboards import as_json  # noqa: E402 - needs the path

RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
DASHBOARDS = ROOT / "deploy" / "grafana" / "dashboards.yaml"
RULE_OBJECT = ROOT / "deploy" / "k8s" / "components" / "monitoring" / "prometheus-rule.yaml"
DOCUMENT = ROOT / "docs" / "metrics.md"
BEGIN, END = "<!-- alerts -->", "<!-- end of the alerts -->"
NOTE = "# Made from deploy/prometheus/rules.yaml by tools/monitoring.py. For the Prometheus operator.\n"


def rules() -> list[dict[str, Any]]:
    """Returns all alerts, in the order of the file."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def rule_object() -> str:
    """Returns the PrometheusRule."""
    made = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "keelmq", "labels": {"app.kubernetes.io/part-of": "keelmq"}},
        "spec": yaml.safe_load(RULES.read_text()),
    }
    return NOTE + yaml.safe_dump(made, sort_keys=False, width=1_000)


def alert_table() -> str:
    """Returns the table of docs/metrics.md."""
    lines = ["| alert | expression | severity |", "|---|---|---|"]
    for rule in rules():
        wait = f" for {rule['for']}" if "for" in rule else ""
        expression = rule["expr"].replace("|", "\\|")
        name, severity = rule["alert"], rule["labels"]["severity"]
        lines.append(f"| [{name}](runbooks/{name}.md) | `{expression}`{wait} | {severity} |")
    return "\n".join(lines)


def rewritten(document: str) -> str:
    """Returns the document with the alerts of today."""
    pattern = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    assert pattern.search(document), f"{DOCUMENT} lacks its markers"
    return pattern.sub(lambda _: f"{BEGIN}\n{alert_table()}\n{END}", document)


def files() -> dict[Path, str]:
    """Returns each file that is made here, with its content."""
    made = {RULE_OBJECT: rule_object(), DOCUMENT: rewritten(DOCUMENT.read_text())}
    for name, dashboard in yaml.safe_load(DASHBOARDS.read_text()).items():
        path = ROOT / "deploy" / "grafana" / f"{name}.json"
        made[path] = json.dumps(as_json(name, dashboard), indent=2) + "\n"
    return made


if __name__ == "__main__":
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
