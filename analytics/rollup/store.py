"""Where roll-ups are, and which of them are up to date.

    OUT/rollup/<table>/window=<ms>/dt=YYYY-MM-DD/hour=HH/part.parquet     an hour; sorted by the table's key
    OUT/rollup/manifest/dt=YYYY-MM-DD-hour=HH.json                        the compacted parts that it is of

The files of an hour are written under temporary names and renamed, and its manifest is written last. A run
that is killed in between leaves hours whose manifest names other parts: the next run computes them again.
Compacted parts never change under their name.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from msgspec.structs import replace

from analytics.compaction.manifest import HourManifest, folder_of, manifest_name
from analytics.compaction.storage import file_system, is_object_store
from analytics.errors import AnalyticsError
from analytics.rollup.inputs import Inputs, inputs_of

ROLLUP = "rollup"
MANIFESTS = f"{ROLLUP}/manifest"
PART = "part.parquet"
RUN_TABLES, RUN = "tables", "run="
ROLLUP_VERSION = 4
"""To be incremented when an hour's roll-up changes for equal parts: then every hour is computed again."""


class RolledHour(msgspec.Struct, frozen=True, kw_only=True):
    """Of an hour that is up to date. `parts`: the compacted parts (below OUT), sorted. `windows`: in ms.
    `files`: the roll-ups (below OUT), sorted; a table without rows in this hour has none."""

    hour_ts: int
    parts: list[str]
    windows: list[int]
    files: list[str] = []
    version: int = ROLLUP_VERSION

    def paths(self, table: str, window_ms: int) -> list[str]:
        """Returns the files of a table's windows, below OUT."""
        start = f"{ROLLUP}/{table}/window={window_ms}/"
        return [name for name in self.files if name.startswith(start)]


class RollupStore:
    """The roll-ups below `out`, a directory or a URL. Raises AnalyticsError if it cannot be reached."""

    def __init__(self, out: str) -> None:
        self.out = out.rstrip("/")
        is_local = "://" not in out or out.startswith("file://")
        if is_local:
            self._root = str(Path(out.removeprefix("file://")).absolute())
            self._system: pa_fs.FileSystem = pa_fs.LocalFileSystem()
        else:
            self._system, self._root = file_system(out)
        self.url = f"file://{self._root}" if is_local else spark_url(self.out)

    @property
    def place_of_files(self) -> tuple[pa_fs.FileSystem, str]:
        """Returns pyarrow's file system and the path of `out` in it."""
        return self._system, self._root

    def read(self, hour_ts: int) -> RolledHour | None:
        """Returns an hour's manifest; None: there is none, or it is damaged or of another version."""
        found = self._of_any_version(hour_ts)
        return found if found is not None and found.version == ROLLUP_VERSION else None

    def _of_any_version(self, hour_ts: int) -> RolledHour | None:
        try:
            with self._system.open_input_stream(self._path(_manifest(hour_ts)), compression=None) as file:
                return msgspec.json.decode(file.read(), type=RolledHour)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    def paths(self, table: str, window_ms: int, hours: Iterable[RolledHour]) -> list[str]:
        """Returns the URLs of the files of a table's windows, hour by hour."""
        return [f"{self.url}/{name}" for each in hours for name in each.paths(table, window_ms)]

    def stale(
        self,
        manifests: Sequence[HourManifest],
        windows: Sequence[int],
        inputs: Mapping[int, Inputs] | None = None,
    ) -> list[HourManifest]:
        """Returns the hours whose roll-ups are missing, empty after a power cut (on a local disk: nothing is
        synced), or of other parts or fewer windows. `inputs`: what they read, by hour_ts; None: inputs_of()
        of these hours."""
        inputs = inputs or inputs_of(manifests)
        return [each for each in manifests if not self._is_fresh(each, windows, inputs[each.hour_ts])]

    def _is_fresh(self, manifest: HourManifest, windows: Sequence[int], inputs: Inputs) -> bool:
        found = self.read(manifest.hour_ts)
        return (
            found is not None
            and found.parts == inputs.parts
            and {*windows} <= {*found.windows}
            and self._is_whole(found)
        )

    def _is_whole(self, rolled: RolledHour) -> bool:
        if not isinstance(self._system, pa_fs.LocalFileSystem):
            return True
        return all(info.size for info in self._system.get_file_info([*map(self._path, rolled.files)]))

    def check_parts(self, manifests: Iterable[HourManifest]) -> None:
        """Raises AnalyticsError, which names it, if a compacted part is missing or has another size than its
        manifest says: an engine may skip a missing file silently."""
        for manifest in manifests:
            parts = manifest.all_parts()
            infos = self._system.get_file_info([self._path(part.path) for part in parts])
            for part, info in zip(parts, infos, strict=True):
                if info.type != pa_fs.FileType.File or info.size != part.size_bytes:
                    found = f"has {info.size} bytes" if info.is_file else "is missing"
                    raise AnalyticsError(
                        f"{self.out}/{part.path} {found}; it had {part.size_bytes}. Restore it from a copy. "
                        "If its telemetry is still there, delete "
                        f"{self.out}/{manifest_name(manifest.hour_ts)} instead: then that hour is compacted "
                        "again"
                    )

    def drop(self, hours: Iterable[int]) -> None:
        """Deletes the roll-ups of these hours, if there are any: pages are made of all existing roll-ups."""
        for hour_ts in hours:
            found = self._of_any_version(hour_ts)
            if found is None:
                continue
            self._write(_manifest(hour_ts), msgspec.json.encode(replace(found, parts=[])))  # not up to date
            for name in found.files:
                self._delete_file(name)
            self._delete_file(_manifest(hour_ts))

    def put(self, folder: str, window_ms: int, hour_ts: int, rows: pa.Table) -> str:
        """Writes the rows of an hour; returns the name of the file, below OUT."""
        name = f"{folder}/window={window_ms}/{folder_of(hour_ts)}/{PART}"
        self.write_table(name, rows)
        return name

    def place(
        self,
        manifests: Sequence[HourManifest],
        files: Mapping[int, Iterable[str]],
        windows: Sequence[int],
        inputs: Mapping[int, Inputs] | None = None,
    ) -> None:
        """Deletes the files that these hours no longer have, and writes their manifests. `files`: what put()
        returned, by hour. `inputs`: as for stale()."""
        inputs = inputs or inputs_of(manifests)
        for manifest in manifests:
            before = self._of_any_version(manifest.hour_ts)
            names = sorted(files.get(manifest.hour_ts, ()))
            for name in set(before.files if before else ()) - {*names}:
                self._delete_file(name)
            rolled = RolledHour(
                hour_ts=manifest.hour_ts,
                parts=inputs[manifest.hour_ts].parts,
                windows=sorted(windows),
                files=names,
            )
            self._write(_manifest(manifest.hour_ts), msgspec.json.encode(rolled))

    def write_table(self, name: str, rows: pa.Table) -> None:
        """Writes a Parquet file below OUT: on a disk under a temporary name first."""
        path = self._path(name)
        folder, _, base = path.rpartition("/")
        self._system.create_dir(folder, recursive=True)
        temporary = f"{folder}/.{base}.tmp" if self._renames else path
        with self._system.open_output_stream(temporary, compression=None) as file:
            pq.write_table(rows, file, compression="zstd")
        if self._renames:
            self._system.move(temporary, path)

    def files_in(self, folder: str) -> list[str]:
        """Returns the URLs of the Parquet files in a folder below OUT, and below it; no folder: none."""
        selector = pa_fs.FileSelector(self._path(folder), allow_not_found=True, recursive=True)
        names = sorted(each.path for each in self._system.get_file_info(selector) if each.is_file)
        start = len(self._path(""))
        return [f"{self.url}/{name[start:]}" for name in names if name.endswith(".parquet")]

    def runs(self) -> list[int]:
        """Returns the moments of the runs whose tables exist, oldest first."""
        names = (name.removeprefix(RUN) for name in folders(self._system, self._path(RUN_TABLES)))
        return sorted(int(name) for name in names if name.isdigit())

    def begin_run(self, run_ts: int) -> str:
        """Returns the folder for the tables of a run, below OUT."""
        for name in folders(self._system, self._path(RUN_TABLES)):
            if name.startswith(f".{RUN}"):  # of a run that was killed
                self._delete_folder(f"{RUN_TABLES}/{name}")
        return self._unfinished(run_ts)

    def end_run(self, run_ts: int) -> None:
        """Gives the folder its name. An object store renames no folder: there it has had it from the start,
        and is complete when current.json names pages that were written after it."""
        if self._renames:
            self._system.move(self._path(self._unfinished(run_ts)), self._path(run_folder(run_ts)))

    def delete_runs(self, kept: int) -> None:
        """Deletes the tables of all runs but the newest `kept`."""
        for run_ts in self.runs()[:-kept]:
            self._delete_folder(run_folder(run_ts))

    def _unfinished(self, run_ts: int) -> str:
        return f"{RUN_TABLES}/.{RUN}{run_ts}" if self._renames else run_folder(run_ts)

    @property
    def _renames(self) -> bool:
        return not is_object_store(self._system)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _write(self, name: str, content: bytes) -> None:
        """Under a temporary name first: on a disk a reader sees the old content or the new."""
        temporary = self._path(f"{MANIFESTS}/.tmp-{name.rpartition('/')[2]}")
        self._system.create_dir(self._path(MANIFESTS), recursive=True)
        with self._system.open_output_stream(temporary, compression=None) as file:
            file.write(content)
        self._system.move(temporary, self._path(name))

    def _delete_file(self, name: str) -> None:
        if self._system.get_file_info(self._path(name)).type == pa_fs.FileType.File:
            self._system.delete_file(self._path(name))

    def _delete_folder(self, name: str) -> None:
        if self._system.get_file_info(self._path(name)).type == pa_fs.FileType.Directory:
            self._system.delete_dir(self._path(name))


def run_folder(run_ts: int) -> str:
    """Returns the folder of the tables of a run, below OUT."""
    return f"{RUN_TABLES}/{RUN}{run_ts}"


def folders(system: pa_fs.FileSystem, path: str) -> list[str]:
    """Returns the names of the folders in a folder; none if there is no such folder."""
    found = system.get_file_info(pa_fs.FileSelector(path, allow_not_found=True))
    return [info.base_name for info in found if info.type == pa_fs.FileType.Directory]


def spark_url(url: str) -> str:
    """Returns a URL in Spark's form: Hadoop's file system for S3 is that of s3a://."""
    return "s3a://" + url.removeprefix("s3://") if url.startswith("s3://") else url


def _manifest(hour_ts: int) -> str:
    return f"{MANIFESTS}/{folder_of(hour_ts).replace('/', '-')}.json"
