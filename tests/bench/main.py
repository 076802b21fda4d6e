"""`keelmq bench SUITE [--json] [OPTIONS]`: measures one suite, or `all`, and prints the figures."""

import importlib
import sys
from typing import Any

from tests.bench.every_suite import run_all
from tests.bench.native import BenchError
from tests.bench.report import print_json, print_table

SUITES = (
    "codec",
    "send",
    "send_tls",
    "send_acl",
    "pull",
    "grpc",
    "flush",
    "replication",
    "replica_behind",
    "failover",
    "telemetry",
    "controller",
    "start",
    "idle",
    "memory",
    "container",
    "scale",
    "analytics",
    "analytics_stream",
)
ALL = "all"
OPTIONS = {
    "size_mib": ("--size", ("replica_behind", "memory")),
    "rows": ("--rows", ("analytics",)),
    "secure": ("--secure", ("failover",)),
    "load": ("--load", ("failover",)),
    "messages": ("--messages", ("failover",)),
    "rounds": ("--rounds", ("failover",)),
    "offsets": ("--offsets", ("failover",)),
    "topics": ("--topics", ("failover",)),
    "container": ("--container", ("failover",)),
    "features": ("--features", ("failover",)),
}
"""Parameter of a suite's run() -> its option, and the suites that have it."""


def run(suite: str, as_json: bool = False, **options: Any) -> int:
    """The exit code. The JSON object is the last line of stdout. options: of OPTIONS; None and False: not
    given. A suite may have show(results), which prints its table, and faults(results), the figures that break
    a promise: they end it with 1."""
    if suite not in (*SUITES, ALL):
        print(f"keelmq bench: no suite {suite!r}; there are {', '.join(SUITES)}, and {ALL}", file=sys.stderr)
        return 2
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    for name in given:
        option, suites = OPTIONS[name]
        if suite not in suites:
            print(f"keelmq bench: {option} is for {', '.join(suites)}", file=sys.stderr)
            return 2
    if suite == ALL:
        return run_all(SUITES, as_json=as_json)
    module = importlib.import_module(f"tests.bench.{suite}")
    try:
        results = module.run(**given)
    except BenchError as error:
        print(f"keelmq bench {suite}: {error}", file=sys.stderr)
        return 1
    show = getattr(module, "show", print_table)
    show(results)
    faults = module.faults(results) if hasattr(module, "faults") else []
    for fault in faults:
        print(f"keelmq bench {suite}: {fault}", file=sys.stderr)
    if as_json:
        print_json(results)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], as_json="--json" in sys.argv))
