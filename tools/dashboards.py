"""Makes Grafana's models of dashboards from deploy/grafana/dashboards.yaml, for tools/monitoring.py.

A dashboard there is {title, variables: [{name, metric, label}], rows: {title: [{title, unit, kind, queries:
[{expr, legend}]}]}}.
"""

from typing import Any, Final

SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT, PER_ROW = 8, 8, 3


def as_json(name: str, dashboard: dict[str, Any]) -> dict[str, Any]:
    """Returns the model that Grafana imports (10 and later)."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in dashboard["rows"].items():
        panels.append({"type": "row", "title": title, "gridPos": _place(0, y, 24, 1), "panels": []})
        for number, each in enumerate(row):
            x, line = number % PER_ROW * WIDTH, number // PER_ROW
            panels.append(_panel(each, _place(x, y + 1 + line * HEIGHT, WIDTH, HEIGHT)))
        y += 1 + -(-len(row) // PER_ROW) * HEIGHT
    for number, made in enumerate(panels, 1):
        made["id"] = number
    return {
        "uid": f"keelmq-{name}",
        "title": dashboard["title"],
        "tags": ["keelmq"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source_variable(), *map(_variable, dashboard["variables"])]},
        "panels": panels,
    }


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"h": height, "w": width, "x": x, "y": y}


def _panel(each: dict[str, Any], place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + number),
            "datasource": SOURCE,
            "expr": query["expr"],
            "legendFormat": query.get("legend", ""),
        }
        for number, query in enumerate(each["queries"])
    ]
    return {
        "type": each.get("kind", "timeseries"),
        "title": each["title"],
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": each.get("unit", "short")}, "overrides": []},
        "targets": targets,
    }


def _source_variable() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "data source"}


def _variable(variable: dict[str, str]) -> dict[str, Any]:
    name = variable["name"]
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": f"label_values({variable['metric']}, {variable['label']})", "refId": name},
        "includeAll": True,
        "multi": True,
        "refresh": 2,
        "current": {"text": "All", "value": "$__all"},
    }
