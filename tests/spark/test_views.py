"""The views of an output: one row per key, times as timestamps, comments, and what is wrong is counted."""

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from analytics import job
from analytics.compaction.manifest import read_manifests
from keelmq.analytics import AnalyticsError, checks, save, tables
from tests.spark.engine import ENGINE
from tests.spark.histories import START_TS, random_history, write_telemetry

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "notebooks" / "analytics.ipynb"


@pytest.fixture(scope="module")
def out(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After two runs: the second one found more telemetry, so there are compacted files of the first."""
    source, out = tmp_path_factory.mktemp("telemetry"), tmp_path_factory.mktemp("out")
    for seed in range(3):
        write_telemetry(source / f"{seed}" / "telemetry", random_history(seed).records())
        if seed != 1:
            job.run(str(source), str(out), window_ms=10_000)
    return out


@pytest.fixture
def copy(out: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(out, tmp_path / "out"))


def counted(spark: SparkSession, out: Path) -> dict[tuple[str, str], int]:
    """The checks of everything together that found something."""
    rows = checks(spark, str(out)).where("count > 0 AND broker_name IS NULL").collect()
    return {(row["check"], row["of"]): row["count"] for row in rows}


@pytest.mark.smoke
def test_a_row_per_key_of_files_that_count(spark: SparkSession, out: Path) -> None:
    """By hand, the folders have more rows: of replaced files, and of three controllers."""
    views = tables(spark, str(out))
    named = sum(
        part.rows for each in read_manifests(str(out)) for part in each.parts.get("master_sample", ())
    )
    by_hand = sum(pq.read_metadata(path).num_rows for path in out.glob("compacted/master_sample/*/*/*"))
    assert views["master_sample"].count() == named < by_hand
    events = {(each.broker_name, each.event_id) for seed in range(3) for each in random_history(seed).events}
    of_log = views["controller_event"].where("type <> 'snapshot'")
    assert {(row.broker_name, row.event_id) for row in of_log.collect()} == events
    assert of_log.count() == len(events)
    found = counted(spark, out)
    assert not [of for check, of in found if check == "key_twice"]
    assert found["stale_files", "master_sample"] >= 1


def test_times_and_comments(spark: SparkSession, out: Path) -> None:
    views = tables(spark, str(out), prefix="v_")
    assert spark.sql("SELECT min(ts) AS ts FROM v_master_sample").first().ts.year == 2026  # type: ignore[union-attr]
    about = {(row.view, row.column): row for row in views["view_columns"].collect()}
    assert {row.type for (_, column), row in about.items() if column.endswith("_ts")} == {"timestamp"}
    assert [key for key, row in about.items() if not row.comment] == []
    assert {row.view for row in views["view_list"].collect()} == {*views} - {"view_list", "view_columns"}
    assert views["lag_hour"].schema["bytes_p99"].metadata["comment"].startswith("99th percentile of")
    (row,) = views["lag_hour"].select("dt", "hour").distinct().collect()
    assert (str(row.dt), row.hour) == ("2026-01-01", 0)


def test_only_files_of_a_time(spark: SparkSession, out: Path) -> None:
    later = datetime.fromtimestamp(START_TS / 1000 + 3600, UTC)
    views = tables(spark, str(out), since=later, prefix="later_")
    assert {views[name].count() for name in ("master_sample", "controller_event", "lag_minute")} == {0}
    assert views["group_totals"].count() == 3
    assert tables(spark, str(out), until=later, prefix="first_")["lag_minute"].count() > 0


def test_a_column_that_older_files_lack(spark: SparkSession, copy: Path) -> None:
    (part,) = (copy / part.path for each in read_manifests(str(copy)) for part in each.parts["master_sample"])
    pq.write_table(pq.read_table(part).drop_columns(["confirm_us"]), part)
    rows = tables(spark, str(copy))["master_sample"]
    assert rows.count() == rows.where("confirm_us IS NULL").count() > 0


def test_the_run_that_the_pages_are_of(spark: SparkSession, copy: Path) -> None:
    """A run without pages was killed before it wrote them; without current.json there are no tables of it."""
    newest = max(copy.glob("tables/run=*"))
    later = shutil.copytree(newest, newest.with_name(f"run={int(newest.name[4:]) + 3_600_000}"))
    path = later / "fleet" / "part.parquet"
    pq.write_table(pq.read_table(path).slice(0, 1), path)
    assert tables(spark, str(copy))["fleet"].count() == 3
    (copy / "current.json").unlink()
    assert "fleet" not in tables(spark, str(copy))


def test_a_damaged_part_is_named(spark: SparkSession, copy: Path) -> None:
    (part,) = (part for each in read_manifests(str(copy)) for part in each.parts["master_sample"])
    (copy / part.path).write_bytes(b"PAR1 and no more")
    (row,) = checks(spark, str(copy)).where("check = 'bad_parts' AND count > 0").collect()
    assert (row["of"], row["count"]) == ("master_sample", 1)
    assert part.path in row["meaning"]


def test_no_output(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(AnalyticsError, match="run keelmq analytics run first"):
        tables(spark, str(tmp_path))


def test_roll_ups_of_another_version(spark: SparkSession, copy: Path) -> None:
    (manifest,) = (copy / "rollup" / "manifest").glob("*.json")
    manifest.write_text(manifest.read_text().replace('"version":', '"version":9'))
    with pytest.raises(AnalyticsError, match="of another version of KeelMQ"):
        tables(spark, str(copy))


def test_other_formats(spark: SparkSession, out: Path, tmp_path: Path) -> None:
    views = tables(spark, str(out))
    some = {name: views[name] for name in ("lag_histogram_hour", "controller_event")}
    for format in ("delta", "iceberg", "parquet") if ENGINE == "embedded" else ("parquet",):
        for _ in range(2):
            paths = save(some, str(tmp_path / format), format=format)
        read = [spark.read.format(format).load(path).count() for path in paths]
        assert read == [each.count() for each in some.values()]
    if ENGINE != "embedded":
        with pytest.raises(AnalyticsError, match=r"spark\.jars\.packages"):
            save(some, str(tmp_path))
    with pytest.raises(AnalyticsError, match="there are delta, iceberg, parquet"):
        save(some, str(tmp_path), format="csv")


@pytest.mark.skipif(ENGINE != "embedded", reason="it starts the embedded engine, or uses delta")
def test_the_notebook(out: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    monkeypatch.setenv("KEELMQ_OUTPUT", str(out))
    names: dict[str, object] = {}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec("".join(cell["source"]), names)
    assert "found" in names
