"""`keelmq analytics` and `keelmq report`: from telemetry to Parquet tables, page files and one HTML page."""

import json
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analytics.errors import AnalyticsError
from cli.command_line import print, refused
from cli.fleet import generate
from keelmq.runtime.program import stopped_by_signal

if TYPE_CHECKING:
    from analytics.upload import Copy
    from keelmq.web.page_files import Index

CURRENT = "current.json"
ANALYTICS = "analytics"
REPORT = "report.html"
FETCH = "./run keelmq analytics --help (in a checkout), or pip install 'keelmq[analytics]'"
FETCH_COMPACT = "pip install 'keelmq[compact]', or ./run keelmq analytics --help (in a checkout)"

app = typer.Typer(no_args_is_help=True, help="Compute lag, SyncStateSet and fail-over tables.")


EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="embedded|spark|connect",
        help="What computes: in this process without Java (the default), Spark, or a Spark Connect server",
    ),
]
MasterOption = Annotated[
    str | None,
    typer.Option("--master", help="Spark master URL, local[2] or a cluster's: --engine spark"),
]
RemoteOption = Annotated[
    str | None, typer.Option("--remote", help="Spark Connect server, sc://HOST:PORT: --engine connect")
]
ConfOption = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="Setting of the engine; may be repeated"),
]


@contextmanager
def _one_line(install: str) -> Iterator[None]:
    """Ends the program with one line if analytics fails, or lacks a package, which `install` provides."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise refused(f"{error.name} is not installed: {install}") from None
    except AnalyticsError as error:
        raise refused(str(error)) from None


app.command("generate")(generate)


@app.command("run")
def run_command(
    source: Annotated[str, typer.Option("--input", help="Directory or URL with telemetry folders in it")],
    output: Annotated[
        str, typer.Option("--output", help="Directory or URL for Parquet tables and page files")
    ],
    window_ms: Annotated[
        int | None,
        typer.Option("--window-ms", min=1_000, help="Width of a window, ms (default: from the span of time)"),
    ] = None,
    from_time: Annotated[
        str | None, typer.Option("--from", help="UTC time, 2026-01-31T05: nothing of an earlier hour")
    ] = None,
    to_time: Annotated[
        str | None, typer.Option("--to", help="UTC time: nothing of an hour that begins then or later")
    ] = None,
    every_minutes: Annotated[
        float | None,
        typer.Option("--every-minutes", min=1, help="How often this runs: pages say if they are stale"),
    ] = None,
    keep_days: Annotated[
        int | None,
        typer.Option("--keep-days", min=1, help="Delete days before the newest so many (default: keep all)"),
    ] = None,
    engine: EngineOption = None,
    master: MasterOption = None,
    remote: RemoteOption = None,
    conf: ConfOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object: path and row counts")
    ] = False,
) -> None:
    """Read all telemetry below --input; add what is new to the tables and pages below --output."""
    from_ts, to_ts = _span_ms(from_time, to_time)
    path = compute(
        source,
        output,
        window_ms=window_ms,
        from_ts=from_ts,
        to_ts=to_ts,
        interval_ms=None if every_minutes is None else round(every_minutes * 60_000),
        keep_days=keep_days,
        engine=engine,
        master=master,
        remote=remote,
        conf=_settings(conf or []),
    )
    with _one_line(FETCH):
        index = _index(output)
    read = {row["record"]: row["rows"] for row in index.quality if row.get("rows")}
    if as_json:
        print(json.dumps({"pages": path, "groups": index.groups_total, "rows": read}))
    else:
        rows = ", ".join(f"{count:,} {name}" for name, count in read.items())
        print(f"{path}: {index.groups_total} groups from {rows}; {index.incidents_total} incidents")


def _index(output: str) -> "Index":
    from analytics.remote_output import is_url, read_index
    from keelmq.web.page_reader import PageFiles

    if is_url(output):
        return read_index(output)
    return PageFiles(Path(output.removeprefix("file://"))).generation().index


@app.command("stream")
def stream_command(
    source: Annotated[
        Path, typer.Option("--input", help="Directory with telemetry folders in it, which grow meanwhile")
    ],
    output: Annotated[Path, typer.Option("--output", help="The output directory of `keelmq analytics run`")],
    every_s: Annotated[float, typer.Option("--every", min=1, help="Seconds from one batch to the next")] = 5,
    engine: EngineOption = None,
    master: MasterOption = None,
    remote: RemoteOption = None,
    conf: ConfOption = None,
) -> None:
    """Keep the tables and pages of the last minutes, some seconds old, until SIGTERM."""
    settings = _settings(conf or [])
    with _one_line(FETCH):
        from analytics.live.app import run_stream

        run_stream(
            str(source), str(output), trigger_s=every_s, progress=_progress, engine=engine, master=master,
            remote=remote, conf=settings,
        )  # fmt: skip


@app.command("upload")
def upload_command(
    source: Annotated[
        Path,
        typer.Option("--input", help="A broker's or controller's telemetry directory, with record folders"),
    ],
    output: Annotated[
        str,
        typer.Option("--output", help="Directory or URL (s3://bucket/telemetry/NODE) of this node's copy"),
    ],
    every_s: Annotated[
        float | None,
        typer.Option("--every", min=0.1, help="Repeat every so many seconds until SIGTERM"),
    ] = None,
) -> None:
    """Copy a node's telemetry to where analytics reads it, also while its files grow."""
    with _one_line(FETCH_COMPACT):
        from analytics.compaction.storage import open_storage
        from analytics.upload import Upload

        with open_storage(output) as target:
            _keep_up(Upload(source, target), every_s)


@app.command("fetch")
def fetch_command(
    source: Annotated[str, typer.Option("--input", help="The output of `keelmq analytics run`, a URL")],
    output: Annotated[
        Path, typer.Option("--output", help="Directory for its pages: analyticsOutputDir of a name server")
    ],
    every_s: Annotated[
        float | None,
        typer.Option("--every", min=1, help="Repeat every so many seconds until SIGTERM"),
    ] = None,
) -> None:
    """Copy the newest pages from an object store to a directory, from where a name server shows them."""
    with _one_line(FETCH_COMPACT):
        from analytics.remote_output import Fetch

        _keep_up(Fetch(source, output), every_s)


def _keep_up(copy: "Copy", every_s: float | None) -> None:
    """Copies once; with `every_s` until SIGTERM. Raises AnalyticsError if the last copy fails."""
    from analytics.upload import keep_up

    stopped = threading.Event()
    if every_s is None:
        stopped.set()
    with stopped_by_signal(stopped):
        keep_up(copy, every_ms=round((every_s or 0) * 1000), stopped=stopped, progress=_progress)


@app.command("compact")
def compact_command(
    inputs: Annotated[
        list[str],
        typer.Option("--input", help="Directory or URL with telemetry folders in it; may be repeated"),
    ],
    output: Annotated[
        str, typer.Option("--output", help="Directory or URL; Parquet files are written to compacted/ below")
    ],
    from_time: Annotated[
        str | None, typer.Option("--from", help="UTC time, 2026-01-31T05: read no file of an earlier hour")
    ] = None,
    to_time: Annotated[
        str | None, typer.Option("--to", help="UTC time: read no file of an hour that begins then or later")
    ] = None,
    memory_mb: Annotated[
        int, typer.Option("--memory-mb", min=64, help="Memory above which rows go to temporary files, MiB")
    ] = 512,
    delete_sources: Annotated[
        bool,
        typer.Option("--delete-sources", help="Delete files of closed hours when their rows are durable"),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object: hours and counts")] = False,
) -> None:
    """Compact telemetry into sorted Parquet files, one per hour and table. Needs no engine."""
    from_ts, to_ts = _span_ms(from_time, to_time)
    found = _compacted(inputs, output, memory_mb << 20, (from_ts, to_ts), delete_sources=delete_sources)
    if as_json:
        print(json.dumps(found))
        return
    rows = ", ".join(f"{count:,} {name}" for name, count in found["rows"].items() if count)
    print(f"{output}: {found['hours']} hours changed" + (f"; they hold {rows}" if rows else ""))


def _compacted(
    inputs: list[str],
    output: str,
    memory_bytes: int,
    span: tuple[int | None, int | None],
    *,
    delete_sources: bool,
) -> dict[str, Any]:
    """Returns the counts of the hours that changed. If it fails, one line ends the program."""
    with _one_line(FETCH_COMPACT):
        from analytics.compaction import compactor, retention, scan

        sources = scan.find_sources(inputs)
        hours = compactor.compact(
            sources,
            output,
            progress=_progress,
            memory_bytes=memory_bytes,
            from_ts=span[0],
            to_ts=span[1],
        )
        deleted = retention.delete_sources(sources, output, progress=_progress) if delete_sources else 0
    counts = [(kind, each) for hour in hours for kind, each in hour.counts.items()]
    return {
        "hours": len(hours),
        "rows": _sums((kind, each.rows) for kind, each in counts),
        "duplicates": _sums((kind, each.duplicates) for kind, each in counts),
        "bad_lines": _sums((kind, sum(each.bad_lines.values())) for kind, each in counts),
        "not_read": len(sources.not_read),
        "deleted_sources": deleted,
    }


def _sums(counts: Iterable[tuple[str, int]]) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for name, count in counts:
        sums[name] += count
    return dict(sums)


def _span_ms(from_time: str | None, to_time: str | None) -> tuple[int | None, int | None]:
    from_ts, to_ts = _utc_ms("--from", from_time), _utc_ms("--to", to_time)
    if from_ts is not None and to_ts is not None and from_ts >= to_ts:
        raise refused(f"--from {from_time} --to {to_time}: --from must be before --to")
    return from_ts, to_ts


def _utc_ms(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise refused(f"{option} {text}: give a UTC time like 2026-01-31 or 2026-01-31T05:00") from None
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def report(
    directory: Annotated[
        Path,
        typer.Argument(
            help="Directory with telemetry (of a demo or a broker), or an output of analytics run"
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help=f"HTML file; default: DIRECTORY/{REPORT}")
    ] = None,
    title: Annotated[str, typer.Option("--title", help="Title of the page")] = "KeelMQ report",
    engine: EngineOption = None,
    master: MasterOption = None,
    remote: RemoteOption = None,
    conf: ConfOption = None,
) -> None:
    """Write one self-contained HTML page: lag over time, SyncStateSet membership, every fail-over."""
    from keelmq.web import NOT_BUILT, is_built

    if not directory.is_dir():
        raise refused(f"{directory} is not a directory; give one that contains telemetry folders")
    if not is_built():
        raise refused(NOT_BUILT)
    computed = directory
    if not (directory / CURRENT).exists():
        computed = directory / ANALYTICS
        if _is_older(computed / CURRENT, directory):
            settings = _settings(conf or [])
            compute(str(directory), str(computed), engine=engine, master=master, remote=remote, conf=settings)
    path = output or directory / REPORT
    try:
        path.write_text(_page(computed, title), encoding="utf-8")
    except OSError as error:
        raise refused(f"cannot write {path}: {error.strerror or error}") from None
    print(path)


def _is_older(current: Path, directory: Path) -> bool:
    """Returns whether there is telemetry below the directory that is newer than these pages."""
    try:
        computed_ns = current.stat().st_mtime_ns
        return any(
            path.stat().st_mtime_ns > computed_ns
            for path in directory.rglob("*.jsonl*")
            if current.parent not in path.parents
        )
    except FileNotFoundError:  # there are no pages; or its writer has renamed a file meanwhile
        return True


def _page(directory: Path, title: str) -> str:
    from keelmq.web import report_html
    from keelmq.web.page_reader import NoPagesError, PageFileError, PageFiles, RangeError

    try:
        return report_html(PageFiles(directory), title=title)
    except NoPagesError as error:
        raise refused(f"there is no {error}: the records name no broker group") from None
    except (PageFileError, RangeError) as error:
        raise refused(f"{error}; write it again: keelmq analytics run") from None


def _settings(texts: list[str]) -> dict[str, str]:
    """Returns the settings of --conf options. If one is not KEY=VALUE, one line ends the program."""
    found = {}
    for text in texts:
        key, is_pair, value = text.partition("=")
        if not is_pair or not key.strip():
            raise refused(f"--conf {text}: give KEY=VALUE, for example spark.executor.memory=4g")
        found[key.strip()] = value
    return found


def compute(source: str, output: str, **options: Any) -> str:
    """Runs the job; returns the path or URL of current.json. If it fails, one line ends the program."""
    with _one_line(FETCH):
        from analytics.job import run

        return run(source, output, progress=_progress, **options)


def _progress(text: str) -> None:
    print(f"analytics: {text}", file=sys.stderr, flush=True)
