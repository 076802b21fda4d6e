"""--keep-days: what is deleted, what stays, that it stays away, and a kill at each deletion."""

from pathlib import Path

import pyarrow.fs as pa_fs
import pytest

from analytics import retention
from analytics.compaction import storage
from analytics.compaction.kept import kept_from
from analytics.compaction.manifest import read_manifests
from analytics.compaction.retention import delete_sources
from analytics.compaction.scan import find_sources
from analytics.compaction.storage import LocalStorage
from analytics.retention import prune
from analytics.rollup import store
from keelmq.remoting.records import ClockSample
from tests.unit.analytics.compaction.model import HOUR, run, write
from tests.unit.analytics.s3 import s3_server

DAY_MS = 86_400_000
DAYS = 4
NOW = HOUR + DAYS * DAY_MS


class Killed(BaseException):
    pass


def sample(ts: int) -> ClockSample:
    return ClockSample(
        ts=ts, cluster_name="c", broker_name="b", broker_id=1, controller_id="n1", offset_ms=0, heartbeats=1
    )


def history(tmp_path: Path) -> tuple[Path, Path]:
    """Days of telemetry, compacted; and files like those of roll-ups."""
    root, out = tmp_path / "in", tmp_path / "out"
    for day in range(DAYS):
        ts = HOUR + day * DAY_MS
        write(root, [sample(ts), sample(ts + 1)], f"n-{day}.jsonl", ts)
        # a broker's file that has a line of the first day, too
        write(root, [sample(ts + 2), sample(HOUR + 10 + day)], f"late-{day}.jsonl", ts)
        for name in ("lag/window=60000", "lag/window=3600000"):
            part = out / f"rollup/{name}/dt=2026-01-{day + 1:02}/hour=00/part.parquet"
            part.parent.mkdir(parents=True)
            part.write_bytes(b"x")
        manifest = out / f"rollup/manifest/dt=2026-01-{day + 1:02}-hour=00.json"
        manifest.parent.mkdir(parents=True, exist_ok=True)
        manifest.write_bytes(b"{}")
    run(root, out)
    return root, out


def pruned(out: Path | str, keep_days: int, said: list[str] | None = None) -> int:
    progress = (said if said is not None else []).append
    return prune(str(out), read_manifests(str(out)), keep_days=keep_days, now_ms=NOW, progress=progress)


def names(out: Path) -> set[str]:
    return {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}


def test_older_days_go_everywhere_and_stay_away(tmp_path: Path) -> None:
    root, out = history(tmp_path)
    before = {str(each) for each in names(out)}
    said: list[str] = []
    assert pruned(out, 2, said) == HOUR + 2 * DAY_MS
    assert said == [
        "--keep-days 2: deleting 2 hours, 10 rows, of 2026-01-01 to 2026-01-02; "
        "totals and membership begin after them"
    ]
    gone = before - names(out)
    assert gone and all("2026-01-01" in each or "2026-01-02" in each for each in gone)
    assert not any("2026-01-01" in each or "2026-01-02" in each for each in names(out))
    left = read_manifests(str(out))
    assert [each.hour_ts for each in left] == [HOUR + 2 * DAY_MS, HOUR + 3 * DAY_MS]
    assert run(root, out) == [], "telemetry that is still there is not compacted again"
    write(root, [sample(HOUR + 99), sample(HOUR + 3 * DAY_MS + 99)], "new.jsonl", HOUR + 3 * DAY_MS)
    (manifest,) = run(root, out)
    assert (manifest.hour_ts, manifest.counts["clock_sample"].rows) == (HOUR + 3 * DAY_MS, 4)
    assert run(root, out) == []
    said.clear()
    assert pruned(out, 30, said) == HOUR + 2 * DAY_MS, "a longer time does not bring them back"
    assert said == []


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_older_days_of_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stays is what stays of a directory."""
    _, out = history(tmp_path)
    with s3_server() as url:
        system, _ = pa_fs.FileSystem.from_uri(url % "")
        system.create_dir("bucket")
        for name in names(out) - {"compacted/.lock"}:
            with system.open_output_stream(f"bucket/out/{name}") as file:
                file.write((out / name).read_bytes())
        for module in (storage, store):
            monkeypatch.setattr(module, "file_system", lambda url: (system, url.removeprefix("s3a://")))
        for _ in range(2):
            assert pruned("s3a://bucket/out", 2) == HOUR + 2 * DAY_MS
            assert [each.hour_ts for each in read_manifests("s3a://bucket/out")] == [
                HOUR + 2 * DAY_MS, HOUR + 3 * DAY_MS
            ]  # fmt: skip
        infos = system.get_file_info(pa_fs.FileSelector("bucket/out", recursive=True))
        found = {each.path.removeprefix("bucket/out/") for each in infos if each.type == pa_fs.FileType.File}
    pruned(out, 2)
    assert found == names(out) - {"compacted/.lock"}


def test_all_days_are_kept(tmp_path: Path) -> None:
    _, out = history(tmp_path)
    before = names(out)
    assert pruned(out, DAYS) == HOUR
    assert names(out) - before == {"compacted/kept_from.json"}


def test_a_wrong_clock_deletes_nothing(tmp_path: Path) -> None:
    root, out = history(tmp_path)
    write(root, [sample(HOUR + 900 * DAY_MS)], "future.jsonl", HOUR)
    run(root, out)
    assert pruned(out, DAYS) == HOUR


def test_sources_with_lines_of_deleted_days_can_be_deleted(tmp_path: Path) -> None:
    root, out = history(tmp_path)
    pruned(out, 1)
    assert delete_sources(find_sources([str(root)]), str(out), wall_clock=lambda: NOW) == 2
    assert {path.name for path in root.rglob("*3.jsonl")} == set()


@pytest.mark.slow
def test_killed_at_each_deletion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No manifest names what is gone, no deleted day comes back, and the next run ends where it should."""
    _, whole = history(tmp_path / "whole")
    pruned(whole, 2)
    for at in range(20):
        _, out = history(tmp_path / str(at))
        if not killed_after(at, out, monkeypatch):
            return
        for manifest in read_manifests(str(out)):
            assert all((out / path).exists() for path in manifest.paths())
        assert kept_from(LocalStorage(out)) > HOUR, "before anything is deleted"
        pruned(out, 2)
        assert {each for each in names(out) if "/dt=" in each} == {
            each for each in names(whole) if "/dt=" in each
        }
    raise AssertionError("more deletions than expected")


def killed_after(deletions: int, out: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Prunes, and returns whether it was killed."""
    delete, left = retention.delete, deletions

    def slow_delete(system: pa_fs.FileSystem, info: pa_fs.FileInfo) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        delete(system, info)

    with monkeypatch.context() as patch:
        patch.setattr(retention, "delete", slow_delete)
        try:
            pruned(out, 2)
        except Killed:
            return True
    return False
