"""The whole job on files: compaction, roll-ups, tables, pages, and what a failed run leaves behind."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
import pyarrow.fs as pa_fs
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from analytics import job, remote_output
from analytics.compaction import storage
from analytics.compaction.lock import locked
from analytics.engine import errors as engine_errors
from analytics.job import AnalyticsError
from analytics.rollup import store
from keelmq.remoting.records import ControllerEvent, HaSample, Record, name_of
from keelmq.web.page_reader import GroupAnswer, PageFiles
from tests.spark import model
from tests.spark.conftest import add_line
from tests.spark.engine import ENGINE
from tests.spark.histories import CLUSTER, History, random_history, write_telemetry
from tests.unit.analytics.s3 import s3_server

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

WINDOW_MS = 10_000
NOW = 1_800_000_000_000
Run = Callable[..., str]


@pytest.fixture(scope="module")
def run(spark: SparkSession) -> Run:
    """The job in the session of all tests, which is there already."""
    return lambda source, out, **more: job.run(
        str(source), str(out), **{"window_ms": WINDOW_MS, "wall_clock": lambda: NOW} | more
    )


@pytest.fixture(scope="module")
def histories() -> list[History]:
    return [random_history(seed) for seed in range(4)]


@pytest.fixture(scope="module")
def source(histories: list[History], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a demo leaves it: a telemetry folder per program."""
    root = tmp_path_factory.mktemp("demo")
    for number, history in enumerate(histories):
        write_telemetry(root / f"program-{number}" / "telemetry", history.records())
    add_line(root / "program-0" / "telemetry", b'{"record":"ha_sample","v":1,"ts":17672')
    return root


@pytest.fixture(scope="module")
def out(run: Run, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output directory after one run, of an input with a group per history."""
    out = tmp_path_factory.mktemp("out")
    assert run(source, out) == str(out / "current.json")
    return out


def group_of(out: Path, name: str) -> GroupAnswer:
    files = PageFiles(out)
    return files.group(files.generation(), CLUSTER, name, step_ms=WINDOW_MS)


@pytest.mark.smoke
def test_what_was_read(out: Path, histories: list[History]) -> None:
    index = PageFiles(out).generation().index
    everything: list[Record] = [record for history in histories for record in history.records()]
    assert (index.generated_ts, index.detail_ms, index.groups_total) == (NOW, WINDOW_MS, len(histories))
    assert index.from_ts == min(record.ts for record in everything) // WINDOW_MS * WINDOW_MS or index.from_ts
    counted = {row["record"]: row for row in index.quality}
    for kind in (ControllerEvent, HaSample):
        of_kind = [each for each in everything if isinstance(each, kind)]
        row = counted[name_of(kind)]
        assert row["rows"] + row["duplicates"] == len(of_kind)
    assert counted["ha_sample"]["bad_lines"] == 1


def test_each_group(out: Path, histories: list[History]) -> None:
    for history in histories:
        found = group_of(out, history.broker_name)
        group = msgspec.json.decode(bytes(found.group))
        masters = [each for each in history.samples if each.role == "master"]
        assert found.series.lag or not masters
        failovers = model.failovers(history)
        assert [each["elected_ts"] for each in group["failovers"]] == [each.elected_ts for each in failovers]
        assert group["totals"]["elections"] == model.counts(history)["elections"]
        assert {each["broker_id"] for each in group["members"]} == {
            broker for event in history.events for broker in (event.after.replicas if event.after else ())
        }


def files_of(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*.parquet")}


def test_what_is_new_is_added_and_equals_a_full_run(
    run: Run, source: Path, out: Path, histories: list[History], tmp_path: Path
) -> None:
    """A late file: its hour is computed again; nothing else is, and nothing differs from a run at once."""
    before = files_of(out / "rollup")
    masters = [each for each in histories[0].samples if each.role == "master"]
    last = max(masters, key=lambda each: each.ts)
    late = [msgspec.structs.replace(last, ts=last.ts + 200 * step) for step in range(1, 5)]
    write_telemetry(source / "late" / "telemetry", late)
    said: list[str] = []
    run(source, out, progress=said.append)
    run(source, tmp_path / "at-once")
    after = files_of(out / "rollup")
    assert after == files_of(tmp_path / "at-once" / "rollup")
    assert after != before
    assert files_of(out / "compacted").items() >= files_of(tmp_path / "at-once" / "compacted").items()
    newest = [max((each / "tables").glob("run=*")) for each in (out, tmp_path / "at-once")]
    tables = [{Path(name).parent: data for name, data in files_of(each).items()} for each in newest]
    assert tables[0] == tables[1]
    said.clear()
    run(source, out, progress=said.append)
    assert not any("rolling up" in each for each in said)
    assert files_of(out / "rollup") == after


def test_a_failed_run_leaves_the_old_pages(
    run: Run, source: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(spark: SparkSession, *_: object, **__: object) -> None:
        spark.range(1).select("no_such_column").collect()

    before = (out / "current.json").read_bytes()
    monkeypatch.setattr(job, "roll_up", broken)
    with pytest.raises(AnalyticsError, match=r"Spark failed: .*no_such_column") as raised:
        run(source, out)
    assert "\n" not in str(raised.value)
    assert (out / "current.json").read_bytes() == before


def test_an_error_in_a_task_is_one_line(spark: SparkSession) -> None:
    with pytest.raises(engine_errors.SPARK_ERRORS) as raised:
        spark.range(3).select(F.assert_true(F.col("id") < 2, F.lit("too large"))).collect()
    assert "too large" in engine_errors.engine_error(raised.value)
    assert "\n" not in engine_errors.engine_error(raised.value)


def test_only_samples(run: Run, tmp_path: Path) -> None:
    """Brokers without controllers in the input: lag and nothing else. Above max: no lag, but a question."""
    sample = next(each for each in random_history(3).samples if each.role == "master")
    fine = msgspec.structs.replace(sample, confirm_offset=sample.max_offset)
    above = msgspec.structs.replace(sample, ts=sample.ts + 1, confirm_offset=sample.max_offset + 1)
    of_a_slave = msgspec.structs.replace(above, ts=sample.ts + 2, role="slave")
    stray = msgspec.structs.replace(fine, ts=3_000)  # a clock of 1970
    said: list[str] = []
    root = write_telemetry(tmp_path / "in", [fine, above, of_a_slave, stray])
    run(root, tmp_path / "out", progress=said.append)
    found = group_of(tmp_path / "out", sample.broker_name)
    group = msgspec.json.decode(bytes(found.group))
    assert [n for n in found.series.lag["samples"] if n is not None] == [1]
    assert [n for n in found.series.lag["bytes_p99"] if n is not None] == [0]
    assert (group["members"], group["changes"], group["failovers"]) == ([], [], [])
    assert sum("before 2015 (wrong clocks)" in each for each in said) == 1
    quality = {row["record"]: row for row in PageFiles(tmp_path / "out").generation().index.quality}
    assert (quality["ha_sample"]["rows"], quality["ha_sample"]["outliers"]) == (3, 1)


def test_an_hour_that_turns_out_to_be_of_a_wrong_clock(run: Run, tmp_path: Path) -> None:
    """Among the few rows of a first run it is too large a share to be left out, and is rolled up."""
    sample = next(each for each in random_history(3).samples if each.role == "master")
    stray = msgspec.structs.replace(sample, ts=sample.ts - 30 * 24 * 3_600_000)
    root, out = write_telemetry(tmp_path / "in", [sample, stray]), tmp_path / "out"
    run(root, out)
    assert PageFiles(out).generation().index.from_ts <= stray.ts
    more = [msgspec.structs.replace(sample, ts=sample.ts + at) for at in range(3_000)]
    write_telemetry(tmp_path / "in", more)
    for _ in range(2):
        run(root, out)
        index = PageFiles(out).generation().index
        assert 0 <= sample.ts - index.from_ts < WINDOW_MS
    left = {path for path in (out / "rollup").rglob("*") if path.is_file()}
    assert not any(time.strftime("dt=%Y-%m-%d", time.gmtime(stray.ts / 1_000)) in str(path) for path in left)


def test_a_run_of_another_span(run: Run, tmp_path: Path) -> None:
    """Pages and tables are of the hours of the newest run, whatever an earlier run has rolled up."""
    sample = next(each for each in random_history(3).samples if each.role == "master")
    early = msgspec.structs.replace(sample, ts=sample.ts - 3 * 3_600_000)
    root, out = write_telemetry(tmp_path / "in", [early, sample]), tmp_path / "out"
    bounds = {"from_ts": sample.ts, "to_ts": sample.ts + 1}
    for more, first in (({}, early), (bounds, sample), ({}, early)):
        run(root, out, **more)
        index = PageFiles(out).generation().index
        assert 0 <= first.ts - index.from_ts < WINDOW_MS
        lag = group_of(out, sample.broker_name).series.lag["samples"]
        assert sum(filter(None, lag)) == index.quality[0]["rows"] == (1 if more else 2)


def test_two_at_once(run: Run, source: Path, out: Path) -> None:
    before = (out / "current.json").read_bytes()
    with (
        storage.open_storage(str(out)) as there,
        locked(there, store.ROLLUP, "analytics run"),
        pytest.raises(AnalyticsError, match=r"another analytics run \(process \d+\)"),
    ):
        run(source, out)
    assert (out / "current.json").read_bytes() == before


def test_only_damage(run: Run, tmp_path: Path) -> None:
    root = write_telemetry(tmp_path / "in", random_history(1).samples[:1])
    (path,) = root.rglob("*.jsonl")
    path.write_bytes(b"{\n{\n")
    with pytest.raises(AnalyticsError, match=r"no record to analyse: .*; 2 damaged lines"):
        run(root, tmp_path / "out")
    assert not (tmp_path / "out" / "current.json").exists()


def test_an_output_that_cannot_be_written(run: Run, source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AnalyticsError, match=r"cannot write .*file"):
        run(source, tmp_path / "file")


def test_a_part_that_is_damaged_is_named(run: Run, source: Path, tmp_path: Path) -> None:
    """It has its size, and is read by the roll-up, or by the queries of the whole run."""
    run(source, tmp_path / "out")
    for table in ("master_sample", "role_change"):
        part = next((tmp_path / "out" / "compacted" / table).rglob("*.parquet"))
        content = part.read_bytes()
        part.write_bytes(content[:4] + bytes(len(content) - 4))
        shutil.rmtree(tmp_path / "out" / "rollup" / "manifest", ignore_errors=True)
        with pytest.raises(AnalyticsError, match=part.name) as raised:
            run(source, tmp_path / "out")
        assert "\n" not in str(raised.value)
        part.write_bytes(content)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_output_in_an_object_store(
    run: Run, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine reads it by itself, with the credentials of the environment; what is in it is what a run
    with a local output writes. A program of its own: an engine looks at the environment when it starts."""
    if ENGINE != "embedded":
        pytest.skip("classic Spark needs hadoop-aws, which is no package of pip")
    with s3_server() as url:
        endpoint = parse_qs(urlsplit(url).query)["endpoint_override"][0]
        system, _ = pa_fs.FileSystem.from_uri(url % "")
        system.create_dir("bucket")
        environ = {"AWS_ENDPOINT_URL": f"http://{endpoint}", "AWS_REGION": "us-east-1"}
        environ |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        arguments = [
            "run",
            "--input",
            str(source),
            "--output",
            "s3a://bucket/out",
            "--window-ms",
            str(WINDOW_MS),
        ]
        subprocess.run(
            [sys.executable, "-m", "cli.keelmq", "analytics", *arguments],
            env=os.environ | environ,
            check=True,
        )
        run(source, tmp_path / "local")
        found = system.get_file_info(pa_fs.FileSelector("bucket/out/rollup", recursive=True))
        there = {
            each.path.removeprefix("bucket/out/rollup/"): system.open_input_file(each.path).read()
            for each in found
            if each.path.endswith(".parquet")
        }
        assert there and there == files_of(tmp_path / "local" / "rollup")


@pytest.mark.timeout(600)
def test_an_output_that_is_a_url(
    run: Run, source: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark writes through Hadoop's file system of a URL, pyarrow through its own; both are one directory
    here, and what is in it is what a run with a local output writes."""
    there = tmp_path / "there"
    there.mkdir()
    if ENGINE != "spark":
        pytest.skip("only Hadoop has this file system")
    spark.conf.set("fs.viewfs.mounttable.bucket.link./out", f"file://{there}")

    def opened(url: str) -> tuple[pa_fs.FileSystem, str]:
        return pa_fs.LocalFileSystem(), f"{there}{url.removeprefix('viewfs://bucket/out')}"

    for module in (storage, store, remote_output):
        monkeypatch.setattr(module, "file_system", opened)
    url = "viewfs://bucket/out"
    assert run(source, url, keep_days=1_000) == f"{url}/current.json"
    run(source, tmp_path / "local")
    assert files_of(there / "rollup") == files_of(tmp_path / "local" / "rollup")
    assert files_of(there / "compacted") == files_of(tmp_path / "local" / "compacted")
    tables = [
        {Path(name).parent: data for name, data in files_of(each / "tables").items()}
        for each in (there, tmp_path / "local")
    ]
    assert tables[0] == tables[1]
    assert remote_output.read_index(url) == PageFiles(tmp_path / "local").generation().index
