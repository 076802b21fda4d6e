"""Rewrites what is made from rules.yaml and dashboards.yaml of deploy: python tools/monitoring.py

--runbooks URL: first sets the beginning of each alert's runbook_url in rules.yaml, before /docs/runbooks/,
such as https://git.example.com/team/keelmq/blob/main.

That is the PrometheusRule for Kubernetes, the rules of the Helm chart, and the dashboards in deploy/grafana.
"""

import argparse
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tools.dashboards import as_json  # noqa: E402 - needs the path

RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
DASHBOARDS = ROOT / "deploy" / "grafana" / "dashboards.yaml"
RULE_OBJECT = ROOT / "deploy" / "k8s" / "components" / "monitoring" / "prometheus-rule.yaml"
CHART_RULES = ROOT / "deploy" / "helm" / "keelmq" / "files" / "rules.yaml"
NOTE = "# Made from deploy/prometheus/rules.yaml by tools/monitoring.py. For the Prometheus operator.\n"


PLACEHOLDER = "https://keelmq.example"
RUNBOOK_URL = re.compile(r"(?<=runbook_url: )\S+?(?=/docs/runbooks/)")


def default_base() -> str:
    """Returns the beginning of each runbook_url: the public repository, if pyproject.toml names one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    repository = project.get("urls", {}).get("Repository", "")
    return f"{repository.rstrip('/')}/blob/main" if repository else PLACEHOLDER


def with_base(text: str, base: str) -> str:
    """Returns the rules with another beginning of each runbook_url. Raises ValueError: it is no URL."""
    if not re.fullmatch(r"https?://[^\s/'\"]+(/[^\s'\"]*)?", base):
        raise ValueError(f"{base!r} is no URL such as https://git.example.com/team/keelmq/blob/main")
    return RUNBOOK_URL.sub(lambda _: base.rstrip("/"), text)


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
    """Returns the table of docs/reference/metrics.md."""
    lines = ["| alert | expression | severity |", "|---|---|---|"]
    for rule in rules():
        wait = f" for {rule['for']}" if "for" in rule else ""
        expression = rule["expr"].replace("|", "\\|")
        name, severity = rule["alert"], rule["labels"]["severity"]
        lines.append(f"| [{name}](runbooks/{name}.md) | `{expression}`{wait} | {severity} |")
    return "\n".join(lines)


def files() -> dict[Path, str]:
    """Returns each file that is made here, with its content."""
    made = {RULE_OBJECT: rule_object(), CHART_RULES: RULES.read_text()}  # a chart reads no file outside
    for name, dashboard in yaml.safe_load(DASHBOARDS.read_text()).items():
        path = ROOT / "deploy" / "grafana" / f"{name}.json"
        made[path] = json.dumps(as_json(name, dashboard), indent=2) + "\n"
    return made


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runbooks", metavar="URL", help="beginning of each runbook_url")
    if base := parser.parse_args().runbooks:
        try:
            RULES.write_text(with_base(RULES.read_text(), base))
        except ValueError as error:
            parser.error(str(error))
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
