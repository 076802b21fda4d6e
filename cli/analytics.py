"""`keelmq analytics run` and `keelmq report`: from telemetry files to Parquet tables and an HTML page."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

DASHBOARD = "dashboard.json"
ANALYTICS = "analytics"
REPORT = "report.html"
FETCH = "./run keelmq analytics --help (in a checkout), or pip install 'keelmq[analytics]'"

app = typer.Typer(no_args_is_help=True, help="Compute lag, SyncStateSet and fail-over tables with Spark.")


@app.command("run")
def run_command(
    source: Annotated[
        str, typer.Option("--input", help="Directory with telemetry folders in it, or a URL that Spark reads")
    ],
    output: Annotated[str, typer.Option("--output", help="Directory for Parquet tables and dashboard.json")],
    window_ms: Annotated[
        int | None,
        typer.Option("--window-ms", min=1_000, help="Width of a window, ms (default: from the span of time)"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object: path and row counts")
    ] = False,
) -> None:
    """Read every telemetry file below --input; write Parquet tables and dashboard.json below --output."""
    path = compute(source, output, window_ms=window_ms)
    found = json.loads(path.read_bytes())
    if as_json:
        print(json.dumps({"dashboard": str(path), "groups": len(found["groups"]), "rows": found["rows"]}))
    else:
        read = ", ".join(f"{count:,} {name}" for name, count in found["rows"].items() if count)
        print(f"{path}: {len(found['groups'])} groups from {read}")


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
) -> None:
    """Write one self-contained HTML page: lag over time, SyncStateSet membership, every fail-over."""
    if not directory.is_dir():
        raise refused(f"{directory} is not a directory; give one that contains telemetry folders")
    computed = directory / DASHBOARD
    if not computed.exists():
        computed = compute(str(directory), str(directory / ANALYTICS))
    path = output or directory / REPORT
    try:
        page = _page(computed.read_bytes(), title)
        path.write_text(page, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise refused(str(error)) from None
    print(path)


def _page(dashboard: bytes, title: str) -> str:
    from keelmq.web import report_html

    return report_html(dashboard, title=title)


def compute(source: str, output: str, *, window_ms: int | None = None) -> Path:
    """Runs the Spark job; returns the path of its dashboard.json. If it fails, one line ends the program."""
    from analytics.errors import AnalyticsError

    try:
        from analytics.job import run
    except ModuleNotFoundError as error:
        raise refused(f"{error.name} is not installed: {FETCH}") from None
    try:
        return run(source, output, window_ms=window_ms, progress=_progress)
    except AnalyticsError as error:
        raise refused(str(error)) from None


def _progress(text: str) -> None:
    print(f"analytics: {text}", file=sys.stderr, flush=True)


def refused(text: str) -> typer.Exit:
    """Prints one line on standard error and returns the exit with code 1, for the caller to raise."""
    print(f"keelmq: {text}", file=sys.stderr)
    return typer.Exit(1)
