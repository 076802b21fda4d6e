"""The keelmq command: demo, chaos, doctor, repair, reports and benchmarks. Exit codes: 0 done, 1 failed, 2
usage."""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from cli import analytics_commands
from cli.answer import run_answering
from cli.audit import audit
from cli.backup.command import backup, restore
from cli.certificates import certificates
from cli.command_line import print
from cli.console import console
from cli.container import app as container
from cli.convert_config.command import convert_config
from cli.doctor.command import doctor
from cli.init_security import init_security
from cli.machines.init import init
from cli.rebalance.command import rebalance_masters
from cli.repair import repair
from cli.status.command import status
from cli.status.top import top
from cli.tls_options import add_program_options
from cli.upgrade.command import upgrade
from cli.verify.command import verify
from keelmq.runtime.compiled import built_report
from keelmq.runtime.program import version_line

BENCH_SUITES = (
    "codec", "send", "send_tls", "send_acl", "pull", "grpc", "flush", "replication", "replica_behind",
    "failover", "telemetry", "controller", "start", "idle", "memory", "container", "scale",
    "analytics", "analytics_stream", "all",
)  # fmt: skip

SecureOption = Annotated[
    bool,
    typer.Option(
        "--secure",
        help="TLS, signed requests, ACLs and member credentials, as set up by keelmq init-security",
    ),
]

BurstOption = Annotated[
    int,
    typer.Option(
        "--burst-messages", min=0, max=4_000_000, help="Messages of all bursts of full load (0: none)"
    ),
]

ProcessesOption = Annotated[
    int, typer.Option("--processes", min=1, max=16, help="With --container: containerProcesses")
]

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="KeelMQ: demonstrate fail-over, check, repair and measure it.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


add_program_options(app, "keelmq")


@app.command()
def demo(
    kills: Annotated[int, typer.Option("--kills", min=0, help="How many times the master is killed")] = 3,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the cluster running and print commands to use it")
    ] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Log lines instead of a live screen")] = False,
    rate: Annotated[int, typer.Option("--rate", min=1, help="Messages per second")] = 1_000,
    secure: SecureOption = False,
    container: Annotated[
        bool,
        typer.Option("--container", help="Two containers with two groups; one of the two machines is killed"),
    ] = False,
    grpc: Annotated[
        bool,
        typer.Option("--grpc", help="Two proxies, and gRPC clients of them, with at most 300 messages/s"),
    ] = False,
    processes: ProcessesOption = 1,
) -> None:
    """Kill the masters of a cluster of real processes under traffic: no acknowledged message is lost."""
    if container:
        from cli.lab.container_demo import ContainerDemoOptions, run_container_demo

        if keep:
            raise typer.BadParameter("--keep and --container: not together; see docs/container.md")
        if grpc:
            raise typer.BadParameter("--grpc and --container: not together")
        options = ContainerDemoOptions(kills=kills, rate=rate, processes=processes, secure=secure)
        raise typer.Exit(run_container_demo(options))
    from cli.lab.demo import DemoOptions, run_demo

    if grpc and secure:
        raise typer.BadParameter("--grpc and --secure: not together")
    demo_options = DemoOptions(kills=kills, keep=keep, plain=plain, rate=rate, secure=secure, grpc=grpc)
    raise typer.Exit(run_demo(demo_options))


@app.command()
def chaos(
    minutes: Annotated[float, typer.Option("--minutes", min=0.1, help="How long faults are injected")] = 5.0,
    faults: Annotated[
        int | None, typer.Option("--faults", min=1, help="How many faults (default: as many as fit)")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, help="Seed of the random choices (default: random, and printed)"),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            "--only",
            metavar="KINDS",
            help="Any of kill,stop,restart,partition,address,disk,slow,clock,power (default: these), "
            "with --grpc proxy, and flip,zero,truncate,lose, which damage files of one replica",
        ),
    ] = None,
    min_in_sync: Annotated[
        int, typer.Option("--min-in-sync", min=1, max=3, help="minInSyncReplicas of the brokers")
    ] = 1,
    sync_flush: Annotated[
        bool, typer.Option("--sync-flush", help="SYNC_FLUSH instead of ASYNC_FLUSH")
    ] = False,
    rate: Annotated[int, typer.Option("--rate", min=1, help="Messages per second")] = 300,
    burst_messages: BurstOption = 1_000_000,
    plain: Annotated[bool, typer.Option("--plain", help="Log lines instead of a live screen")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep data and logs of a successful run as well")
    ] = False,
    secure: SecureOption = False,
    container: Annotated[
        bool,
        typer.Option("--container", help="Every broker is in a container, beside one of another group"),
    ] = False,
    processes: ProcessesOption = 1,
    grpc: Annotated[
        bool, typer.Option("--grpc", help="Also two proxies, killed as well, and gRPC clients of them")
    ] = False,
    check: Annotated[
        Path | None, typer.Option("--check", metavar="FILE", help="Check this history again, without a run")
    ] = None,
) -> None:
    """Inject faults into a cluster of real processes under traffic, and check what clients saw."""
    from cli.lab.chaos.run import ChaosOptions, run_chaos, run_check

    if check is not None:
        raise typer.Exit(run_check(check))
    families = tuple(part.strip() for part in only.split(",") if part.strip()) if only else ()
    raise typer.Exit(
        run_chaos(
            ChaosOptions(
                minutes=minutes,
                faults=faults,
                seed=seed,
                families=families,
                min_in_sync=min_in_sync,
                sync_flush=sync_flush,
                rate=rate,
                burst_messages=burst_messages,
                plain=plain,
                keep=keep,
                secure=secure,
                container=container,
                processes=processes,
                grpc=grpc,
            )
        )
    )


app.add_typer(analytics_commands.app, name="analytics")
app.command("report")(analytics_commands.report)
app.command("status")(status)
app.command("top")(top)
app.command("doctor")(doctor)
app.command("convert-config")(convert_config)
app.command("audit")(audit)
app.command("console")(console)
app.command("init")(init)
app.command("init-security")(init_security)
app.command("certificates")(certificates)
app.command("repair")(repair)
app.add_typer(backup, name="backup")
app.add_typer(restore, name="restore")
app.command("verify")(verify)
app.add_typer(container, name="container")
app.command("rebalance-masters")(rebalance_masters)
app.command("upgrade")(upgrade)


@app.command()
def bench(
    suite: Annotated[
        str, typer.Argument(metavar="SUITE", help="What to measure: " + ", ".join(BENCH_SUITES))
    ],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object as the last line")] = False,
    size_mib: Annotated[
        int | None,
        typer.Option(
            "--size",
            min=64,
            metavar="MIB",
            help="replica_behind: how far the replica is behind; memory: size of the log",
        ),
    ] = None,
    secure: Annotated[bool, typer.Option("--secure", help="failover: as of keelmq demo")] = False,
    rows: Annotated[
        int | None, typer.Option("--rows", min=360_000, help="analytics: samples of masters, small input")
    ] = None,
    load: Annotated[
        str | None,
        typer.Option(
            "--load",
            metavar="LOAD",
            help="failover: full measures at full load and at 2,000 messages a second in turns",
        ),
    ] = None,
    messages: Annotated[
        int | None,
        typer.Option("--messages", min=10_000, help="failover --load full: acknowledged before each fault"),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help="failover --load full: kills at each load")
    ] = None,
    offsets: Annotated[
        int | None,
        typer.Option("--offsets", min=1, max=200_000, help="failover --load full: rows of consumer offsets"),
    ] = None,
    topics: Annotated[
        int | None,
        typer.Option("--topics", min=1, max=49_000, help="failover --load full: topics of the group"),
    ] = None,
    container: Annotated[
        bool, typer.Option("--container", help="failover --load full: brokers beside another group's")
    ] = False,
    features: Annotated[
        bool, typer.Option("--features", help="failover --load full: timers, transactions, pops, slaves")
    ] = False,
) -> None:
    """Run a benchmark suite (from a source checkout only)."""
    from cli.lab.ctrl_c import ends_like_ctrl_c

    if load not in (None, "calm", "full"):
        raise typer.BadParameter(f"{load!r} is not a load: calm or full", param_hint="--load")
    run = _from_source("bench").run
    with ends_like_ctrl_c():
        code = run(
            suite,
            as_json=as_json,
            size_mib=size_mib,
            secure=secure,
            rows=rows,
            load=load,
            messages=messages,
            rounds=rounds,
            offsets=offsets,
            topics=topics,
            container=container,
            features=features,
        )
    raise typer.Exit(int(code or 0))


@app.command()
def sim(
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind", help="controllers, raft, log, group, whole, secure or container (default: all)"
        ),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Number of seeds")] = 2_000,
    first: Annotated[int, typer.Option("--first", min=0, help="The first seed")] = 0,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="Processes (default: one per core)")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Run one seed and print its events")
    ] = None,
) -> None:
    """Run clusters in the simulator: loss, delay, duplication, partitions, crashes (source checkout only)."""
    run = _from_source("sim").run
    raise typer.Exit(run(kind, seeds=seeds, first=first, jobs=jobs, seed=seed))


@app.command()
def fuzz(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="frames, http, security or grpc")],
    count: Annotated[
        int, typer.Option("--count", min=1, help="Number of frames, requests or inputs")
    ] = 100_000,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the random choices")] = 0,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            help="Of frames: namesrv, controller, broker or replica; of security: docs/testing.md "
            "(default: all)",
        ),
    ] = None,
) -> None:
    """Send malformed requests to every handler, or hostile input to the security code or the gRPC port, on
    this machine only (source checkout only)."""
    raise typer.Exit(_from_source("fuzz").run(what, count=count, seed=seed, target=target))


def _from_source(folder: str) -> ModuleType:
    """Returns the module tests.FOLDER.main. Without a source checkout: one line that says so, exit code 1."""
    root = Path(__file__).resolve().parent.parent
    if not (root / "tests" / folder / "main.py").exists():
        print(
            f"keelmq {folder}: needs a source checkout, because it runs tests/{folder}, which the installed "
            f"package does not have: clone the repository and use ./run keelmq {folder}",
            file=sys.stderr,
        )
        raise typer.Exit(1)
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return importlib.import_module(f"tests.{folder}.main")


@app.command()
def version() -> None:
    """Print the version, and whether the modules of the data path are compiled."""
    print(version_line("keelmq"))
    print(built_report())


def main() -> None:
    """Runs the keelmq command; the process ends with its exit code."""
    run_answering("keelmq", lambda: app(prog_name="keelmq"))


if __name__ == "__main__":
    main()
