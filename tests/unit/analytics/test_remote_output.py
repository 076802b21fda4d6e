"""Pages on an object store, and from there on a disk that a name server reads."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow.fs as pa_fs
import pytest

from analytics import remote_output
from analytics.compaction import storage
from analytics.compaction.storage import RemoteStorage
from analytics.engine.sessions import EMBEDDED, spark_engine
from analytics.errors import AnalyticsError
from analytics.fleet.plan import Fleet, plan
from analytics.fleet.rollup import write_rollups
from analytics.fleet.tables import write_fleet_tables
from analytics.remote_output import Fetch, is_url, publish_pages, read_index
from analytics.rollup import store
from analytics.rollup.store import RollupStore, spark_url
from keelmq.web.page_files import CURRENT, GENERATIONS_KEPT
from keelmq.web.page_reader import PageFiles, generations
from tests.unit.analytics.s3 import s3_server

pytestmark = pytest.mark.timeout(240)

NOW = 1_800_000_000_000
FLEET: Fleet = plan(1, groups=1, hours=1, kinds=("lag",), from_ts=1_767_225_600_000)


@pytest.fixture
def out(tmp_path: Path) -> str:
    return f"s3a://bucket/{tmp_path.name}"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[pa_fs.FileSystem]:
    """The store behind `out`: a real S3 protocol, of a server in this process."""
    with s3_server() as url:
        system, _ = pa_fs.FileSystem.from_uri(url % "")
        system.create_dir("bucket")
        for module in (storage, store, remote_output):
            monkeypatch.setattr(module, "file_system", lambda url: (system, url.removeprefix("s3a://")))
        yield system


def put_rollups(system: pa_fs.FileSystem, tmp_path: Path, out: str) -> int:
    """Returns the moment of the run whose tables are there."""
    local = tmp_path / "local"
    write_rollups(FLEET, local)
    with spark_engine(EMBEDDED) as spark:
        write_fleet_tables(spark, FLEET, local)
    for path in filter(Path.is_file, local.rglob("*")):
        with system.open_output_stream(f"bucket/{tmp_path.name}/{path.relative_to(local)}") as file:
            file.write(path.read_bytes())
    (run_ts,) = RollupStore(out).runs()
    return run_ts


@pytest.mark.slow
def test_pages_go_there_and_back(bucket: pa_fs.FileSystem, out: str, tmp_path: Path) -> None:
    run_ts, seen = put_rollups(bucket, tmp_path, out), tmp_path / "seen"
    with pytest.raises(AnalyticsError, match=r"has no current\.json yet"):
        Fetch(out, seen).once()
    assert publish_pages(out, run_ts, wall_clock=lambda: NOW) == f"{out}/current.json"
    there = read_index(out)
    assert (there.groups_total, there.generated_ts) == (1, NOW)
    assert {each.kind for each in there.incidents} == {"lag"}
    fetch = Fetch(out, seen)
    assert fetch.once().files > 3
    files = PageFiles(seen)
    assert files.generation().index == there
    group = there.groups[0]
    assert files.group(files.generation(), group.cluster_name, group.broker_name).series.lag["samples"]
    again = fetch.once()
    assert (again.files, again.files_there) == (0, 1)
    for _ in range(GENERATIONS_KEPT + 1):  # the clock stands still; generations go on
        publish_pages(out, run_ts, wall_clock=lambda: NOW)
        fetch.once()
    last = NOW + GENERATIONS_KEPT + 1
    assert read_index(out).generated_ts == PageFiles(seen).generation().current.generation == last
    kept = list(range(last - GENERATIONS_KEPT + 1, last + 1))
    assert generations(seen) == kept
    assert sorted(store.folders(bucket, f"bucket/{tmp_path.name}/pages")) == list(map(str, kept))


@pytest.mark.slow
def test_pages_of_a_url_that_was_begun_anew(bucket: pa_fs.FileSystem, out: str, tmp_path: Path) -> None:
    """Its generations may be lower than all that are there, and are shown nevertheless."""
    run_ts, seen = put_rollups(bucket, tmp_path, out), tmp_path / "seen"
    for at in range(GENERATIONS_KEPT):
        publish_pages(out, run_ts, wall_clock=lambda at=at: NOW + at)  # type: ignore[misc]
        Fetch(out, seen).once()
    root = RollupStore(out).place_of_files[1]
    bucket.delete_dir(f"{root}/pages")
    bucket.delete_file(f"{root}/{CURRENT}")
    publish_pages(out, run_ts, wall_clock=lambda: NOW - 1)
    for _ in range(2):
        Fetch(out, seen).once()
        assert PageFiles(seen).generation().index.generated_ts == NOW - 1


@pytest.mark.slow
def test_a_fetch_that_fails_leaves_the_pages_before(
    bucket: pa_fs.FileSystem, out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_ts, seen = put_rollups(bucket, tmp_path, out), tmp_path / "seen"
    publish_pages(out, run_ts, wall_clock=lambda: NOW)
    Fetch(out, seen).once()
    publish_pages(out, run_ts, wall_clock=lambda: NOW + 1)

    def broken(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    with monkeypatch.context() as patch:
        patch.setattr(remote_output, "copy_tree", broken)
        with pytest.raises(OSError, match="no route"):
            Fetch(out, seen).once()
        with pytest.raises(AnalyticsError, match=r"cannot write pages to .*: no route"):
            publish_pages(out, run_ts, wall_clock=lambda: NOW + 2)
    assert PageFiles(seen).generation().index.generated_ts == NOW
    assert read_index(out).generated_ts == NOW + 1
    Fetch(out, seen).once()
    assert PageFiles(seen).generation().index.generated_ts == NOW + 1


def test_pages_that_come_during_a_fetch_are_the_next_ones(
    bucket: pa_fs.FileSystem, out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is copied is what current.json of the copy names."""
    run_ts, seen = put_rollups(bucket, tmp_path, out), tmp_path / "seen"
    publish_pages(out, run_ts, wall_clock=lambda: NOW)
    read, published = RemoteStorage.read, list[str]()

    def read_then_publish(self: RemoteStorage, name: str) -> bytes:
        content = read(self, name)
        if name == CURRENT and not published:
            published.append(name)
            publish_pages(out, run_ts, wall_clock=lambda: NOW + 1)
        return content

    with monkeypatch.context() as patch:
        patch.setattr(RemoteStorage, "read", read_then_publish)
        Fetch(out, seen).once()
    assert published and PageFiles(seen).generation().index.generated_ts == NOW
    Fetch(out, seen).once()
    assert PageFiles(seen).generation().index.generated_ts == NOW + 1


def test_tables_of_runs(bucket: pa_fs.FileSystem, out: str) -> None:
    """A store renames no folder: a run's tables have their name from the start."""
    runs = RollupStore(out)
    for run_ts in (3, 20, 100):
        _, root = runs.place_of_files
        with bucket.open_output_stream(f"{root}/{runs.begin_run(run_ts)}/t/1") as file:
            file.write(b"x")
        runs.end_run(run_ts)
    runs.delete_runs(2)
    assert runs.runs() == [20, 100]


def test_what_is_a_url() -> None:
    assert [is_url(each) for each in ("/data", "data", "file:///data", "s3a://b", "hdfs://n/x")] == [
        0,
        0,
        0,
        1,
        1,
    ]
    assert spark_url("s3://bucket/x") == "s3a://bucket/x"
    assert spark_url("hdfs://n/x") == "hdfs://n/x"
