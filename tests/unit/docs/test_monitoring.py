"""Alerts, runbooks and dashboards: each alert fires and resolves, and every metric that is named exists."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from keelmq.remoting.servers.metrics import documented
from tests.support.prometheus import QUICK_FOR, QUICK_RANGE, quickened
from tools import monitoring
from tools.metrics_tables import TABLES

ROOT = Path(__file__).parents[3]
SECTIONS = ("## What it means", "## How to confirm", "## What to do", "## When it resolves")
NAMES = re.compile(r"\b(?:rocketmq|dledger|process|python)_\w+")
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool (Debian: prometheus)")

BAD, GOOD = 60, 120
"""Samples, one each INTERVAL."""
INTERVAL, FIRES_AT, RESOLVED_AT = "10s", "9m50s", "28m"


def gauge(bad: float, good: float) -> str:
    return f"{bad:g}+0x{BAD} {good:g}+0x{GOOD}"


def counter(step: float = 2) -> str:
    return f"0+{step:g}x{BAD} {step * BAD:g}+0x{GOOD}"


ALWAYS = f"+0x{BAD + GOOD}"
B = '{cluster="c", broker_name="a", broker_id="1"}'
CASES: dict[str, dict[str, str]] = {
    "KeelmqNoControllerLeader": {"rocketmq_controller_active": gauge(0, 1)},
    "KeelmqControllerMissing": {
        "rocketmq_controller_raft_connected_members": gauge(1, 2),
        "rocketmq_controller_raft_members": "3" + ALWAYS,
    },
    "KeelmqControllerStoreGrows": {"dledger_disk_usage_bytes": gauge(2_000_000_000, 1_000)},
    "KeelmqControllerSlowDisk": {
        "rocketmq_controller_raft_sync_seconds_sum": f"0+1x{BAD} {BAD}+0.01x{GOOD}",
        "rocketmq_controller_raft_sync_seconds_count": f"0+10x{BAD + GOOD}",
    },
    "KeelmqControllerHandlerBug": {
        'rocketmq_controller_requests_total{response_code="INTERNAL_ERROR"}': counter()
    },
    "KeelmqControllerUnverifiedPeers": {
        'rocketmq_controller_raft_refused_connections_total{reason="wrong key"}': counter()
    },
    "KeelmqControllerCertificateExpires": {
        "rocketmq_controller_raft_certificate_end_seconds": gauge(86_400, 1e9)
    },
    "KeelmqHeartbeatLate": {
        'rocketmq_controller_heartbeat_age_seconds{node_id="n0", broker_name="a"}': gauge(8, 1),
        'rocketmq_controller_active{node_id="n0"}': "1" + ALWAYS,
    },
    "KeelmqRepeatedElections": {
        'rocketmq_controller_elections_total{result="new_master_elected"}': counter(0.2)
    },
    "KeelmqGroupWithoutMaster": {"rocketmq_controller_group_without_master_seconds": gauge(30, 0)},
    "KeelmqTwoMasters": {
        f"rocketmq_broker_role{B}": "1" + ALWAYS,
        'rocketmq_broker_role{cluster="c", broker_name="a", broker_id="2"}': gauge(1, 0),
    },
    "KeelmqTooFewInSync": {
        f"rocketmq_syncstateset_size{B}": gauge(1, 2),
        f"rocketmq_min_in_sync_replicas{B}": "2" + ALWAYS,
    },
    "KeelmqDispatchBehind": {"rocketmq_storage_dispatch_behind_bytes": gauge(100_000_000, 0)},
    "KeelmqReplicaLags": {"rocketmq_ha_replica_lag_seconds": gauge(40, 0)},
    "KeelmqNothingConfirmed": {
        f"rocketmq_max_offset{B}": "1000" + ALWAYS,
        f"rocketmq_confirm_offset{B}": gauge(500, 1_000),
        f"rocketmq_broker_role{B}": "1" + ALWAYS,
    },
    "KeelmqMasterFenced": {"rocketmq_broker_fenced": gauge(1, 0)},
    "KeelmqMasterIsolated": {"rocketmq_broker_isolated": gauge(1, 0)},
    "KeelmqSlaveDisconnected": {"rocketmq_ha_connected": gauge(0, 1)},
    "KeelmqReplicationStopped": {"rocketmq_ha_fault": gauge(1, 0)},
    "KeelmqLogNotHealed": {'rocketmq_heal_failures_total{reason="damaged"}': counter()},
    "KeelmqLogDamaged": {"rocketmq_log_damaged_bytes": gauge(209, 0)},
    "KeelmqDiskFull": {"rocketmq_storage_fault": gauge(1, 0)},
    "KeelmqDiskFills": {"rocketmq_storage_used_ratio": gauge(0.86, 0.85)},
    "KeelmqFlushBehind": {"rocketmq_storage_flush_behind_bytes": gauge(1e8, 0)},
    "KeelmqBackgroundTaskDied": {"rocketmq_background_task_deaths_total": counter()},
    "KeelmqConsumerLags": {
        'rocketmq_consumer_lag_latency_milliseconds{is_system="false"}': gauge(600_000, 0)
    },
    "KeelmqDeadLetters": {"rocketmq_send_to_dlq_messages_total": counter()},
    "KeelmqNameServersDisagree": {
        'rocketmq_namesrv_group_master{broker_name="a", node_id="n0", address="x"}': "1" + ALWAYS,
        'rocketmq_namesrv_group_master{broker_name="a", node_id="n1", address="y"}': f"1+0x{BAD} stale",
        'rocketmq_namesrv_group_master{broker_name="a", node_id="n1", address="x"}': f"_x{BAD} 1+0x{GOOD}",
    },
    "KeelmqDown": {'up{job="keelmq"}': gauge(0, 1)},
    "KeelmqNotReady": {"rocketmq_ready": gauge(0, 1)},
    "KeelmqQuarantinedBroker": {"rocketmq_container_quarantined": gauge(1, 0)},
    "KeelmqAuditGaps": {"rocketmq_audit_fault": gauge(1, 0)},
    "KeelmqCertificateExpires": {"rocketmq_tls_certificate_end_seconds": gauge(86_400, 1e9)},
    "KeelmqPasswordGuessing": {'rocketmq_access_refusals_total{reason="signature"}': counter()},
    "KeelmqTelemetryLost": {"rocketmq_telemetry_fault": gauge(1, 0)},
    "KeelmqMetricsOverflow": {"rocketmq_metrics_overflow_series": gauge(5, 0)},
}

FIRST = f"_x{BAD // 2} 1+0x{BAD // 2 + GOOD}"
"""A counter that has no series before its first event, and stays at 1: increase() sees nothing there."""
FIRST_EVENTS = {
    name: dict.fromkeys(CASES[name], FIRST)
    for name in (
        "KeelmqControllerHandlerBug",
        "KeelmqControllerUnverifiedPeers",
        "KeelmqLogNotHealed",
        "KeelmqBackgroundTaskDied",
        "KeelmqDeadLetters",
    )
}


RULES = monitoring.rules()


def dashboard_queries() -> dict[str, list[str]]:
    """Returns the expressions of each dashboard, those of its variables included."""
    found = {}
    for path in sorted((ROOT / "deploy" / "grafana").glob("*.json")):
        model = json.loads(path.read_text())
        queries = [target["expr"] for each in model["panels"] for target in each.get("targets", ())]
        variables = [each for each in model["templating"]["list"] if each["type"] == "query"]
        found[path.name] = [*queries, *(each["query"]["query"] for each in variables)]
    return found


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    assert PROMTOOL is not None
    return subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, check=False, timeout=50)


def test_the_files_are_made_from_their_sources() -> None:
    for path, text in monitoring.files().items():
        assert path.read_text() == text, f"{path}: run .venv/bin/python tools/monitoring.py"


def test_no_expression_names_a_metric_that_no_program_exports() -> None:
    known = documented(TABLES).keys()
    expressions = {rule["alert"]: [rule["expr"]] for rule in RULES} | dashboard_queries()
    assert len(expressions) >= len(RULES) + 5
    for where, queries in expressions.items():
        used = {name for query in queries for name in NAMES.findall(query)}
        assert used <= known, f"{where}: {used - known}"


def test_every_alert_has_a_page_and_every_page_an_alert() -> None:
    pages = {path.stem: path.read_text() for path in (ROOT / "docs" / "runbooks").glob("Keelmq*.md")}
    assert pages.keys() == {rule["alert"] for rule in RULES} == CASES.keys()
    index = (ROOT / "docs" / "runbooks" / "README.md").read_text()
    for rule in RULES:
        page = pages[rule["alert"]]
        assert all(section in page for section in SECTIONS), rule["alert"]
        assert f"\n    {rule['expr']}\n" in page, rule["alert"]
        page_url = f"{monitoring.default_base()}/docs/runbooks/{rule['alert']}.md"
        assert rule["annotations"]["runbook_url"] == page_url
        assert f"({rule['alert']}.md)" in index


def test_every_runbook_url_leads_to_a_page_and_its_anchor() -> None:
    """Alertmanager's templates and Grafana show runbook_url, and want a whole URL."""
    base = monitoring.default_base()
    for rule in RULES:
        url = rule["annotations"]["runbook_url"]
        assert url.startswith(f"{base}/") and base.startswith("https://"), url
        path, _, anchor = url.removeprefix(f"{base}/").partition("#")
        page = (ROOT / path).read_text()
        headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
        assert not anchor or anchor in {each.lower().replace(" ", "-") for each in headings}, url


def test_the_beginning_of_the_urls_is_a_setting() -> None:
    moved = monitoring.with_base(
        monitoring.RULES.read_text(), "https://git.example.com/team/keelmq/-/blob/main/"
    )
    urls = [
        rule["annotations"]["runbook_url"]
        for group in yaml.safe_load(moved)["groups"]
        for rule in group["rules"]
    ]
    assert len(urls) == len(RULES)
    assert all(
        each.startswith("https://git.example.com/team/keelmq/-/blob/main/docs/runbooks/K") for each in urls
    )
    assert monitoring.with_base(moved, monitoring.default_base()) == monitoring.RULES.read_text()
    for wrong in ("", "docs", "ftp://x", "https://a b", "https://a'b"):
        with pytest.raises(ValueError, match="is no URL"):
            monitoring.with_base(moved, wrong)


@needs_promtool
def test_prometheus_understands_every_expression(tmp_path: Path) -> None:
    done = promtool("check", "rules", str(monitoring.RULES))
    assert done.returncode == 0, done.stdout + done.stderr
    queries = [query for found in dashboard_queries().values() for query in found]
    records = [
        {"record": f"dashboard:{number}", "expr": query.replace("$__rate_interval", "1m")}
        for number, query in enumerate(queries)
        if not query.startswith("label_values")
    ]
    path = tmp_path / "dashboards.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": records}]}))
    done = promtool("check", "rules", str(path))
    assert len(records) > 60 and done.returncode == 0, done.stdout + done.stderr


def fire_and_resolve(cases: dict[str, dict[str, str]], directory: Path) -> None:
    """Lets promtool evaluate the alerts with these series."""

    def at(name: str, when: str, value: int) -> dict[str, Any]:
        firing = f'count(ALERTS{{alertname="{name}", alertstate="firing"}}) or vector(0)'
        return {"expr": firing, "eval_time": when, "exp_samples": [{"labels": "{}", "value": value}]}

    files = []
    for rule in RULES:  # each alone: a test evaluates all rules of its files
        name = rule["alert"]
        if name not in cases:
            continue
        test = {
            "interval": INTERVAL,
            "name": name,
            "input_series": [{"series": series, "values": values} for series, values in cases[name].items()],
            "promql_expr_test": [at(name, FIRES_AT, 1), at(name, RESOLVED_AT, 0)],
        }
        rules, path = directory / f"{name}.rules.yaml", directory / f"{name}.yaml"
        rules.write_text(yaml.safe_dump({"groups": [{"name": name, "rules": [rule]}]}))
        made = {"rule_files": [rules.name], "evaluation_interval": INTERVAL, "tests": [test]}
        path.write_text(yaml.safe_dump(made, sort_keys=False))
        files.append(str(path))
    done = promtool("test", "rules", *files)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@needs_promtool
def test_every_alert_fires_and_resolves(tmp_path: Path) -> None:
    fire_and_resolve(CASES, tmp_path)


@pytest.mark.slow
@needs_promtool
def test_the_first_event_of_a_counter_fires_its_alert(tmp_path: Path) -> None:
    fire_and_resolve(FIRST_EVENTS, tmp_path)


@needs_promtool
def test_the_first_event_of_a_counter_is_in_its_panel(tmp_path: Path) -> None:
    """A series that begins with 1 was 0 before: increase() shows nothing of it."""
    queries = {query for found in dashboard_queries().values() for query in found if "increase(" in query}
    labels = '{cluster="c", broker_name="a", consumer_group="g", topic="t", node_id="n", reason="r"}'
    tests = []
    for query in sorted(queries):
        (metric,) = set(NAMES.findall(query))
        shown = re.sub(r"\$(cluster|consumer_group)", ".*", query.replace("$__rate_interval", "1m"))
        values = f"_x{BAD // 2} 1+0x10 4+0x{GOOD}"  # 1 for two minutes, then 4
        at = {"5m20s": [1], "6m30s": [0], "10m": [0]}
        tests.append(
            {
                "interval": INTERVAL,
                "name": query,
                "input_series": [{"series": metric + labels, "values": values}],
                "promql_expr_test": [
                    {
                        "expr": f"sum({shown})",
                        "eval_time": time,
                        "exp_samples": [{"labels": "{}", "value": value} for value in values],
                    }
                    for time, values in at.items()
                ],
            }
        )
    path = tmp_path / "panels.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [], "evaluation_interval": INTERVAL, "tests": tests}))
    done = promtool("test", "rules", str(path))
    assert len(tests) >= 3 and done.returncode == 0, done.stdout + done.stderr


def alerts_of(text: str) -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]}


def test_quick_rules_differ_in_their_spans_only() -> None:
    """The bad day's rules are these, but what they look back at and wait for."""
    span = re.compile(r"\[\w+\]|offset \d\w+")
    text = (ROOT / "deploy" / "prometheus" / "rules.yaml").read_text()
    before, after = alerts_of(text), alerts_of(quickened(text))
    assert before.keys() == after.keys()
    for name, rule in before.items():
        quick = after[name]
        assert span.sub("", quick["expr"]) == span.sub("", rule["expr"]), name
        assert {*span.findall(quick["expr"])} <= {f"[{QUICK_RANGE}]", f"offset {QUICK_RANGE}"}, name
        assert quick.get("for") == (QUICK_FOR if "for" in rule else None), name
        assert (quick["labels"], quick["annotations"]) == (rule["labels"], rule["annotations"])
