"""Compaction against a dict by key, whatever files hold the lines, in whatever order they come."""

import dataclasses
import errno
import gzip
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pa_fs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analytics.compaction import compactor, parquet, reading, scan, storage
from analytics.compaction.columns import KINDS
from analytics.compaction.compactor import compact
from analytics.compaction.lock import locked
from analytics.compaction.manifest import HourManifest, read_manifests
from analytics.compaction.reports import NOT_READ
from analytics.compaction.retention import delete_sources
from analytics.compaction.scan import find_sources
from analytics.compaction.storage import open_storage
from analytics.compaction.sweep import KEPT_MS
from analytics.errors import AnalyticsError
from keelmq.remoting.records import ClockSample, HaSample, Record, encode_record, name_of
from keelmq.runtime.clock import wall_ms
from tests.support.slices import share
from tests.unit.analytics.compaction.model import (
    HOUR,
    contents,
    expected,
    file_of,
    projected,
    records_at,
    run,
    table_rows,
    times,
    write,
)

HOUR_MS = 3_600_000
RECORDS = st.lists(records_at(times(2)), max_size=6)
LINE = ClockSample(
    ts=HOUR, cluster_name="c", broker_name="b", broker_id=1, controller_id="n1", offset_ms=0, heartbeats=1
)


@dataclass
class World:
    """A directory of telemetry that changes as real ones do, and every record that was ever readable."""

    root: Path
    seen: list[Record] = field(default_factory=list)
    pending: list[Record] = field(default_factory=list)
    names: int = 0

    def add(self, records: list[Record], suffix: str) -> None:
        self.names += 1
        write(self.root, records, f"n-{self.names}{suffix}", HOUR + self.names % 2 * HOUR_MS)
        self.pending += records

    def grow(self, records: list[Record]) -> None:
        for path in sorted(self.root.rglob("*.open")):
            mine = [record for record in records if name_of(type(record)) == path.parts[-4]]
            with path.open("ab") as file:
                file.writelines(map(encode_record, mine))
            self.pending += mine

    def files(self, pattern: str) -> list[Path]:
        return sorted(self.root.rglob(pattern))

    def copy(self, at: int) -> None:
        if files := self.files("*.jsonl*"):
            path = files[at % len(files)]
            data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            path.with_name(f"copy-{path.name}.jsonl.gz").write_bytes(gzip.compress(data, mtime=0))

    def close(self) -> None:
        for path in self.files("*.open"):
            path.rename(path.with_suffix(""))

    def damage(self, at: int) -> None:
        if files := self.files("*.jsonl"):
            with files[at % len(files)].open("ab") as file:
                file.write(b'[]\n{"record":"ha_samp')

    def delete(self, at: int) -> None:
        """Of files that were compacted."""
        if (files := self.files("*.jsonl*")) and not self.pending:
            files[at % len(files)].unlink()

    def compacted(self) -> None:
        self.seen += self.pending
        self.pending = []


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), RECORDS, st.sampled_from([".jsonl", ".jsonl.open", ".jsonl.gz"])),
        st.tuples(st.just("grow"), RECORDS),
        st.tuples(st.just("copy"), st.integers(0, 9)),
        st.tuples(st.just("close")),
        st.tuples(st.just("damage"), st.integers(0, 9)),
        st.tuples(st.just("delete"), st.integers(0, 9)),
        st.tuples(st.just("compact")),
        st.tuples(st.just("compact")),
    ),
    max_size=12,
)


def compact_world(world: World, out: Path) -> None:
    if world.files("*.jsonl*"):
        run(world.root, out)
    world.compacted()


@settings(max_examples=share(160), deadline=None)
@given(STEPS)
def test_any_history_gives_the_rows_of_a_dict(steps: list[tuple[Any, ...]]) -> None:
    """Step by step, and all at once: the same rows, the same bytes."""
    with tempfile.TemporaryDirectory() as name:
        world, out = World(Path(name) / "in"), Path(name) / "out"
        world.root.mkdir()
        for step, *arguments in steps:
            if step == "compact":
                compact_world(world, out)
            else:
                getattr(world, step)(*arguments)
        compact_world(world, out)
        assert table_rows(out) == projected(expected(world.seen))
        once = World(Path(name) / "in2")
        once.root.mkdir()
        once.add(world.seen, ".jsonl")
        compact_world(once, Path(name) / "out2")
        assert contents(out, manifests=False) == contents(Path(name) / "out2", manifests=False)


@pytest.mark.slow
@settings(max_examples=share(60), deadline=None)
@given(st.lists(records_at(times()), max_size=40), st.randoms(use_true_random=False))
def test_the_order_and_the_memory_do_not_matter(records: list[Record], dice: Any) -> None:
    """Spilled to temporary files after each block, in files of any order: the same bytes."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "ROW_GROUP_WEIGHT", 3)
        write(Path(name) / "in", [LINE, *records])
        run(Path(name) / "in", Path(name) / "out")
        dice.shuffle(records)
        for at in range(0, len(records), 7):
            write(Path(name) / "in2", records[at : at + 7], f"n-{at}.jsonl")
        write(Path(name) / "in2", [LINE])
        patch.setattr("analytics.compaction.compactor.MEMORY_BYTES_MIN", 1)
        run(Path(name) / "in2", Path(name) / "out2", memory_bytes=1)
        assert contents(Path(name) / "out", manifests=False) == contents(Path(name) / "out2", manifests=False)
        assert table_rows(Path(name) / "out2") == projected(expected([LINE, *records]))


# -- what changes, and what does not -----------------------------------------------------------------------


def sample(ts: int, **fields: Any) -> HaSample:
    numbers = {"broker_id": 1, "master_epoch": 1, "max_offset": 9, "confirm_offset": 9} | fields
    return HaSample(ts=ts, cluster_name="c", broker_name="b", role="master", **numbers)


def states(out: Path) -> dict[str, int]:
    """Returns when each file was written; but for the lock."""
    return {str(path): path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file() and path.suffix}


def test_nothing_new_writes_nothing(tmp_path: Path) -> None:
    write(tmp_path / "in", [sample(HOUR), LINE])
    (manifest,) = run(tmp_path / "in", tmp_path / "out")
    assert manifest.hour_ts == HOUR
    before = states(tmp_path / "out")
    assert run(tmp_path / "in", tmp_path / "out") == []
    assert states(tmp_path / "out") == before


def test_a_renamed_file_is_no_change(tmp_path: Path) -> None:
    write(tmp_path / "in", [sample(HOUR)], "n-1.jsonl.open")
    run(tmp_path / "in", tmp_path / "out")
    before = states(tmp_path / "out")
    path = file_of(tmp_path / "in", "ha_sample", "n-1.jsonl.open")
    path.rename(path.with_suffix(""))
    assert run(tmp_path / "in", tmp_path / "out") == []
    assert states(tmp_path / "out") == before


def test_only_the_new_lines_of_a_growing_file_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file_of(tmp_path / "in", "ha_sample", "n-1.jsonl.open")
    lines = [encode_record(sample(HOUR + at)) for at in range(3)]
    path.write_bytes(lines[0] + lines[1] + lines[2][:10])
    starts: list[int] = []
    note_starts(monkeypatch, starts)
    run(tmp_path / "in", tmp_path / "out")
    path.write_bytes(b"".join(lines))
    (manifest,) = run(tmp_path / "in", tmp_path / "out")
    assert starts == [0, len(lines[0] + lines[1])]
    assert manifest.counts["ha_sample"].rows == 3 == manifest.sources[0].rows
    assert manifest.counts["ha_sample"].duplicates == 0 and not manifest.counts["ha_sample"].bad_lines


def note_starts(monkeypatch: pytest.MonkeyPatch, starts: list[int]) -> None:
    """Notes from which byte on files are read."""

    def noted(source: scan.SourceFile, start: int, add: Any) -> reading.ReadResult:
        starts.append(start)
        return reading.read_lines(source, start, add)

    monkeypatch.setattr(compactor, "read_lines", noted)


def test_a_closed_file_with_half_a_line_is_counted_when_it_is_closed(tmp_path: Path) -> None:
    path = file_of(tmp_path / "in", "ha_sample", "n-1.jsonl.open")
    path.write_bytes(encode_record(sample(HOUR)) + b'{"record":"ha')
    (manifest,) = run(tmp_path / "in", tmp_path / "out")
    assert manifest.counts["ha_sample"].bad_lines == {}
    path.rename(path.with_suffix(""))
    (manifest,) = run(tmp_path / "in", tmp_path / "out")
    assert manifest.counts["ha_sample"].bad_lines == {"incomplete": 1}
    assert manifest.counts["ha_sample"].rows == 1
    assert run(tmp_path / "in", tmp_path / "out") == []


def test_a_closed_file_that_is_still_being_copied(tmp_path: Path) -> None:
    """By a tool that gives it its name first: half of its last line was bad, and is not when it is whole."""
    path = file_of(tmp_path / "in", "ha_sample", "n-1.jsonl")
    lines = [encode_record(sample(HOUR + at)) for at in range(3)]
    path.write_bytes(lines[0] + lines[1][:20])
    (manifest,) = run(tmp_path / "in", tmp_path / "out")
    assert manifest.counts["ha_sample"].bad_lines == {"incomplete": 1}
    path.write_bytes(b"".join(lines))
    (manifest,) = run(tmp_path / "in", tmp_path / "out")
    counts = manifest.counts["ha_sample"]
    assert (counts.rows, counts.duplicates, counts.bad_lines) == (3, 0, {})


class _Failing:
    """A file whose reading ends with an error of the system, after its head."""

    def __init__(self, path: Path) -> None:
        self._file, self._reads = path.open("rb", buffering=0), 0

    def __enter__(self) -> "_Failing":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def seek(self, at: int) -> int:
        return self._file.seek(at)

    def read(self, size: int) -> bytes:
        self._reads += 1
        if self._reads > 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._file.read(min(size, reading.HEAD_BYTES))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_file_that_could_not_be_read_to_its_end_is_read_again(tmp_path: Path, suffix: str) -> None:
    """The error of a network file system or an object store passes; damage does not."""
    count = 5_000
    write(tmp_path / "in", [sample(HOUR + at) for at in range(count)], f"n-1.jsonl{suffix}")
    sources = find_sources([str(tmp_path / "in")])
    (source,) = sources.files
    sources.files = [dataclasses.replace(source, open=lambda: _Failing(Path(source.path)))]
    (manifest,) = compact(sources, str(tmp_path / "out"))
    assert "Input/output error" in manifest.sources[0].error and manifest.sources[0].rows < count
    (manifest,) = run(tmp_path / "in", tmp_path / "out")
    counts = manifest.counts["ha_sample"]
    assert (counts.rows, counts.duplicates, manifest.sources[0].error) == (count, 0, "")
    assert run(tmp_path / "in", tmp_path / "out") == []


def test_late_files_and_deleted_sources(tmp_path: Path) -> None:
    write(tmp_path / "in", [sample(HOUR), sample(HOUR + 1)])
    run(tmp_path / "in", tmp_path / "out")
    shutil.rmtree(tmp_path / "in")
    write(tmp_path / "in", [sample(HOUR + 2), sample(HOUR + 1)], "late-2.jsonl")
    (manifest,) = run(tmp_path / "in", tmp_path / "out")
    assert [row["ts"] - HOUR for row in table_rows(tmp_path / "out")["master_sample"]] == [0, 1, 2]
    counts = manifest.counts["ha_sample"]
    assert (counts.rows, counts.duplicates, len(manifest.sources)) == (3, 1, 2)


@pytest.mark.parametrize("order", [(9, 12, 10), (12, 10, 9), (10, 9, 12)])
def test_of_two_that_differ_the_last_as_bytes_is_kept(tmp_path: Path, order: tuple[int, ...]) -> None:
    """Whether they come together or one after the other."""
    samples = [sample(HOUR, confirm_offset=each, lag_us=((each, 1),)) for each in order]
    write(tmp_path / "in", [samples[0], *samples, samples[0]])
    run(tmp_path / "in", tmp_path / "out")
    for at, each in enumerate(samples):
        write(tmp_path / "in2", [each], f"n-{at}.jsonl")
        run(tmp_path / "in2", tmp_path / "out2")
    for out in (tmp_path / "out", tmp_path / "out2"):
        (row,) = table_rows(out)["master_sample"]
        assert (row["confirm_offset"], row["lag_us"]) == (9, [{"bucket": 9, "n": 1}])


def test_rows_of_a_deleted_manifest_come_back(tmp_path: Path) -> None:
    """Also those of files that belong to another hour."""
    root, out = tmp_path / "in", tmp_path / "out"
    write(root, [sample(HOUR), sample(HOUR + HOUR_MS)])
    run(root, out)
    before = contents(out)
    for path in sorted((out / "compacted/manifest").glob("dt=*")):
        path.unlink()
        run(root, out)
        assert contents(out) == before


def test_lines_of_another_hour(tmp_path: Path) -> None:
    """They are counted once, also when their file grows."""
    root, out = tmp_path / "in", tmp_path / "out"
    path = file_of(root, "ha_sample", "n-1.jsonl.open")
    data = b"".join(map(encode_record, [sample(HOUR - 1), sample(HOUR), sample(HOUR + HOUR_MS)]))
    for size in (len(data), 2 * len(data)):
        path.write_bytes((data * 2)[:size])
        assert [manifest.hour_ts - HOUR for manifest in run(root, out)] == [-HOUR_MS, 0, HOUR_MS]
        counts = [manifest.counts["ha_sample"] for manifest in read_manifests(str(out))]
        assert [(each.rows, each.duplicates) for each in counts] == [(1, size // len(data) - 1)] * 3
    assert run(root, out) == []


def test_files_outside_of_hourly_folders(tmp_path: Path) -> None:
    path = tmp_path / "in" / "ha_sample" / "all.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"".join(encode_record(sample(HOUR + hour * HOUR_MS)) for hour in (3, 1, 2)))
    (path.parent / "bad.jsonl").write_bytes(b"[]\n")
    found = run(tmp_path / "in", tmp_path / "out")
    assert [(each.hour_ts - HOUR) // HOUR_MS for each in found if each.parts] == [1, 2, 3]
    assert run(tmp_path / "in", tmp_path / "out") == []


def test_a_span_of_time(tmp_path: Path) -> None:
    for hour in range(4):
        write(tmp_path / "in", [sample(HOUR + hour * HOUR_MS)], hour=HOUR + hour * HOUR_MS)
    span = {"from_ts": HOUR + HOUR_MS + 1, "to_ts": HOUR + 2 * HOUR_MS + 1}
    found = run(tmp_path / "in", tmp_path / "out", **span)
    assert [(each.hour_ts - HOUR) // HOUR_MS for each in found] == [1, 2]
    assert len(run(tmp_path / "in", tmp_path / "out")) == 2


# -- what is not read --------------------------------------------------------------------------------------


def test_every_file_that_is_not_read_is_named(tmp_path: Path) -> None:
    root = tmp_path / "in"
    write(root, [sample(HOUR)])
    folder = file_of(root, "ha_sample", "x").parent
    for name in ("n.jsonl.bz2", "n.json", ".n.jsonl.tmp", "README"):
        (folder / name).write_bytes(b"x")
    file_of(root, "shoe_size", "n-1.jsonl").write_bytes(b"{}\n")
    (folder / "cut-1.jsonl.gz").write_bytes(gzip.compress(encode_record(sample(HOUR + 5)) * 9)[:-9])
    (folder / "none-1.jsonl.gz").write_bytes(b"no gzip")
    lines: list[str] = []
    (manifest,) = run(root, tmp_path / "out", progress=lines.append)
    listed = json.loads((tmp_path / "out" / NOT_READ).read_bytes())
    reasons = {Path(each["path"]).name: each["reason"] for each in listed["not_read"]}
    assert listed["files"] == 5 and reasons == {
        "n.jsonl.bz2": "unknown suffix .bz2",
        "n.json": "unknown suffix .json",
        ".n.jsonl.tmp": "unknown suffix .tmp",
        "README": "unknown suffix README",
        "shoe_size": "no known kind of record",
    }
    assert {f"not read: {each['path']}: {each['reason']}" for each in listed["not_read"]} <= set(lines)
    errors = {Path(each.path).name: each.error for each in manifest.sources if each.error}
    assert sorted(errors) == ["cut-1.jsonl.gz", "none-1.jsonl.gz"]
    assert manifest.counts["ha_sample"].rows == 2  # what could be read of the cut file counts
    bad = (tmp_path / "out/compacted/bad/dt=2026-01-01-hour=00.jsonl").read_text()
    assert "cut-1.jsonl.gz" in bad and "the compressed file ends early" in bad


def test_bad_lines_are_listed(tmp_path: Path) -> None:
    file_of(tmp_path / "in", "ha_sample", "n-1.jsonl").write_bytes(encode_record(sample(HOUR)) + b"[]\n")
    run(tmp_path / "in", tmp_path / "out")
    bad = (tmp_path / "out/compacted/bad/dt=2026-01-01-hour=00.jsonl").read_text()
    assert f'"offset":{len(encode_record(sample(HOUR)))},"reason":"undecodable"' in bad


def test_bad_lines_are_told(tmp_path: Path) -> None:
    """A line per kind with what is new: how many, and where the first one is."""
    good, source = encode_record(sample(HOUR)), tmp_path / "in"
    first = file_of(source, "ha_sample", "n-1.jsonl")
    first.write_bytes(good + b"[]\n{}\n")
    file_of(source, "ha_sample", "n-2.jsonl").write_bytes(b"[]\n")
    said: list[str] = []
    compact(find_sources([str(source)]), str(tmp_path / "out"), progress=said.append)
    assert [line for line in said if "bad lines" in line] == [
        f"left out: 3 bad lines of ha_sample in 2 files, the first in {first}, byte {len(good)}: "
        "undecodable; listed in compacted/bad"
    ]
    said.clear()
    compact(find_sources([str(source)]), str(tmp_path / "out"), progress=said.append)
    assert not [line for line in said if "bad lines" in line]


def test_an_unreadable_file_is_named_and_read_later(tmp_path: Path) -> None:
    write(tmp_path / "in", [sample(HOUR)])
    sources = find_sources([str(tmp_path / "in")])
    path = Path(sources.files[0].path)
    path.rename(path.with_name("elsewhere"))
    assert compact(sources, str(tmp_path / "out")) == []
    listed = json.loads((tmp_path / "out" / NOT_READ).read_bytes())
    assert listed["not_read"][0]["reason"] == "No such file or directory"
    path.with_name("elsewhere").rename(path)
    assert len(compact(sources, str(tmp_path / "out"))) == 1


@pytest.mark.parametrize(("given_root", "text"), [("nothing", "does not exist"), ("", "no telemetry in")])
def test_no_input_is_one_clear_line(tmp_path: Path, given_root: str, text: str) -> None:
    with pytest.raises(AnalyticsError, match=text):
        find_sources([str(tmp_path / given_root)])


def test_a_copy_taken_while_a_file_grew(tmp_path: Path) -> None:
    """n-1.jsonl.open of a first copy stays beside n-1.jsonl of a second one: each sample counts once."""
    samples = [sample(HOUR + 1_000 * second) for second in range(60)]
    write(tmp_path / "in", samples)
    write(tmp_path / "in", samples[:40], "n-1.jsonl.open")
    (manifest,) = run(tmp_path / "in", tmp_path / "out")
    assert manifest.rows == 60
    assert (manifest.counts["ha_sample"].rows, manifest.counts["ha_sample"].duplicates) == (60, 40)


def test_a_file_counts_once(tmp_path: Path) -> None:
    write(tmp_path / "in", [sample(HOUR)])
    roots = [tmp_path, tmp_path / "in", tmp_path / "in" / "telemetry", tmp_path]
    assert len(find_sources([*map(str, roots), f"file://{tmp_path}"]).files) == 1


@pytest.mark.parametrize("cut", [0, 9])
@pytest.mark.parametrize("members", [1, 2])
def test_compressed_files(tmp_path: Path, cut: int, members: int) -> None:
    """Several gzip members, zstd, and both cut short: what can be read counts."""
    lines = [encode_record(sample(HOUR + at)) for at in range(20_000)]
    halves = [b"".join(lines[:10_000]), b"".join(lines[10_000:])] if members == 2 else [b"".join(lines)]
    packed = {
        "gz": b"".join(map(gzip.compress, halves)),
        "zst": pa.compress(b"".join(lines), "zstd", asbytes=True),
    }
    for suffix, data in packed.items():
        root, out = tmp_path / f"in-{suffix}", tmp_path / f"out-{suffix}"
        file_of(root, "ha_sample", f"n-1.jsonl.{suffix}").write_bytes(data[: len(data) - cut])
        (manifest,) = run(root, out)
        (source,) = manifest.sources
        assert bool(source.error) == bool(cut), suffix
        assert not source.bad and (len(lines) // 2 if cut else len(lines)) <= source.rows <= len(lines)
        assert run(root, out) == []


# -- the output --------------------------------------------------------------------------------------------


def test_two_compactors(tmp_path: Path) -> None:
    write(tmp_path / "in", [sample(HOUR)])
    with (
        open_storage(str(tmp_path / "out")) as store,
        locked(store),
        pytest.raises(AnalyticsError, match=r"another compaction \(process \d+\)"),
    ):
        run(tmp_path / "in", tmp_path / "out")
    assert len(run(tmp_path / "in", tmp_path / "out")) == 1


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    write(tmp_path / "in", [sample(HOUR)])
    run(tmp_path / "in", tmp_path / "out")
    (tmp_path / "out/compacted/manifest/dt=2026-01-01-hour=00.json").write_bytes(b"{")
    with pytest.raises(AnalyticsError, match=r"hour=00\.json is damaged"):
        read_manifests(str(tmp_path / "out"))


def test_a_lost_part_is_named(tmp_path: Path) -> None:
    write(tmp_path / "in", [sample(HOUR)])
    (manifest,) = run(tmp_path / "in", tmp_path / "out")
    (path,) = manifest.paths()
    (tmp_path / "out" / path).unlink()
    write(tmp_path / "in", [sample(HOUR + 1)], "n-2.jsonl")
    with pytest.raises(AnalyticsError, match=path):
        run(tmp_path / "in", tmp_path / "out")


def test_old_parts_are_deleted_later(tmp_path: Path) -> None:
    root, out = tmp_path / "in", tmp_path / "out"
    now_ms = wall_ms()
    for at in range(3):
        write(root, [sample(HOUR + at)], f"n-{at}.jsonl")
        run(root, out, wall_clock=lambda: now_ms)
    assert len(list(out.rglob("*.parquet"))) == 3
    run(root, out, wall_clock=lambda: now_ms + KEPT_MS + HOUR_MS)
    assert {str(path.relative_to(out)) for path in out.rglob("*.parquet")} == {
        path for manifest in read_manifests(str(out)) for path in manifest.paths()
    }
    before = states(out)
    run(root, out, wall_clock=lambda: now_ms + KEPT_MS + HOUR_MS)
    assert states(out) == before


def test_sources_are_deleted_when_they_are_durable(tmp_path: Path) -> None:
    root, out = tmp_path / "in", tmp_path / "out"
    write(root, [sample(HOUR)])
    write(root, [sample(HOUR + 1)], "n-2.jsonl.open")
    file_of(root, "ha_sample", "bad-1.jsonl").write_bytes(encode_record(sample(HOUR)) + b"[]\n")
    write(root, [sample(HOUR + HOUR_MS)], "n-3.jsonl", hour=HOUR + HOUR_MS)
    run(root, out)
    write(root, [sample(HOUR + 2)], "new-1.jsonl")
    sources = find_sources([str(root)])
    within = HOUR + 2 * HOUR_MS
    assert delete_sources(sources, str(out), wall_clock=lambda: within) == 1
    left = sorted(path.name for path in root.rglob("*.jsonl*"))
    assert left == ["bad-1.jsonl", "n-2.jsonl.open", "n-3.jsonl", "new-1.jsonl"]
    (part,) = (out / "compacted/master_sample/dt=2026-01-01/hour=01").glob("*.parquet")
    part.write_bytes(b"damaged")
    assert delete_sources(find_sources([str(root)]), str(out), wall_clock=lambda: within * 2) == 0


def test_sources_that_were_copied_again_are_deleted(tmp_path: Path) -> None:
    """`upload` copies a file again when it is closed: with another time, and perhaps not one more line."""
    root, out = tmp_path / "in", tmp_path / "out"
    write(root, [sample(HOUR)], "n-1.jsonl.open")
    path = file_of(root, "ha_sample", "n-1.jsonl")
    run(root, out)
    path.with_name("n-1.jsonl.open").unlink()
    write(root, [sample(HOUR)], path.name)
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1_000_000_000))
    run(root, out)
    assert run(root, out) == []
    assert delete_sources(find_sources([str(root)]), str(out), wall_clock=lambda: HOUR + 2 * HOUR_MS) == 1


def test_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes as on a disk. A local folder behind pyarrow's interface stands for the store."""

    def fake(url: str) -> tuple[pa_fs.FileSystem, str]:
        return pa_fs.LocalFileSystem(), str(tmp_path / url.removeprefix("s3://"))

    monkeypatch.setattr(storage, "file_system", fake)
    monkeypatch.setattr(scan, "file_system", fake)
    records = [sample(HOUR), sample(HOUR + 1), LINE]
    write(tmp_path / "bucket/in", records)
    write(tmp_path / "bucket/in", records, "copy-2.jsonl.gz")
    write(tmp_path / "bucket/in", [sample(HOUR + 2)], "n-3.jsonl.open")
    sources = find_sources(["s3://bucket/in"])
    assert sources.roots == ["s3://bucket/in/telemetry"]
    (manifest,) = compact(sources, "s3://bucket/out")
    assert compact(find_sources(["s3://bucket/in"]), "s3://bucket/out") == []
    assert read_manifests("s3://bucket/out") == [manifest]
    run(tmp_path / "bucket/in", tmp_path / "out")
    assert contents(tmp_path / "bucket/out", manifests=False) == contents(tmp_path / "out", manifests=False)
    with (
        open_storage("s3://bucket/out") as store,
        locked(store),
        pytest.raises(AnalyticsError, match="another compaction"),
    ):
        compact(sources, "s3://bucket/out")
    assert delete_sources(sources, "s3://bucket/out") == 4


DUCKDB = """
import json, sys, duckdb
found = duckdb.sql(f"from read_parquet('{sys.argv[1]}', hive_partitioning = false)")
print(json.dumps([dict(zip(found.columns, row)) for row in found.fetchall()]))
"""
"""In a process of its own: at its end DuckDB's module reports leaks of its own types."""


def test_duckdb_reads_the_same_rows(tmp_path: Path) -> None:
    if importlib.util.find_spec("duckdb") is None:
        pytest.skip("no duckdb here")
    records = [
        sample(HOUR + at, lag_us=((1, 2), (3, 4)), sync_state_set=(1, 2), broker_id=1 + at % 2)
        for at in range(500)
    ]
    write(tmp_path / "in", [*records, LINE])
    run(tmp_path / "in", tmp_path / "out")
    for kind, rows in table_rows(tmp_path / "out").items():
        if rows:
            path = f"{tmp_path}/out/compacted/{kind}/*/*/*.parquet"
            done = subprocess.run([sys.executable, "-c", DUCKDB, path], capture_output=True, check=True)
            assert json.loads(done.stdout) == rows


def test_manifests_are_values(tmp_path: Path) -> None:
    write(tmp_path / "in", [sample(HOUR)])
    (manifest,) = run(tmp_path / "in", tmp_path / "out")
    assert isinstance(manifest, HourManifest) and set(manifest.counts) <= set(KINDS)
    (part,) = manifest.parts["master_sample"]
    assert (part.rows, part.min_ts, part.max_ts) == (1, HOUR, HOUR)
