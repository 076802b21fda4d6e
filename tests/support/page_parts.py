"""Page files without pyarrow: of one small real demo, and of any groups a test wants."""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from keelmq.web.page_files import (
    CURRENT,
    GROUP,
    INDEX,
    PAGES,
    Current,
    Incident,
    Index,
    IndexGroup,
    ReplicaSeries,
    Series,
    escaped,
    packed,
    series_file,
)

EXAMPLE = Path(__file__).parents[1] / "fixtures" / "dashboard" / "example.json"
GENERATION = 1_795_257_679_400
PROBLEMS = ("corrupt", "confirm_above_max", "epoch_gaps")


def example() -> Any:
    return json.loads(EXAMPLE.read_bytes())


def write_example(out: Path, data: Any = None, **index: Any) -> Path:
    """Writes the page files of an example.json; returns `out`."""
    data = data or example()
    start, step = data["from_ts"], data["window_ms"]
    count = (data["to_ts"] - start) // step
    rows, incidents = [], []
    for group in data["groups"]:
        lag = grid(group["lag"], start, step, count)
        series = Series(
            resolution="detail", start_ts=start, step_ms=step, count=count, lag=lag,
            state={"below_min_ms": [0] * count},
            replicas=[
                ReplicaSeries(
                    broker_id=each["broker_id"],
                    columns={**grid(each, start, step, count), "samples": [1] * count},
                )
                for each in group["replica_lag"]
            ],
        )  # fmt: skip
        detail = {
            name: group[name] for name in ("cluster_name", "broker_name", "members", "totals", "changes")
        }
        detail |= {"failovers": group["failovers"], "clock_skew": [], "incidents": []}
        detail["quality"] = [{"record": "ha_sample", "rows": 87, **dict.fromkeys(PROBLEMS, 0)}]
        write_group(out, detail, {series_file("detail", 0): series})
        names = {"cluster_name": group["cluster_name"], "broker_name": group["broker_name"]}
        at = group["failovers"][0]["elected_ts"]
        incidents.append(Incident(kind="failover", **names, replica=1, from_ts=at, to_ts=at + 1, worst=71))
        rows.append(
            IndexGroup(**names, ms_p99=lag["ms_p99"], ms_max=lag["ms_max"], unknown_ms=[0] * count,
                       failovers=3, incidents=1, worst_p99_ms=3, below_min_ms=[0] * count)
        )  # fmt: skip
    found = {
        "generated_ts": GENERATION, "from_ts": start, "to_ts": data["to_ts"] - 1, "start_ts": start,
        "step_ms": step, "columns": count, "detail_ms": step, "resolutions": ["detail"],
        "inputs": data["inputs"],
        "quality": [{"record": name, "rows": n} for name, n in data["rows"].items() if name not in PROBLEMS],
        "groups_total": len(rows), "incidents": incidents, "incidents_total": len(incidents), "groups": rows,
    }  # fmt: skip
    write_index(out, Index(**{**found, **index}))
    return out


def grid(columns: Any, start: int, step: int, count: int) -> dict[str, list[int | None]]:
    found: dict[str, list[int | None]] = {}
    for name, values in columns.items():
        if isinstance(values, list) and name != "ts":
            found[name] = [None] * count
            for ts, value in zip(columns["ts"], values, strict=True):
                found[name][(ts - start) // step] = value
    return found


def write_group(out: Path, detail: Any, series: dict[str, Series], *, generation: int = GENERATION) -> None:
    folder = out / PAGES / str(generation) / "groups"
    folder = folder / escaped(detail["cluster_name"]) / escaped(detail["broker_name"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / GROUP).write_bytes(packed(msgspec.json.encode(detail)))
    for name, each in series.items():
        (folder / name).write_bytes(packed(msgspec.json.encode(each)))


def write_index(out: Path, index: Index, *, generation: int = GENERATION) -> None:
    folder = out / PAGES / str(generation)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / INDEX).write_bytes(packed(msgspec.json.encode(index)))
    (out / CURRENT).write_bytes(
        msgspec.json.encode(Current(generation=generation, interval_ms=index.interval_ms))
    )


def with_groups(names: Sequence[tuple[str, str]]) -> Any:
    """The example, with a copy of its group under each name."""
    data = example()
    first = data["groups"][0]
    data["groups"] = [
        copy.deepcopy(first) | {"cluster_name": cluster, "broker_name": broker} for cluster, broker in names
    ]
    return data
