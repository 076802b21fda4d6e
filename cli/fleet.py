"""`keelmq analytics generate`: telemetry of an invented fleet, with incidents that are written down."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from cli.command_line import print, refused

HOUR_MS = 3_600_000
FROM_TS = 1_767_225_600_000


def generate(
    output: Annotated[Path, typer.Option("--output", help="Directory to write to")],
    groups: Annotated[int, typer.Option("--groups", help="Broker groups, of three replicas each")] = 100,
    hours: Annotated[int, typer.Option("--hours", help="Hours of history")] = 24,
    incidents: Annotated[
        str, typer.Option("--incidents", help="Kinds to plant, with commas; all; none")
    ] = "all",
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same fleet")] = 1,
    from_ms: Annotated[
        int, typer.Option("--from-ms", min=0, help="Begin of the history, ms UTC; of a whole hour")
    ] = FROM_TS,
    every_ms: Annotated[
        int, typer.Option("--every-ms", min=1_000, max=60_000, help="Between two samples of a broker, ms")
    ] = 1_000,
    parquet: Annotated[bool, typer.Option("--parquet", help="Write compacted tables")] = False,
    rollup: Annotated[
        bool, typer.Option("--rollup", help="Write roll-ups and page files: seconds for 1,000 groups")
    ] = False,
) -> None:
    """Write telemetry of an invented fleet, and incidents.json: which incidents it has, where and when."""
    if from_ms % HOUR_MS:
        raise refused(f"--from-ms {from_ms} is not the begin of an hour; a multiple of {HOUR_MS} is")
    try:
        from analytics.engine.sessions import spark_engine
        from analytics.errors import AnalyticsError
        from analytics.fleet import files
        from analytics.fleet.plan import KINDS, plan
        from analytics.fleet.rollup import write_rollups
        from analytics.fleet.tables import write_fleet_tables
        from analytics.pages import write_pages
    except ModuleNotFoundError as error:
        raise refused(f"{error.name} is not installed: pip install 'keelmq[analytics]'") from None
    kinds = {"all": KINDS, "none": ()}.get(incidents, tuple(filter(None, incidents.split(","))))
    try:
        fleet = plan(seed, groups=groups, hours=hours, kinds=kinds, from_ts=from_ms)
        if rollup:
            write_rollups(fleet, output)
            with spark_engine(progress=_progress) as spark:
                write_fleet_tables(spark, fleet, output)
            write_pages(output, progress=_progress)
        elif parquet:
            files.write_compacted(fleet, output, every_ms=every_ms, progress=_progress)
        else:
            files.write_telemetry(fleet, output, every_ms=every_ms, progress=_progress)
        path = files.write_incidents(fleet, output)
    except (ValueError, AnalyticsError) as error:
        raise refused(str(error)) from None
    except OSError as error:
        raise refused(f"cannot write {output}: {error.strerror or error}") from None
    print(f"{path}: {len(fleet.incidents())} incidents in {groups:,} groups, {hours} h")


def _progress(text: str) -> None:
    print(f"generate: {text}", file=sys.stderr, flush=True)
