"""Which telemetry is read, and how: folders of JSON lines in, one checked DataFrame per record kind out.

A root is a folder with record folders in it (`ha_sample/`, `controller_event/`, ...), as brokers, controllers
and the demo write them; inside, *.jsonl and the files that still grow, *.jsonl.open. A line that is not a
record (damaged, incomplete after a crash, of a newer version) is marked and counted; it does not stop the
job.
"""

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from analytics.errors import AnalyticsError
from analytics.schema import CORRUPT, default_values, required_fields, schema_of
from keelmq.remoting.records import RECORD_VERSION, RECORDS, Record, name_of

TELEMETRY = "telemetry"
"""The folder that every program writes into."""

FILES = "*.{jsonl,jsonl.open}"
BAD = "_bad"
TS_MAX = 253_402_300_799_999
"""The end of the year 9999: a later time is damage."""

_MAGIC = str.maketrans({each: f"\\{each}" for each in "\\*?[]{}"})


@dataclass(frozen=True, slots=True)
class Inputs:
    """`roots`: directories or URLs. `size_bytes` None: unknown, because a root is a URL."""

    roots: tuple[str, ...]
    files: int
    size_bytes: int | None

    def __str__(self) -> str:
        if self.size_bytes is None:
            return ", ".join(self.roots)
        return f"{len(self.roots)} telemetry folders, {self.files} files, {self.size_bytes / 1e6:.1f} MB"


def find_inputs(given: str) -> Inputs:
    """Returns `given` itself if it has record folders, else every folder named telemetry below it; a URL as
    it is.

    Raises AnalyticsError if there is nothing to read.
    """
    if "://" in given:
        return Inputs((given.rstrip("/"),), 0, None)
    directory = Path(given).absolute()
    if not directory.is_dir():
        what = "is not a directory" if directory.exists() else "does not exist"
        raise AnalyticsError(f"{directory} {what}; {_ADVICE}")
    roots = [directory] if _has_records(directory) else list(_telemetry_below(directory))
    sizes = [path.stat().st_size for root in roots for path in _files(root)]
    if not sizes:
        folders = ", ".join(f"{name_of(record)}/" for record in RECORDS)
        raise AnalyticsError(
            f"no telemetry in {directory}: looked for {FILES} in {folders} there and in every folder "
            f"named {TELEMETRY} below it; {_ADVICE}"
        )
    return Inputs(tuple(map(str, roots)), len(sizes), sum(sizes))


_ADVICE = (
    "give the directory of a demo (keelmq demo --keep), a broker's storePathRootDir or "
    "a controller's controllerStorePath"
)


def local_url(path: Path) -> str:
    """Returns an escaped file URL: Spark's readers take paths as patterns."""
    return "file://" + str(path).translate(_MAGIC)


def read_records(spark: SparkSession, roots: Sequence[str], record: type[Record]) -> DataFrame:
    """Returns all lines of this kind; BAD marks those that are not records. No files: an empty DataFrame."""
    folders = [folder for root in roots if (folder := _folder(root, record)) is not None]
    lines = _read(spark, folders, record) if folders else None
    return checked(spark.createDataFrame([], schema_of(record)) if lines is None else lines, record)


def checked(lines: DataFrame, record: type[Record]) -> DataFrame:
    """Returns the lines with BAD, and with defaults for the fields that an older writer lacks."""
    missing = reduce(lambda a, b: a | b, [F.col(name).isNull() for name in required_fields(record)])
    unknown = (F.col("v") > RECORD_VERSION) | ~F.col("ts").between(0, TS_MAX)
    bad = F.col(CORRUPT).isNotNull() | missing | unknown
    defaults = {name: F.coalesce(name, F.lit(value)) for name, value in default_values(record).items()}
    return lines.withColumn(BAD, F.coalesce(bad, F.lit(False))).withColumns(defaults)


def good(lines: DataFrame) -> DataFrame:
    """Returns the lines that are records, without the two columns that mark the others."""
    return lines.where(~F.col(BAD)).drop(BAD, CORRUPT)


def _folder(root: str, record: type[Record]) -> str | None:
    """Returns the folder of a record kind as Spark reads it. None: the directory has no such files."""
    if "://" in root:
        return f"{root}/{name_of(record)}"
    folder = Path(root, name_of(record))
    return local_url(folder) if any(_files_in(folder)) else None


def _read(spark: SparkSession, folders: list[str], record: type[Record]) -> DataFrame | None:
    """Returns the lines; None: a URL has no such folder."""
    reader = (
        spark.read.schema(schema_of(record))
        .option("mode", "PERMISSIVE")
        .option("columnNameOfCorruptRecord", CORRUPT)
        .option("recursiveFileLookup", "true")
        .option("pathGlobFilter", FILES)
    )
    try:
        return reader.json(folders)
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return None
        raise


def _has_records(directory: Path) -> bool:
    return any((directory / name_of(record)).is_dir() for record in RECORDS)


def _telemetry_below(directory: Path) -> Iterator[Path]:
    for folder, below, _ in os.walk(directory):
        below.sort()
        path = Path(folder)
        if path.name == TELEMETRY and _has_records(path):
            below.clear()
            yield path


def _files(root: Path) -> Iterator[Path]:
    for record in RECORDS:
        yield from _files_in(root / name_of(record))


def _files_in(folder: Path) -> Iterator[Path]:
    """Yields the files. Not by Path.rglob, which raises if a writer removes a folder meanwhile."""
    for pattern in ("**/*.jsonl", "**/*.jsonl.open"):
        yield from (folder / name for name in glob.iglob(pattern, root_dir=folder, recursive=True))
