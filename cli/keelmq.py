"""keelmq: demo, doctor, report, benchmarks, version. Exit codes: 0 done, 1 failed, 2 usage."""

import importlib
import importlib.metadata
import sys
from pathlib import Path
from typing import Annotated

import typer

from cli import analytics
from cli.doctor.command import doctor

BENCH_SUITES = ("codec", "send", "replication", "failover", "telemetry")

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="KeelMQ: see it fail over, measure it.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def demo(
    kills: Annotated[int, typer.Option("--kills", min=0, help="How often the master is killed")] = 3,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the cluster running and print commands to use it")
    ] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Log lines instead of a live screen")] = False,
    rate: Annotated[int, typer.Option("--rate", min=1, help="Messages per second")] = 1_000,
) -> None:
    """A cluster of real processes under traffic loses its masters, and nothing that was acknowledged."""
    from cli.demo import DemoOptions, run_demo

    raise typer.Exit(run_demo(DemoOptions(kills=kills, keep=keep, plain=plain, rate=rate)))


app.add_typer(analytics.app, name="analytics")
app.command("report")(analytics.report)
app.command("doctor")(doctor)


@app.command()
def bench(
    suite: Annotated[
        str, typer.Argument(metavar="SUITE", help="What to measure: " + ", ".join(BENCH_SUITES))
    ],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object as the last line")] = False,
) -> None:
    """Run a benchmark suite (from a source checkout only)."""
    root = Path(__file__).resolve().parent.parent
    if not (root / "tests" / "bench" / "main.py").exists():
        print(
            f"keelmq bench: no benchmarks beside {root}: they are in the source tree only; "
            "clone the repository and use ./run keelmq bench",
            file=sys.stderr,
        )
        raise typer.Exit(1)
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    run = importlib.import_module("tests.bench.main").run
    raise typer.Exit(int(run(suite, as_json=as_json) or 0))


@app.command()
def version() -> None:
    """Print the version."""
    print(f"keelmq {importlib.metadata.version('keelmq')}")


def main() -> None:
    app(prog_name="keelmq")


if __name__ == "__main__":
    main()
