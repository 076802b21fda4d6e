"""keelmq analytics stream: follows growing telemetry, and keeps the tables and pages of the last minutes.

Spark in this process streams (Structured Streaming): its checkpoint says which bytes each batch has read. An
engine without streams, and one that is reached by Spark Connect, whose batches would be processed in the
server's processes, gets the same batches from a loop here. Both compute the same from a batch.
"""

import shutil
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession

from analytics.compaction.lock import CLAIM, locked
from analytics.compaction.storage import open_storage
from analytics.engine.errors import spark_in_one_line
from analytics.engine.sessions import has_streams, spark_engine
from analytics.errors import AnalyticsError
from analytics.live.loop import POSITION, run_loop
from analytics.live.positions import HOURS_KEPT
from analytics.live.publish import LiveRun
from analytics.live.tables import Status, read_status
from keelmq.runtime.clock import wall_ms
from keelmq.runtime.durable_file import replace_file
from keelmq.runtime.program import stopped_by_signal

TRIGGER_S = 5
HOUR_MS = 3_600_000
CHECKPOINT = "checkpoint"
FORMAT, FORMAT_NUMBER = "format", "2"
"""A file, and its content: the version of the format of the rows and tables of a directory."""

STREAMING = {
    "spark.sql.shuffle.partitions": "2",
    # a batch is small: what costs is the number of tasks, and planning each query again while it runs
    "spark.sql.adaptive.enabled": "false",
}

Progress = Callable[[str], None]


def run_stream(
    input: str,
    output: str,
    *,
    trigger_s: float = TRIGGER_S,
    progress: Progress = lambda _: None,
    engine: str | None = None,
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> None:
    """Runs until SIGTERM or SIGINT. Raises AnalyticsError. `input`, `output`: local directories, which the
    engine sees, too. `engine`, `master`, `remote`, `conf`: see spark_engine()."""
    for each in (input, output):
        if "://" in each:
            raise AnalyticsError(f"{each}: the stream follows files of a local or mounted directory")
    directory, out = Path(input).absolute(), Path(output).absolute()
    if not directory.is_dir():
        raise AnalyticsError(f"{directory} is not a directory; give one with telemetry folders in it")
    stopped = threading.Event()
    try:
        with (
            open_storage(str(out)) as storage,
            locked(storage, "live", "analytics stream"),
            spark_in_one_line(),
            stopped_by_signal(stopped),
            spark_engine(engine, master, remote, conf, progress) as spark,
            stopped_by_signal(stopped),  # again: Spark has put its own handler of SIGINT in place of ours
        ):
            streams = is_of_this_process(spark) and has_streams(spark)
            follow = _stream if streams else _loop
            make_directory(out / "live", streams=streams)
            if left_out := line_of_stop(read_status(out / "live"), wall_ms()):
                progress(left_out)
            follow(spark, directory, out, trigger_s, stopped, progress)
    except OSError as error:
        raise AnalyticsError(f"{error.filename or 'telemetry'}: {error.strerror or error}") from error


def is_of_this_process(spark: SparkSession) -> bool:
    """Returns whether functions that a stream calls run here: not those of Spark Connect."""
    return ".connect." not in type(spark).__module__


def _stream(
    spark: SparkSession,
    directory: Path,
    out: Path,
    trigger_s: float,
    stopped: threading.Event,
    progress: Progress,
) -> None:
    from analytics.live.streaming import run_query  # its data source is of classic Spark

    for name, value in STREAMING.items():
        spark.conf.set(name, value)
    run = LiveRun(spark, directory, out, every_ms=round(trigger_s * 1_000))
    run_query(spark, directory, out / "live" / CHECKPOINT, run, trigger_s, stopped, progress)


def _loop(
    spark: SparkSession,
    directory: Path,
    out: Path,
    trigger_s: float,
    stopped: threading.Event,
    progress: Progress,
) -> None:
    progress(
        f"the engine has no streams of its own: the last minutes are computed again every {trigger_s:g} s"
    )
    run_loop(spark, directory, out, trigger_s=trigger_s, stopped=stopped, progress=progress)


def make_directory(live: Path, *, streams: bool) -> None:
    """Makes the stream's directory. One of another release, or of the other kind of engine, which records in
    another way which bytes were read, is made anew: the stream then begins with the hour before the current
    one."""
    live.mkdir(parents=True, exist_ok=True)
    form = live / FORMAT
    if not form.exists() or form.read_text() != FORMAT_NUMBER or (live / _position(not streams)).exists():
        for path in live.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != CLAIM:
                path.unlink()
        replace_file(form, FORMAT_NUMBER.encode(), keep_backup=False)


def _position(streams: bool) -> str:
    return CHECKPOINT if streams else POSITION


def line_of_stop(status: Status, now: int) -> str:
    """Returns the message about the time without batches before this start; "": all of it will be read."""
    from_ts = (now // HOUR_MS - HOURS_KEPT) * HOUR_MS
    if not 0 < status.computed_ts < from_ts:
        return ""
    last, first = (datetime.fromtimestamp(ts / 1000, UTC) for ts in (status.computed_ts, from_ts))
    return (
        f"the last batch was at {last:%Y-%m-%d %H:%M} UTC; what was written since in hours before "
        f"{first:%Y-%m-%d %H:%M} is left to keelmq analytics run"
    )
