"""The whole job on files: tables, dashboard.json, and what a failed run leaves behind."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from analytics import job
from analytics.dashboard import Dashboard, Rows
from analytics.inputs import find_inputs, read_records
from analytics.job import AnalyticsError
from keelmq.remoting.records import ControllerEvent, HaSample
from tests.spark import model
from tests.spark.conftest import add_line
from tests.spark.histories import History, random_history, write_telemetry

pytestmark = pytest.mark.spark

TABLES = {
    "confirm_offset_lag", "lag_histogram", "replica_lag", "sync_state_set_changes", "membership",
    "replica_out_of_sync", "failovers", "group_totals", "data_quality",
}  # fmt: skip
WINDOW_MS = 60_000
Run = Callable[..., Path]


@pytest.fixture(scope="module")
def run(spark: SparkSession) -> Iterator[Run]:
    """The job in the session of all tests."""

    @contextmanager
    def same_session(**_: object) -> Iterator[SparkSession]:
        yield spark
        spark.catalog.clearCache()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "spark_session", same_session)
        yield lambda source, out, **more: job.run(str(source), str(out), **more)


@pytest.fixture(scope="module")
def histories() -> list[History]:
    return [random_history(seed, is_messy=seed % 2 == 0) for seed in range(4)]


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
    said: list[str] = []
    path = run(source, out, window_ms=WINDOW_MS, wall_clock=lambda: 1_000, progress=said.append)
    assert path == out / "dashboard.json"
    files = sum(1 for path in source.rglob("*.jsonl*") if path.is_file())
    assert said[0].startswith(f"4 telemetry folders, {files} files, ")
    return out


def read(out: Path) -> Dashboard:
    return msgspec.json.decode((out / "dashboard.json").read_bytes(), type=Dashboard)


@pytest.mark.smoke
def test_what_was_read(out: Path, histories: list[History]) -> None:
    found = read(out)
    everything = [record for history in histories for record in history.records()]
    times = [record.ts for record in everything]
    assert (found.from_ts, found.to_ts) == (min(times), max(times))
    assert (found.generated_ts, found.window_ms, found.rows.corrupt) == (1_000, WINDOW_MS, 1)
    assert found.rows.controller_event == sum(isinstance(each, ControllerEvent) for each in everything)
    assert [group.broker_name for group in found.groups] == [history.broker_name for history in histories]
    assert {each.name for each in (out / "run=1000").iterdir()} == TABLES


def test_each_group(out: Path, histories: list[History]) -> None:
    found = read(out)
    for group, history in zip(found.groups, histories, strict=True):
        masters = [each for each in history.samples if each.role == "master"]
        lags = [each for each in masters if each.confirm_offset <= each.max_offset]
        assert sum(group.lag.samples) == len(lags)
        assert len({len(getattr(group.lag, name)) for name in group.lag.__struct_fields__}) == 1
        assert group.lag.ts == sorted(set(group.lag.ts))
        assert {each.broker_id for each in group.replica_lag} == {
            replica.broker_id for each in masters for replica in each.replicas
        }
        spans = {
            member.broker_id: [(span.from_ts, span.to_ts, span.state) for span in member.spans]
            for member in group.members
        }
        assert spans == model.membership(history, found.to_ts, WINDOW_MS)
        failovers = model.failovers(history)
        assert [each.elected_ts for each in group.failovers] == [each.elected_ts for each in failovers]
        ids = [change.event_id for change in group.changes]
        assert ids == sorted(ids)
    assert sum(len(group.changes) for group in found.groups) > 12


def test_totals(out: Path, histories: list[History]) -> None:
    found = read(out)
    for group, history in zip(found.groups, histories, strict=True):
        totals = msgspec.structs.asdict(group.totals)
        out_of_sync = {str(member.broker_id): 0 for member in group.members}
        for (broker_id, _), ms in model.out_of_sync(history, found.to_ts, WINDOW_MS).items():
            out_of_sync[str(broker_id)] += ms
        minimum = model.newest_minimum(history.samples)
        assert totals == model.counts(history) | {
            "below_min_ms": model.below_min_ms(history, found.to_ts, minimum, WINDOW_MS),
            "out_of_sync_ms": out_of_sync,
        }


def test_the_shape_is_the_one_that_the_page_draws(out: Path) -> None:
    """Against the example that the web tests draw: the same keys, at every depth."""
    example = Path(__file__).parent.parent / "fixtures" / "dashboard" / "example.json"
    ours = msgspec.json.decode((out / "dashboard.json").read_bytes())
    assert keys_of(ours) == keys_of(msgspec.json.decode(example.read_bytes()))


def keys_of(value: Any, at: str = "") -> set[str]:
    if isinstance(value, dict):
        if at.endswith("out_of_sync_ms"):
            return {at}
        return {
            found for key, each in value.items() for found in {f"{at}.{key}", *keys_of(each, f"{at}.{key}")}
        }
    if isinstance(value, list):
        return {found for each in value for found in keys_of(each, f"{at}[]")}
    return set()


def test_again_is_the_same_and_old_runs_go(run: Run, source: Path, out: Path) -> None:
    first = read(out)
    for older in (1, 2, 3):
        (out / f"run={older}").mkdir()
    run(source, out, window_ms=WINDOW_MS, wall_clock=lambda: 1_000)  # a clock that stands still
    assert msgspec.structs.replace(read(out), generated_ts=1_000) == first
    assert sorted(each.name for each in out.iterdir()) == [
        "dashboard.json", "run=1000", "run=1001", "run=3",
    ]  # fmt: skip
    assert contents(out / "run=1000") == contents(out / "run=1001")


def contents(directory: Path) -> dict[str, list[bytes]]:
    return {
        table.name: [part.read_bytes() for part in sorted(table.glob("*.parquet"))]
        for table in directory.iterdir()
    }


def test_a_failed_run_leaves_the_old_dashboard(
    run: Run, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dashboard.json").write_text("old")
    monkeypatch.setattr(job, "lag_histogram", lambda samples, window_ms: samples.select("no_such_column"))
    with pytest.raises(AnalyticsError, match=r"Spark failed: .*no_such_column") as raised:
        run(source, tmp_path)
    assert "\n" not in str(raised.value)
    assert [each.name for each in tmp_path.iterdir()] == ["dashboard.json"]
    assert (tmp_path / "dashboard.json").read_text() == "old"


def test_an_error_in_a_task_is_one_line(spark: SparkSession) -> None:
    with pytest.raises(job.SPARK_ERRORS) as raised:
        spark.range(3).select(F.assert_true(F.col("id") < 2, F.lit("too large"))).collect()
    assert "too large" in job.spark_error(raised.value)
    assert "\n" not in job.spark_error(raised.value)


def test_a_file_that_is_renamed_while_it_is_read(spark: SparkSession, tmp_path: Path) -> None:
    """The hour of a *.jsonl.open ends between listing and reading: everything is read once more."""
    root = write_telemetry(tmp_path, random_history(1).samples, suffix=".jsonl.open")
    (growing,) = root.rglob("*.open")
    said: list[str] = []
    one = job._Job(spark, find_inputs(str(root)), tmp_path / "run=1", said.append)
    counts: list[int] = []

    def compute() -> Dashboard:
        frame = read_records(spark, [str(root)], HaSample)
        if growing.exists():
            growing.rename(growing.with_suffix(""))
        counts.append(len(frame.collect()))
        return Dashboard(generated_ts=1, from_ts=1, to_ts=1, window_ms=1, inputs=[], rows=Rows(), groups=[])

    one.again_if_a_file_went(compute)
    assert counts == [len(random_history(1).samples)]
    assert len(said) == 1


def test_only_samples(run: Run, tmp_path: Path) -> None:
    """Brokers without controllers in the input: lag and nothing else. Above max: no lag, but a question."""
    sample = next(each for each in random_history(3).samples if each.role == "master")
    fine = msgspec.structs.replace(sample, confirm_offset=sample.max_offset)
    above = msgspec.structs.replace(sample, confirm_offset=sample.max_offset + 1)
    of_a_slave = msgspec.structs.replace(above, role="slave")
    run(write_telemetry(tmp_path / "in", [fine, above, of_a_slave]), tmp_path / "out")
    found = read(tmp_path / "out")
    assert (found.rows.ha_sample, found.rows.confirm_above_max) == (3, 1)
    (group,) = found.groups
    assert (group.lag.samples, group.lag.bytes_p99) == ([1], [0])
    assert (group.members, group.changes, group.failovers) == ([], [], [])
    assert group.totals.elections == 0


def test_only_damage(run: Run, tmp_path: Path) -> None:
    root = write_telemetry(tmp_path / "in", random_history(1).samples[:1])
    (path,) = root.rglob("*.jsonl")
    path.write_bytes(b"{\n{\n")
    with pytest.raises(AnalyticsError, match=r"no record in .* could be read: 2 corrupt lines"):
        run(root, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_window_that_is_too_fine() -> None:
    with pytest.raises(
        AnalyticsError, match=r"windows of 1000 ms make 3601 points .* ask for 5000 ms or more"
    ):
        job.checked_window_ms(1_000, 0, 3_600_000)
    assert job.checked_window_ms(2_000, 0, 3_600_000) == 2_000
    assert job.checked_window_ms(None, 0, 3_600_000) == 5_000


def test_an_output_that_cannot_be_written(run: Run, source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AnalyticsError, match=r"cannot write .*file: "):
        run(source, tmp_path / "file")
    with pytest.raises(AnalyticsError, match="must be a directory"):
        run(source, "s3a://bucket/out")
